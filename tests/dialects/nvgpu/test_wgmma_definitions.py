"""Plain definitions that other tests take for granted, against what the manual says and against exact sums."""

from __future__ import annotations

import numpy as np
import pytest

from kiln.dialects.nvgpu import definitions


@pytest.mark.parametrize("swizzle", ["none", "128b", "64b", "32b"])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_elements_of_an_operand_lie_at_addresses_of_their_own(swizzle, major):
    """Two blocks each way, packed: all bytes of the operand once, within the space that it takes."""
    rows, k = 128, 16
    row_bytes = {"none": 16, "128b": 128, "64b": 64, "32b": 32}[swizzle]
    if major == "k":  # blocks of 8 rows; without a swizzle the second chunk of k follows all rows
        leading, stride = (rows * 16, 128) if swizzle == "none" else (16, 8 * row_bytes)
    else:
        repeats = rows * 2 // row_bytes
        leading, stride = (8 * 16 * repeats, 128) if swizzle == "none" else (8 * row_bytes, 8 * row_bytes * repeats)
    start = 1024
    descriptor = definitions.matrix_descriptor(start, leading, stride, swizzle)
    places = {definitions.operand_address(descriptor, major, 16, r, c) for r in range(rows) for c in range(k)}
    assert len(places) == rows * k and all(place % 2 == 0 for place in places)
    if major == "mn" or row_bytes <= 32:  # a wider row holds more of k than one product takes
        assert (min(places), max(places)) == (start, start + rows * k * 2 - 2)


def test_a_step_along_k_adds_32_bytes_to_the_address():
    """The swizzle is one of absolute addresses."""
    first = definitions.matrix_descriptor(1024, 16, 1024, "128b")
    for row in range(64):
        for k in range(16):
            wanted = definitions.operand_address(first, "k", 16, row, 16 + k)
            assert definitions.operand_address(first + 2, "k", 16, row, k) == wanted


def test_threads_share_out_all_elements_of_a_product():
    c = [place for t in range(128) for place in definitions.wgmma_c_places(24, t)]
    assert sorted(c) == [(row, column) for row in range(64) for column in range(24)]
    assert definitions.wgmma_c_places(16, 37) == [
        (16 + 1, 2), (16 + 1, 3), (16 + 9, 2), (16 + 9, 3), (16 + 1, 10), (16 + 1, 11), (16 + 9, 10), (16 + 9, 11),
    ]  # fmt: skip
    for k, bits in ((16, 16), (32, 8), (8, 32)):
        a = [place for t in range(128) for place in definitions.wgmma_a_places(k, bits, t)]
        assert sorted(a) == [(row, column) for row in range(64) for column in range(k)]


@pytest.mark.parametrize(
    ("kind", "sums", "bound"), [("f16", "f32", 2.0**-22), ("bf16", "f32", 2.0**-22), ("e4m3", "f32", 2.0**-10), ("f16", "f16", 2.0**-11)]
)  # fmt: skip
def test_sums_of_a_product_are_close_and_cut_off(kind, sums, bound):
    rng = np.random.default_rng(1)
    k = 32 if kind == "e4m3" else 16
    bits = {"f16": 10, "bf16": 7, "e4m3": 3}[kind]
    a, b = (rng.integers(-(1 << bits), 1 << bits, shape) / 2.0**bits for shape in ((64, k), (k, 8)))
    c = rng.integers(-100, 100, (64, 8)) / 64
    got = definitions.wgmma(kind, kind, sums, a, b, c)
    exact, scale = a @ b + c, np.abs(a) @ np.abs(b) + np.abs(c)
    assert (np.abs(got - exact) <= scale * bound * 2).all()
    if kind == "f16":
        rounded = exact.astype(np.float16 if sums == "f16" else np.float32)
        assert (got == rounded).all()  # few bits: nothing is lost


def test_what_is_far_below_the_largest_term_is_cut_off():
    ones = np.ones((1, 16))
    tiny = np.full((16, 1), 2.0**-13)
    assert definitions.wgmma("f16", "f16", "f32", ones, tiny, [[2.0**12]]) == 2.0**12 + 16 * 2.0**-13
    assert definitions.wgmma("f16", "f16", "f32", ones, tiny, [[2.0**13]]) == 2.0**13  # each is 2^-26 of it
    assert (
        definitions.wgmma("f16", "f16", "f32", ones[:, :3], tiny[:3], [[2.0**12]]) == 2.0**12
    )  # f32 has steps of 2^-11
    assert definitions.wgmma("f16", "f16", "f32", ones[:, :1], tiny[:1], [[-(2.0**12)]]) == -(2.0**12 - 2.0**-12)
    assert definitions.wgmma("e4m3", "e4m3", "f32", ones, np.full((16, 1), 0.125), [[2.0**11]]) == 2.0**11
    assert definitions.wgmma("e4m3", "e4m3", "f32", ones, np.full((16, 1), 0.25), [[2.0**11]]) == 2.0**11 + 4


def test_infinities_wrapping_and_rounding_to_f16():
    one = np.ones((1, 1))
    assert definitions.wgmma("f16", "f16", "f32", one * np.inf, one, [[1.0]]) == np.inf
    assert np.isnan(definitions.wgmma("f16", "f16", "f32", one * np.inf, one, [[-np.inf]]))
    assert definitions.wgmma("f16", "f16", "f16", one * 60000, one * 2, [[0.0]]) == np.inf
    assert definitions.wgmma("f16", "f16", "f16", one, one * 2.0**-11, [[1.0]]) == 1.0  # to even
    assert definitions.wgmma("s8", "s8", "s32", one * 127, one, [[(1 << 31) - 1]]) == -(1 << 31) + 126
