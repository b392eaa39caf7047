"""`kernels.explain`: which implementation and config a call takes, what bounds it, and why others were not chosen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...base_dsl import target as targets
from .. import tuned
from . import arrays, devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from .roofline import Roofline

_SHOWN_CONFIGS = 6
"""How many of the configs that were not chosen are printed."""


def notes_on(problem: Any, device: Any, choices: tuple[Any, ...], by_rule: bool) -> tuple[str, ...]:
    """Return what to know about the first of some choices; `by_rule`: the library chose it."""
    implementation = choices[0].implementation
    first = type(implementation).__name__
    notes = []
    if by_rule and any(choice.cost < choices[0].cost for choice in choices):
        notes.append(
            f"{first} chooses among its configs by a rule; expected times decide between implementations, and are too "
            "coarse to overrule it"
        )
    if device.model is None:
        notes.append(f"expected times are from {tuned.MEASURED_ON} figures, not scaled: {device.name} is unknown")
    elif scale := tuned.scale_to(device):
        notes.append(f"expected times are scaled from {tuned.MEASURED_ON} figures: {scale}")
    if implementation.predicted:
        notes.append(f"times of {first} are predicted: no GPU has run it, and kernels/tuned/b200.json says from what")
    elif problem.mma_dtype and device.capability >= (10, 0):
        lacks = ", no tcgen05 kernel for this" if device.generation.tmem else ""
        notes.append(f"on sm_100 and later the library has mma.sync kernels{lacks}")
    return tuple(notes)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The result of dispatch for a problem on a device; `str` gives a readable report."""

    problem: Any
    device: Any
    choices: tuple[Any, ...]
    """All configs with their implementations and expected microseconds, the chosen one first."""
    reasons: dict[str, str]
    """Why an implementation, by its name, cannot compute the problem."""
    roofline: Roofline
    """What the chosen config is expected to spend time on."""
    bounds: dict[str, float]
    """The microseconds of hardware units that work at the same time: the roofline's, and `lower_bounds` of others."""
    notes: tuple[str, ...] = ()
    """What to know about the choice and the times: why a slower config is chosen, where figures are from."""

    @property
    def terms(self) -> dict[str, float]:
        """The microseconds of the terms of the cost model; empty if the implementation has none."""
        return self.roofline.terms

    @property
    def config(self) -> Any:
        """The chosen config."""
        return self.choices[0].config

    @property
    def bound(self) -> str:
        """The unit that takes longest."""
        return max(self.bounds, key=self.bounds.__getitem__)

    def __str__(self) -> str:
        first, *others = self.choices
        lines = [
            f"{self.problem.name} on {self.device.name}: {type(first.implementation).__name__}, "
            f"expected to take {first.cost:.1f} us"
        ]
        lines.append(f"  {first.config}")
        lines += [f"  note: {note}" for note in self.notes]
        lines.append(f"  bound by {self.bound}: at the same time {_listed(self.bounds)}")
        if self.roofline.phases:
            lines.append(f"  in sequence with that: {_listed(self.roofline.phases)}")
        if others:
            lines.append("  not chosen, with expected times:")
        lines += [f"    {choice.cost:.1f} us: {choice.config}" for choice in others[:_SHOWN_CONFIGS]]
        if len(others) > _SHOWN_CONFIGS:
            lines.append(f"    and {len(others) - _SHOWN_CONFIGS} more configs")
        lines += [f"  {name} cannot: {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def _listed(times: dict[str, float]) -> str:
    return ", ".join(f"{name} {us:.1f} us" for name, us in sorted(times.items(), key=lambda pair: -pair[1]))


def explain(function: Callable[..., Any], *args: Any, **options: Any) -> Explanation:
    """Return which implementation and config a call of the library would choose, and why, without computing anything.

    `print(kernels.explain(kernels.gemm, a, b))`

    Args:
        function: a function of the library, such as `kernels.gemm`.
        args: its arguments.
        options: its options.
    """
    from . import registry  # which makes explanations

    called = getattr(function, "_function", None)
    arrays.require(
        callable(called),
        f"explain: function is {getattr(function, '__name__', function)!r}, no function of the library",
        hint="kernels.explain(kernels.gemm, a, b)",
    )
    assert called is not None
    supported = [arrays.as_supported(x) if arrays.is_array(x) else x for x in args]
    device = next((x.device.index for x in supported if arrays.is_torch(x) and x.device.type == "cuda"), None)
    with targets.get_target().device(device), registry.collecting_problems() as collected:
        called(*supported, **options)
        arrays.require(bool(collected), f"{function.__name__}: there is nothing to compute, and nothing to choose")
        chosen_from, problem = collected[0]
        return chosen_from.explain(problem, devices.current(), options.get("config"))
