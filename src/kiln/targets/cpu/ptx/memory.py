"""Loads and stores, atomics, fences, copies."""

from __future__ import annotations

import dataclasses

from ....mlir import context, ir
from ....ptx import control
from ....ptx import sync as sync_forms
from ....ptx.syntax import Address, Operand, Statement, Vector
from ...lowering.builder import int_type, ptr_type
from ...lowering.expansion import Handlers
from ..ops import memory as memory_ops
from ..ops.cluster import peer
from ..ops.cute import shared_pointer
from ..ops.sync import fence
from ..runtime.record_access import block_of
from ..sanitizer.hooks import hooks_of
from ..sanitizer.state import SCOPES
from .machine import BITS, ORDERS, PARTS, Fields, Machine, Refused, float_type, is_float, reads, resized, typed

INSTRUCTIONS = Handlers()


def _space(s: Statement) -> str:
    for part in s.modifiers:
        if part.split("::")[0] in ("global", "shared", "local", "const", "param"):
            if part in ("local", "const", "param"):
                raise Refused(f"the state space {part}")
            return part
    return ""


def _memory(s: Statement) -> str:
    """Return the memory space of an access as tensors have it; empty for what may be another block's, or is unknown."""
    return {"shared": "smem", "shared::cta": "smem", "global": "gmem"}.get(_space(s), "")


def _without_policy(s: Statement) -> tuple[Operand, ...]:
    """Return the operands of an access but for the cache policy, which is a hint."""
    return s.operands[:-1] if "L2::cache_hint" in s.modifiers else s.operands


def _order(s: Statement) -> str:
    noncoherent = "nc" in s.modifiers or s.name == "ldu"
    return ".".join([part for part in s.modifiers if part in ORDERS or part in SCOPES] + ["nc"] * noncoherent)


def _vector_type(s: Statement, kind: str) -> tuple[ir.Type, int]:
    count = int((s.one_of("v2", "v4", "v8") or "v1")[1:])
    element = int_type(BITS[kind])
    if count == 1:
        return element, 1
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context())), count


@INSTRUCTIONS.expands("ld", "ldu")
def _ld(m: Machine, s: Statement) -> ir.Value | None:
    target, address = _without_policy(s)
    type_, count = _vector_type(s, typed(s))
    loaded = memory_ops.ordered_load(m.x, m.op, m.b, m.pointer(address, _space(s)), type_, _order(s), _memory(s))
    if count == 1:
        return loaded
    if not isinstance(target, Vector):
        raise Refused("a vector load needs a vector of destinations")
    for part, value in zip(target.parts, m.b.elements(loaded), strict=True):
        m.set(part, value)
    return None


@INSTRUCTIONS.expands("st")
def _st(m: Machine, s: Statement) -> None:
    kind = typed(s)
    address, source = _without_policy(s)
    type_, count = _vector_type(s, kind)
    pointer = m.pointer(address, _space(s))
    if count == 1:
        value = m.bits(source, BITS[kind])
    elif isinstance(source, Vector):
        value = m.b.value("vector.from_elements", type_, [m.bits(part, BITS[kind]) for part in source.parts])
    else:
        raise Refused("a vector store needs a vector")
    memory_ops.ordered_store(m.x, m.op, m.b, pointer, value, _order(s), _memory(s))


_ATOMIC_NAMES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@INSTRUCTIONS.expands("atom", "red")
def _atom(m: Machine, s: Statement) -> ir.Value | None:
    kind = typed(s)
    name = s.one_of(*_ATOMIC_NAMES)
    if not name or "async" in s.modifiers:
        raise Refused("this atomic operation")
    if s.one_of("v2", "v4", "v8"):
        return _atom_of_each(m, s, BITS[kind] // 8)
    b = m.b
    modifiers = ".".join(s.modifiers)
    operands = _without_policy(s)
    returns = len(operands) == (4 if name == "cas" else 3)
    address, *sources = operands[returns:]
    pointer = m.pointer(address, _space(s))
    values = [m.bits(o, BITS[kind]) for o in sources]
    if name == "cas":
        compare, value = values
        old = memory_ops.atomic_cas(m.x, m.op, b, pointer, compare, value, modifiers)
    elif is_float(kind):
        type_ = float_type(PARTS.get(kind, kind))
        if kind in PARTS:
            type_ = ir.VectorType.get([2], type_, loc=ir.Location.unknown(context()))
        value = b.value("llvm.bitcast", type_, (values[0],))
        old = memory_ops.atomic_rmw(m.x, m.op, b, name, pointer, value, modifiers)
        old = b.value("llvm.bitcast", int_type(BITS[kind]), (old,))
    else:
        how = f"u{name}" if name in ("min", "max") and kind.startswith(("u", "b")) else name
        old = memory_ops.atomic_rmw(m.x, m.op, b, how, pointer, values[0], modifiers)
    return old if returns else None


def _atom_of_each(m: Machine, s: Statement, size: int) -> None:
    """Expand a vector of atomic operations: each element is one of its own."""
    plain = tuple(part for part in s.modifiers if part not in ("v2", "v4", "v8", "L2::cache_hint"))
    *targets, address, values = _without_policy(s)
    if not isinstance(values, Vector) or not isinstance(address, Address):
        raise Refused("an atomic operation on vectors needs a vector")
    for number, value in enumerate(values.parts):
        target = [part.parts[number] for part in targets if isinstance(part, Vector)]
        at = Address(address.base, address.offset + number * size)
        m.run(dataclasses.replace(s, modifiers=plain, operands=(*target, at, value), guard=None))


@INSTRUCTIONS.expands("createpolicy")
def _createpolicy(m: Machine, _s: Statement) -> ir.Value:
    """Return a hint for caches, which are not modelled."""
    return m.b.i64(0)


@reads(INSTRUCTIONS, control.CTA_RANK)
def _rank_of_shared(m: Machine, f: Fields) -> ir.Value:
    return _rank(m, m.b.value("llvm.ptrtoint", int_type(64), (shared_pointer(m.x, m.b, f.address),)))


@reads(INSTRUCTIONS, control.CTA_RANK_OF_GENERIC)
def _rank_of_generic(m: Machine, f: Fields) -> ir.Value:
    return _rank(m, f.address)


def _rank(m: Machine, there: ir.Value) -> ir.Value:
    """Return the rank of the block in whose shared memory an address of 64 bits is."""
    b = m.b
    record = block_of(b, m.x.frame_of(m.op))
    here = b.value("llvm.ptrtoint", int_type(64), (record.load("smem"),))
    chunk = resized(b, record.load("chunk"), 64)
    first = b.binary("subi", here, b.binary("muli", resized(b, record.load("rank"), 64), chunk))
    return resized(b, b.binary("divui", b.binary("subi", there, first), chunk), 32)


@reads(INSTRUCTIONS, control.MAPA, control.MAPA_WIDE)
def _mapa(m: Machine, f: Fields) -> ir.Value:
    b = m.b
    if f.space or f.form is control.MAPA:
        pointer = shared_pointer(m.x, b, resized(b, f.address, 32))
    else:
        pointer = b.value("llvm.inttoptr", ptr_type(), (f.address,))
    there = peer(m.x, m.op, b, pointer, f.rank)
    return b.value("llvm.ptrtoint", f.address.type, (there,))


@reads(INSTRUCTIONS, sync_forms.FENCE, sync_forms.FENCE_RESTRICTED, sync_forms.MEMBAR)
def _fence(m: Machine, f: Fields) -> None:
    _fence_of(m, f.kind)


@reads(INSTRUCTIONS, sync_forms.FENCE_OF_ALL)
def _fence_of_scope(m: Machine, f: Fields) -> None:
    _fence_of(m, f"acq_rel.{f.scope}")


@reads(INSTRUCTIONS, sync_forms.FENCE_OF_MAP)
def _fence_of_map(m: Machine, f: Fields) -> None:
    _fence_of(m, f"proxy.tensormap::generic.acquire.{f.scope}")


def _fence_of(m: Machine, kind: str) -> None:
    hooks_of(m.x, m.op).fence(m.b, kind)
    fence(m.b, kind)


@reads(INSTRUCTIONS, control.SET_MAX_REGISTERS)
@INSTRUCTIONS.expands("prefetch", "prefetchu", "discard", "applypriority")
def _nothing(_m: Machine, _s: Statement | Fields) -> None:
    """Do nothing: caches are not modelled, nor are registers that assembly asks for."""
