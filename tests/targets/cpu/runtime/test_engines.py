"""Asynchronous engines by themselves: what is given to them, and when it is complete."""

from __future__ import annotations

import ctypes

from thread_groups import Group

from kiln.targets.cpu.runtime import parts, schedule_order
from kiln.targets.cpu.runtime.engine_table import COPY_QUEUE
from kiln.targets.host import jit


def exported(name: str, *kinds):
    """A function of the library, whose schedule `parts.set_seed` sets."""
    address = jit.part_library(parts.WAITING).addresses[f"kiln_cpu_{name}"]
    return ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)


P, N = ctypes.c_void_p, ctypes.c_int32


def test_operations_wait_for_what_needs_them():
    group, source, target = Group((64, 1, 1)), (ctypes.c_uint8 * 8)(*range(1, 9)), (ctypes.c_uint8 * 32)(*[9] * 32)
    copy, commit, wait = exported("copy", P, P, P, N, N), exported("commit", P, N), exported("wait_for_groups", P, N, N)
    arrive, load, land = exported("copy_arrive", P, P), exported("bulk_load", P, P, P, N, P), exported("land_all", P, P)
    frame, at, word = ctypes.addressof(group.frame(0)), ctypes.addressof(target), ctypes.c_uint64(1 | 1 << 20 | 8 << 40)
    mbarrier = ctypes.addressof(word)
    parts.set_seed(5)
    try:
        copy(frame, at, source, 2, 4)
        commit(frame, COPY_QUEUE)
        copy(frame, at + 4, source, 4, 4)
        commit(frame, COPY_QUEUE)
        load(frame, at + 8, source, 8, mbarrier)
        assert bytes(target) == b"\x09" * 32
        wait(frame, COPY_QUEUE, 1)  # all groups but the latest
        assert bytes(target[:8]) == b"\x01\x02\x00\x00" + b"\x09" * 4
        arrive(frame, mbarrier)
        assert word.value & 0xFFFFF == 1
        source[0] = 7  # sources are read when it is done
        land(ctypes.addressof(group.memory), ctypes.addressof(group.sizes))
        assert bytes(target[4:16]) == b"\x07\x02\x03\x04\x07\x02\x03\x04\x05\x06\x07\x08"
        assert word.value == 1 | 1 << 20 | 1 << 63  # both the arrival and the bytes: the phase is over
    finally:
        parts.set_seed(0)
    copy(frame, at + 16, source, 4, 8)
    assert bytes(target[16:24]) == b"\x07\x02\x03\x04" + b"\x00" * 4


def test_an_arrival_lands_after_the_copies_of_its_thread():
    group, source, target = Group((64, 1, 1)), (ctypes.c_uint8 * 4)(1, 2, 3, 4), (ctypes.c_uint8 * 8)()
    copy, arrive, some = exported("copy", P, P, P, N, N), exported("copy_arrive", P, P), exported("land_some", P)
    word, block = ctypes.c_uint64(1 | 1 << 20), group.block()
    parts.set_seed(5)
    try:
        for thread in (0, 1):
            copy(ctypes.addressof(group.frame(thread)), ctypes.addressof(target) + 4 * thread, source, 4, 4)
        arrive(ctypes.addressof(group.frame(0)), ctypes.addressof(word))
        while not word.value >> 63:
            assert some(ctypes.addressof(block)) == 1
        assert bytes(target[:4]) == b"\x01\x02\x03\x04"
    finally:
        parts.set_seed(0)


def test_parts_export_what_they_define():
    assert schedule_order.schedule.symbol in parts.LAUNCH.exports
    names = [symbol for part in parts.PARTS for symbol in part.exports]
    assert len(names) == len(set(names))
