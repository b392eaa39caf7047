"""The implementations of functions of rows: held by threads, held between edges, streamed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.matrices import shared_alignment
from ...dispatch.registry import MemoryBound, Registry, variants
from ..reduction.reductions import sum as sum_over
from .default_configs import default_config, held_bits, streaming_config
from .double_buffered import DoubleBufferedRowwiseConfig, in_turn
from .partial_reduction import line_pitch
from .row_kernel import WARP, RowProblem, RowwiseConfig
from .streaming import RowStream, StreamingRowwiseConfig, StreamProblem
from .streaming_unaligned import alike
from .unaligned import LINE, OddRows, UnalignedRowwiseConfig, odd_problem, unaligned_config
from .weight_gradients import NormSums, rows_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...dispatch.devices import Device
    from .problem import Rows

REGISTRY = Registry("rows")

_WORSE = 1.25
"""What a config that is not the measured one is expected to take, as a multiple."""


class Given(NamedTuple):
    """The arrays of a function of rows, as its problem says they lie (no columns that are not there), and its numbers.

    `totals` are vectors for sums over rows, `notes` for numbers of rows.
    """

    sources: Sequence[Any]
    outs: Sequence[Any]
    columns: Sequence[Any] = ()
    totals: Sequence[Any] = ()
    numbers: tuple[float, ...] = ()
    notes: Sequence[Any] = ()


def _odd(problem: Rows, device: Device) -> UnalignedRowwiseConfig | None:
    """The config for rows that begin anywhere, where that is best. Several sources of 32 bits are as fast one by one."""
    if not _between_edges(problem) or (len(problem.sources) > 1 and problem.bits > 16):
        return None
    width, _ = _steps(problem)
    return unaligned_config(problem.n, width, len(problem.sources), len(problem.present), problem.rows, device)


def _steps(problem: Rows) -> tuple[int, int]:
    """Elements of an access to rows in step, and how far after a multiple of it they begin; 0: they are not."""
    steps = [m.step for m in problem.matrices]
    return shared_alignment([*problem.sources, *problem.outs], steps, problem.present) or (0, 0)


def _between_edges(problem: Rows) -> bool:
    """Whether rows are accessed in wider vectors where edges are taken one by one."""
    narrow = min(m.width for m in problem.matrices)
    return problem.kind.between_edges and _steps(problem)[0] > narrow and max(problem.rows, problem.n) < 1 << 31


class RowImplementation(MemoryBound):
    """What they have in common: which config was measured to be best, and what that says of the others."""

    def supports(self, problem: Rows, device: Device) -> str | None:
        return problem.exceeds_32_bits

    def cost(self, problem: Rows, config: Any, device: Device) -> float:
        took = super().cost(problem, config, device)
        return took if config == (_odd(problem, device) or problem.rule(problem, device)) else _WORSE * took

    def first(self, problem: Rows, device: Device) -> Any:
        """The config of its type that suits a problem best; None: there is none."""
        raise NotImplementedError

    def configs(self, problem: Rows, device: Device) -> Iterator[Any]:
        def check(config: Any) -> None:
            self.check(problem, config, device)

        first = self.first(problem, device)
        if first is None:
            return
        sizes = [size for size in (64, 128, 256, 512) if size >= min(first.row_threads, 512)]
        alone = first.row_threads == first.threads
        for config in variants(first, check, threads=sizes):
            yield config
            if alone and config is not first:
                yield from variants(dataclasses.replace(config, row_threads=config.threads), check)


@REGISTRY.register
class HeldRows(RowImplementation):
    """A row is held by threads of a block or of a cluster; longer ones are read twice. So are those that are summed over."""

    config = RowwiseConfig

    def first(self, problem: Rows, device: Device) -> RowwiseConfig:
        config = problem.rule(problem, device)
        if type(config) is RowwiseConfig:
            return config
        return default_config(problem.n, problem.width, problem.bits, device, len(problem.present))

    def check(self, problem: Rows, config: RowwiseConfig, device: Device) -> None:
        config.check(problem.n, problem.width, problem.bits, len(problem.sources), device)

    def run(self, problem: Rows, config: RowwiseConfig, given: Given) -> None:
        device, n, width = devices.current(), problem.n, problem.width
        vectors = config.vectors(n, width)
        exact = n == config.cluster * config.row_threads * vectors * width
        overlaps = problem.kind.overlaps and device.overlaps
        wanted = arrays.framework_dtype(Float32, given.sources[0])
        notes = list(given.notes)
        if problem.totals:
            notes = [arrays.empty(given.sources[0], (problem.rows,), wanted) for _ in range(2)]
        kernel = self.made(problem, len(notes), width, vectors, exact, config, overlaps)
        taken = [*given.sources, *given.outs, *given.columns, *notes]
        blocks = Int32(self.blocks(problem, config))
        again = [_kept(x, given.outs) for x in given.sources[:2]] if problem.totals else []
        launches.launcher(kernel, taken, *_sizes(problem), _typed(given.numbers), blocks)(taken)
        if problem.totals:
            self._sum(problem, given, again, notes, device)

    def made(self, problem: Rows, *more: Any) -> Any:
        """The kernel, for what else a `RowProblem` has."""
        return launches.cached_kernel(problem.kind, RowProblem(*problem.types, *more))

    def blocks(self, problem: Rows, config: Any) -> int:
        """How many there are."""
        return -(-problem.rows // config.rows) * config.cluster

    def _sum(self, problem: Rows, given: Given, again: list[Any], notes: list[Any], device: Device) -> None:
        """Sum over rows, which are read `again`, given the statistics of each."""
        n, width, first = problem.n, problem.width, given.sources[0]
        weighted = bool(problem.present)
        across = -(-n // (WARP * width))
        step = NormSums.threads // WARP * rows_at_once(width)
        each = -(-problem.rows // (-(-16 * device.multiprocessors // across) * step)) * step
        parts = -(-problem.rows // each)
        partial = [arrays.empty(first, (parts, n), arrays.framework_dtype(Float32, first)) for _ in given.totals]
        kernel = launches.cached_kernel(
            NormSums, problem.types[0][:2], width, n % (WARP * width) == 0, weighted, len(given.totals) > weighted
        )
        taken = [*again, *notes, *partial]
        rows, length, steps = _sizes(problem)
        steps = tuple(step if x is y else Int64(n) for step, x, y in zip(steps, again, given.sources))
        launches.launcher(kernel, taken, rows, length, steps, Int32(parts), Int32(each))(taken)
        for vector, found in zip(given.totals, partial, strict=True):
            sum_over(found, 0, out=vector)


@REGISTRY.register
class RowsInTurn(HeldRows):
    """A block takes some rows one after the other, the next one on its way."""

    config = DoubleBufferedRowwiseConfig

    def supports(self, problem: Rows, device: Device) -> str | None:
        if not problem.kind.quantizes or problem.kind.finds_largest or problem.kind.fields == 0:
            return "it is for quantized rows whose largest result is found after their statistics"
        if problem.width * min(x.dtype.width for x in problem.sources) < 32:
            return "copies into shared memory take 4 bytes or more"
        return super().supports(problem, device)

    def first(self, problem: Rows, device: Device) -> DoubleBufferedRowwiseConfig | None:
        config = problem.rule(problem, device)
        return config if type(config) is DoubleBufferedRowwiseConfig else None

    def made(self, problem: Rows, *more: Any) -> Any:
        return launches.cached_kernel(in_turn(problem.kind), RowProblem(*problem.types, *more))

    def blocks(self, problem: Rows, config: DoubleBufferedRowwiseConfig) -> int:
        return -(-problem.rows // config.turns)


@REGISTRY.register
class StreamedRows(RowImplementation):
    """Blocks take rows in turn, with the next ones on the way; sums over rows stay in registers."""

    config = StreamingRowwiseConfig

    def supports(self, problem: Rows, device: Device) -> str | None:
        if problem.kind.quantizes:
            return "it has no results of a row before they are written, and quantized ones depend on all of them"
        least = min(x.dtype.width for x in problem.sources)
        width, _ = problem.streamed
        if width * least < 32:
            return f"copies into shared memory take 4 bytes or more, and {width} elements of {least} bits can be copied at once"
        return super().supports(problem, device)

    def first(self, problem: Rows, device: Device) -> StreamingRowwiseConfig | None:
        config = problem.rule(problem, device)
        return config if type(config) is StreamingRowwiseConfig else streaming_config(problem, device)

    def check(self, problem: Rows, config: StreamingRowwiseConfig, device: Device) -> None:
        width, edged = problem.streamed
        least = min(x.dtype.width for x in problem.sources)
        config.check(_vectorized(problem), width, least, *held_bits(problem), device)
        arrays.require(
            not edged or config.row_threads >= WARP,
            f"{config}: edges of rows take a warp, and {config.row_threads} threads have a row",
        )

    def run(self, problem: Rows, config: StreamingRowwiseConfig, given: Given) -> None:
        (width, edged), rows, n, first = problem.streamed, problem.rows, _vectorized(problem), given.sources[0]
        vectors, across = config.vectors(n, width), config.cluster * config.row_threads
        exact = not edged and n == across * vectors * width
        lines = min(
            -(-rows // config.rows), devices.max_active_clusters(config.cluster)
        )  # so many sums there are for each column
        period, lined = (
            alike(problem.matrices[0].step, width, vectors * across - n // width, lines) if edged else (0, 1)
        )
        if edged:
            lines = max(period, lines)
        elif not problem.totals:  # as few as take as long: none has a row to itself at the end
            lines = -(-rows // (config.rows * -(-rows // (config.rows * lines))))
        kernel = launches.cached_kernel(
            RowStream, problem.kind,
            StreamProblem(
                *problem.types, problem.totals, width, vectors, config.slots(n, width), exact, config,
                devices.current().overlaps, period, lined,
            ),
        )  # fmt: skip
        wanted = arrays.framework_dtype(Float32, first)
        pitch = line_pitch(problem.n, width) if period else problem.n
        partial = [arrays.empty(first, (lines, pitch), wanted) for _ in given.totals]
        taken = [*given.sources, *given.outs, *given.columns, *partial, *given.totals]
        length, steps = _sizes(problem)[1:]
        launches.launcher(
            kernel, taken, Int32(rows), length, _lead(first), steps, _typed(given.numbers), Int32(lines)
        )(taken)  # fmt: skip


@REGISTRY.register
class RowsBetweenEdges(RowImplementation):
    """Rows that begin anywhere, all equally far from a vector, are held between a few elements at their edges."""

    config = UnalignedRowwiseConfig

    def supports(self, problem: Rows, device: Device) -> str | None:
        if not _between_edges(problem):
            return "it is for rows that begin anywhere, but equally far from vectors in all arrays"
        return None

    def first(self, problem: Rows, device: Device) -> UnalignedRowwiseConfig | None:
        return _odd(problem, device)

    def check(self, problem: Rows, config: UnalignedRowwiseConfig, device: Device) -> None:
        config.check(problem.n, _steps(problem)[0], problem.bits, len(problem.sources), device)

    def run(self, problem: Rows, config: UnalignedRowwiseConfig, given: Given) -> None:
        width, _ = _steps(problem)
        overlaps = problem.kind.overlaps and devices.current().overlaps
        made = odd_problem(problem.types, problem.n, width, config, overlaps)
        taken = [*given.sources, *given.outs, *given.columns]
        rows, n, steps = _sizes(problem)
        launches.launcher(
            launches.cached_kernel(OddRows, problem.kind, made), taken, rows, n, _lead(given.sources[0]), steps, _typed(given.numbers),
            Int32(config.blocks(problem.rows, width)),
        )(taken)  # fmt: skip


def _kept(x: Any, outs: Sequence[Any]) -> Any:
    """An array as it is before others are written: itself, or a copy if it is one of them."""
    if not any(arrays.overlap(x, out) for out in outs):
        return x
    made = arrays.empty(x, tuple(x.shape), None)
    arrays.assign(made, x)
    return made


def _sizes(problem: Rows) -> tuple[Any, Any, Any]:
    """Rows, their length, and how far they are apart in each matrix, as kernels take them."""
    return Int32(problem.rows), Int32(problem.n), tuple(Int64(m.step) for m in problem.matrices)


def _vectorized(problem: Rows) -> int:
    """Elements of a row that streams access in vectors, at most."""
    width, _ = problem.streamed
    return problem.n // width * width


def _lead(first: Any) -> Any:
    """How many elements after a line of the caches an array begins."""
    return Int32(arrays.address(first) % LINE // arrays.itemsize(first))


def _typed(numbers: tuple[float, ...]) -> tuple[Any, ...]:
    return tuple(Float32(x) for x in numbers)
