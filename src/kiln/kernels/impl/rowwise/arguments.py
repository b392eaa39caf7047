"""The way from the arrays of a call to a problem of row functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...dispatch import arrays, devices
from ...dispatch.matrices import matrix_of
from ...dispatch.problem import MAX_VECTOR_BYTES
from .implementations import REGISTRY, RowFunctionArguments
from .problem import RowFunctionProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...dispatch.arrays import Array
    from ...dispatch.problem import TensorLayout
    from .block_formats import BlockRows


def as_rows(x: Any) -> Any:
    """Return an array whose rows kernels can read: itself or a contiguous copy; None for None."""
    return x if x is None or matrix_of(arrays.layout_of(x)) is not None else arrays.contiguous(x)


def as_vectors(x: Array) -> Array:
    """Return an array of rows that kernels can read 16 bytes at a time: itself or a contiguous copy."""
    matrix = matrix_of(arrays.layout_of(x))
    wide = matrix is not None and matrix.width * arrays.itemsize(x) >= MAX_VECTOR_BYTES
    if wide:
        return x
    copy = arrays.empty(x, tuple(x.shape), None)
    arrays.assign(copy, x)
    return copy


def target_for(x: Any) -> Any:
    """Return an array whose rows kernels can write: itself or a new one."""
    return x if matrix_of(arrays.layout_of(x)) is not None else arrays.empty(x, tuple(x.shape), None)


def run_rows(
    name: str,
    function: type[Any],
    sources: Sequence[Any],
    outs: Sequence[Any],
    columns: Sequence[Any],
    scalars: tuple[float, ...],
    best_config: Callable[..., Any],
    config: Any,
    column_outs: Sequence[Any] = (),
    row_values: Sequence[Any] = (),
    blocks: BlockRows | None = None,
) -> None:
    """Compute a row function; arrays whose rows kernels cannot access are copied. The first of `outs` may be that of
    `blocks`."""
    column_types = tuple(arrays.element_type(x) for x in column_outs)
    form = None if blocks is None else blocks.format

    def layout_of(x: Array) -> TensorLayout:
        return blocks.layout if blocks is not None and x is blocks.data[0] else arrays.layout_of(x)

    def problem_of(*groups: Sequence[Any]) -> RowFunctionProblem:
        layouts = (tuple(None if x is None else layout_of(x) for x in group) for group in groups)
        return RowFunctionProblem(name, function, *layouts, best_config, column_types, form)  # type: ignore[arg-type]

    problem = problem_of(sources, outs, columns)  # refuses what does not go together
    for x in sources:
        arrays.require_usable(x, f"an array of {name}")
    for x in outs:
        arrays.require_usable(x, f"an array of {name}", written=True)
    for x in columns:
        if x is not None:
            arrays.require_usable(x, f"a vector of {name}")
    if 0 in outs[0].shape:
        for vector in column_outs:
            arrays.fill(vector, 0)
        return
    read = [as_rows(x) for x in sources]
    written = [target_for(x) for x in outs]
    vectors = [as_rows(x) for x in columns]
    if blocks is not None:  # a few lanes share a block: accesses must be wide
        read, vectors = ([x if x is None else as_vectors(x) for x in group] for group in (read, vectors))
    if any(x is not y for x, y in zip((*read, *written, *vectors), (*sources, *outs, *columns), strict=True)):
        problem = problem_of(read, written, vectors)
    present = [x for x in vectors if x is not None]
    args = RowFunctionArguments(read, written, present, column_outs, scalars, row_values)
    if blocks is not None:
        rows = blocks.format.batch_rows(blocks.shape)
        scalars = (*scalars, blocks.scale)
        args = args._replace(block_scales=blocks.data[1], matrix_rows=rows, scalars=scalars)
    REGISTRY.run(problem, devices.current(), args, config)
    for x, y in zip(outs, written, strict=True):
        if x is not y:
            arrays.assign(x, y)
