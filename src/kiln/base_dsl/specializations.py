"""When a jit function is traced and compiled again: the rule, and the one place that applies it.

A call runs code that exists if both answers are yes:

1. **Is there code for its key?** The key has the target and the settings that affect code (`target_key`), and for each
   argument (`Node.key`) the type of a number, the contents of a static value (`static_key`), or the element type, memory
   and layout of a tensor.
2. **Is everything that its trace may have read as it was?** `Dependencies.unchanged` compares globals, closures, defaults,
   classes, and the contents of objects.

Otherwise the function is traced. Where a trace gives a program that was compiled before, the disk cache has its code.

The key of a call also has *facts* that only make code faster: alignment and divisibility of arrays (`Node.specialized`).
Without them it is the *general* key. Code that uses facts is a *variant*. The first three combinations of facts of a
general key get their own variant. A later combination takes the strongest variant that fits (`Node.fit`), or code without
facts.

Native code that takes later calls asks the same two questions: records of a plan compare keys, guards the rest
(`Caller.learn_jit`, `choice_guards`, `Dependencies.guards`). Calls that it does not take come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .arguments import AMBIENT_STREAM, Node
from .dsl import compile_lock
from .target import target_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from .compiled_function import CompiledFunction
    from .dependencies import Dependencies
    from .function import JitFunction

    Key = tuple[Hashable, ...]

_MOST_SPECIALIZATIONS = 1024
"""The most specializations a function keeps; then the oldest go."""
_MOST_VARIANTS = 3
"""The most combinations of facts that one general key gets code for."""


class Specialization(NamedTuple):
    """What calls with one key run."""

    code: CompiledFunction[Any]
    dependencies: Dependencies
    borrowed: bool
    """Whether the code belongs to another key: it uses fewer facts than this key has."""


class Call:
    """The arguments of a call. Nodes are made only where the key cannot be read without them, or there is no code."""

    __slots__ = ("_nodes", "_passed", "function", "key", "leaves", "no_cache", "values")

    def __init__(self, function: JitFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.no_cache = False
        self._passed = args, kwargs
        self._nodes: ArgumentNodes | None = None
        read = None if kwargs else function.parameters.quick(function.dsl, args, specialize=True)
        self.values: Iterable[Any]
        if read is None:
            nodes = self.nodes
            self.values = nodes.arguments.values()
            self.key: Key = nodes.key
            self.leaves = [leaf for node in nodes.exact for leaf in node.leaves()]
        else:
            self.values = args
            self.key = (target_key(), *read[0])
            self.leaves: list[Any] = read[1]

    @property
    def nodes(self) -> ArgumentNodes:
        """The arguments as nodes."""
        if self._nodes is None:
            args, kwargs = self._passed
            parameters = self.function.parameters
            if "no_cache" in kwargs and "no_cache" not in parameters.names:
                self.no_cache = bool(kwargs.pop("no_cache"))
            stream = kwargs.pop(AMBIENT_STREAM, None)
            arguments = parameters.bind(args, kwargs)
            if stream is not None:
                arguments = {**arguments, AMBIENT_STREAM: stream}
            general = parameters.nodes(self.function.dsl, arguments)
            exact = [node.specialized() for node in general]
            self._nodes = ArgumentNodes(arguments, general, exact, key_of(exact))
        return self._nodes


class ArgumentNodes(NamedTuple):
    """The arguments of a call by name, their nodes without and with facts, and the key with facts."""

    arguments: dict[str, Any]
    general: list[Node]
    exact: list[Node]
    key: Key


def key_of(nodes: Iterable[Node]) -> Key:
    """Return the key of arguments under the target in force."""
    return (target_key(), *(node.key for node in nodes))


def fitted(nodes: Sequence[Node], keys: Sequence[Hashable]) -> list[Node] | None:
    """Return arguments as code compiled for these keys takes them; None if one does not fit."""
    fits: list[Node] = []
    for node, key in zip(nodes, keys, strict=True):
        one = node if node.key == key else node.fit(key)
        if isinstance(one, str):
            return None
        fits.append(one)
    return fits


class Specializations:
    """The specializations of a jit function by key."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Specialization] = {}
        self._variants: dict[Key, list[Key]] = {}
        """By general key the keys with facts that have a variant."""

    def find(self, key: Key) -> Specialization | None:
        """Return code for a key if everything that its trace may have read is as it was; else None."""
        candidate = self._by_key.get(key)
        return candidate if candidate is not None and candidate.dependencies.unchanged() else None

    def variant(self, nodes: ArgumentNodes) -> tuple[Key, list[Node]]:
        """Return the key and the arguments to compile a call for that has no code."""
        key = nodes.key
        general = key_of(nodes.general)
        if key == general:
            return key, nodes.general
        with compile_lock:
            if len(self._variants) >= _MOST_SPECIALIZATIONS:
                self._variants.clear()
            variants = self._variants.setdefault(general, [])
            if key not in variants and len(variants) < _MOST_VARIANTS:
                variants.append(key)  # before it is compiled: other threads count it
            if key in variants:
                return key, nodes.exact
        fitting = [(each, fits) for each in variants if (fits := fitted(nodes.exact, each[1:])) is not None]
        return max(fitting, key=lambda one: sum(node.strength for node in one[1]), default=(general, nodes.general))

    def add(self, key: Key, compiled_for: Key, specialization: Specialization) -> Specialization:
        """Keep code under the key that it was compiled for and under the key of the call, and return what calls run."""
        with compile_lock:
            for each in (compiled_for, key):
                self._by_key.pop(each, None)
                while len(self._by_key) >= _MOST_SPECIALIZATIONS:
                    del self._by_key[next(iter(self._by_key))]
                self._by_key[each] = specialization._replace(borrowed=each != compiled_for)
            return self._by_key[key]

    def clear(self) -> None:
        """Forget all."""
        with compile_lock:
            self._by_key.clear()
            self._variants.clear()

    def codes(self) -> list[CompiledFunction[Any]]:
        """Return all code, oldest first."""
        return list({id(each.code): each.code for each in self._by_key.values()}.values())
