"""`SmemAllocator`: allocates shared memory of a CTA."""

from __future__ import annotations

import enum
from typing import Any, TypeVar, cast, overload

from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import runtime_error, type_error
from ..base_dsl.typing import Int8, Int32, Numeric, NumericMeta
from ..cute.deferred_dialects import cute
from ..cute.layout.composed_layout import ComposedLayout
from ..cute.layout.int_tuple import Shape
from ..cute.layout.layout import Layout, cosize, make_layout
from ..cute.layout.swizzle import Swizzle
from ..cute.tensor.pointer import AddressSpace, Pointer, natural_alignment, recast_ptr
from ..cute.tensor.structures import StructView, struct
from ..cute.tensor.tensor import TracedTensor, make_tensor
from .smem_capacity import get_smem_capacity_in_bytes

D = TypeVar("D", bound=Numeric)
_MOST_ALIGNED = 1024
"""The alignment of a CTA's shared memory, in bytes."""


class SmemPartition(enum.Enum):
    """The owner of an allocation."""

    RESERVED = enum.auto()
    USER = enum.auto()


class SmemAllocator:
    """Allocates shared memory of the CTA. All threads get the same addresses; the memory is undefined at first.

    Sizes are known when compiling, so that a launch need not pass them; `launch(smem=)` is the least that a CTA has,
    these allocations included.
    """

    __kiln_static__ = True

    def __init__(self, *_: object, **__: object) -> None:
        self._used = 0

    @overload
    def allocate(
        self,
        size_or_type: struct,
        byte_alignment: int = 1,
        *,
        partition: SmemPartition = SmemPartition.USER,
        loc: object = None,
        ip: object = None,
    ) -> StructView: ...

    @overload
    def allocate(
        self,
        size_or_type: int | type[Numeric],
        byte_alignment: int = 1,
        *,
        partition: SmemPartition = SmemPartition.USER,
        loc: object = None,
        ip: object = None,
    ) -> Pointer: ...

    def allocate(
        self,
        size_or_type: object,
        byte_alignment: int = 1,
        *,
        partition: SmemPartition = SmemPartition.USER,
        loc: object = None,
        ip: object = None,
    ) -> StructView | Pointer:
        """Allocate bytes (returns a pointer to Int8), a number (a pointer to it), or a structure."""
        if isinstance(size_or_type, struct):
            alignment = max(byte_alignment, size_or_type.__alignof__())
            return size_or_type(self._take(size_or_type.size_in_bytes(), alignment, Int8))
        if isinstance(size_or_type, NumericMeta):
            return self.allocate_array(cast("type[Numeric]", size_or_type), 1, byte_alignment=byte_alignment)
        return self._take(size_or_type, byte_alignment, Int8)

    def allocate_array(
        self,
        element_type: type[Numeric],
        num_elems: int = 1,
        *,
        byte_alignment: int = 1,
        partition: SmemPartition = SmemPartition.USER,
        loc: object = None,
        ip: object = None,
    ) -> Pointer:
        """Allocate `num_elems` elements of a type, and return a pointer to the first."""
        if not isinstance(num_elems, int):
            raise type_error(f"{num_elems!r} elements of shared memory: the number is known when compiling")
        alignment = max(byte_alignment, natural_alignment(element_type))
        return self._take(element_type.n_bytes(num_elems), alignment, element_type)

    def allocate_tensor(
        self,
        element_type: type[D],
        layout: Layout | ComposedLayout | Shape,
        byte_alignment: int = 1,
        swizzle: Swizzle | None = None,
        *,
        partition: SmemPartition = SmemPartition.USER,
        loc: object = None,
        ip: object = None,
    ) -> TracedTensor[D]:
        """Allocate a tensor of a static layout. `swizzle` permutes its addresses, in bytes."""
        if isinstance(layout, (int, tuple)):
            layout = make_layout(layout)
        plain = layout.outer if isinstance(layout, ComposedLayout) else layout
        count = cosize(plain)
        if not isinstance(count, int):
            raise type_error(f"a tensor in shared memory needs a static layout, got {layout}")
        pointer = self.allocate_array(element_type, count, byte_alignment=byte_alignment)
        tensor: Any = make_tensor(
            recast_ptr(pointer, swizzle, element_type) if swizzle is not None else pointer, layout
        )
        return tensor

    def _take(self, size: Any, alignment: int, dtype: Any) -> Pointer:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise type_error(
                f"{size!r} bytes of shared memory",
                "pass a number of bytes that is known when compiling, a numeric type or a structure",
            )
        if alignment < 1 or alignment & (alignment - 1):
            raise type_error(f"shared memory aligned to {alignment} bytes: an alignment is a power of two")
        active = tracing.require("shared memory")
        if active.function.kind != "kernel":
            raise runtime_error("shared memory is allocated outside a kernel", "only the threads of a block have some")
        if self._used == 0 and size >= _MOST_ALIGNED:  # the first allocation is aligned anyway: its pointer may say so
            alignment = max(alignment, _MOST_ALIGNED)
        self._used = -(-self._used // alignment) * alignment + size
        alignment = max(alignment, natural_alignment(dtype))
        base = cute.alloc_smem(max(size, 1), alignment, cute.ptr_type(dtype.mlir_type, "smem", alignment))
        return Pointer(base, dtype, AddressSpace.smem, alignment)

    def calculate_total_usage(self, *, loc: object = None, ip: object = None) -> Int32:
        """Return the bytes allocated so far by this allocator."""
        return Int32(self._used)

    def calculate_partition_size(
        self, partition: SmemPartition, *, cumulative: bool = False, loc: object = None, ip: object = None
    ) -> Int32:
        """Return the bytes of a partition; all memory is the user's."""
        return Int32(self._used if partition is SmemPartition.USER or cumulative else 0)

    @staticmethod
    def capacity_in_bytes(compute_capability: str | None = None) -> int:
        """Return the bytes of shared memory that a CTA can have."""
        return get_smem_capacity_in_bytes(*([compute_capability] if compute_capability else []))
