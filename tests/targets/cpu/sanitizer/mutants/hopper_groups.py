"""Products of matrices whose addresses and shapes are in memory: maps are edited in shared memory and published, by the warps that copy."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product, stores

from kiln import Float16, Float32, Int32, Int64, cute, pipeline, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.runtime import from_dlpack

M, N, K = TILE = (64, 8, 32)
BYTES = (M + N) * K * 2
STAGES = 2
SHAPES = [(64, 32), (40, 16), (64, 24), (8, 32)]


@cute.jit
def matrix(kind, place, rows, columns):
    pointer = cute.make_ptr(kind, place, cute.AddressSpace.gmem, assumed_align=16)
    return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, Int32(1))))


@cute.jit
def as_map(pointer):
    manager = utils.TensorMapManager(utils.TensorMapUpdateMode.SMEM)
    return manager.get_tensormap_ptr(pointer, cute.AddressSpace.generic)


@cute.kernel
def groups(
    load_a, a: cute.Tensor, load_b, b: cute.Tensor, store_c, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b, layout_c,
    shapes: cute.Tensor, places: cute.Tensor, maps: cute.Tensor,
):  # fmt: skip
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float32, layout_c, 128)
    edited = smem.allocate_array(Int64, 32, byte_alignment=128)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (0, None)))
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (0, None)))
    of_c, to_c = parts(store_c, tile_c, cute.local_tile(c, (M, N), (None, 0)))
    if thread == 0:
        for stage in range(STAGES):
            cute.arch.mbarrier_init(full + stage, 1)
            cute.arch.mbarrier_init(empty + stage, GROUP // 32)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 4:
        used = maps[0, None].iterator
        with cute.arch.elect_one():
            cpasync.copy_tensormap(load_a, edited)
        cute.arch.sync_warp()
        for g in range(shapes.shape[0]):
            stage = g % STAGES
            if g > 0:  # the last load has read its map
                cute.arch.mbarrier_wait(full + (g - 1) % STAGES, (g - 1) // STAGES % 2)
            cpasync.update_tma_descriptor(load_a, matrix(Float16, places[g, 0], shapes[g, 0], shapes[g, 1]), edited)
            cute.arch.sync_warp()
            cpasync.cp_fence_tma_desc_release(used, edited)
            cpasync.fence_tma_desc_acquire(used)
            cute.arch.mbarrier_wait(empty + stage, (g // STAGES % 2) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
            cute.copy(load_a, of_a[None, 0], to_a[None, stage], tma_bar_ptr=full + stage, tma_desc_ptr=as_map(used))
            cute.copy(load_b, of_b[None, 0], to_b[None, stage], tma_bar_ptr=full + stage)
    else:
        used = maps[1, None].iterator
        written = pipeline.NamedBarrier(barrier_id=1, num_threads=GROUP)
        part = mma.get_slice(thread)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(tile_c)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
        if warp == 0:
            with cute.arch.elect_one():
                cpasync.copy_tensormap(store_c, edited + 16)
            cute.arch.sync_warp()
        for g in range(shapes.shape[0]):
            stage = g % STAGES
            cute.arch.mbarrier_wait(full + stage, g // STAGES % 2)
            sums.fill(0.0)
            mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.fence()
            cute.gemm(mma, sums, left[None, None, None, stage], right[None, None, None, stage], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(empty + stage)
            if warp == 0:
                with cute.arch.elect_one():
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                cute.arch.sync_warp()
                cpasync.update_tma_descriptor(
                    store_c, matrix(Float32, places[g, 1], shapes[g, 0], Int32(N)), edited + 16
                )
                cute.arch.sync_warp()
                cpasync.cp_fence_tma_desc_release(used, edited + 16)
                cpasync.fence_tma_desc_acquire(used)
            written.arrive_and_wait()
            cute.autovec_copy(sums, place[None, None, None, 0])
            cute.arch.fence_proxy("async.shared", space="cta")
            written.arrive_and_wait()
            if warp == 0:
                cute.copy(store_c, of_c[None, 0], to_c[None, 0], tma_desc_ptr=as_map(used))
                with cute.arch.elect_one():
                    cute.arch.cp_async_bulk_commit_group()
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, shapes: cute.Tensor, places: cute.Tensor, maps: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    layout_c = cute.make_layout((M, N, 1), stride=(N, 1, M * N))
    load_a, load_b, store_c = loads(a, layout_a, (M, K)), loads(b, layout_b, (N, K)), stores(c, layout_c, (M, N))
    kernel = groups(*load_a, *load_b, *store_c, multiplies(N), layout_a, layout_b, layout_c, shapes, places, maps)
    kernel.launch(grid=1, block=GROUP + 32)


def aligned(array):
    memory = np.zeros(array.nbytes + 128, np.uint8)
    place = memory[-memory.ctypes.data % 128 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    place[:] = array
    return place


def run():
    b, any_a, *given = map(aligned, matrices((N, K), (M, K), *SHAPES))
    found = [aligned(np.zeros((rows, N), np.float32)) for rows, _ in SHAPES]
    places = np.array([[x.ctypes.data, y.ctypes.data] for x, y in zip(given, found)], np.int64)
    any_c, maps = aligned(np.zeros((M, N), np.float32)), aligned(np.zeros((2, 16), np.int64))
    first, last = (from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in (any_a, any_c))
    main(first, b, last, np.array(SHAPES, np.int32), places, from_dlpack(maps, assumed_align=128))
    return all(np.array_equal(y, product(x, b[:, : x.shape[1]])) for x, y in zip(given, found)) and not any_c.any()
