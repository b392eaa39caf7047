"""What tests of the CPU target share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiln.targets.cpu import jit


@pytest.fixture
def in_order() -> Iterator[None]:
    """Threads and blocks run in order whatever schedule the tests run under: a test says what happens first."""
    jit.set_seed(0)
    yield
    jit.set_seed()
