"""Layouts of tiles in shared memory that MMAs, bulk copies and `ldmatrix` access without bank conflicts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import NumericMeta
from ..layout.algebra import coalesce
from ..layout.composed_layout import make_composed_layout
from ..layout.int_tuple import pretty_str, product, wrap
from ..layout.layout import make_layout
from ..layout.swizzle import make_swizzle
from ..layout.tiling import tile_to_shape, tiled_divide
from ..tensor.pointer import element_bits

if TYPE_CHECKING:
    from ..layout.composed_layout import ComposedLayout

__all__ = ["SmemLayoutAtomKind", "make_smem_layout_atom", "tile_to_mma_shape"]

T = TypeVar("T")


class SmemLayoutAtomKind(enum.Enum):
    """The contiguous mode of a tile (K, or the other), and how many bytes of a row are permuted among themselves."""

    MN_INTER = enum.auto()
    MN_SW32 = enum.auto()
    MN_SW64 = enum.auto()
    MN_SW128 = enum.auto()
    MN_SW128_32B = enum.auto()
    """Pieces of 32 bytes are permuted, not of 16: elements of 32 bits that `tcgen05.mma` transposes."""
    K_INTER = enum.auto()
    K_SW32 = enum.auto()
    K_SW64 = enum.auto()
    K_SW128 = enum.auto()


_ROWS = 8
_PIECE = 128
"""The bits that stay together: what one lane passes to `ldmatrix`."""


def make_smem_layout_atom(
    kind: object, element_type: object, *, loc: object = None, ip: object = None
) -> ComposedLayout:
    """Return the layout atom of a swizzle in shared memory: eight rows of 16 (INTER), 32, 64 or 128 bytes.

    It is (8, row) for K-major kinds, else (row, 8). Its `inner` permutes addresses in bytes: repeat it with
    `tile_to_shape`, and make a tensor of its parts, `allocate_tensor(T, layout.outer, 1024, layout.inner)` or
    `storage.tile.get_tensor(layout.outer, swizzle=layout.inner)`.

    Args:
        kind: a `SmemLayoutAtomKind`: the contiguous mode (K or MN) and the swizzle, such as `K_SW128`.
        element_type: the type of the elements, whose width gives the length of a row.
    """
    if not isinstance(kind, SmemLayoutAtomKind):
        names = ", ".join(member.name for member in SmemLayoutAtomKind)
        raise type_error(f"kind is {kind!r}, which is no SmemLayoutAtomKind", f"SmemLayoutAtomKind: {names}")
    if not isinstance(element_type, NumericMeta) or element_type.is_abstract:
        raise type_error(f"element_type of a shared-memory layout is {element_type!r}", "a numeric type")
    mode, _, permuted = kind.name.partition("_")
    bits = {"INTER": 0, "SW32": 1, "SW64": 2, "SW128": 3, "SW128_32B": 3}[permuted]
    row = (_PIECE << bits) // element_bits(element_type)
    outer = make_layout((_ROWS, row), stride=(row, 1)) if mode == "K" else make_layout((row, _ROWS), stride=(1, row))
    swizzle = make_swizzle(2, 5, 2) if permuted == "SW128_32B" else make_swizzle(bits, 4, 3)
    return make_composed_layout(swizzle, 0, outer)


def tile_to_mma_shape(
    atom: T, mma_tile_shape: object, order: object = None, *, loc: object = None, ip: object = None
) -> T:
    """Return a layout atom repeated over the tile of an MMA: ((MN, K) of a call, rest of MN, rest of K, stages...).

    Args:
        atom: a layout atom of `make_smem_layout_atom`.
        mma_tile_shape: what `partition_shape_A` or `partition_shape_B` of a tiled MMA returns, with stages appended.
        order: the rank of the modes MN, K and stages: the first is filled first.
    """
    if not isinstance(mma_tile_shape, tuple) or len(mma_tile_shape) < 3 or len(wrap(mma_tile_shape[0])) != 2:
        raise type_error(
            f"mma_tile_shape is {pretty_str(mma_tile_shape)}", "((MN, K), rest of MN, rest of K, stages...)"
        )
    (rows, depth), rest_rows, rest_depth, *stages = mma_tile_shape
    whole = (product(rows) * product(rest_rows), product(depth) * product(rest_depth), *stages)
    tiled = tile_to_shape(atom, whole, tuple(range(len(whole))) if order is None else order)
    return tiled_divide(coalesce(tiled, target_profile=(1,) * len(whole)), (product(rows), product(depth)))
