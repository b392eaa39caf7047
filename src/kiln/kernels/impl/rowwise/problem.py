"""What a function of the rows of matrices is asked for."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float16, Float32
from ...dispatch.arrays import require
from ...dispatch.matrices import RowwiseProblem, shared_alignment, width_of
from ...dispatch.problem import TensorLayout
from .row_kernel import LARGEST, WARP

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...dispatch.devices import Device

FLOATS = (Float16, BFloat16, Float32)


@dataclasses.dataclass(frozen=True)
class Rows(RowwiseProblem):
    """A function of each row of some matrices, along their last mode.

    `kind` says what is found out about a row and written (a `RowKernel`). `columns` are vectors with a number for each column, None for
    one that is not there; `totals` the types of sums over rows that are wanted, too. `rule` is the config that was measured to
    be best. Rows are contiguous, at even distances.
    """

    name: str
    kind: type[Any]
    sources: tuple[TensorLayout, ...]
    outs: tuple[TensorLayout, ...]
    columns: tuple[TensorLayout | None, ...]
    rule: Callable[[Rows, Device], Any]
    totals: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        shape = self.sources[0].shape
        require(len(shape) >= 1, f"{self.name} of an array without modes")
        n = shape[-1]
        require(n > 0 or 0 in shape[:-1], f"{self.name} of shape {shape}: its rows have no elements")
        for into, x in (*((" and", x) for x in self.sources), *((" into", x) for x in self.outs)):
            require(
                x.shape == shape, f"{self.name} of shape {shape}{into} {x.shape}", hint="all matrices have one shape"
            )
        for x in self.present:
            require(
                x.shape == (n,),
                f"{self.name} of rows of {n} with a weight or bias of shape {x.shape}",
                hint=f"one element for each of the {n} columns: ({n},)",
            )
        quantized = self.outs[:1] if self.kind.quantizes else ()
        for x in quantized:
            require(
                x.dtype in LARGEST,
                f"{self.name} quantized to {x.dtype.__name__}",
                hint=" or ".join(dtype.__name__ for dtype in LARGEST),
            )
        for x in (*self.sources, *self.outs[len(quantized) :], *self.present):
            require(
                x.dtype in FLOATS,
                f"{self.name} of {x.dtype.__name__} elements",
                hint="Float16, BFloat16 or Float32: convert the array",
            )

    @property
    def present(self) -> list[TensorLayout]:
        """The columns that there are."""
        return [x for x in self.columns if x is not None]

    @property
    def row_arrays(self) -> tuple[TensorLayout, ...]:
        return *self.sources, *self.outs

    @functools.cached_property
    def width(self) -> int:
        """How many elements of rows, and of columns, can be accessed at once everywhere."""
        n = self.n
        return min([m.width for m in self.matrices] + [width_of(x, n, n) for x in self.present])

    @functools.cached_property
    def streamed(self) -> tuple[int, bool]:
        """Elements of an access of streams, and whether rows begin anywhere, with edges: if they are long enough for a warp."""
        found = shared_alignment((*self.sources, *self.outs), [m.step for m in self.matrices])
        if found is None or found[0] <= self.width or self.n < 2 * WARP * found[0]:
            return self.width, False
        return found[0], True

    @property
    def bits(self) -> int:
        """Of the widest elements that are read."""
        return max(x.dtype.width for x in self.sources)

    @property
    def types(self) -> tuple[Any, Any, Any]:
        """Of sources, outs and columns."""
        sources, outs, columns = (
            tuple(None if x is None else x.dtype for x in group) for group in (self.sources, self.outs, self.columns)
        )
        return sources, outs, columns

    @property
    def flops(self) -> int:
        """About ten for each element that is written: statistics and results."""
        return 10 * self.rows * self.n * len(self.outs)

    @property
    def bytes(self) -> int:
        """Sources and columns read once, results and sums over rows written once."""
        totals = sum(dtype.width // 8 for dtype in self.totals) * self.n
        return sum(x.bytes for x in (*self.sources, *self.outs, *self.present)) + totals


def by_length(config: Callable[..., Any]) -> Callable[[Rows, Device], Any]:
    """The rule that is a function of lengths, widths, bits, the device and the number of columns."""
    return lambda problem, device: config(problem.n, problem.width, problem.bits, device, len(problem.present))
