"""tcgen05: tensor memory, and the MMAs and copies that use it, as inline PTX."""

from __future__ import annotations

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects.nvgpu import tcgen05
from ....dialects.nvgpu.tcgen05_descriptors import matrix_descriptor_fields
from ....hardware import features
from ....mlir import ir
from ....ptx import tcgen05 as forms
from ....ptx.form import Form
from ...lowering.builder import int_type
from ...lowering.expansion import KEEP, AnyOp, Handlers
from ...lowering.tcgen05_features import needed
from ..device_builder import DeviceBuilder, literal, parts_of, prints, shared_address
from ..expand import Expander

HANDLERS = Handlers()
prints(HANDLERS, {tcgen05.Tcgen05Wait: forms.WAIT, tcgen05.Tcgen05Fence: forms.FENCE}, features.TCGEN05)


def _require(x: Expander, op: AnyOp) -> None:
    """Refuse an operation that needs what the architecture lacks, though it has tcgen05."""
    for feature, what in needed(op):
        x.require(op, feature, what)


def _check(x: Expander, op: AnyOp, cta_group: int) -> None:
    """Refuse an operation that the architecture lacks, or of another CTA group than the kernel's: ptxas refuses two."""
    x.require(op, features.TCGEN05)
    if x.kernel.cta_group not in (0, cta_group):
        message = f"{op.operation.name} has cta_group {cta_group} in a kernel with cta_group {x.kernel.cta_group}"
        hint = "all tcgen05 instructions of a kernel have the same one: alloc, mma, cp and commit included"
        raise report_at(op.location, CompilerDiagnosticError, message, hint=hint)
    x.kernel.cta_group = cta_group
    _require(x, op)


_FORMS = {
    tcgen05.Tcgen05RelinquishAllocPermit: forms.RELINQUISH,
    tcgen05.Tcgen05Cp: forms.CP,
    tcgen05.Tcgen05Shift: forms.SHIFT,
    tcgen05.Tcgen05Commit: forms.COMMIT,
}
_Instruction = tcgen05.Tcgen05RelinquishAllocPermit | tcgen05.Tcgen05Cp | tcgen05.Tcgen05Shift | tcgen05.Tcgen05Commit


@HANDLERS.expands(*_FORMS)
def _instruction(x: Expander, op: _Instruction, b: DeviceBuilder) -> None:
    _check(x, op, op.cta_group)
    form = _FORMS[type(op)]
    b.ptx(form, **parts_of(op, form))


@HANDLERS.expands(tcgen05.Tcgen05Alloc, tcgen05.Tcgen05Dealloc)
def _allocation(x: Expander, op: tcgen05.Tcgen05Alloc | tcgen05.Tcgen05Dealloc, b: DeviceBuilder) -> None:
    _check(x, op, op.cta_group)
    form = forms.ALLOC if isinstance(op, tcgen05.Tcgen05Alloc) else forms.DEALLOC
    parts = parts_of(op, form)
    parts["columns"] = literal(op.columns)
    b.ptx(form, **parts)


@HANDLERS.expands(tcgen05.Tcgen05Mma)
def _mma(x: Expander, op: tcgen05.Tcgen05Mma, b: DeviceBuilder) -> None:
    _check(x, op, op.cta_group)
    form = forms.MMA_TMEM if _in_tmem(op.a) else forms.MMA
    b.ptx(form, **parts_of(op, form))


@HANDLERS.expands(tcgen05.Tcgen05MmaBlockScale)
def _mma_block_scale(x: Expander, op: tcgen05.Tcgen05MmaBlockScale, b: DeviceBuilder) -> None:
    _check(x, op, op.cta_group)
    form = forms.MMA_BLOCK_SCALE_TMEM if _in_tmem(op.a) else forms.MMA_BLOCK_SCALE
    b.ptx(form, scaling=(op.kind, op.block), **parts_of(op, form))


@HANDLERS.expands(tcgen05.Tcgen05MmaWs)
def _mma_ws(x: Expander, op: tcgen05.Tcgen05MmaWs, b: DeviceBuilder) -> None:
    _check(x, op, 1)
    form = forms.MMA_WS_TMEM if _in_tmem(op.a) else forms.MMA_WS
    b.ptx(form, **parts_of(op, form))


def _in_tmem(a: ir.Value) -> bool:
    return a.type == int_type(32)


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


# --- registers -------------------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05Ld)
def _ld(x: Expander, op: tcgen05.Tcgen05Ld, b: DeviceBuilder) -> object:
    x.require(op, features.TCGEN05)
    return _load(x, op, b, forms.LD if op.split is None else forms.LD_HALVES)


@HANDLERS.expands(tcgen05.Tcgen05LdRed)
def _ld_red(x: Expander, op: tcgen05.Tcgen05LdRed, b: DeviceBuilder) -> object:
    _require(x, op)
    return _load(x, op, b, forms.LD_RED if op.split is None else forms.LD_RED_HALVES)


def _load(x: Expander, op: tcgen05.Tcgen05Ld | tcgen05.Tcgen05LdRed, b: DeviceBuilder, form: Form) -> object:
    x.results[op.result] = b.ptx(form, [int_type(32)] * op.result.type.shape[0], **parts_of(op, form))
    return KEEP


@HANDLERS.expands(tcgen05.Tcgen05St)
def _st(x: Expander, op: tcgen05.Tcgen05St, b: DeviceBuilder) -> None:
    x.require(op, features.TCGEN05)
    form = forms.ST if op.split is None else forms.ST_HALVES
    parts = parts_of(op, form)
    parts["value"] = x.elements(b, op.value)
    b.ptx(form, **parts)
