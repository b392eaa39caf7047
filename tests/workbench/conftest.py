"""What the tests of the workbench share."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What opening a contract changes in its process is as it was for the next test: the path, the architecture, the target."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("CUTE_DSL_ARCH", "KILN_TARGET"):
        before = os.environ.get(name)
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
