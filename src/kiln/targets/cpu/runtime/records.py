"""Records of frames, warps, blocks and launches in memory while threads run.

A block with suspend points is run by one OS thread, which resumes its threads in turn. A thread that must wait writes a
wait record in its frame: it is blocked while `*wait_address & wait_mask == wait_value`. A round in which no thread of a
group can make progress, while some are left, is exactly a deadlock. A thread that only tries a wait leaves a *soft*
record: before a deadlock is declared, it is woken once with the result that the wait failed.

The memory of a group is one chunk for each block: shared memory, then the block's record, its frames, its meetings, and
tensor memory if the kernel has any.
"""

from __future__ import annotations

from ....hardware.limits import BARRIERS, THREADS_PER_BLOCK, TMEM_ALLOCATION, TMEM_LANES, WARP, WARPGROUP
from ....native import Array, Fn, Ptr, i16, i32, size_of, struct, u8, u32, u64
from ...host.call_context import Context
from .engine_table import QUEUES

WARPS = THREADS_PER_BLOCK // WARP
"""Warps of the largest block."""
PAYLOAD = 128
"""Bytes of a lane's slot in a meeting."""
TALLIES = 8
"""Phases of a barrier whose tallies are kept, since a thread may read its own late."""
FREE = 0
OPEN = 1
COMPLETE = 2
"""States of a meeting."""
TMEM_SLOT, TMEM_COLUMNS = TMEM_ALLOCATION
"""Columns of tensor memory that are allocated together, and all columns of a block."""
TMEM_BYTES = 4 * TMEM_LANES * TMEM_COLUMNS
SMEM_ALIGNMENT = 1024
"""Alignment of a block's shared memory, static and dynamic, and of its chunk."""
WINDOW_BITS = 24
"""Bits of an address of shared memory that say where in its CTA it is; those above are the CTA's rank in the cluster."""


@struct
class FrameHeader:
    """The start of a thread's frame."""

    resume: i32
    done: u32
    wait_address: Ptr[u32]  # always of something that can be read
    wait_mask: u32  # 0 (and `wait_value` 1): not waiting
    wait_value: u32
    site: i32  # where it last waited; -1: nowhere yet
    thread: u32  # linear index in the block
    block: Ptr[BlockRecord]
    warp: Ptr[Warp]
    index: u32  # in the block: x, y << 10, z << 20
    cluster_phase: u32  # of the cluster's barrier when this thread last arrived there
    # up to here: what every resumption looks at, in one cache line
    meeting: Ptr[Meeting]  # that this lane joined last
    soft: i32  # 1: the wait may fail; 2: it failed before, at this site for the same thing
    woken_site: i32
    woken_address: Ptr[u32]
    woken_value: u32
    groups: Array[i32, len(QUEUES)]  # that this thread has committed, for each queue
    wgmmas: u32  # at which this thread has arrived
    registers: u32  # that this thread may use
    asks: u32  # `setmaxnreg`s of this thread so far
    asking: u32  # whether it waits for one
    refused: u32  # whether it has read that no cluster was canceled (`launch_control.py`)
    spins_on: Ptr  # what it read when it last let others run, in a loop


@struct
class Barrier:
    """A barrier of a block."""

    arrived: i32  # threads, by whole warps
    phase: u32
    expected: i32  # by the last arrival; 0: all
    site: i32  # of the last arrival


@struct
class Tally:
    """The reduction of predicates in a phase of a barrier."""

    phase: u32  # its number plus 1, so that zeroed memory means none
    threads: i32
    holds: i32  # threads whose predicate holds


@struct
class Warp:
    """A warp of a block."""

    live: u32  # lanes that have not exited
    opened: i32  # meetings that are open
    latest: Ptr[Meeting]  # opened last
    meetings: Ptr[Meeting]  # the first of 32


@struct
class Meeting:
    """A meeting of lanes of a warp."""

    state: u32  # FREE, OPEN, COMPLETE
    mask: u32
    kind: i32
    arrived: u32  # lanes
    readers: u32  # lanes that have not left yet
    computed: i32  # whether the results are there
    result: u64
    padding: Array[u8, 32]  # slots of lanes are aligned to 16 bytes
    payload: Array[Array[u8, PAYLOAD], WARP]


@struct
class Mma:
    """The operands of a `tcgen05.mma` (`umma.py`), as the issuing thread gave them."""

    kind: u32  # a number of `umma.KINDS`
    flags: u32  # `umma.ACCUMULATE` and those beside it
    cta_group: u32
    idesc: u32
    a: u64  # a descriptor, or an address in tensor memory
    b: u64
    d: u32
    sfa: u32
    sfb: u32
    vector: u32  # elements along K that share a scale factor; 0: no scale factors
    scale_input_d: u32
    site: i32
    metadata: u32  # of a sparse A: its address
    zero_columns: u64  # the zero-column mask of `tcgen05.mma.ws`
    masks: Array[u32, 8]  # rows of D that are not written, as bits; the even CTA's first


@struct
class Operation:
    """An operation issued to an asynchronous engine (`engines.py`)."""

    queue: i32
    completion: i32
    work: Fn[[Ptr[Operation]], None]  # what the engine does
    thread: u32  # that issued it
    group: i32  # of that thread
    bytes: u32
    size: u32
    target: Ptr
    source: Ptr
    mbarrier: Ptr[u64]
    coordinates: Array[i32, 5]  # of a box (`tma.py`)
    offsets: Array[i16, 3]
    reduction: i32
    blocks: u32  # of the cluster, as bits, at whose mbarriers it arrives; 0: at `mbarrier` alone
    block: Ptr[BlockRecord]  # of the thread that issued it
    extra: Ptr  # further operands: an `Mma`, or the registers of a store
    descriptor: u64  # of an operand in shared memory
    tmem_address: u32
    form: u32  # of an access to tensor memory (`tensor_memory.py`)


@struct
class Wgmma:
    """A WGMMA, from the arrival of its first thread until it is carried out (`wgmma.py`)."""

    kind: u32  # types, shape, and where operands are (`tensor_core.py`)
    accumulate: u32
    site: i32
    group: i32  # committed together
    came: Array[u32, WARPGROUP // WARP]  # threads of each warp that have arrived
    a_descriptor: u64
    b_descriptor: u64
    d: Array[Ptr, WARPGROUP]  # registers of threads
    a: Array[Ptr, WARPGROUP]  # if A is in registers


@struct
class Warpgroup:
    """WGMMAs of a warpgroup, numbered in the order of the program."""

    complete: u32  # WGMMAs at which all threads have arrived
    missing: u32  # warps, as bits, that have not arrived at the next one
    done: u32  # WGMMAs that are carried out
    begun: u32  # WGMMAs at which some thread has arrived
    room: u32  # for WGMMAs that are not done: a power of two
    asked: u32  # `setmaxnreg`s of all its threads
    wgmmas: Ptr[Wgmma]  # number i is at i % room


@struct
class PairMeeting:
    """Warps of both CTAs of a pair that allocate tensor memory together (`tcgen05.py`)."""

    waiting: Array[Ptr[Meeting], 2]  # the warp of each CTA that waits for one of the other
    columns: Array[u32, 2]  # that it asks for
    turn: u32  # changes when columns are allocated or freed
    relinquished: u32  # CTAs that have given up the permit, as bits


@struct
class BlockRecord:
    """State that the threads of a block share besides shared memory; frames and meetings follow it in memory."""

    threads: u32
    live_warps: i32  # warps with threads that have not exited
    context: Ptr[Context]
    cluster: Ptr[BlockRecord]  # the record of the cluster's first block, which keeps what the cluster shares
    rank: u32  # in the cluster
    chunk: u32  # bytes from one block of the group to the next, in clusters a power of two
    chunk_bits: u32  # the exponent of the least power of two that is not below `chunk`
    smem: Ptr
    dynamic: Ptr  # where dynamic shared memory starts
    tmem: Ptr[u32]  # tensor memory, lane by lane: cell (lane, column) is tmem[lane * TMEM_COLUMNS + column]
    index: Array[u32, 3]  # in the grid, x y z
    block_dim: Array[u32, 3]
    grid_dim: Array[u32, 3]
    cluster_x: u32
    cluster_y: u32
    cluster_z: u32
    dynamic_smem: u32  # bytes, as the launch gave them
    used: u32  # barriers that threads have arrived at
    operations: Ptr[Operation]  # of engines, that are not complete
    operations_room: u32
    operations_left: u32  # that are not complete
    operations_count: u32  # entries of the list
    random: u64
    job: Ptr  # the launch (`launches.Job`)
    # from here on zero at the start
    cluster_live: i32  # threads of the cluster that have not exited; kept in its first block
    padding: i32
    cluster_barrier: Barrier
    barriers: Array[Barrier, BARRIERS]
    tallies: Array[Array[Tally, TALLIES], BARRIERS]
    arriving: Array[Array[u32, WARPS], BARRIERS]  # lanes of warps of which others have yet to arrive
    warps: Array[Warp, WARPS]
    warpgroups: Array[Warpgroup, WARPS * WARP // WARPGROUP]
    canceled: u32  # clusters whose work this one has taken; kept in its first block
    tmem_used: u32  # slots of tensor memory that are allocated, as bits
    tmem_freed: u32  # slots that were freed, and not allocated again
    tmem_starts: u32  # slots in which an allocation starts
    tmem_least: u32  # slots of the smallest allocation so far; 0: none
    tmem_relinquished: u32
    tmem_site: i32  # of the last allocation
    pair: PairMeeting  # of the CTAs of a pair: in the even one
    registers_free: u32  # released by warps
    register_eighths: u32  # low half: of the pool, high half: asked for by all threads; both divided by 8


@struct
class Sizes:
    """The sizes that a launch passes to the function that runs a block or group."""

    grid: Array[u32, 3]
    block: Array[u32, 3]
    cluster: Array[u32, 3]
    smem: u32  # bytes of shared memory of a block
    chunk: u32  # bytes of a block's chunk
    chunk_bits: u32  # the exponent of the least power of two that is not below `chunk`
    group: u32  # blocks of a group
    dynamic: u32  # bytes of dynamic shared memory, as the launch gave them
    tmem: u32  # bytes of tensor memory of a block; 0 if the kernel has none
    job: Ptr  # the launch (`launches.Job`); null without one


HEADER = -(-size_of(FrameHeader) // 16) * 16
WARP_BYTES = size_of(Meeting) * WARP
BLOCK_BYTES = -(-size_of(BlockRecord) // 64) * 64
