"""FMA contraction: a multiplication and the addition that uses it become one instruction."""

from __future__ import annotations

from collections import Counter

from ....mlir import context, find, ir

_ADDITIONS = frozenset(("arith.addf", "arith.subf"))
_HANDED_ON = frozenset(("arith.negf", "vector.extract", "vector.shape_cast"))
"""Operations that pass on numbers, up to their sign."""


def allow_contraction(module: ir.Module) -> None:
    """Allow LLVM to contract a multiplication and the only addition that uses it into an FMA, as nvcc does.

    A multiplication that has other uses, or is stored, is rounded for all of them: LLVM would use the rounded result in
    some places and the exact one in others. Programs that compute with rounding errors count on one value: with `t = a * b`,
    the sum of `t - whole` and `fma(a, b, -t)` would have the error of `t` twice.

    Only operations of the program are marked: those that expansions add rely on their roundings.
    """
    contract, none = (ir.Attribute.parse(f"#arith.fastmath<{flag}>", context()) for flag in ("contract", "none"))
    operations = [(op, op.name) for op in find(module.operation, ("arith.mulf", *_ADDITIONS))]
    # LLVM makes one multiplication of equal ones
    times = Counter(frozenset(op.operands) for op, name in operations if name == "arith.mulf")
    for op, name in operations:
        if op.attributes["fastmath"] == none and (
            name in _ADDITIONS or (times[frozenset(op.operands)] == 1 and _is_in_one_sum(op.result, op.block))
        ):
            op.attributes["fastmath"] = contract


def _is_in_one_sum(value: ir.Value, block: ir.Block) -> bool:
    """Return whether a number, or each element of a vector, is used only by one sum of the block."""
    users = [use.owner.operation for use in value.uses]
    if len(users) != 1 and not _are_of_different_elements(users):
        return False
    for user in users:
        name = user.name
        handed_on = name in _HANDED_ON and _is_in_one_sum(user.results[0], block)
        if user.block != block or not (handed_on or name in _ADDITIONS):
            return False
    return True


def _are_of_different_elements(users: list[ir.Operation]) -> bool:
    if any(user.name != "vector.extract" or len(user.operands) != 1 for user in users):
        return False
    return len({str(user.attributes["static_position"]) for user in users}) == len(users)
