"""GEMM on sm_90a: TMA loads, warpgroups multiply with WGMMA, TMA stores.

The kernel is persistent and warp-specialised: there is a CTA for each SM, which computes one tile after the other. One
warp of its first warpgroup, the producer, loads tiles of A and B through a pipeline of stages in shared memory (another
warp loads block scales); the other warpgroups, the consumers, multiply them. The scheduler says which tiles a CTA has;
the epilogue stores accumulators.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64, TFloat32, const_expr, cute, pipeline, range_constexpr, select_, utils
from ....cute import arch
from ....cute.nvgpu import cpasync, warpgroup
from ....utils import LayoutEnum, sm90
from ....utils.schedulers import GemmTile, TileLoopAhead
from ...parts.accumulator import RegisterAccumulator
from ...parts.tensor_views import tma_view
from ...parts.tma_operand import TmaLoads, TmaOperand, cluster_coord
from .sm80_epilogue import EpilogueTensors
from .sm90_block_scales import LANES, BlockScaleLoader, BlockScales
from .sm90_config import ATOM_M, WARPGROUP_THREADS
from .sm90_roles import gemm_roles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....utils.schedulers import PersistentTileScheduler
    from ...parts.warp_roles import WarpRoles
    from .problem import Operand
    from .sm90_config import Sm90GemmConfig
    from .sm90_epilogue import TmaGemmEpilogue
    from .sm90_smem_epilogue import SmemEpilogue


class MmaOperands(NamedTuple):
    """The tiled MMA of the consumers, and its operands: descriptors of all stages of A and B in shared memory."""

    mma: cute.TiledMma
    tCrA: cute.Tensor
    tCrB: cute.Tensor


class Sm90GemmKernel:
    """The kernel for operands of some types.

    `batched`: whether A, B and D differ from batch to batch. `promoted`: accumulators of each stage are added to others
    in f32 registers, since tensor cores keep fewer bits for 8-bit floats; with `scales` they are multiplied by block
    scales first.
    """

    __kiln_fixed__ = True

    def __init__(
        self,
        a: Operand,
        b: Operand,
        batched: tuple[bool, bool, bool],
        promoted: bool,
        scales: bool,
        config: Sm90GemmConfig,
        scheduler: PersistentTileScheduler,
        epilogue: TmaGemmEpilogue | SmemEpilogue,
    ) -> None:
        # TMA rounds f32 to TF32; tensor cores would truncate.
        a, b = (dataclasses.replace(x, dtype=TFloat32) if x.dtype is Float32 else x for x in (a, b))
        self.a: Operand = b if config.swap_ab else a
        self.b: Operand = a if config.swap_ab else b
        self.batched = batched
        self.promoted = promoted
        self.scales = scales
        self.block_scaled: bool = promoted and scales
        self.config = config
        self.roles: WarpRoles = gemm_roles(config)
        self.scheduler = scheduler
        self.epilogue = epilogue
        # Every other tile goes through K backwards: what was loaded last is in the L2 cache. (Not of mixed inputs.)
        self.alternates_k: bool = scheduler.num_bounds == 0 and a.dtype is b.dtype
        self.skips_empty: bool = (
            scheduler.skips_empty_warpgroups and config.warpgroups_per_tile > 1 and not config.swap_ab
        )

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch the kernel for (L, M, K), (L, K, N), (L, M, N), and other tensors, as `GemmArguments.launch` does.

        With swap-AB, M is N in the kernel, and N is M.
        """
        bounds = rest[: self.scheduler.num_bounds]
        rest = rest[self.scheduler.num_bounds :]
        scales, rest = self.scale_tensors(rest)
        extra = len(self.epilogue.out_types) - 1
        row_partials, rest = (rest[:1], rest[1:]) if self.epilogue.reduces_rows else ([], rest)
        inputs = rest[extra:]
        m, n, _ = self.config.tile_shape_mnk
        cluster = self.config.cluster_shape_mn
        a = tma_view(a, [1, 2, 0], 128 // a.element_type.width, self.batched[0], True)  # (M, K, L)
        b = tma_view(b, [2, 1, 0], 128 // b.element_type.width, self.batched[1], True)  # (N, K, L)
        d = [tma_view(x, [1, 2, 0], self.epilogue.out_width, self.batched[2]) for x in (d, *rest[:extra])]  # (M, N, L)
        inputs = [tma_view(x, [1, 2, 0], w, True) for x, w in zip(inputs, self.epilogue.input_widths or ())]
        if const_expr(self.config.swap_ab):
            a, b, d = b, a, [cute.select(x, mode=[1, 0, 2]) for x in d]
        bounds = [*bounds, *self.scheduler.divisors(d[0])]
        layout_a, layout_b = self.smem_layouts()
        k_a, k_b = self.stage_k()
        tma_a = TmaOperand.load(a, layout_a, (m, k_a), cluster[1])
        tma_b = TmaOperand.load(b, layout_b, (n, k_b), cluster[0])
        stores, coords = self.epilogue.tma_stores(d)
        tensors = EpilogueTensors(d, inputs, alpha, beta, stores, coords, row_partials)
        self.kernel(tma_a, tma_b, self.mma(), tensors, bounds, scales).launch(
            grid=self.scheduler.grid(d[0]),
            block=(self.roles.threads, 1, 1),
            cluster=self.scheduler.cluster(),
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=True,
        )

    def scale_tensors(self, rest: list[cute.Tensor]) -> tuple[list[cute.Tensor], list[cute.Tensor]]:
        """Return the block scales, (M, K / 128, L) and (N / 128, K / 128, L), and the rest of the tensors."""
        if not self.scales:
            return [], rest
        modes = [1, 2, 0], [2, 1, 0]
        # a batch of results may share operands, and have scales of its own
        batched = [own or self.batched[2] for own in self.batched[:2]]
        return [tma_view(x, mode, 1, own) for x, mode, own in zip(rest[:2], modes, batched)], rest[2:]

    def stage_k(self) -> tuple[int, int]:
        """Return the elements of a stage along K, of A and of B."""
        k = self.config.tile_shape_mnk[2]
        return k, k

    def smem_layouts(self) -> tuple[cute.ComposedLayout, cute.ComposedLayout]:
        """Return the layouts of all stages of A and B."""
        m, n, _ = self.config.tile_shape_mnk
        stages = self.config.ab_stages
        k_a, k_b = self.stage_k()
        return (
            sm90.make_smem_layout_a(_major(self.a), (m, n, k_a), self.a.dtype, stages),
            sm90.make_smem_layout_b(_major(self.b), (m, n, k_b), self.b.dtype, stages),
        )

    def mma(self) -> cute.TiledMma:
        """Return the tiled MMA of the warpgroups that share a tile."""
        a_mode = _major(self.a).sm90_mma_major_mode()
        b_mode = _major(self.b).sm90_mma_major_mode()
        return sm90.make_trivial_tiled_mma(
            self.a.dtype,
            self.b.dtype,
            a_mode,
            b_mode,
            self.epilogue.acc_dtype,
            (self.config.warpgroups_per_tile, 1, 1),
            (64, self.config.tile_shape_mnk[1]),
        )

    @cute.kernel
    def kernel(
        self,
        a: TmaOperand,
        b: TmaOperand,
        mma: cute.TiledMma,
        tensors: EpilogueTensors,
        bounds: list[cute.FastDivmodDivisor | cute.Tensor],
        scales: list[cute.Tensor],
    ):
        """Set up shared memory and barriers, then run the producer warps or the consumer warpgroups."""
        config = self.config
        roles = self.roles
        thread = arch.thread_idx()[0]
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for atom in (a.atom, b.atom, *tensors.tma_stores):
                cpasync.prefetch_descriptor(atom)
        smem = utils.SmemAllocator()
        sA = a.allocate(smem)
        sB = b.allocate(smem)
        buffers = self.epilogue.allocate(smem, (sB if config.written_over_b else sA).iterator)
        stages_scales = scales
        if const_expr(self.block_scaled):
            shape = (sum(config.scales_per_stage), config.ab_stages)
            stages_scales = smem.allocate_tensor(Float32, cute.make_layout(shape), 16)
        consumer_idx = roles.index(warp, "consumer")
        order = self.pingpong_order(consumer_idx) if const_expr(config.pingpong) else None
        pipe = self.make_pipeline(a.stage_bytes() + b.stage_bytes())
        cluster = (config.split_k_cluster, 1) if const_expr(config.split_k_cluster > 1) else config.cluster_shape_mn
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)
        # Up to here, and until something is loaded, a CTA may run beside the end of the kernel before it.
        if const_expr(self.scheduler.num_bounds > 0):
            arch.griddepcontrol_wait()
        tiles = self.scheduler.setup(smem, tensors.tma_coords[0], bounds)
        if roles.is_up_to(warp, "producer"):
            roles.set_registers("producer")
            if roles.has(warp, "load"):
                self.produce(pipe, a, sA, b, sB, tiles)
            if const_expr(self.block_scaled):
                if roles.has(warp, "load scales"):
                    self.produce_scales(pipe, scales, stages_scales, tiles)
        else:
            roles.set_registers("consumer")
            arch.griddepcontrol_wait()
            if const_expr(self.scheduler.reduces_later):  # the reduction has few threads, and takes the place of no CTA
                arch.griddepcontrol_launch_dependents()
            k_range = self.k_range(a.tensor, tiles)
            stages = sA, sB, stages_scales
            self.consume(
                pipe, order, mma, consumer_idx, thread - WARPGROUP_THREADS, k_range, stages, buffers, tiles, tensors
            )

    def make_pipeline(self, stage_bytes: int) -> pipeline.PipelineTmaAsync:
        """Return the pipeline of a producer thread (with a warp for scales) and all warps that share a tile."""
        config = self.config
        thread = pipeline.Agent.Thread
        return pipeline.PipelineTmaAsync.create(
            num_stages=config.ab_stages,
            producer_group=pipeline.CooperativeGroup(thread, 1 + LANES if self.block_scaled else 1),
            consumer_group=pipeline.CooperativeGroup(thread, config.warpgroups_per_tile * WARPGROUP_THREADS // 32),
            tx_count=stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, *config.cluster_shape_mn, 1)),
            enable_multicast_signaling=True,
            defer_sync=True,
        )

    def pingpong_order(self, consumer_idx: Int32) -> pipeline.PipelineOrder:
        """Return the barriers by which consumer warpgroups take turns with the tensor cores."""
        threads = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPGROUP_THREADS)
        return pipeline.PipelineOrder.create(
            depth=1, length=self.config.mma_warpgroups, group_id=consumer_idx, producer_group=threads, defer_sync=True
        )

    def k_range(
        self, a: cute.Tensor, tiles: tuple[cute.Tensor, cute.Tensor | list[cute.FastDivmodDivisor]]
    ) -> tuple[Int32 | int, Int32]:
        """Return the first K tile of this CTA, and how many it has."""
        return self.scheduler.k_range(Int32(cute.ceil_div(a.shape[1], self.stage_k()[0])), tiles)

    def k_tile(self, step: Int32 | int, first: Int32 | int, k_tiles: Int32, backwards: Int32) -> Any:
        """Return which K tile is loaded at a step."""
        return select_(backwards == 1, 2 * first + k_tiles - 1 - step, step) if self.alternates_k else step

    # --- producer ----------------------------------------------------------------------------------------------------

    @cute.jit
    def produce(
        self,
        pipe: pipeline.PipelineTmaAsync,
        a: TmaOperand,
        sA: cute.Tensor,
        b: TmaOperand,
        sB: cute.Tensor,
        tiles: tuple[cute.Tensor, cute.Tensor | list[cute.FastDivmodDivisor]],
    ):
        """Load the tiles of A and B of this CTA, one K tile to a stage."""
        operands = ((a, sA), (b, sB))
        place = cluster_coord(self.config.cluster_shape_mn)
        loads = self.tma_loads(operands, place)
        first_k, k_tiles = self.k_range(a.tensor, tiles)
        producer = pipe.make_producer()
        backwards = Int32(0)
        for work in self.scheduler.tile_loop(tiles):
            tile_loads = self.tile_loads(work.tile(), loads, operands, place)
            arch.griddepcontrol_wait()
            for step in range(first_k, first_k + k_tiles):
                k_tile = self.k_tile(step, first_k, k_tiles, backwards)
                stage = producer.acquire_and_advance()
                for load in tile_loads:
                    load.issue(k_tile, stage.index, stage.barrier)
            backwards = 1 - backwards
        producer.tail()  # other CTAs may still release stages here

    def tma_loads(self, operands: Any, place: Any, sides: tuple[int, ...] = (0, 1)) -> list[TmaLoads]:
        """Return the TMA loads of A and B into their stages, for this CTA of the cluster."""
        cluster, cta = place
        pairs = [(side, *operands[side]) for side in sides]
        return [TmaLoads.make(operand, stages, cluster, cta, 1 - side) for side, operand, stages in pairs]

    def tile_loads(
        self,
        tile: GemmTile,
        loads: list[TmaLoads],
        operands: tuple[tuple[TmaOperand, cute.Tensor], tuple[TmaOperand, cute.Tensor]],
        place: Any,
    ) -> list[TmaLoads]:
        """Return the loads of the K tiles of A and B that a tile needs."""
        loads = list(loads)
        batches = [tile.batch, tile.batch_b]
        if self.config.swap_ab:
            batches.reverse()
        if self.scheduler.ragged:  # rows of a group begin anywhere
            side = 1 if self.config.swap_ab else 0
            operand, stages = operands[side]
            loads[side] = self.tma_loads({side: (operand.at((tile.row_start, 0, 0)), stages)}, place, (side,))[0]
        return [load.of_tile(row, batch) for load, row, batch in zip(loads, (tile.m, tile.n), batches)]

    @cute.jit
    def produce_scales(
        self,
        pipe: pipeline.PipelineTmaAsync,
        scales: list[cute.Tensor],
        stages: cute.Tensor,
        tiles: tuple[cute.Tensor, cute.Tensor | list[cute.FastDivmodDivisor]],
    ):
        """Load the block scales of this CTA, those of one K tile to a stage."""
        first_k, k_tiles = self.scheduler.k_range(Int32(scales[0].shape[1]), tiles)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.ab_stages)
        backwards = Int32(0)
        for work in self.scheduler.tile_loop(tiles):
            loader = BlockScaleLoader(scales, self.config, work.tile())
            arch.griddepcontrol_wait()
            for step in range(first_k, first_k + k_tiles):
                k_tile = self.k_tile(step, first_k, k_tiles, backwards)
                pipe.sync_object_empty.wait(state.index, state.phase)
                loader.load(k_tile, stages[None, state.index])
                arch.cp_async_mbarrier_arrive_noinc(pipe.producer_get_barrier(state))
                state.advance()
            backwards = 1 - backwards

    # --- consumers ---------------------------------------------------------------------------------------------------

    @cute.jit
    def consume(
        self,
        pipe: pipeline.PipelineTmaAsync,
        order: Any,
        mma: cute.TiledMma,
        consumer_idx: Int32,
        thread: Int32,
        k_range: tuple[Int32 | int, Int32],
        stages: Any,
        buffers: cute.Pointer | Sequence[cute.Pointer | cute.Tensor],
        tiles: tuple[cute.Tensor, cute.Tensor | list[cute.FastDivmodDivisor]],
        tensors: EpilogueTensors,
    ):
        """Multiply the tiles of a consumer warpgroup, and store the results."""
        config = self.config
        scheduler = self.scheduler
        k_tiles = k_range[1]
        warpgroup_thread = thread % WARPGROUP_THREADS
        thr_mma = mma.get_slice(warpgroup_thread if const_expr(config.pingpong) else thread)
        # the slice of a warpgroup's first thread: descriptors are the same for all of its threads
        uniform = mma.get_slice(0 if const_expr(config.pingpong) else consumer_idx * WARPGROUP_THREADS)
        sA, sB, scale_stages = stages
        tCrA = mma.make_fragment_A(uniform.partition_A(sA))
        tCrB = mma.make_fragment_B(uniform.partition_B(sB))
        operands = MmaOperands(mma, tCrA, tCrB)
        acc = cute.make_rmem_tensor(mma.partition_shape_C(config.tile_shape_mnk[:2]), self.epilogue.acc_dtype)
        stage_acc = cute.make_rmem_tensor_like(acc) if const_expr(self.promoted) else acc
        scales = BlockScales(thr_mma, config, scale_stages) if const_expr(self.block_scaled) else None
        reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.ab_stages)
        releasing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.ab_stages)
        if const_expr(config.pingpong):  # every other tile; the stages of those between are the other warpgroup's
            if consumer_idx == 1:
                reading.advance(k_tiles)
                releasing.advance(k_tiles)
            loop = scheduler.tile_loop(tiles, consumer_idx, config.mma_warpgroups)
        elif const_expr(self.skips_empty):
            loop = TileLoopAhead(scheduler, tiles)
        else:
            loop = scheduler.tile_loop(tiles)
        count = k_tiles
        for work in loop:
            if const_expr(self.skips_empty):  # no rows of the group: the other warpgroup has the tensor cores
                empty = work.tile().m * config.tile_shape_mnk[0] + consumer_idx * ATOM_M
                count = select_(empty < work.tile().rows, k_tiles, 0)
            if const_expr(config.pingpong):
                # A stage is waited for after its use before was: mbarriers tell no more than two uses apart.
                order.wait()
            if const_expr(self.promoted):
                self.accumulate_promoted(pipe, order, operands, reading, count, stage_acc, acc, scales)
            else:
                self.accumulate(pipe, order, operands, reading, releasing, count, acc)
            tile = work.tile()  # looked up while the last MMAs run
            if isinstance(work, TileLoopAhead):
                work.look_ahead()
            if const_expr(not self.promoted):
                warpgroup.wait_group(0)
                if const_expr(not self.skips_empty) or count > 0:
                    pipe.consumer_release(releasing)
                    releasing.advance()
            if const_expr(self.skips_empty):
                self.skip_stages(pipe, reading, releasing, k_tiles - count)
            # Sooner, CTAs of the next kernel would come one by one, and not beside those with the same operands.
            if const_expr(not scheduler.reduces_later):
                arch.griddepcontrol_launch_dependents()
            if const_expr(not self.skips_empty) or count > 0:
                result = RegisterAccumulator(acc, thr_mma)
                self.epilogue.write(result, warpgroup_thread, consumer_idx, buffers, tensors, tile)
            if const_expr(config.pingpong):
                reading.advance(k_tiles)
                releasing.advance(k_tiles)
        self.epilogue.finish()

    @cute.jit
    def skip_stages(
        self,
        pipe: pipeline.PipelineTmaAsync,
        reading: pipeline.PipelineState,
        releasing: pipeline.PipelineState,
        count: Int32 | int,
    ):
        """Release stages that this warpgroup does not multiply."""
        for _ in range(count):
            pipe.consumer_wait(reading)
            pipe.consumer_release(reading)
            reading.advance()
            releasing.advance()

    @cute.jit
    def accumulate(
        self,
        pipe: pipeline.PipelineTmaAsync,
        order: Any,
        operands: MmaOperands,
        reading: pipeline.PipelineState,
        releasing: pipeline.PipelineState,
        k_tiles: Int32,
        acc: cute.Tensor,
    ):
        """The main loop: multiply the K tiles of a tile. A stage is released when the MMAs of the next are in flight;
        those of the last one still are at the end."""
        operands.mma.set(warpgroup.Field.ACCUMULATE, False)  # the first MMA overwrites the accumulators
        for k in range(k_tiles):
            pipe.consumer_wait(reading)
            warpgroup.fence()
            self.mma_stage(operands, reading.index, acc)
            warpgroup.commit_group()
            reading.advance()
            warpgroup.wait_group(1)
            if k > 0:
                pipe.consumer_release(releasing)
                releasing.advance()
        if const_expr(self.config.pingpong):
            order.arrive()

    @cute.jit
    def accumulate_promoted(
        self,
        pipe: pipeline.PipelineTmaAsync,
        order: Any,
        operands: MmaOperands,
        reading: pipeline.PipelineState,
        k_tiles: Int32,
        stage_acc: cute.Tensor,
        acc: cute.Tensor,
        scales: Any,
    ):
        """The main loop with accumulators of each stage, which are scaled by block scales and added in f32."""
        acc.fill(0)
        for _ in range(k_tiles):
            pipe.consumer_wait(reading)
            operands.mma.set(warpgroup.Field.ACCUMULATE, False)
            warpgroup.fence()
            self.mma_stage(operands, reading.index, stage_acc)
            warpgroup.commit_group()
            if const_expr(self.block_scaled):
                scales.load(reading.index)
            warpgroup.wait_group(0)
            pipe.consumer_release(reading)
            reading.advance()
            if const_expr(self.block_scaled):
                scales.add(acc, stage_acc)
            else:
                acc.store(acc.load() + stage_acc.load())
        if const_expr(self.config.pingpong):
            order.arrive()

    @cute.jit
    def mma_stage(self, operands: MmaOperands, stage: Int32, acc: cute.Tensor):
        """Issue the MMAs of a stage. Its descriptors are found first: from there on they differ by constants."""
        mma, *sides = operands
        tCrA, tCrB = (x[None, None, None, stage] for x in sides)
        for k_block in range_constexpr(cute.size(tCrA, mode=[2])):
            at = (None, None, k_block)
            cute.gemm(mma, acc, tCrA[at], tCrB[at], acc)
            mma.set(warpgroup.Field.ACCUMULATE, True)


def _major(operand: Operand) -> LayoutEnum:
    return LayoutEnum.ROW_MAJOR if operand.k_major else LayoutEnum.COL_MAJOR
