"""The concrete numeric types, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..bindings import ir
from . import formats
from .scalar import Float, Integer

if TYPE_CHECKING:
    from typing_extensions import Self

# `slot`: the struct format of one argument slot of 8 bytes, for values that struct packs as they are.


class Boolean(Integer, width=1, mlir="i1", numpy="bool_", slot="<?7x"):
    """True or False. In arithmetic it counts as Int32; `&`, `|`, `^` and `~` of Booleans stay Boolean."""

    def __new__(cls, a: Any = 0, *, loc: object = None, ip: object = None) -> Self:
        return super().__new__(cls, a, loc=loc, ip=ip)

    def __init__(self, a: object = 0, *, loc: object = None, ip: object = None) -> None:
        super().__init__(a, loc=loc, ip=ip)

    def ir_value_int8(self, *, loc: object = None, ip: object = None) -> ir.Value:
        """Return the value as an i8, 0 or 1: how it lies in memory."""
        return Int8(self).ir_value(loc=loc, ip=ip)


class Int4(Integer, width=4, mlir="i4", numpy="int4"):
    """A signed integer of 4 bits, two to a byte in memory."""


class Int8(Integer, width=8, mlir="i8", numpy="int8", slot="<b7x"):
    """A signed integer of 8 bits."""


class Int16(Integer, width=16, mlir="i16", numpy="int16", slot="<h6x"):
    """A signed integer of 16 bits."""


class Int32(Integer, width=32, mlir="i32", numpy="int32", slot="<i4x"):
    """A signed integer of 32 bits, the type of indices and of Python integers in a program. It wraps around."""


class Int64(Integer, width=64, mlir="i64", numpy="int64", slot="<q"):
    """A signed integer of 64 bits, for offsets of 2^31 elements and more."""


class Int128(Integer, width=128, mlir="i128"):
    """A signed integer of 128 bits."""


class Uint4(Integer, width=4, mlir="i4", numpy="uint4", signed=False):
    """An unsigned integer of 4 bits, two to a byte in memory."""


class Uint8(Integer, width=8, mlir="i8", numpy="uint8", slot="<B7x", signed=False):
    """An unsigned integer of 8 bits."""


class Uint16(Integer, width=16, mlir="i16", numpy="uint16", slot="<H6x", signed=False):
    """An unsigned integer of 16 bits."""


class Uint32(Integer, width=32, mlir="i32", numpy="uint32", slot="<I4x", signed=False):
    """An unsigned integer of 32 bits."""


class Uint64(Integer, width=64, mlir="i64", numpy="uint64", slot="<Q", signed=False):
    """An unsigned integer of 64 bits."""


class Uint128(Integer, width=128, mlir="i128", signed=False):
    """An unsigned integer of 128 bits."""


class Float32(Float, width=32, mlir="f32", numpy="float32", slot="<f4x", format=formats.FLOAT32):
    """A float of 32 bits, the type of Python floats in a program."""


class Float64(Float, width=64, mlir="f64", numpy="float64", slot="<d", format=formats.FLOAT64):
    """A float of 64 bits."""


class TFloat32(Float, width=32, mlir="tf32", format=formats.TFLOAT32):
    """An f32 with 10 bits of mantissa, in 32 bits of memory."""


class Float16(Float, width=16, mlir="f16", numpy="float16", format=formats.FLOAT16):
    """A float of 16 bits: 5 of exponent, 10 of mantissa."""


class BFloat16(Float, width=16, mlir="bf16", numpy="bfloat16", format=formats.BFLOAT16):
    """A float of 16 bits: 8 of exponent as Float32 has, 7 of mantissa."""


class Float8E5M2(Float, width=8, mlir="f8E5M2", numpy="float8_e5m2", format=formats.FLOAT8_E5M2):
    """A float of 8 bits: 5 of exponent, 2 of mantissa, with infinities."""


class Float8E4M3(Float, width=8, mlir="f8E4M3", numpy="float8_e4m3", format=formats.FLOAT8_E4M3):
    """A float of 8 bits: 4 of exponent, 3 of mantissa, with infinities. The type hardware calls e4m3 is Float8E4M3FN."""


class Float8E4M3FN(Float, width=8, mlir="f8E4M3FN", numpy="float8_e4m3fn", format=formats.FLOAT8_E4M3FN):
    """A float of 8 bits, e4m3 of the tensor cores: 4 of exponent, 3 of mantissa, no infinities, at most 448."""


class Float8E4M3B11FNUZ(
    Float, width=8, mlir="f8E4M3B11FNUZ", numpy="float8_e4m3b11fnuz", format=formats.FLOAT8_E4M3B11FNUZ
):
    """A float of 8 bits: 4 of exponent with bias 11, 3 of mantissa, no infinities, one NaN, no negative zero."""


class FloatNV8E5M3FNU(Float, width=8, mlir="f8E5M3FNU", format=formats.FLOAT8_E5M3FNU):
    """A float of 8 bits without a sign, ue5m3: 5 of exponent, 3 of mantissa, no infinities, at most 114688.

    Scale factors of sm_107 have this type. Conversion to it drops the sign.
    """


class Float8E8M0FNU(Float, width=8, mlir="f8E8M0FNU", numpy="float8_e8m0fnu", format=formats.FLOAT8_E8M0FNU):
    """A power of two from 2**-127 to 2**127, or NaN: the scale of a block of narrow floats."""


class Float6E3M2FN(Float, width=6, mlir="f6E3M2FN", numpy="float6_e3m2fn", format=formats.FLOAT6_E3M2FN):
    """A float of 6 bits: 3 of exponent, 2 of mantissa, without infinities or NaN."""


class Float6E2M3FN(Float, width=6, mlir="f6E2M3FN", numpy="float6_e2m3fn", format=formats.FLOAT6_E2M3FN):
    """A float of 6 bits: 2 of exponent, 3 of mantissa, without infinities or NaN."""


class Float4E2M1FN(Float, width=4, mlir="f4E2M1FN", numpy="float4_e2m1fn", format=formats.FLOAT4_E2M1FN):
    """A float of 4 bits, two to a byte in memory: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""


class Float4E2M1FNx2(Float, width=8, mlir="i8"):
    """Two Float4E2M1FN in a byte, the first in the low bits. Storage only: its value is the bit pattern."""


class Float6E3M2FNx4(Float, width=24, mlir="i24"):
    """Four Float6E3M2FN in three bytes, the first in the low bits. Storage only: its value is the bit pattern."""
