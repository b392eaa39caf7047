"""The sanitizer: runs programs on the CPU target in an instrumented build and reports their errors.

    with kiln.sanitize():                          # races, memory, synchronization; the first bad call raises
        main(x, y)

    with kiln.sanitize("race", raises=False) as report:
        main(x, y)
    print(report)                                  # or report.findings, report.json()

`KILN_SANITIZE=race,memory,sync` and `kiln run --sanitize prog.py` do the same for whole programs.
`kiln.sanitize.report()` has all findings of the process.
"""

from __future__ import annotations

import json
import sys
import types
from typing import TYPE_CHECKING, Any

from ._support import lazy, notebook
from .base_dsl import sanitizing
from .base_dsl.diagnostics import DSLRuntimeError
from .base_dsl.sanitizing import KINDS, SanitizerError
from .base_dsl.target import Instrumented

__dir__ = lazy.listing(__name__)
__all__ = ["KINDS", "Report", "SanitizerError", "Session", "report"]


class Report(notebook.Shown):
    """Findings, as text (`str`), as JSON, and in notebooks with the source lines."""

    def __init__(self, findings: list[Any], schedules: int = 0) -> None:
        self.findings = findings
        self._schedules = schedules

    @property
    def schedules(self) -> int:
        """The most schedules that a launch ran under; 0 if nothing was launched."""
        return self._schedules

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Any:
        return iter(self.findings)

    def __bool__(self) -> bool:
        return bool(self.findings)

    def __str__(self) -> str:
        parts = [*map(str, self.findings), "\n".join([*self._more(), self._count()])]
        return "\n\n".join(parts)

    __repr__ = __str__

    def _count(self) -> str:
        tried = f" under {sanitizing.schedules_text(self.schedules)}" if self.schedules else ""
        count = len(self.findings)
        findings = f"{count} finding{'s' * (count != 1)}" if self.findings else "the sanitizer found nothing"
        return f"{findings}{tried}"

    def _more(self) -> list[str]:
        """Return the commands that show pages of the knowledge base about the findings."""
        pages = dict.fromkeys(finding.page for finding in self.findings if finding.page)
        return [f"more: kiln kb show {page}" for page in pages]

    def _as_html(self) -> str:
        parts: list[str] = []
        for finding in self.findings:
            where = f"{finding.span}: " if finding.span else ""
            parts.append(notebook.heading(f"{where}{finding.message}", finding.kind))
            parts += [notebook.source(finding.span.snippet())] if finding.span and finding.span.snippet() else []
            for span, text in finding.notes:
                parts += [notebook.note(f"{span}: note: {text}"), notebook.source(span.snippet())]
            parts += [notebook.note(f"help: {finding.hint}")] if finding.hint else []
        return notebook.page(*parts, *map(notebook.note, self._more()), notebook.heading(self._count()))

    def json(self) -> str:
        """Return a JSON list of objects, one for each finding."""
        return json.dumps([finding.to_dict() for finding in self.findings], indent=2)


class Session(Report):
    """Instruments the programs that this thread calls while it is open: `kiln.sanitize(...)`."""

    def __init__(self, kinds: str | tuple[str, ...] | list[str] = "default", *, raises: bool = True) -> None:
        text = kinds if isinstance(kinds, str) else ",".join(kinds)
        try:
            parsed = sanitizing.parse_kinds(text)
        except ValueError as reason:
            raise DSLRuntimeError(f"kiln.sanitize({text!r}): {reason}") from None
        if set(sanitizing.COUNTS) & set(parsed):
            hint = "use kiln.bank_conflicts() or kiln.coalescing()"
            raise DSLRuntimeError(f"kiln.sanitize({text!r}): conflicts are no errors", hint=hint)
        if not parsed:
            raise DSLRuntimeError(f"kiln.sanitize({text!r}): nothing to look for", hint=f"some of {', '.join(KINDS)}")
        request = sanitizing.Request(parsed, raises)
        super().__init__(request.findings)
        self._request = request
        self._run = Instrumented(request)

    @property
    def schedules(self) -> int:
        return self._request.schedules

    @property
    def warnings(self) -> sanitizing.Findings:
        """Findings that do not raise, such as a missing fence that ptxas adds."""
        return self._request.warnings

    def failure(self) -> SanitizerError | None:
        """Return the first of the warnings that fail a run or a test, those of races and synchronization, as an error."""
        first = next((each for each in self.warnings if each.kind in sanitizing.FAILING), None)
        if first is None:
            return None
        return SanitizerError(
            first.message, [first], hint=first.hint, span=first.span, notes=first.notes, page=first.page
        )

    def __enter__(self) -> Session:
        self._run.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()


def report() -> Report:
    """Return all findings of this process so far."""
    return Report(list(sanitizing.collected), sanitizing.schedules)


_Opened = Session  # in the class, these names are its own
_Reported = Report


class _Callable(types.ModuleType):
    """Makes this module callable: `kiln.sanitize(...)` is a `Session`."""

    if TYPE_CHECKING:
        KINDS = KINDS
        Report = Report
        SanitizerError = SanitizerError
        Session = Session

        @staticmethod
        def report() -> _Reported:
            """Return all findings of this process so far."""
            ...

    def __call__(self, kinds: str | tuple[str, ...] | list[str] = "default", *, raises: bool = True) -> _Opened:
        """Look for races, memory and synchronization errors in what this thread runs while the session is open."""
        return Session(kinds, raises=raises)


sys.modules[__name__].__class__ = _Callable
