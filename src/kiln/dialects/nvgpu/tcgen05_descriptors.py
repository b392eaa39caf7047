"""Descriptors of `tcgen05` instructions: integers with named fields, as functions of plain Python.

`tcgen05.mma` takes a 32-bit instruction descriptor (idesc) with types, shape and majors, and 64-bit descriptors of
operands in shared memory. Both are registers, so ptxas checks none of their bits: these functions do.
"""

from __future__ import annotations

from typing import NamedTuple

from ...hardware import mma_shapes

ELEMENT_CODES = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "i8": {"u8": 0, "s8": 1},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
"""Numbers of the element types of A and B in instruction descriptors, by kind."""
ACCUMULATOR_CODES = {"f16": 0, "f32": 1, "s32": 2}
SCALE_CODES = {"ue4m3": 0, "ue8m0": 1}
KINDS = ("f16", "tf32", "f8f6f4", "i8")
BLOCK_SCALE_KINDS = ("mxf8f6f4", "mxf4", "mxf4nvf4")
SWIZZLES = {"none": 0, "128b_32b": 1, "128b": 2, "64b": 4, "32b": 6}
"""The swizzles of operands in shared memory, and their numbers in sm_100 descriptors; 128b_32b is the 128-byte swizzle
of 32-byte atoms."""


class Instruction(NamedTuple):
    """The fields of an instruction descriptor; types that have no name in its kind are numbers as text."""

    kind: str
    a_type: str
    b_type: str
    accumulator: str
    m: int
    n: int
    a_major: str
    b_major: str
    scale_type: str | None
    """None for kinds without scale factors."""
    k96: bool

    @property
    def k(self) -> int:
        """K of the instruction: 32 bytes of a row of A, or 96 elements of fp4."""
        if self.k96:
            return 96
        return {"f16": 16, "tf32": 8, "mxf4": 64, "mxf4nvf4": 64}.get(self.kind, 32)

    def refusal(self, cta_group: int, block: int | None = None, *, ws: bool = False) -> str:
        """Return which field makes an instruction that does not exist; empty if it exists.

        `block` is the number of elements along K that share a scale factor, `ws` means `tcgen05.mma.ws`.
        """
        return mma_shapes.kind_refusal(
            "tcgen05.ws" if ws else "tcgen05",
            self.kind,
            self.m,
            self.n,
            self.k,
            self.a_type,
            self.b_type,
            self.accumulator,
            self.scale_type,
            block,
            cta_group,
            self.a_major,
            self.b_major,
        )


def decode(kind: str, idesc: int) -> Instruction:
    """Return the fields of an instruction descriptor of a kind."""
    types = {code: name for name, code in ELEMENT_CODES[kind].items()}
    a_type, b_type = (types.get(idesc >> at & 7, str(idesc >> at & 7)) for at in (7, 10))
    a_major, b_major = ("mn" if idesc >> at & 1 else "k" for at in (15, 16))
    scaled = kind in BLOCK_SCALE_KINDS
    accumulators = {code: name for name, code in ACCUMULATOR_CODES.items()}
    return Instruction(
        kind,
        a_type,
        b_type,
        "f32" if scaled else accumulators.get(idesc >> 4 & 3, "3"),
        (idesc >> 24 & 31) * 16,
        (idesc >> 17 & 63) * 8,
        a_major,
        b_major,
        ("ue4m3", "ue8m0")[idesc >> 23 & 1] if scaled else None,
        scaled and bool(idesc >> 31 & 1),
    )


def _common_bits(
    instruction: Instruction, cta_group: int, block: int | None, negate_a: bool, negate_b: bool, ws: bool = False
) -> int:
    """Return what all kinds have at the same bits, for an instruction that exists."""
    if rule := instruction.refusal(cta_group, block, ws=ws):
        raise ValueError(rule)
    codes = ELEMENT_CODES[instruction.kind]
    return (
        codes[instruction.a_type] << 7
        | codes[instruction.b_type] << 10
        | negate_a << 13
        | negate_b << 14
        | (instruction.a_major == "mn") << 15
        | (instruction.b_major == "mn") << 16
        | instruction.n // 8 << 17
        | instruction.m // 16 << 24
    )


def instruction_descriptor(
    kind: str,
    a_type: str,
    b_type: str,
    accumulator: str,
    m: int,
    n: int,
    *,
    cta_group: int = 1,
    a_major: str = "k",
    b_major: str = "k",
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    ws: bool = False,
) -> int:
    """Return the idesc of the kinds f16, tf32, f8f6f4 and i8; `m` and `n` are those of both CTAs of a pair.

    `ws` is for `tcgen05.mma.ws`, which has other shapes.

    Bit 3: saturate (i8); 4-5: accumulator; 7-9, 10-12: types of A and B; 13, 14: negate A, B; 15, 16: A, B MN-major;
    17-22: n / 8; 24-28: m / 16.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind}: it is one of {', '.join(KINDS)}")
    if (negate_a or negate_b) and kind == "i8":
        raise ValueError("negate_a and negate_b are for floats: kind is i8")
    if saturate and kind != "i8":
        raise ValueError(f"saturate is for kind::i8: kind is {kind}")
    fields = Instruction(kind, a_type, b_type, accumulator, m, n, a_major, b_major, None, False)
    common = _common_bits(fields, cta_group, None, negate_a, negate_b, ws)
    return saturate << 3 | ACCUMULATOR_CODES[accumulator] << 4 | common


def block_scaled_instruction_descriptor(
    kind: str,
    a_type: str,
    b_type: str,
    scale_type: str,
    m: int,
    n: int,
    *,
    block: int = 32,
    cta_group: int = 1,
    a_major: str = "k",
    b_major: str = "k",
    negate_a: bool = False,
    negate_b: bool = False,
    sfa_id: int = 0,
    sfb_id: int = 0,
    k96: bool = False,
) -> int:
    """Return the idesc of the kinds mxf8f6f4, mxf4 and mxf4nvf4, with a scale factor for `block` elements along K.

    Bits 4-5: SFB id; 7-9, 10-12: types of A and B; 13 to 22: as without scales; 23: 1 for ue8m0; 24-28: m / 16;
    29-30: SFA id; 31: K = 96 (sm_103a). The ids select the byte of a scale factor's 32-bit cell.
    """
    if kind not in BLOCK_SCALE_KINDS:
        raise ValueError(f"kind is {kind}: it is one of {', '.join(BLOCK_SCALE_KINDS)}")
    for name, number in (("sfa_id", sfa_id), ("sfb_id", sfb_id)):
        if not 0 <= number <= 3:
            raise ValueError(f"{name} is {number}: 0 to 3")
    fields = Instruction(kind, a_type, b_type, "f32", m, n, a_major, b_major, scale_type, k96)
    common = _common_bits(fields, cta_group, block, negate_a, negate_b)
    return sfb_id << 4 | common | SCALE_CODES[scale_type] << 23 | sfa_id << 29 | k96 << 31


def matrix_descriptor_fields(leading: int, stride: int, swizzle: str, *, absolute_leading: bool = False) -> int:
    """Return the descriptor of an operand in shared memory at address 0; sizes in bytes.

    Bits 0-13: address / 16; 16-29: leading / 16, or with bit 52 (sm_103a) the address of the second 128-byte chunk;
    32-45: stride / 16; 46-48: 1; 49-51: base offset, 0 as addresses are swizzled; 61-63: the number of the swizzle.
    """
    for name, size in (("leading", leading), ("stride", stride)):
        if size % 16 or not 0 <= size < 1 << 18:
            raise ValueError(f"{name} is {size}: a multiple of 16 below {1 << 18}")
    if swizzle not in SWIZZLES:
        raise ValueError(f"swizzle is {swizzle!r}: it is one of {', '.join(SWIZZLES)}")
    return leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | absolute_leading << 52 | SWIZZLES[swizzle] << 61


def tcgen05_matrix_descriptor(
    address: int, leading: int, stride: int, swizzle: str, *, absolute_leading: bool = False
) -> int:
    """Return the descriptor (64 bits) of an operand at an address of shared memory."""
    fields = matrix_descriptor_fields(leading, stride, swizzle, absolute_leading=absolute_leading)
    return (address & 0x3FFFF) >> 4 | fields


def operand_address(descriptor: int, major: str, bits: int, row: int, k: int) -> int:
    """Return the shared-memory address of element (row, k) of the operand that an sm_100 descriptor describes.

    With bit 52 a row that does not end in its 128 bytes goes on at the address in the place of `leading`.
    """
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    code = descriptor >> 61
    row_bytes = {0: 16, 1: 128, 2: 128, 4: 64, 6: 32}[code]
    chunk = 128 // bits
    if major == "k":
        piece, inside = divmod(k, chunk)
        along = 16 if code else leading
        if descriptor >> 52 & 1 and start % 128 + 16 * piece >= 128:
            start, piece = leading, start // 16 % 8 + piece - 8
        offset = row % 8 * row_bytes + row // 8 * stride + piece * along
    else:
        piece, inside = divmod(row, chunk)
        depth = 4 if code == 1 else 8  # rows of an atom along K
        along, across = (leading, stride) if code else (stride, leading)
        block, piece = divmod(piece, row_bytes // 16)
        offset = 16 * piece + block * along + k % depth * row_bytes + k // depth * across
    found = start + offset + inside * bits // 8
    if code == 1:
        return found ^ (found >> 7 & 3) << 5
    return found ^ (found >> 7 & row_bytes // 16 - 1) << 4


def zero_columns(mask: int, m: int, n: int) -> list[bool]:
    """Return which columns of B count as zero by a zero-column mask descriptor (`tcgen05.mma.ws`).

    Bit 39 enables it. Spans of zero columns (bits 40 to 47, minus 1) and of columns that are used (48 to 55, minus 1)
    alternate; each of the 128 / `m` parts of N has the place where it starts (8 bits each from 0 on) and whether it
    starts with zeros (bits 32 to 35).
    """
    if not mask >> 39 & 1:
        return [False] * n
    skip = (mask >> 40 & 255) + 1
    use = (mask >> 48 & 255) + 1
    parts = 128 // m
    zero: list[bool] = []
    for part in range(parts):
        start = mask >> 8 * part & 255
        first = mask >> 32 + part & 1
        for column in range(n // parts):
            at = (column + start) % (skip + use)
            zero.append(at < skip if first else at >= use)
    return zero
