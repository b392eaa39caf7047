"""`cutlass.Pointer`: a pointer as C has it, which is indexed, accesses vectors and names its memory by a number.

It is a pointer of the language, so whatever takes the one takes the other. Vectors are accessed as widely as the known
alignment allows; `alignment=` promises more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int8, Int32, Numeric
from ..arch.modifiers import access_modifiers
from ..arch.values import choice
from ..deferred_dialects import cute, nvgpu
from ..layout.layout import make_layout
from ..layout.swizzle import Swizzle
from . import vector_access
from .pointer import (
    AddressSpace,
    Pointer,
    address_at,
    element_value,
    natural_alignment,
    pointer_from_address,
    pointer_to,
    recast_ptr,
    require_writable,
    space_of_llvm_pointer,
)
from .tensor_ssa import TensorSSA

_TMEM = AddressSpace.tmem


class RawPointer(Pointer):
    """A pointer of the language with the accesses of C: `p[i]`, `p.load(count=4)`, `p.store(vector)`.

    In tensor memory `p + n` adds n to the address, n columns, whatever the type.
    """

    __slots__ = ()

    @property
    def space(self) -> AddressSpace:
        """The memory it points into."""
        return self._memspace

    def _plus(self, offset: object, by_thread: bool = False) -> Pointer:
        return super()._plus(offset, by_thread) if self._memspace is not _TMEM else self + offset

    def __add__(self, offset: object) -> Any:
        if self._memspace is not _TMEM or not isinstance(offset, (int, Numeric)):
            return super().__add__(offset)
        moved = Int32(self.toint()) + Int32(offset)
        return raw_pointer(pointer_from_address(moved, self._dtype, _TMEM, 4))

    __radd__ = __add__

    def __setitem__(self, index: object, value: object) -> None:
        (self + index).store(value)

    def toint(self, dtype: Any = None, *, loc: object = None, ip: object = None) -> Any:
        """Return the address as an integer of a type; by default of 32 bits in shared and tensor memory, else of 64."""
        return super().toint() if dtype is None else dtype(self._address())

    def tospace(self, space: object, *, loc: object = None, ip: object = None) -> RawPointer:
        """Return the address in another memory: `AddressSpace.generic`, or back (`cvta`)."""
        return cast_space(self, address_space(space))

    @property
    def natural_alignment(self) -> int:
        """The bytes that an element is aligned to."""
        return natural_alignment(self._dtype)

    def load(
        self,
        alignment: int | None = None,
        *,
        count: int | None = None,
        is_volatile: bool = False,
        is_nontemporal: bool = False,
        is_invariant: bool = False,
        is_invariant_group: bool = False,
        ordering: object = None,
        syncscope: object = None,
        loc: object = None,
        ip: object = None,
    ) -> Any:
        """Return the element it points to or, with a `count`, a vector of elements.

        `ordering` makes each access atomic: "monotonic" (relaxed) or "acquire", at `syncscope` (the GPU by default).
        """
        how = access_order(ordering, syncscope, is_volatile, "acquire")
        invariant = is_invariant and self._memspace in (AddressSpace.gmem, AddressSpace.generic)
        return load(self, count, alignment, how or ("nc" if invariant else ""))

    def store(
        self,
        value: object,
        *,
        alignment: int | None = None,
        is_volatile: bool = False,
        is_nontemporal: bool = False,
        is_invariant_group: bool = False,
        ordering: object = None,
        syncscope: object = None,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Write an element, or the elements of a vector.

        `ordering` makes each access atomic: "monotonic" (relaxed) or "release", at `syncscope` (the GPU by default).
        """
        store(self, value, alignment, access_order(ordering, syncscope, is_volatile, "release"))

    def nvvm_load_ext(
        self,
        *,
        count: int | None = None,
        cache_modifier: object = None,
        evict: object = None,
        scope: object = None,
        loc: object = None,
        ip: object = None,
    ) -> Any:
        """Return an element or, with a `count`, a vector in one access with a cache operator and an eviction priority.

        A `scope` makes it relaxed at that scope.
        """
        how = access_modifiers(None if scope is None else "relaxed", scope, cache_modifier, evict)
        kind = self._dtype.mlir_type if count is None else self._dtype.vector_type(count)
        loaded = nvgpu.memory.ordered_load(self.ir_value(), how, type_=kind)
        return self._dtype._make(loaded) if count is None else TensorSSA(loaded, (count,), self._dtype)

    def nvvm_store_ext(
        self,
        value: object,
        *,
        cache_modifier: object = None,
        evict: object = None,
        scope: object = None,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Write an element or a vector in one access; operands are those of `nvvm_load_ext`."""
        require_writable(self)
        how = access_modifiers(None if scope is None else "relaxed", scope, cache_modifier, evict)
        stored = value.to_vector().value if isinstance(value, TensorSSA) else element_value(value, self._dtype)
        nvgpu.memory.ordered_store(self.ir_value(), stored, how)

    def masked_gather(
        self,
        offsets: Any,
        mask: object,
        pass_thru: object = None,
        *,
        alignment: int | None = None,
        loc: object = None,
        ip: object = None,
    ) -> TensorSSA:
        """Return the elements at a Vector of offsets where the mask holds, and those of `pass_thru` elsewhere."""
        places = [self + offset for offset in offsets.to_elements()]
        return masked_load([promised(place, alignment) for place in places], mask, pass_thru, self._dtype)

    def masked_load(
        self,
        mask: object,
        pass_thru: object = None,
        *,
        alignment: int | None = None,
        loc: object = None,
        ip: object = None,
    ) -> TensorSSA:
        """Return the elements where the mask holds, and those of `pass_thru` (default 0) elsewhere, which are not read."""
        holds = _mask(mask)
        pointer = promised(self, alignment)
        return masked_load([pointer + i for i in range(len(holds))], mask, pass_thru, self._dtype)

    def masked_store(
        self, value: object, mask: object, *, alignment: int | None = None, loc: object = None, ip: object = None
    ) -> None:
        """Write the elements of a vector where the mask holds."""
        masked_store(promised(self, alignment), value, mask)

    def apply_swizzle(self, swizzle: Swizzle, *, loc: object = None, ip: object = None) -> RawPointer:
        """Return the pointer to the swizzled byte address."""
        if not swizzle.num_bits:
            return self
        seen = recast_ptr(self, swizzle)
        alignment = min(self._alignment, 1 << swizzle.num_base)
        return raw_pointer(Pointer(address_at(seen, 0), self._dtype, self._memspace, alignment))

    def load_swizzled(
        self,
        swizzle: Swizzle,
        alignment: int | None = None,
        *,
        count: int | None = None,
        loc: object = None,
        ip: object = None,
    ) -> Any:
        """Return elements that lie at the swizzled addresses of those from here on."""
        return load(_seen(self, swizzle), count, alignment, "")

    def store_swizzled(
        self, value: object, swizzle: Swizzle, alignment: int | None = None, *, loc: object = None, ip: object = None
    ) -> None:
        """Write elements to the swizzled addresses of those from here on."""
        store(_seen(self, swizzle), value, alignment, "")


RawPointer._traced = RawPointer


def apply_swizzle(ptr: Pointer, swizzle: Swizzle, *, loc: object = None, ip: object = None) -> RawPointer:
    """Return the pointer to the swizzled byte address of `ptr`."""
    return raw_pointer(ptr).apply_swizzle(swizzle)


def load_swizzled(
    ptr: Pointer,
    swizzle: Swizzle,
    alignment: int | None = None,
    *,
    count: int | None = None,
    loc: object = None,
    ip: object = None,
) -> Numeric | TensorSSA:
    """Return the element, or with a `count` the vector of elements, at the swizzled addresses from `ptr` on."""
    return raw_pointer(ptr).load_swizzled(swizzle, alignment, count=count)


def store_swizzled(
    value: object,
    ptr: Pointer,
    swizzle: Swizzle,
    alignment: int | None = None,
    *,
    loc: object = None,
    ip: object = None,
) -> None:
    """Write an element, or the elements of a vector, to the swizzled addresses from `ptr` on."""
    raw_pointer(ptr).store_swizzled(value, swizzle, alignment)


def raw_pointer(pointer: Pointer) -> RawPointer:
    """Return a pointer of the language as a `RawPointer`."""
    if type(pointer) is RawPointer:
        return pointer
    raw = pointer._copy()
    raw.__class__ = RawPointer
    return raw  # pyright: ignore[reportReturnType]


def cast_space(pointer: Pointer, space: AddressSpace) -> RawPointer:
    """Return the same place in memory as a pointer into another address space."""
    if pointer.memspace is space:
        return raw_pointer(pointer)
    type_ = cute.ptr_type(pointer.dtype.mlir_type, space.name, pointer.alignment)
    address = cute.cast_ptr(pointer.ir_value(), type_)
    return raw_pointer(Pointer(address, pointer.dtype, space, pointer.alignment, swizzle=pointer.swizzle))


def address_space(space: Any) -> AddressSpace:
    """Return an address space, given by itself, by its number or by None (generic)."""
    if space is None:
        return AddressSpace.generic
    try:
        return space if isinstance(space, AddressSpace) else AddressSpace(int(space))
    except (TypeError, ValueError):
        names = ", ".join(f"{s.name} {s.value}" for s in AddressSpace)
        raise type_error(f"the address space is {space!r}", f"one of {names}") from None


def inttoptr(
    value: object, mem_space: object = None, dtype: object = None, *, loc: object = None, ip: object = None
) -> RawPointer:
    """Return the pointer with an address, an integer, into a memory space to elements of a type (default Int8)."""
    return raw_pointer(pointer_from_address(value, Int8 if dtype is None else dtype, address_space(mem_space)))


def as_raw_pointer(value: Any, dtype: object = None, space: Any = None) -> RawPointer:
    """Return a pointer, an array, an LLVM pointer or an address as a `RawPointer`, of another element type if given."""
    value = value.data_ptr() if hasattr(value, "data_ptr") else value
    if isinstance(value, Pointer):
        pointer = value if dtype in (None, value.dtype) else recast_ptr(value, value.swizzle, dtype)
        return raw_pointer(pointer)
    if space is None and hasattr(value, "type") and not isinstance(value, Numeric):
        space = space_of_llvm_pointer(value.type)
    return raw_pointer(pointer_to(Int8 if dtype is None else dtype, value, address_space(space)))


def promised(pointer: Pointer, alignment: int | None) -> Pointer:
    if alignment is None:
        return pointer
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise type_error(f"alignment is {alignment!r}", "a power of two, in bytes")
    return pointer.with_alignment(max(alignment, pointer.alignment))


def _seen(pointer: Pointer, swizzle: Swizzle) -> Pointer:
    """Return a pointer whose accesses see memory through a swizzle of byte addresses; one of no bits is none."""
    return recast_ptr(pointer, swizzle if swizzle.num_bits else None)


def load(pointer: Pointer, count: int | None, alignment: int | None, modifiers: str) -> Any:
    """Return the element at a pointer, or a vector of `count`; `modifiers` are those of PTX `ld`."""
    pointer, dtype = promised(pointer, alignment), pointer.dtype
    if count is not None and (not isinstance(count, int) or count < 1):
        raise type_error(f"a vector of {count!r} elements is loaded", "the count is a Python integer of at least 1")
    if modifiers and pointer.memspace is not AddressSpace.rmem:
        values = [
            dtype._make(
                nvgpu.memory.ordered_load((pointer + i).ir_value(), modifiers, type_=dtype.mlir_type)  # one at a time
            )
            for i in range(count or 1)
        ]
        return values[0] if count is None else TensorSSA.from_elements(values, dtype)
    if count is None:
        return pointer.element(0)
    return TensorSSA(vector_access.load(pointer, make_layout(count), count), (count,), dtype)


def store(pointer: Pointer, value: object, alignment: int | None, modifiers: str) -> None:
    """Write an element or a vector at a pointer; `modifiers` are those of PTX `st`."""
    pointer, dtype = promised(pointer, alignment), pointer.dtype
    if not isinstance(value, TensorSSA):
        value = TensorSSA.from_elements((dtype._make(element_value(value, dtype)),), dtype)
    if value.dtype is not dtype:
        raise type_error(
            f"a vector of {value.dtype.__name__} is stored to memory of {dtype.__name__}",
            f"convert it: v.to({dtype.__name__})",
        )
    require_writable(pointer)
    if modifiers and pointer.memspace is not AddressSpace.rmem:
        for i, x in enumerate(value.to_elements()):
            nvgpu.memory.ordered_store((pointer + i).ir_value(), x.ir_value(), modifiers)
        return
    vector_access.store(pointer, make_layout(value.numel()), value.numel(), value.value)


_ORDERINGS = {"not_atomic": "", "monotonic": "relaxed", "relaxed": "relaxed"}


def access_order(ordering: object, scope: object, is_volatile: bool, strongest: str) -> str:
    """Return the modifiers of a volatile or an atomic access, whose strongest order is `strongest`."""
    name = choice("ordering", ordering or "not_atomic", (*_ORDERINGS, strongest))
    order = _ORDERINGS.get(name, name)
    if not order:
        return "volatile" if is_volatile else ""
    if is_volatile:
        raise type_error(f"an access is volatile and has the ordering {name}", "one of the two")
    return access_modifiers(order, scope, None, None)


def masked_load(
    places: Sequence[Pointer],
    mask: object,
    pass_thru: object,
    dtype: object,
    check: Callable[[int], None] | None = None,
) -> TensorSSA:
    """Return the elements at pointers where a mask holds, else those of `pass_thru`; `check(i)` precedes each access."""
    holds = _mask(mask)
    if len(holds) != len(places):
        raise type_error(f"{len(places)} elements are loaded by a mask of {len(holds)} Booleans")
    others = _elements(0 if pass_thru is None else pass_thru, dtype, len(holds))

    def element(i: int) -> Any:
        if check is not None:
            check(i)
        return places[i].element(0)

    values = [_if(m, lambda i=i: element(i), lambda i=i: others[i]) for i, m in enumerate(holds)]
    return TensorSSA.from_elements(values, dtype)


def masked_store(pointer: Pointer, value: object, mask: object, check: Callable[[int], None] | None = None) -> None:
    """Write the elements of a vector from a pointer on where a mask holds; `check(i)` precedes each access."""
    require_writable(pointer)
    holds = _mask(mask)
    values = _elements(value, pointer.dtype, len(holds))

    def write(i: int) -> None:
        if check is not None:
            check(i)
        pointer.set_element(i, values[i])

    for i, m in enumerate(holds):
        _if(m, lambda i=i: write(i), None)


def _mask(mask: Any) -> list[Any]:
    mask = mask.load(0, mask.shape[0]) if hasattr(mask, "data_ptr") else mask
    if not isinstance(mask, TensorSSA) or mask.dtype is not Boolean:
        raise type_error(f"a mask is a Vector or Array of Boolean, got {mask}")
    return list(mask.to_elements())


def _elements(value: Any, dtype: Any, count: int) -> list[Any]:
    """Return the elements of a vector of `count`, or one number as often."""
    if not isinstance(value, TensorSSA):
        return [dtype(value)] * count
    if value.numel() != count or value.dtype is not dtype:
        raise type_error(f"a vector {value} is masked by {count} Booleans in memory of {dtype.__name__}")
    return list(value.to_elements())


def _if(condition: Any, then: Any, orelse: Any) -> Any:
    """Emit a branch on a Boolean whose sides return a number each, or nothing without `orelse`."""
    results: Sequence[ir.Type] = () if orelse is None else (orelse().dtype.mlir_type,)
    branch = tracing.emit("scf.if", results, (condition.ir_value(),), regions=2)
    for region, make in zip(branch.regions, (then, orelse), strict=True):
        if make is None:
            continue
        with ir.InsertionPoint(region.blocks.append()):
            result = make()
            tracing.emit("scf.yield", (), () if orelse is None else (result.ir_value(),))
    return None if orelse is None else orelse().dtype._make(branch.result)
