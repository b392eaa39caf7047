"""Layouts of tiles in shared memory that MMAs, bulk copies and `ldmatrix` access without bank conflicts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import NumericMeta
from ..layout.composed_layout import make_composed_layout
from ..layout.layout import make_layout
from ..layout.swizzle import make_swizzle
from ..tensor.pointer import element_bits

if TYPE_CHECKING:
    from ..layout.composed_layout import ComposedLayout

__all__ = ["SmemLayoutAtomKind", "make_smem_layout_atom"]


class SmemLayoutAtomKind(enum.Enum):
    """The contiguous mode of a tile (K, or the other), and how many bytes of a row are permuted among themselves."""

    MN_INTER = enum.auto()
    MN_SW32 = enum.auto()
    MN_SW64 = enum.auto()
    MN_SW128 = enum.auto()
    K_INTER = enum.auto()
    K_SW32 = enum.auto()
    K_SW64 = enum.auto()
    K_SW128 = enum.auto()


_ROWS = 8
_PIECE = 128
"""The bits that stay together: what one lane passes to `ldmatrix`."""


def make_smem_layout_atom(kind: Any, element_type: Any, *, loc: Any = None, ip: Any = None) -> ComposedLayout:
    """Return eight rows of 16 (INTER), 32, 64 or 128 bytes, whose pieces of 16 bytes are permuted: (8, row) for K, else
    (row, 8).

    Its `inner` permutes addresses in bytes: repeat it with `tile_to_shape`, and make a tensor of its parts,
    `allocate_tensor(T, layout.outer, 1024, layout.inner)` or `storage.tile.get_tensor(layout.outer,
    swizzle=layout.inner)`.
    """
    if not isinstance(kind, SmemLayoutAtomKind):
        names = ", ".join(member.name for member in SmemLayoutAtomKind)
        raise type_error(f"kind is {kind!r}, which is no SmemLayoutAtomKind", f"SmemLayoutAtomKind: {names}")
    if not isinstance(element_type, NumericMeta) or element_type.is_abstract:
        raise type_error(f"element_type of a shared-memory layout is {element_type!r}", "a numeric type")
    mode, _, permuted = kind.name.partition("_")
    bits = 0 if permuted == "INTER" else {"SW32": 1, "SW64": 2, "SW128": 3}[permuted]
    row = (_PIECE << bits) // element_bits(element_type)
    outer = make_layout((_ROWS, row), stride=(row, 1)) if mode == "K" else make_layout((row, _ROWS), stride=(1, row))
    return make_composed_layout(make_swizzle(bits, 4, 3), 0, outer)
