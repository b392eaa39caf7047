"""Where the pieces of static shared memory lie: a variable each, one for all, or at the start of dynamic shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....mlir import ir
from ...lowering.builder import parsed_type
from ..device_builder import DeviceBuilder

if TYPE_CHECKING:
    from ..expand import Expansion, Kernel

MAX_STATIC_SMEM = 48 << 10
"""Bytes of static shared memory ptxas takes; a kernel with more has all of it as dynamic shared memory."""
DYNAMIC_SMEM_ALIGNMENT = 1024
DYNAMIC_SMEM = "kiln_dynamic_smem"


def place_smem(expansion: Expansion, kernel: Kernel) -> None:
    """Static shared memory as variables or, past the static limit, at the start of dynamic shared memory."""
    offsets = _smem_offsets(kernel)
    if kernel.smem_bytes > MAX_STATIC_SMEM:
        base, start_of_dynamic = dynamic_variable(expansion), -(-kernel.smem_bytes // DYNAMIC_SMEM_ALIGNMENT)
    elif kernel.merge_smem and kernel.smem:
        size, alignment = kernel.smem_bytes, max(alignment for _, _, alignment in kernel.smem)
        name = f"{kernel.name}_smem"
        base = expansion.variable(name, parsed_type(f"!llvm.array<{size} x i8>"), 3, alignment)
        start_of_dynamic = 0
    else:
        for name, size, alignment in kernel.smem:
            expansion.variable(name, parsed_type(f"!llvm.array<{size} x i8>"), 3, alignment)
        return
    start_of_dynamic *= DYNAMIC_SMEM_ALIGNMENT
    if base == DYNAMIC_SMEM:
        offsets[DYNAMIC_SMEM] = start_of_dynamic
    todo = [op for op in kernel.smem_addresses if op.attributes["global_name"].value in offsets]
    for op in todo:
        b = DeviceBuilder(ir.InsertionPoint(op), op.location)
        start = offsets[op.attributes["global_name"].value]
        op.result.replace_all_uses_with(b.byte_gep(b.address_in(base, 3), start))
        op.erase()
    for op in kernel.smem_sizes if start_of_dynamic else ():  # the program asks for what the launch gave
        b = DeviceBuilder(ir.InsertionPoint.after(op), op.location)
        asked = b.binary("subi", op.result, b.i32(start_of_dynamic))
        op.result.replace_all_uses_except(asked, [asked.owner.operation])


def _smem_offsets(kernel: Kernel) -> dict[str, int]:
    """Where each piece of static shared memory lies; how much there is becomes known."""
    sizes = {name: (size, alignment) for name, size, alignment in kernel.smem}
    offsets: dict[str, int] = {}

    def place(name: str, end: int) -> int:
        size, alignment = sizes[name]
        offsets[name] = -(-end // alignment) * alignment
        return offsets[name] + size

    def visit(block: ir.Block, end: int) -> int:
        for item in block.operations:
            op = item.operation
            if op.name == "llvm.mlir.addressof" and op.attributes["global_name"].value in sizes.keys() - offsets.keys():
                end = place(op.attributes["global_name"].value, end)
            # the branches of an `if` begin at the same place; what comes after begins where the longer one ends
            branches = op.name == "scf.if"
            ends = [end]
            for region in op.regions:
                for inner in region.blocks:
                    ends.append(visit(inner, end if branches else ends[-1]))
            end = max(ends)
        return end

    end = visit(kernel.operation.regions[0].blocks[0], 0) if kernel.merge_smem else 0
    for name in sizes:
        if name not in offsets:
            end = place(name, end)
    kernel.smem_bytes = end
    return offsets


def dynamic_variable(expansion: Expansion) -> str:
    """The name of dynamic shared memory, which is declared once."""
    return expansion.variable(
        DYNAMIC_SMEM, parsed_type("!llvm.array<0 x i8>"), 3, DYNAMIC_SMEM_ALIGNMENT, linkage="external"
    )
