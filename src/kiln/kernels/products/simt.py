"""D = epilogue(A B) in f32 as IEEE rounds it: each thread multiplies by itself, without tensor cores.

A thread has sums at 4 x 4 neighbours, repeated over the tile. Tiles of A and B lie in shared memory with M and N contiguous,
so that four neighbours are one access; operands whose K is contiguous are transposed by the copies that bring them there.
"""

from __future__ import annotations

from typing import Any

from ... import cute, utils
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Float32, Int32
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp, MmaUniversalOp
from .base import Product
from .feed import Feed, Operand
from .plan import SIMT_VECTOR, SIMT_WARP

_LANES = 8
"""Threads that copy along K together: 32 bytes of memory, and with rows a vector longer than the tile all banks."""


class SimtGemm(Product):
    """The kernel for operands of some kinds."""

    def blocks_together(self) -> int:
        """Two hide each other's waits; sums are half of what a thread may then have in registers."""
        m, n, _ = self.tiling.block_mnk
        return 2 if self.tiling.threads <= 256 and m * n // self.tiling.threads <= 64 else 1

    def mma(self) -> Any:
        """The tiled MMA: warps of 8 x 4 threads, and for each four neighbours in M and in N."""
        (lanes_m, lanes_n), (warps_m, warps_n) = SIMT_WARP, self.tiling.warps_mn
        threads_m, threads_n = lanes_m * warps_m, lanes_n * warps_n
        atoms = cute.make_layout(
            ((lanes_m, warps_m), (lanes_n, warps_n), 1), stride=((lanes_n, 32), (1, 32 * warps_m), 0)
        )
        vector = SIMT_VECTOR
        order_m = cute.make_layout((threads_m, vector), stride=(vector, 1))
        order_n = cute.make_layout((threads_n, vector), stride=(vector, 1))
        return cute.make_tiled_mma(MmaUniversalOp(Float32), atoms, (order_m, order_n, None))

    def feed(self, operand: Operand, rows: int) -> Feed:
        """How the threads copy tiles of an operand."""
        depth, threads = self.tiling.block_mnk[2], self.tiling.threads
        if operand.k_major:
            return Feed(operand, 1, rows, depth, threads, min(_LANES, depth))
        return Feed(operand, operand.width, rows, depth, threads, min(rows // operand.width, threads))

    def ring(self, memory: Any, rows: int) -> Any:
        """The ring of tiles (rows, K, stages), rows contiguous."""
        row, (_, _, depth) = rows + SIMT_VECTOR, self.tiling.block_mnk
        layout = cute.make_layout((rows, depth, self.tiling.stages), stride=(1, row, row * depth))
        return cute.make_tensor(cute.recast_ptr(memory, dtype=Float32), layout)

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, alpha: Float32, beta: Float32):
        thread = arch.thread_idx()[0]
        number, batch, _ = arch.block_idx()
        splits = self.tiling.splits
        rank, number = number % splits, number // splits
        block_m, block_n, depth = self.tiling.block_mnk
        stages = self.tiling.stages
        tile_m, tile_n = self.place(number, d)
        mma = self.mma()

        memory = utils.SmemAllocator().allocate(self.tiling.simt_smem_bytes(), 128)
        a_ring = self.ring(memory, block_m)
        b_ring = self.ring(memory + 4 * (block_m + SIMT_VECTOR) * depth * stages, block_n)
        a_feed, b_feed = self.feed(self.a, block_m), self.feed(self.b, block_n)
        where = (tile_m, tile_n)
        a_next, b_next, tiles = self.begin(
            (a_feed, b_feed), a[None, None, batch], b[None, None, batch], (a_ring, b_ring), where, thread, rank
        )

        # What this thread multiplies, loaded one step in K ahead.
        part = mma.get_slice(thread)
        a_from, b_from = part.partition_A(a_ring), part.partition_B(b_ring)  # (1, M or N, K, stage)
        a_held = cute.make_rmem_tensor((1, cute.size(a_from, mode=[1]), 2), Float32)
        b_held = cute.make_rmem_tensor((1, cute.size(b_from, mode=[1]), 2), Float32)
        acc = cute.make_rmem_tensor(mma.partition_shape_C((block_m, block_n)), Float32)
        acc.fill(0)

        arch.cp_async_wait_group(stages - 2)
        arch.sync_threads()
        cute.autovec_copy(a_from[None, None, 0, 0], a_held[None, None, 0])
        cute.autovec_copy(b_from[None, None, 0, 0], b_held[None, None, 0])
        reading, filling = Int32(0), Int32(stages - 1)
        for tile in range(tiles):
            for step in range_constexpr(depth):
                if const_expr(step == depth - 1):
                    # The next tile has arrived, and everybody is done with the one before this.
                    reading = reading + 1 if reading + 1 < stages else Int32(0)
                    arch.cp_async_wait_group(stages - 2)
                    arch.sync_threads()
                following = (step + 1) % depth
                cute.autovec_copy(a_from[None, None, following, reading], a_held[None, None, following % 2])
                cute.autovec_copy(b_from[None, None, following, reading], b_held[None, None, following % 2])
                if const_expr(step == 0):
                    a_feed.fetch(a_next, filling, tile + (stages - 1) < tiles)
                    b_feed.fetch(b_next, filling, tile + (stages - 1) < tiles)
                    arch.cp_async_commit_group()
                    a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)
                    filling = filling + 1 if filling + 1 < stages else Int32(0)
                cute.gemm(mma, acc, a_held[None, None, step % 2], b_held[None, None, step % 2], acc)

        rest = ([x[None, None, batch] for x in extras], alpha, beta)
        arch.cp_async_wait_group(0)
        arch.sync_threads()
        self.write(part, thread, rank, acc, memory, d[None, None, batch], rest, where)

    @cute.jit
    def write_plain(self, part: Any, thread: Int32, result: cute.Tensor, memory: Any, d: cute.Tensor, where: Any):
        """Write a thread's results, neighbours in N at once where D is aligned."""
        tile = self.tiling.block_mnk[:2]
        width = min(SIMT_VECTOR, self.out_width)
        to = part.partition_C(cute.local_tile(d, tile, where))  # (1, (4, M), (4, N))
        coords = part.partition_C(cute.local_tile(cute.make_identity_tensor(d.shape), tile, where))
        atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=width * self.out_dtype.width)
        for i in range_constexpr(cute.size(to, mode=[1])):
            lines = cute.logical_divide(to[0, i, None], width)  # (width, N)
            parts = cute.logical_divide(result[0, i, None], width)
            for j in range_constexpr(cute.size(lines, mode=[1])):
                inside = cute.elem_less(coords[0, i, j * width], d.shape)
                cute.copy(atom, parts[None, j], lines[None, j], pred=inside)
