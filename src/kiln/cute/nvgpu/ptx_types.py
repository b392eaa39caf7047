"""The names that PTX has for the types of elements that tensor cores multiply."""

from __future__ import annotations

from ...base_dsl.typing import (
    BFloat16,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Float64,
    Int8,
    Int32,
    NumericMeta,
    TFloat32,
    Uint8,
)

PTX_NAMES: dict[NumericMeta, str] = {
    Float16: "f16",
    BFloat16: "bf16",
    Float32: "f32",
    Float64: "f64",
    TFloat32: "tf32",
    Float8E4M3FN: "e4m3",
    Float8E5M2: "e5m2",
    Float6E2M3FN: "e2m3",
    Float6E3M2FN: "e3m2",
    Float4E2M1FN: "e2m1",
    Int8: "s8",
    Uint8: "u8",
    Int32: "s32",
}
DTYPES: dict[str, NumericMeta] = {name: dtype for dtype, name in PTX_NAMES.items()}
