"""Step 7: NVFP4. Elements of 4 bits, and a scale factor of 8 bits for each 16 of them along K.

Run it with `kiln run examples/blackwell/step_7_nvfp4.py`.

The MMA multiplies e2m1 values and applies the scale factors of A and B to the products of each 16. It reads scale
factors from tensor memory, where each quarter of the lanes needs a copy of them. `tcgen05.cp` writes all four copies
from shared memory, in order with the MMAs that the same thread issues: nothing waits between the two. In global memory
scale factors are in chunks of 512 bytes, 128 rows and 4 factors of each, so that TMA and `tcgen05.cp` move them as they
are.
"""

import sys

import harness
import numpy as np
from step_1_mma import store_rows

import kiln.cute as cute
from kiln import Float4E2M1FN, Float8E4M3FN, Float32, Int16, Int32, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import blockscaled_layout, sm100

M, N, K = TILE = (128, 128, 256)
VECTOR = 16  # elements that share a scale factor
BYTES = (M + N) * (K // 2 + K // VECTOR)
EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
EPILOGUE_THREADS = 32 * EPILOGUE_WARPS
THREADS = 32 * 6
STAGES = 3
SFA_COLUMNS, SFB_COLUMNS = (rows // 32 * (K // VECTOR // 4) for rows in (M, N))


def tma_copy(load, part, tile):
    """Return a TMA load with its source for each k tile and its target for each stage. Scale factors have modes of
    stride 0, for the elements that share one, which are left out."""
    target, source = cpasync.tma_partition(
        load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 3), cute.group_modes(part, 0, 3)
    )
    return load, cute.filter_zeros(source), cute.filter_zeros(target)


@cute.jit
def scales_copy(scales_smem, scales_tmem):
    """Return the copy of scale factors to tensor memory, its source for each stage and its destination."""
    compact_smem, compact_tmem = cute.filter_zeros(scales_smem), cute.filter_zeros(scales_tmem)
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), Float8E4M3FN)
    copy = tcgen05.make_s2t_copy(atom, compact_tmem)
    mover = copy.get_slice(0)
    source = tcgen05.get_s2t_smem_desc_tensor(copy, mover.partition_S(compact_smem))
    return copy, source, mover.partition_D(compact_tmem)


@cute.kernel
def gemm_kernel(
    loads: list, tensors: list, c: cute.Tensor, mma: cute.TiledMma, layouts: list
):  # fmt: skip
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    layout_a, layout_b, layout_sfa, layout_sfb = layouts
    tile_a = smem.allocate_tensor(Float4E2M1FN, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float4E2M1FN, layout_b.outer, 1024, layout_b.inner)
    tile_sfa = smem.allocate_tensor(Float8E4M3FN, layout_sfa, 128)
    tile_sfb = smem.allocate_tensor(Float8E4M3FN, layout_sfb, 128)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    epilogue = pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS)
    tiles = pipeline.PipelineTmaUmma.create(num_stages=STAGES, producer_group=one, consumer_group=one, tx_count=BYTES)
    accs = pipeline.PipelineUmmaAsync.create(num_stages=1, producer_group=one, consumer_group=epilogue)
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, EPILOGUE_THREADS + 32))

    cta_mma = mma.get_slice(0)
    part_c = cta_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))
    acc_layout = mma.make_fragment_C(part_c.shape).layout
    count = cute.ceil_div(tensors[0].shape[1], K)

    if warp == TMA_WARP:
        tiles_a, tiles_sfa = (cta_mma.partition_A(cute.local_tile(tensors[i], (M, K), (m, None))) for i in (0, 2))
        tiles_b, tiles_sfb = (cta_mma.partition_B(cute.local_tile(tensors[i], (N, K), (n, None))) for i in (1, 3))
        copies = [
            tma_copy(load, part, tile)
            for load, part, tile in zip(
                loads, (tiles_a, tiles_b, tiles_sfa, tiles_sfb), (tile_a, tile_b, tile_sfa, tile_sfb), strict=True
            )
        ]
        producer = tiles.make_producer()
        for k in range(count):
            stage = producer.acquire_and_advance()
            for load, source, target in copies:
                cute.copy(load, source[None, k], target[None, stage.index], tma_bar_ptr=stage.barrier)
        producer.tail()
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        # the accumulator has columns 0 to N - 1, and the scale factors the next ones
        acc_ptr = tmem.retrieve_ptr(Float32)
        acc = cute.make_tensor(acc_ptr, acc_layout)
        sfa_tmem = cute.make_tensor(
            cute.recast_ptr(acc_ptr + N, dtype=Float8E4M3FN),
            blockscaled_layout.make_tmem_layout_sfa(mma, TILE, VECTOR, cute.slice_(layout_sfa, (None, None, None, 0))),
        )
        sfb_tmem = cute.make_tensor(
            cute.recast_ptr(acc_ptr + N + SFA_COLUMNS, dtype=Float8E4M3FN),
            blockscaled_layout.make_tmem_layout_sfb(mma, TILE, VECTOR, cute.slice_(layout_sfb, (None, None, None, 0))),
        )
        copy_sfa, source_sfa, target_sfa = scales_copy(tile_sfa, sfa_tmem)
        copy_sfb, source_sfb, target_sfb = scales_copy(tile_sfb, sfb_tmem)
        frag_a, frag_b = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
        consumer, acc_producer = tiles.make_consumer(), accs.make_producer()
        done = acc_producer.acquire_and_advance()
        for k in range(count):
            full = consumer.wait_and_advance()
            at = (None, None, None, None, full.index)
            cute.copy(copy_sfa, source_sfa[at], target_sfa)
            cute.copy(copy_sfb, source_sfb[at], target_sfb)
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            stage = (None, None, None, full.index)
            cute.gemm(mma, acc, [frag_a[stage], sfa_tmem], [frag_b[stage], sfb_tmem], acc)
            full.release()
        done.commit()
        acc_producer.tail()
    if warp < EPILOGUE_WARPS:
        tmem.allocate(256)  # N + SFA_COLUMNS + SFB_COLUMNS, rounded up to a power of two
        tmem.wait_for_alloc()
        tmem.relinquish_alloc_permit()
        acc_ptr = tmem.retrieve_ptr(Float32)
        full = accs.make_consumer().wait_and_advance()
        store_rows(cute.make_tensor(acc_ptr, acc_layout), part_c, thread)
        full.release()
        pipeline.NamedBarrier(2, EPILOGUE_THREADS).arrive_and_wait()
        tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
    """C (M, N) = (A * SFA) (B * SFB)^T, whole tiles. Operands are bytes: two elements of A or B (M, K / 2), (N, K / 2)
    each, and scale factors in their chunks."""
    k = 2 * a.shape[1]
    a4, b4 = (
        cute.make_tensor(
            cute.recast_ptr(x.iterator, dtype=Float4E2M1FN), cute.make_layout((x.shape[0], k), stride=(k, 1))
        )
        for x in (a, b)
    )
    scales_a, scales_b = (
        cute.make_tensor(
            cute.recast_ptr(x.iterator, dtype=Float8E4M3FN),
            blockscaled_layout.tile_atom_to_shape_SF((rows, k), VECTOR),
        )
        for x, rows in ((sfa, a.shape[0]), (sfb, b.shape[0]))
    )
    mma = sm100.make_blockscaled_trivial_tiled_mma(
        Float4E2M1FN, OperandMajorMode.K, OperandMajorMode.K, Float8E4M3FN, VECTOR, tcgen05.CtaGroup.ONE, (M, N)
    )
    layouts = [
        sm100.make_smem_layout_a(mma, TILE, Float4E2M1FN, STAGES),
        sm100.make_smem_layout_b(mma, TILE, Float4E2M1FN, STAGES),
        blockscaled_layout.make_smem_layout_sfa(mma, TILE, VECTOR, STAGES),
        blockscaled_layout.make_smem_layout_sfb(mma, TILE, VECTOR, STAGES),
    ]
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    loads, tensors = [], []
    for i, (x, layout) in enumerate(zip((a4, b4, scales_a, scales_b), layouts, strict=True)):
        make = cute.nvgpu.make_tiled_tma_atom_A if i % 2 == 0 else cute.nvgpu.make_tiled_tma_atom_B
        one = cute.slice_(layout, (None, None, None, 0))
        atom, tensor = make(load, x, one, TILE, mma, internal_type=Int16 if i > 1 else None)
        loads.append(atom)
        tensors.append(tensor)
    kernel = gemm_kernel(loads, tensors, c, mma, layouts)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3(codes: np.ndarray) -> np.ndarray:
    """Return the values of e4m3 codes of positive normal numbers."""
    return (1 + (codes & 7) / 8) * np.exp2((codes >> 3) - 7.0)


def chunks(scales: np.ndarray) -> np.ndarray:
    """Return scale factors (rows, K / 16) in their order in memory: chunks of 128 rows and 4 factors of each."""
    rows, vectors = scales.shape
    parts = scales.reshape(rows // 128, 4, 32, vectors // 4, 4)  # row = 32 i + j of a chunk, 4 factors
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4)).reshape(-1)


def tensors(m: int, n: int, k: int):
    """Return A, B, SFA, SFB and C; `check` finds the values of A and B from the bytes."""
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 256, (rows, k // 2), np.uint8) for rows in (m, n))
    sfa, sfb = (chunks(random.integers(40, 72, (rows, k // VECTOR)).astype(np.uint8)) for rows in (m, n))
    return *map(harness.placed, (a, b, sfa, sfb)), harness.placed(np.zeros((m, n), np.float16))


def values(x, scales) -> np.ndarray:
    """Return the matrix that bytes of elements and scale factors stand for."""
    codes = harness.host(x)
    rows, k = codes.shape[0], 2 * codes.shape[1]
    elements = E2M1[np.stack([codes & 15, codes >> 4], -1)].reshape(rows, k)  # the first is in the lower half
    parts = harness.host(scales).reshape(rows // 128, k // VECTOR // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4)
    return elements * np.repeat(e4m3(parts.reshape(rows, k // VECTOR).astype(np.int64)), VECTOR, 1)


def check(a, b, sfa, sfb, c) -> float:
    """Return the largest error of C, in units of what rounding to f16 allows."""
    return harness.check(values(a, sfa), values(b, sfb), c)


if __name__ == "__main__":
    harness.DEVICE = "cuda" if harness.has_tcgen05() else "cpu"
    m, n, k = (int(argument) for argument in sys.argv[1:4]) if sys.argv[3:] else (256, 128, 512)
    operands = tensors(m, n, k)
    gemm(*operands)
    error = check(*operands)
    assert error <= 1, f"{error:.2f} times the error that rounding allows"
    print(f"{m} x {n} x {k}: error {error:.2f} of what rounding allows")
