"""Copies that predicate themselves."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute import experimental as cute_ext
from kiln.cute.runtime import from_dlpack

TV = ((8, 4), (4, 1)), ((4, 32), (1, 128))


@cute_ext.kernel
def add(x: cute.Tensor, out: cute.Tensor, addend: kiln.Float32):
    tiles = [cute.zipped_divide(t, (32, 16)) for t in (x, out)]
    bx, by, _ = cute.arch.block_idx()
    layout = cute.make_layout(TV[0], stride=TV[1])
    mine = [
        cute_ext.partition(t[(None, None), (bx, by)], cute.arch.thread_idx()[0], layout_tv=layout, tiler=(32, 4))
        for t in tiles
    ]
    held = cute_ext.allocate(
        kiln.Float32, cute.AddressSpace.rmem, cute.make_layout(((4, 1), (1, 4)), stride=((1, 4), (1, 4)))
    )
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kiln.Float32, num_bits_per_copy=128)
    cute_ext.copy(mine[0], held, copy_atom=atom)
    held.store(held.load() + addend)
    cute_ext.copy(held, mine[1], copy_atom=atom)


@cute_ext.jit
def main(x: cute.Tensor, out: cute.Tensor, addend: kiln.Float32):
    tiles = cute.tiled_divide(x, (32, 16))
    add(x, out, addend).launch(grid=(tiles.shape[1], tiles.shape[2], 1), block=32)


@pytest.mark.parametrize("divisibility", [4, 1])
def test_elements_outside_the_tensor_are_not_accessed(divisibility):
    """With a leading extent of no known multiple the copy goes element by element."""
    rows, columns = (36, 19) if divisibility == 4 else (35, 19)
    memory = np.full((2, columns, 40), -7.0, np.float32)
    x, out = (part[:, :rows].T for part in memory)
    x[:] = np.random.default_rng(0).random((rows, columns))
    arguments = [from_dlpack(t, assumed_align=4 * divisibility).mark_layout_dynamic(leading_dim=0) for t in (x, out)]
    if divisibility > 1:
        memory = np.full((2, columns * rows + 4), -7.0, np.float32)
        start = -memory.ctypes.data % 16 // 4
        x, out = (part[start : start + rows * columns].reshape(columns, rows).T for part in memory)
        x[:] = np.random.default_rng(0).random((rows, columns))
        arguments = [
            from_dlpack(t, assumed_align=16)
            .mark_layout_dynamic(leading_dim=0)
            .mark_compact_shape_dynamic(mode=0, stride_order=(1, 0), divisibility=4)
            for t in (x, out)
        ]
    with kiln.target("cpu"):
        main(*arguments, kiln.Float32(2.0))
    np.testing.assert_array_equal(out, x + np.float32(2))
    rest = memory.sum() + 0.0
    assert rest == memory.sum()
    assert (memory[1] == -7).sum() == memory[1].size - out.size
