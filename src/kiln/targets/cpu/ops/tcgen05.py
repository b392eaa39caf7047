"""tcgen05: tensor memory, and the asynchronous operations on it, which `runtime/tensor_memory.py` carries out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NoReturn

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....dialects import nvgpu
from ....dialects.declaration import OpView
from ....dialects.nvgpu import tcgen05
from ....dialects.nvgpu.tcgen05_descriptors import matrix_descriptor_fields
from ....mlir import ir
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import AnyOp, Handlers
from ..expand import Expander
from ..runtime import umma
from ..runtime.record_access import Fields
from ..runtime.records import Mma
from .umma import refused_mma

HANDLERS = Handlers()


def refused_operation(why: int, what: str) -> tuple[str, str]:
    """Return the message and hint for an operation that the runtime refused with a code."""
    if why & 255 >= umma.FIRST_CODE:
        return refused_mma(why, what)
    return f"{what}: refused with code {why}", ""


def _frame(x: Expander, op: AnyOp) -> ir.Value:
    """Return the frame of the running thread, whose block has tensor memory."""
    x.function.copies = x.function.tensor_memory = True
    return x.frame_of(op)


def _may_fail(x: Expander, op: AnyOp, b: Builder, why: ir.Value, what: str) -> None:
    """End the thread with a fault if a code is not 0."""
    site = x.module.site(op, "tcgen05", what, x.function.name, ("i64",))
    failed = b.if_(b.compare("ne", why, 0))
    x.fault(failed, site, [why])
    x.end(failed)


# --- MMA -------------------------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05MatrixDescriptor)
def _matrix_descriptor(x: Expander, op: tcgen05.Tcgen05MatrixDescriptor, b: Builder) -> ir.Value:
    """Return a descriptor whose address counts from the start of the block's shared memory, as for WGMMA."""
    x.kernel_only(op)
    fields = matrix_descriptor_fields(op.leading, op.stride, op.swizzle, absolute_leading=bool(op.next_chunk))
    low = _address_field(x, b, op.pointer)
    for pointer in op.next_chunk:
        low = b.binary("ori", low, b.binary("shli", _address_field(x, b, pointer), 16))
    return b.binary("ori", low, fields - (fields >> 63 << 64))


def _address_field(x: Expander, b: Builder, pointer: ir.Value) -> ir.Value:
    here, start = (b.value("llvm.ptrtoint", int_type(64), (p,)) for p in (pointer, x.function.smem))
    return b.binary("andi", b.binary("shrui", b.binary("subi", here, start), 4), 0x3FFF)


def issue_mma(
    x: Expander, op: AnyOp, b: Builder, kind: str, operands: dict[str, ir.Value], accumulate: ir.Value, flags: int,
    masks: Sequence[ir.Value] = (), **fields: Any,
) -> None:  # fmt: skip
    """Issue an MMA; `operands` and `fields` are those of `records.Mma`."""
    frame, memory = _frame(x, op), x.at_entry(op.location).alloca(int_type(64), ctypes.sizeof(Mma) // 8)
    record = Fields(b, memory, Mma)
    a = operands["a"]
    if a.type == int_type(32):
        flags |= umma.A_IN_TENSOR_MEMORY
        operands["a"] = b.value("arith.extui", int_type(64), (a,))
    adds = b.value("arith.extui", int_type(32), (accumulate,))
    record.store("kind", umma.KINDS.index(kind))
    record.store("flags", b.binary("ori", adds, flags))
    for name in ("d", "a", "b", "idesc", "sfa", "sfb", "vector", "scale_input_d", "zero_columns", "cta_group"):
        record.store(name, operands.get(name, fields.get(name, 0)))
    record.store("site", x.module.site(op, "tcgen05", "tcgen05.mma", x.function.name, ("i64",)))
    for number in range(8):
        b.store(masks[number] if number < len(masks) else b.i32(0), record.at("masks", 4 * number))
    _may_fail(x, op, b, x.call(b, "kiln_cpu_tcgen05_mma", [frame, memory], int_type(64)), "tcgen05.mma")


@HANDLERS.expands(tcgen05.Tcgen05Mma)
def _mma(x: Expander, op: tcgen05.Tcgen05Mma, b: Builder) -> None:
    operands = {"d": op.d, "a": op.a, "b": op.b, "idesc": op.idesc}
    flags, masks = umma.SHIFTS_A * op.a_shift, op.disable_output_lane
    scale = op.scale_input_d or 0
    issue_mma(x, op, b, op.kind, operands, op.accumulate, flags, masks, cta_group=op.cta_group, scale_input_d=scale)


@HANDLERS.expands(tcgen05.Tcgen05MmaWs)
def _mma_ws(x: Expander, op: tcgen05.Tcgen05MmaWs, b: Builder) -> None:
    operands = {"d": op.d, "a": op.a, "b": op.b, "idesc": op.idesc}
    for mask in op.zero_column_mask:
        operands["zero_columns"] = mask
    issue_mma(x, op, b, op.kind, operands, op.accumulate, umma.WS, cta_group=1)


@HANDLERS.expands(tcgen05.Tcgen05MmaBlockScale)
def _mma_block_scale(x: Expander, op: tcgen05.Tcgen05MmaBlockScale, b: Builder) -> None:
    operands = {"d": op.d, "a": op.a, "b": op.b, "idesc": op.idesc, "sfa": op.sfa, "sfb": op.sfb}
    issue_mma(x, op, b, op.kind, operands, op.accumulate, 0, cta_group=op.cta_group, vector=op.block)


# --- copy, shift, commit ---------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05Commit)
def _commit(x: Expander, op: tcgen05.Tcgen05Commit, b: Builder) -> None:
    blocks = b.i32(0)
    for mask in op.mask:
        blocks = b.value("arith.extui", int_type(32), (mask,))
    x.call(b, "kiln_cpu_tcgen05_commit", [_frame(x, op), op.mbarrier, blocks])


_UNITS = {nvgpu.tcgen05.__name__: "tcgen05", nvgpu.launch_control.__name__: "cluster launch control"}


def _refuse(_x: Expander, op: OpView, _b: Builder) -> NoReturn:
    message = f"{_UNITS[type(op).__module__]} runs on the NVIDIA target only so far ({op.operation.name})"
    hint = 'compile for a GPU: cute.compile(..., target="nvidia", options="--gpu-arch sm_100a")'
    raise report_at(op.location, DSLNotImplemented, message, hint=hint)


HANDLERS.expands(
    *(kind for kind in nvgpu.OPERATIONS if kind.__module__ in _UNITS and kind.OPERATION_NAME not in HANDLERS)
)(_refuse)
