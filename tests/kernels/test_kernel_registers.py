"""Memory-bound kernels in their default configs keep everything in registers: what ptxas says, without a GPU."""

from __future__ import annotations

import os

import library_calls
import numpy as np
import pytest
from library_calls import BF16, E4M3, F32

from kiln import cute, kernels
from kiln.base_dsl.typing import BFloat16, Float16, Float32, Int32, Int64
from kiln.hardware import toolchain
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.cross_entropy.implementations import loss_config, loss_vectors
from kiln.kernels.impl.cross_entropy.kernels import CrossEntropy, CrossEntropyBackward, Loss, LossNumbers, LossReduction
from kiln.kernels.impl.elementwise.config import ElementwiseConfig
from kiln.kernels.impl.elementwise.kernel import Elementwise, Operand
from kiln.kernels.impl.reduction.kernels import (
    ColumnReduction,
    ColumnSizes,
    Operation,
    ReductionSpecialisation,
    RowReduction,
    RowSizes,
)  # fmt: skip
from kiln.kernels.impl.rowwise import backward as row_gradients
from kiln.kernels.impl.rowwise import default_configs
from kiln.kernels.impl.rowwise import softmax_and_norms as rows
from kiln.kernels.impl.rowwise.config import StreamedRow, StreamingRowwiseConfig
from kiln.kernels.impl.rowwise.default_configs import smem_config, streaming_config, unaligned_config
from kiln.kernels.impl.rowwise.implementations import unaligned_problem
from kiln.kernels.impl.rowwise.problem import RowFunctionProblem
from kiln.kernels.impl.rowwise.row_kernel import RowProblem
from kiln.kernels.impl.rowwise.streaming import StreamingRowKernel, StreamingRowProblem
from kiln.kernels.impl.rowwise.weight_gradients import WeightGradient
from kiln.testing import assert_no_local_memory, assert_no_spills, dry_run

HOPPER = device_of("sm_90a")
KINDS = {
    "softmax": (rows.Softmax, 1, 0, 0, default_configs.softmax_config),
    "rms_norm": (rows.RmsNorm, 1, 1, 0, default_configs.norm_config),
    "layer_norm": (rows.LayerNorm, 1, 2, 0, default_configs.norm_config),
    "softmax_backward": (row_gradients.SoftmaxBackward, 2, 0, 0, smem_config),
    "rms_norm_backward": (row_gradients.RmsNormBackward, 2, 1, 2, default_configs.two_pass_config),
    "layer_norm_backward": (row_gradients.LayerNormBackward, 2, 1, 2, default_configs.two_pass_config),
}
"""Kernel, matrices it reads, vectors, numbers of a row that it writes, how its rows are cut by default."""
STREAMED = {
    "softmax": (row_gradients.SoftmaxBackward, 0, 0),
    "rms_norm": (row_gradients.RmsNormBackward, 1, 1),
    "layer_norm": (row_gradients.LayerNormBackward, 1, 2),
}
"""Kernel, vectors, sums over rows of gradients that are streamed."""
LONG = bool(os.environ.get("KILN_LONG_TESTS"))
SIZES = [(8192, BFloat16), (16384, BFloat16), (30008, Float16), (262144, Float32)]
"""Of each kernel those with the fewest registers left, here and below: the others are in the long stage."""
SMALL = [(1024, Float32), (4096, Float16)]
FORWARD = ["softmax", "rms_norm", "layer_norm"]


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    if toolchain.find("ptxas") is None:
        pytest.skip("ptxas is not installed")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")


def compiled(kernel, *arguments):
    return cute.compile(kernel, *arguments, Int64(0), target="nvidia")


def row_problem(kind, n, dtype, columns):
    """A row function of one array, by which configs are chosen."""
    layout = TensorLayout.dense(dtype, 1, n)
    return RowFunctionProblem("", kind, (layout,), (layout,), (TensorLayout.dense(dtype, n),) * columns, min)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", KINDS if LONG else FORWARD)
@pytest.mark.parametrize(("n", "dtype"), SMALL + SIZES if LONG else SIZES)
def test_rows(name, n, dtype):
    kind, sources, columns, notes, choose = KINDS[name]
    width = 1 if n % 2 else 128 // dtype.width
    config = choose(row_problem(kind, n, dtype, columns), HOPPER)
    row = StreamedRow(n, width, dtype.width, sources * dtype.width, columns * dtype.width, kind.fields, 0)
    streams = isinstance(config, StreamingRowwiseConfig)
    vectors = config.vectors(row) if streams else config.vectors(n, width)
    exact = n == config.cluster * config.row_threads * vectors * width
    types = (dtype,) * sources, (dtype,), (dtype,) * columns
    if streams:
        config.check(row, HOPPER)
        stages = config.stages(row)
        stream = StreamingRowProblem(*types, (), width, vectors, stages, exact, config, overlaps=kind.overlaps)
        kernel = launches.cached_kernel(StreamingRowKernel, kind, stream)
    else:
        config.check(n, width, dtype.width, sources, HOPPER)
        kernel = launches.cached_kernel(
            kind, RowProblem(*types, notes, width, vectors, exact, config, overlaps=kind.overlaps)
        )
    numbers = () if "softmax" in name else (Float32(0.0), Float32(0.0))
    places = (Int64(0),) * (sources + 1 + columns + notes)
    steps = (Int64(n),) * (sources + 1)
    assert_no_spills(compiled(kernel, places, Int32(1), Int32(n), Int32(0), steps, numbers, Int32(1)))


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"] if LONG else ["layer_norm_backward"])
@pytest.mark.parametrize(
    ("n", "dtype"), [(6143, Float16), *([(4095, Float16), (8191, BFloat16), (50257, Float32)] if LONG else [])]
)
def test_rows_element_by_element(name, n, dtype):
    test_rows(name, n, dtype)


@pytest.mark.parametrize("name", FORWARD if LONG else FORWARD[:2])
@pytest.mark.parametrize(
    ("n", "dtype"), [(65536, BFloat16), *([(100000, BFloat16), (262144, BFloat16), (131072, Float32)] if LONG else [])]
)
def test_long_rows(name, n, dtype):
    test_rows(name, n, dtype)


@pytest.mark.parametrize(
    ("name", "n", "dtype"),
    [
        ("layer_norm", 4000, Float32),
        ("rms_norm", 7000, Float16),
        ("layer_norm", 7000, Float16),
        ("softmax", 8192, BFloat16),
    ],
)
def test_rows_of_16_kilobytes(name, n, dtype):
    test_rows(name, n, dtype)


@pytest.mark.parametrize(("n", "reads"), [(4096, "ld.global.L2::cache_hint"), (32768, "cp.async.cg.shared.global.L2")])
def test_rows_wait_for_the_kernel_before_and_stay_in_the_cache(n, reads):
    config = default_configs.forward_config(row_problem(rows.RmsNorm, n, Float32, 1), HOPPER)
    kinds = (Float32,), (Float32,), (Float32,)
    problem = RowProblem(*kinds, 0, 4, config.vectors(n, 4), True, config, overlaps=True)
    numbers = (Float32(0.0), Float32(0.0))
    sizes = Int32(1), Int32(n), Int32(0), (Int64(n),) * 2
    made = compiled(rows.RmsNorm(problem), (Int64(0),) * 3, *sizes, numbers, Int32(1))
    ptx = str(made.__ptx__)
    assert "createpolicy.fractional.L2::evict_last.b64" in ptx
    assert 0 < ptx.index("griddepcontrol.wait") < ptx.index(reads)
    assert ptx.index("griddepcontrol.wait") < ptx.index("griddepcontrol.launch_dependents") < ptx.index("st.global")


def test_narrow_accesses_have_no_hints():
    """With one, each would be branched around where the row ends, and wait for the one before."""
    config = default_configs.forward_config(row_problem(rows.RmsNorm, 2001, Float32, 1), HOPPER)
    kinds = (Float32,), (Float32,), (Float32,)
    problem = RowProblem(*kinds, 0, 1, config.vectors(2001, 1), False, config, overlaps=True)
    numbers = (Float32(0.0), Float32(0.0))
    sizes = Int32(1), Int32(2001), Int32(0), (Int64(2001),) * 2
    made = compiled(rows.RmsNorm(problem), (Int64(0),) * 3, *sizes, numbers, Int32(1))
    assert "cache_hint" not in str(made.__ptx__)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [*FORWARD, "softmax_backward"])
@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        *[(1001, BFloat16), (16383, Float16), (50257, BFloat16), (131071, BFloat16)],
        *([(4097, Float32), (8191, Float32)] if LONG else []),
    ],
)
def test_rows_with_edges(name, n, dtype):
    kind, sources, columns = KINDS[name][:3]
    width = 128 // dtype.width
    config = unaligned_config(n, width, sources, columns, 10000, HOPPER)
    assert config is not None
    config.check(n, width, dtype.width, sources, HOPPER)
    kinds = ((dtype,) * sources, (dtype,), (dtype,) * columns)
    kernel = kind(unaligned_problem(kinds, n, width, config, kind.overlaps))
    numbers = () if "softmax" in name else (Float32(0.0), Float32(0.0))
    places, steps = (Int64(0),) * (sources + 1 + columns), (Int64(n),) * (sources + 1)
    assert_no_spills(compiled(kernel, places, Int32(1), Int32(n), Int32(0), steps, numbers, Int32(1)))


def streamed(name, n, dtype):
    """A gradient in its default config, compiled."""
    kind, columns, sums = STREAMED[name]
    width, bits = 128 // dtype.width, dtype.width
    row = StreamedRow(n, width, bits, 2 * bits, columns * bits, kind.fields - kind.counts_elements, sums)
    config = streaming_config(row, HOPPER, unaligned=False)
    vectors = config.vectors(row)
    exact = n == config.cluster * config.row_threads * vectors * width
    types = (dtype, dtype), (dtype,), (dtype,) * columns, (dtype,) * sums
    problem = StreamingRowProblem(*types, width, vectors, config.stages(row), exact, config, overlaps=True)
    numbers = () if name == "softmax" else (Float32(0.0), Float32(0.0))
    places, steps = (Int64(0),) * (3 + columns + 2 * sums), (Int64(n),) * 3
    kernel = launches.cached_kernel(StreamingRowKernel, kind, problem)
    return compiled(kernel, places, Int32(1), Int32(n), Int32(0), steps, numbers, Int32(1))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", STREAMED if LONG else ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        *[(128, BFloat16), (16384, BFloat16), (30008, Float16), (100000, BFloat16), (262144, BFloat16)],
        *([*SMALL, (8192, BFloat16), (65536, BFloat16), (131072, Float32)] if LONG else []),
    ],
)
def test_streamed_gradients(name, n, dtype):
    assert_no_spills(streamed(name, n, dtype))


@pytest.mark.parametrize(("n", "device"), [(262152, HOPPER), (16392, device_of("sm_80"))])
def test_rows_too_long_to_be_streamed(n, device):
    """They would take more blocks than a cluster has."""
    row = StreamedRow(n, 8, 16, 32, 16, 2, 1)
    assert streaming_config(row, device, unaligned=False) is None
    assert streaming_config(row._replace(n=n - 8), device, unaligned=False) is not None


def test_streamed_rows_and_their_sums_wait_for_the_kernel_before():
    """Two kernels: what they read is written by the one before."""
    kernels = str(streamed("rms_norm", 4096, Float32).__ptx__).split(".visible .entry")[1:]
    assert len(kernels) == 2
    for kernel in kernels:
        reads = (
            "cp.async.cg.shared.global.L2::cache_hint" if "StreamingRowKernel" in kernel.split("(")[0] else "ld.global"
        )
        waits = kernel.index("griddepcontrol.wait")
        assert 0 < waits < kernel.index("griddepcontrol.launch_dependents") < kernel.index(reads)


@pytest.mark.parametrize("dtype", [BFloat16, Float32] if LONG else [BFloat16])
@pytest.mark.parametrize(("odd", "smoothed"), [(False, True), (True, True), (True, False)])
def test_losses(dtype, odd, smoothed):
    width, loss = 128 // dtype.width, Loss(Int64, smoothed, overlaps=True, unaligned=odd)
    config = loss_config(32000, width, 4096, HOPPER)
    vectors = loss_vectors(32000, width, config, smoothed)
    problem = RowProblem((dtype,), (), (), 0, width, vectors, False, config)
    total, counter = LossReduction(Int64, True, True, True), LossReduction(Int64, False, True, True)
    numbers = LossNumbers(Int32(1), Int32(8), Int32(0), Int64(0), Float32(0.0))
    assert_no_spills(compiled(CrossEntropy(problem, loss, total), (Int64(0),) * 5, numbers, Int64(8), Int32(1)))
    gradient = CrossEntropyBackward(dtype, dtype, width, False, 128, 2, loss, counter)
    steps = (Int64(8), Int64(8))
    assert_no_spills(compiled(gradient, (Int64(0),) * 5, numbers, steps, Float32(1.0), Int32(1)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["sum", "argmax"])
@pytest.mark.parametrize(("plain", "rows_at_once", "unaligned"), [(True, 1, False), (False, 0, True)])
def test_reductions(name, plain, rows_at_once, unaligned):
    operation = Operation(name, Float32, Int32)
    fields = (operation, BFloat16, BFloat16, 256, 32, 8, 4, False, False, False)
    addresses, pair = (Int64(0),) * 2, (Int32(1), Int32(1))
    sizes = RowSizes(pair, (Int64(1), Int64(1)), Int32(1), Int64(0), Int32(8), Int32(0), Int32(1), Int64(8))
    assert_no_spills(
        compiled(
            RowReduction(ReductionSpecialisation(*fields, plain, rows_at_once, unaligned)), addresses, sizes, *pair
        )
    )
    sizes = ColumnSizes(Int32(1), Int64(8), Int32(8), Int64(0), Int32(1), Int64(8))
    assert_no_spills(
        compiled(ColumnReduction(ReductionSpecialisation(*fields, even=unaligned)), addresses, sizes, *pair)
    )


@pytest.mark.parametrize("dtype", [BFloat16, Float32])
def test_sums_over_rows(dtype):
    kernel = WeightGradient((dtype, dtype), 128 // dtype.width, False, True, True)
    assert_no_spills(compiled(kernel, (Int64(0),) * 6, Int32(1), Int32(8), (Int64(8),) * 2, Int32(1), Int32(1)))


def test_elements():
    operands = (
        Operand(BFloat16, 8, True),
        Operand(Float32, 4, True),
        Operand(BFloat16, 0, False),
        Operand(Float32, 4, True),
    )
    kernel = Elementwise(lambda a, b, c: a * b + c, operands, 1, False, False, ElementwiseConfig(256, 8))
    strides = ((Int64(8), Int64(1)),) * 4
    assert_no_spills(compiled(kernel, (Int64(0),) * 4, (Int32(8), Int32(8)), strides, Int32(1)))


def broad(dtype, n):
    """More rows than there is a config of its own for, which are one and the same."""
    return np.broadcast_to(library_calls.array(dtype, 1, n), (1000, n))


FUSED = {
    "fused_add_rms_norm": lambda x, w: kernels.fused_add_rms_norm(x, x, w),
    "fused_add_layer_norm": lambda x, w: kernels.fused_add_layer_norm(x, x, w, w),
    "rms_norm to e4m3": lambda x, w: kernels.rms_norm(x, w, quantize=E4M3),
    "layer_norm to e4m3": lambda x, w: kernels.layer_norm(x, w, w, quantize=E4M3),
    "fused_add_rms_norm to e4m3": lambda x, w: kernels.fused_add_rms_norm(x, x, w, quantize=E4M3),
    "fused_add_layer_norm to e4m3": lambda x, w: kernels.fused_add_layer_norm(x, x, w, w, quantize=E4M3),
    "fused_add_rms_norm_backward": lambda x, w: kernels.fused_add_rms_norm_backward(x, x, x, w),
    "fused_add_layer_norm_backward": lambda x, w: kernels.fused_add_layer_norm_backward(x, x, x, w, bias=True),
    "swiglu": lambda x, w: kernels.swiglu(x, x),
    "swiglu to e4m3": lambda x, w: kernels.swiglu(x, x, quantize=E4M3),
    "geglu to e4m3": lambda x, w: kernels.geglu(x, x, quantize=E4M3),
    "geglu_backward": lambda x, w: kernels.geglu_backward(x, x, x),
    "topk_softmax": lambda x, w: kernels.topk_softmax(x, 8),
}
WIDTHS = [
    (BF16, n)
    for n in (
        64,
        1536,
        50256,
        1000,
        2048,
        2880,
        4096,
        5120,
        7168,
        8191,
        8192,
        14336,
        16384,
        28672,
        65536,
        131072,
        300000,
    )
]
WIDTHS += [(F32, n) for n in (256, 1024, 4096, 8192, 16384, 65536)]
TIGHT = {
    "fused_add_layer_norm": [(BF16, 8192)],
    "layer_norm to e4m3": [(BF16, 2880), (BF16, 4096), (BF16, 5120)],
    "fused_add_rms_norm to e4m3": [(BF16, 8192), (BF16, 65536)],
    "fused_add_layer_norm to e4m3": [(BF16, 2880), (BF16, 16384)],
    "fused_add_layer_norm_backward": [(BF16, 7168)],
    "swiglu to e4m3": [(BF16, 14336)],
    "geglu_backward": [(BF16, 14336)],
}
"""Those with the fewest registers left: the others are in the long stage."""
SPILLED_BYTES = {("topk_softmax", 28672): 256, ("topk_softmax", 256): 16}
"""The most bytes that a thread spills, where rows in registers are faster all the same than rows that are read twice, or eight CTAs than five."""


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "dtype", "n"), [(name, *width) for name in FUSED for width in (WIDTHS if LONG else TIGHT.get(name, ()))]
)
def test_fused(name, dtype, n):
    with dry_run("sm_90a") as made:
        FUSED[name](broad(dtype, n), library_calls.array(dtype, n))
    assert made
    if most := SPILLED_BYTES.get((name, n)):
        assert all(one.resources.spill_stores <= most for one in made)
    else:
        assert_no_local_memory(*made)
