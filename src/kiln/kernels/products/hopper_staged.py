"""How the sums of warp groups become results without the copy engine: in whole rows, by way of shared memory.

For tiles of which blocks of a cluster have parts, and for products with operands swapped, whose tiles lie across the result: N of the
result is M of the tensor cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import const_expr, cute, pipeline
from ...cute import arch
from .epilogue import Epilogue
from .hopper_plan import GROUP, GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hopper_plan import HopperTiling

_FIRST_BARRIER = 1
"""Named barriers from there on belong to the warp groups that store, which have the numbers from there on too."""


class StagedEpilogue(Epilogue):
    """Writes combine(sums, alpha, beta, *others) of tiles of a plan; blocks that share one add their sums first, in order.

    `grouped`: a tile has rows of a group.
    """

    def __init__(
        self, plan: HopperTiling, acc_dtype: Any, out_types: tuple[Any, ...], out_width: int, combine: Callable[..., Any],
        other_widths: tuple[int, ...] | None, grouped: bool = False,
    ) -> None:  # fmt: skip
        m, n, _ = plan.block_mnk
        threads = plan.sharers * GROUP
        super().__init__(
            (n, m) if plan.swapped else (m, n), threads, plan.splits, acc_dtype, out_types, out_width, combine, other_widths
        )  # fmt: skip
        self.plan = plan
        self.grouped = grouped
        self.summed = False

    def atoms(self, d: Any) -> tuple[Any, Any]:
        """The copy engine stores nothing."""
        return [], d

    def buffers(self, smem: Any) -> Any:
        """Shared memory for the sums of a tile, or of one for each warp group."""
        return smem.allocate(self.plan.staged_bytes, 128)

    def attend(self) -> None:
        """Threads that do not multiply are part of the cluster that meets."""
        if self.splits > 1:
            for _ in range(2):
                super().meet()

    @cute.jit
    def write(self, part: Any, thread: Any, group: Any, acc: cute.Tensor, memory: Any, into: Any, place: Any):
        """Write the sums that a thread of a warp group has of a tile. `into`: as `StoredEpilogue.write` is given."""
        _, _, d, _, extras, alpha, beta = into
        m, n, batch, _, start, rows = place
        where, rank = (m, n), 0
        if const_expr(self.plan.swapped):
            where, d = (n, m), [cute.select(x, mode=[1, 0, 2]) for x in d]
        if const_expr(self.splits > 1):
            rank = arch.block_idx_in_cluster()
        if const_expr(self.plan.pingpong):
            memory = memory + group * (self.plan.staged_bytes // GROUPS)
        else:
            thread = thread + group * GROUP
        if const_expr(self.splits == 1):
            self.meet()  # nobody reads sums of the tile before
        d, others = ([x[None, None, batch] for x in own] for own in (d, extras))
        if const_expr(self.grouped):
            d, others = ([cute.domain_offset((start, 0), x) for x in own] for own in (d, others))
            d = [cute.make_tensor(x.iterator, cute.make_layout((rows, x.shape[1]), stride=x.stride)) for x in d]
        self.write_combined(part, thread, rank, acc, memory, d, others, alpha, beta, where)

    def slots(self, part: Any, staged: Any) -> Any:
        return part.partition_C(cute.select(staged, mode=[1, 0]) if self.plan.swapped else staged)

    def meet(self) -> None:
        if self.splits > 1:
            super().meet()
        else:
            number = arch.make_warp_uniform(arch.warp_idx()) // (GROUP // 32) if self.plan.pingpong else _FIRST_BARRIER
            pipeline.NamedBarrier(number, self.threads).arrive_and_wait()

    def finish(self) -> None:
        """Nothing is on its way."""
