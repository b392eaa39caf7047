"""The GEMM of sm_90a on the CPU target, against float64: layouts, types, edges, epilogues; and what ptxas makes of it."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import gemm_arrays
import ml_dtypes
import numpy as np
import pytest
import sass
from gemm_arrays import close, exact, padded
from nvidia_testing import needs_nvdisasm

import kiln
from kiln import cute, kernels
from kiln.cute.runtime import from_dlpack
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem, sm90_cost
from kiln.kernels.impl.gemm.epilogue_fusion import EpilogueFusion
from kiln.kernels.impl.gemm.implementations import FallbackConfig, Sm80Gemm
from kiln.kernels.impl.gemm.padded import Sm90PaddedGemm
from kiln.kernels.impl.gemm.sm90_implementation import Sm90Gemm
from kiln.testing import dry_run
from kiln.utils import schedulers

F16, BF16, F32, E4M3, E5M2 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SMALL = kernels.Sm90GemmConfig((128, 32, 32), (1, 1), 2, 2)
PAIRED = dataclasses.replace(SMALL, cluster_shape_mn=(2, 1))
ACROSS = dataclasses.replace(SMALL, cluster_shape_mn=(1, 2))
PINGPONG = kernels.Sm90GemmConfig((64, 64, 32), (1, 1), 3, 1, pingpong=True)
SPLIT_K = dataclasses.replace(SMALL, split_k_cluster=2)
PINGPONG_SPLIT_K = kernels.Sm90GemmConfig((64, 32, 32), (1, 1), 3, 1, pingpong=True, split_k_cluster=2)
SWAP_AB = kernels.Sm90GemmConfig((128, 16, 32), (1, 1), 2, 2, swap_ab=True)
TIGHT = kernels.Sm90GemmConfig((128, 192, 32), (1, 1), 3, 1, pingpong=True)
"""A thread has 192 accumulators."""
TRANSPOSED = kernels.Sm90GemmConfig((64, 24, 32), (1, 1), 3, 1, pingpong=True, swap_ab=True, transpose_out=True)
H200 = device_of("sm_90a")
RNG = np.random.default_rng(0)
LONG = bool(os.environ.get("KILN_LONG_TESTS"))


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def operand(rows: int, columns: int, dtype: Any = F16, way: str = "N", batch: tuple[int, ...] = ()) -> np.ndarray:
    """Normal data; N: rows are contiguous, T: columns."""
    return gemm_arrays.operand(RNG, rows, columns, dtype, way, batch)


@pytest.mark.parametrize(("layout", "config"), [("NN", PAIRED), ("NT", PAIRED), ("TN", PINGPONG), ("TT", ACROSS)])
def test_layouts(layout, config):
    """Odd extents: the last tiles and the last stage are not whole."""
    if "T" in layout[0] or "N" in layout[1]:  # rows of 64 elements are a swizzle of 128 bytes
        config = dataclasses.replace(config, tile_shape_mnk=(128, 64, 32))
    a, b = operand(199, 71, F16, layout[0]), operand(71, 85, F16, layout[1])
    out = padded((199, 85), F16)
    kernels.gemm(a, b, out=out, config=config)
    close(out, exact(a, b))


@pytest.mark.parametrize(
    ("left", "right", "out", "k"),
    [(BF16, BF16, F32, 32), (E4M3, E5M2, F32, 64), (E4M3, E4M3, E5M2, 128), (np.int8, np.uint8, np.int32, 64), (F16, F16, E4M3, 64)],
)  # fmt: skip
def test_types(left, right, out, k):
    a, b = operand(130, 208, left), operand(208, 80, right, "T")
    config = dataclasses.replace(SMALL, tile_shape_mnk=(128, 64, k))
    got = kernels.gemm(a, b, out_dtype=np.dtype(out), config=config)
    if left is E4M3 and out is F32:
        assert (np.abs(got - exact(a, b)) <= 2.0**-12 * exact(np.abs(a), np.abs(b))).all()
    else:
        close(got, exact(a, b), 4.0 if np.dtype(out).itemsize == 4 else 1.0)


def test_accumulators_of_8_bit_floats_keep_their_bits():
    """The tensor cores align what they add, and keep 13 bits of it: accumulators of stages are added in f32."""
    a, b = operand(64, 512, E4M3), operand(512, 32, E4M3, "T")
    a[:, :128] = 0.0
    a[:, 0], b[0] = 256.0, 256.0
    got = kernels.gemm(a, b, config=kernels.Sm90GemmConfig((128, 32, 128), (1, 1), 2, 2))
    assert np.abs(got - exact(a, b)).max() < 0.05  # of 65536


def test_tf32_is_rounded_to_nearest():
    """TMA rounds: tensor cores would truncate."""
    a, b = operand(70, 72, F32), operand(72, 40, F32, "T")
    got = kernels.gemm(a, b, precision="tf32", config=SMALL)

    def rounded(x: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(x).view(np.uint32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(F32)

    assert np.abs(got - exact(rounded(a), rounded(b))).max() < 1e-4
    assert np.abs(got - exact(a, b)).max() > 1e-4


def factors(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Block scales, some of them large and some small."""
    depth = -(-k // 128)
    return np.exp(3 * operand(m, depth, F32)), np.exp(3 * operand(depth, -(-n // 128), F32))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("config", "m", "n", "k"),
    [
        (kernels.Sm90GemmConfig((128, 96, 128), (1, 1), 2, 2), 150, 200, 304),
        (kernels.Sm90GemmConfig((64, 64, 128), (1, 1), 3, 2, pingpong=True), 70, 72, 256),
        (kernels.Sm90GemmConfig((128, 32, 128), (1, 1), 2, 2, split_k_cluster=2), 40, 136, 400),
        (kernels.Sm90GemmConfig((128, 32, 128), (2, 1), 2, 2), 150, 40, 400),
        (FallbackConfig(), 16, 16, 256),
    ],
)
def test_block_scales(config, m, n, k, monkeypatch):
    """Accumulators of 128 of K are scaled in f32, whatever the other scales are; every other tile goes through K backwards."""
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 2)
    a, b, c = operand(m, k, E4M3), operand(k, n, E4M3, "T"), operand(m, n, F32)
    of_a, of_b = factors(m, n, k)
    with kiln.sanitize("all") as found:
        got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b, c=c, alpha=0.5, config=config)
    assert not found
    left = a.astype(np.float64) * np.repeat(of_a, 128, 1)[:, :k]
    right = b.astype(np.float64) * np.repeat(np.repeat(of_b, 128, 0)[:k], 128, 1)[:, :n]
    assert (np.abs(got - 0.5 * left @ right - c) <= 2.0**-12 * (np.abs(left) @ np.abs(right)) + 1e-5).all()


@pytest.mark.parametrize("precision", ["ieee", "fast"])
def test_block_scales_of_every_precision(precision):
    """They belong to accumulators of stages: none are left to the tensor cores."""
    a, b = operand(128, 256, E4M3), operand(256, 128, E4M3, "T")
    of_a, of_b = factors(128, 128, 256)
    got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b, precision=precision)
    left, right = a.astype(np.float64) * np.repeat(of_a, 128, 1), b.astype(np.float64) * np.repeat(of_b, 128, 0)
    assert (np.abs(got - left @ right) <= 2.0**-12 * (np.abs(left) @ np.abs(right)) + 1e-5).all()


@pytest.mark.parametrize(("n", "way"), [(1, "N"), (24, "T")])
def test_block_scales_of_columns_that_are_contiguous(n, way):
    """Those of one column are, as all results of one; others are computed in rows."""
    a, b = operand(40, 256, E4M3), operand(256, n, E4M3, "T")
    (of_a, of_b), out = factors(40, n, 256), np.zeros((40, n) if way == "N" else (n, 40), F32)
    out = out if way == "N" else out.T
    kernels.gemm(a, b, scale_a=of_a, scale_b=of_b, out=out, config=kernels.Sm90GemmConfig((128, 32, 128), (1, 1), 2, 2))
    left, right = a.astype(np.float64) * np.repeat(of_a, 128, 1), b.astype(np.float64) * np.repeat(of_b, 128, 0)
    assert (np.abs(out - left @ right) <= 2.0**-12 * (np.abs(left) @ np.abs(right)) + 1e-5).all()


def test_scales_of_a_batch_that_shares_operands():
    """Each GEMM of the batch has its own."""
    a, b = operand(9, 256, E4M3), operand(256, 32, E4M3, "T")
    of_a, of_b = (np.stack(x) for x in zip(*(factors(9, 32, 256) for _ in range(2)), strict=True))
    of_b[1] *= 2.0
    config = kernels.Sm90GemmConfig((128, 32, 128), (1, 1), 2, 2)
    for batched in ((np.stack([a, a]), b), (a, np.stack([b, b]))):
        got = kernels.gemm(*batched, scale_a=of_a, scale_b=of_b, config=config)
        for n in range(2):
            left, right = (
                a.astype(np.float64) * np.repeat(of_a[n], 128, 1),
                b.astype(np.float64) * np.repeat(of_b[n], 128, 0),
            )
            assert (np.abs(got[n] - left @ right) <= 2.0**-12 * (np.abs(left) @ np.abs(right)) + 1e-5).all()


def test_scales_of_rows_and_columns():
    """Of all types: integers become floats."""
    a, b = operand(70, 64, np.int8), operand(64, 40, np.int8, "T")
    rows, columns, bias = operand(70, 1, F32), operand(1, 40, F32)[0], operand(1, 40, F32)[0]
    got = kernels.gemm(
        a, b, scale_a=rows, scale_b=columns, bias=bias, out_dtype=np.dtype(F32), config=kernels.Sm90GemmConfig((128, 32, 64), (1, 1), 2, 2)
    )  # fmt: skip
    np.testing.assert_allclose(got, exact(a, b) * rows * columns + bias, rtol=1e-5, atol=1e-3)


def test_fast_accumulation_of_8_bit_floats():
    """Tensor cores accumulate: small addends beside large accumulators lose bits, and only those."""
    a, b = operand(64, 256, E4M3), operand(256, 32, E4M3, "T")
    a[:, 0], b[0] = 256.0, 256.0
    config = kernels.Sm90GemmConfig((128, 32, 128), (1, 1), 2, 2)
    fast, exactly = (
        np.abs(kernels.gemm(a, b, precision=p, config=config) - exact(a, b)).max() for p in ("fast", "ieee")
    )
    assert exactly < fast < 65536 * 2.0**-9


@pytest.mark.parametrize("cluster", [(1, 2), (2, 2)])
def test_clusters_share_operands(cluster):
    a, b = operand(300, 72), operand(72, 104, way="T")
    close(kernels.gemm(a, b, config=dataclasses.replace(SMALL, cluster_shape_mn=cluster)), exact(a, b))


def test_more_tiles_than_sms(monkeypatch):
    """CTAs take one tile after the other, warpgroups in turn."""
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 2)
    a, b = operand(330, 40), operand(40, 200, way="T")
    for config in (SMALL, PINGPONG):
        close(kernels.gemm(a, b, config=config), exact(a, b))


@pytest.mark.parametrize("config", [SMALL, PINGPONG])
def test_batches(config):
    """Of which B and the bias are the same for all."""
    a, b, bias = operand(70, 40, batch=(3,)), operand(40, 56), operand(3, 56)[:, None, :]
    got = kernels.gemm(a, b, bias=bias, config=dataclasses.replace(config, tile_shape_mnk=(128, 64, 32)))
    close(got, exact(a, b) + bias)
    a, b = operand(70, 40), operand(40, 48, batch=(2,), way="T")
    close(kernels.gemm(a, b, config=config), exact(a, b))


def test_everything_in_the_epilogue():
    a, b, c = operand(150, 40), operand(40, 88, way="T"), operand(150, 88, F32)
    bias, column, flags = operand(1, 88, BF16)[0], operand(150, 1, F32), RNG.integers(0, 2, (150, 88)).astype(bool)
    got = kernels.gemm(
        a, b, alpha=0.5, beta=2.0, c=c, bias=bias, activation="relu",
        epilogue=lambda value, gate, flag: cute.where(flag, value * gate, value), extras=[column, flags],
        out_dtype=F32, config=PINGPONG,
    )  # fmt: skip
    value = np.maximum(0.5 * exact(a, b) + 2.0 * c + bias.astype(np.float64), 0.0)
    close(got, np.where(flags, value * column, value), 64.0)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("config", "outs"), [(PAIRED, (F16, F16)), (PINGPONG, (F16, F32)), (TIGHT, (F16, E4M3)), (SWAP_AB, (F16, E4M3))]
)
def test_several_results(config, outs):
    """One kernel writes each value of the epilogue, and row sums where it has whole accumulators."""
    rows = None if config.smem_epilogue else "squares"
    a, b, bias = operand(140 if config is not SWAP_AB else 9, 40), operand(40, 72, way="T"), operand(1, 72, F32)[0]
    with kiln.sanitize("all") as found:
        got = kernels.gemm(
            a, b, bias=bias, epilogue=lambda value: (value, value * 0.5), out_dtype=outs, row_reduction=rows, config=config
        )  # fmt: skip
    assert not found
    wanted = exact(a, b) + bias
    close(got[0], wanted, 8.0)
    close(got[1], wanted * 0.5, 8.0)
    if rows:
        np.testing.assert_allclose(got[2], (wanted**2).sum(1), rtol=1e-5)


def test_odd_columns_of_other_arrays():
    a, b, bias = operand(70, 40), operand(40, 33, way="T"), operand(1, 33, F16)[0]
    out = padded((70, 33), F16)
    c = RNG.standard_normal((70, 33)).astype(F16)
    kernels.gemm(a, b, bias=bias, c=c, out=out, config=SMALL)
    close(out, exact(a, b) + bias + c, 8.0)


def test_columns_of_the_result_may_be_contiguous():
    a, b, out = operand(70, 40), operand(40, 136), padded((136, 70), F16).T
    kernels.gemm(a, b, out=out, config=dataclasses.replace(SMALL, tile_shape_mnk=(128, 64, 32)))
    close(out, exact(a, b))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("layout", "m"), [("NT", 1), ("TN", 23)])
def test_few_rows(layout, m):
    """Swap-AB: N of the result is M of the MMA. Extents and the stages of split-K are odd."""
    a, b, c = (
        operand(m if layout == "NT" else 24, 136, F16, layout[0])[:m],
        operand(136, 200, F16, layout[1]),
        operand(m, 200, F32),
    )
    for splits in (1, 2):
        config = dataclasses.replace(
            SWAP_AB, tile_shape_mnk=(128, 64 if layout == "TN" else 16, 32), split_k_cluster=splits
        )
        close(kernels.gemm(a, b, c=c, config=config), exact(a, b) + c)
    if layout == "NT":
        turns = kernels.Sm90GemmConfig((64, 16, 32), (1, 1), 3, 1, pingpong=True, swap_ab=True)
        close(kernels.gemm(a, b, activation="relu", config=turns), np.maximum(exact(a, b), 0.0))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "config",
    [
        TRANSPOSED,
        kernels.Sm90GemmConfig((128, 40, 32), (1, 1), 2, 2, swap_ab=True, transpose_out=True),
        dataclasses.replace(TRANSPOSED, tile_shape_mnk=(64, 8, 32)),
    ],
)
def test_transposed_results(config, monkeypatch):
    """Results of swap-AB, stored by TMA: one tile after the other, with rows and columns that end inside of it."""
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    a, b, c, bias = operand(23, 72), operand(72, 200, way="T"), operand(23, 200), operand(1, 200)[0]
    with kiln.sanitize("all") as found:
        close(kernels.gemm(a, b, config=config), exact(a, b))
        got = kernels.gemm(a, b, c=c, bias=bias, activation="relu", config=config)
    assert not found
    close(got, np.maximum(exact(a, b) + bias + c.astype(np.float64), 0.0))


def test_split_k():
    """CTAs of a cluster split K, and add their accumulators in a fixed order: the same bits each time."""
    a, b, bias = operand(150, 200), operand(200, 56, way="T", batch=(2,)), operand(1, 56)[0]
    for splits in (2, 4):
        config = dataclasses.replace(SMALL, split_k_cluster=splits)
        got = kernels.gemm(a, b, bias=bias, config=config)
        close(got, exact(a, b) + bias)
        assert got.tobytes() == kernels.gemm(a, b, bias=bias, config=config).tobytes()
    a, b = operand(130, 208, np.int8), operand(208, 40, np.int8, "T")
    got = kernels.gemm(a, b, config=dataclasses.replace(SPLIT_K, tile_shape_mnk=(128, 32, 64)))
    assert (got == a.astype(np.int64) @ b.astype(np.int64)).all()


@pytest.mark.parametrize("config", [SPLIT_K, SWAP_AB])
def test_numbers_that_are_hard_to_add(config):
    """Large means, numbers below the normal ones, infinities and what is no number, each in rows of its own. Each of the 16 steps
    of K loses up to 2**-23 of the sum of what is added."""
    a, b = operand(16, 256, F16), operand(256, 40, F16, "T")
    a[0] += 1000
    a[1] *= 1e-7
    b[:, 0] += 100
    a[2, 5], a[3, 7], a[4, 0] = np.inf, np.nan, -np.inf
    got = kernels.gemm(a, b, out_dtype=np.dtype(F32), config=config)
    assert not np.isfinite(got[2:5]).any()
    assert np.isnan(got[3]).all()
    rows = [0, 1, *range(5, 16)]
    left, right = a[rows].astype(np.float64), b.astype(np.float64)
    assert (np.abs(got[rows] - left @ right) <= 16 * 2.0**-23 * (np.abs(left) @ np.abs(right))).all()


def test_odd_numbers_of_epilogue_tiles(monkeypatch):
    """The first epilogue tile of a tile has the stage of the last of the tile before."""
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    config = dataclasses.replace(SMALL, tile_shape_mnk=(128, 96, 32))
    assert [config.epi_tile_n(bits) for bits in (16, 32)] == [32, 16]
    a, b = operand(300, 40), operand(40, 200, way="T")
    with kiln.sanitize("all") as found:
        close(kernels.gemm(a, b, config=config), exact(a, b))
    assert not found


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("config", "seed"),
    [
        *(
            (config, seed)
            for config in (PAIRED, dataclasses.replace(PINGPONG, cluster_shape_mn=(2, 1)))
            for seed in (0, 5)
        ),
        (
            dataclasses.replace(SPLIT_K, tile_shape_mnk=(128, 64, 32)),
            5,
        ),  # accumulators of one warpgroup take the place of what the other reads
        (SWAP_AB, 0),
        (PINGPONG_SPLIT_K, 5),
        (dataclasses.replace(PINGPONG_SPLIT_K, tile_shape_mnk=(64, 24, 32), split_k_cluster=3, swap_ab=True), 0),
        (kernels.Sm90GemmConfig((64, 16, 32), (1, 2), 3, 1, pingpong=True, swap_ab=True), 5),
    ],
)
def test_clean_under_the_sanitizer(config, seed, monkeypatch):
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    a, b, bias = operand(20 if config.swap_ab else 200, 100), operand(100, 72, way="T"), operand(1, 72)[0]
    with kiln.sanitize("all") as found:
        close(kernels.gemm(a, b, bias=bias, config=config), exact(a, b) + bias)
    assert not found


def test_calls_are_repeated():
    """A call is recorded, and repeated with other numbers and other arrays."""
    for scale in (1.0, 3.0, 2.5):
        a, b = operand(70, 40), operand(40, 48, way="T")
        close(kernels.gemm(a, b, alpha=scale, config=SMALL), scale * exact(a, b), 8.0)
    programs = [program for key, program in kernels.gemm._programs.items() if "Sm90GemmConfig" in repr(key)]
    assert programs
    assert None not in programs


def problem_of(dtype: Any, m: int, n: int, k: int, out: Any = kiln.Float16, **options: Any) -> GemmProblem:
    """The problem of arrays without gaps, K contiguous."""
    a, b = TensorLayout.dense(dtype, 1, m, k), TensorLayout(dtype, (1, k, n), (n * k, 1, k))
    return GemmProblem(a, b, TensorLayout.dense(out, 1, m, n), **options)


SIZE = (256, 256, 256)
UNFIT = [
    (problem_of(kiln.Float16, 256, 256, 100), "rows of a "),
    (problem_of(kiln.Float16, 256, 100, 256), "rows of the result"),
    (dataclasses.replace(problem_of(kiln.Float16, *SIZE), a=TensorLayout.dense(kiln.Float16, 1, 256, 256)._replace(offset=8)), "rows of a "),
    (dataclasses.replace(problem_of(kiln.Int8, *SIZE), b=TensorLayout.dense(kiln.Int8, 1, 256, 256)), "contiguous in K"),
    (problem_of(kiln.Float32, *SIZE), "rounded to TF32"),
    (problem_of(kiln.Float16, *SIZE, out=kiln.Float64), "stores no Float64"),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "says"), UNFIT, ids=[says for _, says in UNFIT])
def test_arrays_that_tma_cannot_access_have_other_implementations(problem, says):
    assert says in str(Sm90Gemm().supports(problem, H200))
    if "Float64" not in says:
        assert type(REGISTRY.choose(problem, H200).implementation) is not Sm90Gemm


@pytest.mark.quick(1)
@pytest.mark.parametrize(("dtype", "shape"), [(F16, (70, 41, 53)), (E4M3, (20, 48, 40))])
def test_copied_first(dtype, shape):
    """Rows that begin anywhere, also those of the result; 8-bit operands that are not contiguous in K."""
    m, k, n = shape
    a, b = RNG.standard_normal((m, k)).astype(dtype), RNG.standard_normal((k, n)).astype(dtype)
    bias = RNG.standard_normal(n).astype(F32)
    config = kernels.Sm90GemmConfig((128, 64, 512 // (8 * a.itemsize)), (1, 1), 2, 2)
    with kiln.sanitize("all") as found:
        got = kernels.gemm(a, b, bias=bias, config=config)
    assert not found
    close(got, exact(a, b) + bias, 4.0 if dtype is F16 else 1e4)
    if dtype is F16:  # of which the result and a differ from batch to batch
        close(kernels.gemm(np.stack([a, a]), b, bias=bias, config=config), exact(np.stack([a, a]), b) + bias)


@pytest.mark.parametrize("dtype", [F16, E5M2])
def test_one_k_of_an_operand_that_a_batch_shares(dtype):
    """Is contiguous all the same."""
    a, b = RNG.standard_normal((21, 1)).astype(dtype), RNG.standard_normal((3, 1, 33)).astype(dtype)
    config = kernels.Sm90GemmConfig((128, 64, 512 // (8 * a.itemsize)), (1, 1), 2, 2)
    for x, y in ((a, b), (np.stack([a, a, a]), b[0])):
        close(kernels.gemm(x, y, config=config), exact(x, y))


def test_large_operands_are_copied_first():
    """Rather than by threads, an element at a time; small ones are not."""
    for size, kind in ((2047, Sm90PaddedGemm), (63, Sm80Gemm)):
        assert type(REGISTRY.choose(problem_of(kiln.Float16, size, size, size), H200).implementation) is kind


@pytest.mark.quick(0)
def test_split_k_by_a_second_kernel():
    """Parts of whole stages of K, not all of them as long; CTAs of a cluster may split those. The same bits each time."""
    a, b, bias = operand(70, 264), operand(264, 56, way="T"), operand(1, 56)[0]
    with kiln.sanitize("all") as found:
        for config in (dataclasses.replace(SMALL, split_k=4), dataclasses.replace(SPLIT_K, split_k=3)):
            got = kernels.gemm(a, b, bias=bias, config=config)
            close(got, exact(a, b) + bias)
            assert got.tobytes() == kernels.gemm(a, b, bias=bias, config=config).tobytes()
        close(kernels.gemm(a[:9], b, config=dataclasses.replace(SWAP_AB, split_k=5)), exact(a[:9], b))
        # more columns than rows in a tile: accumulators take the place of the stages of B
        over_b = kernels.Sm90GemmConfig((64, 96, 32), (1, 1), 4, 1, pingpong=True, swap_ab=True, split_k=3)
        assert over_b.written_over_b
        close(kernels.gemm(a, b, config=over_b), exact(a, b))
    assert not found
    a, b = operand(9, 544), operand(544, 24, way="T")  # 16 are loaded at a time, and one is left
    close(kernels.gemm(a, b, config=dataclasses.replace(SWAP_AB, split_k=17)), exact(a, b))


def test_partials_are_loaded_before_they_are_added():
    """Eight at least, by four elements: the compiler, left to itself, leaves registers for two of them."""
    a, b = (np.zeros((128, 4096), BF16) for _ in range(2))
    with kiln.target("nvidia"), dry_run("sm_90a"):
        kernels.gemm(a, b.T, config=kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 4, 8, split_k=8))
    made = [getattr(x.executable, "resources", {}) for x in launches._compiled.values()]
    used = next(x["SplitKReduction_kernel"] for x in reversed(made) if "SplitKReduction_kernel" in x)
    assert used.registers > 8 * 4


@pytest.mark.parametrize("config", [None, kernels.Sm80GemmConfig(), kernels.Sm80GemmConfig(split_k=16)])
def test_results_of_more_than_32_bits(config):
    """Their extents come in 64 bits, and tiles are counted in 32."""
    a, b, out = np.zeros((65536, 512), F16), np.zeros((512, 32776), F16), np.zeros((65536, 32776), F16)
    if config and config.split_k > 1:
        a, b, out = a[:8192], b[:, :16392], out[:8192, :16392]  # so many are the partials
    with kiln.target("nvidia"), dry_run("sm_90a") as launched:
        kernels.gemm(a, b, out=out, config=config)
    assert launched


@pytest.mark.parametrize(("sums", "splits"), [(5, 1), (3, 2), (7, 1)])
def test_split_k_has_each_stage_once(sums, splits):
    """Of any number of stages, as many in each part as in others, or one more."""
    config = dataclasses.replace(SMALL, split_k=sums, split_k_cluster=splits)
    for stages in range(sums * splits, 25):
        a, b = np.ones((1, 32 * stages), F16), padded((32 * stages, 8), F16)
        b[...] = 2.0 ** -(np.arange(32 * stages) // 32)[:, None]
        assert kernels.gemm(a, b, out_dtype=np.dtype(F32), config=config)[0, 0] == 32 * (2 - 2.0 ** (1 - stages))


def test_rows_that_begin_within_lines_take_longer_to_come():
    """Of the L2 cache: most where they begin within the 32 bytes that it reads at a time."""
    config = kernels.Sm90GemmConfig((128, 128, 64), (1, 1), 6, 16, epi_stages=4)
    whole, cut, between = (
        sm90_cost.roofline(problem_of(kiln.Float16, 1024, 1024, k), config, H200).units["L2 cache"]
        for k in (1088, 1040, 1032)
    )
    assert whole < cut < between


def test_few_stages_wait_for_dram():
    """Where only the bytes in flight differ, fewer of them take longer: nothing is expected in the L2 cache."""
    problem = problem_of(kiln.BFloat16, 64, 8192, 8192)
    deep, shallow = (
        kernels.Sm90GemmConfig((128, 64, 64), (1, 1), stages, 16, swap_ab=True, transpose_out=True) for stages in (8, 2)
    )
    assert sm90_cost.roofline(problem, shallow, H200).us > 1.2 * sm90_cost.roofline(problem, deep, H200).us


def test_rows_that_tma_fills_in_take_time():
    config = kernels.Sm90GemmConfig((128, 128, 64), (1, 1), 6, 16, epi_stages=4)
    whole, padded = (
        sm90_cost.roofline(problem_of(kiln.Float16, rows, 4096, 4096), config, H200).units["L2 cache"]
        for rows in (128, 100)
    )
    assert padded > whole


def test_a_last_wave_of_few_tiles_takes_as_long_as_a_tile_but_not_all_bytes():
    """A wave that memory bounds shares DRAM among the SMs that have a tile."""
    config = kernels.Sm90GemmConfig((128, 8, 64), (1, 1), 13, 16, swap_ab=True, transpose_out=True)
    one, more, two = (
        sm90_cost.roofline(problem_of(kiln.BFloat16, 8, 128 * tiles, 8192), config, H200).us
        for tiles in (132, 140, 264)
    )
    assert 0.1 * (two - one) < more - one < 0.9 * (two - one)


def test_more_partials_than_a_thread_has_in_flight_take_another_round():
    """The split-K reduction loads 16 partials at a time; main loops of 16 and 17 splits are equally long here."""
    problem = problem_of(kiln.BFloat16, 128, 192, 9216)
    configs = [kernels.Sm90GemmConfig((64, 64, 64), (1, 1), 12, 32, pingpong=True, split_k=n) for n in (16, 17)]
    one_round, two_rounds = (sm90_cost.roofline(problem, config, H200).phases for config in configs)
    kernel_us = sm90_cost.Sm90Coefficients.on(H200).split_k_kernel_us
    assert two_rounds["split-K reduction"] - one_round["split-K reduction"] > kernel_us


def test_ctas_that_read_the_same_tile_of_the_larger_operand_are_neighbours():
    """Where rows of the result are few, and half as many as columns at most."""
    orders = {}
    for rows, columns in ((192, 7168), (2048, 4096), (4096, 4096), (2049, 8192), (1024, 1024)):
        found = sm90_cost.candidates(problem_of(kiln.BFloat16, rows, columns, 4096), H200)
        orders[rows] = {(config.tile_shape_mnk[1] < rows, config.raster_group) for config in found if config.swap_ab}
    assert {group for several, group in orders[192] if several} == {1}
    assert {group for several, group in orders[192] if not several} > {8, 16}
    assert orders[2048] == {(True, 1)}
    for rows in (1024, 2049, 4096):
        assert orders[rows]
        assert (True, 1) not in orders[rows]


@pytest.mark.parametrize("kind", [kiln.Float16, kiln.Float8E4M3FN, kiln.Int8])
@pytest.mark.parametrize("k", [512, 4112])
def test_all_candidates_work(kind, k):
    """For extents of every kind: the checks of a call refuse none."""
    sizes = (1, 9, 64, 100, 200, 513, 2112, 4001 // 16 * 16)
    for rows, columns in itertools.product(sizes, (16, 96, 2112, 8192)):
        problem = problem_of(kind, rows, columns, k)
        for config in sm90_cost.candidates(problem, H200):
            Sm90Gemm().check(problem, config, H200)


def test_other_architectures():
    problem = problem_of(kiln.Float16, 4096, 4096, 4096)
    assert type(REGISTRY.choose(problem, H200).config) is kernels.Sm90GemmConfig
    for name in ("sm_80", "sm_90", "sm_100", "sm_120a"):
        assert type(REGISTRY.choose(problem, device_of(name)).config) is kernels.Sm80GemmConfig
    with pytest.raises(TypeError, match="wgmma needs sm_90a, and .* is sm_80"):
        REGISTRY.choose(problem, device_of("sm_80"), kernels.Sm90GemmConfig())


T = kernels.Sm90GemmConfig
REFUSED = [
    (lambda: T((128, 256)), "3 positive integers"),
    (lambda: T(ab_stages=0), "a positive integer"),
    (lambda: T(pingpong=1), "True or False"),  # pyright: ignore[reportArgumentType]
    (lambda: T((64, 128, 64)), "multiple of 128"),
    (lambda: T((128, 272, 64)), "at most 256"),
    (lambda: T((128, 128, 48)), "K of a stage"),
    (lambda: T(ab_stages=1), "at least 2 stages"),
    (lambda: T(cluster_shape_mn=(4, 4)), "a cluster has 16 CTAs; it may have 8"),
    (lambda: T((128, 32, 64), (8, 1)), "multiples of 8"),
    (lambda: T((128, 256, 64), pingpong=True), "256 accumulators"),
    (lambda: T(ab_stages=8), "bytes of shared memory"),
    (lambda: T((128, 128, 64), split_k_cluster=2), "the cluster is the CTAs of a tile"),
    (lambda: T((128, 64, 64), (1, 1), split_k_cluster=8), "4 stages"),
    (
        lambda: T((128, 256, 64), (1, 1), 2, split_k_cluster=2),
        "65536 bytes, take the place of its stages of A, which have 32768",
    ),
    (
        lambda: T((128, 256, 64), (1, 1), 3, swap_ab=True, split_k=2),
        "131072 bytes, take the place of its stages of B, which have 98304",
    ),
    (lambda: T(epi_stages=1), "epi_stages must be at least 2"),
    (lambda: T((128, 64, 64), (1, 1), split_k_cluster=3), "64 columns, which must be a multiple of 8"),
    (lambda: T((128, 20, 64), (1, 1), swap_ab=True), "multiple of 8"),
    (lambda: T((128, 128, 32), (1, 1), split_k_cluster=9), "K of a stage|it may have 8"),
    (lambda: T((128, 64, 64), split_k=3), "the cluster is the CTAs of a tile"),
    (lambda: T(transpose_out=True), "transpose_out is for results of 16 bits with swap_ab"),
    (
        lambda: T((128, 64, 64), (1, 1), swap_ab=True, transpose_out=True, split_k_cluster=2),
        "and without split_k_cluster",
    ),
    (lambda: T(swap_ab=None), "True or False"),  # pyright: ignore[reportArgumentType]
    (lambda: T((384, 64, 64), (1, 1), 2), "loads 384 rows of A, and a TMA box has at most 256"),
    (lambda: T((128, 64, 64), (1, 1), 2, raster_group=1 << 30), "raster_group is 1073741824; it must be at most 1024"),
]


@pytest.mark.parametrize(("made", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(made, says):
    with pytest.raises(TypeError, match=says):
        REGISTRY.choose(problem_of(kiln.Float16, *SIZE), H200, made())


BLOCK_SCALES = (TensorLayout.dense(kiln.Float32, 1, 256, 2), TensorLayout.dense(kiln.Float32, 1, 2, 2))
ROWS = EpilogueFusion.of(False, False, None, None, True, False, row_reduction="squares")
REFUSED_OF = [
    (problem_of(kiln.Float16, *SIZE, fusion=ROWS), T((128, 64, 64), (1, 1), split_k_cluster=2), "row_reduction needs whole accumulators"),
    (problem_of(kiln.Float16, *SIZE, fusion=ROWS), T((128, 64, 64), (1, 1), swap_ab=True, transpose_out=True), "row_reduction needs whole accumulators"),
    (problem_of(kiln.Float16, *SIZE, fusion=ROWS), T((128, 64, 64), (1, 1), split_k=2), "row_reduction needs whole accumulators"),
    (problem_of(kiln.Float8E4M3FN, *SIZE, block_scales=BLOCK_SCALES), T((128, 64, 64), (1, 1)), "block scales are of 128 of K"),
    (problem_of(kiln.Float8E4M3FN, *SIZE, block_scales=BLOCK_SCALES), T((128, 64, 128), (1, 1), swap_ab=True), "rows of the tile"),
    (problem_of(kiln.Float8E4M3FN, *SIZE, block_scales=BLOCK_SCALES), T((128, 64, 128), (1, 1), split_k=2), "without block scales"),
    (problem_of(kiln.Int8, *SIZE), T((128, 64, 128), (1, 1), split_k=2), "one GEMM of floats"),
    (problem_of(kiln.Float16, 256, 90, 256), T((128, 64, 64), (1, 1), split_k=2), "N of 90 must be a multiple of 4"),
    (problem_of(kiln.Float16, 256, 256, 64), T((128, 64, 64), (1, 1), split_k=2), "is 1 stages"),
    (problem_of(kiln.Float16, *SIZE), T((64, 64, 64), (1, 1), 13, 8, True, split_k=2), "bytes of shared memory"),  # for f32
    (problem_of(kiln.Float16, *SIZE), T((128, 64, 64), (1, 1), 4, 8, swap_ab=True, split_k=2, transpose_out=True), "results of 16 bits"),
    (problem_of(kiln.Int8, *SIZE), T((128, 72, 128), (1, 1), 3, swap_ab=True), "must be a multiple of 16, or 8 or 24"),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "config", "says"), REFUSED_OF)
def test_refused_of_some_problems(problem, config, says):
    with pytest.raises(TypeError, match=says):
        Sm90Gemm().check(problem, config, H200)


@pytest.mark.parametrize("dtype", [kiln.Float16, kiln.Int8])
def test_rows_of_results_end_with_what_is_stored(dtype):
    """TMA stores whole 16 bytes: where something lies behind the last of a row, it stores to a copy."""
    each = 128 // dtype.width
    a, b = TensorLayout.dense(dtype, 1, 64, 128), TensorLayout(dtype, (1, 128, 100), (12800, 1, 128))
    for columns, whole in ((100, False), (96, True)):
        laid = TensorLayout(dtype, (1, 64, columns), (64 * 112, 112, 1))
        problem = GemmProblem(a, b._replace(shape=(1, 128, columns)), laid)
        why = Sm90Gemm().supports(problem, H200)
        assert (why is None) == whole == (columns % each == 0)
        assert whole or "stores 16 bytes at a time" in (why or "")
        assert (Sm90PaddedGemm(Sm90Gemm()).supports(problem, H200) is None) != whole
        assert whole == ("copy of the result" not in Sm90PaddedGemm(Sm90Gemm()).roofline(problem, SMALL, H200).phases)


def test_columns_behind_the_last():
    """Belong to another array."""
    a, b, whole = operand(70, 64), operand(64, 37, F16, "T"), np.full((70, 48), 7, F16)
    kernels.gemm(a, b, out=whole[:, :37], config=SMALL)
    close(whole[:, :37], exact(a, b))
    assert (whole[:, 37:] == 7).all()


@pytest.mark.parametrize(("tiles_m", "tiles_n"), [(3, 1 << 22), (1 << 22, 3), (1, 1), (0, 0)])
def test_tiles_of_a_group_of_rows_are_counted_in_32_bits(tiles_m, tiles_n):
    """Of rows that are there."""
    found = np.zeros(2, np.int32)

    @cute.jit
    def divisors(into: cute.Tensor, m: kiln.Int32, n: kiln.Int32):
        for i, x in enumerate(schedulers.raster_divisors(m, n, 1024)):
            into[i] = x.divisor

    divisors(from_dlpack(found), tiles_m, tiles_n)
    assert found.tolist() == [max(min(tiles_m, 1024) * tiles_n, 1), max((tiles_m - 1) % 1024 + 1, 1) if tiles_m else 1]


@pytest.mark.parametrize("dtype", [kiln.Float16, kiln.BFloat16, kiln.Int8, kiln.Float8E4M3FN])
@pytest.mark.parametrize("out", [kiln.Float16, kiln.Float32, kiln.Int8])
def test_configs_fit(dtype, out):
    for size in ((72, 11008, 2048), (328, 5120, 2048), (8192, 8192, 8192), (256, 8192, 4096), (64, 128, 32)):
        problem = problem_of(dtype, *size, out=out)
        configs = Sm90Gemm().configs(problem, H200)
        assert len(configs) > 3
        for config in configs:
            Sm90Gemm().check(problem, config, H200)


SHIPPED = [
    ("f16", F16, "NT", {}),
    ("f16, rows of K", F16, "TN", {}),
    ("bf16, in turns", BF16, "NT", {"config": kernels.Sm90GemmConfig((128, 192, 64), (2, 1), 5, 8, True)}),
    (
        "bf16, parts",
        BF16,
        "NT",
        {
            "config": kernels.Sm90GemmConfig((192, 64, 64), (1, 1), 6, 8, pingpong=True, split_k_cluster=2),
            "bias": (2048,),
        },
    ),
    (
        "bf16, parts of a warp group",
        BF16,
        "NT",
        {"config": kernels.Sm90GemmConfig((64, 64, 64), (1, 1), 8, 8, pingpong=True, split_k_cluster=2, swap_ab=True)},
    ),
    (
        "bf16, turned",
        BF16,
        "NT",
        {
            "config": kernels.Sm90GemmConfig(
                (64, 192, 64), (1, 1), 6, 8, pingpong=True, swap_ab=True, transpose_out=True
            )
        },
    ),
    ("e4m3", E4M3, "NT", {}),
    ("e4m3, factors of blocks", E4M3, "NT", {"scale_a": (2048, 16), "scale_b": (16, 16)}),
    ("i8", np.int8, "NT", {}),
    ("tf32", F32, "NT", {"precision": "tf32"}),
    ("bf16 and bytes", BF16, "weights", {"scale_b": (16, 2048)}),
]
if LONG:
    SHIPPED += [
        ("bf16, few rows", BF16, "NT", {"config": kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 8, 8, swap_ab=True)}),
        ("f16, large tiles", F16, "NT", {"config": kernels.Sm90GemmConfig((256, 192, 64), (1, 2), 3, 8)}),
        ("e4m3, fast", E4M3, "NT", {"precision": "fast"}),
    ]


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.parametrize(("dtype", "layout", "options"), [x[1:] for x in SHIPPED], ids=[x[0] for x in SHIPPED])
def test_mmas_do_not_wait_for_each_other(dtype, layout, options):
    """Nor are registers spilled: compiled for a GPU that is not there."""
    found = made(2048, dtype, layout, options)
    if layout != "weights":  # nothing that is multiplied comes from memory: a register would wait for it between MMAs
        assert not [one for loop in found for one in loop.instructions if one.name.startswith("LDG")]


LARGE = 8192
FUSED = [
    ("bf16, everything", BF16, {"bias": (LARGE,), "c": (LARGE, LARGE), "activation": "gelu"}),
    ("f16, two others", F16, {"epilogue": lambda x, y, z: cute.math.tanh(x * y + z) * x, "extras": 2}),
    ("bf16, two results and sums of rows", BF16, {"bias": (LARGE,), "epilogue": lambda x: (x, x * x), "row_reduction": "squares"}),
    ("e4m3, factors", E4M3, {"scale_a": (LARGE, 1), "scale_b": (1, LARGE), "precision": "fast", "out_dtype": np.dtype(E4M3)}),
]  # fmt: skip


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.parametrize(("dtype", "options"), [x[1:] for x in FUSED], ids=[x[0] for x in FUSED])
def test_epilogues_of_large_tiles_stay_in_registers(dtype, options):
    """A thread has as many accumulators as it has registers for, or nearly."""
    extras = [np.zeros((LARGE, LARGE), dtype)] * options.get("extras", 0)
    (loop,) = made(LARGE, dtype, "NT", {**options, "extras": extras})
    assert len({register for one in loop.products for register in sass.sums(one)}) >= 160


def made(size: int, dtype: Any, layout: str, options: dict[str, Any]) -> list[sass.Loop]:
    """The loops of a GEMM of so many rows, columns and K, compiled for a GPU that is not there."""
    a, b = np.zeros((size, size), dtype), np.zeros((size, size), np.int8 if layout == "weights" else dtype)
    given = {
        key: np.zeros(x, F32 if "scale" in key else dtype) if isinstance(x, tuple) else x for key, x in options.items()
    }
    with kiln.target("nvidia"), dry_run("sm_90a"):
        kernels.gemm(a.T if layout[0] == "T" else a, b if layout[1] == "N" else b.T, **given)
    compiled = next(
        x for x in reversed(launches._compiled.values()) if "Sm90GemmKernel_kernel" in x.executable.resources
    )
    found = sass.check_products(compiled)
    assert found
    return found
