"""The part of tiles that one CTA copies with a TMA atom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from ...base_dsl.diagnostics import type_error
from ..layout.algebra import coalesce, composition
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import pretty_str
from ..layout.inverses import right_inverse
from ..layout.layout import Layout, cosize, make_layout, rank, size
from ..layout.leaf import is_zero
from ..layout.tiling import logical_divide, tile_to_shape
from ..tensor.tensor import Tensor, TracedTensor
from .tma_atom import tma_trait

__all__ = ["tma_partition"]


@overload
def tma_partition(
    atom: object,
    cta_coord: object,
    cta_layout: object,
    smem_tensor: Tensor,
    gmem_tensor: Tensor,
    *,
    loc: object = None,
    ip: object = None,
) -> tuple[TracedTensor, TracedTensor]: ...
@overload
def tma_partition(
    atom: object,
    cta_coord: object,
    cta_layout: object,
    smem_tensor: Tensor,
    gmem_tensor: Sequence[Tensor],
    *,
    loc: object = None,
    ip: object = None,
) -> tuple[TracedTensor, ...]: ...
def tma_partition(
    atom: object,
    cta_coord: object,
    cta_layout: object,
    smem_tensor: Tensor,
    gmem_tensor: Tensor | Sequence[Tensor],
    *,
    loc: object = None,
    ip: object = None,
) -> tuple[TracedTensor, ...]:
    """Return tensors in shared and in global memory as a TMA atom copies them, in that order.

    Mode 0 becomes (TMA, TMA_Iter): what one instruction copies, and how many there are; other modes stay.

    Args:
        atom: the TMA atom.
        cta_coord: this CTA's coordinate among those that share a tile; 0 without multicast.
        cta_layout: the layout of those CTAs, coordinate to number; `cute.make_layout(1)` without multicast. The results
            start at this CTA's part.
        smem_tensor: the tensor in shared memory, mode 0 a tile: `cute.group_modes(tile, 0, 2)`.
        gmem_tensor: a coordinate tensor of the atom, or several, mode 0 a tile.
    """
    values = tma_trait(atom, "tma_partition").facts.values
    tensors: list[TracedTensor] = []
    for tensor in (smem_tensor, *([gmem_tensor] if isinstance(gmem_tensor, Tensor) else gmem_tensor)):
        if not isinstance(tensor, TracedTensor):
            raise type_error(f"tma_partition takes tensors, got {type(tensor).__name__}")
        tensors.append(tensor)
    order = _order(tensors[0], values)
    for tensor in tensors[1:]:
        tile_size = size(tensor, mode=[0])
        if not isinstance(tile_size, int) or tile_size != size(tensors[0], mode=[0]):
            raise type_error(
                f"mode 0 of {tensor} and of {smem_tensor} are tiles of {pretty_str(tile_size)} and "
                f"{size(tensors[0], mode=[0])} elements: they are the same tile",
                "group the modes of the tile first: cute.group_modes(t, 0, 2)",
            )
    start = _start(cta_coord, cta_layout, values)
    return tuple(_part(tensor, order, start) for tensor in tensors)


def _order(tensor: TracedTensor, values: int) -> Layout:
    """Return the order of mode 0 of a tensor in shared memory, if an atom copies it."""
    layout = tensor.layout.outer if isinstance(tensor.layout, ComposedLayout) else tensor.layout
    count = size(layout, mode=[0])
    if not layout[0].is_static() or count % values:
        raise type_error(
            f"mode 0 of {tensor} is copied by boxes of {values} elements",
            "it is the tile that the atom was made for, static: cute.group_modes(t, 0, 2)",
        )
    return order_of(layout[0], values)


def order_of(tile: Layout, values: int) -> Layout:
    """Return (element of an instruction, instruction) -> index in a tile that lies in shared memory by a layout."""
    inverse = right_inverse(tile)
    if size(inverse) != size(tile):
        inverse = tile_to_shape(make_layout(inverse), size(tile))
    return logical_divide(inverse, make_layout(values))


def _start(cta_coord: object, cta_layout: object, values: int) -> Any:
    """Return the first element of a block's part of what an instruction copies."""
    if not isinstance(cta_layout, Layout):
        raise type_error(
            f"cta_layout is a layout of the blocks that share a tile, got {cta_layout!r}",
            "cute.make_layout(1) without multicast",
        )
    blocks = cosize(cta_layout)
    if not isinstance(blocks, int) or values % blocks:
        raise type_error(f"{values} elements are shared out to the blocks {cta_layout}")
    return cta_layout(cta_coord) * (values // blocks)


def _part(tensor: TracedTensor, order: Layout, start: object) -> TracedTensor:
    rest = (None,) * (rank(tensor) - 1)
    split = coalesce(composition(tensor, (order, *rest)), target_profile=((1, 1),))
    return split if is_zero(start) else split._domain_offset(((start, 0), *(0,) * len(rest)))
