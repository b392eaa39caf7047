"""Buffers and copies that predicate themselves: elements outside the tensor that a kernel got are not accessed.

In a kernel decorated with `cute.experimental.kernel` tensors in global memory know the coordinates of their elements,
through slices, tiles and partitions; a copy compares them with the extents.
"""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import DSLNotImplemented, error, type_error
from ...base_dsl.typing import Boolean
from ..arch.smem import alloc_smem
from ..atoms.atom import CopyAtom
from ..atoms.copying import guarded
from ..layout.algebra import composition
from ..layout.basis import add_coords
from ..layout.int_tuple import product
from ..layout.layout import cosize
from ..layout.leaf import get_divisibility
from ..layout.tiling import zipped_divide
from ..tensor import vector_access
from ..tensor.extents import Extents, watched
from ..tensor.pointer import AddressSpace, element_bits
from ..tensor.tensor import TracedTensor, make_rmem_tensor, make_tensor

__all__ = ["allocate", "copy", "partition"]


def allocate(
    dtype: Any, address_space: Any, layout: Any, alignment: int | None = None, is2cta: bool = False, *, loc: Any = None,
    ip: Any = None,
) -> Any:  # fmt: skip
    """Return a new tensor in registers or in the shared memory of the CTA."""
    if address_space is AddressSpace.rmem:
        return make_rmem_tensor(layout, dtype)
    if address_space is AddressSpace.smem:
        return make_tensor(alloc_smem(dtype, cosize(layout), alignment), layout)
    raise error(DSLNotImplemented, f"cute.experimental.allocate() in {address_space}: Kiln has rmem and smem")


def partition(buffer: Any, agent: Any, *, layout_tv: Any, tiler: Any, loc: Any = None, ip: Any = None) -> TracedTensor:
    """Return the part of a tensor that a thread has: (values, tiles), by a layout (thread, value) -> element of a tile."""
    tiles = composition(zipped_divide(buffer, tiler), (layout_tv, None))
    return tiles[(agent, None), None]


def copy(src: Any, dst: Any, *, copy_atom: Any = None, loc: Any = None, ip: Any = None) -> None:
    """Copy a thread's elements between memory and registers, but for those outside the tensor they were cut from.

    Registers whose elements are outside become zero. A call of the atom is one access where its values are known to lie
    inside or outside together.
    """
    if not isinstance(src, TracedTensor) or not isinstance(dst, TracedTensor):
        raise type_error(f"copy() from {type(src).__name__} to {type(dst).__name__}", "between tensors")
    count = product(dst.shape)
    if not isinstance(count, int) or product(src.shape) != count:
        raise type_error(f"copy() from {src} to {dst}", "as many elements, known when compiling")
    values = product(copy_atom.layout_src_tv.shape[1]) if isinstance(copy_atom, CopyAtom) else 1
    bits = element_bits(dst.element_type)
    moves = vector_access.Copy(
        src._iterator, src.offset_layout, dst._iterator, dst.offset_layout, count, values * bits // 8
    )
    bounded = [t._extents for t in (src, dst) if t.memspace in (AddressSpace.gmem, AddressSpace.generic)]
    bounds = [e for e in bounded if isinstance(e, Extents)]
    if bounds and dst.memspace is AddressSpace.rmem:
        dst.fill(0)
    step = values if all(_fits(e, values) for e in bounds) else 1
    for first in range(0, count, step):
        inside: Any = True
        for extents in bounds:
            inside = _both(inside, _inside(extents, first))
        guarded(inside, lambda first=first: moves.move(frozenset(range(first, first + step))))


def _fits(extents: Extents, values: int) -> bool:
    """Return whether `values` consecutive elements lie along one mode, whose extent is known to be a multiple."""
    if values == 1:
        return True
    places = [extents.layout(i) for i in range(values)]
    steps = [add_coords((0,) * len(extents.sizes), p) for p in places]
    along = [m for m in range(len(extents.sizes)) if any(str(s[m]) != str(steps[0][m]) for s in steps)]
    return len(along) == 1 and get_divisibility(extents.sizes[along[0]]) % values == 0


def _inside(extents: Extents, index: int) -> Any:
    """Return whether an element lies inside the tensor it was cut from."""
    found: Any = True
    for place, size in zip(add_coords(extents.origin, extents.layout(index)), extents.sizes, strict=True):
        found = _both(found, place < size)
    return found


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return Boolean(a) & Boolean(b)


def with_extents(value: Any) -> Any:
    """Return a tensor in global memory that knows the coordinates of its elements; other values as they are."""
    if not isinstance(value, TracedTensor) or value._extents is not None or not value.in_memory or watched():
        return value
    if value.memspace not in (AddressSpace.gmem, AddressSpace.generic):
        return value
    return TracedTensor(value._iterator, value._layout, value._promised, Extents.of(value._layout))
