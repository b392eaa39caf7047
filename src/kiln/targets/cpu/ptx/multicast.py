"""`multimem`: accesses to multicast memory."""

from __future__ import annotations

from ....mlir import ir
from ....ptx import multicast
from ...lowering.expansion import Handlers
from ..ops import multicast as multicast_ops
from .machine import Fields, Machine, reads

INSTRUCTIONS = Handlers()


def _modifiers(f: Fields) -> str:
    return ".".join(filter(None, (f.order, f.scope))) if f.order not in (None, "weak") else ""


def _width(f: Fields) -> int:
    return 64 if "64" in f.type else 32


@reads(INSTRUCTIONS, multicast.LOAD_REDUCE, multicast.LOAD_REDUCE_VECTOR)
def _load_reduce(m: Machine, f: Fields) -> ir.Value | list[ir.Value]:
    words = f.count or 1
    wide = f.acc == "acc::f32" or (f.acc is None and "e" in f.type)
    pointer = m.pointer(f.pointer, "global")
    loaded = multicast_ops.load_reduce(m.x, m.op, m.b, pointer, words, f.kind, f.type, wide, _modifiers(f))
    return m.b.elements(loaded) if f.count else loaded


def _value(m: Machine, f: Fields) -> ir.Value:
    if f.count:
        return m.b.vector([m.bits(part, _width(f)) for part in f.value])
    return m.bits(f.value, _width(f))


@reads(INSTRUCTIONS, multicast.STORE, multicast.STORE_VECTOR)
def _store(m: Machine, f: Fields) -> None:
    multicast_ops.store(m.x, m.op, m.b, m.pointer(f.pointer, "global"), _value(m, f), _modifiers(f))


@reads(INSTRUCTIONS, multicast.STORE_ASYNC)
def _store_async(m: Machine, f: Fields) -> None:
    value = m.bits(f.value, _width(f))
    multicast_ops.store(m.x, m.op, m.b, m.pointer(f.pointer, "global"), value, f"release.{f.scope}")


@reads(INSTRUCTIONS, multicast.REDUCE, multicast.REDUCE_VECTOR)
def _reduce(m: Machine, f: Fields) -> None:
    pointer = m.pointer(f.pointer, "global")
    multicast_ops.reduce(m.x, m.op, m.b, pointer, _value(m, f), f.kind, f.type, _modifiers(f))
