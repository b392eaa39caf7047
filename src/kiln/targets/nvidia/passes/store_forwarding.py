"""Store forwarding: loads of a register array take the value of an earlier store in the same block.

Fragments of MMAs live in register arrays: each K step of a GEMM reads and writes all accumulators. LLVM would promote
them too, but only after each access was lowered, printed, parsed and optimized, which took a third of the compile time
of such a kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from ....analysis import pointers
from ....dialects import cute
from ....mlir import ir
from ...lowering.builder import constant_value
from ...lowering.vector_parts import element_of_vector, make_before, span, vector_of

_ALLOC = cute.AllocRmem.OPERATION_NAME
_STORE = cute.Store.OPERATION_NAME
ACCESSES = frozenset((_ALLOC, cute.Load.OPERATION_NAME, _STORE))
"""The operations that `forward_stores` wants to know of."""
_MOST_GATHERED = 4
"""The most elements of a vector that is assembled from several stores."""
_MOST_BLOCKS = 16
"""The most blocks whose stores to one array are tracked."""


@dataclasses.dataclass(eq=False)
class _Memory:
    """A register array, in units that no access splits."""

    unit: int = 0
    """Bytes."""
    is_followed: bool = True
    """Whether all its accesses are known."""
    block: ir.Block | None = None
    """The block of the last access."""
    blocks: dict[ir.Block, tuple[dict[int, _Source], dict[int, _Access]]] = dataclasses.field(default_factory=dict)
    """Known values of units and last writes to them, by block; enclosing blocks come first."""
    read: set[int] = dataclasses.field(default_factory=set)
    """The units that are read."""

    def enter(self, block: ir.Block) -> tuple[dict[int, _Source], dict[int, _Access]]:
        """Return what a block knows; blocks inside it are done."""
        if self.block is not None and block == self.block:
            return self.blocks[self.block]
        self.block = block
        if block not in self.blocks:
            if len(self.blocks) == _MOST_BLOCKS:
                self.blocks.clear()
            self.blocks[block] = ({}, {})
        while next(reversed(self.blocks)) != block:
            self.blocks.popitem()
        return self.blocks[block]


@dataclasses.dataclass(eq=False)
class _Access:
    number: int
    op: ir.Operation
    memory: _Memory
    start: int
    size: int
    """Bytes."""
    is_write: bool
    units: range = range(0)
    left: int = 0
    """Units of a write that were not written again."""
    is_read: bool = False
    """Whether some of it was read before it was written again."""


@dataclasses.dataclass(eq=False)
class _Source:
    """A value that was written: bytes of `root` from `start` on lie in memory from `place` on."""

    root: ir.Value
    start: int
    place: int


def forward_stores(operations: Mapping[int, tuple[ir.Operation, str]]) -> set[int]:
    """Replace loads by stored values, remove dead stores, and return the numbers of erased operations.

    `operations` are those of a function whose names are in `ACCESSES`, with their names, in order. Only memory whose
    addresses are all known is considered; knowledge of a block ends with it, and where a nested block writes.
    """
    places: dict[ir.Value, tuple[_Memory, int]] = {}
    for op, name in operations.values():
        if name == _ALLOC:
            places.update(_places(op.results[0]))
    gone: set[int] = set()
    if not places:
        return gone
    dead: list[_Access] = []
    writes: list[_Access] = []
    for access in _accesses(operations, places):
        memory = access.memory
        op = access.op
        if not memory.is_followed:
            continue
        access.units = range(access.start // memory.unit, (access.start + access.size) // memory.unit)
        contents, last = memory.enter(op.block)
        if access.is_write:
            writes.append(access)
            _write(access, contents, last, dead)
        elif _replace(access, contents):
            gone.add(access.number)
        else:
            _read(access, contents)
    dead += [a for a in writes if a.left and a.memory.read.isdisjoint(a.units)]
    for access in dead:
        gone.add(access.number)
        value = cute.Store(access.op).value
        access.op.erase()
        erase_unused(value)
    return gone


def _places(pointer: ir.Value) -> dict[ir.Value, tuple[_Memory, int]]:
    """Return the pointers to a register array, with the bytes of an element; none if its address escapes."""
    memory = _Memory()
    places: dict[ir.Value, tuple[_Memory, int]] = {}
    todo = [pointer]
    while todo:
        value = todo.pop()
        step = _bytes(cute.info(value.type).element)
        if not step:
            return {}
        places[value] = (memory, step)
        for use in value.uses:
            op = use.owner.operation
            if op.name in pointers.SAME and len(op.operands) == 1:
                todo.append(op.results[0])
            elif not cute.access_through(op, use.operand_number):
                return {}
    return places


def _accesses(
    operations: Mapping[int, tuple[ir.Operation, str]], places: Mapping[ir.Value, tuple[_Memory, int]]
) -> list[_Access]:
    """Return the accesses through pointers."""
    accesses: list[_Access] = []
    constants: dict[ir.Value, int | None] = {}
    for number, (op, name) in operations.items():
        if name == _ALLOC:
            continue
        access = cute.Store(op) if name == _STORE else cute.Load(op)
        memory, step = places.get(access.memory, (None, 0))
        if memory is None:
            continue
        offset = access.offset
        if offset in constants:
            place = constants[offset]
        else:
            place = constants[offset] = constant_value(offset)
        size = _vector_bytes(access.value.type)
        if place is None or not size:
            memory.is_followed = False
            continue
        memory.unit = math.gcd(memory.unit, place * step, size)
        accesses.append(_Access(number, op, memory, place * step, size, isinstance(access, cute.Store)))
    return accesses


@functools.lru_cache(maxsize=256)
def _bytes(element: ir.Type) -> int:
    """Bytes of an element in memory; 0 if it is not a number of 8, 16, 32 or 64 bits there."""
    if not isinstance(element, (ir.IntegerType, ir.FloatType)):
        return 0
    bits = cute.element_bits(element)
    return bits // 8 if bits in (8, 16, 32, 64) else 0


@functools.lru_cache(maxsize=1024)
def _vector_bytes(type_: ir.Type) -> int:
    """Bytes of an element or a vector of them."""
    if isinstance(type_, ir.VectorType):
        return math.prod(type_.shape) * _bytes(type_.element_type)
    return _bytes(type_)


# --- reads and writes ------------------------------------------------------------------------------------------------


def _read(access: _Access, contents: dict[int, _Source]) -> None:
    """Record a load that stays: its value is known from then on."""
    units = access.units
    access.memory.read.update(units)
    for _, last in access.memory.blocks.values():
        for unit in units:
            if (write := last.get(unit)) is not None:
                write.is_read = True
    contents.update(dict.fromkeys(units, _Source(access.op.results[0], 0, access.start)))


def _write(access: _Access, contents: dict[int, _Source], last: dict[int, _Access], dead: list[_Access]) -> None:
    units = access.units
    for other, _ in access.memory.blocks.values():
        if other is not contents:
            for unit in units:
                other.pop(unit, None)
    access.left = len(units)
    for unit in units:
        before = last.get(unit)
        if before is not None and not before.is_read:
            before.left -= 1
            if not before.left:
                dead.append(before)
        last[unit] = access
    root, start = _root(cute.Store(access.op).value)
    contents.update(dict.fromkeys(units, _Source(root, start, access.start)))


def _replace(access: _Access, contents: dict[int, _Source]) -> bool:
    """Replace a load by the stored value, and return whether all of it is known."""
    units = access.units
    source = contents.get(units[0])
    if source is None:
        return False
    op = access.op
    result = op.results[0]
    type_ = result.type
    if any(contents.get(unit) is not source for unit in units):
        part = _gathered(access, contents)
        if part is None:
            return False
    else:
        part = _part(op, source.root, source.start + access.start - source.place, access.size)
        if part is None:
            return False
    if part.type != type_:
        if not (_can_be_recast(part.type) and _can_be_recast(type_)):
            return False
        for use in list(result.uses):
            user = use.owner.operation
            if user.name == "vector.bitcast" and user.results[0].type == part.type:
                user.results[0].replace_all_uses_with(part)
                user.erase()
        if any(True for _ in result.uses):
            part = make_before(op, "vector.bitcast", type_, (part,))
    result.replace_all_uses_with(part)
    op.erase()
    return True


def _gathered(access: _Access, contents: dict[int, _Source]) -> ir.Value | None:
    """Return a vector whose elements were written by several writes."""
    type_ = access.op.results[0].type
    if not isinstance(type_, ir.VectorType) or len(type_.shape) != 1 or type_.shape[0] > _MOST_GATHERED:
        return None
    element: Any = type_.element_type
    size = _bytes(element)
    unit = access.memory.unit
    parts: list[tuple[ir.Value, int]] = []
    for place in range(access.start, access.start + access.size, size):
        source = contents.get(place // unit)
        if source is None or any(contents.get(k) is not source for k in range(place // unit, (place + size) // unit)):
            return None
        kind = source.root.type
        start = source.start + place - source.place
        if (kind.element_type if isinstance(kind, ir.VectorType) and len(kind.shape) == 1 else kind) != element:
            return None
        if start % size:
            return None
        parts.append((source.root, start // size))
    elements = [element_of_vector(access.op, root, number) for root, number in parts]
    return make_before(access.op, "vector.from_elements", type_, elements)


def _part(op: ir.Operation, root: ir.Value, start: int, size: int) -> ir.Value | None:
    """Return some bytes of a value as its elements, extracted before an operation; None if they do not fit."""
    type_ = root.type
    if not start and size == _vector_bytes(type_):
        return root
    if not _can_be_recast(type_) or not isinstance(type_, ir.VectorType):
        return None
    element: Any = type_.element_type
    first, rest = divmod(start, _bytes(element))
    count, more = divmod(size, _bytes(element))
    if rest or more:
        return None
    if count == 1 and op.results[0].type == element:
        return element_of_vector(op, root, first)
    vector = vector_of(element, count)
    return make_before(op, "vector.extract_strided_slice", vector, (root,), span(first, count))


@functools.lru_cache(maxsize=1024)
def _can_be_recast(type_: ir.Type) -> bool:
    """Return whether a type is a vector of one dimension whose elements are whole bytes also in registers."""
    if not isinstance(type_, ir.VectorType) or len(type_.shape) != 1:
        return False
    size = _bytes(type_.element_type)
    return size > 0 and type_.element_type.width == 8 * size


# --- parts of vectors ------------------------------------------------------------------------------------------------


def _root(value: ir.Value) -> tuple[ir.Value, int]:
    """Return the value that a value is a part of, and the byte where the part begins."""
    start = 0
    while (op := part_of(value)) is not None:
        source = op.operands[0]
        if not (_can_be_recast(source.type) and _can_be_recast(value.type)):
            break
        start += first_element(op) * _bytes(source.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
        value = source
    return value, start


def part_of(value: ir.Value) -> ir.Operation | None:
    """Return the operation that took a value out of another, or gave it another type; None if none did."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    name = op.name
    return op if name == "vector.bitcast" or name == "vector.extract_strided_slice" else None


def first_element(op: ir.Operation) -> int:
    """Return the element where a part begins, among those of the vector that `part_of` names."""
    return 0 if op.name == "vector.bitcast" else op.attributes["offsets"][0].value  # pyright: ignore


def erase_unused(value: ir.Value) -> None:
    """Erase the operations that took a value out of others, as far as nobody uses it."""
    while (op := part_of(value)) is not None and not any(True for _ in value.uses):
        value = op.operands[0]
        op.erase()
