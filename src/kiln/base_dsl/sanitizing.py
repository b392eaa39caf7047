"""The sanitizer's requests: which errors to look for, and where reports go.

A target that can instrument code asks `kinds()` when it compiles and hands its findings to `deliver`. The user's
interface is `kiln/sanitize.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from .._support import fork_safe
from . import settings
from .diagnostics import DSLRuntimeError, DSLUserCodeError
from .options import StringCompileOption
from .options import register as register_options

KINDS = ("race", "memory", "sync", "numeric")
DEFAULT_KINDS = ("race", "memory", "sync")
BOUNDS = "bounds"
"""A kind of its own, of launches that are checked by default: accesses out of bounds, unset shared memory."""
CHECKS = ("never", "off", "first", "always")
"""Which launches on the CPU target are checked: none, first ones without warnings, first ones, all."""
BANKS = "banks"
"""A kind of its own: nothing is checked, bank conflicts of shared memory are counted."""
SECTORS = "sectors"
"""A kind of its own: nothing is checked, sectors of global memory are counted."""
EVENTS = "events"
"""A kind of its own: nothing is checked, what warps wait for, copy and multiply is recorded."""
COUNTS = (BANKS, SECTORS)
DEVICES = "devices"
"""Added to kinds of errors where launches run beside those of other devices."""


OFF = "found by the checks that are on by default: KILN_CHECKS=0, or the compile option --checks off, silences them"


class SanitizerError(DSLUserCodeError):
    """The sanitizer found something; `findings` lists it."""

    def __init__(self, message: str, findings: Sequence[object], by_default: bool = False, **more: Any) -> None:
        super().__init__(message, **more)
        self.findings: list[Any] = list(findings)
        if by_default:
            self.__notes__: list[str] = [*getattr(self, "__notes__", []), OFF]

    def text(self) -> str:
        # The first line is all that a summary of tests shows.
        more = [f"{len(self.findings)} findings of the sanitizer"] if len(self.findings) > 1 else []
        return "\n\n".join([*map(str, self.findings), *more])


Findings: TypeAlias = "list[Any]"
"""Findings, whose class a target has."""


class Request:
    """One use of the sanitizer: the kinds to look for, whether to raise, and what was found."""

    def __init__(self, kinds: tuple[str, ...], raises: bool) -> None:
        self.kinds = kinds
        self.raises = raises
        self.findings: Findings = []
        self.warnings: Findings = []
        """Findings that do not raise: public programs have such, and GPUs tolerate them."""
        self.schedules = 0
        """The most schedules under which a launch ran."""
        self.accesses: list[Any] = []
        """The counts of accesses to memory by warps."""
        self.blocks = 0
        """How many CTAs, or clusters of them, of a launch run and have their events recorded; 0: all."""


class _Requests(threading.local):
    request: Request | None = None


_requests = _Requests()
_environment: Any = getattr(os.environ, "_data", None) if os.name == "posix" else None
open_requests: fork_safe.Count = fork_safe.Count()
"""How many threads have a request: without any, a call looks at nothing but the environment."""
collected: Findings = []
"""All findings of this process, in order."""


FAILING = ("race", "sync")
"""Kinds of findings that fail a run, or a test, even as warnings."""


class Unasked:
    """What was found by the request of the environment, not in a session that the program opened itself."""

    def __init__(self) -> None:
        self.errors: Findings = []
        self.warnings: Findings = []
        self.faults = 0
        """Calls that ended with a fault that is no finding, such as an access to memory that is not there."""


unasked: Unasked = Unasked()
schedules: int = 0
"""The most schedules under which a launch of this process ran."""
once: dict[str, None] = {}
"""Why launches of this process ran under fewer schedules than others, in order."""


def tried(count: int, once_since: Sequence[str] = ()) -> None:
    """Record that a call has run its launches under at most `count` schedules, and why some ran under one only."""
    global schedules
    schedules = max(schedules, count)
    once.update(dict.fromkeys(once_since))
    if _requests.request is not None:
        _requests.request.schedules = max(_requests.request.schedules, count)


def schedules_text(count: int) -> str:
    """Return a number of schedules in words."""
    return f"{count} schedule{'s' * (count != 1)}"


def parse_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds in a comma list, in order; `all`: all, `1` and `default`: the default. Raises ValueError."""
    kinds: set[str] = set()
    for item in text.lower().replace(" ", "").split(","):
        if item in ("1", "default", "on", "true"):
            kinds.update(DEFAULT_KINDS)
        elif item == "all":
            kinds.update(KINDS)
        elif item in KINDS or item in COUNTS:
            kinds.add(item)
        elif item not in ("", "0", "off", "false"):
            raise ValueError(f"unknown: {item}; expected some of {', '.join(KINDS)}, or all")
    return tuple(kind for kind in (*KINDS, *COUNTS) if kind in kinds)


def _checks(text: str) -> str:
    mode = {"0": "off", "false": "off", "1": "first", "true": "first"}.get(text.lower(), text.lower())
    if mode not in CHECKS:
        raise ValueError
    return mode


def _default_checks() -> str:
    """Return `always` under pytest and in notebooks, where a launch is there to be looked at."""
    shell = sys.modules.get("IPython")
    notebook = shell is not None and shell.get_ipython() is not None
    return "always" if notebook or "PYTEST_CURRENT_TEST" in os.environ else "first"


class Checks(StringCompileOption):
    """Which launches on the CPU target are checked: `never`, `off`, `first` or `always`, as `KILN_CHECKS` says."""

    field: str = "checks"
    flag: str = "--checks"
    setting: str = "KILN_CHECKS"

    @classmethod
    def check(cls, value: object) -> str:
        try:
            return _checks(super().check(value))
        except ValueError:
            raise DSLRuntimeError(f"--checks takes {', '.join(CHECKS)}, not {value!r}") from None


register_options(Checks)
settings.register(
    settings.Setting(
        "KILN_CHECKS",
        "never, off, first or always; 0 is off",
        _default_checks,
        "Launches on the CPU target that are checked for accesses out of bounds and for shared memory that nobody has written: the first one of each specialization and of each new set of extents; with `off` these too, without a warning; all; or none. Unset: `always` under pytest and in notebooks, else `first`. Read when a function is compiled.",
        _checks,
    ),
    settings.Setting(
        "KILN_SANITIZE",
        "a comma list of race, memory, sync, numeric, banks, sectors; or all for the first four, or 1 for the first three",
        (),
        "What the sanitizer looks for; `banks` counts bank conflicts of shared memory, `sectors` sectors of global memory. Programs then run on the CPU target, in an instrumented build.",
        parse_kinds,
    ),
    settings.Setting(
        "KILN_REPORT",
        "a path, or `-`",
        "",
        "Where findings of the sanitizer, which then do not raise, bank conflicts and sectors go when the process ends: as text on standard output for `-`, else as a JSON file. It is a list; if `KILN_SANITIZE` asks for several of them, an object of lists, `findings`, `bank_conflicts` and `coalescing`.",
        settings.report_path,
    ),
)


def kinds() -> tuple[str, ...]:
    """Return the kinds of errors to look for now; empty: code is not instrumented."""
    if open_requests.value:
        request = _requests.request
        if request is not None:
            return _with_devices(request.kinds)
    # asked at every call: see `target._environment_name`
    if _environment is not None and b"KILN_SANITIZE" not in _environment:
        return ()
    return _with_devices(settings.get("KILN_SANITIZE"))


class _Devices:
    """Whether launches of this process run beside those of other devices."""

    are_several: bool = False


_devices = _Devices()


def run_on_devices(several: bool) -> None:
    """Say whether launches of this process run beside those of other devices."""
    _devices.are_several = several


def _with_devices(kinds_: tuple[str, ...]) -> tuple[str, ...]:
    return (*kinds_, DEVICES) if _devices.are_several and set(KINDS) & set(kinds_) else kinds_


def request() -> Request | None:
    """Return the request in force on this thread."""
    return _requests.request


def push(request: Request | None) -> Request | None:
    """Make a request the one in force on this thread, and return the one before."""
    before = _requests.request
    _requests.request = request
    open_requests.add((request is not None) - (before is not None))
    return before


class Report(NamedTuple):
    """What a process reports at its end of some kinds of `KILN_SANITIZE`."""

    kinds: Sequence[str]
    rows: Callable[[], Sequence[object]]
    """Returns the report as JSON."""
    text: Callable[[], str]


REPORTS: dict[str, Report] = {
    "findings": Report(
        KINDS, lambda: [finding.to_dict() for finding in collected], lambda: "\n\n".join(map(str, collected))
    )
}
"""Reports by their names in JSON. Rooms above add theirs."""


def report_at_exit() -> bool:
    """Write the reports when the process ends, if `KILN_REPORT` asks for them. Returns whether it does."""
    settings.refuse_gone("KILN_SANITIZE_REPORT", "KILN_BANK_CONFLICTS_REPORT", "KILN_COALESCING_REPORT")
    path = settings.get("KILN_REPORT")
    if path:
        _report_once(path)
    return bool(path)


@functools.lru_cache(maxsize=1)
def _report_once(path: str) -> None:
    atexit.register(_report, path)


def _report(path: str) -> None:
    """Write reports to a file; to standard error if that fails."""
    import json

    asked = settings.get("KILN_SANITIZE") or KINDS
    chosen = {name: report for name, report in REPORTS.items() if set(report.kinds) & set(asked)}
    if path == "-":
        print("\n\n".join(report.text() for report in chosen.values()), flush=True)
        return
    rows = {name: report.rows() for name, report in chosen.items()}
    text = json.dumps(rows if len(rows) > 1 else next(iter(rows.values()), []), indent=2) + "\n"
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as reason:
        sys.stderr.write(f"kiln: KILN_REPORT={path} cannot be written ({reason.strerror}); the report:\n{text}")


_unchecked = threading.local()


def checks() -> bool:
    """Return whether launches of what this thread traces or compiles may be checked by default."""
    return not getattr(_unchecked, "depth", 0) and settings.get("KILN_CHECKS") != "never"


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Compile without default checks while open: for functions of Kiln's own kernel library."""
    _unchecked.depth = getattr(_unchecked, "depth", 0) + 1
    try:
        yield
    finally:
        _unchecked.depth -= 1


_timed = threading.local()


def is_timed() -> bool:
    """Return whether this thread measures the time of calls, which are not checked by default then."""
    return getattr(_timed, "yes", False)


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Run without default checks while open: for calls whose time is measured."""
    before = is_timed()
    _timed.yes = True
    try:
        yield
    finally:
        _timed.yes = before


def deliver(findings: Sequence[Any], failure: Exception | None = None, by_default: bool = False) -> None:
    """Record the findings of a call; raise them if that was asked for, and those of default checks."""
    request = _requests.request
    collected.extend(findings)
    if request is not None:
        request.findings.extend(findings)
    elif not by_default:
        unasked.errors.extend(findings)
    if not findings or (request is not None and not request.raises):
        return
    if request is None and report_at_exit():
        return
    if failure is not None and [finding.rule for finding in findings] == ["deadlock"]:
        raise failure  # it says the same
    first = findings[0]
    raise SanitizerError(
        first.message, findings, by_default, hint=first.hint, span=first.span, notes=first.notes, page=first.page
    ) from failure
