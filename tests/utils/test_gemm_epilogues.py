"""Epilogues of sm_100 GEMMs: what their warps load from tensor memory is complete when they go on."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np

import kiln
from kiln import Float16, Float32, Int32, cute, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import LayoutEnum, gemm, sm100

M, N, EPILOGUE_N = 128, 64, 32


class Accumulator:
    """A pipeline and its state, of one accumulator that is always there."""

    index, phase = 0, 0

    def consumer_wait(self, _state):
        pass

    consumer_release = consumer_wait

    def advance(self):
        pass


@cute.kernel
def kernel(c: cute.Tensor, store: cute.CopyAtom, tma_c: cute.Tensor, mma: cute.TiledMma, layout: cute.ComposedLayout):
    thread, warp = cute.arch.thread_idx()[0], cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile = smem.allocate_tensor(Float16, layout.outer, 1024, layout.inner)
    barrier = pipeline.NamedBarrier(1, 128)
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), barrier)
    tmem.allocate(N)
    tmem.wait_for_alloc()
    pointer = tmem.retrieve_ptr(Float32)
    acc = cute.make_tensor(pointer, mma.make_fragment_C(cute.append(mma.partition_shape_C((M, N)), 1)).layout)
    write = tcgen05.make_tmem_copy(
        cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(N)), Float32), acc[(None, None), 0, 0, 0]
    )
    writer = write.get_slice(thread)
    values = cute.make_rmem_tensor(writer.partition_S(c).shape, Float32)
    for i in range(cute.size(values)):
        values[i] = Float32(thread) + i
    cute.copy(write, values, writer.partition_D(acc[(None, None), 0, 0, 0]))
    cute.arch.fence_view_async_tmem_store()
    barrier.arrive_and_wait()

    attributes = SimpleNamespace(
        cta_tile_shape_mnk=(M, N, 16), c_layout=LayoutEnum.ROW_MAJOR, c_dtype=Float16, acc_dtype=Float32,
        use_2cta_instrs=False, epilogue_warp_id=(0, 1, 2, 3), num_c_stage=2, epilog_sync_barrier=barrier,
    )  # fmt: skip
    part_c = mma.get_slice(0).partition_C(cute.local_tile(tma_c, (M, N), (None, None, None)))
    stores = pipeline.PipelineTmaStore.create(num_stages=2)
    gemm.sm100.epilogue_tma_store(
        attributes, thread, warp, store, acc, tile, part_c, (M, EPILOGUE_N), Int32(0), lambda x: x, (0, 0, 0),
        Accumulator(), Accumulator(), stores,
    )  # fmt: skip
    if warp == 0:
        stores.producer_tail()
    tmem.relinquish_alloc_permit()
    tmem.free(pointer)


@cute.jit
def launch(c: cute.Tensor):
    major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, major, major, Float32, tcgen05.CtaGroup.ONE, (M, N))
    layout = sm100.make_smem_layout_epi(Float16, LayoutEnum.ROW_MAJOR, (M, EPILOGUE_N), 2)
    one = cute.slice_(layout, (None, None, 0))
    shaped = cute.make_tensor(c.iterator, cute.make_layout((M, N, 1), stride=(N, 1, M * N)))
    store, tma_c = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), shaped, one, (M, EPILOGUE_N))
    kernel(cute.make_tensor(c.iterator, cute.make_layout((M, N), stride=(N, 1))), store, tma_c, mma, layout).launch(
        grid=1, block=128
    )


def test_loads_of_an_epilogue_are_complete_before_memory_is_freed():
    """All warps have waited for their loads when they leave the last barrier: the sanitizer does not even warn."""
    c = np.zeros((M, N), np.float16)
    with kiln.target("cpu"), warnings.catch_warnings(), kiln.sanitize():
        warnings.simplefilter("error")
        launch(c)
    np.testing.assert_array_equal(c, np.arange(M)[:, None] + np.arange(N))
