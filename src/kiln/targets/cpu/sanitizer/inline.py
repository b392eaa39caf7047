"""Inline checks of accesses, so that a kernel calls the detector only where something may be wrong.

An access to an argument that no thread writes is valid inside its bounds. In a kernel whose threads never synchronize,
one to a written argument is valid where no other thread has accessed the bytes (`independent_threads.py`).
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any

from ....mlir import ir
from ...lowering.builder import Builder, int_type
from .state import LoneCell, Object, State
from .state import state as memory

if TYPE_CHECKING:
    from ..expand import Expander, Expansion
    from .instrument import Instrumentation


@dataclasses.dataclass(frozen=True)
class AccessCheck:
    """A call of the detector that checks an access."""

    call: ir.Operation
    calls: tuple[ir.Operation, ...]
    """Operations that only the call needs, in order."""
    argument: int
    """The number of the kernel's argument; -1: not known."""
    bytes_: int
    alignment: int
    site: int
    write: bool
    noncoherent: bool = False
    """Whether the load may miss writes of the kernel, whoever wrote."""


def state_address(expansion: Expansion, b: Builder) -> ir.Value:
    """Return the address of the detector's state."""
    expansion.declare_variable(memory.symbol, int_type(64))
    return b.address_of(memory.symbol)


def state_field(expansion: Expansion, b: Builder, name: str) -> ir.Value:
    """Return the address of a field of the detector's state."""
    return b.byte_gep(state_address(expansion, b), _offset(State, name))


def object_field(expansion: Expansion, b: Builder, argument: int, name: str) -> ir.Value:
    """Return the address of a field of what the detector knows of an argument of the kernel."""
    place = _offset(State, "objects") + argument * ctypes.sizeof(Object)
    return b.byte_gep(state_address(expansion, b), place + _offset(Object, name))


def _offset(kind: type[ctypes.Structure], name: str) -> int:
    return getattr(kind, name).offset


def say_who(x: Expander) -> None:
    """Store the identity of the thread at the start of a kernel that no scheduler runs."""
    b = x.at_entry(x.function.operation.location)
    indices = x.function.indices
    thread = b.linear(indices["thread_idx"], indices["block_dim"])
    block = b.linear(indices["block_idx"], indices["grid_dim"])
    per_block = b.product(indices["block_dim"])
    number = b.binary("addi", b.binary("addi", thread, 1), b.binary("muli", block, per_block))
    state = state_address(x.module, b)
    for name, value in (("tid", thread), ("group", block), ("lone_thread", number)):
        b.store(value, b.byte_gep(state, _offset(State, name)))


def shorten(sanitizer: Instrumentation, x: Expander, checks: list[AccessCheck], written: set[int], lone: bool) -> None:
    """Replace the calls for accesses by inline checks that call the detector only on failure."""
    for check in checks:
        unchecked = check.argument < 0 or (check.noncoherent and check.argument in written and not sanitizer.plain)
        if not unchecked and (lone or sanitizer.plain or check.argument not in written):
            _shorten(sanitizer, x, check, check.argument in written)


def _shorten(sanitizer: Instrumentation, x: Expander, check: AccessCheck, written: bool) -> None:
    call = check.call
    i64 = int_type(64)
    i32 = int_type(32)
    b = Builder(ir.InsertionPoint(call), call.location)
    address = call.operands[0]
    state = state_address(x.module, b)
    place = _offset(State, "objects") + check.argument * ctypes.sizeof(Object)

    def field(name: str) -> ir.Value:
        return b.load(i64, b.byte_gep(state, place + _offset(Object, name)))

    end = b.binary("addi", address, check.bytes_)
    fine = [b.compare("uge", address, field("low")), b.compare("ule", end, field("high"))]
    if check.alignment > 1:
        low_bits = b.binary("andi", address, check.alignment - 1)
        fine.append(b.compare("eq", low_bits, 0))
    mine: list[tuple[ir.Value, ir.Value]] = []
    if not written and not sanitizer.plain:
        fine.append(b.compare("ne", field("quiet"), 0))
    elif written:
        fine.append(b.compare("eq", field("readonly"), 0))
    if written and "race" in sanitizer.kinds:
        shift = b.load(i32, b.byte_gep(state, _offset(State, "shift")))
        whole = b.binary("shli", b.i32(1), shift)
        fine.append(b.compare("eq", whole, check.bytes_))
        fine.append(b.compare("ne", field("bias"), 0))
        inside = _all(b, fine)
        number = b.binary("shrui", address, b.value("arith.extui", i64, (shift,)))
        at = b.binary("addi", field("bias"), b.binary("muli", number, b.i64(ctypes.sizeof(LoneCell))))
        # where there is no cell, look at memory that is there: the state itself
        here = b.value("llvm.ptrtoint", i64, (state,))
        cell = b.value("llvm.inttoptr", state.type, (b.select(inside, at, here),))
        me = b.load(i32, b.byte_gep(state, _offset(State, "lone_thread")))
        seen = {name: b.load(i32, b.byte_gep(cell, _offset(LoneCell, name))) for name in ("writer", "reader", "other")}
        fine = [inside]
        for name in ("writer", "reader"):
            nobody = b.compare("eq", seen[name], 0)
            fine.append(b.binary("ori", nobody, b.compare("eq", seen[name], me)))
        if check.write:
            fine.append(b.compare("eq", seen["other"], 0))
        kind = "writer" if check.write else "reader"
        mine = [
            (me, b.byte_gep(cell, _offset(LoneCell, kind))),
            (b.i32(check.site), b.byte_gep(cell, _offset(LoneCell, f"{kind}_site"))),
        ]
    _instead(b, check, _all(b, fine), address, mine)


def _all(b: Builder, conditions: list[ir.Value]) -> ir.Value:
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.binary("andi", result, condition)
    return result


def _instead(b: Builder, check: AccessCheck, fine: ir.Value, address: ir.Value, stores: list[Any]) -> None:
    """Make the stores if the access is fine, else the call; both give the address to use."""
    branch = b.op("scf.if", [int_type(64)], (fine,), None, 2)
    then, other = (region.blocks.append() for region in branch.regions)
    inside = Builder(ir.InsertionPoint(then), b.location)
    for value, place in stores:
        inside.store(value, place)
    inside.op("scf.yield", (), (address,))
    call = check.call
    call.results[0].replace_all_uses_with(branch.results[0])
    last = Builder(ir.InsertionPoint(other), b.location).op("scf.yield", (), (call.results[0],))
    for op in (*check.calls, call):
        op.move_before(last)
