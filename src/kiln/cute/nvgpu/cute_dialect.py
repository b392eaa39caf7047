"""`cutlass._mlir.dialects.cute`: Kiln's dialect, with names that programs use to retype pointers."""

from __future__ import annotations

from typing import Any

from ..deferred_dialects import cute
from ..tensor.iterator import AddressSpace

__all__ = ["AddressSpace", "PtrType", "recast_iter"]


class PtrType:
    """The type of a pointer, as programs name it: of what, in which memory, how aligned."""

    def __init__(self, value_type: Any, address_space: Any, alignment: Any = None) -> None:
        self.value_type = value_type
        self.address_space = address_space
        self.alignment = alignment

    @classmethod
    def get(cls, value_type: object, address_space: object, alignment: object = None) -> PtrType:
        """Return a type."""
        return cls(value_type, address_space, alignment)


def recast_iter(dst_type: object, src: object, *, loc: object = None, ip: object = None) -> Any:
    """Return a pointer as it is: copies take pointers to tensor maps of any type."""
    return src


def __getattr__(name: str) -> Any:
    return getattr(cute, name)
