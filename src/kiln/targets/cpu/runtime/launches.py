"""Launches: checks of the grid, and running its blocks, on several OS threads where that pays."""
# pyright: reportReturnType=false

from __future__ import annotations

from ....hardware.limits import BLOCK, GRID
from ....native import Array, Fn, Ptr, atomic, i32, i64, inline, leading_zeros, local, native, ref, struct, u32, u64
from ...host.call_context import COUNTS_STEPS, MAX_ARGS, MEMORY_FAULT, Context
from ...host.launch_rules import MAX_COOPERATIVE
from ...host.libc import aligned_alloc, free, pthread_create, pthread_join
from ...host.reports import fault, has_fault, unwatch, watch
from ...host.signal_handler import guarded
from .device_group import enter, leave
from .interruption import Guard, end_guard, max_steps, now, start_guard, stop_reason, timeout
from .records import BLOCK_BYTES, SMEM_ALIGNMENT, WARP, WARP_BYTES, Sizes
from .schedule_order import launching, order, random, schedule, seed

SPAWN_AFTER_NS = 20_000
"""Time for which blocks run on the calling thread before others are started."""
SPAWN_GAIN_NS = 100_000
"""The remaining work that makes it worth starting an OS thread, which costs some 20 us."""
MAX_WORKERS = 256
MAX_CHUNK = 32
CHUNKS_PER_WORKER = 8
"""Limits of the blocks that an OS thread takes at a time: an atomic operation between blocks costs 90 ns."""
MAX_RESIDENT = 4096
"""Blocks of a launch that are resident together if the kernel spins on memory; past that, each cluster on its own."""
NEVER = (1 << 64) - 1

workers = launching.variable("workers", i32, 1)
"""The OS threads that a launch may use, which Python sets."""
sample = launching.variable("sample", u32)
"""How many groups of a launch run, spread over the grid; 0: all."""
sampled = launching.variable("sampled", u32)
"""1 if only some groups of the last launch run."""


@struct
class Job:
    """A running launch."""

    next: u64  # block that nobody has taken
    total: u64  # blocks, or groups of them, that run
    groups: u64  # of the grid
    context: Ptr[Context]
    block: Fn[[Ptr, Ptr[Context], Ptr, Ptr[Sizes], u32, u32, u32], None]
    arguments: Ptr
    smem: u64  # bytes of a group
    chunk: u64  # blocks that are taken at a time
    further: u64  # groups whose work a running one may take (`launch_control.py`)
    sampled: u64  # where some groups run: the next one whose work is taken, of those that a GPU would not start at once; else 0
    first: u32  # of the order of blocks
    stride: u32
    site: i32
    name: Ptr
    sizes: Sizes


@struct
class Chunk:
    """The blocks that a thread has taken, and the index of the one it runs."""

    job: Ptr[Job]
    number: u64
    end: u64
    smem: Ptr
    index: Array[u32, 3]


@native
def run_blocks(chunk: Ptr[Chunk]) -> None:
    """Run the blocks of a chunk in the order of the schedule, x fastest."""
    job = chunk.job
    smem = chunk.smem
    sizes = job.sizes
    context = job.context
    arguments = job.arguments
    block = job.block
    grid_x = u64(sizes.grid[0])
    grid_y = u64(sizes.grid[1])
    groups = job.groups
    first = u64(job.first)
    stride = u64(job.stride)
    for number in range(chunk.number, chunk.end):
        place = number
        if stride != 1 or first != 0:
            place = (number * stride + first) % groups
        rows = place // grid_x
        x = u32(place % grid_x)
        y = u32(rows % grid_y)
        z = u32(rows // grid_y)
        chunk.index[0] = x
        chunk.index[1] = y
        chunk.index[2] = z
        block(arguments, context, smem, sizes, x, y, z)


@native
def run_chunk(job: Ptr[Job], first: u64, smem: Ptr) -> u64:
    """Run the blocks of a chunk, and return the number after its last.

    An access outside memory is a fault of the running block.
    """
    chunk = local(Chunk)
    caught = local(i64, 3)
    end = min(job.total, first + job.chunk)
    chunk.job = job
    chunk.number = first
    chunk.end = end
    chunk.smem = smem
    if guarded(run_blocks, chunk, job.name, caught) != 0:
        x = chunk.index[0]
        y = chunk.index[1]
        z = chunk.index[2]
        fault(job.context, job.site | MEMORY_FAULT, x, y, z, -1, -1, -1, 3, caught)
    return end


@native
def next_chunk(job: Ptr[Job]) -> u64:
    """Take the next chunk of blocks, and return the number of the first; at least `total` if there is none to run.

    After a fault no more are run, but all before the faulting one are: so check for a fault first, then take.
    """
    failed = has_fault(job.context) or stop_reason(job.context) != 0
    number = atomic("add", ref(job).next, job.chunk)
    return job.total if failed else number


@launching.export
def prefers_cluster() -> i32:
    """Return whether a launch gets the clusters that it prefers: always, or under a schedule seed by chance."""
    state = local(u64)
    return i32(seed(PREFERENCE, state) == 0 or random(state, 2) != 0)


@launching.export
def next_cluster(job: Ptr[Job], seeded: u32, taken: u32, first: Ptr[u32]) -> bool:
    """Take a cluster that has not started from its launch; write the index of its first block, and return whether there
    was one.

    It takes as many as if the launch ran on a GPU, under a schedule seed any number.
    """
    if seeded == 0 and taken >= job.further:
        return False
    if job.sampled != 0:
        cluster = atomic("add", ref(job).sampled, u64(1))
        if cluster >= job.groups:
            return False
    else:
        cluster = next_chunk(job)
        if cluster >= job.total:
            return False
    if job.sampled == 0 and (job.stride != 1 or job.first != 0):
        cluster = (cluster * job.stride + job.first) % job.groups
    sizes = job.sizes
    for axis in (0, 1, 2):
        count = u64(sizes.grid[axis] // sizes.cluster[axis])
        first[axis] = u32(cluster % count) * sizes.cluster[axis]
        cluster = cluster // count
    return True


@native
def worker(job: Ptr[Job]) -> Ptr:
    """Run chunks in a helper thread."""
    smem = aligned_alloc(SMEM_ALIGNMENT, job.smem)
    first = next_chunk(job)
    while first < job.total:
        run_chunk(job, first, smem)
        first = next_chunk(job)
    free(smem)
    return None


@inline
def round_up(bytes_):
    return bytes_ + (SMEM_ALIGNMENT - 1) & ~u32(SMEM_ALIGNMENT - 1)


@launching.export
def launch(
    context: Ptr[Context],
    block: Fn[[Ptr, Ptr[Context], Ptr, Ptr[Sizes], u32, u32, u32], None],
    arguments: Ptr,
    site: i32,
    grid_x: u64,
    grid_y: u64,
    grid_z: u64,
    block_x: u64,
    block_y: u64,
    block_z: u64,
    cluster_x: u64,
    cluster_y: u64,
    cluster_z: u64,
    dynamic: u64,
    room: i64,
    held: u32,
    static: u32,
    most_threads: u32,
    most_cluster: u32,
    serial: i32,
    frame: u32,
    meets: i32,
    tmem: u32,
    at_once: u32,
    resident: i32,
    name: Ptr,
) -> None:
    """Run a grid.

    `dynamic` are the bytes of shared memory that the launch asks for, at most `room`; `held` of them are those that the
    kernel allocates, which take `static` bytes here. `most_threads` and `most_cluster` limit the threads of a block and
    the blocks of a cluster. `serial` has bit 0 if blocks run in order, bit 1 if a block may take long, bit 2 if clusters
    consist of pairs of blocks. `frame` are the
    bytes of a thread's frame, 0 for kernels whose threads never wait. `meets` says whether lanes meet. `tmem` are the
    bytes of tensor memory of a block. `at_once` is 0, or how many blocks run at a time on the GPU that clusters that
    take others' work (`launch_control.py`) should think they run on. `resident` is 1 if all blocks must be resident together, 2 if that is desirable.
    """
    if has_fault(context):
        return
    grid = (grid_x, grid_y, grid_z)
    threads = (block_x, block_y, block_z)
    cluster = (cluster_x, cluster_y, cluster_z)
    # Python finds the broken rule (`faults.py`)
    if not can_run(*grid, *threads, *cluster, dynamic, room, most_threads, most_cluster, serial & 4 != 0, resident):
        values = local(u64, MAX_ARGS)
        for number, value in enumerate((*grid, *threads, *cluster, dynamic, i64(resident))):
            values[number] = value
        fault(context, site, -1, -1, -1, -1, -1, -1, 11, Ptr[i64](values))
        return
    # numbers within their limits: from here on nothing overflows
    job = local(Job)
    sizes = job.sizes
    for axis in (0, 1, 2):
        context.grid[axis] = i32(grid[axis])
        sizes.grid[axis] = u32(grid[axis])
        sizes.block[axis] = u32(threads[axis])
        sizes.cluster[axis] = u32(cluster[axis])
    blocks = grid_x * grid_y * grid_z
    sizes.dynamic = max(u32(dynamic), held)
    sizes.smem = static + round_up(sizes.dynamic - held)
    sizes.chunk = sizes.smem
    sizes.tmem = tmem
    sizes.job = Ptr(job)
    sizes.group = 1
    if frame != 0:
        count = u32(block_x * block_y * block_z)
        bytes_ = sizes.smem + BLOCK_BYTES + count * frame
        if meets != 0:
            bytes_ += (count + (WARP - 1) >> 5) * WARP_BYTES
        sizes.chunk = round_up(bytes_ + tmem)
        every = sample.value == 0 or blocks // (cluster_x * cluster_y * cluster_z) <= u64(sample.value)
        together = resident == 1 or (resident == 2 and blocks <= MAX_RESIDENT and every)
        sizes.group = u32(blocks if together else cluster_x * cluster_y * cluster_z)
    sizes.chunk_bits = u32(64) - u32(leading_zeros(u64(sizes.chunk) - 1))
    if frame != 0 and cluster_x * cluster_y * cluster_z > 1:
        sizes.chunk = u32(1) << sizes.chunk_bits
    total = blocks // sizes.group
    job.next = 0
    job.total = total
    job.groups = total
    job.context = context
    job.block = block
    job.arguments = arguments
    job.smem = u64(sizes.chunk) * sizes.group
    job.chunk = min(max(total // u64(u32(workers.value) * CHUNKS_PER_WORKER), u64(1)), u64(MAX_CHUNK))
    job.further = 0
    job.sampled = 0
    if at_once != 0:
        job.chunk = 1
        clusters = max(u64(at_once) // sizes.group, u64(1))
        job.further = (total + clusters - 1) // clusters - 1
    job.first = 0
    job.stride = 1
    job.site = site
    job.name = name
    state = local(u64)
    if seed(ALL_GROUPS, state) != 0 and total < 1 << 31:
        order(state, u32(total), ref(job).first, ref(job).stride)
    sampled.value = 0
    if sample.value != 0 and u64(sample.value) < total:
        sampled.value = 1
        job.total = u64(sample.value)
        job.stride = u32(total // job.total)
        if at_once != 0:
            clusters = max(u64(at_once) // sizes.group, u64(1))
            job.sampled = clusters
            job.stride = u32(max(min(clusters, total) // job.total, u64(1)))
    # a seed repeats a run, whatever its blocks tell each other
    alone = workers.value < 2 or serial & 1 != 0 or schedule.value != 0
    run(job, frame != 0 or serial & 2 != 0, alone)


ALL_GROUPS = 0xFFFFFFFF
PREFERENCE = 0xFFFFFFFE
"""The group numbers that seed the order of groups, and the choice of clusters."""


@native
def can_run(
    grid_x: u64,
    grid_y: u64,
    grid_z: u64,
    block_x: u64,
    block_y: u64,
    block_z: u64,
    cluster_x: u64,
    cluster_y: u64,
    cluster_z: u64,
    dynamic: u64,
    room: i64,
    most_threads: u32,
    most_cluster: u32,
    pairs: bool,
    resident: i32,
) -> bool:
    """Return whether a grid can run. Only this function decides; `limits.broken_rule` explains why it cannot."""
    good = room >= 0
    for size, limit in zip((grid_x, grid_y, grid_z, block_x, block_y, block_z), (*GRID, *BLOCK), strict=True):
        good &= size - 1 < limit
    good &= dynamic <= u64(room)
    blocks = u64(1)
    for size, part in ((grid_x, cluster_x), (grid_y, cluster_y), (grid_z, cluster_z)):
        good &= (i64(part) >= 1) & (size % max(part, u64(1)) == 0)
        blocks = min(blocks * min(part, u64(most_cluster) + 1), u64(most_cluster) + 1)
    good &= (blocks <= most_cluster) & ((not pairs) | (blocks % 2 == 0))
    everyone = block_x * block_y * block_z
    good &= everyone <= most_threads
    if resident == 1:
        for size in (grid_x, grid_y, grid_z):
            everyone = min(everyone * size, u64(MAX_COOPERATIVE + 1))
        good &= everyone <= MAX_COOPERATIVE
    return good


@native
def run(job: Ptr[Job], long: bool, alone: bool) -> None:
    """Run the blocks of a job. `long`: a block may take long; `alone`: on this thread only."""
    context = job.context
    total = job.total
    watched = long
    if watched:
        watch()
    context.steps = 0
    context.stop = COUNTS_STEPS if max_steps.value != 0 else 0
    context.stop |= enter(context, job.name)
    guard = local(Guard)
    limited = timeout.value != 0
    if limited:
        start_guard(guard, context, timeout.value)
    # for 0 bytes it may be null, which a kernel without shared memory never accesses
    smem = aligned_alloc(SMEM_ALIGNMENT, job.smem)
    handles = local(u64, MAX_WORKERS)
    spawned = u32(0)
    check_at = u64(1)
    begun = now()
    first = next_chunk(job)
    while first < total:
        done = run_chunk(job, first, smem)  # before there are helpers, all blocks up to here
        if done >= check_at:  # after 1, 2, 4, ... chunks: is so much left that helpers pay?
            check_at = done * 2
            elapsed = now() - begun
            if elapsed > SPAWN_AFTER_NS:
                if not watched:
                    watch()
                    watched = True
                left = total - done
                most = min(left, u64(u32(workers.value) - 1), u64(MAX_WORKERS))
                helpers = min(elapsed // done * left // SPAWN_GAIN_NS, most)
                if not alone and helpers != 0:
                    check_at = u64(NEVER)
                    for _ in range(helpers):
                        if pthread_create(ref(handles)[spawned], None, worker, job) == 0:
                            spawned += 1
        first = next_chunk(job)
    for number in range(spawned):
        pthread_join(handles[number], None)
    free(smem)
    leave(context)
    if limited:
        end_guard(guard)
    if watched:
        unwatch()
    reason = stop_reason(context)
    if reason != 0:
        context.stop = reason
        if not has_fault(context):
            fault(context, job.site, -1, -1, -1, -1, -1, -1, 0, None)
