"""Native functions that tests call by themselves find those of other libraries."""

from __future__ import annotations

import pytest

from kiln.targets.cpu.runtime import parts
from kiln.targets.host import jit


@pytest.fixture(scope="session", autouse=True)
def _runtime() -> None:
    for part in parts.PARTS:
        jit.part_library(part)
