"""Several devices: kernels are launched on the one that was asked for. A driver of the test's own stands in for the real one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from kiln.base_dsl import guards
from kiln.base_dsl.target import get_target
from kiln.hardware import current, driver


class Driver:
    """Two devices, an sm_80 and an sm_90; a stack of contexts, which are numbered 100 and 101."""

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.stack: list[int] = [100]
        self.retained: list[int] = []

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = self.devices
        return 0

    def cuCtxGetDevice(self, out: Any) -> int:
        if not self.stack:
            return driver.INVALID_CONTEXT
        out._obj.value = self.stack[-1] - 100
        return 0

    def cuCtxGetCurrent(self, out: Any) -> int:
        out._obj.value = self.stack[-1] if self.stack else None
        return 0

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        self.stack[-1:] = [context.value or 0]
        return 0

    def cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> int:
        self.retained.append(device)
        out._obj.value = 100 + device
        return 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:
        self.stack.append(context.value or 0)
        return 0

    def cuCtxPopCurrent_v2(self, out: Any) -> int:
        out._obj.value = self.stack.pop()
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> int:
        out._obj.value = {75: (8, 9)[device], 76: 0}[attribute]
        return 0


CACHES = (
    driver.library,
    driver._initialized,
    driver.available,
    driver.several,
    driver._primary_context,
    driver.attribute,
)


@pytest.fixture
def cuda(monkeypatch):
    def clear() -> None:
        for cached in CACHES:
            cached.cache_clear()

    found = Driver()
    clear()
    with monkeypatch.context() as patched:
        patched.setattr(driver, "library", lambda: found)
        patched.setattr(driver, "function", lambda name: getattr(found, name))
        yield found
    clear()


def test_a_device_is_current_while_it_is_asked_for(cuda):
    target = get_target("nvidia")
    assert target.current_device() == 0
    for _ in range(2):
        with target.device(1):
            assert target.current_device() == 1
            with target.device(0):
                assert cuda.stack == [100, 101, 100]
        assert cuda.stack == [100]
    assert cuda.retained == [1, 0]  # once each
    with pytest.raises(ValueError, match="inside"), target.device(1):
        raise ValueError("inside")
    assert cuda.stack == [100]
    with target.device(0), target.device(None):
        assert cuda.stack == [100]  # it is current already


def test_guards_hold_while_a_device_is_current(cuda):
    target = get_target("nvidia")
    ((kind, function, _, _),) = target.device_guards(1)
    assert kind == guards.IS_TRUE
    assert not function()
    with target.device(1):
        assert function()
    assert target.device_guards(None) == []


def test_code_is_made_for_the_architecture_of_the_current_device(cuda):
    target = get_target("nvidia")
    assert (current.architecture(target=target).name, target.device_key()) == ("sm_80", "sm_80")
    with target.device(1):
        assert (current.architecture(target=target).name, target.device_key()) == ("sm_90a", "sm_90a")


def test_one_device_costs_nothing(cuda):
    cuda.devices = 1
    target = get_target("nvidia")
    with target.device(0):
        assert cuda.stack == [100]
    assert target.device_guards(0) == []
    assert target.device_key() == ""
    assert cuda.retained == []
