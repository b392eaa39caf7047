"""Primitives of arithmetic on two numbers at once."""

from __future__ import annotations

from ...base_dsl.typing import Float32
from ...cute.arch.arithmetic import add_packed_f32x2, fma_packed_f32x2, fmax, fmin, mul_packed_f32x2, sub_packed_f32x2
from ...cute.arch.packed import (
    add_packed_f32x2_bf16x2_f32x2,
    add_packed_f32x2_f16x2_f32x2,
    fma_packed_f32x2_bf16x2_f32x2_f32x2,
    fma_packed_f32x2_f16x2_f32x2_f32x2,
    mul_bf16x2,
    sub_packed_f32x2_bf16x2_f32x2,
    sub_packed_f32x2_f16x2_f32x2,
)

__all__ = [
    "add_packed_f32x2",
    "add_packed_f32x2_bf16x2_f32x2",
    "add_packed_f32x2_f16x2_f32x2",
    "fabs",
    "fma_packed_f32x2",
    "fma_packed_f32x2_bf16x2_f32x2_f32x2",
    "fma_packed_f32x2_f16x2_f32x2_f32x2",
    "fmax",
    "fmin",
    "mul_bf16x2",
    "mul_packed_f32x2",
    "sub_packed_f32x2",
    "sub_packed_f32x2_bf16x2_f32x2",
    "sub_packed_f32x2_f16x2_f32x2",
]


def fabs(a: object, *, ftz: bool = False, loc: object = None, ip: object = None) -> Float32:
    """Return the magnitude of a Float32; `ftz` has no effect."""
    return abs(Float32(a))
