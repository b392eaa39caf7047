"""C = A B^T of f16 on Hopper: one warp loads tiles by TMA, warpgroups multiply them by WGMMA.

Configs change the tile, the pipeline stages, how many WGMMA groups stay in flight (`wait`) and how accumulators reach C;
anti-pattern pages name a `fault`.
"""

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float16, Float32, cute, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import cpasync, warp, warpgroup
from kiln.utils import LayoutEnum, sm90

arch = "sm_90a"
K, GROUP = 64, 128
PIECE, PIECES = 32, 2  # columns of an epilogue tile, and its stages
ROWS = LayoutEnum.ROW_MAJOR
problems = [{"m": 128, "n": 128, "k": 192}, {"m": 4096, "n": 4096, "k": 4096}]
configs = [
    {"groups": 2, "columns": 128, "stages": 4, "wait": 1, "store": "tma", "registers": [40, 232]},
    {"groups": 2, "columns": 128, "stages": 4, "wait": 0, "store": "tma", "registers": [40, 232]},
    {"groups": 2, "columns": 128, "stages": 2, "wait": 0, "store": "tma", "registers": [40, 232]},
    {"groups": 2, "columns": 128, "stages": 4, "wait": 1, "store": "registers", "registers": [40, 232]},
    {"groups": 1, "columns": 128, "stages": 4, "wait": 1, "store": "tma", "registers": [40, 232]},
    {"groups": 2, "columns": 256, "stages": 4, "wait": 1, "store": "tma", "registers": [40, 232]},
]


@cute.jit
def store_by_tma(acc, shared, mma, thread, store, pieces, groups: Constexpr, fault: Constexpr):
    """Store accumulators to C through shared memory, 32 columns at a time."""
    by_warp = cute.make_tiled_copy_C_atom(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), Float16), mma)
    write = cute.make_tiled_copy_S(sm90.sm90_get_smem_store_op(ROWS, Float16, Float32), by_warp)
    slots = write.get_slice(thread).partition_D(shared)
    values = write.retile(acc)
    piece = cute.make_rmem_tensor(slots.shape[:3], Float16)
    of_c, to_c = cpasync.tma_partition(store, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), pieces)
    stores = pipeline.PipelineTmaStore.create(num_stages=PIECES)
    writers = pipeline.NamedBarrier(1, groups * GROUP)
    first = thread // 32 == 0
    for number in range_constexpr(cute.size(acc) // cute.size(piece)):
        slot = number % PIECES
        for i in range_constexpr(cute.size(piece)):
            piece[i] = values[number * cute.size(piece) + i].to(Float16)
        cute.copy(write, piece, slots[None, None, None, slot])
        if fault != "no fence before the store":
            cute.arch.fence_proxy("async.shared", space="cta")
        writers.arrive_and_wait()
        if first:
            cute.copy(store, of_c[None, slot], to_c[None, (0, number)])
            stores.producer_commit()
            stores.producer_acquire()
        writers.arrive_and_wait()
    if first:
        stores.producer_tail()


@cute.kernel
def gemm_kernel(
    a: cpasync.TmaInfo,
    b: cpasync.TmaInfo,
    out: cpasync.TmaInfo,
    c: cute.Tensor,
    mma: cute.TiledMma,
    layouts: Constexpr,
    config: Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    groups, stages, fault = config["groups"], config["stages"], config.get("fault")
    tile_m, tile_n = 64 * groups, config["columns"]
    smem = utils.SmemAllocator()
    tile_a, tile_b, tile_c = (smem.allocate_tensor(Float16, x.outer, 1024, x.inner) for x in layouts)
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, groups * GROUP // 32),
        tx_count=(tile_m + tile_n) * K * 2 - (tile_n * K * 2 if fault == "bytes of A alone" else 0),
    )
    parts = []
    for x, shared, rows, place in ((a, tile_a, tile_m, m), (b, tile_b, tile_n, n)):
        tiles = cute.local_tile(x.tma_tensor, (rows, K), (place, None))
        to, of = cpasync.tma_partition(
            x.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        parts.append((x.atom, of, to))
    count = cute.ceil_div(a.tma_tensor.shape[1], K)
    producer, consumer = pipe.make_participants()

    if number < GROUP // 32:
        if config["registers"]:
            cute.arch.setmaxregister_decrease(config["registers"][0])
        if number == 0:
            for k in range(count):
                stage = producer.acquire_and_advance()
                for atom, of, to in parts:
                    cute.copy(atom, of[None, k], to[None, stage.index], tma_bar_ptr=stage.barrier)
    else:
        if config["registers"]:
            cute.arch.setmaxregister_increase(config["registers"][1])
        mine = mma.get_slice(thread - GROUP)
        left = mma.make_fragment_A(mine.partition_A(tile_a))
        right = mma.make_fragment_B(mine.partition_B(tile_b))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, tile_n)), Float32)
        acc.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, stages)
        for k in range(count):
            stage = consumer.wait_and_advance()
            if fault != "no fence before WGMMA":
                warpgroup.fence()
            cute.gemm(mma, acc, left[None, None, None, stage.index], right[None, None, None, stage.index], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(config["wait"])
            if fault == "accumulators scaled in flight":
                acc.store(acc.load() * 0.5)
            if config["wait"] == 0 or k > 0 or fault == "released while it is read":
                pipe.consumer_release(free)
                free.advance()
        warpgroup.wait_group(config["wait"] if fault == "accumulators read in flight" else 0)
        if config["store"] == "tma":
            pieces = cute.zipped_divide(cute.local_tile(out.tma_tensor, (tile_m, tile_n), (m, n)), (tile_m, PIECE))
            store_by_tma(acc, tile_c, mma, thread - GROUP, out.atom, pieces, groups, fault)
        else:
            rounded = cute.make_rmem_tensor_like(acc, Float16)
            rounded.store(acc.load().to(Float16))
            cute.autovec_copy(rounded, mine.partition_C(cute.local_tile(c, (tile_m, tile_n), (m, n))))


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, config: Constexpr):
    groups, stages, columns = config["groups"], config["stages"], config["columns"]
    tile = (64 * groups, columns, K)
    layouts = (
        sm90.make_smem_layout_a(ROWS, tile, Float16, stages),
        sm90.make_smem_layout_b(ROWS, tile, Float16, stages),
        sm90.make_smem_layout_epi(Float16, ROWS, (tile[0], PIECE), PIECES),
    )
    load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    first = [cute.slice_(x, (None, None, 0)) for x in layouts]
    load_a = cpasync.make_tiled_tma_atom(load, a, first[0], (tile[0], K))
    load_b = cpasync.make_tiled_tma_atom(load, b, first[1], (columns, K))
    store_c = cpasync.make_tiled_tma_atom(store, c, first[2], (tile[0], PIECE))
    major = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, major, major, Float32, (groups, 1, 1), (64, columns))
    gemm_kernel(load_a, load_b, store_c, c, mma, layouts, config).launch(
        grid=(*cute.ceil_div(c.shape, tile[:2]), 1), block=(groups + 1) * GROUP, min_blocks_per_mp=1
    )


def kernel_fn(a, b, config):
    c = empty((a.shape[0], b.shape[0]), np.float16, a)
    gemm(tensor(a), tensor(b), tensor(c), config)
    return c


def reference_fn(a, b):
    return a @ b.T


def get_inputs(m, n, k):
    return [normal((m, k), np.float16), normal((n, k), np.float16)]


def flops_bytes(m, n, k):
    return 2 * m * n * k, 2 * (m * k + n * k + m * n)
