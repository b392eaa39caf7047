"""The problem of row functions."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from ...dispatch.arrays import require
from ...dispatch.matrices import RowwiseProblem, require_floats, shared_alignment, width_of
from ...dispatch.problem import MAX_VECTOR_BYTES, TensorLayout
from .config import WARP, StreamedRow
from .row_kernel import FP8_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from .... import cute
    from ...dispatch.devices import Device
    from .block_formats import BlockFormat


@dataclasses.dataclass(frozen=True)
class RowFunctionProblem(RowwiseProblem):
    """A function of each row of some matrices, along their last mode."""

    name: str
    function: type[Any]
    """A subclass of `RowKernel`."""
    sources: tuple[TensorLayout, ...]
    outs: tuple[TensorLayout, ...]
    columns: tuple[TensorLayout | None, ...]
    """Vectors with an element for each column, such as a weight, or None."""
    best_config: Callable[[RowFunctionProblem, Device], Any]
    """Returns the config that measurements found best."""
    column_outs: tuple[type[cute.Numeric], ...] = ()
    """Element types of reductions over rows, such as the gradient of a weight."""
    blocks: BlockFormat | None = None
    """How the first results are quantised in blocks."""

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
        quantized = self.outs[:1] if self.function.quantizes else ()
        for x in quantized:
            require(
                x.dtype in FP8_MAX,
                f"{self.name}: quantize is {x.dtype.__name__}",
                hint=" or ".join(dtype.__name__ for dtype in FP8_MAX),
            )
        wide = self.outs[1 if self.blocks else len(quantized) :]
        require_floats(self.name, (*self.sources, *wide, *self.present))

    @property
    def present(self) -> list[TensorLayout]:
        """The columns that are not None."""
        return [x for x in self.columns if x is not None]

    @property
    def row_arrays(self) -> tuple[TensorLayout, ...]:
        return *self.sources, *self.outs

    @functools.cached_property
    def width(self) -> int:
        """Elements of a vector access to all rows and columns."""
        n = self.n
        return min([m.width for m in self.matrices] + [width_of(x, n, n) for x in self.present])

    @property
    def units(self) -> int:
        """Vectors of a row."""
        return -(-self.n // self.width)

    @property
    def wide(self) -> bool:
        """Whether vector accesses to the widest source are of 16 bytes."""
        return self.width * self.bits == 8 * MAX_VECTOR_BYTES

    @functools.cached_property
    def unaligned_width(self) -> int:
        """Elements of a vector access between the edges of rows that are all equally far from vectors; 0 if they are
        not."""
        alignment = shared_alignment(self.row_arrays, [m.step for m in self.matrices], self.present)
        return 0 if alignment is None else alignment[0]

    @functools.cached_property
    def streams_unaligned(self) -> bool:
        """Whether streaming kernels access rows in vectors between edges: those are wider, and rows long enough for a
        warp."""
        alignment = shared_alignment(self.row_arrays, [m.step for m in self.matrices])
        return alignment is not None and alignment[0] > self.width and self.n >= 2 * WARP * alignment[0]

    @functools.cached_property
    def streamed(self) -> StreamedRow:
        """The row as streaming kernels access it."""
        width = MAX_VECTOR_BYTES // max(x.size for x in self.row_arrays) if self.streams_unaligned else self.width
        source_bits, column_bits = (sum(x.dtype.width for x in group) for group in (self.sources, self.present))
        return StreamedRow(
            self.n // width * width,
            width,
            min(x.dtype.width for x in self.sources),
            source_bits,
            column_bits,
            self.function.fields - self.function.counts_elements,
            len(self.column_outs),
        )

    @property
    def bits(self) -> int:
        """Bits of the widest elements that are read."""
        return max(x.dtype.width for x in self.sources)

    @property
    def types(self) -> tuple[Any, Any, Any]:
        """Element types of sources, outs and columns."""
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
        """Sources and columns are read once, results and column outs written once."""
        column_outs = sum(dtype.width // 8 for dtype in self.column_outs) * self.n
        blocks = 0
        if self.blocks is not None:  # and its scale factors
            elements = self.rows * self.n
            blocks = elements // self.blocks.vector + elements // self.blocks.packed - elements
        return sum(x.bytes for x in (*self.sources, *self.outs, *self.present)) + column_outs + blocks
