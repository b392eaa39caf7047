"""Groups of blocks that are resident together: their records, and reports when no thread can make progress.

A group is a block, a cluster of blocks, or all clusters that a launch wants resident together. The function that
resumes its threads is part of the kernel's code (`scheduler.py`).
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....native import Ptr, address, i32, inline, native, ref, u32, u64
from ...host.call_context import Context
from ...host.libc import malloc, memset
from ...host.reports import fault_with
from .engine_table import QUEUES
from .records import BARRIERS, BLOCK_BYTES, FREE, WARP, BlockRecord, FrameHeader, Meeting, Sizes
from .schedule_order import random
from .threads import ALL, waiting

DETAILS_HEADER = 4
"""i32 numbers at the start of a report: why it was made, blocks, threads of a block, unused."""
DETAILS_BLOCK = 3 + 2 * BARRIERS
"""i32 numbers about a block: its index, and arrivals and expectation of each barrier."""
DETAILS_THREAD = 4
"""i32 numbers about a thread: what it does; the site; the words at the address it waits for."""
WAITS, EXITED, READY, TRIES = range(4)
"""States of a thread in a report."""


@inline
def volume(sizes):
    return sizes[0] * sizes[1] * sizes[2]


@inline
def smem_of(arena, sizes, rank):
    return arena + u64(rank) * sizes.chunk


@inline
def block_of(arena, sizes, rank):
    return Ptr[BlockRecord](smem_of(arena, sizes, rank) + sizes.smem)


@inline
def frame_of(block, thread, frame_size):
    return Ptr[FrameHeader](Ptr(block) + BLOCK_BYTES + thread * frame_size)


@inline
def waits_no_more(frame):
    """Clear a wait record."""
    frame.wait_mask = 0
    frame.wait_value = 1


@waiting.export
def initialize(
    context: Ptr[Context],
    arena: Ptr,
    sizes: Ptr[Sizes],
    frame_size: u32,
    number: u32,
    meets: i32,
    static: u32,
    state: Ptr[u64],
) -> None:
    """Initialize records, frames and meetings. Shared memory keeps its contents: it starts undefined."""
    threads = volume(sizes.block)
    cluster_size = volume(sizes.cluster)
    clusters = sizes.group // cluster_size
    for rank in range(sizes.group):
        block = block_of(arena, sizes, rank)
        zeros = BlockRecord.cluster_live.offset
        memset(ref(block).cluster_live, 0, BLOCK_BYTES - zeros)
        within = rank % cluster_size
        block.threads = threads
        block.context = context
        block.cluster = block_of(arena, sizes, rank - within)
        block.rank = within
        block.chunk = sizes.chunk
        block.chunk_bits = sizes.chunk_bits
        block.smem = smem_of(arena, sizes, rank)
        block.dynamic = smem_of(arena, sizes, rank) + static
        block.tmem = Ptr[u32](smem_of(arena, sizes, rank) + (sizes.chunk - sizes.tmem))
        block.dynamic_smem = sizes.dynamic
        block.used = 0
        block.operations = None
        block.operations_room = 0
        block.operations_left = 0
        block.operations_count = 0
        block.random = state[0]
        block.job = sizes.job
        random(state, 7)
        block.cluster_live = threads * cluster_size
        place_in_grid(block, sizes, number * clusters + rank // cluster_size, within)
        initialize_warps(block, Ptr[Meeting](frame_of(block, threads, frame_size)), meets != 0)
        initialize_frames(block, frame_size, sizes.block[0], sizes.block[1], sizes.block[2])


@native
def place_in_grid(block: Ptr[BlockRecord], sizes: Ptr[Sizes], cluster: u32, within: u32) -> None:
    """Set the index of a block from the number of its cluster and its rank in it."""
    block.cluster_x = sizes.cluster[0]
    block.cluster_y = sizes.cluster[1]
    block.cluster_z = sizes.cluster[2]
    for axis in (0, 1, 2):
        size = sizes.cluster[axis]
        count = sizes.grid[axis] // size
        block.index[axis] = cluster % count * size + within % size
        block.block_dim[axis] = sizes.block[axis]
        block.grid_dim[axis] = sizes.grid[axis]
        cluster = cluster // count
        within = within // size


@native
def initialize_warps(block: Ptr[BlockRecord], meetings: Ptr[Meeting], meets: bool) -> None:
    threads = block.threads
    warps = threads + (WARP - 1) >> 5
    block.live_warps = warps
    for number in range(warps):
        warp = block.warps[number]
        left = threads - number * WARP
        warp.live = ALL if left >= WARP else (u32(1) << (left & 31)) - 1
        warp.opened = 0
        warp.latest = meetings + number * WARP
        warp.meetings = meetings + number * WARP
        if meets:
            for which in range(WARP):
                warp.meetings[which].state = FREE


@native
def initialize_frames(block: Ptr[BlockRecord], frame_size: u32, dim_x: u32, dim_y: u32, dim_z: u32) -> None:
    for z in range(dim_z):
        for y in range(dim_y):
            for x in range(dim_x):
                thread = x + dim_x * (y + dim_y * z)
                frame = frame_of(block, thread, frame_size)
                frame.resume = 0
                frame.done = 0
                frame.wait_address = Ptr[u32](frame)
                waits_no_more(frame)
                frame.site = -1
                frame.thread = thread
                frame.block = block
                frame.warp = ref(block.warps)[thread >> 5]
                frame.index = x | y << 10 | z << 20
                frame.cluster_phase = 0
                frame.soft = 0
                frame.woken_site = -1
                for queue in range(len(QUEUES)):
                    frame.groups[queue] = 0
                frame.wgmmas = 0
                frame.registers = 0
                frame.asks = 0
                frame.asking = 0
                frame.refused = 0
                frame.spins_on = None


@waiting.export
def wake(arena: Ptr, sizes: Ptr[Sizes], frame_size: u32) -> i32:
    """Let waits that may fail do so, when no thread can make progress, and return how many there were.

    A wait that failed before, at the same site for the same value, does not fail again.
    """
    count = i32(0)
    for rank in range(sizes.group):
        block = block_of(arena, sizes, rank)
        for thread in range(block.threads):
            frame = frame_of(block, thread, frame_size)
            if frame.done == 0 and frame.soft == 1:
                count += 1
                frame.woken_site = frame.site
                frame.woken_address = frame.wait_address
                frame.woken_value = frame.wait_value
                waits_no_more(frame)
    return count


@waiting.export
def stuck(context: Ptr[Context], arena: Ptr, sizes: Ptr[Sizes], frame_size: u32) -> None:
    """Record a fault with the state of every thread of a group that is deadlocked or was stopped."""
    threads = volume(sizes.block)
    per_block = threads * DETAILS_THREAD + DETAILS_BLOCK
    size = u64(sizes.group * per_block + DETAILS_HEADER) * 4
    details = Ptr[i32](malloc(size))
    details[0] = 0
    details[1] = sizes.group
    details[2] = threads
    site = i32(-1)
    for rank in range(sizes.group):
        block = block_of(arena, sizes, rank)
        about = details + (rank * per_block + DETAILS_HEADER)
        for axis in (0, 1, 2):
            about[axis] = block.index[axis]
        for number in range(BARRIERS):
            about[3 + 2 * number] = block.barriers[number].arrived
            about[4 + 2 * number] = block.barriers[number].expected
        for thread in range(threads):
            frame = frame_of(block, thread, frame_size)
            describe(frame, about + (thread * DETAILS_THREAD + DETAILS_BLOCK))
            if site < 0 and frame.done == 0:
                site = frame.site
    first = block_of(arena, sizes, u32(0))
    index = first.index
    fault_with(context, max(site, 0), index[0], index[1], index[2], -1, -1, -1, 0, None, details, size)


@native
def describe(frame: Ptr[FrameHeader], line: Ptr[i32]) -> None:
    """Write the line of a report about a thread."""
    waits = frame.wait_address[0] & frame.wait_mask == frame.wait_value
    state = i32(READY)
    if frame.done != 0:
        state = i32(EXITED)
    elif frame.soft != 0:
        state = i32(TRIES)
    elif waits:
        state = i32(WAITS)
    line[0] = state
    line[1] = frame.site
    words = Ptr[i32](frame)
    if waits:
        words = Ptr[i32](address(frame.wait_address) & ~7)
    line[2] = words[0]
    line[3] = words[1]
