"""D = epilogue(A B): matrix products on the tensor cores every GPU since sm_80 has (`mma.sync`).

A block of threads computes a tile of D. Tiles of A and B stream through a ring of buffers in shared memory, filled by
`cp.async` several steps ahead; matrices are loaded from there a step ahead of the multiplications. Shared memory is
swizzled, so that neither the copies in nor the loads out hit a bank twice.
"""

from __future__ import annotations

import math
from typing import Any

from ... import cute, utils
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int32
from ...cute import arch
from ...cute.nvgpu import warp
from .base import Product
from .feed import Feed, Operand
from .fragments import Fragments
from .plan import k_step

FLOAT8 = (Float8E4M3FN, Float8E5M2)


class TensorCoreGemm(Product):
    """The kernel for operands of some kinds; f32 is rounded to TF32."""

    def mma(self, fragments: Any, half: bool) -> Any:
        """The tiled MMA; with `half`, for 8-bit floats that have become f16."""
        dtype = Float16 if half else self.a.dtype
        if dtype in (Float16, BFloat16):
            op: Any = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
        elif dtype is Float32:
            op = warp.MmaTF32Op((16, 8, 8))
        elif dtype in FLOAT8:
            op = warp.MmaFP8Op(dtype, Float32, (16, 8, 32), b_dtype=self.b.dtype)
        else:
            op = warp.MmaI8Op(dtype, self.b.dtype, Int32, (16, 8, 32))
        order = (fragments[0].order(), fragments[1].order(), k_step(dtype))
        return cute.make_tiled_mma(op, (*self.tiling.warps_mn, 1), order)

    def feed(self, operand: Operand, rows: int) -> Feed:
        """How the threads copy tiles of an operand: along its contiguous mode."""
        depth, threads = self.tiling.block_mnk[2], self.tiling.threads
        along = depth if operand.k_major else rows
        return Feed(operand, operand.width, rows, depth, threads, math.gcd(along // operand.width, threads))

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, alpha: Float32, beta: Float32):
        thread = arch.thread_idx()[0]
        number, batch, _ = arch.block_idx()
        splits = self.tiling.splits
        rank, number = number % splits, number // splits
        block_m, block_n, depth = self.tiling.block_mnk
        stages = self.tiling.stages
        tile_m, tile_n = self.place(number, d)
        a_frag, b_frag = Fragments(self.a, 0, self.tiling), Fragments(self.b, 1, self.tiling)
        mma = self.mma((a_frag, b_frag), self.a.half)
        loaded = self.mma((a_frag, b_frag), False)

        # Shared memory: the ring of A, then that of B; later D in the same place.
        a_layout, b_layout = a_frag.ring_layout(), b_frag.ring_layout()
        bytes_used = self.tiling.smem_bytes(self.a.dtype.width)
        memory = utils.SmemAllocator().allocate(bytes_used, 128)
        a_ring = cute.make_tensor(cute.recast_ptr(memory, dtype=self.a.dtype), a_layout)
        b_start = cute.cosize(a_layout) * self.a.dtype.width // 8
        b_ring = cute.make_tensor(cute.recast_ptr(memory + b_start, dtype=self.b.dtype), b_layout)

        a_feed, b_feed = self.feed(self.a, block_m), self.feed(self.b, block_n)
        where = (tile_m, tile_n)
        a_next, b_next, tiles = self.begin(
            (a_feed, b_feed), a[None, None, batch], b[None, None, batch], (a_ring, b_ring), where, thread, rank
        )

        # What this thread multiplies: fragments of a whole tile, loaded one step in K ahead.
        part = mma.get_slice(thread)
        acc = cute.make_rmem_tensor(mma.partition_shape_C((block_m, block_n)), self.acc_dtype)
        acc.fill(0)
        steps = a_frag.start(loaded, a_ring, thread)
        b_frag.start(loaded, b_ring, thread)

        arch.cp_async_wait_group(stages - 2)
        arch.sync_threads()
        a_frag.load(0, 0)
        b_frag.load(0, 0)

        reading, filling = Int32(0), Int32(stages - 1)
        for tile in range(tiles):
            for step in range_constexpr(steps):
                if const_expr(step == steps - 1):
                    # The next tile has arrived, and everybody is done with the one before this.
                    reading = reading + 1 if reading + 1 < stages else Int32(0)
                    arch.cp_async_wait_group(stages - 2)
                    arch.sync_threads()
                following = (step + 1) % steps
                a_frag.load(following, reading)
                b_frag.load(following, reading)
                if const_expr(step == 0):
                    a_feed.fetch(a_next, filling, tile + (stages - 1) < tiles)
                    b_feed.fetch(b_next, filling, tile + (stages - 1) < tiles)
                    arch.cp_async_commit_group()
                    a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)
                    filling = filling + 1 if filling + 1 < stages else Int32(0)
                for left, right in zip(a_frag.taken(step), b_frag.taken(step)):
                    cute.gemm(mma, acc, left, right, acc)

        rest = ([x[None, None, batch] for x in extras], alpha, beta)
        arch.cp_async_wait_group(0)
        arch.sync_threads()
        self.write(part, thread, rank, acc, memory, d[None, None, batch], rest, where)
