"""The GEMM with tcgen05 on the CPU target, against float64: layouts, types, edges, epilogues, tiles; and how it is chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

import gemm_arrays
import ml_dtypes
import numpy as np
import pytest
from gemm_arrays import close, exact, padded

import kiln
from kiln import cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.base_dsl.typing import Float8E4M3FN, Float16, Float32, Int8
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem, sm100_cost
from kiln.kernels.impl.gemm.padded import Sm100PaddedGemm
from kiln.kernels.impl.gemm.sm100_implementation import Sm100Gemm

F16, BF16, F32, E4M3, E5M2 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ONE = kernels.Sm100GemmConfig((128, 64, 64), (1, 1), 2, 2, 2, 2, pair=False)
PAIR = kernels.Sm100GemmConfig((256, 64, 64), (2, 1), 3, 2, 2, 2)
TWO = kernels.Sm100GemmConfig((512, 64, 64), (2, 1), 2, 1, 2, 1)
"""Two accumulators, whose MMAs share B."""
FEW = kernels.Sm100GemmConfig((128, 32, 64), (1, 1), 3, 2, 2, 4, pair=False, swap_ab=True)
B200 = device_of("sm_100a")
B300 = device_of("sm_103a")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    monkeypatch.setattr("kiln.kernels.dispatch.devices.max_active_clusters", lambda size: 1)
    with kiln.target("cpu"):
        yield


def operand(rows: int, columns: int, dtype: Any = F16, way: str = "N", batch: tuple[int, ...] = ()) -> np.ndarray:
    """Normal data; N: rows are contiguous, T: columns."""
    return gemm_arrays.operand(RNG, rows, columns, dtype, way, batch)


def having(config: Any, **changes: Any) -> Any:
    return dataclasses.replace(config, **changes)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "config",
    [
        ONE,
        PAIR,
        TWO,
        having(ONE, dynamic=True, cluster_shape_mn=(1, 2)),
        having(PAIR, dynamic=True),
        having(TWO, dynamic=True),
        having(PAIR, cluster_shape_mn=(4, 1)),
        having(PAIR, cluster_shape_mn=(2, 2)),
        having(ONE, cluster_shape_mn=(2, 2)),
        having(PAIR, tile_shape_mnk=(256, 96, 32), acc_stages=1),
    ],
)
def test_tiles(config):
    """One cluster takes several tiles, each of several stages; the last ones of each are not whole."""
    a, b = operand(600, 168), operand(168, 136, way="T")
    with kiln.sanitize("all") as found:
        close(kernels.gemm(a, b, config=config), exact(a, b))
    assert not found


@pytest.mark.parametrize(("layout", "config"), [("NN", ONE), ("TN", PAIR), ("TT", having(PAIR, swap_ab=True))])
def test_layouts(layout, config):
    a, b = operand(264, 71, F16, layout[0]), operand(71, 85, F16, layout[1])
    out = padded((264, 85), F16)
    kernels.gemm(a, b, out=out, config=config)
    close(out, exact(a, b))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("left", "right", "out", "k", "ways"),
    [
        (BF16, BF16, F32, 64, "NT"), (E4M3, E5M2, F32, 128, "NT"), (E4M3, E4M3, E5M2, 128, "TN"),
        (np.int8, np.int8, np.int32, 128, "NT"), (np.uint8, np.uint8, np.int32, 128, "TN"), (F16, F16, E4M3, 64, "NT"),
        (np.int8, np.int8, F32, 64, "NT"),
    ],
)  # fmt: skip
def test_types(left, right, out, k, ways):
    """Of both orders of operands, and of every width of results."""
    a, b = operand(272, 208, left, ways[0]), operand(208, 80, right, ways[1])
    for config in (PAIR, having(ONE, tile_shape_mnk=(128, 32, 64))):
        m, n, _ = config.tile_shape_mnk
        got = kernels.gemm(a, b, out_dtype=np.dtype(out), config=having(config, tile_shape_mnk=(m, n, k)))
        close(got, exact(a, b), 4.0 if np.dtype(out).itemsize == 4 else 1.0)


def test_accumulators_of_8_bit_floats_keep_their_bits():
    """Tensor cores keep 25 bits of what they add, whatever the precision: nothing is added up elsewhere."""
    a, b = operand(64, 512, E4M3), operand(512, 32, E4M3, "T")
    a[:, :128] = 0.0
    a[:, 0], b[0] = 256.0, 256.0
    config = having(ONE, tile_shape_mnk=(128, 32, 128))
    for precision in ("ieee", "fast"):
        got = kernels.gemm(a, b, precision=precision, config=config)
        assert np.abs(got - exact(a, b)).max() < 0.13  # of 65536: 16 MMAs truncate sums to f32


@pytest.mark.parametrize("ways", ["NT", "TN"])
def test_tf32_is_rounded_to_nearest(ways):
    """TMA rounds: tensor cores would truncate."""
    a, b = operand(72, 72, F32, ways[0]), operand(72, 40, F32, ways[1])
    got = kernels.gemm(a, b, precision="tf32", config=having(ONE, tile_shape_mnk=(128, 32, 32)))

    def rounded(x: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(x).view(np.uint32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(F32)

    assert np.abs(got - exact(rounded(a), rounded(b))).max() < 1e-4
    assert np.abs(got - exact(a, b)).max() > 1e-4


@pytest.mark.parametrize("config", [ONE, having(FEW, dynamic=True)])
def test_special_values(config):
    """Infinities and NaN come out where they belong, and nowhere else; so do values that the result cannot hold."""
    a, b = operand(40, 80), operand(80, 72, way="T")
    a[3, 5], a[7, 1], b[2, 9] = np.inf, np.nan, -np.inf
    a[11], b[:, 4] = 200.0, 200.0
    got = kernels.gemm(a, b, config=config)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = exact(a, b).astype(F16)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(wanted))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(wanted))


@pytest.mark.parametrize("config", [PAIR, having(ONE, dynamic=True), FEW])
def test_batches(config):
    """Of which B and the bias are the same for all."""
    a, b, bias = operand(70, 40, batch=(3,)), operand(40, 56), operand(3, 56)[:, None, :]
    tile = having(config, tile_shape_mnk=(config.tile_shape_mnk[0], 64, 64))
    close(kernels.gemm(a, b, bias=bias, config=tile), exact(a, b) + bias)
    a, b = operand(70, 40), operand(40, 48, batch=(2,), way="T")
    close(kernels.gemm(a, b, config=config), exact(a, b))


@pytest.mark.parametrize("config", [ONE, PAIR, TWO, FEW])
def test_everything_in_the_epilogue(config):
    a, b, c = operand(300, 40), operand(40, 88, way="T"), operand(300, 88, F32)
    bias, column, flags = operand(1, 88, BF16)[0], operand(300, 1, F32), RNG.integers(0, 2, (300, 88)).astype(bool)
    with kiln.sanitize("all") as found:
        got = kernels.gemm(
            a, b, alpha=0.5, beta=2.0, c=c, bias=bias, activation="relu",
            epilogue=lambda value, gate, flag: cute.where(flag, value * gate, value), extras=[column, flags],
            out_dtype=F32, config=config,
        )  # fmt: skip
    assert not found
    value = np.maximum(0.5 * exact(a, b) + 2.0 * c + bias.astype(np.float64), 0.0)
    close(got, np.where(flags, value * column, value), 64.0)


def test_alpha_changes_without_another_kernel():
    a, b = operand(70, 40), operand(40, 88, way="T")
    for alpha in (1.0, 0.5, -2.0, 1.0):
        close(kernels.gemm(a, b, alpha=alpha, config=ONE), alpha * exact(a, b))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("config", "outs", "rows"), [(PAIR, (F16, F16), True), (TWO, (F16, F32), True), (ONE, (F16, E4M3), True), (FEW, (F16, E4M3), False)]
)  # fmt: skip
def test_several_results(config, outs, rows):
    """One kernel writes each value of the epilogue, and row sums where tiles do not lie across the result."""
    a, b, bias = operand(280 if rows else 9, 40), operand(40, 80, way="T"), operand(1, 80, F32)[0]
    with kiln.sanitize("all") as found:
        got = kernels.gemm(
            a, b, bias=bias, epilogue=lambda value: (value, value * 0.5), out_dtype=outs,
            row_reduction="squares" if rows else None, config=config,
        )  # fmt: skip
    assert not found
    wanted = exact(a, b) + bias
    close(got[0], wanted, 8.0)
    close(got[1], wanted * 0.5, 8.0)
    if rows:
        np.testing.assert_allclose(got[2], (wanted**2).sum(1), rtol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("config", "out"),
    [
        (FEW, F16),
        (having(FEW, tile_shape_mnk=(128, 16, 64)), F32),
        (having(FEW, tile_shape_mnk=(256, 32, 64), pair=True, cluster_shape_mn=(2, 1)), BF16),
        (having(FEW, tile_shape_mnk=(128, 48, 64)), E4M3),
    ],
)
@pytest.mark.parametrize("m", [1, 45])
def test_few_rows(config, out, m):
    """Swap-AB: N of the result is M of the MMA, and TMA stores tiles that lie across the result."""
    a, b, c, bias = operand(m, 136), operand(136, 272, way="T"), operand(m, 272), operand(1, 272)[0]
    with kiln.sanitize("all") as found:
        close(kernels.gemm(a, b, out_dtype=np.dtype(out), config=config), exact(a, b))
        got = kernels.gemm(a, b, c=c, bias=bias, activation="relu", out_dtype=np.dtype(out), config=config)
    assert not found
    close(got, np.maximum(exact(a, b) + bias + c.astype(np.float64), 0.0), 8.0)


@pytest.mark.parametrize("config", [ONE, having(PAIR, dynamic=True), FEW])
def test_split_k(config):
    """A second kernel adds the partials of slices that are not equal, and runs the epilogue."""
    a, b, bias = operand(70, 7 * 64 + 8), operand(7 * 64 + 8, 56, way="T"), operand(1, 56)[0]
    for parts in (2, 3):
        got = kernels.gemm(a, b, bias=bias, activation="relu", config=having(config, split_k=parts))
        close(got, np.maximum(exact(a, b) + bias, 0.0), 8.0)


@pytest.mark.parametrize("size", [1, 63, 131])
def test_odd_extents(size):
    """TMA cannot access the arrays: the library copies them."""
    a, b = RNG.standard_normal((size, 2 * size + 1)).astype(F16), RNG.standard_normal((2 * size + 1, size)).astype(F16)
    close(kernels.gemm(a, b, config=ONE), exact(a, b))
    chosen = kernels.explain(kernels.gemm, a, b, config=ONE).choices[0]
    assert isinstance(chosen.implementation, Sm100PaddedGemm)


def test_sums_have_an_order():
    """The same bits each time, whichever cluster has which tile."""
    a, b = operand(300, 640), operand(640, 136, way="T")
    config = having(PAIR, dynamic=True)
    assert kernels.gemm(a, b, config=config).tobytes() == kernels.gemm(a, b, config=config).tobytes()


# --- choices -----------------------------------------------------------------------------------------------------


def problem(m: int, n: int, k: int, dtype: Any = Float16, out: Any = Float16, **options: Any) -> GemmProblem:
    b = TensorLayout(dtype, (1, k, n), (n * k, 1, k))
    return GemmProblem(TensorLayout.dense(dtype, 1, m, k), b, TensorLayout.dense(out, 1, m, n), **options)


@pytest.mark.parametrize("device", [B200, B300], ids=lambda device: device.name)
@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (512, 4096, 4096), (64, 24576, 1536)])
def test_choices_work(shape, device):
    """All configs that the model chooses among keep the rules."""
    own = Sm100Gemm()
    for dtype, out in ((Float16, Float16), (Float8E4M3FN, Float32)):
        one = problem(*shape, dtype, out)
        configs = own.configs(one, device)
        assert configs
        for config in configs:
            own.check(one, config, device)
    assert isinstance(REGISTRY.choose(problem(*shape), device).implementation, Sm100Gemm)


def test_large_problems_take_pairs():
    """Two accumulators that share B for a large one; a pair with two stages of accumulators where K is short."""
    assert REGISTRY.choose(problem(8192, 8192, 8192), B200).config.tile_shape_mnk == (512, 256, 64)
    short = REGISTRY.choose(problem(8192, 8192, 256), B200).config
    assert short.pair and short.acc_stages == 2


def test_a_longer_problem_takes_longer():
    config = kernels.Sm100GemmConfig()
    times = [sm100_cost.roofline(problem(4096, 4096, k), config, B200).us for k in (512, 1024, 4096, 16384)]
    assert times == sorted(times) and times[-1] > 10 * times[0]


def test_what_it_does_not_multiply():
    own = Sm100Gemm()
    integers = problem(256, 256, 256, Int8, kiln.Int32)
    assert own.supports(integers, B200) is None
    assert "tcgen05.mma of kind::i8 needs sm_100a" in (own.supports(integers, B300) or "")
    assert "tcgen05 needs sm_100a" in (own.supports(problem(256, 256, 256), device_of("sm_90a")) or "")
    exactly = problem(256, 256, 256, Float32, Float32)
    assert "rounded to TF32" in (own.supports(exactly, B200) or "")


def test_an_explanation_says_that_times_are_predicted():
    a, b = np.zeros((512, 512), F16), np.zeros((512, 512), F16).T
    said = str(kernels.explain(kernels.gemm, a, b))
    assert "Sm100Gemm, " in said and "times of Sm100Gemm are predicted: no GPU has run it" in said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tile_shape_mnk": (384, 64, 64)}, "M of a tile is 384; that of a pair must be 256 or 512"),
        ({"tile_shape_mnk": (256, 48, 64)}, "N of a tile is 48; that of a pair must be a multiple of 32"),
        ({"tile_shape_mnk": (256, 64, 96)}, "K of a stage must be 128, 64, 32 bytes"),
        ({"tile_shape_mnk": (512, 256, 64)}, "accumulators take 1024 columns of tensor memory; there are 512"),
        ({"cluster_shape_mn": (1, 2)}, "a pair is two CTAs of a cluster along M, and the cluster has 1"),
        ({"cluster_shape_mn": (4, 4)}, "a cluster has 16 CTAs; it may have 8"),
        ({"ab_stages": 9, "tile_shape_mnk": (256, 256, 64)}, "bytes of shared memory, and a CTA has"),
        ({"epi_stages": 1}, "epi_stages must be at least 2"),
        ({"split_k": 9}, "K of 512 is 8 stages"),
    ],
)
def test_configs_are_checked(changes, why):
    a, b = np.zeros((512, 512), F16), np.zeros((512, 512), F16).T
    with pytest.raises(DSLUserCodeTypeError, match=why):
        kernels.gemm(a, b, config=having(PAIR, **changes))
