"""`mma`, `ldmatrix`, `stmatrix`, `movmatrix`, and fences, commits and waits of WGMMA."""

from __future__ import annotations

import re

from ....dialects import nvgpu
from ....hardware import mma_shapes
from ....mlir import context, ir
from ....ptx import matrices as forms
from ....ptx import sparse
from ....ptx.syntax import Immediate, Operand, Statement, Vector
from ...lowering.builder import constant_values, int_type, parsed_type
from ...lowering.expansion import Handlers
from ..ops import mma, wgmma
from ..runtime import block_scaling
from ..sanitizer.hooks import hooks_of
from .machine import Fields, Machine, Refused, reads

INSTRUCTIONS = Handlers()


def _vector(m: Machine, operand: Operand, count: int, element: str) -> ir.Value:
    """Return registers as a vector of elements."""
    type_ = ir.VectorType.get([count], parsed_type(element), loc=ir.Location.unknown(context()))
    width = count * type_.element_type.width  # pyright: ignore[reportAttributeAccessIssue]
    return m.b.value("llvm.bitcast", type_, (m.bits(operand, width),))


def _as_bits(m: Machine, value: ir.Value) -> ir.Value:
    """Return a vector as the bits of its registers."""
    width = value.type.shape[0] * value.type.element_type.width  # pyright: ignore[reportAttributeAccessIssue]
    return m.b.value("llvm.bitcast", int_type(width), (value,))


@INSTRUCTIONS.expands("mma")
def _mma(m: Machine, s: Statement) -> ir.Value:
    modifiers = s.modifiers
    shape = next((match for part in modifiers if (match := re.fullmatch(r"m(\d+)n(\d+)k(\d+)", part))), None)
    bits = modifiers[-2] if modifiers[-1] == "popc" else ""
    types = modifiers[-6:-2] if bits else modifiers[-4:]
    if shape is None or "sync" not in modifiers or modifiers.count("row") != 1 or modifiers.count("col") != 1:
        raise Refused("this mma")
    if "sp" in modifiers:
        raise Refused("this kind of mma")
    if "block_scale" in modifiers:
        return _mma_block_scale(m, s, shape)
    d, a, b, c = types
    named = next((part.removeprefix("kind::") for part in modifiers if part.startswith("kind::")), None)
    rows, columns, inner = map(int, shape.groups())
    if bits and (a, b) == ("b1", "b1"):
        a = b = f"b1.{bits}"
    if d != c or a not in mma_shapes.BITS or b not in mma_shapes.BITS:
        raise Refused(f"an mma of {a} and {b} with accumulators in {d} and {c}")
    if named is None and mma_shapes.warp_kind(a, b) is None:
        rule = mma_shapes.refusal("mma.sync", (rows, columns, inner), a, b, d)
    else:
        rule = mma_shapes.kind_refusal("mma.sync", named or "none", rows, columns, inner, a, b, d)
    if rule:
        raise Refused(f"this mma: {rule}")
    inner //= 32 if bits else 1
    saturates = "satfinite" in modifiers
    if saturates and (d != "s32" or bits):
        raise Refused("an mma that saturates accumulators of this type")
    accumulator = {"s32": "i32"}.get(d, d)
    kind = mma.Mma(rows, columns, inner, a, b, accumulator, saturates)
    register = "f64" if a == "f64" else "i32"
    counts = [size * kind.bits_of(a) // (64 if a == "f64" else 32) // 32 for size in (rows * inner, inner * columns)]
    left, right = (_vector(m, o, count, register) for o, count in zip(s.operands[1:3], counts))
    start = _vector(m, s.operands[3], rows * columns // 32, accumulator)
    return _as_bits(m, mma.mma(m.x, m.op, m.b, kind, left, right, start))


@reads(INSTRUCTIONS, sparse.MMA, sparse.MMA_UNORDERED)
def _mma_sp(m: Machine, f: Fields) -> None:
    accumulator = "i32" if f.d_type == "s32" else str(f.d_type)
    kind = mma.Mma(16, 8, f.k, f.a_type, f.b_type, accumulator, bool(f.saturates), f.selector)
    a, b, c = (m.b.vector(registers) for registers in (f.a, f.b, f.c))
    c = m.b.value("llvm.bitcast", parsed_type(f"vector<4x{accumulator}>"), (c,))
    d = mma.mma_sp(m.x, m.op, m.b, kind, (a, b, c), f.metadata, ordered=f.form is sparse.MMA)
    words = m.b.value("llvm.bitcast", parsed_type(f"vector<{len(f.d)}xi32>"), (d,))
    for target, value in zip(f.d, m.b.elements(words), strict=True):
        m.set(target, value)


def _mma_block_scale(m: Machine, s: Statement, shape: re.Match[str]) -> ir.Value:
    modifiers = s.modifiers
    types = s.modifiers[-5:]
    named = next((part.removeprefix("kind::") for part in modifiers if part.startswith("kind::")), "")
    sizes = next((part.removeprefix("scale_vec::") for part in modifiers if part.startswith("scale_vec::")), "")
    size = {"1X": 1, "2X": 2, "4X": 4, "": {"mxf8f6f4": 1, "mxf4": 2}.get(named, 0)}.get(sizes, 0)
    d, a, b, c, scale = types
    rows, columns, inner = map(int, shape.groups())
    if d != c or not size:
        raise Refused("an mma with block scales of this size and these accumulators")
    if rule := mma_shapes.kind_refusal("mma.sync", named, rows, columns, inner, a, b, d, scale, inner // size):
        raise Refused(f"this mma: {rule}")
    chosen: list[int] = []
    for operand in (s.operands[5], s.operands[7]):
        parts = operand.parts if isinstance(operand, Vector) else ()
        constants = [constant_values(m.bits(part, 16)) for part in parts]
        if len(parts) != 2 or any(not values for values in constants):
            raise Refused("an mma whose byte and thread of scale factors are not constants")
        chosen += [values[0] for values in constants if values]
    kind = block_scaling.kind_of(named, a, b, scale, inner // size, *chosen)
    start = _vector(m, s.operands[3], 4, "f32")
    operands = [
        (_vector(m, s.operands[1], 4, "i32"), block_scaling.A_AT),
        (_vector(m, s.operands[2], 2, "i32"), block_scaling.B_AT),
        (start, block_scaling.C_AT),
        (m.bits(s.operands[4], 32), block_scaling.SCALE_A_AT),
        (m.bits(s.operands[6], 32), block_scaling.SCALE_B_AT),
    ]
    return _as_bits(m, mma.scaled_mma(m.x, m.op, m.b, kind, operands, start.type))


_ACCESSES = {
    forms.LOAD.line: nvgpu.mma.LdMatrix,
    forms.LOAD_UNPACKED.line: nvgpu.mma.LdMatrix,
    forms.LOAD_BYTES.line: nvgpu.mma.LdMatrixBytes,
    forms.LOAD_BYTES_UNPACKED.line: nvgpu.mma.LdMatrixBytes,
    forms.STORE.line: nvgpu.mma.StMatrix,
    forms.STORE_BYTES.line: nvgpu.mma.StMatrixBytes,
}


@reads(INSTRUCTIONS, forms.LOAD, forms.LOAD_UNPACKED, forms.LOAD_BYTES, forms.LOAD_BYTES_UNPACKED)
def _ldmatrix(m: Machine, f: Fields) -> list[ir.Value]:
    kind = mma.matrices_of(_ACCESSES[f.form.line], f.count, f)
    return m.b.elements(mma.load_matrices(m.x, m.op, m.b, f.pointer, kind))


@reads(INSTRUCTIONS, forms.STORE, forms.STORE_BYTES)
def _stmatrix(m: Machine, f: Fields) -> None:
    kind = mma.matrices_of(_ACCESSES[f.form.line], f.count, f)
    mma.store_matrices(m.x, m.op, m.b, f.pointer, m.b.vector(f.value), kind)


@reads(INSTRUCTIONS, forms.TRANSPOSE)
def _movmatrix(m: Machine, f: Fields) -> ir.Value:
    return mma.transpose_matrix(m.x, m.op, m.b, f.value)


@INSTRUCTIONS.expands("wgmma")
def _wgmma(m: Machine, s: Statement) -> None:
    """Expand the fence, commit and wait of WGMMA; WGMMAs themselves are operations of the language."""
    if s.modifiers[0] == "fence":
        hooks_of(m.x, m.op).wgmma_fence(m.b)
    elif s.modifiers[0] == "commit_group":
        wgmma.commit(m.x, m.op, m.b)
    elif s.modifiers[0] == "wait_group" and isinstance(s.operands[0], Immediate):
        wgmma.wait(m.x, m.op, m.b, int(s.operands[0].value))
    else:
        raise Refused("this wgmma")
