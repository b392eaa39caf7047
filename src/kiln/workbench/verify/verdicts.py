"""The verdict on all checks of a Case, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._support import notebook
from ..core.cases import Case, Problem
from ..core.command_line import EXIT
from ..core.text import fields_text
from .check import KINDS, CheckedProblem, Result


class Verdict(notebook.Shown):
    """The results of all checks of a Case."""

    def __init__(self, case: Case, where: str) -> None:
        self.case = case
        self.where = where
        self.checks: list[Result] = []
        self.problems: list[tuple[Problem, CheckedProblem]] = []
        """Each problem that was asked for, and as it is checked on this machine."""
        self.skipped = ""
        """Why nothing was checked."""

    @property
    def ok(self) -> bool:
        """Whether every check passed, and something was checked."""
        passed = any(check.status == "ok" for check in self.checks)
        return not self.skipped and passed and not self.failures

    @property
    def failures(self) -> list[Result]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.ok]

    @property
    def exit_status(self) -> int:
        """The exit status of the verb."""
        return EXIT.NOT_HERE if self.skipped else EXIT.GOOD if self.ok else EXIT.FAILED

    def lines(self) -> list[tuple[str, str, str]]:
        """Return kind, status and details of each kind of check; a heading line begins each problem."""
        lines_: list[tuple[str, str, str]] = []
        for asked, checked in self.problems:
            same = [other for other, each in self.problems if each.problem == checked.problem]
            if asked is not same[0]:
                continue
            fields = "".join(f" {name}={value}" for name, value in checked.problem.items())
            whole = f"--max-elements={checked.asked_elements} checks all of it"
            before = fields_text(asked)
            shrunk = f" (made smaller from {before}; {whole})" if dict(asked) != checked.problem else ""
            if len(same) > 1:
                shrunk = f" ({len(same)} problems, made smaller)"
            lines_.append(("", "", f"{self.case.name}{fields}{shrunk}: {', '.join(checked.inputs)}; {self.where}"))
            mine = [check for check in self.checks if check.base == checked.problem]
            rows: dict[Any, list[Any]] = {}
            for kind in KINDS:
                of_kind = [check for check in mine if check.kind == kind]
                failed = next((check for check in of_kind if not check.ok), None)
                if of_kind:
                    # a mistake that is not about values is one, whatever they are
                    alike = kind if failed is None or failed.output else first_line(failed.message)
                    rows.setdefault(alike, [kind, *_summary(of_kind)]).append(kind)
            for kind, status, text, _, *others in rows.values():
                lines_.append((kind, status, f"{text}; the same for {', '.join(others)}" if others else text))
        return lines_

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {
            "case": self.case.name,
            "ok": self.ok,
            "where": self.where,
            "skipped": self.skipped,
            "checks": [each.to_json() for each in self.checks],
        }

    def __str__(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        lines = [f"  {kind:<14} {status:<8} {text}".rstrip() if kind else text for kind, status, text in self.lines()]
        return "\n".join([*lines, *([""] if self.failures else []), *self._failed()])

    def print(self, out: Any, quiet: bool = False) -> None:
        """Print the verdict on a console of rich; `quiet` prints failures only."""
        from rich.text import Text

        if self.skipped:
            out.print(f"skipped: {self.skipped}")
            return
        colours = {"ok": "green", "FAILED": "bold red", "refused": "yellow", "not tried": "dim"}
        for kind, status, text in [] if quiet else self.lines():
            coloured = (f"{status:<9} ", colours.get(status, ""))
            out.print(Text.assemble("  ", f"{kind:<14} ", coloured, text) if kind else Text(text, style="bold"))
        failures = distinct(self.failures)
        if failures:
            out.print()
            full = _in_full(failures)
            for each in full:
                out.print(Text.assemble(("FAILED ", "bold red"), each.report()))
            failures = _others(failures, full)
            lines = [f"{f'{each.kind} {each.variant}'.rstrip()}: {each.again}" for each in failures[:4]]
            for line in [*lines, *([f"{len(failures) - 4} more"] if len(failures) > 4 else [])]:
                out.print(Text.assemble(("also ", "bold red"), line))

    __repr__ = __str__

    def _as_html(self) -> str:
        if self.skipped:
            return notebook.page(notebook.note(f"skipped: {self.skipped}"))
        parts: list[str] = []
        rows: list[tuple[str, str, str]] = []
        for kind, status, text in [*self.lines(), ("", "", "")]:
            if kind:
                rows.append((kind, status, text))
                continue
            parts += [notebook.table(("check", "status", "details"), rows)] if rows else []
            parts += [notebook.heading(text)] if text else []
            rows = []
        for line in self._failed():
            parts.append(notebook.source(line))
        return notebook.page(*parts)

    def _failed(self) -> list[str]:
        """Return the failures: the first in full, the others by their commands."""
        full = _in_full(self.failures) if self.failures else []
        others = _others(distinct(self.failures), full)
        return [
            *(f"FAILED {each.report()}" for each in full),
            *(f"also {each.kind} {each.variant}: {each.again}" for each in others),
        ]


def _in_full(failures: Sequence[Result]) -> list[Result]:
    """Return the failures to report in full: the first, and what the sanitizer says about it."""
    return [failures[0], *(each for each in failures[1:] if each.kind == "sanitizer")][:2]


def _others(failures: Sequence[Result], full: Sequence[Result]) -> list[Result]:
    """Return the failures that are not reported in full and say something else."""
    said = {first_line(each.message) for each in full}
    return [each for each in failures if each not in full and (each.output or first_line(each.message) not in said)]


def distinct(failures: Sequence[Result]) -> list[Result]:
    """Return one failure per kind and variant."""
    return list({(each.kind, each.variant): each for each in reversed(failures)}.values())[::-1]


def _summary(checks: Sequence[Result]) -> tuple[str, str]:
    """Return status and details of the checks of one kind."""
    failed = [check for check in checks if not check.ok]
    if failed:
        first = failed[0]
        variant = f"{first.variant}: " if first.variant else ""
        where = f", first at {first.output['first']['index']}" if first.output else ""
        more = f" ({len(failed)} of {len(checks)} checks)" if len(checks) > 1 else ""
        return "FAILED", f"{first.status}: {variant}{first_line(first.message)}{where}{more}"
    passed = [check for check in checks if check.status == "ok"]
    rest = [check for check in checks if check.status != "ok"]
    if not passed:
        return _word(rest[0].status), "; ".join(dict.fromkeys(first_line(check.message) for check in rest))
    others = [f"{check.variant} {_word(check.status)}: {first_line(check.message)}" for check in rest]
    worst = max(passed, key=lambda check: check.error / check.bound if check.bound else 0.0)
    if worst.bound == 1.0:
        text = f"{100 * worst.error:.0f} % of {worst.how}"
    elif worst.bound:
        text = f"error {worst.error:.2g}, allowed {worst.bound:.2g}"
    else:
        text = worst.how
    variants = list(dict.fromkeys(check.variant for check in passed if check.variant))
    seeds = len({check.seed for check in passed})
    counted = ", ".join(variants) if variants else f"{seeds} seeds" if seeds > 1 else ""
    notes = [f"({note})" for note in worst.notes]
    return "ok", "; ".join(filter(None, [counted, text, *dict.fromkeys(others), *notes]))


def _word(status: str) -> str:
    return "not tried" if status == "skipped" else status


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
