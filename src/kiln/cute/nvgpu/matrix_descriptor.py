"""Operands of WGMMAs and of `tcgen05.mma` in shared memory: descriptors, and tensors of them.

The tensor cores read an operand (MN, K) of one call in pieces of 16 bytes, T elements, from one of few layouts. With
rows of W pieces (8, 4, 2 for the swizzles of 128, 64 and 32 bytes, 1 without) they are, in elements,

    K-major:   ((8,m),(T,2)) : ((W T, S),(1, T))      without swizzle ((8,m),(T,2)) : ((T, S),(1, L))
    MN-major:  ((W T,m),(8,k)) : ((1, L),(W T, S))    without swizzle ((T,m),(8,k)) : ((1, S),(T, L))

and a descriptor holds the address, the leading offset L, the stride S and the swizzle. L is not read where it is not
in the layout. `tcgen05.mma` also has a swizzle of 128 bytes in pieces of 32, for 32-bit elements that are MN-major:
((W T,m),(4,k)) : ((1, L),(W T, S)). Swizzles are those of addresses, so a descriptor may be moved along K inside a row, and by whole
patterns of 8 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ..layout.swizzle import Swizzle, downcast_swizzle, upcast_swizzle
from ..tensor.iterator import AddressSpace, TensorIterator
from ..tensor.pointer import Pointer, element_bits, type_name
from ..tensor.tensor import TracedTensor
from .access import require_alignment
from .common import OperandMajorMode

PIECE = 16
"""The bytes that a swizzle moves as one, and the unit of descriptors."""
_ROWS = 8
_HIGH = -1 << 32
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
        self, low: Int32, high: Int64, dtype: object, major: OperandMajorMode, swizzle: str, offset: int = 0
    ) -> None:
        self._low = low
        """The lower half, which alone is added to: the upper one stays the same in a whole tensor."""
        self._high = high
        self._offset = offset
        """The units of 16 bytes that are still to be added."""
        self.dtype: Any = dtype
        self.major: OperandMajorMode = major
        self.swizzle: str = swizzle

    def moved(self, offset: object) -> MatrixDescriptor:
        low, static_offset = (self._low, offset) if isinstance(offset, int) else (self._low + Int32(offset), 0)
        return type(self)(low, self._high, self.dtype, self.major, self.swizzle, self._offset + static_offset)

    __add__ = moved

    def element(self, offset: object) -> Int64:
        low = self.moved(offset)._whole_low()
        type_ = Int64.mlir_type
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

    def __new_from_mlir_values__(self, values: Sequence[object]) -> MatrixDescriptor:
        low, high = values
        return type(self)(Int32._make(low, True), Int64._make(high), self.dtype, self.major, self.swizzle)

    def __kiln_static_key__(self) -> Any:
        return (type(self), self.dtype, self.major, self.swizzle)


class SmemSwizzle(NamedTuple):
    """A swizzle of an operand in shared memory: its name, and the extents of its pattern."""

    name: str
    pieces: int
    """The pieces of 16 bytes in a row."""
    rows: int = _ROWS
    """The rows of an MN-major pattern along K."""


NO_SWIZZLE = SmemSwizzle("none", 1)
SWIZZLES = {(1, 4, 3): SmemSwizzle("32b", 2), (2, 4, 3): SmemSwizzle("64b", 4), (3, 4, 3): SmemSwizzle("128b", 8)}


class Reader(NamedTuple):
    """An instruction that reads operands through descriptors."""

    name: str
    """Its name in error messages."""
    swizzles: dict[tuple[int, int, int], SmemSwizzle]
    """The swizzles it knows, by bits, base and shift."""
    iterator: type[MatrixDescriptor]
    make: Callable[[ir.Value, int, int, str], ir.Value]
    """Emits the descriptor for a pointer, leading offset and stride in bytes, and a swizzle."""


def _wgmma_descriptor(pointer: ir.Value, leading: int, stride: int, swizzle: str) -> ir.Value:
    return nvgpu.wgmma.matrix_descriptor(pointer, leading, stride, swizzle)


WGMMA = Reader("a WGMMA", SWIZZLES, MatrixDescriptor, _wgmma_descriptor)


class _Offsets(NamedTuple):
    """The bytes that a descriptor holds."""

    leading: int
    stride: int


def make_descriptors(
    tensor: TracedTensor, operand: str, major: OperandMajorMode, reader: Reader = WGMMA
) -> TracedTensor:
    """Return the descriptors of an operand in shared memory, partitioned as ((MN, K), rest...), as (1, rest...)."""
    what = f"operand {operand} of {reader.name}"
    pointer, layout, swizzle = plain_operand(tensor._iterator, tensor._layout, what, reader)
    bits = element_bits(pointer.dtype)
    first = make_descriptor(pointer, layout, swizzle, major, what, reader)
    rest = [_in_pieces(layout[i], bits, what) for i in range(1, rank(layout))]
    return TracedTensor(first, make_layout([make_layout(1, stride=0), *rest]))


def make_descriptor(
    pointer: Pointer, layout: Layout, swizzle: SmemSwizzle, major: OperandMajorMode, what: str, reader: Reader
) -> MatrixDescriptor:
    """Return the descriptor of an operand of one call: mode 0 of the layout is its (MN, K)."""
    first = layout[0]
    if rank(first) != 2 or not first.is_static():
        rule = f"mode 0 is the (MN, K) of one call, which is static, not {first}"
        raise _refusal(what, major, swizzle, layout, rule)
    offsets = descriptor_offsets(first[0], first[1], element_bits(pointer.dtype), major, swizzle)
    if isinstance(offsets, str):
        raise _refusal(what, major, swizzle, layout, offsets)
    _check_start(pointer, what, swizzle)
    value = Int64._make(reader.make(pointer.ir_value(), offsets.leading, offsets.stride, swizzle.name))
    low = Int32._make(Int32(value).ir_value(), True)
    return reader.iterator(low, value & _HIGH, pointer.dtype, major, swizzle.name)


def plain_operand(pointer: Any, layout: Any, what: str, reader: Reader) -> tuple[Pointer, Layout, SmemSwizzle]:
    """Return where an operand begins, its layout without the swizzle, and the swizzle."""
    swizzle = pointer.swizzle
    if isinstance(layout, ComposedLayout):
        inner = layout.inner
        if swizzle is not None or not isinstance(inner, Swizzle):
            raise type_error(
                f"{what} has the layout {layout} behind a pointer {pointer}",
                "a layout of make_smem_layout_atom, or one swizzle of addresses",
            )
        bits = element_bits(pointer.dtype)
        swizzle = downcast_swizzle(inner, bits // 8) if bits >= 8 else upcast_swizzle(inner, 8 // bits)
        if pointer.alignment % swizzle.period:
            raise type_error(
                f"{what} is swizzled from its first element on, which is only known to be a "
                f"multiple of {pointer.alignment} bytes; the hardware swizzles addresses",
                f"align it to {swizzle.period} bytes, or swizzle addresses: allocate_tensor(T, layout.outer, 1024, layout.inner)",
            )
        pointer = pointer + layout.offset
        layout = layout.outer
    if swizzle is None or swizzle.num_bits == 0:
        return pointer, layout, NO_SWIZZLE
    mode = reader.swizzles.get((swizzle.num_bits, swizzle.num_base, swizzle.num_shift))
    if mode is None:
        swizzles = ", ".join(f"S<{bits},{base},{shift}>" for bits, base, shift in reader.swizzles)
        raise type_error(
            f"{what} is swizzled by {swizzle}",
            f"the tensor cores know {swizzles} of addresses in bytes: see make_smem_layout_atom",
        )
    return pointer, layout, mode


def descriptor_offsets(
    mn: Layout, k: Layout, bits: int, major: OperandMajorMode, swizzle: SmemSwizzle
) -> _Offsets | str:
    """Return the offsets of a descriptor for a layout (MN, K) with a swizzle, or why there are none."""
    piece = PIECE * 8 // bits
    row = swizzle.pieces * piece
    k_major = major is OperandMajorMode.K
    swizzled = swizzle.pieces > 1
    if k_major and swizzle.rows != _ROWS:
        return f"the swizzle {swizzle.name} is for MN-major operands"
    rows = swizzle.rows
    blocks = {"MN": (mn, _ROWS, row), "K": (k, piece, 1)} if k_major else {"MN": (mn, row, 1), "K": (k, rows, row)}
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
        if steps["K"] not in (PIECE, 0):
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


def _check_start(pointer: Pointer, what: str, swizzle: SmemSwizzle) -> None:
    """Raise an error for an operand that begins within a piece, or in the middle of a pattern of 8 rows."""
    if swizzle is NO_SWIZZLE:
        require_alignment(pointer, 0, PIECE, what)
        return
    row = PIECE * swizzle.pieces
    pattern = row * _ROWS
    if not pointer._period() or not is_zero(pointer._inside) or not isinstance(pointer._offset, int):
        return  # nobody knows
    inside = pointer._offset * element_bits(pointer.dtype) // 8 % pattern
    if inside >= row or inside % PIECE:
        raise type_error(
            f"{what} begins {inside} bytes after a multiple of {pattern}, where its swizzle repeats",
            f"it begins in the first row of a pattern, that is less than {row} bytes after it, with a whole piece of {PIECE}",
        )


def _in_pieces(mode: Layout, bits: int, what: str) -> Layout:
    """Return a mode whose strides count pieces."""

    def scaled(stride: Any, shape: Any) -> Any:
        if isinstance(stride, tuple):
            return tuple(scaled(d, s) for d, s in zip(stride, shape, strict=True))
        if is_one(shape):
            return 0
        piece = PIECE * 8 // bits
        if get_divisibility(stride) % piece:
            raise type_error(
                f"{what} has calls that lie {leaf_str(stride)} elements apart",
                f"a descriptor moves by {PIECE} bytes: strides are multiples of {piece}, or known to be by cute.assume",
            )
        return leaf_floordiv(stride, piece)

    return make_layout(mode.shape, stride=scaled(mode.stride, mode.shape))


def _refusal(what: str, major: OperandMajorMode, swizzle: SmemSwizzle, layout: Layout, rule: str) -> Exception:
    return type_error(
        f"{what} is {major.name}-major, swizzle {swizzle.name}, and the tensor cores cannot read "
        f"the layout {layout}: {rule}",
        "partition a tile of make_smem_layout_a or make_smem_layout_b, or of tile_to_shape(make_smem_layout_atom(...), ...), "
        "in the major mode of the operation",
    )
