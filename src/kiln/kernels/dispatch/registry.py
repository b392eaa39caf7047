"""Registries of implementations: which of them can compute a problem, with which configs, and which one does.

A *problem* says what is computed (`dispatch/problem.py`), a *config* how: a frozen dataclass, so that it can be
compared, printed and made by a tuner. An *implementation* computes problems with configs of its own class. A call takes
the registered implementation whose best config has the least expected time, or the one that has the class of the config
it is passed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from . import arrays, explaining, recorder
from .config import require
from .roofline import Roofline, lower_bounds, memory_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .config import Rule
    from .devices import Device

_MAX_CHOICES = 4096


class Implementation:
    """One way to compute the problems of a registry; subclasses set `config` and define the methods below."""

    config: type[Any]
    """The class of its configs."""
    repeats = False
    """Whether it touches arrays only through `dispatch.launches` and `dispatch.arrays`, so that a call can be recorded
    and repeated. Otherwise every call runs Python."""

    predicted = False
    """Whether its times are predictions for GPUs that nobody has measured it on."""

    def supports(self, problem: Any, device: Device) -> str | None:
        """Return why it cannot compute a problem on a device; None if it can."""
        raise NotImplementedError

    def configs(self, problem: Any, device: Device) -> Iterable[Any]:
        """Return configs that work for a supported problem, the most promising first; a tuner tries them all."""
        raise NotImplementedError

    def roofline(self, problem: Any, config: Any, device: Device) -> Roofline:
        """Return what a config is expected to spend time on. Empty without a model, whose `cost` is something else."""
        return Roofline({})

    def cost(self, problem: Any, config: Any, device: Device) -> float:
        """Return the expected microseconds."""
        return self.roofline(problem, config, device).us

    def rules(self, problem: Any, config: Any, device: Device) -> Iterable[Rule]:
        """Return what must hold for a config to work for a supported problem."""
        return ()

    def check(self, problem: Any, config: Any, device: Device) -> None:
        """Raise if a config breaks a rule."""
        require(config, self.rules(problem, config, device))

    def validate(self, problem: Any, config: Any, device: Device) -> list[str]:
        """Return why a config cannot work for a problem; empty if it can."""
        reason = self.supports(problem, device)
        if reason is not None:
            return [reason]
        try:
            self.check(problem, config, device)
        except DSLUserCodeTypeError as refused:
            return [refused.message]
        return []

    def run(self, problem: Any, config: Any, args: Any) -> Any:
        """Compute a problem on arrays with its layouts; each registry defines `args` and the result."""
        raise NotImplementedError


class MemoryBound(Implementation):
    """An implementation whose cost is the problem's memory time, and whose calls can be repeated.

    Its configs are the measured one and, for a tuner, those with other values of some fields.
    """

    repeats = True
    tried: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields of the config and the values that a tuner tries."""

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def measured_config(self, problem: Any, device: Device) -> Any:
        """Return the config that measuring found best, by default that without arguments; None if none works."""
        return self.config()

    def configs(self, problem: Any, device: Device) -> Iterable[Any]:
        first = self.measured_config(problem, device)
        if first is None:
            return ()
        return variants(first, lambda config: self.check(problem, config, device), **self.tried)

    def rules(self, problem: Any, config: Any, device: Device) -> Iterable[Rule]:
        return config.rules()

    def roofline(self, problem: Any, config: Any, device: Device) -> Roofline:
        return memory_bound(problem, device)


class Choice(NamedTuple):
    """An implementation and a config for a problem, with the expected microseconds."""

    implementation: Implementation
    config: Any
    cost: float


_collected: list[tuple[Registry, Any]] | None = None


@contextlib.contextmanager
def collecting_problems() -> Iterator[list[tuple[Registry, Any]]]:
    """While open, registries compute nothing but append themselves and the problem to the yielded list. Not
    thread-safe."""
    global _collected
    before, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = before


class Registry:
    """The implementations of one kind of problem."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.implementations: list[Implementation] = []
        self._chosen: dict[Any, Choice] = {}
        self._used = False

    def register(self, implementation: Any) -> Any:
        """Add an implementation, or an instance of a class of them (as a decorator). Recorded calls choose again."""
        instance = implementation() if isinstance(implementation, type) else implementation
        parameters = getattr(instance.config, "__dataclass_params__", None)
        arrays.require(
            parameters is not None and parameters.frozen,
            f"{type(instance).__name__}.config is {instance.config.__name__}, which is no frozen dataclass: "
            "configs are compared, kept and printed",
            hint="@dataclasses.dataclass(frozen=True)",
        )
        self.implementations.append(instance)
        recorder.add_constant(instance.config)
        self._changed()
        return implementation

    def unregister(self, implementation: Any) -> None:
        """Remove an implementation, or all of a class."""
        self.implementations = [
            x for x in self.implementations if x is not implementation and type(x) is not implementation
        ]
        self._changed()

    def _changed(self) -> None:
        self._chosen.clear()
        if self._used:
            recorder.forget()

    def choices(self, problem: Any, device: Device) -> list[Choice]:
        """Return all configs of all implementations that support a problem, the cheapest first."""
        choices = [
            Choice(implementation, config, implementation.cost(problem, config, device))
            for implementation in self.implementations
            if implementation.supports(problem, device) is None
            for config in implementation.configs(problem, device)
        ]
        return sorted(choices, key=lambda choice: choice.cost)

    def choose(self, problem: Any, device: Device, config: Any = None) -> Choice:
        """Return the choice for a problem: with `config`, or with the config of the least expected time."""
        self._used = True
        if config is not None:
            return self._with_config(config, problem, device)
        key = (problem, device)
        choice = self._chosen.get(key)
        if choice is None:
            if len(self._chosen) >= _MAX_CHOICES:
                self._chosen.clear()
            choice = self._chosen[key] = self._cheapest(problem, device)
        return choice

    def _cheapest(self, problem: Any, device: Device) -> Choice:
        """Return the cheapest of the implementations' first configs; of equals the last registered."""
        best: Choice | None = None
        reasons: list[str] = []
        for implementation in self.implementations:
            reason = implementation.supports(problem, device)
            config = next(iter(implementation.configs(problem, device)), None) if reason is None else None
            if config is None:
                reasons.append(f"{type(implementation).__name__}: {reason or 'no config works for it'}")
                continue
            cost = implementation.cost(problem, config, device)
            if best is None or cost <= best.cost:
                best = Choice(implementation, config, cost)
        if best is None:
            raise self._refusal(problem, reasons)
        best.implementation.check(problem, best.config, device)
        return best

    def _with_config(self, config: Any, problem: Any, device: Device) -> Choice:
        candidates = [x for x in self.implementations if type(config) is x.config]
        names = dict.fromkeys(x.config.__name__ for x in self.implementations)
        arrays.require(
            bool(candidates),
            f"{problem.name}: config is {type(config).__name__}",
            hint=" or ".join(f"kernels.{name}(...)" for name in names),
        )
        reasons = [(x, x.supports(problem, device)) for x in candidates]
        able = [x for x, reason in reasons if reason is None]
        if not able:
            raise self._refusal(problem, [f"{type(x).__name__}: {reason}" for x, reason in reasons])
        for implementation in able:
            implementation.check(problem, config, device)
        if len(able) == 1:  # which need not have a model
            return Choice(able[0], config, 0.0)
        choices = (Choice(x, config, x.cost(problem, config, device)) for x in reversed(able))
        return min(choices, key=lambda choice: choice.cost)

    def _refusal(self, problem: Any, reasons: list[str]) -> Exception:
        return DSLUserCodeTypeError(
            f"{problem.name}: no implementation computes this: {'; '.join(reasons) or 'there is none'}",
            hint=f"{problem}",
        )

    def validate(self, problem: Any, config: Any, device: Device) -> list[str]:
        """Return why no implementation can compute a problem with a config; empty if one can."""
        reasons = [x.validate(problem, config, device) for x in self.implementations if type(config) is x.config]
        if not reasons:
            return [f"{type(config).__name__} is no config of {self.name}"]
        return [] if [] in reasons else [reason for several in reasons for reason in several]

    def explain(self, problem: Any, device: Device, config: Any = None) -> explaining.Explanation:
        """Return what is chosen for a problem, or would be with `config`, and why."""
        first = self.choose(problem, device, config)
        cost = first.implementation.cost(problem, first.config, device)
        others = [choice for choice in self.choices(problem, device) if choice[:2] != first[:2]]
        least = lower_bounds(problem, device)
        choices = tuple(
            x._replace(
                cost=max(x.cost, *least.values(), *x.implementation.roofline(problem, x.config, device).units.values())
            )
            for x in (first._replace(cost=cost), *others)
        )
        reasons = {type(x).__name__: x.supports(problem, device) for x in self.implementations}
        roofline = first.implementation.roofline(problem, first.config, device)
        return explaining.Explanation(
            problem,
            device,
            choices,
            {name: why for name, why in reasons.items() if why is not None},
            roofline,
            {name: max(us, roofline.units.get(name, us)) for name, us in {**roofline.units, **least}.items()},
            explaining.notes_on(problem, device, choices, config is None),
        )

    def run(self, problem: Any, device: Device, args: Any, config: Any = None) -> Any:
        """Choose an implementation and compute a problem."""
        if _collected is not None:
            _collected.append((self, problem))
            return None
        implementation, config, _ = self.choose(problem, device, config)
        if not implementation.repeats:
            recorder.cannot_repeat(f"{type(implementation).__name__} launches kernels by itself")
        return implementation.run(problem, config, args)


def variants(first: Any, check: Any, **choices: Sequence[object]) -> Iterator[Any]:
    """Yield a config, then those with other values of some fields that pass a check."""
    yield first
    seen = {first}
    for values in itertools.product(*choices.values()):
        config = dataclasses.replace(first, **dict(zip(choices, values, strict=True)))
        if config in seen:
            continue
        seen.add(config)
        if passes(check, config):
            yield config


def passes(check: Any, config: Any) -> bool:
    """Return whether `check` accepts a config."""
    try:
        check(config)
    except DSLUserCodeTypeError:
        return False
    return True
