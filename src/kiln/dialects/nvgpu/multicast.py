"""Accesses to multicast memory: an address that stands for memory of several GPUs.

Only these operations take such an address, and TMA stores, whose tensor map begins there. Words are those of all GPUs:
a load reduces them, a store and a reduction go to each.
"""

from collections.abc import Iterator

from ...base_dsl.trace import emit_value
from ...hardware import features
from ...mlir import context, ir
from ...ptx import multicast as forms
from ..declaration import Access, Build, Operand, OptionalAttr, Result, attributes
from ..definition import Integer, Pointer, one_of
from .dialect import CuteNvgpu, wrong_space
from .memory import Scope

KINDS = ("add", "min", "max", "and", "or", "xor")
TYPES = ("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64", "f16x2", "bf16x2", "e4m3x4", "e5m2x4")
BYTE_FLOATS = ("e4m3x4", "e5m2x4")


def words_of(value: ir.Value) -> int:
    """Return the registers of a value: 1, or the elements of a vector."""
    return value.type.shape[0] if isinstance(value.type, ir.VectorType) else 1


def _wrong_words(value: ir.Value, type_: str) -> str:
    bits = 64 if "64" in type_ else 32
    vector = value.type if isinstance(value.type, ir.VectorType) else None
    element = value.type if vector is None else vector.element_type
    if str(element) != f"i{bits}" or words_of(value) not in (1, 2, 4):
        return f"has {value.type} for {type_}: 1, 2 or 4 integers of {bits} bits"
    return ""


class MultimemLoadReduce(
    CuteNvgpu.Operation,
    name="multimem_ld_reduce",
    feature=features.MULTICAST_MEMORY,
    reads=Access("pointer", value="result"),
    orders="place",
    alias=None,
):
    """Load words from each GPU that a multicast address stands for, and return their reduction.

    `type` says what a word holds. Halves are added in their own type, or in f32 (`acc` is "acc::f32"); four floats of 8
    bits in f32, or in f16 ("acc::f16"). The order of the additions is not defined. `order` is weak, relaxed or acquire.
    """

    pointer: Operand[Pointer]
    result: Result[Integer | ir.VectorType]
    kind: one_of(*KINDS)
    type: one_of(*TYPES)
    acc: one_of("", "acc::f32", "acc::f16")
    order: one_of("weak", "relaxed", "acquire")
    scope: OptionalAttr[Scope]

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield from super().needs()
        if self.type in BYTE_FLOATS:
            yield features.MULTICAST_BYTE_FLOATS, ""

    def check(self) -> str:
        fields = _fields(self, self.result) | {"acc": self.acc or None}
        form = forms.LOAD_REDUCE_VECTOR if words_of(self.result) > 1 else forms.LOAD_REDUCE
        return form.rule(fields) or _wrong_words(self.result, self.type) or wrong_space(self.pointer, "word", "gmem")


class MultimemStore(
    CuteNvgpu.Operation,
    name="multimem_st",
    feature=features.MULTICAST_MEMORY,
    writes=Access("pointer", value="value"),
    orders="place",
):
    """Store words to each GPU that a multicast address stands for. `order` is weak, relaxed or release."""

    pointer: Operand[Pointer]
    value: Operand[Integer | ir.VectorType]
    type: one_of("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64", "f16x2", "bf16x2")
    order: one_of("weak", "relaxed", "release")
    scope: OptionalAttr[Scope]

    def check(self) -> str:
        form = forms.STORE_VECTOR if words_of(self.value) > 1 else forms.STORE
        wrong = form.rule(_fields(self, self.value))
        return wrong or _wrong_words(self.value, self.type) or wrong_space(self.pointer, "word", "gmem")


class MultimemReduce(
    CuteNvgpu.Operation,
    name="multimem_red",
    feature=features.MULTICAST_MEMORY,
    reads=Access("pointer"),
    writes=Access("pointer", value="value"),
    orders="place",
):
    """Combine words with those of each GPU that a multicast address stands for, each atomically. `order` is relaxed or
    release."""

    pointer: Operand[Pointer]
    value: Operand[Integer | ir.VectorType]
    kind: one_of(*KINDS)
    type: one_of(*(type_ for type_ in TYPES if type_ not in BYTE_FLOATS))
    order: one_of("relaxed", "release")
    scope: OptionalAttr[Scope]

    def check(self) -> str:
        form = forms.REDUCE_VECTOR if words_of(self.value) > 1 else forms.REDUCE
        wrong = form.rule(_fields(self, self.value))
        return wrong or _wrong_words(self.value, self.type) or wrong_space(self.pointer, "word", "gmem")


def _fields(op: MultimemLoadReduce | MultimemStore | MultimemReduce, value: ir.Value) -> dict[str, object]:
    """Return the fields of an operation's form in PTX."""
    words = words_of(value)
    kind = getattr(op, "kind", None)
    return {
        "kind": kind,
        "type": op.type,
        "order": op.order,
        "scope": op.scope,
        "count": words if words > 1 else None,
        "acc": None,
    }


def multimem_ld_reduce(
    pointer: ir.Value, words: int, kind: str, type_: str, acc: str, order: str, scope: str
) -> ir.Value:
    """Add a `multimem_ld_reduce` of some words, and return them: one, or a vector."""
    bits = ir.IntegerType.get_signless(64 if "64" in type_ else 32, context())
    result = bits if words == 1 else ir.VectorType.get([words], bits, loc=ir.Location.unknown(context()))
    stated = attributes(kind=kind, type=type_, acc=acc, order=order, scope=scope or None)
    return emit_value("cute_nvgpu.multimem_ld_reduce", result, (pointer,), stated)


multimem_st: Build = MultimemStore.build
multimem_red: Build = MultimemReduce.build
