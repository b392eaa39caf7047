"""tcgen05: tensor memory, and the MMAs and copies that use it, as inline PTX."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects.definition import constant
from ....dialects.nvgpu import tcgen05
from ....dialects.nvgpu.tcgen05_descriptors import matrix_descriptor_fields
from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value, int_type
from ...lowering.expansion import KEEP, AnyOp, Handlers
from ...lowering.tcgen05_features import needed
from ..device_builder import DeviceBuilder, Instruction, emits, shared_address
from ..expand import Expander

HANDLERS = Handlers()
emits(
    HANDLERS,
    {tcgen05.Tcgen05Wait: "tcgen05.wait::{op.kind}.sync.aligned", tcgen05.Tcgen05Fence: "tcgen05.fence::{op.kind}"},
    features.TCGEN05,
)


def _require(x: Expander, op: AnyOp) -> None:
    """Refuse an operation that needs what the architecture lacks, though it has tcgen05."""
    for feature, what in needed(op):
        x.require(op, feature, what)


def _group(x: Expander, op: AnyOp, cta_group: int) -> str:
    """Return the modifier of a CTA group, which must be the same in a whole kernel: ptxas refuses two."""
    x.require(op, features.TCGEN05)
    if x.kernel.cta_group not in (0, cta_group):
        message = f"{op.operation.name} has cta_group {cta_group} in a kernel with cta_group {x.kernel.cta_group}"
        hint = "all tcgen05 instructions of a kernel have the same one: alloc, mma, cp and commit included"
        raise report_at(op.location, CompilerDiagnosticError, message, hint=hint)
    x.kernel.cta_group = cta_group
    return f".cta_group::{cta_group}"


# --- allocation ------------------------------------------------------------------------------------------------------


def _columns(asm: Instruction, columns: ir.Value) -> str:
    known = constant_value(columns)
    return asm(columns) if known is None else str(known)


@HANDLERS.expands(tcgen05.Tcgen05Alloc)
def _alloc(x: Expander, op: tcgen05.Tcgen05Alloc, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    asm = Instruction(b)
    code = f"tcgen05.alloc{group}.sync.aligned.shared::cta.b32"
    asm.emit(code, asm.at(shared_address(b, op.pointer)), _columns(asm, op.columns))


@HANDLERS.expands(tcgen05.Tcgen05Dealloc)
def _dealloc(x: Expander, op: tcgen05.Tcgen05Dealloc, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    asm = Instruction(b)
    asm.emit(f"tcgen05.dealloc{group}.sync.aligned.b32", asm(op.address), _columns(asm, op.columns))


@HANDLERS.expands(tcgen05.Tcgen05RelinquishAllocPermit)
def _relinquish(x: Expander, op: tcgen05.Tcgen05RelinquishAllocPermit, b: DeviceBuilder) -> None:
    b.asm(f"tcgen05.relinquish_alloc_permit{_group(x, op, op.cta_group)}.sync.aligned;", "")


# --- MMA -------------------------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05MatrixDescriptor)
def _matrix_descriptor(x: Expander, op: tcgen05.Tcgen05MatrixDescriptor, b: DeviceBuilder) -> ir.Value:
    x.require(op, features.TCGEN05)
    fields = matrix_descriptor_fields(op.leading, op.stride, op.swizzle, absolute_leading=bool(op.next_chunk))
    low = _address_field(b, op.pointer)
    _require(x, op)
    for pointer in op.next_chunk:
        low = b.binary("ori", low, b.binary("shli", _address_field(b, pointer), 16))
    return b.binary("ori", b.value("arith.extui", int_type(64), (low,)), fields - (fields >> 63 << 64))


def _address_field(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.binary("andi", b.binary("shrui", shared_address(b, pointer), 4), 0x3FFF)


def _emit_mma(
    b: DeviceBuilder,
    code: str,
    op: tcgen05.Tcgen05Mma | tcgen05.Tcgen05MmaBlockScale | tcgen05.Tcgen05MmaWs,
    scales: tuple[ir.Value, ...] = (),
    masks: Sequence[ir.Value] = (),
    last: str = "",
    zero_column_mask: Sequence[ir.Value] = (),
) -> None:
    """Emit an MMA; `accumulate` is a predicate, which inline PTX has to make of a register."""
    asm = Instruction(b)
    in_tmem = op.a.type == int_type(32)
    operands = [asm.at(op.d), asm.at(op.a) if in_tmem else asm(op.a), asm(op.b), asm(op.idesc)]
    operands += [asm.at(scale) for scale in scales]
    operands += [asm.group(masks)] if masks else []
    known = constant(op.accumulate)
    flag = int(bool(known)) if known is not None else asm(b.value("arith.extui", int_type(32), (op.accumulate,)))
    listed = ", ".join([*operands, "p", *map(asm, zero_column_mask)])
    asm.emit_text(f"{{ .reg .pred p; setp.ne.b32 p, {flag}, 0; {code} {listed}{last}; }}")


@HANDLERS.expands(tcgen05.Tcgen05Mma)
def _mma(x: Expander, op: tcgen05.Tcgen05Mma, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    _require(x, op)
    code = f"tcgen05.mma{group}.kind::{op.kind}{'.ashift' * op.a_shift}{_collector(op.collector)}"
    scale = "" if op.scale_input_d is None else f", {op.scale_input_d}"
    _emit_mma(b, code, op, masks=op.disable_output_lane, last=scale)


@HANDLERS.expands(tcgen05.Tcgen05MmaBlockScale)
def _mma_block_scale(x: Expander, op: tcgen05.Tcgen05MmaBlockScale, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    _require(x, op)
    code = f"tcgen05.mma{group}.kind::{op.kind}.block_scale.block{op.block}{_collector(op.collector)}"
    _emit_mma(b, code, op, (op.sfa, op.sfb))


@HANDLERS.expands(tcgen05.Tcgen05MmaWs)
def _mma_ws(x: Expander, op: tcgen05.Tcgen05MmaWs, b: DeviceBuilder) -> None:
    group = _group(x, op, 1)
    _require(x, op)
    collector = "" if op.collector is None else f".collector::{op.collector}"
    code = f"tcgen05.mma.ws{group}.kind::{op.kind}{collector}"
    _emit_mma(b, code, op, zero_column_mask=op.zero_column_mask)


def _collector(kind: str | None) -> str:
    return "" if kind is None else f".collector::a::{kind}"


# --- copy, shift, commit ---------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05Cp)
def _cp(x: Expander, op: tcgen05.Tcgen05Cp, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    asm = Instruction(b)
    format_ = "" if op.format is None else f".b8x16.{op.format}"
    asm.emit(f"tcgen05.cp{group}.{op.shape}{format_}", asm.at(op.address), asm(op.descriptor))


@HANDLERS.expands(tcgen05.Tcgen05Shift)
def _shift(x: Expander, op: tcgen05.Tcgen05Shift, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    asm = Instruction(b)
    _require(x, op)
    asm.emit(f"tcgen05.shift{group}.down", asm.at(op.address))


@HANDLERS.expands(tcgen05.Tcgen05Commit)
def _commit(x: Expander, op: tcgen05.Tcgen05Commit, b: DeviceBuilder) -> None:
    group = _group(x, op, op.cta_group)
    asm = Instruction(b)
    # an address of the CTA's own shared memory is one of the cluster's, too
    operands = [asm.at(shared_address(b, op.mbarrier)), *map(asm, op.mask)]
    multicast = ".multicast::cluster" if op.mask else ""
    asm.emit(f"tcgen05.commit{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64", *operands)


# --- registers -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _vector(first: int, count: int) -> str:
    return "{" + ", ".join(f"${number}" for number in range(first, first + count)) + "}"


def _split(split: int | None) -> list[str]:
    return [] if split is None else [str(split)]


@HANDLERS.expands(tcgen05.Tcgen05Ld)
def _ld(x: Expander, op: tcgen05.Tcgen05Ld, b: DeviceBuilder) -> object:
    x.require(op, features.TCGEN05)
    count = op.result.type.shape[0]
    asm = Instruction(b, [int_type(32)] * count)
    code = f"tcgen05.ld.sync.aligned.{op.shape}.x{op.repeat}{'.pack::16b' * op.pack}.b32"
    x.results[op.result] = asm.emit(code, _vector(0, count), asm.at(op.address), *_split(op.split))
    return KEEP


@HANDLERS.expands(tcgen05.Tcgen05LdRed)
def _ld_red(x: Expander, op: tcgen05.Tcgen05LdRed, b: DeviceBuilder) -> object:
    _require(x, op)
    count = op.result.type.shape[0] - 1
    asm = Instruction(b, [int_type(32)] * (count + 1))
    what = f"{op.reduction}{'.abs' * op.abs}{'.NaN' * op.nan}.{op.type}"
    operands = [_vector(0, count), f"${count}", asm.at(op.address), *_split(op.split)]
    x.results[op.result] = asm.emit(f"tcgen05.ld.red.sync.aligned.{op.shape}.x{op.repeat}.{what}", *operands)
    return KEEP


@HANDLERS.expands(tcgen05.Tcgen05St)
def _st(x: Expander, op: tcgen05.Tcgen05St, b: DeviceBuilder) -> None:
    x.require(op, features.TCGEN05)
    asm = Instruction(b)
    place = asm.at(op.address)
    values = asm.group(x.elements(b, op.value))
    code = f"tcgen05.st.sync.aligned.{op.shape}.x{op.repeat}{'.unpack::16b' * op.unpack}.b32"
    asm.emit(code, place, *_split(op.split), values)
