"""Grouped GEMM on the CPU target, against float64, and what ptxas makes of them."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sass
from nvidia_testing import needs_nvdisasm

import kiln
from kiln import BFloat16, kernels
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm.implementations import FallbackConfig
from kiln.kernels.impl.gemm.problem import GroupedGemmProblem
from kiln.kernels.impl.gemm.sm90_grouped import Sm90GroupedGemm
from kiln.testing import dry_run

F16, BF16, F32, E4M3 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn
T = kernels.Sm90GemmConfig
WHOLE = T((128, 32, 32), (1, 1), 2, 2)
PINGPONG = T((64, 64, 32), (1, 1), 3, 2, pingpong=True)
SWAP_AB = T((128, 16, 32), (1, 2), 2, 2, swap_ab=True)
LONG = [FallbackConfig()] if os.environ.get("KILN_LONG_TESTS") else []
"""One GEMM after the other, each compiled for the CPU."""
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(*shape: int, dtype: Any = F16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def check(got: np.ndarray, a: np.ndarray, b: np.ndarray, ends: list[int], tolerance: float = 2e-3) -> None:
    """Rows of groups, against float64, relative to the sums of absolute values."""
    first = 0
    for group, last in enumerate(ends):
        left, right = a[first:last].astype(np.float64), b[group].astype(np.float64)
        assert (np.abs(got[first:last] - left @ right) <= tolerance * (np.abs(left) @ np.abs(right)) + 1e-6).all()
        first = max(first, last)


@pytest.mark.quick(2)
@pytest.mark.parametrize("rows", [None, 256])
@pytest.mark.parametrize("config", [T((128, 32, 32), (2, 1), 2, 2), PINGPONG, SWAP_AB, *LONG], ids=str)
def test_groups_one_after_another(config, rows):
    """Empty groups, groups of one row, of more than a tile, and rows behind the last, which stay as they are. What is no number
    is one row's own."""
    ends = [30, 30, 31, 170, 180]
    a, b, gate = normal(185, 40), normal(5, 40, 40).swapaxes(1, 2), normal(185, 1, dtype=F32)
    out = np.full((185, 40), 7, F16)
    a[180:], a[100] = np.nan, np.nan
    with kiln.sanitize("all") as found:
        kernels.grouped_gemm(
            a,
            b,
            offsets=np.array(ends, np.int32),
            out=out,
            epilogue=lambda v, g: v * g,
            extras=[gate],
            config=config,
            expected_rows=rows,
        )
    assert not found
    assert np.isnan(out[100]).all()
    a[100], out[100] = 0, 0
    check(out, a.astype(np.float64) * gate, b, ends)
    assert (out[180:] == 7).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_stages_of_epilogue_tiles_that_are_not_whole(seed, monkeypatch):
    """Those of whole ones before are written again when they have been read, however late that is."""
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    ends = [100, 200, 300, 400, 500, 600]
    a, b = normal(600, 32), normal(6, 128, 32).swapaxes(1, 2)
    config = T((128, 128, 32), (1, 1), 3, 2, pingpong=True, epi_stages=4)
    with kiln.sanitize("all") as found:
        got = kernels.grouped_gemm(a, b, offsets=np.array(ends), config=config)
    assert not found
    check(got, a, b, ends)


@pytest.mark.quick(2)
@pytest.mark.parametrize("columns", [36, 38, 39])
@pytest.mark.parametrize("config", [WHOLE, SWAP_AB], ids=str)
def test_columns_behind_the_last(config, columns):
    """Belong to another array: rows of the result are parts of longer ones, and end between multiples of 16 bytes."""
    ends = [30, 37, 100]
    a, b, whole = normal(100, 40), normal(3, columns, 40).swapaxes(1, 2), np.full((100, 40), 7, F16)
    with kiln.sanitize("all") as found:
        kernels.grouped_gemm(a, b, offsets=np.array(ends), out=whole[:, :columns], config=config)
    assert not found
    check(whole[:, :columns], a, b, ends)
    assert (whole[:, columns:] == 7).all()


def test_strides_of_one_group():
    """Nothing is reached by that from group to group, which may be any then."""
    a, b = normal(64, 104)[:, :100], normal(64, 104)[:, :100].T
    b = np.lib.stride_tricks.as_strided(b, (1, *b.shape), (200, *b.strides))  # as PyTorch has it
    got = kernels.grouped_gemm(a, b, offsets=np.array([64]), config=WHOLE)
    check(got, a, b, [64])
    counted = np.lib.stride_tricks.as_strided(a, (1, *a.shape), (200, *a.strides))
    got = kernels.grouped_gemm(counted, b, counts=np.array([50]), config=WHOLE)
    check(got[0, :50], a, b, [50])


def test_groups_that_share_a_matrix():
    """They have scales of their own."""
    ends, b = [9, 40], np.broadcast_to(normal(1, 32, 256, dtype=E4M3), (2, 32, 256)).swapaxes(1, 2)
    a, of_a, of_b = (normal(40, 256, dtype=E4M3), *(np.exp(normal(*x, dtype=F32)) for x in ((40, 2), (2, 2, 1))))
    config = T((128, 32, 128), (1, 1), 2, 2)
    got = kernels.grouped_gemm(a, b, offsets=np.array(ends), scale_a=of_a, scale_b=of_b, config=config)
    check(got, a.astype(np.float64) * np.repeat(of_a, 128, 1), b * np.repeat(of_b, 128, 1), ends, 2.0**-12)


@pytest.mark.parametrize("config", [WHOLE, SWAP_AB, *LONG], ids=str)
def test_groups_of_which_some_rows_count(config):
    a, b, counts = normal(3, 70, 40), normal(3, 56, 40).swapaxes(1, 2), np.array([70, 0, 11])
    got = kernels.grouped_gemm(a, b, counts=counts, activation="relu", config=config)
    for group, count in enumerate(counts):
        wanted = np.maximum(a[group, :count].astype(np.float64) @ b[group].astype(np.float64), 0.0)
        np.testing.assert_allclose(got[group, :count], wanted, rtol=4e-3, atol=4e-2)


@pytest.mark.parametrize("config", [WHOLE, *LONG], ids=str)
def test_bounds_that_lead_out_of_the_array(config):
    """Are taken as the nearest that do not."""
    a, b = normal(40, 40), normal(3, 16, 40).swapaxes(1, 2)
    with kiln.sanitize("all") as found:
        got = kernels.grouped_gemm(a, b, offsets=np.array([-5, 10, 1 << 40]), config=config)
    assert not found
    check(got, a, b, [0, 10, 40])


@pytest.mark.parametrize("config", [T((128, 64, 32), (1, 1), 2, 2), *LONG], ids=str)
def test_what_the_copy_engine_cannot_take(config):
    """Rows that begin anywhere, columns of a that are contiguous: copied first, with rows of the result that no group has."""
    ends = [3, 3, 20]
    for a in (normal(22, 71), normal(64, 24).T[:22]):
        b, out = normal(3, 33, a.shape[1]).swapaxes(1, 2), np.full((22, 33), 7, F16)
        kernels.grouped_gemm(a, b, offsets=np.array(ends), out=out, config=config)
        check(out, a, b, ends)
        assert (out[20:] == 7).all()


@pytest.mark.parametrize(("config", "k"), [(T((128, 64, 128), (1, 1), 2, 2), 304), *((config, 131) for config in LONG)])
def test_block_scales(config, k):
    ends, depth = [9, 9, 150], -(-k // 128)
    a, b = normal(153, k, dtype=E4M3), normal(3, 200, k, dtype=E4M3).swapaxes(1, 2)
    of_a, of_b = np.exp(normal(153, depth, dtype=F32)), np.exp(normal(3, depth, 2, dtype=F32))
    got = kernels.grouped_gemm(
        a, b, offsets=np.array(ends), scale_a=of_a, scale_b=of_b, out_dtype=np.dtype(F32), config=config
    )
    left = a.astype(np.float64) * np.repeat(of_a, 128, 1)[:, :k]
    right = b.astype(np.float64) * np.repeat(np.repeat(of_b, 128, 1)[:, :k], 128, 2)[:, :, :200]
    check(got, left, right, ends, 2.0**-12)


def test_many_groups():
    """More than a warp looks up at once."""
    sizes = RNG.integers(0, 4, 70)
    ends = np.cumsum(sizes).astype(np.int32)
    a, b = normal(int(ends[-1]), 16), normal(70, 8, 16).swapaxes(1, 2)
    got = kernels.grouped_gemm(a, b, offsets=ends, config=T((128, 8, 32), (1, 1), 2, 2, swap_ab=True))
    check(got, a, b, ends.tolist())


X, Y, Z, ENDS = normal(8, 16), normal(2, 16, 8), normal(2, 16, 16), np.array([4, 8], np.int32)
REFUSED = [
    (lambda: kernels.grouped_gemm(X, Y), "neither offsets nor counts"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, counts=ENDS), "both offsets and counts"),
    (lambda: kernels.grouped_gemm(X, Y, counts=ENDS), r"\(G, M, K\) and \(G, K, N\)"),
    (lambda: kernels.grouped_gemm(X, Y[0], offsets=ENDS), r"\(T, K\) and \(G, K, N\)"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS.astype(F32)), "int32 or int64"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS[:1]), "for 2 groups"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, scale_a=normal(8, 1, dtype=F32)), "scales have the shapes"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, extras=[X]), "no epilogue"),
    (lambda: kernels.grouped_gemm(X, normal(2, 16, 16), offsets=ENDS, out=X), "out begins where a does"),
    (lambda: kernels.grouped_gemm(Y @ X, Z, counts=ENDS, out=Z), "out begins where b does"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, expected_rows=-3), "expected_rows=-3: a positive integer"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, expected_rows=0), "expected_rows=0: a positive integer"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, expected_rows=1.5), "expected_rows=1.5: a positive integer"),  # pyright: ignore[reportArgumentType]
    (
        lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, config=T((128, 32, 32), (1, 1), 2, split_k_cluster=2)),
        "parts|stages",
    ),
    (lambda: kernels.grouped_gemm(X, normal(2, 16, 16), offsets=ENDS, out=X), "out begins where a does"),
    (lambda: kernels.grouped_gemm(Y @ X, Z, counts=ENDS, out=Z), "out begins where b does"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, expected_rows=-3), "expected_rows=-3: a positive integer"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, expected_rows=0), "expected_rows=0: a positive integer"),
    (lambda: kernels.grouped_gemm(X, Y, offsets=ENDS, expected_rows=1.5), "expected_rows=1.5: a positive integer"),  # pyright: ignore[reportArgumentType]
]
CONFIGS = [
    (T((128, 32, 32), (1, 1), 2, split_k_cluster=2), "have no split-K"),
    (T((128, 32, 32), (1, 1), 2, split_k=2), "have no split-K"),
    (T((128, 32, 32), (1, 1), 2, swap_ab=True, transpose_out=True), "begin and end anywhere"),
    (T((128, 256, 64), (1, 1), 4, 8, epi_stages=4), "with a table of 1024 groups"),
]


@pytest.mark.parametrize(("config", "says"), CONFIGS)
def test_configs_that_are_refused(config, says):
    groups = 1024 if "table" in says else 2
    a, b, out = (TensorLayout.dense(BFloat16, *x) for x in ((1, 64, 256), (groups, 256, 64), (1, 64, 64)))
    with pytest.raises(TypeError, match=says):
        Sm90GroupedGemm().check(GroupedGemmProblem(a, b, out, expected_rows=32), config, device_of("sm_90a"))


@pytest.mark.parametrize("groups", [2, 1024, 4096, 8192])
def test_tables_leave_room_for_stages(groups):
    """As many as still fit beside the table, whether tiles are large or small."""
    a, b, out = (TensorLayout.dense(BFloat16, *x) for x in ((1, 32, 2048), (groups, 2048, 256), (1, 32, 256)))
    problem, device = GroupedGemmProblem(a, b, out, expected_rows=256), device_of("sm_90a")
    configs = Sm90GroupedGemm().configs(problem, device)
    assert len(configs) > 3
    for config in configs:
        Sm90GroupedGemm().check(problem, config, device)


@pytest.mark.parametrize(("groups", "rows", "slower"), [(8, 1024, {192}), (32, 256, {192}), (256, 4, {160, 192})])
def test_tiles_that_are_slower_for_groups_are_left_out(groups, rows, slower):
    """Than for single GEMMs, whose model expects them to be faster."""
    shapes = (1, groups * rows, 2048), (groups, 2048, 7168), (1, groups * rows, 7168)
    problem = GroupedGemmProblem(*(TensorLayout.dense(BFloat16, *x) for x in shapes), expected_rows=rows)
    columns = {config.tile_shape_mnk[1] for config in Sm90GroupedGemm().configs(problem, device_of("sm_90a"))}
    assert 256 in columns
    assert not columns & slower


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize("rows", [16, 64, 256, 1024])
def test_clusters_lie_along_columns(rows):
    """A group's last rows fill one tile of two, as likely as not. Of few rows both warpgroups have a tile, so that one without rows can skip it."""
    a, b, out = (
        TensorLayout.dense(BFloat16, *x) for x in ((1, 32 * rows, 7168), (32, 7168, 4096), (1, 32 * rows, 4096))
    )
    configs = Sm90GroupedGemm().configs(GroupedGemmProblem(a, b, out, expected_rows=rows), device_of("sm_90a"))
    assert configs
    assert all(config.cluster_shape_mn[0] == 1 for config in configs)
    assert any(config.pingpong or config.swap_ab for config in configs) == (rows > 128)


def test_nothing_to_compute():
    assert kernels.grouped_gemm(normal(0, 16), Y, offsets=ENDS).shape == (0, 8)


@needs_nvdisasm
@pytest.mark.parametrize("rows", [16, 128] if LONG else [16])
def test_mmas_do_not_wait_for_each_other(rows):
    """Nor are registers spilled: compiled for a GPU that is not there. Matrices have more elements than 32 bits count."""
    a, b = np.zeros((256 * rows, 2048), BF16), np.zeros((256, 4096, 2048), BF16).swapaxes(1, 2)
    with kiln.target("nvidia"), dry_run("sm_90a"):
        kernels.grouped_gemm(a, b, offsets=np.zeros(256, np.int32))
    assert sass.check_products(list(launches._compiled.values())[-1])
