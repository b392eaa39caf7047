"""Side effects of the arms of a conditional expression."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from .. import merging, tree
from ..bindings import ir
from ..cells import contents
from ..diagnostics import generated_name, type_error
from ..tree import UNDEFINED
from .carry import Snapshot, set_contents
from .code_facts import code_facts
from .jumps import is_internal_name
from .regions import ArmEnd, merged_places, unavailable_name, unify_arms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .merged_objects import Noted


class _LazyArm(ArmEnd):
    """The state at the end of an arm of a conditional expression."""

    def __init__(self, snapshot: Snapshot, values: dict[str, Any]) -> None:
        self.values = values
        self.ended(snapshot)


class LazyEffects:
    """The side effects of the arms of a conditional expression: variables set by `:=`, objects changed by calls.

    The arms are closures, so their cells and the names of their module are all they can reach.
    """

    def __init__(self, arms: tuple[Callable[[], object], ...], operand: object = None) -> None:
        self._cells: dict[str, types.CellType] = {}
        self._writes: set[str] = set()
        roots: dict[str, Any] = {"an operand": operand}
        todo: list[Any] = list(arms)
        while todo:
            arm = todo.pop()
            if generated_name(arm.__code__):
                self._writes |= code_facts(arm.__code__).rebinds
            for name, cell in zip(arm.__code__.co_freevars, arm.__closure__ or (), strict=True):
                if name in self._cells:
                    continue
                self._cells[name] = cell
                value = contents(cell, UNDEFINED)
                if isinstance(value, types.FunctionType) and generated_name(value.__code__):
                    todo.append(value)
                elif not is_internal_name(name) and value is not UNDEFINED:
                    roots[name] = value
            for name in code_facts(arm.__code__).names:
                if name in arm.__globals__:
                    roots.setdefault(name, arm.__globals__[name])
        own = frozenset(id(self._cells[name]) for name in self._writes if name in self._cells)
        self.snapshot: Snapshot = Snapshot(sorted(roots.items(), key=lambda item: item[0]), own)
        self._before = self._save()
        self._arms: list[_LazyArm] = []

    def _save(self) -> dict[str, Any]:
        return {name: contents(self._cells[name], UNDEFINED) for name in sorted(self._writes)}

    def end_of_arm(self) -> None:
        """Record what an arm changed, and undo it."""
        self.snapshot.check_unchanged("a conditional expression")
        arm = _LazyArm(self.snapshot, self._save())
        self._arms.append(arm)
        for name, value in self._before.items():
            set_contents(self._cells[name], value)
        self.snapshot.restore(arm.changes)

    def at_end(self, index: int, value: object, kept: tree.Kept) -> Any:
        """Return a value of an arm with its objects as they were at the arm's end."""
        return self._arms[index].at_end(value, kept)

    def merge(self, merge: merging.Merge, noted: Noted) -> Callable[[Iterator[ir.Value]], None]:
        """Add what has to be merged; return a function that sets variables and objects from the merged values."""
        steps: list[Callable[[Iterator[ir.Value]], None]] = []
        first, second = self._arms

        def unify(name: str, a: object, b: object) -> Callable[[Iterator[ir.Value]], Any]:
            try:
                return unify_arms(first, a, second, b, merge)
            except merging.Mismatch as m:
                raise self._error(name, m) from None

        for name, a in first.values.items():
            cell = self._cells[name]
            b = second.values[name]
            if (a is UNDEFINED) != (b is UNDEFINED):
                unavailable_name(
                    name,
                    f"{name!r} gets its value by `:=` in a part of an expression that may not be evaluated",
                    f"give {name!r} a value before",
                )
                continue
            set_ = functools.partial(set_contents, cell)
            steps.append(noted.setting(set_, unify(repr(name), a, b), a, b, repr(name)))
        for place in merged_places(self.snapshot, first, second):
            steps.append(place.setting(unify(place.path, place.first, place.second), noted))

        def finish(values: Iterator[ir.Value]) -> None:
            for step in steps:
                step(values)

        return finish

    @staticmethod
    def _error(name: str, m: merging.Mismatch) -> Exception:
        return type_error(
            f"a conditional expression leaves {name}{m.path} with different types: {tree.describe(m.first)} and "
            f"{tree.describe(m.second)}" + (f" ({m.why})" if m.why else ""),
            m.hint or "convert one of them, or make the condition a Python value (const_expr)",
        )
