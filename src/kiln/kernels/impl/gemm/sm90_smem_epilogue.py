"""How the sums of warp groups become results without the copy engine: in whole rows, by way of shared memory.

For tiles of which blocks of a cluster have parts of K, and for products with operands swapped and not `turned`, whose tiles lie across the result: N of the
result is M of the tensor cores. Blocks that share a tile each write some of its columns: they are sent the sums of those from registers, and
an mbarrier counts what has come, so that nobody waits for more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float16, Float32, Int64, const_expr, cute, pipeline, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import cpasync, warpgroup
from ....utils import sm90
from .sm80_epilogue import Sm80Epilogue
from .sm90_config import ATOM_M, WARPGROUP_THREADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sm90_config import Sm90GemmConfig

_FIRST_BARRIER = 1
"""Named barriers from there on belong to the warp groups that store, which have the numbers from there on too."""


class SmemEpilogue(Sm80Epilogue):
    """Writes combine(sums, alpha, beta, *others) of tiles of a config; blocks that share one add their sums first, in order.

    `grouped`: a tile has rows of a group.
    """

    def __init__(
        self, config: Sm90GemmConfig, acc_dtype: Any, out_types: tuple[Any, ...], out_width: int, combine: Callable[..., Any],
        other_widths: tuple[int, ...] | None, grouped: bool = False,
    ) -> None:  # fmt: skip
        m, n, _ = config.tile_shape_mnk
        threads = config.warpgroups_per_tile * WARPGROUP_THREADS
        self.columns = n // config.split_k_cluster
        super().__init__(
            (self.columns, m) if config.swap_ab else (m, self.columns), threads, 1, acc_dtype, out_types, out_width, combine, other_widths
        )  # fmt: skip
        self.config = config
        if config.mma_warpgroups > 2:
            self.held = 16
        self.grouped = grouped
        self.summed = False

    def atoms(self, d: Any) -> tuple[Any, Any]:
        """The copy engine stores nothing."""
        return [], d

    @cute.jit
    def buffers(self, smem: Any, ring: Any):
        """Shared memory for the sums of a tile, or of one for each warp group. Where blocks share a tile: for those that others send, with an
        mbarrier that counts them; and the ring, which the one tile of a block needs no more when it is written."""
        memory, arrived = smem.allocate(self.config.smem_epilogue_bytes, 128), smem.allocate(Int64, 8)
        if const_expr(self.config.split_k_cluster > 1):
            if arch.thread_idx()[0] == 0:
                arch.mbarrier_init(arrived, 1)
                arch.mbarrier_arrive_and_expect_tx(arrived, self.config.smem_epilogue_bytes)
        return memory, arrived, ring

    @cute.jit
    def write(self, part: Any, thread: Any, group: Any, acc: cute.Tensor, buffers: Any, into: Any, place: Any):
        """Write the sums that a thread of a warp group has of a tile. `into`: as `TmaStoreEpilogue.write` is given."""
        _, _, d, _, extras, alpha, beta = into
        m, n, batch, _, start, rows = place
        memory, arrived, ring = buffers
        if const_expr(not self.config.pingpong):
            thread = thread + group * WARPGROUP_THREADS
        if const_expr(self.config.split_k_cluster > 1):
            rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
            acc = self.exchanged(acc, thread, rank, memory, arrived)
            n = n * self.config.split_k_cluster + rank
            memory = ring
            k = warpgroup.OperandMajorMode.K
            narrow = sm90.make_trivial_tiled_mma(
                Float16, Float16, k, k, Float32, (self.config.warpgroups_per_tile, 1, 1), (ATOM_M, self.columns)
            )
            part = narrow.get_slice(thread)
        elif const_expr(self.config.pingpong):
            memory = memory + group * (self.config.smem_epilogue_bytes // self.config.mma_warpgroups)
        self.meet()  # nobody reads sums of the tile before, or the ring
        where = (m, n)
        if const_expr(self.config.swap_ab):
            where, d = (n, m), [cute.select(x, mode=[1, 0, 2]) for x in d]
        d, others = ([x[None, None, batch] for x in own] for own in (d, extras))
        if const_expr(self.grouped):
            d, others = ([cute.domain_offset((start, 0), x) for x in own] for own in (d, others))
            d = [cute.make_tensor(x.iterator, cute.make_layout((rows, x.shape[1]), stride=x.stride)) for x in d]
        self.write_combined(part, thread, 0, acc, memory, d, others, alpha, beta, where)

    @cute.jit
    def exchanged(self, acc: cute.Tensor, thread: Any, rank: Any, memory: Any, arrived: Any):
        """The sums of all blocks of the columns that this block writes, added in the order of blocks.

        Eight columns of 64 rows are four sums of a thread: the same thread of another block has those of the same place.
        """
        splits, each = self.config.split_k_cluster, self.columns // 8
        atoms = cute.size(acc) // (4 * each * splits)
        layout = cute.make_layout((4, self.threads, each * atoms, splits - 1))
        boxes = cute.make_tensor(cute.recast_ptr(memory, dtype=self.acc_dtype), layout)
        send = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), self.acc_dtype, num_bits_per_copy=128)
        own = cute.make_rmem_tensor((4, each * atoms), self.acc_dtype)
        four = cute.make_rmem_tensor((4,), self.acc_dtype)
        for other in range_constexpr(splits):
            there = cute.make_tensor(arch.map_dsmem_ptr(boxes.iterator, other), layout)
            full = arch.map_dsmem_ptr(arrived, other)
            slot = select_(rank < other, rank, rank - 1)  # a block has a box for each other
            for i in range_constexpr(each * atoms):
                first = 4 * (other * each + i % each + i // each * each * splits)
                for j in range_constexpr(4):
                    mine = acc[first + j]
                    own[j, i] = mine if other == 0 else select_(rank == other, mine, own[j, i])
            if rank != other:
                for i in range_constexpr(each * atoms):
                    first = 4 * (other * each + i % each + i // each * each * splits)
                    for j in range_constexpr(4):
                        four[j] = acc[first + j]
                    cute.copy(send, four, there[None, thread, i, slot], mbar_ptr=full)
        arch.mbarrier_wait(arrived, 0)
        total = cute.make_rmem_tensor(((2, 2, each), atoms, 1), self.acc_dtype)
        for i in range_constexpr(each * atoms):
            for source in range_constexpr(splits):
                slot = min(select_(rank < source, source - 1, source), splits - 2)
                for j in range_constexpr(4):
                    value = select_(rank == source, own[j, i], boxes[j, thread, i, slot])
                    total[4 * i + j] = value if source == 0 else total[4 * i + j] + value
        return total

    def slots(self, part: Any, staged: Any) -> Any:
        return part.partition_C(cute.select(staged, mode=[1, 0]) if self.config.swap_ab else staged)

    def meet(self) -> None:
        number = (
            arch.make_warp_uniform(arch.warp_idx()) // (WARPGROUP_THREADS // 32)
            if self.config.pingpong
            else _FIRST_BARRIER
        )
        pipeline.NamedBarrier(number, self.threads).arrive_and_wait()

    def finish(self) -> None:
        """Nothing is on its way."""
