"""The implementations of reductions: along contiguous elements (rows), or across them (columns)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.matrices import shared_alignment
from ...dispatch.registry import MemoryBound, Registry, variants
from .config import MOST_PARTS, ReductionConfig
from .kernels import ColumnReduction, RowReduction, Shape
from .problem import ColumnsToReduce, ReductionProblem, RowsToReduce, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device

REGISTRY = Registry("reduction")

_WARP = 32


class ReductionArguments(NamedTuple):
    """The array of a reduction, with the layout of its problem, and a contiguous one for the result."""

    x: Any
    out: Any


class ReductionImplementation(MemoryBound):
    """The base of both implementations: each element is read once."""

    config = ReductionConfig
    takes: type[Any]
    """The view of an array that it reduces."""

    def supports(self, problem: ReductionProblem, device: Device) -> str | None:
        if isinstance(problem.view, self.takes):
            return None
        return f"it takes {self.takes.__name__}, and this is {type(problem.view).__name__}"

    def configs(self, problem: ReductionProblem, device: Device) -> Iterator[ReductionConfig]:
        return variants(ReductionConfig(), ReductionConfig.check, threads=(128, 256, 512), vectors=(2, 4, 8))

    def check(self, problem: ReductionProblem, config: ReductionConfig, device: Device) -> None:
        config.check()


@REGISTRY.register
class RowReductions(ReductionImplementation):
    """Reductions along contiguous elements."""

    takes = RowsToReduce

    def run(self, problem: ReductionProblem, config: ReductionConfig, given: ReductionArguments) -> None:
        _reduce_rows(problem, [given.x], False, problem.view, given.out, config)


@REGISTRY.register
class ColumnReductions(ReductionImplementation):
    """Reductions across contiguous elements."""

    takes = ColumnsToReduce

    def run(self, problem: ReductionProblem, config: ReductionConfig, given: ReductionArguments) -> None:
        _reduce_columns(problem, [given.x], False, problem.view, given.out, config)


def _reduce_rows(
    problem: ReductionProblem, given: list[Any], found: bool, laid: Any, out: Any, config: ReductionConfig
) -> None:
    """Reduces rows of an array, or (`found`) of partial results."""
    device, operation = devices.current(), problem.operation
    dtype = operation.dtype if found else problem.x.dtype
    steps = [s for s, e in zip((*laid.kept_steps, laid.repeat_step), (*laid.kept, laid.repeats), strict=True) if e != 1]
    shown = [arrays.layout_of(x) for x in given]
    width, lead = min(width_of(x, laid.n, steps) for x in shown), None
    plain = laid.kept[0] == 1 and laid.repeats == 1
    if (
        len(given) == 1
        and (unaligned := shared_alignment(shown, [laid.kept_steps[1]])) is not None
        and unaligned[0] > width
    ):
        width, lead = unaligned
    units = -(-laid.n // width)
    # searching for a position costs each thread so much that fewer threads are better
    fewest = 4 if operation.finds_position else _WARP
    spread = max(min(fewest, arrays.power_of_two(units)), arrays.power_of_two(-(-units // config.vectors)))
    lanes = config.row_threads or min(config.threads, spread)
    unroll = min(config.vectors, arrays.power_of_two(-(-units // lanes)))
    rows, chunk = laid.kept[0] * laid.kept[1], lanes * width * unroll
    chunks = laid.repeats * -(-laid.n // chunk)
    single = 0
    if chunks == 1:  # rows of one chunk: several at a time, if enough CTAs remain
        group = config.threads // lanes
        single = max(1, min(config.vectors // unroll, rows // (group * 4 * device.sm_count)))
    blocks = -(-rows // (config.threads // lanes * max(1, single)))
    parts = config.parts or _parts(blocks, chunks, device)
    each = -(-chunks // parts)
    parts = -(-chunks // each)
    exact = lead is None and laid.n % chunk == 0
    kernel = launches.cached_kernel(
        RowReduction, Shape(plain, single, lead is not None), operation, dtype, problem.out, config.threads, lanes, width,
        unroll, parts > 1, found, exact,
    )  # fmt: skip
    numbers = (
        (Int32(laid.kept[0]), Int32(laid.kept[1])), tuple(Int64(s) for s in laid.kept_steps), Int32(laid.repeats),
        Int64(laid.repeat_step), operation.index(laid.n), Int32(lead or 0), Int32(parts), Int32(each),
        Int64(problem.count), Int32(blocks),
    )  # fmt: skip
    _launch(problem, kernel, given, numbers, (rows, parts, 1), out, config)


def _reduce_columns(
    problem: ReductionProblem, given: list[Any], found: bool, laid: Any, out: Any, config: ReductionConfig
) -> None:
    """Reduces columns of an array, or (`found`) of partial results."""
    device, operation = devices.current(), problem.operation
    dtype = operation.dtype if found else problem.x.dtype
    steps = [s for s, e in ((laid.batch_step, laid.batches), (laid.row_step, laid.rows)) if e != 1]
    width = min(width_of(arrays.layout_of(x), laid.n, steps) for x in given)
    lanes = min(_WARP, arrays.power_of_two(-(-laid.n // width)))
    across = config.threads // lanes
    unroll = min(config.vectors, arrays.power_of_two(-(-laid.rows // across)))
    blocks = -(-laid.n // (lanes * width)) * laid.batches
    chunks = -(-laid.rows // (across * unroll))
    parts = config.parts or _parts(blocks, chunks, device)
    each = -(-chunks // parts) * across * unroll
    parts = -(-laid.rows // each)
    kernel = launches.cached_kernel(
        ColumnReduction, each * parts == laid.rows, operation, dtype, problem.out, config.threads, lanes, width, unroll,
        parts > 1, found, laid.n % (lanes * width) == 0,
    )  # fmt: skip
    numbers = (
        Int32(laid.rows), Int64(laid.row_step), Int32(laid.n), Int32(laid.batches), Int64(laid.batch_step), Int32(parts),
        Int32(each), Int64(problem.count),
    )  # fmt: skip
    _launch(problem, kernel, given, numbers, (laid.batches, parts, laid.n), out, config)


def _parts(blocks: int, chunks: int, device: Device) -> int:
    """Returns how many CTAs share a reduction: as many as keep the device busy, evenly, in one wave."""
    processors = device.sm_count
    fewest = max(1, -(-3 * processors // blocks))
    choices = range(fewest, max(fewest, 5 * processors // blocks) + 1)
    if fewest > 128:  # one more or less makes no difference
        choices = [-(-4 * processors // blocks)]

    def idle(parts: int) -> float:
        at_once = -(-blocks * parts // processors)
        return at_once * processors / (blocks * parts)

    best = min(choices, key=idle)
    return min(best, max(1, chunks // 4), MOST_PARTS)


def _launch(
    problem: ReductionProblem, kernel: Any, given: list[Any], numbers: Any, shape: tuple[int, int, int], out: Any,
    config: ReductionConfig,
) -> None:  # fmt: skip
    """Launches one kernel, or one that writes partial results (result, part, neighbouring result) and another that reduces them."""
    groups, parts, n = shape
    if parts == 1:
        launches.launcher(kernel, [*given, out], *numbers)([*given, out])
        return
    scratch = [arrays.empty(out, shape, arrays.framework_dtype(kind, out)) for kind in problem.operation.types]
    taken = [*given, *scratch]
    launches.launcher(kernel, taken, *numbers)(taken)
    again = dataclasses.replace(config, parts=1, row_threads=0)
    if n == 1:
        _reduce_rows(problem, scratch, True, RowsToReduce((1, groups), (0, parts), 1, 0, parts), out, again)
    else:
        _reduce_columns(problem, scratch, True, ColumnsToReduce(groups, parts * n, parts, n, n), out, again)
