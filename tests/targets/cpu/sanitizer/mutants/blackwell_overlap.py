"""Two accumulators share a quarter of their columns: the epilogue loads these first, and lets the next MMAs begin."""

import numpy as np
from hopper_tiles import matrices, product

from kiln import Float16, Float32, Int32, Int64, cute, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import sm100

M, N, K = TILE = (128, 64, 64)
PART = 16
OTHER = N - PART  # the first column of odd accumulators
BYTES = (M + N) * K * 2
STAGES, TILES = 2, 5
MMA_WARP, TMA_WARP = 4, 5


@cute.kernel
def overlap(load_a, a: cute.Tensor, load_b, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    acc_full = smem.allocate_array(Int64, 1)
    acc_empty = smem.allocate_array(Int64, 1)
    holder = smem.allocate_array(Int32, 1)
    if warp == MMA_WARP:
        with cute.arch.elect_one():
            for stage in range(STAGES):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(empty + stage, 1)
            cute.arch.mbarrier_init(acc_full, 1)
            cute.arch.mbarrier_init(acc_empty, 4)
            cute.arch.mbarrier_init_fence()
    if warp == 0:
        cute.arch.alloc_tmem(128, holder)
    cute.arch.sync_threads()
    part = mma.get_slice(0)
    part_a = part.partition_A(cute.local_tile(a, (M, K), (None, 0)))
    part_b = part.partition_B(cute.local_tile(b, (N, K), (0, 0)))
    address = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
    acc_layout = mma.make_fragment_C(mma.partition_shape_C((M, N))).layout
    if warp == TMA_WARP:
        group = cute.make_layout(1)
        to_a, of_a = cpasync.tma_partition(
            load_a, 0, group, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
        )
        to_b, of_b = cpasync.tma_partition(
            load_b, 0, group, cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
        )
        for tile in range(Int32(TILES)):
            stage = tile % STAGES
            cute.arch.mbarrier_wait(empty + stage, (tile // STAGES % 2) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
            cute.copy(load_a, of_a[None, tile], to_a[None, stage], tma_bar_ptr=full + stage)
            cute.copy(load_b, of_b, to_b[None, stage], tma_bar_ptr=full + stage)
    if warp == MMA_WARP:
        left, right = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
        for tile in range(Int32(TILES)):
            stage = tile % STAGES
            acc = cute.make_tensor(address + OTHER * (tile % 2), acc_layout)
            cute.arch.mbarrier_wait(acc_empty, (tile % 2) ^ 1)
            cute.arch.mbarrier_wait(full + stage, tile // STAGES % 2)
            mma.set(tcgen05.Field.ACCUMULATE, False)
            cute.gemm(mma, acc, left[None, None, None, stage], right[None, None, None, stage], acc)
            with cute.arch.elect_one():
                tcgen05.commit(empty + stage)
            with cute.arch.elect_one():
                tcgen05.commit(acc_full)
    if warp < 4:
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x16), Float32)
        for tile in range(Int32(TILES)):
            acc = cute.make_tensor(address + OTHER * (tile % 2), acc_layout)
            pieces = cute.flat_divide(acc[(None, None), 0, 0], (M, PART))  # (128, 16, 1, 4)
            load = tcgen05.make_tmem_copy(atom, pieces[None, None, 0, 0])
            loader = load.get_slice(thread)
            source = loader.partition_S(pieces)
            places = loader.partition_D(cute.flat_divide(cute.local_tile(c, (M, N), (tile, 0)), (M, PART)))
            shared = cute.make_rmem_tensor(places[None, None, None, 0, 0].shape, Float32)
            rest = cute.make_rmem_tensor(places[None, None, None, 0, 0].shape, Float32)
            first = 3 - 3 * (tile % 2)  # the columns that the accumulator shares with the next one
            cute.arch.mbarrier_wait(acc_full, tile % 2)
            cute.copy(load, source[None, None, None, 0, first], shared)
            cute.arch.fence_view_async_tmem_load()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(acc_empty)
            cute.autovec_copy(shared, places[None, None, None, 0, first])
            for i in range(Int32(1), Int32(4)):
                other = (first + i) % 4
                cute.copy(load, source[None, None, None, 0, other], rest)
                cute.arch.fence_view_async_tmem_load()
                cute.autovec_copy(rest, places[None, None, None, 0, other])
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.dealloc_tmem(address, 128)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (M, N))
    layout_a = sm100.make_smem_layout_a(mma, TILE, Float16, STAGES)
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, STAGES)
    load, stage = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE), (None, None, None, 0)
    load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, cute.slice_(layout_a, stage), TILE, mma)
    load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, cute.slice_(layout_b, stage), TILE, mma)
    overlap(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b).launch(grid=1, block=32 * 6)


def run():
    a, b = matrices((TILES * M, K), (N, K))
    c = np.zeros((TILES * M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))


CHANGED = [
    ("more columns shared", "OTHER = N - PART ", "OTHER = N - 2 * PART "),
    ("other columns first", "first = 3 - 3 * (tile % 2)", "first = 3 * (tile % 2)"),
    ("one accumulator", "address + OTHER * (tile % 2), acc_layout)\n            cute.arch", "address, acc_layout)\n            cute.arch"),
    ("beyond the allocation", "cute.arch.alloc_tmem(128, holder)", "cute.arch.alloc_tmem(64, holder)"),
    ("frees fewer columns", "cute.arch.dealloc_tmem(address, 128)", "cute.arch.dealloc_tmem(address, 64)"),
    ("frees first", "    cute.arch.sync_threads()\n    if warp == 0:\n        cute.arch.relinquish", "    if warp == 0:\n        cute.arch.relinquish"),
    ("in another warp", "    if warp < 4:", "    if warp < 6 and warp >= 2:"),
    ("relinquishes before it allocates", "        cute.arch.alloc_tmem(128", "        cute.arch.relinquish_tmem_alloc_permit()\n        cute.arch.alloc_tmem(128"),
]  # fmt: skip
