"""Loads, stores and atomics of the LLVM dialect that programs write themselves, on `pointer.llvm_ptr`.

They stay as they are on the host, which has one address space. The sanitizer checks them, and a thread that spins on an
atomic one lets others run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....mlir import ir
from ...lowering.builder import Builder
from ...lowering.expansion import KEEP, Handlers
from ...lowering.memory import carrier_type
from ..sanitizer.hooks import hooks_of

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()

_ORDERS = ("", "relaxed", "relaxed", "", "acquire", "release", "acq_rel", "acq_rel")
"""PTX's names of memory orders by LLVM's numbers (not atomic, unordered, monotonic, -, acquire, ...)."""
_SCOPES = {"block": "cta", "workgroup": "cta", "cluster": "cluster", "device": "gpu", "agent": "gpu"}

_FLOAT_ADDITIONS = (11, 12)
"""LLVM's numbers of atomic additions and subtractions of floating point numbers."""


def _number(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else 0


def _modifiers(op: ir.Operation, ordering: str) -> str:
    """Order and scope as modifiers of PTX, or `nc`; empty for a plain access."""
    order = "volatile" if "volatile_" in op.attributes else _ORDERS[_number(op, ordering)]
    scope = ir.StringAttr(op.attributes["syncscope"]).value if "syncscope" in op.attributes else ""
    return f"{order}.{_SCOPES.get(scope, 'sys')}" if order else "nc" if "invariant" in op.attributes else ""


def _access(x: Expander, op: ir.Operation, b: Builder, at: int, type_: ir.Type, stores: bool) -> None:
    if not x.function.is_kernel or _is_own(op.operands[at]):
        return
    modifiers = _modifiers(op, "ordering")
    if modifiers and not stores:
        x.let_others_run(op, b, "loop around a load")
        if x.module.recorder is not None:
            x.module.recorder.looked(x, op, b, op.operands[at], type_)
    op.operands[at] = hooks_of(x, op).ordered(b, op.operands[at], carrier_type(type_), modifiers, stores)


def _is_own(pointer: ir.Value) -> bool:
    """Return whether a pointer leads into memory of the thread's call, which nobody else reaches."""
    while not isinstance(pointer.owner, ir.Block):
        op = pointer.owner.operation
        if op.name != "llvm.getelementptr":
            return op.name == "llvm.alloca"
        pointer = op.operands[0]
    return False


@HANDLERS.expands("llvm.load")
def _load(x: Expander, op: ir.Operation, b: Builder) -> object:
    _access(x, op, b, 0, op.results[0].type, stores=False)
    return KEEP


@HANDLERS.expands("llvm.store")
def _store(x: Expander, op: ir.Operation, b: Builder) -> object:
    _access(x, op, b, 1, op.operands[0].type, stores=True)
    return KEEP


def _update(x: Expander, op: ir.Operation, b: Builder, ordering: str) -> None:
    if x.function.is_kernel:
        x.let_others_run(op, b, "loop around an atomic operation")
        if x.module.recorder is not None:
            compare = op.operands[1] if op.name == "llvm.cmpxchg" else None
            x.module.recorder.looked(x, op, b, op.operands[0], op.operands[1].type, compare)
        x.function.adds_floats |= _number(op, "bin_op") in _FLOAT_ADDITIONS
        type_ = carrier_type(op.operands[1].type)
        op.operands[0] = hooks_of(x, op).atomic(b, op.operands[0], type_, _modifiers(op, ordering))


@HANDLERS.expands("llvm.atomicrmw")
def _atomicrmw(x: Expander, op: ir.Operation, b: Builder) -> object:
    _update(x, op, b, "ordering")
    return KEEP


@HANDLERS.expands("llvm.cmpxchg")
def _cmpxchg(x: Expander, op: ir.Operation, b: Builder) -> object:
    _update(x, op, b, "success_ordering")
    return KEEP
