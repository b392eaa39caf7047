"""Fusion of consecutive matrix operations, so that lanes meet once for several of them.

Where `mma_sync`, `mma_block_scale`, `ldmatrix` and `stmatrix` follow each other with nothing between them but arithmetic and registers,
the lanes of a warp meet at the first. The one that goes on does the work of all, operation by operation: for each lane
what comes before the operation, then the operation itself, as if the warp were one thread. That is one of the orders in
which threads may run; a meeting of 32 lanes costs more than a small MMA.

A lane brings the address of its area: there lie the values that a run needs from outside, those that are needed past
the next operation, and those that are used after the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ....base_dsl.target import size_and_alignment
from ....dialects.nvgpu.mma import LdMatrix, MmaBlockScale, MmaSync, StMatrix
from ....mlir import ir
from ...lowering.builder import Builder, function, int_type, ptr_type
from ...lowering.memory import carrier_type, from_carrier, to_carrier
from ..expand import Expander
from ..ops import mma
from ..ops.warp import meet, once_for_warp
from ..runtime.record_access import leave
from ..runtime.records import PAYLOAD

OPERATIONS = {kind.OPERATION_NAME: kind for kind in (MmaSync, MmaBlockScale, LdMatrix, StMatrix)}
"""The operations that runs consist of."""

_BETWEEN = ("arith.", "math.", "vector.")
_BETWEEN_EXACTLY = {
    f"llvm.{name}"
    for name in (
        "getelementptr",
        "extractvalue",
        "insertvalue",
        "mlir.constant",
        "mlir.undef",
        "mlir.zero",
        "ptrtoint",
        "inttoptr",
        "bitcast",
    )
} | {"builtin.unrealized_conversion_cast"}


@dataclasses.dataclass
class _Run:
    """Operations of a block from one of `OPERATIONS` to another."""

    operations: list[ir.Operation]
    number: int
    offsets: dict[ir.Value, int] = dataclasses.field(default_factory=dict)
    """Where values lie in a lane's area."""
    size: int = 0


def fuse(x: Expander, operations: Sequence[ir.Operation]) -> list[int]:
    """Replace runs of operations of a kernel, and return the positions of those that are left."""
    candidates = set(operations)
    blocks = list(dict.fromkeys(op.block for op in operations))
    runs: list[_Run] = []
    for block in blocks:
        for group in _find(block, candidates):
            runs.append(_Run(group, len(runs)))
    if not runs:
        return list(range(len(operations)))
    fused = {op for run in runs for op in run.operations if op in candidates}
    left = [position for position, op in enumerate(operations) if op not in fused]
    for run in runs:
        _place(run)
    area = x.at_entry(x.function.operation.location).alloca(int_type(8), max(16, *(run.size for run in runs)), 16)
    for run in runs:
        # Again: what a run before this one made has been replaced by what it left in the area.
        run.offsets = {}
        run.size = 0
        _place(run)
        _replace(x, run, area)
    return left


def _find(block: ir.Block, group: set[ir.Operation]) -> list[list[ir.Operation]]:
    groups: list[list[ir.Operation]] = []
    current: list[ir.Operation] = []
    last = count = 0

    def close() -> None:
        if count > 1:
            groups.append(current[:last])

    for view in block.operations:
        op = view.operation
        if op in group:
            current.append(op)
            last = len(current)
            count = count + 1
        elif current and _may_come_between(op):
            current.append(op)
        elif current:
            close()
            current = []
            last = 0
            count = 0
    close()
    return groups


def _may_come_between(op: ir.Operation) -> bool:
    if len(op.regions):
        return False
    if op.name in ("llvm.load", "llvm.store"):
        return _is_register(op.operands[0 if op.name == "llvm.load" else 1]) and "volatile_" not in op.attributes
    return op.name.startswith(_BETWEEN) or op.name in _BETWEEN_EXACTLY


def _is_register(pointer: ir.Value) -> bool:
    """Return whether an address is in a register array of the thread."""
    while not isinstance(pointer.owner, ir.Block):
        op = pointer.owner.operation
        if op.name == "llvm.alloca":
            return True
        if op.name != "llvm.getelementptr":
            return False
        pointer = op.operands[0]
    return False


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name in (
        "arith.constant",
        "llvm.mlir.constant",
    )


# --- what lies where -------------------------------------------------------------------------------------------------


def _stages(run: _Run) -> list[tuple[list[ir.Operation], ir.Operation | None]]:
    """Return what a lane does before each operation, and the operation; at the end nothing follows."""
    stages: list[tuple[list[ir.Operation], ir.Operation | None]] = []
    before: list[ir.Operation] = []
    for op in run.operations:
        if op.name in OPERATIONS:
            stages.append((before, op))
            before = []
        else:
            before.append(op)
    return [*stages, (before, None)]


def _place(run: _Run) -> None:
    """Give a place to the values that come from outside, are needed in a later stage, or after the run."""
    stages: dict[ir.Value, int] = {}
    for stage, (before, op) in enumerate(_stages(run)):
        for one in before:
            stages.update((result, stage) for result in one.results)
        if op is not None:
            stages.update((result, stage + 1) for result in op.results)
    inside = set(run.operations)
    for stage, (before, op) in enumerate(_stages(run)):
        for one in (*before, *([op] if op is not None else [])):
            for operand in one.operands:
                if not _is_constant(operand) and stages.get(operand, -1) != stage:
                    _reserve(run, operand)
    for value in stages:
        if any(use.owner.operation not in inside for use in value.uses):
            _reserve(run, value)


def _reserve(run: _Run, value: ir.Value) -> None:
    if value in run.offsets:
        return
    size, alignment = size_and_alignment(carrier_type(value.type))
    offset = -(-run.size // alignment) * alignment
    run.offsets[value] = offset
    run.size = offset + size


def _alignment_of(type_: ir.Type) -> int:
    return min(16, size_and_alignment(carrier_type(type_))[1])


# --- code --------------------------------------------------------------------------------------------------------------


def _replace(x: Expander, run: _Run, area: ir.Value) -> None:
    first = run.operations[0]
    b = Builder(ir.InsertionPoint(first), first.location)
    inside = set(run.operations)
    results = [value for op in run.operations for value in op.results]
    own = set(results)
    for value, offset in run.offsets.items():
        if value not in own:
            b.store(to_carrier(b, value), b.byte_gep(area, offset), _alignment_of(value.type))
    what = first.name.partition(".")[2]
    meeting = meet(x, first, b, f"{what}.run.{x.function.name}.{run.number}", b.i32(-1), [(area, 0)])
    name = f"{x.function.name}.run.{run.number}"
    once_for_all = once_for_warp(x, first, b, what, meeting)
    arguments = [meeting.inside(once_for_all).at("payload"), meeting.inside(once_for_all).load("arrived")]
    _warp_function(x, run, name)
    once_for_all.call(name, [], arguments)
    leave(b, meeting)
    for value in results:
        outside = [use for use in value.uses if use.owner.operation not in inside]
        if not outside:
            continue
        loaded = _load(b, area, run.offsets[value], value.type)
        for use in outside:
            use.owner.operation.operands[use.operand_number] = loaded
    for op in reversed(run.operations):
        op.erase()


def _load(b: Builder, area: ir.Value, offset: int, type_: ir.Type) -> ir.Value:
    carried = b.load(carrier_type(type_), b.byte_gep(area, offset), _alignment_of(type_))
    return from_carrier(b, carried, type_)


def _warp_function(x: Expander, run: _Run, name: str) -> None:
    """Make `name(payload, lanes)`: a run of a whole warp."""
    location = run.operations[0].location
    function_ = function(x.module.module, name, [ptr_type(), int_type(32)], [])
    x.module.declared.add(name)
    x.module.outlined.add(name)
    entry = function_.regions[0].blocks[0]
    payload, lanes = entry.arguments
    b = Builder(ir.InsertionPoint(entry), location)
    slots = b.alloca(int_type(64), 32 * PAYLOAD // 8, 64)
    previous: ir.Operation | None = None
    for before, op in _stages(run):
        if before or previous is not None or op is not None:
            _lane_loop(b, run, payload, lanes, slots, previous, before, op)
        if op is not None:
            b.call(mma.warp_operation(x, OPERATIONS[op.name](op)), [], [slots])
        previous = op
    b.op("func.return", (), ())


def _lane_loop(
    b: Builder,
    run: _Run,
    payload: ir.Value,
    lanes: ir.Value,
    slots: ir.Value,
    previous: ir.Operation | None,
    before: list[ir.Operation],
    op: ir.Operation | None,
) -> None:
    """Emit a loop over lanes: each takes the result of the previous operation, computes, and stores the next
    operands."""
    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    here = each.binary("andi", each.binary("shrui", lanes, lane), 1)
    c = each.if_(each.compare("ne", here, 0))
    offset = c.binary("muli", lane, PAYLOAD)
    area = c.load(ptr_type(), c.byte_gep(payload, offset))
    slot = c.byte_gep(slots, offset)
    values: dict[ir.Value, ir.Value] = {}

    def get(value: ir.Value) -> ir.Value:
        if value not in values:
            if _is_constant(value):
                values[value] = value.owner.operation.clone(c.point).results[0]  # pyright: ignore[reportAttributeAccessIssue]
            else:
                values[value] = _load(c, area, run.offsets[value], value.type)
        return values[value]

    def keep(value: ir.Value) -> None:
        if value in run.offsets:
            c.store(to_carrier(c, values[value]), c.byte_gep(area, run.offsets[value]), _alignment_of(value.type))

    if previous is not None:
        for result in previous.results:
            values[result] = c.load(
                result.type, c.byte_gep(slot, mma.result_at(OPERATIONS[previous.name](previous))), 4
            )
            keep(result)
    for one in before:
        operands = [get(operand) for operand in one.operands]
        copy: Any = one.clone(c.point)
        for number, operand in enumerate(operands):
            copy.operands[number] = operand
        for result, new in zip(one.results, copy.results, strict=True):
            values[result] = new
            keep(result)
    if op is not None:
        for operand, place in mma.operands_at(OPERATIONS[op.name](op)):
            c.store(get(operand), c.byte_gep(slot, place), 8)
