"""Finding operations by their names without calling Python for all the others: a walk costs 2 us for every operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...mlir import context, ir, rewrite

if TYPE_CHECKING:
    from collections.abc import Iterable


def find(root: ir.Operation, names: Iterable[str]) -> list[ir.Operation]:
    """The operations below one that have some names, in order; those inside an operation come before it."""
    found: list[ir.Operation] = []

    def visit(op: Any, _: Any) -> bool:
        found.append(op.operation)
        return True  # not rewritten

    patterns = rewrite.RewritePatternSet(context())
    for name in names:
        patterns.add(name, visit)
    rewrite.walk_and_apply_patterns(root, patterns.freeze())
    return found


def only_has(root: ir.Operation, dialects: Iterable[str], besides: Iterable[str], never: Iterable[str]) -> bool:
    """Whether all operations below one are of some dialects, or have names `besides`; and none is one of those `never`."""
    target = rewrite.ConversionTarget(context())
    for dialect in dialects:
        target.add_legal_dialect(dialect)
    for name in besides:
        target.add_legal_op(name)
    for name in never:
        target.add_illegal_op(name)
    try:
        rewrite.apply_full_conversion(root, target, rewrite.RewritePatternSet(context()).freeze())
    except ir.MLIRError:
        return False
    return True
