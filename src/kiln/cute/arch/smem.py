"""Shared memory of a CTA."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32
from ..deferred_dialects import cute, nvgpu
from ..tensor.pointer import AddressSpace, Pointer
from .cluster import map_dsmem_ptr
from .values import kernel_only

__all__ = ["alloc_smem", "dynamic_smem_size", "get_dyn_smem", "get_dyn_smem_size", "map_dsmem_ptr"]


def alloc_smem(
    element_type: Any, size_in_elems: int, alignment: int | None = None, *, loc: object = None, ip: object = None
) -> Pointer:
    """Return a pointer to new static shared memory for `size_in_elems` elements of `element_type`.

    The size is known when compiling. `alignment` is in bytes, that of an element unless given.
    """
    kernel_only("alloc_smem")
    if not isinstance(size_in_elems, int) or size_in_elems < 1:
        raise type_error(
            f"alloc_smem() takes a Python integer of at least 1, not {size_in_elems!r}",
            "the size is known when compiling: a Constexpr parameter; memory whose size only the launch knows is "
            "get_dyn_smem(), with launch(smem=bytes)",
        )
    own = cute.element_bytes(element_type.mlir_type)
    alignment = max(alignment or own, own)
    size = (cute.element_bits(element_type.mlir_type) * size_in_elems + 7) // 8
    address = cute.alloc_smem(size, alignment, cute.ptr_type(element_type.mlir_type, "smem", alignment))
    return Pointer(address, element_type, AddressSpace.smem, alignment)


def get_dyn_smem(element_type: Any, alignment: int | None = None, *, loc: object = None, ip: object = None) -> Pointer:
    """Return a pointer to the CTA's dynamic shared memory, the launch's `smem` bytes after the kernel's allocations.

    `element_type` is what it points to; `alignment` is in bytes, 1024 unless given.
    """
    kernel_only("get_dyn_smem")
    alignment = alignment or 1024
    address = cute.dynamic_smem(cute.ptr_type(element_type.mlir_type, "smem", alignment))
    return Pointer(address, element_type, AddressSpace.smem, alignment)


def dynamic_smem_size(*, loc: object = None, ip: object = None) -> Int32:
    """Return the bytes of shared memory of the CTA; in a kernel with `get_dyn_smem`, of that memory alone."""
    kernel_only("dynamic_smem_size")
    return Int32._make(nvgpu.control.dynamic_smem_size(), nonneg=True)


def get_dyn_smem_size(*, loc: object = None, ip: object = None) -> Int32:
    """Return the bytes of dynamic shared memory of the CTA, as `dynamic_smem_size` does."""
    return dynamic_smem_size()
