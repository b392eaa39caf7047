"""Tensor memory and tcgen05 operations: what they access, and whether that is ordered.

A cell of the shadow stands for 16 lanes of a column: operations access whole cells. Four engines access them: that of
MMAs and shifts and that of copies, for the thread that issues them, and those of loads and stores, for the first thread
of a warp. A commit publishes the times of the first two. Loads and stores have the time of their thread at the moment
when the lanes of the warp met; a wait raises what the thread knows of the engine to its time.

MMAs, copies and shifts of one thread are carried out in the order of issue, so they are ordered, except after an MMA
that writes an accumulator: only MMAs into the same accumulator with the same shape and kind, and shifts, follow that
without a commit and a wait.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, i32, i64, inline, local, native, ref, u32, u64
from ..runtime import umma
from ..runtime.engine_table import TCGEN05, TCGEN05_CP, TCGEN05_LD, TCGEN05_ST
from ..runtime.records import TMEM_COLUMNS, TMEM_SLOT, Mma
from ..runtime.tensor_memory import GROUP_SHIFT, PIECES, ROWS, SPLIT_SHIFT, chosen, columns_of, row_piece
from .barriers import passed
from .clocks import acquire, clock_join, clock_new, numbers, ordered
from .launches import must_have_started, remote_access
from .mbarriers import mbarrier_at
from .memory import clear, raise_to
from .memory_order import remember
from .reporting import report, report_alone
from .shadow import is_dense, readers_of, record_read, set_access, shared_access, touch
from .state import (
    ATOMIC,
    CLUSTER,
    ENGINE_SHIFT,
    MBARRIER_ARRIVALS,
    NO_INIT,
    OVER,
    RULE,
    SHARED,
    TENSOR,
    TENSOR_LANES,
    TENSOR_ROWS,
    Access,
    Finding,
    Spare,
    detector,
    state,
)
from .store_buffer import settle_own
from .tiles import BITS, tile

COPIED = 1
STORED = 2
SHIFTED_IN = 3
SCALES = 4
"""Tags of cells by what wrote them last; those of accumulators are larger (`tag_of`).

A copy of scale factors (32x128b.warpx4) has four columns, of 32 rows of an operand each: their tags are SCALES and the
three numbers after it.
"""
OF_SCALES = 5
"""The number of that shape in `runtime/tensor_memory.COPIES`."""
LEAST_TAG = 16


@inline
def cell_at(st, rank, row, column):
    return ref(st.tensor_cells)[(rank * TENSOR_ROWS + row) * TMEM_COLUMNS + column]


@inline
def written_at(st, rank, row, column):
    return ref(st.tensor_written)[(rank * TENSOR_ROWS + row) * TMEM_COLUMNS + column]


@inline
def tag_at(st, rank, row, column):
    return ref(st.tensor_tags)[(rank * TENSOR_ROWS + row) * TMEM_COLUMNS + column]


# --- accesses --------------------------------------------------------------------------------------------------------


@inline
def is_issued(engine):
    """Return whether an engine is that of operations that a thread issues: MMAs, shifts, copies."""
    return (engine == TCGEN05) | (engine == TCGEN05_CP)


@native
def goes_before(before: Ptr[Access], me: u32, tag: u32, now: u32, wrote: bool) -> bool:
    """Return whether an access happened before one of identity `me`.

    `tag` is that of the cell, `now` that which `me` writes; 0 if it reads. `wrote`: the access is a write.
    """
    st = state.place
    if before.group == st.group and before.who % st.threads == me % st.threads:
        if is_issued(before.who // st.threads) and is_issued(me // st.threads):
            if not wrote or tag < LEAST_TAG or tag == now or now == SHIFTED_IN:
                return True
    return ordered(before.group, before.who, before.clock, 0)


@native
def conflict(rule: u32, before: Ptr[Access], site: u32, rank: u32, row: u32, column: u32) -> None:
    """Report two accesses that are not ordered; if only a wait for a load or store is missing, say so.

    Where all lanes have used what they loaded before they went on, the load is complete without a wait.
    """
    st = state.place
    engine = before.who // st.threads
    if before.group == st.group and ((engine == TCGEN05_LD) | (engine == TCGEN05_ST)):
        if ordered(before.group, before.who % st.threads, before.clock, OVER):
            rule = u32(RULE["tmem-unwaited"])
            used = engine == TCGEN05_LD
            for lane in range(u32(1), u32(32)):
                used = used and ordered(before.group, before.who + lane, before.clock, OVER)
            if used:
                rule = u32(RULE["tmem-unwaited-load"])
    say(report(rule, site, before.site, before.group, before.who), rank, row, column)


@native
def say(record: Ptr[Finding], rank: u32, row: u32, column: u32) -> None:
    """Say which tensor memory a finding is about."""
    if record != None:
        record.space = TENSOR
        record.rank = rank
        record.offset = i64(row * TENSOR_LANES) << 16 | column


@native
def check_accesses(rank: u32, row: u32, column: u32, me: u32, now: u32, site: u32) -> None:
    """Check that all accesses to a cell happened before one of `me`; reads matter if it writes: if `now` is not 0."""
    st = state.place
    cell = cell_at(st, rank, row, column)
    tag = tag_at(st, rank, row, column)[0]
    before = cell.write
    if before.clock != 0 and not goes_before(before, me, tag, now, True):
        conflict(u32(RULE["write-write"]) if now != 0 else u32(RULE["write-read"]), before, site, rank, row, column)
    if now != 0:
        if is_dense(cell, True):
            readers = readers_of(cell).array
            for i in range(st.identities):
                if readers[i].clock != 0:
                    keep = local(Access)
                    set_access(keep, readers[i].clock, i, readers[i].site, st.group)
                    if not goes_before(keep, me, tag, now, False):
                        conflict(RULE["read-write"], keep, site, rank, row, column)
        else:
            for reader in (cell.read, cell.other):
                if reader.clock != 0 and not goes_before(reader, me, tag, now, False):
                    conflict(RULE["read-write"], reader, site, rank, row, column)


@native
def touch_tensor(rank: u32, row: u32, column: u32, me: u32, clock: u32, now: u32, reads: bool, site: u32) -> None:
    """Check and record an access to a cell: a write if `now`, the tag, is not 0; one that also reads if `reads`."""
    st = state.place
    if st.by_default != 0:
        written = written_at(st, rank, row, column)
        if reads and written[0] == 0 and st.left != 0:
            say(report(RULE["uninitialized"], site, site, st.group, me), rank, row, column)
        if now != 0:
            written[0] = 1
        return
    cell = cell_at(st, rank, row, column)
    if reads and cell.write.clock == 0:
        say(report(RULE["uninitialized"], site, site, st.group, me), rank, row, column)
    check_accesses(rank, row, column, me, now, site)
    if now == 0:
        record_read(cell, me, clock, site, True)
    else:
        if is_dense(cell, True):
            spare = Ptr[Spare](readers_of(cell).array) - 1
            spare.next = st.free_arrays
            st.free_arrays = spare
        set_access(cell.write, clock, me, site, st.group)
        cell.read.clock = 0
        cell.other.clock = 0
        if now != SHIFTED_IN:
            tag_at(st, rank, row, column)[0] = now


@native
def touch_lanes(
    rank: u32, lane: u32, lanes: u32, column: u32, count: u32, me: u32, clock: u32, now: u32, reads: bool, site: u32
) -> None:
    """Check an access to columns of so many lanes; lanes and columns that are not there are a fault elsewhere."""
    for row in range(lane // TENSOR_LANES, min((lane + lanes + TENSOR_LANES - 1) // TENSOR_LANES, u32(TENSOR_ROWS))):
        for each in range(column, min(column + count, u32(TMEM_COLUMNS))):
            touch_tensor(rank, row, each, me, clock, now, reads, site)


# --- allocation ------------------------------------------------------------------------------------------------------


@inline
def for_each_cell(st, rank, column, columns, act):
    for row in range(u32(TENSOR_ROWS)):
        for each in range(column, min(column + columns, u32(TMEM_COLUMNS))):
            act(row, each)


@detector.export
def tensor_allocated(place: u32, columns: u32) -> None:
    """A lane has returned from an allocation; the first one of its warp clears the cells."""
    st = state.place
    if st.active == 0 or st.tensor_slots == None:
        return
    rank = st.tid // st.per_block
    column = place & 0xFFFF
    slots = (u32(1) << columns // TMEM_SLOT) - 1 << column // TMEM_SLOT
    if st.tensor_slots[rank] & slots == 0:
        st.tensor_slots[rank] |= slots

        def forget(row, each):
            if st.by_default != 0:
                written_at(st, rank, row, each)[0] = 0
            else:
                clear(cell_at(st, rank, row, each))
                tag_at(st, rank, row, each)[0] = 0

        for_each_cell(st, rank, column, columns, forget)


@detector.export
def tensor_allocates(site: u32) -> None:
    """A lane is about to allocate for a pair: its peer must have started."""
    st = state.place
    if st.active != 0 and st.remote != None:
        must_have_started((st.tid // st.per_block) ^ 1, site)


@detector.export
def tensor_freed_by_default(place: u32, columns: u32, cta_group: u32, site: u32) -> None:
    """The first lane of a warp that frees columns, in a launch that is checked by default."""
    st = state.place
    if st.active != 0 and st.tensor_slots != None:
        slots = (u32(1) << columns // TMEM_SLOT) - 1 << (place & 0xFFFF) // TMEM_SLOT
        st.tensor_slots[st.tid // st.per_block] &= ~slots


@detector.export
def tensor_freed(place: u32, columns: u32, cta_group: u32, site: u32) -> None:
    """The first lane of a warp that frees columns: all accesses to them, of a pair also to the peer's, are over."""
    st = state.place
    if st.active == 0 or st.tensor_slots == None:
        return
    rank = st.tid // st.per_block
    column = place & 0xFFFF
    slots = (u32(1) << columns // TMEM_SLOT) - 1 << column // TMEM_SLOT
    st.tensor_slots[rank] &= ~slots
    who = as_first_lane()

    def is_over(row, each):
        for which in range(cta_group):
            check_accesses(rank ^ which, row, each, st.tid, u32(STORED), site)

    for_each_cell(st, rank, column, columns, is_over)
    as_lane(who)


# --- loads and stores ------------------------------------------------------------------------------------------------


@native
def as_first_lane() -> u32:
    """Let the first thread of the warp be the running one, as it is after the meeting; return who was."""
    st = state.place
    me = st.tid
    as_lane(me - me % st.per_block % 32)
    passed()
    return me


@native
def as_lane(thread: u32) -> None:
    st = state.place
    st.tid = thread
    st.current = ref(st.thread_array)[thread]


@detector.export
def tensor_access(place: u32, form: u32, stores: u32, site: u32) -> None:
    """The first lane of a warp that goes on after a load or store, whose lanes have met."""
    st = state.place
    if st.active == 0 or st.tensor_slots == None:
        return
    who = as_first_lane()
    engine = u32(TCGEN05_ST) if stores != 0 else u32(TCGEN05_LD)
    # what the lanes told each other when they met is one time before
    me = engine * st.threads + st.tid
    clock = st.current.own[0] - 1
    lanes = u32(32) if form & 15 == 0 else u32(16)
    rank = st.tid // st.per_block
    lane = place >> 16
    column = place & 0xFFFF
    count = columns_of(form)
    tag = u32(STORED) if stores != 0 else u32(0)
    touch_lanes(rank, lane, lanes, column, count, me, clock, tag, stores == 0, site)
    if form & 15 == 4:
        touch_lanes(rank, lane, lanes, column + (form >> SPLIT_SHIFT), count, me, clock, tag, stores == 0, site)
    if stores == 0:
        st.current.loaded = clock
    as_lane(who)


@detector.export
def tensor_used() -> None:
    """The running lane uses what its warp has loaded, and so waits for that."""
    st = state.place
    lane = st.tid % st.per_block % 32
    if st.active != 0 and lane != 0:
        raise_to(ref(st.current).own + TCGEN05_LD, st.thread_array[st.tid - lane].loaded)


@detector.export
def tensor_waits(stores: u32) -> None:
    """Before the lanes of a warp meet at a wait for loads or stores: the first one knows that they are complete."""
    st = state.place
    if st.active != 0 and st.tid % st.per_block % 32 == 0:
        engine = u32(TCGEN05_ST) if stores != 0 else u32(TCGEN05_LD)
        raise_to(ref(st.current).own + engine, st.current.own[0])


@detector.export
def tensor_fence(before: u32) -> None:
    """At a fence before or after a relaxed synchronization: each is half of what a fence of the cluster is."""
    st = state.place
    if st.active != 0:
        if before != 0:
            remember(st.current, CLUSTER)
            st.current.own[0] += 1
        else:
            for level in range(CLUSTER + 1):
                acquire(st.current.seen[level])


# --- MMAs, copies, shifts --------------------------------------------------------------------------------------------


@inline
def swizzle_code(descriptor):
    """Return the swizzle of a matrix descriptor as `tiles.tile` takes it."""
    swizzle = u32(descriptor >> 61)
    if swizzle == 1:
        return u32(2 | 5 << BITS | 2 << 2 * BITS)
    bits = u32(3) if swizzle == 2 else u32(2) if swizzle == 4 else u32(1)
    return (u32(0) if swizzle == 0 else bits) | u32(4 << BITS | 3 << 2 * BITS)


@native
def read_shared(rank: u32, offset: u32, engine: u32, descriptor: u64, looks: u32, site: u32) -> None:
    """Check 16 bytes of shared memory that an operation reads through the async proxy."""
    st = state.place
    address = st.arena + u64(rank) * st.chunk + offset
    shared_access(address, 16, u32(SHARED) | engine << ENGINE_SHIFT, site, 0, st.smem, True)
    if looks != 0:
        tile(address, 16, 0, swizzle_code(descriptor), 0, site)


@native
def read_operand(
    rank: u32, mma: Ptr[Mma], descriptor: u64, rows: u32, k: u32, along: bool, type_: u32, looks: u32, site: u32
) -> None:
    """Check an operand of an MMA in shared memory, with `k` elements along K."""
    fp4 = mma.kind >= umma.OF_MXF4
    per = u32(32) if fp4 else u32(16) // umma.bytes_of(type_)
    majors, minors = (rows // per, k) if along else (k // per, rows)
    for minor in range(minors):
        for major in range(majors):
            read_shared(rank, umma.piece(descriptor, along, major, minor), u32(TCGEN05), descriptor, looks, site)


@inline
def tag_of(mma):
    """Return the tag of an accumulator: its address, shape, types, kind and the CTA group."""
    # bits 4 and 5 are the type of D; of block-scaled kinds they are a byte of scale factors, which MMAs in order differ in
    fields = u32(0x1F7E0030) if mma.kind < umma.OF_MXF8 else u32(0x1F7E0000)
    shape = mma.idesc & fields | mma.kind << 12 | (mma.cta_group - 1) << 15 | (mma.flags & umma.WS) << 6
    return ((shape ^ (mma.d & 0x1FF) * 0x9E3779B1) | LEAST_TAG) & 0x7FFFFFFF


@detector.export
def tensor_mma(
    mma: Ptr[Mma], looks: u32, d_site: u32, a_site: u32, b_site: u32, scale_site: u32, metadata_site: u32
) -> None:
    """Check an MMA that the running thread has issued."""
    st = state.place
    if st.active == 0 or st.tensor_slots == None:
        return
    if st.by_default != 0 and st.left == 0:
        return
    me = u32(TCGEN05) * st.threads + st.tid
    clock = st.current.epoch[TCGEN05]
    rank = st.tid // st.per_block
    m = umma.rows_of(mma) // mma.cta_group
    n = umma.columns_of(mma)
    parts = umma.parts_of(mma)
    if mma.cta_group == 2 and rank & 1 != 0:
        report_alone("pair-issuer", d_site)
    in_tensor = mma.flags & umma.A_IN_TENSOR_MEMORY != 0
    half = umma.half_lanes_of(mma) != 0
    for cta in range(mma.cta_group):
        there = (rank & ~u32(1)) + cta if mma.cta_group == 2 else rank
        read_operand(
            there,
            mma,
            mma.b,
            n // mma.cta_group,
            umma.depth_of(mma),
            mma.idesc >> 16 & 1 != 0,
            umma.type_of(mma, umma.fields.B_TYPE),
            looks,
            b_site,
        )
        if not in_tensor:
            read_operand(
                there,
                mma,
                mma.a,
                m,
                umma.stored_of(mma),
                mma.idesc >> 15 & 1 != 0,
                umma.type_of(mma, umma.fields.A_TYPE),
                looks,
                a_site,
            )
        for row in range(u32(TENSOR_ROWS)):
            lane = row * TENSOR_LANES
            used = not half or (lane & 16) == (mma.d >> 16 & 16)
            hidden = mma.masks[cta * 4 + row // 2] >> (lane & 16) & 0xFFFF == 0xFFFF
            if in_tensor and used:
                above = u32(mma.a) >> 16 & 16  # A has its own half of the lanes
                start = lane & ~u32(16) | above if half else lane
                count = umma.depth_of(mma) // 8 if umma.depth_of(mma) == 96 else u32(8)
                read_as(
                    there,
                    start // TENSOR_LANES,
                    u32(mma.a) & 0xFFFF,
                    count,
                    me,
                    clock,
                    mma.kind != umma.OF_TF32,
                    a_site,
                )
            if mma.flags & umma.SPARSE_A != 0 and used:
                one = mma.kind <= umma.OF_TF32  # of two columns, which the sparsity selector names
                column = (mma.metadata & 0xFFFF) + (umma.fields.SPARSE_ID.of(mma.idesc) if one else u32(0))
                count = u32(1) if one else u32(umma.METADATA_COLUMNS)
                read_as(there, row, column, count, me, clock, True, metadata_site)
            if used and not hidden:
                adds = mma.flags & umma.ACCUMULATE != 0
                touch_lanes(there, lane, TENSOR_LANES, mma.d & 0xFFFF, n // parts, me, clock, tag_of(mma), adds, d_site)
        if mma.vector != 0:
            read_scales(there, mma, mma.sfa, m, mma.idesc >> 29 & 3, u32(128), me, clock, scale_site)
            read_scales(there, mma, mma.sfb, n // parts, mma.idesc >> 4 & 3, n, me, clock, scale_site)
        if mma.flags & umma.SHIFTS_A != 0:
            at = u32(mma.a) & 0xFFFF
            count = u32(umma.A_COLUMNS)
            touch_lanes(there, u32(0), u32(128), at, count, me, clock, SHIFTED_IN, True, a_site)


@native
def read_as(rank: u32, row: u32, column: u32, count: u32, me: u32, clock: u32, packed: bool, site: u32) -> None:
    """Check columns of 16 lanes that an MMA reads as A or as scale factors: accumulators are neither, if `packed`."""
    st = state.place
    for each in range(column, min(column + count, u32(TMEM_COLUMNS))):
        if packed and tag_at(st, rank, row, each)[0] >= LEAST_TAG:
            before = cell_at(st, rank, row, each).write
            record = report(RULE["tmem-format"], site, before.site, before.group, before.who)
            say(record, rank, row, each)
        else:
            touch_tensor(rank, row, each, me, clock, u32(0), True, site)


@native
def read_scales(
    rank: u32, mma: Ptr[Mma], place: u32, rows: u32, first: u32, width: u32, me: u32, clock: u32, site: u32
) -> None:
    """Check the scale factors of rows of A or columns of B, which all four warps' lanes have.

    Where a copy of scale factors wrote them, they are those of consecutive rows, and the same in all warps' lanes. The
    128 rows of A start with a copy; tiles of B of a multiple of 64 columns start with one, or in its middle.
    """
    st = state.place
    blocks = (first + umma.scales_of(mma) + 3) // 4
    count = (rows + TENSOR_LANES - 1) // TENSOR_LANES
    for block in range(blocks):
        start = (place & 0xFFFF) + block * ((width + 127) // 128 * 4)
        begins = tag_at(st, rank, 0, min(start, u32(TMEM_COLUMNS - 1)))[0]
        inside = begins - SCALES
        misplaced = (inside % 2 != 0) & (rows % 64 == 0) | (place == mma.sfa) & (inside + count // 2 > 4)
        for row in range(count):
            column = start + row // 2
            for warp in range(u32(4)):
                cell = warp * 2 + row % 2
                read_as(rank, cell, column, u32(1), me, clock, True, site)
                if column < TMEM_COLUMNS and is_of_scales(begins):
                    tag = tag_at(st, rank, cell, column)[0]
                    expected = SCALES + (inside + row // 2) % 4
                    if misplaced | (tag != expected) and tag != 0 and tag < LEAST_TAG:
                        before = cell_at(st, rank, cell, column).write
                        say(
                            report(RULE["tmem-scales"], site, before.site, before.group, before.who), rank, cell, column
                        )


@inline
def is_of_scales(tag):
    return (tag >= SCALES) & (tag < SCALES + 4)


@detector.export
def tensor_copy(place: u32, descriptor: u64, form: u32, looks: u32, site: u32, shared_site: u32) -> None:
    """Check a copy to tensor memory that the running thread has issued."""
    st = state.place
    if st.active == 0 or st.tensor_slots == None:
        return
    me = u32(TCGEN05_CP) * st.threads + st.tid
    clock = st.current.epoch[TCGEN05_CP]
    rank = st.tid // st.per_block
    shape = form & 15
    for cta in range(form >> GROUP_SHIFT):
        there = rank ^ cta
        for row in range(chosen(ROWS, shape)):
            for piece in range(chosen(PIECES, shape)):
                read_shared(there, row_piece(descriptor, row, piece), u32(TCGEN05_CP), descriptor, looks, shared_site)
        for row in range(u32(TENSOR_ROWS)):
            if shape != 2 or row % 2 == 0:
                lane = row * TENSOR_LANES
                count = 4 * chosen(PIECES, shape)
                for each in range(count):
                    tag = SCALES + each if shape == OF_SCALES else u32(COPIED)
                    touch_lanes(there, lane, TENSOR_LANES, (place & 0xFFFF) + each, u32(1), me, clock, tag, False, site)


@detector.export
def tensor_shift(place: u32, cta_group: u32, site: u32) -> None:
    """Check a shift that the running thread has issued."""
    st = state.place
    if st.active == 0 or st.tensor_slots == None:
        return
    me = u32(TCGEN05) * st.threads + st.tid
    clock = st.current.epoch[TCGEN05]
    for cta in range(cta_group):
        there = (st.tid // st.per_block) ^ cta
        touch_lanes(there, place >> 16, u32(32), place & 0xFFFF, u32(8), me, clock, SHIFTED_IN, True, site)


@detector.export
def tensor_commit(mbarrier: u64, mask: i32, site: u32) -> None:
    """Before a commit: who sees its arrivals knows that what the thread has issued is complete.

    What the thread knew when it issued that happened before it, too.
    """
    st = state.place
    if st.active == 0:
        return
    thread = st.current
    cluster = st.sizes.cluster[0] * st.sizes.cluster[1] * st.sizes.cluster[2]
    mine = st.tid // st.per_block
    first = mine - mine % cluster
    offset = (mbarrier - st.arena) % st.chunk
    for number in range(cluster):
        there = st.arena + u64(first + number) * st.chunk + offset
        if (mask < 0 and there == mbarrier) or (mask >= 0 and u32(mask) >> number & 1 != 0):
            arrive(there, first + number, site)
    for engine in (TCGEN05, TCGEN05_CP):
        thread.epoch[engine] += 1


@native
def arrive(mbarrier: u64, rank: u32, site: u32) -> None:
    st = state.place
    thread = st.current
    if rank != st.tid // st.per_block and st.remote != None:
        remote_access(rank, u32(TCGEN05), site, u32(0))
    offset = (mbarrier - st.arena) % st.chunk
    if offset + 8 <= st.smem:  # after its initialization, through the generic proxy
        for i in range(offset >> st.shift, (offset + 7 >> st.shift) + 1):
            flags = u32(SHARED | ATOMIC | NO_INIT)
            touch(ref(st.cells)[u64(rank) * st.cells_per_block + i], flags, site, mbarrier, 8)
    entry = mbarrier_at(mbarrier, site)
    if entry != None:
        missing = u32(Ptr[u64](mbarrier)[0]) & MBARRIER_ARRIVALS
        if missing == 0:
            report(RULE["mbarrier-overflow"], site, entry.site, st.group, entry.who, mbarrier, 8, missing, 1)
        if entry.local == None:  # all that was released in this phase so far
            entry.local = clock_new()
            clock_join(entry.local, entry.published[entry.parity ^ 1])
        entry.arrive_site = site
        settle_own()
        clock_join(entry.local, thread.base)
        for engine in (TCGEN05, TCGEN05_CP):
            raise_to(ref(numbers(entry.local))[u32(engine) * st.threads + st.tid], thread.epoch[engine])
