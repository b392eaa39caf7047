"""Buffers of kernels of `cute.experimental`: registers, shared memory, tensor memory."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ..arch.smem import alloc_smem
from ..layout.composed_layout import ComposedLayout
from ..layout.layout import cosize
from ..nvgpu.tcgen05 import find_tmem_tensor_col_offset
from ..tensor.pointer import AddressSpace, pointer_from_address, recast_ptr
from ..tensor.tensor import make_rmem_tensor, make_tensor
from .program import needs

__all__ = ["allocate"]


def allocate(
    type: Any,
    address_space: object,
    layout: Any,
    alignment: int | None = None,
    is2cta: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return a new tensor in registers, in the shared memory of the CTA, or in its tensor memory.

    All threads allocate tensor memory together, before their roles part; with `is2cta` those of both CTAs of a pair,
    which get the same columns. The kernel frees it at its end.
    """
    if address_space is AddressSpace.rmem:
        return make_rmem_tensor(layout, type)
    if address_space is AddressSpace.smem:
        if not isinstance(layout, ComposedLayout):
            return make_tensor(alloc_smem(type, cosize(layout), alignment), layout)
        # TMA and tensor cores swizzle addresses, so the pointer does
        pointer = alloc_smem(type, cosize(layout.outer), alignment)
        return make_tensor(recast_ptr(pointer, layout.inner, type), layout.outer)
    if address_space is AddressSpace.tmem:
        state = needs("allocate() of tensor memory")
        at_zero = make_tensor(pointer_from_address(0, type, AddressSpace.tmem, 16), layout)
        return make_tensor(state.tensor_memory(find_tmem_tensor_col_offset(at_zero), type, bool(is2cta)), layout)
    raise type_error(f"address_space of allocate() is {address_space}", "AddressSpace.rmem, smem or tmem")
