"""tcgen05: tensor memory, and the MMAs and copies that use it, as inline PTX."""

from __future__ import annotations

from ....dialects.nvgpu import tcgen05
from ....dialects.nvgpu.tcgen05_descriptors import matrix_descriptor_fields
from ....mlir import ir
from ....ptx import tcgen05 as forms
from ....ptx.form import Form
from ...lowering.builder import int_type
from ...lowering.expansion import KEEP, Handlers
from ..device_builder import DeviceBuilder, literal, parts_of, shared_address
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(tcgen05.Tcgen05Alloc, tcgen05.Tcgen05Dealloc)
def _allocation(x: Expander, op: tcgen05.Tcgen05Alloc | tcgen05.Tcgen05Dealloc, b: DeviceBuilder) -> None:
    x.require_needs(op)
    form = forms.ALLOC if isinstance(op, tcgen05.Tcgen05Alloc) else forms.DEALLOC
    parts = parts_of(op, form)
    parts["columns"] = literal(op.columns)
    b.ptx(form, **parts)


@HANDLERS.expands(tcgen05.Tcgen05MatrixDescriptor)
def _matrix_descriptor(x: Expander, op: tcgen05.Tcgen05MatrixDescriptor, b: DeviceBuilder) -> ir.Value:
    x.require_needs(op)
    fields = matrix_descriptor_fields(op.leading, op.stride, op.swizzle, absolute_leading=bool(op.next_chunk))
    low = _address_field(b, op.pointer)
    for pointer in op.next_chunk:
        low = b.binary("ori", low, b.binary("shli", _address_field(b, pointer), 16))
    return b.binary("ori", b.value("arith.extui", int_type(64), (low,)), fields - (fields >> 63 << 64))


def _address_field(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.binary("andi", b.binary("shrui", shared_address(b, pointer), 4), 0x3FFF)


# --- registers -------------------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05Ld)
def _ld(x: Expander, op: tcgen05.Tcgen05Ld, b: DeviceBuilder) -> object:
    return _load(x, op, b, forms.LD if op.split is None else forms.LD_HALVES)


@HANDLERS.expands(tcgen05.Tcgen05LdRed)
def _ld_red(x: Expander, op: tcgen05.Tcgen05LdRed, b: DeviceBuilder) -> object:
    return _load(x, op, b, forms.LD_RED if op.split is None else forms.LD_RED_HALVES)


def _load(x: Expander, op: tcgen05.Tcgen05Ld | tcgen05.Tcgen05LdRed, b: DeviceBuilder, form: Form) -> object:
    x.require_needs(op)
    x.results[op.result] = b.ptx(form, [int_type(32)] * op.result.type.shape[0], **parts_of(op, form))
    return KEEP


@HANDLERS.expands(tcgen05.Tcgen05St)
def _st(x: Expander, op: tcgen05.Tcgen05St, b: DeviceBuilder) -> None:
    x.require_needs(op)
    form = forms.ST if op.split is None else forms.ST_HALVES
    parts = parts_of(op, form)
    parts["value"] = x.elements(b, op.value)
    b.ptx(form, **parts)
