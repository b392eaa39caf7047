"""Arithmetic of two 16-bit floats in a word."""

from __future__ import annotations

from ...base_dsl.typing import Int32
from .inline_assembly import instruction
from .values import kernel_only


def mul_bf16x2(a: object, b: object, *, loc: object = None, ip: object = None) -> Int32:
    """Multiply two BFloat16 in a word by two in another, and return a word. Needs sm_90 or later.

    Args:
        a: a word with two BFloat16.
        b: a word with two BFloat16.
    """
    kernel_only("mul_bf16x2")
    return instruction("mul.rn.bf16x2", Int32, Int32(a), Int32(b))
