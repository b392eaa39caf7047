"""Dependencies of a trace besides its arguments. Compiled code is reused only while all of them are unchanged.

Everything that the function, and what can be reached from it, *may* read is followed and recorded, whether it was read
or not: globals, closure cells, defaults, attributes of modules, classes and functions, modules that are imported
inside, and the contents of mutable objects. Code of the standard library, of installed packages and of Kiln itself is
not followed: what it reads is not known here. Where no such code can get at them, objects of the program's own classes
count by the attributes that the code names (`attribute_reads.py`).
"""

from __future__ import annotations

import _abc  # pyright: ignore[reportMissingImports]
import abc
import builtins
import functools
import gc
import importlib.util
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from .._alias import BINDINGS
from .._support import fork_safe
from . import object_versions
from .attribute_reads import REFLECTING, Unfollowed, own_names, refuse_unfollowed
from .cells import contents
from .code_reads import ENVIRONMENT, CodeReads, code_reads
from .diagnostics import is_internal
from .guards import IN_CELL, IN_DICT, IS_TRUE, IS_WORD, NOTHING, Guard
from .static_key import Met, static_key

_SYSCONFIG_LOCK = fork_safe.lock()
"""The first calls of sysconfig fill one table, without a lock: two threads at once fail on Python 3.11."""


@functools.lru_cache(maxsize=2)
def _dirs(*kinds: str) -> tuple[str, ...]:
    import sysconfig

    with _SYSCONFIG_LOCK:
        return tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in kinds)


_STANDARD = ("stdlib", "platstdlib")
_PACKAGES = ("purelib", "platlib")
_FOLDERS_OF_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_KILN_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FRAMEWORKS = frozenset(
    ("numpy", "torch", "jax", "jaxlib", "cupy", "cuda", "ml_dtypes", "triton", "scipy", "tvm_ffi", "_pytest")
)
"""Packages whose attributes are taken for constants, as those of the standard library and of Kiln are."""
_MISSING: Any = object()
_ATOMS = (int, float, complex, str, bytes, bool, type(None), types.BuiltinFunctionType)
_READS_BY_NAME = frozenset((getattr, hasattr, vars, eval, exec, dir, __import__))
"""Functions that, under another name or in a partial, read names that cannot be known beforehand."""
_HOLDERS = (map, filter, zip, enumerate, reversed)
_CONTAINERS = frozenset(
    (
        "collections.UserDict",
        "collections.UserList",
        "collections.UserString",
        "collections.ChainMap",
        "argparse.Namespace",
        "configparser.RawConfigParser",
        "configparser.ConfigParser",
        "configparser.SectionProxy",
        "queue.Queue",
        "queue.LifoQueue",
        "queue.PriorityQueue",
    )
)
"""Classes of the standard library whose instances hold nothing but what programs put into them."""
_NOT_STATE = frozenset(
    (
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__annotations_cache__",
        "__annotate__",
        "__annotate_func__",
        "__abstractmethods__",
        "_abc_impl",
        "__static_attributes__",
        "__firstlineno__",
        "__slots__",
        "__type_params__",
        "__parameters__",
        "__orig_bases__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__hash__",
        "_member_map_",
        "_member_names_",
        "_value2member_map_",
        "_unhashable_values_",
        "_hashable_values_",
        "_unhashable_values_map_",
    )
)
"""Attributes of classes that Python itself maintains."""


class Dependencies:
    """The names and objects that a function, and what it can call, may read, with the values found there."""

    moved: bool
    """Whether native guards have to be built again, although nothing has changed."""
    _reads: Any
    """By class, which attributes of its instances count; None if all do."""
    _whole_keys: list[Hashable]
    """The keys of contents with all their attributes: an object may be replaced by another of the same contents."""

    def __init__(self, function: types.FunctionType | None, arguments: Iterable[object] = ()) -> None:
        """Record what a function may read. `arguments` are part of a key: only what they lead to is recorded."""
        values = list(arguments)
        self._start()
        finder = _Finder(self)
        finder.find(function, values)
        if finder.objects:
            self._leave_out_unread(function, values)

    def _leave_out_unread(self, function: types.FunctionType | None, arguments: Sequence[object]) -> None:
        """Count objects by the attributes that the code names, if some are left out by that and nothing else reads them."""
        whole = dict(vars(self))
        finder = _Finder(self, selective=True)
        self._start()
        try:
            finder.find(function, arguments)
        except Unfollowed:
            finder.skipped = False
        if not finder.skipped:
            vars(self).update(whole)
            return
        keys = {id(value): key for value, key in whole["_contents"]}
        self._whole_keys = [keys.get(id(value)) for value, _ in self._contents]
        self._reads = finder.reads_of

    def _start(self) -> None:
        self.moved = False
        self._reads = None
        self._whole_keys = []
        self._names: list[tuple[Mapping[Any, Any], Any, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._fields: list[tuple[types.FunctionType, Any, Any, Any]] = []
        self._contents: list[tuple[Any, Hashable]] = []
        self._asked: list[tuple[Any, str, Hashable]] = []
        self._kinds: dict[type, tuple[int, int] | None] = {}
        self._orders: list[tuple[type, tuple[type, ...]]] = []
        self._members: list[tuple[type, dict[str, Any], frozenset[str]]] = []
        self._titles: list[tuple[Any, str, str]] = []
        self._registries: list[tuple[type, frozenset[type]]] = []
        self._registered = abc.get_cache_token()
        self._whole: list[tuple[dict[str, Any], frozenset[str]]] = []

    def unchanged(self) -> bool:
        """Return whether nothing has changed since."""
        try:
            return self._is_as_before()
        except RuntimeError:  # another thread is changing a container
            return False

    def _is_as_before(self) -> bool:
        for names, name, value in self._names:
            now = names.get(name, _MISSING)
            if now is not value and not _same(now, value):
                return False
        for cell, value in self._cells:
            now = contents(cell, _MISSING)
            if now is not value and not _same(now, value):
                return False
        for function, code, defaults, named in self._fields:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not named:
                return False
        if not self._classes_unchanged():
            return False
        for owner, name, title in self._titles:
            if getattr(owner, name) != title:
                return False
        return self._contents_as_before()

    def _contents_unchanged(self) -> bool:
        """Return whether nothing has changed of what native code cannot compare."""
        try:
            return self._contents_as_before()
        except RuntimeError:  # another thread is changing a container
            return False

    def _contents_as_before(self) -> bool:
        for names, before in self._whole:
            if names.keys() != before:
                return False
        if self._registries and not self._registries_unchanged():
            return False
        for owner, name, key in self._asked:
            if _asked(owner, name) != key:
                return False
        return all(
            _content(value, self._reads) == key or self._is_as_a_whole(number, value)
            for number, (value, key) in enumerate(self._contents)
        )

    def _is_as_a_whole(self, number: int, value: Any) -> bool:
        """Return whether contents are those of before in all attributes, although other objects have them."""
        if self._reads is None or self._whole_keys[number] != _content(value):
            return False
        self._contents[number] = value, _content(value, self._reads)
        return True

    def _classes_unchanged(self) -> bool:
        words = [
            (kind, word)
            for kind, word in self._kinds.items()
            if word is None or object_versions.word_at(word[0]) != word[1]
        ]
        if not words:
            return True
        for base, members, special in self._members:
            own = vars(base)
            if any(own.get(name, _MISSING) is not member for name, member in members.items()):
                return False
            if _special_names(base) != special:
                return False
        if any(kind.__mro__ is not order and kind.__mro__ != order for kind, order in self._orders):
            return False
        for kind, word in words:
            if word is not None:
                self._kinds[kind] = object_versions.class_word(kind)
                self.moved = True
        return True

    def _registries_unchanged(self) -> bool:
        """Return whether the same classes are registered with abstract ones; Python counts all registrations."""
        token = abc.get_cache_token()
        if token != self._registered:
            if any(_registered(kind) != classes for kind, classes in self._registries):
                return False
            self._registered = token
        return True

    def guards(self) -> list[Guard]:
        """Return the conditions of `unchanged` for native code, which compares objects by identity."""
        self.moved = False
        result: list[Guard] = []
        rest = False
        for names, name, value in self._names:
            rest |= type(names) is not dict
            if type(names) is dict:
                result.append(Guard(IN_DICT, names, name, NOTHING if value is _MISSING else value))
        result += [Guard(IN_CELL, cell, None, value) for cell, value in self._cells if value is not _MISSING]
        rest |= any(value is _MISSING for _, value in self._cells)
        for function, *_ in self._fields:
            words = object_versions.function_words(function)
            rest |= words is None
            result += [Guard(IS_WORD, address, function, word) for address, word in words or ()]
        for owner, name, _ in self._titles:
            word = object_versions.title_word(owner, name)
            rest |= word is None
            if word is not None:
                result.append(Guard(IS_WORD, word[0], owner, word[1]))
        for kind, word in self._kinds.items():
            rest |= word is None
            if word is not None:
                result.append(Guard(IS_WORD, word[0], kind, word[1]))
        if rest:
            result.append(Guard(IS_TRUE, self.unchanged))
        elif self._contents or self._asked or self._whole:
            result.append(Guard(IS_TRUE, self._contents_unchanged))
        elif self._registries:
            result.append(Guard(IS_TRUE, self._registries_unchanged))
        return result


class _Finder:
    """Fills dependencies.

    Names of attributes are looked for in all modules, classes and functions that are reached, whoever reads them: a
    value may be passed through many functions.
    """

    def __init__(self, dependencies: Dependencies, selective: bool = False) -> None:
        self._dependencies: Any = dependencies
        self._selective = selective
        """Whether objects count by the attributes that are named; raises `Unfollowed` where code may read others."""
        self.objects = False
        """Whether contents have objects with attributes."""
        self.skipped = False
        """Whether attributes of contents were left out."""
        self._held: list[Any] = []
        """Values whose contents count by what is named."""
        self._changes: set[str] = set()
        self._others_read = own_names.get() if selective else set[str]()
        self._functions: set[types.FunctionType] = set()
        self._classes: set[type] = set()
        self._modules: dict[int, types.ModuleType] = {}
        self._constant: dict[int, types.ModuleType] = {}
        """Modules whose attributes are taken for constants."""
        self._owners: dict[int, dict[str, Any]] = {}
        """Dictionaries of attributes: of modules, functions and jit functions."""
        self._noted: set[tuple[int, Any]] = set()
        self._opaque: dict[int, Any] = {}
        self._values: dict[int, Any] = {}
        self._attributes: set[str] = set()
        self._texts: set[str] = set()
        self._anything = False
        self._abstract: set[type] = set()
        self._tests_classes = False

    def find(self, function: types.FunctionType | None, arguments: Iterable[object]) -> None:
        """Record what a function may read."""
        if function is not None:
            self.function(function, traced=True)
        for value in arguments:
            self.argument(value)
        self.finish()

    def reads(self, name: str) -> bool:
        """Return whether an attribute of a name may be read or changed."""
        named = name in self._attributes or name in self._texts or name in self._changes
        return named or _is_special(name) or name in self._others_read

    def reads_of(self, kind: type) -> Callable[[str], bool] | None:
        """Return which attributes of a class's instances count; None if all do."""
        return self.reads if _only_named_are_read(kind.__mro__) else None

    def function(self, function: types.FunctionType, traced: bool = False, keyed: bool = False) -> None:
        """Record what a function may read. `traced`: it is the user's for certain; `keyed`: it is part of a key."""
        code = function.__code__
        if function is os.getenv:  # under another name
            self._whole_environment()
        if function in self._functions or is_internal(code) or is_kilns(code.co_filename):
            return
        self._functions.add(function)
        if not traced and is_library(code.co_filename):
            if self._selective:
                refuse_unfollowed(function.__globals__.get("__name__"))
            self._library_function(function)
            return
        reads = code_reads(code)
        if self._selective and (reads.anything or REFLECTING & (reads.attributes | reads.names)):
            raise Unfollowed
        self._changes |= reads.changes
        self._attributes |= reads.attributes
        self._texts |= reads.texts
        self._anything |= reads.anything
        self._tests_classes |= reads.of_classes
        for name in sorted(reads.names):
            self._global(function.__globals__, name)
        if reads.of_globals:
            for name in sorted(reads.texts):
                self._global(function.__globals__, name)
        if reads.anything:
            self._all_of(function.__globals__)
        if reads.of_environment:
            self._environment(reads)
        for name, level in sorted(reads.imports):
            self._import(function.__globals__, name, level)
        if reads.of_modules:
            for name in sorted(reads.modules | {function.__globals__.get("__name__", "")}):
                self._import(function.__globals__, name, 0)
        self._owner(function.__dict__)
        if keyed:
            return
        self._dependencies._fields.append((function, code, function.__defaults__, function.__kwdefaults__))
        for value in function.__defaults__ or ():
            self.value(value)
        named = function.__kwdefaults__ or {}
        for name in named:
            self._name(named, name)
        for cell in function.__closure__ or ():
            value = contents(cell, _MISSING)
            self._dependencies._cells.append((cell, value))
            self.value(value)

    def _library_function(self, function: types.FunctionType) -> None:
        """Follow the user's functions that a library's function calls: what it decorates, and what it chooses from."""
        for value in (function.__dict__.get("__wrapped__"), *(contents(cell) for cell in function.__closure__ or ())):
            is_table = type(value) is dict and any(type(v) is types.FunctionType for v in value.values())
            if is_table or isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                self.value(value)

    def _global(self, names: Mapping[str, object], name: str) -> None:
        self._name(names, name)
        if name not in names and not _is_pythons(vars(builtins).get(name, _MISSING)):
            self._name(vars(builtins), name)

    def _name(self, names: Mapping[Any, Any], name: Any) -> None:
        if (id(names), name) not in self._noted:
            self._noted.add((id(names), name))
            value = names.get(name, _MISSING)
            self._dependencies._names.append((names, name, value))
            if name not in ENVIRONMENT or value is not getattr(
                os, name, None
            ):  # else it is known which variables are read
                self.value(value)

    def _all_of(self, names: Mapping[str, object]) -> None:
        """Record that any name of a dictionary may be read."""
        if (id(names), _MISSING) not in self._noted:
            self._noted.add((id(names), _MISSING))
            self._dependencies._whole.append((names, frozenset(names)))
            for name in list(names):
                if not (type(name) is str and name.startswith("__")):
                    self._name(names, name)

    def _environment(self, reads: CodeReads) -> None:
        data = getattr(os.environ, "_data", None)
        if data is None or reads.anything:
            self._whole_environment()
            return
        for text in sorted(reads.texts):
            self._name(data, os.environ.encodekey(text))  # pyright: ignore[reportAttributeAccessIssue]

    def _whole_environment(self) -> None:
        data = getattr(os.environ, "_data", None)
        self.value(dict(os.environ) if data is None else data)

    def _import(self, names: dict[str, Any], name: str, level: int) -> None:
        package = names.get("__package__") or ""
        try:
            whole = importlib.util.resolve_name("." * level + name, package) if level else name
        except (ImportError, ValueError):
            return
        parts = whole.split(".")
        if parts[0] in _FRAMEWORKS or parts[0] in sys.stdlib_module_names or parts[0] in ("kiln", "cutlass"):
            if self._selective:
                refuse_unfollowed(whole)
            return
        for count in range(1, len(parts) + 1):
            self._name(sys.modules, ".".join(parts[:count]))

    def value(self, value: Any) -> None:
        """Record what can be reached through a value that is read, and its contents if they can change."""
        kind = type(value)
        if value is _MISSING or value is sys.modules or id(value) in self._values:
            return
        if kind in _ATOMS and kind is not types.BuiltinFunctionType:
            return
        self._values[id(value)] = value
        if kind is types.FunctionType:
            self.function(value)
        elif issubclass(kind, type):
            self._class(value)
        elif issubclass(kind, types.ModuleType):
            self._module(value)
        elif getattr(kind, "__kiln_traced__", False):
            self.function(value.function, traced=True)
            self._owner(vars(value))
        else:
            self._content(value)
            if self._selective:
                self._held.append(value)

    def _content(self, value: object) -> None:
        """Record what is in a value that is read, and its contents if they can change."""
        met = Met(_is_closed, self.reads_of if self._selective else None)
        key = static_key(value, met)
        self.objects |= met.objects
        self.skipped |= met.skipped
        if met.changeable:
            self._dependencies._contents.append((value, key))
        self._met(met)

    def argument(self, value: object) -> None:
        """Record what can be reached through a value that is part of a key."""
        met = Met()
        static_key(value, met)
        self._met(met, keyed=True)

    def _met(self, met: Met, keyed: bool = False) -> None:
        for function in met.functions:
            self.function(function, keyed=keyed)
        for traced in met.traced:
            self.function(traced.function, traced=True)
            self._owner(vars(traced))
        for kind in met.classes:
            self._class(kind)
        for module in met.modules:
            self._module(module)
        for member in met.members:
            if not is_library_class(type(member)):
                attributes = vars(member)
                self._owner(attributes)
                for name in ("_name_", "_value_"):
                    self._name(attributes, name)
        for opaque in met.opaque:
            if self._selective:
                kind = type(opaque)
                refuse_unfollowed(opaque.__module__ if kind is types.BuiltinFunctionType else kind.__module__)
            if id(opaque) not in self._opaque:
                self._opaque[id(opaque)] = opaque
                self._met_opaque(opaque)

    def _met_opaque(self, opaque: object) -> None:
        kind = type(opaque)
        wrapped = getattr(opaque, "__wrapped__", None)
        if type(wrapped) is types.FunctionType:  # functools.lru_cache
            self.function(wrapped)
        elif kind is types.BuiltinFunctionType:
            self._anything |= opaque in _READS_BY_NAME
        elif kind in (operator.attrgetter, operator.methodcaller):
            self._anything = True
        elif kind is type(os.environ):
            self._whole_environment()
        elif kind in _HOLDERS or kind.__module__ in ("functools", "itertools"):
            for held in gc.get_referents(opaque):
                if not isinstance(held, (type, types.ModuleType)):
                    self.value(held)

    def _class(self, kind: type) -> None:
        if isinstance(kind, abc.ABCMeta) and not is_own_class(kind):
            self._abstract.add(kind)
        bases = [base for base in kind.__mro__ if not is_library_class(base)]
        if self._selective:
            for base in kind.__mro__:
                if is_library_class(base):
                    refuse_unfollowed(base.__module__)
        if kind in self._dependencies._kinds or not bases:
            return
        self._dependencies._kinds[kind] = object_versions.class_word(kind)
        self._dependencies._orders.append((kind, kind.__mro__))
        self._class(type(kind))
        for base in bases:
            if base in self._classes:
                continue
            self._classes.add(base)
            for name, member in list(vars(base).items()):
                if self._selective and not _is_special(name):
                    continue  # `finish` looks for those that are named
                for part in _parts_of_member(member):
                    if type(part) is types.FunctionType:
                        self.function(part)
                    elif getattr(type(part), "__kiln_traced__", False):
                        self.value(part)

    def _module(self, module: types.ModuleType) -> None:
        if self._selective and (_is_constant_module(module) or is_library_module(module.__name__)):
            refuse_unfollowed(module.__name__)
        if _is_constant_module(module):
            self._constant.setdefault(id(module), module)
        elif id(module) not in self._modules:
            self._modules[id(module)] = module
            self._owner(vars(module))
            lazily = vars(module).get("__getattr__")
            if lazily is not None:
                self.value(lazily)

    def _owner(self, attributes: dict[str, Any]) -> None:
        self._owners[id(attributes)] = attributes

    def finish(self) -> None:
        """Look for the attributes that may be read, until nothing more is found."""
        size = -1
        noted = self._noted
        while size != (size := self._size()):
            self._contents_again()
            if self._selective and self._anything:
                raise Unfollowed
            texts = sorted(self._texts)
            for owner in list(self._owners.values()):
                for name in sorted(self._attributes & owner.keys()) + texts:
                    if (id(owner), name) not in noted:
                        self._name(owner, name)
            if self._anything:
                for module in list(self._modules.values()):
                    self._all_of(vars(module))
            for opaque in list(self._opaque.values()):
                kept = getattr(opaque, "__dict__", None)
                if type(kept) is dict:
                    for name in sorted((self._attributes | self._texts) & kept.keys()):
                        self.value(kept[name])
            if self._tests_classes:
                self._texts.update(name for kind in self._abstract for name in _asked_by_protocol(kind))
            if "__match_args__" in self._attributes:
                for base in self._classes:
                    matched = vars(base).get("__match_args__", ())
                    self._attributes |= {name for name in matched if type(name) is str}
            for base in list(self._classes):
                for name, member in list(vars(base).items()):
                    named = name in self._attributes or name in self._texts or self._anything
                    if named or (self._selective and self.reads(name)):
                        if name not in _NOT_STATE and (id(base), name) not in self._noted:
                            self._noted.add((id(base), name))
                            for part in _parts_of_member(member):
                                self.value(part)
        for base in self._classes:
            state_names = {name for name in vars(base) if self._is_state(name)}
            state_names |= self._attributes | self._texts
            if self._selective:
                state_names |= {name for name in vars(base) if name not in _NOT_STATE and self.reads(name)}
            members = {name: vars(base).get(name, _MISSING) for name in state_names}
            self._dependencies._members.append((base, members, _special_names(base)))
        if self._tests_classes:
            self._look_for_abstract_classes()
            self._dependencies._registries += [(kind, _registered(kind)) for kind in self._abstract]
        for name in sorted(self._attributes & _TITLES):
            owners = [*self._functions, *self._classes]
            self._dependencies._titles += [(owner, name, getattr(owner, name)) for owner in owners]
        names = self._attributes | self._texts
        computed = {kind: _computed(kind, names) for kind in set(map(type, self._opaque.values()))}
        for opaque in self._opaque.values():
            kept = getattr(opaque, "__dict__", None)
            asked = computed[type(opaque)] | (names & kept.keys() if type(kept) is dict else set())
            for name in sorted(asked):
                key = _asked(opaque, name)
                if key is not None:
                    self._dependencies._asked.append((opaque, name, key))

    def _contents_again(self) -> None:
        """Record contents again, by the names that are known by now."""
        if self._selective:
            self._dependencies._contents = []
            self.skipped = False
            for value in list(self._held):
                self._content(value)

    def _look_for_abstract_classes(self) -> None:
        """Look for abstract classes in modules that are not followed, by the names read: `collections.abc.Sized`."""
        todo = list(self._constant.values())
        for module in todo:
            own = vars(module)
            for value in (own[name] for name in self._attributes & own.keys()):
                if isinstance(value, abc.ABCMeta) and not is_own_class(value):
                    self._abstract.add(value)
                elif isinstance(value, types.ModuleType) and id(value) not in self._constant:
                    self._constant[id(value)] = value
                    todo.append(value)

    def _is_state(self, name: str) -> bool:
        return _is_special(name) or (self._anything and name not in _NOT_STATE)

    def _size(self) -> int:
        lists = (self._noted, self._functions, self._classes, self._owners, self._values, self._opaque)
        return sum(map(len, lists)) + len(self._attributes) + len(self._texts) + len(self._changes) + self._anything


_TITLES = frozenset(("__name__", "__qualname__"))
"""Attributes of functions and classes that lie in neither's dictionary."""


def _is_special(name: str) -> bool:
    """Return whether Python itself may look for a member of this name."""
    return name.startswith("__") and name.endswith("__") and name not in _NOT_STATE


def _special_names(kind: type) -> frozenset[str]:
    return frozenset(filter(_is_special, vars(kind)))


def _registered(kind: type) -> frozenset[type]:
    """Return the classes that were registered with an abstract class or with one that is derived from it."""
    classes: set[type] = set()
    todo = [kind]
    seen = {kind}
    while todo:
        one = todo.pop()
        if isinstance(one, abc.ABCMeta):
            classes |= {cls for reference in _abc._get_dump(one)[0] if (cls := reference()) is not None}
        more = [derived for derived in type.__subclasses__(one) if derived not in seen]
        seen.update(more)
        todo += more
    return frozenset(classes)


def _asked_by_protocol(kind: type) -> Iterable[str]:
    """Return the attributes that an object must have to be an instance of a protocol; none for other classes."""
    if not getattr(kind, "_is_protocol", False):
        return ()
    find: Any = getattr(typing, "_get_protocol_attrs", None)
    return getattr(kind, "__protocol_attrs__", None) or (find(kind) if find is not None else ())


def _parts_of_member(member: object) -> list[Any]:
    """Return the functions that a member of a class is made of, or the member itself."""
    if isinstance(member, (staticmethod, classmethod)):
        return [member.__func__]
    if isinstance(member, property):
        return [member.fget, member.fset]
    if isinstance(member, functools.singledispatchmethod):
        return [member.dispatcher]
    if isinstance(member, (functools.cached_property, functools.partialmethod)):
        return [member.func]
    return [member]


def _content(value: Any, reads: Any = None) -> Hashable:
    """Return the key of a value's contents; objects of libraries count by the attributes that are read."""
    return static_key(value, Met(_is_closed, reads))


@functools.lru_cache(maxsize=1024)
def _only_named_are_read(order: tuple[type, ...]) -> bool:
    """Return whether attributes of instances of a class with these bases are read by their names only: all are the
    program's own, and no methods are made from a list of fields."""
    bases = [base for base in order if base is not object and base.__module__ not in ("typing", "abc")]
    return not any(is_library_class(base) or "__dataclass_fields__" in vars(base) for base in bases)


def _computed(kind: type, names: set[str]) -> set[str]:
    """Return which of some names are attributes that instances of a class compute."""
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        own = vars(base)
        members.update((name, own[name]) for name in names & own.keys())
    return {name for name, member in members.items() if type(member) in _COMPUTED}


def _asked(owner: object, name: str) -> Hashable | None:
    """Return the key of an attribute of an opaque object, if it is computed or stored; None for methods."""
    kind: Any = next((vars(base)[name] for base in type(owner).__mro__ if name in vars(base)), None)
    kept = getattr(owner, "__dict__", None)
    if type(kind) not in _COMPUTED and not (type(kept) is dict and name in kept):
        return None
    try:
        return _content(getattr(owner, name))
    except Exception as failure:
        return type(failure).__name__


_COMPUTED = (types.GetSetDescriptorType, types.MemberDescriptorType, property)


def _is_pythons(value: object) -> bool:
    """Return whether a builtin is Python's own rather than one that a program has added."""
    return getattr(value, "__module__", None) in ("builtins", "io", "_io", "_sitebuiltins")


def is_kilns(filename: str) -> bool:
    return filename.startswith(("<frozen", _KILN_DIR))


def is_library(filename: str) -> bool:
    return not filename.startswith("<") and (filename.startswith(_dirs(*_STANDARD)) or _is_installed(filename))


def _is_installed(filename: str) -> bool:
    """Return whether a file belongs to a package of this environment, of one below it, of the user or of a path file."""
    if any(folder in filename for folder in _FOLDERS_OF_PACKAGES):
        return True
    return filename.startswith(_dirs(*_PACKAGES) + _dirs_of_bindings())


@functools.lru_cache(maxsize=1)
def _dirs_of_bindings() -> tuple[str, ...]:
    """Return the folders of the bindings of MLIR and LLVM, which may be anywhere on the path."""
    import importlib.util

    specs = filter(None, map(importlib.util.find_spec, (BINDINGS, "llvmlite")))
    return tuple(os.path.realpath(d) + os.sep for spec in specs for d in spec.submodule_search_locations or ())


@functools.lru_cache(maxsize=4096)
def _real(filename: str) -> str:
    return os.path.realpath(filename)


def _file_of(module: types.ModuleType) -> str:
    filename = getattr(module, "__file__", None)
    return _real(filename) if isinstance(filename, str) else ""


def _is_constant_module(module: types.ModuleType) -> bool:
    """Return whether attributes of a module are taken for constants."""
    if module.__name__.partition(".")[0] in _FRAMEWORKS or module.__name__ in sys.builtin_module_names:
        return True
    filename = _file_of(module)
    if _is_installed(filename):
        return False
    return filename.startswith(_dirs(*_STANDARD)) or is_kilns(filename)


@functools.lru_cache(maxsize=4096)
def is_library_module(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None:
        return False
    filename = _file_of(module)
    return name in sys.builtin_module_names or is_kilns(filename) or is_library(filename)


def is_library_class(kind: type) -> bool:
    """Return whether a class is installed (the standard library, a package, Kiln itself) rather than the user's own."""
    return is_library_module(kind.__module__)


def is_own_class(kind: type) -> bool:
    """Return whether a class is Kiln's."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _is_closed(kind: type) -> bool:
    """Return whether the instances of a class are not looked into."""
    return is_library_class(kind) and f"{kind.__module__}.{kind.__qualname__}" not in _CONTAINERS


def _same(now: object, before: object) -> bool:
    if type(now) is not type(before) or type(now) not in (*_ATOMS, tuple, frozenset):
        return False
    met = Met()
    return static_key(now, met) == static_key(before) and not met.changeable
