"""Accesses of 32 bytes, which global memory has from sm_100 on: LLVM makes two of each, so they are written as PTX."""

from __future__ import annotations

from typing import Any

from ....mlir import context, ir
from ....ptx import memory
from ...lowering.builder import int_type, parsed_type
from ..device_builder import DeviceBuilder


def is_wide(type_: ir.Type, address: ir.Value, alignment: int) -> bool:
    """Return whether an access to global memory is one of 32 bytes."""
    if alignment < 32 or address.type != parsed_type("!llvm.ptr<1>"):
        return False
    return isinstance(type_, ir.VectorType) and type_.shape[0] * type_.element_type.width == 256


def _words_of(type_: Any) -> tuple[ir.Type, int]:
    """Return the type and the number of the registers in which 32 bytes are moved."""
    return (int_type(64), 4) if type_.element_type.width == 64 else (int_type(32), 8)


def load(b: DeviceBuilder, type_: ir.Type, address: ir.Value) -> ir.Value:
    """Read a vector."""
    word, count = _words_of(type_)
    parts = {"space": "global", "count": count, "type": f"b{word.width}"}
    registers = b.ptx(memory.LOAD_VECTOR, [word] * count, **parts, pointer=address)
    return b.value("llvm.bitcast", type_, (b.vector(registers),))


def store(b: DeviceBuilder, value: ir.Value, address: ir.Value) -> None:
    """Write a vector."""
    word, count = _words_of(value.type)
    words = ir.VectorType.get([count], word, loc=ir.Location.unknown(context()))
    value = value if value.type == words else b.value("llvm.bitcast", words, (value,))
    parts = {"space": "global", "count": count, "type": f"b{word.width}"}
    b.ptx(memory.STORE_VECTOR, **parts, pointer=address, value=b.elements(value))
