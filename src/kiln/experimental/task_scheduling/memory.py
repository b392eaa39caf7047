"""Layouts of shared memory and tensor memory for the resources of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ..._support import lazy
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int8, Int32, Numeric
from ...cute.tensor.array import Array
from ...cute.tensor.pointer import AddressSpace, Pointer, element_bits
from ...hardware.limits import TMEM_ALLOCATION

__dir__ = lazy.listing(__name__)
__all__ = ["ResourceContext", "SmemAllocation", "SmemAllocator", "TmemAllocation", "TmemAllocator"]

A = TypeVar("A")
_BARRIER_BYTES = 16
"""Bytes of the barriers of a stage of a pipeline: full and empty."""


class ResourceContext:
    """What the work methods of all tasks share: where shared memory begins, and the word that points to tensor memory."""

    __kiln_static__ = True

    def __init__(self, smem_base: Any, tmem_ptr_i32: Any) -> None:
        self.smem_base = smem_base
        self.tmem_ptr_i32 = tmem_ptr_i32


class SmemAllocation:
    """A piece of shared memory, in bytes or in elements; `offset` is where the allocator put it."""

    __kiln_static__ = True

    def __init__(self, name: str, size_bytes: int = 0, alignment: int = 128, dtype: Any = None, count: int = 1) -> None:
        if not size_bytes:
            if dtype is None:
                raise type_error(f"SmemAllocation({name!r}) has no size", "bytes, or dtype= and count=")
            size_bytes = (element_bits(dtype) * count + 7) // 8
        if alignment < 1 or alignment & (alignment - 1):
            raise type_error(f"the alignment of SmemAllocation({name!r}) is {alignment}", "a power of two")
        self.name = name
        self.size_bytes = size_bytes
        self.alignment = alignment
        self.dtype: type[Numeric] = dtype or Int8
        self.count: int = count if dtype is not None else size_bytes
        self._offset: int | None = None

    @property
    def offset(self) -> int:
        """Bytes from the start of the kernel's block of shared memory."""
        if self._offset is None:
            raise type_error(f"SmemAllocation({self.name!r}) has no offset yet", "call SmemAllocator.compute_layout()")
        return self._offset


class TmemAllocation:
    """Columns of tensor memory; `offset` is the first of them after the base, which a program may set itself."""

    __kiln_static__ = True

    def __init__(self, name: str, num_columns: int) -> None:
        self.name = name
        self.num_columns = num_columns
        self._offset: int | None = None

    @property
    def offset(self) -> int:
        """Columns from the base."""
        if self._offset is None:
            raise type_error(f"TmemAllocation({self.name!r}) has no offset yet", "call TmemAllocator.compute_layout()")
        return self._offset

    @offset.setter
    def offset(self, column: int) -> None:
        self._offset = column


class SmemAllocator:
    """The shared memory of a kernel: one block, in which allocations and barriers get their offsets."""

    __kiln_static__ = True

    def __init__(self) -> None:
        self._pieces: list[list[list[SmemAllocation]]] = []  # alternatives that share memory, each in a row
        self._tmem: SmemAllocation | None = None
        self._done = False
        self.barriers: dict[Any, SmemAllocation] = {}
        """The barriers of each pipelined resource."""
        self.num_bytes: int = 0
        self.alignment: int = 128
        self.smem_base: Any = None
        """The block, an Array of bytes, once the task manager has set up the kernel."""

    def add(self, alloc: SmemAllocation) -> SmemAllocation:
        """Add a piece of memory."""
        self._open()
        self._pieces.append([[alloc]])
        return alloc

    def add_tmem_ptr(self, alloc: SmemAllocation) -> SmemAllocation:
        """Add the word that `tcgen05_alloc` writes the address of tensor memory to."""
        self._tmem = self.add(alloc)
        return alloc

    def add_resource(self, resource: Any) -> None:
        """Add what a resource asks for (`get_smem_requirements`), and the barriers of its pipeline."""
        members = {id(a) for piece in self._pieces for row in piece for a in row}
        for allocation in resource.get_smem_requirements():
            if id(allocation) not in members:
                self.add(allocation)
        self.add_barriers(resource)

    def add_barriers(self, resource: Any) -> None:
        """Add the barriers of a resource with a pipeline."""
        config = resource.pipeline_config
        if config is not None and resource not in self.barriers:
            name = f"the barriers of {resource.name}"
            self.barriers[resource] = self.add(
                SmemAllocation(name, _BARRIER_BYTES * config.num_stages, alignment=_BARRIER_BYTES)
            )

    def add_alias_group(self, phases: Sequence[Sequence[SmemAllocation]]) -> None:
        """Add lists of allocations that share memory: each list lies in a row, all of them at one address."""
        self._open()
        self._pieces = _shared(self._pieces, phases)

    @property
    def total_smem_bytes(self) -> int:
        """The bytes of the block, once it has a layout."""
        return self.num_bytes

    total = total_smem_bytes

    @property
    def barrier_smem_bytes(self) -> int:
        """The bytes of the barriers of pipelines."""
        return sum(allocation.size_bytes for allocation in self.barriers.values())

    @property
    def tmem_ptr_alloc(self) -> SmemAllocation | None:
        """The word for the address of tensor memory, if there is one."""
        return self._tmem

    def add_pipeline_group(self, group: Any) -> None:
        """Add the barriers of the members of a pipeline group."""
        for member in group.members:
            self.add_barriers(member)

    def _open(self) -> None:
        if self._done:
            raise type_error("shared memory is added after compute_layout()")

    def compute_layout(self) -> None:
        """Give all pieces their offsets, large alignments first. Called once."""
        self._open()
        self._done = True
        largest = lambda piece: max(a.alignment for row in piece for a in row)
        end = 0
        for piece in sorted(self._pieces, key=largest, reverse=True):
            start = end
            for row in piece:
                at = start
                for allocation in row:
                    at = -(-at // allocation.alignment) * allocation.alignment
                    allocation._offset = at
                    at += allocation.size_bytes
                end = max(end, at)
            self.alignment = max(self.alignment, largest(piece))
        self.num_bytes = end

    def allocate(self) -> Array | None:
        """Allocate the block, in the kernel that is traced, if it is not yet, and return it."""
        if not self._done:
            raise type_error("SmemAllocator has no layout yet", "call compute_layout()")
        if self.num_bytes and self.smem_base is None:
            self.smem_base = Array(Int8, self.num_bytes, space=AddressSpace.smem, alignment=self.alignment)
        return self.smem_base

    def get(self, alloc: SmemAllocation) -> Array:
        """Return an allocation as an Array of its type."""
        return self.get_as_type(alloc, alloc.dtype, alloc.count)

    def get_as_type(self, alloc: SmemAllocation, dtype: type[Numeric], count: int = 1) -> Array:
        """Return the start of an allocation as an Array of `count` elements of a type."""
        if self.smem_base is None:
            raise type_error("shared memory is not allocated yet", "call TaskManager.setup_resources_and_tasks()")
        return Array(self.smem_base.data_ptr() + alloc.offset, dtype=dtype, shape=(count,))

    def get_typed_ptr(self, alloc: SmemAllocation, dtype: type[Numeric], count: int = 1) -> Pointer:
        """Return a pointer to the start of an allocation, of elements of a type."""
        return self.get_as_type(alloc, dtype, count).data_ptr()

    @property
    def tmem_ptr_i32(self) -> Any:
        """The word with the address of tensor memory, if there is one."""
        return None if self._tmem is None else Array(self.get(self._tmem).data_ptr(), dtype=Int32, shape=(1,))


def _shared(pieces: list[list[list[A]]], phases: Sequence[Sequence[A]]) -> list[list[list[A]]]:
    """Return the pieces with one more whose rows share memory; what lies in it leaves the other pieces."""
    rows = [list(row) for row in phases]
    inside = {id(allocation) for row in rows for allocation in row}
    return [*(p for p in pieces if not any(id(a) in inside for row in p for a in row)), rows]


class TmemAllocator:
    """The columns of tensor memory of a kernel; the kernel itself allocates them."""

    __kiln_static__ = True

    def __init__(self) -> None:
        self._pieces: list[list[list[TmemAllocation]]] = []  # alternatives that share columns, each in a row
        self.num_columns: int = 0

    def add(self, alloc: TmemAllocation) -> TmemAllocation:
        """Add columns."""
        self._pieces.append([[alloc]])
        return alloc

    def add_resource(self, resource: Any) -> None:
        """Add what a resource asks for (`get_tmem_requirements`)."""
        members = {id(a) for piece in self._pieces for row in piece for a in row}
        for allocation in resource.get_tmem_requirements():
            if id(allocation) not in members:
                self.add(allocation)

    def add_alias_group(self, phases: Sequence[Sequence[TmemAllocation]]) -> None:
        """Add lists of allocations that share columns: each list lies in a row, all of them from one column on."""
        self._pieces = _shared(self._pieces, phases)

    @property
    def total_tmem_columns(self) -> int:
        """The columns of all allocations, once they have a layout."""
        return self.num_columns

    total = total_tmem_columns

    def compute_layout(self) -> None:
        """Give all allocations their first columns, in the order in which they were added."""
        for piece in self._pieces:
            start = self.num_columns
            for row in piece:
                at = start
                for allocation in row:
                    allocation._offset = at
                    at += allocation.num_columns
                self.num_columns = max(self.num_columns, at)
        most = TMEM_ALLOCATION[1]
        if self.num_columns > most:
            raise type_error(f"{self.num_columns} columns of tensor memory are allocated", f"an SM has {most}")
