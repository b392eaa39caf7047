"""MMAs of `tcgen05` to compare with their definition: the tests of the CPU runtime run all, and those of a GPU."""

from __future__ import annotations

import dataclasses

from umma_testing import Case

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
    found |= sparse_cases()
    found["columns-256"] = Case("f8f6f4", "e4m3", "e4m3", 128, 256, a_in_tmem=True)
    return found


def sparse_cases() -> dict[str, Case]:
    """A sparse A of every kind in every layout, in both memories, with both selectors, majors and other options."""
    layouts = {letter: LAYOUTS[letter] for letter in ("D", "A", "F", "F16")}
    layouts |= {"C": {"m": 128, "cta_group": 2}, "C16": {"m": 128, "cta_group": 2, "lane": 16}}
    kinds = (
        ("f16", "f16", "f16", "f32"),
        ("f16", "bf16", "bf16", "f32"),
        ("f16", "f16", "f16", "f16"),
        ("tf32", "tf32", "tf32", "f32"),
        ("f8f6f4", "e4m3", "e5m2", "f32"),
        ("f8f6f4", "e2m1", "e3m2", "f16"),
        ("i8", "s8", "u8", "s32"),
    )
    made: dict[str, Case] = {}
    for number, (kind, a, b, accumulator) in enumerate(kinds):
        for place, (letter, layout) in enumerate(layouts.items()):
            swizzle = ("none", "64b", "128b")[(number + place) % 3]
            in_tmem = (number + place // 2) % 3 == 0
            selector = (number + place) % 2 if kind in ("f16", "tf32") else 0
            case = Case(kind, a, b, n=32, accumulator=accumulator, swizzle=swizzle, a_in_tmem=in_tmem, **layout)
            made[f"sp-{kind}-{a}-{b}-{accumulator}-{letter}"] = dataclasses.replace(
                case, sparse=True, sparse_id=selector
            )
    for swizzle in ("none", "32b", "128b"):
        for kind, a in (("f16", "f16"), ("tf32", "tf32"), ("i8", "s8")):
            majors = {"a_major": "mn", "b_major": "mn"} if kind != "tf32" or swizzle != "none" else {"b_major": "mn"}
            sums = "s32" if kind == "i8" else "f32"
            made[f"sp-mn-{swizzle}-{a}"] = Case(kind, a, a, 128, 64, sums, swizzle=swizzle, sparse=True, **majors)
    made["sp-negate"] = Case("f8f6f4", "e4m3", "e5m2", 64, 16, negate=(True, False), sparse=True)
    made["sp-saturate"] = Case("i8", "u8", "s8", 64, 16, "s32", saturate=True, sparse=True)
    made["sp-scale-d"] = Case("f16", "f16", "f16", 128, 16, scale_d=15, sparse=True)
    made["sp-lanes"] = Case(
        "tf32", "tf32", "tf32", 128, 32, cta_group=2, masks=(3, 0, 5, 0, 0, 1 << 31, 0, 7), sparse=True
    )
    return made


CASES = cases()
