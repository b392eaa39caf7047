"""Families of kernels: who can compute a problem, in which plans, and who does.

A *problem* says what is asked for (`common/problem.py`), a *plan* how it is cut: a frozen dataclass, so that it can be compared,
printed and made by a tuner. An *implementation* computes problems of a family by plans of a type of its own. Implementations stand in
the table of their family; a call takes the one whose best plan is expected to take least time, or the one that takes the plan
it was given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from . import arrays, explaining, recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .devices import Device

_MOST = 4096


class Implementation:
    """One way to compute the problems of a family. A subclass says what its plans are of, and has the methods below."""

    plan: type[Any]
    """The type of its plans."""
    repeats = False
    """Whether all it does to arrays is done by `common.launches` and `common.arrays`, so that a call can be recorded and repeated.
    Otherwise Python works out every call anew."""

    def supports(self, problem: Any, device: Device) -> str | None:
        """Why it cannot compute a problem on a device; None: it can."""
        raise NotImplementedError

    def plans(self, problem: Any, device: Device) -> Iterable[Any]:
        """Plans that work for a problem it supports, the most promising first: what a tuner tries. None: there is no such plan."""
        raise NotImplementedError

    def cost(self, problem: Any, plan: Any, device: Device) -> float:
        """Microseconds that a plan is expected to take."""
        raise NotImplementedError

    def parts(self, problem: Any, plan: Any, device: Device) -> dict[str, float]:
        """What the cost is made of, by names: microseconds of what is done side by side or, where they add up to it, one after the other.
        None, if it does not tell."""
        return {}

    def check(self, problem: Any, plan: Any, device: Device) -> None:
        """Refuse a plan that cannot work for a problem it supports, and say why."""

    def validate(self, problem: Any, plan: Any, device: Device) -> list[str]:
        """Why a plan cannot work for a problem; nothing: it can."""
        reason = self.supports(problem, device)
        if reason is not None:
            return [reason]
        try:
            self.check(problem, plan, device)
        except DSLUserCodeTypeError as refused:
            return [refused.message]
        return []

    def run(self, problem: Any, plan: Any, given: Any) -> Any:
        """Compute a problem on arrays that lie as it says; each family says what `given` is and what is returned."""
        raise NotImplementedError


class MemoryBound(Implementation):
    """One whose time is that of memory, and whose calls can be repeated."""

    repeats = True

    def cost(self, problem: Any, plan: Any, device: Device) -> float:
        return explaining.LAUNCH + explaining.memory_time(problem, device)


class Choice(NamedTuple):
    """Who computes a problem, how, and the microseconds that is expected to take."""

    implementation: Any
    plan: Any
    cost: float


_asked: list[tuple[Family, Any]] | None = None


@contextlib.contextmanager
def asking() -> Iterator[list[tuple[Family, Any]]]:
    """While open, families compute nothing: who is asked for which problem is noted in the list this gives. For one thread."""
    global _asked
    before, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = before


class Family:
    """The table of implementations of one kind of problem."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table: list[Implementation] = []
        self._chosen: dict[Any, Choice] = {}
        self._used = False

    def register(self, implementation: Any) -> Any:
        """Put an implementation (or one of a class: a decorator) into the table. Calls that were recorded choose again."""
        made = implementation() if isinstance(implementation, type) else implementation
        parameters = getattr(made.plan, "__dataclass_params__", None)
        arrays.require(
            parameters is not None and parameters.frozen,
            f"{type(made).__name__}.plan is {made.plan.__name__}: plans are compared, kept and printed",
            hint="@dataclasses.dataclass(frozen=True)",
        )
        self.table.append(made)
        recorder.add_constant(made.plan)
        self._changed()
        return implementation

    def unregister(self, implementation: Any) -> None:
        """Take an implementation, or those of a class, out of the table."""
        self.table = [x for x in self.table if x is not implementation and type(x) is not implementation]
        self._changed()

    def _changed(self) -> None:
        self._chosen.clear()
        if self._used:
            recorder.forget()

    def choices(self, problem: Any, device: Device) -> list[Choice]:
        """All that can be chosen for a problem, the cheapest first."""
        found = [
            Choice(implementation, plan, implementation.cost(problem, plan, device))
            for implementation in self.table
            if implementation.supports(problem, device) is None
            for plan in implementation.plans(problem, device)
        ]
        return sorted(found, key=lambda choice: choice.cost)

    def choose(self, problem: Any, device: Device, plan: Any = None) -> Choice:
        """Who computes a problem on a device, by the given plan or by the one that is expected to take least time."""
        self._used = True
        if plan is not None:
            return self._taking(plan, problem, device)
        key = (problem, device)
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= _MOST:
                self._chosen.clear()
            found = self._chosen[key] = self._cheapest(problem, device)
        return found

    def _cheapest(self, problem: Any, device: Device) -> Choice:
        """Of the first plans of all implementations; the last registered of equals."""
        best: Choice | None = None
        reasons: list[str] = []
        for implementation in self.table:
            reason = implementation.supports(problem, device)
            plan = next(iter(implementation.plans(problem, device)), None) if reason is None else None
            if plan is None:
                reasons.append(f"{type(implementation).__name__}: {reason or 'no plan works for it'}")
                continue
            cost = implementation.cost(problem, plan, device)
            if best is None or cost <= best.cost:
                best = Choice(implementation, plan, cost)
        if best is None:
            raise self._refusal(problem, reasons)
        best.implementation.check(problem, best.plan, device)
        return best

    def _taking(self, plan: Any, problem: Any, device: Device) -> Choice:
        takers = [x for x in self.table if type(plan) is x.plan]
        names = dict.fromkeys(x.plan.__name__ for x in self.table)
        arrays.require(
            bool(takers),
            f"{problem.name}: plan is {type(plan).__name__}",
            hint=" or ".join(f"kernels.{name}(...)" for name in names),
        )
        reasons = [(x, x.supports(problem, device)) for x in takers]
        able = [x for x, reason in reasons if reason is None]
        if not able:
            raise self._refusal(problem, [f"{type(x).__name__}: {reason}" for x, reason in reasons])
        for implementation in able:
            implementation.check(problem, plan, device)
        costs = [(x.cost(problem, plan, device), -n) for n, x in enumerate(able)] if len(able) > 1 else [(0.0, 0)]
        cost, place = min(costs)
        return Choice(able[-place], plan, cost)

    def _refusal(self, problem: Any, reasons: list[str]) -> Exception:
        return DSLUserCodeTypeError(
            f"{problem.name}: no implementation computes this: {'; '.join(reasons) or 'there is none'}",
            hint=f"{problem}",
        )

    def validate(self, problem: Any, plan: Any, device: Device) -> list[str]:
        """Why no implementation can compute a problem by a plan; nothing: one can."""
        found = [x.validate(problem, plan, device) for x in self.table if type(plan) is x.plan]
        if not found:
            return [f"{type(plan).__name__} is no plan of {self.name}"]
        return [] if [] in found else [reason for reasons in found for reason in reasons]

    def explain(self, problem: Any, device: Device, plan: Any = None) -> explaining.Explanation:
        """What is chosen for a problem, or is to be if a plan is given, and why."""
        first = self.choose(problem, device, plan)
        cost = first.implementation.cost(problem, first.plan, device)
        others = [choice for choice in self.choices(problem, device) if choice[:2] != first[:2]]
        choices = (x._replace(cost=max(x.cost, explaining.LAUNCH)) for x in (first._replace(cost=cost), *others))
        reasons = {type(x).__name__: x.supports(problem, device) for x in self.table}
        parts = first.implementation.parts(problem, first.plan, device)
        added = abs(sum(parts.values()) - cost) < 1e-6 * cost
        return explaining.Explanation(
            problem, device, tuple(choices), {name: why for name, why in reasons.items() if why is not None},
            parts, explaining.least(problem, device) if added or not parts else parts,
        )  # fmt: skip

    def run(self, problem: Any, device: Device, given: Any, plan: Any = None) -> Any:
        """Choose, and compute."""
        if _asked is not None:
            _asked.append((self, problem))
            return None
        implementation, plan, _ = self.choose(problem, device, plan)
        if not implementation.repeats:
            recorder.cannot_repeat(f"{type(implementation).__name__} launches kernels by itself")
        return implementation.run(problem, plan, given)


def varied(first: Any, check: Any, **choices: Any) -> Iterator[Any]:
    """A plan, then those with other values of some fields that pass a check."""
    yield first
    seen = {first}
    for values in itertools.product(*choices.values()):
        plan = dataclasses.replace(first, **dict(zip(choices, values, strict=True)))
        if plan in seen:
            continue
        seen.add(plan)
        if works(check, plan):
            yield plan


def works(check: Any, plan: Any) -> bool:
    """Whether a plan passes a check."""
    try:
        check(plan)
    except DSLUserCodeTypeError:
        return False
    return True
