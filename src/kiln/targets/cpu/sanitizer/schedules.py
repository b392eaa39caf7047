"""Repeated launches under further schedules: writes to global memory are undone, and the launch runs again.

Most rules do not depend on the schedule; those that do, such as deadlocks or branches on another thread's value, get a
few more chances. A short launch without findings runs again under other seeds, on the initial memory. Then the writes
of the first run are restored: results are those of the schedule in order.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, native, ref, size_of, u8, u32, u64
from ...host.call_context import Context
from ...host.libc import memcpy, realloc
from ...host.reports import has_fault
from ..runtime.interruption import processor_time
from .memory import greater
from .state import Log, Write, detector, state

_QUICK = 20_000_000
"""Nanoseconds of processor time; longer launches are not repeated, however busy the machine is."""
_MOST = 64 << 20
"""The most bytes that can be undone."""


@native
def note(address: u64, size: u32) -> None:
    """Log bytes of global memory before they are written."""
    st = state.place
    log = st.logs[st.recording - 1]
    if log.full != 0 or log.used + size > _MOST:
        log.full = 1
        return
    if log.count == log.room:
        log.room = greater(log.room * 2, u64(256))
        log.writes = Ptr[Write](realloc(log.writes, log.room * size_of(Write)))
    if log.used + size > log.space:
        log.space = greater(log.space * 2, log.used + size)
        log.bytes = Ptr[u8](realloc(log.bytes, log.space))
    write = log.writes[log.count]
    write.address = address
    write.size = size
    write.at = log.used
    memcpy(ref(log.bytes)[log.used], Ptr[u8](address), size)
    log.count += 1
    log.used += size


@native
def exchange(write: Ptr[Write], bytes_: Ptr[u8]) -> None:
    place = Ptr[u8](write.address)
    for i in range(u64(write.size)):
        kept = bytes_[write.at + i]
        bytes_[write.at + i] = place[i]
        place[i] = kept


@native
def take_back(log: Ptr[Log]) -> None:
    """Undo all writes of a log, which then holds the written bytes."""
    for i in range(log.count):
        exchange(ref(log.writes)[log.count - 1 - i], log.bytes)


@native
def bring_back(log: Ptr[Log]) -> None:
    """Redo all writes of a log."""
    for i in range(log.count):
        exchange(ref(log.writes)[i], log.bytes)


@native
def empty(log: Ptr[Log]) -> None:
    log.count = 0
    log.used = 0
    log.full = 0


@detector.export
def schedule(context: Ptr[Context], number: u32) -> u32:
    """Return whether to run a launch under schedule `number`; the first one is 0."""
    st = state.place
    if number == 0:
        st.recording = 1 if st.further != 0 and st.seed[0] == 0 else 0
        st.begun = processor_time()
        st.schedule = 0
        st.findings_before = st.findings_count
        for i in range(2):
            empty(st.logs[i])
        return 1
    log = st.logs[0]
    if st.recording == 0 or (number > st.further and st.stores == 0):
        return 0
    failed = has_fault(context) or st.findings_count != st.findings_before
    if number == 1:
        slow = processor_time() - st.begun > _QUICK
        if failed or slow or log.full != 0:
            st.once |= u32(1) if failed else u32(2) if slow else u32(4)
            st.recording = 0
            return 0
        take_back(log)
    else:
        take_back(st.logs[1])
        empty(st.logs[1])
        if failed or st.logs[1].full != 0:
            finish()
            return 0
    st.recording = 2
    st.schedule = number
    st.tried = greater(st.tried, number + 1)
    st.seed[0] = number
    return 1


@native
def finish() -> None:
    """Restore what the first run wrote."""
    st = state.place
    bring_back(st.logs[0])
    st.recording = 0
    st.schedule = 0
    st.seed[0] = 0


@detector.export
def scheduled() -> None:
    """Finish a launch that has run under all schedules."""
    st = state.place
    if st.recording == 2:
        take_back(st.logs[1])
        finish()
    st.recording = 0
