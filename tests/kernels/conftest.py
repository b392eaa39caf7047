"""Kernel tests get the same random data whichever tests ran before them."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _same_data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(request.module, "RNG"):
        monkeypatch.setattr(request.module, "RNG", np.random.default_rng(0))
