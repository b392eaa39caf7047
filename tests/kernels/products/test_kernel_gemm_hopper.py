"""The GEMM of sm_90a on the CPU target, against float64: layouts, types, edges, what follows; and what ptxas makes of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sass

import kiln
from kiln import cute, kernels
from kiln.hardware import toolchain
from kiln.kernels.common import launches
from kiln.kernels.common.problem import Laid
from kiln.kernels.devices import device_of
from kiln.kernels.products import FAMILY, Product
from kiln.kernels.products.hopper_products import HopperProducts
from kiln.testing import dry_run

F16, BF16, F32, E4M3, E5M2 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SMALL = kernels.HopperTiling((128, 32, 32), (1, 1), 2, 2)
PAIRED = dataclasses.replace(SMALL, cluster_mn=(2, 1))
ACROSS = dataclasses.replace(SMALL, cluster_mn=(1, 2))
TURNS = kernels.HopperTiling((64, 64, 32), (1, 1), 3, 1, pingpong=True)
H200 = device_of("sm_90a")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def padded(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array whose rows begin at multiples of 16 bytes."""
    each = 16 // np.dtype(dtype).itemsize
    whole = (*shape[:-1], -(-shape[-1] // each) * each)
    size = int(np.prod(whole)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 16, np.uint8)
    first = -memory.ctypes.data % 16
    return memory[first : first + size].view(dtype).reshape(whole)[..., : shape[-1]]


def operand(rows: int, columns: int, dtype: Any = F16, way: str = "N", batch: tuple[int, ...] = ()) -> np.ndarray:
    """Normal data; N: rows are contiguous, T: columns."""
    x = padded((*batch, rows, columns) if way == "N" else (*batch, columns, rows), dtype)
    x[...] = RNG.integers(-9, 9, x.shape) if np.dtype(dtype).kind in "iu" else RNG.standard_normal(x.shape)
    return x if way == "N" else x.swapaxes(-1, -2)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def close(got: np.ndarray, wanted: np.ndarray, ulps: float = 4.0) -> None:
    """Within the rounding of the result's type, of sums made in f32."""
    step = float(ml_dtypes.finfo(got.dtype).eps) if np.dtype(got.dtype).kind in "fV" else 0.0
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=ulps * step, atol=ulps * step * 8 + 1e-5)


@pytest.mark.parametrize(("layout", "plan"), [("NN", PAIRED), ("NT", PAIRED), ("TN", TURNS), ("TT", ACROSS)])
def test_layouts(layout, plan):
    """Odd extents: the last tiles and the last stage are not whole."""
    if "T" in layout[0] or "N" in layout[1]:  # rows of 64 elements are a swizzle of 128 bytes
        plan = dataclasses.replace(plan, block_mnk=(128, 64, 32))
    a, b = operand(199, 71, F16, layout[0]), operand(71, 85, F16, layout[1])
    out = padded((199, 85), F16)
    kernels.gemm(a, b, out=out, plan=plan)
    close(out, exact(a, b))


@pytest.mark.parametrize(
    ("left", "right", "out", "k"),
    [(BF16, BF16, F32, 32), (E4M3, E5M2, F32, 64), (E4M3, E4M3, E5M2, 128), (np.int8, np.uint8, np.int32, 64), (F16, F16, E4M3, 64)],
)  # fmt: skip
def test_types(left, right, out, k):
    a, b = operand(130, 208, left), operand(208, 80, right, "T")
    plan = dataclasses.replace(SMALL, block_mnk=(128, 64, k))
    got = kernels.gemm(a, b, out_dtype=np.dtype(out), plan=plan)
    if left is E4M3 and out is F32:
        assert (np.abs(got - exact(a, b)) <= 2.0**-12 * exact(np.abs(a), np.abs(b))).all()
    else:
        close(got, exact(a, b), 4.0 if np.dtype(out).itemsize == 4 else 1.0)


def test_sums_of_8_bit_floats_keep_their_bits():
    """The tensor cores align what they add, and keep 13 bits of it: sums of stages are added in f32."""
    a, b = operand(64, 512, E4M3), operand(512, 32, E4M3, "T")
    a[:, :128] = 0.0
    a[:, 0], b[0] = 256.0, 256.0
    got = kernels.gemm(a, b, plan=kernels.HopperTiling((128, 32, 128), (1, 1), 2, 2))
    assert np.abs(got - exact(a, b)).max() < 0.05  # of 65536


@pytest.mark.parametrize("cluster", [(1, 2), (2, 2)])
def test_clusters_share_operands(cluster):
    a, b = operand(300, 72), operand(72, 104, way="T")
    close(kernels.gemm(a, b, plan=dataclasses.replace(SMALL, cluster_mn=cluster)), exact(a, b))


def test_more_tiles_than_multiprocessors(monkeypatch):
    """Blocks take one tile after the other, warp groups in turn."""
    monkeypatch.setattr("kiln.kernels.devices.clusters", lambda size: 2)
    a, b = operand(330, 40), operand(40, 200, way="T")
    for plan in (SMALL, TURNS):
        close(kernels.gemm(a, b, plan=plan), exact(a, b))


@pytest.mark.parametrize("plan", [SMALL, TURNS])
def test_batches(plan):
    """Of which B and the bias are the same for all."""
    a, b, bias = operand(70, 40, batch=(3,)), operand(40, 56), operand(3, 56)[:, None, :]
    got = kernels.gemm(a, b, bias=bias, plan=dataclasses.replace(plan, block_mnk=(128, 64, 32)))
    close(got, exact(a, b) + bias)
    a, b = operand(70, 40), operand(40, 48, batch=(2,), way="T")
    close(kernels.gemm(a, b, plan=plan), exact(a, b))


def test_everything_after_the_sums():
    a, b, c = operand(150, 40), operand(40, 88, way="T"), operand(150, 88, F32)
    bias, column, flags = operand(1, 88, BF16)[0], operand(150, 1, F32), RNG.integers(0, 2, (150, 88)).astype(bool)
    got = kernels.gemm(
        a, b, alpha=0.5, beta=2.0, c=c, bias=bias, activation="relu",
        epilogue=lambda value, gate, flag: cute.where(flag, value * gate, value), extras=[column, flags],
        out_dtype=F32, plan=TURNS,
    )  # fmt: skip
    value = np.maximum(0.5 * exact(a, b) + 2.0 * c + bias.astype(np.float64), 0.0)
    close(got, np.where(flags, value * column, value), 64.0)


def test_odd_columns_of_other_arrays():
    a, b, bias = operand(70, 40), operand(40, 33, way="T"), operand(1, 33, F16)[0]
    out = padded((70, 33), F16)
    c = RNG.standard_normal((70, 33)).astype(F16)
    kernels.gemm(a, b, bias=bias, c=c, out=out, plan=SMALL)
    close(out, exact(a, b) + bias + c, 8.0)


def test_columns_of_the_result_may_be_contiguous():
    a, b, out = operand(70, 40), operand(40, 136), padded((136, 70), F16).T
    kernels.gemm(a, b, out=out, plan=dataclasses.replace(SMALL, block_mnk=(128, 64, 32)))
    close(out, exact(a, b))


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("plan", [PAIRED, dataclasses.replace(TURNS, cluster_mn=(2, 1))])
def test_clean_under_the_sanitizer(plan, seed, monkeypatch):
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    monkeypatch.setattr("kiln.kernels.devices.clusters", lambda size: 1)
    a, b, bias = operand(200, 100), operand(100, 72, way="T"), operand(1, 72)[0]
    with kiln.sanitize("all") as found:
        close(kernels.gemm(a, b, bias=bias, plan=plan), exact(a, b) + bias)
    assert not found


def test_calls_are_repeated():
    """A call is recorded, and repeated with other numbers and other arrays."""
    for scale in (1.0, 3.0, 2.5):
        a, b = operand(70, 40), operand(40, 48, way="T")
        close(kernels.gemm(a, b, alpha=scale, plan=SMALL), scale * exact(a, b), 8.0)
    programs = [program for key, program in kernels.gemm._programs.items() if "HopperTiling" in repr(key)]
    assert programs
    assert None not in programs


def product(dtype: Any, m: int, n: int, k: int, out: Any = kiln.Float16, **options: Any) -> Product:
    """The problem of arrays without gaps, K contiguous."""
    a, b = Laid.dense(dtype, 1, m, k), Laid(dtype, (1, k, n), (n * k, 1, k))
    return Product(a, b, Laid.dense(out, 1, m, n), **options)


SIZE = (256, 256, 256)
UNFIT = [
    (product(kiln.Float16, 256, 256, 100), "rows of a "),
    (product(kiln.Float16, 256, 100, 256), "rows of the result"),
    (dataclasses.replace(product(kiln.Float16, *SIZE), a=Laid.dense(kiln.Float16, 1, 256, 256)._replace(offset=8)), "rows of a "),
    (dataclasses.replace(product(kiln.Int8, *SIZE), b=Laid.dense(kiln.Int8, 1, 256, 256)), "contiguous in K"),
    (product(kiln.Float32, *SIZE), "rounded to TF32"),
    (product(kiln.Float16, *SIZE, out=kiln.Float64), "stores no Float64"),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "says"), UNFIT, ids=[says for _, says in UNFIT])
def test_what_the_copy_engine_cannot_take_is_computed_by_others(problem, says):
    assert says in str(HopperProducts().supports(problem, H200))
    if "Float64" not in says:
        assert type(FAMILY.choose(problem, H200).plan) is kernels.Tiling


def test_other_architectures():
    problem = product(kiln.Float16, 4096, 4096, 4096)
    assert type(FAMILY.choose(problem, H200).plan) is kernels.HopperTiling
    for name in ("sm_80", "sm_90", "sm_100a", "sm_120a"):
        assert type(FAMILY.choose(problem, device_of(name)).plan) is kernels.Tiling
    with pytest.raises(TypeError, match="warp groups multiply on sm_90a alone, and .* is sm_80"):
        FAMILY.choose(problem, device_of("sm_80"), kernels.HopperTiling())


T = kernels.HopperTiling
REFUSED = [
    (lambda: T((128, 256)), "3 positive integers"),
    (lambda: T(stages=0), "a positive integer"),
    (lambda: T(pingpong=1), "True or False"),  # pyright: ignore[reportArgumentType]
    (lambda: T((64, 128, 64)), "multiple of 128"),
    (lambda: T((128, 272, 64)), "at most 256"),
    (lambda: T((128, 128, 48)), "K of a stage"),
    (lambda: T(stages=1), "at least 2 stages"),
    (lambda: T(cluster_mn=(4, 4)), "at most 8 blocks"),
    (lambda: T((128, 32, 64), (8, 1)), "multiples of 8"),
    (lambda: T((128, 256, 64), pingpong=True), "256 sums"),
    (lambda: T(stages=8), "bytes of shared memory"),
]


@pytest.mark.parametrize(("made", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(made, says):
    with pytest.raises(TypeError, match=says):
        FAMILY.choose(product(kiln.Float16, *SIZE), H200, made())


@pytest.mark.parametrize("dtype", [kiln.Float16, kiln.BFloat16, kiln.Int8, kiln.Float8E4M3FN])
@pytest.mark.parametrize("out", [kiln.Float16, kiln.Float32, kiln.Int8])
def test_plans_fit(dtype, out):
    for size in ((8192, 8192, 8192), (256, 8192, 4096), (64, 128, 32)):
        problem = product(dtype, *size, out=out)
        plans = HopperProducts().plans(problem, H200)
        assert len(plans) > 3
        for plan in plans:
            HopperProducts().check(problem, plan, H200)


SHIPPED = [
    ("f16", F16, "NT", {}),
    ("f16, rows of K", F16, "TN", {}),
    ("bf16, in turns", BF16, "NT", {"plan": kernels.HopperTiling((128, 192, 64), (2, 1), 5, 8, True)}),
    ("bf16, everything", BF16, "NT", {"bias": (2048,), "c": (2048, 2048), "activation": "gelu"}),
    ("e4m3", E4M3, "NT", {}),
    ("i8", np.int8, "NT", {}),
]


@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(("dtype", "layout", "options"), [x[1:] for x in SHIPPED], ids=[x[0] for x in SHIPPED])
def test_products_do_not_wait_for_each_other(dtype, layout, options):
    """Nor are registers spilled: compiled for a GPU that is not there."""
    a, b = np.zeros((2048, 2048), dtype), np.zeros((2048, 2048), dtype)
    given = {key: np.zeros(x, dtype) if isinstance(x, tuple) else x for key, x in options.items()}
    with kiln.target("nvidia"), dry_run("sm_90a"):
        kernels.gemm(a if layout[0] == "N" else a.T, b if layout[1] == "N" else b.T, **given)
    compiled = list(launches._compiled.values())[-1]
    assert sass.check_products(compiled)
