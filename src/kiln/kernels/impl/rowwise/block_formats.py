"""Formats of rows that are quantised in blocks: mxfp8, mxfp4 and nvfp4, whose blocks of neighbours share a scale factor.

A block lies in the vectors of neighbouring lanes, which find its largest magnitude by shuffles. With e8m0 scale factors
these are the least powers of two with which no element is more than its type holds. Those of nvfp4 are e4m3: the largest
magnitude over 6, rounded.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import TYPE_CHECKING, NamedTuple

from .... import Float4E2M1FN, Float8E4M3FN, Float8E8M0FNU, Float32, Int32, Int64, Uint8, const_expr, cute, select_
from ....cute import arch
from ...dispatch import arrays
from ...dispatch.problem import TensorLayout
from ...parts.scale_atoms import SCALE_ATOM, atoms_shape
from ...parts.vectors import total, vector_atom

if TYPE_CHECKING:
    from .... import Boolean
    from ...dispatch.arrays import Array

_ATOM_ROWS, _ATOM_VECTORS = SCALE_ATOM
_ATOM_BYTES = _ATOM_ROWS * _ATOM_VECTORS
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_MANTISSA = 23
_NAN = {Float8E8M0FNU: 0xFF, Float8E4M3FN: 0x7F}
"""The bytes of scale factors that are no numbers."""
_LARGEST = {Float8E4M3FN: (8, 0x600000), Float4E2M1FN: (2, 0x400000)}
"""The largest numbers of the types of elements: the exponent, and the mantissa as an f32 has it."""
_LARGEST_E2M1 = 6.0
LAYOUTS = ("atoms", "rows")


@dataclasses.dataclass(frozen=True)
class BlockFormat:
    """The element type, how many neighbours share a scale factor, the type of the factor, and where it goes.

    `atoms`: scale factors lie in atoms of 512 bytes, as tensor cores want them; else in rows. `batched`: atoms have rows
    of one matrix of a batch. `scaled`: rows are multiplied by a number first.
    """

    __kiln_fixed__ = True

    dtype: type[cute.Numeric]
    vector: int
    scale_dtype: type[cute.Numeric]
    atoms: bool = True
    batched: bool = False
    scaled: bool = False

    @property
    def packed(self) -> int:
        """Elements in a byte."""
        return 8 // self.dtype.width

    def lanes(self, width: int) -> int:
        """Return the lanes that share a block, with so many elements each."""
        return self.vector // width

    def scales_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scale factors of an array."""
        vectors = shape[-1] // self.vector
        if not self.atoms:
            return (*shape[:-1], vectors)
        blocks, size = atoms_shape(self.batch_rows(shape), vectors)
        return (shape[0], blocks * size) if self.batched else (blocks * size,)

    def batch_rows(self, shape: tuple[int, ...]) -> int:
        """Return the rows of a matrix of an array: all, or of an array with three modes those of one."""
        rows = 1
        for extent in shape[1 if self.batched else 0 : -1]:
            rows *= extent
        return rows


FORMATS = {
    "mxfp8": BlockFormat(Float8E4M3FN, 32, Float8E8M0FNU),
    "mxfp4": BlockFormat(Float4E2M1FN, 32, Float8E8M0FNU),
    "nvfp4": BlockFormat(Float4E2M1FN, 16, Float8E4M3FN),
}
"""The formats by name."""


class BlockRows(NamedTuple):
    """Arrays for quantised rows and their scale factors, and what rows are multiplied by."""

    format: BlockFormat
    rows: Array
    """An element to a byte, or two, the first in the low half."""
    scales: Array
    data: tuple[Array, Array]
    """Both as bytes."""
    scale: float
    shape: tuple[int, ...]
    """The shape in elements."""

    @classmethod
    def like(cls, name: str, x: Array, format_name: str, layout: str, scale: float) -> BlockRows:
        """Return new arrays for rows like those of an array."""
        arrays.require(
            format_name in FORMATS, f"{name}: quantize is {format_name!r}", hint=" or ".join(map(repr, FORMATS))
        )
        arrays.require(layout in LAYOUTS, f"{name}: scale_layout is {layout!r}", hint=" or ".join(map(repr, LAYOUTS)))
        arrays.require(
            isinstance(scale, numbers.Real) and math.isfinite(short := arrays.as_f32(float(scale))) and short != 0,
            f"{name}: scale is {scale!r}",
            hint="a number that is finite and not 0 as f32",
        )
        form = FORMATS[format_name]
        shape: tuple[int, ...] = tuple(x.shape)
        columns = shape[-1] if shape else 0
        arrays.require(
            bool(shape) and columns % form.vector == 0,
            f"{name}: shape {shape}, and {format_name} has a scale factor for each {form.vector} neighbours",
            hint=f"rows of a multiple of {form.vector} elements",
        )
        atoms = layout == "atoms"
        form = dataclasses.replace(form, atoms=atoms, batched=atoms and len(shape) == 3, scaled=scale != 1.0)
        kind = Uint8 if form.packed > 1 else form.dtype
        rows = arrays.empty(x, (*shape[:-1], columns // form.packed), arrays.framework_dtype(kind, x))
        scales = arrays.empty(x, form.scales_shape(shape), arrays.framework_dtype(form.scale_dtype, x))
        if atoms and (form.batch_rows(shape) % _ATOM_ROWS or columns // form.vector % _ATOM_VECTORS):
            arrays.fill(arrays.bits(scales), 0)  # of rows and blocks that there are not: they must be numbers
        return cls(form, rows, scales, (arrays.bits(rows), arrays.bits(scales)), scale, shape)

    @property
    def layout(self) -> TensorLayout:
        """The layout of the rows, in elements."""
        return TensorLayout.dense(self.format.dtype, *self.shape)


class BlockScaleTensor(NamedTuple):
    """Where scale factors go: bytes, and the rows of a matrix of a batch."""

    scales: cute.Tensor
    matrix_rows: Int32
    vectors: Int32
    """Blocks of a row."""

    @classmethod
    def at(
        cls, address: Int64 | cute.Tensor, form: BlockFormat, rows: Int32, n: Int32, matrix_rows: Int32
    ) -> BlockScaleTensor:
        """Return the scale factors at an address, of so many rows of n elements."""
        vectors = n // form.vector
        if form.atoms:
            depth = cute.ceil_div(vectors, _ATOM_VECTORS)
            blocks = rows // matrix_rows * cute.ceil_div(matrix_rows, _ATOM_ROWS)
            layout = cute.make_layout((Int64(blocks) * Int64(depth * _ATOM_BYTES),))
        else:
            layout = cute.make_layout((Int64(rows) * Int64(vectors),))
        return cls(cute.make_tensor(arrays.pointer(address, Uint8, 1), layout), matrix_rows, vectors)

    def offset(self, form: BlockFormat, row: Int32, vector: Int32) -> Int64:
        """Return the byte of the scale factor of a block of a row."""
        if not form.atoms:
            return Int64(row) * Int64(self.vectors) + Int64(vector)
        first = Int32(0)
        if form.batched:
            first = row // self.matrix_rows * cute.ceil_div(self.matrix_rows, _ATOM_ROWS)
            row = row % self.matrix_rows
        depth = cute.ceil_div(self.vectors, _ATOM_VECTORS)
        block = Int64(first + row // _ATOM_ROWS) * Int64(depth) + Int64(vector // _ATOM_VECTORS)
        # row 32 i + j of an atom has its vectors at byte 16 j + 4 i
        within = row % 32 * 16 + row % _ATOM_ROWS // 32 * _ATOM_VECTORS + vector % _ATOM_VECTORS
        return block * _ATOM_BYTES + Int64(within)

    @cute.jit
    def write(self, form: BlockFormat, row: Int32, vector: Int32, scale: Uint8, pred: Boolean):
        """Write the scale factor of a block, by the lanes of which `pred` is true."""
        if pred:
            self.scales[self.offset(form, row, vector)] = scale


def quantised(value: cute.TensorSSA, form: BlockFormat) -> tuple[cute.Tensor, Uint8]:
    """Return a lane's elements as bytes in registers, and the scale factor of their block, which neighbouring lanes share."""
    magnitudes = value.bitcast(Int32) & _MAGNITUDE  # of which NaN is the largest
    lanes = form.lanes(len(value))
    largest = total(magnitudes, cute.math.max)
    if lanes > 1:
        largest = arch.warp_reduction(largest, lambda a, b: select_(a > b, a, b), threads_in_group=lanes)
    is_finite = largest < _INFINITY
    if const_expr(form.scale_dtype is Float8E8M0FNU):
        exponent, mantissa = _LARGEST[form.dtype]
        # one more where the mantissa is larger than that of the type's largest number
        rounded_up = (largest + ((1 << _MANTISSA) - 1 - mantissa)) >> _MANTISSA
        scale = cute.math.max(rounded_up - exponent, Int32(0))
        inverse = ((254 - scale) << _MANTISSA).bitcast(Float32)
        byte = scale
    else:
        narrow = (largest.bitcast(Float32) * (1.0 / _LARGEST_E2M1)).to(form.scale_dtype)
        wide = narrow.to(Float32)
        inverse = select_(wide > 0.0, Float32(1.0) / select_(wide > 0.0, wide, Float32(1.0)), Float32(0.0))
        byte = Int32(narrow.bitcast(Uint8))
    byte = select_(is_finite, byte, Int32(_NAN[form.scale_dtype]))
    elements = cute.make_rmem_tensor((len(value),), form.dtype)
    elements.store((value * inverse).to(form.dtype))
    return cute.recast_tensor(elements, Uint8), Uint8(byte)


def write_elements(elements: cute.Tensor, tile: cute.Tensor, pred: Boolean | None) -> None:
    """Write a lane's elements, as bytes."""
    cute.copy(vector_atom(Uint8, cute.size(elements)), elements, tile, pred=pred)
