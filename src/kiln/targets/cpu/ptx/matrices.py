"""`mma`, `ldmatrix`, `stmatrix`, `movmatrix`."""

from __future__ import annotations

from ....dialects import nvgpu
from ....mlir import context, ir
from ....ptx import matrices as forms
from ....ptx import mma as mma_forms
from ....ptx import sparse
from ...lowering.builder import constant_values, int_type, parsed_type
from ...lowering.expansion import Handlers
from ..ops import mma
from ..runtime import block_scaling
from .machine import Fields, Machine, Refused, reads

INSTRUCTIONS = Handlers()


def _bitcast(m: Machine, vector: ir.Value, count: int, element: ir.Type) -> ir.Value:
    type_ = ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))
    return m.b.value("llvm.bitcast", type_, (vector,))


def _accumulator(f: Fields) -> str:
    return "i32" if f.d_type == "s32" else str(f.d_type)


def _fragments(m: Machine, f: Fields) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return A, B and C as vectors; C has elements of its type."""
    a, b, c = (m.b.vector(registers) for registers in (f.a, f.b, f.c))
    element = parsed_type(_accumulator(f))
    if f.a_type == "f64":
        a, b = (_bitcast(m, held, len(registers), element) for held, registers in ((a, f.a), (b, f.b)))
    return a, b, _bitcast(m, c, f.m * f.n // 32, element)


@reads(INSTRUCTIONS, mma_forms.MMA, mma_forms.MMA_DOUBLES, mma_forms.MMA_BITS)
def _mma(m: Machine, f: Fields) -> list[ir.Value]:
    a, b, c = _fragments(m, f)
    k = f.k // 32 if f.form is mma_forms.MMA_BITS else f.k
    kind = mma.Mma(f.m, f.n, k, f.a_type, f.b_type or f.a_type, _accumulator(f), bool(f.saturates))
    return _registers(m, f, mma.mma(m.x, m.op, m.b, kind, a, b, c))


@reads(INSTRUCTIONS, sparse.MMA, sparse.MMA_UNORDERED)
def _mma_sp(m: Machine, f: Fields) -> list[ir.Value]:
    kind = mma.Mma(16, 8, f.k, f.a_type, f.b_type, _accumulator(f), bool(f.saturates), f.selector)
    a, b, c = (m.b.vector(registers) for registers in (f.a, f.b, f.c))
    c = _bitcast(m, c, 4, parsed_type(_accumulator(f)))
    return _registers(m, f, mma.mma_sp(m.x, m.op, m.b, kind, (a, b, c), f.metadata, ordered=f.form is sparse.MMA))


@reads(INSTRUCTIONS, mma_forms.MMA_BLOCK_SCALE, mma_forms.MMA_BLOCK_SCALE_BRACED)
def _mma_block_scale(m: Machine, f: Fields) -> list[ir.Value]:
    constants = [constant_values(place) for place in (f.byte_a, f.thread_a, f.byte_b, f.thread_b)]
    places = [values[0] for values in constants if values]
    if len(places) < len(constants):
        raise Refused("an mma whose byte and thread of scale factors are not constants")
    named, _, size = f.scaling.partition(".")
    kind = block_scaling.kind_of(named, f.a_type, f.b_type, f.scale_type, int(size), *places)
    at = (
        block_scaling.A_AT,
        block_scaling.B_AT,
        block_scaling.C_AT,
        block_scaling.SCALE_A_AT,
        block_scaling.SCALE_B_AT,
    )
    a, b, c = _fragments(m, f)
    scales = [scale[0] if isinstance(scale, tuple | list) else scale for scale in (f.scale_a, f.scale_b)]
    operands = list(zip((a, b, c, *scales), at, strict=True))
    return _registers(m, f, mma.scaled_mma(m.x, m.op, m.b, kind, operands, c.type))


def _registers(m: Machine, f: Fields, d: ir.Value) -> list[ir.Value]:
    """Return D as registers."""
    width = 64 if f.form is mma_forms.MMA_DOUBLES else 32
    return m.b.elements(_bitcast(m, d, len(f.d), int_type(width)))


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
