"""Records of constructs, which the rewriter passes on to their hooks."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..diagnostics import Span
from .liveness import Flow

_NOTHING: frozenset[Any] = frozenset()


@dataclasses.dataclass
class Construct:
    """One `if`, guard or loop of a rewritten function."""

    kind: str
    """'if', 'for', 'while', or 'guard' (statements that a jump may skip)."""
    span: Span
    flow: Flow
    function: FunctionFacts
    flags: tuple[str, ...] = ()
    """The jump flags that lead out of it: those of the loops around it, and of the function."""
    exits: tuple[str, ...] = ()
    """Loops: the flags that leave it."""
    assigned: dict[str, list[Span]] = dataclasses.field(default_factory=dict)
    """Where each name is assigned inside."""
    global_writes: tuple[str, ...] = ()
    """Names of the module that it rebinds."""
    calls: frozenset[str] = _NOTHING
    """Names of functions and methods called inside."""
    attribute_stores: frozenset[str] = _NOTHING
    """Names of attributes assigned inside."""
    item_stores: frozenset[tuple[str, Any]] = _NOTHING
    """Elements assigned inside: (the last name of the container, a constant key or None for any)."""
    static_names: frozenset[str] = _NOTHING
    """While loops: names whose values decide whether the loop goes on."""
    test_writes: frozenset[str] = _NOTHING
    """While loops: names that the test binds."""
    constant_test: bool = False
    """While loops: the test is a literal."""

    def stores_item(self, path: str, key: object) -> bool:
        """Return whether the element `key` of the container called `path` is assigned inside."""
        name = path.split("[", maxsplit=1)[0].rsplit(".", 1)[-1]
        return (name, None) in self.item_stores or any(
            n == name and k == key and k is not None for n, k in self.item_stores
        )

    @property
    def title(self) -> str:
        """The construct as error messages name it."""
        kinds = {
            "if": "the `if`",
            "for": "the loop",
            "while": "the `while` loop",
            "guard": "the statements after a jump",
        }
        return f"{kinds[self.kind]} at line {self.span.line}"


@dataclasses.dataclass
class FunctionFacts:
    """The facts that all constructs of a function share."""

    name: str
    filename: str
    assigned: dict[str, list[Span]] = dataclasses.field(default_factory=dict)
    """Every place where a name is assigned."""
    returns: list[Span] = dataclasses.field(default_factory=list)
    flag_targets: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    constexpr_names: frozenset[str] = _NOTHING
    break_bound: frozenset[str] = _NOTHING
    """Names that have a value once a loop and its `else` are over, though not at the end of either; see `loop_else`."""
