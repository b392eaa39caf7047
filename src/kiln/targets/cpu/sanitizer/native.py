"""A small way to write native functions: values with operators, structures, blocks that open with `with`.

Every value is an i32 or an i64; an address is an i64. Comparisons are unsigned. Variables live in memory until LLVM
makes registers of them.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from ....mlir import ir
from ...lowering.builder import Builder, function, int_type, ptr_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Value:
    """An integer of the program under construction."""

    __slots__ = ("code", "raw")

    def __init__(self, code: Code, raw: ir.Value) -> None:
        self.code, self.raw = code, raw

    def _operand(self, other: Any) -> ir.Value:
        if isinstance(other, int):
            return self.code.b.const(self.raw.type, other)
        return other.raw if isinstance(other, Value) else other.get().raw

    def _binary(self, name: str, other: Any) -> Value:
        return Value(self.code, self.code.b.binary(name, self.raw, self._operand(other)))

    def _compare(self, predicate: str, other: Any) -> Value:
        return Value(self.code, self.code.b.compare(predicate, self.raw, self._operand(other)))

    def __add__(self, other: Any) -> Value:
        return self._binary("addi", other)

    def __sub__(self, other: Any) -> Value:
        return self._binary("subi", other)

    def __mul__(self, other: Any) -> Value:
        return self._binary("muli", other)

    def __floordiv__(self, other: Any) -> Value:
        return self._binary("divui", other)

    def __mod__(self, other: Any) -> Value:
        return self._binary("remui", other)

    def __and__(self, other: Any) -> Value:
        return self._binary("andi", other)

    def __or__(self, other: Any) -> Value:
        return self._binary("ori", other)

    def __xor__(self, other: Any) -> Value:
        return self._binary("xori", other)

    def __lshift__(self, other: Any) -> Value:
        return self._binary("shli", other)

    def __rshift__(self, other: Any) -> Value:
        return self._binary("shrui", other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self._compare("eq", other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self._compare("ne", other)

    def __lt__(self, other: Any) -> Value:
        return self._compare("ult", other)

    def __le__(self, other: Any) -> Value:
        return self._compare("ule", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare("ugt", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare("uge", other)

    __hash__ = None  # type: ignore[assignment]

    def __invert__(self) -> Value:
        """The opposite truth value."""
        return self ^ 1

    def wide(self) -> Value:
        """As an i64, zero-extended."""
        if self.raw.type == int_type(64):
            return self
        return Value(self.code, self.code.b.value("arith.extui", int_type(64), (self.raw,)))

    def narrow(self) -> Value:
        """The lowest 32 bits."""
        if self.raw.type == int_type(32):
            return self
        name = "arith.extui" if self.raw.type == int_type(1) else "arith.trunci"
        return Value(self.code, self.code.b.value(name, int_type(32), (self.raw,)))

    def population(self) -> Value:
        """How many bits are set."""
        return Value(self.code, self.code.b.value("math.ctpop", self.raw.type, (self.raw,)))

    def lowest(self) -> Value:
        """The number of the lowest set bit."""
        return Value(self.code, self.code.b.value("math.cttz", self.raw.type, (self.raw,)))

    def choose(self, a: Any, b: Any) -> Value:
        """`a` where this holds, else `b`; at least one is a value."""
        typed = a if isinstance(a, Value) else b
        return Value(self.code, self.code.b.select(self.raw, typed._operand(a), typed._operand(b)))


class Variable:
    """A value that can be set again."""

    def __init__(self, code: Code, width: int, start: Any) -> None:
        self.code, self.type = code, int_type(width)
        self.place = code.entry.alloca(self.type)
        self.set(start)

    def get(self) -> Value:
        return Value(self.code, self.code.b.load(self.type, self.place))

    def set(self, value: Any) -> None:
        raw = self.code.b.const(self.type, value) if isinstance(value, int) else value.raw
        self.code.b.store(raw, self.place)


class Struct:
    """A C structure at an address: its fields are attributes; an array field is `s.at("name", index)`."""

    def __init__(self, code: Code, address: Value, kind: type[ctypes.Structure]) -> None:
        object.__setattr__(self, "_parts", (code, address, kind))

    @property
    def address(self) -> Value:
        return object.__getattribute__(self, "_parts")[1]

    def place(self, name: str, index: Any = None) -> Value:
        """The address of a field, or of an element of one."""
        _, address, kind = object.__getattribute__(self, "_parts")
        at = address + getattr(kind, name).offset
        if index is not None:
            size = ctypes.sizeof(_element(kind, name))
            at = at + (index * size if isinstance(index, int) else index.wide() * size)
        return at

    def __getattr__(self, name: str) -> Value:
        code, _, kind = object.__getattribute__(self, "_parts")
        return code.load(self.place(name), 8 * ctypes.sizeof(_element(kind, name)))

    def __setattr__(self, name: str, value: Any) -> None:
        code, _, kind = object.__getattribute__(self, "_parts")
        code.store(value, self.place(name), 8 * ctypes.sizeof(_element(kind, name)))

    def at(self, name: str, index: Any) -> Value:
        """An element of an array field."""
        code, _, kind = object.__getattribute__(self, "_parts")
        return code.load(self.place(name, index), 8 * ctypes.sizeof(_element(kind, name)))

    def set_at(self, name: str, index: Any, value: Any) -> None:
        """Set an element of an array field."""
        code, _, kind = object.__getattribute__(self, "_parts")
        code.store(value, self.place(name, index), 8 * ctypes.sizeof(_element(kind, name)))


def _element(kind: type[ctypes.Structure], name: str) -> Any:
    for field in kind._fields_:
        if field[0] == name:
            return getattr(field[1], "_type_", field[1]) if issubclass(field[1], ctypes.Array) else field[1]
    raise AttributeError(f"{kind.__name__} has no field {name}")


class Code:
    """The body of a function under construction."""

    def __init__(self, entry: Builder) -> None:
        self.entry = entry
        self.b = entry
        self._else: Builder | None = None

    def i32(self, value: int) -> Value:
        return Value(self, self.b.i32(value))

    def i64(self, value: int) -> Value:
        return Value(self, self.b.i64(value))

    def variable(self, start: Any, width: int = 64) -> Variable:
        return Variable(self, width, start)

    def pointer(self, address: Value) -> ir.Value:
        return self.b.value("llvm.inttoptr", ptr_type(), (address.raw,))

    def load(self, address: Value, width: int = 64) -> Value:
        return Value(self, self.b.load(int_type(width), self.pointer(address)))

    def store(self, value: Any, address: Value, width: int = 64) -> None:
        raw = self.b.const(int_type(width), value) if isinstance(value, int) else value.raw
        self.b.store(raw, self.pointer(address))

    def struct(self, address: Value, kind: type[ctypes.Structure]) -> Any:
        return Struct(self, address, kind)

    def symbol(self, name: str) -> Value:
        """The address of a global."""
        return Value(self, self.b.value("llvm.ptrtoint", int_type(64), (self.b.address_of(name),)))

    def call(self, name: str, arguments: list[Any], width: int = 0) -> Value:
        """Call a function of this library; without a result it is a value nobody uses."""
        raw = [a.get().raw if isinstance(a, Variable) else a.raw for a in arguments]
        made = self.b.call(name, [int_type(width)] if width else [], raw)
        return Value(self, made.results[0]) if width else self.i32(0)

    def call_c(self, name: str, arguments: list[Any], result: bool = True) -> Value:
        """Call a C function whose first arguments are pointers: i64 values whose name starts with `*` are."""
        raw = [self.pointer(a[0]) if isinstance(a, tuple) else a.raw for a in arguments]
        made = self.b.call(name, [ptr_type()] if result else [], raw)
        if not result:
            return self.i32(0)
        return Value(self, self.b.value("llvm.ptrtoint", int_type(64), (made.results[0],)))

    @contextlib.contextmanager
    def _inside(self, b: Builder) -> Iterator[None]:
        before, self.b = self.b, b
        try:
            yield
        finally:
            self.b = before

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        then, other = self.b.if_else(condition.raw)
        with self._inside(then):
            yield
        self._else = other

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other case of the `when` that ended just before."""
        assert self._else is not None
        other, self._else = self._else, None
        with self._inside(other):
            yield

    @contextlib.contextmanager
    def loop(self, count: Value, start: Any = 0) -> Iterator[Value]:
        """For each number from `start` up to `count`."""
        type_ = count.raw.type
        first = self.b.const(type_, start) if isinstance(start, int) else start.raw
        body, index = self.b.for_(first, count.raw, self.b.const(type_, 1))
        with self._inside(body):
            yield Value(self, index)

    @contextlib.contextmanager
    def repeat(self, condition: Callable[[], Value]) -> Iterator[None]:
        """While a condition holds."""

        def test(b: Builder) -> tuple[ir.Value]:
            with self._inside(b):
                return (condition().raw,)

        body, _ = self.b.while_(test)
        with self._inside(body):
            yield


def define(
    module: ir.Module, name: str, inputs: list[int], result: int, body: Callable[..., Value | Variable | None]
) -> None:
    """Add a function: `inputs` and `result` are widths in bits (result 0: none)."""
    made = function(module, name, [int_type(w) for w in inputs], [int_type(result)] if result else [])
    entry = made.regions[0].blocks[0]
    end = (
        ir.Operation.create("func.return", loc=ir.Location.unknown(), ip=ir.InsertionPoint(entry))
        if not result
        else None
    )
    allocas = ir.Operation.create(
        "arith.constant",
        [int_type(64)],
        attributes={"value": ir.IntegerAttr.get(int_type(64), 0)},
        loc=ir.Location.unknown(),
        ip=ir.InsertionPoint.at_block_begin(entry),
    )
    point = ir.InsertionPoint(end) if end is not None else ir.InsertionPoint(entry)
    code = Code(Builder(ir.InsertionPoint(allocas), ir.Location.unknown()))
    code.b = Builder(point, ir.Location.unknown())
    returned = body(code, *(Value(code, argument) for argument in entry.arguments))
    if result:
        if isinstance(returned, Variable):
            returned = returned.get()
        assert returned is not None
        code.b.op("func.return", (), (returned.raw,))
