"""TMA of tensors whose strides are numbers of the program, that of the contiguous mode among them."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Int32, cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.targets.host.faults import AssertionFault


@cute.kernel
def kernel(atom, x: cute.Tensor, y: cute.Tensor):
    memory, barrier = arch.alloc_smem(kiln.Float32, 256, 128), arch.alloc_smem(kiln.Int64, 1, 8)
    tile = cute.make_tensor(memory, cute.make_layout((8, 32), stride=(32, 1)))
    thread = arch.thread_idx()[0]
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
    arch.mbarrier_init_fence()
    arch.sync_threads()
    to, source = cpasync.tma_partition(
        atom,
        0,
        cute.make_layout(1),
        cute.group_modes(tile, 0, 2),
        cute.group_modes(cute.local_tile(x, (8, 32), (1, 1)), 0, 2),
    )
    cute.copy(atom, source, to, tma_bar_ptr=barrier)
    arch.mbarrier_wait(barrier, 0)
    for row in range(8):
        y[row, thread] = tile[row, thread]


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, step: Int32):
    x = cute.make_tensor(x.iterator, cute.make_layout((16, 64), stride=(Int32(64), step)))
    atom, coordinates = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x, cute.make_layout((8, 32), stride=(32, 1)), (8, 32)
    )
    kernel(atom, coordinates, y).launch(grid=1, block=32)


def test_a_contiguous_stride_that_is_known_when_the_program_runs():
    x, y = np.arange(1024, dtype=np.float32).reshape(16, 64), np.zeros((8, 32), np.float32)
    with kiln.target("cpu"):
        launch(from_dlpack(x, assumed_align=16), from_dlpack(y), 1)
        np.testing.assert_array_equal(y, x[8:, 32:])
        with pytest.raises(
            AssertionFault, match=r"mode 1 of the tensor is contiguous .* and its stride is 2: TMA takes 1"
        ):
            launch(from_dlpack(x, assumed_align=16), from_dlpack(y), 2)
