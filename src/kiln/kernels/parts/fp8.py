"""Conversion of 8-bit floats."""

from __future__ import annotations

from typing import Any

from ... import Float8E4M3FN, Float8E5M2, Int32
from ...cute import arch

_NAMES = {Float8E4M3FN: "e4m3x2", Float8E5M2: "e5m2x2"}


def widened(word: Int32, dtype: Any) -> tuple[Int32, Int32]:
    """Convert four 8-bit floats in a word to four f16 in two words: one instruction for a pair, from sm_89 on."""
    kind = f"cvt.rn.f16x2.{_NAMES[dtype]}"
    code = f"{{ .reg .b16 low, high; mov.b32 {{low, high}}, {{$r0}}; {kind} {{$w0}}, low; {kind} {{$w1}}, high; }}"
    return arch.inline_ptx(code, write_only_types=[Int32, Int32], read_only_args=[word])
