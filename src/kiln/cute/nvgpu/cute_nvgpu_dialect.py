"""`cutlass._mlir.dialects.cute_nvgpu`: Kiln's dialect, with names that programs use to make TMA atoms."""

from __future__ import annotations

import enum
from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import NumericMeta
from ..deferred_dialects import nvgpu
from ..layout.layout import Layout, size
from ..tensor.tensor import TracedTensor
from .tma_atom import atom_of_values
from .tma_ops import CopyBulkTensor2DGather4G2SOp, CtaGroup, TmaLoadTrait


class TmaDescriptorTiledType:
    """The type of a tensor map."""

    @classmethod
    def get(cls) -> TmaDescriptorTiledType:
        """Return the type."""
        return cls()


class GatherScatterTmaLoadEnum(enum.Enum):
    """Which loads of rows by their numbers: one CTA's, or those of a pair."""

    sm_100 = CtaGroup.ONE
    sm_100_2sm = CtaGroup.TWO


CopyAtomNonExec2DGather4TmaLoadType = TmaLoadTrait


def atom_make_non_exec_2d_gather4_tma_load(
    gmem: TracedTensor,
    coord_layout: Layout,
    smem_layout: object,
    cta_v_map: Layout,
    op: GatherScatterTmaLoadEnum,
    *,
    num_multicast: int = 1,
    loc: object = None,
    ip: object = None,
) -> tuple[object, TracedTensor]:
    """Return the trait of a TMA load of rows by their numbers (`gather4`) and its coordinate tensor.

    Copies take the rows from a tensor beside the coordinate tensor, whose layout `coord_layout` maps the coordinates
    of `gmem` to the places of the rows in it: `cute.copy(atom, [coordinates, rows], dst)`.
    """
    if size(coord_layout) != size(gmem.layout):
        raise type_error(f"coord_layout is {coord_layout}: a layout of the shape of the tensor, {gmem.layout}")
    gather = CopyBulkTensor2DGather4G2SOp(GatherScatterTmaLoadEnum(op).value)
    info = atom_of_values(gather, gmem, smem_layout, cta_v_map, num_multicast, None)
    return info.atom.trait, info.tma_tensor


def atom_make_non_exec_tiled_tma_load(
    gmem: TracedTensor,
    smem_layout: object,
    cta_v_map: Layout,
    op: Any,
    *,
    num_multicast: int = 1,
    internal_type: Any = None,
    tma_format: object = None,
    loc: object = None,
    ip: object = None,
) -> tuple[object, TracedTensor]:
    """Return the trait of a TMA load and its coordinate tensor; `cta_v_map` maps the values of a tile to coordinates of
    the tensor. `cute.CopyAtom(op, trait)` is the atom.

    `tma_format` may be the numeric type of the elements that TMA sees, as `internal_type` is.
    """
    if isinstance(tma_format, NumericMeta):
        internal_type = tma_format
    elif tma_format is not None:
        raise type_error(f"tma_format is {tma_format!r}", "the numeric type of the elements that TMA sees, or None")
    info = atom_of_values(op, gmem, smem_layout, cta_v_map, num_multicast, internal_type)
    return info.atom.trait, info.tma_tensor


def __getattr__(name: str) -> Any:
    return getattr(nvgpu, name)
