"""Inline PTX with operands of the language."""

from __future__ import annotations

from collections.abc import Sequence

from ...base_dsl.typing import Int64, Numeric
from ...cute import arch
from ...cute.arch.inline_assembly import inline_ptx
from ...cute.tensor.pointer import AddressSpace
from .addresses import typed

__all__ = ["inline_ptx", "inline_ptx_hl", "ptx_add_comment"]


def inline_ptx_hl(
    ptx_code: str,
    *,
    write_only_types: Sequence[type[Numeric]] | None = None,
    read_only_args: Sequence[object] | None = None,
    read_write_args: Sequence[object] | None = None,
    pred: object = None,
    loc: object = None,
    ip: object = None,
) -> Numeric | tuple[Numeric, ...] | None:
    """Emit PTX as `inline_ptx` does; operands may also be Arrays, Pointers and tensor maps, as their addresses.

    An address in shared or tensor memory has 32 bits, others have 64. Threads where `pred` is false skip the code.
    """
    reads = [_register(x) for x in read_only_args or []]
    return arch.inline_ptx(
        ptx_code,
        write_only_types=write_only_types,
        read_only_args=reads,
        read_write_args=read_write_args,
        predicate=pred,
    )


def _register(operand: object) -> object:
    """Return what a register holds for an operand."""
    if not (hasattr(operand, "get_ptr") or hasattr(operand, "data_ptr") or hasattr(operand, "memspace")):
        return operand
    where = typed(operand, "inline_ptx_hl")
    near = where.memspace in (AddressSpace.smem, AddressSpace.dsmem, AddressSpace.tmem)
    return where.toint() if near else Int64(where.toint())


def ptx_add_comment(comment: str, *, loc: object = None, ip: object = None) -> None:
    """Write a comment into the PTX, at this place."""
    arch.inline_ptx(f"// {' '.join(comment.replace('$', '').replace('{', '').replace('}', '').split())}")
