"""Functions of users that change the scores of attention."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ... import Float32
from ..common import arrays
from ..common.element_functions import Functions, rewritten

if TYPE_CHECKING:
    from collections.abc import Callable


def check_score(function: Any) -> Functions:
    """A user's function as part of a problem; refuse one that does not take a score and where it is."""
    arrays.require(
        callable(function),
        f"flash_attention with score {function!r}: a function",
        hint="score=lambda s, b, h, q, k: s - 0.5 * (q - k)",
    )
    try:
        inspect.signature(function).bind(*range(5))
    except TypeError as wrong:
        raise arrays.refusal(
            f"flash_attention: score is called with a score, its sequence, head, query and key: {wrong}"
        ) from None
    except ValueError:  # of something built in
        pass
    return Functions(function, branching=True)


def score_function(functions: Functions | None) -> Callable[..., Any] | None:
    """As kernels call it, with numbers of the program: what it gives is f32."""
    if functions is None:
        return None
    traced = rewritten(functions.given[0])

    def changed(score: Any, *place: Any) -> Any:
        made = traced(score, *place)
        arrays.require(
            made is not None and not isinstance(made, (tuple, list)),
            f"flash_attention: score returned {made!r}",
            hint="it returns the new score",
        )
        return made if isinstance(made, Float32) else Float32(made)

    return changed
