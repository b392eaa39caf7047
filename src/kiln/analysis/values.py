"""Values that `scf` passes on: into regions, from one iteration to the next, and out of regions as results."""

from __future__ import annotations

from ..mlir import ir, terminator

_LOOP_OPERANDS = 3
"""The operands of `scf.for` before the values that it carries: its bounds and its step."""
_BRANCHES = ("scf.if", "scf.index_switch")


def bounds(loop: ir.Operation) -> list[ir.Value]:
    """Return the lower bound, the upper bound and the step of an `scf.for`."""
    return list(loop.operands)[:_LOOP_OPERANDS]


def initial_values(loop: ir.Operation) -> list[ir.Value]:
    """Return the values that an `scf.for` carries into its first iteration."""
    return list(loop.operands)[_LOOP_OPERANDS:]


def sources(value: ir.Value) -> list[ir.Value]:
    """Return the values that `scf` may pass to a value; the initial one of a loop comes first. Empty for all others."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _sources_of_argument(owner, ir.BlockArgument(value).arg_number)
    op = owner.operation
    name = op.name
    if name in _BRANCHES:
        number = ir.OpResult(value).result_number
        return [terminator(region.blocks[0]).operands[number] for region in op.regions]
    if name == "scf.for":
        number = ir.OpResult(value).result_number
        return [op.operands[_LOOP_OPERANDS + number], terminator(op.regions[0].blocks[0]).operands[number]]
    if name == "scf.while":
        return [terminator(op.regions[0].blocks[0]).operands[ir.OpResult(value).result_number + 1]]
    return []


def _sources_of_argument(block: ir.Block, number: int) -> list[ir.Value]:
    loop = block.owner.operation
    if loop.name == "scf.for" and number:
        return [loop.operands[_LOOP_OPERANDS + number - 1], terminator(block).operands[number - 1]]
    if loop.name == "scf.while":
        before = loop.regions[0].blocks[0]
        after = loop.regions[1].blocks[0]
        if block == after:
            return [terminator(before).operands[number + 1]]
        return [loop.operands[number], terminator(after).operands[number]]
    return []


def targets(op: ir.Operation, number: int) -> list[ir.Value]:
    """Return the values that `scf` may pass an operand to. Empty for other operations, bounds and conditions."""
    name = op.name
    if name == "scf.for":
        return _carried_by_for(op, number - _LOOP_OPERANDS) if number >= _LOOP_OPERANDS else []
    if name == "scf.while":
        return [op.regions[0].blocks[0].arguments[number]]
    if name == "scf.condition":
        loop = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
        return [loop.regions[1].blocks[0].arguments[number - 1], loop.results[number - 1]] if number else []
    if name != "scf.yield":
        return []
    around = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
    if around.name == "scf.for":
        return _carried_by_for(around, number)
    return [around.regions[0].blocks[0].arguments[number] if around.name == "scf.while" else around.results[number]]


def _carried_by_for(loop: ir.Operation, number: int) -> list[ir.Value]:
    """Return what a value that a loop carries is called inside and after it."""
    return [loop.regions[0].blocks[0].arguments[number + 1], loop.results[number]]
