from __future__ import annotations

from collections.abc import Iterator

import pytest

import kiln


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """The arrays of these tests are in the memory of the host."""
    with kiln.target("cpu"):
        yield
