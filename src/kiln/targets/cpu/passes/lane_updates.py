"""Updates of one word of shared memory by all lanes of a warp, such as `phase[stage] ^= 1`.

On a GPU the lanes load together and then store the same value together, as long as they are converged. Nothing promises
that, and the sanitizer reports a race; but public kernels count on it. Here lanes run one after another, so that each
would see the update of the one before it. A lane therefore lets the others run between its load and its store.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....analysis import effects
from ....dialects import cute
from ....mlir import ir, terminator

UPDATE = "kiln.lane_update"
"""The attribute of a store before which the other lanes run."""

_MOST_OPERATIONS = 16  # of the computation between load and store


def mark(operations: Iterable[ir.Operation]) -> None:
    """Mark the stores among a kernel's operations, not yet lowered, that end an update at an address that is the same
    for all lanes."""
    for op in operations:
        store = cute.Store.of(op)
        if store is None or not _is_shared(store.target) or not _is_uniform(store.target, store.offset):
            continue
        loads = _loads_before(store.value, op.block)
        if any(_is_shared(load.source) and _is_uniform(load.source, load.offset) for load in loads):
            op.attributes[UPDATE] = ir.UnitAttr.get()


def _is_shared(memory: ir.Value) -> bool:
    return cute.info(memory.type).space == "smem"


def _loads_before(value: ir.Value, block: ir.Block) -> list[cute.Load]:
    """Return the loads in a block that a value is computed from."""
    loads = list[cute.Load]()
    pending = [value]
    seen = 0
    while pending and seen < _MOST_OPERATIONS:
        owner = pending.pop().owner
        if isinstance(owner, ir.Block) or owner.operation.block != block:
            continue
        seen += 1
        load = cute.Load.of(owner.operation)
        if load is None:
            pending.extend(owner.operation.operands)
        else:
            loads.append(load)
    return loads


def _is_uniform(*values: ir.Value) -> bool:
    """Return whether values are known to be the same for all lanes of a warp."""
    pending = list(values)
    seen = set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        op = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
        if op.name == "func.func":  # an argument of the kernel
            continue
        if not effects.is_same_in(op.name, "warp") and not op.name.startswith(("arith.", "scf.for")):
            return False
        pending.extend(op.operands)
        if op.name == "scf.for":
            pending.extend(terminator(op.regions[0].blocks[0]).operands)
    return True
