"""TMA copies, and edits of tensor maps."""

from __future__ import annotations

from ....mlir import ir
from ....ptx.syntax import Address, Immediate, Operand, Statement, Vector
from ...lowering.expansion import Handlers
from ..ops import tma as tma_ops
from ..runtime.tensor_maps import FIELDS
from .machine import Machine, Refused

INSTRUCTIONS = Handlers()

_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _box(m: Machine, operand: Operand) -> tuple[ir.Value, list[ir.Value]]:
    """Return the map and the coordinates of `[map, {a, b}]`."""
    if not isinstance(operand, Address) or not isinstance(operand.base, Vector) or len(operand.base.parts) != 2:
        raise Refused("a box is written [map, {coordinates}]")
    map_, places = operand.base.parts
    parts = places.parts if isinstance(places, Vector) else (places,)
    return m.pointer(Address(map_), ""), [m.bits(part, 32) for part in parts]


def copy_box(m: Machine, s: Statement) -> None:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`."""
    if s.starts("im2col::"):
        raise Refused("wide columns of pixels")
    if "prefetch" in s.modifiers:
        return
    im2col = bool(s.starts("im2col"))
    rows = bool(s.starts("tile::"))
    if "bulk_group" in s.modifiers:
        map_, places = _box(m, s.operands[0])
        reduction = s.one_of(*_REDUCTIONS) if "reduce" in s.modifiers else ""
        tma_ops.store(m.x, m.op, m.b, map_, m.pointer(s.operands[1], "shared"), places, reduction, im2col, rows)
        return
    shared, box, mbarrier, *more = s.operands
    target = m.pointer(shared, "shared")
    map_, places = _box(m, box)
    offsets: list[ir.Value] = []
    if im2col:
        packed = more.pop(0)
        if not isinstance(packed, Vector):
            raise Refused("offsets of pixels are a vector")
        offsets = [m.bits(part, 16) for part in packed.parts]
    mask = m.bits(more[0], 16) if "multicast::cluster" in s.modifiers else None
    signalled = m.pointer(mbarrier, "shared")
    group = 2 if "cta_group::2" in s.modifiers else 1
    tma_ops.load(m.x, m.op, m.b, map_, target, signalled, places, offsets, mask, gathers=rows, cta_group=group)


@INSTRUCTIONS.expands("tensormap")
def _tensormap(m: Machine, s: Statement) -> None:
    if "cp_fenceproxy" in s.modifiers:
        tma_ops.publish(m.x, m.op, m.b, m.pointer(s.operands[0], "global"), m.pointer(s.operands[1], "shared"))
        return
    field = s.one_of(*FIELDS)
    if "replace" not in s.modifiers or not field:
        raise Refused("this change of a tensor map")
    ordinal = s.operands[1] if len(s.operands) == 3 else Immediate(0)
    if not isinstance(ordinal, Immediate):
        raise Refused("an ordinal that is no number")
    value = m.bits(s.operands[-1], 64 if field in ("global_address", "global_stride") else 32)
    map_ = m.pointer(s.operands[0], s.starts("shared", "global"))
    tma_ops.replace(m.x, m.op, m.b, map_, field, int(ordinal.value), value)
