"""Keys of static values: equal keys mean that the same code would be traced.

A value is in a key by its content only where the whole state of its type is known: builtin types, and classes written
in Python on top of them, whose instances have nothing but what their base keeps, `__dict__` and `__slots__`. Everything
else is in it by its own `__hash__` and `__eq__` where its class defines both, else by identity, and is kept alive: an
address is reused, a living object's is not.
"""

from __future__ import annotations

import collections
import contextvars
import ctypes
import enum
import functools
import operator
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from . import packages
from .numeric.meta import NumericMeta
from .tree import is_mlir_type

_PLAIN = frozenset((int, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented)))
"""Types whose instances tell all there is to know by `==`."""


class Identity:
    """Equal only to the key of the very same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value: Any = value

    def __hash__(self) -> int:
        return id(self.value) >> 4

    def __eq__(self, other: object) -> bool:
        return type(other) is Identity and self.value is other.value

    def __repr__(self) -> str:
        return f"Identity({type(self.value).__name__})"


class Met:
    """Parts found on a walk that can change while the key of the whole stays the same, or that lead to code.

    `stops` tells the classes whose objects are not looked into. Of objects of the classes for which `reads` returns
    something, only the attributes that it names count, and which object it is.
    """

    def __init__(
        self,
        stops: Callable[[type], bool] | None = None,
        reads: Callable[[type], Callable[[str], bool] | None] | None = None,
    ) -> None:
        self.stops = stops
        self.reads = reads
        self.objects = False
        """Whether there are objects with attributes."""
        self.skipped = False
        """Whether attributes were left out."""
        self.functions: list[types.FunctionType] = []
        self.classes: list[type] = []
        self.modules: list[types.ModuleType] = []
        self.traced: list[Any] = []
        """Functions of the language."""
        self.members: list[enum.Enum] = []
        """Members of enumerations."""
        self.opaque: list[Any] = []
        """Objects known only by their identity."""
        self.changeable = False
        """Whether the same object may have another key later."""


def static_key(x: object, met: Met | None = None) -> Hashable:
    """Return a hashable key of a Python object known while tracing. Cycles are fine."""
    kind = type(x)
    if kind in _PLAIN:
        return (kind, x)
    walk = _Walk(met or Met())
    key = walk.key(x)
    return (key, *walk.later()) if walk.postponed else key


class _Layout(NamedTuple):
    """Where the instances of a class keep their state."""

    kind: Hashable
    """The class, as part of a key."""
    content: Callable[[_Walk, Any], Hashable] | None
    """Reads the part of the state that is no attribute; None if there is none."""
    attributes: Any
    """The descriptor of `__dict__`, or None."""
    slots: tuple[tuple[str, Any], ...]
    """Names and descriptors of slots."""
    is_plain: bool
    """Whether there are only attributes."""
    is_bare: bool
    """Whether an object without attributes is nothing but itself: its class has no methods (it is a sentinel), or has
    descriptors that keep elsewhere what is assigned."""


_makers: dict[int, tuple[Any, type, tuple[type, ...]]] = {}
"""By the address of a type, what makes the keys of its instances, the type (its metaclass may say what equality is)
and its bases, which may change."""
_MOST_MAKERS = 1024
_MOST_NESTED = 32
"""Objects inside others up to which keys are nested as the objects are."""


class _Walk:
    """The walk that makes one key. Objects met again are numbered: it can matter that two parts are one object."""

    def __init__(self, met: Met) -> None:
        self.met = met
        self._seen: dict[int, tuple[int, Any]] = {}
        self._depth = 0
        self.postponed: list[tuple[Any, _Layout]] = []
        """Objects too deep inside others for recursion, whose keys `later` makes."""

    def later(self) -> Iterator[Hashable]:
        """Yield the keys of postponed objects, also of those that are found meanwhile."""
        for x, layout in self.postponed:
            self._depth = 0
            yield self.object(x, layout)

    def key(self, x: Any) -> Hashable:
        kind = type(x)
        if kind in _PLAIN:
            return (kind, x)
        if kind is float:
            return (kind, _bits(x))
        seen = self._seen.get(id(x))
        if seen is not None:
            return ("again", seen[0])
        self._seen[id(x)] = (len(self._seen), x)  # kept alive, so that its address is not reused
        if kind is tuple:
            return (kind, *map(self.key, x))
        make = _makers.get(id(kind))
        if make is None or make[2] is not kind.__mro__:
            if len(_makers) >= _MOST_MAKERS:
                _makers.clear()
            make = _makers[id(kind)] = (_maker_of(kind), kind, kind.__mro__)
        return make[0](self, x)

    def keys(self, items: Iterable[object]) -> tuple[Hashable, ...]:
        return tuple(map(self.key, items))

    def class_(self, x: type) -> Hashable:
        self.met.classes.append(x)
        return Identity(x)

    def module(self, x: types.ModuleType) -> Hashable:
        self.met.modules.append(x)
        return Identity(x)

    def object(self, x: object, layout: _Layout) -> Hashable:
        """Return the key of an instance of a class whose layout is known."""
        self.met.classes.append(type(x))
        if layout.is_plain and self.met.stops is not None and self.met.stops(type(x)):
            self.met.opaque.append(x)
            return Identity(x)
        content = layout.content(self, x) if layout.content is not None else None
        if layout.attributes is None and not layout.slots:
            return (layout.kind, content)
        self.met.changeable = True
        if self._depth == _MOST_NESTED:
            self.postponed.append((x, layout))
            return ("later", self._seen[id(x)][0])
        self.met.objects |= layout.is_plain
        reads = self.met.reads(type(x)) if self.met.reads is not None and layout.is_plain else None
        self._depth += 1
        if reads is not None:
            some = self._named(x, layout, reads)
            self._depth -= 1
            return (layout.kind, Identity(x), some)
        attributes = self._attributes(x, layout)
        slots = self._slots(x, layout)
        self._depth -= 1
        if layout.is_bare and attributes is None and not slots:
            return (layout.kind, Identity(x))
        return (layout.kind, content, attributes, slots)

    def _attributes(self, x: object, layout: _Layout) -> Hashable:
        if layout.attributes is None:
            return None
        attributes = layout.attributes.__get__(x)
        return tuple((name, self.key(attributes[name])) for name in sorted(attributes, key=str)) if attributes else None

    def _named(self, x: object, layout: _Layout, reads: Callable[[str], bool]) -> Hashable:
        """Return the key of the attributes that may be read."""
        attributes = layout.attributes.__get__(x) if layout.attributes is not None else {}
        slots = [(name, slot) for name, slot in layout.slots if reads(name.rpartition(".")[2])]
        names = [name for name in attributes if type(name) is not str or reads(name)]
        self.met.skipped |= len(names) != len(attributes) or len(slots) != len(layout.slots)
        parts: list[Hashable] = [(name, self.key(attributes[name])) for name in sorted(names, key=str)]
        for name, slot in slots:
            try:
                parts.append((name, self.key(slot.__get__(x))))
            except AttributeError:
                pass
        return tuple(parts)

    def _slots(self, x: object, layout: _Layout) -> Hashable:
        held: list[Hashable] = []
        for name, descriptor in layout.slots:
            try:
                held.append((name, self.key(descriptor.__get__(x))))
            except AttributeError:
                pass
        return tuple(held)

    def opaque(self, x: object) -> Hashable:
        """Return the key of anything else."""
        kind = type(x)
        self.met.classes.append(kind)
        self.met.opaque.append(x)
        if kind.__hash__ not in (None, object.__hash__) and kind.__eq__ is not object.__eq__:
            try:
                hash(x)
            except Exception:
                return Identity(x)
            return (kind_key(kind), x)
        return Identity(x)

    def by_its_word(self, x: Any) -> Hashable:
        """Return the key of an object that defines its own."""
        if getattr(type(x), "__kiln_traced__", False):
            self.met.traced.append(x)
        return (kind_key(type(x)), self.key(x.__kiln_content__()))

    def member(self, x: Any) -> Hashable:
        """Return the key of a member of an enumeration, or of a flag's value that has no name."""
        attributes = {name: value for name, value in vars(x).items() if name not in _MEMBER_NAMES}
        self.met.classes.append(type(x))
        self.met.members.append(x)
        self.met.changeable |= bool(attributes)
        return (kind_key(type(x)), x._name_, self.key(x._value_), *self.items(attributes))

    def function(self, x: types.FunctionType) -> Hashable:
        self.met.functions.append(x)
        parts: list[Hashable] = ["function", Identity(x.__code__), Identity(x.__globals__), x.__name__, x.__qualname__]
        closure = x.__closure__
        defaults = x.__defaults__
        named = x.__kwdefaults__
        attributes = x.__dict__
        parts.append(tuple(map(self.cell, closure)) if closure else None)
        parts += [self.key(value) if value else None for value in (defaults, named, attributes)]
        annotated: Any = x.__annotations__ if sys.version_info < (3, 14) else x.__annotate__
        parts.append(self.key(annotated) if annotated else None)
        return tuple(parts)

    def cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.key(cell.cell_contents)
        except ValueError:
            return "empty"

    def items(self, x: dict[Any, Any]) -> tuple[Hashable, ...]:
        return tuple((self.key(k), self.key(v)) for k, v in dict.items(x))

    def changing(self, content: Hashable) -> Hashable:
        """Note that what a key holds can change in place."""
        self.met.changeable = True
        return content


_MEMBER_NAMES = frozenset(
    ("_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_", "_hashable_values_", "_add_alias_")
)


def kind_key(kind: type) -> Hashable:
    """Return a class in a key: the class itself, unless its metaclass has a notion of equality of its own."""
    meta = type(kind)
    return kind if meta.__eq__ is type.__eq__ and meta.__hash__ is type.__hash__ else Identity(kind)


def _maker_of(kind: type) -> Any:
    """Return what makes the keys of instances of a class."""
    if issubclass(kind, type):
        return _Walk.class_
    if issubclass(kind, types.ModuleType):
        return _Walk.module
    if kind is types.FunctionType:
        return _Walk.function
    own = getattr(kind, "__kiln_key__", None)
    if own is not None:
        return lambda walk, x: (kind_key(kind), own(x))
    if hasattr(kind, "__kiln_content__"):
        return _Walk.by_its_word
    if getattr(kind, "__kiln_static__", False) and kind.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return lambda walk, x: Identity(x)
    if issubclass(kind, enum.Enum):
        return _Walk.member
    if isinstance(kind, NumericMeta):
        return _number
    if is_mlir_type(kind):
        return _left_over
    layout = _layout_of(kind)
    if layout is None:
        return _Walk.opaque
    content = layout.content
    if kind in _CONTENTS and content is not None and layout.attributes is None:
        return lambda walk, x: (kind, content(walk, x))
    return lambda walk, x: walk.object(x, layout)


def _number(_: _Walk, x: Any) -> Hashable:
    """Return the key of a typed number: its value."""
    value = x.value
    return (type(x), static_key(value)) if type(value) in (int, float, bool) else _left_over(_, x)


def _left_over(_: _Walk, x: object) -> Hashable:
    """Return the key of a value left over from an earlier trace: its type alone."""
    return ("traced", type(x))


_FOREIGN = frozenset(
    (
        "numpy",
        "torch",
        "jax",
        "jaxlib",
        "cupy",
        "torch_mlir",
        "llvmlite",
        "cuda",
        "threading",
        "logging",
        "asyncio",
        "concurrent",
        "multiprocessing",
        "subprocess",
        "socket",
        "_pytest",
    )
)
"""Packages whose objects are not looked into: they hold state of the process, or lead to all there is."""


def _layout_of(kind: type) -> _Layout | None:
    """Return where instances of a class keep their state; None if that is not known."""
    base: type | None = kind
    while base is not None and base not in _CONTENTS and _is_written_in_python(base):
        base = base.__base__
    if base is None or (base is object is not kind and kind.__module__.partition(".")[0] in _FOREIGN):
        return None
    if base not in _CONTENTS and not _learn(base):
        return None
    attributes = next(
        (vars(b)["__dict__"] for b in kind.__mro__ if type(vars(b).get("__dict__")) in _DESCRIPTORS), None
    )
    slots = [
        (f"{owner.__qualname__}.{name}", value)
        for owner in kind.__mro__
        for name, value in vars(owner).items()
        if "__slots__" in vars(owner) and type(value) is types.MemberDescriptorType and value.__objclass__ is owner
    ]
    written = [owner for owner in kind.__mro__ if owner is not object]
    is_bare = base is object and not any(
        callable(v) or hasattr(v, "__get__") for o in written for n, v in vars(o).items() if n not in _EVERY_CLASS_HAS
    )
    is_bare |= base is object and any(
        hasattr(type(v), "__set__") and type(v) not in _KEEP_NOTHING for o in written for v in vars(o).values()
    )
    return _Layout(kind_key(kind), _CONTENTS[base], attributes, tuple(slots), base is object, is_bare)


_EVERY_CLASS_HAS = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__annotate__",
    "__annotate_func__",
    "__init__",
    "__repr__",
)


_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_KEEP_NOTHING = (*_DESCRIPTORS, property)
_NATIVE_MEMBERS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)


def _is_written_in_python(kind: type) -> bool:
    """Return whether a class was made by a `class` statement: it has no methods of its own in native code, and
    instances have no fields but `__dict__`, `__weakref__` and `__slots__`."""
    if not kind.__flags__ & 1 << 9:  # a type that is part of a program in C
        return False
    for name, value in vars(kind).items():
        if type(value) in _NATIVE_MEMBERS and value.__objclass__ is kind and name not in ("__dict__", "__weakref__"):
            return False
        if name == "__new__" and isinstance(value, types.BuiltinFunctionType):
            return False
        if type(value) is types.MemberDescriptorType and value.__objclass__ is kind and "__slots__" not in vars(kind):
            return False
    return True


def _bits(x: float) -> bytes:
    return struct.pack("<d", x)


def _digest(data: Any) -> bytes:
    """Return bytes in a key; a digest of many."""
    import hashlib

    data = bytes(data)
    return data if len(data) <= 64 else hashlib.blake2b(data, digest_size=32).digest()


def _complex(walk: _Walk, x: complex) -> Hashable:
    return struct.pack("<2d", complex.__getattribute__(x, "real"), complex.__getattribute__(x, "imag"))


def _partial(walk: _Walk, x: object) -> Hashable:
    of = functools.partial
    return walk.changing(walk.keys(vars(of)[name].__get__(x) for name in ("func", "args", "keywords")))


def _mapping_proxy(walk: _Walk, x: Any) -> Hashable:
    return walk.changing(walk.key(x.copy()))


def _memory(walk: _Walk, x: memoryview) -> Hashable:
    try:
        return walk.changing((x.format, x.shape, x.strides, x.readonly, _digest(x.tobytes())))
    except ValueError:  # released
        return walk.opaque(x)


def _builtin(walk: _Walk, x: Any) -> Hashable:
    """Return the key of a function in C, or of a method with the object it is bound to."""
    owner = x.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        walk.met.opaque.append(x)
        return Identity(x)
    return (x.__name__, walk.key(owner))


def _weak(walk: _Walk, x: Any) -> Hashable:
    return (Identity(x), walk.changing(walk.key(weakref.ref.__call__(x))))


def _proxy(walk: _Walk, x: object) -> Hashable:
    """Return the key of a weak proxy and its object: that object's attributes are its own, methods among them."""
    try:
        return (Identity(x), walk.changing(walk.key(x.__reduce_ex__.__self__)))
    except ReferenceError:  # it is gone
        return (Identity(x), walk.changing(None))


def _getter(walk: _Walk, x: object) -> Hashable:
    """Return the key of `itemgetter` and its like, by what they are made of; they read attributes by name."""
    walk.met.opaque.append(x)
    return walk.key(x.__reduce__())


def _context(walk: _Walk, x: contextvars.ContextVar[Any]) -> Hashable:
    walk.changing(None)
    return (Identity(x), walk.key(x.get(_NOTHING)))


_NOTHING = enum.Enum("_NOTHING", "value").value
"""The value of a context variable that has none."""


_CONTENTS: dict[type, Callable[[_Walk, Any], Hashable] | None] = {
    object: lambda _, x: Identity(x) if type(x) is object else None,
    int: lambda _, x: int.__int__(x),
    float: lambda _, x: _bits(float.__float__(x)),
    complex: _complex,
    str: lambda _, x: str.__str__(x),
    bytes: lambda _, x: bytes.__getitem__(x, slice(None)),
    tuple: lambda walk, x: walk.keys(tuple.__iter__(x)),
    frozenset: lambda walk, x: walk.keys(frozenset.__iter__(x)),  # in order: loops over equal sets may differ
    list: lambda walk, x: walk.changing(walk.keys(list.__iter__(x))),
    dict: lambda walk, x: walk.changing(walk.items(x)),
    set: lambda walk, x: walk.changing(walk.keys(set.__iter__(x))),
    bytearray: lambda walk, x: walk.changing(_digest(memoryview(x))),
    range: lambda walk, x: walk.keys((x.start, x.stop, x.step)),
    slice: lambda walk, x: walk.keys((x.start, x.stop, x.step)),
    memoryview: _memory,
    collections.deque: lambda walk, x: walk.changing(
        (vars(collections.deque)["maxlen"].__get__(x), walk.keys(collections.deque.__iter__(x)))
    ),
    collections.OrderedDict: lambda walk, x: walk.changing(
        tuple((walk.key(k), walk.key(v)) for k, v in collections.OrderedDict.items(x))
    ),
    collections.defaultdict: lambda walk, x: walk.changing(
        (walk.key(vars(collections.defaultdict)["default_factory"].__get__(x)), walk.items(x))
    ),
    functools.partial: _partial,
    types.SimpleNamespace: None,
    types.MappingProxyType: _mapping_proxy,
    type({}.keys()): lambda walk, x: walk.changing(walk.keys(x)),
    type({}.values()): lambda walk, x: walk.changing(walk.keys(x)),
    type({}.items()): lambda walk, x: walk.changing(walk.keys(x)),
    operator.itemgetter: _getter,
    operator.attrgetter: _getter,
    operator.methodcaller: _getter,
    types.MethodType: lambda walk, x: walk.keys((x.__func__, x.__self__)),
    types.BuiltinFunctionType: _builtin,
    types.CodeType: lambda _, x: Identity(x),
    types.CellType: lambda walk, x: walk.changing(walk.cell(x)),
    property: lambda walk, x: walk.keys((x.fget, x.fset, x.fdel, x.__doc__)),
    staticmethod: lambda walk, x: walk.key(x.__func__),
    classmethod: lambda walk, x: walk.key(x.__func__),
    super: lambda walk, x: walk.keys((x.__thisclass__, x.__self__)),
    weakref.ref: _weak,
    contextvars.ContextVar: _context,
    threading.local: lambda walk, x: (Identity(x), walk.changing(walk.items(x.__dict__))),
}
"""By type, what the part of its instances holds that is no attribute."""

_PROXIES: Any = (weakref.ProxyType, weakref.CallableProxyType)
_CONTENTS.update(dict.fromkeys(_PROXIES, _proxy))
_ALIAS: Any = types.GenericAlias
_CONTENTS[_ALIAS] = lambda walk, x: walk.keys((x.__origin__, x.__args__, getattr(x, "__unpacked__", False)))
_UNION: Any = types.UnionType
_CONTENTS[_UNION] = lambda walk, x: walk.keys(x.__args__)  # in order, of which their comparison says nothing


def _learn(kind: type) -> bool:
    """Add a type of a library that is only there if somebody has imported it; return whether that worked."""
    k: Any = kind
    contents: dict[tuple[str, str], Callable[[_Walk, Any], Hashable]] = {
        ("array", "array"): lambda walk, x: walk.changing((k.typecode.__get__(x), _digest(k.tobytes(x)))),
        ("decimal", "Decimal"): lambda _, x: k.as_tuple(x),
        ("datetime", "timedelta"): lambda _, x: k.__reduce__(x)[1],
        ("datetime", "date"): lambda _, x: k.__reduce__(x)[1],
        ("datetime", "time"): lambda walk, x: walk.key(k.__reduce_ex__(x, 4)[1]),
        ("datetime", "datetime"): lambda walk, x: walk.key(k.__reduce_ex__(x, 4)[1]),
        ("datetime", "timezone"): lambda walk, x: walk.key(k.__getinitargs__(x)),
        ("_io", "StringIO"): lambda walk, x: walk.changing(_text_in_memory(k, x)),
        ("_io", "BytesIO"): lambda walk, x: walk.changing(_text_in_memory(k, x)),
        ("_random", "Random"): lambda walk, x: walk.changing(k.getstate(x)),
    }
    name = (kind.__module__, kind.__qualname__)
    if name in contents and getattr(sys.modules.get(name[0]), name[1], None) is kind:
        _CONTENTS[kind] = contents[name]
        return True
    numpy, torch = (packages.loaded(name) for name in ("numpy", "torch"))
    if numpy is not None and issubclass(kind, numpy.generic):
        _CONTENTS[kind] = lambda walk, x: _array(walk, numpy.asarray(x))
        return True
    if numpy is not None and kind is numpy.ndarray:
        _CONTENTS[kind] = lambda walk, x: walk.changing(_array(walk, x.view(numpy.ndarray)))
        return True
    if torch is not None and kind is torch._C.TensorBase:
        _CONTENTS[kind] = lambda walk, x: walk.changing(_tensor(x))
        return True
    data: Any = ctypes.c_int.__mro__[-2]  # `_CData`
    if issubclass(kind, data):
        _CONTENTS[kind] = lambda walk, x: walk.changing(_c_data(x))
        return True
    return False


def _text_in_memory(kind: Any, x: Any) -> Hashable:
    """Return the key of a file in memory: its contents, and where the next read begins."""
    if x.closed:
        return None
    text = kind.getvalue(x)
    return (_digest(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")), kind.tell(x))


def _array(walk: _Walk, x: Any) -> Hashable:
    """Return the key of a numpy array: its contents."""
    if x.dtype.hasobject:
        return (x.dtype.str, x.shape, walk.keys(x.ravel().tolist()))
    return (x.dtype, x.shape, x.strides, x.flags.writeable, _digest(x.tobytes()))


def _tensor(x: Any) -> Hashable:
    """Return the key of a PyTorch tensor: itself, and how often it was written to. Its contents may lie on a GPU."""
    try:
        return (Identity(x), x._version, x.data_ptr(), x.shape, x.stride(), x.requires_grad)
    except (RuntimeError, NotImplementedError):  # tensors of the inference mode count nothing, others have no memory
        return Identity(x)


def _c_data(x: Any) -> Hashable:
    """Return the key of data of a `ctypes` type. With addresses in it, its bytes alone do not describe it."""
    data = _digest(ctypes.string_at(ctypes.addressof(x), ctypes.sizeof(x)))
    return (Identity(x), data) if _has_addresses(type(x)) else data


def _has_addresses(kind: Any) -> bool:
    if hasattr(kind, "_fields_"):
        bases = [base for base in kind.__mro__ if "_fields_" in vars(base)]
        return any(_has_addresses(field[1]) for base in bases for field in base._fields_)
    if hasattr(kind, "_length_"):
        return _has_addresses(kind._type_)
    return not (isinstance(getattr(kind, "_type_", None), str) and kind._type_ not in "zZPOX")
