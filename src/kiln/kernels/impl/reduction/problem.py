"""The problem of reductions."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from .... import Boolean, Float32, Float64, Int32, Int64
from ...dispatch.arrays import require
from ...dispatch.problem import Problem, TensorLayout
from .kernels import Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .... import cute

_INT32 = (1 << 31) - 1


class RowsToReduce(NamedTuple):
    """An array as rows to reduce: two modes that are kept, one that is reduced, and `n` contiguous elements."""

    kept: tuple[int, ...]
    kept_strides: tuple[int, ...]
    repeats: int
    repeat_stride: int
    n: int


class ColumnsToReduce(NamedTuple):
    """An array as columns to reduce: batches, rows that are reduced, `n` contiguous elements that are kept."""

    batches: int
    batch_stride: int
    rows: int
    row_stride: int
    n: int


def _groups(shape: Sequence[int], strides: Sequence[int], reduced: frozenset[int]) -> list[tuple[bool, int, int]]:
    """Return (reduced?, extent, stride) of the fewest modes, in order."""
    groups: list[tuple[bool, int, int]] = []
    for mode, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if extent == 1:
            continue
        kind = mode in reduced
        if groups and groups[-1][0] == kind and groups[-1][2] == stride * extent:
            groups[-1] = (kind, groups[-1][1] * extent, stride)
        else:
            groups.append((kind, extent, stride))
    return groups


def _layout(groups: list[tuple[bool, int, int]]) -> RowsToReduce | ColumnsToReduce | None:
    """Return a view of an array that kernels can reduce; None if it must be copied."""
    kept = [(e, s) for kind, e, s in groups if not kind]
    reduced = [(e, s) for kind, e, s in groups if kind]
    if any(s < 0 for _, _, s in groups):
        return None
    if len(kept) <= 2 and len(reduced) <= 2 and (not reduced or reduced[-1][1] == 1):
        kept = [(1, 0)] * (2 - len(kept)) + kept
        reduced = [(1, 0)] * (2 - len(reduced)) + reduced if reduced else [(1, 0), (1, 1)]
        if kept[0][0] * kept[1][0] <= _INT32 and reduced[0][0] <= _INT32:  # the innermost may be longer
            extents, strides = zip(*kept, strict=True)
            return RowsToReduce(extents, strides, *reduced[0], reduced[1][0])
    if any(e > _INT32 for _, e, _ in groups):
        return None
    if len(reduced) == 1 and 1 <= len(kept) <= 2 and kept[-1][1] == 1 and (len(kept) == 1 or kept[0][0] <= 65535):
        batch = kept[0] if len(kept) == 2 else (1, 0)
        return ColumnsToReduce(*batch, *reduced[0], kept[-1][0])
    return None


@functools.lru_cache(maxsize=256)
def types_of(name: str, dtype: type[cute.Numeric]) -> tuple[type[cute.Numeric], type[cute.Numeric]]:
    """Return the type of the computation, and that of the result."""
    require(
        dtype is Boolean or dtype.width >= 8,
        f"{name} of {dtype.__name__} elements",
        hint="floats and integers of 8 bits or more, and truth values",
    )
    if dtype.is_float:
        computed = Float64 if dtype is Float64 else Float32
        return computed, (Int64 if name.startswith("arg") else dtype)
    if name in ("sum", "mean"):
        return Int64, Int64 if name == "sum" else Float32
    computed = Int32 if dtype is Boolean else dtype
    return computed, Int64 if name.startswith("arg") else dtype


@dataclasses.dataclass(frozen=True)
class ReductionProblem(Problem):
    """The reduction of an array over some of its modes; `out` is the type of the result."""

    name: str
    x: TensorLayout
    axes: tuple[int, ...]
    out: type[cute.Numeric]

    def __post_init__(self) -> None:
        types_of(self.name, self.x.dtype)
        require(
            self.count > 0 or self.name in ("sum", "mean"),
            f"{self.name} of shape {self.x.shape} over axes {self.axes}: there are no elements to choose from",
        )

    @property
    def count(self) -> int:
        """Elements of one result."""
        return math.prod(self.x.shape[mode] for mode in self.axes)

    @property
    def results(self) -> int:
        """How many results there are."""
        return math.prod(extent for mode, extent in enumerate(self.x.shape) if mode not in self.axes)

    @property
    def operation(self) -> Operation:
        """What is computed, in which types."""
        return Operation(self.name, types_of(self.name, self.x.dtype)[0], Int32 if self.count <= _INT32 else Int64)

    @functools.cached_property
    def view(self) -> RowsToReduce | ColumnsToReduce | None:
        """The view that kernels reduce; None if the array must be copied first."""
        return _layout(_groups(self.x.shape, self.x.strides, frozenset(self.axes)))

    @property
    def flops(self) -> int:
        """One for each element."""
        return self.count * self.results

    @property
    def bytes(self) -> int:
        """Elements are read once, results written once."""
        return self.x.bytes + self.results * max(8, self.out.width) // 8
