"""Findings as the detector records them: one for each rule and pair of places."""

from __future__ import annotations

import ctypes
from typing import Any

from .native import Code, Value, Variable
from .registry import exported, state_of
from .state import GLOBAL, KIND_OF_RULE, KINDS, MAX_FINDINGS, RULE, RULES, SHARED, Finding, Object

_SYMMETRIC = ("write-write", "divergent", "count", "lanes-site")
"""Rules about two places that are alike: which of them comes second is the schedule's choice."""


@exported([32, 32, 32, 32, 32, 64, 32, 64, 64], 64)
def report(
    c: Code, rule: Value, site: Value, other_site: Value, other_group: Value, other_tid: Value, address: Value,
    bytes_: Value, extra0: Value, extra1: Value,
) -> Variable:  # fmt: skip
    """Record a finding, once for each rule and pair of places. `address` 0: it is about no memory.

    What is recorded is the case of the lowest block and thread, so that it does not depend on the schedule. Gives the record
    that was filled in; 0 if none was.
    """
    st = state_of(c)
    wanted = c.variable(0, 32)
    for kind_number, kind in enumerate(KINDS):
        rules = [RULE[name] for name in RULES if KIND_OF_RULE[name] == kind]
        inside = (rule >= rules[0]) & (rule <= rules[-1]) & ((st.kinds & (1 << kind_number)) != 0)
        wanted.set(wanted.get() | inside.narrow())
    found, filled = c.variable(0), c.variable(0)
    either_way = rule == RULE[_SYMMETRIC[0]]
    for name in _SYMMETRIC[1:]:
        either_way = either_way | (rule == RULE[name])
    with c.loop(st.findings_count) as i:
        at = st.place("findings", i)
        f = c.struct(at, Finding)
        straight = (f.site == site) & (f.other_site == other_site)
        swapped = either_way & (f.site == other_site) & (f.other_site == site)
        same = (f.rule == rule) & (straight | swapped) & (f.kernel == st.kernel)
        found.set(same.choose(at, found.get()))
    with c.when(wanted.get() != 0):
        with c.when(found.get() != 0):
            f = c.struct(found.get(), Finding)
            f.count = f.count + 1
            group = st.group - st.first_group
            lower = (group < f.group) | ((group == f.group) & (st.tid < f.tid))
            with c.when(lower):
                filled.set(found.get())
        with c.otherwise():
            with c.when(st.findings_count < MAX_FINDINGS):
                filled.set(st.place("findings", st.findings_count))
                st.findings_count = st.findings_count + 1
                c.struct(filled.get(), Finding).count = 1
            with c.otherwise():
                st.overflow = st.overflow + 1
    with c.when(filled.get() != 0):
        f = c.struct(filled.get(), Finding)
        _fill(c, st, f, rule, site, other_site, other_group, other_tid, address, bytes_, extra0, extra1)
    return filled


def _fill(
    c: Code, st: Any, f: Any, rule: Value, site: Value, other_site: Value, other_group: Value, other_tid: Value, address: Value,
    bytes_: Value, extra0: Value, extra1: Value,
) -> None:  # fmt: skip
    for name, value in (
        ("rule", rule), ("site", site), ("other_site", other_site), ("tid", st.tid), ("other_tid", other_tid), ("bytes", bytes_), ("address", address),
        ("kernel", st.kernel), ("space", c.i32(0)), ("flags", c.i32(0)), ("rank", c.i32(0)), ("object", c.i32(0)), ("offset", c.i64(0)),
        ("modes", c.i32(0)),
    ):  # fmt: skip
        setattr(f, name, value)
    f.set_at("extra", 0, extra0)
    f.set_at("extra", 1, extra1)
    before = other_group < st.first_group
    f.group = st.group - st.first_group
    f.other_group = other_group - before.choose(st.before_group, st.first_group)
    f.before = before.narrow()
    f.other_kernel = before.choose(st.before_kernel, st.kernel)
    for i in range(13):
        f.set_at("sizes", i, st.at("sizes", i))
        f.set_at("other_sizes", i, before.choose(st.at("before_sizes", i), st.at("sizes", i)))
    placed(c, st, f, address)


def placed(c: Code, st: Any, f: Any, address: Value) -> None:
    """The memory of a finding is at an address."""
    with c.when((address >= st.arena) & (address < st.arena_end)):
        inside = address - st.arena
        f.space = SHARED
        f.rank = (inside // st.chunk).narrow()
        f.offset = inside % st.chunk
    with c.otherwise():
        with c.when(address != 0):
            f.space = GLOBAL
            with c.loop(st.object_count) as i:
                o = c.struct(st.place("objects", i), Object)
                with c.when((address >= o.low) & (address < o.high)):
                    attribute(c, f, o, i, address)


def attribute(c: Code, f: Any, o: Any, index: Value, address: Value) -> None:
    """The memory of a finding is that of an argument."""
    f.object = index + 1
    f.offset = address - o.base
    known = f.place("known")
    for word in range(ctypes.sizeof(Object) // 8):
        c.store(c.load(o.address + 8 * word), known + 8 * word)
