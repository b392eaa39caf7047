"""`tcgen05.mma` of the CPU runtime against its definition in plain Python, and against numpy, bit for bit."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import numpy as np
import pytest
from umma_cases import CASES, E2M1, LAYOUTS, MX, NV
from umma_testing import BITS, Case, Ctas, differences, multiply, random_indices

from kiln.dialects.nvgpu import tcgen05_definitions as definitions
from kiln.dialects.nvgpu import tcgen05_descriptors as descriptors
from kiln.targets.cpu.ops.umma import refused_mma
from kiln.targets.cpu.runtime import umma

LONG = bool(os.environ.get("KILN_LONG_TESTS"))


@pytest.mark.quick(24)
@pytest.mark.parametrize("name", CASES)
def test_random_operands(name):
    """Floats about 1 that are added to D, or any bits: NaN, infinities, subnormal numbers, scales at the ends."""
    case, count, number = CASES[name], 200 if LONG else 12, list(CASES).index(name)
    if LONG or number % 3 == 0:
        assert differences(case, near=True, accumulate=True, count=count) == []
    if LONG or number % 3:
        assert differences(case, near=False, accumulate=number % 4 > 0, count=count, seed=1) == []


@pytest.mark.parametrize(("kind", "type_"), [("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e5m2"), ("mxf4", "e2m1")])
def test_zeros_of_a_beside_large_elements_of_b(kind, type_):
    """The largest exponent is that of a term which is not zero: terms and D are far below the elements of B."""
    case = Case(kind, type_, type_, 128, 16, **(MX if kind == "mxf4" else {}))
    rng, ctas = np.random.default_rng(2), Ctas(1)
    exponent, fraction = definitions.FORMATS[type_]
    fraction += BITS[type_] - 1 - exponent - fraction  # of tf32, with its padding
    a = rng.integers(0, 1 << BITS[type_], (128, case.k)) & (1 << fraction + 1) - 1  # the two smallest exponents
    b = rng.integers(0, 1 << BITS[type_], (16, case.k)) & ~(1 << fraction + exponent - 1)
    zero = np.arange(case.k) % (32 if kind == "mxf4" else 2) < (16 if kind == "mxf4" else 1)
    a[:, zero] = 0
    b[:, zero] |= (1 << exponent) - 2 << fraction
    d = rng.integers(0, 1 << 31, (128, 16)) & 0x007FFFFF | rng.integers(1, 200, (128, 16)) << 23
    case.place(ctas, a, b, d)
    if case.scale:
        scales = [np.tile([200, 90], (rows, 1)) for rows in (128, 16)]
        case.place_scales(ctas, *scales)
    assert differences(case, near=False, accumulate=True, count=40, ctas=ctas) == []


def bits_of(type_: str, numbers: np.ndarray) -> np.ndarray:
    """Return numbers that a type has as bits."""
    if type_ == "e2m1":
        return np.searchsorted([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.abs(numbers)) | (numbers < 0) << 3
    kind, unsigned, shift = {
        "f16": (np.float16, np.uint16, 0), "e5m2": (np.float16, np.uint16, 8), "bf16": (np.float32, np.uint32, 16)
    }.get(type_, (np.float32, np.uint32, 0))  # fmt: skip
    return numbers.astype(kind).view(unsigned) >> shift


@pytest.mark.parametrize(
    ("kind", "type_", "scales", "cut"),
    [
        ("f16", "f16", {}, 25), ("f16", "bf16", {}, 25), ("tf32", "tf32", {}, 25), ("f8f6f4", "e5m2", {}, 25),
        ("mxf8f6f4", "e5m2", MX, 25), ("mxf4", "e2m1", MX, 35), ("mxf4nvf4", "e2m1", NV, 35),
    ],
)  # fmt: skip
def test_the_last_bit_that_is_added(kind, type_, scales, cut):
    """A large term and D cancel each other: what is left is a small term, in units of the last bit that is not cut off."""
    case = Case(kind, type_, type_, 128, 16, **scales)
    ctas, fp4 = Ctas(1), cut == 35
    units = np.resize([0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -3], 128)
    large, last = (16, 2.0**-19) if fp4 else (14, 2.0**-11)
    a, b = np.zeros((128, case.k)), np.zeros((16, case.k))
    a[:, 0], b[:, 0] = (1, 1) if fp4 else (2**7, 2**7)
    a[:, -1], b[:, -1] = (units, 0.5) if fp4 else (units * 2**-6, 2**-5)
    d = np.full((128, 16), -(2.0**large), np.float32)
    case.place(ctas, bits_of(type_, a), bits_of(type_, b), d.view(np.uint32))
    if scales:
        first, others = ({"ue8m0": (135, 118), "ue4m3": (0x78, 1)}[case.scale]) if fp4 else (127, 127)  # 2^8, 2^-9
        case.place_scales(ctas, *(np.resize([first] + [others] * (case.k // case.block - 1), (rows, case.k // case.block)) for rows in (128, 16)))  # fmt: skip
    assert differences(case, near=False, accumulate=True, count=40, ctas=ctas) == []
    found = np.array(ctas.tmem)[case.cells()].view(np.float32)
    np.testing.assert_array_equal(found, np.tile(np.trunc(units)[:, None] * last, 16))


@pytest.mark.parametrize(("kind", "type_"), [("f16", "f16"), ("f8f6f4", "e5m2")])
def test_sums_of_f16_are_rounded_to_the_nearest(kind, type_):
    """Ties go to even, also among subnormal numbers; from 65520 on it is infinite."""
    case, ctas = Case(kind, type_, type_, 128, 16, accumulator="f16"), Ctas(1)
    d, half = (np.resize(each, 128) for each in ([2048, -2048, 4096, 0, 65504], [1, 1, 2, 2.0**-25, 16]))
    added = np.resize([1, 3, 0.5, 1.5, 7, -1, -3, 2.5, -0.5], 128) * half  # in halves of the last bit of d
    a, b = np.zeros((128, case.k)), np.zeros((16, case.k))
    a[:, 0], a[:, 1] = np.where(d == 0, 0, added), np.where(d == 0, added * 2**12, 0)
    b[:, 0], b[:, 1] = 1, 2.0**-12
    words = np.tile(d.astype(np.float16)[:, None], 16).view(np.uint16)
    case.place(ctas, bits_of(type_, a), bits_of(type_, b), words)
    assert differences(case, near=False, accumulate=True, count=40, ctas=ctas) == []
    found = np.array(ctas.tmem)[case.cells()].astype(np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, np.tile((d + added).astype(np.float16)[:, None], 16))


def small_integers(rng: np.random.Generator, type_: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, and the bits that they are in a type."""
    numbers = rng.integers(0 if type_ == "u8" else -3, 4, shape)
    if type_ in ("s8", "u8"):
        return numbers, numbers & 255
    exponent, fraction = {"e4m3": (4, 3), "e5m2": (5, 2), "e3m2": (3, 2), "e2m3": (2, 3), "e2m1": (2, 1)}.get(
        type_, (8, 23)
    )
    if type_ == "f16":
        return numbers, numbers.astype(np.float16).view(np.uint16)
    if BITS[type_] >= 16:
        return numbers, numbers.astype(np.float32).view(np.uint32) >> (32 - BITS[type_])
    sizes = np.abs(numbers)
    log = np.where(sizes > 1, 1, 0)
    field = log + (1 << exponent - 1) - 1
    bits = np.where(sizes == 0, 0, field << fraction | (sizes << fraction >> log) - (1 << fraction))
    return numbers, bits | (numbers < 0) << (exponent + fraction)


@pytest.mark.quick(30)
@pytest.mark.parametrize("name", [name for name in CASES if name.rpartition("-")[2] in (*LAYOUTS, "C", "C16")])
def test_small_integers_are_what_numpy_computes(name):
    """All elements of D, twice in a row: nothing is rounded, so that layouts alone can be wrong."""
    case = CASES[name]
    rng = np.random.default_rng(5)
    a, a_bits = small_integers(rng, case.a_type, (case.m, case.stored))
    b, b_bits = small_integers(rng, case.b_type, (case.n, case.k))
    ctas = Ctas(case.cta_group)
    case.place(ctas, a_bits, b_bits)
    if case.sparse:
        indices = random_indices(rng, case)
        case.place_metadata(ctas, indices)
        size = case.k // indices.shape[1]
        whole = np.zeros((case.m, case.k), a.dtype)
        for (row, chunk), index in np.ndenumerate(indices):
            places = definitions.chunk_places(case.kind, int(index))
            for number, place in enumerate(places):
                whole[row, chunk * size + place] = a[row, chunk * len(places) + number]
        a = whole
    left, right = a, b
    if case.scale:
        bytes_ = [rng.integers(0, 3, (rows, case.k // case.block)) for rows in (case.m, case.n)]
        case.place_scales(ctas, *(56 + 8 * x if case.scale == "ue4m3" else 127 + x for x in bytes_))
        left, right = (x * np.repeat(1 << s, case.block, axis=1) for x, s in zip((a, b), bytes_, strict=True))
    assert multiply(case, ctas, accumulate=False) == 0
    assert multiply(case, ctas, accumulate=True) == 0
    wanted = 2 * (left @ right.T)
    words = np.array(ctas.tmem)[case.cells()]
    if case.accumulator == "f16":
        assert (words >> 16 == 0xFFFF).all()  # not written
        words = words.astype(np.uint16)
    np.testing.assert_array_equal(
        words.view({"s32": np.int32, "f16": np.float16}.get(case.accumulator, np.float32)), wanted
    )


@pytest.mark.parametrize("saturate", [False, True])
def test_integers_at_the_ends_of_their_range(saturate):
    case = Case("i8", "s8", "u8", 64, 16, "s32", saturate=saturate)
    rng, ctas = np.random.default_rng(4), Ctas(1)
    a, b = rng.integers(-128, 128, (64, 32)), rng.integers(0, 256, (16, 32))
    d = np.where(rng.random((64, 16)) < 0.5, (1 << 31) - 1, -(1 << 31)) // rng.integers(1, 3, (64, 16))
    case.place(ctas, a & 255, b, d & 0xFFFFFFFF)
    assert multiply(case, ctas, accumulate=True) == 0
    exact = a @ b.T + d
    assert (exact >= 1 << 31).any() and (exact < -(1 << 31)).any()
    wanted = np.clip(exact, -(1 << 31), (1 << 31) - 1) if saturate else exact.astype(np.int32)
    np.testing.assert_array_equal(np.array(ctas.tmem)[case.cells()].view(np.int32), wanted)


def code_of(case: Case, **changes: int) -> tuple[int, str]:
    """The code that an MMA with other fields of its record is refused with, and the message."""
    from umma_testing import issue

    record = case.record(False)
    for name, value in changes.items():
        setattr(record, name, value)
    why = issue(record, Ctas(case.cta_group), 0)
    return (why & 255, refused_mma(why, "tcgen05.mma")[0]) if why else (0, "")


@pytest.mark.parametrize("form", ["", "ws", "sparse"])
@pytest.mark.parametrize("kind", umma.KINDS)
def test_instructions_that_do_not_exist_are_refused(kind, form):
    """The runtime decodes random instruction descriptors as `hardware/mma_shapes.py` lists instructions."""
    from umma_testing import issue

    rng, ctas = np.random.default_rng(3), Ctas(2)
    ws, sparse = form == "ws", form == "sparse"
    seen = set()
    for number in range(4000 if LONG else 600):
        cta_group = 1 if ws else 1 + number % 2
        types = list(descriptors.ELEMENT_CODES[kind].values())
        a, b = rng.choice([*types, *types, *types, 7], 2)
        if rng.random() < 0.5:
            b = a
        m = rng.choice([2, 4, 8, 16, *[cta_group * 8] * 3])
        n = rng.choice([*range(8, 33, 8), *range(32)])
        idesc = int(a) << 7 | int(b) << 10 | int(m) << 24 | int(n) << 17 | int(rng.choice([0, 0, 0, 1, 2, 3])) << 15
        scaled = kind in descriptors.BLOCK_SCALE_KINDS
        idesc |= int(rng.choice([0, 1, 1])) << 23 if scaled else int(rng.choice([0, 1, 1, 2, 3])) << 4
        idesc |= (rng.random() < 0.2) << 31 if scaled else 0
        idesc |= 4 * sparse
        idesc ^= 1 << int(rng.integers(32)) if rng.random() < 0.2 else 0
        block = int(rng.choice([16, 32])) if scaled else 0
        record = umma.Mma(
            kind=umma.KINDS.index(kind),
            flags=umma.WS * ws | umma.SPARSE_A * sparse,
            cta_group=cta_group,
            idesc=idesc,
            vector=block,
        )
        rule = descriptors.wrong_instruction(kind, idesc, cta_group, block or None, ws=ws, sparse=sparse)
        why = issue(record, ctas, 0)  # never 0: its descriptors are wrong
        assert (why & 255 == umma.INSTRUCTION) == bool(rule), (hex(idesc), cta_group, block, rule)
        assert why & 255 in (umma.INSTRUCTION, umma.OPERAND)
        seen.add(bool(rule))
    assert seen == ({True} if form and scaled else {True, False})


def test_what_is_wrong_with_an_mma():
    f16, mx = Case("f16", "f16", "f16", 128, 16), Case("mxf4nvf4", *E2M1, 128, 16, **NV)
    idesc = f16.idesc
    assert code_of(f16, idesc=idesc | 4)[1].endswith(
        "bit 2 is 1: it is 1 for tcgen05.mma.sp, whose A is sparse, and 0 for tcgen05.mma"
    )
    assert code_of(f16, flags=umma.SHIFTS_A)[0] == umma.SHIFTED
    code, words = code_of(f16, idesc=idesc & ~(63 << 17))
    assert code == umma.INSTRUCTION and "whose n is 0: tcgen05.mma of kind::f16" in words
    for bit in (0, 3, 6, 23, 29, 30):
        code, words = code_of(f16, idesc=idesc | 1 << bit)
        assert code == umma.INSTRUCTION and words.endswith(f"of which the reserved bits {1 << bit:#010x} are not 0"), (
            bit
        )
    code, words = code_of(mx, idesc=mx.idesc | 1 << 30)
    assert code == umma.INSTRUCTION and words.endswith("whose sfa_id is 2: 0 with 4 scale factors of a row")
    code, words = code_of(Case("mxf4", *E2M1, 128, 16, **MX), idesc=mx.idesc | 1 << 23 | 1 << 4, vector=32)
    assert code == umma.INSTRUCTION and words.endswith("whose sfb_id is 1: 0 or 2 with 2 scale factors of a row")
    assert (
        code_of(dataclasses.replace(f16, cta_group=1), cta_group=2, idesc=idesc & ~(31 << 24) | 16 << 24)[0]
        == umma.NO_PAIR
    )
    code, words = code_of(f16, d=1 << 16 | 5)
    assert (code, words) == (umma.LANE, "tcgen05.mma of kind::f16 has D at lane 1 of tensor memory: it must be 0")
    assert code_of(f16, d=512 - 15)[0] == umma.COLUMN
    in_tmem = dataclasses.replace(f16, a_in_tmem=True)
    place = "columns 505 to 512 of tensor memory, which are not all allocated"
    assert code_of(in_tmem, a=505) == (umma.COLUMN, f"tcgen05.mma of kind::f16 has A in {place}")
    assert code_of(mx, sfa=509)[0] == umma.COLUMN and "SFB" in code_of(mx, sfb=512)[1]
    for bits in (1 << 61, 1 << 49, 1 << 47, 1 << 46):  # a swizzle, a base offset, another version, none
        assert code_of(f16, b=f16.descriptor(False) ^ bits)[0] == umma.OPERAND
    swizzled = 2 << 61 | 1 << 46 | 64 << 32 | 1 << 16  # 128 bytes, K-major
    for at, code in ((16, 0), (96, 0), (112, umma.CROSSES)):
        assert code_of(f16, a=swizzled | at >> 4)[0] == code
    assert (
        code_of(f16, a=swizzled | 112 >> 4)[1]
        == "tcgen05.mma of kind::f16 has rows of A that leave the line of their swizzle"
    )
    assert code_of(f16, a=0x4000404000010000 & ~(1 << 46))[1].startswith(
        "tcgen05.mma of kind::f16 has a wrong descriptor of A"
    )


def test_what_is_wrong_with_a_sparse_mma():
    case = Case("f16", "f16", "f16", 64, 16, lane=16, sparse=True)
    assert "bit 2 is 0" in code_of(case, idesc=case.idesc & ~4)[1]
    assert code_of(case, idesc=case.idesc | 2)[1].endswith("whose sparse_id is 2: 0 or 1")
    code, words = code_of(case, metadata=16 << 16 | 511)
    assert code == umma.COLUMN and "has the metadata of A in columns 511 to 512 of tensor memory" in words
    for place in (400, 16 << 16 | 401):  # another half of the lanes, an odd column
        code, words = code_of(case, metadata=place)
        where = f"lane {place >> 16} and column {place & 0xFFFF} of tensor memory"
        assert (code, words) == (umma.LANE, f"tcgen05.mma of kind::f16 has the metadata of A at {where}")
    in_tmem = dataclasses.replace(case, a_in_tmem=True)
    assert code_of(in_tmem, a=320) == (
        umma.LANE,
        "tcgen05.mma of kind::f16 has A at lane 0 of tensor memory: it must be 0",
    )
    swizzled = 2 << 61 | 1 << 46 | 64 << 32 | 1 << 16  # 128 bytes, K-major: rows of B have 64
    assert code_of(case, b=swizzled | 80 >> 4)[0] == umma.CROSSES


def test_infinities_that_a_sparse_a_leaves_out_do_not_count():
    """Only elements of B that metadata name are multiplied."""
    case = Case("f16", "f16", "f16", 128, 16, sparse=True)
    ctas = Ctas(1)
    b = np.where(np.arange(case.k) % 4 < 2, 0x7C00, 0x3C00) * np.ones((16, 1), np.uint64).astype(int)
    case.place(ctas, np.full((128, 16), 0x3C00), b)
    case.place_metadata(ctas, np.full((128, 8), 0b1110))
    assert multiply(case, ctas, accumulate=False) == 0
    assert set(np.array(ctas.tmem)[case.cells()].view(np.float32).reshape(-1)) == {16.0}


def test_codes_fit_their_byte():
    assert umma.OUTSIDE < 256 and ctypes.sizeof(umma.Mma) % 8 == 0
