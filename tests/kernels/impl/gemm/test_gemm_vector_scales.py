"""GEMM of 8- and 4-bit floats with scale factors for vectors along K (mxfp8, mxfp4, nvfp4), in rows or in atoms, on the CPU target."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gemm_arrays import operand

import kiln
from kiln import cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError

E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
F16, F32 = np.float16, np.float32
CONFIGS = [
    kernels.Sm100GemmConfig((256, 128, 128), (2, 1), 2, 2, 2, 2),
    kernels.Sm100GemmConfig((128, 256, 128), (1, 1), 2, 1, 2, 2, pair=False, dynamic=True),
    kernels.Sm100GemmConfig((256, 256, 128), (2, 1), 2, 1, 2, 2, dynamic=True),
    kernels.Sm100GemmConfig((128, 128, 128), (1, 1), 3, 2, 2, 1, pair=False),
]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    with kiln.target("cpu"):
        yield


def scales(rows: int, k: int, batch: tuple[int, ...] = ()) -> np.ndarray:
    return np.exp2(RNG.integers(-7, 8, (*batch, rows, k // 32))).astype(E8M0)


def atoms(plain: np.ndarray) -> np.ndarray:
    """Scale factors in atoms: that of row r and vector s is at byte 16 (r % 32) + 4 (r % 128 / 32) + s % 4 of one."""
    rows, vectors = plain.shape
    blocks, depth = -(-rows // 128), -(-vectors // 4)
    out = np.zeros((blocks, depth, 512), np.uint8)
    for r in range(rows):
        for s in range(vectors):
            out[r // 128, s // 4, 16 * (r % 32) + 4 * (r % 128 // 32) + s % 4] = plain.view(np.uint8)[r, s]
    return out.reshape(-1).view(E8M0)


def scaled(x: np.ndarray, own: np.ndarray) -> np.ndarray:
    """An operand (rows, K) times its scale factors."""
    return x.astype(np.float64) * np.repeat(own.astype(np.float64), 32, -1)


def near(got: np.ndarray, left: np.ndarray, right: np.ndarray, wanted: np.ndarray | None = None) -> None:
    """Within what rounding of sums of f32 allows."""
    wanted = left @ right if wanted is None else wanted
    assert (np.abs(got - wanted) <= 2.0**-18 * (np.abs(left) @ np.abs(right)) + 1e-5).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("left", "right"), [(E4M3, E4M3), (E5M2, E4M3)])
def test_scales_of_vectors(config, left, right):
    """Several tiles for a cluster, the last ones of each mode and of K not whole."""
    m, n, k = 300, 264, 416
    a, b, of_a, of_b = operand(RNG, m, k, left), operand(RNG, k, n, right, "T"), scales(m, k), scales(n, k)
    with kiln.sanitize("all") as found:
        got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b.T, config=config)
    assert not found
    near(got, scaled(a, of_a), scaled(b.T, of_b).T)


def test_scales_in_atoms():
    """The same bits as with scales in rows; what lies behind the last row or vector does not count."""
    m, n, k = 200, 136, 160
    a, b, of_a, of_b = operand(RNG, m, k, E4M3), operand(RNG, k, n, E4M3, "T"), scales(m, k), scales(n, k)
    plain = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b.T, config=CONFIGS[0])
    for left, right in ((atoms(of_a), atoms(of_b)), (of_a, atoms(of_b)), (atoms(of_a), of_b.T)):
        assert kernels.gemm(a, b, scale_a=left, scale_b=right, config=CONFIGS[0]).tobytes() == plain.tobytes()


def test_batches_and_the_epilogue():
    """Scales of each GEMM of a batch, with everything that an epilogue does."""
    m, n, k = 140, 136, 128
    a, b = operand(RNG, m, k, E4M3, batch=(2,)), operand(RNG, k, n, E4M3, "T")
    of_a, of_b, bias, c = scales(m, k, (2,)), scales(n, k), operand(RNG, 1, n, F32)[0], operand(RNG, m, n, F32)
    got, half, squares = kernels.gemm(
        a, b, scale_a=of_a, scale_b=of_b.T, bias=bias, c=c, alpha=0.5, activation="relu",
        epilogue=lambda value: (value, value * 0.5), out_dtype=(F32, F32), row_reduction="squares", config=CONFIGS[3],
    )  # fmt: skip
    for number in range(2):
        left, right = scaled(a[number], of_a[number]), scaled(b.T, of_b).T
        wanted = np.maximum(0.5 * left @ right + c + bias, 0.0)
        near(got[number], left, right, wanted)
        near(2 * half[number], left, right, wanted)
        np.testing.assert_allclose(squares[number], (wanted**2).sum(1), rtol=1e-4)


@pytest.mark.parametrize(("config", "parts"), [(CONFIGS[0], 2), (CONFIGS[1], 3), (CONFIGS[3], 3)])
def test_split_k(config, parts):
    """Slices of K that are not equal; the second kernel runs the epilogue."""
    m, n, k = 150, 136, 416
    a, b, of_a, of_b = operand(RNG, m, k, E4M3), operand(RNG, k, n, E4M3, "T"), scales(m, k), scales(n, k)
    bias = operand(RNG, 1, n, F32)[0]
    with kiln.sanitize("all") as found:
        got = kernels.gemm(
            a, b, scale_a=of_a, scale_b=of_b.T, bias=bias, config=dataclasses.replace(config, split_k=parts)
        )
    assert not found
    left, right = scaled(a, of_a), scaled(b.T, of_b).T
    near(got, left, right, left @ right + bias)


def test_few_tiles_of_a_long_k_are_split():
    """By default: 148 SMs would wait for four tiles."""
    a, b = np.zeros((256, 32768), E4M3), np.zeros((256, 32768), E4M3).T
    said = kernels.explain(kernels.gemm, a, b, scale_a=scales(256, 32768), scale_b=scales(256, 32768).T)
    assert said.config.split_k > 4


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_scales_of_blocks(framework):
    """Powers of two for 128 elements along K, and 128 columns of b, are those of all vectors of a block: the same bits."""
    m, n, k = 150, 200, 416
    a, b = operand(RNG, m, k, E4M3), operand(RNG, k, n, E4M3, "T")
    of_a, of_b = (np.exp2(RNG.integers(-7, 8, shape)).astype(E8M0) for shape in ((m, 4), (4, 2)))
    left = np.repeat(of_a, 4, 1)[:, : k // 32]
    right = np.repeat(np.repeat(of_b, 4, 0), 128, 1)[: k // 32, :n]
    wanted = kernels.gemm(a, b, scale_a=left, scale_b=right, config=CONFIGS[3])
    given = [a, b, of_a, of_b]
    if framework == "torch":
        torch = pytest.importorskip("torch")
        kinds = [torch.float8_e4m3fn, torch.float8_e8m0fnu]
        a, b, of_a, of_b = (
            torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)).view(kinds[i > 1])
            for i, x in enumerate((a, b.T, of_a, of_b))
        )
        b = b.T
    got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b, config=CONFIGS[3])
    assert np.asarray(got).tobytes() == np.asarray(wanted).tobytes()
    near(np.asarray(wanted), scaled(given[0], left), scaled(given[1].T, right.T).T)


def test_special_scales():
    """The least scale, a large one, and the one that is no number, which only its vector has."""
    m, n, k = 32, 128, 128
    a, b, of_a, of_b = operand(RNG, m, k, E4M3), operand(RNG, k, n, E4M3, "T"), scales(m, k), scales(n, k)
    codes = of_a.view(np.uint8)
    codes[3, 1], codes[5, 0], codes[7] = 255, 0, 240
    of_b.view(np.uint8)[...] = 126
    of_b.view(np.uint8)[9] = 0
    got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b.T, config=CONFIGS[3])
    np.testing.assert_array_equal(np.isnan(got), np.broadcast_to((np.arange(m) == 3)[:, None], got.shape))
    with np.errstate(all="ignore"):
        wanted = (scaled(a, of_a) @ scaled(b.T, of_b).T).astype(F32)
    rows = np.arange(m) != 3
    np.testing.assert_allclose(got[rows], wanted[rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_89"])
def test_other_architectures(arch, monkeypatch):
    """Scales are multiplied into operands of bf16, which hold the products."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    m, n, k = 70, 72, 96
    a, b, of_a, of_b = operand(RNG, m, k, E4M3), operand(RNG, k, n, E4M3, "T"), scales(m, k), scales(n, k)
    got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b.T, epilogue=lambda x: cute.math.max(x, -50.0))
    left, right = scaled(a, of_a), scaled(b.T, of_b).T
    near(got, left, right, np.maximum(left @ right, -50.0))
    assert "VectorScaledFallback" in str(kernels.explain(kernels.gemm, a, b, scale_a=of_a, scale_b=of_b.T))


def test_the_tensor_cores_take_scales():
    a, b = np.zeros((512, 512), E4M3), np.zeros((512, 512), E4M3).T
    said = str(kernels.explain(kernels.gemm, a, b, scale_a=scales(512, 512), scale_b=scales(512, 512).T))
    assert "Sm100BlockScaledGemm, " in said


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    m, n, k = 136, 128, 128
    a, b, of_a, of_b = operand(RNG, m, k, E4M3), operand(RNG, k, n, E4M3, "T"), scales(m, k), scales(n, k)
    own = [
        torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)).view(kind)
        for x, kind in ((a, torch.float8_e4m3fn), (b.T, torch.float8_e4m3fn), (of_a, torch.float8_e8m0fnu), (of_b, torch.float8_e8m0fnu))
    ]  # fmt: skip
    for _ in range(3):  # the last calls repeat the launches of the first
        got = kernels.gemm(own[0], own[1].T, scale_a=own[2], scale_b=own[3].T)
        near(got.numpy(), scaled(a, of_a), scaled(b.T, of_b).T)


# --- 4-bit floats ------------------------------------------------------------------------------------------------


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FORMATS = {"nvfp4": (E4M3, 16), "mxfp4": (E8M0, 32)}


def values(codes: np.ndarray) -> np.ndarray:
    """What bytes with two 4-bit floats stand for, the first in the low half."""
    return E2M1[np.stack([codes & 15, codes >> 4], -1)].reshape(codes.shape[0], -1)


def narrow(rows: int, k: int, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes (rows, K / 2), their scale factors, and the matrix that both stand for."""
    kind, vector = FORMATS[name]
    codes = operand(RNG, rows, k // 2, np.uint8)
    codes[...] = RNG.integers(0, 256, codes.shape)
    own = (np.exp2(RNG.integers(-3, 4, (rows, k // vector))) * (1.25 if vector == 16 else 1.0)).astype(kind)
    return codes, own, values(codes) * np.repeat(own.astype(np.float64), vector, 1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", FORMATS)
def test_4_bit_floats(name, config):
    """Several tiles for a cluster, the last ones of each mode and of K not whole."""
    m, n, k = 300, 264, 800
    a, of_a, left = narrow(m, k, name)
    b, of_b, right = narrow(n, k, name)
    tile_m, tile_n, _ = config.tile_shape_mnk
    config = dataclasses.replace(config, tile_shape_mnk=(tile_m, tile_n, 256))
    with kiln.sanitize("all") as found:
        got = kernels.gemm(a, b.T, scale_a=of_a, scale_b=of_b.T, config=config)
    assert not found and got.dtype == F32
    near(got, left, right.T)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_4_bit_floats_anywhere(name, arch, monkeypatch):
    """By default, with an epilogue; K so that rows of bytes begin at no multiples of 16."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    a, of_a, left = narrow(70, 96, name)
    b, of_b, right = narrow(72, 96, name)
    got = kernels.gemm(np.ascontiguousarray(a[:, :48]), b.T, scale_a=of_a, scale_b=of_b.T, alpha=0.5, activation="relu")
    near(got, left, right.T, np.maximum(0.5 * left @ right.T, 0.0))


def test_pairs_of_4_bit_floats_of_pytorch():
    """With scales in atoms, as PyTorch's `scaled_mm` takes them."""
    torch = pytest.importorskip("torch")
    a, of_a, left = narrow(128, 256, "nvfp4")
    b, of_b, right = narrow(128, 256, "nvfp4")
    pairs = [torch.from_numpy(np.ascontiguousarray(x)).view(torch.float4_e2m1fn_x2) for x in (a, b)]
    own = [torch.from_numpy(atoms(x).view(np.uint8)).view(torch.float8_e4m3fn) for x in (of_a, of_b)]
    got = kernels.gemm(pairs[0], pairs[1].T, scale_a=own[0], scale_b=own[1], out_dtype=torch.bfloat16)
    np.testing.assert_allclose(
        got.float().numpy(), left @ right.T, rtol=2.0**-7, atol=2.0**-4 * np.abs(left).sum(1).max() / 256
    )


def refused(why: str, a: Any, b: Any, **options: Any) -> None:
    with pytest.raises(DSLUserCodeTypeError, match=why):
        kernels.gemm(a, b, **options)


def test_wrong_scales():
    a, b = np.zeros((64, 64), E4M3), np.zeros((64, 64), E4M3).T
    one = scales(64, 64)
    refused(r"scale_a has scales of vectors, of 32 elements each, and scale_b has none", a, b, scale_a=one)
    refused(r"scale_a has the shape \(63, 2\)", a, b, scale_a=one[:63], scale_b=one.T)
    refused(r"scale_b has the shape \(64, 2\)", a, b, scale_a=one, scale_b=one)
    refused("a is Float16 and has scales of vectors", a.astype(F16), b.astype(F16), scale_a=one, scale_b=one.T)
    refused("K is 48; with scales of vectors", a[:, :48], b[:48], scale_a=one, scale_b=one.T)
    config = kernels.Sm100GemmConfig((256, 64, 128), (2, 1), 2)
    refused(
        "tiles of one accumulator, N 128 or 256, K in steps of 128", a, b, scale_a=one, scale_b=one.T, config=config
    )
