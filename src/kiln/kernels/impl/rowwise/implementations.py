"""The implementations of row functions: resident, streaming, unaligned."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.config import Rule
from ...dispatch.registry import MemoryBound, Registry, passes, variants
from ..reduction.reductions import sum as sum_over
from .config import WARP, RowwiseConfig, StreamingRowwiseConfig, UnalignedRowwiseConfig
from .default_configs import default_config, streaming_config, unaligned_config
from .partial_reduction import partial_pitch
from .row_kernel import RowProblem
from .streaming import StreamingRowKernel, StreamingRowProblem
from .streaming_unaligned import row_period
from .unaligned import CACHE_LINE, spare_vectors
from .weight_gradients import WeightGradient, rows_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...dispatch.arrays import Array
    from ...dispatch.devices import Device
    from .problem import RowFunctionProblem
    from .vector_access import VectorAccess

REGISTRY = Registry("row functions")

_UNTUNED_PENALTY = 1.25
"""The expected time of a config that is not the measured one, as a multiple of that one's."""


class RowFunctionArguments(NamedTuple):
    """The arrays of a row function, with the layouts of its problem, without columns that are None, and its scalars.

    `column_outs` are vectors for reductions over rows, `row_values` arrays with a value for each row.
    """

    sources: Sequence[Any]
    outs: Sequence[Any]
    columns: Sequence[Any] = ()
    column_outs: Sequence[Any] = ()
    scalars: tuple[float, ...] = ()
    row_values: Sequence[Any] = ()
    block_scales: Array | None = None
    """The scale factors of rows that are quantised in blocks."""
    matrix_rows: int = 0
    """Rows of a matrix of a batch of these."""


def _is_unaligned(problem: RowFunctionProblem) -> bool:
    """Return whether rows can be accessed in wider vectors if edges are accessed element by element."""
    wider = problem.function.supports_unaligned and problem.unaligned_width > min(m.width for m in problem.matrices)
    return wider and problem.exceeds_32_bits is None


def _unaligned_config(problem: RowFunctionProblem, device: Device) -> UnalignedRowwiseConfig | None:
    """Return the config for unaligned rows, where that is best. Several 32-bit sources are as fast element by
    element."""
    if not _is_unaligned(problem) or (len(problem.sources) > 1 and problem.bits > 16):
        return None
    sources = len(problem.sources)
    columns = len(problem.present)
    return unaligned_config(problem.n, problem.unaligned_width, sources, columns, problem.rows, device)


class RowImplementation(MemoryBound):
    """The base of the implementations: the config that was measured best is expected to be faster than the others."""

    fallbacks: ClassVar[tuple[Any, ...]] = ()
    """Configs to try where the one that was measured best needs more shared memory than the GPU has."""

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        return problem.exceeds_32_bits

    def cost(self, problem: RowFunctionProblem, config: Any, device: Device) -> float:
        best = _unaligned_config(problem, device) or problem.best_config(problem, device)
        return super().cost(problem, config, device) * (1.0 if config == best else _UNTUNED_PENALTY)

    def configs(self, problem: RowFunctionProblem, device: Device) -> Iterator[Any]:
        def check(config: Any) -> None:
            self.check(problem, config, device)

        candidates = (self.measured_config(problem, device), *self.fallbacks)
        first = next((config for config in candidates if config is not None and passes(check, config)), None)
        if first is None:
            return
        sizes = [size for size in (64, 128, 256, 512) if size >= min(first.row_threads, 512)]
        one_row = first.row_threads == first.threads
        for config in variants(first, check, threads=sizes):
            yield config
            if one_row and config is not first:
                yield from variants(dataclasses.replace(config, row_threads=config.threads), check)


@REGISTRY.register
class ResidentRows(RowImplementation):
    """A CTA or cluster holds a row; longer rows are read twice, and so are those with reductions over rows."""

    config = RowwiseConfig
    fallbacks = (RowwiseConfig(512, 512),)

    def measured_config(self, problem: RowFunctionProblem, device: Device) -> RowwiseConfig:
        config = problem.best_config(problem, device)
        if type(config) is not RowwiseConfig:
            config = default_config(problem, device, len(problem.present))
        if problem.blocks is None:
            return config
        threads = max(config.row_threads, problem.blocks.lanes(problem.width))
        return dataclasses.replace(config, row_threads=threads)

    def rules(self, problem: RowFunctionProblem, config: RowwiseConfig, device: Device) -> Iterator[Rule]:
        function = problem.function
        text = "several rows_per_cta are for quantised rows whose largest result is found after their statistics"
        quantised = function.quantizes and not function.tracks_absmax and function.fields > 0
        yield Rule(config.rows_per_cta == 1 or quantised, text)
        if problem.blocks is not None:
            lanes = problem.blocks.lanes(problem.width)
            text = f"{lanes} neighbouring threads share a scale factor, and a row has {config.row_threads}"
            yield Rule(config.row_threads % lanes == 0, text, f"row_threads={lanes}")
        yield from config.rules(problem.n, problem.width, problem.bits, len(problem.sources), device)

    def run(self, problem: RowFunctionProblem, config: RowwiseConfig, args: RowFunctionArguments) -> None:
        device = devices.current()
        n = problem.n
        width = problem.width
        vectors = config.vectors(n, width)
        exact = n == config.cluster * config.row_threads * vectors * width
        row_values = list(args.row_values)
        reread = []
        if problem.column_outs:  # mean and rstd of each row
            row_values = [_f32_array(args, (problem.rows,)) for _ in range(2)]
            reread = [_unchanged(x, args.outs) for x in args.sources[:2]]
        overlaps = problem.function.overlaps and device.overlaps
        rows = RowProblem(
            *problem.types, len(row_values), width, vectors, exact, config, overlaps, blocks=problem.blocks
        )
        more = row_values if args.block_scales is None else [*row_values, args.block_scales]
        _launch(launches.cached_kernel(problem.function, rows), problem, args, more, config.ctas(problem.rows))
        if problem.column_outs:
            self.reduce_columns(problem, args, reread, row_values, device)

    def reduce_columns(
        self,
        problem: RowFunctionProblem,
        args: RowFunctionArguments,
        reread: list[Any],
        row_values: list[Any],
        device: Device,
    ) -> None:
        """Compute reductions over rows, which are read again, from their statistics."""
        n = problem.n
        width = problem.width
        column_ctas = -(-n // (WARP * width))
        step = WeightGradient.threads // WARP * rows_at_once(width)
        each = -(-problem.rows // (-(-16 * device.sm_count // column_ctas) * step)) * step
        parts = -(-problem.rows // each)
        partials = [_f32_array(args, (parts, n)) for _ in args.column_outs]
        has_weight = bool(problem.present)
        kernel = launches.cached_kernel(
            WeightGradient,
            problem.types[0][:2],
            width,
            n % (WARP * width) == 0,
            has_weight,
            len(args.column_outs) > has_weight,
        )
        operands = [*reread, *row_values, *partials]
        steps = tuple(step if x is y else Int64(n) for step, x, y in zip(_steps(problem), reread, args.sources))
        launches.launch(kernel, operands, Int32(problem.rows), Int32(n), steps, Int32(parts), Int32(each))
        for out, partial in zip(args.column_outs, partials, strict=True):
            sum_over(partial, 0, out=out)


@REGISTRY.register
class StreamingRows(RowImplementation):
    """Persistent CTAs stream rows through shared memory; reductions over rows are accumulated in registers."""

    config = StreamingRowwiseConfig

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        if problem.function.quantizes or problem.blocks is not None:
            return "quantised rows need all results of a row before the first is written"
        width = problem.streamed.width
        bits = problem.streamed.bits
        if width * bits < 32:
            return (
                f"asynchronous copies take 4 bytes or more, and {width} elements of {bits} bits can be copied at once"
            )
        return super().supports(problem, device)

    def measured_config(self, problem: RowFunctionProblem, device: Device) -> StreamingRowwiseConfig | None:
        config = problem.best_config(problem, device)
        if type(config) is StreamingRowwiseConfig:
            return config
        return streaming_config(problem.streamed, device, problem.streams_unaligned)

    def rules(self, problem: RowFunctionProblem, config: StreamingRowwiseConfig, device: Device) -> Iterator[Rule]:
        yield from config.rules(problem.streamed, device)
        text = f"row_threads is {config.row_threads}, and edges of unaligned rows take a warp"
        yield Rule(not problem.streams_unaligned or config.row_threads >= WARP, text)

    def run(self, problem: RowFunctionProblem, config: StreamingRowwiseConfig, args: RowFunctionArguments) -> None:
        row = problem.streamed
        unaligned = problem.streams_unaligned
        rows = problem.rows
        vectors = config.vectors(row)
        threads = config.cluster * config.row_threads
        exact = not unaligned and row.n == threads * vectors * row.width
        # each line, a CTA or cluster, has its own partials
        lines = min(-(-rows // config.rows), devices.max_active_clusters(config.cluster))
        period = 0
        alignment = 1
        if unaligned:
            period, alignment = row_period(problem.matrices[0].step, row.width, vectors * threads - row.units, lines)
            lines = max(period, lines)
        elif not problem.column_outs:  # as few as take as long: none has a row to itself at the end
            lines = -(-rows // (config.rows * -(-rows // (config.rows * lines))))
        kernel = launches.cached_kernel(
            StreamingRowKernel,
            problem.function,
            StreamingRowProblem(
                *problem.types,
                problem.column_outs,
                row.width,
                vectors,
                config.stages(row),
                exact,
                config,
                devices.current().overlaps,
                period,
                alignment,
            ),
        )
        pitch = partial_pitch(problem.n, row.width) if period else problem.n
        partials = [_f32_array(args, (lines, pitch)) for _ in args.column_outs]
        _launch(kernel, problem, args, [*partials, *args.column_outs], lines)


@REGISTRY.register
class UnalignedRows(RowImplementation):
    """A CTA or cluster holds unaligned rows, all equally far from vectors, in vectors between edges."""

    config = UnalignedRowwiseConfig

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        if not _is_unaligned(problem):
            return "it is for unaligned rows that are equally far from vectors in all arrays"
        return None

    def measured_config(self, problem: RowFunctionProblem, device: Device) -> UnalignedRowwiseConfig | None:
        return _unaligned_config(problem, device)

    def rules(self, problem: RowFunctionProblem, config: UnalignedRowwiseConfig, device: Device) -> Iterator[Rule]:
        return config.rules(problem.n, problem.unaligned_width, problem.bits, len(problem.sources), device)

    def run(self, problem: RowFunctionProblem, config: UnalignedRowwiseConfig, args: RowFunctionArguments) -> None:
        width = problem.unaligned_width
        overlaps = problem.function.overlaps and devices.current().overlaps
        rows = unaligned_problem(problem.types, problem.n, width, config, overlaps)
        kernel = launches.cached_kernel(problem.function, rows)
        _launch(kernel, problem, args, [], config.ctas(problem.rows, width))


def unaligned_problem(
    types: tuple[Any, Any, Any], n: int, width: int, config: UnalignedRowwiseConfig, overlaps: bool
) -> RowProblem:
    """Return what the kernel is compiled for, given the types of sources, outs and columns of unaligned rows.

    Vectors are aligned with cache lines, or with parts of them, as long as no thread gets one more for that.
    """
    threads = config.cluster * config.row_threads
    fewest, most = ((n - k) // width - spare_vectors(types[2]) for k in (width - 1, 0))
    vectors = max(1, -(-most // threads))
    alignment = CACHE_LINE * 8 // (types[0][0].width * width)
    while alignment > 1 and most + alignment - 1 > vectors * threads:
        alignment //= 2
    exact = fewest >= (vectors - 1) * threads
    return RowProblem(*types, 0, width, vectors, exact, config, overlaps, True, alignment)


def _launch(
    kernel: VectorAccess, problem: RowFunctionProblem, args: RowFunctionArguments, more: Sequence[Any], count: int
) -> None:
    """Launch a kernel on the arrays of a call and some more, with so many CTAs, or lines of partials."""
    launches.launch(
        kernel,
        [*args.sources, *args.outs, *args.columns, *more],
        Int32(problem.rows),
        Int32(problem.n),
        Int32(arrays.address(args.sources[0]) % CACHE_LINE // arrays.itemsize(args.sources[0])),
        (*_steps(problem), *([] if args.block_scales is None else [Int64(args.matrix_rows)])),
        tuple(Float32(x) for x in args.scalars),
        Int32(count),
    )


def _f32_array(args: RowFunctionArguments, shape: tuple[int, ...]) -> Any:
    """Return a new f32 array on the device of a call."""
    return arrays.empty(args.sources[0], shape, arrays.framework_dtype(Float32, args.sources[0]))


def _unchanged(x: Any, outs: Sequence[Any]) -> Any:
    """Return an array as it is before `outs` are written: itself, or a copy if it overlaps one of them."""
    if not any(arrays.overlap(x, out) for out in outs):
        return x
    copy = arrays.empty(x, tuple(x.shape), None)
    arrays.assign(copy, x)
    return copy


def _steps(problem: RowFunctionProblem) -> tuple[Int64, ...]:
    """Return the row strides of the matrices, as kernels take them."""
    return tuple(Int64(m.step) for m in problem.matrices)
