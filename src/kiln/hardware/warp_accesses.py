"""Accesses of warps by line of a program: wavefronts of shared memory (bank conflicts), sectors of global memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .._support import notebook
from ..base_dsl import sanitizing
from ..base_dsl.diagnostics import Span

__all__ = ["CoalescingReport", "GlobalAccess", "Report", "SharedAccess", "WarpAccess", "count", "report"]


@dataclasses.dataclass(frozen=True)
class WarpAccess:
    """How warps accessed memory at one place of a program."""

    kernel: str
    operation: str
    """`ld`, `st`, `cp.async`; in shared memory also `ldmatrix` and `stmatrix`."""
    width: int
    """Bytes of a lane."""
    span: Span | None
    calls: tuple[Span, ...]
    accesses: int
    """How often warps executed it."""
    served: int
    """Wavefronts of shared memory, or sectors of global memory."""
    ideal: int
    """Wavefronts if there were no conflicts; sectors if all bytes lay next to each other, from a sector's start on."""
    worst: int
    """The most wavefronts of lanes that are served together; the most sectors of one access."""
    lanes: int
    """Lanes that took part, all accesses together."""
    reach: int = 0
    """Bytes from the lowest to the highest address."""

    UNIT: ClassVar[str] = ""
    """What `served` counts."""
    LOST: ClassVar[str] = ""
    """The name of `lost` in JSON."""

    @property
    def lost(self) -> int:
        """Wavefronts or sectors above the ideal."""
        return self.served - self.ideal

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        record = dataclasses.asdict(self)
        record[self.UNIT] = record.pop("served")
        record["span"] = None if self.span is None else {"file": self.span.filename, "line": self.span.line}
        record["calls"] = [{"file": span.filename, "line": span.line} for span in self.calls]
        record[self.LOST] = self.lost
        return record


class SharedAccess(WarpAccess):
    """How warps accessed shared memory at one place of a program."""

    UNIT: ClassVar[str] = "wavefronts"
    LOST: ClassVar[str] = "conflicts"

    @property
    def wavefronts(self) -> int:
        """The passes over the banks that the accesses took."""
        return self.served


class GlobalAccess(WarpAccess):
    """How warps accessed global memory at one place of a program."""

    UNIT: ClassVar[str] = "sectors"
    LOST: ClassVar[str] = "excess"

    @property
    def sectors(self) -> int:
        """The sectors of 32 bytes that the accesses touched, each counted once for each access."""
        return self.served


_Access = TypeVar("_Access", bound=WarpAccess)


def _merged(accesses: Iterable[_Access]) -> list[_Access]:
    """Return one entry for each place, those that lose most first."""
    merged: dict[Any, _Access] = {}
    for one in accesses:
        key = (one.kernel, one.operation, one.width, one.span, one.calls)
        before = merged.get(key)
        if before is not None:
            one = dataclasses.replace(
                one,
                accesses=before.accesses + one.accesses,
                served=before.served + one.served,
                ideal=before.ideal + one.ideal,
                worst=max(before.worst, one.worst),
                lanes=before.lanes + one.lanes,
                reach=max(before.reach, one.reach),
            )
        merged[key] = one
    return sorted(merged.values(), key=lambda one: (-one.lost, -one.served))


class _Counted(notebook.Shown, Generic[_Access]):
    """The places of a program where warps access a kind of memory, those that lose most first."""

    _kind: ClassVar[type[WarpAccess]]
    _nothing: ClassVar[str]
    _head: ClassVar[tuple[str, ...]]
    _numbers: ClassVar[int] = 5
    """How many columns are numbers; operation and place follow."""

    def __init__(self, accesses: list[Any]) -> None:
        self._all = accesses

    @property
    def _accesses(self) -> list[_Access]:
        return [one for one in self._all if isinstance(one, self._kind)]  # pyright: ignore[reportReturnType]

    @property
    def places(self) -> list[_Access]:
        """The accesses by source line, those that lose most first."""
        return _merged(self._accesses)

    @property
    def _lost(self) -> int:
        return sum(one.lost for one in self._accesses)

    @property
    def _served(self) -> int:
        return sum(one.served for one in self._accesses)

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[_Access]:
        return iter(self.places)

    def __str__(self) -> str:
        places = self.places
        if not places:
            return self._nothing
        rows = [self._head, *map(self._row, places)]
        numbers = self._numbers
        widths = [max(len(row[column]) for row in rows) for column in range(numbers + 2)]
        lines: list[str] = []
        for number, row in enumerate(rows):
            cells = [cell.rjust(width) for cell, width in zip(row[:numbers], widths)]
            cells += [cell.ljust(width) for cell, width in zip(row[numbers:], widths[numbers:])]
            lines.append("  ".join(cells).rstrip())
            if number and (source := _source(places[number - 1])):
                lines.append(" " * (sum(widths[:-1]) + 2 * (numbers + 2)) + source)
        return "\n".join([*lines, self._total()])

    __repr__ = __str__

    def _row(self, one: Any) -> tuple[str, ...]:
        where = _short(str(one.span)) if one.span else "?"
        return (*self._cells(one), f"{one.operation} {one.width} B", f"{where} ({one.kernel})")

    def _cells(self, one: Any) -> tuple[str, ...]:
        """Return the numbers of a row."""
        raise NotImplementedError

    def _total(self) -> str:
        """Return the line below the table."""
        raise NotImplementedError

    def _as_html(self) -> str:
        if not self.places:
            return notebook.page(notebook.note(self._nothing))
        rows = [(*cells[:-1], f"{cells[-1]}\n{_source(one)}") for one in self.places for cells in [self._row(one)]]
        table = notebook.table(self._head, rows, numbers=self._numbers)
        return notebook.page(table, notebook.heading(self._total()))

    def json(self) -> str:
        """Return a JSON list of objects, one for each place."""
        import json

        return json.dumps([one.to_json() for one in self.places], indent=2)


class Report(_Counted[SharedAccess]):
    """The places of a program where warps access shared memory, those that lose most first."""

    _kind = SharedAccess
    _nothing = "no kernel accessed shared memory"
    _head = ("lost", "wavefronts", "ideal", "accesses", "worst", "operation", "where")

    @property
    def wavefronts(self) -> int:
        """The passes over the banks that all accesses took."""
        return self._served

    @property
    def conflicts(self) -> int:
        """Wavefronts that conflicts cost."""
        return self._lost

    def _cells(self, one: Any) -> tuple[str, ...]:
        return (str(one.lost), str(one.served), str(one.ideal), str(one.accesses), f"{one.worst}-way")

    def _total(self) -> str:
        lost = self.conflicts
        total = self.wavefronts
        share = f" ({100 * lost / total:.0f} %)" if total else ""
        return f"{lost} of {total} wavefronts are lost to bank conflicts{share}"


class CoalescingReport(_Counted[GlobalAccess]):
    """The places of a program where warps access global memory, those that move most in vain first."""

    _kind = GlobalAccess
    _nothing = "no warp accessed global memory"
    _head = ("excess", "sectors", "ideal", "accesses", "per access", "worst", "operation", "where")
    _numbers = 6

    @property
    def sectors(self) -> int:
        """The sectors of 32 bytes that all accesses touched."""
        return self._served

    @property
    def excess(self) -> int:
        """Sectors above the ideal."""
        return self._lost

    @property
    def accesses(self) -> int:
        """How often warps accessed global memory: what Nsight Compute calls requests."""
        return sum(one.accesses for one in self._accesses)

    def _cells(self, one: Any) -> tuple[str, ...]:
        numbers = (one.lost, one.served, one.ideal, one.accesses)
        return (*map(str, numbers), f"{one.served / one.accesses:.4g}", str(one.worst))

    def _total(self) -> str:
        served = self._served
        least = self._served - self._lost
        text = f"{served} sectors of global memory, {served / self.accesses:.4g} per access"
        return f"{text}; {least} would do ({100 * self._lost / served:.0f} % less)" if self._lost else text


def _source(one: WarpAccess) -> str:
    import linecache

    return linecache.getline(one.span.filename, one.span.line).strip() if one.span else ""


def _short(path: str) -> str:
    """Return a path as seen from the current directory, if it is below."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


counted: list[WarpAccess] = []
"""What calls of this process counted, in order."""


def count(accesses: Sequence[WarpAccess]) -> None:
    """Record what a call counted."""
    counted.extend(accesses)
    request = sanitizing.request()
    if request is not None:
        request.accesses.extend(accesses)
        return
    sanitizing.report_at_exit()


def report() -> Report:
    """Return all bank conflicts that this process has counted so far."""
    return Report(list(counted))


def _coalescing() -> CoalescingReport:
    return CoalescingReport(list(counted))


sanitizing.REPORTS["bank_conflicts"] = sanitizing.Report(
    (sanitizing.BANKS,), lambda: [one.to_json() for one in report().places], lambda: str(report())
)
sanitizing.REPORTS["coalescing"] = sanitizing.Report(
    (sanitizing.SECTORS,), lambda: [one.to_json() for one in _coalescing().places], lambda: str(_coalescing())
)
