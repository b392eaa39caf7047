"""The implementations of row functions: resident, double-buffered, streaming, unaligned."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.matrices import shared_alignment
from ...dispatch.registry import MemoryBound, Registry, variants
from ..reduction.reductions import sum as sum_over
from .config import (
    WARP,
    DoubleBufferedRowwiseConfig,
    RowwiseConfig,
    StreamingRowwiseConfig,
    UnalignedRowwiseConfig,
)  # fmt: skip
from .default_configs import default_config, streamed_sizes, streaming_config, unaligned_config
from .double_buffered import double_buffered
from .partial_reduction import partial_pitch
from .row_kernel import RowProblem
from .streaming import StreamingRowKernel, StreamingRowProblem
from .streaming_unaligned import row_period
from .unaligned import CACHE_LINE, UnalignedRowKernel, unaligned_problem
from .weight_gradients import WeightGradient, rows_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...dispatch.devices import Device
    from .problem import RowFunctionProblem

REGISTRY = Registry("row functions")

_UNTUNED_PENALTY = 1.25
"""The expected time of a config that is not the measured one, as a multiple of that one's."""


class RowFunctionArguments(NamedTuple):
    """The arrays of a row function, with the layouts of its problem, without columns that are None, and its scalars.

    `column_sums` are vectors for sums over rows, `row_values` arrays with a value for each row.
    """

    sources: Sequence[Any]
    outs: Sequence[Any]
    columns: Sequence[Any] = ()
    column_sums: Sequence[Any] = ()
    scalars: tuple[float, ...] = ()
    row_values: Sequence[Any] = ()


def _unaligned_config(problem: RowFunctionProblem, device: Device) -> UnalignedRowwiseConfig | None:
    """Returns the config for unaligned rows, where that is best. Several 32-bit sources are as fast element by element."""
    if not _is_unaligned(problem) or (len(problem.sources) > 1 and problem.bits > 16):
        return None
    width = _vector_width(problem)
    return unaligned_config(problem.n, width, len(problem.sources), len(problem.present), problem.rows, device)


def _vector_width(problem: RowFunctionProblem) -> int:
    """Returns the elements of a vector access to rows that are all equally far from vectors; 0 if they are not."""
    steps = [m.step for m in problem.matrices]
    return (shared_alignment([*problem.sources, *problem.outs], steps, problem.present) or (0, 0))[0]


def _is_unaligned(problem: RowFunctionProblem) -> bool:
    """Returns whether rows can be accessed in wider vectors if edges are accessed element by element."""
    narrow = min(m.width for m in problem.matrices)
    wider = problem.function.supports_unaligned and _vector_width(problem) > narrow
    return wider and max(problem.rows, problem.n) < 1 << 31


class RowImplementation(MemoryBound):
    """The base of the implementations: the config that was measured best is expected to be faster than the others."""

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        return problem.exceeds_32_bits

    def cost(self, problem: RowFunctionProblem, config: Any, device: Device) -> float:
        best = _unaligned_config(problem, device) or problem.best_config(problem, device)
        return super().cost(problem, config, device) * (1.0 if config == best else _UNTUNED_PENALTY)

    def first(self, problem: RowFunctionProblem, device: Device) -> Any:
        """Returns the config of its class that suits a problem best; None if there is none."""
        raise NotImplementedError

    def configs(self, problem: RowFunctionProblem, device: Device) -> Iterator[Any]:
        def check(config: Any) -> None:
            self.check(problem, config, device)

        first = self.first(problem, device)
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
    """A CTA or cluster holds a row; longer rows are read twice, and so are those with column sums."""

    config = RowwiseConfig

    def first(self, problem: RowFunctionProblem, device: Device) -> RowwiseConfig:
        config = problem.best_config(problem, device)
        if type(config) is RowwiseConfig:
            return config
        return default_config(problem.n, problem.width, problem.bits, device, len(problem.present))

    def check(self, problem: RowFunctionProblem, config: RowwiseConfig, device: Device) -> None:
        config.check(problem.n, problem.width, problem.bits, len(problem.sources), device)

    def run(self, problem: RowFunctionProblem, config: RowwiseConfig, args: RowFunctionArguments) -> None:
        device, n, width = devices.current(), problem.n, problem.width
        vectors = config.vectors(n, width)
        exact = n == config.cluster * config.row_threads * vectors * width
        overlaps = problem.function.overlaps and device.overlaps
        row_values, reread = list(args.row_values), []
        if problem.column_sums:
            dtype = arrays.framework_dtype(Float32, args.sources[0])
            row_values = [arrays.empty(args.sources[0], (problem.rows,), dtype) for _ in range(2)]
        kernel = self.kernel(problem, len(row_values), width, vectors, exact, config, overlaps)
        given = [*args.sources, *args.outs, *args.columns, *row_values]
        if problem.column_sums:
            reread = [_unchanged(x, args.outs) for x in args.sources[:2]]
        ctas = Int32(self.ctas(problem, config))
        launches.launcher(kernel, given, *_sizes(problem), _typed(args.scalars), ctas)(given)
        if problem.column_sums:
            self._sum_columns(problem, args, reread, row_values, device)

    def kernel(self, problem: RowFunctionProblem, *rest: Any) -> Any:
        """Returns the kernel, for the remaining fields of a `RowProblem`."""
        return launches.cached_kernel(problem.function, RowProblem(*problem.types, *rest))

    def ctas(self, problem: RowFunctionProblem, config: Any) -> int:
        """Returns how many CTAs are launched."""
        return -(-problem.rows // config.rows) * config.cluster

    def _sum_columns(
        self, problem: RowFunctionProblem, args: RowFunctionArguments, reread: list[Any], row_values: list[Any], device: Device
    ) -> None:  # fmt: skip
        """Computes column sums from rows, which are read again, and their statistics."""
        n, width, first = problem.n, problem.width, args.sources[0]
        has_weight = bool(problem.present)
        column_ctas = -(-n // (WARP * width))
        step = WeightGradient.threads // WARP * rows_at_once(width)
        each = -(-problem.rows // (-(-16 * device.sm_count // column_ctas) * step)) * step
        parts = -(-problem.rows // each)
        dtype = arrays.framework_dtype(Float32, first)
        partial = [arrays.empty(first, (parts, n), dtype) for _ in args.column_sums]
        kernel = launches.cached_kernel(
            WeightGradient, problem.types[0][:2], width, n % (WARP * width) == 0, has_weight,
            len(args.column_sums) > has_weight,
        )  # fmt: skip
        given = [*reread, *row_values, *partial]
        rows, length, steps = _sizes(problem)
        steps = tuple(step if x is y else Int64(n) for step, x, y in zip(steps, reread, args.sources))
        launches.launcher(kernel, given, rows, length, steps, Int32(parts), Int32(each))(given)
        for vector, sums in zip(args.column_sums, partial, strict=True):
            sum_over(sums, 0, out=vector)


@REGISTRY.register
class DoubleBufferedRows(ResidentRows):
    """A CTA computes several rows, loading the next one while it computes."""

    config = DoubleBufferedRowwiseConfig

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        function = problem.function
        if not function.quantizes or function.tracks_absmax or function.fields == 0:
            return "it is for quantised rows whose largest result is found after their statistics"
        if problem.width * min(x.dtype.width for x in problem.sources) < 32:
            return "asynchronous copies take 4 bytes or more"
        return super().supports(problem, device)

    def first(self, problem: RowFunctionProblem, device: Device) -> DoubleBufferedRowwiseConfig | None:
        config = problem.best_config(problem, device)
        return config if type(config) is DoubleBufferedRowwiseConfig else None

    def kernel(self, problem: RowFunctionProblem, *rest: Any) -> Any:
        return launches.cached_kernel(double_buffered(problem.function), RowProblem(*problem.types, *rest))

    def ctas(self, problem: RowFunctionProblem, config: DoubleBufferedRowwiseConfig) -> int:
        return -(-problem.rows // config.rows_per_cta)


@REGISTRY.register
class StreamingRows(RowImplementation):
    """Persistent CTAs stream rows through shared memory; column sums stay in registers."""

    config = StreamingRowwiseConfig

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        if problem.function.quantizes:
            return "quantised rows need all results of a row before the first is written"
        least = min(x.dtype.width for x in problem.sources)
        width, _ = problem.streamed
        if width * least < 32:
            return (
                f"asynchronous copies take 4 bytes or more, and {width} elements of {least} bits can be copied at once"
            )
        return super().supports(problem, device)

    def first(self, problem: RowFunctionProblem, device: Device) -> StreamingRowwiseConfig | None:
        config = problem.best_config(problem, device)
        return config if type(config) is StreamingRowwiseConfig else streaming_config(problem, device)

    def check(self, problem: RowFunctionProblem, config: StreamingRowwiseConfig, device: Device) -> None:
        width, unaligned = problem.streamed
        least = min(x.dtype.width for x in problem.sources)
        config.check(_vectorized(problem), width, least, *streamed_sizes(problem), device)
        arrays.require(
            not unaligned or config.row_threads >= WARP,
            f"{config}: row_threads is {config.row_threads}, and edges of unaligned rows take a warp",
        )

    def run(self, problem: RowFunctionProblem, config: StreamingRowwiseConfig, args: RowFunctionArguments) -> None:
        (width, unaligned), rows, n, first = problem.streamed, problem.rows, _vectorized(problem), args.sources[0]
        vectors, threads = config.vectors(n, width), config.cluster * config.row_threads
        exact = not unaligned and n == threads * vectors * width
        # each line, a CTA or cluster, has its own partial column sums
        lines = min(-(-rows // config.rows), devices.max_active_clusters(config.cluster))
        period, alignment = 0, 1
        if unaligned:
            period, alignment = row_period(problem.matrices[0].step, width, vectors * threads - n // width, lines)
            lines = max(period, lines)
        elif not problem.column_sums:  # as few as take as long: none has a row to itself at the end
            lines = -(-rows // (config.rows * -(-rows // (config.rows * lines))))
        kernel = launches.cached_kernel(
            StreamingRowKernel, problem.function,
            StreamingRowProblem(
                *problem.types, problem.column_sums, width, vectors, config.stages(n, width), exact, config,
                devices.current().overlaps, period, alignment,
            ),
        )  # fmt: skip
        dtype = arrays.framework_dtype(Float32, first)
        pitch = partial_pitch(problem.n, width) if period else problem.n
        partial = [arrays.empty(first, (lines, pitch), dtype) for _ in args.column_sums]
        given = [*args.sources, *args.outs, *args.columns, *partial, *args.column_sums]
        length, steps = _sizes(problem)[1:]
        launches.launcher(
            kernel, given, Int32(rows), length, _lead(first), steps, _typed(args.scalars), Int32(lines)
        )(given)  # fmt: skip


@REGISTRY.register
class UnalignedRows(RowImplementation):
    """A CTA or cluster holds unaligned rows, all equally far from vectors, in vectors between edges."""

    config = UnalignedRowwiseConfig

    def supports(self, problem: RowFunctionProblem, device: Device) -> str | None:
        if not _is_unaligned(problem):
            return "it is for unaligned rows that are equally far from vectors in all arrays"
        return None

    def first(self, problem: RowFunctionProblem, device: Device) -> UnalignedRowwiseConfig | None:
        return _unaligned_config(problem, device)

    def check(self, problem: RowFunctionProblem, config: UnalignedRowwiseConfig, device: Device) -> None:
        config.check(problem.n, _vector_width(problem), problem.bits, len(problem.sources), device)

    def run(self, problem: RowFunctionProblem, config: UnalignedRowwiseConfig, args: RowFunctionArguments) -> None:
        width = _vector_width(problem)
        overlaps = problem.function.overlaps and devices.current().overlaps
        specialised = unaligned_problem(problem.types, problem.n, width, config, overlaps)
        given = [*args.sources, *args.outs, *args.columns]
        rows, n, steps = _sizes(problem)
        launches.launcher(
            launches.cached_kernel(UnalignedRowKernel, problem.function, specialised), given, rows, n,
            _lead(args.sources[0]), steps, _typed(args.scalars), Int32(config.ctas(problem.rows, width)),
        )(given)  # fmt: skip


def _unchanged(x: Any, outs: Sequence[Any]) -> Any:
    """Returns an array as it is before `outs` are written: itself, or a copy if it overlaps one of them."""
    if not any(arrays.overlap(x, out) for out in outs):
        return x
    copy = arrays.empty(x, tuple(x.shape), None)
    arrays.assign(copy, x)
    return copy


def _sizes(problem: RowFunctionProblem) -> tuple[Any, Any, Any]:
    """Returns rows, their length, and the row strides of the matrices, as kernels take them."""
    return Int32(problem.rows), Int32(problem.n), tuple(Int64(m.step) for m in problem.matrices)


def _vectorized(problem: RowFunctionProblem) -> int:
    """Returns the most elements of a row that streaming kernels access in vectors."""
    width, _ = problem.streamed
    return problem.n // width * width


def _lead(first: Any) -> Any:
    """Returns how many elements behind a cache line an array begins."""
    return Int32(arrays.address(first) % CACHE_LINE // arrays.itemsize(first))


def _typed(scalars: tuple[float, ...]) -> tuple[Any, ...]:
    return tuple(Float32(x) for x in scalars)
