"""Products on sm_90a: the copy engine loads, warp groups multiply (`wgmma`), the copy engine stores.

There is a block for each multiprocessor, which computes one tile after the other. One warp of its first warp group asks for
tiles of A and B (another for factors of blocks), several stages ahead, through a ring in shared memory; the two other warp groups multiply what has come. Which
tiles a block has is the scheduler's, what becomes of the sums the epilogue's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, Int64, TFloat32, const_expr, cute, pipeline, range_constexpr, select_, utils
from ....cute import arch
from ....cute.nvgpu import cpasync, warpgroup
from ....utils import LayoutEnum, sm90
from .sm90_block_scales import LANES, BlockScaleLoader, BlockScales
from .sm90_config import ATOM_M, WARPGROUP_THREADS
from .tile_scheduler import WorkTile

if TYPE_CHECKING:
    from .problem import Operand
    from .sm90_config import Sm90GemmConfig
    from .sm90_epilogue import TmaStoreEpilogue
    from .sm90_smem_epilogue import SmemEpilogue
    from .tile_scheduler import PersistentTileScheduler

_REGISTERS = {2: (40, 232), 4: (32, 112)}
"""Registers of a thread that asks for tiles, and of one that multiplies, by warp groups that do: as many as there are."""


class Sm90GemmKernel:
    """The kernel for operands of some kinds.

    `batched`: whether A, B and D differ from batch to batch. `promoted`: sums of a stage are added to others in f32, since the
    tensor cores keep fewer bits of sums of 8-bit floats; with factors of `blocks` multiplied by those first.
    """

    __kiln_fixed__ = True

    def __init__(
        self, a: Operand, b: Operand, batched: tuple[bool, bool, bool], promoted: bool, blocks: bool, config: Sm90GemmConfig,
        scheduler: PersistentTileScheduler, epilogue: TmaStoreEpilogue | SmemEpilogue,
    ) -> None:  # fmt: skip
        # The copy engine rounds f32 to TF32, which tensor cores would cut off.
        a, b = (dataclasses.replace(x, dtype=TFloat32) if x.dtype is Float32 else x for x in (a, b))
        self.a, self.b = (b, a) if config.swap_ab else (a, b)
        self.batched = batched
        self.promoted = promoted
        self.blocks = blocks
        self.scaled = promoted and blocks
        self.config = config
        self.scheduler = scheduler
        self.epilogue = epilogue
        # K is gone through there and back, from tile to tile: what was loaded last is found in the L2 cache. (Weights of few bits have factors by its steps.)
        self.returns = scheduler.bounds == 0 and a.dtype is b.dtype
        self.skips = scheduler.few and config.warpgroups_per_tile > 1 and not config.swap_ab

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch it for (L, M, K), (L, K, N), (L, M, N), and others: what the scheduler needs, factors of blocks, what the epilogue does.

        Where operands are swapped, M is N in the kernel, and N is M.
        """
        bounds, rest = rest[: self.scheduler.bounds], rest[self.scheduler.bounds :]
        blocks, rest = self.factors(rest)
        more = len(self.epilogue.out_types) - 1
        sums, rest = (rest[:1], rest[1:]) if self.epilogue.summed else ([], rest)
        extras = rest[more:]
        (m, n, _), cluster = self.config.tile_shape_mnk, self.config.cluster_shape_mn
        a = self.arranged(a, [1, 2, 0], 128 // a.element_type.width, self.batched[0], True)  # (M, K, L)
        b = self.arranged(b, [2, 1, 0], 128 // b.element_type.width, self.batched[1], True)  # (N, K, L)
        d = [
            self.arranged(x, [1, 2, 0], self.epilogue.out_width, self.batched[2]) for x in (d, *rest[:more])
        ]  # (M, N, L)
        extras = [self.arranged(x, [1, 2, 0], w, True) for x, w in zip(extras, self.epilogue.other_widths or ())]
        if const_expr(self.config.swap_ab):
            a, b, d = b, a, [cute.select(x, mode=[1, 0, 2]) for x in d]
        bounds = [*bounds, *self.scheduler.divisors(d[0])]
        layouts = self.layouts()
        of_a, of_b = self.depths()
        load_a, from_a = self.load(a, layouts[0], (m, of_a), cluster[1])
        load_b, from_b = self.load(b, layouts[1], (n, of_b), cluster[0])
        stores, to_d = self.epilogue.atoms(d)
        self.kernel(
            load_a, from_a, load_b, from_b, stores, to_d, d, self.mma(), layouts[0], layouts[1], bounds, blocks, sums, extras, alpha, beta
        ).launch(
            grid=self.scheduler.grid(d[0]), block=((1 + self.config.mma_warpgroups) * WARPGROUP_THREADS, 1, 1), cluster=self.scheduler.cluster(), stream=stream,
            min_blocks_per_mp=1, use_pdl=True,
        )  # fmt: skip

    def arranged(self, x: Any, modes: list[int], width: int, batched: bool, rounded: bool = False) -> Any:
        """A tensor with its modes in another order, strides known to be multiples of the width of an access; `rounded`: f32 is TF32."""
        if x.element_type is Float32 and rounded:
            x = cute.recast_tensor(x, TFloat32)
        layout = cute.select(x.layout, mode=modes)
        stride = [s if isinstance(s, int) else cute.assume(s, divby=width) for s in layout.stride]
        return cute.make_tensor(
            x.iterator, cute.make_layout(layout.shape, stride=(*stride[:2], stride[2] if batched else 0))
        )

    def factors(self, given: Any) -> tuple[Any, Any]:
        """Factors of blocks, (M, K / 128, L) and (N / 128, K / 128, L), and the rest of what is given."""
        if not self.blocks:
            return [], given
        modes = [1, 2, 0], [2, 1, 0]
        # a batch of results may share operands, and have factors of its own
        differ = [own or self.batched[2] for own in self.batched[:2]]
        return [self.arranged(x, mode, 1, own) for x, mode, own in zip(given[:2], modes, differ)], given[2:]

    def depths(self) -> tuple[int, int]:
        """Elements of a stage along K, of A and of B."""
        k = self.config.tile_shape_mnk[2]
        return k, k

    def layouts(self) -> tuple[Any, Any]:
        """How tiles of A and B lie in the ring."""
        (m, n, _), stages, (of_a, of_b) = self.config.tile_shape_mnk, self.config.ab_stages, self.depths()
        return (
            sm90.make_smem_layout_a(_order(self.a), (m, n, of_a), self.a.dtype, stages),
            sm90.make_smem_layout_b(_order(self.b), (m, n, of_b), self.b.dtype, stages),
        )

    def load(self, x: Any, layout: Any, tile: tuple[int, int], blocks: int) -> Any:
        """What loads tiles of an operand, for so many blocks, and its coordinates. Called on the host."""
        op: Any = cpasync.CopyBulkTensorTileG2SMulticastOp() if blocks > 1 else cpasync.CopyBulkTensorTileG2SOp()
        return cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), tile, blocks)

    def mma(self) -> Any:
        """The products of the warp groups that have a tile."""
        a_mode, b_mode = _order(self.a).sm90_mma_major_mode(), _order(self.b).sm90_mma_major_mode()
        return sm90.make_trivial_tiled_mma(
            self.a.dtype, self.b.dtype, a_mode, b_mode, self.epilogue.acc_dtype, (self.config.warpgroups_per_tile, 1, 1), (64, self.config.tile_shape_mnk[1])
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor, stores: Any, to_d: Any, d: Any,
        mma: cute.TiledMma, layout_a: Any, layout_b: Any, bounds: Any, blocks: Any, sums: Any, extras: Any, alpha: Float32, beta: Float32,
    ):  # fmt: skip
        config = self.config
        thread = arch.thread_idx()[0]
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for atom in (load_a, load_b, *stores):
                cpasync.prefetch_descriptor(atom)
        smem = utils.SmemAllocator()
        ring_a = smem.allocate_tensor(self.a.dtype, layout_a.outer, 1024, layout_a.inner)
        ring_b = smem.allocate_tensor(self.b.dtype, layout_b.outer, 1024, layout_b.inner)
        buffers = self.epilogue.buffers(smem, ring_a.iterator)
        factors = blocks
        if const_expr(self.scaled):
            factors = smem.allocate_tensor(
                Float32, cute.make_layout((sum(config.scales_per_stage), config.ab_stages)), 16
            )
        group = warp // (WARPGROUP_THREADS // 32) - 1
        turns = self.turns(group) if const_expr(config.pingpong) else None
        ring = pipeline.PipelineTmaAsync.create(
            num_stages=config.ab_stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1 + LANES if self.scaled else 1),
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, config.warpgroups_per_tile * WARPGROUP_THREADS // 32
            ),
            tx_count=self.stage_bytes(),
            cta_layout_vmnk=cute.make_layout((1, *config.cluster_shape_mn, 1)),
            enable_multicast_signaling=True,
            defer_sync=True,
        )
        cluster = (config.split_k_cluster, 1) if const_expr(config.split_k_cluster > 1) else config.cluster_shape_mn
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)
        # Up to here, and until something is loaded, a block may run beside the end of the kernel before it.
        if const_expr(self.scheduler.bounds > 0):
            arch.griddepcontrol_wait()
        tiles = self.scheduler.begin(smem, to_d[0], bounds)
        if warp < WARPGROUP_THREADS // 32:
            arch.setmaxregister_decrease(_REGISTERS[config.mma_warpgroups][0])
            if warp == 0:
                self.fetch(ring, load_a, a, ring_a, load_b, b, ring_b, tiles)
            if const_expr(self.scaled):
                if warp == 1:
                    self.fetch_factors(ring, blocks, factors, tiles)
        else:
            arch.setmaxregister_increase(_REGISTERS[config.mma_warpgroups][1])
            arch.griddepcontrol_wait()
            if const_expr(self.scheduler.summed):  # what comes next has few threads, and takes the place of none
                arch.griddepcontrol_launch_dependents()
            steps = self.scheduler.steps(Int32(cute.ceil_div(a.shape[1], self.depths()[0])), tiles)
            into = (stores, to_d, d, sums, extras, alpha, beta)
            self.multiply(
                ring,
                turns,
                mma,
                group,
                thread - WARPGROUP_THREADS,
                steps,
                ring_a,
                ring_b,
                buffers,
                tiles,
                factors,
                into,
            )

    def stage_bytes(self) -> int:
        """Of tiles of A and B."""
        sizes = zip(self.config.tile_shape_mnk, self.depths(), (self.a, self.b))
        return sum(rows * depth * operand.dtype.width // 8 for rows, depth, operand in sizes)

    def turns(self, group: Any) -> Any:
        """Who multiplies when warp groups take turns."""
        each = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPGROUP_THREADS)
        return pipeline.PipelineOrder.create(
            depth=1, length=self.config.mma_warpgroups, group_id=group, producer_group=each, defer_sync=True
        )

    @cute.jit
    def fetch(
        self, ring: Any, load_a: Any, a: cute.Tensor, ring_a: Any, load_b: Any, b: cute.Tensor, ring_b: Any, tiles: Any
    ):
        """Ask for the tiles of A and B that this block needs, one stage after the other."""
        side_a, side_b = self.sides((load_a, a, ring_a), (load_b, b, ring_b))
        to_a, of_a, mask_a = self.shared(*side_a)
        to_b, of_b, mask_b = self.shared(*side_b)
        begin, depth = self.scheduler.steps(Int32(cute.ceil_div(a.shape[1], self.depths()[0])), tiles)
        producer = ring.make_producer()
        number, count, back = self.scheduler.first(), self.scheduler.count(tiles), Int32(0)
        while number < count:  # a range would be counted first, by a division
            place = self.scheduler.tile(number, tiles)
            steps_a, steps_b = self.sources(place, (of_a, of_b), side_a, side_b)
            arch.griddepcontrol_wait()
            for each in range(begin, begin + depth):
                step = self.there_or_back(each, begin, depth, back)
                stage = producer.acquire_and_advance()
                self.ask(stage, step, (load_a, steps_a, to_a, mask_a), (load_b, steps_b, to_b, mask_b))
            number, back = number + self.scheduler.step(), 1 - back
        producer.tail()  # other blocks may still release stages here

    @cute.jit
    def fetch_factors(self, ring: Any, blocks: Any, held: Any, tiles: Any):
        """Ask for factors of the blocks that this block multiplies, one stage after the other."""
        begin, depth = self.scheduler.steps(Int32(blocks[0].shape[1]), tiles)
        filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.ab_stages)
        number, count, back = self.scheduler.first(), self.scheduler.count(tiles), Int32(0)
        while number < count:
            source = BlockScaleLoader(blocks, self.config, self.scheduler.tile(number, tiles))
            arch.griddepcontrol_wait()
            for each in range(begin, begin + depth):
                k = self.there_or_back(each, begin, depth, back)
                ring.sync_object_empty.wait(filling.index, filling.phase)
                source.ask(k, held[None, filling.index])
                arch.cp_async_mbarrier_arrive_noinc(ring.producer_get_barrier(filling))
                filling.advance()
            number, back = number + self.scheduler.step(), 1 - back

    def there_or_back(self, step: Any, begin: Any, depth: Any, back: Any) -> Any:
        """Which stage of K is loaded at a step of a tile."""
        return select_(back == 1, 2 * begin + depth - 1 - step, step) if self.returns else step

    def sources(self, place: Any, of: tuple[Any, Any], of_a: tuple[Any, ...], of_b: tuple[Any, ...]) -> tuple[Any, Any]:
        """Where the stages of a tile come from; `of_a` and `of_b` are what `shared` was given."""
        sides, batches = list(of), [place.batch, place.matrix]
        if self.config.swap_ab:
            batches.reverse()
        if self.scheduler.grouped:  # rows of a group begin anywhere
            side = 1 if self.config.swap_ab else 0
            load, x, *rest = (of_a, of_b)[side]
            sides[side] = self.shared(load, cute.domain_offset((place.start, 0, 0), x), *rest)[1]
        return sides[0][None, place.m, None, batches[0]], sides[1][None, place.n, None, batches[1]]

    def sides(self, *operands: tuple[Any, Any, Any]) -> list[tuple[Any, ...]]:
        """What `shared` is told of A and B, of which what loads it, the array and the ring are given."""
        cluster = cute.make_layout((*self.config.cluster_shape_mn, 1))
        at = cluster.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
        tiles = zip(self.config.tile_shape_mnk, self.depths())
        return [
            (load, x, tile, ring, cluster, at, mode)
            for (load, x, ring), tile, mode in zip(operands, tiles, (1, 0), strict=True)
        ]

    def ask(self, stage: Any, step: Any, *sides: tuple[Any, ...]) -> None:
        """Ask for tiles of a step of K: what loads them, where they come from and go to, the blocks they are for."""
        for load, of, to, mask in sides:
            cute.copy(load, of[None, step], to[None, stage.index], tma_bar_ptr=stage.barrier, mcast_mask=mask)

    def shared(
        self, load: Any, x: Any, tile: tuple[int, int], ring: Any, cluster: Any, at: Any, mode: int
    ) -> tuple[Any, Any, Any]:
        """Where this block's part of the tiles of an operand goes and comes from, and the blocks along a mode of the cluster it is for."""
        blocks = self.config.cluster_shape_mn[mode]
        tiles = cute.local_tile(x, tile, (None, None, None))
        to, of = cpasync.tma_partition(
            load, at[mode], cute.make_layout(blocks), cute.group_modes(ring, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        return to, of, cute.make_layout_image_mask(cluster, at, mode) if blocks > 1 else 0

    @cute.jit
    def multiply(
        self, ring: Any, turns: Any, mma: Any, group: Any, thread: Any, steps: Any, ring_a: Any, ring_b: Any, buffers: Any,
        tiles: Any, factors: Any, into: Any,
    ):  # fmt: skip
        """Multiply the tiles that a warp group has, and store the results. `steps`: which stages of K."""
        config, scheduler, depth = self.config, self.scheduler, steps[1]
        own = thread % WARPGROUP_THREADS
        part = mma.get_slice(own if const_expr(config.pingpong) else thread)
        same = mma.get_slice(
            0 if const_expr(config.pingpong) else group * WARPGROUP_THREADS
        )  # for all threads of a warp group
        left = mma.make_fragment_A(same.partition_A(ring_a))
        right = mma.make_fragment_B(same.partition_B(ring_b))
        acc = cute.make_rmem_tensor(mma.partition_shape_C(config.tile_shape_mnk[:2]), self.epilogue.acc_dtype)
        part_sums = cute.make_rmem_tensor_like(acc) if const_expr(self.promoted) else acc
        factors = BlockScales(part, config, factors) if const_expr(self.scaled) else None
        reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.ab_stages)
        used = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.ab_stages)
        number, step, count = scheduler.first(), scheduler.step(), scheduler.count(tiles)
        if const_expr(config.pingpong):  # every other tile; the stages of those between are the other warp group's
            if group == 1:
                reading.advance(depth)
                used.advance(depth)
            number, step = number + group * step, 2 * step
        ahead, wanted = Int32(0), depth
        if const_expr(self.skips):
            ahead = WorkTile(*[Int32(0)] * 6)
            if number < count:
                ahead = scheduler.tile(number, tiles)
        while number < count:
            if const_expr(self.skips):
                wanted = select_(ahead.m * config.tile_shape_mnk[0] + group * ATOM_M < ahead.rows, depth, 0)
            if const_expr(config.pingpong):
                # A stage is waited for only when its use before has been waited for: barriers tell no more than two uses apart.
                turns.wait()
            if const_expr(self.promoted):
                self.promote(ring, turns, mma, reading, wanted, left, right, part_sums, acc, factors)
            else:
                self.accumulate(ring, turns, mma, reading, used, wanted, left, right, acc)
            place = ahead if const_expr(self.skips) else scheduler.tile(number, tiles)  # beside the last products
            if const_expr(self.skips):
                if number + step < count:
                    ahead = scheduler.tile(number + step, tiles)
            if const_expr(not self.promoted):
                warpgroup.wait_group(0)
                if const_expr(not self.skips) or wanted > 0:
                    ring.consumer_release(used)
                    used.advance()
            if const_expr(self.skips):
                for _ in range(depth - wanted):
                    ring.consumer_wait(reading)
                    ring.consumer_release(reading)
                    reading.advance()
                    used.advance()
            # Sooner, blocks of the next kernel would come one by one, and not lie beside those that share operands with them.
            if const_expr(not scheduler.summed):
                arch.griddepcontrol_launch_dependents()
            if const_expr(not self.skips) or wanted > 0:
                self.epilogue.write(part, own, group, acc, buffers, into, place)
            if const_expr(config.pingpong):
                reading.advance(depth)
                used.advance(depth)
            number = number + step
        self.epilogue.finish()

    @cute.jit
    def accumulate(
        self,
        ring: Any,
        turns: Any,
        mma: Any,
        reading: Any,
        used: Any,
        depth: Any,
        left: Any,
        right: Any,
        acc: cute.Tensor,
    ):
        """Add up the products of a tile. A stage is released when those of the next are on their way; those of the last one still are."""
        mma.set(warpgroup.Field.ACCUMULATE, False)  # the first product replaces the sums
        for k in range(depth):
            ring.consumer_wait(reading)
            warpgroup.fence()
            self.products(mma, left, right, reading.index, acc)
            warpgroup.commit_group()
            reading.advance()
            warpgroup.wait_group(1)
            if k > 0:
                ring.consumer_release(used)
                used.advance()
        if const_expr(self.config.pingpong):
            turns.arrive()

    @cute.jit
    def products(self, mma: Any, left: Any, right: Any, index: Any, sums: cute.Tensor):
        """Ask for the products of a stage. Where it begins is found first: from there on addresses differ by constants."""
        left, right = (x[None, None, None, index] for x in (left, right))
        for block in range_constexpr(cute.size(left, mode=[2])):
            place = (None, None, block)
            cute.gemm(mma, sums, left[place], right[place], sums)
            mma.set(warpgroup.Field.ACCUMULATE, True)

    @cute.jit
    def promote(
        self, ring: Any, turns: Any, mma: Any, reading: Any, depth: Any, left: Any, right: Any, stage: cute.Tensor, acc: cute.Tensor,
        factors: Any,
    ):  # fmt: skip
        """The same with sums of each stage that are then added in f32, multiplied by factors if there are any."""
        acc.fill(0)
        for _ in range(depth):
            ring.consumer_wait(reading)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            warpgroup.fence()
            self.products(mma, left, right, reading.index, stage)
            warpgroup.commit_group()
            if const_expr(self.scaled):
                factors.take(reading.index)
            warpgroup.wait_group(0)
            ring.consumer_release(reading)
            reading.advance()
            if const_expr(self.scaled):
                factors.add(acc, stage)
            else:
                acc.store(acc.load() + stage.load())
        if const_expr(self.config.pingpong):
            turns.arrive()


def _order(operand: Operand) -> LayoutEnum:
    return LayoutEnum.ROW_MAJOR if operand.k_major else LayoutEnum.COL_MAJOR
