"""`tcgen05.mma` of the CPU runtime against its definition in plain Python, and against numpy, bit for bit."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import numpy as np
import pytest
from umma_testing import BITS, Case, Ctas, differences, multiply

from kiln.dialects.nvgpu import tcgen05_definitions as definitions
from kiln.dialects.nvgpu import tcgen05_descriptors as descriptors
from kiln.targets.cpu.ops.umma import refused_mma
from kiln.targets.cpu.runtime import umma

LONG = bool(os.environ.get("KILN_LONG_TESTS"))
MX = {"scale": "ue8m0", "block": 32}
NV = {"scale": "ue4m3", "block": 16}
E2M1 = ("e2m1", "e2m1")

LAYOUTS = {
    "D": {"m": 128},
    "A": {"m": 256, "cta_group": 2},
    "B": {"m": 128, "cta_group": 2},
    "F": {"m": 64},
    "F16": {"m": 64, "lane": 16},
    "E": {"m": 64, "ws": True},
    "G": {"m": 32, "ws": True},
    "D.ws": {"m": 128, "ws": True},
}
SWIZZLES = ("none", "32b", "64b", "128b")


def cases() -> dict[str, Case]:
    """Every kind in every layout, A in both memories, both majors and every swizzle, each with some of the others."""
    found: dict[str, Case] = {}
    kinds = (
        ("f16", "f16", "f16", "f32"),
        ("f16", "bf16", "bf16", "f32"),
        ("f16", "f16", "f16", "f16"),
        ("tf32", "tf32", "tf32", "f32"),
        ("f8f6f4", "e4m3", "e5m2", "f32"),
        ("f8f6f4", "e2m1", "e3m2", "f32"),
        ("f8f6f4", "e2m3", "e2m1", "f16"),
        ("i8", "s8", "u8", "s32"),
    )
    for number, (kind, a, b, accumulator) in enumerate(kinds):
        for place, (letter, layout) in enumerate(LAYOUTS.items()):
            n = 64 if layout.get("ws") else 32
            swizzle, in_tmem = SWIZZLES[(number + place) % 4], (number + place // 2) % 3 == 0
            name = f"{kind}-{a}-{b}-{accumulator}-{letter}"
            found[name] = Case(kind, a, b, n=n, accumulator=accumulator, swizzle=swizzle, a_in_tmem=in_tmem, **layout)
    for kind, pair, options in (
        ("mxf8f6f4", ("e4m3", "e5m2"), MX),
        ("mxf8f6f4", ("e2m1", "e2m3"), MX),
        ("mxf8f6f4", ("e3m2", "e4m3"), MX),
        ("mxf4", E2M1, MX),
        ("mxf4nvf4", E2M1, NV),
        ("mxf4nvf4", E2M1, {**MX, "block": 16}),
        ("mxf4nvf4", E2M1, MX),
    ):
        for place, letter in enumerate("DAB"):
            ids = {"mxf8f6f4": (1 + place, 3 - place)}.get(kind, (2, 0) if options["block"] == 32 else (0, 0))
            made = Case(
                kind, *pair, n=48 if letter == "D" else 32, **LAYOUTS[letter], **options, a_in_tmem=letter == "A"
            )
            name = f"{kind}-{pair[0]}-{pair[1]}-{options['scale']}-{options['block']}-{letter}"
            found[name] = dataclasses.replace(made, sfa_id=ids[0], sfb_id=ids[1])
    for major in ("a_major", "b_major"):
        for number, swizzle in enumerate((*SWIZZLES, "128b_32b")):
            for kind, a in (("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e4m3"), ("i8", "s8"), ("f8f6f4", "e3m2")):
                layout = LAYOUTS["DAF"[number % 3]]
                sums = "s32" if kind == "i8" else "f32"
                n = 32 if major == "a_major" else 128
                found[f"{major}-{swizzle}-{a}"] = Case(
                    kind, a, a, n=n, accumulator=sums, swizzle=swizzle, **layout, **{major: "mn"}
                )
    found["k96"] = Case("mxf4nvf4", *E2M1, 128, 136, **NV, k96=True, sfa_id=2, swizzle="64b")
    found["k96-pair"] = Case("mxf4", *E2M1, 256, 48, cta_group=2, **MX, k96=True, sfa_id=3, sfb_id=1, swizzle="none")
    found["k96-next-chunk"] = Case("mxf4nvf4", *E2M1, 128, 32, **NV, k96=True, a_start=96)
    found["k96-in-tensor-memory"] = Case("mxf4nvf4", *E2M1, 128, 32, **NV, k96=True, a_in_tmem=True)
    found["negate"] = Case("f16", "f16", "f16", 64, 16, negate=(True, False))
    found["negate-both"] = Case("f8f6f4", "e4m3", "e5m2", 64, 16, negate=(True, True))
    found["negate-fp4"] = Case("mxf4nvf4", *E2M1, 128, 16, **NV, negate=(False, True))
    found["saturate"] = Case("i8", "u8", "s8", 64, 16, "s32", saturate=True)
    found["scale-d"] = Case("f16", "f16", "f16", 128, 16, scale_d=15)
    found["scale-d-f16"] = Case("f16", "f16", "f16", 64, 16, "f16", scale_d=3)
    found["scale-d-i8"] = Case("i8", "s8", "s8", 64, 16, "s32", scale_d=4)
    found["lanes"] = Case("f16", "f16", "f16", 128, 16, masks=(0x55555555, 0, 0xFFFFFFFF, 1))
    found["lanes-pair"] = Case("tf32", "tf32", "tf32", 128, 32, cta_group=2, masks=(3, 0, 5, 0, 0, 0xFFFF0000, 0, 7))
    four = 2 << 40 | 3 << 48 | 1 << 39 | 1 << 8 | 2 << 16 | 1 << 24 | 0b0011 << 32
    found["zero-columns"] = Case("f16", "f16", "f16", 32, 128, ws=True, zero_columns=four)
    found["zero-columns-i8"] = Case("i8", "s8", "s8", 64, 64, "s32", ws=True, zero_columns=four)
    found["k-major-128b_32b"] = Case("tf32", "tf32", "tf32", 128, 16, swizzle="128b_32b")
    found["columns-256"] = Case("f8f6f4", "e4m3", "e4m3", 128, 256, a_in_tmem=True)
    return found


CASES = cases()


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


@pytest.mark.parametrize("name", [name for name in CASES if name.rpartition("-")[2] in LAYOUTS])
def test_small_integers_are_what_numpy_computes(name):
    """All elements of D, twice in a row: nothing is rounded, so that layouts alone can be wrong."""
    case = CASES[name]
    rng = np.random.default_rng(5)
    (a, a_bits), (b, b_bits) = (
        small_integers(rng, type_, (rows, case.k)) for type_, rows in ((case.a_type, case.m), (case.b_type, case.n))
    )
    ctas = Ctas(case.cta_group)
    case.place(ctas, a_bits, b_bits)
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


@pytest.mark.parametrize("ws", [False, True])
@pytest.mark.parametrize("kind", umma.KINDS)
def test_instructions_that_do_not_exist_are_refused(kind, ws):
    """The runtime decodes random instruction descriptors as `hardware/mma_shapes.py` lists instructions."""
    from umma_testing import issue

    rng, ctas = np.random.default_rng(3), Ctas(2)
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
        block = int(rng.choice([16, 32])) if scaled else 0
        record = umma.Mma(
            kind=umma.KINDS.index(kind), flags=umma.WS * ws, cta_group=cta_group, idesc=idesc, vector=block
        )
        rule = descriptors.decode(kind, idesc).refusal(cta_group, block or None, ws=ws)
        why = issue(record, ctas, 0)  # never 0: its descriptors are wrong
        assert (why & 255 == umma.INSTRUCTION) == bool(rule), (hex(idesc), cta_group, block, rule)
        assert why & 255 in (umma.INSTRUCTION, umma.OPERAND)
        seen.add(bool(rule))
    assert seen == ({True} if ws and scaled else {True, False})


def test_what_is_wrong_with_an_mma():
    f16, mx = Case("f16", "f16", "f16", 128, 16), Case("mxf4nvf4", *E2M1, 128, 16, **NV)
    idesc = f16.idesc
    assert code_of(f16, idesc=idesc | 4)[0] == umma.SPARSE
    assert code_of(f16, flags=umma.SHIFTS_A)[0] == umma.SHIFTED
    code, words = code_of(f16, idesc=idesc & ~(63 << 17))
    assert code == umma.INSTRUCTION and "whose n is 0: tcgen05.mma of kind::f16" in words
    for bit in (0, 3, 6, 23, 29, 30):
        assert code_of(f16, idesc=idesc | 1 << bit)[0] == umma.RESERVED, bit
    assert code_of(mx, idesc=mx.idesc | 1 << 30)[0] == umma.SCALE_ID
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


def test_codes_fit_their_byte():
    assert umma.OUTSIDE < 256 and ctypes.sizeof(umma.Mma) % 8 == 0
