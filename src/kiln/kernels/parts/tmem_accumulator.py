"""Accumulators in tensor memory, as epilogues take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ... import cute
from ...cute import arch
from ...cute.nvgpu import tcgen05

if TYPE_CHECKING:
    from ... import Int32, pipeline


class TmemLoad:
    """How the four warps of an epilogue load an accumulator (M, N) of their CTA from tensor memory: `columns` at a time."""

    __kiln_immutable__ = True

    def __init__(self, atom: cute.CopyAtom, accumulator: cute.Tensor, columns: int, thread: Int32) -> None:
        self.tile: tuple[int, int] = (cute.size(accumulator.shape[0]), columns)
        by_subtile = cute.flat_divide(accumulator, self.tile)
        self.tiled_copy: cute.TiledCopy = tcgen05.make_tmem_copy(atom, by_subtile[None, None, 0, 0])
        self.thread = thread
        self.first_lane: Int32 = arch.make_warp_uniform(thread // 32) * 32
        """The first thread of this warp, whose address of tensor memory is that of all."""

    def source(self, accumulator: cute.Tensor) -> cute.Tensor:
        """Return this thread's part of an accumulator: (copy, rows, columns, 1, subtiles)."""
        return self.tiled_copy.get_slice(self.first_lane).partition_S(cute.flat_divide(accumulator, self.tile))

    def partition(self, tile: cute.Tensor) -> cute.Tensor:
        """Return the elements of a tile (M, N) that this thread loads: (copy, rows, columns, 1, subtiles)."""
        return self.tiled_copy.get_slice(self.thread).partition_D(cute.flat_divide(tile, self.tile))


class TmemAccumulator:
    """The accumulator of a tile in tensor memory, of which a thread loads a subtile when it is asked for.

    `full` is the stage of the pipeline by which the MMAs hand it over; one thread of each warp releases it.
    """

    __kiln_immutable__ = True

    def __init__(
        self, load: TmemLoad, accumulator: cute.Tensor, full: pipeline.PipelineConsumer.ImmutableResourceHandle
    ) -> None:
        self.load = load
        self.accumulator = accumulator
        self.full = full

    @property
    def num_subtiles(self) -> int:
        return cute.size(self.accumulator.shape[1]) // self.load.tile[1]

    @property
    def subtile_shape(self) -> cute.Shape:
        one = cute.make_identity_tensor(self.load.tile)
        return self.load.tiled_copy.get_slice(0).partition_D(one).shape

    def subtile(self, number: Int32 | int) -> cute.Tensor:
        values = cute.make_rmem_tensor(self.subtile_shape, self.accumulator.element_type)
        cute.copy(self.load.tiled_copy, self.load.source(self.accumulator)[None, None, None, 0, number], values)
        arch.fence_view_async_tmem_load()
        return values

    def coord(self, coords: cute.Tensor, number: Int32 | int, element: int) -> tuple[Int32, Int32]:
        return cast("tuple[Int32, Int32]", coords[None, None, None, 0, number][element])

    def partition(self, tile: cute.Tensor) -> cute.Tensor:
        return self.load.partition(tile)

    @cute.jit
    def release(self):
        with arch.elect_one():
            self.full.release()
