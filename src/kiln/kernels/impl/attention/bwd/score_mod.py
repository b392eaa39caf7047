"""What is done to scores before they become weights, and the slopes of that: distances (ALiBi), and a function of the user."""

from __future__ import annotations

from typing import Any

from ..... import Boolean, Float32, cute
from .....cute import arch
from ....dispatch import arrays
from ....parts.element_functions import Functions
from ..score_mod import check_called, score_function


def check_gradient(function: Any, slope: Any) -> Functions | None:
    """A user's function of scores and its slope as part of a problem (None: there is none); refuse one without the other."""
    name = "flash_attention_backward"
    hint = (
        "score=lambda s, b, h, q, k: s * s, score_gradient=lambda s, b, h, q, k: 2 * s; 1.0 if something is added to s"
    )
    arrays.require(
        (function is None) == (slope is None),
        f"{name} with {'score' if slope is None else 'score_gradient'} alone",
        hint=hint,
    )
    if function is None or slope is None:
        return None
    check_called(slope, f"{name}: score_gradient", hint)
    return Functions(function, slope, branching=True)


class Change:
    """`sloped`: scores are lowered by a slope times the distance of query and key; a function and its slope, or None."""

    def __init__(self, sloped: bool, functions: Functions | None = None) -> None:
        self.sloped = sloped
        self.function, self.slope = (
            (None, None) if functions is None else (score_function(Functions(x)) for x in functions.given)
        )

    def __bool__(self) -> bool:
        return self.sloped or self.function is not None

    def lowered(self, score: Any, slope: Any, distance: Any) -> Any:
        """A score, lowered."""
        return cute.math.fma(arch.fmax(distance, -distance), -slope, score) if self.sloped else score

    def applied(self, score: Any, place: Any) -> tuple[Any, Any]:
        """What takes the place of a score, and how that changes with it (None: as it does). `place`: sequence, head, query, key."""
        if self.function is None or self.slope is None:
            return score, None
        return self.function(score, *place), self.slope(score, *place)


NOTHING, SLOPED = Change(False), Change(True)


@cute.jit
def shown(there: Boolean, value: Float32, otherwise: float):
    """A number where something is seen."""
    return value if there else Float32(otherwise)
