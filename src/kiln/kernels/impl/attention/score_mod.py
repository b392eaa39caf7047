"""Functions of users that change the scores of attention."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .... import Float32
from ...dispatch import arrays
from ...parts.element_functions import Functions, rewritten

if TYPE_CHECKING:
    from collections.abc import Callable


def check_called(function: Any, what: str, hint: str) -> None:
    """Refuse what is not a function of a score and where it is; `what` a call is given it for."""
    arrays.require(callable(function), f"{what} {function!r}: a function", hint=hint)
    try:
        inspect.signature(function).bind(*range(5))
    except TypeError as wrong:
        raise arrays.refusal(f"{what} is called with a score, its sequence, head, query and key: {wrong}") from None
    except ValueError:  # of something built in
        pass


def check_score(function: Any) -> Functions:
    """A user's function as part of a problem."""
    check_called(function, "flash_attention: score", "score=lambda s, b, h, q, k: s - 0.5 * (q - k)")
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
