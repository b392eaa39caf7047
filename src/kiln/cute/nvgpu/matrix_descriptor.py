"""Operands of WGMMAs in shared memory: descriptors, and tensors of them.

The tensor cores read an operand (MN, K) of one call in pieces of 16 bytes, T elements, from one of few layouts. With
rows of W pieces (8, 4, 2 for the swizzles of 128, 64 and 32 bytes, 1 without) they are, in elements,

    K-major:   ((8,m),(T,2)) : ((W T, S),(1, T))      without swizzle ((8,m),(T,2)) : ((T, S),(1, L))
    MN-major:  ((W T,m),(8,k)) : ((1, L),(W T, S))    without swizzle ((T,m),(8,k)) : ((1, S),(T, L))

and a descriptor holds the address, the leading offset L, the stride S and the swizzle. L is not read where it is not
in the layout. Swizzles are those of addresses, so a descriptor may be moved along K inside a row, and by whole
patterns of 8 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32, Int64
from ..deferred_dialects import nvgpu
from ..layout.algebra import coalesce
from ..layout.composed_layout import ComposedLayout
from ..layout.layout import Layout, make_layout, rank, size
from ..layout.leaf import get_divisibility, is_one, is_zero, leaf_floordiv, leaf_str
from ..layout.swizzle import Swizzle, downcast_swizzle
from ..tensor.iterator import AddressSpace, TensorIterator
from ..tensor.pointer import Pointer, element_bits, type_name
from ..tensor.tensor import TracedTensor
from .access import require_alignment
from .common import OperandMajorMode

PIECE = 16
"""The bytes that a swizzle moves as one, and the unit of descriptors."""
_ROWS = 8
_HIGH = -1 << 32
_SWIZZLES = {0: "none", 1: "32b", 2: "64b", 3: "128b"}
_NOT_READ = PIECE
"""The value of an offset that the hardware ignores, as the PTX manual asks for."""


class MatrixDescriptor(TensorIterator):
    """The descriptor of an operand of one call; a tensor's elements are the descriptors of all its calls. Immutable."""

    __slots__ = ("_high", "_low", "_offset", "dtype", "major", "swizzle")

    holds = "descriptors of matrices in shared memory"
    instead = "gemm() takes them; elements are read through the tensor that make_fragment was given"
    memspace = AddressSpace.smem
    alignment = PIECE

    def __init__(
        self, low: Int32, high: Int64, dtype: Any, major: OperandMajorMode, swizzle: str, offset: int = 0
    ) -> None:
        self._low = low
        """The lower half, which alone is added to: the upper one stays the same in a whole tensor."""
        self._high = high
        self._offset = offset
        """The units of 16 bytes that are still to be added."""
        self.dtype, self.major, self.swizzle = dtype, major, swizzle

    def moved(self, offset: Any) -> MatrixDescriptor:
        low, known = (self._low, offset) if isinstance(offset, int) else (self._low + Int32(offset), 0)
        return MatrixDescriptor(low, self._high, self.dtype, self.major, self.swizzle, self._offset + known)

    __add__ = moved

    def element(self, offset: Any) -> Int64:
        low, type_ = self.moved(offset)._whole_low(), Int64.mlir_type
        word = tracing.emit_value("arith.extui", type_, (low.ir_value(),))
        return Int64._make(tracing.emit_value("arith.ori", type_, (self._high.ir_value(), word)))

    def _whole_low(self) -> Int32:
        return Int32._make((self._low + self._offset).ir_value(), True)  # its highest bit is never set

    def __str__(self) -> str:
        return f"smem_desc<{type_name(self.dtype)}, {self.major.name.lower()}, {self.swizzle}>"

    __repr__ = __str__

    @tracing.taking_apart
    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self._whole_low().ir_value(), self._high.ir_value()]

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> MatrixDescriptor:
        low, high = values
        return MatrixDescriptor(Int32._make(low, True), Int64._make(high), self.dtype, self.major, self.swizzle)

    def __kiln_static_key__(self) -> Any:
        return (MatrixDescriptor, self.dtype, self.major, self.swizzle)


class _Offsets(NamedTuple):
    """The bytes that a descriptor holds."""

    leading: int
    stride: int


def make_descriptors(tensor: TracedTensor, operand: str, major: OperandMajorMode) -> TracedTensor:
    """Return the descriptors of an operand in shared memory, partitioned as ((MN, K), rest...), as (1, rest...)."""
    pointer, layout, swizzle = _plain(tensor, operand)
    bits = element_bits(pointer.dtype)
    first = layout[0]
    if rank(first) != 2 or not first.is_static():
        raise _refusal(
            operand, major, swizzle, layout, f"mode 0 is the (MN, K) of one call, which is static, not {first}"
        )
    offsets = descriptor_offsets(first[0], first[1], bits, major, 1 << swizzle)
    if isinstance(offsets, str):
        raise _refusal(operand, major, swizzle, layout, offsets)
    _check_start(pointer, operand, swizzle)
    value = Int64._make(
        nvgpu.wgmma.matrix_descriptor(pointer.ir_value(), offsets.leading, offsets.stride, _SWIZZLES[swizzle])
    )
    low = Int32._make(Int32(value).ir_value(), True)
    rest = [_in_pieces(layout[i], bits, operand) for i in range(1, rank(layout))]
    shape = make_layout([make_layout(1, stride=0), *rest])
    return TracedTensor(MatrixDescriptor(low, value & _HIGH, pointer.dtype, major, _SWIZZLES[swizzle]), shape)


def _plain(tensor: TracedTensor, operand: str) -> tuple[Pointer, Layout, int]:
    """Return where a tensor begins, its layout without the swizzle, and how many address bits the swizzle changes."""
    pointer, layout = tensor._iterator, tensor._layout
    swizzle = pointer.swizzle
    if isinstance(layout, ComposedLayout):
        inner = layout.inner
        if swizzle is not None or not isinstance(inner, Swizzle):
            raise type_error(
                f"operand {operand} of a WGMMA has the layout {layout} behind a pointer {pointer}",
                "a layout of make_smem_layout_atom, or one swizzle of addresses",
            )
        swizzle = downcast_swizzle(inner, element_bits(pointer.dtype) // 8)
        if pointer.alignment % swizzle.period:
            raise type_error(
                f"operand {operand} of a WGMMA is swizzled from its first element on, which is only known to be a "
                f"multiple of {pointer.alignment} bytes; the hardware swizzles addresses",
                f"align it to {swizzle.period} bytes, or swizzle addresses: allocate_tensor(T, layout.outer, 1024, layout.inner)",
            )
        pointer, layout = pointer + layout.offset, layout.outer
    if swizzle is None or swizzle.num_bits == 0:
        return pointer, layout, 0
    if (swizzle.num_base, swizzle.num_shift) != (4, 3) or swizzle.num_bits not in _SWIZZLES:
        raise type_error(
            f"operand {operand} of a WGMMA is swizzled by {swizzle}",
            "the tensor cores know S<1,4,3>, S<2,4,3> and S<3,4,3> of addresses in bytes: see make_smem_layout_atom",
        )
    return pointer, layout, swizzle.num_bits


def descriptor_offsets(mn: Layout, k: Layout, bits: int, major: OperandMajorMode, pieces: int) -> _Offsets | str:
    """Return the offsets of a descriptor for a layout (MN, K) with rows of `pieces` pieces, or why there are none."""
    piece = PIECE * 8 // bits
    row = pieces * piece
    k_major, swizzled = major is OperandMajorMode.K, pieces > 1
    blocks = {"MN": (mn, _ROWS, row), "K": (k, piece, 1)} if k_major else {"MN": (mn, row, 1), "K": (k, _ROWS, row)}
    steps: dict[str, int] = {}
    for name, (layout, extent, stride) in blocks.items():
        step = _step(layout, extent, stride)
        if step is None or step * bits // 8 % PIECE or not 0 <= step * bits // 8 < 1 << 18:
            return (
                f"along {name} lie blocks of {extent} elements, {stride} apart, and the blocks a multiple of {PIECE} bytes, "
                f"which the layout {layout} has not"
            )
        steps[name] = step * bits // 8
    if k_major and swizzled:
        if steps["K"] != PIECE:
            return f"along K the {2 * PIECE} bytes of a call lie in a row, which the layout {k} has not"
        return _Offsets(_NOT_READ, steps["MN"])
    return _Offsets(steps["MN"], steps["K"]) if swizzled else _Offsets(steps["K"], steps["MN"])


def _step(layout: Layout, extent: int, stride: int) -> int | None:
    """Return the distance from one block of `extent` elements, `stride` apart, to the next; 0 for a single one; None if
    the layout has no such blocks."""
    count, rest = divmod(size(layout), extent)
    if rest:
        return None
    step = layout(extent) if count > 1 else 0
    return step if coalesce(layout) == coalesce(make_layout((extent, count), stride=(stride, step))) else None


def _check_start(pointer: Pointer, operand: str, swizzle: int) -> None:
    """Raise an error for an operand that begins within a piece, or in the middle of a pattern of 8 rows."""
    if not swizzle:
        require_alignment(pointer, 0, PIECE, f"operand {operand} of a WGMMA")
        return
    row = PIECE << swizzle
    pattern = row * _ROWS
    if not pointer._period() or not is_zero(pointer._inside) or not isinstance(pointer._offset, int):
        return  # nobody knows
    inside = pointer._offset * element_bits(pointer.dtype) // 8 % pattern
    if inside >= row or inside % PIECE:
        raise type_error(
            f"operand {operand} of a WGMMA begins {inside} bytes after a multiple of {pattern}, where its swizzle repeats",
            f"it begins in the first row of a pattern, that is less than {row} bytes after it, with a whole piece of {PIECE}",
        )


def _in_pieces(mode: Layout, bits: int, operand: str) -> Layout:
    """Return a mode whose strides count pieces."""

    def scaled(stride: Any, shape: Any) -> Any:
        if isinstance(stride, tuple):
            return tuple(scaled(d, s) for d, s in zip(stride, shape, strict=True))
        if is_one(shape):
            return 0
        piece = PIECE * 8 // bits
        if get_divisibility(stride) % piece:
            raise type_error(
                f"operand {operand} of a WGMMA has calls that lie {leaf_str(stride)} elements apart",
                f"a descriptor moves by {PIECE} bytes: strides are multiples of {piece}, or known to be by cute.assume",
            )
        return leaf_floordiv(stride, piece)

    return make_layout(mode.shape, stride=scaled(mode.stride, mode.shape))


def _refusal(operand: str, major: OperandMajorMode, swizzle: int, layout: Layout, rule: str) -> Exception:
    return type_error(
        f"operand {operand} of a WGMMA is {major.name}-major, swizzle {_SWIZZLES[swizzle]}, and the tensor cores cannot read "
        f"the layout {layout}: {rule}",
        "partition a tile of make_smem_layout_a or make_smem_layout_b, or of tile_to_shape(make_smem_layout_atom(...), ...), "
        "in the major mode of the operation",
    )
