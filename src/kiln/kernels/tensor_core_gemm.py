"""D = epilogue(A B): matrix products on the tensor cores every GPU since sm_80 has (`mma.sync`).

A block of threads computes a tile of D. Tiles of A and B stream through a ring of buffers in shared memory, filled by
`cp.async` several steps ahead; matrices are loaded from there a step ahead of the multiplications. Shared memory is
swizzled, so that neither the copies in nor the loads out hit a bank twice.
"""

from __future__ import annotations

from typing import Any

from .. import cute, utils
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.typing import BFloat16, Boolean, Float8E4M3FN, Float8E5M2, Float16, Float32, Int32, TFloat32
from ..cute import arch
from ..cute.nvgpu import CopyUniversalOp, warp
from .gemm_base import Product
from .gemm_feed import Feed, Operand
from .gemm_tiling import k_step
from .smem import swizzled

FLOAT8 = (Float8E4M3FN, Float8E5M2)


class TensorCoreGemm(Product):
    """The kernel for operands of some kinds; f32 is rounded to TF32."""

    def mma(self) -> Any:
        """The tiled MMA."""
        dtype, (warps_m, warps_n) = self.a.dtype, self.tiling.warps_mn
        if dtype in (Float16, BFloat16):
            op: Any = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
        elif dtype is Float32:
            op = warp.MmaTF32Op((16, 8, 8))
        elif dtype in FLOAT8:
            op = warp.MmaFP8Op(dtype, Float32, (16, 8, 32), b_dtype=self.b.dtype)
        else:
            op = warp.MmaI8Op(dtype, self.b.dtype, Int32, (16, 8, 32))
        # 16 columns for a warp: four matrices of B are loaded at a time
        return cute.make_tiled_mma(op, (warps_m, warps_n, 1), (16 * warps_m, 16 * warps_n, k_step(dtype)))

    def feed(self, operand: Operand, rows: int) -> Feed:
        """How the threads copy tiles of an operand: along its contiguous mode."""
        depth, threads = self.tiling.block_mnk[2], self.tiling.threads
        along = depth if operand.k_major else rows
        return Feed(operand, operand.width, rows, depth, threads, min(along // operand.width, threads))

    def smem_copy(self, operand: Operand) -> Any:
        """How fragments are read from shared memory: as matrices where the hardware has them."""
        bits = operand.dtype.width
        if operand.k_major:
            op = warp.LdMatrix8x16x8bOp(False, 4) if bits == 8 else warp.LdMatrix8x8x16bOp(False, 4)
            return cute.make_copy_atom(op, operand.dtype)
        if bits == 16:
            return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), operand.dtype)
        return cute.make_copy_atom(CopyUniversalOp(), operand.dtype, num_bits_per_copy=bits)

    def smem_layout(self, operand: Operand, rows: int) -> Any:
        """The ring of tiles (rows, K, stages)."""
        return swizzled(operand.dtype, (rows, self.tiling.block_mnk[2], self.tiling.stages), int(operand.k_major))

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, alpha: Float32, beta: Float32):
        thread = arch.thread_idx()[0]
        number, batch, _ = arch.block_idx()
        block_m, block_n, depth = self.tiling.block_mnk
        stages = self.tiling.stages
        tile_m, tile_n = self.place(number, cute.ceil_div(d.shape[0], block_m), cute.ceil_div(d.shape[1], block_n))
        mma = self.mma()

        # Shared memory: the ring of A, then that of B; later D in the same place.
        a_layout, b_layout = self.smem_layout(self.a, block_m), self.smem_layout(self.b, block_n)
        bytes_used = self.tiling.smem_bytes(max(self.a.dtype.width, self.b.dtype.width), self.out_dtype.width)
        memory = utils.SmemAllocator().allocate(bytes_used, 128)
        a_ring = cute.make_tensor(cute.recast_ptr(memory, dtype=self.a.dtype), a_layout)
        b_start = cute.cosize(a_layout) * self.a.dtype.width // 8
        b_ring = cute.make_tensor(cute.recast_ptr(memory + b_start, dtype=self.b.dtype), b_layout)

        a_feed, b_feed = self.feed(self.a, block_m), self.feed(self.b, block_n)
        a_next = a_feed.start(a[None, None, batch], a_ring, tile_m, thread)
        b_next = b_feed.start(b[None, None, batch], b_ring, tile_n, thread)
        tiles = cute.ceil_div(a.shape[1], depth)
        rest = a.shape[1] - (tiles - 1) * depth
        a_feed.fetch(a_next, 0, Boolean(True), rest)
        b_feed.fetch(b_next, 0, Boolean(True), rest)
        arch.cp_async_commit_group()
        a_next, b_next = a_feed.advanced(a_next, rest), b_feed.advanced(b_next, rest)
        for stage in range_constexpr(1, stages - 1):
            if stage <= tiles:  # one more than there are: what is read ahead of the last is zeros
                a_feed.fetch(a_next, stage, stage < tiles)
                b_feed.fetch(b_next, stage, stage < tiles)
            arch.cp_async_commit_group()
            a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)

        # What this thread multiplies: fragments of a whole tile, loaded one step in K ahead.
        part = mma.get_slice(thread)
        a_frag = mma.make_fragment_A(part.partition_A(a_ring[None, None, 0]))
        b_frag = mma.make_fragment_B(part.partition_B(b_ring[None, None, 0]))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((block_m, block_n)), self.acc_dtype)
        acc.fill(0)
        a_load = cute.make_tiled_copy_A(self.smem_copy(self.a), mma).get_slice(thread)
        b_load = cute.make_tiled_copy_B(self.smem_copy(self.b), mma).get_slice(thread)
        a_matrices, a_regs = a_load.partition_S(a_ring), a_load.retile(a_frag)
        b_matrices, b_regs = b_load.partition_S(b_ring), b_load.retile(b_frag)
        steps = cute.size(a_frag, mode=[2])

        arch.cp_async_wait_group(stages - 2)
        arch.sync_threads()
        cute.copy(a_load, a_matrices[None, None, 0, 0], a_regs[None, None, 0])
        cute.copy(b_load, b_matrices[None, None, 0, 0], b_regs[None, None, 0])

        reading, filling = Int32(0), Int32(stages - 1)
        for tile in range(tiles):
            for step in range_constexpr(steps):
                if const_expr(step == steps - 1):
                    # The next tile has arrived, and everybody is done with the one before this.
                    reading = reading + 1 if reading + 1 < stages else Int32(0)
                    arch.cp_async_wait_group(stages - 2)
                    arch.sync_threads()
                following = (step + 1) % steps
                cute.copy(a_load, a_matrices[None, None, following, reading], a_regs[None, None, following])
                cute.copy(b_load, b_matrices[None, None, following, reading], b_regs[None, None, following])
                if const_expr(step == 0):
                    a_feed.fetch(a_next, filling, tile + (stages - 1) < tiles)
                    b_feed.fetch(b_next, filling, tile + (stages - 1) < tiles)
                    arch.cp_async_commit_group()
                    a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)
                    filling = filling + 1 if filling + 1 < stages else Int32(0)
                a_step, b_step = self.rounded(a_frag[None, None, step]), self.rounded(b_frag[None, None, step])
                cute.gemm(mma, acc, a_step, b_step, acc)

        arch.cp_async_wait_group(0)
        arch.sync_threads()
        where = (tile_m, tile_n)
        rest_of = [x[None, None, batch] for x in extras]
        result = self.combined(part, acc, rest_of, alpha, beta, where, d.shape[:2])
        self.write_by_smem(part, thread, result, memory, d[None, None, batch], where)

    def rounded(self, fragment: Any) -> Any:
        """What the tensor cores take: f32 to the nearest TF32, where they would cut it off."""
        if fragment.element_type is not Float32:
            return fragment
        near = cute.make_rmem_tensor(fragment.shape, TFloat32)
        near.store(fragment.load().to(TFloat32))
        return near
