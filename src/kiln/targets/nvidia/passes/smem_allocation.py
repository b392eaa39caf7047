"""Placement of static shared memory: one variable for each piece, one for all, or at the start of dynamic smem.

A kernel that allocates more than ptxas takes as static shared memory has all of it as dynamic shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware.limits import DYNAMIC_SMEM_ALIGNMENT, STATIC_SMEM, taken
from ....mlir import ir
from ...lowering.builder import parsed_type
from ...lowering.shared_memory import place
from ..device_builder import DeviceBuilder

if TYPE_CHECKING:
    from ..expand import Expansion, Kernel

DYNAMIC_SMEM = "kiln_dynamic_smem"


def place_smem(expansion: Expansion, kernel: Kernel) -> None:
    """Place static shared memory in variables or, past the static limit, at the start of dynamic shared memory."""
    offsets = _smem_offsets(kernel)
    if kernel.smem_bytes > STATIC_SMEM:
        base = dynamic_variable(expansion)
        start_of_dynamic = taken(kernel.smem_bytes)
    elif kernel.merge_smem and kernel.smem:
        size = kernel.smem_bytes
        alignment = max(alignment for _, _, alignment in kernel.smem)
        name = f"{kernel.name}_smem"
        base = expansion.variable(name, parsed_type(f"!llvm.array<{size} x i8>"), 3, alignment)
        start_of_dynamic = 0
    else:
        for name, size, alignment in kernel.smem:
            expansion.variable(name, parsed_type(f"!llvm.array<{size} x i8>"), 3, alignment)
        _count_allocations(kernel)
        return
    if base == DYNAMIC_SMEM:
        offsets[DYNAMIC_SMEM] = start_of_dynamic
    todo = [op for op in kernel.smem_addresses if op.attributes["global_name"].value in offsets]
    for op in todo:
        b = DeviceBuilder(ir.InsertionPoint(op), op.location)
        start = offsets[op.attributes["global_name"].value]
        op.result.replace_all_uses_with(b.byte_gep(b.address_in(base, 3), start))
        op.erase()
    if base != DYNAMIC_SMEM:
        _count_allocations(kernel)
    elif kernel.dynamic:  # the program asks for what the launch gave
        _change_sizes(kernel, -start_of_dynamic)


def _count_allocations(kernel: Kernel) -> None:
    """Make the dynamic size all shared memory of a block, if the kernel takes no address of other dynamic memory."""
    if not kernel.dynamic:
        _change_sizes(kernel, kernel.smem_bytes)


def _change_sizes(kernel: Kernel, by: int) -> None:
    """Add a number to the size of dynamic shared memory wherever the program reads it."""
    for op in kernel.smem_sizes if by else ():
        b = DeviceBuilder(ir.InsertionPoint.after(op), op.location)
        asked = b.binary("addi", op.result, by)
        op.result.replace_all_uses_except(asked, [asked.owner.operation])


def _smem_offsets(kernel: Kernel) -> dict[str, int]:
    """Return the offset of each piece of static shared memory, and set their total size."""
    body = kernel.operation.regions[0].blocks[0] if kernel.merge_smem else None
    offsets, kernel.smem_bytes = place(kernel.smem, body, _piece_of)
    return offsets


def _piece_of(op: ir.Operation) -> str | None:
    return op.attributes["global_name"].value if op.name == "llvm.mlir.addressof" else None  # pyright: ignore[reportAttributeAccessIssue]


def dynamic_variable(expansion: Expansion) -> str:
    """Return the name of dynamic shared memory, which is declared once."""
    return expansion.variable(
        DYNAMIC_SMEM, parsed_type("!llvm.array<0 x i8>"), 3, DYNAMIC_SMEM_ALIGNMENT, linkage="external"
    )
