"""Accesses of 32 bytes, which global memory has from sm_100 on: LLVM makes two of each, so they are written as PTX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....mlir import context, ir
from ...lowering.builder import int_type, parsed_type

if TYPE_CHECKING:
    from ..device_builder import DeviceBuilder


def is_wide(type_: ir.Type, address: ir.Value, alignment: int) -> bool:
    """Return whether an access to global memory is one of 32 bytes."""
    if alignment < 32 or address.type != parsed_type("!llvm.ptr<1>"):
        return False
    return isinstance(type_, ir.VectorType) and type_.shape[0] * type_.element_type.width == 256


def _words_of(type_: Any) -> tuple[ir.Type, int, str]:
    """Return what 32 bytes are moved in: the type of a register, how many, and the letter of its constraint."""
    return (int_type(64), 4, "l") if type_.element_type.width == 64 else (int_type(32), 8, "r")


def load(b: DeviceBuilder, type_: ir.Type, address: ir.Value) -> ir.Value:
    """Read a vector."""
    word, count, letter = _words_of(type_)
    names = ", ".join(f"${n}" for n in range(count))
    code = f"ld.global.v{count}.b{word.width} {{{names}}}, [${count}];"
    made = b.asm(code, ",".join([f"={letter}"] * count + ["l"]), [address], [word] * count)
    words = ir.VectorType.get([count], word, loc=ir.Location.unknown(context()))
    return b.value("llvm.bitcast", type_, (b.value("vector.from_elements", words, made),))


def store(b: DeviceBuilder, value: ir.Value, address: ir.Value) -> None:
    """Write a vector."""
    word, count, letter = _words_of(value.type)
    words = ir.VectorType.get([count], word, loc=ir.Location.unknown(context()))
    value = value if value.type == words else b.value("llvm.bitcast", words, (value,))
    parts = b.elements(value)
    names = ", ".join(f"${n + 1}" for n in range(count))
    code = f"st.global.v{count}.b{word.width} [$0], {{{names}}};"
    b.asm(code, ",".join(["l"] + [letter] * count), [address, *parts])
