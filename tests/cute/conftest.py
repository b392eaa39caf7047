from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kiln

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """The arrays of these tests are in the memory of the host."""
    with kiln.target("cpu"):
        yield
