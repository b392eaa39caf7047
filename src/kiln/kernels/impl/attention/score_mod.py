"""Score modification: ALiBi, and functions of users that change scores before the softmax."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Boolean, Float32, cute
from ....cute import arch
from ...dispatch import arrays
from ...parts.element_functions import Functions, rewritten

if TYPE_CHECKING:
    from collections.abc import Callable

    from .... import Int32

_BACKWARD = "flash_attention_backward"


def check_score_mod(function: Any) -> Functions:
    """Return the user's function for a problem; raise if it does not take a score and its coordinates."""
    _check_callable(function, "flash_attention: score", "score=lambda s, b, h, q, k: s - 0.5 * (q - k)")
    return Functions(function, branching=True)


def check_score_mod_gradient(function: Any, derivative: Any) -> Functions | None:
    """Return the user's function and its derivative as a part of a problem, None if there is neither."""
    hint = (
        "score=lambda s, b, h, q, k: s * s, score_gradient=lambda s, b, h, q, k: 2 * s; 1.0 if something is added to s"
    )
    arrays.require(
        (function is None) == (derivative is None),
        f"{_BACKWARD}: {'score' if derivative is None else 'score_gradient'} is given alone; pass both or neither",
        hint=hint,
    )
    if function is None or derivative is None:
        return None
    _check_callable(derivative, f"{_BACKWARD}: score_gradient", hint)
    return Functions(function, derivative, branching=True)


def _check_callable(function: Any, name: str, hint: str) -> None:
    arrays.require(callable(function), f"{name} is {function!r}; it must be a function", hint=hint)
    try:
        inspect.signature(function).bind(*range(5))
    except TypeError as wrong:
        raise arrays.refusal(f"{name} must take a score, its sequence, head, query and key: {wrong}") from None
    except ValueError:  # builtins have no signature
        pass


def _traced(function: Any) -> Callable[..., Any]:
    """Return a user's function as kernels call it; its result is f32."""
    traced = rewritten(function)

    def call(score: Float32, *coordinates: Int32) -> Float32:
        result = traced(score, *coordinates)
        arrays.require(
            result is not None and not isinstance(result, (tuple, list)),
            f"flash_attention: score returned {result!r}; it must return the new score",
        )
        return result if isinstance(result, Float32) else Float32(result)

    return call


class RowCoordinates(NamedTuple):
    """Coordinates of the scores of one accumulator row that a thread holds."""

    batch: Int32
    head: Int32
    query: Int32
    first_key: Int32
    """The key of the thread's first column."""
    position: Int32
    """The key that the query is aligned with."""


class ScoreMod:
    """What changes scores before the softmax: ALiBi, then a user's function, and that function's derivative for the
    backward pass."""

    def __init__(self, has_alibi: bool = False, functions: Functions | None = None) -> None:
        self.has_alibi = has_alibi
        traced = [] if functions is None else [_traced(x) for x in functions.functions]
        self.function: Callable[..., Any] | None
        self.derivative: Callable[..., Any] | None
        self.function, self.derivative = (*traced, None, None)[:2]

    def __bool__(self) -> bool:
        return self.has_alibi or self.function is not None

    def alibi(self, score: Float32, slope: Any, distance: Float32) -> Float32:
        """Return a score, lowered by the head's slope times the distance of key and query."""
        return cute.math.fma(arch.fmax(distance, -distance), -slope, score) if self.has_alibi else score

    def apply(self, score: Float32, coordinates: tuple[Int32, Int32, Int32, Int32]) -> tuple[Float32, Float32 | None]:
        """Return the user's score for (sequence, head, query, key), and its derivative; None means 1."""
        if self.function is None:
            return score, None
        return self.function(score, *coordinates), self.derivative and self.derivative(score, *coordinates)

    def modify_row(
        self,
        scores: cute.Tensor,
        at: Any,
        columns: int,
        row: RowCoordinates,
        score_scale: Float32 | float,
        slope: Float32 | None,
    ) -> None:
        """Change the scores of a row in place; `at(c, n)` is the index of column 8 n + c, `slope` the head's ALiBi
        slope."""
        for n in range(columns // 8):
            for c in range(2):
                key = row.first_key + 8 * n + c
                score = scores[at(c, n)] * score_scale
                if self.has_alibi:
                    score = self.alibi(score, slope, Float32(key - row.position))
                scores[at(c, n)], _ = self.apply(score, (row.batch, row.head, row.query, key))

    def apply_visible(
        self, score: Float32, changed: Float32, coordinates: tuple[Int32, Int32, Int32, Int32]
    ) -> tuple[Float32, Float32 | None]:
        """Do the same to `changed`, the score after ALiBi; a masked score, -inf, stays masked and has derivative 0."""
        result, derivative = self.apply(changed, coordinates)
        if derivative is None:
            return result, None
        visible = score > -float("inf")
        return _select(visible, result, -float("inf")), _select(visible, derivative, 0.0)


NO_SCORE_MOD = ScoreMod()
ALIBI = ScoreMod(True)


@cute.jit
def _select(condition: Boolean, value: Float32, otherwise: float):
    return value if condition else Float32(otherwise)
