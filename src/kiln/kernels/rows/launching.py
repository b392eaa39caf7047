"""From arrays to a launch of a kernel over rows: what is checked, how rows are cut by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.typing import BFloat16, Float16, Float32, Int32, Int64
from .. import devices
from ..common import arrays, launches
from .edges import in_step
from .kernel import MOST_IN_REGISTERS, RowProblem, RowTiling
from .matrices import common_width, matrix_of
from .odd import LINE, OddRows, OddTiling, odd_problem, odd_tiling
from .stream import StreamTiling
from .stream_launching import StreamLaunch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOATS = (Float16, BFloat16, Float32)


def default_tiling(n: int, width: int, bits: int, device: devices.Device, columns: int = 0) -> RowTiling:
    """Few vectors to a thread, for a row's threads wait for each other; from 16 kB on more, and then more blocks to a row.

    Measured on an H200, with and without `columns` of weights. Rows of up to 32 kB are held in registers or, where they are
    short, in shared memory, longer ones in 64 kB of it for each block, so that three blocks have rows on the way.
    """
    units = -(-n // width)
    if width * bits < 128:  # rows that begin anywhere: narrow accesses, many of them to a thread
        threads = min(512, arrays.power_of_two(-(-n // 32)))
        cluster = arrays.power_of_two(-(-n // (512 * MOST_IN_REGISTERS)))
        if cluster <= device.cluster:
            return RowTiling(max(128, threads), threads, cluster)
        return RowTiling(512, 512)
    if units <= 1024:
        threads = arrays.power_of_two(-(-units // (2 if units <= (256 if columns > 1 else 512) else 4)))
        block = max(128, threads)
        return RowTiling(block, threads, 1, 4 * (threads >= 128), (1024 if threads >= 128 else 768) // block)
    if units <= 2048:
        return RowTiling(512, 512, 1, 0, 2)
    cluster = arrays.power_of_two(-(-units // 4096))
    if cluster > device.cluster:
        return RowTiling(512, 512)
    exact = units % (512 * cluster) == 0  # else there are more predicates than registers for three blocks
    return RowTiling(512, 512, cluster, 8, 3 if exact and (cluster > 1 or columns > 1) else 2)


def row_plan(
    name: str,
    kind: type[Any],
    sources: Sequence[Any],
    outs: Sequence[Any],
    columns: Sequence[Any],
    numbers: tuple[float, ...],
    tiling: RowTiling | StreamTiling | None,
    choose: Callable[..., RowTiling | StreamTiling] | None = None,
) -> Callable[[Sequence[Any]], None]:
    """The plan of a function of rows: a function of sources, outs and columns (None: there is none) in one list.

    Rows that do not lie as kernels take them are copied, each time.
    """
    check(name, sources, outs, columns)
    if 0 in sources[0].shape:
        return lambda given: None
    if any(matrix_of(x) is None for x in (*sources, *outs)) or any(c is not None and _spread(c) for c in columns):
        return _plan_of_copies(name, kind, sources, outs, columns, numbers, tiling, choose)
    run = None
    if tiling is None or isinstance(tiling, OddTiling):
        run = _odd_launcher(kind, sources, outs, columns, numbers, tiling)
    if run is None:
        chosen = tiling or chosen_tiling(choose or default_tiling, sources, outs, columns)
        if isinstance(chosen, StreamTiling):
            launch: Any = StreamLaunch(kind, sources, outs, columns, [], numbers, chosen)
        else:
            launch = RowLaunch(kind, sources, outs, columns, numbers, chosen)
        run = launch.launcher([x for x in (*sources, *outs, *columns) if x is not None])
    if all(c is not None for c in columns):
        return run
    return lambda given: run([x for x in given if x is not None])


def chosen_tiling(
    choose: Callable[..., Any], sources: Sequence[Any], outs: Sequence[Any], columns: Sequence[Any]
) -> Any:
    """How a function of lengths, widths, bits, the device and the number of columns cuts the rows of arrays."""
    present = [c for c in columns if c is not None]
    bits = max(arrays.element_type(x).width for x in sources)
    width = common_width((*sources, *outs), present)
    return choose(sources[0].shape[-1], width, bits, devices.current(), len(present))


def _odd_launcher(
    kind: type[Any],
    sources: Sequence[Any],
    outs: Sequence[Any],
    columns: Sequence[Any],
    numbers: tuple[float, ...],
    tiling: OddTiling | None,
) -> Callable[[Sequence[Any]], None] | None:
    """A launcher for rows that begin anywhere, in step; None if these do not, or (cut by default) are too short or too long.

    Several sources of 32 bits are as fast one by one.
    """
    present = [c for c in columns if c is not None]
    if tiling is None and len(sources) > 1 and max(map(arrays.itemsize, sources)) > 2:
        return None
    matrices = [m for m in map(matrix_of, (*sources, *outs)) if m is not None]
    rows, n = matrices[0].rows, matrices[0].n
    width, _ = in_step([*sources, *outs], [m.step for m in matrices], present) or (0, 0)
    if width <= min(m.width for m in matrices) or max(rows, n) >= 1 << 31:
        arrays.require(
            tiling is None, f"{tiling} is for rows that begin anywhere, but equally far from vectors in all arrays"
        )
        return None
    device = devices.current()
    if tiling is None:
        tiling = odd_tiling(n, width, len(sources), len(present), rows, device)
    if tiling is None:
        return None
    tiling.check(n, width, max(arrays.element_type(x).width for x in sources), len(sources), device)
    types = [tuple(None if x is None else arrays.element_type(x) for x in group) for group in (sources, outs, columns)]
    problem = odd_problem((types[0], types[1], types[2]), n, width, tiling, kind.overlaps and device.overlaps)
    lead = arrays.address(sources[0]) % LINE // arrays.itemsize(sources[0])
    return launches.launcher(
        launches.made(OddRows, kind, problem), [*sources, *outs, *present], Int32(rows), Int32(n), Int32(lead),
        tuple(Int64(m.step) for m in matrices), tuple(Float32(x) for x in numbers), Int32(tiling.blocks(rows, width)),
    )  # fmt: skip


class RowLaunch:
    """How a kernel is launched over the rows of arrays that lie as it takes them."""

    def __init__(
        self, kind: type[Any], sources: Sequence[Any], outs: Sequence[Any], columns: Sequence[Any],
        numbers: tuple[float, ...], tiling: RowTiling, notes: int = 0,
    ) -> None:  # fmt: skip
        matrices = [m for m in map(matrix_of, (*sources, *outs)) if m is not None]
        rows, n = matrices[0].rows, matrices[0].n
        arrays.require(rows < 1 << 31 and n < 1 << 31, f"{rows} rows of {n} elements: more than 32 bits count")
        present = [c for c in columns if c is not None]
        width = common_width((*sources, *outs), present)
        groups = (sources, outs, columns)
        types = [tuple(None if x is None else arrays.element_type(x) for x in group) for group in groups]
        bits, device = max(arrays.element_type(x).width for x in sources), devices.current()
        tiling.check(n, width, bits, len(sources), device)
        vectors = tiling.vectors(n, width)
        exact = n == tiling.cluster * tiling.row_threads * vectors * width
        clusters = -(-rows // tiling.rows)
        self.rows = rows
        self.n = n
        self.steps = tuple(m.step for m in matrices)
        self.width = width
        self._kernel = launches.made(
            kind,
            RowProblem(
                *(types[0], types[1], types[2], notes, width, vectors, exact, tiling),
                overlaps=kind.overlaps and device.overlaps,
            ),
        )
        self._numbers = (
            Int32(rows), Int32(n), tuple(Int64(m.step) for m in matrices), tuple(Float32(x) for x in numbers),
            Int32(clusters * tiling.cluster),
        )  # fmt: skip

    def launcher(self, given: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
        """A function of arrays like these: sources, outs, columns that there are, notes."""
        return launches.launcher(self._kernel, [x for x in given if x is not None], *self._numbers)


def _spread(x: Any) -> bool:
    """Whether a vector's elements are not neighbours."""
    return x.shape[0] != 1 and arrays.strides(x)[0] != 1


def unchanged(x: Any) -> Any:
    """Itself: what a plan does with an array that need not be copied."""
    return x


def taken_as_rows(x: Any) -> Any:
    """An array whose rows lie as kernels take them: itself or a copy; None is None."""
    return x if x is None or matrix_of(x) is not None else arrays.contiguous(x)


def target_for(x: Any) -> Any:
    """An array to write what is meant for another: itself if it lies as kernels take it."""
    return x if matrix_of(x) is not None else arrays.empty(x, tuple(x.shape), None)


def _plan_of_copies(
    name: str, kind: Any, sources: Any, outs: Any, columns: Any, numbers: Any, tiling: Any, choose: Any
) -> Callable[[Sequence[Any]], None]:
    """The plan for arrays that do not lie as the kernel takes them: it takes copies."""

    first, last = len(sources), len(sources) + len(outs)

    def prepared(given: Sequence[Any]) -> list[Any]:
        return [target_for(x) if first <= k < last else taken_as_rows(x) for k, x in enumerate(given)]

    shown = prepared([*sources, *outs, *columns])
    inner = row_plan(name, kind, shown[:first], shown[first:last], shown[last:], numbers, tiling, choose)

    def plan(given: Sequence[Any]) -> None:
        taken = prepared(given)
        inner(taken)
        for out, written in zip(given[first:last], taken[first:last], strict=True):
            if written is not out:
                arrays.assign(out, written)

    return plan


def check(name: str, sources: Sequence[Any], outs: Sequence[Any], columns: Sequence[Any]) -> None:
    """Refuse arrays that do not go together."""
    x = sources[0]
    arrays.require(x.ndim >= 1, f"{name} of an array without modes")
    shape, n = tuple(x.shape), x.shape[-1] if x.ndim else 0
    arrays.require(n > 0 or 0 in shape[:-1], f"{name} of shape {shape}: its rows have no elements")
    for what, group in (("source", sources), ("out", outs)):
        for other in group:
            arrays.require(
                tuple(other.shape) == shape,
                f"{name} of shape {shape} {'into' if what == 'out' else 'and'} {tuple(other.shape)}",
                hint="all matrices have one shape",
            )
            _check_type(name, other)
            arrays.require_usable(other, f"an array of {name}", written=what == "out")
    for vector in columns:
        if vector is not None:
            arrays.require(
                tuple(vector.shape) == (n,),
                f"{name} of rows of {n} with a weight or bias of shape {tuple(vector.shape)}",
                hint=f"one element for each of the {n} columns: ({n},)",
            )
            _check_type(name, vector)
            arrays.require_usable(vector, f"a vector of {name}")


def _check_type(name: str, x: Any) -> None:
    dtype = arrays.element_type(x)
    arrays.require(
        dtype in FLOATS, f"{name} of {dtype.__name__} elements", hint="Float16, BFloat16 or Float32: convert the array"
    )
