"""The runtime's functions by themselves, on records that Python makes."""

from __future__ import annotations

import ctypes

import pytest
from thread_groups import Group

from kiln.targets.cpu.runtime import groups, schedule_order, threads
from kiln.targets.cpu.runtime.records import COMPLETE, FREE, HEADER, OPEN, BlockRecord, Meeting
from kiln.targets.host import jit  # noqa: F401 - it loads native functions


def test_fresh_records():
    group = Group((33, 2, 1), blocks=4, cluster=2)
    block = group.block(3)
    assert (block.threads, block.live_warps, block.rank, list(block.index)) == (66, 3, 1, [3, 0, 0])
    assert block.cluster == ctypes.addressof(group.block(2))
    assert [block.warps[n].live for n in range(3)] == [0xFFFFFFFF, 0xFFFFFFFF, 3]
    assert group.block(2).cluster_live == 132
    frame = group.frame(40, 3)
    assert (frame.thread, frame.index, frame.site) == (40, 7 | 1 << 10, -1)
    assert frame.warp == ctypes.addressof(block) + BlockRecord.warps.offset + ctypes.sizeof(type(block.warps[0]))
    assert not group.blocked(40, 3)


def test_a_barrier_counts_whole_warps():
    group = Group((40, 1, 1))
    for thread in range(39):
        assert threads.sync(group.frame(thread), 2, 0, 7) == threads.SUSPEND
        assert group.blocked(thread)
    assert group.block().barriers[2].arrived == 32
    assert threads.sync(group.frame(0), 2, 0, 7) == threads.SUSPEND  # its warp is complete: this is the next arrival
    assert threads.sync(group.frame(0), 2, 0, 7) == threads.COME_AGAIN
    assert threads.sync(group.frame(39), 2, 0, 7) == threads.GO_ON
    assert group.block().barriers[2].phase == 1
    assert not group.blocked(20)


def test_the_exit_of_a_thread_completes_what_only_missed_it():
    group = Group((33, 1, 1), cluster=1)
    for thread in range(32):
        threads.sync(group.frame(thread), 0, 0, 1)
    threads.cluster_arrive(group.frame(5))
    assert threads.cluster_wait(group.frame(5), 1) == threads.SUSPEND
    threads.exit(group.frame(32))
    assert group.block().barriers[0].phase == 1
    assert (group.block().live_warps, group.block().cluster_live) == (1, 32)
    assert group.blocked(32)


def test_lanes_meet_by_mask_and_kind():
    group = Group((32, 1, 1))
    even, odd = 0x55555555, 0xAAAAAAAA
    for lane in range(31):
        assert threads.meet_word(group.frame(lane), odd if lane % 2 else even, 3, 9, lane) == (lane != 30)
    meeting = Meeting.from_address(group.frame(30).meeting)
    assert (meeting.state, meeting.readers, meeting.arrived) == (COMPLETE, 16, even)
    assert meeting.payload[4][0] == 4
    other = Meeting.from_address(group.frame(29).meeting)
    assert other.state == OPEN
    threads.exit(group.frame(31))
    assert (other.state, other.readers) == (COMPLETE, 15)
    other.state = FREE
    assert threads.join(group.frame(1), odd, 4) == ctypes.addressof(other) + Meeting.payload.offset + 128


@pytest.mark.parametrize(
    ("missing", "bytes_", "arrivals", "more", "after"),
    [
        (2, 0, 1, 0, (1, 0, 0)),
        (1, 0, 1, 0, (3, 0, 1)),
        (1, 8, 1, 0, (0, 8, 0)),
        (0, 8, 0, -8, (3, 0, 1)),
        (1, 0, 0, 9, (1, 9, 0)),
    ],
)
def test_an_mbarrier(missing, bytes_, arrivals, more, after):
    word = ctypes.c_uint64(missing | 3 << 20 | bytes_ << 40)
    threads.mbarrier(ctypes.addressof(word), arrivals, more)
    state = word.value
    assert (state & 0xFFFFF, state >> 40 & 0x7FFFFF, state >> 63) == after
    assert state >> 20 & 0xFFFFF == 3


@pytest.mark.parametrize("count", [1, 2, 12, 97, 1000])
def test_an_order_meets_each_one_once(count):
    state, first, stride = ctypes.c_uint64(12345 + count), ctypes.c_uint32(), ctypes.c_uint32()
    schedule_order.order(*map(ctypes.addressof, (state,)), count, ctypes.addressof(first), ctypes.addressof(stride))
    assert sorted((first.value + n * stride.value) % count for n in range(count)) == list(range(count))


def test_a_wait_that_may_fail_is_woken_once():
    group = Group((32, 1, 1))
    threads.sync(group.frame(3), 0, 64, 5)
    group.frame(3).soft = 1
    assert groups.wake(group.memory, group.sizes, HEADER) == 1
    assert not group.blocked(3)
    assert group.frame(3).woken_site == 5
