"""A pair of CTAs: each loads its half of the operands, the even one issues MMAs for both, and both store their rows of C."""

import numpy as np
from hopper_tiles import matrices, product

from kiln import Float16, Float32, Int32, Int64, cute, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import sm100

M, N, K = TILE = (256, 32, 64)
BYTES = (M + N) * K * 2
STAGES, TILES, ROUNDS = 2, 2, 3
BOTH = 3
MMA_WARP, TMA_WARP = 4, 5


@cute.kernel
def pair(load_a, a: cute.Tensor, load_b, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
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
            cute.arch.mbarrier_init(acc_empty, 8)
            cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()
    if warp == 0:
        cute.arch.alloc_tmem(32, holder, is_two_cta=True)
    cute.arch.sync_threads()
    part = mma.get_slice(rank)
    part_a = part.partition_A(cute.local_tile(a, (M, K), (None, None)))
    part_b = part.partition_B(cute.local_tile(b, (N, K), (0, None)))
    address = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
    acc = cute.make_tensor(address, mma.make_fragment_C(mma.partition_shape_C((M, N))).layout)
    if warp == TMA_WARP:
        group = cute.make_layout(1)
        to_a, of_a = cpasync.tma_partition(
            load_a, 0, group, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
        )
        to_b, of_b = cpasync.tma_partition(
            load_b, 0, group, cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
        )
        for k in range(Int32(TILES * ROUNDS)):
            stage = k % STAGES
            cute.arch.mbarrier_wait(empty + stage, (k // STAGES % 2) ^ 1)
            if rank == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
            cute.copy(load_a, of_a[None, k // ROUNDS, k % ROUNDS], to_a[None, stage], tma_bar_ptr=full + stage)
            cute.copy(load_b, of_b[None, k % ROUNDS], to_b[None, stage], tma_bar_ptr=full + stage)
    if warp == MMA_WARP and rank == 0:
        left, right = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
        for tile in range(Int32(TILES)):
            cute.arch.mbarrier_wait(acc_empty, (tile % 2) ^ 1)
            for i in range(Int32(ROUNDS)):
                k = tile * ROUNDS + i
                stage = k % STAGES
                cute.arch.mbarrier_wait(full + stage, k // STAGES % 2)
                mma.set(tcgen05.Field.ACCUMULATE, i != 0)
                cute.gemm(mma, acc, left[None, None, None, stage], right[None, None, None, stage], acc)
                with cute.arch.elect_one():
                    tcgen05.commit(empty + stage, BOTH, tcgen05.CtaGroup.TWO)
            with cute.arch.elect_one():
                tcgen05.commit(acc_full, BOTH, tcgen05.CtaGroup.TWO)
    if warp < 4:
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32)
        plain = acc[(None, None), 0, 0]
        load = tcgen05.make_tmem_copy(atom, plain)
        loader = load.get_slice(thread)
        for tile in range(Int32(TILES)):
            place = loader.partition_D(cute.local_tile(c, (M // 2, N), (2 * tile + rank, 0)))
            values = cute.make_rmem_tensor(place.shape, Float32)
            cute.arch.mbarrier_wait(acc_full, tile % 2)
            cute.copy(load, loader.partition_S(plain), values)
            cute.arch.fence_view_async_tmem_load()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(acc_empty, 0)
            cute.autovec_copy(values, place)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp == 0:
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
        cute.arch.dealloc_tmem(address, 32, is_two_cta=True)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.TWO, (M, N))
    layout_a = sm100.make_smem_layout_a(mma, TILE, Float16, STAGES)
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, STAGES)
    load, stage = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO), (None, None, None, 0)
    load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, cute.slice_(layout_a, stage), TILE, mma, (2, 1, 1, 1))
    load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, cute.slice_(layout_b, stage), TILE, mma, (2, 1, 1, 1))
    pair(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b).launch(grid=2, block=32 * 6, cluster=(2, 1, 1))


def run():
    a, b = matrices((TILES * M, ROUNDS * K), (N, ROUNDS * K))
    c = np.zeros((TILES * M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
