"""The detector, native code: happens-before over every access, and the rules of memory and synchronization.

Each thread has a clock; a release (a barrier's arrival, a fence, ...) hands the clock on, an acquire takes it. Two accesses to the
same bytes, one of them a write, race unless the later thread's clock contains the earlier access. The functions here
are called by instrumented code (`instrument.py`); what they work on is in `state.py`.

A clock that nobody else changes is shared by all threads that know the same: after a barrier of a block there is one.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ....mlir import context, ir
from ...llvm_build import declare, global_, int_type, parsed_type, ptr_type
from .native import Code, Value, Variable, define
from .state import (
    ALIGNMENT_SHIFT,
    ATOMIC,
    BARRIERS,
    DENSE,
    ENGINE_SHIFT,
    GLOBAL,
    KIND_OF_RULE,
    KINDS,
    LOCATIONS,
    MAX_FINDINGS,
    MAX_OBJECTS,
    MAX_PAGES,
    PAGE_SHIFT,
    RING,
    RULE,
    RULES,
    SHARED,
    STATE,
    WRITE,
    BarrierSlot,
    Cell,
    Clock,
    Finding,
    Foreign,
    Location,
    Meeting,
    Object,
    State,
    Thread,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "kiln_cpu_san_"
CLOCK_HEADER = ctypes.sizeof(Clock)
CELL = ctypes.sizeof(Cell)
NO_INIT = 1 << 6
"""Flag of an access: what it reads need not have been written."""
_ATOMIC_BIT = 1 << 31

_functions: dict[str, tuple[list[int], int, Callable[..., Any]]] = {}


def _native(inputs: list[int], result: int = 0) -> Callable[[Any], Any]:
    """Register a function of the library by the widths of its arguments and result."""

    def register(body: Any) -> Any:
        _functions[PREFIX + body.__name__.strip("_")] = (inputs, result, body)
        return body

    return register


def exports() -> dict[str, tuple[list[int], int]]:
    """Every function of the library: the widths of its arguments and of its result."""
    return {name: (inputs, result) for name, (inputs, result, _) in _functions.items()}


def build() -> ir.Module:
    """The library as a module."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
        for name, inputs, results in (
            ("calloc", [i64, i64], [ptr]),
            ("free", [ptr], []),
            ("memset", [ptr, i32, i64], [ptr]),
        ):
            declare(module, name, inputs, results)
        array = parsed_type(f"!llvm.array<{-(-ctypes.sizeof(State) // 8)} x i64>")
        zero = ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([-(-ctypes.sizeof(State) // 8)], i64), ir.IntegerAttr.get(i64, 0)
        )
        global_(module, STATE, array, zero, linkage="external")
        for name, (inputs, result, body) in _functions.items():
            define(module, name, inputs, result, body)
        return module


def _state(c: Code) -> Any:
    return c.struct(c.symbol(STATE), State)


def _call(c: Code, name: str, *arguments: Any) -> Value:
    inputs, result, _ = _functions[PREFIX + name]
    values = [
        (c.i64(a) if w == 64 else c.i32(a)) if isinstance(a, int) else a for a, w in zip(arguments, inputs, strict=True)
    ]
    return c.call(PREFIX + name, values, result)


def _max(a: Value, b: Value) -> Value:
    return a._binary("maxui", b)


# --- memory ----------------------------------------------------------------------------------------------------------


@_native([64], 64)
def alloc(c: Code, size: Value) -> Value:
    """Zeroed memory until the end of the launch."""
    st = _state(c)
    made = c.call_c("calloc", [c.i64(1), size + 16])
    c.store(st.memory, made)
    st.memory = made
    st.allocated = st.allocated + size
    return made + 16


@_native([])
def free_all(c: Code) -> None:
    st = _state(c)
    at = c.variable(st.memory)
    with c.repeat(lambda: at.get() != 0):
        following = c.load(at.get())
        c.call_c("free", [(at.get(),)], result=False)
        at.set(following)
    st.memory = 0
    st.allocated = 0


# --- clocks ----------------------------------------------------------------------------------------------------------


def _entry(c: Code, clock: Value, index: Value) -> Value:
    """The address of an element of a clock."""
    return clock + CLOCK_HEADER + index.wide() * 4


@_native([], 64)
def clock_new(c: Code) -> Variable:
    """A clock of this group that knows nothing, held once."""
    st = _state(c)
    made = c.variable(st.free_clocks)
    with c.when(made.get() == 0):
        made.set(_call(c, "alloc", st.length.wide() * 4 + CLOCK_HEADER))
    with c.otherwise():
        st.free_clocks = c.struct(made.get(), Clock).next
        c.call_c("memset", [(made.get() + CLOCK_HEADER,), c.i32(0), st.length.wide() * 4])
    clock = c.struct(made.get(), Clock)
    clock.holders = 1
    clock.group = st.group
    clock.last = 0
    clock.foreign = 0
    return made


@_native([64])
def clock_hold(c: Code, clock: Value) -> None:
    with c.when(clock != 0):
        fields = c.struct(clock, Clock)
        fields.holders = fields.holders + 1


@_native([64])
def clock_drop(c: Code, clock: Value) -> None:
    st = _state(c)
    at = c.variable(clock)
    with c.repeat(lambda: at.get() != 0):
        fields = c.struct(at.get(), Clock)
        left = fields.holders - 1
        fields.holders = left
        following = c.variable(0)
        with c.when(left == 0):
            following.set(fields.last)
            fields.next = st.free_clocks
            st.free_clocks = at.get()
        at.set(following.get())


@_native([64, 64, 64], 64)
def foreign_add(c: Code, known: Value, group: Value, clock: Value) -> Variable:
    """A list of what is known of other groups, with what `clock` knows of `group`."""
    st = _state(c)
    result = c.variable(known)
    at = c.variable(known)
    with c.repeat(lambda: (at.get() != 0) & (c.struct(_or_state(c, at.get()), Foreign).group != group)):
        at.set(c.struct(at.get(), Foreign).next)
    old = c.variable(0)
    with c.when(at.get() != 0):
        old.set(c.struct(at.get(), Foreign).clock)
    with c.when(old.get() != clock):
        joined = c.variable(clock)
        with c.when(old.get() != 0):
            made = _call(c, "clock_new")
            c.struct(made, Clock).group = group.narrow()
            _call(c, "clock_max", made, old.get())
            _call(c, "clock_max", made, clock)
            joined.set(made)
        with c.otherwise():
            _call(c, "clock_hold", clock)
        node = _call(c, "alloc", ctypes.sizeof(Foreign))
        fields = c.struct(node, Foreign)
        fields.next = known
        fields.group = group
        fields.clock = joined.get()
        result.set(node)
    del st
    return result


def _or_state(c: Code, address: Value) -> Value:
    """An address that can be read: itself, or the state's where it is null."""
    return (address == 0).choose(c.symbol(STATE), address)


@_native([64, 64], 64)
def foreign_merge(c: Code, known: Value, other: Value) -> Variable:
    result = c.variable(known)
    at = c.variable(other)
    with c.when(known == 0):
        result.set(other)
        at.set(0)
    with c.when(known == other):
        at.set(0)
    with c.repeat(lambda: at.get() != 0):
        node = c.struct(at.get(), Foreign)
        result.set(_call(c, "foreign_add", result.get(), node.group, node.clock))
        at.set(c.struct(at.get(), Foreign).next)
    return result


@_native([64, 64])
def clock_max(c: Code, into: Value, clock: Value) -> None:
    """Element by element."""
    with c.loop(_state(c).length.wide()) as i:
        a, b = into + CLOCK_HEADER + i * 4, clock + CLOCK_HEADER + i * 4
        c.store(_max(c.load(a, 32), c.load(b, 32)), a, 32)


@_native([64, 64])
def clock_join(c: Code, into: Value, clock: Value) -> None:
    """Let a clock that nobody else has taken know all that another one knows."""
    st, fields = _state(c), c.struct(into, Clock)
    with c.when((clock != 0) & (clock != into) & (clock != fields.last)):
        other = c.struct(clock, Clock)
        foreign = _call(c, "foreign_merge", fields.foreign, other.foreign)
        fields.foreign = foreign
        with c.when(other.group == st.group):
            _call(c, "clock_max", into, clock)
        with c.otherwise():
            fields.foreign = _call(c, "foreign_add", foreign, other.group.wide(), clock)
        _call(c, "clock_hold", clock)
        _call(c, "clock_drop", fields.last)
        fields.last = clock


@_native([64, 64, 64])
def release_into(c: Code, into: Value, base: Value, own: Value) -> None:
    """Add what the running thread knows, as (base, address of its own elements)."""
    st = _state(c)
    _call(c, "clock_join", into, base)
    sections = st.length // st.threads
    with c.loop(sections) as s:
        at = _entry(c, into, s * st.threads + st.tid)
        c.store(_max(c.load(at, 32), c.load(own + s.wide() * 4, 32)), at, 32)


@_native([64, 64], 64)
def clock_union(c: Code, a: Value, b: Value) -> Variable:
    """A clock that knows what both know, held once for the caller; one of them, where possible."""
    st = _state(c)
    result = c.variable(0)
    memo = [st.at("memo", i) for i in range(3)]
    hit = (memo[2] != 0) & (memo[0] == a) & (memo[1] == b)
    with c.when((b == 0) | (a == b)):
        result.set(a)
    with c.otherwise():
        with c.when(hit):
            result.set(memo[2])
        with c.otherwise():
            same_group = c.struct(b, Clock).group == st.group
            with c.when((a == 0) & same_group):
                result.set(b)
            with c.otherwise():
                a_more, b_more = c.variable(0, 32), c.variable(0, 32)
                with c.when((a != 0) & same_group):
                    with c.loop(st.length.wide()) as i:
                        x, y = c.load(a + CLOCK_HEADER + i * 4, 32), c.load(b + CLOCK_HEADER + i * 4, 32)
                        a_more.set(a_more.get() | (x > y).narrow())
                        b_more.set(b_more.get() | (y > x).narrow())
                    fa, fb = c.struct(a, Clock).foreign, c.struct(b, Clock).foreign
                    same = fa == fb
                    with c.when((a_more.get() == 0) & (same | (fa == 0))):
                        result.set(b)
                    with c.otherwise():
                        with c.when((b_more.get() == 0) & (same | (fb == 0))):
                            result.set(a)
                with c.when(result.get() == 0):
                    made = _call(c, "clock_new")
                    _call(c, "clock_join", made, a)
                    _call(c, "clock_join", made, b)
                    c.struct(made, Clock).holders = 0
                    result.set(made)
                for clock in (a, b, result.get()):
                    _call(c, "clock_hold", clock)
                for clock in memo:
                    _call(c, "clock_drop", clock)
                for i, clock in enumerate((a, b, result.get())):
                    st.set_at("memo", i, clock)
    _call(c, "clock_hold", result.get())
    return result


@_native([64])
def acquire(c: Code, clock: Value) -> None:
    """The running thread takes a clock."""
    with c.when(clock != 0):
        thread = c.struct(_state(c).current, Thread)
        base = thread.base
        thread.base = _call(c, "clock_union", base, clock)
        _call(c, "clock_drop", base)


def _tick(c: Code, thread: Any) -> None:
    """What the thread does from now on is not what it has just released."""
    thread.set_at("own", 0, thread.at("own", 0) + 1)


@_native([64])
def release(c: Code, into: Value) -> None:
    thread = c.struct(_state(c).current, Thread)
    _call(c, "release_into", into, thread.base, thread.place("own"))
    _tick(c, thread)


@_native([32, 32, 32, 32], 32)
def ordered(c: Code, group: Value, tid: Value, clock: Value, proxy: Value) -> Variable:
    """Whether an access of another identity at `clock` happened before now, for the running thread.

    With `proxy`, for the async proxy of the running thread: what the generic proxy did counts if it was fenced.
    """
    st = _state(c)
    thread = c.struct(st.current, Thread)
    result = c.variable(0, 32)
    base = thread.base
    n = st.threads
    with c.when(group == st.group):
        index = ((proxy != 0) & (tid < n * 2)).choose(tid + n * 3, tid)
        with c.when(base != 0):
            result.set((c.load(_entry(c, base, index), 32) >= clock).narrow())
        with c.when((result.get() == 0) & (index % n == st.tid)):
            result.set((thread.at("own", index // n) >= clock).narrow())
    with c.otherwise():
        at = c.variable(0)
        with c.when(base != 0):
            at.set(c.struct(base, Clock).foreign)
        with c.repeat(lambda: (at.get() != 0) & (c.struct(_or_state(c, at.get()), Foreign).group != group.wide())):
            at.set(c.struct(at.get(), Foreign).next)
        with c.when(at.get() != 0):
            known = c.struct(at.get(), Foreign).clock
            result.set((c.load(_entry(c, known, tid), 32) >= clock).narrow())
    return result


# --- findings --------------------------------------------------------------------------------------------------------


@_native([32, 32, 32, 32, 32, 64, 32, 64, 64])
def report(
    c: Code, rule: Value, site: Value, other_site: Value, other_group: Value, other_tid: Value, address: Value,
    bytes_: Value, extra0: Value, extra1: Value,
) -> None:  # fmt: skip
    """Record a finding, once for each rule and pair of places. `address` 0: it is about no memory."""
    st = _state(c)
    wanted = c.variable(0, 32)
    for kind_number, kind in enumerate(KINDS):
        rules = [RULE[name] for name in RULES if KIND_OF_RULE[name] == kind]
        inside = (rule >= rules[0]) & (rule <= rules[-1]) & ((st.kinds & (1 << kind_number)) != 0)
        wanted.set(wanted.get() | inside.narrow())
    found = c.variable(0)
    with c.loop(st.findings_count) as i:
        at = st.place("findings", i)
        f = c.struct(at, Finding)
        same = (f.rule == rule) & (f.site == site) & (f.other_site == other_site) & (f.kernel == st.kernel)
        found.set(same.choose(at, found.get()))
    with c.when(wanted.get() != 0):
        with c.when(found.get() != 0):
            f = c.struct(found.get(), Finding)
            f.count = f.count + 1
        with c.otherwise():
            with c.when(st.findings_count < MAX_FINDINGS):
                _fill(c, st, rule, site, other_site, other_group, other_tid, address, bytes_, extra0, extra1)
                st.findings_count = st.findings_count + 1
            with c.otherwise():
                st.overflow = st.overflow + 1


def _fill(
    c: Code, st: Any, rule: Value, site: Value, other_site: Value, other_group: Value, other_tid: Value, address: Value,
    bytes_: Value, extra0: Value, extra1: Value,
) -> None:  # fmt: skip
    f = c.struct(st.place("findings", st.findings_count), Finding)
    for name, value in (
        ("rule", rule), ("site", site), ("other_site", other_site), ("group", st.group), ("tid", st.tid),
        ("other_group", other_group), ("other_tid", other_tid), ("bytes", bytes_), ("count", c.i64(1)), ("address", address),
        ("kernel", st.kernel), ("space", c.i32(0)), ("flags", c.i32(0)), ("rank", c.i32(0)), ("object", c.i32(0)), ("offset", c.i64(0)),
    ):  # fmt: skip
        setattr(f, name, value)
    f.set_at("extra", 0, extra0)
    f.set_at("extra", 1, extra1)
    for i in range(13):
        f.set_at("sizes", i, st.at("sizes", i))
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
                    _attribute(c, f, o, i, address)


def _attribute(c: Code, f: Any, o: Any, index: Value, address: Value) -> None:
    """The memory of a finding is that of an argument."""
    f.object = index + 1
    f.offset = address - o.base
    known = f.place("known")
    for word in range(ctypes.sizeof(Object) // 8):
        c.store(c.load(o.address + 8 * word), known + 8 * word)


# --- cells -----------------------------------------------------------------------------------------------------------


@_native([64], 64)
def global_cell(c: Code, address: Value) -> Variable:
    """The cell of a global address, or 0 where there is no memory for it."""
    st = _state(c)
    key = (address >> PAGE_SHIFT) + 1
    page = c.variable(0)
    with c.when(st.last_page == key):
        page.set(st.last_page_at)
    with c.otherwise():
        with c.when(st.pages == 0):
            st.pages = _call(c, "alloc", 16 * MAX_PAGES)
        slot = c.variable((key * -0x61C8864680B583EB) >> (64 - MAX_PAGES.bit_length() + 1))

        def probing() -> Value:
            at = c.load(st.pages + slot.get() * 16)
            return (at != 0) & (at != key)

        with c.repeat(probing):
            slot.set((slot.get() + 1) & (MAX_PAGES - 1))
        entry = st.pages + slot.get() * 16
        with c.when(c.load(entry) == key):
            page.set(c.load(entry + 8))
        with c.otherwise():
            cells = c.i64(1 << PAGE_SHIFT) >> st.shift.wide()
            with c.when((st.allocated < st.limit) & (st.page_count < MAX_PAGES // 2)):
                page.set(_call(c, "alloc", cells * CELL))
                c.store(key, entry)
                c.store(page.get(), entry + 8)
                st.page_count = st.page_count + 1
        st.last_page = key
        st.last_page_at = page.get()
    result = c.variable(0)
    with c.when(page.get() != 0):
        result.set(page.get() + ((address & ((1 << PAGE_SHIFT) - 1)) >> st.shift.wide()) * CELL)
    return result


@_native([], 64)
def dense_new(c: Code) -> Variable:
    """An array of (clock, site) over all identities, or 0 where there is no memory for it."""
    st = _state(c)
    size = st.identities.wide() * 8
    made = c.variable(st.free_arrays)
    with c.when(made.get() == 0):
        with c.when(st.allocated < st.limit):
            # the word before it links all of them, so that a new group gets them back
            block = _call(c, "alloc", size + 8)
            c.store(st.dense, block)
            st.dense = block
            made.set(block + 8)
    with c.otherwise():
        st.free_arrays = c.load(made.get())
        c.call_c("memset", [(made.get(),), c.i32(0), size])
    return made


_REPORT_ORDER = ("site", "group", "tid")


def _collide(c: Code, rule: Any, site: Value, cell: Any, who: str, address: Value, bytes_: Value) -> None:
    other = [getattr(cell, f"{who}_{name}") for name in _REPORT_ORDER]
    other[2] = other[2] & (_ATOMIC_BIT - 1)
    rule = c.i32(RULE[rule]) if isinstance(rule, str) else rule
    _call(c, "report", rule, site, other[0], other[1], other[2], address, bytes_, 0, 0)


@_native([64, 32, 32, 64, 32])
def touch(c: Code, at: Value, flags: Value, site: Value, address: Value, bytes_: Value) -> None:
    """One access to the bytes of one cell, by the running thread or one of its engines."""
    st = _state(c)
    thread = c.struct(st.current, Thread)
    cell = c.struct(at, Cell)
    group = st.group
    engine = (flags >> ENGINE_SHIFT) & 3
    me = engine * st.threads + st.tid
    now = c.variable(thread.at("own", 0), 32)
    with c.when(engine != 0):
        now.set(thread.at("epoch", engine - 1))
    clock = now.get()
    writes, atomic = (flags & WRITE) != 0, (flags & ATOMIC) != 0
    shared = (flags & SHARED) != 0
    again_r = (~writes) & (cell.r_clock == clock) & (cell.r_tid == me) & (cell.r_group == group)
    again_w = writes & (~atomic) & (cell.w_clock == clock) & (cell.w_tid == me) & (cell.w_group == group)
    again_w = again_w & (cell.r_clock == 0) & (cell.a_clock == 0)
    again = (again_r | again_w) & (engine == 0)
    with c.when(~again):
        proxy = (engine == 2).narrow()
        other = cell.w_tid & (_ATOMIC_BIT - 1)
        other_atomic = (cell.w_tid & _ATOMIC_BIT) != 0
        unordered = c.variable(0, 32)
        with c.when((cell.w_clock != 0) & ~((other == me) & (cell.w_group == group) & (engine == 0))):
            unordered.set(_call(c, "ordered", cell.w_group, other, cell.w_clock, proxy) ^ 1)
        same = c.variable(0, 32)
        with c.when((unordered.get() != 0) & writes & (st.value != 0) & (cell.w_site == site)):
            same.set(1)
            with c.loop(c.i64(1) << st.shift.wide()) as i:
                new = c.load(st.value + (address - st.value_for) + i, 8)
                with c.when(new != c.load(address + i, 8)):
                    same.set(0)
        with c.when((unordered.get() != 0) & (same.get() == 0) & ~(atomic & other_atomic)):
            rule = writes.choose(c.i32(RULE["write-write"]), c.i32(RULE["write-read"]))
            rule = other_atomic.choose(c.i32(RULE["atomic"]), rule)
            only_proxy = (proxy != 0) & (other < st.threads * 2)
            with c.when(only_proxy):
                in_order = _call(c, "ordered", cell.w_group, other, cell.w_clock, 0)
                _collide(c, (in_order != 0).choose(c.i32(RULE["proxy"]), rule), site, cell, "w", address, bytes_)
            with c.otherwise():
                _collide(c, rule, site, cell, "w", address, bytes_)
        with c.when((cell.a_clock != 0) & (~atomic)):
            before = cell.a_tid & (_ATOMIC_BIT - 1)
            fine = _call(c, "ordered", cell.a_group, before, cell.a_clock, proxy)
            with c.when((fine == 0) & ~((before == me) & (cell.a_group == group))):
                _collide(c, "atomic", site, cell, "a", address, bytes_)
        with c.when(writes):
            _check_readers(c, st, cell, me, engine, group, site, shared, address, bytes_)
            with c.when(atomic & other_atomic & (unordered.get() != 0)):
                for name in ("clock", "tid", "site", "group"):
                    setattr(cell, f"a_{name}", getattr(cell, f"w_{name}"))
            with c.when(~atomic):
                cell.a_clock = 0
            cell.w_clock = clock
            cell.w_tid = me | (atomic.narrow() << 31)
            cell.w_site = site
            cell.w_group = group
            cell.r_clock = 0
            cell.o_clock = 0
        with c.otherwise():
            with c.when(shared & (cell.w_clock == 0) & ((flags & NO_INIT) == 0)):
                _call(c, "report", RULE["uninitialized"], site, site, group, me, address, bytes_, 0, 0)
            with c.when(~atomic):
                _record_read(c, st, cell, me, clock, site, group, shared)


def _check_readers(
    c: Code, st: Any, cell: Any, me: Value, engine: Value, group: Value, site: Value, shared: Value, address: Value,
    bytes_: Value,
) -> None:  # fmt: skip
    dense = shared & (cell.r_clock != 0) & (cell.r_tid == DENSE)
    with c.when(dense):
        array = c.load(cell.place("o_clock"))
        # most often all readers are ordered: without branches that is quick to see
        late = c.variable(1, 32)
        base = c.struct(st.current, Thread).base
        with c.when(base != 0):
            late.set(0)
            with c.loop(st.identities.wide()) as i:
                behind = c.load(array + i * 8, 32) > c.load(base + CLOCK_HEADER + i * 4, 32)
                late.set(late.get() | (behind & (i != me.wide())).narrow())
        with c.when((late.get() == 0) & (engine != 0)):  # an engine is not ordered with itself
            late.set(1)
        last = (late.get() != 0).choose(st.identities, 0)
        with c.loop(last) as i:
            clock = c.load(array + i.wide() * 8, 32)
            with c.when((clock != 0) & ~((i == me) & (engine == 0))):
                with c.when(_call(c, "ordered", group, i, clock, 0) == 0):
                    where = c.load(array + i.wide() * 8 + 4, 32)
                    _call(c, "report", RULE["read-write"], site, where, group, i, address, bytes_, 0, 0)
        c.store(st.free_arrays, array)
        st.free_arrays = array
    with c.otherwise():
        for who in "ro":
            tid = getattr(cell, f"{who}_tid")
            known = (tid == me) & (getattr(cell, f"{who}_group") == group) & (engine == 0)
            present = (getattr(cell, f"{who}_clock") != 0) & ~known
            if who == "o":
                present = present & ~shared
            with c.when(present):
                fine = _call(c, "ordered", getattr(cell, f"{who}_group"), tid, getattr(cell, f"{who}_clock"), 0)
                with c.when(fine == 0):
                    _collide(c, "read-write", site, cell, who, address, bytes_)


def _record_read(
    c: Code, st: Any, cell: Any, me: Value, clock: Value, site: Value, group: Value, shared: Value
) -> None:
    alone = c.variable((cell.r_clock == 0).narrow(), 32)
    dense = shared & (cell.r_clock != 0) & (cell.r_tid == DENSE)
    with c.when(dense):
        array = c.load(cell.place("o_clock"))
        c.store(clock, array + me.wide() * 8, 32)
        c.store(site, array + me.wide() * 8 + 4, 32)
    with c.otherwise():
        with c.when(alone.get() == 0):
            mine = (cell.r_tid == me) & (cell.r_group == group)
            with c.when(mine):
                alone.set(1)
            with c.otherwise():
                alone.set(_call(c, "ordered", cell.r_group, cell.r_tid, cell.r_clock, 0))
        with c.when((alone.get() == 0) & shared):
            array = _call(c, "dense_new")
            with c.when(array == 0):
                alone.set(1)
            with c.otherwise():
                for who, when, where in ((cell.r_tid, cell.r_clock, cell.r_site), (me, clock, site)):
                    c.store(when, array + who.wide() * 8, 32)
                    c.store(where, array + who.wide() * 8 + 4, 32)
                cell.r_tid = DENSE
                c.store(array, cell.place("o_clock"))
        with c.when((alone.get() == 0) & ~shared):
            for name in ("clock", "tid", "site", "group"):
                setattr(cell, f"o_{name}", getattr(cell, f"r_{name}"))
            alone.set(1)
        with c.when(alone.get() != 0):
            cell.r_clock = clock
            cell.r_tid = me
            cell.r_site = site
            cell.r_group = group


@_native([64, 32, 32, 32, 32, 32], 64)
def access(c: Code, address: Value, bytes_: Value, flags: Value, site: Value, low: Value, high: Value) -> Variable:
    """Check an access; the address to use instead: elsewhere if it must not be made.

    In shared memory `low` and `high` bound the allocation, as offsets; in global memory `low` is the number of the
    argument plus 1, 0 if that is not known.
    """
    st = _state(c)
    result = c.variable(address)
    with c.when((st.active != 0) & (bytes_ != 0)):
        bad = c.variable(0, 32)
        alignment = (flags >> ALIGNMENT_SHIFT) & 63
        mask = (c.i64(1) << alignment.wide()) - 1
        with c.when((address & mask) != 0):
            _call(c, "report", RULE["alignment"], site, site, st.group, st.tid, address, bytes_, mask + 1, 0)
            bad.set(1)
        in_arena = (address >= st.arena) & (address < st.arena_end)
        said_shared = (flags & SHARED) != 0
        with c.when(in_arena):
            inside = address - st.arena
            in_block, at = c.variable(0), c.variable(inside)
            with c.when(inside >= st.chunk):
                in_block.set(inside // st.chunk)
                at.set(inside % st.chunk)
            rank, offset = in_block.get(), at.get()
            end = offset + bytes_.wide()
            limit = (high < st.smem).choose(high, st.smem).wide()
            outside = said_shared & ((offset < low.wide()) | (end > limit))
            with c.when(outside):
                _call(c, "report", RULE["bounds"], site, site, st.group, st.tid, address, bytes_, low.wide(), limit)
                bad.set(1)
            with c.otherwise():
                # frames of threads lie in the arena too, past the shared memory
                with c.when(end <= st.smem.wide()):
                    first = offset >> st.shift.wide()
                    last = (end - 1) >> st.shift.wide()
                    start = st.cells + rank * (st.cells_per_block.wide() * CELL)
                    with c.loop(last + 1, first) as i:
                        where = address + (i - first) * (c.i64(1) << st.shift.wide())
                        _call(c, "touch", start + i * CELL, flags | SHARED, site, where, bytes_)
        with c.otherwise():
            with c.when(said_shared):
                _call(c, "report", RULE["bounds"], site, site, st.group, st.tid, address, bytes_, 0, 0)
                bad.set(1)
            with c.otherwise():
                _global_access(c, st, address, bytes_, flags, site, low, bad)
        with c.when(bad.get() != 0):
            result.set(st.scratch)
    st.value = 0
    return result


@_native([64, 64])
def writes(c: Code, address: Value, value: Value) -> None:
    """The next access writes the bytes at `value`."""
    st = _state(c)
    st.value = value
    st.value_for = address


def _global_access(
    c: Code, st: Any, address: Value, bytes_: Value, flags: Value, site: Value, number: Value, bad: Variable
) -> None:
    end = address + bytes_.wide()
    known = c.variable(((flags & GLOBAL) != 0).narrow(), 32)
    with c.when((number != 0) & (number <= st.object_count)):
        o = c.struct(st.place("objects", number - 1), Object)
        outside = (o.high != 0) & ((address < o.low) | (end > o.high))
        with c.when(outside):
            _call(c, "report", RULE["bounds"], site, site, st.group, st.tid, address, bytes_, o.low, o.high)
            f = c.struct(st.place("findings", st.findings_count - 1), Finding)
            with c.when((st.findings_count != 0) & (f.rule == RULE["bounds"]) & (f.site == site) & (f.count == 1)):
                _attribute(c, f, o, number - 1, address)
            bad.set(1)
        with c.when((o.readonly != 0) & ((flags & WRITE) != 0)):
            _call(c, "report", RULE["read-only"], site, site, st.group, st.tid, address, bytes_, 0, 0)
            bad.set(1)
    with c.when(known.get() == 0):
        with c.loop(st.object_count) as i:
            o = c.struct(st.place("objects", i), Object)
            with c.when((address >= o.low) & (end <= o.high)):
                known.set(1)
    with c.when((bad.get() == 0) & (known.get() != 0)):
        step = c.i64(1) << st.shift.wide()
        first, last = address >> st.shift.wide(), (end - 1) >> st.shift.wide()
        with c.loop(last + 1, first) as i:
            where = i * step
            cell = _call(c, "global_cell", where)
            with c.when(cell != 0):
                _call(c, "touch", cell, flags, site, (where < address).choose(address, where), bytes_)


@_native([64, 64, 32, 32, 32], 64)
def private(c: Code, address: Value, base: Value, size: Value, bytes_: Value, site: Value) -> Variable:
    """Check an access to a register array of `size` bytes at `base`."""
    st = _state(c)
    result = c.variable(address)
    offset = address - base
    with c.when((st.active != 0) & ((offset + bytes_.wide() > size.wide()) | (address < base))):
        _call(c, "report", RULE["bounds"], site, site, st.group, st.tid, 0, bytes_, offset, size.wide())
        result.set(st.scratch)
    return result


@_native([32])
def number(c: Code, site: Value) -> None:
    """A result that is not finite, of operands that are."""
    st = _state(c)
    with c.when(st.active != 0):
        _call(c, "report", RULE["not-finite"], site, site, st.group, st.tid, 0, 0, 0, 0)


# --- barriers --------------------------------------------------------------------------------------------------------


@_native([64, 32, 32, 32, 32, 32])
def barrier(c: Code, at: Value, number: Value, phase: Value, count: Value, site: Value, mode: Value) -> None:
    """Arrive in a phase of the barrier whose record is at `at`.

    Mode 0 arrives, 1 waits too; 2 is the cluster's (3: relaxed).
    """
    st = _state(c)
    thread = c.struct(st.current, Thread)
    rank = (at - st.arena) // st.chunk
    slot = c.struct(st.slots + (rank * BARRIERS + number.wide()) * ctypes.sizeof(BarrierSlot), BarrierSlot)
    with c.when((slot.clock == 0) | (slot.phase != phase)):
        _call(c, "clock_drop", slot.clock)
        slot.clock = _call(c, "clock_new")
        slot.phase = phase
        slot.arrived = 0
        slot.count = count
        slot.site = site
        c.call_c("memset", [(slot.place("warp_site"),), c.i32(0), c.i64(256)])
    with c.when(slot.count != count):
        _call(c, "report", RULE["count"], site, slot.site, st.group, st.tid, 0, 0, slot.count.wide(), count.wide())
    warp = (st.tid % st.per_block) >> 5
    lane = c.i32(1) << (st.tid % st.per_block & 31)
    with c.when((slot.at("warp_lanes", warp) & lane) != 0):  # the warp comes once more
        slot.set_at("warp_lanes", warp, 0)
        slot.set_at("warp_site", warp, 0)
    slot.set_at("warp_lanes", warp, slot.at("warp_lanes", warp) | lane)
    before = slot.at("warp_site", warp)
    with c.when((mode < 2) & (before != 0) & (before != site + 1)):
        _call(c, "report", RULE["divergent"], site, before - 1, st.group, st.tid, 0, 0, number.wide(), 0)
    slot.set_at("warp_site", warp, site + 1)
    slot.arrived = slot.arrived + 1
    with c.when(mode == 3):
        _call(c, "release_into", slot.clock, thread.at("fence_base", 0), thread.place("fence_own"))
    with c.otherwise():
        _call(c, "release", slot.clock)
    clock = slot.clock
    with c.when(mode == 1):
        _call(c, "clock_hold", clock)
        thread.pending = clock
    with c.when(mode >= 2):
        _call(c, "clock_hold", clock)
        _call(c, "clock_drop", thread.pending_cluster)
        thread.pending_cluster = clock


@_native([])
def passed(c: Code) -> None:
    """The running thread has passed what it waited for."""
    thread = c.struct(_state(c).current, Thread)
    clock = thread.pending
    with c.when(clock != 0):
        thread.pending = 0
        _call(c, "acquire", clock)
        _call(c, "clock_drop", clock)


@_native([])
def passed_cluster(c: Code) -> None:
    thread = c.struct(_state(c).current, Thread)
    clock = thread.pending_cluster
    with c.when(clock != 0):
        thread.pending_cluster = 0
        _call(c, "acquire", clock)
        _call(c, "clock_drop", clock)


@_native([32, 32, 32])
def meet(c: Code, mask: Value, site: Value, orders: Value) -> None:
    """A lane comes to a meeting of the lanes of a mask; `orders`: it orders memory."""
    st = _state(c)
    thread = c.struct(st.current, Thread)
    local = st.tid % st.per_block
    lane, warp = local & 31, local >> 5
    left = st.per_block - (warp << 5)
    lanes = (left >= 32).choose(c.i32(-1), (c.i32(1) << (left & 31)) - 1)
    warps = (st.per_block + 31) >> 5
    first = ((st.tid // st.per_block) * warps + warp) * 32
    # an open meeting of the same mask, else a free record: lanes of a warp need no more than 32
    chosen = c.variable(first, 32)
    found = c.variable(0, 32)
    with c.loop(c.i32(32)) as i:
        record = c.struct(st.meetings + (first + i).wide() * ctypes.sizeof(Meeting), Meeting)
        is_open = (record.arrived != 0) & (record.mask == mask)
        usable = is_open | ((found.get() == 0) & (record.arrived == 0))
        with c.when(usable & (found.get() != 2)):
            chosen.set(first + i)
            found.set(is_open.choose(c.i32(2), c.i32(1)))
    slot = c.struct(st.meetings + chosen.get().wide() * ctypes.sizeof(Meeting), Meeting)
    mine = c.i32(1) << lane
    with c.when((mask & mine) == 0):
        _call(c, "report", RULE["lanes-mask"], site, site, st.group, st.tid, 0, 0, mask.wide(), lane.wide())
    with c.when(st.exits != 0):
        with c.loop(c.i32(32)) as i:
            there = ((mask & lanes) >> i) & 1
            with c.when(there != 0):
                other = st.tid - lane + i
                peer = c.struct(st.thread_array + other.wide() * ctypes.sizeof(Thread), Thread)
                with c.when(peer.exited != 0):
                    _call(c, "report", RULE["lanes-exited"], site, site, st.group, other, 0, 0, mask.wide(), i.wide())
    with c.when(slot.arrived == 0):
        slot.mask = mask
        slot.site = site
        slot.who = st.tid
        _call(c, "clock_drop", slot.clock)
        slot.clock = _call(c, "clock_new")
    with c.otherwise():
        with c.when(slot.site != site):
            _call(c, "report", RULE["lanes-site"], site, slot.site, st.group, slot.who, 0, 0, mask.wide(), 0)
    slot.arrived = slot.arrived + 1
    with c.when(orders != 0):
        clock = slot.clock
        _call(c, "release", clock)
        _call(c, "clock_hold", clock)
        thread.pending = clock
    with c.when(slot.arrived >= (mask & lanes).population()):
        slot.arrived = 0


# --- addresses that order memory -------------------------------------------------------------------------------------


@_native([64, 32], 64)
def location(c: Code, address: Value, create: Value) -> Variable:
    """The record of an address, or 0: it has none and `create` is 0, or there is no place."""
    st = _state(c)
    size = ctypes.sizeof(Location)
    result = c.variable(0)
    with c.when(st.locations == 0):
        st.locations = _call(c, "alloc", size * LOCATIONS)
    slot = c.variable((address * -0x61C8864680B583EB) >> (64 - LOCATIONS.bit_length() + 1))
    tries = c.variable(0)

    def probing() -> Value:
        key = c.load(st.locations + slot.get() * size)
        return (key != 0) & (key != address) & (tries.get() < LOCATIONS - 1)

    with c.repeat(probing):
        slot.set((slot.get() + 1) & (LOCATIONS - 1))
        tries.set(tries.get() + 1)
    at = st.locations + slot.get() * size
    loc = c.struct(at, Location)
    with c.when(loc.key == address):
        result.set(at)
        # an address in shared memory is another thing in another group
        with c.when((loc.born != 0) & (loc.born != st.group + 1)):
            with c.when(create != 0):
                for name in ("local", "wide"):
                    _call(c, "clock_drop", getattr(loc, name))
                for i in range(2):
                    _call(c, "clock_drop", loc.at("published", i))
                c.call_c("memset", [(at,), c.i32(0), c.i64(size)])
                loc.key = address
                loc.born = st.group + 1
            with c.otherwise():
                result.set(0)
    with c.otherwise():
        with c.when((create != 0) & (loc.key == 0)):
            loc.key = address
            in_arena = (address >= st.arena) & (address < st.arena_end)
            loc.born = in_arena.choose(st.group + 1, 0)
            result.set(at)
    return result


@_native([64, 64, 32, 64, 64], 64)
def chained(c: Code, old: Value, chain: Value, released: Value, base: Value, own: Value) -> Variable:
    """The clock of an address after a write: what was released there before, if the write continues it (`chain`), and
    what the writer releases now."""
    made = c.variable(0)
    with c.when((released != 0) | ((chain != 0) & (old != 0))):
        made.set(_call(c, "clock_new"))
        with c.when(chain != 0):
            _call(c, "clock_join", made.get(), old)
        with c.when(released != 0):
            _call(c, "release_into", made.get(), base, own)
    _call(c, "clock_drop", old)
    return made


@_native([64, 32, 32, 32])
def atomic(c: Code, address: Value, order: Value, scope: Value, how: Value) -> None:
    """An atomic access. `order`: 1 acquires, 2 releases; `scope`: 0 the block, 1 more; `how`: 0 load, 1 store, 2 both."""
    st = _state(c)
    with c.when(st.active != 0):
        thread = c.struct(st.current, Thread)
        fenced = thread.at("fence_own", 0) != 0
        releases = (how != 0) & (((order & 2) != 0) | fenced)
        at = _call(c, "location", address, releases.narrow())
        with c.when(at != 0):
            loc = c.struct(at, Location)
            block = st.group * st.at("sizes", 11) + st.tid // st.per_block
            here = (loc.local_block == block) & (loc.local != 0)
            with c.when(how != 1):
                with c.when((order & 1) != 0):
                    with c.when(here):
                        _call(c, "acquire", loc.local)
                    with c.when(scope != 0):
                        _call(c, "acquire", loc.wide)
                with c.otherwise():
                    with c.when(here):
                        _see(c, thread, 0, loc.local)
                    with c.when(scope != 0):
                        _see(c, thread, 1, loc.wide)
            with c.when(how != 0):
                explicit = (order & 2) != 0
                own = [explicit.choose(thread.place("own"), thread.place("fence_own", 6 * i)) for i in range(2)]
                base = [explicit.choose(thread.base, thread.at("fence_base", i)) for i in range(2)]
                is_rmw = (how == 2).narrow()
                chain = c.variable(is_rmw, 32)
                with c.when(loc.local_block != block):
                    chain.set(0)
                released = (explicit | fenced).narrow()
                loc.local = _call(c, "chained", loc.local, chain.get().wide(), released, base[0], own[0])
                loc.local_block = block
                with c.when(scope != 0):
                    wide_fence = thread.at("fence_own", 6) != 0
                    released = (explicit | wide_fence).narrow()
                    loc.wide = _call(c, "chained", loc.wide, is_rmw.wide(), released, base[1], own[1])
        with c.when((order & 2) != 0):
            _tick(c, thread)


def _see(c: Code, thread: Any, which: int, clock: Value) -> None:
    with c.when(clock != 0):
        before = thread.at("seen", which)
        thread.set_at("seen", which, _call(c, "clock_union", before, clock))
        _call(c, "clock_drop", before)


@_native([32])
def fence(c: Code, scope: Value) -> None:
    """What relaxed reads saw is acquired; what relaxed writes write from now on is released as of now."""
    st = _state(c)
    with c.when(st.active != 0):
        thread = c.struct(st.current, Thread)
        for i in range(2):
            with c.when((scope != 0) | (c.i32(i) == 0)):
                _call(c, "acquire", thread.at("seen", i))
        for i in range(2):
            with c.when((scope != 0) | (c.i32(i) == 0)):
                _call(c, "clock_hold", thread.base)
                _call(c, "clock_drop", thread.at("fence_base", i))
                thread.set_at("fence_base", i, thread.base)
                for s in range(6):
                    thread.set_at("fence_own", 6 * i + s, thread.at("own", s))
        _tick(c, thread)


@_native([])
def proxy_fence(c: Code) -> None:
    """The async proxy of this thread learns what the thread knows."""
    st = _state(c)
    with c.when((st.active != 0) & (st.level == 2)):
        thread = c.struct(st.current, Thread)
        thread.set_at("own", 3, thread.at("own", 0))
        thread.set_at("own", 4, thread.at("own", 1))
        base = thread.base
        with c.when(base != 0):
            with c.when(st.at("proxy_memo", 0) != base):
                made = _call(c, "clock_new")
                _call(c, "clock_join", made, base)
                n = st.threads.wide()
                with c.loop(n * 2) as i:
                    told = made + CLOCK_HEADER + (i + n * 3) * 4
                    c.store(_max(c.load(told, 32), c.load(made + CLOCK_HEADER + i * 4, 32)), told, 32)
                _call(c, "clock_hold", base)
                for i in range(2):
                    _call(c, "clock_drop", st.at("proxy_memo", i))
                st.set_at("proxy_memo", 0, base)
                st.set_at("proxy_memo", 1, made)
            made = st.at("proxy_memo", 1)
            _call(c, "clock_hold", made)
            _call(c, "clock_drop", base)
            thread.base = made
        _tick(c, thread)


# --- mbarriers -------------------------------------------------------------------------------------------------------


@_native([64, 32, 32])
def mbarrier_init(c: Code, address: Value, count: Value, site: Value) -> None:
    st = _state(c)
    at = _call(c, "location", address, 1)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        with c.when(loc.mbarrier != 0):
            _call(
                c, "report", RULE["mbarrier-twice"], site, loc.site, st.group, loc.who, address, 8,
                loc.used.wide(), count.wide(),
            )  # fmt: skip
        for i in range(2):
            _call(c, "clock_drop", loc.at("published", i))
            loc.set_at("published", i, 0)
        _call(c, "clock_drop", loc.local)
        loc.local = 0
        loc.mbarrier = 1
        loc.site = site
        loc.who = st.tid
        loc.parity = 0
        loc.used = 0
        loc.expected = 0
        loc.got = 0


@_native([64, 32], 64)
def mbarrier_at(c: Code, address: Value, site: Value) -> Variable:
    """The record of an mbarrier that is used, or 0: it is none, which is reported."""
    st = _state(c)
    result = c.variable(0)
    _call(c, "mbarrier_after", address)  # a copy may have landed meanwhile
    at = _call(c, "location", address, 1)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        with c.when(loc.mbarrier == 0):
            _call(c, "report", RULE["mbarrier-init"], site, site, st.group, st.tid, address, 8, 0, 0)
        with c.otherwise():
            loc.used = 1
            result.set(at)
    return result


@_native([64])
def mbarrier_inval(c: Code, address: Value) -> None:
    at = _call(c, "location", address, 0)
    with c.when(at != 0):
        c.struct(at, Location).mbarrier = 0


def _accumulator(c: Code, loc: Any) -> None:
    """The clock of the phase that is going on: all that was released here so far."""
    with c.when(loc.local == 0):
        made = _call(c, "clock_new")
        _call(c, "clock_join", made, loc.at("published", (loc.parity ^ 1) & 1))
        loc.local = made


@_native([64, 32, 32, 32, 32])
def mbarrier_arrive(c: Code, address: Value, arrivals: Value, bytes_: Value, site: Value, how: Value) -> None:
    """Before an arrival. `how`: 0 releases, 1 is relaxed, 2 is that of the thread's copies, 3 of its bulk copies."""
    st = _state(c)
    thread = c.struct(st.current, Thread)
    at = _call(c, "mbarrier_at", address, site)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        missing = c.load(address).narrow() & ((1 << 20) - 1)
        with c.when(missing < arrivals):
            _call(
                c, "report", RULE["mbarrier-overflow"], site, loc.site, st.group, loc.who, address, 8, missing.wide(),
                arrivals.wide(),
            )  # fmt: skip
        _accumulator(c, loc)
        clock = loc.local
        with c.when(bytes_ != 0):
            with c.when(how == 3):
                loc.got = loc.got + bytes_.wide()
            with c.otherwise():
                loc.expected = loc.expected + bytes_.wide()
                loc.bytes_site = site
        with c.when((how == 0) & (arrivals != 0)):
            _call(c, "release", clock)
        with c.when(how == 1):
            _call(c, "release_into", clock, thread.at("fence_base", 0), thread.place("fence_own"))
        with c.when(how >= 2):
            engine = how - 1
            with c.when(st.length > st.threads * engine):
                place = _entry(c, clock, engine * st.threads + st.tid)
                epoch = thread.at("epoch", engine - 1)
                c.store(_max(c.load(place, 32), epoch), place, 32)
                thread.set_at("epoch", engine - 1, epoch + 1)


@_native([64])
def mbarrier_after(c: Code, address: Value) -> None:
    """After an mbarrier changed: if that completed its phase, publish the clock."""
    at = _call(c, "location", address, 0)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        parity = (c.load(address) >> 63).narrow()
        with c.when((loc.mbarrier != 0) & (parity != loc.parity)):
            _call(c, "clock_drop", loc.at("published", loc.parity))
            loc.set_at("published", loc.parity, loc.local)
            loc.local = 0
            loc.parity = parity
            loc.expected = 0
            loc.got = 0


@_native([64, 32, 32])
def mbarrier_waited(c: Code, address: Value, phase: Value, done: Value) -> None:
    """After a wait for the phase of a parity; `done`: it was complete."""
    _call(c, "mbarrier_after", address)
    at = _call(c, "location", address, 0)
    with c.when((at != 0) & (done != 0)):
        _call(c, "acquire", c.struct(at, Location).at("published", phase & 1))


@_native([])
def stuck(c: Code) -> None:
    """No thread can go on: mbarriers that wait for bytes say how many were announced and how many came."""
    st = _state(c)
    with c.when(st.locations != 0):
        with c.loop(c.i64(LOCATIONS)) as i:
            loc = c.struct(st.locations + i * ctypes.sizeof(Location), Location)
            here = (loc.mbarrier != 0) & (loc.born == st.group + 1)
            with c.when(here & (loc.expected != loc.got)):
                _call(
                    c, "report", RULE["mbarrier-bytes"], loc.bytes_site, loc.site, st.group, loc.who, loc.key, 8,
                    loc.expected, loc.got,
                )  # fmt: skip


# --- asynchronous copies ---------------------------------------------------------------------------------------------


@_native([32])
def commit(c: Code, engine: Value) -> None:
    st = _state(c)
    thread = c.struct(st.current, Thread)
    count, epoch = thread.at("groups", engine), thread.at("epoch", engine)
    thread.set_at("ring", engine * RING + (count & (RING - 1)), epoch)
    thread.set_at("groups", engine, count + 1)
    thread.set_at("epoch", engine, epoch + 1)


@_native([32, 32])
def waited(c: Code, engine: Value, left: Value) -> None:
    st = _state(c)
    thread = c.struct(st.current, Thread)
    count = thread.at("groups", engine)
    with c.when(count > left):
        epoch = thread.at("ring", engine * RING + ((count - left - 1) & (RING - 1)))
        thread.set_at("own", engine + 1, _max(thread.at("own", engine + 1), epoch))


# --- launches and groups ---------------------------------------------------------------------------------------------


@_native([])
def begin(c: Code) -> None:
    """A call from Python begins."""
    _state(c).extents_count = 0


@_native([64, 64])
def extent(c: Code, low: Value, bytes_: Value) -> None:
    """An argument of the call is memory of so many bytes."""
    st = _state(c)
    count = st.extents_count
    with c.when((count < MAX_OBJECTS) & (low != 0)):
        st.set_at("extent_low", count, low)
        st.set_at("extent_high", count, low + bytes_)
        st.extents_count = count + 1


@_native([32, 32, 32, 32, 32])
def launch(c: Code, kinds: Value, kernel: Value, shift: Value, level: Value, smem: Value) -> None:
    """A launch begins."""
    st = _state(c)
    _call(c, "free_all")
    for name in (
        "threads", "pages", "page_count", "last_page", "last_page_at", "locations", "free_clocks", "free_arrays", "dense",
        "thread_array", "cells", "slots", "meetings", "object_count", "arena", "arena_end",
    ):  # fmt: skip
        setattr(st, name, 0)
    for i in range(3):
        st.set_at("memo", i, 0)
    for i in range(2):
        st.set_at("proxy_memo", i, 0)
    st.kinds = kinds
    st.kernel = kernel
    st.shift = shift
    st.level = level
    st.smem = smem
    st.limit = 3 << 30
    st.active = 1
    st.scratch = _call(c, "alloc", 1 << 16)


@_native([32, 64, 64, 32])
def object_(c: Code, number: Value, base: Value, bytes_: Value, readonly: Value) -> None:
    """An argument of the kernel. Its memory is that of the call's argument it points into, else what its layout says."""
    st = _state(c)
    o = c.struct(st.place("objects", number), Object)
    o.base = base
    o.low = base
    o.high = (bytes_ == 0).choose(0, base + bytes_)
    o.readonly = readonly.wide()
    with c.loop(st.extents_count) as i:
        low, high = st.at("extent_low", i), st.at("extent_high", i)
        with c.when((base >= low) & (base < high)):
            o.low = low
            o.high = high
    st.object_count = number + 1


@_native([32, 32, 64])
def leaf(c: Code, number: Value, index: Value, value: Value) -> None:
    """A dynamic leaf of an argument's layout."""
    st = _state(c)
    c.struct(st.place("objects", number), Object).set_at("leaves", index, value)


@_native([])
def launched(c: Code) -> None:
    """A launch is over."""
    _state(c).active = 0
    _call(c, "free_all")


@_native([64, 64, 32])
def group(c: Code, arena: Value, sizes: Value, number: Value) -> None:
    """The scheduler starts a group; `sizes` are its numbers (`scheduler.SIZES`)."""
    st = _state(c)
    for i in range(13):
        st.set_at("sizes", i, c.load(sizes + 4 * i, 32))
    size = [st.at("sizes", i) for i in range(13)]
    per_block = size[3] * size[4] * size[5]
    blocks = size[11]
    n = per_block * blocks
    st.group = number
    st.exits = 0
    st.arena = arena
    st.chunk = size[10].wide()
    st.arena_end = arena + size[10].wide() * blocks.wide()
    with c.when(st.threads != n):
        st.threads = n
        st.per_block = per_block
        sections = (st.level == 2).choose(c.i32(5), st.level + 1)
        st.length = n * sections
        st.identities = n * (st.level + 1)
        st.cells_per_block = (size[9] >> st.shift) + 1
        st.thread_array = _call(c, "alloc", n.wide() * ctypes.sizeof(Thread))
        st.cells_bytes = st.cells_per_block.wide() * blocks.wide() * CELL
        st.cells = _call(c, "alloc", st.cells_bytes)
        st.slots = _call(c, "alloc", blocks.wide() * (BARRIERS * ctypes.sizeof(BarrierSlot)))
        warps = ((per_block + 31) >> 5).wide() * blocks.wide()
        st.meetings = _call(c, "alloc", warps * (32 * ctypes.sizeof(Meeting)))
    with c.otherwise():
        with c.loop(n) as i:
            thread = c.struct(st.thread_array + i.wide() * ctypes.sizeof(Thread), Thread)
            for name in ("base", "pending", "pending_cluster"):
                _call(c, "clock_drop", getattr(thread, name))
            for name in ("fence_base", "seen"):
                for k in range(2):
                    _call(c, "clock_drop", thread.at(name, k))
        with c.loop(blocks * BARRIERS) as i:
            _call(c, "clock_drop", c.struct(st.slots + i.wide() * ctypes.sizeof(BarrierSlot), BarrierSlot).clock)
        warps = ((per_block + 31) >> 5) * blocks
        with c.loop(warps * 32) as i:
            _call(c, "clock_drop", c.struct(st.meetings + i.wide() * ctypes.sizeof(Meeting), Meeting).clock)
        for place, bytes_ in (
            (st.thread_array, n.wide() * ctypes.sizeof(Thread)),
            (st.cells, st.cells_bytes),
            (st.slots, blocks.wide() * (BARRIERS * ctypes.sizeof(BarrierSlot))),
            (st.meetings, warps.wide() * (32 * ctypes.sizeof(Meeting))),
        ):
            c.call_c("memset", [(place,), c.i32(0), bytes_])
        # memoized clocks are of the last group
        for i in range(3):
            _call(c, "clock_drop", st.at("memo", i))
            st.set_at("memo", i, 0)
        for i in range(2):
            _call(c, "clock_drop", st.at("proxy_memo", i))
            st.set_at("proxy_memo", i, 0)
        at = c.variable(st.dense)
        st.free_arrays = 0
        with c.repeat(lambda: at.get() != 0):
            array = at.get() + 8
            c.store(st.free_arrays, array)
            st.free_arrays = array
            at.set(c.load(at.get()))
    with c.loop(n) as i:
        thread = c.struct(st.thread_array + i.wide() * ctypes.sizeof(Thread), Thread)
        thread.set_at("own", 0, 1)
        thread.set_at("epoch", 0, 1)
        thread.set_at("epoch", 1, 1)


@_native([32, 32])
def switch(c: Code, rank: Value, thread: Value) -> None:
    """The scheduler resumes a thread."""
    st = _state(c)
    tid = rank * st.per_block + thread
    st.tid = tid
    st.current = st.thread_array + tid.wide() * ctypes.sizeof(Thread)


@_native([])
def exit_(c: Code) -> None:
    """The running thread is done."""
    st = _state(c)
    c.struct(st.current, Thread).exited = 1
    st.exits = st.exits + 1
