"""tcgen05: allocation of tensor memory, MMAs, copies, loads, stores, waits, commits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ....dialects.nvgpu.tcgen05 import BLOCKS, MOST_SCALE_D
from ....dialects.nvgpu.tensor_memory import CP_SHAPES, LD_SHAPES, ld_registers, repeats
from ....mlir import ir
from ....ptx.syntax import Address, Immediate, Operand, Statement, Vector
from ...lowering.builder import parsed_type
from ...lowering.expansion import Handlers
from ..ops import tcgen05
from ..runtime import tensor_memory, umma
from .machine import Machine, Refused

INSTRUCTIONS = Handlers()


@INSTRUCTIONS.expands("tcgen05")
def _tcgen05(m: Machine, s: Statement) -> None:
    name, _, kind = s.modifiers[0].partition("::")
    if name == "wait" and kind in ("ld", "st"):
        tcgen05.wait(m.x, m.op, m.b, kind)
    elif name == "fence" and kind in ("before_thread_sync", "after_thread_sync"):
        m.x.kernel_only(m.op)
    elif not kind and name in _FORMS:
        _FORMS[name](m, s)
    else:
        raise Refused("this tcgen05 instruction")


def _group(s: Statement) -> int:
    group = s.one_of("cta_group::1", "cta_group::2")
    if not group:
        raise Refused("it names no cta_group")
    return int(group[-1])


def _address(m: Machine, operand: Operand) -> ir.Value:
    """Return the address in tensor memory that `[base + offset]` is."""
    if not isinstance(operand, Address):
        raise Refused(f"{operand} where an address of tensor memory is expected")
    base = m.bits(operand.base, 32)
    return m.b.binary("addi", base, operand.offset) if operand.offset else base


def _number(operand: Operand, what: str) -> int:
    if not isinstance(operand, Immediate):
        raise Refused(f"{what} that is no number")
    return int(operand.value)


# --- allocation ------------------------------------------------------------------------------------------------------


def _alloc(m: Machine, s: Statement) -> None:
    if "exclusive" in s.modifiers:
        raise Refused("an exclusive allocation, of columns without alignment")
    place, columns = s.operands
    pointer = m.pointer(place, s.starts("shared"))
    tcgen05.alloc(m.x, m.op, m.b, pointer, m.bits(columns, 32), _group(s))


def _dealloc(m: Machine, s: Statement) -> None:
    address, columns = (m.bits(operand, 32) for operand in s.operands)
    tcgen05.dealloc(m.x, m.op, m.b, address, columns, _group(s))


def _relinquish(m: Machine, s: Statement) -> None:
    tcgen05.relinquish(m.x, m.op, m.b, _group(s))


# --- MMA, copy, shift, commit ----------------------------------------------------------------------------------------


def _mma(m: Machine, s: Statement) -> None:
    if "sp" in s.modifiers:
        raise Refused("a sparse MMA: its metadata are not emulated")
    kind = s.starts("kind::").removeprefix("kind::")
    ws = "ws" in s.modifiers
    group = _group(s)
    if kind not in umma.KINDS or (ws and group == 2):
        raise Refused("an MMA of this kind")
    d, a, b, idesc, *rest = s.operands
    flags = (umma.WS if ws else 0) | (umma.SHIFTS_A if "ashift" in s.modifiers else 0)
    in_tmem = isinstance(a, Address)
    if flags & umma.SHIFTS_A and not in_tmem:
        raise Refused("a shift of an A in shared memory")
    operands = {"d": _address(m, d), "a": _address(m, a) if in_tmem else m.bits(a, 64), "b": m.bits(b, 64)}
    operands["idesc"] = m.bits(idesc, 32)
    fields: dict[str, int] = {"cta_group": group}
    masks: Sequence[Operand] = ()
    if kind in BLOCKS:
        if ws:
            raise Refused("a weight-stationary MMA with scale factors")
        fields["vector"] = _block(s, kind)
        sfa, sfb, *rest = rest
        operands |= {"sfa": _address(m, sfa), "sfb": _address(m, sfb)}
    elif rest and isinstance(rest[0], Vector):
        masks = rest[0].parts
        rest = rest[1:]
        if len(masks) != 4 * group or ws:
            raise Refused(f"{len(masks)} masks of output lanes")
    accumulate, *more = rest
    if more and ws:
        operands["zero_columns"] = m.bits(more.pop(0), 64)
    elif more and kind not in BLOCKS and kind != "f8f6f4":
        fields["scale_input_d"] = _number(more.pop(0), "a scale of D")
        if not 0 <= fields["scale_input_d"] <= MOST_SCALE_D:
            raise Refused(f"a scale of D that is not 0 to {MOST_SCALE_D}")
    if more:
        raise Refused(f"{len(more)} further operands of an MMA")
    lanes = [m.bits(mask, 32) for mask in masks]
    tcgen05.issue_mma(m.x, m.op, m.b, kind, operands, m.i1(accumulate), flags, lanes, **fields)


def _block(s: Statement, kind: str) -> int:
    """Return how many elements share a scale factor."""
    named = s.one_of("block16", "block32", "scale_vec::1X", "scale_vec::2X", "scale_vec::4X")
    depth = 32 if kind == "mxf8f6f4" else 64
    if named.startswith("scale_vec"):
        block = depth // int(named[-2])
    else:
        block = int(named[-2:]) if named else 0 if kind == "mxf4nvf4" else 32
    if "block_scale" not in s.modifiers or block not in BLOCKS[kind]:
        raise Refused("scale factors of this size")
    return block


def _cp(m: Machine, s: Statement) -> None:
    spelled = ".".join(part for part in s.modifiers if re.match(r"\d+x\d+b$|warpx", part))
    format_ = s.one_of("b4x16_p64", "b6x16_p32") or None
    if spelled not in CP_SHAPES or ("b8x16" in s.modifiers) != (format_ is not None):
        raise Refused("a copy of this shape")
    place, descriptor = s.operands
    tcgen05.cp(m.x, m.op, m.b, _address(m, place), m.bits(descriptor, 64), spelled, format_, _group(s))


def _shift(m: Machine, s: Statement) -> None:
    if "down" not in s.modifiers:
        raise Refused("a shift that is not down")
    tcgen05.shift(m.x, m.op, m.b, _address(m, s.operands[0]), _group(s))


def _commit(m: Machine, s: Statement) -> None:
    place, *mask = s.operands
    if len(mask) != ("multicast::cluster" in s.modifiers):
        raise Refused("a commit with a mask of CTAs needs .multicast::cluster")
    pointer = m.pointer(place, s.starts("shared"))
    tcgen05.commit(m.x, m.op, m.b, pointer, [m.bits(each, 16) for each in mask], _group(s))


# --- registers -------------------------------------------------------------------------------------------------------


def _shape(s: Statement) -> tuple[str, int]:
    shape = s.one_of(*LD_SHAPES)
    repeat = next((int(part[1:]) for part in s.modifiers if re.fullmatch(r"x\d+", part)), 0)
    if not shape or repeat not in repeats(shape):
        raise Refused("registers of this shape")
    return shape, repeat


def _registers(operand: Operand, count: int) -> Sequence[Operand]:
    parts = operand.parts if isinstance(operand, Vector) else (operand,)
    if len(parts) != count:
        raise Refused(f"{len(parts)} registers where there are {count}")
    return parts


def _ld(m: Machine, s: Statement) -> None:
    shape, repeat = _shape(s)
    reduces = "red" in s.modifiers
    targets, *rest = s.operands
    parts = _registers(targets, ld_registers(shape, repeat))
    reduction = None
    if reduces:
        parts = (*parts, rest.pop(0))
        kind = s.one_of("min", "max")
        type_ = s.one_of("f32", "u32", "s32")
        if not kind or not type_ or repeat == 1 or shape not in ("32x32b", "16x32bx2"):
            raise Refused("a load with this reduction")
        modifiers = s.modifiers
        reduction = tensor_memory.reduction_of(kind, type_, "abs" in modifiers, "NaN" in modifiers)
    place, *split = rest
    columns = _split(shape, split)
    packs = "pack::16b" in s.modifiers
    found = tcgen05.load(m.x, m.op, m.b, _address(m, place), shape, repeat, columns, packs, reduction)
    for part, value in zip(parts, m.b.elements(found), strict=True):
        m.set(part, value)


def _split(shape: str, operands: Sequence[Operand]) -> int | None:
    """Return the columns between the halves of 16x32bx2."""
    if (shape == "16x32bx2") != (len(operands) == 1):
        raise Refused("16x32bx2 alone has a distance of its halves")
    return _number(operands[0], "a distance of halves") if operands else None


def _st(m: Machine, s: Statement) -> None:
    shape, repeat = _shape(s)
    place, *split, sources = s.operands
    parts = _registers(sources, ld_registers(shape, repeat))
    type_ = parsed_type(f"vector<{len(parts)}xi32>")
    value = m.b.value("vector.from_elements", type_, [m.bits(part, 32) for part in parts])
    unpacks = "unpack::16b" in s.modifiers
    tcgen05.store(m.x, m.op, m.b, _address(m, place), value, shape, repeat, _split(shape, split), unpacks)


_FORMS = {
    "alloc": _alloc,
    "dealloc": _dealloc,
    "relinquish_alloc_permit": _relinquish,
    "mma": _mma,
    "cp": _cp,
    "shift": _shift,
    "commit": _commit,
    "ld": _ld,
    "st": _st,
}
