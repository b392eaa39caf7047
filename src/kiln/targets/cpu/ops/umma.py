"""What is wrong with a `tcgen05.mma` that the runtime refused (`runtime/umma.py`)."""

from __future__ import annotations

from ....dialects.nvgpu import tcgen05_definitions, tcgen05_descriptors
from ..runtime import umma


def refused_mma(why: int, what: str) -> tuple[str, str]:
    """Return the message and hint for a refused MMA, from its code and the numbers with it."""
    code = why & 255
    value = why >> umma.VALUE_AT & 0xFFFFFFFF
    kind = umma.KINDS[why >> umma.KIND_AT & 7]
    operand = umma.OPERANDS[why >> umma.OPERAND_AT & 7]
    name = f"{what} of kind::{kind}"
    if code == umma.INSTRUCTION:
        block = (why >> umma.BLOCK_AT & 3) * 16 or None
        cta_group = 1 + (why >> umma.PAIR_AT & 1)
        ws = bool(why >> umma.WS_AT & 1)
        sparse = bool(why >> umma.SPARSE_AT & 1)
        rule = tcgen05_descriptors.wrong_instruction(kind, value, cta_group, block, ws=ws, sparse=sparse)
        return f"{name} {rule}", "tcgen05_descriptors.instruction_descriptor makes one that fits its kind"
    if code == umma.INDEX:
        size = 2 if kind == "tf32" else 4
        chunk = value >> 4 & 15
        where = f"elements {size * chunk} to {size * chunk + size - 1} along K of row {value >> 8} of the CTA's A"
        choices = (0b0100, 0b1110) if size == 2 else tcgen05_definitions.SPARSE_INDICES
        hint = f"metadata of {size} elements are one of {', '.join(f'{index:#06b}' for index in choices)}"
        return f"{name} has metadata {value & 15:#06b} for {where}", hint
    if code == umma.LANE and operand == umma.OPERANDS[umma.METADATA_OPERAND]:
        hint = "they start at an even column, which the sparsity selector adds to, and in the lane that D starts in"
        return f"{name} has {operand} at lane {value >> 16 & 0x3FFF} and column {value & 0xFFFF} of tensor memory", hint
    if code == umma.LANE:
        hint = "only D with 64 rows in each CTA, and its A, may start at lane 16; of a sparse A at the lane of D"
        return f"{name} has {operand} at lane {value >> 16 & 0x3FFF} of tensor memory: it must be 0", hint
    if code == umma.COLUMN:
        first = value & 0xFFFF
        count = why >> umma.COUNT_AT & 0x3FF
        where = f"{operand} in columns {first} to {first + count - 1} of tensor memory"
        return (
            f"{name} has {where}, which are not all allocated",
            "operands lie inside the columns from the address that alloc returned, in both CTAs of a pair",
        )
    if code == umma.OPERAND:
        hint = "tcgen05_matrix_descriptor makes it: bits 46 to 48 are 1, 49 to 51 are 0, 61 to 63 are 0, 1, 2, 4 or 6"
        return f"{name} has a wrong descriptor of {operand}, whose upper half is {value:#010x}", hint
    if code == umma.CROSSES:
        hint = "allocate swizzled tiles with an alignment of 1024 bytes, and start at a multiple of 32 bytes in a row"
        return f"{name} has rows of {operand} that leave the line of their swizzle", hint
    message, hint = _MESSAGES[code]
    return f"{name} {message.format(f'{value:#010x}')}", hint


_MESSAGES = {
    umma.SHIFTED: (
        "shifts the rows of A (.ashift), which is possible in tensor memory, with 128 rows in each CTA",
        "write A to tensor memory, and let M be 128, or 256 for a pair of CTAs",
    ),
    umma.NO_PAIR: (
        "has cta_group::2, and the cluster has an odd number of CTAs",
        "launch with a cluster of an even size, (2, 1, 1) say",
    ),
    umma.OUTSIDE: (
        "has an operand that does not lie in the shared memory of its CTA",
        "look at start, leading and stride of the descriptors: operands end where the shared memory does",
    ),
}
"""Codes of `runtime/umma.py`: messages, with a place for a value, and hints."""
