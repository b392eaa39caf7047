"""Accesses to multicast memory: each is one access to the memory of every device that the address stands for."""

from __future__ import annotations

from collections.abc import Callable

from ....dialects import nvgpu
from ....dialects.nvgpu.multicast import words_of
from ....mlir import context, ir
from ...lowering.builder import Builder, int_attr, int_type, ptr_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..runtime.multicast import KINDS, MOST_DEVICES, TYPES, WIDE
from ..sanitizer.hooks import hooks_of
from . import memory

HANDLERS = Handlers()

_UNSIGNED = {"b32": "u32", "b64": "u64"}


def _for_each_copy(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, bytes_: int, act: Callable[[Builder, ir.Value], None]
) -> tuple[ir.Value, ir.Value]:
    """Run `act` for each address that a multicast address stands for; return the list of them, and how many there are.

    An address that stands for none is a fault.
    """
    i64 = int_type(64)
    copies = x.scratch("multicast copies", MOST_DEVICES, op.location)
    start = b.value("llvm.ptrtoint", i64, (pointer,))
    count = x.call(b, "kiln_cpu_multicast_copies", [start, b.i64(bytes_), copies], int_type(32))
    nowhere = b.if_(b.compare("eq", count, 0))
    x.fault(nowhere, x.module.site(op, "multicast", "", x.function.kernel), [start])
    each, number = b.for_(b.i32(0), count, b.i32(1))
    there = each.load(i64, each.gep(copies, i64, number))
    act(each, each.value("llvm.inttoptr", ptr_type(), (there,)))
    return copies, count


def load_reduce(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    pointer: ir.Value,
    words: int,
    kind: str,
    type_: str,
    wide: bool,
    modifiers: str,
) -> ir.Value:
    """Return the reduction of words of all devices, as one integer or a vector."""
    x.let_others_run(op, b, "loop around a load")
    word = int_type(64 if "64" in type_ else 32)
    result = word if words == 1 else ir.VectorType.get([words], word, loc=ir.Location.unknown(context()))
    size = words * word.width // 8

    def before(each: Builder, place: ir.Value) -> None:
        if x.module.recorder is not None:
            x.module.recorder.looked(x, op, each, place, word if "f" not in type_ else result)
        hooks_of(x, op).ordered(each, place, result, modifiers, stores=False)

    copies, count = _for_each_copy(x, op, b, pointer, size, before)
    out = x.scratch("multicast words", 4, op.location)
    element = TYPES.index(_UNSIGNED.get(type_, type_)) | WIDE * wide
    numbers = [b.i32(number) for number in (size // 4, element, KINDS.index(kind))]
    some = b.if_(b.compare("ne", count, 0))
    x.call(some, "kiln_cpu_multicast_load", [copies, count, *numbers, out])
    return b.value("llvm.load", result, (out,), {"alignment": int_attr(int_type(64), 8)})


def store(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, value: ir.Value, modifiers: str) -> None:
    """Store words to the memory of each device."""

    def act(each: Builder, place: ir.Value) -> None:
        memory.ordered_store(x, op, each, place, value, modifiers)

    _for_each_copy(x, op, b, pointer, _bytes(value), act)


def reduce(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, value: ir.Value, kind: str, type_: str, modifiers: str
) -> None:
    """Combine words with those in the memory of each device, each atomically."""
    x.let_others_run(op, b, "loop around an atomic operation")
    words = b.elements(value) if words_of(value) > 1 else [value]

    def act(each: Builder, place: ir.Value) -> None:
        for number, word in enumerate(words):
            at = each.byte_gep(place, number * word.type.width // 8)  # pyright: ignore[reportAttributeAccessIssue]
            memory.atomic_rmw(x, op, each, _atomic_kind(kind, type_), at, _number(each, word, type_), modifiers, False)

    _for_each_copy(x, op, b, pointer, _bytes(value), act)


def _bytes(value: ir.Value) -> int:
    word = value.type.element_type if words_of(value) > 1 else value.type  # pyright: ignore[reportAttributeAccessIssue]
    return words_of(value) * word.width // 8


def _atomic_kind(kind: str, type_: str) -> str:
    return f"u{kind}" if kind in ("min", "max") and type_.startswith("u") else kind


def _number(b: Builder, word: ir.Value, type_: str) -> ir.Value:
    """Return a word as the number, or pair of numbers, that it holds."""
    floats = {"f32": ir.F32Type, "f64": ir.F64Type, "f16x2": ir.F16Type, "bf16x2": ir.BF16Type}
    if type_ not in floats:
        return word
    held: ir.Type = floats[type_].get(context())
    if type_.endswith("x2"):
        held = ir.VectorType.get([2], held, loc=ir.Location.unknown(context()))
    return b.value("llvm.bitcast", held, (word,))


def _modifiers(order: str, scope: str | None) -> str:
    return "" if order == "weak" else f"{order}.{scope}"


@HANDLERS.expands(nvgpu.multicast.MultimemLoadReduce)
def _load_reduce(x: Expander, op: nvgpu.multicast.MultimemLoadReduce, b: Builder) -> ir.Value:
    words = words_of(op.result)
    wide = op.acc == "acc::f32" or (op.acc == "" and op.type in nvgpu.multicast.BYTE_FLOATS)
    return load_reduce(x, op, b, op.pointer, words, op.kind, op.type, wide, _modifiers(op.order, op.scope))


@HANDLERS.expands(nvgpu.multicast.MultimemStore)
def _store(x: Expander, op: nvgpu.multicast.MultimemStore, b: Builder) -> None:
    store(x, op, b, op.pointer, op.value, _modifiers(op.order, op.scope))


@HANDLERS.expands(nvgpu.multicast.MultimemReduce)
def _reduce(x: Expander, op: nvgpu.multicast.MultimemReduce, b: Builder) -> None:
    reduce(x, op, b, op.pointer, op.value, op.kind, op.type, _modifiers(op.order, op.scope))
