"""Primitives of arithmetic on two numbers at once."""

from __future__ import annotations

from ...cute.arch.arithmetic import add_packed_f32x2, fma_packed_f32x2, mul_packed_f32x2, sub_packed_f32x2
from ...cute.arch.packed import mul_bf16x2

__all__ = ["add_packed_f32x2", "fma_packed_f32x2", "mul_bf16x2", "mul_packed_f32x2", "sub_packed_f32x2"]
