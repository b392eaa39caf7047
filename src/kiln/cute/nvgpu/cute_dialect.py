"""`cutlass._mlir.dialects.cute`: Kiln's dialect, with names that programs use to retype pointers."""

from __future__ import annotations

from typing import Any

from ...base_dsl.bindings import ir
from ..deferred_dialects import cute
from ..tensor.iterator import AddressSpace

__all__ = ["AddressSpace", "PtrType", "recast_iter"]


class PtrType:
    """The type of a pointer to what has no type in the IR, such as a tensor map: of what, in which memory, how aligned."""

    def __init__(self, value_type: Any, address_space: Any, alignment: Any = None) -> None:
        self.value_type = value_type
        self.address_space = address_space
        self.alignment = alignment

    @classmethod
    def get(cls, value_type: object, address_space: AddressSpace, alignment: int | None = None) -> ir.Type | PtrType:
        """Return the type of a pointer."""
        element = getattr(value_type, "mlir_type", value_type)
        if isinstance(element, ir.Type):
            return cute.ptr_type(element, address_space.name, alignment or 0)
        return cls(value_type, address_space, alignment)


def recast_iter(dst_type: object, src: object, *, loc: object = None, ip: object = None) -> Any:
    """Return a pointer as it is: copies take pointers to tensor maps of any type."""
    return src


def __getattr__(name: str) -> Any:
    return getattr(cute, name)
