"""Forms of MMAs of a warp (`mma.sync`) and of a warpgroup (`wgmma`). `hardware/mma_shapes.py` has shapes and types."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from ..hardware import mma_shapes
from .form import Choices, Count, Form, Rule, Values, number

# --- mma.sync --------------------------------------------------------------------------------------------------------


def _registers(matrix: str, register: int, fields: Values) -> int:
    """Return the registers of a lane for its part of a matrix."""
    rows, columns, element = {"a": ("m", "k", "a_type"), "b": ("k", "n", "b_type")}.get(matrix, ("m", "n", "d_type"))
    type_ = str(fields.get(element, fields.get("a_type")))
    kind = fields.get("kind") or str(fields.get("scaling")).partition(".")[0]
    bits = int(type_[1:]) if matrix in "cd" else mma_shapes.container_bits(type_, str(kind))
    return number(fields, rows) * number(fields, columns) * bits // register // 32


def _mma(modifiers: str, rule: Rule, operands: str = "", register: int = 32, **choices: Choices) -> Form:
    registers = f"{{d: out b{register}}}, {{a: b{register}}}, {{b: b{register}}}, {{c: b{register}}}"
    counts: dict[str, Count] = {matrix: functools.partial(_registers, matrix, register) for matrix in "dabc"}
    counts |= dict.fromkeys(re.findall(r"{(scale_\w)", operands), 1)
    syntax = f".sync.aligned.m<m>n<n>k<k>.row.col{modifiers} {registers}{operands}"
    return Form("mma", syntax, counts, rule, m=(8, 16), n=(8,), **choices)


def _shape(fields: Mapping[str, object]) -> mma_shapes.Shape:
    return number(fields, "m"), number(fields, "n"), number(fields, "k")


def _wrong_mma(fields: Mapping[str, object]) -> str:
    a, b, c, d = (str(fields[f"{matrix}_type"]) for matrix in "abcd")
    kind = fields.get("kind")
    if c != d:
        return f"accumulators of {c} and {d}: C and D are alike"
    if fields.get("saturates") and d != "s32":
        return f".satfinite with accumulators of {d}"
    if mma_shapes.warp_kind(a, b) is None and (kind is None or {a, b} <= {"e4m3", "e5m2"}):
        return mma_shapes.refusal("mma.sync", _shape(fields), a, b, d)
    return mma_shapes.kind_refusal("mma.sync", str(kind or "none"), *_shape(fields), a, b, d)


_ELEMENTS: Choices = "f16 bf16 tf32 e4m3 e5m2 e2m3 e3m2 e2m1 s8 u8 s4 u4"
_ACCUMULATORS: Choices = "f32 f16 s32"
_DOUBLE: Choices = {"f64": "f64"}
_TYPES = ".<d_type>.<a_type>.<b_type>.<c_type>"
MMA = _mma(
    f"{{.kind::<kind>}}{{.<saturates>}}{_TYPES}",
    _wrong_mma,
    k=(4, 8, 16, 32, 64),
    kind={"f8f6f4": "f8f6f4"},
    saturates="satfinite",
    a_type=_ELEMENTS,
    b_type=_ELEMENTS,
    c_type=_ACCUMULATORS,
    d_type=_ACCUMULATORS,
)
MMA_DOUBLES = _mma(
    _TYPES, _wrong_mma, register=64, k=(4, 8, 16), a_type=_DOUBLE, b_type=_DOUBLE, c_type=_DOUBLE, d_type=_DOUBLE
)


def _wrong_mma_of_bits(fields: Mapping[str, object]) -> str:
    kind = str(fields["a_type"])
    return mma_shapes.refusal("mma.sync", _shape(fields), kind, kind, "s32")


MMA_BITS = _mma(
    ".<d_type>.b1.b1.s32.<a_type>.popc",
    _wrong_mma_of_bits,
    k=(128, 256),
    a_type={"xor": "b1.xor", "and": "b1.and"},
    d_type={"s32": "s32"},
)
_SCALINGS = {
    "mxf8f6f4.block_scale.scale_vec::1X": "mxf8f6f4.32",
    "mxf8f6f4.block_scale": "mxf8f6f4.32",
    "mxf4.block_scale.scale_vec::2X": "mxf4.32",
    "mxf4.block_scale": "mxf4.32",
    "mxf4nvf4.block_scale.scale_vec::2X": "mxf4nvf4.32",
    "mxf4nvf4.block_scale.scale_vec::4X": "mxf4nvf4.16",
}
"""Kinds with scale factors, and how many elements share one."""


def _wrong_block_scale(fields: Mapping[str, object]) -> str:
    kind, _, vector = str(fields["scaling"]).partition(".")
    a, b, scale = (str(fields[name]) for name in ("a_type", "b_type", "scale_type"))
    return mma_shapes.kind_refusal("mma.sync", kind, *_shape(fields), a, b, "f32", scale, int(vector))


def _mma_block_scale(scale_a: str, scale_b: str) -> Form:
    return _mma(
        ".kind::<scaling>.<d_type>.<a_type>.<b_type>.f32.<scale_type>",
        _wrong_block_scale,
        f", {scale_a}, {{byte_a: b16, thread_a: b16}}, {scale_b}, {{byte_b: b16, thread_b: b16}}",
        k=(32, 64),
        scaling=_SCALINGS,
        a_type="e4m3 e5m2 e2m3 e3m2 e2m1",
        b_type="e4m3 e5m2 e2m3 e3m2 e2m1",
        d_type={"f32": "f32"},
        scale_type="ue8m0 ue4m3",
    )


MMA_BLOCK_SCALE = _mma_block_scale("scale_a: b32", "scale_b: b32")
MMA_BLOCK_SCALE_BRACED = _mma_block_scale("{scale_a: b32}", "{scale_b: b32}")
"""As CUTLASS writes it: scale factors are vectors of one register."""

# --- wgmma -----------------------------------------------------------------------------------------------------------

WGMMA_FENCE = Form("wgmma.fence", ".sync{.aligned}")
WGMMA_COMMIT = Form("wgmma.commit_group", ".sync{.aligned}")
WGMMA_WAIT = Form("wgmma.wait_group", ".sync{.aligned} count: imm")


def _wrong_wgmma(fields: Mapping[str, object]) -> str:
    a, b, d = (str(fields[f"{matrix}_type"]) for matrix in "abd")
    return mma_shapes.refusal("wgmma", (64, number(fields, "n"), number(fields, "k")), a, b, d)


def _accumulators(fields: Values) -> int:
    return number(fields, "n") // (4 if fields["d_type"] == "f16" else 2)


_SMEM = "a: b64"
_RMEM = "{a: b32}"


def _wgmma(a: str, elements: Choices, accumulators: Choices, flags: str, saturates: bool = False) -> Form:
    modifiers = f".m64n<n>k<k>{'{.<saturates>}' * saturates}.<d_type>.<a_type>.<b_type>"
    return Form(
        "wgmma.mma_async",
        f".sync{{.aligned}}{modifiers} {{d: out b32}}, {a}, b: b64, accumulate: pred{flags}",
        {"d": _accumulators, **({"a": 4} if a == _RMEM else {})},
        _wrong_wgmma,
        n=tuple(range(8, 257, 8)),
        k=(8, 16, 32),
        a_type=elements,
        b_type=elements,
        d_type=accumulators,
        **{"saturates": "satfinite"} if saturates else {},
    )


_SIGNS = ", scale_a: imm, scale_b: imm"
"""Factors of A and B, 1 or -1."""
_HALVES: Choices = "f16 bf16"
_FLOATS: Choices = "tf32 e4m3 e5m2"
_BYTES: Choices = "s8 u8"
_FLOAT: Choices = "f32 f16"
_WORD: Choices = {"s32": "s32"}
WGMMA = _wgmma(_SMEM, _HALVES, _FLOAT, f"{_SIGNS}, a_major: imm, b_major: imm")
WGMMA_RMEM = _wgmma(_RMEM, _HALVES, _FLOAT, f"{_SIGNS}, b_major: imm")
"""With A in registers."""
WGMMA_K_MAJOR = _wgmma(_SMEM, _FLOATS, _FLOAT, _SIGNS)
WGMMA_K_MAJOR_RMEM = _wgmma(_RMEM, _FLOATS, _FLOAT, _SIGNS)
WGMMA_BYTES = _wgmma(_SMEM, _BYTES, _WORD, "", saturates=True)
WGMMA_BYTES_RMEM = _wgmma(_RMEM, _BYTES, _WORD, "", saturates=True)
