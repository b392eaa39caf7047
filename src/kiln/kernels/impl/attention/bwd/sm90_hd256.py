"""What the two Hopper backward kernels for head_dim over 128 share: the skeleton, and their GEMMs.

There are seven GEMMs instead of five, since both kernels compute S and dP, but no dQ accumulators in gmem: 64 KiB of
f32 for 64 queries would go through smem, which takes as long as the two GEMMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, pipeline, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from ....dispatch import devices
from ....parts.kv_producer import gmem_view
from ....parts.rematerialize import rematerialized_operand
from ....parts.tma_operand import TmaOperand
from ....parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles
from ....parts.wgmma import MN_MAJOR, issue_wgmma, load_a_operand, make_wgmma
from .sm90_config import REGISTERS, WARPGROUP_ROWS, WARPGROUPS
from .sm90_scheduler import BackwardTileScheduler
from .sm90_tiles import BackwardTiles, transposed

if TYPE_CHECKING:
    from ..args import AttentionTensors, BackwardScalars
    from .sm90_config import BackwardSchedule
    from .sm90_scheduler import Span, Work


class Smem(NamedTuple):
    """Tiles in smem: two resident ones (row, element), two streamed ones (row, element, stage); for dK and dV also P as
    it lies in registers (number, stage), and LSE and delta (row, which, stage)."""

    resident: list[cute.Tensor]
    streamed: list[cute.Tensor]
    p: Any = None
    lse_delta: Any = None


class Cta(NamedTuple):
    """What the warps of a CTA share."""

    smem: Smem
    pipe: pipeline.PipelineTmaAsync
    """The pipeline of both resident tiles."""
    pipes: list[pipeline.PipelineTmaAsync]
    """The pipelines of the streamed tiles."""
    results: list[TmaOperand]
    """TMA operands of the gradients."""
    plain: list[cute.Tensor | None]
    """The gradients, for threads that store the last rows of a varlen sequence."""
    lse_delta: cute.Tensor
    alibi_slopes: Any
    scheduler: BackwardTileScheduler
    work: Work
    span: Span


class Sm90Hd256Kernel(BackwardTiles):
    """The skeleton: a producer warp loads the resident tiles once, and then the streamed tiles. Subclasses have the
    `kernel`, and what consumer warpgroups do."""

    kernel: Any

    @staticmethod
    def make_roles(*barriers: RoleBarrier) -> WarpRoles:
        """Return the roles: a producer warp, and two consumer warpgroups."""
        return WarpRoles(
            WarpgroupRole("producer", REGISTERS[0], warps=("load",)),
            WarpgroupRole("consumer", REGISTERS[1], WARPGROUPS),
            barriers=barriers,
        )

    def __init__(self, dtype: Any, head_dims: tuple[int, int], *rest: Any) -> None:
        super().__init__(dtype, *rest)
        self.head_dims = head_dims
        """Padded: elements of Q and K, and of V and dO, in smem."""

    @property
    def stages(self) -> tuple[int, int]:
        """Stages of the streamed tiles."""
        raise NotImplementedError

    def smem_layouts(self) -> tuple[list[cute.ComposedLayout], list[cute.ComposedLayout]]:
        """Return the layouts of the resident and of the streamed tiles."""
        row_major = LayoutEnum.ROW_MAJOR
        shape = (WARPGROUP_ROWS, self.streamed_rows)
        resident = (self.resident_rows, self.streamed_rows)
        return (
            [sm90.make_smem_layout_a(row_major, (*resident, n), self.dtype, 1) for n in self.head_dims],
            [
                sm90.make_smem_layout_b(row_major, (*shape, n), self.dtype, stages)
                for n, stages in zip(self.head_dims, self.stages)
            ],
        )

    @cute.jit
    def __call__(
        self,
        resident: tuple[cute.Tensor, cute.Tensor],
        streamed: tuple[cute.Tensor, cute.Tensor],
        gradients: tuple[cute.Tensor, ...],
        lse_delta: cute.Tensor,
        tensors: AttentionTensors,
        max_seqlen: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
        stream: Int64,
    ):
        """Launch the kernel for the arrays of both sides, (K, V) and (Q, dO), and the gradients of the resident one."""
        layouts, streamed_layouts = self.smem_layouts()
        dims = self.head_dims
        operands = (
            [TmaOperand.load(gmem_view(x), y, (self.resident_rows, n)) for x, y, n in zip(resident, layouts, dims)],
            [
                TmaOperand.load(gmem_view(x), y, (self.streamed_rows, n))
                for x, y, n in zip(streamed, streamed_layouts, dims)
            ],
            [
                TmaOperand.store(gmem_view(x), self.result_layout(n), (WARPGROUP_ROWS, n))
                for x, n in zip(gradients, dims)
            ],
        )
        batch, _, heads, _ = resident[0].shape
        if const_expr(self.varlen):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        tiles = cute.ceil_div(max_seqlen, self.resident_rows)
        plain = [gmem_view(x) if const_expr(self.varlen) else None for x in gradients]
        self.kernel(operands, plain, lse_delta, tensors, tiles, scalars, schedule).launch(
            grid=(tiles * heads * batch, 1, 1),
            block=(self.roles.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=self.computes_dq and devices.current().overlaps,
        )

    def allocate(self, allocator: utils.SmemAllocator) -> Smem:
        """Allocate the tiles in smem."""
        make = lambda x: allocator.allocate_tensor(self.dtype, x.outer, 1024, x.inner)
        resident, streamed = self.smem_layouts()
        return Smem([make(x)[None, None, 0] for x in resident], [make(x) for x in streamed])

    @cute.jit
    def run(
        self,
        operands: tuple[list[TmaOperand], list[TmaOperand], list[TmaOperand]],
        plain: list[cute.Tensor | None],
        lse_delta: cute.Tensor,
        tensors: AttentionTensors,
        tiles: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
    ):
        """Compute the resident tile of a CTA; `operands` are TMA's, of resident and streamed tiles and of results."""
        resident, streamed, results = operands
        roles = self.roles
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for operand in (*resident, *streamed, *results):
                cpasync.prefetch_descriptor(operand.atom)
        smem = self.allocate(utils.SmemAllocator())
        pipe = self.pipe(1, sum(x.stage_bytes() for x in resident))
        values = 0 if self.computes_dq else 4 * self.streamed_rows  # bytes of LSE or delta
        pipes = [self.pipe(stages, x.stage_bytes() + values) for stages, x in zip(self.stages, streamed)]
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        q, k = (resident, streamed) if self.computes_dq else (streamed, resident)
        scheduler = BackwardTileScheduler(self, q[0].tensor, k[0].tensor, tensors, tiles, scalars, schedule)
        work = scheduler.work(Int32(arch.block_idx()[0]))
        span = scheduler.span(work)
        if work.tile * self.resident_rows < (work.seqlen_q if const_expr(self.computes_dq) else work.rows_k):
            cta = Cta(smem, pipe, pipes, results, plain, lse_delta, tensors.alibi_slopes, scheduler, work, span)
            if roles.is_up_to(warp, "producer"):
                roles.set_registers("producer")
                if roles.has(warp, "load"):
                    self.produce(resident, streamed, cta)
            else:
                roles.set_registers("consumer")
                self.consume(warp, cta)

    @cute.jit
    def produce(self, resident: list[TmaOperand], streamed: list[TmaOperand], cta: Cta):
        """Load the resident tiles, then the streamed tiles of each step, as one warp."""
        smem = cta.smem
        scheduler = cta.scheduler
        work = cta.work
        span = cta.span
        stage = cta.pipe.make_producer().acquire_and_advance()
        for operand, to in zip(resident, smem.resident):
            self.load_resident(operand, to, work, stage.barrier)
        sources = self.streamed_tiles(streamed, smem.streamed, work)
        producers = [pipe.make_producer() for pipe in cta.pipes]
        for i in range(scheduler.steps(span)):
            self.load_streamed(i, sources, producers, cta.lse_delta, smem.lse_delta, scheduler, work, span)

    def consume(self, warp: Int32, cta: Cta) -> None:
        """Compute and store the gradients, as one consumer warpgroup."""
        raise NotImplementedError


# --- GEMMs ---


class ScoreMma:
    """A GEMM of 64 rows (row, element) of a tile with the rows of another: S or dP.

    The first `dims_in_regs` elements of the A operand are kept in registers: less smem traffic.
    """

    def __init__(self, dtype: Any, thread: Any, tile: cute.Tensor, columns: int, dims_in_regs: int) -> None:
        self.mma: cute.TiledMma = make_wgmma(dtype, columns, a_in_regs=False)
        self.mma_regs: cute.TiledMma = make_wgmma(dtype, columns, a_in_regs=True)
        self.a: cute.Tensor = self.mma.make_fragment_A(self.mma.get_slice(thread).partition_A(tile))
        self.blocks_in_regs: int = min(dims_in_regs, cute.size(tile, mode=[1])) // 16
        if self.blocks_in_regs:
            first = cute.local_tile(tile, (WARPGROUP_ROWS, 16 * self.blocks_in_regs), (0, 0))
            self.a_regs: cute.Tensor = cute.make_rmem_tensor(((2, 2, 2), 1, self.blocks_in_regs), dtype)
            load_a_operand(self.mma_regs, thread, first, self.a_regs)

    def b_operand(self, thread: Int32, stages: cute.Tensor) -> cute.Tensor:
        """Return stages (row, element, stage) as B operands."""
        return self.mma.make_fragment_B(self.mma.get_slice(thread).partition_B(stages))

    def accumulator(self, columns: int) -> cute.Tensor:
        """Return an accumulator."""
        return cute.make_rmem_tensor(self.mma.partition_shape_C((WARPGROUP_ROWS, columns)), Float32)

    def issue(self, acc: cute.Tensor, b: cute.Tensor, stage: Int32) -> None:
        """Issue the GEMM."""
        blocks = cute.size(self.a, mode=[2])
        smem_a = rematerialized_operand(self.a) if self.blocks_in_regs < blocks else self.a
        for k in range(blocks):
            mma, a = (self.mma_regs, self.a_regs) if k < self.blocks_in_regs else (self.mma, smem_a)
            mma.set(warpgroup.Field.ACCUMULATE, k > 0)
            cute.gemm(mma, acc, a[None, None, k], b[None, None, k, stage], acc)
        warpgroup.commit_group()


class GradientMma:
    """A GEMM that accumulates a gradient: an A operand of `columns` columns in registers, P or dS, times stages (row,
    element, stage)."""

    def __init__(self, dtype: Any, thread: Any, stages: cute.Tensor, columns: int) -> None:
        head_dim = cute.size(stages, mode=[1])
        self.mma: cute.TiledMma = make_wgmma(dtype, head_dim, b=MN_MAJOR, a_in_regs=True)
        self.b: cute.Tensor = self.mma.make_fragment_B(self.mma.get_slice(thread).partition_B(transposed(stages)))
        self.acc: cute.Tensor = cute.make_rmem_tensor(self.mma.partition_shape_C((WARPGROUP_ROWS, head_dim)), Float32)
        self.a: cute.Tensor = cute.make_rmem_tensor(((2, 2, 2), 1, columns // 16), dtype)
        self.acc.fill(0.0)
        self.a.fill(0.0)  # what a step computes is multiplied in the next one; before the first there is nothing

    def issue(self, stage: Int32) -> None:
        """Issue the GEMM."""
        issue_wgmma(self.mma, self.acc, self.a, self.b, stage, True)
