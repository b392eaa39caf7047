"""GEMM with tcgen05 of operands with scale factors: one for each vector of 16 or 32 elements along K.

In global memory scale factors lie in atoms of 512 bytes, of 128 rows and four vectors, as the hardware wants them. TMA
loads those of a tile beside its operands; the warp that issues MMAs copies them to tensor memory first, for all four
quarters of its lanes, which the MMAs behind wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .... import Float4E2M1FN, Float8E4M3FN, Float8E8M0FNU, Int16, Int32, cute
from ....cute.nvgpu import cpasync, make_tiled_tma_atom_A, make_tiled_tma_atom_B, tcgen05
from ....utils import blockscaled_layout, sm100
from ...parts.scale_atoms import SCALE_ATOM
from ...parts.tma_operand import TmaLoads
from .sm100 import Sm100GemmKernel, major
from .sm100_config import CTA_M

if TYPE_CHECKING:
    from .... import utils
    from ....utils.schedulers import GemmTile, PersistentTileScheduler
    from .problem import Operand
    from .sm100_config import Sm100GemmConfig
    from .sm100_epilogue import Sm100Epilogue

_ONE_STAGE = (None, None, None, 0)


class ScaleOperand(NamedTuple):
    """Scale factors that TMA loads: those of A, of which a CTA of a pair has its rows, or of B, which it has all."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    smem_layout: cute.Layout
    """The layout of all stages: ((row, element), rest of rows, rest of K, stage); elements of a vector have stride 0."""
    tile: cute.Layout
    """Has the shape of a tile, in elements; a layout, so that it is known when the kernel is compiled."""
    mma: cute.TiledMma
    """The tiled MMA by which the CTAs of a pair have parts of a tile: that of one CTA for B."""
    of_b: cute.Layout
    """Has the size 1 for those of A, 2 for those of B."""

    def allocate(self, smem: utils.SmemAllocator, dtype: type[cute.Numeric]) -> cute.Tensor:
        """Allocate the stages."""
        return smem.allocate_tensor(dtype, self.smem_layout, 128)

    def stage_bytes(self) -> int:
        """Return the bytes of a stage of one CTA."""
        return cute.size_in_bytes(Float8E8M0FNU, cute.filter_zeros(cute.slice_(self.smem_layout, _ONE_STAGE)))

    def loads(
        self, stages: cute.Tensor, cluster_shape_mn: tuple[int, int], place: tuple[Int32, ...], mma: cute.TiledMma
    ) -> TmaLoads:
        """Return the loads by this CTA, at a place of the cluster, of which others may need the same."""
        tiles = cute.local_tile(self.tensor, self.tile.shape, (None, None, None))
        ctas = cute.tiled_divide(cute.make_layout((*cluster_shape_mn, 1)), (self.mma.thr_id.shape,))
        if cute.size(self.of_b) == 1:
            mode = 2
            part = self.mma.get_slice(place[0]).partition_A(tiles)
        else:
            mode = 1
            pair = cute.size(mma.thr_id.shape)
            place = (Int32(0), place[1] * pair + place[0], *place[2:])
            part = self.mma.get_slice(0).partition_B(tiles)
        count = cute.size(ctas, mode=[mode])
        mask = cpasync.create_tma_multicast_mask(ctas, place, mode) if count > 1 else 0
        target, source = cpasync.tma_partition(
            self.atom,
            place[mode],
            cute.make_layout(count),
            cute.group_modes(stages, 0, 3),
            cute.group_modes(part, 0, 3),
        )
        return TmaLoads(self.atom, cute.filter_zeros(source), cute.filter_zeros(target), mask)


class ScaleCopy(NamedTuple):
    """The copy of scale factors of a stage to tensor memory, and where they are there."""

    copy: cute.TiledCopy
    source: cute.Tensor
    target: cute.Tensor
    scales_tmem: cute.Tensor

    @classmethod
    def make(cls, stages: cute.Tensor, scales_tmem: cute.Tensor, group: tcgen05.CtaGroup) -> ScaleCopy:
        """Return the copy of stages to scale factors in tensor memory, in one CTA or both of a pair."""
        to = cute.filter_zeros(scales_tmem)
        atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(group), stages.element_type)
        copy = tcgen05.make_s2t_copy(atom, to)
        one = copy.get_slice(0)
        source = tcgen05.get_s2t_smem_desc_tensor(copy, one.partition_S(cute.filter_zeros(stages)))
        return cls(copy, source, one.partition_D(to), scales_tmem)

    def issue(self, stage: Int32) -> None:
        """Copy the scale factors of a stage."""
        cute.copy(self.copy, self.source[None, None, None, None, stage], self.target)


class Sm100BlockScaledGemmKernel(Sm100GemmKernel):
    """The kernel for operands with scale factors of vectors."""

    num_scales = 2

    def __init__(
        self,
        a: Operand,
        b: Operand,
        batched: tuple[bool, bool, bool],
        config: Sm100GemmConfig,
        scheduler: PersistentTileScheduler,
        epilogue: Sm100Epilogue,
        vector: int,
    ) -> None:
        super().__init__(a, b, batched, config, scheduler, epilogue)
        self.vector = vector
        self.scale_dtype = Float8E8M0FNU if vector == 32 else Float8E4M3FN

    def operand_view(self, x: cute.Tensor, modes: list[int], batched: bool) -> cute.Tensor:
        """Return an operand with its modes in the order (M or N, K, L); bytes as the 4-bit floats that they hold."""
        x = super().operand_view(x, modes, batched)
        return cute.recast_tensor(x, Float4E2M1FN) if self.a.dtype is Float4E2M1FN else x

    @property
    def columns(self) -> int:
        return self.config.scaled_columns(self.vector)

    @property
    def group(self) -> tcgen05.CtaGroup:
        """Whether MMAs and copies are those of a pair."""
        return tcgen05.CtaGroup.TWO if self.config.pair else tcgen05.CtaGroup.ONE

    def mma(self) -> cute.TiledMma:
        return self.scaled_mma(self.group, self.config.mma_shape_mnk[:2])

    def scaled_mma(self, group: tcgen05.CtaGroup, shape: tuple[int, int]) -> cute.TiledMma:
        """Return the tiled MMA of one CTA or a pair."""
        return sm100.make_blockscaled_trivial_tiled_mma(
            self.a.dtype, self.b.dtype, major(self.a), major(self.b), self.scale_dtype, self.vector, group, shape
        )

    def scale_operands(
        self, scales: list[cute.Tensor], a: cute.Tensor, b: cute.Tensor, mma: cute.TiledMma
    ) -> list[ScaleOperand]:
        config = self.config
        tile = config.mma_shape_mnk
        _, n, k = tile
        of_b = self.scaled_mma(tcgen05.CtaGroup.ONE, (CTA_M, n))  # each CTA needs the scale factors of all columns
        cluster = (*config.cluster_shape_mn, 1)
        ops = (
            sm100.cluster_shape_to_tma_atom_A(cluster, mma.thr_id),
            sm100.cluster_shape_to_tma_atom_SFB(cluster, mma.thr_id),
        )
        layouts = (
            blockscaled_layout.make_smem_layout_sfa(mma, tile, self.vector, config.ab_stages),
            blockscaled_layout.make_smem_layout_sfb(mma, tile, self.vector, config.ab_stages),
        )
        makes = make_tiled_tma_atom_A, make_tiled_tma_atom_B
        operands = []
        for i, (x, scale, own, rows) in enumerate(zip((a, b), scales, (mma, of_b), (tile[0], n))):
            shape = x.shape
            if i == 0 and self.scheduler.ragged:  # groups begin with atoms, so that there are more rows
                shape = (scale.shape[1] * SCALE_ATOM[0], *x.shape[1:])
            if config.split_k > 1:
                shape = (*shape[:2], 1)
            atoms = blockscaled_layout.tile_atom_to_shape_SF(shape, self.vector)
            tensor = cute.make_tensor(cute.recast_ptr(scale.iterator, dtype=self.scale_dtype), atoms)
            ctas = cute.tiled_divide(cute.make_layout(cluster), (own.thr_id.shape,)).shape
            shape = tile if i == 0 else (CTA_M, n, k)
            one_stage = cute.slice_(layouts[i], _ONE_STAGE)
            atom, coords = makes[i](ops[i], tensor, one_stage, shape, own, ctas, internal_type=Int16)
            operands.append(
                ScaleOperand(atom, coords, layouts[i], cute.make_layout((rows, k)), own, cute.make_layout(1 + i))
            )
        return operands

    def scales_of_group(self, scales: list[ScaleOperand], tile: GemmTile) -> list[ScaleOperand]:
        of_a, of_b = scales
        rows = SCALE_ATOM[0]
        first = (tile.row_start // rows + tile.batch_b) * rows
        return [of_a._replace(tensor=cute.domain_offset((first, 0, 0), of_a.tensor)), of_b]

    def scale_copies(
        self, mma: cute.TiledMma, scales: list[ScaleOperand], stages: list[cute.Tensor], memory: cute.Pointer
    ) -> list[ScaleCopy]:
        config = self.config
        first = config.acc_stages * config.tile_shape_mnk[1]
        columns = first, first + config.scale_columns(CTA_M, self.vector)
        makes = blockscaled_layout.make_tmem_layout_sfa, blockscaled_layout.make_tmem_layout_sfb
        copies = []
        for make, x, stage, column in zip(makes, scales, stages, columns):
            layout = make(mma, config.mma_shape_mnk, self.vector, cute.slice_(x.smem_layout, _ONE_STAGE))
            scales_tmem = cute.make_tensor(cute.recast_ptr(memory + column, dtype=self.scale_dtype), layout)
            copies.append(ScaleCopy.make(stage, scales_tmem, self.group))
        return copies
