"""Primitives of conversions between floats."""

from __future__ import annotations

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Float32, Int16, Int32
from ...cute.arch.inline_assembly import assembly, instruction
from ...cute.arch.values import choice, kernel_only

_PAIRS = {"f16x2": 16, "bf16x2": 16, "e4m3x2": 8, "e5m2x2": 8, "e2m3x2": 8, "e3m2x2": 8, "e2m1x2": 4, "ue8m0x2": 8}
"""Two floats of a format, and the bits of each."""
_ALWAYS_FINITE = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2")
ROUNDINGS = ("none", "rn", "rm", "rp", "rz", "rna", "rs")
SATURATIONS = ("none", "satfinite", "sat")


def rounding(value: object, default: str = "rn") -> str:
    """Return the PTX name of a rounding mode."""
    name = choice("rnd", value, ROUNDINGS) if value is not None else "none"
    return default if name == "none" else name


def cvt_packfloat_f32(
    src_a: object,
    src_b: object,
    src_c: object,
    kind: object,
    *,
    rnd: object = None,
    sat: object = None,
    relu: bool = False,
    extract_hi: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Int32:
    """Return two Float32 rounded to a narrow format, as a word: `src_a` above `src_b`.

    Pairs of 8 or 4 bits a number fill half of the word: the lower one or, with `extract_hi`, the upper one; `src_c` has
    the other half. F16X2 and BF16X2 fill the word, and `src_c` does not matter. `kind` is a `CVTPackFloat`, `rnd` an
    `FPRoundingMode` (to nearest even by default; UE8M0X2 up), `sat` a `SaturationMode`: E4M3X2, E5M2X2 and narrower
    formats always saturate to finite numbers. `relu` makes negative numbers zero.
    """
    kernel_only("cvt_packfloat_f32")
    pair = choice("kind", kind, tuple(_PAIRS))
    finite = choice("sat", sat, SATURATIONS) == "satfinite" if sat is not None else False
    how = rounding(rnd, "rp" if pair == "ue8m0x2" else "rn")
    allowed = {"ue8m0x2": ("rz", "rp"), "f16x2": ("rn", "rz"), "bf16x2": ("rn", "rz")}.get(pair, ("rn",))
    if how not in allowed:
        raise type_error(f"cvt_packfloat_f32() to {pair} rounded by {how}", " or ".join(allowed))
    if relu and pair == "ue8m0x2":
        raise type_error("cvt_packfloat_f32() to ue8m0x2 with relu", "its numbers have no sign")
    narrow = _PAIRS[pair] < 16
    words = f"{how}{'.satfinite' * (finite or pair in _ALWAYS_FINITE)}{'.relu' * relu}.{pair}.f32"
    operands = (Float32(src_a), Float32(src_b))
    if not narrow:
        return instruction(f"cvt.{words}", Int32, *operands)
    if _PAIRS[pair] == 4:
        code = f"{{ .reg .b8 t; cvt.{words} t, {{$r0}}, {{$r1}}; cvt.u16.u8 {{$w0}}, t; }}"
        bits = Int32(assembly(code, Int16, *operands)) & 0xFF
    else:
        bits = Int32(instruction(f"cvt.{words}", Int16, *operands)) & 0xFFFF
    rest = Int32(src_c)
    return bits << 16 | rest & 0xFFFF if extract_hi else rest & Int32(-0x10000) | bits


def cvt_packfloat(
    src: object,
    src_c: object,
    from_kind: object,
    to_kind: object,
    *,
    rnd: object = None,
    sat: object = None,
    relu: bool = False,
    extract_hi: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Int32:
    """Return the two numbers in the lower half of a word, or with `extract_hi` in its upper half, in another format.

    UE8M0X2 becomes BF16X2, the other formats of 8 and 4 bits F16X2, exactly; the result fills the word, and `src_c` does
    not matter. The kinds are members of `CVTPackFloat`.
    """
    kernel_only("cvt_packfloat")
    before, after = (
        choice(what, kind, tuple(_PAIRS)) for what, kind in (("from_kind", from_kind), ("to_kind", to_kind))
    )
    exact = "bf16x2" if before == "ue8m0x2" else "f16x2"
    if _PAIRS[before] > 8 or after != exact:
        raise type_error(
            f"cvt_packfloat() from {before} to {after}", "ue8m0x2 to bf16x2, other pairs of 8 or 4 bits to f16x2"
        )
    if relu and before == "ue8m0x2":
        raise type_error("cvt_packfloat() from ue8m0x2 with relu", "its numbers have no sign")
    rounding(rnd)
    if sat is not None:
        choice("sat", sat, SATURATIONS)
    half = Int32(src) >> 16 if extract_hi else Int32(src)
    words = f"cvt.rn{'.relu' * relu}.{after}.{before}"
    if _PAIRS[before] == 4:
        return assembly(f"{{ .reg .b8 t; cvt.u8.u16 t, {{$r0}}; {words} {{$w0}}, t; }}", Int32, Int16(half))
    return instruction(words, Int32, Int16(half))
