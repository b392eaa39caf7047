"""MMAs of a warp (`mma.sync`), and the accesses to shared memory that suit them (`ldmatrix`, `stmatrix`).

All threads of the warp execute these together. Registers are i32; a register holds two 16-bit or four 8-bit elements,
the first in its lowest bits.
"""

import functools
from typing import Any

from ...base_dsl.trace import emit_value
from ...hardware import mma_shapes
from ...mlir import ir
from ..declaration import Operand, OptionalAttr, Result, attributes
from ..definition import Pointer, one_of
from .dialect import CuteNvgpu, wrong_space

_ACCUMULATORS = {"f32": "f32", "f16": "f16", "f64": "f64", "i32": "s32"}
"""PTX names of the accumulator types."""


class MmaSync(CuteNvgpu.Operation, name="mma_sync", waits=True):
    """Compute D = A B + C in a warp: A is `m` x `k`, B `k` x `n`, C and D `m` x `n`, distributed as in PTX's
    `mma.sync`.

    `a` and `b` are vectors of i32 registers (f32 is also possible for tf32; f64 for f64), `c` and `result` vectors of
    elements: f32, f16, i32 or f64. Products are exact; those of f16, bf16, tf32 and 8-bit floats are accumulated in
    f32 and rounded to the element type of `result` at the end. `hardware/mma_shapes.py` lists which shapes and types
    go together; types have the names they have in PTX.
    """

    a: Operand[Any]
    b: Operand[Any]
    c: Operand[Any]
    result: Result[Any]
    m: ir.IntegerAttr
    n: ir.IntegerAttr
    k: ir.IntegerAttr
    a_type: ir.StringAttr
    b_type: ir.StringAttr

    def check(self) -> str:
        shape, elements = (self.m, self.n, self.k), (self.a_type, self.b_type)
        return _wrong_mma(shape, elements, self.a.type, self.b.type, self.c.type, self.result.type)


@functools.lru_cache(maxsize=256)
def _wrong_mma(
    shape: tuple[int, int, int], elements: tuple[str, str], a: ir.Type, b: ir.Type, c: ir.Type, result: ir.Type
) -> str:
    (m, n, k), (a_type, b_type) = shape, elements
    if c != result:
        return f"has C of {c} and D of {result}: both are alike"
    if not isinstance(c, ir.VectorType) or str(c.element_type) not in _ACCUMULATORS:
        return f"has an accumulator of {c}: a vector of {', '.join(_ACCUMULATORS)}"
    if rule := mma_shapes.refusal("mma.sync", shape, a_type, b_type, _ACCUMULATORS[str(c.element_type)]):
        return rule
    for what, type_, element, size in (("A", a, a_type, m * k), ("B", b, b_type, k * n)):
        wanted = size * mma_shapes.BITS[element] // 32
        words = ("f64",) if element == "f64" else ("i32", "f32") if element == "tf32" else ("i32",)
        if not isinstance(type_, ir.VectorType) or str(type_.element_type) not in words:
            return f"has {what} of {type_}: a vector of {' or '.join(words)}"
        if type_.shape[0] * type_.element_type.width != wanted:  # pyright: ignore[reportAttributeAccessIssue]
            return f"has {what} of {type_}: a lane holds {wanted} bits of it"
    return "" if c.shape[0] == m * n // 32 else f"has C of {c}: a lane holds {m * n // 32} elements of it"


def mma_sync(shape: tuple[int, int, int], a_type: str, b_type: str, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Return a lane's part of A B + C; `shape` is (m, n, k)."""
    m, n, k = shape
    attrs = attributes(m=m, n=n, k=k, a_type=a_type, b_type=b_type)
    return emit_value("cute_nvgpu.mma_sync", c.type, (a, b, c), attrs)


@functools.lru_cache(maxsize=64)
def _wrong_registers(type_: ir.Type, count: int) -> str:
    words = isinstance(type_, ir.VectorType) and str(type_.element_type) == "i32"
    return "" if words and list(type_.shape) == [count] else f"has registers of {type_}: it has {count} i32"


def _wrong_address(op: "LdMatrix | LdMatrixBytes | StMatrix | StMatrixBytes") -> str:
    return wrong_space(op.pointer, "rows", "smem")


class LdMatrix(CuteNvgpu.Operation, name="ldmatrix", waits=True):
    """Load `count` (1, 2, 4) 8x8 matrices of 16-bit elements from shared memory: a vector of `count` i32 registers.

    Lane 8 j + r gives the address of row r of matrix j, aligned to 16 bytes. Lane l gets elements 2 (l % 4) and the
    next of row l / 4 of each matrix; with `transpose`, of column l / 4. With `unpack` (4 or 6; sm_100a and later) a
    row is 16 elements of so many bits without gaps, then padding, and each becomes a byte.
    """

    pointer: Operand[Pointer]
    result: Result[Any]
    count: one_of(1, 2, 4)
    transpose: OptionalAttr[ir.BoolAttr]
    unpack: OptionalAttr[one_of(4, 6)]

    def check(self) -> str:
        if self.transpose and self.unpack is not None:
            return "transposes and unpacks: 16x16 matrices of bytes (`ldmatrix_bytes`) can be both"
        return _wrong_registers(self.result.type, self.count) or _wrong_address(self)


def ldmatrix(
    pointer: ir.Value, type_: ir.Type, count: int, transpose: bool = False, unpack: int | None = None
) -> ir.Value:
    """Return a lane's registers (`type_`: a vector of i32) of `count` matrices."""
    attrs = attributes(count=count, transpose=transpose or None, unpack=unpack)
    return emit_value("cute_nvgpu.ldmatrix", type_, (pointer,), attrs)


class LdMatrixBytes(CuteNvgpu.Operation, name="ldmatrix_bytes", waits=True):
    """Load `count` (1, 2) 16x16 matrices of bytes from shared memory, transposed: a vector of 2 `count` i32 registers.

    Lane 16 j + r gives the address of row r of matrix j, aligned to 16 bytes. Lane l gets of each matrix the bytes in
    rows 4 (l % 4) and the next three of column l / 4, then of column l / 4 + 8 (sm_100a and later). `unpack`: see
    `ldmatrix`.
    """

    pointer: Operand[Pointer]
    result: Result[Any]
    count: one_of(1, 2)
    unpack: OptionalAttr[one_of(4, 6)]

    def check(self) -> str:
        return _wrong_registers(self.result.type, 2 * self.count) or _wrong_address(self)


def ldmatrix_bytes(pointer: ir.Value, type_: ir.Type, count: int, unpack: int | None = None) -> ir.Value:
    """Return a lane's registers (`type_`: a vector of i32) of `count` matrices of bytes."""
    return emit_value("cute_nvgpu.ldmatrix_bytes", type_, (pointer,), attributes(count=count, unpack=unpack))


class StMatrix(CuteNvgpu.Operation, name="stmatrix", waits=True):
    """Store `count` 8x8 matrices from `count` i32 registers, as the inverse of `ldmatrix` (sm_90 and later)."""

    pointer: Operand[Pointer]
    value: Operand[Any]
    count: one_of(1, 2, 4)
    transpose: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_registers(self.value.type, self.count) or _wrong_address(self)


stmatrix = StMatrix.build


class StMatrixBytes(CuteNvgpu.Operation, name="stmatrix_bytes", waits=True):
    """Store `count` (1, 2, 4) 16x8 matrices of bytes to shared memory, transposed, from `count` i32 registers.

    Lane 8 j + c gives the address of column c of matrix j, 16 bytes aligned to 16. The bytes of lane l are rows l / 4
    of the columns 2 (l % 4) and the next, then rows l / 4 + 8 of the same (sm_100a and later).
    """

    pointer: Operand[Pointer]
    value: Operand[Any]
    count: one_of(1, 2, 4)

    def check(self) -> str:
        return _wrong_registers(self.value.type, self.count) or _wrong_address(self)


stmatrix_bytes = StMatrixBytes.build
