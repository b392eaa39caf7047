"""Fixtures of the NVIDIA target's tests."""

from __future__ import annotations

import pytest
from nvidia_testing import FakeDriver

from kiln.base_dsl import target
from kiln.hardware import driver
from kiln.interop.arguments import loading
from kiln.interop.arguments import native_caller as functions


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch):
    """Replace libcuda."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: fake)
    asked = (driver._initialized, driver.attribute, driver.available, driver.cuda_version, driver.several)
    asked += (driver._primary_context, functions._look_at_devices, target._default_name)
    for cached in asked:
        cached.cache_clear()
    yield fake
    for cached in asked:
        cached.cache_clear()
    engine = loading.loaded()
    if engine is not None:
        engine.look_at_devices(None)
