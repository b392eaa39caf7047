"""Operands of primitives: an Array stands for its first element, and so does a tensor map for its address."""

from __future__ import annotations

from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32, Int64
from ...cute import arch
from ...cute.arch.values import kernel_only
from ...cute.tensor.pointer import AddressSpace
from ...cute.tensor.raw_pointer import RawPointer, as_raw_pointer

_SHARED = (AddressSpace.smem, AddressSpace.dsmem, AddressSpace.generic)


def typed(address: Any, what: str) -> RawPointer:
    """Return an address, an Array, a pointer, a tensor map or an LLVM pointer, as a pointer."""
    kernel_only(what)
    address = address.get_ptr() if hasattr(address, "get_ptr") else address
    if not hasattr(address, "memspace") and not str(getattr(address, "type", "")).startswith("!llvm.ptr"):
        raise type_error(f"{what}() takes a Pointer or an Array, got {type(address).__name__}")
    return as_raw_pointer(_uncast(address))


def _uncast(address: Any) -> Any:
    """Return the pointer that an LLVM pointer into the cluster's shared memory was cast from: addresses are the same."""
    producer = getattr(getattr(address, "owner", None), "name", "")
    if str(getattr(address, "type", "")) == "!llvm.ptr<7>" and producer == "llvm.addrspacecast":
        return address.owner.operands[0]
    return address


def shared(address: object, what: str) -> RawPointer:
    """Return an address in the shared memory of this CTA, or of another one of the cluster, which may be generic."""
    pointer = typed(address, what)
    if pointer.memspace not in _SHARED:
        raise type_error(f"{what}() takes an address in shared memory, and this one is in {pointer.memspace}")
    return pointer


def far(address: object, what: str) -> ir.Value:
    """Return an address in global memory, or a generic one, as a value of the IR."""
    pointer = typed(address, what)
    if pointer.memspace not in (AddressSpace.gmem, AddressSpace.generic):
        raise type_error(f"{what}() takes an address in global memory, and this one is in {pointer.memspace}")
    return pointer.ir_value()


def is_remote(pointer: RawPointer) -> bool:
    """Return whether a pointer may point into the shared memory of another CTA, as those of `mapa` do."""
    return pointer.memspace in (AddressSpace.dsmem, AddressSpace.generic)


def word(pointer: RawPointer) -> Any:
    """Return an address in shared memory of the cluster as the 32 bits that PTX takes."""
    if pointer.memspace is not AddressSpace.generic:
        return pointer.toint()
    code = "{ .reg .b64 t; cvta.to.shared::cluster.u64 t, {$r0}; cvt.u32.u64 {$w0}, t; }"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[Int64(pointer.toint())])


def absent(what: str, **operands: object) -> None:
    """Raise an error for an operand that is given and that no instruction takes."""
    for name, value in operands.items():
        if value:
            raise type_error(f"{what}() with {name}={value!r}", "no instruction of PTX has it")


def policy(hint: object) -> ir.Value | None:
    """Return a cache policy, 64 bits, as a value of the IR; None without one."""
    return None if hint is None else Int64(hint).ir_value()
