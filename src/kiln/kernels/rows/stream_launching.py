"""From arrays to a launch of a kernel that streams rows: how rows are cut by default, over how many blocks they are spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.typing import Float32, Int32, Int64
from .. import devices
from ..common import arrays, launches
from .kernel import WARP
from .matrices import common_width, matrix_of
from .stream import RowStream, StreamProblem, StreamTiling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def stream_tiling(kind: type[Any], matrices: Sequence[Any], columns: Sequence[Any], sums: int) -> StreamTiling | None:
    """How the rows of sources, then of one matrix that is written, are cut by default; None: they cannot be streamed."""
    width = common_width(matrices, columns)
    sources = [arrays.element_type(x).width for x in matrices[:-1]]
    if width * min(sources) < 32:
        return None
    held = sum(sources), sum(arrays.element_type(c).width for c in columns), kind.fields - kind.counted, sums
    return tiling_for(matrices[0].shape[-1], width, *held, devices.current())


LONG_FEW = {1: (False, 1), 2: (False, 2), 4: (True, 0), 8: (True, 0), 16: (False, 4)}
"""Of rows that fill all threads: whether exchanges are hidden and how many vectors are read ahead, by the size of the cluster."""
LONG_MANY = {1: (True, 1), 2: (True, 1), 4: (False, 4), 8: (False, 4), 16: (True, 4)}
"""The same where findings have more than two numbers."""


def tiling_for(
    n: int, width: int, sources: int, columns: int, fields: int, sums: int, device: devices.Device
) -> StreamTiling | None:
    """The same, for sources and columns of so many bits for each element.

    As measured on an H200: a block of 512 threads on each multiprocessor, four vectors of a row to a thread, or two where that makes
    it half of the threads of a block or all of them, or fewer than a warp. More on the way is slower where a block, or two, have a row:
    those multiprocessors that reach memory first take it from the others, and all wait for the last. Rows that do not fill all
    threads need registers for predicates, and are kept in a ring of whole rows.
    """
    units = -(-n // width)
    vectors = 2 if units <= 2 * WARP or 256 < units <= 1024 else 4
    across = arrays.power_of_two(-(-units // vectors))
    threads, cluster, many = min(512, across), max(1, across // 512), fields > 2
    if cluster > device.cluster:
        return None
    if threads < 512 or vectors < 4:
        overlapped, ahead = False, 2 if vectors == 2 and threads > WARP else 1
    elif units == across * vectors:
        overlapped, ahead = (LONG_MANY if many else LONG_FEW)[cluster]
    elif cluster == 1:
        overlapped, ahead = many, 0 if many else 1
    else:
        overlapped, ahead = (False, vectors) if cluster in (2, 16) else (True, 0)
    tiling = StreamTiling(512, threads, cluster, ahead, overlapped)
    return tiling if tiling.fits(n, width, sources, columns, fields, sums, device) else None


class StreamLaunch:
    """How rows of arrays that lie as the kernel takes them are streamed. `totals` are the types of sums over rows."""

    def __init__(
        self, kind: type[Any], sources: Sequence[Any], outs: Sequence[Any], columns: Sequence[Any], totals: Sequence[Any],
        numbers: tuple[float, ...], tiling: StreamTiling,
    ) -> None:  # fmt: skip
        matrices = [m for m in map(matrix_of, (*sources, *outs)) if m is not None]
        rows, n = matrices[0].rows, matrices[0].n
        arrays.require(rows < 1 << 31 and n < 1 << 31, f"{rows} rows of {n} elements: more than 32 bits count")
        width = common_width((*sources, *outs), [c for c in columns if c is not None])
        types = [
            tuple(None if x is None else arrays.element_type(x) for x in group) for group in (sources, outs, columns)
        ]
        device = devices.current()
        held, columns_held = (sum(t.width for t in group if t is not None) for group in (types[0], types[2]))
        least = min(arrays.element_type(x).width for x in sources)
        tiling.check(n, width, least, held, columns_held, kind.fields - kind.counted, len(totals), device)
        vectors = tiling.vectors(n, width)
        exact = n == tiling.cluster * tiling.row_threads * vectors * width
        self.rows = rows
        self.n = n
        self.lines = min(-(-rows // tiling.rows), devices.clusters(tiling.cluster))
        """How many sums there are for each column."""
        if not totals:  # as few as take as long: none has a row to itself at the end
            self.lines = -(-rows // (tiling.rows * -(-rows // (tiling.rows * self.lines))))
        problem = StreamProblem(
            types[0], types[1], types[2], tuple(totals), width, vectors, tiling.slots(n, width), exact, tiling,
            device.overlaps,
        )  # fmt: skip
        self._kernel = launches.made(RowStream, kind, problem)
        self._numbers = (
            Int32(rows), Int32(n), tuple(Int64(m.step) for m in matrices), tuple(Float32(x) for x in numbers),
            Int32(self.lines),
        )  # fmt: skip

    def launcher(self, given: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
        """A function of arrays like these: sources, outs, columns, `lines` of sums for each total, totals."""
        return launches.launcher(self._kernel, given, *self._numbers)
