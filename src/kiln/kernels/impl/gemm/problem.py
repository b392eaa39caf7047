"""What a matrix product is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from ...dispatch.arrays import require
from ...dispatch.problem import Problem, TensorLayout, peak_name
from .epilogue_fusion import NO_FUSION, EpilogueFusion

PRECISIONS = ("ieee", "tf32", "fast")
SCALE_BLOCK = 128
"""Elements in K, and columns of B, that have one factor."""
FLOATS = (Float16, BFloat16, Float32)
FLOATS8 = (Float8E4M3FN, Float8E5M2)
INTEGERS = (Int8, Uint8)


@dataclasses.dataclass(frozen=True)
class GemmProblem(Problem):
    """D = follow(A B, others) for A (L, M, K), B (L, K, N), D and others (L, M, N); rows of D are contiguous.

    (A product whose columns are to be contiguous is the one of its transpose.)
    """

    a: TensorLayout
    b: TensorLayout
    out: TensorLayout
    epilogue_inputs: tuple[TensorLayout, ...] = ()
    fusion: EpilogueFusion = NO_FUSION
    precision: str = "ieee"
    block_scales: tuple[TensorLayout, ...] = ()
    """Factors of blocks: of A (L, M, K / 128), for 128 elements of a row each, and of B (L, K / 128, N / 128)."""
    extra_outs: tuple[TensorLayout, ...] = ()
    """Results after the first; rows are contiguous in them too."""
    int4: bool = False
    """Whether B has two integers of 4 bits in a byte, neighbours in K: (L, K / 2, N)."""
    group_scales: TensorLayout | None = None
    """Factors of weights: (L, groups of K, N)."""

    name = "gemm"

    def __post_init__(self) -> None:
        require(
            self.precision in PRECISIONS,
            f"{self.name} with precision {self.precision!r}: one of {', '.join(PRECISIONS)}",
        )
        self.check_shapes()
        left, right = self.a.dtype, self.b.dtype
        mixed = {left, right} <= set(FLOATS8) or {left, right} <= set(INTEGERS)
        of_weights = "; b may be integers where a is Float16 or BFloat16" if self.name == "gemm" else ""
        require(
            mixed or self.mixed_input or (left is right and left in FLOATS),
            f"{self.name} of {left.__name__} and {right.__name__}",
            hint=f"both Float16, BFloat16 or Float32, or 8-bit floats, or 8-bit integers{of_weights}",
        )
        require(
            self.precision != "fast" or {left, right} <= set(FLOATS8),
            f"{self.name} of {left.__name__} with precision 'fast'",
            hint="that is for sums of 8-bit floats",
        )
        if self.block_scales:
            require(
                {left, right} <= set(FLOATS8),
                f"{self.name} of {left.__name__} with factors of blocks",
                hint="8-bit floats have them; a factor for each row of a and column of b suits all types",
            )
            (batches, rows, k), (matrices, _, n) = self.a.shape, self.b.shape
            depth, across = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
            require(
                [x.shape for x in self.block_scales] == [(batches, rows, depth), (matrices, depth, across)],
                f"{self.name} with factors of shapes {[x.shape for x in self.block_scales]}",
                hint=f"of rows and blocks of {SCALE_BLOCK}: {(rows, depth)} and {(depth, across)}",
            )
        for x in self.outs:
            require(x.strides[2] == 1, f"{self.name} into strides {x.strides}: rows or columns are contiguous")

    def check_shapes(self) -> None:
        """Refuse shapes that do not go together."""
        a, b, out = self.a, self.b, self.out
        require(
            len(a.shape) == len(b.shape) == len(out.shape) == 3
            and (*a.shape[:2], b.shape[2]) == out.shape
            and b.shape[:2] == (a.shape[0], a.shape[2] // 2 if self.int4 else a.shape[2])
            and all(x.shape == out.shape for x in (*self.epilogue_inputs, *self.extra_outs)),
            f"gemm of shapes {a.shape} and {b.shape} into {out.shape}: (L, M, K), (L, K, N), (L, M, N)",
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batches, M, N."""
        batches, m, n = self.out.shape
        return batches, m, n

    @property
    def k(self) -> int:
        return self.a.shape[2]

    @property
    def dtype(self) -> Any:
        """The elements of A; those of B have as many bits."""
        return self.a.dtype

    @property
    def acc_dtype(self) -> Any:
        """What sums are made in."""
        return Int32 if self.dtype in INTEGERS else Float32

    @property
    def promoted(self) -> bool:
        """Whether sums of stages are added outside of the tensor cores, which keep few bits of sums of 8-bit floats. With factors of blocks they
        have to be."""
        return self.dtype in FLOATS8 and (bool(self.block_scales) or self.precision != "fast")

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products; what follows them is not counted."""
        batches, m, n = self.shape
        return 2 * batches * m * n * self.k

    @property
    def bytes(self) -> int:
        """Operands, their factors and others read once, the results written once."""
        factors = self.block_scales if self.group_scales is None else (*self.block_scales, self.group_scales)
        return sum(x.bytes for x in (self.a, self.b, *self.outs, *self.epilogue_inputs, *factors))

    @property
    def mma_dtype(self) -> str | None:
        return "tf32" if self.precision == "tf32" else None if self.dtype is Float32 else peak_name(self.dtype)

    @property
    def outs(self) -> tuple[TensorLayout, ...]:
        """All arrays that are written, but for sums of rows."""
        return self.out, *self.extra_outs

    @property
    def mixed_input(self) -> bool:
        """Whether B has integers where A has floats."""
        return self.name == "gemm" and self.a.dtype in FLOATS[:2] and self.b.dtype in INTEGERS

    @property
    def group_size(self) -> int:
        """K of weights that have a factor in common; 0: there are none."""
        return 0 if self.group_scales is None else self.k // self.group_scales.shape[1]

    @property
    def bits(self) -> tuple[int, int]:
        """Of an element of A, and of B."""
        return self.a.dtype.width, 4 if self.int4 else self.b.dtype.width

    @property
    def reduces_rows(self) -> bool:
        """Whether a value of each row is summed, and not written."""
        return self.fusion.row_sum and len(self.outs) == self.fusion.outs

    @property
    def out_types(self) -> tuple[Any, ...]:
        """Of the results."""
        return tuple(x.dtype for x in self.outs)

    @property
    def aligned(self) -> bool:
        """Whether rows of both operands begin at multiples of 128 bytes."""
        return all(s * x.size % 128 == 0 or s == 1 for x in (self.a, self.b) for s in x.strides)

    def operands(self) -> tuple[Operand, Operand]:
        """How A and B are read."""
        return _operand(self.a, self.a.leading((1, 2)), 2), _operand(self.b, self.b.leading((2, 1)), 1)

    @property
    def out_width(self) -> int:
        """How many elements of a row of each result can be written at once."""
        return min(x.width(2) for x in self.outs)

    @property
    def epilogue_input_widths(self) -> tuple[int, ...]:
        """The same of the others, where they are read."""
        return tuple(x.width(x.leading((2,))) for x in self.epilogue_inputs)


@dataclasses.dataclass(frozen=True)
class Operand:
    """A or B: its elements, whether K is contiguous, and how many elements are copied at once."""

    __kiln_fixed__ = True
    dtype: Any
    k_major: bool
    width: int
    wide: bool = False
    """Whether offsets inside a tile need 64 bits."""
    half: bool = False
    """Whether its elements become f16 in registers."""
    few: bool = False
    """Whether it has fewer rows than a tile: what is not there is not read."""


_NARROW = 1 << 31
"""Bytes a tile may reach over for offsets of 32 bits, each mode by itself."""
_MOST_ROWS = 1 << 12
"""More than any tile has, in rows or in K."""


def _operand(x: TensorLayout, leading: int | None, k_mode: int) -> Operand:
    wide = any(s * _MOST_ROWS * x.size >= _NARROW for s in x.strides[1:])
    return Operand(x.dtype, leading == k_mode, x.width(leading), wide)
