"""Definitions of the hardware's operations in plain Python, which a reader can check against the PTX manual.

There is one for each operation that computes something; targets have faster ones, and tests compare those with these.
An operation of a warp takes a list of what its 32 lanes bring and gives a list of what they get. Words are numbers
from 0 to 2^32 - 1, floats are Python's (exact for f16, bf16, tf32, f32 and 8-bit floats).

What only waits, orders memory, copies or tells something (barriers, fences, asynchronous copies, indices) is defined by
the words of its class.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ...base_dsl.numeric.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, FLOAT32, FLOAT64
from ...hardware import mma_shapes
from . import block_scaling, tcgen05_definitions, tcgen05_descriptors, tensor_memory
from .wgmma import SWIZZLES

LANES = range(32)
_WORD = (1 << 32) - 1


def signed(word: int, bits: int = 32) -> int:
    """Return the number that so many bits are in two's complement."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


# --- lanes of a warp -------------------------------------------------------------------------------------------------


def shuffle(kind: str, values: Sequence[int], offsets: Sequence[int], clamps: Sequence[int]) -> list[int]:
    """Compute `shfl.sync`: the value of another lane, or a lane's own where the source is outside its segment."""
    got: list[int] = []
    for lane in LANES:
        offset = offsets[lane] & 31
        clamp = clamps[lane] & 31
        segment = clamps[lane] >> 8 & 31
        low = lane & segment
        high = low | (clamp & ~segment & 31)
        source = {
            "idx": low | (offset & ~segment & 31),
            "up": lane - offset,
            "down": lane + offset,
            "bfly": lane ^ offset,
        }[kind]
        inside = source >= high if kind == "up" else source <= high
        got.append(values[source if inside else lane])
    return got


_WORDS_OF_FLOATS = {
    "f32": (FLOAT32, 32, FLOAT32),
    "f64": (FLOAT64, 64, FLOAT64),
    "f16x2": (FLOAT16, 16, FLOAT16),
    "bf16x2": (BFLOAT16, 16, BFLOAT16),
    "e4m3x4": (FLOAT8_E4M3FN, 8, FLOAT16),
    "e5m2x4": (FLOAT8_E5M2, 8, FLOAT16),
}
"""The format of the floats in a word, its bits, and that of its accumulator."""


def _chosen(mask: int) -> list[int]:
    return [lane for lane in LANES if mask >> lane & 1]


def vote(kind: str, predicates: Sequence[bool], mask: int) -> int | bool:
    """Compute `vote.sync`: the same in all lanes of the mask."""
    held = [predicates[lane] for lane in _chosen(mask)]
    if kind == "ballot":
        return sum(1 << lane for lane in _chosen(mask) if predicates[lane])
    return {"all": all(held), "any": any(held), "uni": len(set(held)) == 1}[kind]


def match(kind: str, values: Sequence[int], mask: int) -> list[int]:
    """Compute `match.sync`, for the lanes of the mask (0 for others)."""
    everyone = len({values[lane] for lane in _chosen(mask)}) == 1
    got: list[int] = []
    for lane in LANES:
        same = sum(1 << other for other in _chosen(mask) if values[other] == values[lane])
        got.append(0 if not mask >> lane & 1 else same if kind == "any" else mask * everyone)
    return got


def redux(kind: str, values: Sequence[int], mask: int) -> int:
    """Compute `redux.sync` of words: the same in all lanes of the mask."""
    combine: dict[str, Callable[[int, int], int]] = {
        "add": lambda x, y: x + y,
        "min": lambda x, y: min(x, y, key=signed),
        "max": lambda x, y: max(x, y, key=signed),
        "umin": min,
        "umax": max,
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
    }
    first, *rest = (values[lane] for lane in _chosen(mask))
    for value in rest:
        first = combine[kind](first, value) & _WORD
    return first


def redux_float(kind: str, values: Sequence[float], mask: int) -> float:
    """Compute `redux.sync` of f32: `fmin` or `fmax`, perhaps `.abs` and `.NaN`."""
    name, *modes = kind.split(".")
    held = [abs(values[lane]) if "abs" in modes else values[lane] for lane in _chosen(mask)]
    numbers = [value for value in held if not math.isnan(value)]
    if not numbers or ("NaN" in modes and len(numbers) < len(held)):
        return math.nan
    return (min if name == "fmin" else max)(numbers)


# --- arithmetic units ------------------------------------------------------------------------------------------------


def prmt(low: int, high: int, selector: int) -> int:
    """Compute `prmt.b32`: four of eight bytes, or eight copies of their signs."""
    pool = low | high << 32
    word = 0
    for n in range(4):
        nibble = selector >> 4 * n & 15
        byte = pool >> 8 * (nibble & 7) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        word |= byte << 8 * n
    return word


def lop3(a: int, b: int, c: int, lut: int) -> int:
    """Compute `lop3.b32`: bit by bit, the bit of the table that the three bits number."""
    return sum((lut >> ((a >> n & 1) << 2 | (b >> n & 1) << 1 | c >> n & 1) & 1) << n for n in range(32))


_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sqrt": math.sqrt,
    "ex2": lambda x: 2.0**x,
    "lg2": math.log2,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
}


def approx(kind: str, value: float) -> tuple[float, float]:
    """Return the function of a normal f32 where it is finite, and how far from it the hardware's may be."""
    exact = _FUNCTIONS[kind](value)
    if kind in ("sin", "cos"):
        return exact, 2.0**-20.5
    if kind == "lg2":
        return exact, max(2.0**-22, abs(exact) * 2.0**-22)
    return exact, abs(exact) * (2.0**-10.9 if kind == "tanh" else 2.0**-22)


def round_float(
    value: Fraction, rounding: str = "rn", precision: int = 24, least: int = -149, most: int = 127
) -> float:
    """Return a number rounded to a float of `precision` bits: rn (to nearest, ties to even), rz, rm (down) or rp (up).

    `least` is the exponent of the smallest number, `most` that of the largest; those of f32 if not given.
    """
    if value == 0:
        return 0.0
    exponent = _exponent(abs(value))
    step = _power(max(exponent - precision + 1, least))
    units = value / step
    whole = {
        "rn": lambda: round(units),
        "rz": lambda: math.trunc(units),
        "rm": lambda: math.floor(units),
        "rp": lambda: math.ceil(units),
    }[rounding]()
    rounded = whole * step
    largest = _largest(precision, most)
    if abs(rounded) > largest:
        inward = rounding == "rz" or rounding == ("rm" if value > 0 else "rp")
        return math.copysign(float(largest) if inward else math.inf, value)
    return math.copysign(float(rounded), value)


def _exponent(value: Fraction) -> int:
    """Return e with 2^e <= value < 2^(e + 1)."""
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if _power(e) <= value else e - 1


@functools.cache
def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


@functools.cache
def _largest(precision: int, most: int) -> Fraction:
    """Return the largest float of `precision` bits whose exponent is `most`."""
    return (2 - _power(1 - precision)) * _power(most)


def packed_f32x2(
    kind: str, a: Sequence[float], b: Sequence[float], c: Sequence[float], rounding: str = "rn"
) -> list[float]:
    """Compute add, sub, mul or fma of two f32 each, rounded once. Finite numbers, and no zero whose sign matters."""
    exact = {
        "add": lambda x, y, _: x + y,
        "sub": lambda x, y, _: x - y,
        "mul": lambda x, y, _: x * y,
        "fma": lambda x, y, z: x * y + z,
    }[kind]
    return [round_float(exact(*map(Fraction, parts)), rounding) for parts in zip(a, b, c, strict=True)]


# --- atomic operations -----------------------------------------------------------------------------------------------


def atomic_rmw(kind: str, old: int, value: int, bits: int = 32) -> int:
    """Return the new element of an atomic operation of integers of so many bits."""
    new: dict[str, Callable[[], int]] = {
        "add": lambda: old + value,
        "exch": lambda: value,
        "and": lambda: old & value,
        "or": lambda: old | value,
        "xor": lambda: old ^ value,
        "umin": lambda: min(old, value),
        "umax": lambda: max(old, value),
        "min": lambda: min(old, value, key=lambda x: signed(x, bits)),
        "max": lambda: max(old, value, key=lambda x: signed(x, bits)),
        "inc": lambda: 0 if old >= value else old + 1,
        "dec": lambda: value if old == 0 or old > value else old - 1,
    }
    return new[kind]() & ((1 << bits) - 1)


def atomic_cas(old: int, compare: int, value: int) -> int:
    """Return the new element of a compare-and-swap."""
    return value if old == compare else old


def multimem_ld_reduce(kind: str, type_: str, acc: str, copies: Sequence[int]) -> int:
    """Return the reduction of a word of several GPUs, in their order. `type_` is what PTX says that the word holds."""
    if type_ in ("u32", "s32", "u64", "s64", "b32", "b64"):
        bits = int(type_[1:])
        exact_kind = f"u{kind}" if type_[0] == "u" and kind in ("min", "max") else kind
        return functools.reduce(lambda a, b: atomic_rmw(exact_kind, a, b, bits), copies)
    format_, width, held = _WORDS_OF_FLOATS[type_]
    accumulator = FLOAT32 if acc == "acc::f32" or (not acc and width == 8) else held
    word = 0
    for place in range(0, 64 if type_ == "f64" else 32, width):
        parts = [format_.decode(copy >> place & (1 << width) - 1) for copy in copies]
        combine: Callable[[float, float], float] = {
            "add": lambda a, b: accumulator.round(a + b),
            "min": min,
            "max": max,
        }[kind]
        total = dataclasses.replace(format_, saturates=False).round(functools.reduce(combine, parts))
        word |= format_.encode(math.nan if math.isinf(total) and not format_.has_inf else total) << place
    return word


def multimem_st(copies: Sequence[int], value: int) -> list[int]:
    """Return the words of several GPUs after a store: the value in each."""
    return [value for _ in copies]


def multimem_red(kind: str, type_: str, copies: Sequence[int], value: int) -> list[int]:
    """Return the words of several GPUs after a reduction into each."""
    return [multimem_ld_reduce(kind, type_, "", [copy, value]) for copy in copies]


def store_bulk(memory: bytearray, address: int, size: int) -> None:
    """Compute `st.bulk`: zeros from an address on."""
    memory[address : address + size] = bytes(size)


class Mbarrier:
    """The state of an mbarrier, with methods for `mbarrier_init`, `mbarrier_arrive`, ... and completed copies."""

    def __init__(self, count: int) -> None:
        self.count = count
        """Arrivals of a phase."""
        self.parity = 0
        self.missing_arrivals: int = count
        self.missing_bytes = 0

    def arrive(self, count: int = 1, bytes_: int = 0) -> None:
        """Add bytes to the tx-count, then count arrivals."""
        self.missing_bytes += bytes_
        self.missing_arrivals -= count
        self._complete()

    def expect_tx(self, bytes_: int) -> None:
        """Add bytes to the tx-count; a copy that completes adds a negative number."""
        self.missing_bytes += bytes_
        self._complete()

    def test_wait(self, parity: int) -> bool:
        """Return whether the phase of a parity is complete."""
        return self.parity != parity & 1

    def _complete(self) -> None:
        if self.missing_arrivals == 0 and self.missing_bytes == 0:
            self.parity ^= 1
            self.missing_arrivals = self.count


# --- matrices in shared memory ---------------------------------------------------------------------------------------
# A row is 16 bytes of shared memory, at the address that a lane gives.


def _elements(row: Sequence[int], bits: int) -> list[int]:
    """Return the elements of so many bits that lie in a row without gaps, lowest bits first."""
    whole = int.from_bytes(bytes(row), "little")
    return [whole >> bits * n & ((1 << bits) - 1) for n in range(128 // bits)]


def _register(elements: Sequence[int], bits: int) -> int:
    return sum(element << bits * n for n, element in enumerate(elements))


def ldmatrix(rows: Sequence[Sequence[int]], count: int, transpose: bool = False, unpack: int = 0) -> list[list[int]]:
    """Compute `ldmatrix` of 8x8 matrices of 16 bits (m8n8), or (`unpack`) 8x16 of 8 bits (m8n16): registers by lane."""
    got: list[list[int]] = []
    for lane in LANES:
        group, thread = divmod(lane, 4)
        registers: list[int] = []
        for matrix in range(count):
            mine = rows[8 * matrix : 8 * matrix + 8]
            if unpack:
                registers.append(_register(_elements(mine[group], unpack)[4 * thread : 4 * thread + 4], 8))
                continue
            places = [(group, 2 * thread), (group, 2 * thread + 1)]
            if transpose:
                places = [(column, row) for row, column in places]
            registers.append(_register([_elements(mine[row], 16)[column] for row, column in places], 16))
        got.append(registers)
    return got


def ldmatrix_bytes(rows: Sequence[Sequence[int]], count: int, unpack: int = 0) -> list[list[int]]:
    """Compute `ldmatrix` of 16x16 matrices of bytes (m16n16), transposed, perhaps unpacked: registers by lane."""
    got: list[list[int]] = []
    for lane in LANES:
        group, thread = divmod(lane, 4)
        registers: list[int] = []
        for matrix in range(count):
            mine = [_elements(row, unpack or 8) for row in rows[16 * matrix : 16 * matrix + 16]]
            for column in (group, group + 8):
                registers.append(_register([mine[4 * thread + n][column] for n in range(4)], 8))
        got.append(registers)
    return got


def stmatrix(registers: Sequence[Sequence[int]], count: int, transpose: bool = False) -> list[bytes]:
    """Compute `stmatrix` of 8x8 matrices of 16-bit elements: the rows that it writes."""
    matrices = [[[0] * 8 for _ in range(8)] for _ in range(count)]
    for lane in LANES:
        group, thread = divmod(lane, 4)
        for matrix in range(count):
            for half in range(2):
                row = group
                column = 2 * thread + half
                if transpose:
                    row, column = column, row
                matrices[matrix][row][column] = registers[lane][matrix] >> 16 * half & 0xFFFF
    return [struct.pack("<8H", *row) for matrix in matrices for row in matrix]


def stmatrix_bytes(registers: Sequence[Sequence[int]], count: int) -> list[bytes]:
    """Compute `stmatrix` of 16x8 matrices of bytes (m16n8), transposed: it writes rows, each a column of a matrix."""
    columns = [bytearray(16) for _ in range(8 * count)]
    for lane in LANES:
        group, thread = divmod(lane, 4)
        for matrix in range(count):
            for n in range(4):
                row = group + 8 * (n // 2)
                column = 2 * thread + n % 2
                columns[8 * matrix + column][row] = registers[lane][matrix] >> 8 * n & 255
    return [bytes(column) for column in columns]


def movmatrix(registers: Sequence[int]) -> list[int]:
    """Compute `movmatrix`: the transpose of an 8x8 matrix of 16-bit elements, held by lanes as `ldmatrix` loads it."""
    rows = stmatrix([[register] for register in registers], 1)
    return [lane[0] for lane in ldmatrix(rows, 1, transpose=True)]


# --- MMAs -------------------------------------------------------------------------------------------------
# With g = lane / 4 and t = lane % 4, and e elements to a register, a lane holds as element i of its register r
#
#     A   row g + 8 (r % 2), column t e + i + 4 e (r / 2)       (of 8 rows: row g, column t e + i + 4 e r)
#     B   row t e + i + 4 e r, column g
#     C   row g + 8 (n / 2), column 2 t + n % 2, as its n-th element


def a_places(m: int, k: int, bits: int, lane: int) -> list[tuple[int, int]]:
    """Return (row, column) of the elements of A that a lane holds."""
    group, thread = divmod(lane, 4)
    packed = max(1, 32 // bits)
    tall = m // 8
    registers = (divmod(n, packed) for n in range(m * k // 32))
    return [(group + 8 * (r % tall), thread * packed + i + 4 * packed * (r // tall)) for r, i in registers]


def b_places(k: int, bits: int, lane: int) -> list[tuple[int, int]]:
    """Return (row, column) of the elements of B that a lane holds."""
    group, thread = divmod(lane, 4)
    packed = max(1, 32 // bits)
    registers = (divmod(n, packed) for n in range(8 * k // 32))
    return [(thread * packed + i + 4 * packed * r, group) for r, i in registers]


def c_places(m: int, lane: int) -> list[tuple[int, int]]:
    """Return (row, column) of the elements of C and D that a lane holds."""
    group, thread = divmod(lane, 4)
    return [(group + 8 * (n // 2), 2 * thread + n % 2) for n in range(m * 8 // 32)]


def decode(kind: str, element: int) -> float | int:
    """Return the number that the bits of an element of A or B are."""
    if kind in ("s8", "s4"):
        return signed(element, mma_shapes.BITS[kind])
    if kind in ("u8", "u4") or kind.startswith("b1"):
        return element
    if kind == "f64":
        return struct.unpack("<d", element.to_bytes(8, "little"))[0]
    if kind == "tf32":  # the lowest 13 bits are ignored
        return struct.unpack("<f", (element & ~0x1FFF).to_bytes(4, "little"))[0]
    if kind == "bf16":
        return struct.unpack("<f", (element << 16).to_bytes(4, "little"))[0]
    if kind == "e5m2":  # the upper half of an f16
        return struct.unpack("<e", (element << 8).to_bytes(2, "little"))[0]
    if kind in ("e4m3", "e3m2", "e2m3"):
        return block_scaling.decode(kind, element)
    if kind == "e2m1":  # in the middle of a byte
        return block_scaling.decode(kind, element >> 2 & 15)
    return struct.unpack("<e", element.to_bytes(2, "little"))[0]


def mma_sync(
    shape: tuple[int, int, int],
    a_type: str,
    b_type: str,
    accumulator: str,
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[float]],
    saturate: bool = False,
    metadata: Sequence[int] | None = None,
    selector: int = 0,
) -> list[list[float]]:
    """Compute `mma.sync`: D = A B + C. Elements of A and B are bits, in the order in which lanes hold them; those of C
    are numbers.

    An accumulator starts with C and takes the terms in the order of k, each by one FMA in f32
    (f64 for f64), and is rounded to its type at the end. PTX leaves the order, and how accumulator are rounded, to the
    hardware. Integers wrap, or stop at the ends of their range (`saturate`).

    With `metadata`, a word of each lane, A is sparse: see `mma_sp`.
    """
    m, n, k = shape
    kind = mma_shapes.warp_kind(a_type, b_type)
    sparse = metadata is not None
    if mma_shapes.find("mma.sync", shape, a_type, b_type, accumulator, kind=kind, sparse=sparse) is None:
        raise ValueError(mma_shapes.refusal("mma.sync", shape, a_type, b_type, accumulator, sparse))
    a_bits, b_bits = (mma_shapes.container_bits(element, kind) for element in (a_type, b_type))
    stored = k // 2 if sparse else k
    left, right, start = (_zeros(rows, columns) for rows, columns in ((m, stored), (k, n), (m, n)))
    for lane in LANES:
        for element, (row, column) in zip(a[lane], a_places(m, stored, a_bits, lane), strict=True):
            left[row][column] = decode(a_type, element)
        for element, (row, column) in zip(b[lane], b_places(k, b_bits, lane), strict=True):
            right[row][column] = decode(b_type, element)
        for number, (row, column) in zip(c[lane], c_places(m, lane), strict=True):
            start[row][column] = number

    def sum_of(row: int, column: int) -> float:
        places = range(k) if metadata is None else sparse_places(a_type, k, row, metadata, selector)
        pairs = [(x, right[inner][column]) for x, inner in zip(left[row], places, strict=True)]
        if accumulator == "s32":
            terms = (x ^ y if a_type == "b1.xor" else x & y if a_type == "b1.and" else x * y for x, y in pairs)
            total = start[row][column] + sum(terms)
            return max(-(1 << 31), min((1 << 31) - 1, total)) if saturate else signed(total)
        total = float(start[row][column])
        for x, y in pairs:
            total = _fused(float(x), float(y), total, accumulator == "f64")
        return total if accumulator != "f16" else _to_f16(total)

    return [[sum_of(row, column) for row, column in c_places(m, lane)] for lane in LANES]


def mma_sp(
    shape: tuple[int, int, int],
    a_type: str,
    b_type: str,
    accumulator: str,
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[float]],
    metadata: Sequence[int],
    selector: int = 0,
) -> list[list[float]]:
    """Compute `mma.sp`, which is `mma_sync` with half of the elements of A along K.

    Each is multiplied by the element of B that the metadata name, a word of each lane.
    """
    return mma_sync(shape, a_type, b_type, accumulator, a, b, c, metadata=metadata, selector=selector)


def metadata_place(a_type: str, k: int, row: int, chunk: int, selector: int) -> tuple[int, int]:
    """Return the lane that has the metadata of a chunk of a row of a sparse A, and the first of their 4 bits.

    A chunk is `mma_shapes.sparse_chunk` elements along K. Of f16, bf16 and tf32 a lane has four chunks of row g in its
    lower half, and those of row g + 8 in its upper half. Of narrower types it has eight chunks of one of these rows.
    """
    half, group = divmod(row, 8)
    first = selector * 4 // mma_shapes.sparse_selectors(a_type, k)
    if mma_shapes.BITS[a_type] >= 16:
        return 4 * group + first + chunk // 4, 16 * half + 4 * (chunk % 4)
    return 4 * group + first + 2 * (chunk // 8) + half, 4 * (chunk % 8)


def sparse_places(a_type: str, k: int, row: int, metadata: Sequence[int], selector: int) -> list[int]:
    """Return which element along K each element of a row of a sparse A is.

    Two bits of a chunk's four number an element each, or a pair of elements of 4 bits; of tf32, 0b0100 is the first
    element and 0b1110 the second. The second number is the larger one.
    """
    size = mma_shapes.sparse_chunk(a_type)
    places: list[int] = []
    for chunk in range(k // size):
        lane, bit = metadata_place(a_type, k, row, chunk, selector)
        index = metadata[lane] >> bit & 15
        numbers = [index >> 3] if a_type == "tf32" else [index & 3, index >> 2]
        if index not in (0b0100, 0b1110) if a_type == "tf32" else numbers[0] >= numbers[1]:
            raise ValueError(f"the index of a chunk of a sparse A of {a_type} is {index:#06b}")
        each = size // 4 or 1
        places += [chunk * size + number * each + i for number in numbers for i in range(each)]
    return places


def mma_block_scale(
    kind: str,
    types: tuple[str, str, str],
    vector: int,
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[float]],
    scale_a: Sequence[int],
    scale_b: Sequence[int],
    selectors: tuple[int, int, int, int],
) -> list[list[float]]:
    """Compute `mma.sync` with block scales, m16n8: D = (A SFA) (B SFB) + C; `block_scaling.py` has the arithmetic.

    `types` are those of A, B and the scale factors, `vector` the elements along K that share a scale factor. Elements
    of A and B are bits, bytes for mxf8f6f4 and halves of bytes else; a lane's scale factors are a word. `selectors` are
    byte and thread of the scale factors of A, then those of B.
    """
    k = 32 if kind == "mxf8f6f4" else 64
    if rule := mma_shapes.kind_refusal("mma.sync", kind, 16, 8, k, *types[:2], "f32", types[2], vector):
        raise ValueError(rule)
    left, right, start = (_zeros(rows, columns) for rows, columns in ((16, k), (k, 8), (16, 8)))
    for lane in LANES:
        for element, (row, column) in zip(a[lane], a_places(16, k, 256 // k, lane), strict=True):
            left[row][column] = element
        for element, (row, column) in zip(b[lane], b_places(k, 256 // k, lane), strict=True):
            right[row][column] = element
        for number, (row, column) in zip(c[lane], c_places(16, lane), strict=True):
            start[row][column] = number

    def numbers(element: str, codes: Sequence[int]) -> list[float]:
        shift = 2 if kind == "mxf8f6f4" and element == "e2m1" else 0
        bits = mma_shapes.BITS[element]
        return [block_scaling.decode(element, code >> shift & ((1 << bits) - 1)) for code in codes]

    def scales(word: int, byte: int) -> list[float]:
        return [block_scaling.decode(types[2], word >> 8 * (byte + n) & 255) for n in range(k // vector)]

    byte_a, thread_a, byte_b, thread_b = selectors

    def sum_of(row: int, column: int) -> float:
        return block_scaling.scaled_sum(
            kind,
            types,
            vector,
            numbers(types[0], left[row]),
            numbers(types[1], [line[column] for line in right]),
            start[row][column],
            scales(scale_a[row % 8 * 4 + 2 * thread_a + row // 8], byte_a),
            scales(scale_b[column * 4 + thread_b], byte_b),
        )

    return [[sum_of(row, column) for row, column in c_places(16, lane)] for lane in LANES]


def _zeros(rows: int, columns: int) -> list[list[Any]]:
    return [[0] * columns for _ in range(rows)]


def _fused(x: float, y: float, z: float, double: bool) -> float:
    """Return x y + z, rounded once."""
    if not all(map(math.isfinite, (x, y, z))):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z  # for the sign of zero
    return round_float(exact, "rn", 53, -1074, 1023) if double else round_float(exact)


def _to_f16(value: float) -> float:
    return value if not math.isfinite(value) else round_float(Fraction(value), "rn", 11, -24, 15)


# --- tensor memory ----------------------------------------------------------------------------------------------------
# `memory` is that of a CTA: words by lane and column. Addresses are those of instructions.


def _access(
    address: int, shape: str, repeat: int, split: int, pack: bool
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Return (thread, register, cells) of all registers that a warp loads or stores."""
    lane = address >> 16
    column = address & 0xFFFF
    accesses: list[tuple[int, int, list[tuple[int, int]]]] = []
    for thread in LANES:
        for register in range(tensor_memory.ld_registers(shape, repeat)):
            cells = [tensor_memory.ld_cell(shape, thread, register, split)]
            if pack:
                cells = tensor_memory.packed_ld_cells(shape, thread, register, split)
            accesses.append((thread, register, [(lane + cell.lane, column + cell.column) for cell in cells]))
    return accesses


def tcgen05_ld(
    memory: Any, address: int, shape: str, repeat: int, split: int = 0, pack: bool = False
) -> list[list[int]]:
    """Compute `tcgen05.ld`: the registers of each thread of a warp."""
    registers = [[0] * tensor_memory.ld_registers(shape, repeat) for _ in LANES]
    for thread, register, cells in _access(address, shape, repeat, split, pack):
        words = [int(memory[cell]) for cell in cells]
        registers[thread][register] = words[0] & 0xFFFF | (words[1] & 0xFFFF) << 16 if pack else words[0]
    return registers


def tcgen05_ld_red(
    memory: Any,
    address: int,
    shape: str,
    repeat: int,
    reduction: str,
    type_: str,
    split: int = 0,
    abs_: bool = False,
    nan: bool = False,
) -> list[list[int]]:
    """Compute `tcgen05.ld.red`: the registers of each thread, and then the least or largest of them.

    NaN do not count, unless `nan` says that one makes the result NaN; a zero with a sign is less than one without.
    """
    best = min if reduction == "min" else max

    def reduced(words: list[int]) -> int:
        if type_ != "f32":
            return best(words, key=signed if type_ == "s32" else int)
        words = [word & 0x7FFFFFFF if abs_ else word for word in words]
        numbers = [word for word in words if word & 0x7FFFFFFF <= 0x7F800000]
        if not numbers or (nan and len(numbers) < len(words)):
            return 0x7FFFFFFF
        return best(numbers, key=lambda word: -(word & 0x7FFFFFFF) - 1 if word >> 31 else word)

    loaded = tcgen05_ld(memory, address, shape, repeat, split)
    return [[*words, reduced(words)] for words in loaded]


def tcgen05_st(
    memory: Any,
    address: int,
    registers: Sequence[Sequence[int]],
    shape: str,
    repeat: int,
    split: int = 0,
    unpack: bool = False,
) -> None:
    """Compute `tcgen05.st` of the registers of each thread of a warp."""
    for thread, register, cells in _access(address, shape, repeat, split, unpack):
        word = registers[thread][register]
        for half, cell in enumerate(cells):
            memory[cell] = int(memory[cell]) & ~0xFFFF | word >> 16 * half & 0xFFFF if unpack else word


def tcgen05_cp(
    memory: Any, shared: bytes, address: int, descriptor: int, shape: str, format_: str | None = None
) -> None:
    """Compute `tcgen05.cp` of rows of shared memory.

    Each 16 bytes are copied, or are 16 elements of 4 or 6 bits, which become bytes: those of 4 bits from bit 2 on,
    those of 6 bits from bit 0 on, as kind::f8f6f4 takes them.
    """
    bits = {None: 8, "b4x16_p64": 4, "b6x16_p32": 6}[format_]
    for row, word, cell in tensor_memory.cp_cells(shape):
        start = tcgen05_descriptors.operand_address(descriptor, "k", 8, row, word // 4 * 16)
        packed = int.from_bytes(shared[start : start + 16], "little")
        values = [packed >> bits * n & (1 << bits) - 1 for n in range(word % 4 * 4, word % 4 * 4 + 4)]
        place = (address >> 16) + cell.lane, (address & 0xFFFF) + cell.column
        memory[place] = sum(byte << (8 * n + 2 * (bits == 4)) for n, byte in enumerate(values))


def tcgen05_shift(memory: Any, address: int) -> None:
    """Compute `tcgen05.shift.down`: 31 of the 32 lanes at an address get the 256 bits of the lane after them."""
    lane = address >> 16
    column = address & 0xFFFF
    for there in range(lane, lane + 31):
        for which in range(column, column + 8):
            memory[there, which] = memory[there + 1, which]


# --- WGMMA ----------------------------------------------------------------------------------------
# An operand lies in shared memory as a descriptor says. A thread's elements of D, and of A where it comes from registers, are those
# that `mma.sync` spreads: warp w of the group has rows 16 w to 16 w + 15.

_CHUNKS = {0: 1, 1: 8, 2: 4, 3: 2}
"""How many 16 bytes a row of the canonical layout has, by the number of the swizzle."""


def matrix_descriptor(address: int, leading: int, stride: int, swizzle: str) -> int:
    """Return the descriptor of an operand at an address of shared memory; `leading` and `stride` are bytes."""
    field = [(size & 0x3FFFF) >> 4 for size in (address, leading, stride)]
    return field[0] | field[1] << 16 | field[2] << 32 | SWIZZLES[swizzle] << 62


tcgen05_matrix_descriptor = tcgen05_descriptors.tcgen05_matrix_descriptor
tcgen05_mma = tcgen05_definitions.tcgen05_mma
tcgen05_mma_sp = tcgen05_definitions.tcgen05_mma_sp
tcgen05_mma_ws = tcgen05_definitions.tcgen05_mma_ws
tcgen05_mma_block_scale = tcgen05_definitions.tcgen05_mma_block_scale


def operand_address(descriptor: int, major: str, bits: int, row: int, k: int) -> int:
    """The address in shared memory of an element of A (or B): row (or column) `row`, place `k` along K.

    16 bytes that lie together are a chunk of `each` elements; 8 rows (K-major) or 8 k (MN-major) of chunks are a
    block. The swizzle exchanges chunks by bits of the absolute address.
    """
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    chunks = _CHUNKS[descriptor >> 62]
    each = 128 // bits
    if major == "k":
        chunk, inside = divmod(k, each)
        offset = row % 8 * chunks * 16 + row // 8 * stride + chunk * (16 if chunks > 1 else leading)
    else:
        chunk, inside = divmod(row, each)
        along, across = (stride, leading) if chunks == 1 else (leading, stride)
        offset = chunk % chunks * 16 + chunk // chunks * along + k % 8 * chunks * 16 + k // 8 * across
    address = start + offset + inside * bits // 8
    return address ^ (address >> 7 & (chunks - 1)) << 4


def wgmma_c_places(n: int, thread: int) -> list[tuple[int, int]]:
    """Return (row, column) of the elements of D that a thread of the group holds, in their order."""
    warp, lane = divmod(thread, 32)
    return [(16 * warp + row, 8 * j + column) for j in range(n // 8) for row, column in c_places(16, lane)]


def wgmma_a_places(k: int, bits: int, thread: int) -> list[tuple[int, int]]:
    """Return (row, column) of the elements of A that a thread of the group holds where A comes from registers, in
    their order."""
    warp, lane = divmod(thread, 32)
    return [(16 * warp + row, column) for row, column in a_places(16, k, bits, lane)]


_LEAST_EXPONENT = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
"""The exponents of the smallest normal numbers."""


def wgmma(a_type: str, b_type: str, accumulator: str, a: Any, b: Any, c: Any) -> np.ndarray:
    """D = A B + C of one instruction: matrices of numbers, as numpy's; C is 0 where it does not accumulate.

    PTX leaves order and rounding open; this is what H100s were observed to do (the model of MMA-Sim, arXiv
    2511.10909). C and all terms of a row are added at once: each is cut off (towards zero) below 2^-F of the
    largest exponent among them, the exponent of a term being the sum of its factors'; the sum of these is exact. It
    is cut off to f32, or rounded to the nearest f16. F is 25; of 8-bit floats it is 13, and so many bits of the
    fraction are kept. Integers wrap.
    """
    a = np.asarray(a)
    b = np.asarray(b)
    if accumulator == "s32":
        total = a.astype(np.int64) @ b.astype(np.int64) + np.asarray(c, np.int64)
        return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    a = a.astype(np.float64)
    b = b.astype(np.float64)
    start = np.broadcast_to(np.asarray(c, np.float64), (len(a), b.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.concatenate([a[:, None, :] * b.T[None], start[..., None]], axis=2)
        exponents = np.concatenate(
            [
                _exponents(a, a_type)[:, None, :] + _exponents(b, b_type).T[None],
                _exponents(start, accumulator)[..., None],
            ],
            axis=2,
        )
        special = np.logical_not(np.isfinite(terms).all(axis=2))
        not_finite = terms.sum(axis=2)  # infinite, or no number
        finite = np.where(np.expand_dims(special, 2), 0.0, terms)
        largest = np.where(finite == 0, -(1 << 20), exponents).max(axis=2)
        largest = np.where(largest == -(1 << 20), 0, largest)
        fraction = 13 if mma_shapes.BITS[a_type] == 8 else 25
        parts = np.trunc(np.ldexp(finite, fraction - largest[..., None])).astype(np.int64)
        exact = np.ldexp(parts.sum(axis=2).astype(np.float64), largest - fraction)
        rounded = _nearest_f16(exact) if accumulator == "f16" else _cut_off(exact, min(fraction, 23))
        return np.where(special, not_finite, rounded).astype(np.float16 if accumulator == "f16" else np.float32)


def _exponents(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Return e with 1 <= |number| / 2^e < 2; that of the smallest normal number if it is smaller."""
    return np.maximum(np.frexp(numbers)[1] - 1, _LEAST_EXPONENT[kind])


def _cut_off(numbers: np.ndarray, fraction: int) -> np.ndarray:
    """Return numbers as f32 with so many bits after the point, rounded towards zero."""
    step = np.maximum(np.frexp(numbers)[1] - 1, -126) - fraction
    return np.ldexp(np.trunc(np.ldexp(numbers, -step)), step)


def _nearest_f16(numbers: np.ndarray) -> np.ndarray:
    """Return numbers rounded to f16, ties to even."""
    step = np.maximum(np.frexp(numbers)[1] - 1, -14) - 10
    return np.ldexp(np.rint(np.ldexp(numbers, -step)), step)
