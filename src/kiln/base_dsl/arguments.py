"""Arguments of calls: which parts are known while tracing, and which are passed to the compiled function.

Each argument becomes a node. A node has a key (equal keys share compiled code), the MLIR types of its leaves,
the leaves of a concrete value in the machine's format, and a way to stand for block arguments inside a trace.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import struct
import types
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from . import merging, packages, promises, trace, tree
from .bindings import context, ir
from .diagnostics import type_error
from .numeric.host import in_range
from .static_key import static_key
from .target import value_bytes
from .tree import attributes_of, is_dynamic
from .typing import Boolean, Float32, Int32, Int64, Integer, Numeric, is_constexpr

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import TypeGuard


AMBIENT_STREAM = "(stream)"
"""The name of a hidden argument: the stream of launches that name none. Calls do not pass it."""

WORKSPACE = "(workspace)"
"""The name of a hidden argument: memory of kernels that need some. Calls of compiled functions pass it last."""

ONE_SYMBOL = "both were compiled as one symbol"
"""The end of the error message for extents or strides that share a symbol and differ in a call."""
TOO_MANY = "compile for extents of sym_int64()"
"""The end of the error message for a tensor with more elements than its extents multiply to in 32 bits."""
ARGUMENT_CHECKS = (ONE_SYMBOL, TOO_MANY)
"""The ends of error messages of compiled code that say that arguments do not fit."""


class Node:
    """An argument, or a part of one."""

    key: Hashable
    formats: str = ""
    """struct formats of the leaves, each a multiple of 8 bytes."""
    ambient: Callable[[], Any] | None = None
    """Returns what to pass for a call that leaves the argument out; None: the argument is required."""
    is_stream: bool = False
    """Whether its leaf is the handle of the stream that kernels are launched on."""
    is_array: bool = False
    """Whether the first leaf is the address of an array, on whose device kernels are launched."""

    def types(self) -> list[ir.Type]:
        """Return the MLIR types of the leaves."""
        return []

    def leaves(self) -> list[Any]:
        """Return the leaves of a value given from Python, as `struct` packs them."""
        return []

    def values(self) -> list[ir.Value]:
        """Return the leaves of a value that exists in a trace."""
        return []

    strength: int = 0
    """How much the key says about the value beyond what it must: of two keys that fit a value, the stronger is better."""

    def fit(self, expected: Hashable) -> Node | str:
        """Return this argument as code compiled for the key `expected` takes it, or why it cannot ("": by keys)."""
        return ""

    def specialized(self) -> Node:
        """Return the argument with the facts about its value in its key that make code faster; the same leaves."""
        return self

    def adapter(self) -> Callable[[Any], Any] | None:
        """Return what makes of an element in a call's tuple what it was in the one that was compiled for; None: as it is."""
        return None

    def view(self) -> Callable[[object], object] | None:
        """Return what makes of an argument of a compiled function what it takes it for; None: it stays as it is."""
        return None

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        """Return the argument as the traced function sees it."""
        raise NotImplementedError

    def static_values(self) -> list[Any]:
        """Return what is known of it while tracing: values, and classes whose methods may be called."""
        return []


class StaticNode(Node):
    """A Python object known while tracing, passed by reference."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def key(self) -> Hashable:  # type: ignore[override]
        return static_key(self.value)

    def adapter(self) -> Callable[[Any], Any] | None:
        """None stands for what was compiled in."""
        return lambda value: self.value if value is None else value

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self.value

    def static_values(self) -> list[Any]:
        return [self.value]


def number_format(kind: type[Numeric]) -> str:
    """Return the struct format of a number's slot; types that struct does not know are packed as their bits."""
    return kind._struct_format.lstrip("<") or ("16s" if kind.width > 64 else "8s")


def number_leaf(kind: type[Numeric], value: Any) -> Any:
    """Return a number as `number_format` packs it."""
    if isinstance(value, Numeric):
        value = value.to(kind).value
    if not kind._struct_format:
        return kind._pack(value)
    return float(value) if kind.is_float else value


class SymbolKey(NamedTuple):
    """The key of a symbolic integer, for which a function is compiled: calls pass numbers of this type."""

    kind: type[Numeric]


class NumericNode(Node):
    """A number of the object program."""

    def __init__(self, kind: type[Numeric], value: Any) -> None:
        self.kind = kind
        self.value = value
        self.key: type[Numeric] = kind
        self.formats: str = number_format(kind)

    def types(self) -> list[ir.Type]:
        return [self.kind.mlir_type]

    def leaves(self) -> list[Any]:
        return [number_leaf(self.kind, self.value)]

    def fit(self, expected: Hashable) -> Node | str:
        """Return an integer as the one that was compiled for a symbol, if it fits."""
        kind: Any = expected.kind if isinstance(expected, SymbolKey) else None
        if kind is None or self.kind is Boolean or not self.kind.is_integer:
            return ""
        if type(self.value) is not int:
            return NumericNode(kind, self.value) if self.kind is kind else ""
        if not kind.min <= self.value <= kind.max:
            return f"it is {self.value}, and {kind.__name__} goes from {kind.min} to {kind.max}"
        return NumericNode(kind, self.value)

    def values(self) -> list[ir.Value]:
        return [self.kind(self.value).ir_value()]

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self.kind._make(next(values))


class ProtocolNode(Node):
    """An object with the protocol for arguments: `__get_mlir_types__`, `__c_pointers__`."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._pointers: Any = None
        self._types: list[ir.Type] | None = None

    @property
    def key(self) -> Hashable:  # type: ignore[override]
        own = getattr(type(self.value), "__kiln_key__", None)
        static = own(self.value) if own is not None else _static_attributes(self.value)
        return (type(self.value), tuple(str(t) for t in self.types()), static)

    def types(self) -> list[ir.Type]:
        if self._types is None:
            with context(), ir.Location.unknown():
                if hasattr(self.value, "__get_mlir_types__"):
                    self._types = list(self.value.__get_mlir_types__())
                else:
                    self._types = [v.type for v in tree.values_of(self.value)]
        return self._types

    @property
    def formats(self) -> str:  # type: ignore[override]
        sizes = [value_bytes(t) for t in self.types()]
        return "".join(f"{size}s{-size % 8}x" for size in sizes)

    def leaves(self) -> list[Any]:
        pointers = self._pointers = self.value.__c_pointers__()  # may hold what the bytes at them refer to
        if len(pointers) != len(self.types()):
            raise TypeError(
                f"{type(self.value).__name__}.__c_pointers__ gives {len(pointers)} addresses for {len(self.types())} MLIR types"
            )
        addresses = [_address(p) for p in pointers]
        if not all(addresses):
            raise type_error(
                f"{type(self.value).__name__}.__c_pointers__ gives a null address",
                "what has no memory, as a fake tensor, can be compiled for and not be passed in a call",
            )
        return [ctypes.string_at(a, value_bytes(t)) for a, t in zip(addresses, self.types(), strict=True)]

    def values(self) -> list[ir.Value]:
        return list(tree.values_of(self.value))

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        rebuilt = tree.rebuilt(self.value, [next(values) for _ in self.types()])
        return trace.require("an argument").dsl.value_of(rebuilt) if tree.is_mlir_value(rebuilt) else rebuilt

    def static_values(self) -> list[Any]:
        return [type(self.value)]


def _static_attributes(value: object) -> Hashable:
    """Return the static attributes of an object that is passed as values: strings, types, functions, enum members."""
    attributes = attributes_of(value)
    return tuple((name, static_key(x)) for name, x in attributes.items() if isinstance(x, _STATIC_KINDS))


def _address(pointer: Any) -> int:
    if isinstance(pointer, int):
        return pointer
    if isinstance(pointer, ctypes.c_void_p):
        return pointer.value or 0
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


class ValuesNode(Node):
    """An object in a trace that consists of MLIR values, or has some in its attributes."""

    key: tuple[()] = ()

    def __init__(self, values: list[ir.Value], rebuild: Callable[[Iterator[ir.Value]], Any]) -> None:
        self._values = values
        self._rebuild = rebuild

    def types(self) -> list[ir.Type]:
        return [v.type for v in self._values]

    def values(self) -> list[ir.Value]:
        return self._values

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self._rebuild(values)


class GroupNode(Node):
    """A tuple, list, dict, NamedTuple or dataclass of arguments."""

    has_named_parts = True
    """Whether reports name its parts (`x[0]`), and not only the whole."""

    def __init__(self, tag: Any, children: list[Node], make: Callable[[list[Any]], Any]) -> None:
        self.children = children
        self._make = make
        self._tag = tag
        self.formats: str = "".join(c.formats for c in children)

    @property
    def key(self) -> Hashable:  # type: ignore[override]
        return (self._tag, *(c.key for c in self.children))

    def types(self) -> list[ir.Type]:
        return [t for c in self.children for t in c.types()]

    def leaves(self) -> list[Any]:
        return [leaf for c in self.children for leaf in c.leaves()]

    def values(self) -> list[ir.Value]:
        return [v for c in self.children for v in c.values()]

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self._make([c.rebuild(values) for c in self.children])

    def fit(self, expected: Hashable) -> Node | str:
        """Return the group with all elements fitted."""
        if type(expected) is not tuple or len(expected) != 1 + len(self.children) or expected[0] != self._tag:
            return ""
        tag, *keys = expected
        children: list[Node] = []
        for number, (child, key) in enumerate(zip(self.children, keys, strict=True)):
            fitted = child if child.key == key else child.fit(key)
            if isinstance(fitted, str):
                return fitted and f"element {number}: {fitted}"
            children.append(fitted)
        return GroupNode(tag, children, self._make)

    @property
    def strength(self) -> int:  # type: ignore[override]
        return sum(c.strength for c in self.children)

    def specialized(self) -> Node:
        """Return the group with all elements specialised."""
        children = [c.specialized() for c in self.children]
        if all(a is b for a, b in zip(children, self.children, strict=True)):
            return self
        return GroupNode(self._tag, children, self._make)

    def adapter(self) -> Callable[[Any], Any] | None:
        """A plain tuple, from callers that know no other, becomes the named tuple."""
        kind = self._tag
        parts = [child.adapter() for child in self.children]
        if kind is not tuple and not (isinstance(kind, type) and hasattr(kind, "_fields")):
            return None

        def adapt(value: object) -> Any:
            if not isinstance(value, (tuple, list)) or len(value) != len(parts):
                return value
            elements = [x if part is None else part(x) for x, part in zip(value, parts, strict=True)]
            return tuple(elements) if kind is tuple else kind(*elements)

        return adapt

    def static_values(self) -> list[Any]:
        kind = self._tag[0] if type(self._tag) is tuple else self._tag
        return [kind, *(value for c in self.children for value in c.static_values())]


_adapters: dict[object, Callable[..., object]] = {}
_scoped_adapters: dict[object, Callable[..., object]] = {}
"""Those that were registered with a scope, which come first."""


def register_jit_arg_adapter(
    *kinds: object, python_type: object = None, scope: str | None = None, lazy: bool = False
) -> Callable[[Any], Any]:
    """Decorate a class or function that wraps arguments of some types in a `JitArgument`.

    Args:
        kinds: the types.
        python_type: one more type, as CuTe DSL names it.
        scope: a name; adapters that have one come before those without.
        lazy: types are text, such as "torch.Tensor", and need not have been imported.
    """
    every = (*kinds, *((python_type,) if python_type is not None else ()))
    for kind in every:
        if not isinstance(kind, str if lazy else type):
            rule = 'the name of a type with its module, such as "torch.Tensor"' if lazy else "a type"
            raise type_error(f"register_jit_arg_adapter(lazy={lazy}) takes {rule}, got {kind!r}")
    if type(scope) not in (str, type(None)):
        raise type_error(f"scope is {scope!r}", "None or a name")
    adapters = _adapters if scope is None else _scoped_adapters

    def register(adapter: Any) -> Any:
        adapters.update((kind, adapter) for kind in every)
        return adapter

    return register


class JitArgAdapterRegistry:
    """The types of arguments that are wrapped before they cross into a compiled function, and what wraps them."""

    register_jit_arg_adapter = staticmethod(register_jit_arg_adapter)

    @staticmethod
    def get_registered_adapter(kind: type) -> Callable[[object], object] | None:
        """Return the adapter registered for a type or one of its bases, or None."""
        return find_adapter(kind)


def find_adapter(kind: type) -> Callable[..., object] | None:
    """Return the adapter registered for a type or one of its bases."""
    for base in kind.__mro__:
        for key in (base, f"{base.__module__}.{base.__qualname__}"):
            adapter = _scoped_adapters.get(key) or _adapters.get(key)
            if adapter is not None:
                return adapter
    return None


_STATIC_KINDS = (
    str,
    bytes,
    type,
    enum.Enum,
    type(None),
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)


Quick = typing.Callable[[Any], "tuple[Hashable, tuple[Any, ...]] | None"]


def _quick_number(kind: Any) -> Quick:
    if kind.is_float:
        return lambda value: (kind, (value,)) if in_range(kind, value) else None
    low = kind.min
    high = kind.max
    return lambda value: (kind, (value,)) if low <= value <= high else None


def is_named_tuple(value: object) -> bool:
    """Return whether a value is a tuple whose elements have names."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def _field_annotation(value: object, annotation: object) -> Any:
    """Return the annotation of a field for a value: none for one that is left out, and without None for others."""
    return None if value is None else promises.without_none(annotation)[0]


class ArgumentRules:
    """The rules by which a language takes arguments. A language overrides `convert` to add its own kinds."""

    @functools.cached_property
    def _promised(self) -> dict[int, tuple[Any, promises.Kinds | None, Callable[[Any], bool] | None]]:
        """The kinds that annotations promise, by the annotations' ids."""
        return {}

    def kind_of(self, value: object) -> str:
        """Return the kind of a value (see `promises`), empty for what annotations do not judge."""
        return promises.kind_of(value)

    def own_promise(self, annotation: object) -> promises.Kinds | None:
        """Return the kinds of values that an annotation of this language allows; None for other annotations."""
        return None

    def promised(self, annotation: object) -> promises.Kinds | None:
        """Return the kinds of values that an annotation allows; None if it excludes nothing."""
        return self._promise(annotation)[1]

    def _promise(self, annotation: object) -> tuple[Any, promises.Kinds | None, Callable[[Any], bool] | None]:
        promise = self._promised.get(id(annotation))
        if promise is None or promise[0] is not annotation:  # the entry keeps the annotation, so the id is not reused
            own = self.own_promise
            promise = (annotation, promises.kinds_promised(annotation, own), promises.judge_of(annotation, own))
            self._promised[id(annotation)] = promise
        return promise

    def judges_values(self, annotation: object) -> bool:
        """Return whether an annotation excludes some values of a type and not others."""
        return self._promise(annotation)[2] is not None

    def breaks(self, value: object, annotation: object) -> bool:
        """Return whether an annotation excludes a value."""
        _, promised, judge = self._promise(annotation)
        if promised is not None:
            kind = self.kind_of(value)
            if kind and kind not in promised:
                return True
        return judge is not None and judge(value)

    def convert(self, value: object, annotation: object) -> Node | None:
        """Return a node for a kind of value of this language, or None."""
        return None

    def read_annotations(self, annotations: dict[str, Any]) -> dict[str, Any]:
        """Return the annotations of a function's parameters as the rules know them; they may depend on each other."""
        return annotations

    def seen_as(self, annotation: object) -> Callable[[Any], Any] | None:
        """Return the function from a value in a trace to what a parameter annotated so gets; None: the value itself."""
        return None

    def check(self, value: object, annotation: object, path: str, owner: str = "") -> None:
        """Raise an error for a value that an annotation excludes."""
        if self.breaks(value, annotation):
            raise promises.broken(value, annotation, path, owner)

    def quick(self, kind: type, annotation: object, specialize: bool = False) -> Quick | None:
        """Return a function from values of exactly this type to (key, leaves), without a node; None if there is none.

        For a value it may return None: then the node decides. It must agree with the node, or with what the node's
        `specialized` gives.
        """
        if annotation is not None and self.is_static_annotation(annotation):
            return lambda value: (static_key(value), ())
        if kind in (int, bool, float):
            declared = annotation if is_numeric_type(annotation) else None
            if annotation is not None and declared is None:
                return None
            if declared is not None and not (declared._struct_format and (kind is not float or declared.is_float)):
                return None
            return _quick_number(declared or {int: Int32, bool: Boolean, float: Float32}[kind])
        own = getattr(kind, "__kiln_argument__", None)
        if (own is not None and annotation is None) or (isinstance(annotation, type) and own is not None):
            return own
        if kind in (str, type(None)) or issubclass(kind, (enum.Enum, type)):
            return lambda value: (static_key(value), ())
        return None

    def is_static_annotation(self, annotation: object) -> bool:
        """Return whether numbers under this annotation are known while tracing."""
        return is_constexpr(annotation)

    def node(self, value: Any, annotation: object, path: str) -> Node:
        """Return the node of an argument."""
        if packages.is_numpy_scalar(type(value)) and not self.is_static_annotation(annotation):
            value = value.item()
        if annotation is not None:
            self.check(value, annotation, path)
            if self.is_static_annotation(annotation):
                if is_dynamic(value):
                    raise type_error(
                        f"argument {path!r} is {promises.name_of(annotation)}, known when compiling, and got a value "
                        "that is only known when the program runs",
                        f"annotate it with the type of the value: {path}: {type(value).__name__}",
                    )
                return StaticNode(value)
        kind = type(value)
        if kind is int or kind is float or kind is bool:
            return NumericNode(self._number_type(value, annotation, path), value)
        if isinstance(value, Numeric):
            if is_dynamic(value) and not _in_trace():
                raise trace.outside_use("an argument", True)
            return NumericNode(annotation if is_numeric_type(annotation) else type(value), value)
        if isinstance(value, _STATIC_KINDS):
            return StaticNode(value)
        own = self.convert(value, annotation)
        if own is not None:
            return own
        adapter = find_adapter(kind)
        if adapter is not None:
            return ProtocolNode(adapter(value))
        # An object with only `__extract_mlir_values__` consists of values in a trace; outside it is taken for its fields,
        # and so is a named tuple, whatever protocols it has: its annotations say what they are.
        if (
            hasattr(kind, "__new_from_mlir_values__")
            and not (is_named_tuple(value) and not _in_trace())
            and (hasattr(kind, "__get_mlir_types__") or (hasattr(kind, "__extract_mlir_values__") and _in_trace()))
        ):
            return ProtocolNode(value)
        if isinstance(value, (tuple, list, dict)):
            return self._container(value, annotation, path)
        if dataclasses.is_dataclass(value):
            return self._dataclass(value, path)
        if callable(value) or hasattr(value, "__dict__") or hasattr(kind, "__slots__"):
            return self._object(value)
        raise type_error(
            f"argument {path!r} of type {kind.__module__}.{kind.__qualname__} cannot be passed to a compiled function",
            "pass numbers, tensors, tuples or dataclasses of them; annotate it Constexpr if it is known when compiling; "
            "or give its class __get_mlir_types__, __c_pointers__ and __new_from_mlir_values__",
        )

    def _object(self, value: object) -> Node:
        """Return the node of a plain instance: passed by reference, except for the values of the program in it.

        One that contains itself is passed by reference as a whole: a kernel that uses a value of the caller in it is
        refused there.
        """
        if trace.current() is None or not tree.has_dynamic(value):
            return StaticNode(value)
        try:
            _, values, rebuild = merging.open_value(value, promote=False)
        except merging.ContainsItself:
            return StaticNode(value)
        return ValuesNode(values, rebuild)

    def _number_type(self, value: Any, annotation: Any, path: str) -> type[Numeric]:
        if is_numeric_type(annotation):
            if isinstance(value, float) and annotation.is_integer:
                raise type_error(
                    f"argument {path!r} takes {annotation.__name__} and got the float {value!r}",
                    f"pass an integer, or annotate {path!r} with a float type",
                )
            if issubclass(annotation, Integer) and not annotation.min <= value <= annotation.max:
                raise type_error(
                    f"argument {path!r} takes {annotation.__name__} and got {value!r}, which lies outside its range "
                    f"({annotation.min} to {annotation.max})",
                    "annotate it with a wider type, or convert it to wrap around on purpose",
                )
            if annotation.is_float and not in_range(annotation, value):
                raise _float_range(annotation, value, path)
            return annotation
        if annotation is int and not isinstance(value, float):
            return _int_type(value, path)
        if isinstance(value, bool) and annotation is not float:
            return Boolean
        if isinstance(value, int) and annotation is not float:
            return _int_type(value, path)
        if not in_range(Float32, value):
            raise _float_range(Float32, value, path)
        return Float32

    def _container(self, value: Any, annotation: object, path: str) -> Node:
        if not isinstance(value, tuple):
            value = value.copy()  # another thread may change it
        inner = element_annotations(annotation, value)
        if isinstance(value, dict):
            keys = list(value)
            children = [self.node(value[k], None, f"{path}[{k!r}]") for k in keys]
            return GroupNode(
                (dict, *map(static_key, keys)), children, lambda parts: dict(zip(keys, parts, strict=True))
            )
        fields: Any = getattr(value, "_fields", None)
        if fields is not None:
            hints = promises.annotations_of(type(value))
            named = zip(fields, value, strict=True)
            children = [self.node(v, _field_annotation(v, hints.get(k)), f"{path}.{k}") for k, v in named]
            return GroupNode(type(value), children, lambda parts: type(value)(*parts))
        children = [self.node(v, a, f"{path}[{i}]") for i, (v, a) in enumerate(zip(value, inner, strict=True))]
        if isinstance(value, list):
            return GroupNode(list, children, list)
        return GroupNode(tuple, children, tuple)

    def _dataclass(self, value: object, path: str) -> Node:
        hints = promises.annotations_of(type(value))
        attributes = tree.attributes_of(value)
        children = [self.node(v, None if v is None else hints.get(k), f"{path}.{k}") for k, v in attributes.items()]
        return GroupNode(
            (type(value), *attributes),
            children,
            lambda parts: tree.copy_with(value, dict(zip(attributes, parts, strict=True))),
        )


def _in_trace() -> bool:
    return trace.current() is not None


def _float_range(kind: type[Numeric], value: Any, path: str) -> Exception:
    shown = repr(value) if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
    return type_error(
        f"argument {path!r} takes {kind.__name__} and got {shown}, which lies outside its range",
        f"annotate it with a wider type, or pass {kind.__name__}(...) to have it converted on purpose",
    )


def _int_type(value: int, path: str) -> type[Numeric]:
    if -(1 << 31) <= value < 1 << 31:
        return Int32
    if MIN64 <= value <= MAX64:
        return Int64
    shown = str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    raise type_error(
        f"argument {path!r} is {shown}, and an int without a type of its own is passed as Int32 or Int64",
        f"annotate {path!r} with a type that has it (Uint64, Int128, Uint128), or with Constexpr",
    )


MIN64 = -(1 << 63)
MAX64 = (1 << 63) - 1


def is_numeric_type(annotation: object) -> TypeGuard[type[Numeric]]:
    """Return whether an annotation is a type of numbers of the object program."""
    return isinstance(annotation, type) and issubclass(annotation, Numeric) and not annotation._abstract


def element_annotations(annotation: object, elements: Any) -> list[Any]:
    """Return the annotations for the elements of a tuple or list, which are values or their keys.

    Where a shape has a mode (a tuple) and `Tuple[Int32, Int32]` names a number, the number is each of the mode's.
    """
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (tuple, list) and arguments:
        if origin is list or arguments[1:] == (Ellipsis,):
            return [arguments[0]] * len(elements)
        if len(arguments) == len(elements):
            return [
                tuple[inner, ...] if isinstance(element, tuple) and is_numeric_type(inner) else inner
                for inner, element in zip(arguments, elements, strict=True)
            ]
    return [None] * len(elements)


def slot_struct(formats: str) -> struct.Struct:
    """Return the packer of a call's leaves."""
    return struct.Struct("<" + formats)
