"""GEMM with tcgen05 (sm_100a and its kin): TMA loads, accumulators in tensor memory, TMA stores.

The kernel is persistent and warp-specialised: there is a CTA for each SM, alone or in a pair that multiplies a tile
together. One warp loads tiles of A and B through a pipeline of stages in shared memory. A warp for each accumulator
issues the MMAs; in a pair that of the even CTA, the leader, does for both. A warpgroup for each accumulator stores it,
while the tile after it is multiplied into other columns of tensor memory. With cluster launch control a further warp
asks which tile is next.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, cast

from .... import Float8E8M0FNU, Float32, Int32, Int64, TFloat32, const_expr, cute, pipeline, range_constexpr, utils
from ....cute import arch
from ....cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from ....utils import sm100
from ...parts.tensor_views import tma_view
from ...parts.tma_operand import TmaLoads, TmaOperand
from .sm80_epilogue import EpilogueTensors

if TYPE_CHECKING:
    from ....utils.schedulers import GemmTile, PersistentTileScheduler, TileLoop
    from ...parts.clc_tiles import ClcTileLoop, ClcTiles, ClcTileScheduler
    from ...parts.warp_roles import WarpRoles
    from .problem import Operand
    from .sm100_block_scaled import ScaleCopy, ScaleOperand
    from .sm100_config import Sm100GemmConfig
    from .sm100_epilogue import Sm100Epilogue

    Tiles = tuple[cute.Tensor, list[cute.FastDivmodDivisor] | cute.Tensor] | ClcTiles


class Cluster(NamedTuple):
    """The CTAs of a cluster (CTA of a pair, M, N, 1), and the coordinate of this one."""

    ctas: cute.Layout
    place: tuple[Int32, ...]


class Pipelines(NamedTuple):
    """Stages of A and B, and the accumulators of each warpgroup that stores."""

    operands: pipeline.PipelineTmaUmma
    accumulators: list[pipeline.PipelineUmmaAsync]


class Sm100GemmKernel:
    """The kernel for operands of some types. `batched`: whether A, B and D differ from batch to batch."""

    __kiln_fixed__ = True
    num_scales = 0
    """How many tensors of scale factors there are."""
    scale_dtype: type[cute.Numeric] = Float8E8M0FNU

    def __init__(
        self,
        a: Operand,
        b: Operand,
        batched: tuple[bool, bool, bool],
        config: Sm100GemmConfig,
        scheduler: PersistentTileScheduler,
        epilogue: Sm100Epilogue,
    ) -> None:
        # TMA rounds f32 to TF32; tensor cores would truncate.
        a, b = (dataclasses.replace(x, dtype=TFloat32) if x.dtype is Float32 else x for x in (a, b))
        self.a: Operand = b if config.swap_ab else a
        self.b: Operand = a if config.swap_ab else b
        self.batched = batched
        self.config = config
        self.roles: WarpRoles = config.roles()
        self.scheduler = scheduler
        self.epilogue = epilogue

    @property
    def columns(self) -> int:
        """The columns of tensor memory of a CTA."""
        return self.config.acc_columns

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        rest: list[cute.Tensor],
        alpha: Float32,
        beta: Float32,
        stream: Int64,
    ):
        """Launch the kernel for (L, M, K), (L, K, N), (L, M, N), and other tensors, as `GemmArguments.launch` does.

        With swap-AB, M is N in the kernel, and N is M.
        """
        config = self.config
        epilogue = self.epilogue
        extra = len(epilogue.out_types) - 1
        bounds, rest = rest[: self.scheduler.num_bounds], rest[self.scheduler.num_bounds :]
        scales, rest = rest[: self.num_scales], rest[self.num_scales :]
        row_partials, rest = (rest[:1], rest[1:]) if epilogue.reduces_rows else ([], rest)
        inputs = rest[extra:]
        a = self.operand_view(a, [1, 2, 0], self.batched[0])  # (M, K, L)
        b = self.operand_view(b, [2, 1, 0], self.batched[1])  # (N, K, L)
        outs = [tma_view(x, [1, 2, 0], epilogue.out_width, self.batched[2]) for x in (d, *rest[:extra])]  # (M, N, L)
        inputs = [tma_view(x, [1, 2, 0], w, True) for x, w in zip(inputs, epilogue.input_widths)]
        if const_expr(config.swap_ab):
            a, b = b, a
            outs, inputs = ([cute.select(x, mode=[1, 0, 2]) for x in tensors] for tensors in (outs, inputs))
        bounds = [*bounds, *self.scheduler.divisors(outs[0])]
        mma = self.mma()
        cluster = (*config.cluster_shape_mn, 1)
        shape = config.mma_shape_mnk
        layout_a = sm100.make_smem_layout_a(mma, shape, self.a.dtype, config.ab_stages)
        layout_b = sm100.make_smem_layout_b(mma, shape, self.b.dtype, config.ab_stages)
        tma_a = TmaOperand.of_mma("A", a, layout_a, shape, mma, cluster)
        tma_b = TmaOperand.of_mma("B", b, layout_b, shape, mma, cluster)
        tma_scales = self.scale_operands(scales, a, b, mma)
        stores, coords = epilogue.tma_stores(outs)
        tensors = EpilogueTensors(outs, inputs, alpha, beta, stores, coords, row_partials)
        self.kernel(tma_a, tma_b, tma_scales, mma, tensors, bounds).launch(
            grid=self.scheduler.grid(outs[0]),
            block=(self.roles.threads, 1, 1),
            cluster=self.scheduler.cluster(),
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=True,
        )

    def operand_view(self, x: cute.Tensor, modes: list[int], batched: bool) -> cute.Tensor:
        """Return an operand with its modes in the order (M or N, K, L)."""
        return tma_view(x, modes, 128 // x.element_type.width, batched, True)

    def mma(self) -> cute.TiledMma:
        """Return the tiled MMA of a CTA or a pair, with one accumulator."""
        return sm100.make_trivial_tiled_mma(
            self.a.dtype,
            self.b.dtype,
            major(self.a),
            major(self.b),
            self.epilogue.acc_dtype,
            tcgen05.CtaGroup.TWO if self.config.pair else tcgen05.CtaGroup.ONE,
            self.config.mma_shape_mnk[:2],
        )

    @cute.kernel
    def kernel(
        self,
        a: TmaOperand,
        b: TmaOperand,
        scales: list[ScaleOperand],
        mma: cute.TiledMma,
        tensors: EpilogueTensors,
        bounds: list[cute.FastDivmodDivisor | cute.Tensor],
    ):
        """Set up shared memory, barriers and tensor memory, then run the role of each warp."""
        config = self.config
        roles = self.roles
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == roles.first("load"):
            for atom in (a.atom, b.atom, *[x.atom for x in scales], *tensors.tma_stores):
                cpasync.prefetch_descriptor(atom)
        smem = utils.SmemAllocator()
        sA = [a.allocate(smem) for _ in range(config.accumulators)]
        sB = b.allocate(smem)
        sS = [x.allocate(smem, self.scale_dtype) for x in scales]
        buffers = self.epilogue.allocate(smem)
        ctas = cute.tiled_divide(cute.make_layout((*config.cluster_shape_mn, 1)), (mma.thr_id.shape,))
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        cluster = Cluster(ctas, ctas.get_flat_coord(rank))
        pipes = self.make_pipelines(a, b, scales, mma, ctas)
        if const_expr(self.scheduler.num_bounds > 0):
            arch.griddepcontrol_wait()
        tiles = self.scheduler.setup(smem, tensors.tma_coords[0], bounds)
        freed = smem.allocate_array(Int64) if const_expr(config.pair) else None
        tmem = utils.TmemAllocator(
            smem.allocate_array(Int32),
            roles.barrier("tensor memory"),
            is_two_cta=config.pair,
            two_cta_tmem_dealloc_mbar_ptr=freed,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=ctas, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=ctas)
        # Up to here, and until something is loaded, a CTA may run beside the end of the kernel before it.
        if roles.has(warp, "load"):
            self.load(pipes.operands, cluster, mma, a, sA, b, sB, scales, sS, tiles)
        if const_expr(config.dynamic):
            if roles.has(warp, "schedule") & (rank == 0):
                cast("ClcTileScheduler", self.scheduler).request_tiles(tiles)
        if roles.has(warp, "mma"):
            tmem.wait_for_alloc()
            if cluster.place[0] == 0:
                memory = tmem.retrieve_ptr(self.epilogue.acc_dtype)
                accumulators = cute.make_tensor(memory, self.acc_layout(mma))
                copies = self.scale_copies(mma, scales, sS, memory)
                for i in range_constexpr(config.accumulators):
                    if warp == roles.first("mma") + i:
                        acc = accumulators[(*(None,) * 4, i)]
                        self.multiply(pipes, i, mma, sA[i], sB, copies, acc, self.k_tiles(a), tiles)
        if roles.has(warp, "epilogue"):
            tmem.allocate(self.columns)
            tmem.wait_for_alloc()
            tmem.relinquish_alloc_permit()
            memory = tmem.retrieve_ptr(self.epilogue.acc_dtype)
            accumulators = cute.make_tensor(memory, self.acc_layout(mma))
            arch.griddepcontrol_wait()
            for i in range_constexpr(config.accumulators):
                if roles.index(warp, "epilogue") == i:
                    self.store(pipes, i, cluster, accumulators[(*(None,) * 4, i)], buffers, tiles, tensors)
            roles.barrier("stored").arrive_and_wait()  # all have loaded what the warp that frees did not
            tmem.free(memory)

    def scale_operands(
        self, scales: list[cute.Tensor], a: cute.Tensor, b: cute.Tensor, mma: cute.TiledMma
    ) -> list[ScaleOperand]:
        """Return the TMA loads of scale factors of A and B; none, without those."""
        return []

    def scale_copies(
        self, mma: cute.TiledMma, scales: list[ScaleOperand], stages: list[cute.Tensor], memory: cute.Pointer
    ) -> list[ScaleCopy]:
        """Return how scale factors come to tensor memory, behind the accumulators."""
        return []

    def make_pipelines(
        self, a: TmaOperand, b: TmaOperand, scales: list[ScaleOperand], mma: cute.TiledMma, ctas: cute.Layout
    ) -> Pipelines:
        """Return the pipelines of one warp that loads, warps that issue MMAs, and warpgroups that store."""
        config = self.config
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        operands = pipeline.PipelineTmaUmma.create(
            num_stages=config.ab_stages,
            producer_group=one,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, config.accumulators),
            tx_count=config.accumulators * a.stage_bytes(mma)
            + b.stage_bytes(mma)
            + config.ctas * sum(x.stage_bytes() for x in scales),
            cta_layout_vmnk=ctas,
            enable_multicast_signaling=True,
            defer_sync=True,
        )
        warps = pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.ctas)  # of both CTAs
        accumulators = [
            pipeline.PipelineUmmaAsync.create(
                num_stages=config.acc_stages,
                producer_group=one,
                consumer_group=warps,
                cta_layout_vmnk=ctas,
                defer_sync=True,
            )
            for _ in range(config.accumulators)
        ]
        return Pipelines(operands, accumulators)

    def acc_layout(self, mma: cute.TiledMma) -> cute.Layout:
        """Return the layout of all accumulators: (MMA, MMA_M, MMA_N, stage, number in the tile)."""
        config = self.config
        shape = cute.append(mma.partition_shape_C(config.mma_shape_mnk[:2]), config.acc_stages)
        return mma.make_fragment_C(cute.append(shape, config.accumulators)).layout

    def k_tiles(self, a: TmaOperand) -> Int32:
        """Return the stages of K."""
        return Int32(cute.ceil_div(a.tensor.shape[1], self.config.tile_shape_mnk[2]))

    def k_range(self, k_tiles: Int32, work: TileLoop | ClcTileLoop, tiles: Tiles) -> tuple[Int32 | int, Int32]:
        """Return the first stage of K of a tile, and how many it has; with split-K, results of a batch are partials."""
        if self.config.split_k == 1:
            return 0, k_tiles
        part = work.tile().batch
        parts = tiles[0].shape[2]
        first = k_tiles * part // parts
        return first, k_tiles * (part + 1) // parts - first

    # --- loads -------------------------------------------------------------------------------------------------------

    @cute.jit
    def load(
        self,
        pipe: pipeline.PipelineTmaUmma,
        cluster: Cluster,
        mma: cute.TiledMma,
        a: TmaOperand,
        sA: list[cute.Tensor],
        b: TmaOperand,
        sB: cute.Tensor,
        scales: list[ScaleOperand],
        sS: list[cute.Tensor],
        tiles: Tiles,
    ):
        """Load the parts of A and B that this CTA has of its tiles, one K tile to a stage."""
        config = self.config
        loads_a = self.loads_of_a(cluster, mma, a, sA)
        loads_b = self.loads_of_b(cluster, mma, b, sB)
        loads_of_scales = self.scale_loads(cluster, mma, scales, sS)
        k_tiles = self.k_tiles(a)
        producer = pipe.make_producer()
        arch.griddepcontrol_wait()
        for work in self.scheduler.tile_loop(tiles):
            tile = work.tile()
            rows = tile.m // config.ctas * config.accumulators
            batches = (tile.batch_b, tile.batch) if config.swap_ab else (tile.batch, tile.batch_b)
            own_a = loads_a
            own_b = loads_b
            own_scales = loads_of_scales
            if const_expr(self.scheduler.ragged):  # rows of a group begin anywhere
                first_row = (tile.row_start, 0, 0)
                if const_expr(config.swap_ab):
                    own_b = self.loads_of_b(cluster, mma, b.at(first_row), sB)
                else:
                    own_a = self.loads_of_a(cluster, mma, a.at(first_row), sA)
                if const_expr(self.num_scales > 0):
                    own_scales = self.scale_loads(cluster, mma, self.scales_of_group(scales, tile), sS)
            of_tile = [load.of_tile(rows + i, batches[0]) for i, load in enumerate(own_a)]
            of_tile += [load.of_tile(tile.n, batches[1]) for load in own_b]
            if const_expr(
                config.split_k > 1
            ):  # partials are a batch of results, and scale factors are those of one GEMM
                batches = (Int32(0), Int32(0))
            of_tile += [load.of_tile(*at) for load, at in zip(own_scales, zip((rows, tile.n), batches))]
            first, count = self.k_range(k_tiles, work, tiles)
            for step in range(first, first + count):
                stage = producer.acquire_and_advance()
                for load in of_tile:
                    load.issue(step, stage.index, stage.barrier)
        producer.tail()  # the MMAs of other CTAs may still release stages here

    def loads_of_a(
        self, cluster: Cluster, mma: cute.TiledMma, a: TmaOperand, stages: list[cute.Tensor]
    ) -> list[TmaLoads]:
        """Return the TMA loads of A by this CTA, for each accumulator."""
        part = mma.get_slice(cluster.place[0]).partition_A(a.tiles((None, None, None)))
        return [self.tma_loads(cluster, a, own, part, 2) for own in stages]

    def loads_of_b(self, cluster: Cluster, mma: cute.TiledMma, b: TmaOperand, stages: cute.Tensor) -> list[TmaLoads]:
        """Return the TMA loads of B by this CTA."""
        part = mma.get_slice(cluster.place[0]).partition_B(b.tiles((None, None, None)))
        return [self.tma_loads(cluster, b, stages, part, 1)]

    def scale_loads(
        self, cluster: Cluster, mma: cute.TiledMma, scales: list[ScaleOperand], stages: list[cute.Tensor]
    ) -> list[TmaLoads]:
        """Return the TMA loads of scale factors by this CTA."""
        return [x.loads(own, self.config.cluster_shape_mn, cluster.place, mma) for x, own in zip(scales, stages)]

    def scales_of_group(self, scales: list[ScaleOperand], tile: GemmTile) -> list[ScaleOperand]:
        """Return the scale factors for the rows of A of a group."""
        return scales

    def tma_loads(
        self, cluster: Cluster, operand: TmaOperand, stages: cute.Tensor, part: cute.Tensor, mode: int
    ) -> TmaLoads:
        """Return the TMA loads of an operand by this CTA, of which those along a mode of the cluster need the same."""
        ctas, place = cluster
        count = cute.size(ctas, mode=[mode])
        mask = cpasync.create_tma_multicast_mask(ctas, place, mode) if count > 1 else 0
        stages, source = operand.partition(stages, part, place[mode], count)
        return TmaLoads(operand.atom, source, stages, mask)

    # --- MMAs --------------------------------------------------------------------------------------------------------

    @cute.jit
    def multiply(
        self,
        pipes: Pipelines,
        number: int,
        mma: cute.TiledMma,
        sA: cute.Tensor,
        sB: cute.Tensor,
        copies: list[ScaleCopy],
        accumulators: cute.Tensor,
        k_tiles: Int32,
        tiles: Tiles,
    ):
        """Issue the MMAs of one accumulator of each tile, in the warp of the leader."""
        tCrA = mma.make_fragment_A(sA)
        tCrB = mma.make_fragment_B(sB)
        consumer = pipes.operands.make_consumer()
        producer = pipes.accumulators[number].make_producer()
        for work in self.scheduler.tile_loop(tiles):
            _, count = self.k_range(k_tiles, work, tiles)
            free = producer.acquire_and_advance()
            acc = accumulators[None, None, None, free.index]
            mma.set(tcgen05.Field.ACCUMULATE, False)  # the first MMA overwrites the accumulator
            for _ in range(count):
                full = consumer.wait_and_advance()
                for copy in copies:  # done before the MMAs that follow, and after those before
                    copy.issue(full.index)
                for k_block in range_constexpr(cute.size(tCrA, mode=[2])):
                    at = (None, None, k_block, full.index)
                    scales = [copy.scales_tmem[None, None, k_block] for copy in copies]
                    cute.gemm(mma, acc, [tCrA[at], *scales[:1]], [tCrB[at], *scales[1:]], acc)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            free.commit()
        producer.tail()

    # --- epilogue ----------------------------------------------------------------------------------------------------

    @cute.jit
    def store(
        self,
        pipes: Pipelines,
        number: int,
        cluster: Cluster,
        accumulators: cute.Tensor,
        buffers: list[cute.Tensor],
        tiles: Tiles,
        tensors: EpilogueTensors,
    ):
        """Store the rows that this CTA has of one accumulator of each tile, by a warpgroup."""
        config = self.config
        thread = arch.thread_idx()[0] % (4 * 32)
        consumer = pipes.accumulators[number].make_consumer()
        for work in self.scheduler.tile_loop(tiles):
            full = consumer.wait_and_advance()
            tile = work.tile()
            arch.griddepcontrol_launch_dependents()
            rows = (tile.m // config.ctas * config.accumulators + number) * config.ctas + cluster.place[0]
            stage = arch.make_warp_uniform(full.index)  # addresses of tensor memory are in uniform registers
            acc = accumulators[(None, None), 0, 0, stage]
            self.epilogue.write(acc, full, thread, number, buffers, tensors, rows, tile)
        self.epilogue.finish()


def major(operand: Operand) -> OperandMajorMode:
    """Return which mode of an operand is contiguous."""
    return OperandMajorMode.K if operand.k_major else OperandMajorMode.MN
