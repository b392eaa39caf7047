"""Copies of boxes, and tensor maps that are edited."""

from __future__ import annotations

from ....mlir import ir
from ...lowering.expansion import Handlers
from ..ops import tma as tma_ops
from ..runtime.tensor_maps import FIELDS
from .machine import Machine, Refused
from .syntax import Address, Immediate, Operand, Vector

INSTRUCTIONS = Handlers()

_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _box(m: Machine, operand: Operand) -> tuple[ir.Value, list[ir.Value]]:
    """Return the map and the coordinates of `[map, {a, b}]`."""
    if not isinstance(operand, Address) or not isinstance(operand.base, Vector) or len(operand.base.parts) != 2:
        raise Refused("a box is written [map, {coordinates}]")
    map_, places = operand.base.parts
    parts = places.parts if isinstance(places, Vector) else (places,)
    return m.pointer(Address(map_), ""), [m.bits(part, 32) for part in parts]


def copy_box(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`."""
    if any(part.startswith(("tile::", "im2col::", "cta_group")) for part in modifiers):
        raise Refused("gathered tiles, wide columns of pixels and pairs of blocks")
    if "prefetch" in modifiers:
        return
    im2col = any(part.startswith("im2col") for part in modifiers)
    if "bulk_group" in modifiers:
        map_, places = _box(m, operands[0])
        reduction = next((part for part in modifiers if part in _REDUCTIONS), "") if "reduce" in modifiers else ""
        tma_ops.store(m.x, m.op, m.b, map_, m.pointer(operands[1], "shared"), places, reduction, im2col)
        return
    target, (map_, places), mbarrier = m.pointer(operands[0], "shared"), _box(m, operands[1]), operands[2]
    more = operands[3:]
    offsets: list[ir.Value] = []
    if im2col:
        packed = more.pop(0)
        if not isinstance(packed, Vector):
            raise Refused("offsets of pixels are a vector")
        offsets = [m.bits(part, 16) for part in packed.parts]
    mask = m.bits(more[0], 16) if "multicast::cluster" in modifiers else None
    tma_ops.load(m.x, m.op, m.b, map_, target, m.pointer(mbarrier, "shared"), places, offsets, mask)


def _space(modifiers: tuple[str, ...]) -> str:
    return next((part for part in modifiers if part.startswith(("shared", "global"))), "")


@INSTRUCTIONS.expands("tensormap")
def _tensormap(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    if "cp_fenceproxy" in modifiers:
        tma_ops.publish(m.x, m.op, m.b, m.pointer(operands[0], "global"), m.pointer(operands[1], "shared"))
        return
    field = next((part for part in modifiers if part in FIELDS), "")
    if "replace" not in modifiers or not field:
        raise Refused("this change of a tensor map")
    ordinal = operands[1] if len(operands) == 3 else Immediate(0)
    if not isinstance(ordinal, Immediate):
        raise Refused("an ordinal that is no number")
    value = m.bits(operands[-1], 64 if field in ("global_address", "global_stride") else 32)
    tma_ops.replace(m.x, m.op, m.b, m.pointer(operands[0], _space(modifiers)), field, int(ordinal.value), value)
