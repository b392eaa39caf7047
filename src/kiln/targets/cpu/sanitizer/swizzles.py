"""Tiles of shared memory that are written through one swizzle and read through another.

Such a read is ordered and inside its tile, and brings the element of another place. Programs that are traced for the sanitizer say
of each tensor in shared memory through which swizzle it sees its memory (`cute.through`). For each few bytes the detector remembers
where they would lie without the swizzle they were written through; a read that puts them elsewhere, while the element that belongs
there lies at another place and has another value, is a finding. A tile that is filled with one value may be filled through any
view. Accesses that are made through no tensor, bulk copies, atomics and writes of one value to all of a vector say nothing about
a place.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ....mlir import ir
from .native import Code, Value
from .registry import CELL, call, exported, state_of
from .state import RULE, Cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...lowering.builder import Builder

UNKNOWN = -1
"""In place of a swizzle: the bytes are written, and where they lie without it is not known."""
_BITS = 6
_NEAR = 1024
"""Bytes that a swizzle moves an element by at most, as far as it is looked for."""
_ANY_VALUE = {"vector.broadcast", "vector.splat"}
_TAKING = {
    "vector.extract", "vector.extract_strided_slice", "vector.shape_cast", "vector.bitcast", "llvm.bitcast", "arith.bitcast",
    "arith.extui", "builtin.unrealized_conversion_cast",
}  # fmt: skip
"""Operations that take elements of their first operand, and nothing else."""
_CONSTANT = {"arith.constant", "llvm.mlir.constant", "llvm.mlir.zero"}


@dataclasses.dataclass(frozen=True)
class Swizzled:
    """What a tensor in shared memory is seen through."""

    name: str
    """As the program has it; empty for a plain layout."""
    code: int
    """Bits, base and shift, counted in bytes, in `_BITS` bits each."""
    base: ir.Value | None
    """The address that offsets are counted from; None: addresses themselves are swizzled."""


def any_in(func: ir.Operation) -> bool:
    """Whether a kernel has a swizzled tensor in shared memory."""
    found = False

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal found
        if op.name == "cute.through" and op.attributes["swizzle_name"].value:  # pyright: ignore[reportAttributeAccessIssue]
            found = True
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    func.walk(visit)
    return found


def swizzled(op: ir.Operation, pointer: ir.Value) -> Swizzled | None:
    """What a `cute.through` says of a pointer; None for a swizzle that moves bits upwards."""
    text = op.attributes["swizzle"].value  # pyright: ignore[reportAttributeAccessIssue]
    numbers = [int(n) for n in text.split(",")] if text else []
    if any(n < 0 for n in numbers):
        return None
    code = sum(n << _BITS * k for k, n in enumerate(numbers))
    absolute = op.attributes["absolute"].value  # pyright: ignore[reportAttributeAccessIssue]
    name = op.attributes["swizzle_name"].value  # pyright: ignore[reportAttributeAccessIssue]
    return Swizzled(name, code, None if absolute else pointer)


def is_uniform(value: ir.Value | None) -> bool:
    """Whether a write of a value puts the same into all of its elements: it does not matter which goes where."""
    if value is None or isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    if op.name in _CONSTANT:
        return not isinstance(value.type, ir.VectorType) or ir.DenseElementsAttr(op.attributes["value"]).is_splat
    return op.name in _ANY_VALUE or (op.name in _TAKING and is_uniform(op.operands[0]))


def look(
    b: Builder, tell: Callable[..., Any], address: ir.Value, bytes_: int | ir.Value, seen: Swizzled | None, write: bool,
    site: int,
) -> None:  # fmt: skip
    """After an access to shared memory: compare, or remember, where its bytes lie without the swizzle."""
    if seen is not None or write:
        base = b.i64(0) if seen is None or seen.base is None else seen.base
        tell("tile", address, bytes_, base, UNKNOWN if seen is None else seen.code, int(write), site)


def _mark(plain: Value) -> Value:
    """What is remembered of an address without its swizzle; not 0."""
    return (plain.narrow() & 0x7FFF_FFFF) + 1


@exported([64, 64, 64], 32)
def brings_another(c: Code, rank: Value, cell: Value, plain: Value) -> Value:
    """Whether what was written as the element of address `plain` lies somewhere, with another value than a cell has."""
    st = state_of(c)
    start, shift, cells = st.arena + rank * st.chunk, st.shift.wide(), st.cells_per_block.wide()
    equal, other = c.variable(0, 32), c.variable(0, 32)
    first = ((plain - start) >> shift) - (c.i64(_NEAR) >> shift)
    with c.loop((c.i64(2 * _NEAR) >> shift) + 1) as i:
        there = first + i
        with c.when(there < cells):  # unsigned: not before the first one, either
            with c.when(c.load(st.tiles + (rank * cells + there) * 4, 32) == _mark(plain)):
                differs = c.variable(0, 32)
                with c.loop(c.i64(1) << shift) as byte:
                    with c.when(
                        c.load(start + (there << shift) + byte, 8) != c.load(start + (cell << shift) + byte, 8)
                    ):
                        differs.set(1)
                equal.set(equal.get() | (differs.get() ^ 1))
                other.set(other.get() | differs.get())
    return other.get() & (equal.get() ^ 1)


@exported([64, 32, 64, 32, 32, 32])
def tile(c: Code, address: Value, bytes_: Value, base: Value, code: Value, writes: Value, site: Value) -> None:
    """An access through a swizzle of addresses relative to `base`."""
    st = state_of(c)
    inside = address - st.arena
    rank, offset = inside // st.chunk, inside % st.chunk
    shared = (address >= st.arena) & (address < st.arena_end) & (offset + bytes_.wide() <= st.smem.wide())
    with c.when((st.active != 0) & shared & (bytes_ != 0)):
        with c.when(st.tiles == 0):
            st.tiles = call(c, "alloc", st.cells_bytes // (CELL // 4))
        field = (1 << _BITS) - 1
        bits, low, shift = (((code >> _BITS * k) & field).wide() for k in range(3))
        mask = ((c.i64(1) << bits) - 1) << low
        shift_cell = st.shift.wide()
        first, last = offset >> shift_cell, (offset + bytes_.wide() - 1) >> shift_cell
        with c.loop(last + 1, first) as i:
            cell = rank * st.cells_per_block.wide() + i
            at = st.arena + rank * st.chunk + (i << shift_cell) - base
            plain = base + (at ^ ((at >> shift) & mask))
            mark = _mark(plain)
            entry = st.tiles + cell * 4
            with c.when(writes != 0):
                c.store((code == UNKNOWN).choose(c.i32(0), mark), entry, 32)
            with c.otherwise():
                before = c.load(entry, 32)
                with c.when((before != 0) & (before != mark)):
                    with c.when(call(c, "brings_another", rank, i, plain) != 0):
                        writer = c.struct(st.cells + cell * CELL, Cell)
                        call(
                            c, "report", RULE["swizzle"], site, writer.w_site, writer.w_group,
                            writer.w_tid & 0x7FFF_FFFF, address, bytes_, 0, 0,
                        )  # fmt: skip
