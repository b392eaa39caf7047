"""Vector accesses: loads and stores of all elements of a layout, as wide as contiguity and alignment allow.

The order of the values is that of the layout's indices: the first mode runs fastest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import context, ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import BFloat16, Float16, Float32, Float64, Int8, Int16, Int32, Integer
from ...hardware.limits import REGISTERS_PER_THREAD
from ..deferred_dialects import nvgpu
from ..layout.basis import add_coords
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, product
from ..layout.layout import Layout
from ..layout.leaf import get_divisibility, leaf_add, leaf_mul
from ..layout.recast import recast_layout
from ..layout.swizzle import Swizzle
from .pointer import (
    AddressSpace,
    Pointer,
    address_at,
    alignment_at,
    element_bits,
    load_vector,
    recast_ptr,
    require_writable,
    store_vector,
)

WIDEST_ACCESS = 32
"""The bytes of the widest single access: to global memory, where the alignment is known to be that much."""
_WIDEST_ELSEWHERE = 16
MOST_ELEMENTS = 1 << 13
"""The most elements of a value: registers of a thread have 8,160 bits."""
_LONG = 16
"""The contiguous elements of a thread's own memory above which they are one access, which targets split."""


class Access(NamedTuple):
    """`len(positions)` contiguous elements at `offset`: their places among the values."""

    offset: Any
    positions: Sequence[int]


def static_size(layout: Any, what: str) -> int:
    """Return the number of elements; it must be known while tracing."""
    count = product(layout.shape)
    if not isinstance(count, int):
        raise type_error(
            f"{what} needs a static shape, and the layout is {layout}",
            "cut a tile of static shape out of the tensor first, or loop over its elements",
        )
    if count == 0:
        raise type_error(f"{what} of a tensor without elements: the layout is {layout}")
    check_length(count, what)
    return count


def check_length(count: int, what: str) -> None:
    """Refuse a value of more elements than the registers of a thread have bits."""
    if count > MOST_ELEMENTS:
        raise type_error(
            f"{what} of {count} elements: a value has at most {MOST_ELEMENTS}, and a thread {REGISTERS_PER_THREAD} registers of 32 bits",
            "give each thread a part of the tensor, partition() of a tiled copy or a smaller tile, or loop over its elements",
        )


class Group(NamedTuple):
    """Elements with one dynamic offset: static offsets from there, and their places among the values."""

    base: Any
    offsets: Sequence[int]
    positions: Sequence[int]


def accesses(pointer: Pointer, layout: object, count: int) -> Iterator[Access]:
    """Return the accesses that cover `count` elements of a layout, as wide as contiguity and alignment allow."""
    for group in _groups(layout, count):
        yield from _runs(pointer, group, WIDEST_ACCESS)


def _groups(layout: Any, count: int) -> Iterator[Group]:
    """Return the parts of a layout that have one dynamic offset each."""
    if isinstance(layout, ComposedLayout):
        if layout.is_static() and isinstance(layout.inner, (Swizzle, Layout)):
            yield Group(0, [layout(i) for i in range(count)], range(count))
            return
        width = _composed_width(layout, count)
        if isinstance(layout.inner, Swizzle) and layout.outer.is_static():
            yield from _swizzled_groups(layout, count, width)
            return
        for first in range(0, count, width):
            yield Group(layout(first), range(width), range(first, first + width))
        return
    shapes = flatten_to_tuple(layout.shape)
    strides = flatten_to_tuple(layout.stride)
    if all(isinstance(d, int) for d in strides):
        yield Group(0, _static_offsets(shapes, strides), range(count))
        return
    fixed = tuple(d if isinstance(d, int) else 0 for d in strides)
    offsets = _static_offsets(shapes, fixed)
    dynamic = [i for i, d in enumerate(strides) if not isinstance(d, int)]
    places: dict[tuple[int, ...], list[int]] = {}
    for position, coord in enumerate(itertools.product(*(range(s) for s in reversed(shapes)))):
        places.setdefault(tuple(coord[len(shapes) - 1 - i] for i in dynamic), []).append(position)
    for coord, positions in places.items():
        base: Any = 0
        for c, mode in zip(coord, dynamic, strict=True):
            base = leaf_add(base, leaf_mul(c, strides[mode]))
        yield Group(base, [offsets[p] for p in positions], positions)


def _swizzled_groups(layout: ComposedLayout, count: int, width: int) -> Iterator[Group]:
    """Return the groups of a swizzle of a dynamic offset: places that are whole periods apart share one."""
    period = layout.inner.period
    places: dict[int, tuple[list[int], list[int]]] = {}
    for first in range(0, count, width):
        place = layout.outer(first)
        offsets, positions = places.setdefault(place % period, ([], []))
        offsets += range(place - place % period, place - place % period + width)
        positions += range(first, first + width)
    for rest, (offsets, positions) in places.items():
        yield Group(layout.inner(add_coords(layout.offset, rest)), offsets, positions)


@functools.lru_cache(maxsize=1024)
def _static_offsets(shapes: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    offsets = [0]
    for s, d in zip(shapes, strides, strict=True):
        offsets = [base + i * d for i in range(s) for base in offsets]
    return offsets


def _composed_width(layout: ComposedLayout, count: int) -> int:
    """Return how many consecutive values stay contiguous in a composed layout with dynamic parts."""
    if not isinstance(layout.inner, Swizzle):
        return 1
    outer = layout.outer
    shapes = flatten_to_tuple(outer.shape)
    strides = flatten_to_tuple(outer.stride)
    width = 1
    for s, d in zip(shapes, strides, strict=True):
        if s == 1:
            continue
        if d != width:
            break
        width *= s
    limit = 1 << layout.inner.num_base
    offset = get_divisibility(layout.offset) if not isinstance(layout.offset, tuple) else 1
    rest = [get_divisibility(d) for s, d in zip(shapes, strides, strict=True) if s != 1 and d != 1]
    while width > 1 and (width > limit or count % width or offset % width or any(d % width for d in rest if d > width)):
        width = width // 2 if width % 2 == 0 else 1
    return width


def _widest(pointer: Pointer) -> int:
    return WIDEST_ACCESS if pointer.memspace is AddressSpace.gmem else _WIDEST_ELSEWHERE


def _runs(pointer: Pointer, group: Group, widest: int) -> Iterator[Access]:
    """Return the accesses of a group, none wider than `widest` bytes."""
    base, offsets, positions = group
    widest = min(widest, _widest(pointer))
    alignment = alignment_at(pointer, base)
    for start, places in _plan(tuple(offsets), tuple(positions), element_bits(pointer.dtype), alignment, widest):
        yield Access(leaf_add(base, start), places)


@functools.lru_cache(maxsize=4096)
def _plan(
    offsets: tuple[int, ...], positions: tuple[int, ...], bits: int, alignment: int, widest: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Return where each access starts, and the places of its elements among the values."""
    order = sorted(range(len(offsets)), key=lambda i: (offsets[i], positions[i]))
    longest = widest * 8 // bits
    accesses: list[tuple[int, tuple[int, ...]]] = []
    i = 0
    while i < len(order):
        start = offsets[order[i]]
        length = 1
        while length < longest and i + length < len(order) and offsets[order[i + length]] == start + length:
            length += 1
        width = 1
        while width * 2 <= length and _fits(width * 2, bits, alignment, start, widest):
            width *= 2
        if width == 1 and bits < 8:  # packed elements: the least that is whole bytes may be more than two
            whole = 8 // bits
            if whole <= length and _fits(whole, bits, alignment, start, widest):
                width = whole
                while width * 2 <= length and _fits(width * 2, bits, alignment, start, widest):
                    width *= 2
        accesses.append((start, tuple(positions[order[i + k]] for k in range(width))))
        i += width
    return accesses


def _fits(width: int, bits: int, alignment: int, start: int, widest: int) -> bool:
    size = width * bits
    if size % 8:
        return False  # packed elements are read by whole bytes
    size //= 8
    return size <= widest and alignment % size == 0 and (start * bits) % (size * 8) == 0


def _is_row(pointer: Pointer, layout: object, count: int) -> bool:
    """Return whether many elements of a layout lie in a row of a thread's own memory, in whole accesses."""
    if pointer.memspace is not AddressSpace.rmem or count <= _LONG or not isinstance(pointer._offset, int):
        return False
    bits = element_bits(pointer.dtype)
    return (
        bits in (8, 16, 32)
        and count * bits % (8 * _WIDEST_ELSEWHERE) == 0
        and alignment_at(pointer, 0) >= _WIDEST_ELSEWHERE
        and isinstance(layout, Layout)
        and layout.is_static()
        and _is_compact(flatten_to_tuple(layout.shape), flatten_to_tuple(layout.stride))
    )


@functools.lru_cache(maxsize=1024)
def _is_compact(shapes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether elements lie one after another."""
    step = 1
    for s, d in zip(shapes, strides, strict=True):
        if s != 1 and d != step:
            return False
        step *= s
    return True


def load(pointer: Pointer, layout: object, count: int) -> ir.Value:
    """Return all elements of a layout, as one vector."""
    if _is_row(pointer, layout, count):
        return load_vector(pointer, 0, count)
    dtype = pointer.dtype
    parts: list[tuple[Access, ir.Value]] = []
    for access in accesses(pointer, layout, count):
        width = len(access.positions)
        if width == 1:
            value = pointer.element(access.offset).ir_value()
        else:
            value = load_vector(pointer, access.offset, width)
        parts.append((access, value))
    return assemble(dtype, count, parts)


def assemble(dtype: Any, count: int, parts: Sequence[tuple[Access, ir.Value]]) -> ir.Value:
    """Return one vector of values that were read in parts."""
    vector = dtype.vector_type(count)
    in_order = all(
        list(a.positions) == list(range(a.positions[0], a.positions[0] + len(a.positions))) for a, _ in parts
    )
    if in_order and len(parts) == 1 and len(parts[0][0].positions) == count and count > 1:
        return parts[0][1]
    if (
        in_order
        and _is_power_of_two(len(parts))
        and len(parts) < count
        and all(len(a.positions) * len(parts) == count for a, _ in parts)
    ):
        return _concatenated(dtype, sorted(parts, key=lambda part: part[0].positions[0]))
    if in_order and all(len(a.positions) > 1 for a, _ in parts):
        assembled = tracing.emit_value("ub.poison", vector, (), _poison())
        for access, value in parts:
            assembled = tracing.emit_value(
                "vector.insert_strided_slice", vector, (value, assembled), _slice_at(access.positions[0])
            )
        return assembled
    elements: list[Any] = [None] * count
    for access, value in parts:
        for k, position in enumerate(access.positions):
            elements[position] = value if len(access.positions) == 1 else extract(value, k, dtype)
    return tracing.emit_value("vector.from_elements", vector, elements)


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _concatenated(dtype: Any, parts: Sequence[tuple[Access, ir.Value]]) -> ir.Value:
    """Return one vector of as many vectors of one length as a power of two, in order."""
    length = len(parts[0][0].positions)
    values = [value for _, value in parts]
    while len(values) > 1:
        length *= 2
        vector = dtype.vector_type(length)
        mask = _mask(tuple(range(length)))
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [tracing.emit_value("vector.shuffle", vector, pair, mask) for pair in pairs]
    return values[0]


def store(pointer: Pointer, layout: object, count: int, value: ir.Value) -> None:
    """Write a vector to all elements of a layout."""
    require_writable(pointer)
    if _is_row(pointer, layout, count):
        store_vector(pointer, 0, value)
        return
    dtype = pointer.dtype
    for access in accesses(pointer, layout, count):
        store_vector(pointer, access.offset, pick(value, count, access.positions, dtype))


def pick(value: ir.Value, count: int, positions: Sequence[int], dtype: Any) -> ir.Value:
    """Return some elements of a vector of `count`: a vector, or the element itself if it is one."""
    if len(positions) == 1:
        return extract(value, positions[0], dtype)
    first = positions[0]
    if list(positions) == list(range(first, first + len(positions))):
        if len(positions) == count:
            return value
        attributes = _extract_slice(first, len(positions))
        return tracing.emit_value(
            "vector.extract_strided_slice", dtype.vector_type(len(positions)), (value,), attributes
        )
    return tracing.emit_value(
        "vector.shuffle", dtype.vector_type(len(positions)), (value, value), _mask(tuple(positions))
    )


def extract(value: ir.Value, position: int, dtype: Any) -> ir.Value:
    """Return one element of a vector."""
    return tracing.emit_value("vector.extract", dtype.mlir_type, (value,), _position(position))


@functools.lru_cache(maxsize=4096)
def _position(position: int) -> dict[str, ir.Attribute]:
    return {"static_position": ir.DenseI64ArrayAttr.get([position], context())}


@functools.lru_cache(maxsize=4096)
def _mask(positions: tuple[int, ...]) -> dict[str, ir.Attribute]:
    return {"mask": ir.DenseI64ArrayAttr.get(list(positions), context())}


@functools.lru_cache(maxsize=4096)
def _slice_at(offset: int) -> dict[str, ir.Attribute]:
    return {
        "offsets": ir.Attribute.parse(f"[{offset} : i64]", context()),
        "strides": ir.Attribute.parse("[1 : i64]", context()),
    }


@functools.lru_cache(maxsize=4096)
def _extract_slice(offset: int, size: int) -> dict[str, ir.Attribute]:
    return {**_slice_at(offset), "sizes": ir.Attribute.parse(f"[{size} : i64]", context())}


@functools.lru_cache(maxsize=1)
def _poison() -> dict[str, ir.Attribute]:
    return {"value": ir.Attribute.parse("#ub.poison", context())}


_AS_THEY_ARE = (Float16, BFloat16, Float32, Float64)


def bits_pointer(pointer: Pointer) -> Pointer:
    """Return the registers with elements whose vectors can be recast: narrow floats become integers of their width."""
    if pointer.dtype in _AS_THEY_ARE or issubclass(pointer.dtype, Integer):
        return pointer
    return recast_ptr(pointer, pointer.swizzle, {8: Int8, 16: Int16, 32: Int32}[element_bits(pointer.dtype)])


class Registers:
    """A tensor as one vector for each call of an operation; its layout is static, or a call has one value."""

    def __init__(self, pointer: Pointer, layout: object, values: int) -> None:
        self.pointer = pointer
        self.values = values
        self.offsets: Sequence[Any] = _offsets(layout)
        """The offset of each value, call after call."""
        self._places = tuple(range(values))
        self._alignment = alignment_at(pointer, 0)
        self._widest = _widest(pointer)

    def every(self, step: int) -> Registers:
        """Return the registers with every `step`-th value of a call only."""
        registers = object.__new__(Registers)
        registers.__dict__.update(self.__dict__)
        registers.values = self.values // step
        registers.offsets = self.offsets[::step]
        registers._places = tuple(range(registers.values))
        return registers

    def _accesses(self, call: int) -> list[tuple[int, tuple[int, ...]]]:
        offsets = tuple(self.offsets[call * self.values : (call + 1) * self.values])
        return _plan(offsets, self._places, element_bits(self.pointer.dtype), self._alignment, self._widest)

    def load(self, call: int) -> ir.Value:
        """Return the values of a call."""
        pointer = self.pointer
        accesses = self._accesses(call)
        if len(accesses) == 1 and accesses[0][1] == self._places and self.values > 1:
            return load_vector(pointer, accesses[0][0], self.values)
        parts: list[tuple[Access, ir.Value]] = []
        for start, places in accesses:
            if len(places) == 1:
                value = pointer.element(start).ir_value()
            else:
                value = load_vector(pointer, start, len(places))
            parts.append((Access(start, places), value))
        return assemble(pointer.dtype, self.values, parts)

    def store(self, call: int, value: ir.Value) -> None:
        """Write the values of a call."""
        pointer = self.pointer
        require_writable(pointer)
        for start, places in self._accesses(call):
            store_vector(pointer, start, pick(value, self.values, places, pointer.dtype))


def word_registers(pointer: Pointer, layout: object, values: int) -> Registers:
    """Return a tensor as vectors that can be recast: of words for elements below 8 bits, of integers for bytes."""
    bits = element_bits(pointer.dtype)
    if bits >= 8:
        return Registers(bits_pointer(pointer), layout, values)
    return Registers(recast_ptr(pointer, None, Int32), recast_layout(32, bits, layout), values * bits // 32)


def _offsets(layout: Any) -> Sequence[Any]:
    """Return the offsets of all elements of a layout."""
    if isinstance(layout, ComposedLayout) or not layout.is_static():
        return [layout(i) for i in range(product(layout.shape))]
    return _static_offsets(flatten_to_tuple(layout.shape), flatten_to_tuple(layout.stride))


class Copy:
    """Copying between two layouts with the same number of elements, in parts: `move(positions)` copies some of them.

    No access is wider than `widest` bytes; 0 copies element by element. `modifiers` are those of PTX for loads and
    stores of memory: an order, a cache hint. `check` is called before elements are copied.
    """

    def __init__(
        self,
        src: Pointer,
        src_layout: object,
        dst: Pointer,
        dst_layout: object,
        count: int,
        widest: int,
        modifiers: tuple[str, str] = ("", ""),
        check: Callable[[Iterable[int]], None] | None = None,
    ) -> None:
        require_writable(dst)
        self._check = check
        self._count = count
        self._src = src
        self._dst = dst
        self._widest = min(widest, _WIDEST_ELSEWHERE) if any(modifiers) else widest
        if any("mmio" in text for text in modifiers):  # single elements only
            self._widest = 0
        self._modifiers = tuple(_of_space(text, pointer) for text, pointer in zip(modifiers, (src, dst), strict=True))
        self.narrowest: int = count
        """Elements of the narrowest access to memory (not registers) so far."""
        # Dynamic offsets are computed here, before any branch that uses them.
        self._src_groups = list(_groups(src_layout, count))
        self._dst_groups = list(_groups(dst_layout, count))

    def _accesses(self, pointer: Pointer, groups: Sequence[Group], needed: frozenset[int] | None) -> Iterator[Access]:
        for group in groups:
            if needed is not None:
                kept = [k for k, p in enumerate(group.positions) if p in needed]
                if not kept:
                    continue
                group = Group(group.base, [group.offsets[k] for k in kept], [group.positions[k] for k in kept])
            for access in _runs(pointer, group, self._widest):
                if pointer.memspace is not AddressSpace.rmem:
                    self.narrowest = min(self.narrowest, len(access.positions))
                yield access

    def move(self, needed: frozenset[int] | None = None) -> None:
        """Copy the elements at these indices; all without any."""
        if self._check is not None:
            self._check(range(self._count) if needed is None else sorted(needed))
        dtype = self._src.dtype
        where: dict[int, tuple[int, int]] = {}
        values: list[tuple[ir.Value, int]] = []
        for access in self._accesses(self._src, self._src_groups, needed):
            width = len(access.positions)
            if self._modifiers[0]:
                value = _load_modified(self._src, access.offset, width, self._modifiers[0])
            elif width == 1:
                value = self._src.element(access.offset).ir_value()
            else:
                value = load_vector(self._src, access.offset, width)
            for k, position in enumerate(access.positions):
                where[position] = (len(values), k)
            values.append((value, width))
        for access in self._accesses(self._dst, self._dst_groups, needed):
            value = _gather(access.positions, where, values, dtype)
            if self._modifiers[1]:
                _store_modified(self._dst, access.offset, value, self._modifiers[1])
            else:
                store_vector(self._dst, access.offset, value)


def _of_space(modifiers: str, pointer: Pointer) -> str:
    """Return the modifiers that accesses to a memory can have."""
    if pointer.memspace is AddressSpace.rmem:
        return ""
    if pointer.memspace is AddressSpace.gmem:
        return modifiers
    refused = ("mmio",) if pointer.memspace is AddressSpace.generic else ("nc", "mmio")
    return ".".join(part for part in modifiers.split(".") if part not in refused and "::" not in part)


def _load_modified(pointer: Pointer, offset: object, count: int, modifiers: str) -> ir.Value:
    type_ = pointer.dtype.mlir_type if count == 1 else pointer.dtype.vector_type(count)
    return nvgpu.memory.ordered_load(address_at(pointer, offset), modifiers, type_=type_)


def _store_modified(pointer: Pointer, offset: object, value: ir.Value, modifiers: str) -> None:
    nvgpu.memory.ordered_store(address_at(pointer, offset), value, modifiers)


def _gather(
    positions: Sequence[int], where: dict[int, tuple[int, int]], values: Sequence[tuple[ir.Value, int]], dtype: Any
) -> ir.Value:
    """Return the elements at these indices as a vector, or as the element itself if it is one."""
    number, first = where[positions[0]]
    value, width = values[number]
    if all(where[p] == (number, first + k) for k, p in enumerate(positions)):
        if width == 1:
            return value
        return pick(value, width, range(first, first + len(positions)), dtype)
    elements: list[ir.Value] = []
    for p in positions:
        number, k = where[p]
        value, width = values[number]
        elements.append(value if width == 1 else extract(value, k, dtype))
    return tracing.emit_value("vector.from_elements", dtype.vector_type(len(elements)), elements)
