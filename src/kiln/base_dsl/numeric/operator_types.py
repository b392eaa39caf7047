"""The types of operators on numbers, for type checkers and editors. Programs never load this module.

An operator is a descriptor, so that one set of overloads serves every numeric type: it sees the type of the left
operand (of the number itself, for a reflected operator) and that of the other. `promotion.py` has the full rules; here
are the common ones, and whatever they leave open is a `Number`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from .scalar import Float, Integer, Numeric
from .types import (
    BFloat16,
    Boolean,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
)

N = TypeVar("N", bound=Numeric)
S = TypeVar("S", bound=Numeric, covariant=True)
I = TypeVar("I", bound=Integer)
F = TypeVar("F", bound=Float)
Wide = TypeVar("Wide", Uint32, Int64, Uint64)
Small = Float32 | Float16 | BFloat16 | Float8E4M3FN | Float8E5M2 | Int32 | Uint32 | Boolean | float
"""What gives a Float32 together with one."""


class Number(  # pyright: ignore[reportGeneralTypeIssues] - no such object exists
    Float32, Float16, BFloat16, Float64, Float8E4M3FN, Float8E5M2, Int32, Int64, Uint32, Uint64, Int8, Uint8, Int16,
    Uint16, Boolean,
):  # fmt: skip
    """A number whose type depends on the data: an element of a `cute.Tensor`, or what mixed operands give.

    It fits wherever a number of some type is expected. `Float32(x)` or `x.to(Float32)` chooses a type;
    `cute.Tensor[cute.Float32]` in an annotation says the type of all elements.
    """


class Extent(Int32, int):  # pyright: ignore[reportGeneralTypeIssues] - the same
    """An extent, stride, size or coordinate: a Python int where it is known when compiling, else an Int32 or Int64.

    An extent of a mode that has modes of its own is a tuple of extents: `shape[0][1]`.
    """

    def __getitem__(self, mode: int) -> Extent: ...
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...


class Arithmetic:
    """`+`, `-`, `*`, `//`, `%` and `**`."""

    def __get__(self, instance: N, owner: type[N]) -> BoundArithmetic[N]: ...


class BoundArithmetic(Generic[S]):
    """An arithmetic operator of one number."""

    @overload
    def __call__(self, other: Number, /) -> Number: ...
    @overload
    def __call__(self: BoundArithmetic[Number], other: Numeric | float, /) -> Number: ...
    @overload
    def __call__(self: BoundArithmetic[Extent], other: int, /) -> Extent: ...
    @overload
    def __call__(self: BoundArithmetic[Float32], other: Small, /) -> Float32: ...
    @overload
    def __call__(self: BoundArithmetic[Float64], other: Numeric | float, /) -> Float64: ...
    @overload
    def __call__(self: BoundArithmetic[Int32], other: Int32 | Boolean | int, /) -> Int32: ...
    @overload
    def __call__(self: BoundArithmetic[Int32], other: Float32 | float, /) -> Float32: ...
    @overload
    def __call__(self: BoundArithmetic[Boolean], other: Boolean | int, /) -> Int32: ...
    @overload
    def __call__(self: BoundArithmetic[Wide], other: int, /) -> Wide: ...
    @overload
    def __call__(self: BoundArithmetic[I], other: I, /) -> I: ...
    @overload
    def __call__(self: BoundArithmetic[F], other: F, /) -> F: ...
    @overload
    def __call__(self: BoundArithmetic[F], other: float, /) -> Float32: ...
    @overload
    def __call__(self, other: Numeric | float, /) -> Number: ...
    def __call__(self, other: Any, /) -> Any: ...


class Division:
    """`/`: the quotient of integers is a float."""

    def __get__(self, instance: N, owner: type[N]) -> BoundDivision[N]: ...


class BoundDivision(Generic[S]):
    """`/` of one number."""

    @overload
    def __call__(self, other: Number, /) -> Number: ...
    @overload
    def __call__(self: BoundDivision[Number], other: Numeric | float, /) -> Number: ...
    @overload
    def __call__(self: BoundDivision[Float32], other: Small, /) -> Float32: ...
    @overload
    def __call__(self: BoundDivision[Float64], other: Numeric | float, /) -> Float64: ...
    @overload
    def __call__(self: BoundDivision[Int32], other: Small, /) -> Float32: ...
    @overload
    def __call__(self: BoundDivision[Boolean], other: Small, /) -> Float32: ...
    @overload
    def __call__(self: BoundDivision[F], other: F, /) -> F: ...
    @overload
    def __call__(self: BoundDivision[F], other: float, /) -> Float32: ...
    @overload
    def __call__(self, other: Numeric | float, /) -> Number: ...
    def __call__(self, other: Any, /) -> Any: ...


class Bitwise:
    """`&`, `|` and `^`."""

    def __get__(self, instance: N, owner: type[N]) -> BoundBitwise[N]: ...


class BoundBitwise(Generic[S]):
    """A bitwise operator of one integer."""

    @overload
    def __call__(self, other: Number, /) -> Number: ...
    @overload
    def __call__(self: BoundBitwise[Number], other: Integer | int, /) -> Number: ...
    @overload
    def __call__(self: BoundBitwise[Extent], other: int, /) -> Extent: ...
    @overload
    def __call__(self: BoundBitwise[Boolean], other: Boolean | bool, /) -> Boolean: ...
    @overload
    def __call__(self: BoundBitwise[Int32], other: Int32 | Boolean | int, /) -> Int32: ...
    @overload
    def __call__(self: BoundBitwise[Wide], other: int, /) -> Wide: ...
    @overload
    def __call__(self: BoundBitwise[I], other: I, /) -> I: ...
    @overload
    def __call__(self, other: Integer | int, /) -> Number: ...
    def __call__(self, other: Any, /) -> Any: ...


class Shift:
    """`<<` and `>>`."""

    def __get__(self, instance: N, owner: type[N]) -> BoundShift[N]: ...


class BoundShift(Generic[S]):
    """A shift of one integer."""

    @overload
    def __call__(self: BoundShift[Number], other: Integer | int, /) -> Number: ...
    @overload
    def __call__(self: BoundShift[Extent], other: int, /) -> Extent: ...
    @overload
    def __call__(self: BoundShift[Int32], other: Int32 | Boolean | int, /) -> Int32: ...
    @overload
    def __call__(self: BoundShift[Wide], other: Wide | int, /) -> Wide: ...
    @overload
    def __call__(self, other: Integer | int, /) -> Number: ...
    def __call__(self, other: Any, /) -> Any: ...
