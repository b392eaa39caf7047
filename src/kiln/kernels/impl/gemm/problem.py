"""The problems of `gemm` and `grouped_gemm`: shapes, element types and layouts, without the data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float4E2M1FN, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from ...dispatch.arrays import power_of_two, require
from ...dispatch.problem import Problem, TensorLayout, peak_name
from ...parts.scale_atoms import SCALE_ATOM
from .epilogue_fusion import NO_FUSION, EpilogueFusion

if TYPE_CHECKING:
    from .... import cute

PRECISIONS = ("ieee", "tf32", "fast")
SCALE_BLOCK = 128
"""The extent of a block with one scale factor: along K for A, along K and N for B."""
_WARP = 32
FLOATS = (Float16, BFloat16, Float32)
FLOATS8 = (Float8E4M3FN, Float8E5M2)
INTEGERS = (Int8, Uint8)


@dataclasses.dataclass(frozen=True)
class GemmProblem(Problem):
    """D = fusion(A B, epilogue_inputs) for A (L, M, K), B (L, K, N), D and inputs (L, M, N).

    N is contiguous in D: a GEMM with contiguous M is computed as its transpose.
    """

    a: TensorLayout
    b: TensorLayout
    out: TensorLayout
    epilogue_inputs: tuple[TensorLayout, ...] = ()
    """Tensors that the epilogue reads: scales of rows and columns, C, the bias, extras."""
    fusion: EpilogueFusion = NO_FUSION
    precision: str = "ieee"
    block_scales: tuple[TensorLayout, ...] = ()
    """Scale factors of blocks: (L, M, K / 128) of A, one for 128 elements along K, and (L, K / 128, N / 128) of B."""
    extra_outs: tuple[TensorLayout, ...] = ()
    """Results after the first, with contiguous N."""
    int4: bool = False
    """Whether B is (L, K / 2, N) bytes with two 4-bit integers each, neighbours in K."""
    group_scales: TensorLayout | None = None
    """Scale factors (L, groups of K, N) of an integer B."""
    vector_scales: tuple[TensorLayout, ...] = ()
    """Scale factors of vectors along K of A and of B, as bytes in atoms: (L, 128 rows, 512 x 4 vectors)."""
    scale_vector: int = 0
    """Elements along K with one of these: 32 of which it is a power of two (e8m0), 16 of which it is an e4m3."""
    fp4: bool = False
    """Whether A and B are bytes with two e2m1 each, neighbours in K, the first in the low half."""

    name = "gemm"
    shape_hint = "(L, M, K), (L, K, N), (L, M, N)"

    def __post_init__(self) -> None:
        left = self.a.dtype
        right = self.b.dtype
        name = self.name
        require(
            self.precision in PRECISIONS,
            f"{name}: precision is {self.precision!r}; it must be one of {', '.join(PRECISIONS)}",
        )
        self.check_shapes()
        floats8 = {left, right} <= set(FLOATS8)
        require(
            floats8 or self.mixed_input or {left, right} <= set(INTEGERS) or (left is right and left in FLOATS),
            f"{name}: a is {left.__name__} and b is {right.__name__}",
            hint="both Float16, BFloat16 or Float32, or 8-bit floats, or 8-bit integers"
            + ("; b may be integers where a is Float16 or BFloat16" if name == "gemm" else ""),
        )
        require(
            self.precision != "fast" or floats8,
            f"{name}: precision is 'fast', and a is {left.__name__}",
            hint="'fast' is for the accumulators of 8-bit floats",
        )
        if self.block_scales:
            self._check_block_scales(floats8)
        if self.vector_scales:
            require(
                floats8 or self.fp4,
                f"{self.name}: a is {self.a.dtype.__name__} and has scales of vectors",
                hint="8-bit floats have them, and bytes with two floats of 4 bits",
            )
        for x in self.outs:
            require(x.strides[2] == 1, f"{name}: out has strides {x.strides}; its rows or columns must be contiguous")

    def _check_block_scales(self, floats8: bool) -> None:
        require(
            floats8,
            f"{self.name}: a is {self.a.dtype.__name__} and has block scales",
            hint="8-bit floats have them; a scale for each row of a and column of b suits all types",
        )
        batches, rows, _ = self.a.shape
        num_b = self.b.shape[0]
        of_a, of_b = block_scale_shapes(self.k, self.b.shape[2], rows)
        require(
            [x.shape for x in self.block_scales] == [(batches, *of_a), (num_b, *of_b)],
            f"{self.name}: block scales have the shapes {[x.shape for x in self.block_scales]}",
            hint=f"{of_a} and {of_b}: one for each {SCALE_BLOCK} elements along K, and along N of b",
        )

    @property
    def batches_of_a(self) -> int:
        """L of A, by the shape of B."""
        return self.b.shape[0]

    def check_shapes(self) -> None:
        """Refuse shapes that do not go together."""
        a = self.a.shape
        b = self.b.shape
        out = self.out.shape
        require(
            len(a) == len(b) == len(out) == 3
            and (*a[:2], b[2]) == out
            and (self.batches_of_a, b[1]) == (a[0], a[2] // 2 if self.int4 else a[2])
            and all(x.shape == out for x in (*self.epilogue_inputs, *self.extra_outs)),
            f"{self.name}: a is {a}, b is {b}, out is {out}; they must be {self.shape_hint}",
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, M, N)."""
        batches, m, n = self.out.shape
        return batches, m, n

    @property
    def k(self) -> int:
        return self.a.shape[2] * (2 if self.fp4 else 1)

    @property
    def dtype(self) -> Any:
        """The element type of A."""
        return Float4E2M1FN if self.fp4 else self.a.dtype

    @property
    def acc_dtype(self) -> type[cute.Numeric]:
        """The type of accumulators."""
        return Int32 if self.dtype in INTEGERS else Float32

    @property
    def promoted(self) -> bool:
        """Whether accumulators of each stage are added in f32 registers: tensor cores keep few bits for 8-bit floats,
        and block scales differ from stage to stage."""
        return (
            self.dtype in FLOATS8 and not self.vector_scales and (bool(self.block_scales) or self.precision != "fast")
        )

    @property
    def flops(self) -> int:
        """Multiplications and additions of the main loop, without the epilogue's."""
        batches, m, n = self.shape
        return 2 * batches * m * n * self.k

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, each read or written once."""
        scales = (*self.block_scales, *self.vector_scales)
        if self.group_scales is not None:
            scales = (*scales, self.group_scales)
        return sum(x.bytes for x in (self.a, self.b, *self.outs, *self.epilogue_inputs, *scales))

    @property
    def mma_dtype(self) -> str | None:
        return "tf32" if self.precision == "tf32" else None if self.dtype is Float32 else peak_name(self.dtype)

    @property
    def outs(self) -> tuple[TensorLayout, ...]:
        """All results but that of a row reduction."""
        return self.out, *self.extra_outs

    @property
    def mixed_input(self) -> bool:
        """Whether B has integers where A has floats."""
        return self.name == "gemm" and self.a.dtype in FLOATS[:2] and self.b.dtype in INTEGERS

    @property
    def group_size(self) -> int:
        """Elements along K with one scale factor of `group_scales`; 0 without those."""
        return 0 if self.group_scales is None else self.k // self.group_scales.shape[1]

    @property
    def bits(self) -> tuple[int, int]:
        """Bits of an element of A, and of B."""
        return self.a.dtype.width, 4 if self.int4 else self.b.dtype.width

    @property
    def reduces_rows(self) -> bool:
        """Whether the epilogue adds a value along rows, instead of writing it."""
        return self.fusion.row_reduction and len(self.outs) == self.fusion.outs

    @property
    def out_types(self) -> tuple[type[cute.Numeric], ...]:
        return tuple(x.dtype for x in self.outs)

    @property
    def out_bits(self) -> tuple[int, ...]:
        """Bits of an element of each result."""
        return tuple(x.dtype.width for x in self.outs)

    @property
    def aligned(self) -> bool:
        """Whether rows of both operands begin at multiples of 128 bytes."""
        return all(s * x.size % 128 == 0 or s == 1 for x in (self.a, self.b) for s in x.strides)

    def operands(self) -> tuple[Operand, Operand]:
        """Return how A and B are read."""
        both = Operand.of(self.a, (1, 2), 2), Operand.of(self.b, (2, 1), 1, self.int4)
        if not self.fp4:
            return both
        a, b = (dataclasses.replace(x, dtype=Float4E2M1FN) for x in both)
        return a, b

    @property
    def out_width(self) -> int:
        """How many elements of a row of each result one access writes."""
        return min(x.width(2) for x in self.outs)

    @property
    def epilogue_input_widths(self) -> tuple[int, ...] | None:
        """How many elements of a row of each epilogue input one access reads; None: the epilogue at most scales."""
        return None if self.fusion.plain else tuple(x.width(x.leading((2,))) for x in self.epilogue_inputs)


@dataclasses.dataclass(frozen=True)
class GroupedGemmProblem(GemmProblem):
    """A GEMM of rows of A with the matrix of their group, for B (G, K, N).

    `contiguous`: A is (1, T, K), group after group, and the device knows where each ends. Otherwise A is (G, M, K), and
    the device knows how many rows of each group count.
    """

    contiguous: bool = True
    expected_rows: int = 1
    """Rows that a group is expected to have, for the choice of a config."""

    name = "grouped_gemm"
    shape_hint = "(1, T, K), (G, K, N), (1, T, N), or (G, M, K), (G, K, N), (G, M, N)"

    def why_no_tma(self) -> str | None:
        """Return why TMA cannot load rows of its groups; None if it can."""
        if self.contiguous and not self.operands()[0].k_major:
            return "rows of groups begin anywhere, and TMA loads from multiples of 16 bytes: a must be contiguous in K"
        return None

    @property
    def batches_of_a(self) -> int:
        return 1 if self.contiguous else self.num_groups

    @property
    def num_groups(self) -> int:
        return self.b.shape[0]

    @property
    def table_groups(self) -> int:
        """The groups that the table of a tile scheduler has room for."""
        return max(_WARP, power_of_two(self.num_groups))

    @property
    def table_bytes(self) -> int:
        """The shared memory of that table."""
        return 8 * (self.table_groups + 1)

    def as_batch(self) -> GemmProblem:
        """Return the batched GEMM of groups that all have the expected rows."""
        groups, k, n = self.b.shape
        rows = self.expected_rows
        a, out = (TensorLayout.dense(x.dtype, groups, rows, columns) for x, columns in ((self.a, k), (self.out, n)))
        inputs = []
        for x in self.epilogue_inputs:
            _, row, column = x.strides
            inputs.append(TensorLayout(x.dtype, (groups, rows, x.shape[2]), (row * rows, row, column), x.offset))
        shapes = block_scale_shapes(k, n, rows)
        scales = tuple(TensorLayout.dense(x.dtype, groups, *shape) for x, shape in zip(self.block_scales, shapes))
        vectors = tuple(
            TensorLayout.dense(x.dtype, groups, -(-extent // SCALE_ATOM[0]), x.shape[2])
            for x, extent in zip(self.vector_scales, (rows, n))
        )
        return GemmProblem(
            a,
            self.b,
            out,
            tuple(inputs),
            self.fusion,
            self.precision,
            scales,
            vector_scales=vectors,
            scale_vector=self.scale_vector,
            fp4=self.fp4,
        )

    @property
    def flops(self) -> int:
        return 2 * self.num_groups * self.expected_rows * self.b.shape[2] * self.k

    @property
    def bytes(self) -> int:
        return self.as_batch().bytes


def block_scale_shapes(k: int, n: int, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the block scales of A (rows, K) and B (K, N)."""
    k_blocks = -(-k // SCALE_BLOCK)
    n_blocks = -(-n // SCALE_BLOCK)
    return (rows, k_blocks), (k_blocks, n_blocks)


_MAX_TILE_EXTENT = 1 << 12
"""More rows or columns than any tile has."""


@dataclasses.dataclass(frozen=True)
class Operand:
    """A or B: its element type, whether K is contiguous, and how many elements one copy has."""

    __kiln_fixed__ = True
    dtype: Any
    k_major: bool
    width: int
    wide: bool = False
    """Whether offsets inside a tile need 64 bits."""
    packed: bool = False
    """Whether elements are bytes with two 4-bit integers each, neighbours in K."""
    half: bool = False
    """Whether 8-bit floats become f16 in registers."""
    partial: bool = False
    """Whether it has fewer rows than a tile, so that threads check which rows exist."""

    @classmethod
    def of(cls, x: TensorLayout, modes: tuple[int, int], k_mode: int, packed: bool = False) -> Operand:
        """Return how an array is read, contiguous along one of some modes."""
        leading = x.leading(modes)
        wide = any(s * _MAX_TILE_EXTENT * x.size >= 1 << 31 for s in x.strides[1:])
        return cls(x.dtype, leading == k_mode, x.width(leading), wide, packed)
