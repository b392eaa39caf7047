"""WGMMA: asynchronous MMAs of a warpgroup (sm_90a), which read operands from shared memory.

B and, unless it is in registers, A are read through descriptors (`matrix_descriptor.py`): `make_fragment_A` and
`make_fragment_B` of a partitioned tensor in shared memory return tensors of them. Accumulators are in registers.
Thread t of the 128, with w = t / 32, g = t % 32 / 4 and q = t % 4, holds rows 16 w + g (and + 8) of the accumulator,
and columns 2 q and 2 q + 1 of each eight; of A in registers the same rows and, in each register of 32 bits, p
neighbours from k = p q on, then those 4 p further on.

    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
        cute.gemm(tiled_mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
"""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._support import lazy
from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import BFloat16, Boolean, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, TFloat32, Uint8
from ...hardware import mma_shapes
from ..atoms.mma import MmaOp, MmaTrait, calls_in_order
from ..deferred_dialects import nvgpu
from ..layout.algebra import coalesce
from ..layout.int_tuple import pretty_str
from ..layout.layout import Layout, make_layout, rank, size
from ..tensor.pointer import AddressSpace, element_bits
from ..tensor.tensor import TracedTensor, make_fragment_like, make_rmem_tensor
from .access import memory
from .common import OperandMajorMode
from .matrix_descriptor import MatrixDescriptor, make_descriptors
from .ptx_types import PTX_NAMES
from .smem_layouts import SmemLayoutAtomKind, make_smem_layout_atom
from .warp.mma import joined_layout, type_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..tensor.iterator import TensorIterator

__dir__ = lazy.listing(__name__)
__all__ = [
    "Field",
    "MmaF8Op",
    "MmaF16BF16Op",
    "MmaI8Op",
    "MmaTF32Op",
    "OperandMajorMode",
    "OperandSource",
    "SmemLayoutAtomKind",
    "commit_group",
    "fence",
    "make_smem_layout_atom",
    "wait_group",
]

_THREADS = 128
_ROWS = 64
_MOST_GROUPS = 7


class OperandSource(enum.Enum):
    """Where A of a WGMMA lies."""

    RMEM = enum.auto()
    SMEM = enum.auto()


class Field(enum.Enum):
    """The fields of a WGMMA that programs set while they run."""

    ACCUMULATE = "accumulate"
    """Whether A B is added to D; if not, D is overwritten."""


class TraitField(NamedTuple):
    """A row of a trait's table of fields: the type of its value, and the value that it has at first."""

    type: Any
    initial: Any

    def convert(self, value: object) -> Any:
        """Return a value of the field's type: a Python value if it is static."""
        if isinstance(value, type(self.initial)):
            return value
        typed = self.type(value)
        return type(self.initial)(typed) if typed.is_static else typed


def _operand_layout(rows: int, k: int) -> Layout:
    """Return (thread, value) -> index in an operand (rows, k) in shared memory: every thread has all of it."""
    return make_layout((_THREADS, (rows, k)), stride=(0, (1, rows)))


def _register_layout(packed: int, columns: int) -> Layout:
    """Return (thread, value) -> index in a (64, columns) in registers, `packed` neighbours of a row together."""
    step = _ROWS * packed
    threads = make_layout((4, 8, 4), stride=(step, 1, 16))
    return make_layout([threads, joined_layout((packed, _ROWS), (2, 8), (columns // (4 * packed), 4 * step))])


class WarpGroupMmaTrait(MmaTrait):
    """`wgmma` of the 128 threads of a warpgroup."""

    FIELDS = {Field.ACCUMULATE.value: TraitField(Boolean, False)}
    """The fields that programs set: another MMA adds rows to negate A or B, or for the scale factors of A and B."""
    accumulate: Any

    def __init__(self, op: WarpGroupMmaOp) -> None:
        _, n, k = op.shape_mnk
        for name, field in self.FIELDS.items():
            setattr(self, name, field.initial)
        in_registers = op.a_src is OperandSource.RMEM
        a = _register_layout(32 // element_bits(op.a_dtype), k) if in_registers else _operand_layout(_ROWS, k)
        layouts = (a, _operand_layout(n, k), _register_layout(2, n))
        super().__init__(op.shape_mnk, make_layout(_THREADS), layouts, (op.a_dtype, op.b_dtype, op.acc_dtype))
        self._major = {"A": op.a_major_mode, "B": op.b_major_mode}
        self._descriptors = ("B",) if in_registers else ("A", "B")
        """The operands that are read from shared memory."""
        a_major = OperandMajorMode.K if in_registers else op.a_major_mode
        self._names = {
            "a_type": PTX_NAMES[op.a_dtype],
            "b_type": PTX_NAMES[op.b_dtype],
            "a_major": a_major.name.lower(),
            "b_major": op.b_major_mode.name.lower(),
        }

    def with_fields(self, **fields: object) -> WarpGroupMmaTrait:
        unknown = sorted(fields.keys() - self.FIELDS.keys())
        if unknown:
            field_names = ", ".join(f"warpgroup.Field.{name.upper()}" for name in self.FIELDS)
            raise type_error(f"a WGMMA has no field {unknown[0]!r}", field_names)
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        for name, value in fields.items():
            setattr(copy, name, self.FIELDS[name].convert(value))
        return copy

    def __extract_mlir_values__(self) -> list[ir.Value]:
        """Return the values of the fields, also of static ones, which a region may change."""
        if tracing.current() is None:
            return []
        return [field.type(getattr(self, name)).ir_value() for name, field in self.FIELDS.items()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> WarpGroupMmaTrait:
        fields = zip(self.FIELDS.items(), values, strict=True) if values else ()
        return self.with_fields(**{name: field.type._make(value) for (name, field), value in fields})

    def _check_type(self, operand: str, dtype: Any) -> None:
        declared = self.types[operand]
        if dtype is declared or (declared is TFloat32 and dtype is Float32):  # the hardware ignores the lowest bits
            return
        raise type_error(
            f"the MMA takes {declared.__name__} elements of {operand}, got {dtype.__name__}",
            "make the operation for the type of the operands, or convert them with .to(T)",
        )

    def make_fragment(self, operand: str, of: Any) -> Any:
        if operand in self._descriptors:
            tensor = memory(of, f"operand {operand} of a WGMMA", AddressSpace.smem)
            self._check_type(operand, tensor.element_type)
            return make_descriptors(tensor, operand, self._major[operand])
        if operand == "A" and isinstance(of, TracedTensor):
            return make_fragment_like(of, self.types["A"])
        return make_rmem_tensor(of.shape if isinstance(of, TracedTensor) else of, self.types[operand])

    def _operand(self, operand: str, x: object) -> TensorIterator:
        """Return what the calls of an operand are found from: a descriptor, or a pointer to registers. Mode 0 holds the
        values of one call."""
        if operand in self._descriptors:
            return self._descriptor(operand, x)
        tensor = memory(x, f"operand {operand} of a WGMMA", AddressSpace.rmem)
        self._check_type(operand, tensor.element_type)
        needed = self._values[operand]
        layout = tensor.layout
        if not (_static_begins_with_row if layout.is_static() else _begins_with_row)(layout, needed):
            raise type_error(
                f"a WGMMA takes the {needed} values of {operand} of a call from registers in a row, got the layout "
                f"{layout}",
                f"mode 0 holds the values of one call, as in what make_fragment_{operand} makes",
            )
        return tensor.iterator

    def _descriptor(self, operand: str, x: object) -> MatrixDescriptor:
        iterator = x._iterator if isinstance(x, TracedTensor) else None
        if not isinstance(iterator, MatrixDescriptor):
            raise type_error(
                f"a WGMMA takes {operand} by descriptors of shared memory, got {x}",
                f"tiled_mma.make_fragment_{operand}(thr_mma.partition_{operand}(tensor in shared memory))",
            )
        self._check_type(operand, iterator.dtype)
        if iterator.major is not self._major[operand]:
            raise type_error(
                f"the MMA takes {operand} {self._major[operand].name}-major, and its descriptor is {iterator.major.name}-major",
                f"make_fragment_{operand} of the same MMA",
            )
        return iterator

    def call(self, d: object, a: object, b: object, c: object) -> None:
        for operand, x in zip("CAB", (d, a, b), strict=True):
            held = 1 if operand in self._descriptors else self._values[operand]
            if isinstance(x, TracedTensor) and size(x) != held:
                raise type_error(
                    f"one call of a WGMMA takes {held} values of {operand}, got the shape {pretty_str(x.shape)}",
                    "cute.gemm does several calls: (V, M, K) x (V, N, K) => (V, M, N)",
                )
        self._multiply(d, a, b, c, [(0, 0)], (None,))

    def gemm(self, d: object, a: object, b: object, c: object, rows: int, columns: int, depth: int | None) -> None:
        """Do one step along K after the other: the MMAs of a step have different accumulators, so none waits."""
        self._multiply(d, a, b, c, calls_in_order(rows, columns), (None,) if depth is None else range(depth))

    def _multiply(self, d: Any, a: Any, b: Any, c: Any, calls: list[tuple[int, int]], steps: Any) -> None:
        places = {name: self._operand(name, x) for name, x in zip("CAB", (d, a, b), strict=True)}
        if c is not d and (not _same_registers(places["C"], self._operand("C", c)) or c.layout != d.layout):
            raise type_error(
                "a WGMMA adds to its accumulator: C and D are the same tensor",
                "cute.gemm(tiled_mma, acc, a, b, acc); set(Field.ACCUMULATE, False) overwrites it",
            )
        tracing.require("a WGMMA").multiplies = True
        accumulate = Boolean(self.accumulate).ir_value()
        accumulators = {at: _value(places["C"], d, at) for at in calls}
        options = {"n": self.shape_mnk[1], "k": self.shape_mnk[2], **self._names}
        for k in steps:
            further = () if k is None else (k,)
            left = {m: _value(places["A"], a, (m, *further)) for m in dict.fromkeys(m for m, _ in calls)}
            right = {n: _value(places["B"], b, (n, *further)) for n in dict.fromkeys(n for _, n in calls)}
            for m, n in calls:
                nvgpu.wgmma.wgmma(accumulators[m, n], left[m], right[n], accumulate, **options)


def _value(place: Any, tensor: TracedTensor, call: tuple[int, ...]) -> ir.Value:
    """Return the descriptor, or the pointer, of a call: the coordinates of `tensor` without mode 0. A tensor of one
    call has no others."""
    layout = tensor.offset_layout
    offset = (_static_offset if layout.is_static() else _offset)(layout, call)
    return (place.element(offset) if isinstance(place, MatrixDescriptor) else place.moved(offset)).ir_value()


def _offset(layout: Any, call: tuple[int, ...]) -> Any:
    return layout((0, *call)) if rank(layout) > 1 else 0


_static_offset = functools.lru_cache(maxsize=4096)(_offset)


def _begins_with_row(layout: Any, count: int) -> bool:
    """Return whether the values of one call, mode 0 or all, lie in a row."""
    values = layout[0] if isinstance(layout.shape, tuple) and size(layout) != count else layout
    return bool(coalesce(values) == make_layout(count))


_static_begins_with_row = functools.lru_cache(maxsize=256)(_begins_with_row)


def _same_registers(first: Any, second: Any) -> bool:
    same = first._offset == second._offset
    return first._base == second._base and isinstance(same, bool) and same


class WarpGroupMmaOp(MmaOp):
    """`wgmma` with operands of some types, a shape, and places; `hardware/mma_shapes.py` says which there are."""

    _INPUTS: tuple[Any, ...] = ()
    """The element types of A and B."""

    def __init__(
        self,
        a_dtype: Any,
        b_dtype: Any,
        acc_dtype: Any,
        instruction_shape: object,
        a_src: Any,
        a_major_mode: Any,
        b_major_mode: Any,
    ) -> None:
        name = type(self).__name__
        shape = tuple(instruction_shape) if isinstance(instruction_shape, (tuple, list)) else instruction_shape
        for what, dtype in (("A", a_dtype), ("B", b_dtype)):
            if dtype not in self._INPUTS:
                raise type_error(
                    f"{name} does not take {type_text(dtype)} for {what}",
                    f"its operands are {' or '.join(t.__name__ for t in self._INPUTS)}",
                )
        for what, value, kind in (
            ("a_src", a_src, OperandSource),
            ("a_major_mode", a_major_mode, OperandMajorMode),
            ("b_major_mode", b_major_mode, OperandMajorMode),
        ):
            if not isinstance(value, kind):
                names = " or ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise type_error(f"{what} of {name} is {value!r}", names)
        if not isinstance(shape, tuple) or len(shape) != 3:
            raise type_error(f"instruction_shape of {name} is {instruction_shape!r}", "(64, N, K)")
        if rule := mma_shapes.refusal("wgmma", shape, PTX_NAMES[a_dtype], PTX_NAMES[b_dtype], _ptx_name(acc_dtype)):
            raise type_error(f"{name}: {rule}")
        for what, dtype, major in (("A", a_dtype, a_major_mode), ("B", b_dtype, b_major_mode)):
            if what == "A" and a_src is OperandSource.RMEM:
                continue  # registers have no major mode
            if major is OperandMajorMode.MN and not mma_shapes.takes_mn_major("wgmma", PTX_NAMES[dtype]):
                raise type_error(
                    f"{name} of {dtype.__name__} with {what} {'MN'[what == 'B']}-major",
                    "the tensor cores transpose 16-bit elements only: others are K-major in shared memory",
                )
        self.a_dtype = a_dtype
        self.b_dtype = b_dtype
        self.acc_dtype = acc_dtype
        self.shape_mnk: tuple[int, int, int] = shape
        self.a_src = a_src
        self.a_major_mode = a_major_mode
        self.b_major_mode = b_major_mode

    def make_trait(self) -> WarpGroupMmaTrait:
        return WarpGroupMmaTrait(self)


def _ptx_name(dtype: object) -> str:
    return PTX_NAMES[dtype] if isinstance(dtype, type) and dtype in PTX_NAMES else type_text(dtype)


class MmaF16BF16Op(WarpGroupMmaOp):
    """Float16 or BFloat16, accumulated in Float32, or Float16 in Float16. K = 16."""

    _INPUTS = (Float16, BFloat16)

    def __init__(
        self,
        ab_dtype: object,
        acc_dtype: object,
        instruction_shape: object,
        a_src: object,
        a_major_mode: object,
        b_major_mode: object,
    ) -> None:
        super().__init__(ab_dtype, ab_dtype, acc_dtype, instruction_shape, a_src, a_major_mode, b_major_mode)


class MmaF8Op(WarpGroupMmaOp):
    """Float8E4M3FN or Float8E5M2, also mixed, accumulated in Float32 or Float16; K-major. K = 32."""

    _INPUTS = (Float8E4M3FN, Float8E5M2)


class MmaI8Op(WarpGroupMmaOp):
    """Int8 or Uint8, also mixed, accumulated in Int32; K-major. K = 32."""

    _INPUTS = (Int8, Uint8)


class MmaTF32Op(WarpGroupMmaOp):
    """Float32 of which 10 bits of mantissa count, accumulated in Float32; K-major. K = 8."""

    _INPUTS = (TFloat32,)

    def __init__(
        self,
        instruction_shape: object,
        a_src: object = OperandSource.SMEM,
        a_major_mode: object = OperandMajorMode.K,
        b_major_mode: object = OperandMajorMode.K,
    ) -> None:
        super().__init__(TFloat32, TFloat32, Float32, instruction_shape, a_src, a_major_mode, b_major_mode)


def fence(*, loc: object = None, ip: object = None) -> None:
    """Order the warpgroup's register accesses (accumulators, and A in registers) before later WGMMAs. Needs sm_90a.

    WGMMAs that add to the same accumulator one after the other need no fence between them.
    """
    nvgpu.wgmma.wgmma_fence()


def commit_group(*, loc: object = None, ip: object = None) -> None:
    """Commit the warpgroup's WGMMAs since the last group as a group. Needs sm_90a."""
    nvgpu.wgmma.wgmma_commit()


def wait_group(group: object, *, loc: object = None, ip: object = None) -> None:
    """Wait until all but the latest `group` groups are complete: their accumulators may then be read. Needs sm_90a."""
    if isinstance(group, bool) or not isinstance(group, int) or not 0 <= group <= _MOST_GROUPS:
        raise type_error(
            f"wait_group({group}): how many groups may be under way",
            f"a number from 0 to {_MOST_GROUPS}, known when compiling",
        )
    nvgpu.wgmma.wgmma_wait(group)
