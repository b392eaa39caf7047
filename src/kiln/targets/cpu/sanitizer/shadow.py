"""Shadow memory: the last accesses to each cell of memory, and whether a new access is ordered after them."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, i64, inline, native, ref, size_of, u8, u32, u64
from ...host.libc import memset
from ..runtime.engine_table import COPY, GENERIC
from .bounds import in_arena, is_aligned, is_inside, is_inside_argument, place_in_shared, scratch_for
from .clocks import clock_lowest, identity, numbers, ordered
from .default_checks import shared_access_by_default
from .devices import device_at
from .independent_threads import lone_touch
from .launches import remote_access
from .locations import in_scope
from .memory import allocate, copy, greater, lesser
from .pages import global_cell
from .reporting import report, report_alone, say_where, writes_what_is_there
from .schedules import note
from .state import (
    ATOMIC,
    ATOMIC_BIT,
    DENSE,
    ENGINE_SHIFT,
    GLOBAL,
    GPU,
    GROUPS_SHIFT,
    IN_GLOBAL,
    IN_SHARED,
    MAPS,
    NO_INIT,
    NONCOHERENT,
    NONCOHERENT_BIT,
    OF_MAP,
    OVER,
    RULE,
    SCOPE_AT,
    SCOPE_SHIFT,
    SHARED,
    SPACE_MASK,
    SYSTEM,
    WHO,
    WRITE,
    Access,
    Cell,
    CopySource,
    LastAccess,
    LoneCell,
    Readers,
    Spare,
    detector,
    state,
)
from .store_buffer import settle_at
from .symmetric import is_there, replaces_unread


@native
def readers_new() -> Ptr[LastAccess]:
    """Return an array of readers over all identities, and their scopes; None if the detector's memory is exhausted."""
    st = state.place
    spare = st.free_arrays
    size = u64(st.identities) * (size_of(LastAccess) + 1)
    if spare != None:
        st.free_arrays = spare.next
        memset(spare + 1, 0, size)
    else:
        if st.allocated >= st.limit:
            return None
        spare = Ptr[Spare](allocate(size + size_of(Spare)))
        spare.before = st.arrays  # all are linked, so that a new group gets them back
        st.arrays = spare
    return Ptr[LastAccess](spare + 1)


@inline
def readers_of(cell):
    return Ptr[Readers](cell.other)


@inline
def scopes_of(array):
    """Return what follows an array of readers: `rank` of each."""
    return Ptr[u8](array + state.place.identities)


@inline
def rank(who):
    """Return how wide the scope of an access is: 0 of a plain one, which is atomic to no other, more of atomic ones."""
    return who >> SCOPE_AT


@inline
def is_dense(cell, shared):
    return shared and cell.read.clock != 0 and cell.read.who == DENSE


@inline
def of_atomic(atomic, scope):
    """Return the bits of `Access.who` that say whether an access is atomic, and its scope."""
    return (u32(ATOMIC_BIT) | scope << SCOPE_AT) if atomic else u32(0)


@inline
def set_access(target, clock, who, site, group):
    target.clock = clock
    target.who = who
    target.site = site
    target.group = group


@inline
def collide(rule, site, other, address, size):
    late = uncommitted(other.group, other.who & WHO, other.clock)
    report(rule, site, other.site, other.group, other.who & WHO, address, size, late)


@native
def rule_for(rule: u32, write: Ptr[Access], view: u32) -> u32:
    """Return what rule an access breaks that is not ordered after a write: it may lack a proxy fence only."""
    who = write.who & WHO
    if view != 0 and who < state.place.threads * GENERIC and ordered(write.group, who, write.clock, 0):
        return u32(RULE["map-proxy"]) if view == MAPS else u32(RULE["proxy"])
    return rule


@native
def uncommitted(group: u32, who: u32, clock: u32) -> u64:
    """Return whether an access is of a `cp.async` that its thread has not committed to a group."""
    st = state.place
    if group != st.group or who // st.threads != COPY:
        return 0
    return u64(clock == st.thread_array[who % st.threads].epoch[COPY])


@inline
def scope_of(who):
    """Return the scope of an atomic access that was recorded."""
    return who >> SCOPE_AT & SYSTEM


@native
def check_scopes(who: u32, group: u32, scope: u32, site: u32, other_site: u32, address: u64, size: u32) -> None:
    """Report a race unless two atomic accesses are atomic to each other: the scope of each includes the other's thread."""
    theirs = scope_of(who)
    narrower = lesser(scope, theirs)
    if not in_scope(narrower, group, who & WHO):
        rule = u32(RULE["scope"])
        if state.place.several != 0 and narrower == GPU:
            rule = u32(RULE["device-scope"])
        report(rule, site, other_site, group, who & WHO, address, size, scope, theirs)


@native
def touch(cell: Ptr[Cell], flags: u32, site: u32, address: u64, size: u32) -> None:
    """Check and record one access to the bytes of one cell, by the running thread or one of its engines."""
    st = state.place
    group = st.group
    engine = (flags >> ENGINE_SHIFT) & 15
    me, clock = identity(engine)
    writes = flags & WRITE != 0
    atomic = flags & ATOMIC != 0
    scope = SYSTEM - (flags >> SCOPE_SHIFT & SYSTEM)
    shared = flags & SPACE_MASK == SHARED
    noncoherent = flags & NONCOHERENT != 0 and not shared
    if noncoherent and is_written(cell, site, address, size):
        return
    if engine == 0 and not noncoherent:  # once more?
        last = cell.write if writes else cell.read
        if last.clock == clock and last.who == me | of_atomic(atomic, scope) and last.group == group:
            if not writes or (not atomic and cell.read.clock == 0 and cell.atomic.clock == 0):
                return
    view = u32(0)
    if engine >= GENERIC:
        view = u32(IN_SHARED) if shared else u32(IN_GLOBAL)
        view = u32(MAPS) if flags & OF_MAP != 0 else view
    unordered = False
    other = cell.write.who & WHO
    other_atomic = cell.write.who & ATOMIC_BIT != 0
    if cell.write.clock != 0 and not (other == me and cell.write.group == group and engine == 0):
        unordered = not ordered(cell.write.group, other, cell.write.clock, view)
    # those of one proxy are in one order, those of different ones are not
    alike = atomic and other_atomic and (engine >= GENERIC) == (other >= st.threads * GENERIC)
    if unordered and alike:
        check_scopes(cell.write.who, cell.write.group, scope, site, cell.write.site, address, size)
    if unordered and not alike:
        same = writes_what_is_there(address) or (engine == COPY and copies_the_same(cell, address))
        if not (writes and cell.write.site == site and same):
            rule = u32(RULE["write-write"]) if writes else u32(RULE["write-read"])
            if other_atomic:
                rule = u32(RULE["atomic"])
            collide(rule_for(rule, cell.write, view), site, cell.write, address, size)
    earlier = False
    if cell.atomic.clock != 0:
        before = cell.atomic.who & WHO
        if not (before == me and cell.atomic.group == group):
            earlier = not ordered(cell.atomic.group, before, cell.atomic.clock, view)
        if earlier and not atomic:
            collide(rule_for(u32(RULE["atomic"]), cell.atomic, view), site, cell.atomic, address, size)
        elif earlier:
            check_scopes(cell.atomic.who, cell.atomic.group, scope, site, cell.atomic.site, address, size)
    if writes:
        check_readers(cell, me, engine, site, shared, address, size, atomic, scope)
        if st.several != 0 and flags & NO_INIT != 0 and other_atomic and cell.read.clock == 0:
            replaces_unread(cell.write, site, address, size)
        if (
            atomic
            and other_atomic
            and unordered
            and not (earlier and scope_of(cell.atomic.who) < scope_of(cell.write.who))
        ):
            copy(cell.atomic, cell.write)  # of two, the one whose scope is narrower
        if not atomic:
            cell.atomic.clock = 0
        if engine == COPY:
            note_source(cell, address)
        set_access(cell.write, clock, me | of_atomic(atomic, scope), site, group)
        cell.read.clock = 0
        cell.other.clock = 0
    else:
        if shared and cell.write.clock == 0 and flags & NO_INIT == 0:
            report(RULE["uninitialized"], site, site, group, me, address, size)
        if noncoherent:
            if cell.read.who & NONCOHERENT_BIT == 0:
                copy(cell.other, cell.read)
            set_access(cell.read, clock, me | NONCOHERENT_BIT, site, group)
        else:
            record_read(cell, me | of_atomic(atomic, scope), clock, site, shared)


@native
def is_written(cell: Ptr[Cell], site: u32, address: u64, size: u32) -> bool:
    """Return whether this kernel has written a cell that is loaded so, and report it."""
    for write in (cell.write, cell.atomic):
        if write.clock != 0 and is_of_this_launch(write.group):
            collide(RULE["non-coherent"], site, write, address, size)
            return True
    return False


@inline
def is_of_this_launch(group):
    st = state.place
    if st.several != 0:
        return group >> GROUPS_SHIFT == st.first_group >> GROUPS_SHIFT
    return group >= st.first_group


@inline
def source_in(cell):
    return Ptr[CopySource](cell.atomic)


@inline
def source_of(address):
    """Return what the current `cp.async` copies to a cell: whether that is of one kind, and the address; 0 of zeros."""
    st = state.place
    offset = address - st.source_for
    zeros = offset >= st.source_bytes
    whole = offset + (u64(1) << st.shift) <= st.source_bytes
    return zeros or whole, u64(0) if zeros else st.source + offset


@inline
def note_source(cell, address):
    has_source, place = source_of(address)
    source = source_in(cell)
    source.known = u32(has_source)
    source.address = place


@native
def copies_the_same(cell: Ptr[Cell], address: u64) -> bool:
    """Return whether the current `cp.async` copies the bytes to a cell that the last one copied there."""
    has_source, place = source_of(address)
    source = source_in(cell)
    return has_source and cell.atomic.clock == 0 and source.known != 0 and source.address == place


@native
def check_readers(
    cell: Ptr[Cell], me: u32, engine: u32, site: u32, shared: bool, address: u64, size: u32, atomic: bool, scope: u32
) -> None:
    """Check that a write is ordered after all reads, or atomic to them."""
    st = state.place
    if is_dense(cell, shared):
        array = readers_of(cell).array
        if may_be_late(array, readers_of(cell).latest, me, engine):
            for i in range(st.identities):
                reader = array[i]
                if reader.clock != 0 and not (i == me and engine == 0):
                    if not ordered(st.group, i, reader.clock, OVER):
                        who = i | u32(scopes_of(array)[i]) << SCOPE_AT
                        late_reader(
                            who, reader.clock, st.group, reader.site, site, engine, address, size, atomic, scope
                        )
        spare = Ptr[Spare](array) - 1
        spare.next = st.free_arrays
        st.free_arrays = spare
        return
    for reader in (cell.read, cell.other):
        who = reader.who & WHO
        is_own = who == me and reader.group == st.group and engine == 0
        if reader.clock != 0 and reader.who & NONCOHERENT_BIT != 0 and is_of_this_launch(reader.group):
            collide(RULE["non-coherent"], site, reader, address, size)
        elif reader.clock != 0 and not is_own and not ordered(reader.group, who, reader.clock, OVER):
            late_reader(reader.who, reader.clock, reader.group, reader.site, site, engine, address, size, atomic, scope)


@native
def late_reader(
    who: u32,
    clock: u32,
    group: u32,
    other_site: u32,
    site: u32,
    engine: u32,
    address: u64,
    size: u32,
    atomic: bool,
    scope: u32,
) -> None:
    """Report a read that a write is not ordered after, unless both are atomic to each other."""
    if rank(who) != 0 and atomic and engine < GENERIC:
        check_scopes(who, group, scope, site, other_site, address, size)
    else:
        rule = u32(RULE["read-write"]) if rank(who) == 0 else u32(RULE["atomic"])
        report(rule, site, other_site, group, who & WHO, address, size, uncommitted(group, who & WHO, clock))


@native
def may_be_late(array: Ptr[LastAccess], latest: u32, me: u32, engine: u32) -> bool:
    """Return whether a reader may be unordered; most often none is, which is quick to see without branches."""
    st = state.place
    base = st.current.base
    if base == None or engine != 0:  # an engine is not ordered with itself
        return True
    # a barrier of all threads: what any of them did before is known without looking at each
    if latest <= clock_lowest(base):
        return False
    late = u32(0)
    times = numbers(base)
    for i in range(u64(st.identities)):
        late |= u32(array[i].clock > times[i]) & u32(i != me)
    return late != 0


@native
def record_read(cell: Ptr[Cell], who: u32, clock: u32, site: u32, shared: bool) -> None:
    """Record a read. Cells of shared memory have room for all readers, those of global memory for two."""
    if is_dense(cell, shared):
        add_reader(cell, who, clock, site)
        return
    read = cell.read
    other = cell.other
    if read.clock != 0 and read.who & NONCOHERENT_BIT != 0:  # which stays
        read = other
    elif read.clock != 0 and not replaceable(read, who):
        free = other.clock == 0 or replaceable(other, who)
        if shared and not free and has_become_dense(cell):
            add_reader(cell, who, clock, site)
            return
        if not shared and not free and rank(who) != 0:  # rather than forget a plain one
            return
        copy(other, read)
    set_access(read, clock, who, site, state.place.group)


@inline
def replaceable(read, who):
    """Return whether a new read races with all that an earlier one races with: it comes after it, and is no wider."""
    st = state.place
    mine = read.who & WHO == who & WHO and read.group == st.group
    return rank(who) <= rank(read.who) and (mine or ordered(read.group, read.who & WHO, read.clock, 0))


@native
def has_become_dense(cell: Ptr[Cell]) -> bool:
    """Make an array of the two readers of a cell; False if the detector's memory is exhausted."""
    array = readers_new()
    if array == None:
        return False
    latest = u32(0)
    for reader in (cell.read, cell.other):
        latest = greater(latest, add_to(array, reader.who, reader.clock, reader.site))
    cell.read.who = DENSE
    readers = readers_of(cell)
    readers.array = array
    readers.latest = latest
    return True


@native
def add_reader(cell: Ptr[Cell], who: u32, clock: u32, site: u32) -> None:
    readers = readers_of(cell)
    readers.latest = greater(readers.latest, add_to(readers.array, who, clock, site))


@native
def add_to(array: Ptr[LastAccess], who: u32, clock: u32, site: u32) -> u32:
    """Record a reader unless it has read with a narrower scope; return the time for `Readers.latest`."""
    me = who & WHO
    last = array[me]
    scope = scopes_of(array)
    if last.clock == 0 or rank(who) <= scope[me]:
        last.clock = clock
        last.site = site
        scope[me] = u8(rank(who))
    return clock if me < state.place.threads else u32(DENSE)


@detector.export
def check_access(address: u64, size: u32, flags: u32, site: u32, low: u32, high: u32) -> u64:
    """Check an access, and return the address to use: scratch memory if the access is invalid.

    `low` and `high` are as in `bounds.is_inside`.
    """
    st = state.place
    fine = True
    if st.active != 0 and size != 0:
        if st.sequential != 0:
            st.current.fenced = 0
        if st.delayed_count != 0 and flags & ATOMIC == 0:
            settle_at(address, size)
        fine = is_aligned(address, size, flags, site)
        said_shared = flags & SPACE_MASK == SHARED
        if in_arena(address):
            fine = shared_access(address, size, flags, site, low, high, said_shared) and fine
        elif said_shared:
            report_alone("bounds", site, address, size)
            fine = False
        else:
            fine = global_access(address, size, flags, site, low, fine)
    st.value = 0
    return address if fine else scratch_for(flags)


@native
def shared_access(address: u64, size: u32, flags: u32, site: u32, low: u32, high: u32, said_shared: bool) -> bool:
    """Check an access to shared memory, or to the frames behind it, and return whether it is valid."""
    st = state.place
    if st.by_default != 0:
        return shared_access_by_default(address, size, flags, site, low, high, said_shared)
    rank, offset = place_in_shared(address)
    if st.remote != None and rank != st.tid // st.per_block:
        remote_access(u32(rank), (flags >> ENGINE_SHIFT) & 15, site, flags & WRITE)
    if said_shared and not is_inside(address, offset, size, site, low, high):
        return False
    if offset + size <= st.smem:
        first = offset >> st.shift
        last = (offset + size - 1) >> st.shift
        flags = (flags & ~u32(SPACE_MASK)) | SHARED
        cells = ref(st.cells)[rank * st.cells_per_block]
        for i in range(first, last + 1):
            touch(ref(cells)[i], flags, site, address + ((i - first) << st.shift), size)
    return True


@native
def global_access(address: u64, size: u32, flags: u32, site: u32, number: u32, fine: bool) -> bool:
    """Check an access to global memory, by argument `number` - 1 unless that is 0, and return whether it is valid."""
    st = state.place
    if st.several != 0 and not is_there(address, size, site):
        return False
    fine = is_inside_argument(address, size, flags, site, number, fine)
    if fine and st.by_default == 0 and is_tracked(address, size, flags, number):
        shift = st.global_shift
        for i in range(address >> shift, ((address + size - 1) >> shift) + 1):
            where = i << shift
            at = greater(where, address)
            if st.lone != 0:
                bias = u64(0)
                for k in range(st.object_count):
                    o = st.objects[k]
                    if at >= o.low and at < o.high and o.bias != 0:
                        bias = o.bias
                if bias != 0:
                    lone_touch(Ptr[LoneCell](bias + i * size_of(LoneCell)), flags, site, at, size)
            else:
                cell = global_cell(where)
                if cell != None:
                    touch(cell, flags, site, at, size)
    if fine and st.recording != 0 and flags & WRITE != 0:
        note(address, size)
    return fine


@native
def is_tracked(address: u64, size: u32, flags: u32, number: u32) -> bool:
    """Return whether an address is global memory that some thread writes during the launch."""
    st = state.place
    if number != 0 and number <= st.object_count and st.objects[number - 1].quiet != 0:
        return False
    if flags & SPACE_MASK == GLOBAL or (st.several != 0 and device_at(address) != 0):
        return True
    for i in range(st.object_count):
        if address >= st.objects[i].low and address + size <= st.objects[i].high:
            return True
    return False


@detector.export
def writes(address: u64, value: u64) -> None:
    """The next access writes the bytes at `value`."""
    st = state.place
    st.value = value
    st.value_for = address


@detector.export
def copies(address: u64, source: u64, size: u32) -> None:
    """The next access is that of a `cp.async` of `size` bytes at `source`."""
    st = state.place
    st.source = source
    st.source_bytes = size
    st.source_for = address


@detector.export
def private(address: u64, base: u64, extent: u32, size: u32, site: u32) -> u64:
    """Check an access to a register array of `extent` bytes at `base`."""
    st = state.place
    offset = address - base
    if st.active != 0 and (offset + size > extent or address < base):
        report_alone("bounds", site, 0, size, offset, extent)
        return st.scratch
    return address


@detector.export
def outside(site: u32, space: u32, modes: u32, numbers: Ptr[i64]) -> None:
    """Report an access outside a tensor; `numbers` are the lowest coordinates of all modes, the highest, and the
    extents."""
    st = state.place
    if st.active != 0:
        f = report_alone("bounds", site)
        if f != None:
            f.modes = modes
            f.space = space
            for i in range(modes):
                lowest = numbers[i]
                f.place[i] = lowest if lowest < 0 else numbers[modes + i]
                f.extents[i] = numbers[2 * modes + i]


@detector.export
def undefined(address: u64, size: u32, site: u32, source: u32, element: u32) -> None:
    """Report the use of an unset value: it is written to `address`, or that is 0."""
    st = state.place
    if st.active != 0:
        report(RULE["uninitialized"], site, source, st.group, st.tid, address, size, element, 1)


@detector.export
def any_unset(shadow: u64, size: u32) -> u32:
    """Return a nonzero number if some of the registers with this shadow are unset."""
    unset = u32(0)
    for i in range(size):
        unset |= Ptr[u8](shadow)[i]
    return unset


@detector.export
def number(site: u32, index: u32, count: u32, operands: u32, result: u64, left: u64, right: u64) -> None:
    """Report a result that is not finite although the operands are: element `index` of `count`, as bits of doubles."""
    st = state.place
    if st.active != 0:
        f = report_alone("not-finite", site, 0, 0, index | (u64(count) << 32), result)
        if f != None:
            f.operands = operands
            f.numbers[0] = left
            f.numbers[1] = right
            st.unplaced = f
            st.unplaced_tid = st.tid


@detector.export
def stored(address: u64) -> None:
    """Note the address at which the running thread stores the number of its last "not-finite" finding."""
    st = state.place
    if st.unplaced != None and st.unplaced_tid == st.tid:
        st.unplaced.address = address
        say_where(st.unplaced, address)
        st.unplaced = None


@detector.export
def overflowed(site: u32, left: u64, right: u64) -> None:
    """Report an overflow in 32-bit index arithmetic."""
    if state.place.active != 0:
        report_alone("index-overflow", site, 0, 0, left, right)


@detector.export
def divided(site: u32) -> None:
    """Report an integer division by zero."""
    if state.place.active != 0:
        report_alone("zero-division", site)


@detector.export
def shifted(site: u32) -> None:
    """Report a shift by a negative number."""
    if state.place.active != 0:
        report_alone("negative-shift", site)
