"""Operations of a warp on matrices: multiply-accumulate (`mma.sync`), loads and stores of 8x8 matrices.

Fragments are as the PTX manual draws them. Lane l is row g = l / 4 of a group and column t = l % 4 in it; a register
of 32 bits holds p neighbours in K. A has the rows g (and g + 8) and, in each register, k = t p ... t p + p - 1; then
the same 4 p further on. B has the column g and the same k. C has the rows g (and g + 8) and the columns 2 t, 2 t + 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import DSLNotImplemented, error, type_error
from ...base_dsl.typing import (
    BFloat16,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Float64,
    Int8,
    Int32,
    TFloat32,
    Uint8,
)  # fmt: skip
from ...hardware import mma_shapes
from ..atoms.atom import CopyOp, CopyTrait
from ..atoms.copying import guarded, predicates
from ..atoms.mma import MmaOp, RegisterMmaTrait
from ..deferred_dialects import nvgpu
from ..layout.layout import Layout, make_layout, size
from ..layout.recast import recast_layout
from ..tensor.pointer import AddressSpace, address_at, element_bits
from ..tensor.tensor import TracedTensor, make_fragment_like
from ..tensor.vector_access import Registers, bits_pointer
from .access import calls, check_call, memory, offsets, require_alignment, require_rows
from .ptx_types import DTYPES, PTX_NAMES

if TYPE_CHECKING:
    from ..tensor.pointer import Pointer

__all__ = [
    "LdMatrix8x8x16bOp", "LdMatrix8x16x8bOp", "LdMatrix16x16x8bOp", "MmaF16BF16Op", "MmaF64Op", "MmaFP8Op", "MmaI8Op",
    "MmaMXF4NVF4Op", "MmaMXF4Op", "MmaMXF8F6F4Op", "MmaMXF8Op", "MmaTF32Op", "StMatrix8x8x16bOp", "StMatrix16x8x8bOp",
]  # fmt: skip


def joined_layout(*modes: tuple[int, int]) -> Layout:
    """Return modes (extent, stride) as one layout, those of extent 1 left out."""
    kept = [(s, d) for s, d in modes if s != 1] or [(1, 0)]
    if len(kept) == 1:
        return make_layout(kept[0][0], stride=kept[0][1])
    return make_layout(tuple(s for s, _ in kept), stride=tuple(d for _, d in kept))


def operand_layout(rows: int, k: int, bits: int) -> Layout:
    """Return (lane, value) -> index in a fragment (rows, k) of A or, with 8 rows, of B."""
    packed = max(1, 32 // bits)
    step = rows * packed  # from a lane to the next in K
    lanes = make_layout((4, 8), stride=(step, 1))
    values = joined_layout((packed, rows), (rows // 8, 8), (k // (4 * packed), 4 * step))
    return make_layout([lanes, values])


def accumulator_layout(m: int) -> Layout:
    """Return (lane, value) -> index in a fragment (m, 8) of C."""
    return make_layout([make_layout((4, 8), stride=(2 * m, 1)), joined_layout((2, m), (m // 8, 8))])


class WarpMmaTrait(RegisterMmaTrait):
    """`mma.sync` of the 32 lanes of a warp."""

    def __init__(self, shape_mnk: tuple[int, int, int], a: Any, b: Any, c: Any) -> None:
        m, n, k = shape_mnk
        layouts = (operand_layout(m, k, element_bits(a)), operand_layout(n, k, element_bits(b)), accumulator_layout(m))
        super().__init__(shape_mnk, make_layout(32), layouts, (a, b, c))

    def _takes(self, operand: str, dtype: Any) -> bool:
        wanted = self.types[operand]
        return dtype is wanted or (wanted is TFloat32 and dtype is Float32)  # the hardware ignores the lowest bits

    def make_fragment(self, operand: str, of: Any) -> Any:
        if isinstance(of, TracedTensor) and operand != "C" and self._takes(operand, of.element_type):
            return make_fragment_like(of)
        return super().make_fragment(operand, of)

    def pointer_to(self, operand: str, tensor: TracedTensor) -> Pointer:
        if not self._takes(operand, tensor.element_type):
            raise type_error(
                f"the MMA takes {self.types[operand].__name__} elements of {operand}, got {tensor.element_type.__name__}",
                f"make_fragment_{operand} makes what it takes; convert with .to(T)",
            )
        pointer = super().pointer_to(operand, tensor)
        return pointer if operand == "C" else bits_pointer(pointer)

    def load(self, operand: str, registers: Registers, call: int) -> ir.Value:
        value = registers.load(call)
        if operand == "C" or registers.pointer.dtype is Float64:
            return value
        words = registers.values * element_bits(registers.pointer.dtype) // 32
        return tracing.emit_value("vector.bitcast", Int32.vector_type(words), (value,))

    def multiply(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        a_type, b_type = PTX_NAMES[self.types["A"]], PTX_NAMES[self.types["B"]]
        return nvgpu.mma.mma_sync(self.shape_mnk, a_type, b_type, a, b, c)


class WarpMmaOp(MmaOp):
    """`mma.sync` with operands of some types and a shape; `hardware/mma_shapes.py` says which there are."""

    _INPUTS: tuple[Any, ...] = ()
    """The element types of A and B."""

    def __init__(self, a_dtype: Any, b_dtype: Any, acc_dtype: Any, shape_mnk: Any) -> None:
        name = type(self).__name__
        shape_mnk = tuple(shape_mnk) if isinstance(shape_mnk, (tuple, list)) else shape_mnk
        for dtype in (a_dtype, b_dtype):
            if dtype not in self._INPUTS or acc_dtype not in _accumulators(dtype):
                known = [f"{a.__name__} with {c.__name__}" for a in self._INPUTS for c in _accumulators(a)]
                raise type_error(
                    f"{name} does not accumulate {type_text(dtype)} in {type_text(acc_dtype)}",
                    f"the hardware has {', '.join(known)}",
                )
        a, b, acc = (PTX_NAMES[dtype] for dtype in (a_dtype, b_dtype, acc_dtype))
        if mma_shapes.find("mma.sync", shape_mnk, a, b, acc) is None:
            raise type_error(
                f"{name} has no shape {shape_mnk}",
                f"the shapes (M, N, K) are {', '.join(map(str, mma_shapes.shapes('mma.sync', a)))}",
            )
        self.a_dtype, self.b_dtype, self.acc_dtype = a_dtype, b_dtype, acc_dtype
        self.shape_mnk = shape_mnk

    def make_trait(self) -> WarpMmaTrait:
        return WarpMmaTrait(self.shape_mnk, self.a_dtype, self.b_dtype, self.acc_dtype)


def _accumulators(dtype: Any) -> list[Any]:
    return [DTYPES[name] for name in mma_shapes.accumulators("mma.sync", PTX_NAMES[dtype])]


def type_text(dtype: Any) -> str:
    """Return a type, or what was passed in its place, as error messages show it."""
    return getattr(dtype, "__name__", repr(dtype))


class MmaF16BF16Op(WarpMmaOp):
    """Float16 or BFloat16, accumulated in Float32, or Float16 in Float16."""

    _INPUTS = (Float16, BFloat16)

    def __init__(self, ab_dtype: Any, acc_dtype: Any, shape_mnk: Any) -> None:
        super().__init__(ab_dtype, ab_dtype, acc_dtype, shape_mnk)


class MmaFP8Op(WarpMmaOp):
    """Float8E4M3FN or Float8E5M2 (from sm_89)."""

    _INPUTS = (Float8E4M3FN, Float8E5M2)

    def __init__(
        self, ab_dtype: Any, acc_dtype: Any = Float32, shape_mnk: Any = (16, 8, 32), *, b_dtype: Any = None
    ) -> None:
        super().__init__(ab_dtype, ab_dtype if b_dtype is None else b_dtype, acc_dtype, shape_mnk)


class MmaTF32Op(WarpMmaOp):
    """Float32 of which 10 bits of mantissa count."""

    _INPUTS = (TFloat32,)

    def __init__(self, shape_mnk: Any = (16, 8, 8)) -> None:
        super().__init__(TFloat32, TFloat32, Float32, shape_mnk)


class MmaI8Op(WarpMmaOp):
    """Int8 or Uint8, also mixed, accumulated in Int32."""

    _INPUTS = (Int8, Uint8)

    def __init__(
        self, a_dtype: Any = Int8, b_dtype: Any = None, acc_dtype: Any = Int32, shape_mnk: Any = (16, 8, 32)
    ) -> None:
        super().__init__(a_dtype, a_dtype if b_dtype is None else b_dtype, acc_dtype, shape_mnk)


class MmaF64Op(WarpMmaOp):
    """Float64; shapes of 16 rows from sm_90."""

    _INPUTS = (Float64,)

    def __init__(self, shape_mnk: Any = (8, 8, 4)) -> None:
        super().__init__(Float64, Float64, Float64, shape_mnk)


class _BlockScaledMmaOp(MmaOp):
    """MMAs of block-scaled operands: instructions of sm_120a."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise error(
            DSLNotImplemented,
            f"{type(self).__name__} multiplies blocks with scales of their own, which takes an sm_120a; Kiln has no such MMA yet",
            hint="MmaFP8Op multiplies 8-bit floats from sm_89 on",
        )


class MmaMXF4Op(_BlockScaledMmaOp):
    """4-bit floats with a scale for every 32 (sm_120a)."""


class MmaMXF4NVF4Op(_BlockScaledMmaOp):
    """4-bit floats with a scale for every 16 (sm_120a)."""


class MmaMXF8Op(_BlockScaledMmaOp):
    """8-bit floats with a scale for every 32 (sm_120a)."""


class MmaMXF8F6F4Op(_BlockScaledMmaOp):
    """Floats of 8, 6 or 4 bits, also mixed, with a scale for every 32 (sm_120a)."""


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
        self, value_type: Any, rows: Layout, fragments: Layout, load: bool, matrices: int, **modes: Any
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

    def _each(self, rows: Any, lanes: Any, pred: Any, call: Any) -> None:
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
        registers = Registers(bits_pointer(lanes._iterator), lanes._layout, self.lane_values)

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

    def copy(self, src: Any, dst: Any, pred: Any) -> None:
        def call(place: ir.Value, registers: Registers, n: int) -> None:
            words = self.operation(place)
            fragment = registers.pointer.dtype.vector_type(self.lane_values)
            registers.store(n, tracing.emit_value("vector.bitcast", fragment, (words,)))

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

    def copy(self, src: Any, dst: Any, pred: Any) -> None:
        def call(place: ir.Value, registers: Registers, n: int) -> None:
            self.operation(place, tracing.emit_value("vector.bitcast", self._words(), (registers.load(n),)))

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

    def _trait(self, dtype: Any, bits: int) -> CopyTrait:
        rows = recast_layout(bits, 1, _row_layout(self.num_matrices))
        fragments = recast_layout(bits, 1, _fragment_layout(self.num_matrices, self.transpose))
        kind = LoadMatrixTrait if self._LOAD else StoreMatrixTrait
        return kind(
            dtype, rows, fragments, self._LOAD, self.num_matrices, transpose=self.transpose, unpack=self.unpack_bits
        )


class LdMatrix8x8x16bOp(_MatrixOp):
    """Load 1, 2 or 4 matrices of 8 rows of 16 bytes from shared memory, perhaps transposed as 16-bit elements."""

    _BITS = (16, 32, 8)


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

    def _trait(self, dtype: Any, bits: int) -> CopyTrait:
        # lane 16 j + r gives row r of matrix j; a lane gets rows 4 t ... 4 t + 3 of the columns g and g + 8
        matrices = self.num_matrices
        rows = make_layout(((16 * matrices, 2 // matrices), 16), stride=((16, 0), 1))
        fragments = make_layout([make_layout((4, 8), stride=(64, 1)), joined_layout((4, 16), (2, 8), (matrices, 256))])
        return LoadByteMatrixTrait(dtype, rows, fragments, True, matrices, unpack=self.unpack_bits)


class StMatrix8x8x16bOp(_MatrixOp):
    """Store 1, 2 or 4 matrices of 8 rows of 16 bytes to shared memory, perhaps transposed (from sm_90)."""

    _LOAD = False
    _BITS = (16, 32, 8)


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

    def _trait(self, dtype: Any, bits: int) -> CopyTrait:
        # lane 8 j + c gives column c of matrix j; a lane has rows g, then g + 8, of the columns 2 t and 2 t + 1
        matrices = self.num_matrices
        rows = recast_layout(8, 1, _row_layout(matrices))
        modes = 4 if matrices > 1 else 3
        values = make_layout((1, 2, 2, matrices)[:modes], stride=(1, 16, 8, 128)[:modes])
        fragments = make_layout([make_layout((4, 8), stride=(32, 1)), values])
        return StoreByteMatrixTrait(dtype, rows, fragments, False, matrices)
