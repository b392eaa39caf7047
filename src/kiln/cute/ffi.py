"""Declare device functions from outside, which LLVM bitcode defines: `cute.ffi(name, params_types, return_type, source)`.

They are those of libdevice, NVSHMEM or NCCL, or compiled by clang. For GPUs the bitcode is linked with the kernels that
call them, and LLVM may inline it. The CPU target serves the functions of libdevice that it knows, and refuses others.

Args:
    name: the function's name in C. A function in C++ has a mangled one.
    params_types: the types of its parameters.
    return_type: the type of its result, None without one.
    source: the `BitCode` that defines it. Without one it is looked for in `LinkLibraries` and in libdevice.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, overload

from ..base_dsl import trace as tracing
from ..base_dsl.bindings import context, ir
from ..base_dsl.diagnostics import type_error
from ..base_dsl.promises import annotations_of
from ..base_dsl.typing import Boolean, Float32, FloatMeta, Int32, IntegerMeta, Numeric, NumericMeta, is_constexpr
from ..base_dsl.user_op import extract_mlir_values
from .deferred_dialects import external
from .nvgpu.cute_dialect import PtrType
from .tensor.pointer import Pointer

__all__ = ["FFI", "BitCode", "ConstValue", "extern", "ffi", "mangle"]


@dataclass(frozen=True)
class BitCode:
    """A file of LLVM bitcode that defines device functions.

    The file is read when a kernel that calls one of them is traced. A subclass may have a property `path`.

    Args:
        path: the path of the file.
    """

    path: str


@dataclass(frozen=True)
class ConstValue:
    """The argument of a `Constexpr` parameter, as a name mangler sees it in `params_types`.

    Args:
        value: the Python object that the call passes.
    """

    value: object


_Arguments = list["Callable[[], list[ir.Value]] | ConstValue"]
"""What emits the values of each argument, and the arguments of Constexpr parameters."""
_Fit = tuple[int, "Callable[[], list[ir.Value]]"]
"""How many steps an argument is from a parameter's type, and what emits its values."""


class FFI:
    """A device function from outside, which kernels call.

    Args:
        name: its name in C. A function in C++ has a mangled one.
        params_types: the types of its parameters: numeric types, types of the IR, structures, or objects with
            `__get_mlir_types__`.
        return_type: the type of its result, None without one.
        source: the `BitCode` that defines it. Without one it is looked for in `LinkLibraries` and in libdevice.
        name_mangler: a function that returns the name to link, given this object.
    """

    def __init__(
        self,
        name: str,
        params_types: Sequence[object] = (),
        return_type: object = None,
        source: BitCode | None = None,
        name_mangler: Callable[[FFI], str] | None = None,
    ) -> None:
        if source is not None and not isinstance(source, BitCode):
            raise type_error(f"{name}: source is {source!r}", 'write source=cute.BitCode("file.bc")')
        self.name = name
        self.params_types = list(params_types)
        self.return_type = None if return_type is type(None) else return_type
        self.source = source
        self.name_mangler = name_mangler

    def __repr__(self) -> str:
        taken = ", ".join(map(_type_name, self.params_types))
        return f"{self.name}({taken}) -> {_type_name(self.return_type)}"

    @tracing.at_one_location
    def __call__(self, *args: object) -> object:
        """Call the function, inside a kernel."""
        if tracing.current() is None:
            raise tracing.outside_use(f"a call of the device function {self.name}", False)
        match = self._match(args)
        if isinstance(match, str):
            raise type_error(f"{self.name}: {match}", f"it is declared as {self!r}")
        return self.call(match.arguments)

    def _match(self, args: Sequence[object]) -> _Match | str:
        """Return how many steps arguments are from the parameters, and values of the parameters' types; or what does
        not fit."""
        if len(args) != len(self.params_types):
            return f"takes {len(self.params_types)} arguments, got {len(args)}"
        steps = 0
        values: _Arguments = []
        for number, (kind, argument) in enumerate(zip(self.params_types, args, strict=True), 1):
            if is_constexpr(kind):
                values.append(ConstValue(argument))
                continue
            fits = _argument(kind, argument)
            if fits is None:
                return f"argument {number} is a {_type_name(type(argument))}, not a {_type_name(kind)}"
            steps = max(steps, fits[0])
            values.append(fits[1])
        return _Match(self, steps, values)

    def call(self, arguments: _Arguments) -> object:
        dynamic = [value() for value in arguments if not isinstance(value, ConstValue)]
        kinds = zip(self.params_types, arguments, strict=True)
        types_ = [argument if isinstance(argument, ConstValue) else kind for kind, argument in kinds]
        bound = FFI(self.name, types_, self.return_type, self.source)
        symbol = self.name if self.name_mangler is None else self.name_mangler(bound)
        values = [value for part in dynamic for value in part]
        result = None if self.return_type is None else _result_type(self.return_type)
        path, digest = ("", "") if self.source is None else _library(self.source)
        returned = external.call(symbol, values, result, path, digest)
        return self.return_type._make(returned) if isinstance(self.return_type, NumericMeta) else returned


def ffi(
    name: str, params_types: Sequence[object] = (), return_type: object = None, source: BitCode | None = None
) -> FFI:
    """Return a device function from outside, which kernels call.

    Args:
        name: its name in C. A function in C++ has a mangled one.
        params_types: the types of its parameters, as of `FFI`.
        return_type: the type of its result, None without one.
        source: the `BitCode` that defines it. Without one it is looked for in `LinkLibraries` and in libdevice.
    """
    return FFI(name, params_types, return_type, source)


class _Match(NamedTuple):
    """How arguments fit the parameters of a function."""

    function: FFI
    steps: int
    """How far they are from the parameters' types; 0: they are of these types."""
    arguments: _Arguments


class _Extern:
    """A declared function: the overloads of one name, of which a call takes the one that its arguments fit best."""

    __kiln_static__ = True

    def __init__(self, function: types.FunctionType, declared: Sequence[_Declaration]) -> None:
        functools.update_wrapper(self, function)
        self._declared = declared

    @tracing.at_one_location
    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function, inside a kernel."""
        if tracing.current() is None:
            raise tracing.outside_use(f"a call of the device function {self.__name__}", False)  # type: ignore[attr-defined]
        best: _Match | None = None
        refusals: list[str] = []
        for declaration in self._declared:
            try:
                arguments = declaration.signature.bind(*args, **kwargs)
            except TypeError as wrong:
                refusals.append(f"{declaration.function!r}: {wrong}")
                continue
            arguments.apply_defaults()
            match = declaration.function._match(arguments.args)
            if isinstance(match, str):
                refusals.append(f"{declaration.function!r}: {match}")
            elif best is None or match.steps < best.steps:
                best = match
        if best is None:
            name = self.__name__  # type: ignore[attr-defined]
            if len(refusals) == 1:
                raise type_error(f"{name} is declared as {refusals[0]}")
            raise type_error(f"no declaration of {name} takes these arguments:\n  " + "\n  ".join(refusals))
        return best.function.call(best.arguments)


class _Declaration:
    """One declaration; its annotations are evaluated when it is first called, since their types may need a trace."""

    def __init__(
        self,
        function: types.FunctionType,
        name: str | None,
        source: BitCode | None,
        name_mangler: Callable[[FFI], str] | None,
    ) -> None:
        self._function = function
        self._name = name or function.__name__
        self._source = source
        self._name_mangler = name_mangler
        self._ffi: FFI | None = None
        self.signature = inspect.Signature(
            [
                parameter.replace(annotation=parameter.empty)
                for parameter in inspect.signature(function).parameters.values()
            ]
        )

    @property
    def function(self) -> FFI:
        if self._ffi is None:
            self._ffi = self._make()
        return self._ffi

    def _make(self) -> FFI:
        annotations = annotations_of(self._function)
        missing = [name for name in self.signature.parameters if name not in annotations]
        if missing:
            raise type_error(
                f"{self._name}: the parameter {missing[0]!r} has no type",
                "annotate each parameter of a device function from outside",
            )
        kinds = [annotations[name] for name in self.signature.parameters]
        return FFI(self._name, kinds, annotations.get("return"), self._source, self._name_mangler)


_declared: dict[tuple[str, str], dict[int, _Declaration]] = {}
"""The declarations by module, name and line: those of one name are overloads."""


_Result = TypeVar("_Result")


@overload
def extern(
    function: Callable[..., _Result],
    *,
    name: str | None = None,
    source: BitCode | None = None,
    overloaded: bool = True,
    name_mangler: Callable[[FFI], str] | None = None,
) -> Callable[..., _Result]: ...
@overload
def extern(
    *,
    name: str | None = None,
    source: BitCode | None = None,
    overloaded: bool = True,
    name_mangler: Callable[[FFI], str] | None = None,
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]: ...
def extern(
    function: types.FunctionType | None = None,
    *,
    name: str | None = None,
    source: BitCode | None = None,
    overloaded: bool = True,
    name_mangler: Callable[[FFI], str] | None = None,
) -> Callable[..., object]:
    """Declare a device function from outside: a decorator of a function without a body.

    Its annotations are the types of parameters and result, as of `FFI`. A call takes a Python number, a number of a type
    that fits without loss, a pointer to elements of the same type, or a value of the same type of the IR.

    Args:
        function: the declared function.
        name: its name in C, by default that of the Python function. A function in C++ has a mangled one.
        source: the `BitCode` that defines it. Without one it is looked for in `LinkLibraries` and in libdevice.
        overloaded: whether declarations of one Python name in one module are overloads, of which a call takes the one
            that its arguments fit best; otherwise the last one counts.
        name_mangler: a function that returns the name to link, given an `FFI`: `cute.mangle` for C++, or one that
            takes the type from a `ConstValue` among the `params_types`.
    """
    if function is None:
        return lambda function: extern(
            function, name=name, source=source, overloaded=overloaded, name_mangler=name_mangler
        )
    declaration = _Declaration(function, name, source, name_mangler)
    if not overloaded:
        return _Extern(function, [declaration])
    overloads = _declared.setdefault((function.__module__, function.__qualname__), {})
    overloads[function.__code__.co_firstlineno] = declaration
    return _Extern(function, list(overloads.values()))


# --- types -----------------------------------------------------------------------------------------------------------

_IN_C = ("i1", "i8", "i16", "i32", "i64", "i128", "f16", "bf16", "f32", "f64")


def _type_name(kind: object) -> str:
    return "None" if kind is None else str(getattr(kind, "__name__", None) or getattr(kind, "type_name", None) or kind)


def _library(source: BitCode) -> tuple[str, str]:
    """Return the path of bitcode, and a hash of its content."""
    path = os.path.abspath(source.path)
    try:
        return path, external.digest(path)
    except OSError as reason:
        raise type_error(f"BitCode: {reason}", "the path of a file of LLVM bitcode") from None


def _ir_types(kind: object) -> list[ir.Type | PtrType]:
    """Return the IR types that a type stands for."""
    if isinstance(kind, NumericMeta):
        if str(kind.mlir_type) not in _IN_C:
            raise type_error(f"{kind.__name__} has no counterpart in C", "pass its bits as an integer")
        return [kind.mlir_type]
    if isinstance(kind, (ir.Type, PtrType)):
        return [kind]
    types_ = getattr(kind, "__get_mlir_types__", None)
    if types_ is not None:
        return list(types_())
    raise type_error(
        f"a device function from outside has a parameter of type {_type_name(kind)}",
        "annotate numeric types, `cute.Pointer`, types of the IR or objects with __get_mlir_types__",
    )


def _generic_pointer() -> ir.Type:
    return ir.Type.parse("!llvm.ptr", context())


def _result_type(kind: object) -> ir.Type:
    if kind is Pointer:
        return _generic_pointer()
    (type_,) = _ir_types(kind)
    return _generic_pointer() if isinstance(type_, PtrType) or external.is_pointer(type_) else type_


def _argument(kind: object, argument: object) -> _Fit | None:
    """Return how an argument fits a parameter, None if it does not."""
    if isinstance(kind, NumericMeta):
        return _number(kind, argument)
    if isinstance(argument, Pointer):
        return _pointer(kind, argument)
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return None
    values: list[ir.Value] = [argument] if isinstance(argument, ir.Value) else list(extract_mlir_values(argument))
    types_ = _ir_types(kind)
    matches = getattr(kind, "isinstance", None)
    if [value.type for value in values] == types_ or (matches is not None and matches(argument)):
        return 0, lambda: values
    pointers = len(types_) == len(values) == 1 and external.is_llvm_pointer(types_[0], values[0].type)
    return (1, lambda: [external.as_generic(values[0])]) if pointers else None


def _pointer(kind: object, pointer: Pointer) -> _Fit | None:
    """Return how a pointer fits a parameter: device functions take all pointers as generic ones."""
    (type_,) = (kind,) if kind is Pointer else _ir_types(kind)
    parts = _pointer_parts(type_)
    if parts is None or parts[0] not in (None, pointer.dtype.mlir_type):
        return None
    steps = 0 if parts[1] in ("", pointer.memspace.name) else 1
    return steps, lambda: [external.as_generic(pointer.to_llvm_ptr())]


def _pointer_parts(type_: object) -> tuple[ir.Type | None, str] | None:
    """Return element type and memory space of a type of pointers, None and empty where any will do; None for others."""
    if isinstance(type_, PtrType):
        return getattr(type_.value_type, "mlir_type", type_.value_type), type_.address_space.name
    if external.is_pointer(type_):
        return external.pointer_parts(type_)
    return (None, "") if type_ is Pointer or external.is_llvm_pointer(type_) else None


def _number(kind: NumericMeta, argument: object) -> _Fit | None:
    """Return how a number fits a numeric parameter: without loss."""
    _ir_types(kind)
    if isinstance(argument, ir.Value):
        value: ir.Value = argument
        return (1, lambda: [value]) if value.type == kind.mlir_type else None
    if isinstance(argument, (bool, int, float)):
        steps = _steps_of_python(kind, argument)
    elif not isinstance(argument, Numeric):
        return None
    elif type(argument) is kind:
        steps = 0
    elif type(argument).mlir_type == kind.mlir_type:
        steps = 1
    else:
        steps = 3 if _holds(kind, type(argument)) else None
    return None if steps is None else (steps, lambda: [kind(argument).ir_value()])


def _steps_of_python(kind: NumericMeta, number: float) -> int | None:
    """Return how far a Python number is from a numeric type, None if it does not fit."""
    if isinstance(kind, IntegerMeta):
        if isinstance(number, float) or not kind.min <= number <= kind.max:
            return None
        return 1 if kind is (Boolean if isinstance(number, bool) else Int32) else 2
    return 4 if isinstance(number, int) else 1 if kind is Float32 else 2


def _holds(kind: NumericMeta, source: NumericMeta) -> bool:
    """Return whether a type has all numbers of another one of its kind."""
    if isinstance(kind, IntegerMeta):
        return isinstance(source, IntegerMeta) and kind.min <= source.min and source.max <= kind.max
    return isinstance(source, FloatMeta) and kind.width > source.width


# --- names in C++ ----------------------------------------------------------------------------------------------------

_LETTERS = {
    "Boolean": "b",
    "Int8": "a",
    "Uint8": "h",
    "Int16": "s",
    "Uint16": "t",
    "Int32": "i",
    "Uint32": "j",
    "Int64": "l",
    "Uint64": "m",
    "Int128": "n",
    "Uint128": "o",
    "Float32": "f",
    "Float64": "d",
    "Float16": "6__half",
    "BFloat16": "13__nv_bfloat16",
}


def mangle(function: FFI) -> str:
    """Return the name of a function in C++, as clang and nvcc mangle it: `scale(float, int)` is `_Z5scalefi`.

    Int64 is `long`, Float16 is `__half`; a pointer without an element type is `void*`, a structure has its class's name.

    Args:
        function: the function; its `name` may be in namespaces, as `lib::scale`.
    """
    parts = "".join(f"{len(part)}{part}" for part in function.name.split("::"))
    substitutions: list[str] = []
    if "::" in function.name:
        scopes = function.name.split("::")[:-1]
        for count in range(1, len(scopes) + 1):
            substitutions.append("".join(f"{len(part)}{part}" for part in scopes[:count]))
        parts = f"N{parts}E"
    letters = "".join(_mangled(kind, substitutions) for kind in function.params_types)
    return f"_Z{parts}{letters or 'v'}"


def _mangled(kind: object, substitutions: list[str]) -> str:
    if isinstance(kind, ConstValue):
        raise type_error("cute.mangle: C++ has no Constexpr parameters", "write a name_mangler of your own")
    if isinstance(kind, NumericMeta):
        letters = _LETTERS[kind.__name__]
        return letters if len(letters) == 1 else _again(letters, letters, substitutions)
    types_ = [None] if kind is Pointer else _ir_types(kind)
    if len(types_) == 1 and (
        types_[0] is None or isinstance(types_[0], PtrType) or external.is_llvm_pointer(types_[0])
    ):
        element = getattr(types_[0], "value_type", None)
        pointee = "v"
        if element is not None:
            pointee = _mangled(
                element if isinstance(element, NumericMeta) else NumericMeta.from_mlir_type(element), substitutions
            )
        whole = f"P{pointee}"
        return _again(whole, whole, substitutions)
    name = _type_name(kind)
    return _again(f"{len(name)}{name}", f"{len(name)}{name}", substitutions)


def _again(key: str, text: str, substitutions: list[str]) -> str:
    """Return the text of a type, or a reference to where it stood before."""
    if key in substitutions:
        place = substitutions.index(key)
        return "S_" if not place else f"S{place - 1}_"
    substitutions.append(key)
    return text


class _Module(types.ModuleType):
    """`cute.ffi` is this module and the function `ffi` in one."""

    def __call__(
        self, name: str, params_types: Sequence[object] = (), return_type: object = None, source: BitCode | None = None
    ) -> FFI:
        return ffi(name, params_types, return_type, source)


sys.modules[__name__].__class__ = _Module
