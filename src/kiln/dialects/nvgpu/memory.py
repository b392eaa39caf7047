"""Atomic operations, accesses with an order or a hint for the caches, and bulk stores of zeros."""

import functools
from typing import Any

from ...base_dsl.trace import emit_value
from ...hardware import features
from ...mlir import ir
from ...ptx.copies import STORE_BULK
from ...ptx.form import Form
from ...ptx.memory import LOAD, STORE
from ..cute import element_bits
from ..declaration import Access, Build, Operand, Result, attributes
from ..definition import I64, Pointer, constant, one_of
from .dialect import CuteNvgpu, wrong_space

Order: Any = one_of("relaxed", "acquire", "release", "acq_rel")
Scope: Any = one_of("cta", "cluster", "gpu", "sys")

_OF_FLOATS = ("add", "min", "max", "exch")
_VECTORS = {"f32": (2, 4), "f16": (2, 4, 8), "bf16": (2, 4, 8)}


def _wrong_operand(kind: str, type_: ir.Type) -> str:
    """Return the rule that an atomic operation of a type breaks."""
    vector = isinstance(type_, ir.VectorType)
    element = type_.element_type if vector else type_
    name = str(element)
    if vector and (kind != "add" or type_.rank != 1 or type_.shape[0] not in _VECTORS.get(name, ())):
        return f"'{kind}' of {type_}: vectors are of 2 or 4 f32, or of 2, 4 or 8 f16 or bf16, and are added"
    if isinstance(element, ir.FloatType):
        if kind not in _OF_FLOATS or name not in ("f16", "bf16", "f32", "f64"):
            return f"'{kind}' of {type_}: {', '.join(_OF_FLOATS)} are of f16, bf16, f32 and f64"
        return ""
    widths = (32,) if kind in ("inc", "dec") else (16, 32, 64)
    if getattr(element, "width", 0) not in widths:
        return f"'{kind}' of {type_}: integers have {', '.join(map(str, widths))} bits"
    return ""


def _wrong_memory(pointer: ir.Value) -> str:
    return wrong_space(pointer, "element", "gmem", "smem")


class AtomicRmw(
    CuteNvgpu.Operation,
    name="atomic_rmw",
    reads=Access("pointer", value="result"),
    writes=Access("pointer", value="value"),
    orders="place",
    alias=None,
):
    """Atomically combine the element at the pointer with `value`, and return the old element.

    Integers have 16, 32 or 64 bits (`inc`, `dec`: 32); `add`, `min`, `max` and `exch` are also of f16, bf16, f32, f64
    (of a number and a NaN, the number), `add` also of vectors of 2 or 4 f32 and of 2, 4 or 8 f16 or bf16: one step for each
    element, or for two halves.
    """

    pointer: Operand[Pointer]
    value: Operand[Any]
    result: Result[Any]
    kind: one_of("add", "min", "max", "umin", "umax", "and", "or", "xor", "exch", "inc", "dec")
    order: Order
    scope: Scope

    def check(self) -> str:
        if self.value.type != self.result.type:
            return f"takes {self.value.type} and gives {self.result.type}: the old element has the type of the new one"
        return _wrong_operand(self.kind, self.value.type) or _wrong_memory(self.pointer)


def atomic_rmw(kind: str, pointer: ir.Value, value: ir.Value, order: str, scope: str) -> ir.Value:
    """Add an `atomic_rmw`, and return the old element."""
    attrs = attributes(kind=kind, order=order, scope=scope)
    return emit_value("cute_nvgpu.atomic_rmw", value.type, (pointer, value), attrs)


class AtomicCas(
    CuteNvgpu.Operation,
    name="atomic_cas",
    reads=Access("pointer", value="result"),
    writes=Access("pointer", value="value"),
    orders="place",
    alias=None,
):
    """Atomically write `value` if the element (16, 32 or 64 bits) equals `compare`, and return the old element."""

    pointer: Operand[Pointer]
    compare: Operand[Any]
    value: Operand[Any]
    result: Result[Any]
    order: Order
    scope: Scope

    def check(self) -> str:
        if not self.compare.type == self.value.type == self.result.type:
            return f"compares {self.compare.type}, writes {self.value.type} and gives {self.result.type}: all are of one type"
        if getattr(self.value.type, "width", 0) not in (16, 32, 64):
            return f"is of {self.value.type}: elements have 16, 32 or 64 bits"
        return _wrong_memory(self.pointer)


def atomic_cas(pointer: ir.Value, compare: ir.Value, value: ir.Value, order: str, scope: str) -> ir.Value:
    """Add an `atomic_cas`, and return the old element."""
    attrs = attributes(order=order, scope=scope)
    return emit_value("cute_nvgpu.atomic_cas", value.type, (pointer, compare, value), attrs)


_PRIORITIES = ("L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::evict_unchanged")


@functools.lru_cache(maxsize=256)
def _unknown_modifier(modifiers: str, form: Form) -> str:
    words = [word for word in modifiers.split(".") if word and word not in _PRIORITIES]
    if left := form.modifiers(words)[1]:
        groups = (group for group in form.groups if group.optional and not {"space", "policy", "l2"} & {*group.fields})
        return f"has the modifier '{left[0]}': there may be {', '.join([*map(str, groups), *_PRIORITIES])}"
    return ""


def _wrong_access(modifiers: str, type_: ir.Type, form: Form) -> str:
    if unknown := _unknown_modifier(modifiers, form):
        return unknown
    count = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    bits = count * element_bits(type_.element_type if isinstance(type_, ir.VectorType) else type_)
    if bits not in (8, 16, 32, 64, 128):
        return f"is one access of {type_}: it takes 1, 2, 4, 8 or 16 bytes"
    return ""


class OrderedLoad(
    CuteNvgpu.Operation, name="ordered_load", reads=Access("pointer", value="result"), orders="place", alias=None
):
    """Load the element at the pointer, uncached in registers; `modifiers` are those of PTX `ld`, such as `acquire.gpu`.

    Vectors of up to 16 bytes are one access. `L2::evict_last` and the like are eviction priorities.
    """

    pointer: Operand[Pointer]
    result: Result[Any]
    modifiers: ir.StringAttr

    def check(self) -> str:
        return _wrong_access(self.modifiers, self.result.type, LOAD)


ordered_load: Build = OrderedLoad.build


class OrderedStore(CuteNvgpu.Operation, name="ordered_store", writes=Access("pointer", value="value"), orders="place"):
    """Store the element at the pointer, exactly once; `modifiers` are those of PTX `st`, such as `release.gpu`."""

    pointer: Operand[Pointer]
    value: Operand[Any]
    modifiers: ir.StringAttr

    def check(self) -> str:
        return _wrong_access(self.modifiers, self.value.type, STORE)


ordered_store: Build = OrderedStore.build


class Prefetch(CuteNvgpu.Operation, name="prefetch", stays="a hint for a cache"):
    """Prefetch the cache line of a global address into cache `level` (L1, L2), or a tensor map (`tensormap`)."""

    pointer: Operand[Pointer]
    level: one_of("L1", "L2", "tensormap")

    def check(self) -> str:
        return wrong_space(self.pointer, "line", "gmem")


prefetch: Build = Prefetch.build


MOST_BULK_BYTES = 1 << 24


class StoreBulk(
    CuteNvgpu.Operation,
    name="store_bulk",
    ptx=STORE_BULK,
    feature=features.BULK_STORES,
    writes=Access("pointer", "bytes"),
):
    """Fill `bytes` bytes of shared memory with zeros from the pointer on, which is aligned to 8 (sm_100 and later).

    `bytes` is a multiple of 8 up to 2^24. It is a plain store of the thread.
    """

    pointer: Operand[Pointer]
    bytes: Operand[I64]

    def check(self) -> str:
        size = constant(self.bytes)
        if size is not None and (size % 8 or not 0 <= size <= MOST_BULK_BYTES):
            return f"fills {size} bytes: a multiple of 8 up to {MOST_BULK_BYTES}"
        return wrong_space(self.pointer, "target", "smem")


store_bulk: Build = StoreBulk.build
