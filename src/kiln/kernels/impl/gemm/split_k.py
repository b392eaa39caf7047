"""Split-K by two kernels: a batched GEMM over slices of K writes f32 partials, then a reduction adds them and runs the
epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...dispatch import arrays, devices, launches
from ...dispatch.problem import TensorLayout
from ...parts.tensor_views import permuted
from .arguments import GemmArguments
from .problem import GemmProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from .implementations import Sm80Gemm
    from .sm80_config import Sm80GemmConfig

_THREADS = 128
MAX_LOADS_AHEAD = 16
"""The most partials that a thread has in flight before it adds the first; half as many where those are all."""
_CTAS_PER_SM = 4
"""CTAs of the reduction on an SM. Without a bound the compiler aims at the highest occupancy and has registers for two
loads at a time. CTAs that leave the L1 cache as it is (one of them, or shared memory preferred) gather on the few SMs
that the kernel before leaves free."""


def run_split_k(
    implementation: Sm80Gemm, problem: GemmProblem, config: Sm80GemmConfig, split_k: int, args: GemmArguments
) -> None:
    """Compute equal slices of K as a batch of GEMMs with any implementation, then reduce the partials."""
    _, m, n = problem.shape
    k = problem.k // split_k
    a = arrays.permuted(arrays.reshaped(args.a, (m, split_k, k)), [1, 0, 2])
    b = arrays.reshaped(args.b, (split_k, k, n))
    _run_batch(problem, a, b, args, lambda parts, batch: implementation.run(parts, config, batch))


def run_split_k_in_kernel(
    problem: GemmProblem, split_k: int, args: GemmArguments, run: Callable[[GemmProblem, GemmArguments], None]
) -> None:
    """Run a kernel whose CTAs find their slice of K in all of A and B, then reduce the partials. Slices are whole
    stages, and need not be equal."""
    a, b = (arrays.broadcast_to(x, (split_k, *x.shape[1:])) for x in (args.a, args.b))
    _run_batch(problem, a, b, args, run)


def _run_batch(
    problem: GemmProblem, a: Any, b: Any, args: GemmArguments, run: Callable[[GemmProblem, GemmArguments], None]
) -> None:
    partials = arrays.empty(args.a, (a.shape[0], *problem.shape[1:]), arrays.dtype_named(args.a, "float32"))
    layout = arrays.layout_of
    parts = GemmProblem(
        layout(a),
        layout(b),
        layout(partials),
        precision=problem.precision,
        vector_scales=problem.vector_scales,
        scale_vector=problem.scale_vector,
        fp4=problem.fp4,
    )
    run(parts, GemmArguments(a, b, partials, vector_scales=args.vector_scales))
    reduce_partials(problem, partials, args)


def reduce_partials(problem: GemmProblem, partials: Any, args: GemmArguments) -> None:
    """Add the partials (S, M, N) of S slices and run the epilogue, which writes a result (1, M, N)."""
    fusion = problem.fusion
    out = problem.out_types
    width = min(problem.out_width, arrays.layout_of(partials).width(2))
    ahead = MAX_LOADS_AHEAD // 2 if partials.shape[0] <= MAX_LOADS_AHEAD // 2 else MAX_LOADS_AHEAD
    kernel = launches.cached_kernel_of(
        fusion.functions,
        lambda: SplitKReduction(out, width, ahead, fusion.combiner()),
        SplitKReduction,
        out,
        width,
        ahead,
        fusion,
    )
    rest = args.epilogue_tensors(problem)
    tensors = [arrays.dynamic(partials, 2, width), arrays.dynamic(args.out, 2, width), *(x for _, x in rest)]
    launches.run_tensors(kernel, [partials, args.out, *(x for x, _ in rest)], tensors, 2, args.alpha, args.beta)


def reduce_row_partials(partials: Any, out: Any) -> None:
    """Add the partials (S, L, M) that S tiles along N wrote for `row_reduction`, in order, to its result (L, M)."""
    count, batches, rows = partials.shape
    flat = TensorLayout.dense(Float32, 1, 1, batches * rows)
    problem = GemmProblem(TensorLayout.dense(Float32, 1, 1, 1), flat, flat)
    args = GemmArguments(None, None, arrays.reshaped(out, flat.shape))
    reduce_partials(problem, arrays.reshaped(partials, (count, 1, batches * rows)), args)


class SplitKReduction:
    """The kernel D = combine(sum over S of partials (S, M, N)), with `width` neighbours in N to a thread.

    A thread loads `ahead` partials before it adds the first. Rows of partials have no gaps.
    """

    def __init__(
        self, out_types: tuple[type[cute.Numeric], ...], width: int, ahead: int, combine: Callable[..., Any]
    ) -> None:
        self.out_types = out_types
        self.width = width
        self.ahead = ahead
        self.combine = combine

    @cute.jit
    def __call__(self, partials: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch the kernel for partials (S, M, N), results and epilogue inputs (1, M, N)."""
        extra = len(self.out_types) - 1
        inputs = rest[extra:]
        partials, *d = (permuted(x, None, self.width) for x in (partials, d, *rest[:extra]))
        row_vectors = d[0].shape[2] // self.width
        self.kernel(partials, d, inputs, alpha, beta, cute.fast_divmod_create_divisor(max(row_vectors, 1))).launch(
            grid=(cute.ceil_div(row_vectors * d[0].shape[1], _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=_CTAS_PER_SM,
            use_pdl=devices.current().overlaps,
        )

    @cute.kernel
    def kernel(
        self,
        partials: cute.Tensor,
        d: list[cute.Tensor],
        inputs: Any,
        alpha: Float32,
        beta: Float32,
        row_vectors: cute.FastDivmodDivisor,
    ):
        width = self.width
        ahead = self.ahead
        vector = arch.block_idx()[0] * _THREADS + arch.thread_idx()[0]
        count, rows, columns = partials.shape
        # Nothing is divided before the first load: rows lie side by side.
        layout = cute.make_layout((width, count), stride=(1, partials.stride[0]))
        source = cute.make_tensor(partials.iterator + Int64(vector) * width, layout)
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        if vector < columns // width * rows:
            acc = cute.make_rmem_tensor((width,), Float32)
            loaded = cute.make_rmem_tensor((width, ahead), Float32)
            acc.fill(0.0)
            load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * width)
            for first in range(0, count, ahead):
                loaded.fill(0.0)
                for i in range_constexpr(ahead):
                    cute.copy(load, source[None, first + i], loaded[None, i], pred=first + i < count)
                for i in range_constexpr(ahead):
                    for j in range_constexpr(width):
                        acc[j] = acc[j] + loaded[j, i]
            row, column = divmod(vector, row_vectors)
            fragments = []
            for x in inputs:
                fragment = cute.make_rmem_tensor((width,), x.element_type)
                for i in range_constexpr(width):
                    fragment[i] = x[0, row, column * width + i]
                fragments.append(fragment.load())
            for value, kind, x in zip(self.combine(acc.load(), alpha, beta, *fragments), self.out_types, d):
                result = cute.make_rmem_tensor((width,), kind)
                result.store(value.to(kind))
                store = cute.make_copy_atom(CopyUniversalOp(), kind, num_bits_per_copy=width * max(8, kind.width))
                cute.copy(store, result, cute.logical_divide(x[0, row, None], width)[None, column])
