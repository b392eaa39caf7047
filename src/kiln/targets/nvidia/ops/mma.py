"""Tensor-core operations, matrix loads and stores."""

from __future__ import annotations

import functools
from typing import Any

from ....dialects import nvgpu
from ....hardware import features, mma_shapes
from ....mlir import context, ir
from ....ptx import matrices, mma, sparse
from ....ptx.form import Form
from ...lowering.arithmetic import element_of
from ...lowering.builder import int_type
from ...lowering.expansion import KEEP, Handlers
from ..device_builder import DeviceBuilder, parts_of
from ..expand import Expander
from ..passes import store_forwarding

HANDLERS = Handlers()

_ACCUMULATORS = {"i32": "s32"}
"""Accumulator types that PTX spells differently."""


@functools.lru_cache(maxsize=64)
def _vector(count: int, element: ir.Type) -> ir.Type:
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def _registers(x: Expander, b: DeviceBuilder, vector: ir.Value, as_bits: bool) -> list[ir.Value]:
    """Return a fragment as registers of PTX: f16 in pairs, and words where the instruction wants bits.

    Registers of a fragment that an operation made, or of a part of one, are known. Other fragments are taken apart once
    in a block, since they often feed many MMAs; operations of a block are expanded in order.
    """
    word_vector = _as_words(vector.type, as_bits)
    registers = _registers_of(x, vector)
    if registers is not None and registers[0].type == word_vector.element_type:
        return registers
    key = (vector, b.point.block, as_bits)
    registers = x.taken_apart.get(key)
    if registers is None:
        words = vector if vector.type == word_vector else b.value("llvm.bitcast", word_vector, (vector,))
        registers = x.taken_apart[key] = x.elements(b, words)
    return registers


@functools.lru_cache(maxsize=64)
def _as_words(type_: Any, as_bits: bool) -> Any:
    """Return the vector of registers that a fragment is."""
    element = type_.element_type
    if isinstance(element, ir.F16Type):
        return _vector(type_.shape[0] // 2, int_type(32))
    return _vector(type_.shape[0], int_type(32)) if as_bits and isinstance(element, ir.F32Type) else type_


def _registers_of(x: Expander, vector: ir.Value) -> list[ir.Value] | None:
    """Return the registers of a fragment that an operation made, or of a part of one."""
    registers = x.results.get(vector)
    if registers is not None or (op := store_forwarding.part_of(vector)) is None:
        return registers
    source = op.operands[0]
    registers = _registers_of(x, source)
    if registers is None:
        return None
    whole: Any = source.type
    type_: Any = vector.type
    register: Any = registers[0].type
    first, rest = divmod(store_forwarding.first_element(op) * whole.element_type.width, register.width)
    count, more = divmod(type_.shape[0] * type_.element_type.width, register.width)
    return None if rest or more else registers[first : first + count]


@HANDLERS.expands(nvgpu.mma.MmaSync)
def _mma_sync(x: Expander, op: nvgpu.mma.MmaSync, b: DeviceBuilder) -> object:
    a_type = op.a_type
    b_type = op.b_type
    d_type = _name(element_of(op.result.type))
    d_type = _ACCUMULATORS.get(d_type, d_type)
    shape = (op.m, op.n, op.k)
    kind = mma_shapes.warp_kind(a_type, b_type)
    x.require(op, _feature(shape, a_type, b_type, d_type, kind))
    form = mma.MMA_DOUBLES if a_type == "f64" else mma.MMA_BITS if a_type.startswith("b1") else mma.MMA
    return _multiply(x, op, b, form, d_type=d_type, c_type=d_type, kind=kind)


@HANDLERS.expands(nvgpu.mma.MmaSp)
def _mma_sp(x: Expander, op: nvgpu.mma.MmaSp, b: DeviceBuilder) -> object:
    d_type = _name(element_of(op.result.type))
    d_type = _ACCUMULATORS.get(d_type, d_type)
    row = mma_shapes.find("mma.sync", (op.m, op.n, op.k), op.a_type, op.b_type, d_type, sparse=True)
    assert row is not None, "the verifier lets no other pass"
    x.require(op, row.feature)
    return _multiply(x, op, b, sparse.MMA, d_type=d_type, c_type=d_type)


@HANDLERS.expands(nvgpu.mma.MmaBlockScale)
def _mma_block_scale(x: Expander, op: nvgpu.mma.MmaBlockScale, b: DeviceBuilder) -> object:
    x.require(op, _feature((op.m, op.n, op.k), op.a_type, op.b_type, "f32", op.kind, op.scale_type, op.scale_vector))
    return _multiply(x, op, b, mma.MMA_BLOCK_SCALE, d_type="f32", scaling=f"{op.kind}.{op.scale_vector}")


def _multiply(
    x: Expander,
    op: nvgpu.mma.MmaSync | nvgpu.mma.MmaSp | nvgpu.mma.MmaBlockScale,
    b: DeviceBuilder,
    form: Form,
    **fields: str | None,
) -> object:
    """Emit an MMA of the registers of fragments. `fields` are those that the operation does not have.

    All threads of the warp take part: it must not be moved into a branch. LLVM's intrinsics compile faster, but they do
    not touch memory: LLVM moves what was read a step ahead down to where they need it.
    """
    parts = parts_of(op, form)
    parts.update((name, value) for name, value in fields.items() if name in form.names)
    for name in "abc":
        parts[name] = _registers(x, b, parts[name], as_bits=parts.get(f"{name}_type") == "tf32")
    x.results[op.result] = b.ptx(form, [part.type for part in parts["c"]], **parts)
    return KEEP


@functools.lru_cache(maxsize=64)
def _feature(
    shape: mma_shapes.Shape,
    a_type: str,
    b_type: str,
    d_type: str,
    kind: str | None,
    scale: str | None = None,
    vector: int | None = None,
) -> features.Feature:
    columns: dict[str, str | int | None] = {"kind": kind, "scale_type": scale, "scale_vector": vector}
    row = mma_shapes.find("mma.sync", shape, a_type, b_type, d_type, **columns)
    assert row is not None, "the verifier lets no other pass"
    return row.feature


@functools.lru_cache(maxsize=64)
def _name(type_: ir.Type) -> str:
    return str(type_)


# --- matrices in shared memory ---------------------------------------------------------------------------------------


_LOADS = {
    (nvgpu.mma.LdMatrix, False): matrices.LOAD,
    (nvgpu.mma.LdMatrix, True): matrices.LOAD_UNPACKED,
    (nvgpu.mma.LdMatrixBytes, False): matrices.LOAD_BYTES,
    (nvgpu.mma.LdMatrixBytes, True): matrices.LOAD_BYTES_UNPACKED,
}
"""The instruction of an operation, by whether it unpacks."""


@HANDLERS.expands(nvgpu.mma.LdMatrix, nvgpu.mma.LdMatrixBytes)
def _ldmatrix(x: Expander, op: nvgpu.mma.LdMatrix | nvgpu.mma.LdMatrixBytes, b: DeviceBuilder) -> object:
    form = _LOADS[type(op), op.unpack is not None]
    if form is not matrices.LOAD:
        x.require(op, features.BYTE_MATRICES)
    registers = [int_type(32)] * op.result.type.shape[0]
    x.results[op.result] = b.ptx(form, registers, **parts_of(op, form))
    return KEEP
