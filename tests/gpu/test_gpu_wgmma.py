# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Products of warp groups on the hardware: every type, size, major and source, bit for bit as the plain definition says."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import launcher
from wgmma_testing import SUMS, Case, operands, product_kernel, spread, spread_a, values

import kiln.cute as cute
from kiln.cute.runtime import from_dlpack
from kiln.dialects.nvgpu import definitions
from kiln.hardware import mma_shapes

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="wgmma is of sm_90a"
    ),
]


def run(kernel, *arrays: np.ndarray) -> None:
    """Launch a kernel of one warp group; the arrays are what it leaves."""
    tensors = [torch.from_numpy(array.copy()).cuda() for array in arrays]
    arguments = [from_dlpack(tensor) for tensor in tensors]
    cute.compile(launcher(kernel, len(arrays), grid=1, block=128), *arguments)(*arguments)
    for array, tensor in zip(arrays, tensors, strict=True):
        array[...] = tensor.cpu().numpy()


def check(
    case: Case, any_bits: bool = False, accumulate: bool = True, c: np.ndarray | None = None, a=None, b=None
) -> None:
    """Compare a product with the definition, and print how far it is from the exact one."""
    drawn = operands(case, any_bits)
    a, b = drawn[0] if a is None else a, drawn[1] if b is None else b
    if c is None:
        c = (np.random.default_rng(9).standard_normal((64, case.n)) * 4).astype(SUMS[case.sums][1])
    out = np.zeros((128, case.n // 2), c.dtype)
    run(product_kernel(case, accumulate), case.image(a, b), spread_a(case, a), spread(case.n, c), out)
    start = c if accumulate else np.zeros_like(c)
    x, y = values(case.a_type, a), values(case.b_type, b)
    wanted = spread(case.n, definitions.wgmma(case.a_type, case.b_type, case.sums, x, y, start))
    with np.errstate(all="ignore"):
        exact = spread(case.n, x.astype(np.float64) @ y.astype(np.float64) + start.astype(np.float64))
        scale = spread(case.n, np.abs(x).astype(np.float64) @ np.abs(y) + np.abs(start.astype(np.float64)))
        errors = np.abs(out.astype(np.float64) - exact) / scale
        worst = np.nanmax(np.where(np.isfinite(exact), errors, 0))
    differ = ~((out == wanted) | (np.isnan(out) & np.isnan(wanted)))
    print(
        f"{case}: largest error {worst:.3g} of the sum of magnitudes; {differ.sum()} of {differ.size} differ from the definition"
    )
    if differ.any():
        places = np.argwhere(differ)[:5]
        shown = [(tuple(p), float(out[tuple(p)]), float(wanted[tuple(p)]), float(exact[tuple(p)])) for p in places]
        pytest.fail(f"{case}: {differ.sum()} of {differ.size} differ: (place, hardware, definition, exact) {shown}")


TYPES = [
    (a, b, sums)
    for row in mma_shapes.MMA_ROWS
    if row.instruction == "wgmma"
    for a in row.inputs
    for b in row.inputs
    for sums in row.accumulators
]


@pytest.mark.parametrize(("a", "b", "sums"), TYPES)
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("any_bits", [False, True])
def test_types(a, b, sums, in_registers, any_bits):
    check(Case(a, b, sums, 64, a_in_registers=in_registers), any_bits)
    check(Case(a, b, sums, 16, a_in_registers=in_registers), any_bits, accumulate=False)


@pytest.mark.parametrize(
    ("kind", "sums"), [("f16", "f32"), ("f16", "f16"), ("tf32", "f32"), ("e4m3", "f32"), ("s8", "s32")]
)
def test_all_sizes(kind, sums):
    k = 256 // mma_shapes.BITS[kind]
    for shape in mma_shapes.shapes("wgmma", kind):
        assert shape[2] == k
        check(Case(kind, kind, sums, shape[1]))


@pytest.mark.parametrize("swizzle", ["none", "32b", "64b", "128b"])
@pytest.mark.parametrize(("a_major", "b_major"), [("k", "k"), ("mn", "k"), ("k", "mn"), ("mn", "mn")])
@pytest.mark.parametrize("n", [64, 256])
def test_majors_and_swizzles(swizzle, a_major, b_major, n):
    check(Case("bf16", "bf16", "f32", n, a_major, b_major, swizzle))


@pytest.mark.parametrize("swizzle", ["none", "32b", "64b"])
@pytest.mark.parametrize("kind", ["tf32", "e5m2", "u8"])
def test_swizzles_of_other_sizes(swizzle, kind):
    check(Case(kind, kind, "s32" if kind == "u8" else "f32", 32, swizzle=swizzle))


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
def test_what_is_not_finite_tiny_or_too_large(kind):
    case = Case(kind, kind, "f32", 16)
    a, b = operands(case)
    exponent, fraction = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 23), "e4m3": (4, 3), "e5m2": (5, 2)}[kind]
    infinite = ((1 << exponent) - 1) << fraction
    a[1, 3], a[2, 0], a[3, 5] = infinite, infinite | 1 << (fraction - 1), infinite | 1 << (fraction + exponent)
    a[4], a[5], a[6], a[7] = infinite - 1 - (kind == "e4m3"), 1 << fraction, 1, 0
    b[3, 4], b[5, 4] = 0, 0
    b[:, 7] = infinite - 1 - (kind == "e4m3")
    b[:, 9] = 1
    c = np.zeros((64, 16), np.float32)
    c[8, 2], c[9, 3], c[10], c[11], c[7, :8] = np.inf, np.nan, 3e38, 1e-44, -0.0
    check(case, c=c, a=a, b=b)


def test_f16_sums_that_are_too_large_or_tiny():
    case = Case("f16", "f16", "f16", 16)
    a, b = operands(case)
    a[1], a[2] = 0x7800, 0x0001
    c = np.zeros((64, 16), np.float16)
    c[3], c[4] = 65504, 6e-8
    check(case, c=c, a=a, b=b)


@pytest.mark.parametrize("kind", ["f16", "bf16", "e4m3"])
def test_terms_of_very_different_sizes(kind):
    """Where each term is cut off decides: C from far below the products to far above them."""
    case = Case(kind, kind, "f32", 64)
    for power in (-30, -20, -12, 0, 8, 12, 14, 20, 26):
        c = (np.random.default_rng(power + 50).standard_normal((64, 64)) * 2.0**power).astype(np.float32)
        check(case, c=c)
