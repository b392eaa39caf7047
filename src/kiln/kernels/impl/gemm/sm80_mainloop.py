"""The multistage main loop: all threads copy with `cp.async` and multiply with `mma.sync` or FMA.

A CTA computes a tile of D. Tiles of A and B stream through stages in shared memory, several K tiles ahead; fragments
are loaded from there one step ahead of the MMAs that use them. The scheduler says which tile a CTA has; the epilogue
writes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Boolean, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from ....cute import arch
from ...dispatch import devices
from ...parts.accumulator import RegisterAccumulator
from ...parts.tensor_views import permuted
from .operand_copies import OperandCopy
from .sm80_epilogue import EpilogueTensors, Sm80Epilogue

if TYPE_CHECKING:
    from ....utils.schedulers import SingleTileScheduler
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig


class MultistageGemmKernel:
    """The kernel for operands of some types; subclasses say how tiles are copied, laid out and multiplied."""

    def __init__(
        self,
        a: Operand,
        b: Operand,
        config: Sm80GemmConfig,
        scheduler: SingleTileScheduler,
        epilogue: Sm80Epilogue,
        smem_bytes: int,
    ) -> None:
        self.a = a
        self.b = b
        self.config = config
        self.scheduler = scheduler
        self.epilogue = epilogue
        self.smem_bytes = smem_bytes

    swap_ab = False
    """Whether rows of B are rows of the MMA: accumulators are those of the transpose."""

    def acc_shape(self) -> tuple[int, int]:
        """Return the shape of a tile's accumulators."""
        m, n, _ = self.config.tile_shape_mnk
        return (n, m) if self.swap_ab else (m, n)

    def min_ctas_per_sm(self) -> int:
        """Return how many CTAs are to fit on an SM; 0: no bound. (With 1 ptxas takes 255 registers for 8-bit floats and
        spills, where it needs 178.)"""
        return 0

    def operand_copy(self, operand: Operand, rows: int) -> OperandCopy:
        """Return how the threads copy tiles of an operand: whole vectors along its contiguous mode."""
        tile_k = self.config.tile_shape_mnk[2] // (2 if operand.packed else 1)
        vectors = (tile_k if operand.k_major else rows) // operand.width
        threads = self.config.threads
        return OperandCopy(operand, operand.width, rows, tile_k, threads, math.gcd(vectors, threads))

    def fragments(self, side: int) -> Any:
        """Return how tiles of A (0) or B (1) lie in shared memory, and come into registers from there."""
        raise NotImplementedError

    def mma(self, fragments: Any, half: bool) -> cute.TiledMma:
        """Return the tiled MMA; with `half`, for 8-bit floats that have become f16."""
        raise NotImplementedError

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch the kernel for (L, M, K), (L, K, N), the first result (L, M, N), and the other results and inputs."""
        a = permuted(a, [1, 2, 0], self.a.width)  # (M, K, L)
        b = permuted(b, [2, 1, 0], self.b.width)  # (N, K, L)
        scales, rest = self.group_scale_tensors(rest)
        extra = len(self.epilogue.out_types) - 1
        d = [permuted(x, [1, 2, 0], self.epilogue.out_width) for x in (d, *rest[:extra])]  # (M, N, L)
        inputs = [permuted(x, [1, 2, 0], w) for x, w in zip(rest[extra:], self.epilogue.input_widths or ())]
        self.kernel(a, b, EpilogueTensors(d, inputs, alpha, beta), scales, self.scheduler.divisors(d[0])).launch(
            grid=self.scheduler.grid(d[0]),
            block=(self.config.threads, 1, 1),
            cluster=self.scheduler.cluster(),
            stream=stream,
            min_blocks_per_mp=self.min_ctas_per_sm(),
            use_pdl=devices.current().overlaps,
        )

    def group_scale_tensors(self, rest: list[cute.Tensor]) -> tuple[Any, list[cute.Tensor]]:
        """Return the scales of groups of K, and the rest of the tensors."""
        return [], rest

    def group_scales(
        self, acc: RegisterAccumulator, scales: Any, smem: cute.Pointer, tile_n: Int32, thread: Int32
    ) -> Any:
        """Return the scaling of accumulators of groups of K, or None. `smem`: behind the stages of A and B."""
        return None

    @cute.kernel
    def kernel(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        tensors: EpilogueTensors,
        scales: list[cute.Tensor],
        divisors: list[cute.FastDivmodDivisor],
    ):
        """Compute the tile of a CTA: prologue, main loop, epilogue."""
        thread = arch.thread_idx()[0]
        tile, batch, rank = self.scheduler.work(tensors.outs[0], divisors)
        tile_m, tile_n, tile_k = self.config.tile_shape_mnk
        a_frag = self.fragments(0)
        b_frag = self.fragments(1)
        mma = self.mma((a_frag, b_frag), self.a.half)
        loaded_mma = self.mma((a_frag, b_frag), False)

        # Shared memory: the stages of A, then those of B; later D in the same place.
        smem = utils.SmemAllocator().allocate(self.smem_bytes, 128)
        smem_b = smem + a_frag.stage_bytes()
        stages_a = cute.make_tensor(cute.recast_ptr(smem, dtype=self.a.dtype), a_frag.stage_layout())
        stages_b = cute.make_tensor(cute.recast_ptr(smem_b, dtype=self.b.dtype), b_frag.stage_layout())
        copies = self.operand_copy(self.a, tile_m), self.operand_copy(self.b, tile_n)
        copier = StageCopier(copies, self.config.stages, tile_k, self.config.split_k)
        producer, consumer = copier.pipe.make_participants()
        if const_expr(devices.current().overlaps):  # up to here a CTA may run beside the end of the kernel before it
            arch.griddepcontrol_wait()
            across, down, _ = arch.grid_dim()
            if across * down <= devices.current().sm_count:  # else CTAs of the next would not be spread evenly
                arch.griddepcontrol_launch_dependents()
        thr_mma = mma.get_slice(thread)
        fragment = cute.make_rmem_tensor(mma.partition_shape_C(self.acc_shape()), self.epilogue.acc_dtype)
        fragment.fill(0)
        acc = RegisterAccumulator(fragment, thr_mma)
        smem_scales = smem + (a_frag.stage_bytes() + b_frag.stage_bytes())
        copier.group_scales = self.group_scales(
            acc, [x[None, None, batch] for x in scales], smem_scales, tile[1], thread
        )
        operands = a[None, None, batch], b[None, None, batch]
        position = copier.prologue(producer, *operands, (stages_a, stages_b), tile, thread, rank)
        steps = a_frag.start(loaded_mma, stages_a, thread)
        b_frag.start(loaded_mma, stages_b, thread)
        self.mainloop(copier, producer, consumer, position, (a_frag, b_frag), steps, mma, fragment)
        batch_tensors = tensors.batch(batch)
        producer.tail()
        arch.sync_threads()
        self.epilogue.write(acc, thread, rank, smem, batch_tensors, tile)

    @cute.jit
    def mainloop(
        self,
        copier: StageCopier,
        producer: pipeline.PipelineProducer,
        consumer: pipeline.PipelineConsumer,
        position: tuple[cute.Pointer, cute.Pointer, Int32 | int, Int32],
        fragments: Any,
        steps: int,
        mma: cute.TiledMma,
        acc: cute.Tensor,
    ):
        """Accumulate all K tiles: each is copied `stages - 1` tiles ahead, its fragments are loaded one step ahead."""
        a_next, b_next, first, k_tiles = position
        a_frag, b_frag = fragments
        ahead = self.config.stages - 1
        scales = copier.group_scales
        consumer.wait()
        reading = consumer.current_handle().index
        a_frag.load(0, 0)
        b_frag.load(0, 0)
        for k_tile in range(k_tiles):
            current = reading
            for step in range_constexpr(steps):
                if const_expr(step == steps - 1):
                    consumer.advance()
                    consumer.wait()
                    reading = consumer.current_handle().index
                following = (step + 1) % steps
                a_frag.load(following, reading)
                b_frag.load(following, reading)
                if const_expr(step == 0):
                    if const_expr(scales is not None):
                        scales.take(current)
                    a_next, b_next = copier.fill(
                        producer, a_next, b_next, k_tile + ahead < k_tiles, first + k_tile + ahead
                    )
                taken = [a_frag.taken(step), b_frag.taken(step)]
                pairs = zip(*(reversed(taken) if const_expr(self.swap_ab) else taken))
                if const_expr(scales is not None):
                    scales.multiply(mma, acc, pairs, step)
                else:
                    for left, right in pairs:
                        cute.gemm(mma, acc, left, right, acc)


class StageCopier:
    """What a thread copies into the stages of a pipeline: all but one of them ahead, `tile_k` of K at a time.

    With `split_k` each CTA of a cluster takes its own part of K. `group_scales`: scales of groups of K that come with
    each tile.
    """

    __kiln_immutable__ = True

    group_scales: Any = None

    def __init__(self, copies: tuple[OperandCopy, OperandCopy], stages: int, tile_k: int, split_k: int) -> None:
        self.copies = copies
        self.stages = stages
        self.tile_k = tile_k
        self.split_k = split_k
        self.pipe: pipeline.PipelineAsync = pipeline.PipelineCpAsyncGroups.create(num_stages=stages)

    @cute.jit
    def prologue(
        self,
        producer: pipeline.PipelineProducer,
        a: cute.Tensor,
        b: cute.Tensor,
        stages: tuple[cute.Tensor, cute.Tensor],
        tile: tuple[Int32, Int32],
        thread: Int32,
        rank: Int32 | int,
    ):
        """Fill all stages but one; return the next K tiles of A and B, the CTA's first K tile, and how many it has."""
        split_k = self.split_k
        tile_k = self.tile_k
        copy_a, copy_b = self.copies
        a_next = copy_a.start(a, stages[0], tile[0], thread)
        b_next = copy_b.start(b, stages[1], tile[1], thread)
        k_tiles = cute.ceil_div(a.shape[1], tile_k)
        rest = a.shape[1] - (k_tiles - 1) * tile_k  # K of the first tile; the others are whole
        first = 0
        exists = Boolean(True)
        if const_expr(split_k > 1):
            first = k_tiles * rank // split_k
            k_tiles = k_tiles * (rank + 1) // split_k - first
            exists = k_tiles > 0
            before = rest + (first - 1) * tile_k if first > 0 else Int32(0)
            a_next = copy_a.advanced(a_next, before)
            b_next = copy_b.advanced(b_next, before)
            rest = Int32(tile_k) if first > 0 else rest
        self.copy_tile(0, a_next, b_next, first, exists, rest)
        producer.commit()
        producer.advance()
        a_next = copy_a.advanced(a_next, rest)
        b_next = copy_b.advanced(b_next, rest)
        for stage in range_constexpr(1, self.stages - 1):
            if stage <= k_tiles:  # one tile of zeros more: fragments are read ahead of the last
                self.copy_tile(stage, a_next, b_next, first + stage, stage < k_tiles)
            producer.commit()
            producer.advance()
            a_next = copy_a.advanced(a_next, tile_k)
            b_next = copy_b.advanced(b_next, tile_k)
        return a_next, b_next, first, k_tiles

    def copy_tile(
        self,
        stage: Int32 | int,
        a: cute.Pointer,
        b: cute.Pointer,
        k_tile: Int32 | int,
        exists: Boolean | bool,
        k_left: Int32 | None = None,
    ) -> None:
        """Begin to copy a K tile at addresses of A and B, and its group scales, into a stage."""
        for copy, address in zip(self.copies, (a, b), strict=True):
            copy.copy_tile(address, stage, exists, k_left)
        if self.group_scales is not None:
            self.group_scales.copy_tile(k_tile, stage, exists)

    def fill(
        self,
        producer: pipeline.PipelineProducer,
        a_next: cute.Pointer,
        b_next: cute.Pointer,
        exists: Boolean,
        k_tile: Int32 | int,
    ) -> tuple[cute.Pointer, cute.Pointer]:
        """Begin to fill the next stage with the next K tile, or with zeros. Return where the tile after it is."""
        copy_a, copy_b = self.copies
        stage = producer.acquire()
        self.copy_tile(stage.index, a_next, b_next, k_tile, exists)
        stage.commit()
        producer.advance()  # not before: two stage numbers would be held in registers
        return copy_a.advanced(a_next, self.tile_k), copy_b.advanced(b_next, self.tile_k)
