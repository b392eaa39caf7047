"""From arrays to a problem of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import devices
from ..common import arrays
from ..common.matrices import matrix_of
from .implementations import FAMILY, Given
from .problem import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def as_rows(x: Any) -> Any:
    """An array whose rows lie as kernels take them: itself or a copy; None is None."""
    return x if x is None or matrix_of(arrays.laid(x)) is not None else arrays.contiguous(x)


def target_for(x: Any) -> Any:
    """An array to write what is meant for another: itself if it lies as kernels take it."""
    return x if matrix_of(arrays.laid(x)) is not None else arrays.empty(x, tuple(x.shape), None)


def run_rows(
    name: str, kind: type[Any], sources: Sequence[Any], out: Any, columns: Sequence[Any], numbers: tuple[float, ...],
    rule: Callable[..., Any], plan: Any, totals: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Compute a function of rows, and sums over rows; arrays that do not lie as kernels take them are copied."""
    kinds = tuple(arrays.element_type(x) for x in totals)

    def problem(sources: Sequence[Any], out: Any, columns: Sequence[Any]) -> Rows:
        laid = (tuple(None if x is None else arrays.laid(x) for x in group) for group in (sources, [out], columns))
        first, outs, vectors = laid
        return Rows(name, kind, first, outs, vectors, rule, kinds)  # type: ignore[arg-type]

    asked = problem(sources, out, columns)  # refuses what does not go together
    for x in sources:
        arrays.require_usable(x, f"an array of {name}")
    arrays.require_usable(out, f"an array of {name}", written=True)
    for x in columns:
        if x is not None:
            arrays.require_usable(x, f"a vector of {name}")
    if 0 in out.shape:
        for vector in totals:
            arrays.fill(vector, 0)
        return
    taken, written, vectors = [as_rows(x) for x in sources], target_for(out), [as_rows(x) for x in columns]
    if any(x is not y for x, y in zip((*taken, written, *vectors), (*sources, out, *columns), strict=True)):
        asked = problem(taken, written, vectors)
    given = Given(taken, [written], [x for x in vectors if x is not None], totals, numbers)
    FAMILY.run(asked, devices.current(), given, plan)
    if written is not out:
        arrays.assign(out, written)
