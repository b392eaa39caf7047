"""`WorkTileInfo`: what derived classes rely on."""

from __future__ import annotations

import numpy as np

import kiln
from kiln import Int32, cute
from kiln.cute.runtime import from_dlpack


class Tile(kiln.utils.WorkTileInfo):
    """A tile with four coordinates, of the values of its two fields."""

    def __new_from_mlir_values__(self, values):
        assert len(values) == 5  # four coordinates, and whether it is valid, also where that is known
        index = kiln.new_from_mlir_values(self._tile_idx, values[:-1])
        return Tile(index, kiln.new_from_mlir_values(self._is_valid_tile, values[-1:]))


def test_a_tile_with_four_coordinates():
    @cute.kernel
    def kernel(out: cute.Tensor):
        x, y, z = cute.arch.block_idx()
        tile, count = Tile((x, y, z, Int32(0)), True), Int32(0)
        while tile.is_valid_tile:
            count += 1
            a, b, c, d = tile.tile_idx
            tile = Tile((a, b, c, d + 1), d + 1 < 3)
        out[0] = count

    @cute.jit
    def f(out: cute.Tensor):
        kernel(out).launch(grid=1, block=1)

    out = np.zeros(1, np.int32)
    with kiln.target("cpu"):
        f(from_dlpack(out))
    assert out[0] == 3
