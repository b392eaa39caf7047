"""Descriptors of `tcgen05` instructions: integers with named fields, as functions of plain Python.

`tcgen05.mma` takes a 32-bit instruction descriptor (idesc) with types, shape and majors, and 64-bit descriptors of
operands in shared memory. Both are registers, so ptxas checks none of their bits: these functions do.
"""

from __future__ import annotations

ELEMENT_CODES = {
    "f16": {"f16": 0, "bf16": 1}, "tf32": {"tf32": 2}, "i8": {"u8": 0, "s8": 1},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1}, "mxf4nvf4": {"e2m1": 1},
}  # fmt: skip
"""Numbers of the element types of A and B in instruction descriptors, by kind."""
ACCUMULATOR_CODES = {"f16": 0, "f32": 1, "s32": 2}
ACCUMULATORS = {
    "f16": ("f16", "f32"), "tf32": ("f32",), "f8f6f4": ("f16", "f32"), "i8": ("s32",), "mxf8f6f4": ("f32",),
    "mxf4": ("f32",), "mxf4nvf4": ("f32",),
}  # fmt: skip
"""Accumulator types by kind."""
KINDS = ("f16", "tf32", "f8f6f4", "i8")
BLOCK_SCALE_KINDS = ("mxf8f6f4", "mxf4", "mxf4nvf4")
SCALE_TYPES = {"mxf8f6f4": ("ue8m0",), "mxf4": ("ue8m0",), "mxf4nvf4": ("ue4m3", "ue8m0")}
SWIZZLES = {"none": 0, "128b_32b": 1, "128b": 2, "64b": 4, "32b": 6}
"""The swizzles of operands in shared memory, and their numbers in sm_100 descriptors; 128b_32b is the 128-byte swizzle
of 32-byte atoms."""


def _code(what: str, value: str, known: dict[str, int], kind: str) -> int:
    if value not in known:
        raise ValueError(f"{what} is {value!r}: with kind::{kind} it is one of {', '.join(known)}")
    return known[value]


def _check_shape(kind: str, m: int, n: int) -> None:
    rows = (128, 256) if kind in BLOCK_SCALE_KINDS else (32, 64, 128, 256)
    if m not in rows:
        raise ValueError(f"m is {m}: with kind::{kind} it is one of {', '.join(map(str, rows))}")
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n is {n}: a multiple of 8 from 8 to 256")


def _major_bit(what: str, major: str, kind: str) -> int:
    if major not in ("k", "mn"):
        raise ValueError(f"{what} is {major!r}: 'k' or 'mn'")
    if major == "mn" and kind in ("mxf4", "mxf4nvf4"):
        raise ValueError(f"{what} is 'mn': with kind::{kind} operands are K-major")
    return int(major == "mn")


def instruction_descriptor(
    kind: str, a_type: str, b_type: str, accumulator: str, m: int, n: int, *, a_major: str = "k", b_major: str = "k",
    negate_a: bool = False, negate_b: bool = False, saturate: bool = False,
) -> int:  # fmt: skip
    """Return the idesc of the kinds f16, tf32, f8f6f4 and i8; `m` and `n` are those of both CTAs of a pair.

    Bit 3: saturate (i8); 4-5: accumulator; 7-9, 10-12: types of A and B; 13, 14: negate A, B; 15, 16: A, B MN-major;
    17-22: n / 8; 24-28: m / 16.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: it is one of {', '.join(KINDS)}")
    if accumulator not in ACCUMULATORS[kind] or (a_type == "bf16" and accumulator == "f16"):
        raise ValueError(f"accumulator is {accumulator!r}: kind::{kind} of {a_type} has no such one")
    if kind == "f16" and a_type != b_type:
        raise ValueError(f"b_type is {b_type!r}: with kind::f16 it is that of A, {a_type}")
    if (negate_a or negate_b) and kind == "i8":
        raise ValueError("negate_a and negate_b are for floats: kind is 'i8'")
    if saturate and kind != "i8":
        raise ValueError(f"saturate is for kind::i8: kind is {kind!r}")
    _check_shape(kind, m, n)
    codes = ELEMENT_CODES[kind]
    return (
        saturate << 3 | ACCUMULATOR_CODES[accumulator] << 4 | _code("a_type", a_type, codes, kind) << 7
        | _code("b_type", b_type, codes, kind) << 10 | negate_a << 13 | negate_b << 14
        | _major_bit("a_major", a_major, kind) << 15 | _major_bit("b_major", b_major, kind) << 16
        | n // 8 << 17 | m // 16 << 24
    )  # fmt: skip


def block_scaled_instruction_descriptor(
    kind: str, a_type: str, b_type: str, scale_type: str, m: int, n: int, *, a_major: str = "k", b_major: str = "k",
    negate_a: bool = False, negate_b: bool = False, sfa_id: int = 0, sfb_id: int = 0, k96: bool = False,
) -> int:  # fmt: skip
    """Return the idesc of the kinds mxf8f6f4, mxf4 and mxf4nvf4.

    Bits 4-5: SFB id; 7-9, 10-12: types of A and B; 13 to 22: as without scales; 23: 1 for ue8m0; 24-28: m / 16;
    29-30: SFA id; 31: K = 96 (sm_103a). The ids select the byte of a scale factor's 32-bit cell.
    """
    if kind not in BLOCK_SCALE_KINDS:
        raise ValueError(f"kind is {kind!r}: it is one of {', '.join(BLOCK_SCALE_KINDS)}")
    if scale_type not in SCALE_TYPES[kind]:
        raise ValueError(f"scale_type is {scale_type!r}: with kind::{kind} it is {' or '.join(SCALE_TYPES[kind])}")
    for name, number in (("sfa_id", sfa_id), ("sfb_id", sfb_id)):
        if not 0 <= number <= 3:
            raise ValueError(f"{name} is {number}: 0 to 3")
    if k96 and kind == "mxf8f6f4":
        raise ValueError("k96 is for mxf4 and mxf4nvf4: kind is 'mxf8f6f4'")
    _check_shape(kind, m, n)
    codes = ELEMENT_CODES[kind]
    return (
        sfb_id << 4 | _code("a_type", a_type, codes, kind) << 7 | _code("b_type", b_type, codes, kind) << 10
        | negate_a << 13 | negate_b << 14 | _major_bit("a_major", a_major, kind) << 15
        | _major_bit("b_major", b_major, kind) << 16 | n // 8 << 17 | (scale_type == "ue8m0") << 23 | m // 16 << 24
        | sfa_id << 29 | k96 << 31
    )  # fmt: skip


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
    """Return the shared-memory address of element (row, k) of the operand that an sm_100 descriptor describes."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    code = descriptor >> 61
    row_bytes = {0: 16, 1: 128, 2: 128, 4: 64, 6: 32}[code]
    chunk = 128 // bits
    if major == "k":
        piece, inside = divmod(k, chunk)
        along = 16 if code else leading
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
