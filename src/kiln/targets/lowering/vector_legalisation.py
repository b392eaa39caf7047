"""Legalisation of vectors: long ones are split into short ones before operations are expanded.

A GPU has no long vectors, so LLVM splits them: but it first assembles them by shuffles, carries each partial one into
the next block, and schedules all their elements at once. An epilogue on 128 accumulators took three quarters of its
kernel's compile time. Split here, operations on a fragment are independent small ones.

A long vector that is read from a thread's own memory, or written to it, at once becomes accesses of 16 bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...dialects import cute
from ...mlir import context, find, ir
from .builder import constant_value
from .vector_parts import element_of_vector, joined, span, vector_of
from .vector_parts import make_before as _made

LENGTH = 4
"""Elements of a short vector: a 128-bit access of f32, two pairs of f16."""
LONGEST = 16
"""Vectors of up to so many elements stay on a GPU: a 128-bit access of bytes."""
LONGEST_ON_HOST = 256
"""Those of the host: it has vectors of its own, but passes of LLVM take time with the square of a vector's length."""
_ACCESS = 16
"""Bytes of an access to a part of a long vector."""


@functools.lru_cache(maxsize=4096)
def is_long(type_: ir.Type, longest: int = LONGEST) -> bool:
    """Return whether it is the type of a vector of more than `longest` elements."""
    if not isinstance(type_, ir.VectorType):
        return False
    shape = type_.shape
    return len(shape) == 1 and shape[0] > longest


def _vector(type_: Any, count: int) -> ir.Type:
    """Return the type of a vector of some of a vector's elements."""
    return vector_of(type_.element_type, count)


def legalise_vectors(module: ir.Module, longest: int = LONGEST) -> None:
    """Do the arithmetic on vectors of more than `longest` elements piece by piece."""
    # where an operation has several results, they are of one length
    operations = [op for op in find(module.operation, NAMES) if is_long(op.results[0].type, longest)]
    stores = [op for op in cute.Store.all_in(module.operation) if is_long(op.value.type, longest) and _is_private(op)]
    if operations or stores:
        _Cutter(longest).run(operations, stores)


class _Cutter:
    """The pieces of each long value that was cut."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._pieces: dict[ir.Value, list[ir.Value]] = {}
        self._looked_through: dict[ir.Value, ir.Operation] = {}
        """Vectors whose parts were taken in place of them, and what made them."""
        self._offsets: dict[tuple[ir.Block, ir.Type, int], ir.Value] = {}
        """Constants at the start of blocks."""

    def run(self, operations: Sequence[ir.Operation], stores: Sequence[cute.Store]) -> None:
        """Cut what can be cut, in order, and give the others what they need."""
        cut: list[ir.Operation] = []
        for op in operations:
            replacement = self._cut(op)
            if replacement is not None:
                cut.append(op)
                for result, pieces in zip(op.results, replacement, strict=True):
                    self._pieces[result] = pieces
        for op in stores:
            self._store(op)
        mine = set(cut)
        for op in cut:
            for result in op.results:
                users = {use.owner.operation: None for use in result.uses}  # an operation may use it twice
                for user in users:
                    if user not in mine:
                        self._serve(user, result)
        for op in reversed(cut):
            op.erase()
        for value, op in self._looked_through.items():
            if not any(True for _ in value.uses):
                op.erase()

    # -- operations that make long vectors ---------------------------------------------------------------------------

    def _cut(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        """Return the pieces of each result; None if the operation stays as it is."""
        return _MAKERS.get(op.name, _Cutter._element_wise)(self, op)

    def _load(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        load = cute.Load(op)
        if not _is_private(load):
            return None
        type_ = load.result.type
        width, offsets = self._accesses(load, type_)
        parts = cute.loads_before(load, offsets, _vector(type_, width), _ACCESS)
        if width == LENGTH:
            return [parts]
        return [[_slice(op, part, first, LENGTH) for part in parts for first in range(0, width, LENGTH)]]

    def _store(self, store: cute.Store) -> None:
        value = store.value
        op = store.operation
        width, offsets = self._accesses(store, value.type)
        pieces = self._pieces.get(value)
        each = width // LENGTH
        if pieces is None:
            parts = [_slice(op, value, n * width, width) for n in range(len(offsets))]
        else:
            parts = [_joined(op, pieces[n * each : (n + 1) * each]) for n in range(len(offsets))]
        cute.stores_before(store, offsets, parts, _ACCESS)
        op.erase()

    def _accesses(self, access: cute.Load | cute.Store, type_: Any) -> tuple[int, list[ir.Value]]:
        """Return how many elements each access to a part of a long vector has, and their offsets."""
        offset = access.offset
        first = constant_value(offset, 0)
        width = _ACCESS * 8 // cute.element_bits(type_.element_type)
        return width, [self._offset(access.operation, offset.type, first + n) for n in range(0, type_.shape[0], width)]

    def _offset(self, op: ir.Operation, type_: ir.Type, number: int) -> ir.Value:
        block = op.block
        offset = self._offsets.get((block, type_, number))
        if offset is None:
            offset = self._offsets[block, type_, number] = ir.Operation.create(
                "arith.constant",
                (type_,),
                (),
                {"value": ir.IntegerAttr.get(type_, number)},
                None,
                0,
                ir.Location.unknown(context()),
                ir.InsertionPoint.at_block_begin(block),
            ).result
        return offset

    def _constant(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        value: Any = op.attributes["value"]
        type_: Any = op.results[0].type
        if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
            return None
        splat = value.get_splat_value()

        def make(short: ir.Type) -> ir.Value:
            attribute = ir.DenseElementsAttr.get_splat(short, splat)
            return _made(op, "arith.constant", short, (), {"value": attribute})

        return [_alike(type_, make)]

    def _element_wise(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        types: list[Any] = [result.type for result in op.results]
        if not all(is_long(t, self._longest) and t.shape == types[0].shape for t in types):
            return None
        count = _count(types[0])
        operands: list[list[ir.Value]] = []
        for value in op.operands:
            type_: Any = value.type
            if not isinstance(type_, ir.VectorType):
                operands.append([value] * count)  # the condition of a selection
            elif type_.shape == types[0].shape:
                operands.append(self._cut_value(value))
            else:
                return None
        attributes = _attributes(op)
        short = zip(*map(_short_types, types), strict=True)
        point = ir.InsertionPoint(op)
        location = op.location
        cut_operations = [
            ir.Operation.create(op.name, results, parts, attributes, None, 0, location, point)
            for results, *parts in zip(short, *operands, strict=True)
        ]
        return [[piece.results[k] for piece in cut_operations] for k in range(len(types))]

    def _broadcast(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        value = op.operands[0]
        type_ = op.results[0].type
        if isinstance(value.type, ir.VectorType):
            return None
        return [_alike(type_, lambda short: _made(op, op.name, short, (value,), None))]

    def _poison(self, op: ir.Operation) -> list[list[ir.Value]]:
        return [_alike(op.results[0].type, lambda short: _made(op, op.name, short, (), _attributes(op)))]

    def _from_elements(self, op: ir.Operation) -> list[list[ir.Value]]:
        elements = list(op.operands)
        types = _short_types(op.results[0].type)
        return [
            [
                _made(op, op.name, short, elements[first : first + LENGTH], None)
                for short, first in zip(types, range(0, len(elements), LENGTH), strict=True)
            ]
        ]

    def _insert_slice(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        """Split an insertion of a shorter vector into a long one."""
        value, target = op.operands
        type_: Any = value.type
        (first,) = _numbers(op, "offsets")
        (length,) = type_.shape
        whole: Any = target.type
        if len(type_.shape) != 1 or not _is_aligned(first, length, whole) or _numbers(op, "strides") != [1]:
            return None
        pieces = list(self._cut_value(target))
        if is_long(type_, self._longest):
            new = self._cut_value(value)
        else:
            new = [value] if length <= LENGTH else [_slice(op, value, *part) for part in _parts(length)]
        pieces[first // LENGTH : first // LENGTH + len(new)] = new
        return [pieces]

    def _extract_slice(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        """Split a long slice of a longer vector."""
        (first,) = _numbers(op, "offsets")
        (length,) = _numbers(op, "sizes")
        if not _is_aligned(first, length, op.operands[0].type) or _numbers(op, "strides") != [1]:
            return None
        return [self._cut_value(op.operands[0])[first // LENGTH : -(-(first + length) // LENGTH)]]

    def _shuffle(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        """Split a concatenation of two vectors."""
        type_: Any = op.operands[0].type
        (half,) = type_.shape
        if not _concatenates(op) or half % LENGTH:
            return None
        return [[self._span(op, value, first) for value in op.operands for first in range(0, half, LENGTH)]]

    def _span(self, before: ir.Operation, value: ir.Value, first: int) -> ir.Value:
        """Return a short slice of a longer vector, from one of the two that it concatenates where that is known."""
        pieces = self._pieces.get(value)
        if pieces is not None:
            return pieces[first // LENGTH]
        type_: Any = value.type
        if type_.shape[0] == LENGTH:
            return value
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.operation.name == "vector.shuffle":
            op = owner.operation
            half = type_.shape[0] // 2
            if half % LENGTH == 0 and _concatenates(op):
                self._looked_through[value] = op
                return self._span(before, op.operands[first // half], first % half)
        return _slice(before, value, first, LENGTH)

    def _bitcast(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        source: Any = op.operands[0].type
        target: Any = op.results[0].type
        if list(source.shape) != list(target.shape):
            return None
        pieces = zip(_short_types(target), self._cut_value(op.operands[0]), strict=True)
        return [[_made(op, op.name, short, (piece,), None) for short, piece in pieces]]

    def _cut_value(self, value: ir.Value) -> list[ir.Value]:
        """Return the pieces of a long vector; one that was not cut is taken apart where it is made."""
        pieces = self._pieces.get(value)
        if pieces is None:
            owner = value.owner
            if isinstance(owner, ir.Block):
                point = ir.InsertionPoint.at_block_begin(owner)
                location = ir.Location.unknown(context())
            else:
                point = ir.InsertionPoint.after(owner.operation)
                location = owner.operation.location
            type_: Any = value.type
            pieces = [
                ir.Operation.create(
                    "vector.extract_strided_slice",
                    (_vector(type_, length),),
                    (value,),
                    span(first, length),
                    None,
                    0,
                    location,
                    point,
                ).result
                for first, length in _parts(type_.shape[0])
            ]
            self._pieces[value] = pieces
        return pieces

    # -- operations that use long vectors ----------------------------------------------------------------------------

    def _serve(self, user: ir.Operation, value: ir.Value) -> None:
        """Let an operation that stays use the pieces of a long vector."""
        pieces = self._pieces[value]
        if user.name == "vector.extract" and (position := _numbers(user, "static_position")) and position[0] >= 0:
            number, rest = divmod(position[0], LENGTH)
            new = element_of_vector(user, pieces[number], rest)
        elif user.name == "vector.extract_strided_slice" and _numbers(user, "strides") == [1]:
            (first,) = _numbers(user, "offsets")
            (length,) = _numbers(user, "sizes")
            number, rest = divmod(first, LENGTH)
            if length == LENGTH and not rest:
                new = pieces[number]
            elif rest + length <= LENGTH:
                new = _slice(user, pieces[number], rest, length)
            else:
                last = (first + length - 1) // LENGTH
                new = _slice(user, _joined(user, pieces[number : last + 1]), rest, length)
        elif user.name == "vector.shuffle" and len(mask := _numbers(user, "mask")) <= self._longest:
            elements = [self._element(user, place, value) for place in mask]
            new = _made(user, "vector.from_elements", user.results[0].type, elements, None)
        else:
            whole = _joined(user, pieces)
            for number, operand in enumerate(user.operands):
                if operand == value:
                    user.operands[number] = whole
            return
        user.results[0].replace_all_uses_with(new)
        user.erase()

    def _element(self, user: ir.Operation, place: int, value: ir.Value) -> ir.Value:
        """Return an element of the two vectors that a shuffle takes."""
        first: Any = user.operands[0].type
        number, place = (0, place) if place < first.shape[0] else (1, place - first.shape[0])
        source = user.operands[number]
        pieces = self._pieces.get(source)
        if pieces is not None:
            part, place = divmod(place, LENGTH)
            source = pieces[part]
        return element_of_vector(user, source, place)


_MAKERS: dict[str, Any] = {
    cute.Load.OPERATION_NAME: _Cutter._load,
    "arith.constant": _Cutter._constant,
    "vector.broadcast": _Cutter._broadcast,
    "ub.poison": _Cutter._poison,
    "vector.from_elements": _Cutter._from_elements,
    "vector.insert_strided_slice": _Cutter._insert_slice,
    "vector.extract_strided_slice": _Cutter._extract_slice,
    "vector.bitcast": _Cutter._bitcast,
    "vector.shuffle": _Cutter._shuffle,
}
_ARITHMETIC = (
    "addf addi addui_extended andi bitcast ceildivsi ceildivui cmpf cmpi convertf divf divsi divui extf extsi extui "
    "floordivsi "
    "fptosi fptoui index_cast index_castui maximumf maxnumf maxsi maxui minimumf minnumf minsi minui mulf muli "
    "mulsi_extended "
    "mului_extended negf ori remf remsi remui select shli shrsi shrui sitofp subf subi subui_extended truncf trunci "
    "uitofp xori"
)
_MATH = (
    "absf absi acos acosh asin asinh atan atan2 atanh cbrt ceil clampf copysign cos cosh ctlz ctpop cttz erf erfc "
    "exp exp2 "
    "expm1 floor fma fpowi ipowi isfinite isinf isnan isnormal log log10 log1p log2 powf round roundeven rsqrt sin "
    "sincos sinh "
    "sqrt tan tanh trunc"
)
NAMES = (*_MAKERS, *(f"arith.{name}" for name in _ARITHMETIC.split()), *(f"math.{name}" for name in _MATH.split()))
"""The names of operations that are cut: those that make vectors, and those that do the same with every element."""


def _is_private(access: cute.Load | cute.Store) -> bool:
    """Return whether an access to a register array at a known place can be split into accesses of `_ACCESS` bytes."""
    type_: Any = access.value.type
    width = _ACCESS * 8 // cute.element_bits(type_.element_type)
    return (
        cute.info(access.memory.type).space == "rmem"
        and bool(access.alignment)
        and access.alignment % _ACCESS == 0
        and width >= LENGTH
        and type_.shape[0] % width == 0
        and constant_value(access.offset) is not None
    )


def _concatenates(op: ir.Operation) -> bool:
    """Return whether a shuffle puts two vectors of one length one after the other."""
    first, second = (value.type for value in op.operands)
    mask = _numbers(op, "mask")
    return first == second and len(mask) == 2 * first.shape[0] and mask == list(range(len(mask)))


def _parts(length: int) -> list[tuple[int, int]]:
    """Return where each piece of a vector starts, and how long it is: the last may be shorter."""
    return [(first, min(LENGTH, length - first)) for first in range(0, length, LENGTH)]


def _short_types(type_: Any) -> list[ir.Type]:
    """Return the types of the pieces of a vector."""
    return [_vector(type_, length) for _, length in _parts(type_.shape[0])]


def _alike(type_: object, make: Callable[[ir.Type], ir.Value]) -> list[ir.Value]:
    """Return the pieces of a vector whose elements are the same: one value for all of a length."""
    by_type = {short: make(short) for short in dict.fromkeys(_short_types(type_))}
    return [by_type[short] for short in _short_types(type_)]


def _is_aligned(first: int, length: int, whole: Any) -> bool:
    """Return whether a slice of a vector is some of its pieces."""
    return first % LENGTH == 0 and (length % LENGTH == 0 or first + length == whole.shape[0])


def _count(type_: Any) -> int:
    """Return how many pieces a long vector has."""
    return -(-type_.shape[0] // LENGTH)


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes}


def _numbers(op: ir.Operation, name: str) -> list[int]:
    attribute: Any = op.attributes[name]
    return [int(n.value) if hasattr(n, "value") else int(n) for n in attribute]


def _slice(before: ir.Operation, value: ir.Value, first: int, length: int) -> ir.Value:
    return _made(before, "vector.extract_strided_slice", _vector(value.type, length), (value,), span(first, length))


def _joined(before: ir.Operation, pieces: Sequence[ir.Value]) -> ir.Value:
    """Return one vector of its pieces."""
    if len(pieces) == 1:
        return pieces[0]
    types: list[Any] = [piece.type for piece in pieces]
    return joined(before, _vector(types[0], sum(type_.shape[0] for type_ in types)), list(pieces))
