"""A pytest plugin: the sanitizer for all tests, and predicted times.

`--kiln-sanitize` runs every test's kernels under the sanitizer; a finding fails the test. The fixture `predicted` predicts
how long a kernel takes on a GPU, and knows what it took before (`--kiln-baselines=write`).

Findings that are warnings elsewhere fail it, too, if they are of the kinds race and sync.

It is loaded by `-p kiln.pytest_plugin`, or by itself if Kiln is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .sanitize import Session
    from .workbench.predicted_time import Predictor, TestPredictor

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

    group.addoption(
        "--kiln-baselines",
        choices=("read", "write"),
        default="read",
        help="write: what the fixture `predicted` predicts is what later runs are compared with (predicted.json)",
    )


@pytest.fixture(scope="session")
def _kiln_predictor() -> Iterator[Predictor]:
    from .workbench.predicted_time import Predictor

    predictor = Predictor()
    yield predictor
    predictor.close()


@pytest.fixture
def predicted(request: pytest.FixtureRequest, _kiln_predictor: Predictor) -> TestPredictor:
    """Predict the time of a kernel without a GPU: `predicted(case, problem).us`, and `.baseline` of the same test.

    A Case is given as its file, or as a function without arguments that launches it.
    """
    from .workbench.predicted_time import FILE, Baselines, TestPredictor

    write = request.config.getoption("--kiln-baselines") == "write"
    test = f"{request.path.name}::{request.node.name}"
    return TestPredictor(_kiln_predictor, Baselines(request.path.with_name(FILE), write), test)


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
