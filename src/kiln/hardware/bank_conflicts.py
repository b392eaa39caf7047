"""Bank conflicts: accesses to shared memory by line of a program, and the wavefronts that conflicts cost."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._support import notebook
from ..base_dsl import sanitizing, settings
from ..base_dsl.diagnostics import Span

__all__ = ["Report", "SharedAccess", "count", "report"]


@dataclasses.dataclass(frozen=True)
class SharedAccess:
    """How warps accessed shared memory at one place of a program."""

    kernel: str
    operation: str
    """`ld`, `st`, `ldmatrix`, `stmatrix` or `cp.async`."""
    width: int
    """Bytes of a lane."""
    span: Span | None
    calls: tuple[Span, ...]
    accesses: int
    """How often warps executed it."""
    wavefronts: int
    ideal: int
    """Wavefronts if there were no conflicts."""
    worst: int
    """The most wavefronts of lanes that are served together: a conflict of so many ways."""
    lanes: int
    """Lanes that took part, all accesses together."""


def _merged(accesses: Iterable[SharedAccess]) -> list[SharedAccess]:
    """Return one entry for each place, those that lose most first."""
    found: dict[Any, SharedAccess] = {}
    for one in accesses:
        key = (one.kernel, one.operation, one.width, one.span, one.calls)
        before = found.get(key)
        if before is not None:
            one = dataclasses.replace(
                one,
                accesses=before.accesses + one.accesses,
                wavefronts=before.wavefronts + one.wavefronts,
                ideal=before.ideal + one.ideal,
                worst=max(before.worst, one.worst),
                lanes=before.lanes + one.lanes,
            )
        found[key] = one
    return sorted(found.values(), key=lambda one: (one.ideal - one.wavefronts, -one.wavefronts))


class Report(notebook.Shown):
    """The places of a program where warps access shared memory, those that lose most first."""

    def __init__(self, accesses: list[SharedAccess]) -> None:
        self._accesses = accesses

    @property
    def places(self) -> list[SharedAccess]:
        """The accesses by source line, most conflicts first."""
        return _merged(self._accesses)

    @property
    def wavefronts(self) -> int:
        """The passes over the banks that all accesses took."""
        return sum(one.wavefronts for one in self._accesses)

    @property
    def conflicts(self) -> int:
        """Wavefronts that conflicts cost."""
        return sum(one.wavefronts - one.ideal for one in self._accesses)

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[SharedAccess]:
        return iter(self.places)

    def __str__(self) -> str:
        places = self.places
        if not places:
            return _NOTHING
        rows = [_HEAD, *map(_row, places)]
        widths = [max(len(row[column]) for row in rows) for column in range(7)]
        lines: list[str] = []
        for number, row in enumerate(rows):
            cells = [cell.rjust(width) for cell, width in zip(row[:5], widths)]
            cells += [cell.ljust(width) for cell, width in zip(row[5:], widths[5:])]
            lines.append("  ".join(cells).rstrip())
            if number and (source := _source(places[number - 1])):
                lines.append(" " * (sum(widths[:6]) + 14) + source)
        return "\n".join([*lines, self._total()])

    __repr__ = __str__

    def _total(self) -> str:
        lost, total = self.conflicts, self.wavefronts
        share = f" ({100 * lost / total:.0f} %)" if total else ""
        return f"{lost} of {total} wavefronts are lost to bank conflicts{share}"

    def _as_html(self) -> str:
        if not self.places:
            return notebook.page(notebook.note(_NOTHING))
        rows = [(*cells[:-1], f"{cells[-1]}\n{_source(one)}") for one in self.places for cells in [_row(one)]]
        return notebook.page(notebook.table(_HEAD, rows, numbers=5), notebook.heading(self._total()))

    def json(self) -> str:
        """Return a JSON list of objects, one for each place."""
        import json

        return json.dumps([_as_dict(one) for one in self.places], indent=2)


_NOTHING = "no kernel accessed shared memory"
_HEAD = ("lost", "wavefronts", "ideal", "accesses", "worst", "operation", "where")


def _row(one: SharedAccess) -> tuple[str, ...]:
    where = _short(str(one.span)) if one.span else "?"
    return (
        str(one.wavefronts - one.ideal), str(one.wavefronts), str(one.ideal), str(one.accesses),
        f"{one.worst}-way", f"{one.operation} {one.width} B", f"{where} ({one.kernel})",
    )  # fmt: skip


def _source(one: SharedAccess) -> str:
    import linecache

    return linecache.getline(one.span.filename, one.span.line).strip() if one.span else ""


def _short(path: str) -> str:
    """Return a path as seen from the current directory, if it is below."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _as_dict(one: SharedAccess) -> dict[str, Any]:
    made = dataclasses.asdict(one)
    made["span"] = None if one.span is None else {"file": one.span.filename, "line": one.span.line}
    made["calls"] = [{"file": span.filename, "line": span.line} for span in one.calls]
    made["conflicts"] = one.wavefronts - one.ideal
    return made


counted: list[SharedAccess] = []
"""What calls of this process counted, in order."""


def count(accesses: Sequence[SharedAccess]) -> None:
    """Record what a call counted."""
    counted.extend(accesses)
    request = sanitizing.request()
    if request is not None:
        request.accesses.extend(accesses)
    elif settings.get("KILN_BANK_CONFLICTS_REPORT"):
        sanitizing.report_at_exit("KILN_BANK_CONFLICTS_REPORT", _text)


def _text() -> str:
    return str(report()) if settings.get("KILN_BANK_CONFLICTS_REPORT") == "-" else report().json()


def report() -> Report:
    """Return all that this process has counted so far."""
    return Report(list(counted))
