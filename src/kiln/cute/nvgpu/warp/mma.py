"""MMAs of a warp (`mma.sync`), from sm_80 to the block-scaled ones of sm_120.

Fragments are as the PTX manual draws them. Lane l is row g = l / 4 of a group and column t = l % 4 in it; a register
of 32 bits holds p neighbours in K. A has the rows g (and g + 8) and, in each register, k = t p ... t p + p - 1; then
the same 4 p further on. B has the column g and the same k. C has the rows g (and g + 8) and the columns 2 t, 2 t + 1.
Scale factors of A come from the lanes t = 0 (row g) and t = 1 (row g + 8), those of B from t = 0 (column g).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from ...._support import lazy
from ....base_dsl import trace as tracing
from ....base_dsl.bindings import ir
from ....base_dsl.diagnostics import type_error
from ....base_dsl.typing import (
    BFloat16,
    Boolean,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float8E4M3FN,
    Float8E5M2,
    Float8E8M0FNU,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    TFloat32,
    Uint8,
)
from ....hardware import mma_shapes
from ...atoms.atom import Trait
from ...atoms.mma import MmaOp, RegisterMmaTrait
from ...deferred_dialects import nvgpu
from ...layout.int_tuple import pretty_str
from ...layout.layout import Layout, make_layout
from ...tensor.pointer import AddressSpace, Pointer, element_bits, pointer_to
from ...tensor.tensor import TracedTensor, make_fragment_like, make_tensor
from ...tensor.vector_access import Registers, extract, word_registers
from ..access import memory
from ..ptx_types import DTYPES, PTX_NAMES

__all__ = [
    "MXF8F6F4_SUPPORTED_PAIRS",
    "Field",
    "MmaF8F6F4Op",
    "MmaF16BF16Op",
    "MmaF64Op",
    "MmaFP8Op",
    "MmaI8Op",
    "MmaMXF4NVF4Op",
    "MmaMXF4Op",
    "MmaMXF8F6F4Op",
    "MmaMXF8Op",
    "MmaSM120BlockScaledOp",
    "MmaTF32Op",
    "WarpMmaOp",
]


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

    def __init__(self, shape_mnk: tuple[int, int, int], a: Any, b: Any, c: object, kind: str | None = None) -> None:
        m, n, k = shape_mnk
        self.names: tuple[str, str] = (PTX_NAMES[a], PTX_NAMES[b])
        """The element types of A and B in PTX."""
        bits = [mma_shapes.container_bits(name, kind) for name in self.names]
        layouts = (operand_layout(m, k, bits[0]), operand_layout(n, k, bits[1]), accumulator_layout(m))
        left, right = (Int8 if width > t.width else t for t, width in zip((a, b), bits, strict=True))
        super().__init__(shape_mnk, make_layout(32), layouts, (left, right, c))

    def _takes(self, operand: str, dtype: object) -> bool:
        declared = self.types[operand]
        if declared is Int8 and self.names["AB".index(operand)] not in ("s8", "u8"):  # bytes with narrow floats
            return element_bits(dtype) == 8
        return dtype is declared or (declared is TFloat32 and dtype is Float32)  # the hardware ignores the lowest bits

    def make_fragment(self, operand: str, of: object) -> Any:
        if isinstance(of, TracedTensor) and operand != "C" and self._takes(operand, of.element_type):
            return make_fragment_like(of)
        return super().make_fragment(operand, of)

    def pointer_to(self, operand: str, tensor: TracedTensor) -> Pointer:
        if not (
            tensor.element_type is self.types["C"] if operand == "C" else self._takes(operand, tensor.element_type)
        ):
            declared = self.types[operand].__name__
            dtype = tensor.element_type.__name__
            raise type_error(
                f"the MMA takes {declared} elements of {operand}, got {dtype}",
                f"make_fragment_{operand} makes what it takes; convert with .to(T)",
            )
        return super().pointer_to(operand, tensor)

    def as_registers(self, operand: str, pointer: Pointer, layout: object) -> Registers:
        if operand == "C":
            return super().as_registers(operand, pointer, layout)
        return word_registers(pointer, layout, self._values[operand])

    def load(self, operand: str, registers: Registers, call: int) -> Any:
        value = registers.load(call)
        if operand == "C" or registers.pointer.dtype in (Float64, Int32):
            return value
        words = registers.values * element_bits(registers.pointer.dtype) // 32
        return tracing.emit_value("vector.bitcast", Int32.vector_type(words), (value,))

    def multiply(self, a: object, b: object, c: ir.Value) -> ir.Value:
        return nvgpu.mma.mma_sync(self.shape_mnk, *self.names, a, b, c)


class WarpMmaOp(MmaOp):
    """`mma.sync` with operands of some types and a shape; `hardware/mma_shapes.py` says which there are."""

    _INPUTS: tuple[Any, ...] = ()
    """The element types of A and B."""

    def __init__(self, a_dtype: Any, b_dtype: Any, acc_dtype: Any, shape_mnk: Any) -> None:
        name = type(self).__name__
        shape_mnk = tuple(shape_mnk) if isinstance(shape_mnk, (tuple, list)) else shape_mnk
        for dtype in (a_dtype, b_dtype):
            if dtype not in self._INPUTS or acc_dtype not in _accumulators(dtype):
                combinations = [f"{a.__name__} with {c.__name__}" for a in self._INPUTS for c in _accumulators(a)]
                raise type_error(
                    f"{name} does not accumulate {type_text(dtype)} in {type_text(acc_dtype)}",
                    f"the hardware has {', '.join(combinations)}",
                )
        a, b, acc = (PTX_NAMES[dtype] for dtype in (a_dtype, b_dtype, acc_dtype))
        if mma_shapes.find("mma.sync", shape_mnk, a, b, acc, kind=mma_shapes.warp_kind(a, b)) is None:
            raise type_error(
                f"{name} has no shape {shape_mnk}",
                f"the shapes (M, N, K) are {', '.join(map(str, mma_shapes.shapes('mma.sync', a) or [(16, 8, 32)]))}",
            )
        self.a_dtype = a_dtype
        self.b_dtype = b_dtype
        self.acc_dtype = acc_dtype
        self.shape_mnk = shape_mnk

    @staticmethod
    def of_types(a: object, b: object, acc: object, shape_mnk: tuple[int, int, int]) -> WarpMmaOp:
        """Return the operation with operands of some types."""
        of = next((op for op in _OPERATIONS if a in op._INPUTS and b in op._INPUTS), None)
        if of is None:
            raise type_error(f"no MMA of a warp has A of {type_text(a)} and B of {type_text(b)}")
        op = object.__new__(of)
        WarpMmaOp.__init__(op, a, b, acc, shape_mnk)
        return op

    def make_trait(self) -> WarpMmaTrait:
        kind = mma_shapes.warp_kind(PTX_NAMES[self.a_dtype], PTX_NAMES[self.b_dtype])
        return WarpMmaTrait(self.shape_mnk, self.a_dtype, self.b_dtype, self.acc_dtype, kind)


def _accumulators(dtype: Any) -> list[Any]:
    return [DTYPES[name] for name in mma_shapes.accumulators("mma.sync", PTX_NAMES[dtype]) or ("f32", "f16")]


def type_text(dtype: object) -> str:
    """Return a type, or what was passed in its place, as error messages show it."""
    return getattr(dtype, "__name__", repr(dtype))


class MmaF16BF16Op(WarpMmaOp):
    """Float16 or BFloat16, accumulated in Float32, or Float16 in Float16."""

    _INPUTS = (Float16, BFloat16)

    def __init__(self, ab_dtype: object, acc_dtype: object, shape_mnk: object) -> None:
        super().__init__(ab_dtype, ab_dtype, acc_dtype, shape_mnk)


class MmaFP8Op(WarpMmaOp):
    """Float8E4M3FN or Float8E5M2 (from sm_89)."""

    _INPUTS = (Float8E4M3FN, Float8E5M2)

    def __init__(
        self, ab_dtype: object, acc_dtype: object = Float32, shape_mnk: object = (16, 8, 32), *, b_dtype: object = None
    ) -> None:
        super().__init__(ab_dtype, ab_dtype if b_dtype is None else b_dtype, acc_dtype, shape_mnk)


class MmaTF32Op(WarpMmaOp):
    """Float32 of which 10 bits of mantissa count."""

    _INPUTS = (TFloat32,)

    def __init__(self, shape_mnk: object = (16, 8, 8)) -> None:
        super().__init__(TFloat32, TFloat32, Float32, shape_mnk)


class MmaI8Op(WarpMmaOp):
    """Int8 or Uint8, also mixed, accumulated in Int32."""

    _INPUTS = (Int8, Uint8)

    def __init__(
        self, a_dtype: object = Int8, b_dtype: object = None, acc_dtype: object = Int32, shape_mnk: object = (16, 8, 32)
    ) -> None:
        super().__init__(a_dtype, a_dtype if b_dtype is None else b_dtype, acc_dtype, shape_mnk)


class MmaF64Op(WarpMmaOp):
    """Float64; shapes of 16 rows from sm_90."""

    _INPUTS = (Float64,)

    def __init__(self, shape_mnk: object = (8, 8, 4)) -> None:
        super().__init__(Float64, Float64, Float64, shape_mnk)


class MmaF8F6F4Op(WarpMmaOp):
    """Floats of 8, 6 and 4 bits, also mixed, accumulated in Float32 or Float16 (sm_120a, sm_121a).

    Each element of a fragment is a byte, of type Int8 for floats below 8 bits: 6 bits are its lowest, and 4 bits lie in
    its middle, which is what `LdMatrix8x16x8bOp(unpack_bits=4)` loads, shifted left by 2.
    """

    _INPUTS = (Float8E4M3FN, Float8E5M2, Float6E2M3FN, Float6E3M2FN, Float4E2M1FN)

    def __init__(
        self, a_dtype: object, b_dtype: object, acc_dtype: object = Float32, shape_mnk: object = (16, 8, 32)
    ) -> None:
        super().__init__(a_dtype, b_dtype, acc_dtype, shape_mnk)


_OPERATIONS = (MmaF16BF16Op, MmaFP8Op, MmaTF32Op, MmaI8Op, MmaF64Op)


class MmaFP8Trait(Trait):
    """The trait of an MMA of floats of 8 bits that a program makes with `make_atom`."""


# --- block scales ----------------------------------------------------------------------------------------------------


class _ScaledRegisters(NamedTuple):
    """The registers of an operand, and those of its scale factors."""

    values: Registers
    scales: Registers


class Field(enum.Enum):
    """The fields of an MMA with block scales that programs set while they run."""

    ACCUMULATE = "accum_c"
    """Whether A B is added to C; if not, D is A B."""
    SFA = "sf_a"
    """The pointer to the scale factors of A in registers, for `gemm` of one A without a list."""
    SFB = "sf_b"
    """The pointer to the scale factors of B in registers."""


_FLAG = Field.ACCUMULATE.name.lower()
_SCALES = {Field.SFA.name.lower(): "A", Field.SFB.name.lower(): "B"}


class BlockScaledTrait(WarpMmaTrait):
    """`mma.sync` with block scales. A and B of `gemm` are pairs of a fragment and its scale factors, or scale factors are
    fields."""

    accumulate: bool | Boolean | None = None
    """None: as if it were true."""
    sfa: Pointer | None = None
    sfb: Pointer | None = None

    def __init__(self, op: MmaSM120BlockScaledOp) -> None:
        super().__init__(op.shape_mnk, op.a_dtype, op.b_dtype, op.acc_dtype, op.kind)
        self.op = op
        k = op.shape_mnk[2]
        self.layouts_tv["SFA"] = make_layout(((2, 2, 8), k), stride=((8, 0, 1), 16))
        self.layouts_tv["SFB"] = make_layout(((4, 8), k), stride=((0, 1), 8))

    def registers(self, operand: str, tensor: Any) -> Any:
        if operand == "C":
            return super().registers(operand, tensor)
        scales = getattr(self, f"sf{operand.lower()}")
        if isinstance(tensor, TracedTensor) and scales is not None:
            values = tensor
            scales = make_tensor(scales, self._field_layout())
        elif not isinstance(tensor, (list, tuple)) or len(tensor) != 2:
            raise type_error(
                f"{type(self.op).__name__} takes {operand} as a fragment and its scale factors, got {tensor}",
                f"cute.gemm(mma, d, [a, sfa], [b, sfb], c); {operand} is [{operand.lower()}, sf{operand.lower()}], or "
                f"mma.set(warp.Field.SF{operand}, sf{operand.lower()}.iterator) comes before",
            )
        else:
            values, scales = tensor
        return _ScaledRegisters(super().registers(operand, values), self._scales(operand, scales))

    def _field_layout(self) -> Layout:
        """Return the layout of the scale factors that a field points to: those of one row or column in one MMA."""
        vector = self.op.sf_vec_size
        return make_layout((vector, self.shape_mnk[2] // vector), stride=(0, 1))

    def with_fields(self, **fields: object) -> BlockScaledTrait:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        for name, value in fields.items():
            if name == _FLAG:
                copy.accumulate = value if isinstance(value, bool) else Boolean(value)
            elif name not in _SCALES:
                raise type_error(
                    f"{type(self.op).__name__} has no field {name!r}",
                    ", ".join(f"warp.Field.{field.name}" for field in Field),
                )
            elif isinstance(value, Pointer) and value.memspace is AddressSpace.rmem and value.dtype is self.op.sf_type:
                setattr(copy, name, value)
            else:
                raise type_error(
                    f"warp.Field.{name.upper()} is set to {value}",
                    f"a pointer to {self.op.sf_type.__name__} in registers: the iterator of a tensor of scale factors",
                )
        return copy

    def __extract_mlir_values__(self) -> list[ir.Value]:
        """Return the values of the fields, also of those that are not set, which a region may set."""
        if tracing.current() is None:
            return []
        adds = True if self.accumulate is None else self.accumulate
        return [Boolean(adds).ir_value(), *(self._pointer(name).ir_value() for name in _SCALES)]

    def _pointer(self, name: str) -> Pointer:
        """Return a field as it crosses regions: of no known alignment, whatever it is set to inside."""
        pointer = getattr(self, name)
        return (pointer_to(self.op.sf_type, 0, AddressSpace.rmem) if pointer is None else pointer).with_alignment(1)

    def __new_from_mlir_values__(self, values: Sequence[object]) -> BlockScaledTrait:
        if not values:
            return self
        flag, *pointers = values
        fields: dict[str, object] = {
            name: self._pointer(name).__new_from_mlir_values__([value])
            for name, value in zip(_SCALES, pointers, strict=True)
            if getattr(self, name) is not None
        }
        if self.accumulate is not None:
            fields[_FLAG] = Boolean._make(flag)
        return self.with_fields(**fields)

    def _scales(self, operand: str, tensor: object) -> Registers:
        tensor = memory(tensor, f"SF{operand}", AddressSpace.rmem)
        dtype = self.op.sf_type
        depth = self.shape_mnk[2]
        vector = self.op.sf_vec_size
        if tensor.element_type is not dtype:
            raise type_error(f"SF{operand} has elements of {tensor.element_type.__name__}", f"{dtype.__name__}")
        registers = word_registers(tensor._iterator, tensor._layout, depth)
        shared = [registers.offsets[n : n + vector] for n in range(0, len(registers.offsets), vector)]
        if len(registers.offsets) % depth or any(len(set(offsets)) > 1 for offsets in shared):
            raise type_error(
                f"SF{operand} has the layout {pretty_str(tensor.shape)}:{pretty_str(tensor.stride)}",
                f"mode 0 counts the {depth} elements along K, {vector} of which share a scale factor: "
                f"utils.blackwell_helpers.partition_fragment_SF{operand} makes it",
            )
        return registers.every(vector)

    def load(self, operand: str, registers: Any, call: int) -> Any:
        """Return the registers of a call, for A and B with the word of its scale factors."""
        if operand == "C":
            return super().load(operand, registers, call)
        words = super().load(operand, registers.values, call)
        scales = registers.scales.load(call)
        whole = {1: Int8, 2: Int16, 4: Int32}[registers.scales.values]
        if whole is not Int8:
            scales = tracing.emit_value("vector.bitcast", whole.vector_type(1), (scales,))
        scales = extract(scales, 0, whole)
        return words, scales if whole is Int32 else tracing.emit_value("arith.extui", Int32.mlir_type, (scales,))

    def multiply(self, a: Any, b: Any, c: ir.Value) -> ir.Value:
        op = self.op
        if not (self.accumulate is None or self.accumulate is True):
            adds = Boolean(self.accumulate).ir_value()
            zero = tracing.emit_value("vector.broadcast", c.type, (Float32(0.0).ir_value(),))
            c = tracing.emit_value("arith.select", c.type, (adds, c, zero))
        kind = (op.kind, *self.names, op.ptx_scale_type, op.sf_vec_size)
        return nvgpu.mma.mma_block_scale(self.shape_mnk, *kind, a[0], b[0], c, a[1], b[1])


class MmaSM120BlockScaledOp(MmaOp):
    """An MMA of a warp that multiplies each `sf_vec_size` elements along K of A and of B by a scale factor."""

    admissible_archs: ClassVar[list[str]] = ["sm_120a", "sm_120f", "sm_121a", "sm_121f"]
    descriptive_name: ClassVar[str] = "warp-level block-scaled MMA Operation"
    use_sf_layout_TV: ClassVar[bool] = False
    kind: ClassVar[str]
    """PTX's `.kind`, by which `hardware/mma_shapes.py` has element types and shapes."""
    sf_vec_size: ClassVar[int] = 32
    _INPUTS: ClassVar[tuple[Any, ...]]
    _SCALE_TYPES: ClassVar[tuple[Any, ...]] = (Float8E8M0FNU,)
    _K: ClassVar[int]

    def __init__(self, a_dtype: Any, b_dtype: Any, acc_dtype: Any, sf_type: Any) -> None:
        name = type(self).__name__
        for what, value, types in (
            ("a_dtype", a_dtype, self._INPUTS),
            ("b_dtype", b_dtype, self._INPUTS),
            ("acc_dtype", acc_dtype, (Float32,)),
            ("sf_type", sf_type, self._SCALE_TYPES),
        ):
            if value not in types:
                raise type_error(
                    f"{what} of {name} is {type_text(value)}", f"it is {' or '.join(t.__name__ for t in types)}"
                )
        self.a_dtype = a_dtype
        self.b_dtype = b_dtype
        self.acc_dtype = acc_dtype
        self.sf_type = sf_type
        self.shape_mnk: tuple[int, int, int] = (16, 8, self._K)

    @property
    def ptx_scale_type(self) -> str:
        """The type of the scale factors in PTX."""
        return "ue8m0" if self.sf_type is Float8E8M0FNU else "ue4m3"

    def make_trait(self) -> BlockScaledTrait:
        return BlockScaledTrait(self)


class _OneTypeOp(MmaSM120BlockScaledOp):
    def __init__(self, ab_dtype: object, acc_dtype: object, sf_type: object) -> None:
        super().__init__(ab_dtype, ab_dtype, acc_dtype, sf_type)


class MmaMXF4Op(_OneTypeOp):
    """Float4E2M1FN with a Float8E8M0FNU for each 32, accumulated in Float32. m16n8k64 (sm_120a, sm_121a)."""

    kind = "mxf4"
    descriptive_name = "warp-level MXF4 MMA Operation"
    _INPUTS = (Float4E2M1FN,)
    _K = 64


class MmaMXF4NVF4Op(_OneTypeOp):
    """Float4E2M1FN with a Float8E4M3FN, read without its sign, or a Float8E8M0FNU for each 16. m16n8k64 (sm_120a)."""

    kind = "mxf4nvf4"
    descriptive_name = "warp-level MXF4NVF4 MMA Operation"
    sf_vec_size = 16
    _INPUTS = (Float4E2M1FN,)
    _SCALE_TYPES = (Float8E4M3FN, Float8E8M0FNU)
    _K = 64


class MmaMXF8Op(_OneTypeOp):
    """Float8E4M3FN or Float8E5M2 with a Float8E8M0FNU for each 32, accumulated in Float32. m16n8k32 (sm_120a)."""

    kind = "mxf8f6f4"
    descriptive_name = "warp-level MXF8 MMA Operation"
    _INPUTS = (Float8E4M3FN, Float8E5M2)
    _K = 32


class MmaMXF8F6F4Op(MmaSM120BlockScaledOp):
    """Floats of 8, 6 and 4 bits, also mixed, with a Float8E8M0FNU for each 32. m16n8k32 (sm_120a, sm_121a).

    Elements of fragments are bytes, as those of `MmaF8F6F4Op`.
    """

    kind = "mxf8f6f4"
    descriptive_name = "warp-level MXF8F6F4 mixed-precision MMA Operation"
    _INPUTS = MmaF8F6F4Op._INPUTS
    _K = 32


MXF8F6F4_SUPPORTED_PAIRS = frozenset(
    pair for f8 in (Float8E4M3FN, Float8E5M2) for pair in ((Float4E2M1FN, f8), (f8, Float4E2M1FN))
)
"""The types of A and B that CuTe DSL's `MmaMXF8F6F4Op` mixes. Kiln's takes all pairs that the hardware has."""


_cute_nvgpu_ir = lazy.Module(
    "kiln.cute.nvgpu.cute_nvgpu_dialect"
)  # programs that derive operations take these from here
__getattr__ = lazy.names(__name__, {"make_atom": "..cute_nvgpu_dialect", "_pack_shape": "...core"})
