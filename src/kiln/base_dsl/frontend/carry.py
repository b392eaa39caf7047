"""What a region may change: the variables of a function, and the objects it can reach.

`Scope` reads and writes a traced function's variables through their closure cells. `Snapshot` remembers the
state of every mutable object reachable from some values, so that changes made inside a region, at any call
depth, are found by comparison and carried out of it leaf by leaf.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from typing import TYPE_CHECKING, Any

from .. import tree
from ..diagnostics import DSLRuntimeError, error
from ..tree import UNDEFINED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Scope:
    """The variables of one call of a rewritten function."""

    def __init__(self, names: Callable[[], Any]) -> None:
        code = names.__code__
        self.cells: dict[str, types.CellType] = dict(zip(code.co_freevars, names.__closure__ or (), strict=True))
        self.globals = names.__globals__

    def get(self, name: str) -> Any:
        """The variable's value; UNDEFINED while it has none."""
        cell = self.cells.get(name)
        if cell is None:
            return UNDEFINED
        try:
            return cell.cell_contents
        except ValueError:
            return UNDEFINED

    def set(self, name: str, value: Any) -> None:
        """Bind the variable; UNDEFINED unbinds it."""
        cell = self.cells[name]
        if value is not UNDEFINED:
            cell.cell_contents = value
            return
        try:
            del cell.cell_contents
        except ValueError:
            pass

    def save(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of some variables."""
        return {name: self.get(name) for name in names}

    def restore(self, values: dict[str, Any]) -> None:
        """Put back what `save` returned."""
        for name, value in values.items():
            self.set(name, value)

    def roots(self, names: Iterable[str]) -> list[tuple[str, Any]]:
        """Named values a region can reach through these names, module globals included."""
        found: list[tuple[str, Any]] = []
        for name in names:
            value = self.get(name)
            if value is UNDEFINED and name not in self.cells:
                value = self.globals.get(name, UNDEFINED)
                if isinstance(value, (type, types.ModuleType)):
                    continue
            if value is not UNDEFINED:
                found.append((name, value))
        return found


class Slot:
    """One place in a mutable object: an attribute (here), a list element, a dict entry, or the state of a protocol object."""

    __slots__ = ("key", "owner", "path")
    kind = "attribute"

    def __init__(self, owner: Any, key: Any, path: str) -> None:
        self.owner = owner
        self.key = key
        self.path = path

    @property
    def container_path(self) -> str:
        """How the program calls the owner of an element."""
        return self.path[: -len(f"[{self.key!r}]")]

    def get(self) -> Any:
        return getattr(self.owner, self.key, UNDEFINED)

    def holds(self, value: Any) -> bool:
        """Whether it holds what was read from it before."""
        return getattr(self.owner, self.key, UNDEFINED) is value

    def set(self, value: Any) -> None:
        if value is not UNDEFINED:
            object.__setattr__(self.owner, self.key, value)
        elif hasattr(self.owner, self.key):
            object.__delattr__(self.owner, self.key)


class _Item(Slot):
    __slots__ = ()
    kind = "item"

    def get(self) -> Any:
        return self.owner[self.key]

    def holds(self, value: Any) -> bool:
        return self.owner[self.key] is value

    def set(self, value: Any) -> None:
        self.owner[self.key] = value


class _State(Slot):
    __slots__ = ()
    kind = "state"

    def get(self) -> Any:
        return tree.frozen(self.owner)  # a later change of the object does not change what was read

    def holds(self, value: Any) -> bool:
        return tree.same_state(value, self.owner)

    def set(self, value: Any) -> None:
        if value is not self.owner:
            for name, part in tree.attributes_of(value).items():
                object.__setattr__(self.owner, name, part)


@functools.lru_cache(maxsize=4096)
def _reach(kind: type) -> str:
    """What is looked at of objects of a class; nothing where that is empty."""
    if issubclass(kind, types.MethodType):
        return "self"
    if issubclass(kind, types.FunctionType):
        return "closure"
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
    # a class may say that attributes of its objects stay what they are: only what they hold may change
    return "fixed" if getattr(kind, "__kiln_fixed__", False) else "attributes"


class Snapshot:
    """The mutable objects reachable from some roots, and what they held."""

    def __init__(self, roots: list[tuple[str, Any]]) -> None:
        self.slots: list[Slot] = []
        self.values: list[Any] = []
        self._containers: list[tuple[Any, str, Any]] = []
        self._objects: list[tuple[Any, str, dict[str, Any]]] = []
        self._fixed: list[tuple[Any, str, dict[str, Any]]] = []
        """Those of them whose attributes stay."""
        self._keep: list[Any] = []
        seen: set[int] = set()
        for name, value in roots:
            self._visit(value, name, seen, 0)

    def _visit(self, x: Any, path: str, seen: set[int], depth: int) -> None:
        reach = _reach(type(x))
        if not reach or id(x) in seen or depth > 20:
            return
        if reach == "self":
            self._visit(x.__self__, path, seen, depth + 1)
            return
        seen.add(id(x))
        self._keep.append(x)
        if reach in ("attributes", "fixed"):
            if tree.is_plain_object(x):
                attributes = tree.attributes_of(x)
                self._objects.append((x, path, attributes))
                if reach == "fixed":
                    self._fixed.append((x, path, attributes))
                for key, value in attributes.items():
                    if reach == "attributes":
                        self._add(Slot(x, key, f"{path}.{key}"), seen, depth)
                    elif _reach(type(value)):
                        self._visit(value, f"{path}.{key}", seen, depth + 1)
        elif reach == "state":
            if tree.has_attributes(x):
                slot = _State(x, None, path)
                self.slots.append(slot)
                self.values.append(slot.get())
        elif reach == "parts":
            for i, item in enumerate(x):
                self._visit(item, f"{path}[{i}]", seen, depth + 1)
        elif reach == "items":
            keys = list(range(len(x))) if isinstance(x, list) else list(x)
            self._containers.append((x, path, keys))
            for key in keys:
                self._add(_Item(x, key, f"{path}[{key!r}]"), seen, depth)
        elif reach == "call":
            for part in (x.func, x.args, x.keywords):
                self._visit(part, path, seen, depth + 1)
        elif reach == "set":
            self._containers.append((x, path, frozenset(x)))
        elif x.__closure__:
            for name, cell in zip(x.__code__.co_freevars, x.__closure__, strict=True):
                try:
                    self._visit(cell.cell_contents, name, seen, depth + 1)
                except ValueError:
                    pass

    def _add(self, slot: Slot, seen: set[int], depth: int) -> None:
        value = slot.get()
        self.slots.append(slot)
        self.values.append(value)
        if _reach(type(value)):
            self._visit(value, slot.path, seen, depth + 1)

    def changes(self) -> dict[int, Any]:
        """Slots that hold something else now, by index, with what they hold."""
        found: dict[int, Any] = {}
        for index, (slot, before) in enumerate(zip(self.slots, self.values, strict=True)):
            if not slot.holds(before):
                found[index] = slot.get()
        return found

    def reassigned(self) -> list[tuple[Slot, Any]]:
        """Attributes that had to stay and hold something else now, with what they held."""
        return [
            (Slot(owner, name, f"{path}.{name}"), value)
            for owner, path, attributes in self._fixed
            for name, value in attributes.items()
            if getattr(owner, name, UNDEFINED) is not value
        ]

    def check_containers(self, what: str) -> None:
        """Refuse a container that outlives the region and changed its length or keys inside, and attributes that had to stay.

        The attributes are put back.
        """
        reassigned = self.reassigned()
        if reassigned:
            for slot, value in reassigned:
                slot.set(value)
            slot = reassigned[0][0]
            raise error(
                DSLRuntimeError,
                f"{slot.path} is assigned inside {what}",
                hint=f"{type(slot.owner).__name__} says that its attributes stay: assign it before",
            )
        for path, kind in self.resized():
            raise error(
                DSLRuntimeError,
                f"the {kind} {path!r} changes its {'length' if kind == 'list' else 'keys'} inside {what}",
                hint=f"whether this happens is only known when the program runs: give {path!r} its final size before, "
                "or build it under a condition that is a Python value (const_expr, range_constexpr)",
            )

    def resized(self) -> Iterator[tuple[str, str]]:
        """Containers that have another length or other keys now: where they are, and what."""
        for container, path, keys in self._containers:
            if isinstance(container, list):
                same, kind = len(container) == len(keys), "list"
            elif isinstance(container, dict):
                same, kind = list(container) == keys, "dict"
            else:
                same, kind = container == keys, "set"
            if not same:
                yield path, kind

    def new_attributes(self) -> dict[tuple[int, str], Any]:
        """Attributes that objects gained, by (index of the object, name)."""
        found: dict[tuple[int, str], Any] = {}
        for index, (owner, _, attributes) in enumerate(self._objects):
            for name, value in tree.attributes_of(owner).items():
                if name not in attributes:
                    found[index, name] = value
        return found

    def path_of(self, key: tuple[int, str]) -> str:
        """Where an attribute named by `new_attributes` is."""
        return f"{self._objects[key[0]][1]}.{key[1]}"

    def drop_attributes(self, names: Iterable[tuple[int, str]]) -> None:
        """Remove attributes named by `new_attributes`."""
        for index, name in names:
            object.__delattr__(self._objects[index][0], name)

    def set_attribute(self, key: tuple[int, str], value: Any) -> None:
        """Give an object an attribute named by `new_attributes`."""
        object.__setattr__(self._objects[key[0]][0], key[1], value)

    def _refill(self) -> None:
        """Give containers the length or the keys that they had; what they hold is put back by `restore`."""
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
        """Put every slot back; where it is known which hold something else, those."""
        for index in range(len(self.slots)) if changed is None else changed:
            slot, value = self.slots[index], self.values[index]
            if not slot.holds(value):
                slot.set(value)

    @contextlib.contextmanager
    def state(self, changes: dict[int, Any], gained: dict[tuple[int, str], Any]) -> Iterator[None]:
        """While open, objects hold what they held at the end of a branch."""
        for index, value in changes.items():
            self.slots[index].set(value)
        for key, value in gained.items():
            self.set_attribute(key, value)
        try:
            yield
        finally:
            self.drop_attributes(gained)
            self.restore(changes)

    @contextlib.contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Put objects back if tracing fails: they may outlive the trace."""
        try:
            yield
        except BaseException:
            self.drop_attributes(self.new_attributes())
            self._refill()
            self.restore()
            for slot, value in self.reassigned():
                slot.set(value)
            raise

    def classes(self) -> set[type]:
        """The classes of the plain objects."""
        return {type(owner) for owner, _, _ in self._objects}


def stored_attributes(classes: set[type], calls: Iterable[str], functions: Iterator[Any]) -> set[str]:
    """Attribute names that calls of these names may store, through methods of `classes` or the given functions.

    An over-approximation by name, read off the byte code: which Python numbers kept in objects must become
    object-stage values before a loop is traced, because an iteration may change them.
    """
    stored: set[str] = set()
    todo = list(calls)
    done: set[str] = set()
    codes: set[types.CodeType] = set()

    def add_code(code: types.CodeType) -> None:
        if code in codes or len(codes) > 500:
            return
        codes.add(code)
        kept, read, inner = _names_in(code)
        stored.update(kept)
        todo.extend(read)
        for part in inner:
            add_code(part)

    for function in functions:
        code = _code_of(function)
        if code is not None:
            add_code(code)
    while todo:
        name = todo.pop()
        if name in done or name in ("__init__", "__post_init__", "__new__"):
            continue
        done.add(name)
        for kind in classes:
            code = _code_of(getattr(kind, name, None))
            if code is not None:
                add_code(code)
    return stored


_STORE_ATTR, _EXTENDED_ARG = dis.opmap["STORE_ATTR"], dis.opmap["EXTENDED_ARG"]


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[set[str], tuple[str, ...], list[types.CodeType]]:
    """Names of attributes that code stores, names that it uses, and the code of functions it defines.

    `dis.get_instructions` would take twenty times as long.
    """
    names, stored, extended = code.co_names, set[str](), 0
    if names:
        instructions = code.co_code
        for operation, argument in zip(instructions[::2], instructions[1::2], strict=True):
            if operation == _EXTENDED_ARG:
                extended = (extended | argument) << 8
                continue
            if operation == _STORE_ATTR:
                stored.add(names[extended | argument])
            extended = 0
    return stored, names, [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _code_of(x: Any) -> types.CodeType | None:
    if isinstance(x, property):
        x = x.fget
    while isinstance(x, (functools.partial, functools.partialmethod)):
        x = x.func
    x = getattr(x, "__wrapped__", x)
    return getattr(x, "__code__", None)
