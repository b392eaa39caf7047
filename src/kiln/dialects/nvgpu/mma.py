"""MMAs of a warp (`mma.sync`), and the accesses to shared memory that suit them (`ldmatrix`, `stmatrix`).

All threads of the warp execute these together. Registers are i32; a register holds two 16-bit or four 8-bit elements,
the first in its lowest bits.
"""

import functools
from collections.abc import Iterator
from typing import Any

from ...base_dsl.trace import emit_value
from ...hardware import features, mma_shapes
from ...mlir import ir
from ...ptx import matrices as forms
from ..declaration import Access, Build, Operand, OptionalAttr, Result, attributes
from ..definition import I32, Pointer, one_of
from .dialect import CuteNvgpu, wrong_space

_ACCUMULATORS = {"f32": "f32", "f16": "f16", "f64": "f64", "i32": "s32"}
"""PTX names of the accumulator types."""


class _Mma(CuteNvgpu.Operation):
    """Base of the MMAs without scale factors."""

    a: Operand[Any]
    b: Operand[Any]
    c: Operand[Any]
    result: Result[Any]
    m: ir.IntegerAttr
    n: ir.IntegerAttr
    k: ir.IntegerAttr
    a_type: ir.StringAttr
    b_type: ir.StringAttr


class MmaSync(_Mma, name="mma_sync", converged="warp", varies="", waits=True):
    """Compute D = A B + C in a warp: A is `m` x `k`, B `k` x `n`, C and D `m` x `n`, distributed as in PTX's
    `mma.sync`.

    `a` and `b` are vectors of i32 registers (f32 is also possible for tf32; f64 for f64), `c` and `result` vectors of
    elements: f32, f16, i32 or f64. Terms are exact; those of f16, bf16, tf32 and 8-bit floats are accumulated in
    f32 and rounded to the element type of `result` at the end. `hardware/mma_shapes.py` lists which shapes and types
    go together; types have the names they have in PTX. With a float of 4 or 6 bits (sm_120a) each element of A and B
    is a byte: 6 bits are its lowest, 4 bits lie in its middle.
    """

    def check(self) -> str:
        shape = (self.m, self.n, self.k)
        elements = (self.a_type, self.b_type)
        return _wrong_mma(shape, elements, self.a.type, self.b.type, self.c.type, self.result.type)


class MmaSp(_Mma, name="mma_sp", converged="warp", varies="", waits=True):
    """Compute D = A B + C in a warp as `mma_sync` does, with a sparse A (PTX's `mma.sp::ordered_metadata`).

    Of each 4 elements of A along K two are there, of each 2 of tf32 one, of each 8 of 4 bits two pairs. So `a` has the
    registers of a `mma_sync` of half of `k`. `metadata` say which: `definitions.metadata_place` has their places in the
    registers of lanes, and `selector` says which of four lanes have them, where not all do.
    """

    metadata: Operand[I32]
    selector: one_of(0, 1, 2, 3)

    def check(self) -> str:
        shape = (self.m, self.n, self.k)
        elements = (self.a_type, self.b_type)
        if rule := _wrong_mma(shape, elements, self.a.type, self.b.type, self.c.type, self.result.type, sparse=True):
            return rule
        selectors = mma_shapes.sparse_selectors(self.a_type, self.k)
        if self.selector < selectors:
            return ""
        return f"has the selector {self.selector}: m16n8k{self.k} of {self.a_type} has {', '.join(map(str, range(selectors)))}"


def mma_sp(
    shape: tuple[int, int, int],
    a_type: str,
    b_type: str,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    metadata: ir.Value,
    selector: int = 0,
) -> ir.Value:
    """Return a lane's part of A B + C with a sparse A; `shape` is (m, n, k)."""
    m, n, k = shape
    attrs = attributes(m=m, n=n, k=k, a_type=a_type, b_type=b_type, selector=selector)
    return emit_value("cute_nvgpu.mma_sp", c.type, (a, b, c, metadata), attrs)


@functools.lru_cache(maxsize=256)
def _wrong_mma(
    shape: tuple[int, int, int],
    elements: tuple[str, str],
    a: ir.Type,
    b: ir.Type,
    c: ir.Type,
    result: ir.Type,
    sparse: bool = False,
) -> str:
    m, n, k = shape
    a_type, b_type = elements
    if c != result:
        return f"has C of {c} and D of {result}: both are alike"
    if not isinstance(c, ir.VectorType) or str(c.element_type) not in _ACCUMULATORS:
        return f"has an accumulator of {c}: a vector of {', '.join(_ACCUMULATORS)}"
    accumulator = _ACCUMULATORS[str(c.element_type)]
    kind = mma_shapes.warp_kind(a_type, b_type)
    if kind is None or sparse:
        rule = mma_shapes.refusal("mma.sync", shape, a_type, b_type, accumulator, sparse)
    else:
        rule = mma_shapes.kind_refusal("mma.sync", kind, m, n, k, a_type, b_type, accumulator)
    if rule:
        return rule
    for what, type_, element, size in (("A", a, a_type, m * k // (1 + sparse)), ("B", b, b_type, k * n)):
        expected = size * mma_shapes.container_bits(element, kind) // 32
        words = ("f64",) if element == "f64" else ("i32", "f32") if element == "tf32" else ("i32",)
        if not isinstance(type_, ir.VectorType) or str(type_.element_type) not in words:
            return f"has {what} of {type_}: a vector of {' or '.join(words)}"
        if type_.shape[0] * type_.element_type.width != expected:  # pyright: ignore[reportAttributeAccessIssue]
            return f"has {what} of {type_}: a lane holds {expected} bits of it"
    return "" if c.shape[0] == m * n // 32 else f"has C of {c}: a lane holds {m * n // 32} elements of it"


def mma_sync(shape: tuple[int, int, int], a_type: str, b_type: str, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Return a lane's part of A B + C; `shape` is (m, n, k)."""
    m, n, k = shape
    attrs = attributes(m=m, n=n, k=k, a_type=a_type, b_type=b_type)
    return emit_value("cute_nvgpu.mma_sync", c.type, (a, b, c), attrs)


class MmaBlockScale(CuteNvgpu.Operation, name="mma_block_scale", converged="warp", varies="", waits=True):
    """Compute D = (A SFA) (B SFB) + C in a warp, where `scale_vector` elements along K share a scale factor (sm_120a).

    `kind` is PTX's: mxf8f6f4 (k 32; each element of A and B is a byte, as in `mma_sync`), mxf4 or mxf4nvf4 (k 64). `c`
    and `result` are four f32. A lane gives the scale factors of a row or column, k / `scale_vector` bytes of type
    `scale_type` (ue8m0, ue4m3), in `scale_a` and `scale_b` from byte `byte_a` or `byte_b` on. With g = lane / 4 and
    t = lane % 4, those of row g of A come from the lane t = 2 `thread_a`, those of row g + 8 from the next, those of
    column g of B from the lane t = `thread_b`.
    """

    a: Operand[Any]
    b: Operand[Any]
    c: Operand[Any]
    scale_a: Operand[I32]
    scale_b: Operand[I32]
    result: Result[Any]
    m: ir.IntegerAttr
    n: ir.IntegerAttr
    k: ir.IntegerAttr
    kind: one_of("mxf8f6f4", "mxf4", "mxf4nvf4")
    a_type: ir.StringAttr
    b_type: ir.StringAttr
    scale_type: ir.StringAttr
    scale_vector: one_of(16, 32)
    byte_a: one_of(0, 1, 2, 3)
    thread_a: one_of(0, 1)
    byte_b: one_of(0, 1, 2, 3)
    thread_b: one_of(0, 1, 2, 3)

    def check(self) -> str:
        shape = (self.m, self.n, self.k)
        elements = (self.a_type, self.b_type, self.scale_type)
        types = tuple(value.type for value in (self.a, self.b, self.c, self.result))
        if rule := _wrong_scaled_mma(shape, self.kind, elements, self.scale_vector, types):
            return rule
        scales = self.k // self.scale_vector
        for name, byte in (("byte_a", self.byte_a), ("byte_b", self.byte_b)):
            if byte % scales:
                return f"has {name}={byte}: {scales} scale factors start at a multiple of {scales} bytes"
        return ""


@functools.lru_cache(maxsize=64)
def _wrong_scaled_mma(
    shape: tuple[int, int, int], kind: str, elements: tuple[str, str, str], vector: int, types: tuple[ir.Type, ...]
) -> str:
    a_type, b_type, scale = elements
    if rule := mma_shapes.kind_refusal("mma.sync", kind, *shape, a_type, b_type, "f32", scale, vector):
        return rule
    for what, type_, expected in zip("ABCD", types, ("4xi32", "2xi32", "4xf32", "4xf32"), strict=True):
        if str(type_) != f"vector<{expected}>":
            return f"has {what} of {type_}: it is vector<{expected}>"
    return ""


def mma_block_scale(
    shape: tuple[int, int, int],
    kind: str,
    a_type: str,
    b_type: str,
    scale_type: str,
    scale_vector: int,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    byte_a: int = 0,
    thread_a: int = 0,
    byte_b: int = 0,
    thread_b: int = 0,
) -> ir.Value:
    """Return a lane's part of (A SFA) (B SFB) + C; `shape` is (m, n, k)."""
    m, n, k = shape
    attrs = attributes(
        m=m,
        n=n,
        k=k,
        kind=kind,
        a_type=a_type,
        b_type=b_type,
        scale_type=scale_type,
        scale_vector=scale_vector,
        byte_a=byte_a,
        thread_a=thread_a,
        byte_b=byte_b,
        thread_b=thread_b,
    )
    return emit_value("cute_nvgpu.mma_block_scale", c.type, (a, b, c, scale_a, scale_b), attrs)


@functools.lru_cache(maxsize=64)
def _wrong_registers(type_: ir.Type, count: int) -> str:
    words = isinstance(type_, ir.VectorType) and str(type_.element_type) == "i32"
    return "" if words and list(type_.shape) == [count] else f"has registers of {type_}: it has {count} i32"


def _wrong_address(op: "LdMatrix | LdMatrixBytes | StMatrix | StMatrixBytes") -> str:
    return wrong_space(op.pointer, "rows", "smem")


class LdMatrix(
    CuteNvgpu.Operation,
    name="ldmatrix",
    reads=Access("pointer", 16, "result"),
    converged="warp",
    waits=True,
    alias=None,
):
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


class LdMatrixBytes(
    CuteNvgpu.Operation,
    name="ldmatrix_bytes",
    reads=Access("pointer", 16, "result"),
    converged="warp",
    waits=True,
    alias=None,
):
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


class StMatrix(
    CuteNvgpu.Operation,
    name="stmatrix",
    ptx=forms.STORE,
    feature=features.STMATRIX,
    writes=Access("pointer", 16, "value"),
    converged="warp",
    waits=True,
):
    """Store `count` 8x8 matrices from `count` i32 registers, as the inverse of `ldmatrix` (sm_90 and later)."""

    pointer: Operand[Pointer]
    value: Operand[Any]
    count: one_of(1, 2, 4)
    transpose: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_registers(self.value.type, self.count) or _wrong_address(self)


stmatrix: Build = StMatrix.build


class StMatrixBytes(
    CuteNvgpu.Operation,
    name="stmatrix_bytes",
    ptx=forms.STORE_BYTES,
    writes=Access("pointer", 16, "value"),
    converged="warp",
    waits=True,
):
    """Store `count` (1, 2, 4) 16x8 matrices of bytes to shared memory, transposed, from `count` i32 registers.

    Lane 8 j + c gives the address of column c of matrix j, 16 bytes aligned to 16. The bytes of lane l are rows l / 4
    of the columns 2 (l % 4) and the next, then rows l / 4 + 8 of the same (sm_100a and later).
    """

    pointer: Operand[Pointer]
    value: Operand[Any]
    count: one_of(1, 2, 4)

    def check(self) -> str:
        return _wrong_registers(self.value.type, self.count) or _wrong_address(self)

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield features.BYTE_MATRICES, "stmatrix of 16x8 matrices of bytes"


stmatrix_bytes: Build = StMatrixBytes.build
