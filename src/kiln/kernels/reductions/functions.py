"""Sums, means, extrema and where they are, over any axes of an array."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl.typing import Boolean, Float32, Float64, Int32, Int64
from .. import devices
from ..common import arrays, launches
from ..common.calls import kernel_function
from ..rows.edges import in_step
from .kernels import ColumnReduction, Operation, RowReduction, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ReductionTiling", "argmax", "argmin", "max", "mean", "min", "sum"]

_WARP = 32
_least, _most = min, max
"""The builtins, whose names functions of this module have."""
_MOST_PARTS = 65535
_INT32 = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class ReductionTiling:
    """How a reduction is cut.

    A block of `threads` reduces some rows, `row_threads` of them each (0: by the length of the rows; columns are given to
    threads by themselves). A thread has `vectors` accesses under way at a time. `parts` blocks share a row or column, and a
    second kernel merges what they found (0: as many as keep the device busy).
    """

    threads: int = 256
    row_threads: int = 0
    vectors: int = 4
    parts: int = 0

    @arrays.checked_once
    def check(self) -> None:
        """Refuse what cannot work."""
        for name, least, most in (("threads", 32, 1024), ("row_threads", 0, self.threads), ("vectors", 1, 16)):
            value = getattr(self, name)
            arrays.require(
                isinstance(value, int) and least <= value <= most and value & (value - 1) == 0,
                f"{self}: {name} is {value!r}, not a power of two from {least} to {most}",
            )
        arrays.require(
            isinstance(self.parts, int) and 0 <= self.parts <= _MOST_PARTS,
            f"{self}: parts is {self.parts!r}, not 0 to {_MOST_PARTS}",
        )


class _Rows(NamedTuple):
    """An array as rows to reduce: two modes that are kept, one that is reduced, and `n` neighbours of stride `near`."""

    kept: tuple[int, int]
    kept_steps: tuple[int, int]
    repeats: int
    repeat_step: int
    n: int


class _Columns(NamedTuple):
    """An array as columns to reduce: batches, rows that are reduced, `n` neighbours that are kept."""

    batches: int
    batch_step: int
    rows: int
    row_step: int
    n: int


def _groups(shape: Sequence[int], strides: Sequence[int], reduced: frozenset[int]) -> list[tuple[bool, int, int]]:
    """(reduced?, extent, stride) of the fewest modes, in order."""
    found: list[tuple[bool, int, int]] = []
    for mode, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if extent == 1:
            continue
        kind = mode in reduced
        if found and found[-1][0] == kind and found[-1][2] == stride * extent:
            found[-1] = (kind, found[-1][1] * extent, stride)
        else:
            found.append((kind, extent, stride))
    return found


def _layout(groups: list[tuple[bool, int, int]]) -> _Rows | _Columns | None:
    """How to reduce an array as it lies; None if it must be copied."""
    kept = [(e, s) for kind, e, s in groups if not kind]
    reduced = [(e, s) for kind, e, s in groups if kind]
    if any(s < 0 for _, _, s in groups):
        return None
    if len(kept) <= 2 and len(reduced) <= 2 and (not reduced or reduced[-1][1] == 1):
        kept = [(1, 0)] * (2 - len(kept)) + kept
        reduced = [(1, 0)] * (2 - len(reduced)) + reduced if reduced else [(1, 0), (1, 1)]
        if kept[0][0] * kept[1][0] <= _INT32 and reduced[0][0] <= _INT32:  # the innermost may be longer
            return _Rows(
                (kept[0][0], kept[1][0]), (kept[0][1], kept[1][1]), reduced[0][0], reduced[0][1], reduced[1][0]
            )
    if any(e > _INT32 for _, e, _ in groups):
        return None
    if len(reduced) == 1 and 1 <= len(kept) <= 2 and kept[-1][1] == 1 and (len(kept) == 1 or kept[0][0] <= 65535):
        batch = kept[0] if len(kept) == 2 else (1, 0)
        return _Columns(batch[0], batch[1], reduced[0][0], reduced[0][1], kept[-1][0])
    return None


def _width(x: Any, n: int, steps: Sequence[int]) -> int:
    size = arrays.itemsize(x)
    width = arrays.WIDEST // size
    while width > 1 and (n % width or arrays.address(x) % (width * size) or any(s % width for s in steps)):
        width //= 2
    return width or 1


# --- plans -----------------------------------------------------------------------------------------------------------


def _axes(x: Any, axis: Any, name: str) -> tuple[int, ...]:
    """The modes a reduction is over, from 0 on."""
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    found: list[int] = []
    for a in given:
        try:
            number = operator.index(a)
        except TypeError:
            raise arrays.refusal(
                f"{name} over axis {a!r}: axes are integers", hint="an axis, a tuple of axes, or None for all"
            ) from None
        arrays.require(
            -x.ndim <= number < x.ndim,
            f"{name} over axis {number} of an array of {x.ndim} modes of shape {tuple(x.shape)}",
        )
        arrays.require(
            number % x.ndim not in found, f"{name} over axes {tuple(given)}: axis {number} stands there twice"
        )
        found.append(number % x.ndim)
    return tuple(sorted(found))


def _types(name: str, dtype: Any) -> tuple[Any, Any]:
    """The type a reduction computes in, and that of its result."""
    arrays.require(
        dtype is Boolean or dtype.width >= 8,
        f"{name} of {dtype.__name__} elements",
        hint="floats and integers of 8 bits or more, and truth values",
    )
    if dtype.is_float:
        computed = Float64 if dtype is Float64 else Float32
        return computed, (Int64 if name.startswith("arg") else dtype)
    if name in ("sum", "mean"):
        return Int64, Int64 if name == "sum" else Float32
    computed = Int32 if dtype is Boolean else dtype
    return computed, Int64 if name.startswith("arg") else dtype


def _reduce(name: str, x: Any, axis: Any, keepdims: bool, out: Any, tiling: ReductionTiling | None) -> Any:
    return _plan(name, x, axis, keepdims, out, tiling)(x, out)


def _plan(name: str, x: Any, axis: Any, keepdims: bool, out: Any, tiling: ReductionTiling | None) -> Callable[..., Any]:
    axes = _axes(x, axis, name)
    arrays.require_usable(x, "the array")
    if name.startswith("arg"):
        arrays.require(
            axis is None or len(axes) == 1,
            f"{name} over axes {axes}",
            hint="one axis, or None for the place in all elements",
        )
    dtype = arrays.element_type(x)
    computed, result = _types(name, dtype)
    shape = tuple(1 if m in axes else e for m, e in enumerate(x.shape) if keepdims or m not in axes)
    count = 1
    for mode in axes:
        count *= x.shape[mode]
    arrays.require(
        count > 0 or name in ("sum", "mean"),
        f"{name} of shape {tuple(x.shape)} over axes {axes}: there are no elements to choose from",
    )
    if out is not None:
        arrays.require(tuple(out.shape) == shape, f"{name} of shape {shape} into an array of shape {tuple(out.shape)}")
        arrays.require_usable(out, "out", written=True)
    wanted = result if out is None else arrays.element_type(out)
    kind = arrays.framework_dtype(wanted, x)
    if 0 in shape or count == 0:
        empty = float("nan") if name == "mean" else 0

        def fill(x: Any, out: Any) -> Any:
            made = arrays.empty(x, shape, kind) if out is None else out
            arrays.fill(made, empty)
            return made

        return fill
    operation = Operation(name, computed, Int32 if count <= _INT32 else Int64)
    run = _launches(operation, x, frozenset(axes), wanted, count, tiling or ReductionTiling())

    def plan(x: Any, out: Any) -> Any:
        direct = out is not None and arrays.is_contiguous(out)
        made = out if direct else arrays.empty(x, shape, kind)
        run(x, made)
        if out is None or direct:
            return made
        arrays.assign(out, made)
        return out

    return plan


def _launches(
    operation: Operation, x: Any, reduced: frozenset[int], out: Any, count: int, tiling: ReductionTiling
) -> Callable[[Any, Any], None]:
    """A function of the array and a contiguous result that reduces one into the other."""
    tiling.check()
    groups = _groups(tuple(x.shape), arrays.strides(x), reduced)
    laid = _layout(groups)
    if laid is None:
        arrays.require(
            _results(x, reduced) <= _INT32,
            f"{operation.name} of shape {tuple(x.shape)} over axes {tuple(sorted(reduced))}: more results than 32 bits count",
        )
        order = [m for m in range(x.ndim) if m not in reduced] + sorted(reduced)
        behind = frozenset(range(x.ndim - len(reduced), x.ndim))
        shown = arrays.contiguous(arrays.permuted(x, order))
        inner = _launches(operation, shown, behind, out, count, tiling)
        return lambda x, made: inner(arrays.contiguous(arrays.permuted(x, order)), made)
    if isinstance(laid, _Rows):
        return _row_launches(operation, x, [x], False, laid, out, count, tiling)
    return _column_launches(operation, x, [x], False, laid, out, count, tiling)


def _results(x: Any, reduced: frozenset[int]) -> int:
    """How many results there are."""
    found = 1
    for mode, extent in enumerate(x.shape):
        found *= 1 if mode in reduced else extent
    return found


def _scratch(operation: Operation, like: Any, shape: tuple[int, ...]) -> list[Any]:
    """Arrays for findings."""
    return [arrays.empty(like, shape, arrays.framework_dtype(kind, like)) for kind in operation.types]


def _row_launches(
    operation: Operation,
    like: Any,
    given: list[Any],
    found: bool,
    laid: _Rows,
    out: Any,
    count: int,
    tiling: ReductionTiling,
) -> Callable[[Any, Any], None]:
    device = devices.current()
    dtype = operation.dtype if found else arrays.element_type(given[0])
    steps = [s for s, e in zip((*laid.kept_steps, laid.repeat_step), (*laid.kept, laid.repeats), strict=True) if e != 1]
    width, lead = _least(_width(x, laid.n, steps) for x in given), None
    plain = laid.kept[0] == 1 and laid.repeats == 1
    if len(given) == 1 and (odd := in_step(given, [laid.kept_steps[1]])) is not None and odd[0] > width:
        width, lead = odd
    units = -(-laid.n // width)
    # to seek a place costs each thread so much that fewer have vectors enough
    fewest = 4 if operation.finds_place else _WARP
    spread = _most(_least(fewest, arrays.power_of_two(units)), arrays.power_of_two(-(-units // tiling.vectors)))
    lanes = tiling.row_threads or _least(tiling.threads, spread)
    unroll = _least(tiling.vectors, arrays.power_of_two(-(-units // lanes)))
    rows, chunk = laid.kept[0] * laid.kept[1], lanes * width * unroll
    chunks = laid.repeats * -(-laid.n // chunk)
    single = 0
    if chunks == 1:  # rows of one chunk: more at a time, where blocks enough remain
        group = tiling.threads // lanes
        single = _most(1, _least(tiling.vectors // unroll, rows // (group * 4 * device.multiprocessors)))
    blocks = -(-rows // (tiling.threads // lanes * _most(1, single)))
    parts = tiling.parts or _parts(blocks, chunks, device)
    each = -(-chunks // parts)
    parts = -(-chunks // each)
    exact = lead is None and laid.n % chunk == 0
    shape = Shape(plain, single, lead is not None)
    kernel = launches.made(
        RowReduction, shape, operation, dtype, out, tiling.threads, lanes, width, unroll, parts > 1, found, exact
    )
    wide = operation.index
    numbers = (
        (Int32(laid.kept[0]), Int32(laid.kept[1])), tuple(Int64(s) for s in laid.kept_steps), Int32(laid.repeats),
        Int64(laid.repeat_step), wide(laid.n), Int32(lead or 0), Int32(parts), Int32(each), Int64(count), Int32(blocks),
    )  # fmt: skip
    return _passes(operation, kernel, like, given, numbers, (rows, parts), 1, out, count, tiling)


def _column_launches(
    operation: Operation, like: Any, given: list[Any], found: bool, laid: _Columns, out: Any, count: int,
    tiling: ReductionTiling,
) -> Callable[[Any, Any], None]:  # fmt: skip
    device = devices.current()
    dtype = operation.dtype if found else arrays.element_type(given[0])
    steps = [s for s, e in ((laid.batch_step, laid.batches), (laid.row_step, laid.rows)) if e != 1]
    width = _least(_width(x, laid.n, steps) for x in given)
    lanes = _least(_WARP, arrays.power_of_two(-(-laid.n // width)))
    across = tiling.threads // lanes
    unroll = _least(tiling.vectors, arrays.power_of_two(-(-laid.rows // across)))
    blocks = -(-laid.n // (lanes * width)) * laid.batches
    chunks = -(-laid.rows // (across * unroll))
    parts = tiling.parts or _parts(blocks, chunks, device)
    each = -(-chunks // parts) * across * unroll
    parts = -(-laid.rows // each)
    kernel = launches.made(
        ColumnReduction,
        each * parts == laid.rows,
        operation,
        dtype,
        out,
        tiling.threads,
        lanes,
        width,
        unroll,
        parts > 1,
        found,
        laid.n % (lanes * width) == 0,
    )
    numbers = (
        Int32(laid.rows), Int64(laid.row_step), Int32(laid.n), Int32(laid.batches), Int64(laid.batch_step), Int32(parts),
        Int32(each), Int64(count),
    )  # fmt: skip
    return _passes(operation, kernel, like, given, numbers, (laid.batches, parts), laid.n, out, count, tiling)


def _parts(blocks: int, chunks: int, device: devices.Device) -> int:
    """Blocks of a reduction, each with some work: as many as keep the device busy, evenly, all at a time."""
    processors = device.multiprocessors
    fewest = _most(1, -(-3 * processors // blocks))
    choices = range(fewest, _most(fewest, 5 * processors // blocks) + 1)
    if fewest > 128:  # one more or less makes no difference
        choices = [-(-4 * processors // blocks)]

    def idle(parts: int) -> float:
        at_once = -(-blocks * parts // processors)
        return at_once * processors / (blocks * parts)

    best = _least(choices, key=idle)
    return _least(best, _most(1, chunks // 4), _MOST_PARTS)


def _passes(
    operation: Operation, kernel: Any, like: Any, given: list[Any], numbers: Any, grid: tuple[int, int], n: int, out: Any,
    count: int, tiling: ReductionTiling,
) -> Callable[[Any, Any], None]:  # fmt: skip
    """One launch, or one that writes findings of `grid` (results, parts) and another that merges them."""
    groups, parts = grid
    if parts == 1:
        result = arrays.empty(like, (groups * n,), arrays.framework_dtype(out, like))
        run = launches.launcher(kernel, [*given, result], *numbers)
        return lambda x, made: run([*x, made]) if isinstance(x, list) else run([x, made])
    shape = (groups, parts, n)
    scratch = _scratch(operation, like, shape)
    first = launches.launcher(kernel, [*given, *scratch], *numbers)
    again = dataclasses.replace(tiling, parts=1, row_threads=0)
    if n == 1:
        laid = _Rows((1, groups), (0, parts), 1, 0, parts)
        second = _row_launches(operation, like, scratch, True, laid, out, count, again)
    else:
        columns = _Columns(groups, parts * n, parts, n, n)
        second = _column_launches(operation, like, scratch, True, columns, out, count, again)

    def run_both(x: Any, made: Any) -> None:
        scratch = _scratch(operation, made, shape)
        first([x, *scratch])
        second(scratch, made)

    return run_both


# --- the functions ---------------------------------------------------------------------------------------------------


@kernel_function("x", "out")
def sum(
    x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, plan: ReductionTiling | None = None
) -> Any:
    """The sum over some axes (None: all). Floats in f32 (f64 in f64), integers exactly in Int64; of nothing 0."""
    return _reduce("sum", x, axis, keepdims, out, plan)


@kernel_function("x", "out")
def mean(
    x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, plan: ReductionTiling | None = None
) -> Any:
    """The mean over some axes (None: all). That of integers is Float32; of nothing NaN."""
    return _reduce("mean", x, axis, keepdims, out, plan)


@kernel_function("x", "out")
def max(
    x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, plan: ReductionTiling | None = None
) -> Any:
    """The largest element over some axes (None: all); NaN if one is."""
    return _reduce("max", x, axis, keepdims, out, plan)


@kernel_function("x", "out")
def min(
    x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, plan: ReductionTiling | None = None
) -> Any:
    """The smallest element over some axes (None: all); NaN if one is."""
    return _reduce("min", x, axis, keepdims, out, plan)


@kernel_function("x", "out")
def argmax(
    x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, plan: ReductionTiling | None = None
) -> Any:
    """Where the largest element is, along an axis or (None) in all elements in row-major order, as Int64.

    Of equal elements the first, and the first NaN if there is one.
    """
    return _reduce("argmax", x, axis, keepdims, out, plan)


@kernel_function("x", "out")
def argmin(
    x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, plan: ReductionTiling | None = None
) -> Any:
    """Where the smallest element is, as `argmax`."""
    return _reduce("argmin", x, axis, keepdims, out, plan)
