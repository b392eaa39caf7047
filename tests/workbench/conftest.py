"""What the tests of the workbench share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from kiln.hardware import current


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What opening a contract changes in its process is as it was for the next test: the path, the architecture, the target."""
    served = current.cuda_is_host_memory
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("CUTE_DSL_ARCH", "KILN_TARGET"):
        before = os.environ.get(name)
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
    yield
    assert current.cuda_is_host_memory == served, "CUDA is served to all tests from now on: do this in a `child`"
