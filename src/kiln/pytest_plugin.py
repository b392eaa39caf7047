"""A pytest plugin: `--kiln-sanitize` runs every test's kernels under the sanitizer; a finding fails the test.

Findings that are warnings elsewhere fail it, too, if they are of the kinds race and sync.

It is loaded by `-p kiln.pytest_plugin`, or by itself if Kiln is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .sanitize import Session

_SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""The session of a test."""


def pytest_addoption(parser: Any) -> None:
    """Add the options."""
    group = parser.getgroup("kiln")
    group.addoption(
        "--kiln-sanitize",
        action="store_true",
        help="look for races and misuse of memory and synchronization in kernels, on the CPU target",
    )
    group.addoption(
        "--kiln-sanitize-kinds",
        default="",
        metavar="KINDS",
        help="what --kiln-sanitize looks for: a comma list of race, memory, sync, numeric (default: the first three)",
    )


@pytest.fixture(autouse=True)
def _kiln_sanitize(request: Any) -> Iterator[None]:
    kinds = request.config.getoption("--kiln-sanitize-kinds")
    if not kinds and not request.config.getoption("--kiln-sanitize"):
        yield
        return
    from . import sanitize

    with sanitize.Session(kinds or "default") as session:
        request.node.stash[_SESSION] = session
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that passed, for the first warning of a kind that fails a run."""
    yield
    session = item.stash.get(_SESSION, None)
    failure = None if session is None else session.failure()
    if failure is not None:
        raise failure


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: object, call: Any) -> None:
    """Leave Kiln's own frames out of the tracebacks of errors that a test's program caused."""
    import sys

    if call.excinfo is None or "kiln.base_dsl.uncaught" not in sys.modules:
        return
    failure = call.excinfo.value
    sys.modules["kiln.base_dsl.uncaught"].clean(failure)
    if failure.__traceback__ is not None and failure.__traceback__ is not call.excinfo.tb:
        call.excinfo = pytest.ExceptionInfo.from_exception(failure)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report under how many schedules kernels ran."""
    config = terminalreporter.config
    if config.getoption("--kiln-sanitize-kinds") or config.getoption("--kiln-sanitize"):
        from . import sanitize

        tried = sanitize.report().schedules
        if tried:
            terminalreporter.write_line(f"kiln: kernels ran under up to {tried} schedules")
