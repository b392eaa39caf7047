"""A warning for WGMMAs that overwrite an accumulator before anything has read it: ACCUMULATE was never set."""

from __future__ import annotations

from typing import Any

from ...analysis import effects, pointers
from ...base_dsl.bindings import ir
from ...base_dsl.compiler import source_span
from ...base_dsl.diagnostics import warn_at
from ...dialects.definition import constant
from ...dialects.nvgpu.wgmma import Wgmma


def warn(function: ir.Operation) -> None:
    """Warn where each WGMMA on an accumulator overwrites the result of the one before, which nobody has read."""
    by_root: dict[ir.Value, list[Wgmma]] = {}
    for op in Wgmma.all_in(function):
        by_root.setdefault(pointers.root(op.d), []).append(op)
    for root, ops in by_root.items():
        if all(_is_false(op.accumulate) for op in ops):
            lost = _lost(root, ops)
            if lost is not None:
                _warn(lost)


def _lost(root: ir.Value, ops: list[Wgmma]) -> Wgmma | None:
    """Return a WGMMA whose result the next one overwrites; None if each is read."""
    readers = _readers(root)
    for op in ops:
        loop = _loop_around(op.operation)
        if loop is not None and not _is_inside(root, loop) and not any(_is_below(r, loop) for r in readers):
            return op
    last: dict[tuple[Any, str], Wgmma] = {}
    for block in {op.operation.block for op in ops}:
        for inner in block.operations:
            op = Wgmma.of(inner.operation)
            if op is not None and pointers.root(op.d) == root:
                place = (block, _offset(op.d))
                if place in last:
                    return last[place]
                last[place] = op
            elif any(_is_below(reader, inner.operation) for reader in readers):
                last.clear()
    return None


def _warn(op: Wgmma) -> None:
    span, _ = source_span(op.operation.location)
    warn_at(
        span,
        "a WGMMA overwrites its accumulator, and the next one overwrites it again before it is read: ACCUMULATE is False "
        "each time; call tiled_mma.set(warpgroup.Field.ACCUMULATE, True) after the first WGMMA",
    )


def _offset(pointer: ir.Value) -> str:
    """Return a text that is the same for the same place behind a root."""
    parts: list[str] = []
    while (before := pointers.base(pointer)) is not None:
        for value in list(pointer.owner.operation.operands)[1:]:
            number = constant(value)
            parts.append(str(value if number is None else number))
        pointer = before
    return " ".join(parts)


def _readers(root: ir.Value) -> list[ir.Operation]:
    """Return what may read memory behind a root, except WGMMAs, which add to it."""
    users = [(op, number) for op, number in pointers.uses(root) if Wgmma.of(op) is None]
    return [op for op, n in users if not effects.writes(op.name, n) or effects.reads(op.name, n)]


def _is_false(value: ir.Value) -> bool:
    return constant(value) == 0


def _loop_around(op: ir.Operation) -> ir.Operation | None:
    while op.parent is not None and op.parent.operation.name != "func.func":
        op = op.parent.operation
        if op.name in ("scf.for", "scf.while"):
            return op
    return None


def _is_inside(value: ir.Value, around: ir.Operation) -> bool:
    owner = value.owner.owner if isinstance(value.owner, ir.Block) else value.owner
    return _is_below(owner.operation, around)


def _is_below(op: ir.Operation, around: ir.Operation) -> bool:
    """Return whether an operation is another one, or in a region of it."""
    inner: ir.Operation | None = op
    while inner is not None:
        if inner == around:
            return True
        inner = inner.parent.operation if inner.parent is not None else None
    return False
