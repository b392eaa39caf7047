"""The epilogue that stores by TMA: subtiles of an accumulator go through stages in shared memory.

It takes any `Accumulator`. What is computed of a subtile, and where it goes, a kernel says with its own `TileResults`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ... import const_expr, cute, range_constexpr
from ... import range as dynamic_range
from ...cute import arch
from ...cute.nvgpu import cpasync

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ... import Boolean, Int32, pipeline
    from .accumulator import Accumulator


class TmaStore(NamedTuple):
    """How one result is stored: from registers (R) to stages in shared memory (S), and from these to gmem (G)."""

    dtype: type[cute.Numeric]
    tiled_copy_r2s: cute.TiledCopy
    tRS_sD: cute.Tensor
    """This thread's elements of the stages, (copy, rows, columns, stage)."""
    atom: cute.CopyAtom
    bSG_sD: cute.Tensor
    bSG_gD: cute.Tensor
    """The stages, and the parts of the result that fill one, for the TMA atom."""

    @classmethod
    def make(
        cls, tiled_copy_r2s: cute.TiledCopy, thread: Int32, sD: cute.Tensor, atom: cute.CopyAtom, gD: cute.Tensor
    ) -> TmaStore:
        """Return the store of stages `sD` (row, column, stage) to tiles `gD` (row, column, coordinates of the tile)."""
        bSG_sD, bSG_gD = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(sD, 0, 2), cute.group_modes(gD, 0, 2)
        )
        tRS_sD = tiled_copy_r2s.get_slice(thread).partition_D(sD)
        return cls(sD.element_type, tiled_copy_r2s, tRS_sD, atom, bSG_sD, bSG_gD)


class TileResults:
    """The results that an epilogue stores of a tile: what they are, and where they go."""

    __kiln_immutable__ = True
    stores: Sequence[TmaStore]
    """How each result is stored. As a property it is computed where it is used, and takes no registers before."""

    def begin(self) -> None:
        """Do what comes before the first subtile, such as loads of epilogue inputs. The stages are free."""

    def combine(self, number: Int32 | int, values: cute.Tensor) -> Sequence[cute.TensorSSA]:
        """Return the results of a subtile, by its number, for each store."""
        raise NotImplementedError

    def coord(self, number: Int32 | int) -> tuple[Int32, ...]:
        """Return where the contents of a stage go, by the number of stages that were stored before."""
        raise NotImplementedError

    def by_tma(self, number: Int32 | int) -> Boolean | bool:
        """Return whether TMA may store a stage, by its number. It must not, if another tile has some of its rows."""
        return True

    def store_rows(self, coord: tuple[Int32, ...], stage: Int32) -> None:
        """Store a stage that TMA must not store, by all threads."""
        raise NotImplementedError

    def end(self) -> None:
        """Do what comes after the last subtile."""


class TmaStoreEpilogue:
    """Stores accumulators by TMA, as the threads that meet at `barrier`.

    The warp in which `is_leader` returns true issues the stores. Stages `first_stage` and following, `num_stages` of
    them, are used in turn: while TMA reads one, the next is written. `subtiles_per_stage` subtiles, side by side, fill a
    stage. Not `reused`: the only stage is stored once, and can be used for something else when `write` returns.
    """

    __kiln_immutable__ = True

    def __init__(
        self,
        barrier: pipeline.NamedBarrier,
        is_leader: Callable[[], Boolean],
        first_stage: Int32,
        num_stages: int = 1,
        subtiles_per_stage: int = 1,
        reused: bool = True,
    ) -> None:
        self.barrier = barrier
        self.is_leader = is_leader
        self.first_stage = first_stage
        self.num_stages = num_stages
        self.subtiles_per_stage = subtiles_per_stage
        self.reused = reused

    @cute.jit
    def write(self, acc: Accumulator, results: TileResults, unrolled: bool = True):
        """Store the results of an accumulator. Not `unrolled`: in a loop, if there is much code for a subtile."""
        num_stores = acc.num_subtiles // self.subtiles_per_stage
        if const_expr(self.num_stages > 1 and num_stores % self.num_stages > 0):
            self.drain()  # the stage of the last store of the tile before is that of the first of this one
        results.begin()
        numbers = range_constexpr(acc.num_subtiles) if unrolled else dynamic_range(acc.num_subtiles, unroll=1)
        for number in numbers:
            stored = number // self.subtiles_per_stage
            step = number % self.subtiles_per_stage
            stage = stored % self.num_stages
            loaded = acc.subtile(number)
            if const_expr(unrolled and number == acc.num_subtiles - 1):
                acc.release()
            values = results.combine(number, loaded)
            self.fill(results, values, acc.subtile_shape, stage, step)
            if const_expr(self.subtiles_per_stage == 1) or step == self.subtiles_per_stage - 1:
                self.store(results, stored, stage)
        results.end()
        if const_expr(not unrolled):
            acc.release()

    @cute.jit
    def fill(
        self,
        results: TileResults,
        values: Sequence[cute.TensorSSA],
        shape: cute.Shape,
        stage: Int32 | int,
        step: Int32 | int,
    ):
        """Convert the results of a subtile and write them to a stage, of which they are part `step`."""
        for i, _ in enumerate(results.stores):
            dtype = results.stores[i].dtype
            tRS_rD = cute.make_rmem_tensor(shape, dtype)
            tRS_rD.store(values[i].to(dtype).reshape(tRS_rD.shape))
            if const_expr(self.num_stages == 1 and self.reused and i == 0):
                self.drain()
            store = results.stores[i]
            tRS_rD = store.tiled_copy_r2s.retile(tRS_rD)
            tRS_sD = store.tRS_sD[None, None, None, self.first_stage + stage]
            if const_expr(self.subtiles_per_stage > 1):
                tRS_rD = tRS_rD[None, None, 0]
                tRS_sD = tRS_sD[None, None, step]
            cute.copy(store.tiled_copy_r2s, tRS_rD, tRS_sD)

    @cute.jit
    def store(self, results: TileResults, number: Int32 | int, stage: Int32 | int):
        """Store a stage that all threads have written. Then the next stage can be written."""
        slot = self.first_stage + stage
        if const_expr(self.num_stages == 1):
            self._meet()
            if results.by_tma(number):
                if self.is_leader():
                    self._issue(results, results.coord(number), slot)
                    arch.cp_async_bulk_commit_group()
                    if const_expr(not self.reused):
                        arch.cp_async_bulk_wait_group(0, read=True)
            else:
                results.store_rows(results.coord(number), slot)
        else:
            coord = results.coord(number)
            self._meet()
            by_tma = results.by_tma(number)
            if not by_tma:
                results.store_rows(coord, slot)
            if self.is_leader():
                if by_tma:
                    self._issue(results, coord, slot)
                arch.cp_async_bulk_commit_group()  # of nothing, too: waits count groups, one for each stage

    @cute.jit
    def _meet(self):
        """Wait until all threads have written a stage, and TMA has read the next one."""
        arch.fence_proxy("async.shared", space="cta")
        if const_expr(self.num_stages > 1):
            if self.is_leader():
                arch.cp_async_bulk_wait_group(self.num_stages - 2, read=True)
        self.barrier.arrive_and_wait()

    def _issue(self, results: TileResults, coord: tuple[Int32, ...], slot: Int32) -> None:
        for store in results.stores:
            cute.copy(store.atom, store.bSG_sD[None, slot], store.bSG_gD[(None, *coord)])

    @cute.jit
    def drain(self):
        """Wait, in all threads, until TMA has read all stages."""
        if self.is_leader():
            arch.cp_async_bulk_wait_group(0, read=True)
        self.barrier.arrive_and_wait()
