"""Loads and stores of 8x8 matrices of shared memory by a warp (`ldmatrix`, `stmatrix`), and their forms for bytes."""

from __future__ import annotations

from typing import Any

from ....base_dsl import trace as tracing
from ....base_dsl.bindings import ir
from ....base_dsl.diagnostics import type_error
from ....base_dsl.typing import Int32
from ...atoms.atom import CopyOp, CopyTrait
from ...atoms.copying import guarded, predicates
from ...deferred_dialects import nvgpu
from ...layout.layout import Layout, make_layout, size
from ...layout.recast import recast_layout
from ...tensor.pointer import AddressSpace, address_at, element_bits
from ...tensor.vector_access import Registers, word_registers
from ..access import calls, check_call, memory, offsets, require_alignment, require_rows
from .mma import joined_layout

__all__ = ["LdMatrix8x8x16bOp", "LdMatrix8x16x8bOp", "LdMatrix16x16x8bOp", "StMatrix8x8x16bOp", "StMatrix16x8x8bOp"]


def _row_layout(matrices: int) -> Layout:
    """Return (lane, bit) -> bit of the matrices: lane 8 j + r addresses row r of matrix j; the others repeat."""
    if matrices == 4:
        return make_layout((32, 128), stride=(128, 1))
    named = 8 * matrices
    return make_layout(((named, 32 // named), 128), stride=((128, 0), 1))


def _fragment_layout(matrices: int, transpose: bool) -> Layout:
    """Return (lane, bit) -> bit of the matrices: two neighbours of row l / 4 (transposed: column) of each."""
    if transpose:
        values = joined_layout((16, 1), (2, 128), (matrices, 1024))
        return make_layout([make_layout((4, 8), stride=(256, 16)), values])
    return make_layout([make_layout(32, stride=32), joined_layout((32, 1), (matrices, 1024))])


class _MatrixTrait(CopyTrait):
    def __init__(
        self, value_type: object, rows: Layout, fragments: Layout, load: bool, matrices: int, **modes: Any
    ) -> None:
        self.matrices = matrices
        self.modes = {name: value for name, value in modes.items() if value}
        """Whether the operation transposes, and which bits it unpacks."""
        self.row_values = size(rows[1])
        self.lane_values = size(fragments[1])
        self._fragments = fragments
        super().__init__(value_type, make_layout(32), *((rows, fragments) if load else (fragments, rows)))

    @property
    def layout_ref_tv(self) -> Layout:
        return self._fragments

    def _each(self, rows: object, lanes: object, pred: object, call: Any) -> None:
        """Do `call(address, registers, n)` for each call, where its predicate holds."""
        if self.modes.get("transpose") and element_bits(self.value_type) != 16:
            raise type_error(
                f"a transposing copy of matrices of {self.value_type.__name__}",
                "the hardware transposes elements of 16 bits: store others with CopyUniversalOp",
            )
        rows = memory(rows, "a matrix", AddressSpace.smem)
        lanes = memory(lanes, "a fragment of a matrix", AddressSpace.rmem)
        for x in (rows, lanes):
            if element_bits(x.element_type) != element_bits(self.value_type):
                raise type_error(
                    f"a copy atom for {self.value_type.__name__} copies a tensor of {x.element_type.__name__}"
                )
        count = calls(lanes, self.lane_values, "the fragment")
        if calls(rows, self.row_values, "the matrix") != count:
            raise type_error(
                f"a copy between the layouts {rows._layout} (matrices) and {lanes._layout} (fragments)",
                "partition both with the same tiled copy; retile the fragment",
            )
        require_rows(rows, self.row_values, "a row of a matrix")
        starts = offsets(rows._layout, range(0, count * self.row_values, self.row_values))
        for start in starts:
            require_alignment(rows._iterator, start, 16, "a row of a matrix")
        places = [address_at(rows._iterator, start) for start in starts]
        registers = word_registers(lanes._iterator, lanes._layout, self.lane_values)

        def move(numbers: Any) -> None:
            for n in numbers:
                check_call(rows, n, self.row_values, write=self.layout_src_tv is self._fragments)
                call(places[n], registers, n)

        if pred is None:
            move(range(count))
            return
        for condition, numbers in predicates(pred, count * self.lane_values, self.lane_values, rows, lanes):
            guarded(condition, lambda numbers=numbers: move(numbers))

    def _words(self) -> ir.Type:
        return Int32.vector_type(self.lane_values * element_bits(self.value_type) // 32)


class LoadMatrixTrait(_MatrixTrait):
    """`ldmatrix`."""

    def operation(self, place: ir.Value) -> ir.Value:
        """Return the registers of a lane."""
        return nvgpu.mma.ldmatrix(place, self._words(), self.matrices, **self.modes)

    def copy(self, src: object, dst: object, pred: object) -> None:
        def call(place: ir.Value, registers: Registers, n: int) -> None:
            words = self.operation(place)
            if registers.pointer.dtype is not Int32:
                fragment = registers.pointer.dtype.vector_type(registers.values)
                words = tracing.emit_value("vector.bitcast", fragment, (words,))
            registers.store(n, words)

        self._each(src, dst, pred, call)


class LoadByteMatrixTrait(LoadMatrixTrait):
    """`ldmatrix` of 16x16 matrices of bytes, transposed."""

    def operation(self, place: ir.Value) -> ir.Value:
        return nvgpu.mma.ldmatrix_bytes(place, self._words(), self.matrices, **self.modes)


class StoreMatrixTrait(_MatrixTrait):
    """`stmatrix`."""

    def operation(self, place: ir.Value, words: ir.Value) -> None:
        """Store the registers of a lane."""
        nvgpu.mma.stmatrix(place, words, self.matrices, **self.modes)

    def copy(self, src: object, dst: object, pred: object) -> None:
        def call(place: ir.Value, registers: Registers, n: int) -> None:
            words = registers.load(n)
            if registers.pointer.dtype is not Int32:
                words = tracing.emit_value("vector.bitcast", self._words(), (words,))
            self.operation(place, words)

        self._each(dst, src, pred, call)


class StoreByteMatrixTrait(StoreMatrixTrait):
    """`stmatrix` of 16x8 matrices of bytes, transposed."""

    def operation(self, place: ir.Value, words: ir.Value) -> None:
        nvgpu.mma.stmatrix_bytes(place, words, self.matrices)


class _MatrixOp(CopyOp):
    _LOAD = True
    _TRANSPOSES = True
    _UNPACKS = False
    _BITS: tuple[int, ...] = (16,)
    """Widths of elements for which the operation has a fragment; transposed only the first. Atoms that store the
    others transposed can be made, as epilogues do for the layout alone, but copy nothing."""

    def __init__(self, transpose: bool = False, num_matrices: int = 1, unpack_bits: int | None = None) -> None:
        name = type(self).__name__
        if num_matrices not in (1, 2, 4):
            raise type_error(f"num_matrices of {name} is {num_matrices}", "it takes 1, 2 or 4 at a time")
        if transpose and not self._TRANSPOSES:
            raise type_error(f"{name} does not transpose", "matrices of 16-bit elements do")
        if unpack_bits is not None and (not self._UNPACKS or unpack_bits not in (4, 6)):
            raise type_error(
                f"{name} does not unpack elements of {unpack_bits} bits",
                "LdMatrix8x16x8bOp and LdMatrix16x16x8bOp unpack elements of 4 or 6 bits into bytes",
            )
        self.transpose = bool(transpose)
        self.num_matrices = num_matrices
        self.unpack_bits = unpack_bits

    def make_trait(self, copy_internal_type: Any, *, num_bits_per_copy: int = 0) -> CopyTrait:
        bits = element_bits(copy_internal_type)
        allowed = self._BITS[:1] if self.transpose and self._LOAD else self._BITS
        if bits not in allowed:
            raise type_error(
                f"{self} for elements of {bits} bits ({copy_internal_type.__name__})",
                f"its elements have {' or '.join(map(str, allowed))} bits",
            )
        return self._trait(copy_internal_type, bits)

    def _trait(self, dtype: object, bits: int) -> CopyTrait:
        rows = recast_layout(bits, 1, _row_layout(self.num_matrices))
        fragments = recast_layout(bits, 1, _fragment_layout(self.num_matrices, self.transpose))
        kind = LoadMatrixTrait if self._LOAD else StoreMatrixTrait
        return kind(
            dtype, rows, fragments, self._LOAD, self.num_matrices, transpose=self.transpose, unpack=self.unpack_bits
        )


class LdMatrix8x8x16bOp(_MatrixOp):
    """Load 1, 2 or 4 matrices of 8 rows of 16 bytes from shared memory, perhaps transposed as 16-bit elements."""

    _BITS = (16, 32, 8, 4)


class LdMatrix8x16x8bOp(_MatrixOp):
    """Load 1, 2 or 4 matrices of 8 rows of 16 elements of 8 bits.

    `unpack_bits` (4 or 6, from sm_100a): a row of 16 bytes has 16 elements of so many bits without gaps, then padding;
    each becomes the lowest bits of a byte. The tensors of both sides have elements of 8 bits.
    """

    _TRANSPOSES = False
    _UNPACKS = True
    _BITS = (8,)


class LdMatrix16x16x8bOp(_MatrixOp):
    """Load 1 or 2 matrices of 16 rows of 16 elements of 8 bits, transposed (from sm_100a).

    `unpack_bits` as for `LdMatrix8x16x8bOp`.
    """

    _UNPACKS = True
    _BITS = (8,)

    def __init__(self, transpose: bool = False, num_matrices: int = 1, unpack_bits: int | None = None) -> None:
        super().__init__(transpose, num_matrices, unpack_bits)
        if not transpose or num_matrices == 4:
            raise type_error(
                f"{self}: the hardware loads 1 or 2 such matrices at a time, and transposed",
                "LdMatrix8x16x8bOp loads matrices of bytes as they are",
            )

    def _trait(self, dtype: object, bits: int) -> CopyTrait:
        # lane 16 j + r gives row r of matrix j; a lane gets rows 4 t ... 4 t + 3 of the columns g and g + 8
        matrices = self.num_matrices
        rows = make_layout(((16 * matrices, 2 // matrices), 16), stride=((16, 0), 1))
        fragments = make_layout([make_layout((4, 8), stride=(64, 1)), joined_layout((4, 16), (2, 8), (matrices, 256))])
        return LoadByteMatrixTrait(dtype, rows, fragments, True, matrices, unpack=self.unpack_bits)


class StMatrix8x8x16bOp(_MatrixOp):
    """Store 1, 2 or 4 matrices of 8 rows of 16 bytes to shared memory, perhaps transposed (from sm_90)."""

    _LOAD = False
    _BITS = (16, 32, 8, 4)


class StMatrix16x8x8bOp(_MatrixOp):
    """Store 1, 2 or 4 16x8 matrices of 8-bit elements, transposed: 8 rows of 16 bytes (from sm_100a)."""

    _LOAD = False
    _BITS = (8,)

    def __init__(self, transpose: bool = False, num_matrices: int = 1, unpack_bits: int | None = None) -> None:
        super().__init__(transpose, num_matrices, unpack_bits)
        if not transpose:
            raise type_error(
                f"{self}: the hardware stores such matrices transposed",
                "transpose=True; StMatrix8x8x16bOp stores bytes as they are, in pairs",
            )

    def _trait(self, dtype: object, bits: int) -> CopyTrait:
        # lane 8 j + c gives column c of matrix j; a lane has rows g, then g + 8, of the columns 2 t and 2 t + 1
        matrices = self.num_matrices
        rows = recast_layout(8, 1, _row_layout(matrices))
        modes = 4 if matrices > 1 else 3
        values = make_layout((1, 2, 2, matrices)[:modes], stride=(1, 16, 8, 128)[:modes])
        fragments = make_layout([make_layout((4, 8), stride=(32, 1)), values])
        return StoreByteMatrixTrait(dtype, rows, fragments, False, matrices)
