"""Four warps write A to tensor memory and B to shared memory, one thread multiplies, and the same warps load the results."""

import numpy as np
from hopper_tiles import matrices, product

from kiln import Float16, Float32, Int32, Int64, cute, range_constexpr, utils
from kiln.cute.nvgpu import OperandMajorMode, tcgen05
from kiln.utils import sm100

M, N, K = TILE = (128, 16, 64)
STAGES, TILES = 2, 5
A_COLUMN = 32
MMA_WARP = 4


@cute.kernel
def transform(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_b):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    acc_full = smem.allocate_array(Int64, 1)
    holder = smem.allocate_array(Int32, 1)
    if warp == MMA_WARP:
        with cute.arch.elect_one():
            for stage in range(STAGES):
                cute.arch.mbarrier_init(full + stage, 128)
                cute.arch.mbarrier_init(empty + stage, 1)
            cute.arch.mbarrier_init(acc_full, 1)
            cute.arch.mbarrier_init_fence()
    if warp == 0:
        cute.arch.alloc_tmem(128, holder)
    cute.arch.sync_threads()
    address = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
    acc = cute.make_tensor(address, mma.make_fragment_C(mma.partition_shape_C((M, N))).layout)
    a_layout = mma.make_fragment_A(cute.append(mma.partition_shape_A((M, K)), STAGES)).layout
    packed = cute.recast_ptr(address + A_COLUMN, dtype=Float16)
    if warp == MMA_WARP:
        left, right = cute.make_tensor(packed, a_layout), mma.make_fragment_B(tile_b)
        for tile in range(Int32(TILES)):
            stage = tile % STAGES
            cute.arch.mbarrier_wait(full + stage, tile // STAGES % 2)
            mma.set(tcgen05.Field.ACCUMULATE, tile != 0)
            cute.gemm(mma, acc, left[None, None, None, stage], right[None, None, None, stage], acc)
            with cute.arch.elect_one():
                tcgen05.commit(empty + stage)
        with cute.arch.elect_one():
            tcgen05.commit(acc_full)
    if warp < 4:
        rows = cute.make_tensor(packed, cute.make_layout((M, K, STAGES), stride=(a_layout.stride[0][0], 1, K)))
        store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), Float16), rows[None, None, 0]
        )
        storer = store.get_slice(thread)
        values = cute.make_rmem_tensor(storer.partition_S(cute.make_identity_tensor((M, K))).shape, Float16)
        for tile in range(Int32(TILES)):
            stage = tile % STAGES
            cute.autovec_copy(storer.partition_S(cute.local_tile(a, (M, K), (0, tile))), values)
            cute.arch.mbarrier_wait(empty + stage, (tile // STAGES % 2) ^ 1)
            cute.copy(store, values, storer.partition_D(rows[None, None, stage]))
            for i in range_constexpr(N * K // 128):
                n, k = thread % N, thread // N + 8 * i
                tile_b[(n, k % 16), 0, k // 16, stage] = b[n, tile * K + k]
            cute.arch.fence_view_async_tmem_store()
            cute.arch.fence_view_async_shared()
            cute.arch.mbarrier_arrive(full + stage)
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x16), Float32)
        load = tcgen05.make_tmem_copy(atom, acc[(None, None), 0, 0])
        loader = load.get_slice(thread)
        place = loader.partition_D(cute.local_tile(c, (M, N), (0, 0)))
        result = cute.make_rmem_tensor(place.shape, Float32)
        cute.arch.mbarrier_wait(acc_full, 0)
        cute.copy(load, loader.partition_S(acc[(None, None), 0, 0]), result)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(result, place)
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.dealloc_tmem(address, 128)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(
        Float16, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (M, N), tcgen05.OperandSource.TMEM
    )
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, STAGES)
    transform(a, b, c, mma, layout_b).launch(grid=1, block=32 * 5)


def run():
    a, b = matrices((M, TILES * K), (N, TILES * K))
    c = np.zeros((M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))


CHANGED = [
    ("waits for loads", "cute.arch.fence_view_async_tmem_store()", "cute.arch.fence_view_async_tmem_load()"),
    ("A over the accumulator", "A_COLUMN = 32", "A_COLUMN = 8"),
    ("one stage for all", "storer.partition_D(rows[None, None, stage])", "storer.partition_D(rows[None, None, 0])"),
    ("beyond the allocation", "cute.arch.alloc_tmem(128, holder)", "cute.arch.alloc_tmem(64, holder)"),
    ("of the wrong lanes", "storer = store.get_slice(thread)", "storer = store.get_slice((thread + 32) % 128)"),
    ("fills before it waits", """            cute.arch.mbarrier_wait(empty + stage, (tile // STAGES % 2) ^ 1)
            cute.copy(store, values, storer.partition_D(rows[None, None, stage]))
""", """            cute.copy(store, values, storer.partition_D(rows[None, None, stage]))
            cute.arch.mbarrier_wait(empty + stage, (tile // STAGES % 2) ^ 1)
"""),
    ("by two warps", "    if warp == MMA_WARP:\n        left", "    if warp >= 3:\n        left"),
    ("arrives in one lane", "            cute.arch.mbarrier_arrive(full + stage)", "            with cute.arch.elect_one():\n                cute.arch.mbarrier_arrive(full + stage)"),
]  # fmt: skip
