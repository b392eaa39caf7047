"""Loads and stores, atomics, fences, copies."""

from __future__ import annotations

from ....mlir import context, ir
from ....ptx import control, memory
from ....ptx import sync as sync_forms
from ....ptx.syntax import Operand, Statement
from ...lowering.builder import int_type, ptr_type
from ...lowering.expansion import Handlers
from ..ops import memory as memory_ops
from ..ops.cluster import peer
from ..ops.cute import shared_address, shared_pointer
from ..ops.sync import fence
from ..runtime.record_access import block_of
from ..sanitizer.hooks import hooks_of
from .machine import BITS, PARTS, Fields, Machine, float_type, is_float, reads, resized

INSTRUCTIONS = Handlers()


def _memory(f: Fields) -> str:
    """Return the memory space of an access as tensors have it; empty for what may be another block's, or is unknown."""
    return {"shared": "smem", "shared::cta": "smem", "global": "gmem"}.get(f.space, "")


_UNIFORM = (memory.LOAD_UNIFORM, memory.LOAD_UNIFORM_VECTOR)


def _order(f: Fields) -> str:
    return "nc" if f.form in _UNIFORM else ".".join(filter(None, (f.order, f.nc)))


@reads(INSTRUCTIONS, memory.LOAD, memory.LOAD_VECTOR, *_UNIFORM)
def _ld(m: Machine, f: Fields) -> ir.Value | list[ir.Value]:
    element = int_type(BITS[f.type])
    type_ = ir.VectorType.get([f.count], element, loc=ir.Location.unknown(context())) if f.count else element
    pointer = m.pointer(f.pointer, f.space or "")
    loaded = memory_ops.ordered_load(m.x, m.op, m.b, pointer, type_, _order(f), _memory(f))
    return m.b.elements(loaded) if f.count else loaded


@reads(INSTRUCTIONS, memory.STORE, memory.STORE_VECTOR)
def _st(m: Machine, f: Fields) -> None:
    pointer = m.pointer(f.pointer, f.space or "")
    width = BITS[f.type]
    value = m.b.vector([m.bits(part, width) for part in f.value]) if f.count else m.bits(f.value, width)
    memory_ops.ordered_store(m.x, m.op, m.b, pointer, value, f.order or "", _memory(f))


@reads(INSTRUCTIONS, memory.ATOM_CAS)
def _cas(m: Machine, f: Fields) -> ir.Value:
    pointer = m.pointer(f.pointer, f.space or "")
    compare, value = (m.bits(operand, BITS[f.type]) for operand in (f.compare, f.value))
    return memory_ops.atomic_cas(m.x, m.op, m.b, pointer, compare, value, _ordering(f))


@reads(INSTRUCTIONS, memory.ATOM, memory.RED)
def _atom(m: Machine, f: Fields) -> ir.Value | None:
    old = _update(m, f, m.pointer(f.pointer, f.space or ""), f.value)
    return None if f.form is memory.RED else old


@reads(INSTRUCTIONS, memory.ATOM_VECTOR, memory.RED_VECTOR)
def _atom_of_each(m: Machine, f: Fields) -> list[ir.Value] | None:
    """Expand a vector of atomic operations: each element is one of its own."""
    pointer = m.pointer(f.pointer, f.space or "")
    size = BITS[f.type] // 8
    old = [_update(m, f, m.b.byte_gep(pointer, n * size), value) for n, value in enumerate(f.value)]
    return None if f.form is memory.RED_VECTOR else old


def _ordering(f: Fields) -> str:
    return ".".join(filter(None, (f.order, f.scope)))


def _update(m: Machine, f: Fields, pointer: ir.Value, operand: Operand) -> ir.Value:
    """Update an element atomically, and return the bits of the old one."""
    width = BITS[f.type]
    value = m.bits(operand, width)
    if not is_float(f.type):
        kind = f"u{f.kind}" if f.kind in ("min", "max") and f.type.startswith("u") else f.kind
        return memory_ops.atomic_rmw(m.x, m.op, m.b, kind, pointer, value, _ordering(f))
    type_ = float_type(PARTS.get(f.type, str(f.type)))
    if f.type in PARTS:
        type_ = ir.VectorType.get([2], type_, loc=ir.Location.unknown(context()))
    value = m.b.value("llvm.bitcast", type_, (value,))
    old = memory_ops.atomic_rmw(m.x, m.op, m.b, f.kind, pointer, value, _ordering(f))
    return m.b.value("llvm.bitcast", int_type(width), (old,))


@INSTRUCTIONS.expands("createpolicy")
def _createpolicy(m: Machine, _s: Statement) -> ir.Value:
    """Return a hint for caches, which are not modelled."""
    return m.b.i64(0)


@reads(INSTRUCTIONS, control.CTA_RANK)
def _rank_of_shared(m: Machine, f: Fields) -> ir.Value:
    return _rank(m, m.b.value("llvm.ptrtoint", int_type(64), (shared_pointer(m.x, m.op, m.b, f.address),)))


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
        there = peer(m.x, m.op, b, shared_pointer(m.x, m.op, b, resized(b, f.address, 32)), f.rank)
        return resized(b, shared_address(m.x, m.op, b, there), f.address.type.width)
    there = peer(m.x, m.op, b, b.value("llvm.inttoptr", ptr_type(), (f.address,)), f.rank)
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


@reads(INSTRUCTIONS, control.SET_MAX_REGISTERS, memory.PREFETCH)
@INSTRUCTIONS.expands("prefetchu", "discard", "applypriority")
def _nothing(_m: Machine, _s: Statement | Fields) -> None:
    """Do nothing: caches are not modelled, nor are registers that assembly asks for."""
