"""Fixtures of the NVIDIA target's tests."""

from __future__ import annotations

import pytest
from nvidia_testing import FakeDriver

from kiln.hardware import driver


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch):
    """Replace libcuda."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: fake)
    for cached in (driver._initialized, driver.attribute, driver.available, driver.cuda_version):
        cached.cache_clear()
    yield fake
    for cached in (driver._initialized, driver.attribute, driver.available, driver.cuda_version):
        cached.cache_clear()
