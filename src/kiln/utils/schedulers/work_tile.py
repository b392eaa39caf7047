"""`WorkTileInfo`: the tile that a scheduler gives to a CTA."""

from __future__ import annotations

from typing import Any

from ...base_dsl.typing import Boolean, Int32
from ..value_parts import ValueParts

__all__ = ["WorkTileInfo"]


class WorkTileInfo(ValueParts):
    """A tile's coordinate, and whether it is valid.

    Python integers in the coordinate stay static, except where tiles with different ones merge: there they become
    Int32. Whether a tile is valid is a Boolean of the program, also where it is known. Derived classes have the fields
    `_tile_idx` and `_is_valid_tile`, whose values come in this order.
    """

    def __init__(self, tile_idx: Any, is_valid_tile: object) -> None:
        self._tile_idx = tile_idx
        self._is_valid_tile = Boolean(is_valid_tile)

    @property
    def tile_idx(self) -> Any:
        """The coordinate of the tile."""
        return self._tile_idx

    @property
    def is_valid_tile(self) -> Boolean:
        """Whether there is such a tile."""
        return self._is_valid_tile

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tile_idx={self._tile_idx}, is_valid_tile={self._is_valid_tile})"

    def __kiln_join__(self, other: Any) -> Any:
        first = _placed(self, other._tile_idx)
        second = _placed(other, self._tile_idx)
        return (first, second) if first.__kiln_static_key__() == second.__kiln_static_key__() else None

    def __kiln_coerce__(self, like: Any) -> Any:
        placed = _placed(self, like._tile_idx)
        return placed if placed.__kiln_static_key__() == like.__kiln_static_key__() else None


def _placed(tile: WorkTileInfo, other: object) -> Any:
    placed = object.__new__(type(tile))
    placed.__dict__.update(tile.__dict__, _tile_idx=_beside(tile._tile_idx, other))
    return placed


def _beside(own: object, other: object) -> Any:
    """Return a coordinate whose integers are Int32 where those of `other` differ."""
    if isinstance(own, tuple) and isinstance(other, tuple) and len(own) == len(other):
        return tuple(_beside(x, y) for x, y in zip(own, other, strict=True))
    return Int32(own) if type(own) is int and not (type(other) is int and own == other) else own
