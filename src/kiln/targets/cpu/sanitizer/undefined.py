"""Uninitialized values: register tensors read before they are written, variables that only one branch assigns.

This works on a kernel before it is expanded. Every byte of a register tensor has a shadow byte, nonzero until it is
written; a value that depends on such bytes has its own shadow, an i1 or a vector of them, computed beside it.
Predicated loads leave values unset on purpose, so reading one is no finding: a finding is an unset value that is
written to shared or global memory, is part of an address, or decides a branch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ....analysis import effects, pointers
from ....analysis.values import sources, targets
from ....base_dsl.compiler import source_span
from ....dialects import cute
from ....dialects.declaration import DECLARED
from ....dialects.declaration import attributes as dialect_attributes
from ....dialects.nvgpu.mma import MmaBlockScale, MmaSync
from ....dialects.nvgpu.warp import Shuffle, shuffle, vote
from ....dialects.nvgpu.wgmma import Wgmma
from ....hardware import mma_shapes
from ....mlir import ir
from ...lowering.builder import Builder, flat_type, int_type, like, reshape
from ...lowering.memory import private_bytes
from .register_arrays import RegisterArray, RegisterPlace, registers_of, unproven_arrays

if TYPE_CHECKING:
    from ..expand import Expansion
    from .instrument import Instrumentation

_SHAPING = {
    "vector.extract",
    "vector.insert",
    "vector.broadcast",
    "vector.shape_cast",
    "vector.extract_strided_slice",
    "vector.insert_strided_slice",
    "vector.shuffle",
    "vector.transpose",
    "vector.from_elements",
    "vector.splat",
    "vector.interleave",
}
"""Operations that only move elements: shadows move in the same way."""
_COMPUTING = {*_SHAPING, "vector.bitcast", "vector.fma", "vector.reduction"}
_LOAD = cute.Load.OPERATION_NAME
_STORE = cute.Store.OPERATION_NAME
_UNDEF = cute.Undef.OPERATION_NAME
_ASSEMBLY = "llvm.inline_asm"
_STRUCTURES = {_ASSEMBLY, "llvm.extractvalue"}
"""Operations of structures: several results of assembly are one, unset as a whole."""
_WRITING = re.compile(r"(?<![\w.%])(st|red|atom|stmatrix)\b")
"""Instructions of PTX that write to memory."""
_ONES = {
    "f16": 0x3C003C00,
    "bf16": 0x3F803F80,
    "tf32": 0x3F800000,
    "s8": 0x01010101,
    "u8": 0x01010101,
    "e4m3": 0x38383838,
    "e5m2": 0x3C3C3C3C,
    "s4": 0x11111111,
    "u4": 0x11111111,
    "f64": 0x3FF0000000000000,
}
"""A register of ones, by the type of its elements."""

_Slot = tuple[ir.Value, ir.Type]
"""Memory for a shadow, and its type there."""


def _splat(b: Builder, type_: ir.Type, bits: int) -> ir.Value:
    """Return the same bits in every element of a vector."""
    integers = like(type_, int_type(ir.VectorType(type_).element_type.width))  # pyright: ignore[reportAttributeAccessIssue]
    splat = b.const(integers, bits)
    return splat if integers == type_ else b.value("arith.bitcast", type_, (splat,))


def _holds_numbers(type_: ir.Type) -> bool:
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    return isinstance(element, (ir.IntegerType, ir.FloatType, ir.IndexType))


def _defining(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def watch(sanitizer: Instrumentation, expansion: Expansion, func: ir.Operation) -> None:
    """Track unset values through a kernel, and report those that reach memory, an address or a branch."""
    _Watch(sanitizer, expansion, func).run()


class _Watch:
    def __init__(self, sanitizer: Instrumentation, expansion: Expansion, func: ir.Operation) -> None:
        self.sanitizer = sanitizer
        self.expansion = expansion
        self.func = func
        self.entry = func.regions[0].blocks[0]
        self.kernel: str = func.attributes["sym_name"].value
        self.places: dict[ir.Value, RegisterPlace] = {}
        self.operations: list[ir.Operation] = []
        self.sure: dict[ir.Value, RegisterPlace] = {}
        """Addresses in register tensors whose loads all come after writes of the same bytes."""
        self.maybe: set[ir.Value] = set()
        """Values that may be unset."""
        self.shadows: dict[ir.Value, ir.Value] = {}
        self.slots: dict[ir.Value, _Slot] = {}
        """Memory for the shadows of values that `scf` passes on."""

    def run(self) -> None:
        def visit(op: ir.Operation) -> ir.WalkResult:
            if op != self.func:
                self.operations.append(op)
            return ir.WalkResult.ADVANCE

        self.func.walk(visit, ir.WalkOrder.PRE_ORDER)
        for op in self.operations:
            if allocation := cute.AllocRmem.of(op):
                self._array(allocation)
        self._leave_out()
        if self.maybe:
            for array in {id(place.array): place.array for place in self.places.values()}.values():
                first = Builder(ir.InsertionPoint.at_block_begin(self.entry), self.func.location)
                array.shadow = first.alloca(int_type(8), max(array.size, 1), 16)
            self._block(self.entry)

    def _leave_out(self) -> None:
        """Find the values that may be unset, and the register tensors that may hold one."""
        unproven = unproven_arrays(self.entry, self.places)
        everywhere = self.places
        self.sure = {}
        self.places = {value: place for value, place in everywhere.items() if id(place.array) in unproven}
        self.sure = {value: place for value, place in everywhere.items() if id(place.array) not in unproven}
        while True:
            self._spread()
            unset = {id(self.sure[op.target].array) for op in self._stores_of_unset() if op.target in self.sure}
            if not unset:
                return
            moved = {value: place for value, place in self.sure.items() if id(place.array) in unset}
            for place in moved.values():
                place.array.written = True
            self.places |= moved
            self.sure = {value: place for value, place in self.sure.items() if id(place.array) not in unset}

    def _stores_of_unset(self) -> list[cute.Store]:
        """Return the stores of values that may be unset."""
        stores = (store for op in self.operations if (store := cute.Store.of(op)))
        return [store for store in stores if store.value in self.maybe]

    # -- register tensors --------------------------------------------------------------------------------

    def _array(self, op: cute.AllocRmem) -> None:
        """Track a register tensor, unless its address escapes."""
        span, _ = source_span(op.location)
        name = self.sanitizer.name_at(span)
        site = self.sanitizer.site_in(op, self.kernel, "register tensor", memory=name)
        array = RegisterArray(name, site, private_bytes(op), op.result)
        places: dict[ir.Value, RegisterPlace] = {}
        todo = [(op.result, RegisterPlace(array))]
        while todo:
            value, place = todo.pop()
            places[value] = place
            for use in value.uses:
                user = use.owner.operation
                number = use.operand_number
                derived = pointers.derived(user, number)
                if derived is not None:
                    moved = place
                    if step := cute.PtrAdd.of(user):
                        moved = place.moved(step.offset, cute.element_bits(cute.info(value.type).element))
                    todo.append((derived, moved))
                elif not cute.access_through(user, number) and not Wgmma.of(user):
                    if effects.uses_memory(user.name, number):
                        return
        self.places.update(places)

    def _address(
        self, b: Builder, place: RegisterPlace, offset: ir.Value, element: ir.Type, bytes_: int
    ) -> tuple[ir.Value, int]:
        """Return (the address of the shadow of some bytes, its alignment)."""
        bits = cute.element_bits(element)
        place = place.moved(offset, bits)
        constant = place.constant()
        if constant is not None:
            inside = 0 <= constant <= place.array.size - bytes_
            at = constant if inside else 0
            return b.byte_gep(place.array.shadow, at), min(at & -at, 16) or 16
        total = b.i64(0)
        for value, width in place.terms:
            wide = value
            if isinstance(value.type, ir.IndexType):
                wide = b.value("arith.index_cast", int_type(64), (value,))
            elif value.type != int_type(64):
                wide = b.value("arith.extsi", int_type(64), (value,))
            scaled = b.binary("muli", wide, b.i64(max(1, width // 8)))
            if width < 8:
                scaled = b.binary("shrsi", wide, b.i64({4: 1, 2: 2, 1: 3}[width]))
            total = b.binary("addi", total, scaled)
        # what is out of bounds is reported as such
        inside = b.compare("ule", total, b.i64(max(0, place.array.size - bytes_)))
        return b.byte_gep(place.array.shadow, b.select(inside, total, b.i64(0))), 1

    def _access(self, op: ir.Operation, pointer: ir.Value, offset: ir.Value, type_: ir.Type) -> tuple[Any, ...]:
        """Return builder, type of the shadow in memory, address and alignment of an access."""
        element = cute.info(pointer.type).element
        bits = cute.element_bits(element)
        count = math.prod(type_.shape) if isinstance(type_, ir.VectorType) else 1
        bytes_ = max(1, count * bits // 8)
        b = Builder(ir.InsertionPoint(op), op.location)
        address, alignment = self._address(b, self.places[pointer], offset, element, bytes_)
        stored = like(type_, int_type(bits)) if bits in (8, 16, 32, 64) else int_type(8 * bytes_)
        return b, stored, address, alignment

    # -- which values may be unset -------------------------------------------------------------------------

    def _spread(self) -> None:
        changed = True
        while changed:
            before = len(self.maybe)
            for op in self.operations:
                self._spread_to(op)
            changed = len(self.maybe) != before

    def _add(self, value: ir.Value) -> None:
        if _holds_numbers(value.type):
            self.maybe.add(value)

    def _spread_to(self, op: ir.Operation) -> None:
        name = op.name
        if name == _UNDEF or (name == _LOAD and cute.Load(op).source in self.places):
            self._add(op.results[0])
        elif effects.from_lanes(name):
            if op.operands[0] in self.maybe:
                self._add(op.results[0])
        elif name.startswith("scf."):
            for number, value in enumerate(op.operands):
                if value in self.maybe:
                    for target in targets(op, number):
                        self._add(target)
        elif effects.computes(name) or name.startswith(("arith.", "math.")) or name in _COMPUTING:
            if len(op.results) == 1 and any(operand in self.maybe for operand in op.operands):
                self._add(op.results[0])
        elif name in _STRUCTURES and any(operand in self.maybe for operand in op.operands):
            self.maybe.update(op.results)

    # -- shadows -----------------------------------------------------------------------------------------

    def _shadow(self, b: Builder, value: ir.Value) -> ir.Value:
        """Return the shadow of a value: an i1, or a vector of them."""
        shadow = self.shadows.get(value)
        return shadow if shadow is not None else b.const(like(value.type, int_type(1)), 0)

    def _any(self, b: Builder, values: Sequence[ir.Value]) -> ir.Value | None:
        """Return whether any part of any of some values is unset; None if it cannot be."""
        result: ir.Value | None = None
        for value in values:
            if value not in self.shadows:
                continue
            whole = self._whole(b, self.shadows[value])
            result = whole if result is None else b.binary("ori", result, whole)
        return result

    def _whole(self, b: Builder, shadow: ir.Value) -> ir.Value:
        return b.any(reshape(b, shadow, flat_type(shadow.type)))

    def _shaped(self, b: Builder, shadow: ir.Value, type_: ir.Type) -> ir.Value:
        """Return a shadow for a value of a type: element by element if the shapes agree, else any for all."""
        flags = like(type_, int_type(1))
        if shadow.type == flags:
            return shadow
        whole = self._whole(b, shadow)
        return b.value("vector.broadcast", flags, (whole,)) if isinstance(flags, ir.VectorType) else whole

    def _either(self, b: Builder, values: Sequence[ir.Value], type_: ir.Type) -> ir.Value:
        result: ir.Value | None = None
        for value in values:
            if value in self.shadows:
                shadow = self._shaped(b, self.shadows[value], type_)
                result = shadow if result is None else b.binary("ori", result, shadow)
        return result if result is not None else b.const(like(type_, int_type(1)), 0)

    def _slot(self, value: ir.Value) -> _Slot:
        """Return new memory for the shadow of a value that `scf` passes on."""
        first = Builder(ir.InsertionPoint.at_block_begin(self.entry), self.func.location)
        type_ = like(value.type, int_type(8))
        return first.alloca(type_), type_

    def _keep(self, op: ir.Operation) -> None:
        """Before an operation of `scf`, store the shadows of values that it passes on, and report unset ones that
        decide where it goes."""
        deciding: list[ir.Value] = []
        for number, value in enumerate(op.operands):
            passed = targets(op, number)
            if not passed:
                deciding.append(value)
            elif passed[0] in self.maybe:
                slot = self.slots.get(passed[0]) or self._slot(passed[0])
                self.slots.update(dict.fromkeys(passed, slot))
                b = Builder(ir.InsertionPoint(op), op.location)
                place, type_ = slot
                b.store(b.value("arith.extui", type_, (self._shadow(b, value),)), place)
        self._decides(op, deciding, "branch")

    def _recall(self, at: ir.InsertionPoint, op: ir.Operation, passed: Iterable[ir.Value]) -> None:
        """At a place inside or after an operation of `scf`, load the shadows of values that it passed there."""
        b = Builder(at, op.location)
        for value in passed:
            if value in self.slots:
                place, type_ = self.slots[value]
                self.shadows[value] = b.compare("ne", b.load(type_, place), b.const(type_, 0))

    # -- the walk ----------------------------------------------------------------------------------------

    def _block(self, block: ir.Block) -> None:
        for operation in list(block.operations):
            self._visit(operation.operation)

    def _visit(self, op: ir.Operation) -> None:
        name = op.name
        if name.startswith("scf."):
            self._pass_on(op)
        elif name == cute.AllocRmem.OPERATION_NAME:
            if op.result in self.places:
                self._forget(op, self.places[op.result].array)
        elif name == _LOAD:
            self._load(op)
        elif name == _STORE and cute.Store(op).target in self.places:
            self._store(op)
        elif name == Wgmma.OPERATION_NAME:
            self._wgmma(op)
        elif (value := effects.stored(op)) is not None:
            self._decides(op, [value], "write")
            self._decides(op, [operand for operand in op.operands if operand != value], "address")
        elif name == _ASSEMBLY and _WRITING.search(op.attributes["asm_string"].value):  # pyright: ignore[reportAttributeAccessIssue]
            self._decides(op, list(op.operands), "write")
        if len(op.results) == 1 and op.results[0] in self.maybe and op.results[0] not in self.shadows:
            self.shadows[op.results[0]] = self._computed(op, Builder(ir.InsertionPoint.after(op), op.location))

    def _pass_on(self, op: ir.Operation) -> None:
        """Follow shadows through an operation of `scf`."""
        self._keep(op)
        for region in op.regions:
            for block in region.blocks:
                self._recall(ir.InsertionPoint.at_block_begin(block), op, block.arguments)
                self._block(block)
        if len(op.results):
            self._recall(ir.InsertionPoint.after(op), op, op.results)

    def _forget(self, op: ir.Operation, array: RegisterArray) -> None:
        """Mark a new register tensor as unset."""
        self._fill(Builder(ir.InsertionPoint.after(op), op.location), array.shadow, array.size, -1)

    def _fill(self, b: Builder, shadow: ir.Value, bytes_: int, byte: int) -> None:
        operands = (shadow, b.const(int_type(8), byte), b.i64(bytes_))
        b.op("llvm.intr.memset", (), operands, {"isVolatile": ir.IntegerAttr.get(int_type(1), 0)})

    def _load(self, op: ir.Operation) -> None:
        load = cute.Load(op)
        self._decides(op, [load.offset], "address")
        if load.source not in self.places:
            return
        result = load.result
        b, stored, address, alignment = self._access(op, load.source, load.offset, result.type)
        shadow = b.compare("ne", b.load(stored, address, alignment), b.const(stored, 0))
        self.shadows[result] = self._shaped(b, shadow, result.type)

    def _store(self, op: ir.Operation) -> None:
        store = cute.Store(op)
        value = store.value
        self._decides(op, [store.offset], "address")
        b, stored, address, alignment = self._access(op, store.target, store.offset, value.type)
        new = b.const(stored, 0)
        if value in self.shadows:
            shadow = self.shadows[value]
            shadow = shadow if like(value.type, int_type(1)) == like(stored, int_type(1)) else self._whole(b, shadow)
            new = b.value("arith.extsi", stored, (shadow,))
        b.store(new, address, alignment)

    def _wgmma(self, op: ir.Operation) -> None:
        """A WGMMA reads A in registers and, if it accumulates, its accumulator, which is set from then on."""
        for use in registers_of(op):
            if use.pointer not in self.places:
                continue
            b = Builder(ir.InsertionPoint(op), op.location)
            place = self.places[use.pointer]
            address, _ = self._address(b, place, b.i64(0), cute.info(use.pointer.type).element, use.bytes)
            if use.may_be_read:
                unset = self.sanitizer.call(self.expansion, b, "any_unset", address, use.bytes)
                assert unset is not None
                bad = b.compare("ne", unset, 0)
                bad = b.binary("andi", bad, Wgmma(op).accumulate) if use.is_written else bad
                what = "accumulator of a wgmma" if use.is_written else "A of a wgmma"
                site = self.sanitizer.site_in(op, self.kernel, what)
                self.sanitizer.call(self.expansion, b.if_(bad), "undefined", 0, 0, site, place.array.site, -1)
            if use.is_written:
                self._fill(b, address, use.bytes, 0)

    def _computed(self, op: ir.Operation, b: Builder) -> ir.Value:
        """Return the shadow of an operation's result."""
        name = op.name
        type_ = op.results[0].type
        if name == _UNDEF:
            return b.const(like(type_, int_type(1)), 1)
        if MmaSync.of(op) or MmaBlockScale.of(op):
            return self._mma(op, b)
        if name == _ASSEMBLY:
            some = self._any(b, list(op.operands))
            assert some is not None
            return self._shaped(b, some, type_) if _holds_numbers(type_) else some
        if name == "llvm.extractvalue":
            return self._shaped(b, self.shadows[op.operands[0]], type_)
        if name == "vector.bitcast":  # a register of two halves is unset where one of them is
            (source,) = op.operands
            held = like(source.type, int_type(source.type.element_type.width))  # pyright: ignore[reportAttributeAccessIssue]
            integers = like(type_, int_type(type_.element_type.width))  # pyright: ignore[reportAttributeAccessIssue]
            bits = b.value("arith.extsi", held, (self._shadow(b, source),))
            return b.compare("ne", b.value(name, integers, (bits,)), b.const(integers, 0))
        if move := Shuffle.of(op):  # what another lane holds may be unset: the shadow goes the same way
            whole = b.value("arith.extui", int_type(32), (self._whole(b, self._shadow(b, move.value)),))
            word = shuffle(move.kind, whole, move.offset, move.mask, move.clamp, b.value)
            return self._shaped(b, b.compare("ne", word, 0), type_)
        if effects.from_lanes(name):
            mine = self._whole(b, self._shadow(b, op.operands[0]))
            return self._shaped(b, vote("any", mine, DECLARED[name](op).mask, b.value), type_)  # pyright: ignore
        if name == "arith.select":
            condition, x, y = op.operands
            chosen = b.select(condition, self._shadow(b, x), self._shadow(b, y))
            if condition in self.shadows:
                chosen = b.binary("ori", chosen, self._shaped(b, self.shadows[condition], type_))
            return chosen
        if name in ("arith.andi", "arith.ori") and like(type_, int_type(1)) == type_:
            # false and anything is false, true or anything is true
            x, y = op.operands
            sx = self._shadow(b, x)
            sy = self._shadow(b, y)
            if name == "arith.ori":
                one = b.const(type_, 1)
                x = b.binary("xori", x, one)
                y = b.binary("xori", y, one)
            either = b.binary("ori", b.binary("andi", sx, y), b.binary("andi", sy, x))
            return b.binary("ori", either, b.binary("andi", sx, sy))
        if name in _SHAPING:
            operands = [v if isinstance(v.type, ir.IndexType) else self._shadow(b, v) for v in op.operands]
            attributes = {key: op.attributes[key] for key in op.attributes}
            return b.value(name, like(type_, int_type(1)), operands, attributes)
        return self._either(b, list(op.operands), type_)

    def _mma(self, op: ir.Operation, b: Builder) -> ir.Value:
        """Return the shadow of an MMA: element (i, j) depends on row i of A, column j of B and element (i, j) of C.

        An MMA with ones in place of unset elements and zeros elsewhere, times ones, tells which rows and columns are
        unset. That of bytes has the same registers as those of narrow floats; scale factors are not followed.
        """
        *operands, c = op.operands[:3]
        kinds = (MmaSync(op).a_type, MmaSync(op).b_type)
        narrow = MmaBlockScale.of(op) is not None or mma_shapes.warp_kind(*kinds) is not None
        kinds = ("s8", "s8") if narrow else kinds
        result = self._shadow(b, c)
        followed = [n for n in (0, 1) if operands[n] in self.shadows and kinds[n] in _ONES]
        if not followed:
            return result
        attributes = {key: op.attributes[key] for key in op.attributes}
        type_ = c.type
        if narrow:
            attributes = dialect_attributes(m=16, n=8, k=32, a_type="s8", b_type="s8") or {}
            type_ = like(c.type, int_type(32))
        accumulator = _splat(b, type_, 0)
        for number in followed:
            inputs = [_splat(b, v.type, _ONES[kind]) for v, kind in zip(operands, kinds, strict=True)]
            nothing = _splat(b, inputs[number].type, 0)
            inputs[number] = b.select(self.shadows[operands[number]], inputs[number], nothing)
            accumulator = b.value(MmaSync.OPERATION_NAME, type_, (*inputs, accumulator), attributes)
        bits = like(type_, int_type(ir.VectorType(type_).element_type.width))  # pyright: ignore[reportAttributeAccessIssue]
        counts = accumulator if bits == type_ else b.value("arith.bitcast", bits, (accumulator,))
        return b.binary("ori", result, b.compare("ne", counts, b.const(bits, 0)))

    # -- findings ----------------------------------------------------------------------------------------

    def _decides(self, op: ir.Operation, values: Sequence[ir.Value], how: str) -> None:
        """Before an operation that uses values, report those that are unset."""
        values = [value for value in values if value in self.shadows]
        if not values:
            return
        b = Builder(ir.InsertionPoint(op), op.location)
        bad = self._any(b, values)
        assert bad is not None
        inside = b.if_(bad)
        other, element = self._source(values[0])
        site = self.sanitizer.site_in(op, self.kernel, how, **self._memory(op))
        address = inside.i64(0)
        bytes_ = 0
        if how == "write" and (store := cute.Store.of(op)):
            pointer = store.target
            info = cute.info(pointer.type)
            if cute.is_memref(pointer.type):
                iter_type = cute.ptr_type(info.element, info.space, info.alignment)
                pointer = cute.iter_(pointer, iter_type, inside.value)
            place = cute.ptr_add(pointer, store.offset, cute.ptr_type(info.element, info.space), inside.value)
            place = cute.cast_ptr(place, cute.ptr_type(info.element, "generic"), inside.value)
            address = cute.ptr_to_int(place, inside.value)
            bytes_ = max(1, cute.element_bits(info.element) // 8)
        self.sanitizer.call(
            self.expansion, inside, "undefined", address, bytes_, site, other if other >= 0 else site, element
        )

    def _memory(self, op: ir.Operation) -> dict[str, Any]:
        store = cute.Store.of(op)
        if store is None:
            return {}
        element = cute.info(store.target.type).element
        return {"element": str(element), "element_bits": cute.element_bits(element)}

    def _source(self, value: ir.Value) -> tuple[int, int]:
        """Return the site where an unset value was made, and the element of the register tensor; -1 where not known."""
        todo = [value]
        seen = set[Any]()
        while todo and len(seen) < 200:
            value = todo.pop(0)
            if value in seen:
                continue
            seen.add(value)
            if before := sources(value):
                todo += [each for each in before if each in self.maybe]
                continue
            op = _defining(value)
            if op is None:
                continue
            if cute.Undef.of(op):
                return self.sanitizer.site_in(op, self.kernel, "variable"), -1
            if (load := cute.Load.of(op)) and load.source in self.places:
                place = self.places[load.source]
                if place.array.written:
                    stores = [store for store in self._stores_of_unset() if store.target in self.places]
                    todo += [store.value for store in stores if self.places[store.target].array is place.array]
                    continue
                bits = cute.element_bits(cute.info(load.source.type).element)
                constant = place.moved(load.offset, bits).constant()
                scalar = constant is not None and not isinstance(load.result.type, ir.VectorType)
                return place.array.site, constant * 8 // bits if scalar and constant is not None else -1
            todo += [operand for operand in op.operands if operand in self.maybe]
        return -1, -1
