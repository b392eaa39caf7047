"""`WorkTileInfo`: which tile a scheduler gives to a block."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..base_dsl.user_op import extract_mlir_values, new_from_mlir_values


@dataclasses.dataclass
class WorkTileInfo:
    """A tile's coordinate, and whether there is one left to work on."""

    tile_idx: Any
    is_valid_tile: Any

    def __extract_mlir_values__(self) -> list[Any]:
        return [*extract_mlir_values(self.tile_idx), *extract_mlir_values(self.is_valid_tile)]

    def __new_from_mlir_values__(self, values: Any) -> WorkTileInfo:
        valid = len(extract_mlir_values(self.is_valid_tile))
        rest = len(values) - valid
        tile = new_from_mlir_values(self.tile_idx, values[:rest])
        return WorkTileInfo(tile, new_from_mlir_values(self.is_valid_tile, values[rest:]))
