"""WGMMA: checks of the shared memory that it reads and of the registers that it uses.

A WGMMA is one agent, represented by the first thread of the warpgroup: all warps must be ordered after the writes that
it reads, and a wait for it orders its reads. Registers belong to a thread: from a WGMMA until the wait that covers its
group it may not access them, and after other accesses it executes a fence before the next WGMMA, and before the first
one in any case.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, ref, u32, u64
from ..runtime.engine_table import WGMMA
from ..runtime.records import WARP, WARPGROUP
from ..runtime.tensor_core import A_ALONG_M, A_IN_REGISTERS, A_SHIFT, B_ALONG_N, N_SHIFT, ROWS, bytes_of, piece
from .clocks import clock_drop, clock_hold, clock_join, clock_new, numbers, ordered
from .memory import raise_to
from .reporting import report
from .shadow import rule_for, shared_access
from .state import ENGINE_SHIFT, FLIGHTS, IN_SHARED, RING, RULE, SHARED, WHO, Registers, detector, state
from .tiles import BITS, tile


@inline
def leader_of(st):
    """Return the first thread of the running thread's warpgroup."""
    return st.tid - st.tid % st.per_block % WARPGROUP


# --- shared memory ---------------------------------------------------------------------------------------------------


@native
def must_know(address: u64, site: u32) -> None:
    """Check that another warp than the first is ordered after the write of 16 bytes that the WGMMA reads."""
    st = state.place
    inside = address - st.arena
    rank = inside // st.chunk
    offset = inside % st.chunk
    if offset + 16 <= st.smem:
        first = offset >> st.shift
        for i in range(first, ((offset + 15) >> st.shift) + 1):
            cell = st.cells[rank * st.cells_per_block + i]
            for write in (cell.write, cell.atomic):
                who = write.who & WHO
                if write.clock != 0 and not ordered(write.group, who, write.clock, IN_SHARED):
                    rule = rule_for(u32(RULE["write-read"]), write, u32(IN_SHARED))
                    report(rule, site, write.site, write.group, who, address, 16)


@native
def read_operand(smem: u64, descriptor: u64, along_mn: bool, majors: u32, minors: u32, looks: u32, site: u32) -> None:
    """Check an operand that a WGMMA reads."""
    st = state.place
    leads = st.tid == leader_of(st)
    swizzle = u32(descriptor >> 62)
    code = (u32(4) - swizzle if swizzle != 0 else u32(0)) | 4 << BITS | 3 << 2 * BITS
    for minor in range(minors):
        for major in range(majors):
            address = smem + piece(descriptor, along_mn, major, minor)
            if leads:
                shared_access(address, 16, SHARED | WGMMA << ENGINE_SHIFT, site, 0, st.smem, True)
                if looks != 0:
                    tile(address, 16, 0, code, 0, site)
            else:
                must_know(address, site)


# --- registers -------------------------------------------------------------------------------------------------------


@inline
def overlap(registers, low, high):
    return registers.high > low and registers.low < high


@native
def use(low: u64, high: u64, written: u32, site: u32) -> None:
    """Check registers that a WGMMA uses."""
    st = state.place
    thread = st.current
    free = u32(FLIGHTS)
    for i in range(u32(FLIGHTS)):
        touched = thread.touched[i]
        flight = thread.flights[i]
        if overlap(touched, low, high):
            rule = u32(RULE["unfenced"]) if touched.written != 0 else u32(RULE["unfenced-read"])
            report(rule, site, touched.site, st.group, st.tid, 0, 0, written, touched.written)
        same = flight.low == low and flight.high == high and flight.written == written
        if overlap(flight, low, high) and not same and (flight.written | written) != 0:
            report(RULE["in-flight"], site, flight.site, st.group, st.tid, 0, 0, 0, flight.written)
        if same or (flight.high == 0 and free == FLIGHTS):
            free = i
    if free == FLIGHTS:
        free = thread.next_flight % FLIGHTS
        thread.next_flight += 1
    keep(thread.flights[free], low, high, site, thread.groups[WGMMA], written)


@inline
def keep(place, low, high, site, group, written):
    place.low = low
    place.high = high
    place.site = site
    place.group = group
    place.written = written


@native
def is_known(list_: Ptr[Registers], low: u64, high: u64, writes: u32) -> bool:
    for i in range(u32(FLIGHTS)):
        if list_[i].low <= low and list_[i].high >= high and list_[i].written >= writes:
            return True
    return False


@detector.export
def register(address: u64, base: u64, size: u32, writes: u32, site: u32) -> None:
    """Check an access to registers of an array at `base` that WGMMAs use."""
    st = state.place
    if st.active == 0:
        return
    thread = st.current
    low = address
    high = address + size
    for i in range(u32(FLIGHTS)):
        flight = thread.flights[i]
        if overlap(flight, low, high):
            uncommitted = u64(flight.group >= thread.groups[WGMMA]) << 32
            report(
                RULE["in-flight"],
                site,
                flight.site,
                st.group,
                st.tid,
                0,
                size,
                (address - base) | uncommitted,
                flight.written,
            )
    if not is_known(ref(thread).touched, low, high, writes):
        for i in range(u32(FLIGHTS)):
            before = thread.touched[i]
            if before.high == low and before.site == site:  # a loop that goes through an array
                before.high = high
                return
        keep(thread.touched[thread.next_touched % FLIGHTS], low, high, site, 0, writes)
        thread.next_touched += 1


@detector.export
def wgmma_fence() -> None:
    """Order accesses to registers before the WGMMAs that follow."""
    thread = state.place.current
    for i in range(u32(FLIGHTS)):
        thread.touched[i].high = 0
        thread.touched[i].low = 0
    thread.next_touched = 0
    thread.wgmma_fences = 1


# --- WGMMAs --------------------------------------------------------------------------------------------------------


@detector.export
def wgmma(d: u64, d_bytes: u32, a: u64, a_bytes: u32, b: u64, kind: u32, smem: u64, looks: u32, site: u32) -> None:
    """Check a WGMMA of the running thread; `a` is the address of `a_bytes` of registers, or a descriptor."""
    st = state.place
    if st.active == 0:
        return
    if st.current.wgmma_fences == 0:
        st.current.wgmma_fences = 1
        report(RULE["unfenced"], site, site, st.group, st.tid, 0, 0, 0, 2)
    use(d, d + d_bytes, 1, site)
    if kind & A_IN_REGISTERS != 0:
        use(a, a + a_bytes, 0, site)
    if st.tid % st.per_block % WARP == 0:
        read_operands(a, b, kind, smem, looks, site)


@detector.export
def wgmma_by_default(
    d: u64, d_bytes: u32, a: u64, a_bytes: u32, b: u64, kind: u32, smem: u64, looks: u32, site: u32
) -> None:
    """Check a WGMMA of the running thread in a launch that is checked by default."""
    st = state.place
    if st.active != 0 and st.tid == leader_of(st):
        read_operands(a, b, kind, smem, looks, site)


@native
def read_operands(a: u64, b: u64, kind: u32, smem: u64, looks: u32, site: u32) -> None:
    """Check the operands that a WGMMA reads from shared memory."""
    per = u32(16) // bytes_of((kind >> A_SHIFT) & 15)
    n = (kind >> N_SHIFT) & 511
    along = kind & A_ALONG_M != 0
    if kind & A_IN_REGISTERS == 0:
        read_operand(smem, a, along, ROWS // per if along else u32(2), per * 2 if along else u32(ROWS), looks, site)
    along = kind & B_ALONG_N != 0
    read_operand(smem, b, along, n // per if along else u32(2), per * 2 if along else n, looks, site)


@detector.export
def wgmma_waited(left: u32) -> None:
    """The running thread has waited until at most `left` groups of WGMMAs are incomplete."""
    st = state.place
    thread = st.current
    count = thread.groups[WGMMA]
    if count <= left:
        return
    group = count - left - 1
    for i in range(u32(FLIGHTS)):
        if thread.flights[i].group <= group:
            thread.flights[i].high = 0
            thread.flights[i].low = 0
    leader = st.thread_array[leader_of(st)]
    epoch = leader.epoch[WGMMA]
    if leader.groups[WGMMA] > group:
        epoch = leader.ring[WGMMA * RING + (group & (RING - 1))]
    if st.tid == leader_of(st):
        raise_to(ref(thread).own + WGMMA, epoch)
    else:
        learn(WGMMA * st.threads + leader_of(st), epoch)


@native
def learn(place: u32, epoch: u32) -> None:
    """Order the accesses of an identity, up to a time, before the running thread."""
    st = state.place
    thread = st.current
    base = thread.base
    if base != None:
        if numbers(base)[place] >= epoch:
            return
    same = st.wgmma_memo[1] != None and st.wgmma_memo[0] == base
    if not (same and st.wgmma_memo_place == place and st.wgmma_memo_epoch == epoch):
        joined = clock_new()
        clock_join(joined, base)
        raise_to(ref(numbers(joined))[place], epoch)
        clock_hold(base)
        clock_drop(st.wgmma_memo[0])
        clock_drop(st.wgmma_memo[1])
        st.wgmma_memo[0] = base
        st.wgmma_memo[1] = joined
        st.wgmma_memo_place = place
        st.wgmma_memo_epoch = epoch
    clock_hold(st.wgmma_memo[1])
    clock_drop(base)
    thread.base = st.wgmma_memo[1]
