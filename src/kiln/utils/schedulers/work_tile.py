"""`WorkTileInfo`: the tile that a scheduler gives to a CTA."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...base_dsl.typing import Int32
from ..value_parts import ValueParts

__all__ = ["WorkTileInfo"]


@dataclasses.dataclass
class WorkTileInfo(ValueParts):
    """A tile's coordinate, and whether it is valid.

    Python integers in the coordinate stay static, except where tiles with different ones merge: there they become
    Int32.
    """

    tile_idx: Any
    is_valid_tile: Any

    def __kiln_join__(self, other: Any) -> Any:
        first, second = _placed(self, other.tile_idx), _placed(other, self.tile_idx)
        return (first, second) if first.__kiln_static_key__() == second.__kiln_static_key__() else None

    def __kiln_coerce__(self, like: Any) -> Any:
        placed = _placed(self, like.tile_idx)
        return placed if placed.__kiln_static_key__() == like.__kiln_static_key__() else None


def _placed(tile: WorkTileInfo, other: Any) -> WorkTileInfo:
    return dataclasses.replace(tile, tile_idx=_beside(tile.tile_idx, other))


def _beside(own: Any, other: Any) -> Any:
    """Return a coordinate whose integers are Int32 where those of `other` differ."""
    if isinstance(own, tuple) and isinstance(other, tuple) and len(own) == len(other):
        return tuple(_beside(x, y) for x, y in zip(own, other, strict=True))
    return Int32(own) if type(own) is int and not (type(other) is int and own == other) else own
