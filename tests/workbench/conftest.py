"""What the tests of the workbench share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of contracts come first on the path, as those of programs do; the next test shall not find them there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
