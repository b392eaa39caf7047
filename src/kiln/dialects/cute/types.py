"""Types of the `cute` dialect: `!cute.ptr` and `!cute.memref`, their parameters, and the size of elements in memory."""

import functools
import re
from typing import Any, NamedTuple

from ...base_dsl.target import register_pointer_type
from ...mlir import context, ir
from ..declaration import Dialect, Type
from ..definition import load

__all__ = [
    "SPACES",
    "Cuda",
    "Cute",
    "Memref",
    "PointerInfo",
    "Ptr",
    "element_bits",
    "element_bytes",
    "info",
    "is_memref",
    "is_ptr",
    "leaf_widths",
    "load_dialect",
    "memref_type",
    "ptr_type",
]

SPACES = ("gmem", "smem", "rmem", "generic", "tmem", "dsmem")
"""The address spaces of pointers and memrefs."""


register_pointer_type("!cute.ptr")
register_pointer_type("!cute.memref", lambda type_: info(type_).leaves)


class Cute(Dialect, name="cute"):
    """Tiles, memory and the grid."""


class Cuda(Dialect, name="cuda"):
    """Launches, by the name that CuTe DSL has for them."""


class Ptr(Type, dialect=Cute, name="ptr"):
    """`!cute.ptr<f32, "gmem", 16 : i64>`: the address of elements of a type.

    Parameters: element type, address space (`SPACES`), bytes the address is known to be a multiple of.
    """

    element: ir.TypeAttr
    space: ir.StringAttr
    alignment: ir.IntegerAttr


class Memref(Type, dialect=Cute, name="memref"):
    """`!cute.memref<f16, "gmem", 16 : i64, "(128,?):(?{i64},1)">`: a pointer and the layout of what it points to.

    Parameters: those of `!cute.ptr`, then the layout as the user sees it. A dynamic leaf is `?` (32 bits) or marked
    `?{i64}` (64 bits; further marks may stand in the braces: `?{i64 div=8}`). The value carries the pointer and the
    dynamic leaves, in the order in which they stand in the layout.
    """

    element: ir.TypeAttr
    space: ir.StringAttr
    alignment: ir.IntegerAttr
    layout: ir.StringAttr


def load_dialect() -> None:
    """Make the dialects known to the context."""
    load(Cute)
    load(Cuda)


# --- what a type says ------------------------------------------------------------------------------------------------


class PointerInfo(NamedTuple):
    """The parameters of a `!cute.ptr` or `!cute.memref`; `layout` is None for a pointer."""

    element: ir.Type
    space: str
    alignment: int
    layout: str | None = None
    leaves: tuple[int, ...] = ()
    """Widths in bits of the dynamic leaves."""


_DYNAMIC_LEAF = re.compile(r"\?(?:\{([^}]*)\})?")


@functools.lru_cache(maxsize=4096)
def leaf_widths(layout: str) -> tuple[int, ...]:
    """Return the width in bits of each dynamic leaf of a layout string."""
    marks = (match.group(1) or "" for match in _DYNAMIC_LEAF.finditer(layout))
    return tuple(64 if "i64" in mark.split() else 32 for mark in marks)


def is_ptr(type_: ir.Type) -> bool:
    """Return whether a type is `!cute.ptr`."""
    return isinstance(type_, Ptr)


def is_memref(type_: ir.Type) -> bool:
    """Return whether a type is `!cute.memref`."""
    return isinstance(type_, Memref)


@functools.lru_cache(maxsize=4096)
def info(type_: ir.Type) -> PointerInfo:
    """Return the parameters of a `!cute.ptr` or `!cute.memref` type."""
    element, space, alignment, *layout = (p.maybe_downcast() for p in type_.params)
    text = layout[0].value if layout else None
    return PointerInfo(element.value, space.value, alignment.value, text, leaf_widths(text) if text else ())


def ptr_type(element: ir.Type, space: str = "generic", alignment: int = 0) -> ir.Type:
    """Return the `!cute.ptr` of an element type; alignment 0 means the element's own."""
    return _ptr_type(element, space, alignment or element_bytes(element))


def memref_type(element: ir.Type, space: str, alignment: int, layout: str) -> ir.Type:
    """Return the `!cute.memref` of an element type and a layout; alignment 0 means the element's own."""
    return _memref_type(element, space, alignment or element_bytes(element), layout)


@functools.lru_cache(maxsize=4096)
def _ptr_type(element: ir.Type, space: str, alignment: int) -> ir.Type:
    return _make_type(Ptr, element, space, alignment)


@functools.lru_cache(maxsize=4096)
def _memref_type(element: ir.Type, space: str, alignment: int, layout: str) -> ir.Type:
    return _make_type(Memref, element, space, alignment, ir.StringAttr.get(layout, context()))


def _make_type(kind: Any, element: ir.Type, space: str, alignment: int, *rest: ir.Attribute) -> ir.Type:
    if space not in SPACES:
        raise ValueError(f"address space {space!r}: expected one of {', '.join(SPACES)}")
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment}: expected a power of two")
    load_dialect()
    with context():
        type_ = ir.DynamicType.get(
            kind.type_name,
            [
                ir.TypeAttr.get(element),
                ir.StringAttr.get(space),
                ir.IntegerAttr.get(ir.IntegerType.get_signless(64), alignment),
                *rest,
            ],
        )
    return kind(type_)  # the class the bindings give such a type everywhere else


@functools.lru_cache(maxsize=1024)
def element_bits(type_: ir.Type) -> int:
    """Return the bits of an element in memory: booleans 8, 2 and 4 bits packed, tf32 32, others whole bytes."""
    if is_ptr(type_) or str(type_).startswith("!llvm.ptr"):
        return 64
    if isinstance(type_, ir.FloatTF32Type):
        return 32
    width: int = type_.width
    return width if width in (2, 4) else max(8, (width + 7) // 8 * 8)


@functools.lru_cache(maxsize=1024)
def element_bytes(type_: ir.Type) -> int:
    """Return the alignment of an element in bytes: its size, at least 1, at most 16, rounded down to a power of two."""
    size = min(16, max(1, element_bits(type_) // 8))
    return 1 << (size.bit_length() - 1)
