# pyright: reportAttributeAccessIssue=false
"""Two GPUs in a process, with a stand-in for the driver: kernels are launched on the device of the first tensor."""

from __future__ import annotations

import ctypes

import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
import kiln.cute as cute
from kiln import Int32
from kiln.cute.runtime import from_dlpack
from kiln.interop.arguments.arrays import DLTensor
from kiln.interop.tvm_ffi import reader as native

pytestmark = needs_ptxas


class Memory:
    """An array that knows nothing but CUDA's array interface."""

    def __init__(self, address: int) -> None:
        self.address = address

    @property
    def __cuda_array_interface__(self):
        return {"shape": (4,), "typestr": "<f4", "data": (self.address, False), "version": 3}


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor):
    y[0] = x[0]


@cute.jit
def launch(n: Int32, x: cute.Tensor, y: cute.Tensor):
    kernel(x, y).launch(grid=n, block=1)


@pytest.fixture
def devices(fake_driver):
    """Two, with memory of the first at 4096, of the second at 8192; the first is current."""
    fake_driver.devices, fake_driver.memory = 2, {4096: 0, 8192: 1}
    fake_driver.context = 77
    return fake_driver


@pytest.mark.parametrize("prepared", [False, True])
def test_a_compiled_function_goes_to_the_device_of_its_first_tensor(devices, prepared):
    here, there = (from_dlpack(Memory(at)).mark_layout_dynamic() if prepared else Memory(at) for at in (4096, 8192))
    compiled = compile_for(
        launch, 1, from_dlpack(Memory(4096)).mark_layout_dynamic(), from_dlpack(Memory(4096)).mark_layout_dynamic()
    )
    for first, second in ((there, there), (here, here), (there, here), (here, there)) * 2:
        compiled(1, first, second)
    assert devices.launched_on == [1, 0, 1, 0] * 2
    assert devices.context == 77 and not devices.pushed
    devices.context = 78  # a program that works on the second
    compiled(1, there, there)
    compiled(1, here, here)
    assert devices.launched_on[8:] == [1, 0] and devices.context == 78


def test_it_is_compiled_for_the_target_that_is_named_whichever_is_in_force(devices, monkeypatch):
    monkeypatch.setenv("KILN_TARGET", "cpu")
    tensor = Memory(8192)
    compile_for(launch, 1, tensor, tensor)(1, tensor, tensor)
    assert devices.launched_on == [1]


def test_a_jit_function_too(devices):
    with kiln.target("nvidia"):
        for at in (8192, 4096) * 3:
            tensor = from_dlpack(Memory(at)).mark_layout_dynamic()
            launch(1, tensor, tensor)
    assert devices.launched_on == [1, 0] * 3 and len(devices.loaded) == 1  # one image serves all devices


def test_one_device_is_not_asked_for(fake_driver):
    fake_driver.memory = None  # a question would fail
    tensor = from_dlpack(Memory(4096)).mark_layout_dynamic()
    compiled = compile_for(launch, 1, tensor, tensor)
    for _ in range(3):
        compiled(1, tensor, Memory(4096))
    assert fake_driver.launched_on == [0] * 3


def test_calls_by_tvm_ffi_too(devices):
    """As C++ makes them: with DLPack's tensors, which tell their devices; on the stream that the caller's framework has there."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    fake = from_dlpack(Memory(4096)).mark_layout_dynamic()
    with kiln.target("nvidia"):
        function = cute.compile(launch, 1, fake, fake, options="--enable-tvm-ffi")
    shape, steps = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1)
    head = native.FunctionObject.from_address(function.__chandle__())
    call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int32, ctypes.c_void_p)(head.call)
    for number, address in ((1, 8192), (0, 4096)) * 3:
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", number), 160 + number):
            tensor = DLTensor(address, 2, number, 1, 0x12002, ctypes.addressof(shape), ctypes.addressof(steps), 0)
            given = (native.Argument * 3)((native.INT, 0, 1), *[(native.DL_TENSOR, 0, ctypes.addressof(tensor))] * 2)
            assert call(function.__chandle__(), given, 3, ctypes.byref(native.Argument())) == 0
    assert devices.launched_on == [1, 0] * 3
    assert [launch.stream for launch in devices.launches] == [161, 160] * 3
