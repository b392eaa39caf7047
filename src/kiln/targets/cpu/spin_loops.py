"""What loops without a trip count do, for builds that record events: they wait for other CTAs, or take tiles from a counter.

It is decided before operations are expanded, and marked at them. A loop waits if it does nothing but look at memory, and only what it sees
decides when it ends.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator

from ...dialects import cute, nvgpu
from ...dialects.declaration import DECLARED, PURE, Alias
from ...dialects.definition import constant
from ...mlir import context, ir
from ..lowering.builder import int_type
from ..lowering.expansion import AnyOp
from .expand import in_open_loop

_HANDS_OUT = "kiln.hands_out"
_WAITS = "kiln.waits"
_WHILE = "scf.while"
_ASSEMBLY = "llvm.inline_asm"
_RMW = nvgpu.memory.AtomicRmw.OPERATION_NAME
_LLVM_LOOKS = ("llvm.load", "llvm.atomicrmw", "llvm.cmpxchg")
_LOOKS = {
    _ASSEMBLY,
    *_LLVM_LOOKS,
    *(
        each.OPERATION_NAME
        for each in (
            nvgpu.memory.OrderedLoad,
            nvgpu.memory.AtomicRmw,
            nvgpu.memory.AtomicCas,
            nvgpu.multicast.MultimemLoadReduce,
        )
    ),
}
"""Operations that see what others do."""
_ACTS = ("llvm.store", "llvm.call", "func.call", "llvm.intr.memcpy", "llvm.intr.memset", "llvm.intr.memmove")
_ASSEMBLY_ACTS = re.compile(r"(?<![\w.])(st|red|cp|mbarrier|bar|barrier|fence|multimem\.(st|red)|wgmma|tcgen05)\b")
_ASSEMBLY_ADDS = re.compile(r"(?<![\w.])atom\.[\w.:]*add\.[us]32\b(?![^;]*,\s*0\s*;)")
_FUNCTIONS = ("func.func", "llvm.func")
_MEETS = ("cta", "cluster", "warpgroup")


def mark(function: ir.Operation) -> None:
    """Mark the operations of a kernel that look at memory in a loop that waits, and those that take tiles."""
    unit = ir.UnitAttr.get(context())
    adds: list[tuple[ir.Operation, Hashable]] = []
    for op in _inside(function):
        if op.name in _LOOKS:
            loop = _loop_around(op)
            if (loop is None or _is_wait(loop)) and (op.name != _ASSEMBLY or not _acts(op)):
                op.attributes[_WAITS] = unit
            counter = _counter(op)
            if counter is not None:
                adds.append((op, counter))
    taken = {counter for op, counter in adds if in_open_loop(op) or op.name == _ASSEMBLY}
    for op, counter in adds:
        if counter in taken:
            op.attributes[_HANDS_OUT] = unit


def hands_out(op: ir.Operation) -> bool:
    """Return whether an atomic addition hands out tiles: one number after another, of a counter that stays the same.

    A loop that only looks whether a number has changed adds nothing.
    """
    return _HANDS_OUT in op.attributes


def waits(op: AnyOp) -> bool:
    """Return whether an operation looks at memory in a loop that waits for others."""
    return _WAITS in op.attributes and in_open_loop(op)


def _inside(operation: ir.Operation) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _inside(op.operation)


def _loop_around(op: ir.Operation) -> ir.Operation | None:
    """Return the innermost loop without a trip count around an operation."""
    parent = op.parent
    while parent is not None and parent.operation.name not in _FUNCTIONS:
        if parent.operation.name == _WHILE:
            return parent.operation
        parent = parent.operation.parent
    return None


def _acts(op: ir.Operation) -> bool:
    """Return whether an operation does more than compute and look at memory: it stores, copies, orders or meets others."""
    if op.name == _ASSEMBLY:
        return _ASSEMBLY_ACTS.search(op.attributes["asm_string"].value) is not None  # pyright: ignore[reportAttributeAccessIssue]
    if op.name in _LOOKS:
        return False
    kind = DECLARED.get(op.name)
    if kind is None:
        return op.name in _ACTS
    engines = kind.ENGINE or kind.COMMITS or kind.AWAITS
    return bool(kind.WRITES or engines or kind.MBARRIER or kind.ORDERS or kind.CONVERGED in _MEETS)


def _is_wait(loop: ir.Operation) -> bool:
    """Return whether a loop does nothing but look at memory, and goes on until that has changed."""
    if any(_acts(op) for op in _inside(loop)):
        return False
    before, after = (region.blocks[0] for region in loop.regions)
    condition = before.operations[len(before.operations) - 1].operation
    following = after.operations[len(after.operations) - 1].operation
    forwarded = list(condition.operands)[1:]

    def origins(value: ir.Value) -> tuple[set[int], bool]:
        """Return the carried values of which a value is made, and whether a look at memory is among its origins."""
        carried: set[int] = set()
        looks = False
        left = [value]
        seen: set[ir.Value] = set()
        while left:
            value = left.pop()
            if value in seen:
                continue
            seen.add(value)
            owner = value.owner
            if isinstance(owner, ir.Block):
                if owner in (before, after):
                    number = ir.BlockArgument(value).arg_number
                    if owner == before:
                        carried.add(number)
                    else:
                        left.append(forwarded[number])
                    continue
                op = owner.owner.operation
            else:
                op = owner.operation
            if not _is_in(op, loop):
                continue
            for each in (op, *_inside(op)):
                looks |= each.name in _LOOKS
                left += each.operands
        return carried, looks

    needed, sees = origins(condition.operands[0])
    sources: dict[int, tuple[set[int], bool]] = {}
    left = list(needed)
    while left:
        number = left.pop()
        if number not in sources:
            sources[number] = origins(following.operands[number])
            left += sources[number][0]
    seeing = {number for number, (_, looks) in sources.items() if looks}
    for _ in sources:
        seeing |= {number for number, (carried, _) in sources.items() if carried & seeing}
    # a value that goes on by itself ends the loop some time
    goes_on = (
        number not in seeing and carried and not _is_kept(following.operands[number], number, before, after, forwarded)
        for number, (carried, _) in sources.items()
    )
    return (sees or bool(seeing)) and not any(goes_on)


def _is_kept(value: ir.Value, number: int, before: ir.Block, after: ir.Block, forwarded: list[ir.Value]) -> bool:
    """Return whether the next value of what a loop carries is the old one."""
    while isinstance(value.owner, ir.Block) and value.owner == after:
        value = forwarded[ir.BlockArgument(value).arg_number]
    return isinstance(value.owner, ir.Block) and value.owner == before and ir.BlockArgument(value).arg_number == number


def _is_in(op: ir.Operation, loop: ir.Operation) -> bool:
    parent = op.parent
    while parent is not None:
        if parent.operation == loop:
            return True
        parent = parent.operation.parent
    return False


def _counter(op: ir.Operation) -> Hashable:
    """Return what tells a counter in global memory, if an operation adds to it, uses the number, and all CTAs use the same one."""
    if not any(True for result in op.results for _ in result.uses):
        return None
    if op.name == _ASSEMBLY:
        text = op.attributes["asm_string"].value  # pyright: ignore[reportAttributeAccessIssue]
        if not (in_open_loop(op) and _ASSEMBLY_ADDS.search(text)) or "shared" in text:
            return None
        keys = [_key(operand) for operand in op.operands]
        return None if None in keys or any(constant(operand) == 0 for operand in op.operands) else tuple(keys)
    if op.name != _RMW or op.attributes["kind"].value != "add":  # pyright: ignore[reportAttributeAccessIssue]
        return None
    pointer, value = op.operands
    if value.type != int_type(32) or constant(value) == 0 or cute.info(pointer.type).space == "smem":
        return None
    return _key(pointer)


def _key(value: ir.Value) -> Hashable:
    """Return what two values have in common that are made alike of what a kernel is given; None if others get another value."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return ir.BlockArgument(value).arg_number if owner.owner.operation.name in _FUNCTIONS else None
    op = owner.operation
    kind = DECLARED.get(op.name)
    if len(op.regions) or op.name in _LOOKS:
        return None
    if kind is not None and isinstance(kind.ALIAS, Alias) and kind.ALIAS.how == "same":
        return _key(op.operands[list(kind.OPERANDS).index(kind.ALIAS.operand)])
    if kind is not None and (kind.VARIES in ("thread", "warp", "cta") or not (kind.TRAITS == PURE or kind.READS)):
        return None
    keys = [_key(operand) for operand in op.operands]
    if None in keys:
        return None
    fields = tuple((name, str(field)) for name, field in op.attributes.items())
    return op.name, fields, ir.OpResult(value).result_number, *keys


def what(op: AnyOp) -> str:
    """Return what looks at memory, in words."""
    name = op.operation.name
    return "inline PTX" if name == _ASSEMBLY else name.partition(".")[2].replace("_", " ")
