"""For pytest: `--kiln-sanitize[=KINDS]` runs every test's kernels under the sanitizer; a finding fails the test.

Loaded by `-p kiln.pytest_plugin`, or by itself where Kiln is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_addoption(parser: Any) -> None:
    """Add the option."""
    parser.getgroup("kiln").addoption(
        "--kiln-sanitize",
        nargs="?",
        const="default",
        default=None,
        metavar="KINDS",
        help="look for races and misuse of memory and synchronization in kernels, on the CPU target "
        "(KINDS: a comma list of race, memory, sync, numeric)",
    )


@pytest.fixture(autouse=True)
def _kiln_sanitize(request: Any) -> Iterator[None]:
    kinds = request.config.getoption("--kiln-sanitize")
    if kinds is None:
        yield
        return
    from . import sanitize

    with sanitize.Session(kinds):
        yield
