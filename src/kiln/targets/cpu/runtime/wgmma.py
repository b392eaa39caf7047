"""WGMMA: threads arrive one by one, and a WGMMA at which all have arrived is carried out.

A thread that runs ahead starts WGMMAs that others reach later, so a warpgroup keeps all that are not done. They are
executed in order: when the last thread arrives or, under a schedule seed, at any time until they are awaited.
"""
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from ....native import Library, Ptr, address, i32, i64, inline, local, native, ref, size_of, u32, u64
from ...host.libc import free, malloc, memcpy
from ...host.reports import fault
from .engine_table import WGMMA_QUEUE
from .engines import GROUP, new_operation
from .records import WARP, WARPGROUP, BlockRecord, FrameHeader, Operation, Warpgroup, Wgmma
from .schedule_order import schedule
from .tensor_core import A_IN_REGISTERS, multiply
from .threads import ALL, COME_AGAIN, GO_ON, wait

wgmmas: Library = Library("wgmma", prefix="kiln_cpu_")
DIFFERENT, OUTSIDE = range(2)
"""Reasons to refuse a WGMMA: operands differ between threads; an operand is not in shared memory."""


@inline
def group_of(frame):
    return ref(frame.block.warpgroups)[frame.thread // WARPGROUP]


@inline
def wgmma_at(group, number):
    return group.wgmmas[number & (group.room - 1)]


@native
def grow(group: Ptr[Warpgroup]) -> None:
    """Double the room for WGMMAs that are not done."""
    room = max(group.room * 2, u32(8))
    larger = Ptr[Wgmma](malloc(u64(room) * size_of(Wgmma)))
    number = group.done
    while number != group.begun:
        memcpy(larger[number & (room - 1)], wgmma_at(group, number), size_of(Wgmma))
        number += 1
    free(group.wgmmas)
    group.wgmmas = larger
    group.room = room


@native
def fail(block: Ptr[BlockRecord], thread: u32, site: i32, why: i64) -> None:
    index = block.index
    size = block.block_dim
    arguments = local(i64, 1)
    arguments[0] = why
    x = thread % size[0]
    rest = thread // size[0]
    fault(block.context, site, index[0], index[1], index[2], x, rest % size[1], rest // size[1], 1, arguments)


@native
def carry_out(block: Ptr[BlockRecord], group: Ptr[Warpgroup], end: u32) -> None:
    """Carry out a warpgroup's WGMMAs up to number `end`."""
    while i32(end - group.done) > 0:
        entry = wgmma_at(group, group.done)
        if multiply(entry, block.smem, u32(address(block) - address(block.smem))) != 0:
            number = u32((address(group) - address(block.warpgroups)) // size_of(Warpgroup))
            fail(block, number * WARPGROUP, entry.site, i64(OUTSIDE))
        group.done += 1


@native
def next_wgmma(operation: Ptr[Operation]) -> None:
    """Carry out the oldest WGMMA that is not done, whichever operation the engine takes: they are done in order."""
    group = Ptr[Warpgroup](operation.target)
    if group.done != group.complete:
        carry_out(Ptr[BlockRecord](operation.source), group, group.done + 1)


@native
def warps_missing(entry: Ptr[Wgmma]) -> u32:
    missing = u32(0)
    for warp in range(u32(WARPGROUP // WARP)):
        missing |= u32(entry.came[warp] != WARP) << warp
    return missing


@wgmmas.export
def wgmma(frame: Ptr[FrameHeader], d: Ptr, a: u64, b: u64, accumulate: u32, kind: u32, site: i32) -> None:
    """Let a thread arrive at its next WGMMA; `a` is the address of registers or a descriptor, as `kind` says."""
    block = frame.block
    group = group_of(frame)
    thread = frame.thread % WARPGROUP
    number = frame.wgmmas
    frame.wgmmas = number + 1
    if number == group.begun:
        if number - group.done == group.room:
            grow(group)
        group.begun = number + 1
        begin(wgmma_at(group, number), a, b, accumulate, kind, site, frame.groups[WGMMA_QUEUE])
    entry = wgmma_at(group, number)
    different = entry.kind != kind or entry.b_descriptor != b or entry.accumulate != accumulate
    in_registers = kind & A_IN_REGISTERS != 0
    if different or (not in_registers and entry.a_descriptor != a):
        fail(block, frame.thread, site, i64(DIFFERENT))
    entry.d[thread] = d
    entry.a[thread] = Ptr(a)
    entry.came[thread // WARP] += 1
    if number == group.complete:
        group.missing = warps_missing(entry)
        while group.missing == 0:
            group.complete += 1
            hand_over(block, group)
            group.missing = (1 << WARPGROUP // WARP) - 1
            if group.complete != group.begun:
                group.missing = warps_missing(wgmma_at(group, group.complete))


@inline
def begin(entry, a, b, accumulate, kind, site, group):
    """Start the entry of a WGMMA, for its first thread."""
    entry.kind = kind
    entry.accumulate = accumulate
    entry.site = site
    entry.group = group
    entry.a_descriptor = a
    entry.b_descriptor = b
    for warp in range(WARPGROUP // WARP):
        entry.came[warp] = 0


@inline
def hand_over(block, group):
    """Issue a WGMMA at which all threads have arrived: the schedule decides when it is done."""
    if schedule.value == 0:
        carry_out(block, group, group.complete)
    else:
        operation = new_operation(block)
        operation.queue = WGMMA_QUEUE
        operation.completion = GROUP
        operation.work = next_wgmma
        operation.target = Ptr(group)
        operation.source = Ptr(block)
        operation.blocks = 0
        operation.extra = None


@wgmmas.export
def wgmma_wait(frame: Ptr[FrameHeader], latest: i32, site: i32) -> i32:
    """Wait for all groups of WGMMAs but the latest; return whether to suspend and call again."""
    group = group_of(frame)
    end = frame.groups[WGMMA_QUEUE] - latest
    last = frame.wgmmas
    while i32(last - group.done) > 0 and wgmma_at(group, last - 1).group >= end:
        last -= 1
    if i32(last - group.complete) > 0:
        wait(frame, ref(group).complete, ALL, group.complete, site)
        return COME_AGAIN
    carry_out(frame.block, group, last)
    return GO_ON
