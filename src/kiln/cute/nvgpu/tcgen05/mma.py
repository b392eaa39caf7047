"""MMAs of the tensor cores of sm_100 to sm_110 (`tcgen05.mma`): the operations, their shapes and layouts.

One thread issues an MMA for one CTA, or for a pair of CTAs (`CtaGroup.TWO`). The "threads" of its layouts are therefore
CTAs: `tiled_mma.get_slice(v)` takes the place of the CTA in its pair, and `thr_id` is 1:0 or 2:1. Of A and C a CTA of a
pair has half of the rows, of B half of the columns. B, and A unless it is in tensor memory, are read from shared memory
through descriptors; accumulators are in tensor memory (`tensor_memory.py`).
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import Any, ClassVar

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
    Int8,
    Int32,
    TFloat32,
    Uint8,
)
from ....hardware import mma_shapes
from ...arch.values import kernel_only
from ...arch.warp import elect_one
from ...atoms import mma as atoms
from ...atoms.access_modifiers import member_of
from ...atoms.mma import calls_in_order
from ...deferred_dialects import nvgpu
from ...layout.composed_layout import ComposedLayout
from ...layout.layout import Layout, make_layout, rank
from ...tensor.pointer import AddressSpace, Pointer, pointer_to
from ...tensor.tensor import TracedTensor
from ..access import memory
from ..common import CtaGroup, OperandMajorMode
from ..matrix_descriptor import make_descriptors
from ..ptx_types import PTX_NAMES
from ..smem_layouts import SmemLayoutAtomKind
from ..warp.mma import type_text
from . import tensor_memory
from .descriptors import READER, UmmaDescriptor

__all__ = [
    "BlockScaledMmaOp",
    "CollectorOp",
    "CtaGroup",
    "Field",
    "MmaF8F6F4Op",
    "MmaF16BF16Op",
    "MmaFP8Op",
    "MmaI8Op",
    "MmaMXF4NVF4Op",
    "MmaMXF4Op",
    "MmaMXF8F6F4Op",
    "MmaMXF8Op",
    "MmaOp",
    "MmaTF32Op",
    "OperandMajorMode",
    "OperandSource",
    "SM103MmaMXF4NVF4Op",
    "SM103MmaMXF4Op",
    "SmemLayoutAtomKind",
]


class OperandSource(enum.Enum):
    """The memory that operand A of an MMA is read from."""

    TMEM = enum.auto()
    SMEM = enum.auto()


class CollectorOp(enum.Enum):
    """What becomes of an operand in the collector buffer of the tensor core, for the next MMA: results do not change.

    `FILL` keeps it, `USE` reads it from there and keeps it, `LASTUSE` reads it and frees the buffer.
    """

    DISCARD = "discard"
    LASTUSE = "lastuse"
    FILL = "fill"
    USE = "use"


class Field(enum.Enum):
    """The fields of an MMA that programs set while they run."""

    NEGATE_A = "negate_a"
    NEGATE_B = "negate_b"
    ACCUMULATE = "accumulate"
    """Whether A B is added to D; if not, D is overwritten."""
    SFA = "sfa"
    """The pointer to the scale factors of A in tensor memory."""
    SFB = "sfb"
    """The pointer to the scale factors of B in tensor memory."""
    METADATA = "metadata"
    DISABLE_OUTPUT_LANE = "disable_output_lane"


_FLAGS = (Field.ACCUMULATE.value, Field.NEGATE_A.value, Field.NEGATE_B.value)
_SCALES = (Field.SFA.value, Field.SFB.value)
_LANES = Field.DISABLE_OUTPUT_LANE.value


def _ptx_name(dtype: object) -> str:
    return PTX_NAMES[dtype] if isinstance(dtype, type) and dtype in PTX_NAMES else type_text(dtype)


def _by_cta(rows: int, columns: int, ctas: int) -> Layout:
    """Return (CTA, value) -> index in an operand of (rows, columns) whose rows the CTAs share."""
    part = rows // ctas
    return make_layout((ctas, (part, columns)), stride=(part, (1, rows)))


class Tcgen05MmaTrait(atoms.MmaTrait):
    """`tcgen05.mma` of one CTA or of a pair. Flags and scale factors are values that loops and branches carry."""

    whole_tiles: ClassVar[bool] = False
    """Of a pair, a CTA may partition its own half of an operand, which lies in its shared memory."""
    accumulate: Any = False
    negate_a: Any = False
    negate_b: Any = False
    sfa: Any = None
    sfb: Any = None
    disable_output_lane: Any = None

    def __init__(self, op: MmaOp) -> None:
        m, n, k = op.shape_mnk
        ctas = op.cta_group.value
        layouts = (_by_cta(m, k, ctas), _by_cta(n, k, ctas), _by_cta(m, n, ctas))
        threads = make_layout(ctas, stride=ctas - 1)
        super().__init__(op.shape_mnk, threads, layouts, (op.a_dtype, op.b_dtype, op.acc_dtype))
        self.op = op
        scaled = isinstance(op, BlockScaledMmaOp)
        self._pointers = _SCALES if scaled else ()

    def with_fields(self, **fields: object) -> Tcgen05MmaTrait:
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        for name, value in fields.items():
            if name in _FLAGS:
                setattr(changed, name, value if isinstance(value, bool) else Boolean(value))
            elif name in self._pointers:
                setattr(changed, name, self._scales(name, value))
            elif name == _LANES and not self._pointers:
                changed.disable_output_lane = self._lane_masks(value)
            else:
                own = self._pointers or (_LANES,)
                field_names = ", ".join(f"tcgen05.Field.{each.upper()}" for each in (*_FLAGS, *own))
                raise type_error(f"{type(self.op).__name__} has no field {name!r}", field_names)
        return changed

    def _lane_masks(self, value: object) -> tuple[Any, ...] | None:
        """Return the masks of rows of D that are not written, 32 rows each."""
        expected = 4 * self.op.cta_group.value
        if value is None:
            return None
        masks = tuple(value) if isinstance(value, (tuple, list)) else ()
        if len(masks) != expected:
            raise type_error(
                f"tcgen05.Field.DISABLE_OUTPUT_LANE is set to {value}",
                f"{expected} masks of 32 rows of D, whose set bits are rows that are not written",
            )
        return tuple(Int32(mask - (1 << 32) if isinstance(mask, int) and mask >> 31 else mask) for mask in masks)

    def _scales(self, name: str, value: object) -> Pointer:
        dtype = self.op.sf_dtype  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(value, Pointer) or value.memspace is not AddressSpace.tmem or value.dtype is not dtype:
            raise type_error(
                f"tcgen05.Field.{name.upper()} is set to {value}",
                f"a pointer to {dtype.__name__} in tensor memory: the iterator of a tensor of scale factors",
            )
        return value

    def __extract_mlir_values__(self) -> list[ir.Value]:
        """Return the values of the fields, also of static ones, which a region may change."""
        if tracing.current() is None:
            return []
        flags = [Boolean(getattr(self, name)).ir_value() for name in _FLAGS]
        masks = [mask.ir_value() for mask in self.disable_output_lane or ()]
        return flags + [self._pointer(name).ir_value() for name in self._pointers] + masks

    def _pointer(self, name: str) -> Pointer:
        """Return a field as it crosses regions: of no known alignment, whatever it is set to inside."""
        pointer = getattr(self, name)
        if pointer is None:
            pointer = pointer_to(self.op.sf_dtype, 0, AddressSpace.tmem)  # pyright: ignore[reportAttributeAccessIssue]
        return pointer.with_alignment(1)

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Tcgen05MmaTrait:
        if not values:
            return self
        fields: dict[str, Any] = {
            name: Boolean._make(value) for name, value in zip(_FLAGS, values[: len(_FLAGS)], strict=True)
        }
        rest = values[len(_FLAGS) :]
        for name, value in zip(self._pointers, rest, strict=False):
            fields[name] = self._pointer(name).__new_from_mlir_values__([value])
        if self.disable_output_lane:
            fields[_LANES] = tuple(Int32._make(value) for value in rest)
        return self.with_fields(**fields)

    def make_fragment(self, operand: str, of: object) -> Any:
        """Return an operand of `gemm`: C, and A of `OperandSource.TMEM`, as a tensor at address 0 of tensor memory, of
        which programs take the layout; others as descriptors of a tensor in shared memory."""
        shape = of.shape if isinstance(of, (TracedTensor, Layout, ComposedLayout)) else of
        if operand == "C":
            return _at_zero(self.op.acc_dtype, tensor_memory.accumulator_layout(self.op, shape))
        if operand == "A" and self.op.a_src is OperandSource.TMEM:
            return _at_zero(self.op.a_dtype, tensor_memory.operand_layout(self.op, shape))
        tensor = memory(of, f"operand {operand} of tcgen05.mma", AddressSpace.smem)
        self._check_type(operand, tensor.element_type)
        return make_descriptors(tensor, operand, self._major(operand), READER)

    def _major(self, operand: str) -> OperandMajorMode:
        return self.op.a_major_mode if operand == "A" else self.op.b_major_mode

    def _check_type(self, operand: str, dtype: Any) -> None:
        declared = self.types[operand]
        if dtype is declared or (declared is TFloat32 and dtype is Float32):  # the hardware ignores the lowest bits
            return
        if declared.width < 8 and dtype in (Int8, Uint8):  # elements of 4 or 6 bits as bytes
            return
        raise type_error(
            f"{type(self.op).__name__} takes {declared.__name__} elements of {operand}, got {dtype.__name__}",
            "make the operation for the type of the operands, or convert them with .to(T)",
        )

    def call(self, d: object, a: object, b: object, c: object) -> None:
        """Issue one MMA: A and B are one descriptor each, or A is one in tensor memory."""
        self._multiply(d, a, b, c, [(0, 0)], (None,))

    def gemm(self, d: object, a: object, b: object, c: object, rows: int, columns: int, depth: int | None) -> None:
        """Issue all MMAs from one thread of the warp. The first along K adds to D by the field ACCUMULATE, the others
        always do."""
        self._multiply(d, a, b, c, calls_in_order(rows, columns), (None,) if depth is None else range(depth))

    def _multiply(self, d: Any, a: Any, b: Any, c: Any, calls: list[tuple[int, int]], steps: Any) -> None:
        kernel_only("tcgen05.mma")
        a, sfa = self._with_scales("A", a)
        b, sfb = self._with_scales("B", b)
        accumulators = self._accumulator(d)
        if c is not d and (_differ(accumulators, self._accumulator(c)) or str(c.layout) != str(d.layout)):
            raise type_error(
                "tcgen05.mma adds to its accumulator: C and D are the same tensor",
                "cute.gemm(tiled_mma, acc, a, b, acc); set(tcgen05.Field.ACCUMULATE, False) overwrites it",
            )
        left = self._operand("A", a)
        right = self._operand("B", b)
        issued = []
        for number, k in enumerate(steps):
            further = () if k is None else (k,)
            adds = self.accumulate if number == 0 else True
            for m, n in calls:
                place, _ = accumulators.moved(_offset(d, (m, n))).tmem_address()
                operands = [place.ir_value(), _value(left, a, (m, *further)), _value(right, b, (n, *further))]
                scales = self._scales_of(sfa, sfb, (m, *further), (n, *further)) if self._pointers else ()
                issued.append((operands, scales, Boolean(adds).ir_value()))
        masks = [Int32(mask).ir_value() for mask in self.disable_output_lane or ()]
        descriptors = [self._descriptor(scales) for _, scales, _ in issued]
        with elect_one():
            for (operands, scales, adds), idesc in zip(issued, descriptors, strict=True):
                self._issue(operands, idesc, scales, adds, masks)

    def _issue(self, operands: list[ir.Value], idesc: ir.Value, scales: Any, adds: ir.Value, masks: Any) -> None:
        options: dict[str, str | int] = {
            "kind": self.op.kind,
            "cta_group": self.op.cta_group.value,
            **self.op.collectors,
        }
        if isinstance(self.op, BlockScaledMmaOp):
            addresses = [address.ir_value() for address, _ in scales]
            nvgpu.tcgen05.tcgen05_mma_block_scale(
                *operands, idesc, *addresses, adds, block=self.op.sf_vec_size, **options
            )
        else:
            nvgpu.tcgen05.tcgen05_mma(*operands, idesc, adds, *masks, **options)

    def _with_scales(self, operand: str, x: object) -> tuple[Any, Any]:
        """Return an operand, and the tensor of its scale factors if it is given as a list of both."""
        if not isinstance(x, (tuple, list)):
            return x, None
        if len(x) == 1:
            return x[0], None
        if not self._pointers or len(x) != 2:
            raise type_error(
                f"{type(self.op).__name__} takes one tensor of {operand}, got {len(x)}",
                "a list of an operand and its scale factors is for block-scaled MMAs",
            )
        scales = x[1]
        if not isinstance(scales, TracedTensor) or scales.memspace is not AddressSpace.tmem:
            raise type_error(f"the scale factors of {operand} are {scales}", "a tensor in tensor memory")
        self._scales(f"sf{operand.lower()}", scales.iterator)
        return x[0], scales

    def _scales_of(self, sfa: Any, sfb: Any, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> list[tuple[Any, Any]]:
        """Return the address and the byte of the scale factors of A and of B in one MMA."""
        addresses = []
        for name, tensor, at in (("sfa", sfa, of_a), ("sfb", sfb, of_b)):
            if tensor is not None:
                pointer = tensor._iterator.moved(_offset(tensor, at))
            else:
                pointer = getattr(self, name)
            if pointer is None:
                raise type_error(
                    f"{type(self.op).__name__} has no scale factors of {name[-1].upper()}",
                    f"tiled_mma.set(tcgen05.Field.{name.upper()}, tensor.iterator), or [operand, scale factors] in gemm",
                )
            addresses.append(pointer.tmem_address())
        return addresses

    def _descriptor(self, scales: Any) -> ir.Value:
        """Return the instruction descriptor; fields that are known at run time only are added to it."""
        op = self.op
        dynamic = []
        flags = {}
        for name, at in (("negate_a", 13), ("negate_b", 14)):
            value = getattr(self, name)
            if isinstance(value, bool):
                flags[name] = value
            else:
                dynamic.append(Int32(value) << at)
        ids = {}
        for (_, byte), name, at in zip(scales, ("sfa_id", "sfb_id"), (29, 4), strict=False):
            if isinstance(byte, int):
                ids[name] = byte
            else:
                dynamic.append(byte << at)
        try:
            word: Any = op.instruction_descriptor(**flags, **ids)
        except ValueError as rule:
            raise type_error(f"{type(op).__name__}: {rule}") from None
        word = Int32(word - (1 << 32) if word >> 31 else word)
        for part in dynamic:
            word = word | part
        return word.ir_value()

    def _accumulator(self, x: object) -> Pointer:
        iterator = x._iterator if isinstance(x, TracedTensor) else None
        if not isinstance(iterator, Pointer) or iterator.memspace is not AddressSpace.tmem:
            raise type_error(
                f"tcgen05.mma has its accumulator in tensor memory, got {x}",
                "cute.make_tensor(tmem_ptr, tiled_mma.make_fragment_C(shape).layout)",
            )
        if iterator.dtype is not self.op.acc_dtype:
            raise type_error(
                f"{type(self.op).__name__} accumulates in {self.op.acc_dtype.__name__}, got {x}",
                f"cute.recast_ptr(tmem_ptr, dtype={self.op.acc_dtype.__name__})",
            )
        return iterator

    def _operand(self, operand: str, x: object) -> Any:
        """Return what the MMAs of an operand are found from: a descriptor, or a pointer to tensor memory."""
        iterator = x._iterator if isinstance(x, TracedTensor) else None
        if operand == "A" and self.op.a_src is OperandSource.TMEM:
            if not isinstance(iterator, Pointer) or iterator.memspace is not AddressSpace.tmem:
                raise type_error(
                    f"{type(self.op).__name__} with OperandSource.TMEM has A in tensor memory, got {x}",
                    "cute.make_tensor(tmem_ptr, tiled_mma.make_fragment_A(shape).layout)",
                )
            self._check_type(operand, iterator.dtype)
            return iterator
        if not isinstance(iterator, UmmaDescriptor):
            raise type_error(
                f"tcgen05.mma takes {operand} by descriptors of shared memory, got {x}",
                f"tiled_mma.make_fragment_{operand}(tensor in shared memory)",
            )
        self._check_type(operand, iterator.dtype)
        if iterator.major is not self._major(operand):
            raise type_error(
                f"the MMA takes {operand} {self._major(operand).name}-major, and its descriptor is "
                f"{iterator.major.name}-major",
                f"make_fragment_{operand} of the same MMA",
            )
        return iterator


def _offset(tensor: TracedTensor, call: tuple[int, ...]) -> Any:
    """Return where the part of a call begins: at coordinates of the modes after the first. A tensor of one call has no
    others."""
    layout = tensor.offset_layout
    modes = rank(layout)
    return layout((0, *call[: modes - 1])) if modes > 1 else 0


def _value(place: Any, tensor: TracedTensor, call: tuple[int, ...]) -> ir.Value:
    offset = _offset(tensor, call)
    if isinstance(place, Pointer):
        return place.moved(offset).tmem_address()[0].ir_value()
    return place.element(offset).ir_value()


def _differ(first: Pointer, second: Pointer) -> bool:
    """Return whether two pointers are known to be different: slices at one dynamic coordinate are equal, unseen."""
    if first._base != second._base or not isinstance(first._offset, int) or not isinstance(second._offset, int):
        return False
    return first._offset != second._offset


def _at_zero(dtype: object, layout: Layout) -> TracedTensor:
    return TracedTensor(pointer_to(dtype, 0, AddressSpace.tmem), layout)


class MmaOp(atoms.MmaOp):
    """`tcgen05.mma` of some element types, shape (M, N, K) of the whole CTA group, and places of operands."""

    descriptive_name: ClassVar[str] = "tcgen05 MMA Operation"
    admissible_archs: ClassVar[tuple[str, ...]] = ("sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f")
    kind: ClassVar[str]
    """PTX's `.kind`, by which `hardware/mma_shapes.py` has element types and shapes."""
    _TYPES: ClassVar[tuple[Any, ...]]
    """The element types of A and B."""
    _K: ClassVar[int] = 32
    collectors: dict[str, str]
    """What becomes of A and B in the collector buffers (`with_collectors`), by the dialect's names."""

    def __init__(
        self,
        a_dtype: Any,
        b_dtype: Any,
        acc_dtype: Any,
        shape_mnk: object,
        cta_group: Any,
        a_src: Any,
        a_major_mode: Any,
        b_major_mode: Any,
    ) -> None:
        name = type(self).__name__
        for what, value, kind in (
            ("cta_group", cta_group, CtaGroup),
            ("a_src", a_src, OperandSource),
            ("a_major_mode", a_major_mode, OperandMajorMode),
            ("b_major_mode", b_major_mode, OperandMajorMode),
        ):
            if not isinstance(value, kind):
                names = " or ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise type_error(f"{what} of {name} is {value!r}", names)
        for what, dtype in (("a_dtype", a_dtype), ("b_dtype", b_dtype)):
            if dtype not in self._TYPES:
                types = ", ".join(t.__name__ for t in self._TYPES)
                raise type_error(f"{what} of {name} is {type_text(dtype)}", f"one of {types}")
        if a_src is OperandSource.TMEM and a_major_mode is not OperandMajorMode.K:
            raise type_error(
                f"a_major_mode of {name} is {a_major_mode.name} and a_src is TMEM", "A in tensor memory is K-major"
            )
        self.a_dtype = a_dtype
        self.b_dtype = b_dtype
        self.acc_dtype = acc_dtype
        self.shape_mnk: tuple[int, int, int] = self._shape(shape_mnk)
        self.collectors = {}
        self.cta_group = cta_group
        self.a_src = a_src
        self.a_major_mode = a_major_mode
        self.b_major_mode = b_major_mode
        self._verify()

    def _verify(self) -> None:
        """Raise an error if types, shape and places are no instruction. Operations that a program derives call it, too."""
        if rule := mma_shapes.kind_refusal(
            "tcgen05",
            self.kind,
            *self.shape_mnk,
            _ptx_name(self.a_dtype),
            _ptx_name(self.b_dtype),
            _ptx_name(self.acc_dtype),
            *self._scale_factors(),
            cta_group=self.cta_group.value,
            a_major=self.a_major_mode.value,
            b_major=self.b_major_mode.value,
        ):
            raise type_error(f"{type(self).__name__}: {rule}")

    def with_collectors(self, a: object = CollectorOp.DISCARD, b: object = CollectorOp.DISCARD) -> MmaOp:
        """Return the operation with what becomes of A and B in the collector buffers; of B on sm_107a only."""
        uses = {
            "collector": member_of("a_collector_op", a, CollectorOp),
            "collector_b": member_of("b_collector_op", b, CollectorOp),
        }
        op = copy.copy(self)
        op.collectors = {name: use.value for name, use in uses.items() if use is not CollectorOp.DISCARD}
        return op

    def _scale_factors(self) -> tuple[str | None, int | None]:
        """Return the type of the scale factors in PTX and the elements that share one."""
        return None, None

    def _shape(self, shape: object) -> tuple[int, int, int]:
        if not isinstance(shape, (tuple, list)) or len(shape) not in (2, 3):
            raise type_error(f"the shape of {type(self).__name__} is {shape!r}", f"(M, N, {self._K})")
        m, n, k = (*shape, self._K)[:3]
        if k != self._K:
            raise type_error(f"K of {type(self).__name__} is {k!r}", f"{self._K}")
        return (m, n, k)

    def instruction_descriptor(self, **fields: Any) -> int:
        """Return the instruction descriptor (32 bits); `negate_a` and `negate_b` are its fields. Raises ValueError."""
        m, n, _ = self.shape_mnk
        return nvgpu.tcgen05.tcgen05_descriptors.instruction_descriptor(
            self.kind,
            _ptx_name(self.a_dtype),
            _ptx_name(self.b_dtype),
            _ptx_name(self.acc_dtype),
            m,
            n,
            cta_group=self.cta_group.value,
            a_major=self.a_major_mode.value,
            b_major=self.b_major_mode.value,
            **fields,
        )

    def make_trait(self) -> Tcgen05MmaTrait:
        return Tcgen05MmaTrait(self)

    def __str__(self) -> str:
        m, n, k = self.shape_mnk
        return (
            f"{self.descriptive_name}\n  A data type = {self.a_dtype.__name__}\n  B data type = {self.b_dtype.__name__}"
            f"\n  Accumulator data type = {self.acc_dtype.__name__}\n  CTA group = {self.cta_group.value}"
            f"\n  A source location = {self.a_src.name}\n  A major mode = {self.a_major_mode.name}"
            f"\n  B major mode = {self.b_major_mode.name}\n  Instruction shape MNK = ({m}, {n}, {k})"
        )


class MmaF16BF16Op(MmaOp):
    """Float16 accumulated in Float16 or Float32, or BFloat16 in Float32. K = 16."""

    kind = "f16"
    descriptive_name = "tcgen05 F16/BF16 MMA Operation"
    _TYPES = (Float16, BFloat16)
    _K = 16

    def __init__(
        self,
        ab_dtype: object,
        acc_dtype: object,
        instruction_shape: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(ab_dtype, ab_dtype, acc_dtype, instruction_shape, cta_group, a_src, a_major_mode, b_major_mode)


class MmaTF32Op(MmaOp):
    """Float32 of which 10 bits of mantissa count, accumulated in Float32. K = 8."""

    kind = "tf32"
    descriptive_name = "tcgen05 TF32 MMA Operation"
    _TYPES = (TFloat32,)
    _K = 8

    def __init__(
        self, instruction_shape: object, cta_group: object, a_src: object, a_major_mode: object, b_major_mode: object
    ) -> None:
        super().__init__(TFloat32, TFloat32, Float32, instruction_shape, cta_group, a_src, a_major_mode, b_major_mode)


class MmaF8F6F4Op(MmaOp):
    """Floats of 8, 6 and 4 bits, also mixed, accumulated in Float32 or Float16. K = 32."""

    kind = "f8f6f4"
    descriptive_name = "tcgen05 F8F6F4 MMA Operation"
    _TYPES = (Float8E4M3FN, Float8E5M2, Float6E2M3FN, Float6E3M2FN, Float4E2M1FN)

    def __init__(
        self,
        a_dtype: object,
        b_dtype: object,
        acc_dtype: object,
        instruction_shape: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(a_dtype, b_dtype, acc_dtype, instruction_shape, cta_group, a_src, a_major_mode, b_major_mode)


class MmaFP8Op(MmaF8F6F4Op):
    """`MmaF8F6F4Op` for A and B of one 8-bit type, under its older name."""

    descriptive_name = "tcgen05 F8 MMA Operation"
    _TYPES = (Float8E4M3FN, Float8E5M2)

    def __init__(
        self,
        ab_dtype: object,
        acc_dtype: object,
        instruction_shape: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(ab_dtype, ab_dtype, acc_dtype, instruction_shape, cta_group, a_src, a_major_mode, b_major_mode)


class MmaI8Op(MmaOp):
    """Int8 or Uint8, accumulated in Int32; sm_100a and sm_110a only. K = 32."""

    kind = "i8"
    descriptive_name = "tcgen05 I8 MMA Operation"
    admissible_archs: tuple[str, str] = ("sm_100a", "sm_110a")
    _TYPES = (Int8, Uint8)

    def __init__(
        self,
        ab_dtype: object,
        instruction_shape: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(ab_dtype, ab_dtype, Int32, instruction_shape, cta_group, a_src, a_major_mode, b_major_mode)


class BlockScaledMmaOp(MmaOp):
    """An MMA that multiplies each `sf_vec_size` elements along K of A and of B by a scale factor."""

    _SCALE_TYPES: ClassVar[tuple[Any, ...]] = (Float8E8M0FNU,)

    def __init__(
        self,
        a_dtype: object,
        b_dtype: object,
        acc_dtype: object,
        sf_dtype: Any,
        sf_vec_size: int,
        shape_mnk: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        if sf_dtype not in self._SCALE_TYPES:
            raise type_error(
                f"sf_dtype of {type(self).__name__} is {type_text(sf_dtype)}",
                f"one of {', '.join(t.__name__ for t in self._SCALE_TYPES)}",
            )
        self.sf_dtype = sf_dtype
        self.sf_vec_size = sf_vec_size
        super().__init__(a_dtype, b_dtype, acc_dtype, shape_mnk, cta_group, a_src, a_major_mode, b_major_mode)

    def _scale_factors(self) -> tuple[str, int]:
        return "ue8m0" if self.sf_dtype is Float8E8M0FNU else "ue4m3", self.sf_vec_size

    def instruction_descriptor(self, **fields: Any) -> int:
        """Return the instruction descriptor (32 bits); `sfa_id` and `sfb_id` are the bytes of scale factors."""
        m, n, k = self.shape_mnk
        scale_type, block = self._scale_factors()
        return nvgpu.tcgen05.tcgen05_descriptors.block_scaled_instruction_descriptor(
            self.kind,
            _ptx_name(self.a_dtype),
            _ptx_name(self.b_dtype),
            scale_type,
            m,
            n,
            block=block,
            cta_group=self.cta_group.value,
            a_major=self.a_major_mode.value,
            b_major=self.b_major_mode.value,
            k96=k == 96,
            **fields,
        )


class MmaMXF8F6F4Op(BlockScaledMmaOp):
    """Floats of 8, 6 and 4 bits, also mixed, with a Float8E8M0FNU for each 32. K = 32."""

    kind = "mxf8f6f4"
    descriptive_name = "tcgen05 MXF8F6F4 BlockScaled MMA Operation"
    _TYPES = MmaF8F6F4Op._TYPES

    def __init__(
        self,
        a_dtype: object,
        b_dtype: object,
        instruction_shape: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(
            a_dtype,
            b_dtype,
            Float32,
            Float8E8M0FNU,
            32,
            instruction_shape,
            cta_group,
            a_src,
            a_major_mode,
            b_major_mode,
        )


class MmaMXF8Op(MmaMXF8F6F4Op):
    """`MmaMXF8F6F4Op` for A and B of one 8-bit type, under its older name."""

    descriptive_name = "tcgen05 MXF8 BlockScaled MMA Operation"
    _TYPES = (Float8E4M3FN, Float8E5M2)

    def __init__(
        self,
        ab_dtype: object,
        instruction_shape: object,
        cta_group: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(ab_dtype, ab_dtype, instruction_shape, cta_group, a_src, a_major_mode, b_major_mode)


class _Fp4MmaOp(BlockScaledMmaOp):
    """Float4E2M1FN with scale factors; A and B are K-major."""

    _TYPES = (Float4E2M1FN,)
    _K = 64
    _VECTOR: ClassVar[int] = 32

    def __init__(self, sf_dtype: object, instruction_shape: object, cta_group: object, a_src: object) -> None:
        super().__init__(
            Float4E2M1FN,
            Float4E2M1FN,
            Float32,
            sf_dtype,
            self._VECTOR,
            instruction_shape,
            cta_group,
            a_src,
            OperandMajorMode.K,
            OperandMajorMode.K,
        )


class MmaMXF4Op(_Fp4MmaOp):
    """Float4E2M1FN with a Float8E8M0FNU for each 32. K = 64."""

    kind = "mxf4"
    descriptive_name = "tcgen05 MXF4 BlockScaled MMA Operation"

    def __init__(self, instruction_shape: object, cta_group: object, a_src: object) -> None:
        super().__init__(Float8E8M0FNU, instruction_shape, cta_group, a_src)


class MmaMXF4NVF4Op(_Fp4MmaOp):
    """Float4E2M1FN with a Float8E8M0FNU or Float8E4M3FN for each 16. K = 64."""

    kind = "mxf4nvf4"
    descriptive_name = "tcgen05 MXF4NVF4 BlockScaled MMA Operation"
    _SCALE_TYPES = (Float8E8M0FNU, Float8E4M3FN)
    _VECTOR = 16


class SM103MmaMXF4Op(MmaMXF4Op):
    """`MmaMXF4Op` of sm_103 with K = 96."""

    descriptive_name = "tcgen05 SM103 MXF4 BlockScaled MMA Operation"
    admissible_archs: tuple[str, str] = ("sm_103a", "sm_103f")
    _K = 96


class SM103MmaMXF4NVF4Op(MmaMXF4NVF4Op):
    """`MmaMXF4NVF4Op` of sm_103 with K = 96."""

    descriptive_name = "tcgen05 SM103 MXF4NVF4 BlockScaled MMA Operation"
    admissible_archs: tuple[str, str] = ("sm_103a", "sm_103f")
    _K = 96
