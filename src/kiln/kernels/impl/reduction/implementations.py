"""The implementations of reductions: along contiguous elements (rows), or across them (columns)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.matrices import shared_alignment, width_of
from ...dispatch.registry import MemoryBound, Registry
from .config import MAX_PARTS, ReductionConfig
from .kernels import ColumnReduction, ColumnSizes, ReductionSpecialisation, RowReduction, RowSizes
from .problem import ColumnsToReduce, ReductionProblem, RowsToReduce

if TYPE_CHECKING:
    from ...dispatch.devices import Device

REGISTRY = Registry("reduction")

_WARP = 32


class ReductionArguments(NamedTuple):
    """The array of a reduction, with the layout of its problem, and a contiguous one for the result."""

    x: Any
    out: Any


class ReductionImplementation(MemoryBound):
    """The base of both implementations: each element is read once.

    A reduction may be split over CTAs; it then runs twice, on the elements and on the partial results.
    """

    config = ReductionConfig
    tried: dict[str, tuple[Any, ...]] = {"threads": (128, 256, 512), "vectors": (2, 4, 8)}
    view: type[Any]
    """The view of an array that it reduces."""

    def supports(self, problem: ReductionProblem, device: Device) -> str | None:
        if isinstance(problem.view, self.view):
            return None
        return f"it takes {self.view.__name__}, and this is {type(problem.view).__name__}"

    def run(self, problem: ReductionProblem, config: ReductionConfig, args: ReductionArguments) -> None:
        _reduce(problem, config, [args.x], problem.view, args.out, from_partials=False)


@REGISTRY.register
class RowReductions(ReductionImplementation):
    """Reductions along contiguous elements."""

    view = RowsToReduce


@REGISTRY.register
class ColumnReductions(ReductionImplementation):
    """Reductions across contiguous elements."""

    view = ColumnsToReduce


class Launch(NamedTuple):
    """A kernel, the numbers it takes, how many CTAs share a result, and the shape of their partial results."""

    kernel: type[Any]
    spec: ReductionSpecialisation
    numbers: tuple[Any, ...]
    parts: int
    partial_shape: tuple[int, int, int]


def _reduce(
    problem: ReductionProblem, config: ReductionConfig, sources: list[Any], view: Any, out: Any, from_partials: bool
) -> None:
    """Reduce an array or partial results: by one kernel, or by one that writes partial results and another that reduces
    them."""
    launch_of: Any = _row_launch if isinstance(view, RowsToReduce) else _column_launch
    kind, spec, numbers, parts, shape = launch_of(problem, config, sources, view, from_partials)
    kernel = launches.cached_kernel(kind, spec)
    if parts == 1:
        operands = [*sources, out]
        launches.launch(kernel, operands, *numbers)
        return
    partials = [arrays.empty(out, shape, arrays.framework_dtype(kind, out)) for kind in problem.operation.types]
    operands = [*sources, *partials]
    launches.launch(kernel, operands, *numbers)
    groups, _, n = shape
    partial_view = (
        RowsToReduce((1, groups), (0, parts), 1, 0, parts)
        if n == 1
        else ColumnsToReduce(groups, parts * n, parts, n, n)
    )
    again = dataclasses.replace(config, parts=1, row_threads=0)
    _reduce(problem, again, partials, partial_view, out, from_partials=True)


def _row_launch(
    problem: ReductionProblem, config: ReductionConfig, sources: list[Any], view: RowsToReduce, from_partials: bool
) -> Launch:
    """Return how the rows of an array or of partial results are reduced."""
    device = devices.current()
    operation = problem.operation
    extents = (*view.kept, view.repeats)
    strides = (*view.kept_strides, view.repeat_stride)
    layouts = [arrays.layout_of(x) for x in sources]
    steps = [stride for stride, extent in zip(strides, extents, strict=True) if extent != 1]
    width = min(width_of(x, view.n, *steps) for x in layouts)
    lead = None
    unaligned = shared_alignment(layouts, [view.kept_strides[1]]) if len(sources) == 1 else None
    if unaligned is not None and unaligned[0] > width:
        width, lead = unaligned
    units = -(-view.n // width)
    # searching for a position costs each thread so much that fewer threads are better
    fewest = 4 if operation.finds_position else _WARP
    spread = max(min(fewest, arrays.power_of_two(units)), arrays.power_of_two(-(-units // config.vectors)))
    lanes = config.row_threads or min(config.threads, spread)
    unroll = min(config.vectors, arrays.power_of_two(-(-units // lanes)))
    rows = view.kept[0] * view.kept[1]
    chunk = lanes * width * unroll
    group = config.threads // lanes
    chunks = view.repeats * -(-view.n // chunk)
    rows_at_once = 0
    if chunks == 1:  # several rows at a time, if enough CTAs remain
        rows_at_once = max(1, min(config.vectors // unroll, rows // (group * 4 * device.sm_count)))
    ctas = -(-rows // (group * max(1, rows_at_once)))
    chunks_per_cta = -(-chunks // (config.parts or _parts(ctas, chunks, device)))
    parts = -(-chunks // chunks_per_cta)
    spec = ReductionSpecialisation(
        operation,
        operation.dtype if from_partials else problem.x.dtype,
        problem.out,
        config.threads,
        lanes,
        width,
        unroll,
        parts > 1,
        from_partials,
        exact=lead is None and view.n % chunk == 0,
        plain=view.kept[0] == 1 and view.repeats == 1,
        rows_at_once=rows_at_once,
        unaligned=lead is not None,
    )
    sizes = RowSizes(
        tuple(map(Int32, view.kept)),
        tuple(map(Int64, view.kept_strides)),
        Int32(view.repeats),
        Int64(view.repeat_stride),
        operation.index(view.n),
        Int32(lead or 0),
        Int32(chunks_per_cta),
        Int64(problem.count),
    )
    return Launch(RowReduction, spec, (sizes, Int32(ctas), Int32(parts)), parts, (rows, parts, 1))


def _column_launch(
    problem: ReductionProblem, config: ReductionConfig, sources: list[Any], view: ColumnsToReduce, from_partials: bool
) -> Launch:
    """Return how the columns of an array or of partial results are reduced."""
    operation = problem.operation
    steps = [s for s, e in ((view.batch_stride, view.batches), (view.row_stride, view.rows)) if e != 1]
    width = min(width_of(arrays.layout_of(x), view.n, *steps) for x in sources)
    lanes = min(_WARP, arrays.power_of_two(-(-view.n // width)))
    across = config.threads // lanes
    unroll = min(config.vectors, arrays.power_of_two(-(-view.rows // across)))
    ctas = -(-view.n // (lanes * width)) * view.batches
    chunks = -(-view.rows // (across * unroll))
    rows_per_cta = -(-chunks // (config.parts or _parts(ctas, chunks, devices.current()))) * across * unroll
    parts = -(-view.rows // rows_per_cta)
    spec = ReductionSpecialisation(
        operation,
        operation.dtype if from_partials else problem.x.dtype,
        problem.out,
        config.threads,
        lanes,
        width,
        unroll,
        parts > 1,
        from_partials,
        exact=view.n % (lanes * width) == 0,
        even=rows_per_cta * parts == view.rows,
    )
    sizes = ColumnSizes(
        Int32(view.rows),
        Int64(view.row_stride),
        Int32(view.n),
        Int64(view.batch_stride),
        Int32(rows_per_cta),
        Int64(problem.count),
    )
    return Launch(
        ColumnReduction, spec, (sizes, Int32(view.batches), Int32(parts)), parts, (view.batches, parts, view.n)
    )


def _parts(ctas: int, chunks: int, device: Device) -> int:
    """Return how many CTAs share a reduction: as many as keep the device busy, evenly, in one wave."""
    fewest = max(1, -(-3 * device.sm_count // ctas))
    choices = range(fewest, max(fewest, 5 * device.sm_count // ctas) + 1)
    if fewest > 128:  # one more or less makes no difference
        choices = [-(-4 * device.sm_count // ctas)]

    def idle(parts: int) -> float:
        return -(-ctas * parts // device.sm_count) * device.sm_count / (ctas * parts)

    return min(min(choices, key=idle), max(1, chunks // 4), MAX_PARTS)
