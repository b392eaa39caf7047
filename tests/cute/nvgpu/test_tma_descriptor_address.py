"""The address of the tensor map of an atom, with which programs write copies in PTX."""

from __future__ import annotations

import numpy as np

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync, cute_nvgpu_dialect
from kiln.cute.runtime import from_dlpack


@cute.kernel
def kernel(atom, y: cute.Tensor):
    tile, barrier = arch.alloc_smem(kiln.Float32, 256, 128), arch.alloc_smem(kiln.Int64, 1, 8)
    map_ = cute_nvgpu_dialect.get_tma_desc_addr(None, cute_nvgpu_dialect.atom_make_exec_tma(atom._trait.value))
    thread = arch.thread_idx()[0]
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
    arch.mbarrier_init_fence()
    arch.sync_threads()
    if thread == 0:
        arch.inline_ptx(
            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [{$r0}], [{$r1}, {{$r2}, {$r3}}], [{$r4}];",
            read_only_args=[tile.toint(), map_.toint(), kiln.Int32(32), kiln.Int32(8), barrier.toint()],
        )
    arch.mbarrier_wait(barrier, 0)
    for row in range(8):
        y[row, thread] = cute.make_tensor(tile, cute.make_layout((8, 32), stride=(32, 1)))[row, thread]


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    layout = cute.make_layout((8, 32), stride=(32, 1))
    atom, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, (8, 32))
    kernel(atom, y).launch(grid=1, block=32)


def test_a_copy_in_ptx_takes_the_map_of_an_atom():
    x, y = np.arange(1024, dtype=np.float32).reshape(16, 64), np.zeros((8, 32), np.float32)
    with kiln.target("cpu"):
        launch(from_dlpack(x, assumed_align=16), from_dlpack(y))
    np.testing.assert_array_equal(y, x[8:, 32:])
