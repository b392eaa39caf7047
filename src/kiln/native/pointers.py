"""Pointers, and what is done with memory through them.

`p.x` and `p[i]` are loads where they name a number or a pointer, and places where they name a structure or an array;
`p.x = v` and `p[i] = v` store. `ref(p).x` and `ref(p)[i]` are addresses. Other things are functions, since a field may
have any name that does not begin with an underscore.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..base_dsl.typing import Boolean, Int32, IntegerMeta, Numeric, as_numeric
from . import types
from .types import field_of, is_array, is_number, is_struct, name_of, size_of, u64

T = TypeVar("T")


def _refuse(message: str, hint: str) -> Exception:
    return error(DSLUserCodeTypeError, message, hint=hint)


class _Pointer:
    """A pointer to a value of type `_to` (None: to bytes). Each type of pointers is a class, made by `Ptr[T]`."""

    __slots__ = ("_value",)
    __kiln_immutable__ = True
    __kiln_pointer__ = True
    _to: Any = None
    _kinds: dict[Any, Any] = {}
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __class_getitem__(cls, to: object) -> Any:
        kind = cls._kinds.get(to)
        if kind is None:
            kind = cls._kinds[to] = type(f"Ptr[{name_of(to)}]", (_Pointer,), {"__slots__": (), "_to": to})
        return kind

    def __new__(cls, x: object = None) -> Any:
        """Another pointer, a number or None, as a pointer of this type."""
        if x is None:
            return cls._of(_emit().null())
        if isinstance(x, _Pointer):
            return cls._of(x._value)
        if isinstance(x, (int, Numeric)) and not isinstance(x, (bool, Boolean)):
            wide = u64(x).ir_value()
            return cls._of(tracing.emit_value("llvm.inttoptr", _emit().pointer_type(), (wide,)))
        raise _refuse(f"{cls.__name__}(...) takes a pointer, a number or None, not {_describe(x)}", "pass one of them")

    @classmethod
    def _of(cls, value: object) -> Any:
        pointer = object.__new__(cls)
        object.__setattr__(pointer, "_value", value)
        tracing.hold(pointer)
        return pointer

    # -- as a value of the front end ------------------------------------------------------------------------------

    def __extract_mlir_values__(self) -> list[Any]:
        return [self._value]

    def __new_from_mlir_values__(self, values: Any) -> Any:
        return self._of(*values)

    def __repr__(self) -> str:
        return "(a pointer)"

    def __bool__(self) -> bool:
        raise _refuse("a pointer has no truth value", "write `p != None`")

    def __eq__(self, other: object) -> Any:
        return _same(self, other, 0)

    def __ne__(self, other: object) -> Any:
        return _same(self, other, 1)

    # -- memory ---------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        field = field_of(self._to, name)
        return _read(_emit().offset(self._value, field.offset, 1), field.kind)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        field = field_of(self._to, name)
        _write(_emit().offset(self._value, field.offset, 1), field.kind, value, f"the field {name!r}")

    def __getitem__(self, index: object) -> Any:
        return _read((self + index)._value, self._element())

    def __setitem__(self, index: object, value: object) -> None:
        _write((self + index)._value, self._element(), value, "an element")

    def __add__(self, count: object) -> Any:
        return self._of(_emit().offset(self._value, _index(count), 1 if self._to is None else size_of(self._to)))

    def __sub__(self, count: Any) -> Any:
        return self + -count

    def _element(self) -> Any:
        if self._to is None:
            raise _refuse("bytes have no type to load or store", "Ptr[u8](p) takes it for a pointer to numbers")
        return self._to


class _Function(_Pointer):
    """A pointer to a function: `Fn[[i32, Ptr], u64]`, with None for no result. It can be called."""

    __slots__ = ()
    _signature: tuple[tuple[Any, ...], Any] = ((), None)

    def __class_getitem__(cls, of: Any) -> Any:
        inputs = [Boolean if t is bool else t for t in of[0]]
        result = Boolean if of[1] is bool else of[1]
        key = ("function", tuple(inputs), result)
        kind = cls._kinds.get(key)
        if kind is None:
            name = f"Fn[[{', '.join(map(name_of, inputs))}], {name_of(result)}]"
            members = {"__slots__": (), "_signature": (tuple(inputs), result)}
            kind = cls._kinds[key] = type(name, (_Function,), members)
        return kind

    def __call__(self, *arguments: object) -> Any:
        inputs, result = self._signature
        if len(inputs) != len(arguments):
            raise _refuse(f"{type(self).__name__} is called with {len(arguments)} arguments", f"it takes {len(inputs)}")
        operands = [leaf(convert(a, t, f"argument {n}")) for n, (a, t) in enumerate(zip(arguments, inputs))]
        return wrapped(_emit().call_pointer(self._value, operands, ir_types(result)), result)


if TYPE_CHECKING:
    from typing import ParamSpec

    P = ParamSpec("P")

    class Fn(Generic[P, T]):
        def __init__(self, x: Any = None) -> None: ...
        def __call__(self, *arguments: Any) -> Any: ...

    class Ptr(Generic[T]):  # what a reader of the code may do with one
        _to: Any
        _value: Any

        @classmethod
        def _of(cls, value: Any) -> Any: ...
        def __init__(self, x: Any = None) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __add__(self, count: Any) -> Ptr[T]: ...
        def __sub__(self, count: Any) -> Ptr[T]: ...
        def __call__(self, *arguments: Any) -> Any: ...
else:
    Ptr = _Pointer
    Fn = _Function
    Ptr.__name__ = "Ptr"
    Fn.__name__ = "Fn"


def _emit() -> Any:
    from . import emit  # it loads the bindings

    return emit


def _describe(x: object) -> str:
    return "None" if x is None else f"{x!r}" if isinstance(x, (bool, int, float, str)) else type(x).__name__


def _index(x: object) -> Any:
    if isinstance(x, int):
        return x
    if isinstance(type(x), IntegerMeta) and not isinstance(x, Boolean):
        return x
    raise _refuse(f"{_describe(x)} is no index", "an index is an integer")


def _read(place: Any, kind: Any, **how: object) -> Any:
    """Return what is at a place: loaded if it is a number or pointer, else the place itself."""
    if is_struct(kind):
        return Ptr[kind]._of(place)
    if is_array(kind):
        return Ptr[kind.element]._of(place)
    return wrapped([_emit().load(ir_types(kind)[0], place, size_of(kind), **how)], kind)


def _write(place: object, kind: object, value: object, what: str, **how: object) -> None:
    if is_struct(kind) or is_array(kind):
        raise _refuse(f"{what} is a {name_of(kind)}, which is not assigned as a whole", "copy its fields, or memcpy")
    _emit().store(leaf(convert(value, kind, what)), place, size_of(kind), **how)


def _same(a: Any, b: object, predicate: int) -> Any:
    if b is not None and not isinstance(b, _Pointer):
        return NotImplemented
    other = (Ptr(None) if b is None else b)._value
    operation = {"predicate": _emit().number(predicate)}
    return Boolean._make(tracing.emit_value("llvm.icmp", Boolean.mlir_type, (a._value, other), operation))


# -- conversions ---------------------------------------------------------------------------------------------------


def ir_types(kind: Any) -> list[Any]:
    """Return the types of the values that a value is made of: one, or none for None."""
    if kind is None:
        return []
    return [kind.mlir_type if is_number(kind) else _emit().pointer_type()]


def wrapped(values: list[Any], kind: Any) -> Any:
    """Return a value of a type, made of MLIR values."""
    if kind is None:
        return None
    return kind._make(values[0]) if is_number(kind) else kind._of(values[0])


def leaf(value: Any) -> Any:
    """Return the MLIR value of a converted value."""
    return value._value if isinstance(value, _Pointer) else value.ir_value()


def convert(value: Any, kind: Any, what: str) -> Any:
    """Convert a value to a type without loss: numbers widen, and change signedness only at the same width."""
    if kind is None:
        if value is None:
            return None
        raise _refuse(
            f"{what} is {_describe(value)}, and none is declared", "declare its type with ->, or return nothing"
        )
    if not is_number(kind):
        return _as_pointer(value, kind, what)
    if isinstance(value, (bool, int)) and isinstance(kind, IntegerMeta):
        if kind is Boolean and isinstance(value, bool):
            return kind(value)
        if kind is not Boolean and kind.min <= int(value) <= kind.max:
            return kind(int(value))
        raise _refuse(f"{what} is {value!r}, which is no {name_of(kind)}", f"{name_of(kind)}(x) wraps")
    if not isinstance(value, (float, Numeric)) or (isinstance(value, float) and isinstance(kind, IntegerMeta)):
        raise _refuse(
            f"{what} is {_describe(value)} and has to be {name_of(kind)}", "it takes numbers: address(p) is one"
        )
    actual: Any = kind if isinstance(value, float) else type(value)
    if actual is kind or _widens(actual, kind):
        return kind(value)
    raise _refuse(f"{what} is {name_of(actual)} and has to be {name_of(kind)}", f"{name_of(kind)}(x) converts")


def _widens(actual: Any, kind: Any) -> bool:
    if actual is Boolean or kind is Boolean:
        return kind is not Boolean and isinstance(kind, IntegerMeta)
    if isinstance(actual, IntegerMeta) != isinstance(kind, IntegerMeta):
        return False
    return actual.width < kind.width or (actual.width == kind.width and isinstance(kind, IntegerMeta))


def _as_pointer(value: Any, kind: Any, what: str) -> Any:
    if value is None:
        return kind(None)
    function = getattr(value, "__kiln_function_address__", None)
    if function is not None:
        value = function()
        if kind is not Ptr and not (issubclass(kind, _Function) and _same_signature(value, kind)):
            raise _refuse(
                f"{what} is {type(value).__name__} and has to be {kind.__name__}", "the function must be called alike"
            )
        return kind._of(value._value)
    if type(value) is kind:
        return value
    if isinstance(value, _Pointer) and Ptr in (kind, type(value)):
        return kind._of(value._value)
    actual = type(value).__name__ if isinstance(value, _Pointer) else _describe(value)
    hint = f"{kind.__name__}(x) converts" if isinstance(value, (_Pointer, Numeric, int)) else "pass a pointer, or None"
    raise _refuse(f"{what} is {actual} and has to be {kind.__name__}", hint)


def _same_signature(value: object, kind: object) -> bool:
    """Return whether two functions are called alike; pointers are, whatever they point to."""

    def shape(of: Any) -> list[Any]:
        inputs, result = of._signature
        return [Ptr if getattr(t, "__kiln_pointer__", False) else t for t in (*inputs, result)]

    return shape(value) == shape(kind)


# -- what is done with places --------------------------------------------------------------------------------------


class _Reference:
    """`ref(p)`: addresses of what `p` leads to."""

    __kiln_static__ = True

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    def __getattr__(self, name: str) -> Any:
        field = field_of(self._pointer._to, name)
        kind = field.kind.element if is_array(field.kind) else field.kind
        return Ptr[kind]._of(_emit().offset(self._pointer._value, field.offset, 1))

    def __getitem__(self, index: object) -> Any:
        return self._pointer + index


def assign(place: object, **fields: object) -> None:
    """Store several fields of a structure: `assign(argument, type=INT, value=n)`. All values are computed first."""
    for name, value in fields.items():
        setattr(place, name, value)


def ref(pointer: object) -> Any:
    """`ref(p).x` is C's `&p->x`, `ref(p)[i]` is `&p[i]`."""
    if not isinstance(pointer, _Pointer):
        raise _refuse(f"ref() takes a pointer, not {_describe(pointer)}", "a number that was loaded has no address")
    return _Reference(pointer)


def address(pointer: object) -> Any:
    """Return the address as a u64."""
    return u64._make(tracing.emit_value("llvm.ptrtoint", u64.mlir_type, (convert(pointer, Ptr, "it")._value,)))


def local(kind: Any, count: object = 1) -> Any:
    """Allocate uninitialized memory of this call, and return a pointer to the first value.

    In a loop it is the same memory each time, unless the count is a number of the program.
    """
    of = types.in_memory(kind)
    element = kind.element if is_array(kind) else kind
    if not isinstance(count, int):
        return Ptr[element]._of(_emit().allocate_here((u64(count) * ctypes.sizeof(of)).ir_value(), 16))
    bytes_ = ctypes.sizeof(of) * count
    return Ptr[element]._of(_emit().allocate(bytes_, 16 if bytes_ >= 16 else 8))


def _place(pointer: Any, numbers: bool = False) -> tuple[Any, Any]:
    to = pointer._to if isinstance(pointer, _Pointer) else None
    if to is None or is_struct(to) or is_array(to) or (numbers and not is_number(to)):
        what = type(pointer).__name__ if isinstance(pointer, _Pointer) else _describe(pointer)
        raise _refuse(f"{what} is no place of a number", "write ref(p).x, with the field, or Ptr[u32](p)")
    return pointer._value, to


def _order(order: str, allowed: tuple[str, ...]) -> str:
    if order not in allowed:
        raise _refuse(f"{order!r} is no order of it", f"one of {', '.join(allowed)}")
    return order


_ALL = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")


def volatile(place: object) -> Any:
    """Load what a signal handler or another thread may set at any time."""
    return _read(*_place(place), volatile=True)


def atomic_load(place: object, order: str = "seq_cst") -> Any:
    return _read(*_place(place), order=_order(order, ("relaxed", "acquire", "seq_cst")))


def atomic_store(place: object, value: object, order: str = "seq_cst") -> None:
    _write(*_place(place), value, "the value", order=_order(order, ("relaxed", "release", "seq_cst")))


def atomic(operation: str, place: object, value: object, order: str = "seq_cst") -> Any:
    """Change a number or pointer at a place (xchg, add, sub, and, or, xor, max, min) and give the old one."""
    at, kind = _place(place, numbers=operation != "xchg")
    if operation in ("max", "min") and not kind.signed:
        operation = f"u{operation}"
    emit = _emit()
    if operation not in emit.OPERATIONS:
        raise _refuse(f"no atomic operation {operation!r}", f"one of {', '.join(emit.OPERATIONS)}")
    attributes = {
        "bin_op": emit.number(emit.OPERATIONS[operation]),
        "ordering": emit.number(emit.ORDERS[_order(order, _ALL)]),
    }
    new = leaf(convert(value, kind, "the value"))
    return wrapped([tracing.emit_value("llvm.atomicrmw", new.type, (at, new), attributes)], kind)


def compare_exchange(place: object, expected: object, desired: object, order: str = "seq_cst") -> tuple[Any, Any]:
    """Store `desired` where `expected` is: (the old value, whether it was done)."""
    at, kind = _place(place)
    emit = _emit()
    failed = {"acq_rel": "acquire", "release": "relaxed"}.get(order, order)
    attributes = {
        "success_ordering": emit.number(emit.ORDERS[_order(order, _ALL)]),
        "failure_ordering": emit.number(emit.ORDERS[failed]),
    }
    old, new = (leaf(convert(v, kind, what)) for v, what in ((expected, "the expected"), (desired, "the desired")))
    both = tracing.emit_value("llvm.cmpxchg", emit.type_(f"!llvm.struct<({old.type}, i1)>"), (at, old, new), attributes)
    parts = [
        tracing.emit_value("llvm.extractvalue", kind, (both,), {"position": emit.position(n)})
        for n, kind in enumerate((old.type, Boolean.mlir_type))
    ]
    return wrapped(parts[:1], kind), Boolean._make(parts[1])


# -- bits ----------------------------------------------------------------------------------------------------------


def _bits(operation: str, x: Any) -> Any:
    x = as_numeric(x)
    return type(x)._make(tracing.emit_value(operation, type(x).mlir_type, (x.ir_value(),)))


def popcount(x: object) -> Any:
    """Return how many bits are set."""
    return _bits("math.ctpop", x)


def lowest_bit(x: object) -> Any:
    """Return the number of the lowest set bit; the width if none is."""
    return _bits("math.cttz", x)


def leading_zeros(x: object) -> Any:
    """Return how many bits above the highest set one there are; the width if none is."""
    return _bits("math.ctlz", x)


# -- floats --------------------------------------------------------------------------------------------------------


def truncated(x: object) -> Any:
    """Convert an f32 to i32, towards zero. Unlike `i32(x)` this is one instruction, without a check: it must fit."""
    return Int32._make(tracing.emit_value("llvm.fptosi", Int32.mlir_type, (as_numeric(x).ir_value(),)))
