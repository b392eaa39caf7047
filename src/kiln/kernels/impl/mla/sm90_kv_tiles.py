"""What both MLA kernels for sm_90a share: launch, roles of warps, the KV tiles of a CTA, synchronisation of
warpgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import (
    Boolean,
    DynamicIterator,
    Float16,
    Float32,
    Int32,
    Int64,
    const_expr,
    cute,
    pipeline,
    range_constexpr,
    utils,
)
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority, cpasync
from ....utils.tiles.online_softmax import NEG_ROW_MAX_INIT
from ...dispatch import devices
from ...parts.rematerialize import rematerialized
from ...parts.tma_operand import TmaOperand
from ...parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles
from . import split_kv_scheduler
from .combine import Combine
from .split_kv_scheduler import KV_TILE

if TYPE_CHECKING:
    from .fp8_to_f16 import WarpPipeline

WORK_FIELDS = split_kv_scheduler.SPLIT_FIELDS + 4
"""Values of `CtaWork.fields`."""
KV_PRIORITY = CacheEvictionPriority.EVICT_FIRST
"""L2 priority of the cache: Q tiles that share it read it at about the same time, and nobody reads it later. Q, O and
partials stay."""


class MlaScalars(NamedTuple):
    """The numbers that a launch passes to the kernels."""

    scale: Float32 | float
    """The scale of the scores times log2(e)."""
    heads: Int32 | int
    hidden: Int32 | int
    """Keys at the end of a sequence that its first query does not see."""
    num_splits: Int32 | int


class CtaWork(NamedTuple):
    """The KV tiles and the Q tile that a CTA computes."""

    fields: cute.Tensor
    """The fields of its split (`find_split`) and the properties below, in shared memory: accumulators leave no
    registers."""
    rows: Int32
    """Query rows (queries times heads) of a sequence."""
    scalars: MlaScalars

    @property
    def tiles_per_split(self) -> Int32:
        """KV tiles of a split."""
        return self.fields[2]

    @property
    def split(self) -> Int32:
        """The number of the split."""
        return self.fields[split_kv_scheduler.SPLIT_FIELDS]

    @property
    def tile(self) -> Int32:
        """The number of the Q tile."""
        return self.fields[split_kv_scheduler.SPLIT_FIELDS + 1]

    @property
    def unseen(self) -> Int32:
        """Keys at the end of a sequence that no row of the Q tile sees."""
        return self.fields[split_kv_scheduler.SPLIT_FIELDS + 2]

    @property
    def hidden(self) -> Int32:
        """Keys at the end of a sequence that some row of the Q tile does not see: their tiles are masked."""
        return self.fields[split_kv_scheduler.SPLIT_FIELDS + 3]


def mla_roles(registers: tuple[int, ...], producers: tuple[str, ...], *barriers: RoleBarrier) -> WarpRoles:
    """Return the roles of a CTA: a warpgroup of `producers`, two consumer warpgroups, and one that converts an 8-bit
    cache if `registers` has those of its threads, too."""
    producer, consumer, *converter = registers
    return WarpRoles(
        WarpgroupRole("producer", producer, warps=producers),
        WarpgroupRole("consumer", consumer, 2),
        *(WarpgroupRole("converter", count) for count in converter),
        barriers=(RoleBarrier("warpgroup", {"consumer": 4}, 2), RoleBarrier("consumers", {"consumer": 8}), *barriers),
    )


class ConsumerWarpgroup:
    """The state of the online softmax and the output accumulator of a consumer warpgroup, in registers."""

    __kiln_fixed__ = True
    kernel: Any
    group: Any
    """The number of the warpgroup among the consumers, 0 or 1."""
    neg_row_max: Any
    """-row_max of its rows."""
    row_sum: Any
    acc_o: Any

    def begin(self) -> None:
        """Initialise the online softmax and the output accumulator."""
        self.neg_row_max.fill(NEG_ROW_MAX_INIT)
        self.row_sum.fill(0.0)
        self.acc_o.fill(0.0)

    def sync_warpgroup(self) -> None:
        """Synchronise the threads of the warpgroup."""
        self.kernel.roles.barrier("warpgroup", self.group).arrive_and_wait()

    def sync_consumers(self) -> None:
        """Synchronise all consumer threads."""
        self.kernel.roles.barrier("consumers").arrive_and_wait()

    def uniform_here(self, number: Int32 | int) -> Int32:
        """Return a warp-uniform value that is computed here: addresses derived from it do not stay in registers all
        through the loop."""
        return arch.make_warp_uniform(rematerialized(number))


class MlaTensors(NamedTuple):
    """The tensors of the kernels, besides Q and the cache, which TMA loads."""

    page_table: cute.Tensor
    """(batch, pages)."""
    lengths: Any
    """Keys of each sequence, (batch)."""
    splits: Any
    """(split, field), as `find_split` stores them for the combine kernel."""
    partial: Any
    """Partial O and LSE of split sequences, (slot, row, column)."""
    out: Any
    """(batch, row, column)."""
    lse: Any
    """(batch, head, query), or None."""
    kv_scale: Any = None
    """The scale factor of an 8-bit cache, one number, or None."""


class MlaBuffers(NamedTuple):
    """The shared memory of a CTA."""

    q: cute.Tensor
    """Q as an MMA operand."""
    loaded_q: cute.Tensor
    """Q as TMA loads it."""
    kv: cute.Tensor
    """KV tiles as MMA operands."""
    loaded_kv: cute.Tensor
    """KV tiles as TMA loads them."""
    q_scales: Any
    """The scales of rows of Q that were converted to f16."""
    neg_row_max: cute.Tensor
    row_sum: cute.Tensor
    p: Any = None
    """P, with swap-AB."""
    row_max: Any = None
    """row_max, with swap-AB."""


class SplitSequence(NamedTuple):
    """A sequence of a split: its number, its keys, and which of its KV tiles the split has."""

    number: Int32
    length: Int32
    kv_tiles: split_kv_scheduler.KvRange


class SplitSequences(DynamicIterator[SplitSequence]):
    """The sequences of a split. `start` is where the KV tiles of sequence `number` begin in the line of all.

    `count`, the KV tiles of the sequence, says where the next one begins; a warpgroup that has no register for it all
    through a sequence sets it again when the sequence ends.
    """

    def __init__(self, kernel: MlaKernel, tensors: MlaTensors, work: CtaWork) -> None:
        self.kernel = kernel
        self.tensors = tensors
        self.work = work
        self.number: Int32 = arch.make_warp_uniform(work.fields[0])
        self.start: Int32 = arch.make_warp_uniform(work.fields[1])
        self.count = Int32(0)

    def has_item(self) -> Boolean:
        return self.kernel.in_split(self.tensors, self.number, self.start, self.work)

    def item(self) -> SplitSequence:
        length, own = self.kernel.kv_range(self.tensors, self.number, self.start, self.work)
        self.count = own.count
        return SplitSequence(self.number, length, own)

    def kv_tiles_again(self) -> split_kv_scheduler.KvRange:
        """Return the KV tiles of the sequence, computed again: accumulators leave no registers."""
        _, own = self.kernel.kv_range(self.tensors, rematerialized(self.number), self.start, self.work)
        self.count = own.count
        return own

    def advance(self) -> None:
        self.start = split_kv_scheduler.next_start(self.start, self.count)
        self.number = self.number + 1


def rows_first(x: cute.Tensor) -> cute.Tensor:
    """Return an array (first, row, column) as (row, column, first), with rows that begin at multiples of 16 bytes."""
    first, row, column = x.shape
    vector = 128 // x.element_type.width
    strides = [cute.assume(s // vector * vector, divby=vector) for s in x.stride[:2]]
    return cute.make_tensor(x.iterator, cute.make_layout((row, column, first), stride=(strides[1], 1, strides[0])))


class MlaKernel:
    """The base of the kernels, with Q tiles of `tile_rows` rows: a producer warpgroup and two consumer warpgroups.

    `cache_dtype`: the type of an 8-bit cache, which is converted to f16, as the queries are. `ways`: thread groups of
    the combine kernel. A subclass says how tiles lie (`tma_tiles`, `allocate`, `pipes`), and what the warps of each
    role do (`produce`, `compute`).
    """

    __kiln_immutable__ = True
    q_tiles = 1
    """Tiles in which TMA loads Q."""
    roles: WarpRoles
    produce: Any
    """What a producer warp does: (warp, TMA operands of Q and of KV, buffers, pipes, tensors, work)."""
    compute: Any
    """What another warp does: (warp, buffers, pipes, tensors, work)."""

    def __init__(self, dtype: type[cute.Numeric], value_dim: int, tile_rows: int, cache_dtype: Any, ways: int) -> None:
        self.dtype = dtype
        self.value_dim = value_dim
        self.tile_rows = tile_rows
        self.cache_dtype = cache_dtype
        self.ways = ways
        # MMA inputs: 8-bit floats convert to f16 without loss
        self.mma_dtype: type[cute.Numeric] = dtype if cache_dtype is None else Float16

    def tma_tiles(self) -> tuple[tuple[Any, tuple[int, int]], ...]:
        """Return layout and shape of the tiles in which TMA loads Q and KV."""
        raise NotImplementedError

    def allocate(self, memory: utils.SmemAllocator) -> MlaBuffers:
        """Allocate shared memory."""
        raise NotImplementedError

    def pipes(self) -> tuple[WarpPipeline | pipeline.PipelineTmaAsync | None, ...]:
        """Return the pipelines of Q and of KV as operands, and of KV as it is loaded, if that differs, or None."""
        raise NotImplementedError

    @cute.jit
    def __call__(
        self, q: cute.Tensor, cache: cute.Tensor, tensors: MlaTensors, tiles: Int32, scalars: MlaScalars, stream: Int64
    ):
        """Launch the kernel and the combine kernel for q (batch, row, column) and the cache (page, row, column)."""
        operands = (TmaOperand.load(rows_first(x), *tile) for x, tile in zip((q, cache), self.tma_tiles(), strict=True))
        self.kernel(*operands, tensors, tiles, scalars).launch(
            grid=(tiles * scalars.num_splits, 1, 1),
            block=(self.roles.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )
        Combine(self.dtype, self.value_dim, self.ways)(tensors, scalars, stream)

    @cute.kernel
    def kernel(self, q: TmaOperand, kv: TmaOperand, tensors: MlaTensors, tiles: Int32, scalars: MlaScalars):
        warp = arch.make_warp_uniform(arch.warp_idx())
        number = arch.block_idx()[0]
        tile = number % tiles
        split = number // tiles
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        memory = utils.SmemAllocator()
        buffers = self.allocate(memory)
        fields = memory.allocate_tensor(Int32, cute.make_layout((WORK_FIELDS,)), 16)
        pipes = self.pipes()
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        work = CtaWork(fields, q.tensor.shape[0], scalars)
        if warp == 0:
            for operand in (q, kv):
                cpasync.prefetch_descriptor(operand.atom)
            self.init_work(tensors, split, tile, work)
        arch.sync_threads()
        if self.roles.is_up_to(warp, "producer"):
            self.roles.set_registers("producer")
            self.produce(warp, q, kv, buffers, pipes, tensors, work)
        else:
            self.compute(warp, buffers, pipes, tensors, work)

    @cute.jit
    def init_work(self, tensors: MlaTensors, split: Int32, tile: Int32, work: CtaWork):
        """Find the KV tiles of a split, by one warp."""
        scalars = work.scalars
        heads = work.scalars.heads
        most = tensors.page_table.shape[1] * KV_TILE
        split_kv_scheduler.find_split(
            tensors.lengths, most, split, scalars.num_splits, work.fields, tensors.splits, tile == 0
        )
        first = tile * self.tile_rows
        last = min((tile + 1) * self.tile_rows, work.rows) - 1
        unseen, hidden = (max(scalars.hidden - row // heads, Int32(0)) for row in (last, first))
        for i, value in enumerate((split, tile, unseen, hidden)):
            work.fields[split_kv_scheduler.SPLIT_FIELDS + i] = value

    def sequences(self, tensors: MlaTensors, work: CtaWork) -> SplitSequences:
        """Return the sequences of a split, for one warp."""
        return SplitSequences(self, tensors, work)

    @cute.jit
    def in_split(self, tensors: MlaTensors, sequence: Int32, start: Int32, work: CtaWork):
        """Return whether a split has tiles of a sequence."""
        return sequence < tensors.lengths.shape[0] and start < (work.split + 1) * work.tiles_per_split

    @cute.jit
    def kv_range(self, tensors: MlaTensors, sequence: Int32, start: Int32, work: CtaWork):
        """Return the length of a sequence, and which of its tiles a split has. Computed again each time: accumulators
        leave no registers."""
        most = rematerialized(Int32(tensors.page_table.shape[1])) * KV_TILE
        length = split_kv_scheduler.kv_length(tensors.lengths, sequence, most)
        return length, split_kv_scheduler.kv_range(
            length, work.unseen, start, work.split * work.tiles_per_split, work.tiles_per_split
        )

    @cute.jit
    def load_q(
        self, q: TmaOperand, stages: cute.Tensor, pipe: pipeline.PipelineTmaAsync, tensors: MlaTensors, work: CtaWork
    ):
        """Load the queries of all sequences of a split."""
        smem, gmem = q.partition(stages, q.tiles((None, None, None)))
        sequences = self.sequences(tensors, work)
        producer, _ = pipe.make_participants()
        for sequence in sequences:
            own = sequence.kv_tiles
            if own.first < own.last:
                stage = producer.acquire_and_advance()
                row = work.tile
                for tile in range_constexpr(self.q_tiles):
                    cute.copy(
                        q.atom, gmem[None, row, tile, sequence.number], smem[None, tile], tma_bar_ptr=stage.barrier
                    )
