"""Front-end tests run on the CPU target, whatever the machine has."""

from __future__ import annotations

import pytest

import kiln


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield
