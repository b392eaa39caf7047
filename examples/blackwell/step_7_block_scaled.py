"""Step 7: block-scaled MMAs. NVFP4 has 4 bits for an element and a scale factor for each 16 of them along K; MXFP8 has
8 bits and a scale factor for each 32.

Run it with `kiln run examples/blackwell/step_7_block_scaled.py`.

The MMA multiplies each 16 or 32 elements of A and B by their scale factors. It reads them from tensor memory, where
each quarter of the lanes needs a copy of them. `tcgen05.cp` writes all four copies from shared memory, in order
with the MMAs that the same thread issues: nothing waits between the two. In global memory scale factors are in chunks
of 512 bytes, 128 rows and 4 factors of each, so that TMA and `tcgen05.cp` move them as they are.
"""

import sys
from typing import Any, NamedTuple

import blackwell_harness as harness
import numpy as np
from step_1_mma import store_rows

import kiln.cute as cute
from kiln import Constexpr, Float4E2M1FN, Float8E4M3FN, Float8E8M0FNU, Float32, Int16, Int32, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import blockscaled_layout, sm100

M, N = 128, 128
EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
EPILOGUE_THREADS = 32 * EPILOGUE_WARPS
THREADS = 32 * 6
STAGES = 3


class Format(NamedTuple):
    """A block-scaled format: the types of elements and scale factors, and how many elements share one."""

    element: Any
    scale: Any
    vector: int

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K): K is 128 bytes."""
        return M, N, 1024 // self.element.width

    @property
    def scales(self) -> int:
        """Scale factors of a row in a tile."""
        return self.tile[2] // self.vector


NVFP4 = Format(Float4E2M1FN, Float8E4M3FN, 16)
MXFP8 = Format(Float8E4M3FN, Float8E8M0FNU, 32)


def tma_copy(load, part, tile):
    """Return a TMA load with its source for each k tile and its target for each stage. Scale factors have modes of
    stride 0, for the elements that share one, which are left out."""
    target, source = cpasync.tma_partition(
        load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 3), cute.group_modes(part, 0, 3)
    )
    return load, cute.filter_zeros(source), cute.filter_zeros(target)


@cute.jit
def scales_copy(scales_smem, scales_tmem, dtype):
    """Return the copy of scale factors to tensor memory, its source for each stage and its destination."""
    compact_smem, compact_tmem = cute.filter_zeros(scales_smem), cute.filter_zeros(scales_tmem)
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), dtype)
    copy = tcgen05.make_s2t_copy(atom, compact_tmem)
    mover = copy.get_slice(0)
    source = tcgen05.get_s2t_smem_desc_tensor(copy, mover.partition_S(compact_smem))
    return copy, source, mover.partition_D(compact_tmem)


@cute.kernel
def gemm_kernel(loads: list, tensors: list, c: cute.Tensor, mma: cute.TiledMma, layouts: list, kind: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tile, k_tile = kind.tile, kind.tile[2]
    smem = utils.SmemAllocator()
    layout_a, layout_b, layout_sfa, layout_sfb = layouts
    tile_a = smem.allocate_tensor(kind.element, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(kind.element, layout_b.outer, 1024, layout_b.inner)
    tile_sfa = smem.allocate_tensor(kind.scale, layout_sfa, 128)
    tile_sfb = smem.allocate_tensor(kind.scale, layout_sfb, 128)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    epilogue = pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS)
    size = (M + N) * (128 + kind.scales)
    tiles = pipeline.PipelineTmaUmma.create(num_stages=STAGES, producer_group=one, consumer_group=one, tx_count=size)
    accs = pipeline.PipelineUmmaAsync.create(num_stages=1, producer_group=one, consumer_group=epilogue)
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, EPILOGUE_THREADS + 32))

    cta_mma = mma.get_slice(0)
    part_c = cta_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))
    acc_layout = mma.make_fragment_C(part_c.shape).layout
    count = cute.ceil_div(tensors[0].shape[1], k_tile)

    if warp == TMA_WARP:
        tiles_a, tiles_sfa = (cta_mma.partition_A(cute.local_tile(tensors[i], (M, k_tile), (m, None))) for i in (0, 2))
        tiles_b, tiles_sfb = (cta_mma.partition_B(cute.local_tile(tensors[i], (N, k_tile), (n, None))) for i in (1, 3))
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
            cute.recast_ptr(acc_ptr + N, dtype=kind.scale),
            blockscaled_layout.make_tmem_layout_sfa(
                mma, tile, kind.vector, cute.slice_(layout_sfa, (None, None, None, 0))
            ),
        )
        sfb_tmem = cute.make_tensor(
            cute.recast_ptr(acc_ptr + N + M // 32 * kind.scales // 4, dtype=kind.scale),
            blockscaled_layout.make_tmem_layout_sfb(
                mma, tile, kind.vector, cute.slice_(layout_sfb, (None, None, None, 0))
            ),
        )
        copy_sfa, source_sfa, target_sfa = scales_copy(tile_sfa, sfa_tmem, kind.scale)
        copy_sfb, source_sfb, target_sfb = scales_copy(tile_sfb, sfb_tmem, kind.scale)
        frag_a, frag_b = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
        consumer, acc_producer = tiles.make_consumer(), accs.make_producer()
        done = acc_producer.acquire_and_advance()
        for k in range(count):
            full = consumer.wait_and_advance()
            at = (None, None, None, None, full.index)
            cute.copy(copy_sfa, source_sfa[at], target_sfa)
            cute.copy(copy_sfb, source_sfb[at], target_sfb)
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            held = (None, None, None, full.index)
            cute.gemm(mma, acc, [frag_a[held], sfa_tmem], [frag_b[held], sfb_tmem], acc)
            full.release()
        done.commit()
        acc_producer.tail()
    if warp < EPILOGUE_WARPS:
        tmem.allocate(256)  # the accumulator and the scale factors, rounded up to a power of two
        tmem.wait_for_alloc()
        tmem.relinquish_alloc_permit()
        acc_ptr = tmem.retrieve_ptr(Float32)
        full = accs.make_consumer().wait_and_advance()
        store_rows(cute.make_tensor(acc_ptr, acc_layout), part_c, thread)
        full.release()
        pipeline.NamedBarrier(2, EPILOGUE_THREADS).arrive_and_wait()
        tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor, kind: Constexpr):
    """C (M, N) = (A * SFA) (B * SFB)^T, whole tiles. Operands are bytes: A (M, bytes of K), B (N, bytes of K), and the
    scale factors in their chunks."""
    k = 8 // kind.element.width * a.shape[1]
    elements = [
        cute.make_tensor(
            cute.recast_ptr(x.iterator, dtype=kind.element), cute.make_layout((x.shape[0], k), stride=(k, 1))
        )
        for x in (a, b)
    ]
    scales = [
        cute.make_tensor(
            cute.recast_ptr(x.iterator, dtype=kind.scale),
            blockscaled_layout.tile_atom_to_shape_SF((rows, k), kind.vector),
        )
        for x, rows in ((sfa, a.shape[0]), (sfb, b.shape[0]))
    ]
    k_major = OperandMajorMode.K
    mma = sm100.make_blockscaled_trivial_tiled_mma(
        kind.element, k_major, k_major, kind.scale, kind.vector, tcgen05.CtaGroup.ONE, (M, N)
    )
    layouts = [
        sm100.make_smem_layout_a(mma, kind.tile, kind.element, STAGES),
        sm100.make_smem_layout_b(mma, kind.tile, kind.element, STAGES),
        blockscaled_layout.make_smem_layout_sfa(mma, kind.tile, kind.vector, STAGES),
        blockscaled_layout.make_smem_layout_sfb(mma, kind.tile, kind.vector, STAGES),
    ]
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    make_a, make_b, stage = cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B, (None, None, None, 0)
    made = [
        make_a(load, elements[0], cute.slice_(layouts[0], stage), kind.tile, mma),
        make_b(load, elements[1], cute.slice_(layouts[1], stage), kind.tile, mma),
        make_a(load, scales[0], cute.slice_(layouts[2], stage), kind.tile, mma, internal_type=Int16),
        make_b(load, scales[1], cute.slice_(layouts[3], stage), kind.tile, mma, internal_type=Int16),
    ]
    kernel = gemm_kernel([x[0] for x in made], [x[1] for x in made], c, mma, layouts, kind)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(codes: np.ndarray) -> np.ndarray:
    """Return the values of codes of e4m3."""
    sign, exponent, fraction = 1 - 2.0 * (codes >> 7), codes >> 3 & 15, codes & 7
    return sign * np.where(exponent == 0, fraction / 512, (8 + fraction) * np.exp2(exponent - 10.0))


def tensors(m: int, n: int, k: int, kind: Format = NVFP4) -> tuple[Any, ...]:
    """Return bytes of A, B, SFA and SFB, and C of f16."""
    random = np.random.default_rng(0)
    elements = [random.integers(0, 256, (rows, k * kind.element.width // 8), np.uint8) for rows in (m, n)]
    if kind is MXFP8:
        elements = [x % 128 % 60 | x & 128 for x in elements]  # smaller than 2, no NaN
    low, high = (40, 72) if kind is NVFP4 else (124, 131)  # 2^-2 to 2^2, 2^-3 to 2^3
    scales = [random.integers(low, high, rows * k // kind.vector).astype(np.uint8) for rows in (m, n)]
    return *map(harness.placed, (*elements, *scales)), harness.placed(np.zeros((m, n), np.float16)), kind


def values(x, scales, kind: Format) -> np.ndarray:
    """Return the matrix that bytes of elements and scale factors stand for."""
    codes = harness.host(x).astype(np.int64)
    if kind is NVFP4:  # the first of two elements is in the lower half of a byte
        elements = E2M1[np.stack([codes & 15, codes >> 4], -1)].reshape(codes.shape[0], -1)
    else:
        elements = e4m3(codes)
    rows, vectors = elements.shape[0], elements.shape[1] // kind.vector
    # factor 4 s + t of row 128 r + 32 i + j is in chunk (r, s), at byte 16 j + 4 i + t
    chunks = harness.host(scales).astype(np.int64).reshape(rows // 128, vectors // 4, 32, 4, 4)
    factors = chunks.transpose(0, 3, 2, 1, 4).reshape(rows, vectors)
    factors = e4m3(factors) if kind is NVFP4 else np.exp2(factors - 127.0)
    return elements * np.repeat(factors, kind.vector, 1)


def check(a, b, sfa, sfb, c, kind: Format) -> float:
    """Return the largest error of C, in units of what rounding to f16 allows."""
    return harness.check(values(a, sfa, kind), values(b, sfb, kind), c)


if __name__ == "__main__":
    harness.use_gpu()
    m, n, k = (int(argument) for argument in sys.argv[1:4]) if sys.argv[3:] else (256, 128, 512)
    for name, kind in (("NVFP4", NVFP4), ("MXFP8", MXFP8)):
        operands = tensors(m, n, k, kind)
        gemm(*operands)
        error = check(*operands)
        assert error <= 1, f"{name}: {error:.2f} times the error that rounding allows"
        print(f"{name}, {m} x {n} x {k}: error {error:.2f} of what rounding allows")
