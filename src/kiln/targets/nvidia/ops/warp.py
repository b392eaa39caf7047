"""Operations of the lanes of a warp: shuffles, votes, reductions, elections, matches."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import context, ir
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..device_builder import REGISTER, DeviceBuilder, as_bits, f32, from_bits, is_float
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(nvgpu.warp.Shuffle)
def _shuffle(_x: Expander, op: nvgpu.warp.Shuffle, b: DeviceBuilder) -> ir.Value:
    bits = as_bits(b, op.value)
    kind = ir.Attribute.parse(f"#nvvm<shfl_kind {op.kind}>", context())
    made = b.value("nvvm.shfl.sync", int_type(32), (op.mask, bits, op.offset, op.clamp), {"kind": kind})
    return from_bits(b, made, op.result.type)


@HANDLERS.expands(nvgpu.warp.Vote)
def _vote(_x: Expander, op: nvgpu.warp.Vote, b: DeviceBuilder) -> ir.Value:
    kind = ir.Attribute.parse(f"#nvvm<vote_sync_kind {op.kind}>", context())
    return b.value("nvvm.vote.sync", op.result.type, (op.mask, op.predicate), {"kind": kind})


@HANDLERS.expands(nvgpu.warp.Redux)
def _redux(x: Expander, op: nvgpu.warp.Redux, b: DeviceBuilder) -> list[ir.Value]:
    kind, *modifiers = op.kind.split(".")
    if is_float(op.value.type):
        x.require(op, features.FLOAT_REDUX)
        name = "".join(f".{part}" for part in (kind.removeprefix("f"), *modifiers))
        return b.asm(f"redux.sync{name}.f32 $0, $1, $2;", "=f,f,r", [op.value, op.mask], [f32()])
    unsigned = kind in ("umin", "umax", "and", "or", "xor")
    suffix = "b32" if kind in ("and", "or", "xor") else "u32" if unsigned else "s32"
    code = f"redux.sync.{kind.removeprefix('u')}.{suffix} $0, $1, $2;"
    return b.asm(code, "=r,r,r", [op.value, op.mask], [op.result.type])


@HANDLERS.expands(nvgpu.warp.ElectOne)
def _elect_one(x: Expander, op: nvgpu.warp.ElectOne, b: DeviceBuilder) -> ir.Value:
    if features.ELECT.on(x.arch):
        return b.value("nvvm.elect.sync", int_type(1))
    # the lowest of the threads that are here
    (active,) = b.asm("activemask.b32 $0;", "=r", [], [int_type(32)])
    (below,) = b.asm("mov.u32 $0, %lanemask_lt;", "=r", [], [int_type(32)], pure=True)
    return b.compare("eq", b.binary("andi", active, below), 0)


@HANDLERS.expands(nvgpu.warp.WarpUniform)
def _warp_uniform(_x: Expander, op: nvgpu.warp.WarpUniform, b: DeviceBuilder) -> ir.Value:
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>", context())
    return b.value("nvvm.shfl.sync", int_type(32), (b.i32(-1), op.value, b.i32(0), b.i32(31)), {"kind": kind})


@HANDLERS.expands(nvgpu.warp.Match)
def _match(_x: Expander, op: nvgpu.warp.Match, b: DeviceBuilder) -> list[ir.Value]:
    kind = op.kind
    width = op.value.type.width  # pyright: ignore[reportAttributeAccessIssue]
    target = "$0" if kind == "any" else "$0|p"
    code = f"match.{kind}.sync.b{width} {target}, $1, $2;"
    if kind == "all":
        code = f"{{ .reg .pred p; {code} }}"
    return b.asm(code, f"=r,{REGISTER[width]},r", [op.value, op.mask], [int_type(32)])
