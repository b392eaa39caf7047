"""Descriptors of `tcgen05` instructions: integers with named fields, as functions of plain Python.

`tcgen05.mma` takes a 32-bit instruction descriptor (idesc) with types, shape and majors, and 64-bit descriptors of
operands in shared memory. Both are registers, so ptxas checks none of their bits: these functions do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
ALL_KINDS = (*KINDS, *BLOCK_SCALE_KINDS)


class Field(NamedTuple):
    """A field of an instruction descriptor: bits of an integer, in units."""

    low: int
    width: int
    unit: int = 1

    @property
    def mask(self) -> int:
        """The bits of the field."""
        return (1 << self.width) - 1 << self.low

    def of(self, idesc: Any) -> Any:
        """Return the field of a descriptor, which may be a number of the program."""
        number = (idesc >> self.low) & ((1 << self.width) - 1)
        return number if self.unit == 1 else number * self.unit

    def bits(self, value: int) -> int:
        """Return a descriptor with this field alone."""
        return value // self.unit << self.low


SPARSE = Field(2, 1)
A_TYPE = Field(7, 3)
B_TYPE = Field(10, 3)
NEGATE_A = Field(13, 1)
NEGATE_B = Field(14, 1)
A_MAJOR = Field(15, 1)
B_MAJOR = Field(16, 1)
N = Field(17, 6, 8)
M = Field(24, 5, 16)
"""Fields of all kinds; a major of 1 is MN, and `M` and `N` are those of both CTAs of a pair."""
SPARSE_ID = Field(0, 2)
SATURATE = Field(3, 1)
ACCUMULATOR = Field(4, 2)
MAX_SHIFT = Field(30, 2)
"""Fields of kinds without scale factors. `SATURATE` is for i8. `MAX_SHIFT` limits the reuse of B by
`tcgen05.mma.ws`, which changes no value. `SPARSE_ID` is the sparsity selector (`sparse_ids`)."""
SFB_ID = Field(4, 2)
SCALE_TYPE = Field(23, 1)
SFA_ID = Field(29, 2)
K96 = Field(31, 1)
"""Fields of kinds with scale factors. The ids select the byte of a scale factor's 32-bit cell."""


def fields(kind: str, *, ws: bool = False, sparse: bool = False) -> tuple[Field, ...]:
    """Return the fields of an instruction descriptor of a kind; its other bits are 0."""
    common = (SPARSE, A_TYPE, B_TYPE, A_MAJOR, B_MAJOR, N, M)
    signs = (SATURATE,) if kind == "i8" else (NEGATE_A, NEGATE_B)
    if kind in BLOCK_SCALE_KINDS:
        return (*common, *signs, SFB_ID, SCALE_TYPE, SFA_ID, K96)
    return (*common, *signs, ACCUMULATOR, *((SPARSE_ID,) if sparse else ()), *((MAX_SHIFT,) if ws else ()))


def reserved_bits(kind: str, *, ws: bool = False, sparse: bool = False) -> int:
    """Return the bits of an instruction descriptor that must be 0."""
    return 0xFFFFFFFF & ~sum(field.mask for field in fields(kind, ws=ws, sparse=sparse))


def scale_ids(count: int) -> tuple[int, ...]:
    """Return the scale factor ids of an instruction with so many scale factors for a row of A or column of B."""
    return (0,) if count == 4 else (0, 2) if count % 2 == 0 else (0, 1, 2, 3)


def sparse_ids(kind: str) -> tuple[int, ...]:
    """Return the sparsity selectors of a kind: the metadata of one MMA take one of two columns, or both."""
    return (0, 1) if kind in ("f16", "tf32") else (0,)


SWIZZLES = {"none": 0, "128b_32b": 1, "128b": 2, "64b": 4, "32b": 6}
"""The swizzles of operands in shared memory, and their numbers in sm_100 descriptors; 128b_32b is the 128-byte swizzle
of 32-byte atoms."""


DEPTHS = {row.kind: row.shapes[0][2] for row in reversed(mma_shapes.TCGEN05_ROWS) if row.kind}
"""K of an instruction with a dense A, by kind, where no field says otherwise."""


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
    sparse: bool = False
    """Whether A is sparse: half of the elements of a row are there."""

    @property
    def k(self) -> int:
        """K of the instruction: 32 bytes of a row of A, twice that if it is sparse, or 96 elements of fp4."""
        return 96 if self.k96 else DEPTHS[self.kind] * (2 if self.sparse else 1)

    def refusal(self, cta_group: int, block: int | None = None, *, ws: bool = False, sparse: bool = False) -> str:
        """Return which field makes an instruction that does not exist; empty if it exists.

        `block` is the number of elements along K that share a scale factor, `ws` means `tcgen05.mma.ws`, and `sparse`
        `tcgen05.mma.sp`.
        """
        if self.sparse != sparse:
            return f"bit 2 is {int(self.sparse)}: it is 1 for tcgen05.mma.sp, whose A is sparse, and 0 for tcgen05.mma"
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
            sparse=sparse,
        )


def decode(kind: str, idesc: int) -> Instruction:
    """Return the fields of an instruction descriptor of a kind."""
    types = {code: name for name, code in ELEMENT_CODES[kind].items()}
    accumulators = {code: name for name, code in ACCUMULATOR_CODES.items()}
    scales = {code: name for name, code in SCALE_CODES.items()}
    scaled = kind in BLOCK_SCALE_KINDS
    return Instruction(
        kind,
        types.get(A_TYPE.of(idesc), str(A_TYPE.of(idesc))),
        types.get(B_TYPE.of(idesc), str(B_TYPE.of(idesc))),
        "f32" if scaled else accumulators.get(ACCUMULATOR.of(idesc), "3"),
        M.of(idesc),
        N.of(idesc),
        ("k", "mn")[A_MAJOR.of(idesc)],
        ("k", "mn")[B_MAJOR.of(idesc)],
        scales[SCALE_TYPE.of(idesc)] if scaled else None,
        scaled and bool(K96.of(idesc)),
        bool(SPARSE.of(idesc)),
    )


def wrong_instruction(
    kind: str, idesc: int, cta_group: int, block: int | None = None, *, ws: bool = False, sparse: bool = False
) -> str:
    """Return what is wrong with an instruction descriptor; empty if an instruction has it.

    `block`, `ws` and `sparse` are those of `Instruction.refusal`.
    """
    instruction = decode(kind, idesc)
    if rule := instruction.refusal(cta_group, block, ws=ws, sparse=sparse):
        return f"has the instruction descriptor {idesc:#010x}, whose {rule}"
    if wrong := idesc & reserved_bits(kind, ws=ws, sparse=sparse):
        return f"has the instruction descriptor {idesc:#010x}, of which the reserved bits {wrong:#010x} are not 0"
    if sparse and SPARSE_ID.of(idesc) not in sparse_ids(kind):
        options = " or ".join(map(str, sparse_ids(kind)))
        return f"has the instruction descriptor {idesc:#010x}, whose sparse_id is {SPARSE_ID.of(idesc)}: {options}"
    if block is None:
        return ""
    ids = scale_ids(instruction.k // block)
    for name, field in (("sfa_id", SFA_ID), ("sfb_id", SFB_ID)):
        if field.of(idesc) not in ids:
            options = " or ".join(map(str, ids))
            count = f"{instruction.k // block} scale factors of a row"
            return f"has the instruction descriptor {idesc:#010x}, whose {name} is {field.of(idesc)}: {options} with {count}"
    return ""


def _common_bits(
    instruction: Instruction, cta_group: int, block: int | None, negate_a: bool, negate_b: bool, ws: bool = False
) -> int:
    """Return what all kinds have at the same bits, for an instruction that exists."""
    if rule := instruction.refusal(cta_group, block, ws=ws, sparse=instruction.sparse):
        raise ValueError(rule)
    codes = ELEMENT_CODES[instruction.kind]
    return (
        SPARSE.bits(instruction.sparse)
        | A_TYPE.bits(codes[instruction.a_type])
        | B_TYPE.bits(codes[instruction.b_type])
        | NEGATE_A.bits(negate_a)
        | NEGATE_B.bits(negate_b)
        | A_MAJOR.bits(instruction.a_major == "mn")
        | B_MAJOR.bits(instruction.b_major == "mn")
        | N.bits(instruction.n)
        | M.bits(instruction.m)
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
    sparse: bool = False,
    sparse_id: int = 0,
) -> int:
    """Return the idesc of the kinds f16, tf32, f8f6f4 and i8; `m` and `n` are those of both CTAs of a pair.

    `ws` is for `tcgen05.mma.ws`, which has other shapes. `sparse` is for `tcgen05.mma.sp`, whose A is sparse;
    `sparse_id` selects one of two columns of metadata (f16 and tf32).
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind}: it is one of {', '.join(KINDS)}")
    if (negate_a or negate_b) and kind == "i8":
        raise ValueError("negate_a and negate_b are for floats: kind is i8")
    if saturate and kind != "i8":
        raise ValueError(f"saturate is for kind::i8: kind is {kind}")
    if sparse_id and (not sparse or sparse_id not in sparse_ids(kind)):
        raise ValueError(f"sparse_id is {sparse_id}: it is 0, and may be 1 with a sparse A of the kinds f16 and tf32")
    fields = Instruction(kind, a_type, b_type, accumulator, m, n, a_major, b_major, None, False, sparse)
    common = _common_bits(fields, cta_group, None, negate_a, negate_b, ws) | SPARSE_ID.bits(sparse_id)
    return SATURATE.bits(saturate) | ACCUMULATOR.bits(ACCUMULATOR_CODES[accumulator]) | common


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

    The ids select the byte of a scale factor's 32-bit cell; `k96` means K = 96 (sm_103a).
    """
    if kind not in BLOCK_SCALE_KINDS:
        raise ValueError(f"kind is {kind}: it is one of {', '.join(BLOCK_SCALE_KINDS)}")
    for name, number in (("sfa_id", sfa_id), ("sfb_id", sfb_id)):
        if not 0 <= number <= 3:
            raise ValueError(f"{name} is {number}: 0 to 3")
    fields = Instruction(kind, a_type, b_type, "f32", m, n, a_major, b_major, scale_type, k96)
    common = _common_bits(fields, cta_group, block, negate_a, negate_b)
    scales = SFA_ID.bits(sfa_id) | SFB_ID.bits(sfb_id) | SCALE_TYPE.bits(SCALE_CODES[scale_type])
    return common | scales | K96.bits(k96)


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
    address = start + offset + inside * bits // 8
    if code == 1:
        return address ^ (address >> 7 & 3) << 5
    return address ^ (address >> 7 & row_bytes // 16 - 1) << 4


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
