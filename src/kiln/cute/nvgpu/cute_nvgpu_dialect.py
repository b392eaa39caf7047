"""`cutlass._mlir.dialects.cute_nvgpu`: Kiln's dialect, with names that programs use to make TMA atoms."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import NumericMeta
from ..deferred_dialects import nvgpu
from .tma_atom import atom_of_values


class TmaDescriptorTiledType:
    """The type of a tensor map."""

    @classmethod
    def get(cls) -> TmaDescriptorTiledType:
        """Return the type."""
        return cls()


def atom_make_non_exec_tiled_tma_load(
    gmem: Any,
    smem_layout: Any,
    cta_v_map: Any,
    op: Any,
    *,
    num_multicast: int = 1,
    internal_type: Any = None,
    tma_format: object = None,
    loc: object = None,
    ip: object = None,
) -> tuple[Any, Any]:
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
