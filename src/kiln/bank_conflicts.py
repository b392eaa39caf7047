"""Bank conflicts of shared memory, counted on the CPU target by the hardware's rules, for each line of a program.

    with kiln.bank_conflicts() as report:
        main(x, y)
    print(report)                                  # or report.places, report.json()

`kiln inspect --bank-conflicts prog.py` does the same for a whole program.
"""

from __future__ import annotations

import dataclasses
import json
import linecache
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from .base_dsl import sanitizing
from .base_dsl.sanitizing import SharedAccess
from .base_dsl.target import Instrumented

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Report", "Session", "SharedAccess", "report"]


def _merged(accesses: Iterable[SharedAccess]) -> list[SharedAccess]:
    """One entry for each place, those that lose most first."""
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


class Report:
    """The places of a program where warps access shared memory, those that lose most first."""

    def __init__(self, accesses: list[SharedAccess]) -> None:
        self._accesses = accesses

    @property
    def places(self) -> list[SharedAccess]:
        return _merged(self._accesses)

    @property
    def wavefronts(self) -> int:
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
            return "no kernel accessed shared memory"
        rows = [("lost", "wavefronts", "ideal", "accesses", "worst", "operation", "where")]
        for one in places:
            where = f"{_short(one.span.filename)}:{one.span.line}" if one.span else "?"
            rows.append(
                (
                    str(one.wavefronts - one.ideal), str(one.wavefronts), str(one.ideal), str(one.accesses),
                    f"{one.worst}-way", f"{one.operation} {one.width} B", f"{where} ({one.kernel})",
                )
            )  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(7)]
        lines: list[str] = []
        for number, row in enumerate(rows):
            cells = [cell.rjust(width) for cell, width in zip(row[:5], widths)]
            cells += [cell.ljust(width) for cell, width in zip(row[5:], widths[5:])]
            lines.append("  ".join(cells).rstrip())
            span = places[number - 1].span if number else None
            source = linecache.getline(span.filename, span.line).strip() if span else ""
            if source:
                lines.append(" " * (sum(widths[:6]) + 14) + source)
        lost, total = self.conflicts, self.wavefronts
        share = f" ({100 * lost / total:.0f} %)" if total else ""
        lines.append(f"{lost} of {total} wavefronts are lost to bank conflicts{share}")
        return "\n".join(lines)

    def json(self) -> str:
        """A JSON list of objects, one for each place."""
        return json.dumps([_as_dict(one) for one in self.places], indent=2)


def _short(path: str) -> str:
    """A path as seen from the current directory, if it is below."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _as_dict(one: SharedAccess) -> dict[str, Any]:
    made = dataclasses.asdict(one)
    made["span"] = None if one.span is None else {"file": one.span.filename, "line": one.span.line}
    made["calls"] = [{"file": span.filename, "line": span.line} for span in one.calls]
    made["conflicts"] = one.wavefronts - one.ideal
    return made


class Session(Report):
    """`kiln.bank_conflicts()`: while open, programs that this thread calls run on the CPU target and are counted."""

    def __init__(self) -> None:
        request = sanitizing.Request((sanitizing.BANKS,), raises=False)
        super().__init__(request.accesses)
        self._run = Instrumented(request)

    def __enter__(self) -> Session:
        self._run.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()


def report() -> Report:
    """All that this process has counted so far."""
    return Report(list(sanitizing.counted))


class _Callable(types.ModuleType):
    """This module can be called: `kiln.bank_conflicts()` is a `Session`."""

    def __call__(self) -> Session:
        return Session()


sys.modules[__name__].__class__ = _Callable
