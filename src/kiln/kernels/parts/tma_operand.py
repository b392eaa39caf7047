"""Operands that TMA copies: the atom, the stages in shared memory, their partition, and the bytes that a barrier expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ... import Int32, cute, pipeline
from ...cute import arch
from ...cute.nvgpu import cpasync, make_tiled_tma_atom_A, make_tiled_tma_atom_B
from ...utils import sm100

if TYPE_CHECKING:
    from ... import Int16
    from ...utils import SmemAllocator


class TmaOperand(NamedTuple):
    """An array whose tiles TMA copies to stages in shared memory, or from there.

    A stage has the part of a tile that one CTA loads. With WGMMA that is the whole tile. The CTAs of a pair (tcgen05)
    each load the part that the pair's tiled MMA gives them, and count bytes at one barrier: `of_mma` and `stage_bytes`
    take the tiled MMA, and `partition` what the CTA's slice of it has.
    """

    atom: cute.CopyAtom
    tensor: cute.Tensor
    """The TMA coordinates of the array."""
    smem_layout: cute.ComposedLayout
    """The layout of all stages: (row, column, stage), or (MMA, MMA_M, MMA_K, stage) with tcgen05."""
    tile: cute.Layout
    """Has the shape of a tile of the array; a layout, so that it is known when the kernel is compiled."""

    @classmethod
    def load(
        cls,
        x: cute.Tensor,
        smem_layout: cute.ComposedLayout,
        tile: cute.Shape,
        num_multicast: int = 1,
        box: cute.ComposedLayout | None = None,
    ) -> TmaOperand:
        """Return the operand for loads of tiles, each by `num_multicast` CTAs for each other; on the host.

        `box`: the layout of what one copy loads, where that is a part of a stage and `tile` its shape.
        """
        op = cpasync.CopyBulkTensorTileG2SMulticastOp() if num_multicast > 1 else cpasync.CopyBulkTensorTileG2SOp()
        one_stage = _one_stage(smem_layout if box is None else box)
        atom, tensor = cpasync.make_tiled_tma_atom(op, x, one_stage, tile, num_multicast)
        return cls(atom, tensor, smem_layout, cute.make_layout(tile))

    @classmethod
    def store(cls, x: cute.Tensor, smem_layout: cute.ComposedLayout, tile: cute.Shape) -> TmaOperand:
        """Return the operand for stores of tiles; on the host."""
        op = cpasync.CopyBulkTensorTileS2GOp()
        atom, tensor = cpasync.make_tiled_tma_atom(op, x, _one_stage(smem_layout), tile)
        return cls(atom, tensor, smem_layout, cute.make_layout(tile))

    @classmethod
    def of_mma(
        cls,
        name: Literal["A", "B"],
        x: cute.Tensor,
        smem_layout: cute.ComposedLayout,
        tile_mnk: tuple[int, int, int],
        mma: cute.TiledMma,
        cluster_shape: tuple[int, int, int] = (1, 1, 1),
    ) -> TmaOperand:
        """Return operand A (M, K) or B (N, K) of tcgen05; on the host."""
        if name == "A":
            make = make_tiled_tma_atom_A
            op = sm100.cluster_shape_to_tma_atom_A(cluster_shape, mma.thr_id)
        else:
            make = make_tiled_tma_atom_B
            op = sm100.cluster_shape_to_tma_atom_B(cluster_shape, mma.thr_id)
        ctas = cute.tiled_divide(cute.make_layout(cluster_shape), (mma.thr_id.shape,)).shape
        atom, tensor = make(op, x, _one_stage(smem_layout), tile_mnk, mma, ctas)
        return cls(atom, tensor, smem_layout, cute.make_layout((tile_mnk["AB".index(name)], tile_mnk[2])))

    @property
    def dtype(self) -> type[cute.Numeric]:
        """The type of the elements in shared memory."""
        return self.atom.value_type

    def stage_bytes(self, mma: cute.TiledMma | None = None) -> int:
        """Return the bytes that fill a stage, in all CTAs of a pair with the tiled MMA of one."""
        ctas = 1 if mma is None else cute.size(mma.thr_id.shape)
        return ctas * cute.size_in_bytes(self.dtype, _one_stage(self.smem_layout))

    def allocate(self, smem: SmemAllocator) -> cute.Tensor:
        """Allocate the stages."""
        return smem.allocate_tensor(self.dtype, self.smem_layout.outer, 1024, self.smem_layout.inner)

    def at(self, coord: cute.Coord) -> TmaOperand:
        """Return the operand for the part of the array that begins at a coordinate."""
        return self._replace(tensor=cute.domain_offset(coord, self.tensor))

    def tiles(self, coord: cute.Coord) -> cute.Tensor:
        """Return the tiles of the array at a coordinate; None takes all of a mode."""
        return cute.local_tile(self.tensor, self.tile.shape, coord)

    def partition(
        self, stages: cute.Tensor, tiles: cute.Tensor, cta: Int32 | int = 0, num_multicast: int = 1
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """Return stages in smem and tiles in gmem, partitioned for CTA `cta` of those that load for each other.

        With tcgen05, `tiles` are what the CTA's slice of the tiled MMA has of them: `thr_mma.partition_A(tiles)`.
        """
        modes = cute.rank(self.smem_layout) - 1
        return cpasync.tma_partition(
            self.atom,
            cta,
            cute.make_layout(num_multicast),
            cute.group_modes(stages, 0, modes),
            cute.group_modes(tiles, 0, modes),
        )


def _one_stage(smem_layout: cute.ComposedLayout) -> cute.ComposedLayout:
    return cute.slice_(smem_layout, (*(None,) * (cute.rank(smem_layout) - 1), 0))


def cluster_coord(cluster_shape_mn: tuple[int, int]) -> tuple[cute.Layout, tuple[Int32, ...]]:
    """Return the layout of a cluster and the coordinate of this CTA in it."""
    cluster = cute.make_layout((*cluster_shape_mn, 1))
    coord = cluster.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
    return cluster, cast("tuple[Int32, ...]", coord)


class TmaLoads(NamedTuple):
    """The TMA loads of an operand by this CTA: source, stages in smem, and the CTAs that receive them."""

    atom: cute.CopyAtom
    source: cute.Tensor
    stages: cute.Tensor
    multicast_mask: Int16 | int

    @classmethod
    def make(
        cls, operand: TmaOperand, stages: cute.Tensor, cluster: cute.Layout, cta: tuple[Int32, ...], mode: int
    ) -> TmaLoads:
        """Return the loads of the CTA at a coordinate of a cluster, of tiles that the CTAs along a mode of it share."""
        count = cute.size(cluster, mode=[mode])
        stages, source = operand.partition(stages, operand.tiles((None, None, None)), cta[mode], count)
        mask = cute.make_layout_image_mask(cluster, cta, mode) if count > 1 else 0
        return cls(operand.atom, source, stages, mask)

    def of_tile(self, row: Int32, batch: Int32) -> TmaLoads:
        """Return the loads of all K tiles of a row of tiles."""
        return self._replace(source=self.source[None, row, None, batch])

    def issue(self, k_tile: Int32 | int, stage: Int32 | int, barrier: cute.Pointer) -> None:
        """Load a K tile of a row of tiles into a stage; its barrier counts the bytes."""
        cute.copy(
            self.atom,
            self.source[None, k_tile],
            self.stages[None, stage],
            tma_bar_ptr=barrier,
            mcast_mask=self.multicast_mask,
        )


def tma_pipe(stages: int, warps: int, size: int) -> pipeline.PipelineTmaAsync:
    """Return a pipeline whose stages of `size` bytes TMA fills and `warps` warps empty.

    Its barriers are usable after `pipeline_init_wait`."""
    return pipeline.PipelineTmaAsync.create(
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
        tx_count=size,
        defer_sync=True,
    )
