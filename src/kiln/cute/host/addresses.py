"""Pointers to addresses, inside a trace and outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base_dsl import trace as tracing
from ..tensor.pointer import AddressSpace, Pointer, pointer_to

if TYPE_CHECKING:
    from ..layout.swizzle import Swizzle

__all__ = ["make_ptr"]


def make_ptr(
    dtype: object,
    value: object,
    mem_space: AddressSpace | None = None,
    *,
    assumed_align: int | None = None,
    swizzle_: Swizzle | None = None,
    loc: object = None,
    ip: object = None,
) -> Pointer:
    """Return a pointer to an address; outside of a trace, a pointer to pass as an argument.

    Args:
        dtype: the element type.
        value: the address, an integer; in a trace also another pointer.
        mem_space: the memory it points to; by default generic.
        assumed_align: the bytes that the address is known to be a multiple of; by default those of an element.
        swizzle_: a swizzle that accesses go through, in a trace.
    """
    space = AddressSpace.generic if mem_space is None else mem_space
    if tracing.current() is None:
        from . import runtime

        return runtime.make_ptr(dtype, value, space, assumed_align)
    return pointer_to(dtype, value, space, assumed_align, swizzle_)
