"""Unrolling hints for LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....analysis import values
from ....base_dsl.compiler import source_span
from ....dialects import cute
from ....mlir import context, find, ir
from ...lowering.builder import constant_value, symbol
from ...lowering.loop_annotations import LOOP_ANNOTATION

if TYPE_CHECKING:
    from .kernel_outlining import LaunchFacts


_ASKED = "loop_annotation"
"""The attribute by which programs annotate loops that they build by hand."""


def _unroll(inside: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#llvm.loop_annotation<unroll = <{inside}>>", context())


def mark_loops(module: ir.Module, facts: Sequence[LaunchFacts] = ()) -> None:
    """Annotate each loop with how LLVM should unroll it: as the program asks, else only if its trip count is constant.

    Loops with a pipelining hint stay as they are: whether copies of later iterations may be issued early is not known
    here. So do those with a vectorization hint: a thread has no vectors. The facts of their kernel list them for a
    remark.

    A loop with a constant trip count whose counter indexes a register array is unrolled fully: only then can the array
    live in registers.
    """
    by_name = {fact.name: fact for fact in facts}
    for op in find(module.operation, ("scf.for", "scf.while")):
        if (hint := _unheeded(op)) and (fact := by_name.get(_function_name(op))):
            fact.unheeded.append((source_span(op.location)[0], hint))
        if _ASKED in op.attributes:
            op.attributes[LOOP_ANNOTATION] = op.attributes[_ASKED]
            del op.attributes[_ASKED]
            continue
        wish = _wish(op)
        if wish:
            op.attributes[LOOP_ANNOTATION] = _unroll(wish)


def _unheeded(loop: ir.Operation) -> str:
    """Return a loop's hint that has no effect; empty if there is none."""
    if cute.PREFETCH_STAGES in loop.attributes:
        return f"prefetch_stages={loop.attributes[cute.PREFETCH_STAGES].value}"
    asked = cute.VECTORIZE in loop.attributes and isinstance(loop.attributes[cute.VECTORIZE], ir.UnitAttr)
    return "vectorize=True" if asked else ""


def _function_name(op: ir.Operation) -> str:
    while op.name != "func.func":
        op = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
    return symbol(op)


_FULL = "disable = false, full = true"
_NEVER = "disable = true"


def _wish(op: ir.Operation) -> str:
    if op.name == "scf.while":
        return _NEVER
    if cute.UNROLL_FULL in op.attributes:
        return _FULL
    if cute.UNROLL in op.attributes:
        count = op.attributes[cute.UNROLL].value
        return f"disable = false, count = {count} : i32" if count > 1 else _NEVER
    bounds = [constant_value(v) for v in values.bounds(op)]
    if None in bounds:
        return _NEVER
    return _FULL if _indexes_memory(op) else ""


def _indexes_memory(loop: ir.Operation) -> bool:
    """Return whether an address of a thread's own memory in a loop depends on its counter."""
    reached = [loop.regions[0].blocks[0].arguments[0]]
    seen = set(reached)
    while reached:
        for use in reached.pop().uses:
            user = use.owner.operation
            if user.name == "llvm.getelementptr" and _is_local(user.operands[0]):
                return True
            if user.name.startswith(("arith.", "llvm.getelementptr")):
                new = [r for r in user.results if r not in seen]
                reached += new
                seen.update(new)
    return False


def _is_local(pointer: ir.Value) -> bool:
    """Return whether a pointer comes from an allocation of this function."""
    while True:
        owner = pointer.owner
        if isinstance(owner, ir.Block):
            return False
        name = owner.operation.name
        if name == "llvm.alloca":
            return True
        if name not in ("llvm.getelementptr", "llvm.extractvalue", "llvm.insertvalue", "llvm.addrspacecast"):
            return False
        operands = owner.operation.operands
        pointer = (
            operands[1]
            if name == "llvm.insertvalue" and len(operands) > 1 and _is_pointer(operands[1])
            else operands[0]
        )


def _is_pointer(value: ir.Value) -> bool:
    return str(value.type).startswith("!llvm.ptr")
