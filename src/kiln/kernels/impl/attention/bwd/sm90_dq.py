"""dQ of the Hopper backward kernel: from registers to f32 accumulators in gmem, and from those to the output type.

Consumer warpgroups write dQ^T to smem as it lies in registers, and two producer warps add it to the accumulator by TMA
reductions (`DqAdder`). They take steps in turns: waiting for a CTA's turn, adding, and telling the next one takes
longer than a step. A spare warp converts accumulators of earlier heads that are complete (`DqConverter`); a second
kernel converts the rest (`DqKernel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Boolean, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp, cpasync
from .....utils.schedulers import sequence_range
from ....parts.kv_source import VECTOR
from ....parts.rematerialize import rematerialized
from .sm90_config import DS_STAGES, WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_scheduler import varlen_first_tile

if TYPE_CHECKING:
    from ....parts.warp_roles import WarpRoles
    from .sm90 import Sm90BackwardKernel, Smem
    from .sm90_mma import BackwardMma
    from .sm90_scheduler import BackwardTileScheduler, KvTileBroadcast, Span, Work


def _dq_full(roles: WarpRoles, step: Int32 | int) -> pipeline.NamedBarrier:
    """Return the barrier at which warpgroups tell the adding warp that dQ of a step is in smem."""
    return roles.barrier("dQ full", step % DS_STAGES)


def dq_empty(roles: WarpRoles, group: Int32 | int, step: Int32 | int) -> pipeline.NamedBarrier:
    """Return the barrier at which that warp tells a warpgroup that the stage of this step has been read."""
    return roles.barrier("dQ empty", group + step % DS_STAGES * WARPGROUPS)


class DqWriter:
    """Writes a warpgroup's dQ^T to smem."""

    __kiln_immutable__ = True

    def __init__(self, kernel: Sm90BackwardKernel, mma: BackwardMma, smem: Smem, group: Int32, thread: Any) -> None:
        self.roles: WarpRoles = kernel.roles
        self.columns: int = kernel.dq_columns
        self.acc_dq: cute.Tensor = mma.acc_dq
        self.group = group
        self.start: cute.Pointer = smem.dq[None, 0].iterator + (
            group * (WARPGROUP_ROWS * kernel.dq_columns) + thread * 4
        )

    def write(self, step: Int32 | int) -> None:
        """Write dQ^T as it lies in registers: 16-byte vectors of all threads, one after the other."""
        dq_empty(self.roles, self.group, step).arrive_and_wait()
        start = self.start + step % DS_STAGES * (WARPGROUP_ROWS * self.columns * WARPGROUPS)
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=128)
        for n in range(self.columns // 8):
            vector = cute.make_tensor(self.acc_dq.iterator + 4 * n, cute.make_layout(4))
            target = (start + n * (4 * WARPGROUP)).with_alignment(16)
            cute.copy(store, vector, cute.make_tensor(target, cute.make_layout(4)))
        arch.fence_proxy("async.shared", space="cta")
        _dq_full(self.roles, step).arrive()


class DqAdder:
    """Adds dQ^T in smem to accumulators (layer, head, number) in gmem; with `additions`, in a fixed order."""

    __kiln_immutable__ = True

    def __init__(
        self,
        kernel: Sm90BackwardKernel,
        scheduler: BackwardTileScheduler,
        smem: cute.Tensor,
        dq_acc: cute.Tensor,
        additions: Any,
    ) -> None:
        self.kernel = kernel
        self.scheduler = scheduler
        self.smem = smem
        self.dq_acc = dq_acc
        self.additions = additions

    @cute.jit
    def run(self, which: Int32, broadcast: KvTileBroadcast):
        """Add every other step, as one of two warps."""
        for group in range_constexpr(WARPGROUPS):
            dq_empty(self.kernel.roles, group, which).arrive()
        tiles = broadcast.received()
        for _ in tiles:
            work = broadcast.work()
            tiles.release()
            span = self.scheduler.span(work)
            for i in range(which, self.scheduler.steps(span), DS_STAGES):
                self._add(i, work, span)

    @cute.jit
    def _add(self, i: Int32, work: Work, span: Span):
        """Add dQ^T of a step when it is in smem and, in a fixed order, when it is this KV tile's turn."""
        scheduler = self.scheduler
        size = WARPGROUPS * WARPGROUP_ROWS * self.kernel.dq_columns
        add = cute.make_copy_atom(cpasync.CopyReduceBulkS2GOp(cpasync.ReductionKind.ADD), Float32)
        put = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32)
        layer = scheduler.dq_layer(work)
        source = self.smem[None, i % DS_STAGES]
        head, tile = scheduler.step(i, work, span)
        q_tile = work.first_q_tile + tile
        start = self.dq_acc[layer, head, None].iterator + cute.assume(q_tile * size, divby=4)
        target = cute.make_tensor(start.with_alignment(16), cute.make_layout(size))
        counter = None
        rank = Int32(1)
        if const_expr(self.kernel.deterministic):
            counter = self.additions[layer, head, None].iterator + q_tile
            rank = scheduler.rank(work, tile)
            # wait for the turn while the GEMMs are computed
            done = arch.load(counter, Int32, sem="acquire", scope="gpu")
            while done < rank:
                done = arch.load(counter, Int32, sem="acquire", scope="gpu")
        _dq_full(self.kernel.roles, i).arrive_and_wait()
        if const_expr(self.kernel.deterministic):
            with arch.elect_one():
                arch.fence_proxy("async.global")  # TMA sees what others have added
        if rank == 0:
            with arch.elect_one():
                cute.copy(put, source, target)
        else:
            with arch.elect_one():
                cute.copy(add, source, target)
        with arch.elect_one():
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0, read=True)
        for group in range_constexpr(WARPGROUPS):
            dq_empty(self.kernel.roles, group, i).arrive()
        if const_expr(self.kernel.deterministic):
            with arch.elect_one():
                arch.cp_async_bulk_wait_group(0)
                arch.fence_proxy("async.global")
                arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")


# --- conversion ---

_ROW_BLOCK = 8
_COLUMN_BLOCK = 32
"""Queries and elements that a warp transposes at once."""
_LOADS = 2
"""Column blocks that the spare warp loads before it uses the first: not more than it has registers for."""
_PAUSE = 500
"""Nanoseconds until the spare warp looks again."""
_WARPS = 8
"""Warps of a CTA of `DqKernel`."""


class DqTranspose:
    """Makes rows of the accumulator of a query tile, a block of 8 queries and 32 elements at a time.

    In 16 bytes, two elements, 8 apart, of two queries, a thread of a warpgroup wrote what it held of 16 elements of 8
    queries. `movmatrix` transposes 8 elements of 8 queries: a thread with two queries of an element gets two elements
    of a query. So that it has eight adjacent elements after four of them, threads read 8 bytes that others wrote, 128
    bytes in succession twice for each matrix; they write 16 bytes, four of them 64 in succession."""

    __kiln_immutable__ = True

    def __init__(self, kernel: Sm90BackwardKernel, lane: Int32) -> None:
        self.kernel = kernel
        self.lane = lane
        self.row_blocks: int = kernel.config.tile_m // _ROW_BLOCK
        self.column_blocks: int = kernel.head_dim // _COLUMN_BLOCK

    def load(
        self, start: cute.Pointer, row_block: Int32 | int, column_block: Int32 | int, fragment: cute.Tensor
    ) -> None:
        """Load a thread's part of a block."""
        row = self.lane // 4
        four = self.lane % 4
        lane_offset = row // 4 * 128 + row % 2 * 16 + row // 2 % 2 * 2 + four * 4
        # a warpgroup has 64 elements
        block = column_block // 2 * (2 * self.row_blocks) + 2 * row_block + column_block % 2
        start = start + cute.assume(block * (_ROW_BLOCK * _COLUMN_BLOCK) + lane_offset, divby=2)
        for n in range(4):
            pair = cute.make_tensor((start + 32 * n).with_alignment(8), cute.make_layout(2))
            cute.autovec_copy(pair, cute.make_tensor(fragment.iterator + 2 * n, cute.make_layout(2)))

    def transpose(self, fragment: cute.Tensor, scale: Float32 | float) -> cute.Tensor:
        """Return eight elements of a query, scaled and converted."""
        rounded = cute.make_rmem_tensor((VECTOR,), self.kernel.dtype)
        rounded.store((fragment.load() * scale).to(self.kernel.dtype))
        words = cute.recast_tensor(rounded, Int32)
        for n in range(VECTOR // 2):
            words[n] = arch.inline_ptx(
                "movmatrix.sync.aligned.m8n8.trans.b16 {$w0}, {$r0};",
                write_only_types=[Int32],
                read_only_args=[words[n]],
            )
        return rounded

    def coordinates(self, row_block: Int32 | int, column_block: Int32 | int) -> tuple[Int32, Int32]:
        """Return the query and the first element that a thread then has."""
        # read again: no register is kept for it
        lane = arch.inline_ptx("mov.u32 {$w0}, %laneid;", write_only_types=[Int32], read_only_args=[])
        return row_block * _ROW_BLOCK + lane // 4, column_block * _COLUMN_BLOCK + lane % 4 * VECTOR

    def store(self, rounded: cute.Tensor, row: cute.Tensor, element: Int32) -> None:
        """Store eight elements to a row of dQ."""
        store = cute.make_copy_atom(CopyUniversalOp(), self.kernel.dtype, num_bits_per_copy=VECTOR * 16)
        start = (row.iterator + cute.assume(element, divby=VECTOR)).with_alignment(2 * VECTOR)
        cute.copy(store, rounded, cute.make_tensor(start, cute.make_layout(VECTOR)))


class DqConverter:
    """A spare warp's work: it converts dQ of earlier heads while later ones are computed.

    All KV tiles that add to those have been taken by then, so that it does not wait forever. The last heads are left to
    `DqKernel`."""

    __kiln_immutable__ = True

    def __init__(
        self,
        kernel: Sm90BackwardKernel,
        scheduler: BackwardTileScheduler,
        dq_acc: cute.Tensor,
        additions: Any,
        dq: cute.Tensor,
    ) -> None:
        self.kernel = kernel
        self.scheduler = scheduler
        self.dq_acc = dq_acc
        self.additions = additions
        self.dq = dq

    @cute.jit
    def run(self, broadcast: KvTileBroadcast):
        """Convert a share of dQ beside each KV tile of the CTA."""
        tiles = broadcast.received()
        for number in tiles:
            tiles.release()
            self._convert_beside(number)

    @cute.jit
    def _convert_beside(self, number: Int32):
        """Convert a KV tile's share of the head group before its own, from the last queries to the first, as they
        become complete. Heads that start one after the other are their own groups."""
        schedule = self.scheduler.schedule
        tiles = self.scheduler.tiles
        group = schedule.head_group
        if const_expr(self.kernel.staggers_heads):
            head, tile = self.scheduler.head_and_tile(number)
            self._convert_split(head - group + 1, Int32(1), tile, tiles)
        else:
            turn = number // (tiles * group)
            count = tiles * min(group, self.scheduler.all_heads() - turn * group)
            self._convert_split(turn, group, number - turn * tiles * group, count)

    @cute.jit
    def _convert_split(self, turn: Int32, group: Int32, which: Int32, count: Int32):
        """Convert split `which` of `count` of the group of KV heads before group `turn`."""
        if turn > 0 and self.scheduler.schedule.converted_heads > 0:
            begin, end = self._tile_range(turn, group, which, count)
            for unit in range(begin, end):
                # what the divisions need is not kept in registers
                heads = rematerialized(group * self.scheduler.group_size)
                before = unit // self._q_tiles(heads)
                rest = unit % self._q_tiles(heads)
                self._convert_tile(before * heads + rest % heads, rest // heads)

    def _q_tiles(self, heads: Int32) -> Int32:
        return heads * cute.ceil_div(Int32(self.dq.shape[1]), self.kernel.config.tile_m)

    @cute.jit
    def _tile_range(self, turn: Int32, group: Int32, which: Int32, count: Int32):
        """Return which query tiles a KV tile converts: the first KV tile has the last ones, and more of them under a
        causal mask."""
        begin = Float32(which) / Float32(count)
        end = (Float32(which) + 1.0) / Float32(count)
        if const_expr(self.kernel.masks_right and not self.kernel.masks_left):
            begin = begin * (2.0 - begin)
            end = end * (2.0 - end)
        units = self._q_tiles(rematerialized(group * self.scheduler.group_size))
        return turn * units - Int32(Float32(units) * end), turn * units - Int32(Float32(units) * begin)

    @cute.jit
    def _convert_tile(self, head: Int32, tile: Int32):
        """Convert a query tile of one of all heads, when all KV tiles have added to it."""
        kernel = self.kernel
        heads = rematerialized(Int32(self.dq.shape[2]))  # what divisions need of it is not kept in registers
        # the same in all threads, for uniform registers: others are needed for what is loaded
        batch, head, tile = (arch.warp_redux_sync(x, "max") for x in (head // heads, head % heads, tile))
        additions = self.scheduler.num_additions(batch, tile)
        counter = self.additions[batch, head, None].iterator + tile
        while arch.load(counter, Int32, sem="acquire", scope="gpu") < additions:
            arch.nanosleep(_PAUSE)
        # an accumulator that nothing was added to is not initialised; as a vote, this is a predicate and takes no
        # register
        nothing = arch.vote_any_sync(additions == 0)
        transpose = DqTranspose(kernel, rematerialized(arch.lane_idx()))
        first = tile * kernel.config.tile_m
        start = self.dq_acc[batch, head, None].iterator + cute.assume(first * kernel.head_dim, divby=4)
        for number in range(transpose.column_blocks // _LOADS * transpose.row_blocks):
            row_block = number % transpose.row_blocks
            column_block = number // transpose.row_blocks * _LOADS
            fragment = cute.make_rmem_tensor((VECTOR, _LOADS), Float32)
            for n in range_constexpr(_LOADS):
                transpose.load(start, row_block, column_block + n, fragment[None, n])
            if nothing:
                fragment.fill(0.0)
            scale = self.scheduler.scalars.scale
            rounded = [transpose.transpose(fragment[None, n], scale) for n in range(_LOADS)]
            query, element = transpose.coordinates(row_block, column_block)
            if first + query < self.dq.shape[1]:
                row = self.dq[batch, first + query, head, None]
                for n in range_constexpr(_LOADS):
                    if element + n * _COLUMN_BLOCK < self.dq.shape[3]:
                        transpose.store(rounded[n], row, element + n * _COLUMN_BLOCK)


class DqKernel:
    """The kernel that adds up and converts dQ accumulators: a CTA has a query tile of a head."""

    def __init__(self, kernel: Sm90BackwardKernel, head_dim: int) -> None:
        self.backward = kernel
        self.head_dim = head_dim

    @cute.jit
    def __call__(
        self,
        dq_acc: cute.Tensor,
        additions: Any,
        dq: cute.Tensor,
        cu_seqlens_q: Any,
        max_seqlen_q: Int32,
        scale: Float32,
        converted_heads: Int32,
        stream: Int64,
    ):
        """Launch the kernel for accumulators (layer, heads, numbers) and dQ (batch, queries, heads, D), which is
        `scale` times their sum.

        `additions` counts what was added to them, None if they began with zeros. The first `converted_heads` heads are
        done."""
        batch = dq.shape[0] - converted_heads // dq.shape[2]
        if const_expr(cu_seqlens_q is not None):
            batch = cu_seqlens_q.shape[0] - 1
        self.kernel(dq_acc, additions, dq, cu_seqlens_q, scale, converted_heads).launch(
            grid=(cute.ceil_div(max_seqlen_q, self.backward.config.tile_m), dq.shape[2], batch),
            block=(32 * _WARPS, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        dq_acc: cute.Tensor,
        additions: Any,
        dq: cute.Tensor,
        cu_seqlens_q: Any,
        scale: Float32,
        converted_heads: Int32,
    ):
        own_tile, head, batch = arch.block_idx()
        tile_m = self.backward.config.tile_m
        heads = dq.shape[2]
        if const_expr(cu_seqlens_q is None):
            batch = batch + converted_heads // heads
            sequence = (Int32(0), Int32(dq.shape[1]))
            tile = own_tile
            exists = batch * heads + head >= converted_heads
        else:
            sequence = sequence_range(cu_seqlens_q, batch, Int32(dq.shape[1]))
            tile = varlen_first_tile(sequence[0], batch, Int32(tile_m)) + own_tile
            batch = Int32(0)
            exists = own_tile * tile_m < sequence[1]
        if exists:
            self.convert(dq_acc, additions, dq, scale, (tile, head, batch), own_tile, sequence)

    @cute.jit
    def convert(
        self,
        dq_acc: cute.Tensor,
        additions: Any,
        dq: cute.Tensor,
        scale: Float32,
        place: tuple[Int32, Int32, Int32],
        own_tile: Int32,
        sequence: tuple[Int32, Int32],
    ):
        """Convert a query tile: `place` is (tile, head, batch) among accumulators, `own_tile` its number in the
        `sequence` (first row, rows)."""
        tile, head, batch = place
        first, seqlen_q = sequence
        kernel = self.backward
        transpose = DqTranspose(self.backward, arch.lane_idx())
        blocks = transpose.row_blocks * transpose.column_blocks
        warp_blocks = -(-blocks // _WARPS)
        total, part = (cute.make_rmem_tensor((VECTOR, warp_blocks), Float32) for _ in range(2))
        total.fill(0.0)
        first_block = arch.make_warp_uniform(arch.warp_idx()) * warp_blocks
        for layer in range(batch, dq_acc.shape[0], dq.shape[0]):
            offset = cute.assume(tile * kernel.config.tile_m * kernel.head_dim, divby=4)
            start = dq_acc[layer, head, None].iterator + offset
            for n in range_constexpr(warp_blocks):
                block = min(first_block + n, blocks - 1)
                transpose.load(start, block // transpose.column_blocks, block % transpose.column_blocks, part[None, n])
            is_set = Boolean(True)
            if const_expr(additions is not None):
                is_set = additions[layer, head, tile] > 0  # otherwise the accumulator is not initialised
            for n in range_constexpr(VECTOR * warp_blocks):
                total[n] = total[n] + part[n] if is_set else total[n]
        for n in range_constexpr(warp_blocks):
            block = first_block + n
            rounded = transpose.transpose(total[None, n], scale)
            query, element = transpose.coordinates(block // transpose.column_blocks, block % transpose.column_blocks)
            query = own_tile * kernel.config.tile_m + query
            if block < blocks and query < seqlen_q and element < self.head_dim:
                transpose.store(rounded, dq[batch, first + query, head, None], element)
