# pyright: reportReturnType=false
"""Several devices in a process: kernels are launched on the device of the first array, whichever is current."""

from __future__ import annotations

from ...native import Ptr, i32, i64, inline, local, native, ref, u32, u64
from . import plan
from .plan import ArrayRecord, Plan, Record
from .process import DEVICES, process

_DEVICE_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"""


@inline
def following(record):
    """Return the next record."""
    return Ptr[Record](Ptr(record) + record.size)


@native
def enter_another(header: Ptr[Plan], slots: Ptr) -> bool:
    """Push the context of the first array's device unless it is current. Returns whether it was pushed."""
    driver = ref(process.place).devices
    record = header.records
    for _ in range(header.record_count):
        if record.kind == plan.ARRAY and Ptr[ArrayRecord](record).flags & plan.LAUNCHES != 0:
            current = local(i32)
            device = local(i32)
            where = Ptr[u64](slots + record.slot)[0]
            if driver.cuPointerGetAttribute(device, i32(_DEVICE_ORDINAL), where) != 0:  # the driver does not know it
                return False
            if driver.cuCtxGetDevice(current) == 0 and current[0] == device[0]:
                return False
            if u32(device[0]) >= DEVICES:
                return False
            context = ref(driver.contexts)[i64(device[0])]
            if context[0] == 0 and driver.cuDevicePrimaryCtxRetain(context, device[0]) != 0:
                return False
            return driver.cuCtxPushCurrent_v2(context[0]) == 0
        record = following(record)
    return False


@inline
def enter(header, slots):
    """Make the device of the first array current. Returns whether `leave_device` must undo that."""
    return ref(process.place).devices.cuCtxGetDevice != None and enter_another(header, slots)


@native
def leave_device(entered: bool) -> None:
    """Undo `enter`."""
    before = local(u64)
    if entered:
        ref(process.place).devices.cuCtxPopCurrent_v2(before)
