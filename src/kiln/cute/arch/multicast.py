"""Accesses to multicast memory, which several GPUs have at one address (`multimem`, from sm_90 on)."""

from __future__ import annotations

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import context, ir
from ...base_dsl.typing import Int32
from ..deferred_dialects import nvgpu
from .values import i32, kernel_only, pointer


def load_reduce(ptr: object, type_: str, words: int, acc: str, order: str, scope: str) -> tuple[Int32, ...]:
    """Return words added over all GPUs. `type_` is what PTX says that a word holds, `acc` the type of the accumulator."""
    kernel_only("multimem_ld_reduce")
    place = pointer(ptr, "multimem_ld_reduce", "gmem")
    loaded = nvgpu.multicast.multimem_ld_reduce(place, words, "add", type_, acc, order, scope)
    if words == 1:
        return (Int32._make(loaded),)
    position = [{"static_position": ir.DenseI64ArrayAttr.get([number], context())} for number in range(words)]
    return tuple(
        Int32._make(tracing.emit_value("vector.extract", Int32.mlir_type, (loaded,), where)) for where in position
    )


def store(ptr: object, values: tuple[object, ...], type_: str, order: str, scope: str) -> None:
    """Store words to the memory of every GPU."""
    kernel_only("multimem_st")
    words = [i32(value) for value in values]
    value = words[0]
    if len(words) > 1:
        vector = ir.VectorType.get([len(words)], Int32.mlir_type, loc=ir.Location.unknown(context()))
        value = tracing.emit_value("vector.from_elements", vector, words)
    nvgpu.multicast.multimem_st(
        pointer(ptr, "multimem_st", "gmem"), value, type=type_, order=order, scope=scope or None
    )


def red(ptr: object, value: object, kind: str, type_: str, order: str, scope: str) -> None:
    """Combine a word with that of every GPU, each atomically."""
    kernel_only("multimem_red")
    place = pointer(ptr, "multimem_red", "gmem")
    nvgpu.multicast.multimem_red(place, i32(value), kind=kind, type=type_, order=order, scope=scope or None)
