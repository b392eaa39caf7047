"""Records of findings: one for each rule and pair of places."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, u8, u32, u64
from ..runtime.engine_table import BULK_LOAD
from .devices import device_at
from .memory import copy
from .state import GLOBAL, GROUPS_SHIFT, MAX_FINDINGS, MOST_LAUNCHES, RULE, SHARED, Finding, Object, state, world

_SYMMETRIC = ("write-write", "divergent", "count", "lanes-site")
"""Rules about two equivalent places, whose order depends on the schedule."""


@inline
def _bits(rules):
    """Return a word with the bits of some rules."""
    return sum(1 << RULE[name] for name in rules)


@native
def report(
    rule: u32,
    site: u32,
    other_site: u32,
    other_group: u32,
    other_tid: u32,
    address: u64 = 0,
    size: u32 = 0,
    first: u64 = 0,
    second: u64 = 0,
) -> Ptr[Finding]:
    """Record a finding, once for each rule and pair of places. `address` 0: it is about no memory.

    The case of the lowest block and thread is recorded, so that it does not depend on the schedule. Returns the record
    that was written, or None.
    """
    st = state.place
    if (st.rules >> rule) & 1 == 0:
        return None
    if st.several != 0 and other_group >> GROUPS_SHIFT == MOST_LAUNCHES - 1:
        return None  # what is recorded of it is another launch's
    # the identities of bulk loads are mbarriers
    if st.engines > BULK_LOAD and other_group == st.group and other_tid // st.threads == BULK_LOAD:
        other_tid = BULK_LOAD * st.threads + st.bulk[other_tid % st.threads].thread
    either_way = (u64(_bits(_SYMMETRIC)) >> rule) & 1 != 0
    record = Ptr[Finding](None)
    for i in range(st.findings_count):
        f = st.findings[i]
        straight = f.site == site and f.other_site == other_site
        swapped = either_way and f.site == other_site and f.other_site == site
        if f.rule == rule and (straight or swapped) and f.kernel == st.kernel and f.call == st.call:
            record = f
    across_warps = st.tid % st.per_block // 32 != other_tid % st.per_block // 32
    if record != None:
        record.count += 1
        record.across_warps |= u32(across_warps)
        group = st.group - st.first_group
        if group > record.group or (group == record.group and st.tid >= record.tid):
            return None
    elif st.findings_count < MAX_FINDINGS:
        record = st.findings[st.findings_count]
        st.findings_count += 1
        record.count = 1
        record.across_warps = u32(across_warps)
    else:
        st.overflow += 1
        return None
    record.rule = rule
    record.unseen_store = st.unseen_store
    record.unseen_load = st.unseen_load
    record.narrow = 0
    if st.lone == 0 and other_group == st.group and other_tid % st.threads // st.per_block != st.tid // st.per_block:
        record.narrow = st.current.narrow
    record.site = site
    record.other_site = other_site
    record.tid = st.tid
    record.other_tid = other_tid
    record.iteration = st.iteration
    record.bytes = size
    record.address = address
    record.kernel = st.kernel
    record.schedule = st.schedule
    record.space = 0
    record.rank = 0
    record.object = 0
    record.offset = 0
    record.modes = 0
    record.extra[0] = first
    record.extra[1] = second
    record.group = st.group - st.first_group
    copy(record.sizes, st.sizes)
    record.call = st.call
    record.other_call = st.call
    record.device = 0
    record.other_device = st.device
    if st.several != 0 and other_group >> GROUPS_SHIFT != st.group >> GROUPS_SHIFT:
        other = world.place.records[other_group >> GROUPS_SHIFT]
        record.before = 1
        record.other_group = other_group & ((1 << GROUPS_SHIFT) - 1)
        record.other_kernel = other.kernel
        record.other_call = other.call
        record.other_device = other.device
        copy(record.other_sizes, other.sizes)
    elif other_group < st.first_group:
        record.before = 1
        record.other_group = other_group - st.before_group
        record.other_kernel = st.before_kernel
        copy(record.other_sizes, st.before_sizes)
    else:
        record.before = 0
        record.other_group = other_group - st.first_group
        record.other_kernel = st.kernel
        copy(record.other_sizes, st.sizes)
    say_where(record, address)
    return record


@inline
def report_alone(rule, site, *more):
    """Record a finding about the running thread alone."""
    st = state.place
    return report(RULE[rule], site, site, st.group, st.tid, *more)


@native
def say_where(f: Ptr[Finding], address: u64) -> None:
    """Record the memory of a finding by its address."""
    st = state.place
    if address >= st.arena and address < st.arena_end:
        inside = address - st.arena
        f.space = SHARED
        f.rank = u32(inside // st.chunk)
        f.offset = inside % st.chunk
    elif address != 0:
        f.space = GLOBAL
        if st.several != 0:
            f.device = device_at(address)
        for i in range(st.object_count):
            o = st.objects[i]
            if address >= o.low and address < o.high:
                attribute(f, o, i, address)


@native
def attribute(f: Ptr[Finding], o: Ptr[Object], index: u32, address: u64) -> None:
    """Record that the memory of a finding belongs to an argument."""
    f.object = index + 1
    f.offset = address - o.base
    copy(f.known, o)


@inline
def is_shared(place):
    return place >= state.place.arena and place < state.place.arena_end


@inline
def about(tid, rule, *more):
    """Record a finding about another thread than the running one."""
    st = state.place
    me = st.tid
    st.tid = tid
    report(RULE[rule], *more)
    st.tid = me


@native
def writes_what_is_there(place: u64) -> bool:
    """Return whether the current write stores the value that the bytes of a cell already have."""
    st = state.place
    if st.value == 0:
        return False
    new = Ptr[u8](st.value + (place - st.value_for))
    old = Ptr[u8](place)
    for i in range(u64(1) << (st.shift if is_shared(place) else st.global_shift)):
        if new[i] != old[i]:
            return False
    return True
