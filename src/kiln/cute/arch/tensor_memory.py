"""Tensor memory of sm_100 to sm_110: allocation, and waiting for loads and stores."""

from __future__ import annotations

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32, Uint32
from ...hardware import architectures
from ..deferred_dialects import nvgpu
from ..tensor.pointer import AddressSpace, Pointer, pointer_from_address, recast_ptr
from .values import choice, i32, kernel_only, pointer

__all__ = [
    "alloc_tmem",
    "dealloc_tmem",
    "fence_view_async_tmem_load",
    "fence_view_async_tmem_store",
    "get_max_tmem_alloc_cols",
    "get_min_tmem_alloc_cols",
    "relinquish_tmem_alloc_permit",
    "retrieve_tmem_ptr",
]

_LEAST_COLUMNS = 32


def _columns(arch: object, what: str) -> int:
    generation = architectures.generation_of(str(arch))
    if not generation.tmem_columns:
        raise type_error(f"{what} has no tensor memory for the architecture {arch!r}", "sm_100, sm_103 or sm_110")
    return generation.tmem_columns


def get_max_tmem_alloc_cols(compute_capability: str) -> int:
    """Return the most columns of tensor memory that a CTA can allocate.

    Args:
        compute_capability: the architecture, such as "sm_100"; one without tensor memory raises TypeError.
    """
    return _columns(compute_capability, "get_max_tmem_alloc_cols")


def get_min_tmem_alloc_cols(compute_capability: str) -> int:
    """Return the fewest columns of tensor memory that a CTA can allocate.

    Args:
        compute_capability: the architecture, such as "sm_100"; one without tensor memory raises TypeError.
    """
    _columns(compute_capability, "get_min_tmem_alloc_cols")
    return _LEAST_COLUMNS


def check_columns(num_columns: object, what: str, arch: object = "sm_100") -> None:
    """Raise an error for a number of columns that cannot be allocated, if it is known."""
    most = _columns(arch, what)
    if not isinstance(num_columns, int):
        return
    if not _LEAST_COLUMNS <= num_columns <= most or num_columns & (num_columns - 1):
        raise type_error(
            f"num_columns of {what} is {num_columns}", f"a power of two from {_LEAST_COLUMNS} to {most} columns"
        )


def _group(is_two_cta: object) -> int:
    return 2 if is_two_cta else 1


def alloc_tmem(
    num_columns: object,
    smem_ptr_to_write_address: object,
    is_two_cta: bool | None = None,
    *,
    arch: str = "sm_100",
    loc: object = None,
    ip: object = None,
) -> None:
    """Allocate columns of tensor memory, and write their address to shared memory. Needs sm_100a, sm_103a or sm_110a.

    One warp executes it. It waits until the columns are free.

    Args:
        num_columns: a power of two from 32 to 512, else TypeError is raised.
        smem_ptr_to_write_address: 4 bytes of shared memory for the address, which `retrieve_tmem_ptr` reads.
        is_two_cta: one warp of each CTA of a pair executes it, and both CTAs get the same columns.
        arch: the architecture whose limits are checked.
    """
    kernel_only("alloc_tmem")
    check_columns(num_columns, "alloc_tmem", arch)
    place = pointer(smem_ptr_to_write_address, "alloc_tmem", "smem")
    nvgpu.tcgen05.tcgen05_alloc(place, i32(num_columns), cta_group=_group(is_two_cta))


def retrieve_tmem_ptr(
    element_type: object, alignment: int, ptr_to_buffer_holding_addr: object, *, loc: object = None, ip: object = None
) -> Pointer:
    """Return the pointer to tensor memory whose address `alloc_tmem` wrote to shared memory.

    Args:
        element_type: the element type of the pointer.
        alignment: the bytes that the address is known to be a multiple of; 16 is safe.
        ptr_to_buffer_holding_addr: where `alloc_tmem` wrote the address; a barrier comes before.
    """
    kernel_only("retrieve_tmem_ptr")
    holder = ptr_to_buffer_holding_addr
    if not isinstance(holder, Pointer) or holder.memspace not in (AddressSpace.smem, AddressSpace.generic):
        raise type_error(
            f"retrieve_tmem_ptr takes a pointer to shared memory, got {holder}", "what alloc_tmem wrote to"
        )
    address = recast_ptr(holder, dtype=Int32).load() if holder.dtype not in (Int32, Uint32) else holder.load()
    return pointer_from_address(address, element_type, AddressSpace.tmem, alignment)


def relinquish_tmem_alloc_permit(is_two_cta: bool | None = None, *, loc: object = None, ip: object = None) -> None:
    """Give up the right to allocate tensor memory, so that other CTAs of the SM can. One warp executes it.

    Needs sm_100a, sm_103a or sm_110a.

    Args:
        is_two_cta: one warp of each CTA of a pair executes it.
    """
    kernel_only("relinquish_tmem_alloc_permit")
    nvgpu.tcgen05.tcgen05_relinquish_alloc_permit(cta_group=_group(is_two_cta))


def dealloc_tmem(
    tmem_ptr: object,
    num_columns: object,
    is_two_cta: bool | None = None,
    *,
    arch: str = "sm_100",
    loc: object = None,
    ip: object = None,
) -> None:
    """Free the columns that one `alloc_tmem` allocated. One warp executes it, after all loads and MMAs are complete.

    Needs sm_100a, sm_103a or sm_110a.

    Args:
        tmem_ptr: the pointer of `retrieve_tmem_ptr`.
        num_columns: as many as were allocated.
        is_two_cta: one warp of each CTA of a pair executes it.
        arch: the architecture whose limits are checked.
    """
    kernel_only("dealloc_tmem")
    check_columns(num_columns, "dealloc_tmem", arch)
    if not isinstance(tmem_ptr, Pointer) or tmem_ptr.memspace is not AddressSpace.tmem:
        raise type_error(f"dealloc_tmem takes a pointer to tensor memory, got {tmem_ptr}", "retrieve_tmem_ptr(...)")
    address, _ = tmem_ptr.tmem_address()
    nvgpu.tcgen05.tcgen05_dealloc(address.ir_value(), i32(num_columns), cta_group=_group(is_two_cta))


def _wait(what: str, kind: object) -> None:
    kernel_only(what)
    nvgpu.tcgen05.tcgen05_wait(kind={"load": "ld", "store": "st"}[choice("kind", kind, ("load", "store"))])


def fence_view_async_tmem_load(*, kind: object = "load", loc: object = None, ip: object = None) -> None:
    """Wait until the loads of tensor memory that the warp issued are complete (`tcgen05.wait::ld`).

    Needs sm_100a, sm_103a or sm_110a.

    Args:
        kind: "load"; "store" waits for stores instead.
    """
    _wait("fence_view_async_tmem_load", kind)


def fence_view_async_tmem_store(*, kind: object = "store", loc: object = None, ip: object = None) -> None:
    """Wait until the stores to tensor memory that the warp issued are complete (`tcgen05.wait::st`).

    Needs sm_100a, sm_103a or sm_110a.

    Args:
        kind: "store"; "load" waits for loads instead.
    """
    _wait("fence_view_async_tmem_store", kind)
