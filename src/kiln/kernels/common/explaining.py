"""Why a call of the library does what it does: which plan it takes, what the others are expected to take, who cannot compute it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...base_dsl import target as targets
from .. import devices
from . import arrays

if TYPE_CHECKING:
    from .calls import KernelFunction

_MOST = 6
"""Other plans that are told of."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is chosen for a problem on a device. Printed, it is read.

    `choices` are all plans with their implementations and the microseconds they are expected to take, the one that is taken first. `reasons`: why an
    implementation (by its name) cannot compute the problem. `parts`: what the expectation is made of, if the implementation tells.
    """

    problem: Any
    device: Any
    choices: tuple[Any, ...]
    reasons: dict[str, str]
    parts: dict[str, float]

    @property
    def plan(self) -> Any:
        """The one that is taken."""
        return self.choices[0].plan

    def __str__(self) -> str:
        first, *others = self.choices
        lines = [
            f"{self.problem.name} on {self.device.name}: {type(first.implementation).__name__}, expected to take {first.cost:.1f} us",
            f"  {first.plan}",
        ]
        if self.parts:
            most = max(self.parts.values())
            parts = (f"{name} {us:.1f} us{' (bound)' * (us == most)}" for name, us in self.parts.items())
            added = abs(sum(self.parts.values()) - first.cost) < 1e-6 * first.cost
            lines.append(f"  of which, {'one after the other' if added else 'side by side'}: {', '.join(parts)}")
        lines += [f"  {choice.cost:.1f} us: {choice.plan}" for choice in others[:_MOST]]
        if len(others) > _MOST:
            lines.append(f"  and {len(others) - _MOST} more plans")
        lines += [f"  {name} cannot: {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def explain(function: KernelFunction, *given: Any, **options: Any) -> Explanation:
    """What a call `function(*given, **options)` of the library would do, and why. Nothing is computed.

    `print(kernels.explain(kernels.gemm, a, b))`
    """
    from . import family  # which makes explanations

    called = getattr(function, "_function", None)
    arrays.require(
        callable(called),
        f"explain of {getattr(function, '__name__', function)!r}, no function of the library",
        hint="kernels.explain(kernels.gemm, a, b)",
    )
    assert called is not None
    taken = [arrays.known(x) if arrays.is_array(x) else x for x in given]
    device = next((x.device.index for x in taken if arrays.is_torch(x) and x.device.type == "cuda"), None)
    with targets.get_target().device(device), family.asking() as asked:
        called(*taken, **options)
        arrays.require(bool(asked), f"{function.__name__}: there is nothing to compute, and nothing to choose")
        chooses, problem = asked[0]
        return chooses.explain(problem, devices.current(), options.get("plan"))
