"""TMA descriptors that a kernel edits while it runs: for groups of tensors whose shapes the host does not know."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Int64
from ..cute import arch
from ..cute.atoms.copying import guarded
from ..cute.nvgpu import cpasync
from ..cute.tensor.iterator import AddressSpace
from ..cute.tensor.pointer import Pointer, recast_ptr
from ..dialects import cute


class TensorMapUpdateMode(enum.Enum):
    """Where a TMA descriptor is edited: in global memory, where copies read it, or in shared memory, from where it is
    copied there."""

    GMEM = enum.auto()
    SMEM = enum.auto()


@dataclass(frozen=True)
class TensorMapManager:
    """Edits copies of atoms' TMA descriptors in the order that copies need.

    A warp initialises a copy (`init_tensormap_from_atom`; in shared memory, or with `GMEM` in global memory), and all
    that edit it make that visible (`fence_tensormap_initialization`, after a barrier if another warp did it).
    `update_tensormap` writes the descriptors of other tensors, and every warp that copies with them calls
    `fence_tensormap_update` first. Copies with an old descriptor must be complete before: stores are waited for here,
    loads by their mbarriers.
    """

    tensormap_update_mode: TensorMapUpdateMode
    bytes_per_tensormap: int = 128

    __kiln_immutable__ = True

    def __post_init__(self) -> None:
        if not isinstance(self.tensormap_update_mode, TensorMapUpdateMode):
            raise type_error(
                f"tensormap_update_mode is {self.tensormap_update_mode!r}",
                "TensorMapUpdateMode.GMEM or TensorMapUpdateMode.SMEM",
            )
        if self.bytes_per_tensormap != 128:
            raise type_error(f"bytes_per_tensormap is {self.bytes_per_tensormap}: a map has 128 bytes")

    def get_tensormap_ptr(
        self, ptr: object, address_space: AddressSpace = AddressSpace.gmem, *, loc: object = None, ip: object = None
    ) -> Pointer:
        """Return a place in global memory as a pointer to a TMA descriptor, generic for `tma_desc_ptr` of copies."""
        if not isinstance(ptr, Pointer) or ptr.memspace not in (AddressSpace.gmem, AddressSpace.generic):
            got = f"one to {ptr.memspace}" if isinstance(ptr, Pointer) else type(ptr).__name__
            raise type_error(f"get_tensormap_ptr takes a pointer to gmem, got {got}")
        if address_space not in (AddressSpace.gmem, AddressSpace.generic):
            raise type_error(
                f"a tensor map that copies use is in global memory, not in {address_space}",
                "AddressSpace.gmem or AddressSpace.generic",
            )
        words = recast_ptr(ptr, None, Int64)
        if words.memspace is address_space:
            return words
        kind = cute.ptr_type(Int64.mlir_type, address_space.name, words.alignment)
        return Pointer(cute.cast_ptr(words.ir_value(), kind), Int64, address_space, words.alignment)

    def init_tensormap_from_atom(
        self, copy_atom: object, dst_ptr: object, warp_id: int, *, loc: object = None, ip: object = None
    ) -> None:
        """Let warp `warp_id` copy the TMA descriptor of an atom to where it will be edited."""

        def initialize() -> None:
            with arch.elect_one():
                cpasync.copy_tensormap(copy_atom, dst_ptr)
            arch.sync_warp()

        guarded(_this_warp() == warp_id, initialize)

    def fence_tensormap_initialization(self, *, loc: object = None, ip: object = None) -> None:
        """Make initialised descriptors visible to the threads that edit them."""
        arch.fence_acq_rel_cta()

    def update_tensormap(
        self,
        tensor_gmem: Any,
        tma_copy_atom: Any,
        tensormap_gmem_ptr: Any,
        warp_id: int,
        tensormap_smem_ptr: Any = None,
        *,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Let warp `warp_id` write the descriptors of other tensors.

        Takes tuples: tensors, their atoms, where copies read the descriptors, and with `SMEM` where they are edited.
        """
        in_smem = self.tensormap_update_mode is TensorMapUpdateMode.SMEM
        edited = tensormap_smem_ptr if in_smem else tensormap_gmem_ptr
        parts = {
            "tensors": tensor_gmem,
            "atoms": tma_copy_atom,
            "pointers to gmem": tensormap_gmem_ptr,
            "pointers": edited,
        }
        counts = {what: len(x) if isinstance(x, (tuple, list)) else None for what, x in parts.items()}
        if None in counts.values() or len(set(counts.values())) != 1:
            text = ", ".join(
                f"{count if count is not None else 'no tuple'} of {what}" for what, count in counts.items()
            )
            raise type_error(f"update_tensormap takes as many of each: {text}")

        def edit() -> None:
            for atom, tensor, place in zip(tma_copy_atom, tensor_gmem, edited, strict=True):
                cpasync.update_tma_descriptor(atom, tensor, place)

        def update() -> None:
            if in_smem:
                edit()
            with arch.elect_one():  # this lane issues the stores: they no longer read the old descriptor
                arch.cp_async_bulk_commit_group()
                arch.cp_async_bulk_wait_group(0, read=True)
            arch.sync_warp()
            if in_smem:
                for target, source in zip(tensormap_gmem_ptr, edited, strict=True):
                    cpasync.cp_fence_tma_desc_release(target, source)
                return
            edit()
            arch.sync_warp()
            cpasync.fence_tma_desc_release()

        guarded(_this_warp() == warp_id, update)

    def fence_tensormap_update(self, tensormap_ptr: object, *, loc: object = None, ip: object = None) -> None:
        """Let later copies see the descriptor as it was last released."""
        cpasync.fence_tma_desc_acquire(tensormap_ptr)


def _this_warp() -> Any:
    return arch.make_warp_uniform(arch.warp_idx())
