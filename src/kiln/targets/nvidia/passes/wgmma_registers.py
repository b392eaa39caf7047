"""Registers that asynchronous products use: when code may touch them, and how.

A product of a warp group reads and writes registers after it was issued. In the dialect these are arrays of a thread's own memory; LLVM
makes values of them, and knows nothing of registers: it would compute with sums above the `wgmma_wait` that completes them, and
what a product starts with below the `wgmma_fence` that orders it. So

- after a wait the arrays are held whose products it completes,
- before a fence those that were written and that products behind it read, or, if all that happened before a loop with the fence, before the
  loop: in the loop they may be in flight. (Sums that products begin anew are not read: scores that became weights need not be carried on.)

(`cute_nvgpu.hold_registers`). Which arrays these are is found by following the groups of products through the function. Accesses to
vectors of the arrays become accesses to single registers: else LLVM would keep the whole array as one vector, and take it apart and
put it together for every product.

Sums that nothing but products write are registers with names (`REGISTERS`), which LLVM does not know of: there is nothing to carry through
loops, and what holds the array copies them to it. So are sums that a kernel clears, or scales as vectors: that is done to the registers
themselves, and who reads them copies them. (Where a kernel writes anything else, copies of both directions would cost registers. Where it scales
single registers, each would be a piece of PTX, which LLVM leaves where it is: loops that compute something meanwhile become slower.)

Products that follow each other are marked (`WITH_NEXT`): they become one piece of inline PTX, whose registers everyone from here to ptxas
handles once instead of once for each.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....dialects import cute, nvgpu
from ....dialects.definition import constant
from ....dialects.nvgpu.wgmma import FIRST, REGISTERS, WITH_NEXT
from ....mlir import context, find, ir
from ...lowering.builder import constant_value, int_type
from ..device_builder import DeviceBuilder, f32

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

_WGMMA, _FENCE, _COMMIT, _WAIT = (f"cute_nvgpu.wgmma{end}" for end in ("", "_fence", "_commit", "_wait"))
_ALIASES = frozenset(("cute.ptr_add", "cute.cast_ptr", "cute.view", "cute.iter", "cute.cast_memref", "cute.through"))
_BETWEEN = _ALIASES | {"cute_nvgpu.matrix_descriptor"}
"""Operations that may stand between products of a run, besides those of `arith`."""
_TILES = 16
"""Operands in shared memory of a run, at most: where they begin is known before the first product, and is to fit into uniform registers."""
_NEVER = 9
"""The age, in groups, of products that are complete or were never issued: waits leave at most 7 groups."""


@dataclasses.dataclass(eq=False)
class _Array:
    """Registers that products use: memory that one `cute.alloc_rmem` makes."""

    alloc: ir.Operation
    accesses: list[ir.Operation]
    """Loads and stores."""

    @property
    def count(self) -> int:
        return self.alloc.attributes["count"].value  # pyright: ignore[reportAttributeAccessIssue]


def order_registers(module: ir.Module, kernels: Container[str] = ()) -> None:
    """Hold registers around fences and waits of products. Those of kernels may have names: other functions are inlined, more than once perhaps."""
    products: dict[ir.Operation, list[ir.Operation]] = {}
    for op in find(module.operation, (_WGMMA,)):
        products.setdefault(_function(op), []).append(op)
    for function, found in products.items():
        name: Any = function.attributes["sym_name"]
        _Function(function, found).run(name.value in kernels)
        _mark_runs(found)


def _function(op: ir.Operation) -> ir.Operation:
    while op.name != "func.func":
        op = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
    return op


class _Function:
    """A function with products."""

    def __init__(self, function: ir.Operation, products: list[ir.Operation]) -> None:
        self._function = function
        self._entry = function.regions[0].blocks[0]
        self._products = products
        self._constants: dict[tuple[ir.Type, int], ir.Value] = {}
        self._arrays: list[_Array] = []
        self._of: dict[ir.Operation, list[_Array]] = {}
        """The arrays that a product adds to, or that an operation writes."""
        self._left: dict[ir.Operation, list[_Array]] = {}
        """The arrays that are a product's left operand."""
        for alloc in self._allocations(products):
            self._enter(alloc)
        for op in products:
            if op not in self._of:
                raise report_at(
                    op.location, DSLNotImplemented, "the sums of this product are not in registers that are known here",
                    hint="make them with cute.make_rmem_tensor (or make_fragment_C) in the kernel that multiplies",
                )  # fmt: skip

    def run(self, may_name: bool) -> None:
        """Insert what holds registers, and make accesses those of registers."""
        events = _events(self._function, self._of)
        held = _Flow(self._of, _Needs(self._of, self._left).follow(events)).follow(events)
        named = self._name() if may_name else {}
        for array in self._arrays:
            if array.alloc.block != self._entry:  # what holds them may be outside
                array.alloc.move_before(self._entry.operations[0])
        copied = self._known.keys() & named.keys()
        for (op, is_before), arrays in held.items():
            point = ir.InsertionPoint(op) if is_before else ir.InsertionPoint.after(op)
            for array in sorted(set(arrays) - copied, key=self._arrays.index):  # the same code each time
                nvgpu.wgmma.hold_registers(
                    array.alloc.results[0], array.count, named.get(array, ""), point, op.location
                )
        for array in self._arrays:
            if array in copied:
                for op, registers in self._known[array].items():
                    _copy(op, named[array], registers)
            else:
                for op in array.accesses:
                    self._split(op)

    # -- arrays ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _known(self) -> dict[_Array, dict[ir.Operation, range]]:
        """Arrays that a kernel clears or scales, and the registers that their loads and stores are of: those that may have names, as far as single stores tell."""
        left = set(itertools.chain(*self._left.values()))
        found: dict[_Array, dict[ir.Operation, range]] = {}
        for array in self._arrays:
            stores = [op for op in array.accesses if op.name == "cute.store"]
            if array in left or not stores or not all(map(_may_be_done, stores)):
                continue
            places: dict[ir.Value, int | None] = {}
            registers = {op: _registers(op, places) for op in array.accesses}
            known = {op: x for op, x in registers.items() if x is not None}
            if len(known) == len(registers):
                found[array] = known
        return found

    def _name(self) -> dict[_Array, str]:
        """Give names to the registers of sums, tell the products, declare them, and make stores what is done to them."""
        sums = {op: _Sums.of(op) for op in self._products}
        writes = _writes(self._known)
        arrays = {array.alloc: array for array in self._arrays}
        other = {
            array
            for op, written in self._of.items()
            if (sums[op].first if op.name == _WGMMA else writes.get(op)) is None
            for array in written
        }
        named: dict[_Array, str] = {}
        for op, (memory, first, _) in sums.items():
            array = arrays.get(memory)
            if array is None or first is None or array in other:
                continue
            if array not in named:
                named[array] = name = f"kiln_sums_{len(named)}_"
                words = array.count * cute.element_bits(cute.info(array.alloc.results[0].type).element) // 32
                b = DeviceBuilder(ir.InsertionPoint.at_block_begin(self._entry), array.alloc.location)
                b.asm(f".reg .b32 {name}<{words}>;", "")
            op.attributes[REGISTERS] = ir.StringAttr.get(named[array], context())
            op.attributes[FIRST] = ir.IntegerAttr.get(int_type(32), first // 32)
        for run in self._runs({op: what for op, what in writes.items() if self._of[op][0] in named}):
            (array,) = self._of[run[0]]
            _write(run[0], named[array], [writes[op] for op in run])
            for op in run:
                del self._known[array][op]
                _erase(op)
        for array, loads in self._known.items():
            unread = [op for op in loads if array in named and not list(op.results[0].uses)]
            for op in unread:
                del loads[op]
                op.erase()
        return named

    def _runs(self, writes: dict[ir.Operation, _Write]) -> list[list[ir.Operation]]:
        """Stores to an array in a block that clear, or scale by the same vector, and between which nothing happens to registers."""
        found: list[list[ir.Operation]] = []
        before = None
        for op in find(self._function, ("cute.load", "cute.store", _WGMMA, _WAIT)):
            if op not in writes:
                before = None
                continue
            here = self._of[op], op.block, writes[op].factors
            if here == before:
                found[-1].append(op)
            else:
                found.append([op])
            before = here
        return found

    def _allocations(self, products: Iterable[ir.Operation]) -> Iterable[ir.Operation]:
        """What makes the registers of products; all of the function where they cannot be followed to it."""
        found: dict[ir.Operation, None] = {}
        for op in products:
            for pointer in list(op.operands)[:2]:
                if not cute.is_ptr(pointer.type):
                    continue
                while not isinstance(owner := pointer.owner, ir.Block) and owner.operation.name in _ALIASES:
                    pointer = owner.operation.operands[0]
                if isinstance(owner, ir.Block) or owner.operation.name != "cute.alloc_rmem":
                    return find(self._function, ("cute.alloc_rmem",))
                found[owner.operation] = None
        return found

    def _enter(self, alloc: ir.Operation) -> None:
        array = _Array(alloc, [])
        is_used = False
        writers: list[ir.Operation] = []
        for op, number in _uses(alloc.results[0]):
            name = op.name
            if name == _WGMMA:
                is_used = True
                if number == 0:
                    writers.append(op)
                else:
                    self._left.setdefault(op, []).append(array)
            elif name == "cute.load":
                array.accesses.append(op)
            else:  # a store, or who knows what
                writers.append(op)
                if name == "cute.store":
                    array.accesses.append(op)
        if is_used:
            self._arrays.append(array)
            for op in writers:
                self._of.setdefault(op, []).append(array)

    # -- accesses ----------------------------------------------------------------------------------------------------

    def _split(self, op: ir.Operation) -> None:
        """Make of an access to a vector accesses to its registers."""
        is_store = op.name == "cute.store"
        value, memory, offset = op.operands if is_store else (op.results[0], *op.operands)
        type_, first = value.type, constant_value(offset)
        if not isinstance(type_, ir.VectorType) or len(type_.shape) != 1 or first is None:
            return
        element, count = type_.element_type, type_.shape[0]
        bits = cute.element_bits(cute.info(memory.type).element)
        each = max(1, 32 // bits)
        if bits < 8 or count % each or first % each or count == each:
            return
        part, alignment = _part_type(element, each), each * bits // 8
        offsets = [self._constant(offset.type, first + n) for n in range(0, count, each)]
        if is_store:
            take = "vector.extract" if each == 1 else "vector.extract_strided_slice"
            point, location = ir.InsertionPoint(op), op.location
            values = [
                ir.Operation.create(take, (part,), (value,), _place(n, each), None, 0, location, point).result
                for n in range(0, count, each)
            ]
            cute.stores_before(op, offsets, values, alignment)
        else:
            parts = cute.loads_before(op, offsets, part, alignment)
            value.replace_all_uses_with(_joined(op, type_, parts))
        op.erase()

    def _constant(self, type_: ir.Type, number: int) -> ir.Value:
        found = self._constants.get((type_, number))
        if found is None:
            found = self._constants[type_, number] = ir.Operation.create(
                "arith.constant", (type_,), (), {"value": ir.IntegerAttr.get(type_, number)}, None, 0, self._function.location,
                ir.InsertionPoint.at_block_begin(self._entry),
            ).result  # fmt: skip
        return found


def _registers(op: ir.Operation, places: dict[ir.Value, int | None]) -> range | None:
    """The registers that a load or store is of, if that is known and each holds one element; how far pointers lead into an allocation is kept in `places`."""
    value, memory, offset = op.operands if op.name == "cute.store" else (op.results[0], *op.operands)
    if memory not in places:
        is_whole = cute.info(memory.type).element in (f32(), int_type(32))
        places[memory] = _place_of(memory)[1] if is_whole else None
    bits, first = places[memory], constant_value(offset)
    type_: Any = value.type
    if bits is None or bits % 32 or first is None:
        return None
    if isinstance(type_, ir.VectorType) and len(type_.shape) != 1:
        return None
    first += bits // 32
    return range(first, first + (type_.shape[0] if isinstance(type_, ir.VectorType) else 1))


def _copy(op: ir.Operation, name: str, registers: range) -> None:
    """Make of a load copies of registers with a name. It stays where it is: LLVM leaves pieces of PTX in their order."""
    value = op.results[0]
    type_: Any = value.type
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    letter = "f" if isinstance(element, ir.F32Type) else "r"
    b = DeviceBuilder(ir.InsertionPoint(op), op.location)
    parts: list[ir.Value] = []
    for first in range(0, len(registers), 4):
        some = registers[first : first + 4]
        code = " ".join(f"mov.b32 ${n}, {name}{number};" for n, number in enumerate(some))
        parts += b.asm(code, ",".join([f"={letter}"] * len(some)), [], [element] * len(some))
    value.replace_all_uses_with(_joined(op, type_, parts) if isinstance(type_, ir.VectorType) else parts[0])
    op.erase()


class _Write(NamedTuple):
    """What a store does to registers: it clears them, or multiplies them by elements of a vector from one on."""

    registers: range
    factors: ir.Value | None = None
    first: int = 0


def _writes(arrays: dict[_Array, dict[ir.Operation, range]]) -> dict[ir.Operation, _Write]:
    """What stores do to registers, those that do what can be done to registers with names."""
    found: dict[ir.Operation, _Write] = {}
    accesses: dict[ir.Operation, tuple[_Array, range]] = {}
    blocks: dict[ir.Block, None] = {}
    zeros: dict[ir.Operation, bool] = {}
    for array, known in arrays.items():
        for op, registers in known.items():
            accesses[op] = array, registers
            by = _made(op.operands[0]) if op.name == "cute.store" else None
            if by is None:
                continue
            if by.name == "arith.mulf":
                blocks[op.block] = None
                continue
            if by not in zeros:
                zeros[by] = _is_zero(by)
            if zeros[by]:
                found[op] = _Write(registers)
    for block in blocks:
        found |= _scalings(block, accesses)
    return found


def _scalings(block: ir.Block, accesses: dict[ir.Operation, tuple[_Array, range]]) -> dict[ir.Operation, _Write]:
    """The stores of a block of what was read of the same registers, times factors."""
    found: dict[ir.Operation, _Write] = {}
    read: dict[ir.Value, list[tuple[_Array, int, int]]] = {}
    """Which registers vectors have been read of: the array, the number, and how often it was written before."""
    written: collections.Counter[tuple[_Array, int]] = collections.Counter()
    for view in block.operations:
        op = view.operation
        name = op.name
        if name == "vector.shuffle" and all(x in read for x in op.operands):
            both = read[op.operands[0]] + read[op.operands[1]]
            mask: Any = op.attributes["mask"]
            read[op.result] = [both[n] for n in mask]
        elif name in ("cute.load", "cute.store") and op in accesses:
            array, registers = accesses[op]
            places = [(array, n, written[array, n]) for n in registers]
            if name == "cute.load":
                read[op.result] = places
                continue
            value, first = _part(op.operands[0])
            by = _made(value)
            if by is not None and by.name == "arith.mulf" and by.result == value:
                before, factors = by.operands
                if read.get(before, [])[first : first + len(places)] == places:
                    found[op] = _Write(registers, factors, first)
            written.update((array, n) for n in registers)
        elif name == _WGMMA or len(op.regions):
            read.clear()
    return found


def _made(value: ir.Value) -> ir.Operation | None:
    """What has made a value, or the one that it is a part of."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name not in _PARTS:
            return op
        value = op.operands[0]
    return None


def _part(value: ir.Value) -> tuple[ir.Value, int]:
    """The vector that another is a part of, and from which element on; itself where it is none."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "vector.extract_strided_slice":
        return value, 0
    offsets: Any = op.attributes["offsets"]
    return op.operands[0], offsets[0].value


def _write(op: ir.Operation, name: str, run: list[_Write]) -> None:
    """Do to registers with a name what stores of a run do."""
    b = DeviceBuilder(ir.InsertionPoint(op), op.location)
    factors = run[0].factors
    if factors is None:
        b.asm(" ".join(f"mov.b32 {name}{n}, 0;" for what in run for n in what.registers), "")
        return
    by_factor: dict[tuple[ir.Value, int], list[int]] = {}
    """Registers, by what they are multiplied by: an element of a vector, or a number."""
    for what in run:
        for n, register in enumerate(what.registers, what.first):
            by_factor.setdefault(_element(factors, n), []).append(register)
    given = [_extracted(op, *factor) for factor in by_factor]
    products = [f"mul.f32 {name}{r}, {name}{r}, ${n};" for n, rs in enumerate(by_factor.values()) for r in rs]
    b.asm(" ".join(products), ",".join("f" * len(given)), given)


def _extracted(before: ir.Operation, value: ir.Value, element: int) -> ir.Value:
    """An element of a vector; the value, if it is none."""
    type_: Any = value.type
    if not isinstance(type_, ir.VectorType):
        return value
    point, place = ir.InsertionPoint(before), _place(element, 1)
    return ir.Operation.create(
        "vector.extract", (type_.element_type,), (value,), place, None, 0, before.location, point
    ).result


def _element(vector: ir.Value, number: int) -> tuple[ir.Value, int]:
    """The vector that an element of another was taken from, and which it is; 0 where that is no vector."""
    op = None if isinstance(vector.owner, ir.Block) else vector.owner.operation
    if op is None or op.name not in ("vector.broadcast", "vector.shuffle"):
        return vector, number
    if op.name == "vector.broadcast":
        return op.operands[0], 0
    mask: Any = op.attributes["mask"]
    type_: Any = op.operands[0].type
    second, element = divmod(mask[number], type_.shape[0])
    return op.operands[second], element


_PARTS = ("vector.extract_strided_slice", "vector.extract", "vector.broadcast")
_FOR_STORES = ("arith.mulf", "vector.extract_strided_slice", "vector.shuffle")


def _erase(op: ir.Operation) -> None:
    """Erase an operation, and what was computed for it alone."""
    made = [value.owner for value in op.operands]
    op.erase()
    for owner in made:
        if not isinstance(owner, ir.Block) and owner.operation.name in _FOR_STORES:
            if not any(list(result.uses) for result in owner.operation.results):
                _erase(owner.operation)


def _may_be_done(store: ir.Operation) -> bool:
    """Whether what is written may be zeros, or a vector of what was there times factors."""
    by = _made(store.operands[0])
    if by is None or by.name != "arith.mulf":
        return by is not None and by.name == "arith.constant"
    return isinstance(by.result.type, ir.VectorType)


def _is_zero(op: ir.Operation) -> bool:
    """Whether a constant is zeros, none of them negative."""
    given: Any = op.attributes["value"]
    if isinstance(given, ir.DenseElementsAttr):
        if not given.is_splat:
            return False
        given = given.get_splat_value()
    return given.value == 0 and math.copysign(1.0, given.value) > 0.0


@functools.lru_cache(maxsize=64)
def _part_type(element: ir.Type, each: int) -> ir.Type:
    return element if each == 1 else ir.VectorType.get([each], element, loc=ir.Location.unknown(context()))


@functools.lru_cache(maxsize=1024)
def _place(first: int, count: int) -> dict[str, ir.Attribute]:
    """Which element, or elements, to take out of a vector, or where to put them."""
    if count == 1:
        return {"static_position": ir.DenseI64ArrayAttr.get([first], context())}
    numbers = (("offsets", first), ("sizes", count), ("strides", 1))
    return {name: ir.Attribute.parse(f"[{number} : i64]", context()) for name, number in numbers}


def _joined(op: ir.Operation, type_: ir.Type, parts: list[ir.Value]) -> ir.Value:
    """A vector of its registers, made before an operation."""
    point, location = ir.InsertionPoint(op), op.location
    if not isinstance(parts[0].type, ir.VectorType):
        return ir.Operation.create("vector.from_elements", (type_,), parts, None, None, 0, location, point).result
    each = parts[0].type.shape[0]
    poison = {"value": ir.Attribute.parse("#ub.poison", context())}
    made = ir.Operation.create("ub.poison", (type_,), (), poison, None, 0, location, point).result
    for number, part in enumerate(parts):
        given = {name: _place(number * each, each)[name] for name in ("offsets", "strides")}
        made = ir.Operation.create(
            "vector.insert_strided_slice", (type_,), (part, made), given, None, 0, location, point
        ).result
    return made


def _uses(pointer: ir.Value) -> Iterator[tuple[ir.Operation, int]]:
    """Operations that use a pointer, or one made of it, and which of their operands it is."""
    todo, seen = [pointer], {pointer}
    while todo:
        for use in todo.pop().uses:
            op, number = use.owner.operation, use.operand_number
            found = list(op.results) if op.name in _ALIASES else _carried(op, number)
            if found is None:
                yield op, number
                continue
            todo += [value for value in found if value not in seen]
            seen.update(found)


def _carried(op: ir.Operation, number: int) -> list[ir.Value] | None:
    """The values that an operand of control flow becomes; None if it is none of that."""
    name = op.name
    if name == "scf.for":
        return [op.regions[0].blocks[0].arguments[number - 2], op.results[number - 3]]
    if name == "scf.while":
        return [op.regions[0].blocks[0].arguments[number]]
    if name == "scf.condition":
        loop = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
        return [loop.regions[1].blocks[0].arguments[number - 1], loop.results[number - 1]]
    if name != "scf.yield":
        return None
    parent: Any = op.parent
    parent = parent.operation
    if parent.name == "scf.for":
        return [parent.regions[0].blocks[0].arguments[number + 1], parent.results[number]]
    return [parent.regions[0].blocks[0].arguments[number] if parent.name == "scf.while" else parent.results[number]]


# --- runs of products ------------------------------------------------------------------------------------------------


def _mark_runs(products: Iterable[ir.Operation]) -> None:
    """Mark each product that the next one follows: nothing but addresses is computed between them, their sums are the same or apart, and they are
    not too many."""
    mark = ir.UnitAttr.get(context())
    for block in {op.block: None for op in products}:
        before: ir.Operation | None = None
        run: dict[_Sums, ir.Value] = {}
        tiles = 0
        for view in block.operations:
            op = view.operation
            name = op.name
            if name == _WGMMA:
                sums, own = _Sums.of(op), 1 if cute.is_ptr(op.operands[1].type) else 2
                tiles += own
                if before is not None and tiles <= _TILES and all(sums == x or sums.are_apart(x) for x in run):
                    before.attributes[WITH_NEXT] = mark
                else:
                    run.clear()
                    tiles = own
                op.operands[0] = run.setdefault(sums, op.operands[0])  # registers are found by their pointer
                before = op
            elif not name.startswith("arith.") and name not in _BETWEEN:
                before = None


class _Sums(NamedTuple):
    """Where the sums of a product are: an allocation, or the pointer where that is not known, and bits."""

    memory: Any
    first: int | None
    count: int

    def are_apart(self, other: _Sums) -> bool:
        """Whether the two have no register in common, for sure."""
        if self.first is None or other.first is None:
            return False
        return (
            self.memory != other.memory
            or self.first + self.count <= other.first
            or other.first + other.count <= self.first
        )

    def are_all_of(self, arrays: list[_Array]) -> bool:
        """Whether these are all registers of the arrays."""
        return all(
            self.first == 0 and self.count == x.count * cute.element_bits(cute.info(x.alloc.results[0].type).element)
            for x in arrays
        )

    @staticmethod
    def of(product: ir.Operation) -> _Sums:
        pointer = product.operands[0]
        count: int = product.attributes["n"].value // 2 * cute.element_bits(cute.info(pointer.type).element)  # pyright: ignore[reportAttributeAccessIssue]
        return _Sums(*_place_of(pointer), count)


def _place_of(pointer: ir.Value) -> tuple[Any, int | None]:
    """The allocation that a pointer leads to, and how many bits into it; the pointer and None where that is not known."""
    at, first = pointer, 0
    while not isinstance(at.owner, ir.Block):
        op = at.owner.operation
        if op.name == "cute.alloc_rmem":
            return op, first
        step = constant_value(op.operands[1]) if op.name == "cute.ptr_add" else 0
        if op.name not in _ALIASES or step is None:
            break
        first += step and step * cute.element_bits(cute.info(at.type).element)
        at = op.operands[0]
    return pointer, None


# --- groups of products ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class _Region:
    """What happens in an operation with regions, or to registers; `bodies` of an operation without regions is empty."""

    op: ir.Operation
    bodies: list[list[_Region]]


def _events(function: ir.Operation, writers: dict[ir.Operation, Any]) -> list[_Region]:
    """Operations about products, and those that write their registers, in the regions that they stand in."""
    bodies: dict[ir.Block, list[_Region]] = {}

    def body_of(block: ir.Block) -> list[_Region]:
        found = bodies.get(block)
        if found is None:
            found = bodies[block] = []
            owner = block.owner.operation
            if owner != function:
                region = regions.get(owner)
                if region is None:
                    region = regions[owner] = _Region(owner, [[] for _ in owner.regions])
                    body_of(owner.block).append(region)
                number = next(n for n, r in enumerate(owner.regions) if len(r.blocks) and r.blocks[0] == block)
                region.bodies[number] = found
        return found

    regions: dict[ir.Operation, _Region] = {}
    other = {op.name for op in writers} - {_WGMMA}
    for op in find(function, (_WGMMA, _FENCE, _COMMIT, _WAIT, *other)):
        if op in writers or op.name in (_FENCE, _COMMIT, _WAIT):
            body_of(op.block).append(_Region(op, []))
    return bodies.get(function.regions[0].blocks[0], [])


_Read = dict[Any, list[_Array]]
"""What products read: sums, or an array that is a left operand, with the arrays of each."""


class _Needs:
    """Follows the function backwards, for what products read behind each fence and before the next."""

    def __init__(self, sums: dict[ir.Operation, list[_Array]], left: dict[ir.Operation, list[_Array]]) -> None:
        self._sums, self._left = sums, left
        self._found: dict[ir.Operation, set[_Array]] = {}

    def follow(self, body: list[_Region]) -> dict[ir.Operation, set[_Array]]:
        """The arrays that products behind a fence read, and those of all fences of a loop."""
        self._body(body, {})
        return self._found

    def _body(self, body: list[_Region], read: _Read) -> _Read:
        """What products read from the beginning of a body on, given what they read from its end on."""
        for event in reversed(body):
            read = self._event(event, read)
        return read

    def _event(self, event: _Region, read: _Read) -> _Read:
        op = event.op
        if op.name == _FENCE:
            self._found.setdefault(op, set()).update(*read.values())
            return {}
        if op.name == _WGMMA:
            sums = _Sums.of(op)
            others = {place: arrays for place, arrays in read.items() if place != sums}
            begins = constant(op.operands[3]) == 0 and sums.are_all_of(self._sums[op])
            added = {} if begins else {sums: self._sums[op]}
            return others | added | {array: [array] for array in self._left.get(op, ())}
        if op.name == "scf.if":
            ways = [self._body(body, read) for body in event.bodies]
            return ways[0] | ways[1]
        if not event.bodies:
            return read
        while True:  # a turn of the loop may follow each
            before = read
            for body in reversed(event.bodies):
                read = before | self._body(body, read)
            if read == before:
                break
        fences = [self._found[fence] for fence in _fences(event.bodies)]
        if fences:
            self._found[op] = set().union(*fences)
        return read


@dataclasses.dataclass
class _State:
    """What is known of arrays at a place of the function, whichever way it was reached."""

    written: set[_Array]
    """Those that may have been written since a fence, or since they were held."""
    ages: dict[_Array, tuple[int, int]]
    """How many groups were begun since the latest product of an array, at least and at most; those that are not here have none in flight."""

    def copy(self) -> _State:
        return _State(set(self.written), dict(self.ages))

    def join(self, other: _State) -> _State:
        ages: dict[_Array, tuple[int, int]] = {}
        for array in {**self.ages, **other.ages}:
            ours, theirs = (state.ages.get(array, (_NEVER, _NEVER)) for state in (self, other))
            ages[array] = (min(ours[0], theirs[0]), max(ours[1], theirs[1]))
        return _State(self.written | other.written, ages)


class _Flow:
    """Follows the groups of products."""

    def __init__(self, arrays: dict[ir.Operation, list[_Array]], needs: dict[ir.Operation, set[_Array]]) -> None:
        self._of, self._needs = arrays, needs
        self._held: dict[tuple[ir.Operation, bool], dict[_Array, None]] = {}

    def follow(self, body: list[_Region]) -> dict[tuple[ir.Operation, bool], dict[_Array, None]]:
        """The arrays to hold before (True) and after operations."""
        self._body(body, _State(set(), {}))
        return self._held

    def _hold(self, op: ir.Operation, is_before: bool, arrays: Iterable[_Array]) -> None:
        for array in arrays:
            self._held.setdefault((op, is_before), {})[array] = None

    def _hold_written(self, op: ir.Operation, state: _State) -> None:
        """Before a fence, or a loop with fences, hold what was written and is read behind it."""
        held = state.written & self._needs.get(op, set())
        self._hold(op, True, held)
        state.written -= held

    def _body(self, body: list[_Region], state: _State) -> _State:
        for event in body:
            state = self._event(event, state)
        return state

    def _event(self, event: _Region, state: _State) -> _State:
        op = event.op
        name = op.name
        if event.bodies:
            return self._regions(event, state)
        if name == _WGMMA:
            state.ages.update(dict.fromkeys(self._of[op], (0, 0)))
            state.written.difference_update(
                self._of[op]
            )  # begun anew, if they were not held: from here on they are in flight
        elif name == _FENCE:
            self._hold_written(op, state)
        elif name == _COMMIT:
            state.ages = {array: (_older(least), _older(most)) for array, (least, most) in state.ages.items()}
        elif name == _WAIT:
            left = op.attributes["count"].value
            complete = [array for array, (_, most) in state.ages.items() if most > left or not left]
            self._hold(op, False, complete)
            for array in complete:
                least = state.ages[array][0]
                if left and least <= left:  # there is a way on which some are in flight still
                    state.ages[array] = (least, _NEVER)
                else:
                    del state.ages[array]
        else:
            state.written.update(self._of[op])
        return state

    def _regions(self, event: _Region, state: _State) -> _State:
        if event.op.name == "scf.if":
            outcomes = [self._body(body, state.copy()) for body in event.bodies]
            return outcomes[0].join(outcomes[1])
        self._hold_written(event.op, state)
        while True:
            if event.op.name == "scf.while":
                left = self._body(event.bodies[0], state.copy())
                after = self._body(event.bodies[1], left.copy())
            else:
                left = state
                after = self._body(event.bodies[0], state.copy())
            joined = state.join(after)
            if joined == state:
                return left.copy()
            state = joined


def _older(age: int) -> int:
    return min(age + 1, _NEVER)


def _fences(bodies: list[list[_Region]]) -> Iterator[ir.Operation]:
    for event in itertools.chain(*bodies):
        if event.op.name == _FENCE:
            yield event.op
        yield from _fences(event.bodies)
