"""Grouped GEMM with tcgen05 on the CPU target, against float64: groups, types, edges, scale factors; and how it is chosen."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import gemm_arrays
import ml_dtypes
import numpy as np
import pytest
from gemm_arrays import close, exact, padded

import kiln
from kiln import kernels
from kiln.base_dsl.typing import BFloat16
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import grouped_gemm as grouped
from kiln.kernels.impl.gemm.problem import GroupedGemmProblem
from kiln.kernels.impl.gemm.sm100_grouped import Sm100GroupedGemm
from kiln.testing import dry_run

F16, BF16, F32, E4M3, E5M2 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E8M0 = ml_dtypes.float8_e8m0fnu
C = kernels.Sm100GemmConfig
ONE = C((128, 64, 64), (1, 1), 2, 2, 2, 2, pair=False)
PAIR = C((256, 64, 64), (2, 1), 3, 2, 2, 2)
TWO = C((512, 64, 64), (2, 1), 2, 1, 2, 1)
FEW = C((128, 32, 64), (1, 1), 3, 2, 2, 4, pair=False, swap_ab=True)
B200 = device_of("sm_100a")
ENDS = [30, 30, 31, 290, 330]
"""A group without rows, one of a row, one of more than a tile, and rows behind the last."""
ROWS = 335
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    with kiln.target("cpu"):
        yield


def having(config: Any, **changes: Any) -> Any:
    return dataclasses.replace(config, **changes)


def operands(rows: int, n: int, k: int, dtype: Any = F16, groups: int = 5) -> tuple[np.ndarray, np.ndarray]:
    a = gemm_arrays.operand(RNG, rows, k, dtype)
    return a, gemm_arrays.operand(RNG, k, n, dtype, "T", (groups,))


def parts(ends: list[int]) -> list[tuple[int, int, int]]:
    """Each group with the rows that it has."""
    bounds = [(group, *both) for group, both in enumerate(zip([0, *ends], ends, strict=False))]
    return [one for one in bounds if one[1] < one[2]]


@pytest.mark.quick(2)
@pytest.mark.parametrize("config", [ONE, PAIR, TWO, FEW, having(FEW, tile_shape_mnk=(256, 32, 64), pair=True, cluster_shape_mn=(2, 1)), having(ONE, cluster_shape_mn=(1, 2))])  # fmt: skip
def test_groups_one_after_another(config):
    """Rows behind the last group stay as they are. What is no number is one row's own."""
    (a, b), gate = operands(ROWS, 136, 72), RNG.standard_normal((ROWS, 1)).astype(F32)
    out = padded((ROWS, 136), F16)
    out[...] = 7
    a[330:], a[100] = np.nan, np.nan
    with kiln.sanitize("all") as found:
        kernels.grouped_gemm(a, b, offsets=np.array(ENDS, np.int32), out=out, config=config)
        fused = kernels.grouped_gemm(
            a, b, offsets=np.array(ENDS), epilogue=lambda value, x: value * x, extras=[gate], config=config
        )
    assert not found
    assert np.isnan(out[100]).all() and (out[330:] == 7).all()
    a[100], out[100], fused[100] = 0, 0, 0
    for group, first, last in parts(ENDS):
        close(out[first:last], exact(a[first:last], b[group]))
        close(fused[first:last], gate[first:last] * exact(a[first:last], b[group]), 8.0)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("dtype", "out", "k", "config"),
    [
        (BF16, F32, 64, PAIR),
        (E4M3, BF16, 128, FEW),
        (E5M2, F32, 128, ONE),
        (np.int8, np.int32, 128, ONE),
        (np.uint8, np.int32, 128, FEW),
        (F16, E4M3, 64, PAIR),
    ],
)
def test_types(dtype, out, k, config):
    a, b = operands(200, 80, 208, dtype, 2)
    m, n, _ = config.tile_shape_mnk
    config = having(config, tile_shape_mnk=(m, n, k))
    with kiln.sanitize("all") as found:
        got = kernels.grouped_gemm(a, b, offsets=np.array([13, 200]), out_dtype=np.dtype(out), config=config)
    assert not found
    for group, first, last in parts([13, 200]):
        close(got[first:last], exact(a[first:last], b[group]), 4.0 if np.dtype(out).itemsize == 4 else 1.0)


def test_tf32():
    a, b = operands(40, 24, 72, F32, 2)
    got = kernels.grouped_gemm(a, b, offsets=np.array([13, 40]), precision="tf32", config=having(ONE, tile_shape_mnk=(128, 32, 32)))  # fmt: skip
    for group, first, last in parts([13, 40]):
        error = np.abs(got[first:last] - exact(a[first:last], b[group])).max()
        assert 1e-5 < error < 0.02


@pytest.mark.quick(1)
@pytest.mark.parametrize("config", [PAIR, FEW])
@pytest.mark.parametrize("seed", [1, 2])
def test_stages_of_epilogue_tiles_that_are_not_whole(config, seed, monkeypatch):
    """Those of whole ones before are written again when they have been read, however late that is."""
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    a, b = operands(300, 128, 32, groups=4)
    ends = [60, 140, 290, 300]
    with kiln.sanitize("all") as found:
        got = kernels.grouped_gemm(a, b, offsets=np.array(ends), config=having(config, epi_stages=3))
    assert not found
    for group, first, last in parts(ends):
        close(got[first:last], exact(a[first:last], b[group]))


@pytest.mark.parametrize("config", [ONE, FEW])
def test_groups_of_which_some_rows_count(config):
    a, b, counts = gemm_arrays.operand(RNG, 70, 40, F16, batch=(3,)), operands(1, 56, 40, groups=3)[1], [70, 0, 11]
    got = kernels.grouped_gemm(a, b, counts=np.array(counts), activation="relu", config=config)
    for group, count in enumerate(counts):
        close(got[group, :count], np.maximum(exact(a[group, :count], b[group]), 0.0))


@pytest.mark.parametrize("columns", [36, 39])
def test_columns_behind_the_last(columns):
    """Belong to another array: rows of the result are parts of longer ones, and end between multiples of 16 bytes."""
    a, b = operands(60, columns, 40, groups=2)
    whole = np.full((60, 40), 7, F16)
    kernels.grouped_gemm(a, b, offsets=np.array([37, 60]), out=whole[:, :columns], config=ONE)
    for group, first, last in parts([37, 60]):
        close(whole[first:last, :columns], exact(a[first:last], b[group]))
    assert (whole[:, columns:] == 7).all()


def test_bounds_that_lead_out_of_the_array():
    """Are taken as the nearest that do not."""
    a, b = operands(40, 16, 40, groups=3)
    with kiln.sanitize("all") as found:
        got = kernels.grouped_gemm(a, b, offsets=np.array([-5, 10, 1 << 40]), config=having(ONE, tile_shape_mnk=(128, 32, 64)))  # fmt: skip
    assert not found
    for group, first, last in parts([0, 10, 40]):
        close(got[first:last], exact(a[first:last], b[group]))


# --- scale factors of vectors --------------------------------------------------------------------------------------


def scales(*shape: int, kind: Any = E8M0) -> np.ndarray:
    return np.exp2(RNG.integers(-4, 5, shape)).astype(kind)


def scaled(x: np.ndarray, own: np.ndarray, vector: int = 32) -> np.ndarray:
    return x.astype(np.float64) * np.repeat(own.astype(np.float64), vector, -1)


def near(got: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Within what rounding of sums of f32 allows."""
    assert (np.abs(got - left @ right) <= 2.0**-18 * (np.abs(left) @ np.abs(right)) + 1e-5).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "config",
    [
        C((128, 128, 128), (1, 1), 2, 2, 2, 1, pair=False),
        C((256, 128, 128), (2, 1), 2, 2, 2, 2),
        C((256, 256, 128), (2, 1), 2, 1, 2, 2),
    ],
)
def test_scales_of_vectors(config):
    """Groups begin anywhere, and their scale factors with atoms, which a kernel lays out; K is not whole."""
    n, k = 264, 160
    a, b = operands(ROWS, n, k, E4M3)
    of_a, of_b = scales(ROWS, k // 32), scales(5, n, k // 32)
    of_a.view(np.uint8)[330:] = 255  # no number, in rows that no group has
    with kiln.sanitize("all") as found:
        got = kernels.grouped_gemm(
            a, b, offsets=np.array(ENDS, np.int32), scale_a=of_a, scale_b=of_b.swapaxes(1, 2), config=config
        )
    assert not found
    for group, first, last in parts(ENDS):
        near(got[first:last], scaled(a[first:last], of_a[first:last]), scaled(b[group].T, of_b[group]).T)


def test_scales_of_groups_of_which_some_rows_count():
    n, k, counts = 136, 128, [150, 0, 11]
    a, b = gemm_arrays.operand(RNG, 150, k, E4M3, batch=(3,)), operands(1, n, k, E4M3, 3)[1]
    of_a, of_b = scales(3, 150, k // 32), scales(3, n, k // 32)
    config = C((256, 128, 128), (2, 1), 2, 2, 2, 2)
    got = kernels.grouped_gemm(a, b, counts=np.array(counts), scale_a=of_a, scale_b=of_b.swapaxes(1, 2), config=config)
    for group, count in enumerate(counts):
        near(got[group, :count], scaled(a[group, :count], of_a[group, :count]), scaled(b[group].T, of_b[group]).T)


def test_scales_of_blocks():
    """Of 128 elements along K, and 128 columns of b: the same bits as those of vectors."""
    n, k, ends = 200, 320, np.array([20, 150], np.int32)
    a, b = operands(150, n, k, E4M3, 2)
    of_a, of_b = scales(150, 3), scales(2, 3, 2)
    config = C((128, 128, 128), (1, 1), 2, 2, 2, 1, pair=False)
    got = kernels.grouped_gemm(a, b, offsets=ends, scale_a=of_a, scale_b=of_b, config=config)
    left = np.repeat(of_a, 4, 1)[:, : k // 32]
    right = np.repeat(np.repeat(of_b, 4, 1), 128, 2)[:, : k // 32, :n]
    wanted = kernels.grouped_gemm(a, b, offsets=ends, scale_a=left, scale_b=right, config=config)
    assert got.tobytes() == wanted.tobytes()
    for group, first, last in parts(ends.tolist()):
        near(got[first:last], scaled(a[first:last], left[first:last]), scaled(b[group].T, right[group].T).T)


@pytest.mark.parametrize(("vector", "kind"), [(16, E4M3), (32, E8M0)])
def test_floats_of_4_bits(vector, kind):
    m, n, k, ends = 150, 128, 256, [20, 150]
    codes = [RNG.integers(0, 256, shape).astype(np.uint8) for shape in ((m, k // 2), (2, n, k // 2))]
    left, right = (np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], k) for x in codes)
    left, right = (x.astype(np.uint8).view(ml_dtypes.float4_e2m1fn) for x in (left, right))
    of_a, of_b = scales(m, k // vector, kind=kind), scales(2, n, k // vector, kind=kind)
    config = C((128, 128, 256), (1, 1), 2, 2, 2, 1, pair=False)
    got = kernels.grouped_gemm(
        codes[0], codes[1].swapaxes(1, 2), offsets=np.array(ends), scale_a=of_a, scale_b=of_b.swapaxes(1, 2), config=config
    )  # fmt: skip
    for group, first, last in parts(ends):
        near(
            got[first:last],
            scaled(left[first:last], of_a[first:last], vector),
            scaled(right[group], of_b[group], vector).T,
        )


@pytest.mark.parametrize("way", ["offsets", "counts"])
def test_scales_on_other_architectures(way, monkeypatch):
    """A GEMM for each group."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    n, k, ends = 24, 64, [9, 9, 140]
    a, b = operands(140, n, k, E4M3, 3)
    of_a, of_b = scales(140, k // 32), scales(3, n, k // 32)
    if way == "offsets":
        got = kernels.grouped_gemm(a, b, offsets=np.array(ends), scale_a=of_a, scale_b=of_b.swapaxes(1, 2))
        for group, first, last in parts(ends):
            near(got[first:last], scaled(a[first:last], of_a[first:last]), scaled(b[group].T, of_b[group]).T)
    else:
        three, of_three = np.stack([a] * 3), np.stack([of_a] * 3)
        got = kernels.grouped_gemm(three, b, counts=np.array([9, 0, 140]), scale_a=of_three, scale_b=of_b.swapaxes(1, 2))  # fmt: skip
        for group, count in enumerate((9, 0, 140)):
            near(got[group, :count], scaled(a[:count], of_a[:count]), scaled(b[group].T, of_b[group]).T)


# --- choices -------------------------------------------------------------------------------------------------------


def problem(groups: int, rows: int, n: int, k: int) -> GroupedGemmProblem:
    shapes = (1, groups * rows, k), (groups, k, n), (1, groups * rows, n)
    return GroupedGemmProblem(*(TensorLayout.dense(BFloat16, *x) for x in shapes), expected_rows=rows)


@pytest.mark.parametrize(("groups", "rows"), [(8, 1024), (32, 256), (256, 4), (4096, 16)])
def test_choices_work(groups, rows):
    """All configs that the model chooses among keep the rules, beside a table of many groups too."""
    own, one = Sm100GroupedGemm(), problem(groups, rows, 4096, 2048)
    configs = own.configs(one, B200)
    assert len(configs) > 3
    for config in configs:
        own.check(one, config, B200)
    chosen = grouped.REGISTRY.choose(one, B200)
    assert isinstance(chosen.implementation, Sm100GroupedGemm)
    assert chosen.config.swap_ab == (rows < 64)


def test_an_explanation_says_that_times_are_predicted():
    a, b = np.zeros((512, 512), F16), np.zeros((4, 512, 512), F16).swapaxes(1, 2)
    said = str(kernels.explain(kernels.grouped_gemm, a, b, offsets=np.array([128, 256, 384, 512])))
    assert "Sm100GroupedGemm, " in said and "times of Sm100GroupedGemm are predicted" in said


@pytest.mark.parametrize(
    ("changes", "why"), [({"dynamic": True}, "no cluster launch control"), ({"split_k": 2}, "groups have no split-K")]
)
def test_configs_are_checked(changes, why):
    a, b = np.zeros((512, 512), F16), np.zeros((4, 512, 512), F16).swapaxes(1, 2)
    with pytest.raises(TypeError, match=why):
        kernels.grouped_gemm(a, b, offsets=np.array([128, 256, 384, 512]), config=having(PAIR, **changes))


@pytest.mark.parametrize(
    ("of_a", "why"),
    [(scales(40, 3), r"\(40, 4\), one for each 32 elements"), (scales(1, 40, 4), "lie in rows, as a does")],
)
def test_refused_scales(of_a, why):
    a, b = operands(40, 128, 128, E4M3, 2)
    with pytest.raises(TypeError, match=why):
        kernels.grouped_gemm(a, b, offsets=np.array([9, 40]), scale_a=of_a, scale_b=scales(2, 4, 128))


@pytest.mark.parametrize("scaled", [False, True])
def test_bounds_and_scales_are_read_after_the_kernels_before(scaled, monkeypatch):
    """On a GPU the GEMM may start beside the kernel that writes them; the CPU target runs one after the other."""
    monkeypatch.setattr(launches, "_compiled", {})
    a, b = np.zeros((512, 512), E4M3), np.zeros((4, 512, 512), E4M3).swapaxes(1, 2)
    options: dict[str, Any] = {"config": C((256, 128, 128), (2, 1), 4, 2, 2, 1), "out_dtype": F32}
    if scaled:
        options |= {"scale_a": np.zeros((512, 16), E8M0), "scale_b": np.zeros((4, 16, 512), E8M0)}
    with kiln.target("nvidia"), dry_run("sm_100a") as found:
        kernels.grouped_gemm(a, b, offsets=np.zeros(4, np.int32), **options)
    assert [x.kernel.split("_")[0] for x in found] == [*(["GroupScaleAtoms"] if scaled else []), "Sm100GemmKernel"]
    steps = {
        "griddepcontrol.wait": "wait",
        "griddepcontrol.launch_dependents": "let go",
        "ld.global": "bound",
        ".shared::cluster.global": "TMA",
        "tcgen05.ld": "accumulator",
        "st.global": "store",
        ".global.shared::cta": "store",
    }
    seen = [steps[one] for one in re.findall("|".join(map(re.escape, steps)), found[-1].artifacts["ptx"])]
    order = [one for one, _ in itertools.groupby(seen)]
    # all warps, then the warp that loads, then those that store
    assert order == ["wait", "bound", "wait", "TMA", "wait", "let go", "accumulator", "store"]
    if scaled:  # whose end lets the GEMM go on
        assert "griddepcontrol" not in found[0].artifacts["ptx"]
