"""Copies that predicate themselves: elements outside the tensor that a kernel got are not accessed.

In a kernel decorated with `cute.experimental.kernel` tensors in global memory know the coordinates of their elements,
through slices, tiles and partitions; a copy compares them with the extents.
"""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean
from ..arch.tensor_memory import fence_view_async_tmem_load
from ..atoms.atom import CopyAtom, ThrCopy
from ..atoms.copying import copy as copy_with_atom
from ..atoms.copying import guarded
from ..layout.algebra import composition
from ..layout.basis import add_coords
from ..layout.int_tuple import product
from ..layout.leaf import get_divisibility
from ..layout.tiling import zipped_divide
from ..nvgpu.common import CopyUniversalOp
from ..nvgpu.tcgen05 import get_s2t_smem_desc_tensor, is_tmem_load
from ..tensor import vector_access
from ..tensor.extents import Extents
from ..tensor.pointer import AddressSpace, element_bits
from ..tensor.tensor import TracedTensor

__all__ = ["copy", "partition", "partition_and_copy"]


def partition(
    buffer: object, agent_id: object, *, layout_tv: object, tiler: object, loc: object = None, ip: object = None
) -> TracedTensor:
    """Return the part of a tensor that a thread has: (values, tiles).

    `layout_tv` maps (thread, value) to an element of a tile.
    """
    tiles = composition(zipped_divide(buffer, tiler), (layout_tv, None))
    return tiles[(agent_id, None), None]


def copy(src: object, dst: object, *, copy_atom: object = None, loc: object = None, ip: object = None) -> None:
    """Copy a thread's elements between memory and registers, but for those outside the tensor they were cut from.

    Registers whose elements are outside become zero. A call of the atom is one access where its values are known to lie
    inside or outside together. To tensor memory a warp copies with the atom alone, from shared memory.
    """
    if not isinstance(src, TracedTensor) or not isinstance(dst, TracedTensor):
        raise type_error(f"copy() from {type(src).__name__} to {type(dst).__name__}", "between tensors")
    if dst.memspace is AddressSpace.tmem:
        copy_with_atom(copy_atom, get_s2t_smem_desc_tensor(copy_atom, src), dst)
        return
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


def partition_and_copy(tiled_copy: object, src: object, dst: object, *, loc: object = None, ip: object = None) -> None:
    """Copy a thread's part of a tile between memory and the thread's registers, with a slice of a tiled copy.

    The side in memory is partitioned, registers are the thread's own. Loads from tensor memory are complete after it.
    Copies between registers and global memory leave out elements outside the tensor, as `copy` does. They may also take
    the slice of a copy from tensor memory, which then says only which elements the thread has.
    """
    if not isinstance(tiled_copy, ThrCopy):
        raise type_error(
            f"partition_and_copy takes a thread's slice of a tiled copy, got {type(tiled_copy).__name__}",
            "tiled_copy.get_slice(thread)",
        )
    spaces = [getattr(x, "memspace", None) for x in (src, dst)]
    if spaces.count(AddressSpace.rmem) != 1:
        raise type_error(f"partition_and_copy from {src} to {dst}", "one of them is in registers, the other in memory")
    from_registers = spaces[0] is AddressSpace.rmem
    memory = tiled_copy.partition_D(dst) if from_registers else tiled_copy.partition_S(src)
    if isinstance(memory, TracedTensor) and memory.memspace in (AddressSpace.gmem, AddressSpace.generic):
        is_plain = isinstance(tiled_copy.op, CopyUniversalOp)
        if memory._extents is not None if is_plain else is_tmem_load(tiled_copy):
            source, target = (src, memory) if from_registers else (memory, dst)
            copy(source, target, copy_atom=tiled_copy if is_plain else None)
            return
    if from_registers:
        copy_with_atom(tiled_copy, tiled_copy.retile(src), memory)
        return
    copy_with_atom(tiled_copy, memory, dst)
    if spaces[0] is AddressSpace.tmem:
        fence_view_async_tmem_load()


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
    inside: Any = True
    for place, size in zip(add_coords(extents.origin, extents.layout(index)), extents.sizes, strict=True):
        inside = _both(inside, place < size)
    return inside


def _both(a: object, b: object) -> Any:
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return Boolean(a) & Boolean(b)
