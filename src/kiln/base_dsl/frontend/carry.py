"""State that a region may change: the variables of a function, and the objects that it can reach.

`Scope` reads and writes a traced function's variables through their closure cells. `Snapshot` records the state of
every mutable object reachable from some values, so that changes made inside a region, at any call depth, are found by
comparison and carried out of it leaf by leaf.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import trace as tracing
from .. import tree
from ..cells import contents
from ..diagnostics import runtime_error
from ..tree import UNDEFINED
from . import code_facts, hidden_state
from .hidden_state import Namespace, Reach


def set_contents(cell: types.CellType, value: Any) -> None:
    """Put a value into a cell; UNDEFINED empties it."""
    if value is not UNDEFINED:
        cell.cell_contents = value
    elif contents(cell, UNDEFINED) is not UNDEFINED:
        del cell.cell_contents


class Scope:
    """The variables of one call of a rewritten function."""

    __kiln_static__ = True

    def __init__(self, names: Callable[[], object]) -> None:
        code = names.__code__
        self.cells: dict[str, types.CellType] = dict(zip(code.co_freevars, names.__closure__ or (), strict=True))
        self.globals: dict[str, Any] = names.__globals__

    def with_variable(self, name: str, value: object) -> Scope:
        """Return the scope with one more variable, which the function does not have."""
        scope = copy.copy(self)
        scope.cells = {**self.cells, name: types.CellType(value)}
        return scope

    def get(self, name: str) -> Any:
        """Return the variable's value; UNDEFINED while it has none."""
        cell = self.cells.get(name)
        return UNDEFINED if cell is None else contents(cell, UNDEFINED)

    def set(self, name: str, value: object) -> None:
        """Bind the variable; UNDEFINED unbinds it."""
        set_contents(self.cells[name], value)

    def save(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of some variables."""
        return {name: self.get(name) for name in names}

    def restore(self, values: Mapping[str, object]) -> None:
        """Restore the values that `save` returned."""
        for name, value in values.items():
            self.set(name, value)

    def roots(self, names: Iterable[str]) -> list[tuple[str, Any]]:
        """Return the named values a region can reach through these names, module globals included."""
        roots_so_far: list[tuple[str, Any]] = []
        for name in names:
            value = self.get(name)
            if value is UNDEFINED and name not in self.cells:
                value = self.globals.get(name, UNDEFINED)
            if value is not UNDEFINED:
                roots_so_far.append((name, value))
            elif name in code_facts.ANY_NAME and name not in self.cells:
                roots_so_far.append((name, hidden_state.Globals(self.globals)))
        return roots_so_far

    def cells_of(self, names: Iterable[str]) -> frozenset[int]:
        """Return the identities of the cells of some variables."""
        return frozenset(id(self.cells[name]) for name in names if name in self.cells)


class Slot:
    """A slot of a mutable object: an attribute (here), a list element, a dict entry, or a protocol object's state."""

    __slots__ = ("key", "owner", "path")
    kind = "attribute"
    is_own = True

    def __init__(self, owner: object, key: object, path: str) -> None:
        self.owner: Any = owner
        self.key: Any = key
        self.path: str = path

    @property
    def container_path(self) -> str:
        """How the program calls the owner of an element."""
        return self.path[: -len(f"[{self.key!r}]")]

    def get(self) -> Any:
        return getattr(self.owner, self.key, UNDEFINED)

    def holds(self, value: object) -> bool:
        """Return whether it still holds a value that was read from it before."""
        return getattr(self.owner, self.key, UNDEFINED) is value

    def set(self, value: object) -> None:
        if value is not UNDEFINED:
            tree.set_attribute(self.owner, self.key, value)
        elif hasattr(self.owner, self.key):
            tree.delete_attribute(self.owner, self.key)


class _Default(Slot):
    """An attribute whose value is the class's, while the object has none of its own."""

    __slots__ = ()
    is_own = False

    def set(self, value: object) -> None:
        if value is not UNDEFINED and getattr(type(self.owner), self.key, UNDEFINED) is not value:
            tree.set_attribute(self.owner, self.key, value)
        elif self.key in tree.attributes_of(self.owner):
            tree.delete_attribute(self.owner, self.key)


class _Variable(Slot):
    """A variable of a function around one that rebinds it."""

    __slots__ = ()
    kind = "variable"

    def get(self) -> Any:
        return contents(self.owner, UNDEFINED)

    def holds(self, value: object) -> bool:
        return self.get() is value

    def set(self, value: object) -> None:
        set_contents(self.owner, value)


class _Item(Slot):
    __slots__ = ()
    kind = "item"

    def get(self) -> Any:
        return self.owner[self.key]

    def holds(self, value: object) -> bool:
        return self.owner[self.key] is value

    def set(self, value: Any) -> None:
        self.owner[self.key] = value


class _State(Slot):
    __slots__ = ()
    kind = "state"

    def get(self) -> Any:
        return tree.frozen(self.owner)  # a later change of the object does not change what was read

    def holds(self, value: object) -> bool:
        return tree.same_state(value, self.owner)

    def set(self, value: object) -> None:
        if value is not self.owner:
            attributes = tree.attributes_of(value)
            for name in tree.attributes_of(self.owner).keys() - attributes.keys():
                tree.delete_attribute(self.owner, name)
            for name, part in attributes.items():
                tree.set_attribute(self.owner, name, part)


_CODE = (
    types.FunctionType,
    types.ModuleType,
    types.BuiltinMethodType,
    type,
    property,
    staticmethod,
    classmethod,
    functools.cached_property,
    functools._lru_cache_wrapper,
    hidden_state.Globals,
)


@functools.lru_cache(maxsize=4096)
def _reach(kind: type) -> str:
    """Return how objects of a class are walked through: one of the words of `Snapshot._visit`; empty for not at all."""
    if issubclass(kind, types.MethodType):
        return "self"
    if issubclass(kind, _CODE) or hasattr(kind, "__kiln_traced__"):
        return "code"
    if issubclass(kind, functools.partial):
        return "call"
    if tree.is_atomic_class(kind) or tree.is_mlir_type(kind):
        return ""
    if issubclass(kind, (tuple, frozenset)):
        return "parts"
    if issubclass(kind, set):
        return "set"
    if issubclass(kind, (list, dict)):
        return "items"
    if getattr(kind, "__kiln_immutable__", False):
        return ""
    if tree.is_protocol_class(kind):
        return "state"
    if hidden_state.is_opaque(kind):
        return "opaque"
    # a class may say that attributes of its objects stay what they are: only what they hold may change
    return "fixed" if getattr(kind, "__kiln_fixed__", False) else "attributes"


_DEEP = 60
"""The depth to which objects are followed recursively; deeper ones are queued, to spare Python's stack."""


class Snapshot:
    """A record of the mutable objects reachable from some roots, and of what they held."""

    _only_objects = False

    def __init__(
        self, roots: Sequence[tuple[str, object]], own_cells: frozenset[int] = frozenset(), code: bool = True
    ) -> None:
        """Take a snapshot. `own_cells`: variables that the caller saves. `code`: follow functions and classes, too."""
        active = tracing.current()
        self._first_watched = len(active.watched) if active is not None else 0
        self._reach: Reach | None = None
        if code:
            self._reach = (active and active.reach) or Reach()
            if active is not None:
                active.reach = self._reach
        self._own_cells = own_cells
        self._collect(roots)
        if self._reach is not None and any(space.changed(before) for space, before in self._namespaces):
            self._reach.forget()  # a name was bound to something else since it was followed
            self._collect(roots)

    def _collect(self, roots: Sequence[tuple[str, object]]) -> None:
        self.slots: list[Slot] = []
        self.values: list[Any] = []
        self.references: dict[int, int] = {}
        """The number of references found to each object, by identity."""
        self.objects: dict[int, Any] = {}
        """The objects that can change and are carried, by identity."""
        self._containers: list[tuple[Any, str, Any]] = []
        self._objects: list[tuple[Any, str, dict[str, Any]]] = []
        self._classes: list[type] = []
        """The class of each of these objects."""
        self._fixed: list[tuple[Any, str, dict[str, Any]]] = []
        """Objects of classes with `__kiln_fixed__`, whose attributes must not be assigned."""
        self._opaque: list[tuple[Any, str, Any]] = []
        self._namespaces: list[tuple[Namespace, tuple[Any, ...]]] = []
        self._keep: list[Any] = []
        self._deep: list[tuple[Any, str]] = []
        seen: set[int] = set()
        for name, value in roots:
            self._visit(value, name, seen, 0)
        while self._deep:
            value, path = self._deep.pop()
            self._visit(value, path, seen, 0)

    def _visit(self, x: Any, path: str, seen: set[int], depth: int) -> None:
        reach = _reach(type(x))
        if not reach:
            return
        if reach == "self":
            self._visit(x.__self__, path, seen, depth + 1)
            if self._reach is not None:
                self._visit(x.__func__, path, seen, depth + 1)
            return
        number = id(x)
        if number in seen:
            if number in self.references:
                self.references[number] += 1
            return
        if depth > _DEEP:
            self._deep.append((x, path))
            return
        seen.add(number)
        if reach == "code":
            if self._reach is not None:
                self._follow(x, seen, depth)
            return
        self._keep.append(x)
        if reach in ("attributes", "fixed"):
            if tree.is_plain_object(x):
                self._changeable(x)
                self._attributes(x, path, seen, depth, reach == "fixed")
        elif reach == "state":
            if tree.has_attributes(x):
                self._changeable(x)
                if not self._only_objects:
                    slot = _State(x, None, path)
                    self.slots.append(slot)
                    self.values.append(slot.get())
        elif reach == "parts":
            for i, item in enumerate(x):
                self._visit(item, f"{path}[{i}]", seen, depth + 1)
        elif reach == "items":
            self._changeable(x)
            if self._only_objects:
                for item in x if isinstance(x, list) else list(x.values()):
                    self._visit(item, path, seen, depth + 1)
                return
            keys = list(range(len(x))) if isinstance(x, list) else list(x)
            self._containers.append((x, path, keys))
            for key in keys:
                self._add(_Item(x, key, f"{path}[{key!r}]"), seen, depth)
            if hasattr(x, "__dict__"):
                self._attributes(x, path, seen, depth, False)
        elif reach == "call":
            for part in (x.func, x.args, x.keywords):
                self._visit(part, path, seen, depth + 1)
        elif reach == "set":
            self._changeable(x)
            self._containers.append((x, path, frozenset(x)))
        elif reach == "opaque":
            if not self._only_objects:
                self._opaque.append((x, path, hidden_state.fingerprint(x)))
            for added, part in hidden_state.parts_of(x):
                self._visit(part, f"{path}{added}", seen, depth + 1)

    def _changeable(self, x: Any) -> None:
        self.objects[id(x)] = x
        self.references[id(x)] = 1

    def _attributes(self, x: object, path: str, seen: set[int], depth: int, fixed: bool) -> None:
        """Add slots for the attributes of an object, and follow its class."""
        attributes = tree.attributes_of(x)
        if self._only_objects:
            for value in attributes.values():
                self._visit(value, path, seen, depth + 1)
            if self._reach is not None:
                self._follow(type(x), seen, depth)
            return
        defaults: dict[str, Any] = {}
        if self._reach is not None:
            kind = type(x)
            inherited = (k for k in self._reach.defaults(kind) if k not in attributes and hasattr(x, k))
            defaults = {k: getattr(kind, k) for k in inherited}
            self._follow(kind, seen, depth)
        self._objects.append((x, path, {**attributes, **defaults}))
        self._classes.append(type(x))
        if fixed:
            self._fixed.append((x, path, attributes))
        for key, value in attributes.items():
            if not fixed:
                self._add(Slot(x, key, f"{path}.{key}"), seen, depth)
            elif _reach(type(value)):
                self._visit(value, f"{path}.{key}", seen, depth + 1)
        for key in defaults:
            self._add(_Default(x, key, f"{path}.{key}"), seen, depth)

    def _follow(self, x: object, seen: set[int], depth: int) -> None:
        """Follow what a function, class or module reaches."""
        assert self._reach is not None
        roots = self._reach.of(x)
        if id(roots) in seen:
            return
        seen.add(id(roots))
        self._namespaces += [(space, space.at_start) for space in roots.namespaces]
        self._opaque += [(x, path, hidden_state.fingerprint(x)) for path, x in roots.caches]
        for path, value in roots.values:
            self._visit(value, path, seen, depth + 1)
        for name, cell, rebinds in roots.cells:
            if id(cell) in seen:
                continue
            slot = _Variable(cell, None, name)
            if not rebinds or id(cell) in self._own_cells:
                self._visit(slot.get(), name, seen, depth + 1)
            else:
                seen.add(id(cell))
                self._keep.append(cell)
                self._add(slot, seen, depth)

    def _add(self, slot: Slot, seen: set[int], depth: int) -> None:
        value = slot.get()
        if not self._only_objects:
            self.slots.append(slot)
            self.values.append(value)
        if _reach(type(value)):
            self._visit(value, slot.path, seen, depth + 1)

    def watched(self) -> list[Any]:
        """Return the watches that were added since the snapshot; see `merged_objects`."""
        return tracing.require("a region").watched[self._first_watched :]

    def changes(self) -> dict[int, Any]:
        """Return the slots that hold something else now, by index, with what they hold."""
        changed: dict[int, Any] = {}
        for index, (slot, before) in enumerate(zip(self.slots, self.values, strict=True)):
            if not slot.holds(before):
                changed[index] = slot.get()
        return changed

    def reassigned(self) -> list[tuple[Slot, Any]]:
        """Return the fixed attributes that were assigned nevertheless, with what they held."""
        return [
            (Slot(owner, name, f"{path}.{name}"), value)
            for owner, path, attributes in self._fixed
            for name, value in attributes.items()
            if getattr(owner, name, UNDEFINED) is not value
        ]

    def hidden_changes(self) -> Iterator[tuple[str, str]]:
        """Yield the changes that cannot be carried: the path of what changed, and what it is."""
        for space, earlier in self._namespaces:
            if space.changed(earlier):
                yield space.path(earlier), "a name of a module, class or function"
        for (x, path, _), kind in zip(self._objects, self._classes, strict=True):
            if type(x) is not kind:
                yield f"{path}.__class__", "the class of an object"
        for x, path, before in self._opaque:
            if not isinstance(before, hidden_state.Untold) and hidden_state.fingerprint(x) != before:
                yield path, f"{_article(type(x).__name__)} {type(x).__name__}"

    def check_unchanged(self, what: str) -> None:
        """Refuse changes inside a region that cannot be carried out of it.

        These are lengths and keys of containers, fixed attributes (which are restored), names of modules and classes,
        and contents of opaque objects, such as iterators. Objects that do not show their contents count as changed.
        """
        only_then = f"inside {what}, whose course is only known when the program runs"
        for path, kind in self.hidden_changes():
            raise runtime_error(
                f"{path} changes {only_then}",
                f"it is {kind}: what a region changes are variables, attributes, and elements of lists and dicts; use one "
                "of these, or make the condition a Python value (const_expr, range_constexpr)",
            )
        for x, path, before in self._opaque:
            if isinstance(before, hidden_state.Untold):
                raise runtime_error(
                    f"{path} may change {only_then}",
                    f"it is {_article(type(x).__name__)} {type(x).__name__}, which does not show how far it is: put its "
                    "items into a tuple before, or make the condition a Python value (const_expr, range_constexpr)",
                )
        reassigned = self.reassigned()
        if reassigned:
            for slot, value in reassigned:
                slot.set(value)
            slot = reassigned[0][0]
            raise runtime_error(
                f"{slot.path} is assigned inside {what}",
                f"{type(slot.owner).__name__} says that its attributes stay: assign it before",
            )
        for path, kind in self.resized():
            raise runtime_error(
                f"the {kind} {path!r} changes its {'length' if kind == 'list' else 'keys'} inside {what}",
                f"whether this happens is only known when the program runs: give {path!r} its final size before, "
                "or build it under a condition that is a Python value (const_expr, range_constexpr)",
            )

    def resized(self) -> Iterator[tuple[str, str]]:
        """Yield the containers that have another length or other keys now: their path, and "list", "dict" or "set"."""
        for container, path, keys in self._containers:
            if isinstance(container, list):
                same = len(container) == len(keys)
                kind = "list"
            elif isinstance(container, dict):
                same = list(container) == keys
                kind = "dict"
            else:
                same = container == keys
                kind = "set"
            if not same:
                yield path, kind

    def new_attributes(self) -> dict[tuple[int, str], Any]:
        """Return the attributes that objects gained, by (index of the object, name)."""
        new_values: dict[tuple[int, str], Any] = {}
        for index, (owner, _, attributes) in enumerate(self._objects):
            for name, value in tree.attributes_of(owner).items():
                if name not in attributes and not hidden_state.is_filled_cache(owner, name):
                    new_values[index, name] = value
        return new_values

    def owner_of(self, key: tuple[int, str]) -> Any:
        """Return the object that gained an attribute named by `new_attributes`."""
        return self._objects[key[0]][0]

    def path_of(self, key: tuple[int, str]) -> str:
        """Return the path of an attribute named by `new_attributes`."""
        return f"{self._objects[key[0]][1]}.{key[1]}"

    def drop_attributes(self, names: Iterable[tuple[int, str]]) -> None:
        """Remove attributes named by `new_attributes`."""
        for index, name in names:
            tree.delete_attribute(self._objects[index][0], name)

    def set_attribute(self, key: tuple[int, str], value: object) -> None:
        """Give an object an attribute named by `new_attributes`."""
        tree.set_attribute(self._objects[key[0]][0], key[1], value)

    def _refill(self) -> None:
        """Restore the length or keys of containers; `restore` restores their elements."""
        for container, _, keys in self._containers:
            if isinstance(container, list):
                container[:] = [*container[: len(keys)], *[UNDEFINED] * (len(keys) - len(container))]
            elif isinstance(container, dict):
                held = {key: container.get(key, UNDEFINED) for key in keys}
                container.clear()
                container.update(held)
            else:
                container.clear()
                container.update(keys)

    def restore(self, changed: Iterable[int] | None = None) -> None:
        """Restore every slot, or those that are known to have changed."""
        for index in range(len(self.slots)) if changed is None else changed:
            slot = self.slots[index]
            value = self.values[index]
            if not slot.holds(value):
                slot.set(value)

    @contextlib.contextmanager
    def state(self, changes: Mapping[int, object], gained: Mapping[tuple[int, str], object]) -> Iterator[None]:
        """Let objects hold, while open, what they held at the end of a branch."""
        for index, value in changes.items():
            self.slots[index].set(value)
        for key, value in gained.items():
            self.set_attribute(key, value)
        try:
            yield
        finally:
            self.drop_attributes(gained)
            self.restore(changes)

    def undo(self) -> None:
        """Restore everything that can be restored."""
        self.drop_attributes(self.new_attributes())
        self._refill()
        self.restore()
        for slot, value in self.reassigned():
            slot.set(value)
        for space, before in self._namespaces:
            space.restore(before)

    def classes(self) -> set[type]:
        """Return the classes of the plain objects."""
        return {type(owner) for owner, _, _ in self._objects}


class Reached(Snapshot):
    """A record of the mutable objects reachable from some roots and their reference counts, without their contents."""

    _only_objects = True


def objects_in(*values: object) -> dict[int, Any]:
    """Return the mutable objects and containers reachable from values, by identity."""
    mutable = [("", value) for value in values if tree.is_mutable(value)]
    return Reached(mutable, code=False).objects if mutable else {}


def _article(word: str) -> str:
    return "an" if word[0].lower() in "aeiou" else "a"
