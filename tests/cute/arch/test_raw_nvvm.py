"""Operations of the nvvm dialect that programs build themselves."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute import arch
from kiln.cute.arch import nvvm_dialect as nvvm
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.mlir import dialect_module
from kiln.targets.nvidia import codegen

TILE = (8, 32)


def launcher(**more):
    @cute.kernel
    def kernel(atom, x: cute.Tensor, y: cute.Tensor, maps: cute.Tensor):
        llvm = dialect_module("llvm")
        tile = cute.make_tensor(arch.alloc_smem(kiln.Float32, 256, 128), cute.make_layout(TILE, stride=(32, 1)))
        barrier, thread = arch.alloc_smem(kiln.Int64, 1, 8), arch.thread_idx()[0]
        if thread == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
            cpasync.copy_tensormap(atom, maps.iterator)
            cpasync.fence_tma_desc_release()
        arch.mbarrier_init_fence()
        arch.sync_threads()
        cpasync.fence_tma_desc_acquire(maps.iterator)
        place = llvm.addrspacecast(llvm.PointerType.get(cute.AddressSpace.generic), maps.iterator.llvm_ptr)
        chosen = nvvm.elect_sync()
        nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
            tile.iterator.llvm_ptr, place, [kiln.Int32(n).ir_value() for n in (32, 8)], barrier.llvm_ptr, [], predicate=chosen,
            mode=nvvm.TMALoadMode.TILE, **more,
        )  # fmt: skip
        arch.mbarrier_wait(barrier, 0)
        for row in range(TILE[0]):
            y[row, thread] = tile[row, thread]

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, maps: cute.Tensor):
        layout = cute.make_layout(TILE, stride=(32, 1))
        atom, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, TILE)
        kernel(atom, x, y, maps).launch(grid=1, block=32)

    return launch


def fakes():
    make = cute.runtime.make_fake_compact_tensor
    kinds = [(kiln.Float32, (16, 64)), (kiln.Float32, TILE), (kiln.Int64, (16,))]
    return [make(kind, shape, stride_order=(1, 0)[: len(shape)] if len(shape) > 1 else (0,), assumed_align=128) for kind, shape in kinds]  # fmt: skip


def test_a_box_is_copied_by_the_chosen_thread():
    def aligned(shape, dtype):
        memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 128, np.uint8)
        return memory[-memory.ctypes.data % 128 :][: memory.size - 128].view(dtype).reshape(shape)

    x, y, maps = aligned((16, 64), np.float32), aligned(TILE, np.float32), aligned((16,), np.int64)
    x[:] = np.arange(x.size).reshape(x.shape)
    with kiln.target("cpu"):
        launcher()(*(from_dlpack(a, assumed_align=128) for a in (x, y, maps)))
    np.testing.assert_array_equal(y, x[8:16, 32:64])


@pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")
def test_it_is_the_instruction():
    ptx = cute.compile(launcher(), *fakes(), target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert ptx.count("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes") == 1


def test_what_is_refused():
    with pytest.raises(DSLUserCodeTypeError, match="group of CpAsyncBulkTensorGlobalToSharedClusterOp is 1"):
        cute.compile(launcher(group=1), *fakes(), target="cpu")
    pair = launcher(group=nvvm.CTAGroupKind.CTA_2)
    with pytest.raises(kiln.DSLBaseError, match="two CTAs together .* needs sm_100a"):
        cute.compile(pair, *fakes(), target="nvidia", options="--gpu-arch sm_90a")
    cute.compile(pair, *fakes(), target="cpu")
    assert nvvm.CpAsyncBulkTensorLoadMode is nvvm.TMALoadMode  # its older name
