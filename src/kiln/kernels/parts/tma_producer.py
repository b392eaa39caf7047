"""TMA loads of an operand's tiles into the stages of a pipeline, as a producer warp issues them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import cute
from ...cute import arch
from ...cute.nvgpu import cpasync


class TmaOperand(NamedTuple):
    """An operand (rows, K, L) of TMA loads: the copy atom, TMA coordinates, and the smem layout of its stages."""

    atom: Any
    coords: Any
    smem_layout: Any

    @classmethod
    def make(cls, x: Any, smem_layout: Any, tile: tuple[int, int], num_multicast: int) -> TmaOperand:
        """Return the operand for tiles that `num_multicast` CTAs load for each other. Called on the host."""
        op: Any = cpasync.CopyBulkTensorTileG2SMulticastOp() if num_multicast > 1 else cpasync.CopyBulkTensorTileG2SOp()
        one_stage = cute.slice_(smem_layout, (None, None, 0))
        atom, coords = cpasync.make_tiled_tma_atom(op, x, one_stage, tile, num_multicast)
        return cls(atom, coords, smem_layout)


def cluster_coord(cluster_shape_mn: tuple[int, int]) -> tuple[Any, Any]:
    """Return the layout of a cluster and the coordinate of this CTA in it."""
    cluster = cute.make_layout((*cluster_shape_mn, 1))
    return cluster, cluster.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))


class TmaLoads(NamedTuple):
    """The TMA loads of an operand by this CTA: source, stages in smem, and the CTAs that receive them."""

    atom: Any
    source: Any
    stages: Any
    multicast_mask: Any

    @classmethod
    def make(
        cls, operand: TmaOperand, stages: Any, tile: tuple[int, int], cluster: Any, cta: Any, mode: int
    ) -> TmaLoads:
        """Return the loads of the CTA at a coordinate of a cluster, of tiles that the CTAs along a mode of it share."""
        count = cute.size(cluster, mode=[mode])
        tiles = cute.local_tile(operand.coords, tile, (None, None, None))
        stages, source = cpasync.tma_partition(
            operand.atom,
            cta[mode],
            cute.make_layout(count),
            cute.group_modes(stages, 0, 2),
            cute.group_modes(tiles, 0, 2),
        )
        mask = cute.make_layout_image_mask(cluster, cta, mode) if count > 1 else 0
        return cls(operand.atom, source, stages, mask)

    def of_tile(self, row: Any, batch: Any) -> TmaLoads:
        """Return the loads of all K tiles of a row of tiles."""
        return self._replace(source=self.source[None, row, None, batch])

    def issue(self, k_tile: Any, stage: Any, barrier: Any) -> None:
        """Load a K tile of a row of tiles into a stage; its barrier counts the bytes."""
        cute.copy(
            self.atom,
            self.source[None, k_tile],
            self.stages[None, stage],
            tma_bar_ptr=barrier,
            mcast_mask=self.multicast_mask,
        )
