"""Native functions: Python functions that the front end turns into machine code, and libraries of them.

- `@native`: a typed function. A library that calls it has a copy of its own, as with C's `static`.
- `@inline`: part of its callers. It takes any Python value, which is decided while tracing.
- `@extern`: a function of the C library, or of whatever the code is linked with.
- `@library.export`: a typed function that others see, under the library's prefix.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._support.gc_pause import gc_paused
from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeTypeError, Span, error, mark_program
from ..base_dsl.dsl import report
from ..base_dsl.scf import ScfDSL
from ..base_dsl.typing import NumericMeta
from ..mlir import ir
from . import types
from .pointers import Fn, Ptr, convert, ir_types, leaf, wrapped
from .types import in_memory, name_of, resolved

if TYPE_CHECKING:
    import types as python_types


class NativeDSL(ScfDSL):
    """The language of native code. Its numbers wrap, so no ranges are inferred."""

    name = "native"
    wraps = True

    def make_undefined(self, type_: ir.Type) -> ir.Value:
        return tracing.emit_value("llvm.mlir.undef", type_)


DSL = NativeDSL()

load: Callable[[ir.Module, tuple[str, ...]], dict[str, int]] | None = None
"""Compiles a module into the process and returns addresses of its functions; `targets.host` sets it."""


class Function:
    """A function of native code: one that is written here, or one of C."""

    __kiln_static__ = True

    def __init__(
        self, function: python_types.FunctionType, library: Library | None = None, external: bool = False
    ) -> None:
        functools.update_wrapper(self, function)  # pyright: ignore[reportArgumentType]
        mark_program(function.__code__.co_filename)
        self.name: str = function.__name__
        self.function = function
        self.library = library
        self.external = external
        self.attributes: tuple[str, ...] = ()
        """LLVM's attributes of it."""

    @functools.cached_property
    def signature(self) -> tuple[dict[str, Any], Any]:
        """The types of its parameters by name, and of its result."""
        hints = self.function.__annotations__
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        missing = [name for name in names if name not in hints]
        if missing or "return" not in hints:
            raise error(
                DSLUserCodeTypeError,
                f"{self.name} does not say the type of {missing[0] if missing else 'its result'}",
                hint="annotate every parameter and the result (-> None for none), or make it @inline",
                span=self.span,
            )
        space = self.function.__globals__
        return {name: resolved(hints[name], space) for name in names}, resolved(hints["return"], space)

    @property
    def span(self) -> Span:
        """Where it is defined."""
        code = self.function.__code__
        return Span(code.co_filename, code.co_firstlineno, function=self.name)

    @functools.cached_property
    def rewritten(self) -> Callable[..., Any]:
        """What runs while tracing."""
        from ..base_dsl.frontend.rewriter import rewrite

        result = self.signature[1]
        return rewrite(self.function, lambda value: convert(value, result, f"the result of {self.name}"))

    @property
    def type(self) -> Any:
        """The type of a pointer to it."""
        inputs, result = self.signature
        return Fn[[*inputs.values()], result]

    @property
    def symbol(self) -> str:
        """What it is called in the library that exports it."""
        return self.name if self.library is None else self.library.prefix + self.name

    def bound(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """Return the arguments of a call, in order."""
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as reason:
            raise error(DSLUserCodeTypeError, f"{self.name}: {reason}", hint="see its definition") from None
        bound.apply_defaults()
        return list(bound.arguments.values())

    def __call__(self, *args: object, **kwargs: object) -> Any:
        inputs, result = self.signature
        if kwargs or len(args) != len(inputs):
            args = tuple(self.bound(args, kwargs))
        unit = tracing.current()
        if unit is None:
            return self._call_from_python(args)
        if not isinstance(unit, Unit):
            raise error(
                DSLRuntimeError,
                f"the native function {self.name!r} is called in a program of another language",
                hint="native functions call each other; code of kernels calls what Unit.add() gives",
            )
        operands = [leaf(convert(a, t, f"{n!r} of {self.name}")) for a, (n, t) in zip(args, inputs.items())]
        from . import emit

        return wrapped(emit.call(unit.declare(self), operands, ir_types(result)), result)

    def __kiln_function_address__(self) -> Any:
        from . import emit

        unit = tracing.require(f"the address of {self.name}")
        assert isinstance(unit, Unit)
        inputs, result = self.signature
        flat = [t for kind in inputs.values() for t in ir_types(kind)]
        return self.type._of(emit.address_of_function(unit.declare(self), flat, ir_types(result)))

    # -- called from Python, by itself -----------------------------------------------------------------------------

    def _call_from_python(self, args: tuple[object, ...]) -> Any:
        return self._compiled(*(_argument(a, t) for a, t in zip(args, self.signature[0].values())))

    @functools.cached_property
    def _compiled(self) -> Any:
        if load is None:
            raise error(
                DSLRuntimeError,
                f"{self.name} is called from Python, and nothing that compiles native code is loaded",
                hint="import kiln.targets.host.jit",
            )
        unit = Unit.new()
        unit.trace(lambda: unit.declare(self, own=True))
        symbol = unit.symbol(self)
        address = load(unit.module, (symbol,))[symbol]
        inputs, result = self.signature
        restype = None if result is None else ctypes.c_bool if name_of(result) == "Boolean" else in_memory(result)
        argtypes = [ctypes.c_bool if name_of(t) == "Boolean" else in_memory(t) for t in inputs.values()]
        return ctypes.CFUNCTYPE(restype, *argtypes)(address)


def _argument(value: Any, kind: Any) -> Any:
    """Return an argument from Python: structures and arrays are passed by reference."""
    if isinstance(kind, NumericMeta):
        return int(value) if kind.is_integer else float(value)
    if isinstance(value, (ctypes.Structure, ctypes.Array)):
        return ctypes.addressof(value)
    return value


class Inline:
    """A function that becomes part of its callers."""

    __kiln_static__ = True

    def __init__(self, function: python_types.FunctionType) -> None:
        functools.update_wrapper(self, function)  # pyright: ignore[reportArgumentType]
        mark_program(function.__code__.co_filename)
        self.name: str = function.__name__
        self.function = function

    @functools.cached_property
    def rewritten(self) -> Callable[..., Any]:
        """What runs while tracing."""
        from ..base_dsl.frontend.rewriter import rewrite

        if "return" not in self.function.__annotations__:
            return rewrite(self.function)
        result = resolved(self.function.__annotations__["return"], self.function.__globals__)
        return rewrite(self.function, lambda value: convert(value, result, f"the result of {self.name}"))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        with tracing.require(f"a call of {self.name}").inlined_call():
            return self.rewritten(*args, **kwargs)


def native(function: Any) -> Any:
    """Decorator of a typed function of native code."""
    return Function(function)


def inline(function: Any) -> Any:
    """Decorator of a function that is part of its callers."""
    return Inline(function)


def extern(function: Any = None, *, name: str = "", attributes: tuple[str, ...] = ()) -> Any:
    """Decorator of a declaration of a C function, under another `name` if given, with LLVM `attributes`."""
    if function is None:
        return functools.partial(extern, name=name, attributes=attributes)
    declared = Function(function, external=True)
    declared.name = name or declared.name
    declared.attributes = attributes
    return declared


class Variable:
    """A global variable: `x.value` loads and stores it, `x.place` is its address (of an array's first element)."""

    __kiln_static__ = True

    def __init__(self, library: Library, name: str, kind: Any, value: int) -> None:
        self.library = library
        self.name = name
        self.kind = kind
        self.initial = value

    @property
    def symbol(self) -> str:
        return self.library.prefix + self.name

    @property
    def place(self) -> Any:
        from . import emit

        unit = tracing.require(f"the variable {self.name}")
        assert isinstance(unit, Unit)
        unit.declare_variable(self)
        to = self.kind.element if types.is_array(self.kind) else self.kind
        return Ptr[to]._of(emit.address_of(self.symbol))

    @property
    def value(self) -> Any:
        return self.place[0]

    @value.setter
    def value(self, new: Any) -> None:
        self.place[0] = new


class Library:
    """Native functions and variables that are compiled together; others see those that are exported."""

    __kiln_static__ = True

    def __init__(self, name: str, prefix: str = "", passes: int = 2, opt: int = 2, small: bool = False) -> None:
        """Make a library whose IR is optimized at level `passes` and its code at level `opt` (0 to 3); `small` for
        size."""
        self.name = name
        self.prefix = prefix
        self.passes = passes
        self.opt = opt
        self.small = small
        self.functions: list[Function] = []
        self.variables: list[Variable] = []

    @property
    def exports(self) -> tuple[str, ...]:
        """The symbols that others see."""
        return tuple(each.symbol for each in (*self.functions, *self.variables))

    def export(self, function: Any) -> Any:
        """Decorator of a typed function that others see."""
        exported = Function(function, self)
        self.functions.append(exported)
        return exported

    def variable(self, name: str, kind: object, value: int = 0) -> Variable:
        """Return a variable that others see, too; an array or a structure begins with zeros."""
        declared = Variable(self, name, kind, value)
        self.variables.append(declared)
        return declared

    def build(self) -> ir.Module:
        """Return a module of all of it."""
        unit = Unit.new()
        unit.small = self.small
        self.add_to(unit.module, unit)
        return unit.module

    def add_to(self, module: ir.Module, unit: Unit | None = None) -> None:
        """Add all of it to a module, to which others may add more."""
        unit = unit or Unit(module)

        def declare() -> None:
            for variable in self.variables:
                unit.declare_variable(variable, own=True)
            for function in self.functions:
                unit.declare(function, own=True)

        unit.trace(declare)


class Unit(tracing.Trace):
    """A module that native functions are added to, each once."""

    def __init__(self, module: ir.Module) -> None:
        super().__init__(DSL, module)
        self._symbols: dict[Any, str] = {}
        self._todo: list[tuple[Function, Any]] = []
        self._others: dict[str, Any] = {}
        """Symbols that others had put into the module."""
        self.small = False
        """Whether functions are compiled for their size."""

    @classmethod
    def new(cls) -> Unit:
        """Return one with a module of its own."""
        from ..mlir import context, ir

        with context(), ir.Location.unknown():
            return cls(ir.Module.create())

    def add(self, function: Function) -> str:
        """Add a function that is inlined wherever the module calls it, and return its symbol."""
        if function not in self._symbols:
            self.trace(lambda: self.declare(function, inlined=True))
        return self._symbols[function]

    def declare(self, function: Function, own: bool = False, inlined: bool = False) -> str:
        """Declare a function in the module, queue it for tracing if it is the module's own, and return its symbol.

        `own`: it is the module's own although a library exports it.
        """
        earlier = self._symbols.get(function)
        if earlier is not None:
            return earlier
        from ..mlir import file_location, ir

        inputs, result = function.signature
        flat = [t for kind in inputs.values() for t in ir_types(kind)]
        defined = not function.external and (own or function.library is None)
        symbol = function.symbol if function.external or function.library is not None else self._free(function.name)
        self._symbols[function] = symbol
        at = function.span
        location = file_location(at.filename, at.line, 1)
        declared = self._others.get(symbol)
        if declared is None:
            attributes = {
                "sym_name": ir.StringAttr.get(symbol),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(flat, ir_types(result))),
            }
            end = ir.InsertionPoint(self.module.body)
            declared = ir.Operation.create("func.func", attributes=attributes, regions=1, loc=location, ip=end)
        passed = (*function.attributes, *["alwaysinline"] * inlined, *["optsize"] * (self.small and defined))
        if passed:
            declared.attributes["llvm.passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get(text) for text in passed])
        if defined:
            entry = declared.regions[0].blocks.append(*flat, arg_locs=[location] * len(flat))
            self._todo.append((function, entry))
        return symbol

    def declare_variable(self, variable: Variable, own: bool = False) -> None:
        """Declare a variable in the module."""
        from ..mlir import ir
        from . import emit

        if variable in self._symbols:
            return
        self._symbols[variable] = variable.symbol
        if variable.symbol in self._others:
            return
        kind = variable.kind
        if isinstance(kind, NumericMeta):
            type_ = kind.mlir_type
            value = emit.number(variable.initial, kind.width)
        else:
            type_ = emit.type_(f"!llvm.array<{-(-types.size_of(kind) // 8)} x i64>")
            value = ir.Attribute.parse("#llvm.zero")
        emit.variable(self.module, variable.symbol, type_, value if own else None, "external", False)

    def text(self, text: str) -> str:
        """Return a constant text of the module, with a zero at its end: its symbol."""
        from ..mlir import ir
        from . import emit

        symbol = self._symbols.get(text)
        if symbol is None:
            symbol = self._symbols[text] = f"native.text.{len(self._symbols)}"
            type_ = emit.type_(f"!llvm.array<{len(text.encode()) + 1} x i8>")
            emit.variable(self.module, symbol, type_, ir.StringAttr.get(text + "\0"), "internal", True)
        return symbol

    def _free(self, name: str) -> str:
        taken = set(self._symbols.values())
        symbols = (f"native.{name}{'' if not n else f'.{n}'}" for n in range(len(taken) + 1))
        return next(symbol for symbol in symbols if symbol not in taken)

    def symbol(self, function: Function) -> str:
        """Return what a function is called in this module."""
        return self._symbols[function]

    def trace(self, declare: Callable[[], object]) -> None:
        """Declare functions and variables, and trace those functions and what they call."""
        with gc_paused, tracing.activate(self), report(self):
            operations = [op.operation for op in self.module.body.operations]
            self._others = {op.attributes["sym_name"].value: op for op in operations if "sym_name" in op.attributes}
            declare()
            while self._todo:
                self._trace(*self._todo.pop(0))

    def _trace(self, function: Function, entry: Any) -> None:
        from ..base_dsl.frontend import merged_objects

        inputs, result = function.signature
        with tracing.inside_function(self, entry, "native"):
            values = [wrapped([v], t) for v, t in zip(list(entry.arguments), inputs.values())]
            returned = function.rewritten(*values)
            if self.broken is not None:
                raise self.broken
            merged_objects.check(self.watched)
            if self.complaints:
                raise self.complaints[0]
            if result is not None and returned is None:
                raise error(
                    DSLUserCodeTypeError,
                    f"{function.name} ends without a result, which has to be {name_of(result)}",
                    hint="return one on every path",
                    span=function.span,
                )
            tracing.emit("func.return", [], [] if result is None else [leaf(returned)])


def text(content: str) -> Any:
    """Return a constant text: a pointer to its first byte, with a zero after its last."""
    from . import emit

    unit = tracing.require("a text")
    assert isinstance(unit, Unit)
    return Ptr[types.u8]._of(emit.address_of(unit.text(content)))
