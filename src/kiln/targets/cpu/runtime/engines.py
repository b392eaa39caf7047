"""Queues of asynchronous operations, which complete at once or, under a schedule seed, at any time before they are
awaited.

An operation stands in the queue of an engine (`engine_table.py`); it has a work function and a kind of completion.
Incomplete operations are a list in the block's record. An operation reads its source when it is carried out, so a
source that is overwritten too early shows.

| operation | queue | work | completion |
|---|---|---|---|
| `cp.async` | COPY_QUEUE | `copy_bytes` | GROUP: of those that its thread commits together |
| `cp.async.mbarrier.arrive` | COPY_QUEUE | `nothing` | ARRIVAL: when all earlier ones of its thread are complete |
| `cp.async.bulk`, to shared memory | BULK_QUEUE | `copy_bytes` | BYTES: taken from what an mbarrier misses |
| `cp.async.bulk`, to global memory | BULK_QUEUE | `copy_bytes` | GROUP |
| `cp.reduce.async.bulk` (`reductions.py`) | BULK_QUEUE | `reduce_bytes` | BYTES, GROUP |
| `cp.async.bulk.tensor` (`tma.py`) | BULK_QUEUE | `load_box`, `store_box` | BYTES, GROUP |
| `wgmma` | WGMMA_QUEUE | `wgmma.next_wgmma` | by the counts of its warpgroup (`wgmma.py`) |
| `tcgen05.mma`, `.cp`, `.shift` (`tcgen05.py`) | TCGEN05_QUEUE | `umma.multiply`, `copy_rows`, `shift_rows` | GROUP |
| `tcgen05.commit` | TCGEN05_QUEUE | `nothing` | ARRIVAL, at the mbarriers of several CTAs |
| `tcgen05.st` | TCGEN05_ST_QUEUE | `store_registers` | GROUP |

The operations that a thread issues to an ordered queue, TCGEN05_QUEUE, are carried out in order.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....native import Ptr, address, i32, inline, local, native, ref, size_of, u32, u64
from ...host.libc import free, malloc, memcpy, memset, realloc
from .engine_table import BULK_QUEUE, COPY_QUEUE, QUEUES
from .records import WARP, WARPGROUP, WARPS, BlockRecord, FrameHeader, Operation, Sizes
from .schedule_order import random, schedule
from .threads import mbarrier, waiting

DONE = -1
"""The queue of an operation that is complete."""
GROUP, BYTES, ARRIVAL = range(3)
"""Kinds of completion."""


# --- works -----------------------------------------------------------------------------------------------------------


@native
def copy_bytes(operation: Ptr[Operation]) -> None:
    """Copy `bytes` bytes, and fill the rest of `size` with zeros."""
    bytes_ = operation.bytes
    memcpy(operation.target, operation.source, bytes_)
    memset(operation.target + bytes_, 0, operation.size - bytes_)


@native
def nothing(operation: Ptr[Operation]) -> None:
    pass


# --- operations ------------------------------------------------------------------------------------------------------


@inline
def announce(operation, completion):
    """Signal the completion of an operation."""
    if completion == ARRIVAL:
        if operation.blocks == 0:
            mbarrier(operation.mbarrier, 1, 0)
        else:
            arrive_in_blocks(operation)
    elif completion == BYTES:
        mbarrier(operation.mbarrier, 0, -i32(operation.bytes))


@native
def arrive_in_blocks(operation: Ptr[Operation]) -> None:
    """Arrive at the mbarrier with the same offset in each block of a mask."""
    first = operation.block.cluster.smem
    chunk = u64(operation.block.chunk)
    offset = (address(operation.mbarrier) - address(first)) % chunk
    for rank in range(u32(32)):
        if operation.blocks >> rank & 1 != 0:
            mbarrier(Ptr[u64](first + (u64(rank) * chunk + offset)), 1, 0)


@native
def carry_out(block: Ptr[BlockRecord], operation: Ptr[Operation]) -> None:
    operation.work(operation)
    announce(operation, operation.completion)
    operation.queue = DONE
    free(operation.extra)
    block.operations_left -= 1


@inline
def is_ordered(queue):
    """Return whether the operations of a thread in a queue are carried out in order."""
    is_waiting = False
    for number, each in tuple(enumerate(QUEUES)):
        if each.ordered:
            is_waiting = is_waiting or queue == number
    return is_waiting


@native
def land(block: Ptr[BlockRecord], operation: Ptr[Operation]) -> None:
    """Carry out an operation, and first the earlier ones of its thread that it comes after.

    These are the groups before an ARRIVAL, and all of an ordered queue.
    """
    ordered = is_ordered(operation.queue)
    if operation.completion == ARRIVAL or ordered:
        earlier = block.operations
        while address(earlier) < address(operation):
            mine = earlier.queue == operation.queue and earlier.thread == operation.thread
            if mine and (ordered or earlier.completion == GROUP):
                carry_out(block, earlier)
            earlier = earlier + 1
    carry_out(block, operation)


@native
def new_operation(block: Ptr[BlockRecord]) -> Ptr[Operation]:
    """Append an operation to the list of a block, and return it; the list restarts when all are complete."""
    if block.operations_left == 0:
        block.operations_count = 0
    count = block.operations_count
    if count == block.operations_room:
        block.operations_room = count * 2 + 64
        block.operations = realloc(block.operations, u64(block.operations_room) * size_of(Operation))
    block.operations_count = count + 1
    block.operations_left += 1
    return block.operations[count]


@inline
def describe(operation, work, target, source, bytes_, size, place):
    operation.work = work
    operation.target = target
    operation.source = source
    operation.bytes = bytes_
    operation.size = size
    operation.mbarrier = place
    operation.blocks = 0
    operation.extra = None


@inline
def give(
    frame,
    queue: int,
    completion: int,
    work,
    target=None,
    source=None,
    bytes_=0,
    size=0,
    mbarrier=None,
    more=None,
    extra=None,
    extra_bytes=0,
):
    """Issue an operation to an engine; the schedule decides when it is carried out.

    `more` sets further fields; `extra_bytes` bytes at `extra` are operands, which may change after this.
    """
    if schedule.value == 0:
        now = local(Operation)
        describe(now, work, target, source, bytes_, size, mbarrier)
        now.block = frame.block
        now.thread = frame.thread
        if extra is not None:
            now.extra = extra
        if more is not None:
            more(now)
        work(now)
        announce(now, completion)
    else:
        later = new_operation(frame.block)
        describe(later, work, target, source, bytes_, size, mbarrier)
        if more is not None:
            more(later)
        if extra is not None:
            later.extra = malloc(extra_bytes)
            memcpy(later.extra, extra, extra_bytes)
        later.block = frame.block
        later.queue = queue
        later.completion = completion
        later.thread = frame.thread
        later.group = frame.groups[queue]


@waiting.export
def copy(frame: Ptr[FrameHeader], target: Ptr, source: Ptr, bytes_: u32, size: u32) -> None:
    """Issue a `cp.async` of `bytes_` bytes; the rest of `size` is filled with zeros."""
    give(frame, COPY_QUEUE, GROUP, copy_bytes, target, source, bytes_, size)


@waiting.export
def copy_arrive(frame: Ptr[FrameHeader], mbarrier: Ptr[u64]) -> None:
    """Issue an arrival after the copies that this thread has issued."""
    give(frame, COPY_QUEUE, ARRIVAL, nothing, mbarrier=mbarrier)


@waiting.export
def bulk_load(frame: Ptr[FrameHeader], target: Ptr, source: Ptr, bytes_: u32, mbarrier: Ptr[u64]) -> None:
    """Issue a bulk copy to shared memory."""
    give(frame, BULK_QUEUE, BYTES, copy_bytes, target, source, bytes_, bytes_, mbarrier)


@waiting.export
def bulk_store(frame: Ptr[FrameHeader], target: Ptr, source: Ptr, bytes_: u32) -> None:
    """Issue a bulk copy to global memory."""
    give(frame, BULK_QUEUE, GROUP, copy_bytes, target, source, bytes_, bytes_)


@waiting.export
def commit(frame: Ptr[FrameHeader], queue: u32) -> None:
    """Commit the operations that this thread issued to a queue as a group."""
    frame.groups[queue] += 1


@waiting.export
def wait_for_groups(frame: Ptr[FrameHeader], queue: u32, latest: i32) -> None:
    """Wait for all groups of a queue but the latest ones."""
    block = frame.block
    thread = frame.thread
    end = frame.groups[queue] - latest
    if block.operations_left != 0:
        for number in range(block.operations_count):
            operation = block.operations[number]
            mine = operation.queue == queue and operation.completion == GROUP and operation.thread == thread
            if mine and operation.group < end:
                land(block, operation)


@waiting.export
def land_some(block: Ptr[BlockRecord]) -> i32:
    """Carry out each operation with a probability of a quarter, and return whether there were any."""
    if block.operations_left == 0:
        return 0
    for number in range(block.operations_count):
        operation = block.operations[number]
        if operation.queue != DONE and random(ref(block).random, 4) == 0:
            land(block, operation)
    return 1


@waiting.export
def land_all(arena: Ptr, sizes: Ptr[Sizes]) -> None:
    """Carry out all remaining operations, at the end of a group."""
    for rank in range(sizes.group):
        block = Ptr[BlockRecord](arena + u64(rank) * sizes.chunk + sizes.smem)
        if block.operations_left != 0:
            for number in range(block.operations_count):
                if block.operations[number].queue != DONE:
                    land(block, block.operations[number])
        free(block.operations)
        for number in range(WARPS * WARP // WARPGROUP):
            free(block.warpgroups[number].wgmmas)
