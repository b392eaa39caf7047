"""Tiles that stick out of a matrix, loaded and stored with predicates; sums of rows by a warp, of what is there."""

import numpy as np

import kiln
from kiln import Boolean, Float32, Int32, cute

GUARDS = True
TILE = (8, 32)


@cute.kernel
def sums(tiles: cute.Tensor, places: cute.Tensor, out: cute.Tensor, y: cute.Tensor, rows: Int32, columns: Int32):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32)
    copy = cute.make_tiled_copy_tv(atom, cute.make_layout((8, 4), stride=(4, 1)), cute.make_layout((1, 4)))
    part = copy.get_slice(t)
    source, target = part.partition_S(tiles[(None, None), b]), part.partition_D(out[(None, None), b])
    place = part.partition_S(places[(None, None), b])
    values = cute.make_rmem_tensor(source.shape, Float32)
    inside = cute.make_rmem_tensor(source.shape, Boolean)
    for i in kiln.range_constexpr(cute.size(inside)):
        inside[i] = cute.elem_less(place[i], (rows, columns))
    values.fill(0.0)
    cute.copy(copy, source, values, pred=inside)
    total = Float32(0.0)
    for i in kiln.range_constexpr(cute.size(values)):
        total += values[i]
    for step in kiln.range_constexpr(2):
        total += cute.arch.shuffle_sync_bfly(total, 1 << step)
    row = place[0][0]
    if t % 4 == 0 and row < rows:
        cute.arch.atomic_add(y.iterator + row, total)
    for i in kiln.range_constexpr(cute.size(values)):
        values[i] = values[i] + Float32(1.0)
    cute.copy(copy, values, target, pred=inside)


@cute.jit
def main(x: cute.Tensor, out: cute.Tensor, y: cute.Tensor, rows: Int32, columns: Int32):
    tiles, targets = cute.zipped_divide(x, TILE), cute.zipped_divide(out, TILE)
    places = cute.zipped_divide(cute.make_identity_tensor(x.shape), TILE)
    sums(tiles, places, targets, y, rows, columns).launch(grid=cute.size(tiles, mode=[1]), block=32)


def run():
    x = np.random.default_rng(7).integers(0, 100, (24, 96)).astype(np.float32)
    out, y = np.zeros((24, 96), np.float32), np.zeros(18, np.float32)
    x, out = x[:18, :90], out[:18, :90]
    main(x, out, y, *x.shape)
    return np.array_equal(y, x.sum(1)) and np.array_equal(out, x + 1)
