"""Forms of matrices in shared memory (`ldmatrix`, `stmatrix`) and in the registers of a warp (`movmatrix`)."""

from __future__ import annotations

from .form import Choices, Count, Form, Values, number

_SHARED = "{.shared{::cta}}"


def _two_each(fields: Values) -> int:
    return 2 * number(fields, "count")


def _load(shape: str, elements: str, registers: Count, **choices: Choices) -> Form:
    syntax = f".sync.aligned.{shape}{_SHARED}.{elements} {{d: out b32}}, [pointer: shared]"
    return Form("ldmatrix", syntax, {"d": registers}, **choices)


_UNPACK: Choices = {"b4x16_p64": 4, "b6x16_p32": 6}
"""Elements that become bytes: 16 are packed, and padding follows."""
LOAD = _load("m8n8.x<count>{.<transpose>}", "b16", "count", count=(1, 2, 4), transpose="trans")
LOAD_UNPACKED = _load("m8n16.x<count>", "b8x16.<unpack>", "count", count=(1, 2, 4), unpack=_UNPACK)
LOAD_BYTES = _load("m16n16.x<count>.trans", "b8", _two_each, count=(1, 2))
LOAD_BYTES_UNPACKED = _load("m16n16.x<count>.trans", "b8x16.<unpack>", _two_each, count=(1, 2), unpack=_UNPACK)

STORE = Form(
    "stmatrix",
    f".sync.aligned.m8n8.x<count>{{.<transpose>}}{_SHARED}.b16 [pointer: shared], {{value: b32}}",
    {"value": "count"},
    count=(1, 2, 4),
    transpose="trans",
)
STORE_BYTES = Form(
    "stmatrix",
    f".sync.aligned.m16n8.x<count>.trans{_SHARED}.b8 [pointer: shared], {{value: b32}}",
    {"value": "count"},
    count=(1, 2, 4),
)
TRANSPOSE = Form("movmatrix", ".sync.aligned.m8n8.trans.b16 d: out b32, value: b32")
