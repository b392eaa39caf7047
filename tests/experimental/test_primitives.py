"""Single instructions under their names in `cutlass.experimental.primitives`."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.experimental import primitives as prims


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def run(kernel, *arrays, threads=32):
    @cute.jit
    def f(*tensors):
        kernel(*tensors).launch(grid=1, block=threads)

    f(*(from_dlpack(x, assumed_align=x.itemsize) for x in arrays))


def test_words():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        if arch.thread_idx()[0] == 0:
            out[0] = prims.prmt(x[0], 0x4140, prims.PermuteMode.DEFAULT, hi=x[1])
            out[1] = kiln.Int32(prims.mov_b32(kiln.Float32(1.0), target_type=kiln.Uint32))
            out[2] = prims.convert_and_pack_integer(x[2], x[3], kiln.Int16.mlir_type, is_signed=True)

    out = np.zeros(3, np.int32)
    run(kernel, np.array([0x44332211, 0x55667788, 100000, -100000], np.int32), out)
    assert [n & 0xFFFFFFFF for n in out.tolist()] == [0x88228811, 0x3F800000, 0x7FFF8000]


def test_reductions_of_a_warp_and_counters():
    @cute.kernel
    def kernel(count: cute.Tensor, out: cute.Tensor):
        lane = arch.lane_idx()
        old = prims.atomicrmw(prims.AtomicOp.INC, count.iterator.llvm_ptr, kiln.Int32(9))
        total = prims.redux_sync(old, prims.ReductionKind.MAX, 0xFFFFFFFF)
        prims.griddepcontrol(prims.GridDepAction.WAIT)
        if lane == 0:
            out[0] = total

    count, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(kernel, count, out)
    assert (count[0], out[0]) == (2, 9)  # 0 to 9, three times, then 0 and 1


@pytest.mark.parametrize("reduces", [False, True])
def test_bulk_copies_to_global_memory(reduces):
    @cute.kernel
    def kernel(out: cute.Tensor):
        lane = arch.lane_idx()
        tile = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout(32), 128)
        tile[lane] = kiln.Float32(lane)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_warp()
        if lane == 0:
            where, rows = out.iterator.llvm_ptr, tile.iterator.to_llvm_ptr()
            if kiln.const_expr(reduces):
                prims.cp_reduce_async_bulk_global_shared_cta(
                    where, rows, 128, op=prims.CpReduceOp.ADD, type=prims.CpReduceType.F32
                )
            else:
                prims.cp_async_bulk_global_shared_cta(where, rows, 128)
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    memory = np.ones(36, np.float32)
    out = memory[(-memory.ctypes.data // 4) % 4 :][:32]
    run(kernel, out)
    np.testing.assert_array_equal(out, np.arange(32) + reduces)
