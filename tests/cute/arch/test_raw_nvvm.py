"""Operations of the nvvm dialect that programs build themselves."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.experimental import nvvm_dialect as nvvm
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


@cute.kernel
def newer_operations(out: cute.Tensor):
    thread = arch.thread_idx()[0]
    barrier, sums = arch.alloc_smem(kiln.Int64, 1, 8), arch.alloc_smem(kiln.Int32, 1, 4)
    if thread == 0:
        nvvm.mbarrier_init(barrier.llvm_ptr, kiln.Int32(33).ir_value())
        cute.make_tensor(sums, 1)[0] = 5
    arch.mbarrier_init_fence()
    nvvm.barrier_cta_sync(kiln.Int32(1).ir_value(), thread_count=kiln.Int32(32).ir_value(), aligned=True)
    count, near = kiln.Int32(1).ir_value(), nvvm.MBarrierSpaceKind.CTA
    nvvm.red(
        op=nvvm.ReductionOp.ADD, type_=nvvm.ReductionType.S32, a=sums.llvm_ptr, b=thread.ir_value(),
        mem_order=nvvm.MemOrderKind.RELAXED, mem_scope=nvvm.MemScopeKind.CTA, shared_space=nvvm.SharedSpace.shared_cta,
    )  # fmt: skip
    if thread == 0:
        nvvm.mbarrier_txn(
            barrier.llvm_ptr, kiln.Int32(16).ir_value(), kind=nvvm.MBarrierTxnKind.ARRIVE_EXPECT_TX, space=near,
            order=nvvm.MemOrderKind.RELAXED,
        )  # fmt: skip
        nvvm.mbarrier_txn(barrier.llvm_ptr, kiln.Int32(16).ir_value(), kind=nvvm.MBarrierTxnKind.COMPLETE_TX)
    nvvm.mbarrier_txn(
        arch.map_dsmem_ptr(barrier, 0).llvm_ptr, count, kind=nvvm.MBarrierTxnKind.ARRIVE,
        space=nvvm.MBarrierSpaceKind.CLUSTER, order=nvvm.MemOrderKind.RELEASE,
    )  # fmt: skip
    arch.mbarrier_wait(barrier, 0)
    i32 = kiln.Int32.mlir_type
    largest = nvvm.redux_sync(
        res=i32, val=thread.ir_value(), kind=nvvm.ReduxKind.MAX, mask_and_clamp=kiln.Int32(-1).ir_value()
    )
    zero, three = kiln.Int32(0).ir_value(), kiln.Float32(3.0).ir_value()
    packed = nvvm.cvt_packfloat_f32(
        i32, kiln.Float32(0.0).ir_value(), three, zero, nvvm.CVTPackFloatKind.UE8M0x2, rnd=nvvm.FPRoundingMode.RP,
        sat=nvvm.SaturationModeKind.NONE,
    )  # fmt: skip
    kinds = nvvm.CVTPackFloatKind.UE8M0x2, nvvm.CVTPackFloatKind.BF16x2
    wide = nvvm.cvt_packfloat(i32, packed, zero, *kinds, rnd=nvvm.FPRoundingMode.RN)
    for row, value in enumerate(
        (kiln.Int32(largest), kiln.Int32(packed), kiln.Int32(wide), cute.make_tensor(sums, 1)[0])
    ):
        out[row, thread] = value


@cute.jit
def launch_newer(out: cute.Tensor):
    newer_operations(out).launch(grid=1, block=32, cluster=1)


def test_operations_that_the_bindings_lack_are_there_as_primitives():
    out = np.zeros((4, 32), np.int32)
    with kiln.target("cpu"):
        launch_newer(from_dlpack(out))
    assert out[0].tolist() == [31] * 32
    assert out[1].tolist() == [129] * 32, "3 is rounded up to 4, 2 ** (129 - 127)"
    assert out[2].view(np.uint16)[0::2].tolist() == [0x4080] * 32, "4 as bfloat16"
    assert out[3].tolist() == [5 + sum(range(32))] * 32
    if codegen.ptxas_version() is not None:
        fake = cute.runtime.make_fake_compact_tensor(kiln.Int32, (4, 32), stride_order=(1, 0))
        ptx = cute.compile(launch_newer, fake, target="nvidia", options="--gpu-arch sm_100a").__ptx__
        for words in ("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta", "mbarrier.arrive.release.cluster.shared::cluster",
                      "red.relaxed.cta.shared::cta.add.s32", "1, 32;", "cvt.rn.bf16x2.ue8m0x2"):  # fmt: skip
            assert words in ptx, words
