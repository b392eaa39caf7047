"""From arrays to a problem of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...dispatch import arrays, devices
from ...dispatch.matrices import matrix_of
from .implementations import REGISTRY, Given
from .problem import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def as_rows(x: Any) -> Any:
    """An array whose rows lie as kernels take them: itself or a copy; None is None."""
    return x if x is None or matrix_of(arrays.layout_of(x)) is not None else arrays.contiguous(x)


def target_for(x: Any) -> Any:
    """An array to write what is meant for another: itself if it lies as kernels take it."""
    return x if matrix_of(arrays.layout_of(x)) is not None else arrays.empty(x, tuple(x.shape), None)


def run_rows(
    name: str, kind: type[Any], sources: Sequence[Any], outs: Sequence[Any], columns: Sequence[Any], numbers: tuple[float, ...],
    rule: Callable[..., Any], config: Any, totals: Sequence[Any] = (), notes: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Compute a function of rows, sums over rows and numbers of rows; arrays that do not lie as kernels take them are copied."""
    kinds = tuple(arrays.element_type(x) for x in totals)

    def problem(sources: Sequence[Any], outs: Sequence[Any], columns: Sequence[Any]) -> Rows:
        laid = (tuple(None if x is None else arrays.layout_of(x) for x in group) for group in (sources, outs, columns))
        return Rows(name, kind, *laid, rule, kinds)  # type: ignore[arg-type]

    asked = problem(sources, outs, columns)  # refuses what does not go together
    for x in sources:
        arrays.require_usable(x, f"an array of {name}")
    for x in outs:
        arrays.require_usable(x, f"an array of {name}", written=True)
    for x in columns:
        if x is not None:
            arrays.require_usable(x, f"a vector of {name}")
    if 0 in outs[0].shape:
        for vector in totals:
            arrays.fill(vector, 0)
        return
    taken, written, vectors = (
        [as_rows(x) for x in sources],
        [target_for(x) for x in outs],
        [as_rows(x) for x in columns],
    )
    if any(x is not y for x, y in zip((*taken, *written, *vectors), (*sources, *outs, *columns), strict=True)):
        asked = problem(taken, written, vectors)
    given = Given(taken, written, [x for x in vectors if x is not None], totals, numbers, notes)
    REGISTRY.run(asked, devices.current(), given, config)
    for x, y in zip(outs, written, strict=True):
        if x is not y:
            arrays.assign(x, y)
