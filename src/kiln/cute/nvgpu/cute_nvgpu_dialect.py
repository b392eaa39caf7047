"""`cutlass._mlir.dialects.cute_nvgpu`: Kiln's dialect, with names that programs use to make TMA atoms."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import (
    BFloat16,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Float64,
    Int8,
    Int32,
    Int64,
    NumericMeta,
    TFloat32,
    Uint8,
)
from ..arch.values import kernel_only
from ..deferred_dialects import nvgpu
from ..layout.layout import Layout, size
from ..tensor.pointer import AddressSpace, Pointer
from ..tensor.tensor import TracedTensor
from .tma_atom import atom_of_values
from .tma_ops import CopyBulkTensor2DGather4G2SOp, CtaGroup, TmaLoadTrait, TmaTrait
from .warp.mma import WarpMmaOp, WarpMmaTrait


@dataclass(frozen=True)
class MmaAtomSM80Type:
    """The type of an MMA of a warp: its shape, and the types of A and B and of the accumulators in the IR."""

    shape_mnk: tuple[int, int, int]
    types: tuple[str, str, str]

    @classmethod
    def get(cls, shape_mnk: Sequence[int], a: object, b: object, acc: object) -> MmaAtomSM80Type:
        """Return the type."""
        for type_ in (a, b, acc):
            if str(type_) not in _NUMBERS:
                raise type_error(
                    f"an MMA of a warp has no elements of the type {type_}", f"one of {', '.join(_NUMBERS)}"
                )
        m, n, k = shape_mnk
        return cls((m, n, k), (str(a), str(b), str(acc)))


MmaAtomSM89Type = MmaAtomSM80Type

_NUMBERS = {
    "f16": Float16,
    "bf16": BFloat16,
    "tf32": TFloat32,
    "f32": Float32,
    "f64": Float64,
    "i32": Int32,
    "si32": Int32,
    "f8E4M3FN": Float8E4M3FN,
    "f8E5M2": Float8E5M2,
    "i8": Int8,
    "si8": Int8,
    "ui8": Uint8,
}
"""The numeric type of a type in the IR. Int8 and Uint8 are one there, unless it says which."""


def make_atom(ty: object, values: object = None, *, loc: object = None, ip: object = None) -> WarpMmaTrait:
    """Return the MMA that a type describes, as the value of a `Trait` which the method `_make_trait` of an operation makes.

    Args:
        ty: a type such as `MmaAtomSM80Type.get(shape, a, b, acc)`.
        values: None: such an MMA has no fields.
    """
    if not isinstance(ty, MmaAtomSM80Type):
        raise type_error(
            f"make_atom takes the type of an MMA of a warp, got {ty!r}", "MmaAtomSM80Type.get(shape, a, b, acc)"
        )
    a, b, acc = (_NUMBERS[name] for name in ty.types)
    return WarpMmaOp.of_types(a, b, acc, ty.shape_mnk).make_trait()


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


def atom_make_exec_tma(atom: TmaTrait, *, loc: object = None, ip: object = None) -> TmaTrait:
    """Return the trait of a TMA copy as it is: copies take their barrier when they are made."""
    return atom


def get_tma_desc_addr(type_: object, atom: TmaTrait, *, loc: object = None, ip: object = None) -> Pointer:
    """Return the address of the tensor map of a TMA copy, as a pointer to 64-bit words, whatever the type asks for."""
    kernel_only("get_tma_desc_addr")
    return Pointer(atom.address(), Int64, AddressSpace.generic, 64)


def __getattr__(name: str) -> Any:
    return getattr(nvgpu, name)
