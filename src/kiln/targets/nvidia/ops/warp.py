"""Operations of the lanes of a warp: shuffles, votes, reductions, elections, matches."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import context, ir
from ....ptx import warp
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, as_bits, from_bits, is_float
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(nvgpu.warp.Shuffle)
def _shuffle(_x: Expander, op: nvgpu.warp.Shuffle, b: DeviceBuilder) -> ir.Value:
    bits = as_bits(b, op.value)
    kind = ir.Attribute.parse(f"#nvvm<shfl_kind {op.kind}>", context())
    shuffled = b.value("nvvm.shfl.sync", int_type(32), (op.mask, bits, op.offset, op.clamp), {"kind": kind})
    return from_bits(b, shuffled, op.result.type)


@HANDLERS.expands(nvgpu.warp.Vote)
def _vote(_x: Expander, op: nvgpu.warp.Vote, b: DeviceBuilder) -> ir.Value:
    kind = ir.Attribute.parse(f"#nvvm<vote_sync_kind {op.kind}>", context())
    return b.value("nvvm.vote.sync", op.result.type, (op.mask, op.predicate), {"kind": kind})


@HANDLERS.expands(nvgpu.warp.Redux)
def _redux(x: Expander, op: nvgpu.warp.Redux, b: DeviceBuilder) -> list[ir.Value]:
    form = warp.REDUX
    if is_float(op.value.type):
        x.require(op, features.FLOAT_REDUX)
        form = warp.REDUX_FLOAT
    return b.ptx(form, [op.result.type], kind=op.kind, value=op.value, mask=op.mask)


@HANDLERS.expands(nvgpu.warp.ElectOne)
def _elect_one(x: Expander, op: nvgpu.warp.ElectOne, b: DeviceBuilder) -> ir.Value:
    if features.ELECT.on(x.arch):
        return b.value("nvvm.elect.sync", int_type(1))
    # the lowest of the threads that are here
    (active,) = b.ptx(warp.ACTIVE, [int_type(32)])
    (below,) = b.asm("mov.u32 $0, %lanemask_lt;", "=r", [], [int_type(32)], pure=True)
    return b.compare("eq", b.binary("andi", active, below), 0)


@HANDLERS.expands(nvgpu.warp.WarpUniform)
def _warp_uniform(_x: Expander, op: nvgpu.warp.WarpUniform, b: DeviceBuilder) -> ir.Value:
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>", context())
    return b.value("nvvm.shfl.sync", int_type(32), (b.i32(-1), op.value, b.i32(0), b.i32(31)), {"kind": kind})


@HANDLERS.expands(nvgpu.warp.Match)
def _match(_x: Expander, op: nvgpu.warp.Match, b: DeviceBuilder) -> list[ir.Value]:
    wide = op.value.type == int_type(64)
    operands = {"value": op.value, "mask": op.mask}
    if op.kind == "any":
        return b.ptx(warp.MATCH_WIDE if wide else warp.MATCH, [int_type(32)], **operands)
    form = warp.MATCH_ALL_WIDE if wide else warp.MATCH_ALL
    return b.ptx(form, [int_type(32)], around="{ .reg .pred p; %s }", p="p", **operands)
