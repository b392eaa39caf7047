"""Operations of the threads of a warp together: shuffles, votes, reductions, matches, election.

"The warp" is the 32 threads whose linear index in the block differs only in the lowest five bits; their lanes are
those bits.
"""

from typing import Any

from ...base_dsl.trace import emit_value
from ...mlir import ir
from ..declaration import Build, Operand, Result, attributes
from ..definition import I1, I32, Emit, Integer, constant, int_type, one_of
from .dialect import CuteNvgpu


def _wrong_mask(mask: ir.Value) -> str:
    return "has an empty mask: it has the bit of each thread that takes part" if constant(mask) == 0 else ""


class Shuffle(CuteNvgpu.Operation, name="shuffle", converged="mask", varies="", waits=True):
    """Return the `value` (32 bits) of another thread of the warp.

    Lane l reads lane s: `offset`, l - offset, l + offset or l xor offset. `clamp` holds c in its lowest five bits and a
    segment mask g in bits 8 to 12: for `idx`, s = (l & g) | (offset & ~g). With low = l & g and high = low | (c & ~g),
    a source that is above high (`up`: below high) is replaced by l. All threads of `mask` execute it.
    """

    value: Operand[Any]
    offset: Operand[I32]
    mask: Operand[I32]
    clamp: Operand[I32]
    result: Result[Any]
    kind: one_of("idx", "up", "down", "bfly")

    def check(self) -> str:
        type_ = self.value.type
        result = self.result.type
        if type_ != result or getattr(type_, "width", 0) != 32:
            return f"takes {type_} and gives {result}: it moves 32 bits of one type"
        return _wrong_mask(self.mask)


def shuffle(
    kind: str, value: ir.Value, offset: ir.Value, mask: ir.Value, clamp: ir.Value, emit: Emit = emit_value
) -> ir.Value:
    """Add a `shuffle`; `offset`, `mask` and `clamp` are i32."""
    return emit("cute_nvgpu.shuffle", value.type, (value, offset, mask, clamp), attributes(kind=kind))


class Vote(CuteNvgpu.Operation, name="vote", converged="mask", varies="", waits=True):
    """Vote over the threads of `mask`: whether `all` or `any` predicates hold, or all agree (`uni`), as an i1.

    `ballot` gives an i32 with the bit of each thread whose predicate holds.
    """

    predicate: Operand[I1]
    mask: Operand[I32]
    result: Result[I1 | I32]
    kind: one_of("all", "any", "uni", "ballot")

    def check(self) -> str:
        kind = self.kind
        expected_bits = 32 if self.kind == "ballot" else 1
        if self.result.type != int_type(expected_bits):
            return f"'{kind}' gives {self.result.type}: it is an i{expected_bits}"
        return _wrong_mask(self.mask)


def vote(kind: str, predicate: ir.Value, mask: ir.Value, emit: Emit = emit_value) -> ir.Value:
    """Add a `vote`, whose result is an i1, or an i32 for `ballot`."""
    return emit("cute_nvgpu.vote", int_type(32 if kind == "ballot" else 1), (predicate, mask), attributes(kind=kind))


_FLOAT_KINDS = tuple(f"{name}{abs_}{nan}" for name in ("fmin", "fmax") for abs_ in ("", ".abs") for nan in ("", ".NaN"))


class Redux(CuteNvgpu.Operation, name="redux", converged="mask", varies="", waits=True):
    """Combine the 32-bit integers (or f32, for `fmin` and `fmax`) of the threads of `mask`.

    `fmin` and `fmax` may be of magnitudes (`.abs`), and a NaN if one of the numbers is (`.NaN`).
    """

    value: Operand[Any]
    mask: Operand[I32]
    result: Result[Any]
    kind: one_of("add", "min", "max", "umin", "umax", "and", "or", "xor", *_FLOAT_KINDS)

    def check(self) -> str:
        kind = self.kind
        type_ = self.value.type
        result = self.result.type
        expected = "f32" if kind.startswith("f") else "i32"
        if str(type_) != expected or result != type_:
            return f"'{kind}' takes {type_} and gives {result}: it is of {expected}"
        return _wrong_mask(self.mask)


def redux(kind: str, value: ir.Value, mask: ir.Value) -> ir.Value:
    """Add a `redux` over the threads of `mask` (i32)."""
    return emit_value("cute_nvgpu.redux", value.type, (value, mask), attributes(kind=kind))


class Match(CuteNvgpu.Operation, name="match", converged="mask", varies="", waits=True):
    """Return the lanes of `mask` with this lane's `value` (i32 or i64); `all`: all lanes if all agree, else none."""

    value: Operand[Integer]
    mask: Operand[I32]
    result: Result[I32]
    kind: one_of("any", "all")

    def check(self) -> str:
        return _wrong_mask(self.mask)


def match(kind: str, value: ir.Value, mask: ir.Value) -> ir.Value:
    """Return a word with the bits of the lanes that agree."""
    return emit_value("cute_nvgpu.match", int_type(32), (value, mask), attributes(kind=kind))


class ElectOne(CuteNvgpu.Operation, name="elect_one", converged="warp", varies="thread", waits=True):
    """Return true in exactly one of the threads of the warp that execute it together."""

    result: Result[I1]


elect_one: Build = ElectOne.build


class WarpUniform(CuteNvgpu.Operation, name="warp_uniform", converged="warp", varies=""):
    """Return `value`, and promise the compiler that it is the same in all threads of the warp."""

    value: Operand[I32]
    result: Result[I32]


warp_uniform: Build = WarpUniform.build
