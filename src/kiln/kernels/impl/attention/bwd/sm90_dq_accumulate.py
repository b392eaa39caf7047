"""Gradients of queries on their way from registers to sums: warp groups write dQ^T to shared memory, and two warps have the copy engine add it.

They take steps in turns: to look for a turn among blocks of threads, to have something added, and to tell the next when it is, takes longer than a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import cpasync
from .sm90_config import BUFFERS, GROUP, GROUPS
from .sm90_mainloop import ROWS

if TYPE_CHECKING:
    from .sm90 import Shared, Sm90BackwardKernel
    from .sm90_mainloop import Products
    from .sm90_scheduler import Blocks

_FULL, _EMPTY = 5, 7
"""Numbers of barriers: dQ is in shared memory, in one of two buffers; that of a group has been read."""


class DQ:
    """dQ^T of a warp group, on its way to the warps that have it added to those of others."""

    __kiln_immutable__ = True

    def __init__(self, of: Sm90BackwardKernel, products: Products, shared: Shared, group: Any, thread: Any) -> None:
        self.columns, self.dq, self.group = of.columns, products.dq, group
        self.start = shared.sums[None, 0].iterator + (group * (ROWS * of.columns) + thread * 4)

    def write(self, step: Any) -> None:
        """To shared memory, as it lies in registers: pieces of 16 bytes of all threads, one after the other."""
        empty(self.group, step).arrive_and_wait()
        start = self.start + step % BUFFERS * (ROWS * self.columns * GROUPS)
        store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32, num_bits_per_copy=128)
        for n in range(self.columns // 8):
            piece = cute.make_tensor(self.dq.iterator + 4 * n, cute.make_layout(4))
            at = (start + n * (4 * GROUP)).with_alignment(16)
            cute.copy(store, piece, cute.make_tensor(at, cute.make_layout(4)))
        arch.fence_proxy("async.shared", space="cta")
        full(step).arrive()


def full(step: Any) -> Any:
    """Where warp groups tell the warp that adds the dQ of a step that it is there."""
    return pipeline.NamedBarrier(_FULL + step % BUFFERS, GROUPS * GROUP + 32)


def empty(group: Any, step: Any) -> Any:
    """Where that warp tells a warp group that what was written before, where this step writes, has been read."""
    return pipeline.NamedBarrier(_EMPTY + group + step % BUFFERS * GROUPS, GROUP + 32)


class Additions:
    """dQ^T in shared memory (number, buffer), sums (layer, head, number), how many have added to each block of queries of them (or None)."""

    __kiln_immutable__ = True

    def __init__(self, of: Sm90BackwardKernel, blocks: Blocks, memory: Any, sums: Any, turns: Any) -> None:
        self.of, self.blocks, self.memory, self.sums, self.turns = of, blocks, memory, sums, turns

    @cute.jit
    def run(self, which: Int32, told: Any):
        """What a warp does: it adds every other step."""
        for group in range_constexpr(GROUPS):
            empty(group, which).arrive()
        turn = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        number = told.heard(turn)
        while number >= 0:
            work = told.work()
            told.release(turn)
            span = self.blocks.span(work)
            for i in range(which, span.count * self.blocks.share, BUFFERS):
                self.step(i, work, span)
            turn.advance()
            number = told.heard(turn)

    @cute.jit
    def step(self, i: Int32, work: Any, span: Any):
        """Add the dQ^T of a step, when it is there, and it is its turn."""
        blocks, size = self.blocks, GROUPS * ROWS * self.of.columns
        add = cute.make_copy_atom(cpasync.CopyReduceBulkS2GOp(cpasync.ReductionKind.ADD), Float32)
        put = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32)
        layer = blocks.layer_of_sums(work)
        from_ = self.memory[None, i % BUFFERS]
        head, tile = blocks.place(i, span)
        head, piece = work.head * blocks.share + head, work.first_tile + tile
        start = self.sums[layer, head, None].iterator + cute.assume(piece * size, divby=4)
        to = cute.make_tensor(start.with_alignment(16), cute.make_layout(size))
        if const_expr(self.of.turns):
            turn = self.turns[layer, head, None].iterator + piece
            wanted = blocks.rank(work, tile)
            # while the products are computed
            seen = arch.load(turn, Int32, sem="acquire", scope="gpu")
            while seen < wanted:
                seen = arch.load(turn, Int32, sem="acquire", scope="gpu")
            full(i).arrive_and_wait()
            with arch.elect_one():
                # what others have added, as the copy engine sees it
                arch.fence_proxy("async.global")
            if wanted == 0:
                with arch.elect_one():
                    cute.copy(put, from_, to)
            else:
                with arch.elect_one():
                    cute.copy(add, from_, to)
            with arch.elect_one():
                arch.cp_async_bulk_commit_group()
                arch.cp_async_bulk_wait_group(0, read=True)
            for group in range_constexpr(GROUPS):
                empty(group, i).arrive()
            with arch.elect_one():
                arch.cp_async_bulk_wait_group(0)
                arch.fence_proxy("async.global")
                arch.atomic_add(turn, Int32(1), sem="release", scope="gpu")
        else:
            full(i).arrive_and_wait()
            with arch.elect_one():
                cute.copy(add, from_, to)
                arch.cp_async_bulk_commit_group()
                arch.cp_async_bulk_wait_group(0, read=True)
            for group in range_constexpr(GROUPS):
                empty(group, i).arrive()
