"""Loads and stores, atomics, fences, mbarriers, copies."""

from __future__ import annotations

from ....dialects.nvgpu.async_copy import BULK_REDUCTIONS
from ....hardware.limits import MBARRIER_ARRIVALS
from ....mlir import context, ir
from ...lowering.builder import int_type, ptr_type
from ...lowering.expansion import Handlers
from ..ops import async_copy
from ..ops import mbarrier as mbarrier_ops
from ..ops import memory as memory_ops
from ..ops.cluster import peer
from ..ops.cute import shared_pointer
from ..ops.sync import fence
from ..runtime.engine_table import BULK_QUEUE, COPY, COPY_QUEUE
from ..runtime.record_access import block_of
from ..sanitizer.hooks import Hooks
from .machine import BITS, ORDERS, PARTS, Machine, Refused, float_type, is_float, resized, typed
from .syntax import Address, Immediate, Operand, Register, Vector
from .tma import copy_box

INSTRUCTIONS = Handlers()


def _space(modifiers: tuple[str, ...]) -> str:
    for part in modifiers:
        if part.split("::")[0] in ("global", "shared", "local", "const", "param"):
            if part in ("local", "const", "param"):
                raise Refused(f"the state space {part}")
            return part
    return ""


def _is_local(modifiers: tuple[str, ...]) -> bool:
    """Return whether an access is to shared memory of the block."""
    return _space(modifiers) in ("shared", "shared::cta")


def _vector_type(m: Machine, kind: str, modifiers: tuple[str, ...]) -> tuple[ir.Type, int]:
    count = next((int(part[1:]) for part in modifiers if part in ("v2", "v4", "v8")), 1)
    element = int_type(BITS[kind])
    if count == 1:
        return element, 1
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context())), count


@INSTRUCTIONS.expands("ld", "ldu")
def _ld(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = typed(modifiers)
    type_, count = _vector_type(m, kind, modifiers)
    pointer = m.pointer(operands[1], _space(modifiers))
    order = ".".join(part for part in modifiers if part in ORDERS)
    made = memory_ops.ordered_load(m.x, m.op, m.b, pointer, type_, order, _is_local(modifiers))
    if count == 1:
        m.set(operands[0], made)
        return
    if not isinstance(operands[0], Vector):
        raise Refused("a vector load needs a vector of destinations")
    for number, part in enumerate(operands[0].parts):
        position = {"static_position": ir.DenseI64ArrayAttr.get([number], context())}
        m.set(part, m.b.value("vector.extract", int_type(BITS[kind]), (made,), position))


@INSTRUCTIONS.expands("st")
def _st(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = typed(modifiers)
    if "async" in modifiers:
        _st_async(m, kind, operands)
        return
    type_, count = _vector_type(m, kind, modifiers)
    pointer = m.pointer(operands[0], _space(modifiers))
    if count == 1:
        value = m.bits(operands[1], BITS[kind])
    else:
        if not isinstance(operands[1], Vector):
            raise Refused("a vector store needs a vector")
        value = m.b.value("vector.from_elements", type_, [m.bits(part, BITS[kind]) for part in operands[1].parts])
    order = ".".join(part for part in modifiers if part in ORDERS)
    memory_ops.ordered_store(m.x, m.op, m.b, pointer, value, order, _is_local(modifiers))


def _st_async(m: Machine, kind: str, operands: list[Operand]) -> None:
    """Store to another block of the cluster, then take the bytes from what its mbarrier misses."""
    parts = operands[1].parts if isinstance(operands[1], Vector) else (operands[1],)
    pointer = m.pointer(operands[0], "shared::cluster")
    mbarrier = m.pointer(operands[2], "shared::cluster")
    async_copy.store_async(m.x, m.op, m.b, pointer, [m.bits(part, BITS[kind]) for part in parts], mbarrier)


_ATOMIC_NAMES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@INSTRUCTIONS.expands("atom", "red")
def _atom(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = typed(modifiers)
    name = next((part for part in modifiers if part in _ATOMIC_NAMES), "")
    if not name or "async" in modifiers:
        raise Refused("this atomic operation")
    if any(part in ("v2", "v4", "v8") for part in modifiers):
        _atom_of_each(m, modifiers, operands, BITS[kind] // 8)
        return
    b = m.b
    returns = len(operands) == (4 if name == "cas" else 3)
    target = operands.pop(0) if returns else Register("_")
    pointer = m.pointer(operands[0], _space(modifiers))
    values = [m.bits(o, BITS[kind]) for o in operands[1:]]
    if name == "cas":
        compare, value = values
        m.set(target, memory_ops.atomic_cas(m.x, m.op, b, pointer, compare, value, ".".join(modifiers)))
        return
    if is_float(kind):
        type_ = (
            ir.VectorType.get([2], float_type(PARTS[kind]), loc=ir.Location.unknown(context()))
            if kind in PARTS
            else float_type(kind)
        )
        value = b.value("llvm.bitcast", type_, (values[0],))
        old = memory_ops.atomic_rmw(m.x, m.op, b, name, pointer, value, ".".join(modifiers))
        m.set(target, b.value("llvm.bitcast", int_type(BITS[kind]), (old,)))
        return
    how = f"u{name}" if name in ("min", "max") and kind.startswith(("u", "b")) else name
    m.set(target, memory_ops.atomic_rmw(m.x, m.op, b, how, pointer, values[0], ".".join(modifiers)))


def _atom_of_each(m: Machine, modifiers: tuple[str, ...], operands: list[Operand], size: int) -> None:
    """A vector of atomic operations: each element is one of its own."""
    plain = tuple(part for part in modifiers if part not in ("v2", "v4", "v8"))
    *targets, address, values = operands
    if not isinstance(values, Vector) or not isinstance(address, Address):
        raise Refused("an atomic operation on vectors needs a vector")
    for number, value in enumerate(values.parts):
        target = [part.parts[number] for part in targets if isinstance(part, Vector)]
        _atom(m, plain, [*target, Address(address.base, address.offset + number * size), value])


@INSTRUCTIONS.expands("createpolicy")
def _createpolicy(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """A hint for caches, which are not modelled."""
    m.set(operands[0], m.b.i64(0))


@INSTRUCTIONS.expands("getctarank")
def _getctarank(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The block of the cluster in whose shared memory an address is."""
    b = m.b
    record = block_of(b, m.x.frame_of(m.op))
    address = m.bits(operands[1], BITS[typed(modifiers)] if "shared::cluster" not in modifiers else 32)
    if "shared::cluster" in modifiers:
        there = b.value("llvm.ptrtoint", int_type(64), (shared_pointer(m.x, b, address),))
    else:
        there = resized(b, address, 64)
    here = b.value("llvm.ptrtoint", int_type(64), (record.load("smem"),))
    chunk = resized(b, record.load("chunk"), 64)
    first = b.binary("subi", here, b.binary("muli", resized(b, record.load("rank"), 64), chunk))
    m.set(operands[0], resized(b, b.binary("divui", b.binary("subi", there, first), chunk), 32))


@INSTRUCTIONS.expands("membar")
def _membar(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    _fence(m, ("sc", *({"gl": "gpu"}.get(part, part) for part in modifiers)), operands)


@INSTRUCTIONS.expands("fence")
def _fence(m: Machine, modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    kind = ".".join(modifiers)
    Hooks(m.x, m.op).fence(m.b, kind)
    fence(m.b, kind)


@INSTRUCTIONS.expands("griddepcontrol")
def _griddepcontrol(m: Machine, modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    """Launches are made in order: when a kernel starts, those before it are complete."""
    if modifiers == ("wait",):
        Hooks(m.x, m.op).depends(m.b)


@INSTRUCTIONS.expands("prefetch", "prefetchu", "setmaxnreg", "discard", "applypriority")
def _nothing(_m: Machine, _modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    """Caches are not modelled, nor are registers that assembly asks for."""


@INSTRUCTIONS.expands("nanosleep")
def _nanosleep(m: Machine, _modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    m.x.let_others_run(m.op, m.b, "nanosleep")


@INSTRUCTIONS.expands("mapa")
def _mapa(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    b = m.b
    width = BITS[typed(modifiers)]
    address = m.bits(operands[1], width)
    if width == 32 or any(part.startswith("shared") for part in modifiers):
        pointer = shared_pointer(m.x, b, resized(b, address, 32))
    else:
        pointer = b.value("llvm.inttoptr", ptr_type(), (address,))
    there = peer(m.x, m.op, b, pointer, m.bits(operands[2], 32))
    m.set(operands[0], b.value("llvm.ptrtoint", int_type(width), (there,)))


@INSTRUCTIONS.expands("mbarrier")
def _mbarrier(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    x, op, b = m.x, m.op, m.b
    x.frame_of(op)
    if "init" in modifiers:
        mbarrier_ops.mbarrier_init(x, op, b, m.pointer(operands[0], "shared"), m.bits(operands[1], 32))
    elif "inval" in modifiers:
        Hooks(x, op).mbarrier_inval(b, m.pointer(operands[0], "shared"))
    elif "expect_tx" in modifiers and "arrive" not in modifiers:
        mbarrier_ops.mbarrier_change(x, op, b, m.pointer(operands[0], "shared"), None, m.bits(operands[1], 32))
    elif "complete_tx" in modifiers:
        taken = b.binary("subi", b.i32(0), m.bits(operands[1], 32))
        mbarrier_ops.mbarrier_change(x, op, b, m.pointer(operands[0], "shared"), None, taken)
    elif "arrive" in modifiers:
        addresses = [i for i, o in enumerate(operands) if isinstance(o, Address)]
        at = addresses[0]
        if at and isinstance(operands[0], Register) and operands[0].name != "_":
            m.set(
                operands[0], b.load(int_type(64), m.pointer(operands[at], "shared"))
            )  # the state: of the phase before
        pointer = m.pointer(operands[at], "shared")
        more = m.bits(operands[at + 1], 32) if len(operands) > at + 1 else None
        if "expect_tx" in modifiers:
            mbarrier_ops.mbarrier_change(x, op, b, pointer, b.i32(1), more if more is not None else b.i32(0))
        else:
            mbarrier_ops.mbarrier_change(x, op, b, pointer, more if more is not None else b.i32(1), b.i32(0))
    elif ("try_wait" in modifiers or "test_wait" in modifiers) and "parity" in modifiers:
        pointer = m.pointer(operands[1], "shared")
        m.set(operands[0], mbarrier_ops.mbarrier_wait(x, op, b, pointer, m.bits(operands[2], 32), may_fail=True))
    elif "try_wait" in modifiers or "test_wait" in modifiers:  # by state: its phase
        parity = resized(b, b.binary("shrui", m.bits(operands[2], 64), 63), 32)
        pointer = m.pointer(operands[1], "shared")
        m.set(operands[0], mbarrier_ops.mbarrier_wait(x, op, b, pointer, parity, may_fail=True))
    elif "pending_count" in modifiers:
        m.set(operands[0], resized(b, b.binary("andi", m.bits(operands[1], 64), MBARRIER_ARRIVALS), 32))
    else:
        raise Refused("this form of mbarrier")


@INSTRUCTIONS.expands("cp")
def _cp(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    x, op, b = m.x, m.op, m.b
    if "tensor" in modifiers:
        copy_box(m, modifiers, operands)
        return
    if "reduce" in modifiers and "bulk_group" in modifiers:
        x.function.copies = True
        target, source = m.pointer(operands[0], "global"), m.pointer(operands[1], "shared")
        how, kind = next((part for part in modifiers if part in BULK_REDUCTIONS), ""), typed(modifiers)
        element = {"b32": "u32", "b64": "u64"}.get(kind, kind)
        if element not in BULK_REDUCTIONS.get(how, ()):
            raise Refused(f"the reduction {how} of {kind}")
        async_copy.bulk_reduce(x, op, b, (how, element), target, source, m.bits(operands[2], 32))
        return
    if modifiers[:1] != ("async",):
        raise Refused("this copy")
    if "prefetch" in modifiers:
        return
    x.function.copies = True
    frame, hooks, bulk = x.frame_of(op), Hooks(x, op), "bulk" in modifiers
    queue = b.i32(BULK_QUEUE if bulk else COPY_QUEUE)
    commit = hooks.bulk_commit if bulk else lambda b: hooks.commit(b, COPY)
    if "commit_group" in modifiers:
        x.call(b, "kiln_cpu_commit", [frame, queue])
        commit(b)
    elif "wait_group" in modifiers or "wait_all" in modifiers:
        if "wait_all" in modifiers:
            x.call(b, "kiln_cpu_commit", [frame, queue])
            commit(b)
        count = m.bits(operands[0], 32) if operands else b.i32(0)
        x.call(b, "kiln_cpu_wait_for_groups", [frame, queue, count])
        if bulk:
            hooks.bulk_waited(b, count, "read" in modifiers)
        else:
            hooks.waited(b, count, COPY)
    elif "mbarrier" in modifiers:
        mbarrier = m.pointer(operands[0], "shared")
        if "noinc" not in modifiers:  # one more arrival is missing until this one comes
            hooks.mbarrier_after(b, mbarrier)
            x.call(b, "kiln_cpu_mbarrier", [mbarrier, b.i32(-1), b.i32(0)])
        hooks.copies_arrive(b, mbarrier)
        x.call(b, "kiln_cpu_copy_arrive", [frame, mbarrier])
        hooks.mbarrier_after(b, mbarrier)
    elif "bulk" in modifiers and len(operands) in (4, 5):
        spaces = [part for part in modifiers if part.split("::")[0] in ("shared", "global")]
        target, source = m.pointer(operands[0], "shared"), m.pointer(operands[1], spaces[-1])
        size, mbarrier = m.bits(operands[2], 32), m.pointer(operands[3], "shared")
        if "multicast::cluster" in modifiers:
            async_copy.multicast(x, op, b, target, source, size, mbarrier, m.bits(operands[4], 16))
            return
        if len(operands) == 5 and "L2::cache_hint" not in modifiers:
            raise Refused("five operands")
        async_copy.bulk_load(x, op, b, target, source, size, mbarrier)
    elif "bulk" in modifiers and "bulk_group" in modifiers:
        target, source = m.pointer(operands[0], "global"), m.pointer(operands[1], "shared")
        async_copy.bulk_store(x, op, b, target, source, m.bits(operands[2], 32))
    elif "bulk" not in modifiers:
        size = operands[2]
        if not isinstance(size, Immediate):
            raise Refused("a copy of a size that is no number")
        taken = m.bits(operands[3], 32) if len(operands) > 3 else b.i32(int(size.value))
        target, source = m.pointer(operands[0], "shared"), m.pointer(operands[1], "global")
        async_copy.copy_async(x, op, b, target, source, taken, int(size.value))
    else:
        raise Refused("this bulk copy")
