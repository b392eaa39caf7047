"""Why a call of the library does what it does: which plan it takes, what the others are expected to take, who cannot compute it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from ...base_dsl import target as targets
from . import arrays, devices

if TYPE_CHECKING:
    from .recorder import KernelFunction

_MOST = 6
"""Other plans that are told of."""
LAUNCH = 2.0
"""Microseconds that a launch takes, whatever it does, on an H200."""
_COPY = 0.88
"""What a copy reaches of the bandwidth that a GPU's maker states: 4.2 of 4.8 TB/s on an H200."""
_BYTES = 4.2e6
"""Bytes that a copy moves in a microsecond where a GPU is not known: of an H200."""


def memory_time(problem: Any, device: Any) -> float:
    """Microseconds that memory needs for a problem as fast as a copy."""
    return problem.bytes / copied_bytes(device)


@functools.lru_cache(maxsize=64)
def copied_bytes(device: Any) -> float:
    """Bytes that a copy moves in a microsecond."""
    stated = device.model and device.model.bandwidth_gbs
    return _COPY * stated * 1e3 if stated else _BYTES


def least(problem: Any, device: Any) -> dict[str, float]:
    """Microseconds that each of a device's units needs for a problem at least, side by side, whatever the plan.

    Memory moves every element once, as fast as a copy; tensor cores, or else arithmetic of f32, do what the definition takes at the peak that
    the GPU's maker states. What is not known of a device is left out.
    """
    model, found = device.model, {"launch": LAUNCH, "memory": memory_time(problem, device)}
    if model and (peak := model.tflops.get(problem.multiplies or "f32")):
        found["tensor cores" if problem.multiplies else "arithmetic"] = problem.flops / (peak * 1e6)
    return found


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is chosen for a problem on a device. Printed, it is read.

    `choices` are all plans with their implementations and the microseconds they are expected to take, the one that is taken first. `reasons`: why an
    implementation (by its name) cannot compute the problem. `parts`: what the expectation is made of, if the implementation tells. `bounds`:
    microseconds of what is done side by side: as the implementation tells, else what the problem needs at `least`.
    """

    problem: Any
    device: Any
    choices: tuple[Any, ...]
    reasons: dict[str, str]
    parts: dict[str, float]
    bounds: dict[str, float]

    @property
    def plan(self) -> Any:
        """The one that is taken."""
        return self.choices[0].plan

    @property
    def bound(self) -> str:
        """What bounds it: of all that is done side by side, what takes longest."""
        return max(self.bounds, key=self.bounds.__getitem__)

    def __str__(self) -> str:
        first, *others = self.choices
        lines = [
            f"{self.problem.name} on {self.device.name}: {type(first.implementation).__name__}, expected to take {first.cost:.1f} us",
            f"  {first.plan}",
        ]
        least = "" if self.bounds == self.parts else "at least "
        lines.append(f"  bound by {self.bound}: side by side {least}{_listed(self.bounds)}")
        if self.parts and self.bounds != self.parts:
            lines.append(f"  one after the other {_listed(self.parts)}")
        lines += [f"  {choice.cost:.1f} us: {choice.plan}" for choice in others[:_MOST]]
        if len(others) > _MOST:
            lines.append(f"  and {len(others) - _MOST} more plans")
        lines += [f"  {name} cannot: {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def _listed(times: dict[str, float]) -> str:
    return ", ".join(f"{name} {us:.1f} us" for name, us in sorted(times.items(), key=lambda pair: -pair[1]))


def explain(function: KernelFunction, *given: Any, **options: Any) -> Explanation:
    """What a call `function(*given, **options)` of the library would do, and why. Nothing is computed.

    `print(kernels.explain(kernels.gemm, a, b))`
    """
    from . import registry  # which makes explanations

    called = getattr(function, "_function", None)
    arrays.require(
        callable(called),
        f"explain of {getattr(function, '__name__', function)!r}, no function of the library",
        hint="kernels.explain(kernels.gemm, a, b)",
    )
    assert called is not None
    taken = [arrays.known(x) if arrays.is_array(x) else x for x in given]
    device = next((x.device.index for x in taken if arrays.is_torch(x) and x.device.type == "cuda"), None)
    with targets.get_target().device(device), registry.asking() as asked:
        called(*taken, **options)
        arrays.require(bool(asked), f"{function.__name__}: there is nothing to compute, and nothing to choose")
        chooses, problem = asked[0]
        return chooses.explain(problem, devices.current(), options.get("plan"))
