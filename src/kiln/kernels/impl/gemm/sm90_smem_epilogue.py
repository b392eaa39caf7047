"""The epilogue of sm_90a without TMA stores: threads write whole rows, by way of shared memory.

It is for split-K in a cluster, and for swap-AB without `transpose_out`, whose tiles lie across the result. With split-K
each CTA writes some columns of the tile: the others send it their accumulators of those from registers, and an mbarrier
counts what has come, so that nobody waits for more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float16, Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import cpasync, warpgroup
from ....utils import sm90
from ...parts.accumulator import RegisterAccumulator
from .sm80_epilogue import EpilogueTensors, Sm80Epilogue
from .sm90_config import ATOM_M, WARPGROUP_THREADS
from .sm90_roles import gemm_roles

if TYPE_CHECKING:
    from collections.abc import Callable

    from .... import utils
    from ....utils.schedulers import GemmTile
    from ...parts.warp_roles import WarpRoles
    from .sm90_config import Sm90GemmConfig


class SmemEpilogue(Sm80Epilogue):
    """Writes combine(acc, alpha, beta, *inputs) of tiles; CTAs of a split-K cluster add accumulators first, in order.

    `ragged`: a tile has rows of a group, which begin and end anywhere.
    """

    reduces_rows = False

    def __init__(
        self,
        config: Sm90GemmConfig,
        acc_dtype: type[cute.Numeric],
        out_types: tuple[type[cute.Numeric], ...],
        out_width: int,
        combine: Callable[..., Any],
        input_widths: tuple[int, ...] | None,
        ragged: bool = False,
    ) -> None:
        m, n, _ = config.tile_shape_mnk
        self.columns: int = n // config.split_k_cluster
        tile = (self.columns, m) if config.swap_ab else (m, self.columns)
        threads = config.warpgroups_per_tile * WARPGROUP_THREADS
        registers = 16 if config.mma_warpgroups > 2 else 64
        super().__init__(
            tile, threads, 1, acc_dtype, out_types, out_width, combine, input_widths, config.swap_ab, registers
        )
        self.config = config
        self.roles: WarpRoles = gemm_roles(config)
        self.ragged = ragged

    def tma_stores(self, d: Any) -> tuple[Any, list[cute.Tensor]]:
        """Return no TMA stores, and the results in place of their TMA coordinates."""
        return [], d

    @cute.jit
    def allocate(self, smem: utils.SmemAllocator, stages: cute.Pointer):
        """Return shared memory for the accumulators of a tile, or of one for each warpgroup.

        With split-K: the stages of an operand, which are free when the only tile of a CTA is written; before these, in
        a cluster, memory for what other CTAs send, with an mbarrier that counts it.
        """
        sent = self.config.smem_epilogue_bytes
        if const_expr(self.config.split_k_cluster == 1):
            return stages if self.config.split_k > 1 else smem.allocate(sent, 128)
        memory = smem.allocate(sent, 128)
        arrived = smem.allocate(Int64, 8)
        if arch.thread_idx()[0] == 0:
            arch.mbarrier_init(arrived, 1)
            arch.mbarrier_arrive_and_expect_tx(arrived, sent)
        return memory, arrived, stages

    @cute.jit
    def write(
        self,
        acc: RegisterAccumulator,
        thread: Int32,
        consumer_idx: Int32,
        buffers: Any,
        tensors: EpilogueTensors,
        tile: GemmTile,
    ):
        """Write the accumulators that a thread of a warpgroup has of a tile."""
        config = self.config
        n = tile.n
        memory = buffers
        if const_expr(not config.pingpong):
            thread = thread + consumer_idx * WARPGROUP_THREADS
        if const_expr(config.split_k_cluster > 1):
            inbox, arrived, memory = buffers
            rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
            total = self.reduce_in_cluster(acc.fragment, thread, rank, inbox, arrived)
            n = n * config.split_k_cluster + rank
            k = warpgroup.OperandMajorMode.K
            narrow = sm90.make_trivial_tiled_mma(
                Float16, Float16, k, k, Float32, (config.warpgroups_per_tile, 1, 1), (ATOM_M, self.columns)
            )
            acc = RegisterAccumulator(total, narrow.get_slice(thread))
        elif const_expr(config.pingpong and config.split_k == 1):
            memory = memory + consumer_idx * (config.smem_epilogue_bytes // config.mma_warpgroups)
        self.sync()  # nobody reads accumulators of the tile before, or stages
        coord = (tile.m, n)
        if const_expr(config.swap_ab):
            coord = (n, tile.m)
            tensors = tensors._replace(outs=[cute.select(x, mode=[1, 0, 2]) for x in tensors.outs])
        tensors = tensors.batch(tile.batch)
        if const_expr(self.ragged):
            tensors = self.group_rows(tensors, tile)
        self.write_combined(acc, thread, 0, memory, tensors, coord)

    def group_rows(self, tensors: EpilogueTensors, tile: GemmTile) -> EpilogueTensors:
        """Return the rows of the group of a tile."""
        outs, inputs = (
            [cute.domain_offset((tile.row_start, 0), x) for x in own] for own in (tensors.outs, tensors.inputs)
        )
        outs = [cute.make_tensor(x.iterator, cute.make_layout((tile.rows, x.shape[1]), stride=x.stride)) for x in outs]
        return tensors._replace(outs=outs, inputs=inputs)

    @cute.jit
    def reduce_in_cluster(
        self, acc: cute.Tensor, thread: Int32, rank: Int32 | int, memory: cute.Pointer, arrived: cute.Pointer
    ):
        """Return the accumulators of the columns that this CTA writes: those of all CTAs, added in order of rank.

        Eight columns of 64 rows are four accumulators of a thread: the same thread of another CTA has those of the same
        place.
        """
        split_k = self.config.split_k_cluster
        eights = self.columns // 8
        atoms = cute.size(acc) // (4 * eights * split_k)
        layout = cute.make_layout((4, self.threads, eights * atoms, split_k - 1))
        inbox = cute.make_tensor(cute.recast_ptr(memory, dtype=self.acc_dtype), layout)
        send = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), self.acc_dtype, num_bits_per_copy=128)
        own = cute.make_rmem_tensor((4, eights * atoms), self.acc_dtype)
        four = cute.make_rmem_tensor((4,), self.acc_dtype)
        for other in range_constexpr(split_k):
            remote = cute.make_tensor(arch.map_dsmem_ptr(inbox.iterator, other), layout)
            full = arch.map_dsmem_ptr(arrived, other)
            slot = select_(rank < other, rank, rank - 1)  # a CTA has a slot for each other
            for i in range_constexpr(eights * atoms):
                first = 4 * (other * eights + i % eights + i // eights * eights * split_k)
                for j in range_constexpr(4):
                    mine = acc[first + j]
                    own[j, i] = mine if other == 0 else select_(rank == other, mine, own[j, i])
            if rank != other:
                for i in range_constexpr(eights * atoms):
                    first = 4 * (other * eights + i % eights + i // eights * eights * split_k)
                    for j in range_constexpr(4):
                        four[j] = acc[first + j]
                    cute.copy(send, four, remote[None, thread, i, slot], mbar_ptr=full)
        arch.mbarrier_wait(arrived, 0)
        total = cute.make_rmem_tensor(((2, 2, eights), atoms, 1), self.acc_dtype)
        for i in range_constexpr(eights * atoms):
            for source in range_constexpr(split_k):
                slot = min(select_(rank < source, source - 1, source), split_k - 2)
                for j in range_constexpr(4):
                    value = select_(rank == source, own[j, i], inbox[j, thread, i, slot])
                    total[4 * i + j] = value if source == 0 else total[4 * i + j] + value
        return total

    def sync(self) -> None:
        """Wait for the warpgroups that share a tile."""
        number = 0
        if self.config.pingpong:
            number = self.roles.index(arch.make_warp_uniform(arch.warp_idx()), "consumer")
        self.roles.barrier("epilogue", number).arrive_and_wait()

    def finish(self) -> None:
        """Do nothing: no store is in flight."""
