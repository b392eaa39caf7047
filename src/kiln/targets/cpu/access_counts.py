"""Counting accesses of warps, native code: `access_counter.py` says what is counted, and adds the calls.

The lanes of an access come one after another here. What they accessed is kept until the last lane of the warp has come,
or the block has ended.
"""

# pyright: reportReturnType=false

from __future__ import annotations

from ...native import Array, Library, Ptr, native, popcount, ref, size_of, struct, u32, u64
from ..host.libc import memset, realloc

BANKS = 32
SECTOR = 32
"""Bytes of global memory that are fetched or written at once."""
BUCKETS = 1 << 16
MIX = 0x9E37_79B9_7F4A_7C15


@struct
class Counters:
    """What is counted at one place."""

    accesses: u64  # by warps
    served: u64  # wavefronts of shared memory, sectors of global memory
    ideal: u64  # wavefronts without conflicts; sectors if the bytes were next to each other
    worst: u64  # wavefronts of one group of lanes; sectors of one access
    lanes: u64
    lowest: u64  # address; 0: none
    highest: u64  # behind the last byte


@struct
class Pending:
    """An access whose lanes have not all come."""

    key: u64
    counters: Ptr[Counters]
    following: u32  # in its bucket, or the free list; 0: none
    mask: u32  # lanes that have come; 0: not in use
    width: u32
    is_global: u32
    addresses: Array[u32, 32]  # of the lanes, in bytes; the lowest 32 bits are enough


@struct
class State:
    """The counter's memory; zero at the start."""

    pending: Ptr[Pending]  # number 0 is not used
    room: u32
    used: u32
    free: u32
    words: Array[u32, BANKS]  # of one group of lanes
    count: Array[u32, BANKS]  # different words of each bank
    buckets: Array[u32, BUCKETS]


counter: Library = Library("accesses", prefix="kiln_cpu_accesses_")
state = counter.variable("state", State)


@native
def serve(access: Ptr[Pending], first: u32, lanes: u32) -> u32:
    """Return how many different words the lanes from `first` on want, counted by banks in the state."""
    st = state.place
    words = access.width >> 2 if access.width > 4 else u32(1)  # of a lane
    memset(ref(st).count, 0, 4 * BANKS)
    count = u32(0)
    for lane in range(first, first + lanes):
        if (access.mask >> lane) & 1 != 0:
            for part in range(words):
                word = (access.addresses[lane] >> 2) + part
                is_repeated = False
                for earlier in range(count):
                    if st.words[earlier] == word:
                        is_repeated = True
                if not is_repeated:
                    st.words[count] = word
                    count += 1
                    st.count[word & (BANKS - 1)] += 1
    return count


@native
def different(access: Ptr[Pending], bytes: u32) -> u32:
    """Return how many different pieces of so many bytes the lanes' addresses are in."""
    st = state.place
    count = u32(0)
    for lane in range(32):
        if (access.mask >> lane) & 1 != 0:
            piece = access.addresses[lane] // bytes
            is_repeated = False
            for earlier in range(count):
                if st.words[earlier] == piece:
                    is_repeated = True
            if not is_repeated:
                st.words[count] = piece
                count += 1
    return count


@native
def settle(access: Ptr[Pending]) -> None:
    """Count an access."""
    if access.is_global != 0:
        sectors = different(access, u32(SECTOR))
        bytes = different(access, access.width) * access.width
        add(access, sectors, (bytes + (SECTOR - 1)) // SECTOR, sectors)
    else:
        settle_shared(access)


@native
def add(access: Ptr[Pending], served: u32, ideal: u32, most: u32) -> None:
    """Add an access to the counters of its place."""
    counters = access.counters
    counters.accesses += 1
    counters.served += served
    counters.ideal += ideal
    counters.lanes += popcount(access.mask)
    if most > counters.worst:
        counters.worst = most


@native
def settle_shared(access: Ptr[Pending]) -> None:
    """Count an access to shared memory: its wavefronts."""
    st = state.place
    lanes = u32(BANKS) // (access.width >> 2) if access.width > 4 else u32(BANKS)  # that are served together
    most = u32(0)
    total = u32(0)
    ideal = u32(0)
    for group in range(u32(BANKS) // lanes):
        if serve(access, group * lanes, lanes) != 0:
            ideal += 1
        degree = u32(0)
        for bank in range(BANKS):
            if st.count[bank] > degree:
                degree = st.count[bank]
        total += degree
        if degree > most:
            most = degree
    add(access, total, ideal, most)


@native
def take(key: u64, bucket: u32) -> u32:
    """Return a fresh entry of a bucket; its number."""
    st = state.place
    number = st.free
    if number == 0:
        if st.used == 0:
            st.used = 1  # number 0 means none
        if st.used >= st.room:
            st.room = st.room * 2 + 1024
            st.pending = Ptr[Pending](realloc(st.pending, u64(st.room) * size_of(Pending)))
        number = st.used
        st.used += 1
    else:
        st.free = st.pending[number].following
    entry = st.pending[number]
    entry.key = key
    entry.mask = 0
    entry.following = st.buckets[bucket]
    st.buckets[bucket] = number
    return number


@counter.export
def access(
    counters: Ptr[Counters], key: u64, thread: u32, threads: u32, address: u64, width: u32, is_global: u32
) -> None:
    """One lane's part of an access. Lanes with one key belong together."""
    st = state.place
    first = thread & ~u32(31)
    lane = thread & 31
    full = u32(0xFFFF_FFFF) if threads - first >= 32 else (u32(1) << (threads - first)) - 1
    key = (key ^ (u64(first) * u64(MIX))) * u64(MIX)
    bucket = u32(key >> 48)
    before = u32(0)
    number = st.buckets[bucket]
    while number != 0 and st.pending[number].key != key:
        before = number
        number = st.pending[number].following
    if number == 0:
        before = u32(0)
        number = take(key, bucket)
    entry = st.pending[number]
    if (entry.mask >> lane) & 1 != 0:  # the same lane again: another access
        settle(entry)
        entry.mask = 0
    entry.counters = counters
    entry.width = width
    entry.is_global = is_global
    entry.mask |= u32(1) << lane
    if counters.lowest == 0 or address < counters.lowest:
        counters.lowest = address
    if address + u64(width) > counters.highest:
        counters.highest = address + u64(width)
    entry.addresses[lane] = u32(address)
    if entry.mask == full:
        settle(entry)
        if before == 0:
            st.buckets[bucket] = entry.following
        else:
            st.pending[before].following = entry.following
        entry.mask = 0
        entry.following = st.free
        st.free = number


@counter.export
def flush() -> None:
    """Count what is left, at the end of a block."""
    st = state.place
    if st.used > 1:
        for number in range(1, st.used):
            if st.pending[number].mask != 0:
                settle(st.pending[number])
        memset(ref(st).buckets, 0, 4 * BUCKETS)
        st.used = 1
        st.free = 0
