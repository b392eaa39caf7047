"""Copies between tensor memory and registers (`tcgen05.ld`, `tcgen05.st`): the operations and their layouts.

A warp w reads and writes lanes 32 (w % 4) to 32 (w % 4) + 31, so tiled copies have 128 threads: `make_tmem_copy`.
With t the thread of a warp and N the repetitions, register r of a thread holds

    32x32b     lane t,                          column r
    16x64b     lane t / 4 + 8 (t % 2),          column 2 r + t / 2 % 2
    16x128b    lane t / 4 + 8 (r % 2),          column 4 (r / 2) + t % 4
    16x256b    lane t / 4 + 8 (r / 2 % 2),      column 8 (r / 4) + 2 (t % 4) + r % 2
    16x32bx2   lane t % 16,                     column r + N (t / 16)
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar, NamedTuple

from ....base_dsl import trace as tracing
from ....base_dsl.bindings import ir
from ....base_dsl.diagnostics import type_error
from ....base_dsl.typing import Float32, Int32, Uint32
from ...arch.values import kernel_only
from ...arch.warp import elect_one, shuffle_sync
from ...atoms.atom import CopyAtom, CopyOp, CopyTrait, TiledCopy, make_cotiled_copy
from ...deferred_dialects import nvgpu
from ...layout.algebra import coalesce, composition
from ...layout.algebra import filter as filter_layout
from ...layout.inverses import left_inverse
from ...layout.layout import Layout, cosize, make_layout, rank, size
from ...layout.leaf import LayoutError
from ...layout.recast import recast_layout
from ...tensor.pointer import AddressSpace, Pointer, element_bits
from ...tensor.tensor import TracedTensor
from ...tensor.vector_access import Registers, extract, pick
from ..access import calls, memory, require_alignment, under
from ..common import CtaGroup, OperandMajorMode
from ..matrix_descriptor import NO_SWIZZLE, plain_operand
from .descriptors import READER, UmmaDescriptor, from_value

__all__ = [
    "Cp4x32x128bOp",
    "Ld16x32bx2Op",
    "Ld16x64bOp",
    "Ld16x128bOp",
    "Ld16x256bOp",
    "Ld32x32bOp",
    "LdRed16x32bx2Op",
    "LdRed32x32bOp",
    "Pack",
    "Repetition",
    "St16x32bx2Op",
    "St16x64bOp",
    "St16x128bOp",
    "St16x256bOp",
    "St32x32bOp",
    "TmemLoadRedOp",
    "Unpack",
    "get_s2t_smem_desc_tensor",
    "get_tmem_copy_properties",
    "is_tmem_load",
    "is_tmem_store",
    "make_s2t_copy",
    "make_tmem_copy",
]

_LANE_BITS = 32 << 16
"""The bits from a lane to the next, as pointers count."""
_REGISTERS = 128
"""The most registers of one instruction."""
_CP_ROWS = 32
_CP_STRIDE = 128
"""The bytes from 8 rows of 16 bytes to the next 8."""


class Repetition(enum.Enum):
    """How often an instruction repeats its shape along the columns."""

    x1 = 1
    x2 = 2
    x4 = 4
    x8 = 8
    x16 = 16
    x32 = 32
    x64 = 64
    x128 = 128


class Pack(enum.Enum):
    """Whether a load packs the lower halves of two neighbouring columns into a register."""

    NONE = enum.auto()
    PACK_16b_IN_32b = enum.auto()


class Unpack(enum.Enum):
    """Whether a store writes the halves of a register to the lower halves of two neighbouring columns."""

    NONE = enum.auto()
    UNPACK_32b_IN_16b = enum.auto()


class TmemLoadRedOp(enum.Enum):
    """The reduction of a load over the columns of a lane."""

    MAX = "max"
    MAXABS = "max.abs"
    MIN = "min"
    MINABS = "min.abs"


class _Shape(NamedTuple):
    """The lanes and bits of each lane that an instruction accesses, and the registers of a thread, per repetition."""

    lanes: int
    bits: int
    registers: int


class _TmemOp(CopyOp):
    """A copy of a warp between tensor memory and registers."""

    shape: ClassVar[_Shape]
    packed: bool
    repeat: Repetition

    def _check_repeat(self, repeat: object, least: int = 1) -> Repetition:
        most = _REGISTERS // self.shape.registers
        repetition = Repetition(repeat) if isinstance(repeat, int) and repeat in _POWERS else repeat
        if not isinstance(repetition, Repetition) or not least <= repetition.value <= most:
            raise type_error(
                f"repeat of {type(self).__name__} is {repeat!r}", f"Repetition.x{least} to Repetition.x{most}"
            )
        return repetition

    def registers_layout(self) -> Layout:
        """Return (thread, bit) -> bit of the data, which is ordered by lanes, and by columns inside a lane."""
        lanes, bits, _ = self.shape
        count = self.repeat.value
        row = bits * count
        again = ((count, bits),) if count > 1 else ()
        if lanes == 32:
            return make_layout((32, row), stride=(row, 1))
        if bits == 64 and isinstance(self, (Ld16x32bx2Op, St16x32bx2Op)):
            return make_layout(((16, 2), row // 2), stride=((row, row // 2), 1))
        if bits == 64:
            return _layout(((2, 8 * row), (2, 32), (8, row)), ((32, 1), *again))
        return _layout(((4, bits // 4), (8, row)), ((bits // 4, 1), (2, 8 * row), *again))

    def place_layout(self) -> Layout:
        """Return bit of the data -> bit of tensor memory, as its pointers count."""
        lanes, bits, _ = self.shape
        row = bits * self.repeat.value
        if self.packed:
            return make_layout((16, row // 16, lanes), stride=(1, 32, _LANE_BITS))
        return make_layout((row, lanes), stride=(1, _LANE_BITS))

    def make_trait(self, copy_internal_type: object) -> TmemCopyTrait:
        reduces = isinstance(self, (LdRed32x32bOp, LdRed16x32bx2Op))
        return (TmemReduceTrait if reduces else TmemCopyTrait)(self, copy_internal_type)


_POWERS = tuple(each.value for each in Repetition)


def _layout(threads: tuple[tuple[int, int], ...], values: tuple[tuple[int, int], ...]) -> Layout:
    """Return the layout of modes (extent, stride) of threads and of values."""
    if len(values) == 1:
        value = make_layout(values[0][0], stride=values[0][1])
    else:
        value = make_layout(tuple(s for s, _ in values), stride=tuple(d for _, d in values))
    return make_layout([make_layout(tuple(s for s, _ in threads), stride=tuple(d for _, d in threads)), value])


class _LdBase(_TmemOp):
    """A load of tensor memory into registers."""

    def __init__(self, repeat: object = Repetition.x1, pack: Any = Pack.NONE) -> None:
        self.repeat = self._check_repeat(repeat)
        if not isinstance(pack, Pack):
            raise type_error(f"pack of {type(self).__name__} is {pack!r}", "Pack.NONE or Pack.PACK_16b_IN_32b")
        self.pack = pack

    @property
    def packed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether elements of 16 bits take a column each."""
        return self.pack is Pack.PACK_16b_IN_32b


class _StBase(_TmemOp):
    """A store of registers to tensor memory."""

    def __init__(self, repeat: object, unpack: Any = Unpack.NONE) -> None:
        self.repeat = self._check_repeat(repeat)
        if not isinstance(unpack, Unpack):
            raise type_error(
                f"unpack of {type(self).__name__} is {unpack!r}", "Unpack.NONE or Unpack.UNPACK_32b_IN_16b"
            )
        self.unpack = unpack

    @property
    def packed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether elements of 16 bits take a column each."""
        return self.unpack is Unpack.UNPACK_32b_IN_16b


class Ld32x32bOp(_LdBase):
    """Load 32 lanes, N columns: a thread has one lane."""

    shape: _Shape = _Shape(32, 32, 1)


class Ld16x64bOp(_LdBase):
    """Load 16 lanes, 2 N columns."""

    shape: _Shape = _Shape(16, 64, 1)


class Ld16x128bOp(_LdBase):
    """Load 16 lanes, 4 N columns."""

    shape: _Shape = _Shape(16, 128, 2)


class Ld16x256bOp(_LdBase):
    """Load 16 lanes, 8 N columns: registers are those of an accumulator of `mma.sync`."""

    shape: _Shape = _Shape(16, 256, 4)


class Ld16x32bx2Op(_LdBase):
    """Load 16 lanes, N columns for the first 16 threads and the next N for the others."""

    shape: _Shape = _Shape(16, 64, 1)


class St32x32bOp(_StBase):
    """Store 32 lanes, N columns: a thread has one lane."""

    shape: _Shape = _Shape(32, 32, 1)


class St16x64bOp(_StBase):
    """Store 16 lanes, 2 N columns."""

    shape: _Shape = _Shape(16, 64, 1)


class St16x128bOp(_StBase):
    """Store 16 lanes, 4 N columns."""

    shape: _Shape = _Shape(16, 128, 2)


class St16x256bOp(_StBase):
    """Store 16 lanes, 8 N columns: registers are those of an accumulator of `mma.sync`."""

    shape: _Shape = _Shape(16, 256, 4)


class St16x32bx2Op(_StBase):
    """Store 16 lanes, N columns of the first 16 threads and the next N of the others."""

    shape: _Shape = _Shape(16, 64, 1)


class LdRed32x32bOp(Ld32x32bOp):
    """Load 32 lanes, N columns, and reduce the columns of each lane (sm_103a, sm_110a)."""

    def __init__(
        self,
        repeat: object = Repetition.x2,
        pack: object = Pack.NONE,
        redOp: Any = TmemLoadRedOp.MAX,
        nan: bool = False,
    ) -> None:
        super().__init__(repeat, pack)
        self._check_repeat(repeat, 2)
        if not isinstance(redOp, TmemLoadRedOp):
            names = ", ".join(each.name for each in TmemLoadRedOp)
            raise type_error(f"redOp of {type(self).__name__} is {redOp!r}", f"TmemLoadRedOp: {names}")
        self.redOp = redOp
        self.nan = nan


class LdRed16x32bx2Op(Ld16x32bx2Op):
    """Load 16 lanes twice N columns, and reduce the columns of each lane (sm_103a, sm_110a)."""

    def __init__(
        self,
        repeat: object = Repetition.x2,
        pack: object = Pack.NONE,
        redOp: Any = TmemLoadRedOp.MAX,
        nan: bool = False,
        half_split_off: int = 0,
    ) -> None:
        super().__init__(repeat, pack)
        self._check_repeat(repeat, 2)
        if not isinstance(redOp, TmemLoadRedOp):
            names = ", ".join(each.name for each in TmemLoadRedOp)
            raise type_error(f"redOp of {type(self).__name__} is {redOp!r}", f"TmemLoadRedOp: {names}")
        self.redOp = redOp
        self.nan = nan
        self.half_split_off = half_split_off


class TmemCopyTrait(CopyTrait):
    """A copy between tensor memory, all of which every thread names, and the registers of a warp."""

    def __init__(self, op: _TmemOp, value_type: object) -> None:
        bits = element_bits(value_type)
        registers = op.registers_layout()
        memory = make_layout((32, op.shape.registers * op.repeat.value * 32 * 32), stride=(0, 1))
        sides = [recast_layout(bits, 1, side) for side in (memory, registers)]
        self.op = op
        self.memory_side: Layout = sides[0]
        if isinstance(op, _StBase):
            sides.reverse()
        super().__init__(value_type, make_layout(32), *sides)

    @property
    def layout_ref_tv(self) -> Layout:
        """The side of tensor memory."""
        return self.memory_side

    def copy(self, src: object, dst: object, pred: object) -> None:
        """Emit one instruction for each call; all threads of the warp execute it."""
        if isinstance(self.op, _StBase):
            under(pred, lambda: self._store(src, dst), "a copy of tensor memory")
        else:
            under(pred, lambda: self._load(src, dst), "a copy of tensor memory")

    def _instruction(self) -> dict[str, Any]:
        """Return the shape and repetitions of the instruction."""
        lanes, bits, _ = self.op.shape
        count = self.op.repeat.value
        if isinstance(self.op, (Ld16x32bx2Op, St16x32bx2Op)):
            return {"shape": "16x32bx2", "repeat": count, "split": getattr(self.op, "half_split_off", 0) or count}
        return {"shape": f"{lanes}x{bits}b", "repeat": count}

    def _calls(self, memory_tensor: object, registers: object) -> tuple[list[ir.Value], Registers]:
        """Return the addresses of the calls in tensor memory, and the registers of a thread."""
        name = type(self.op).__name__
        memory_tensor = _in_tmem(memory_tensor, f"a copy with {name}")
        registers = memory(registers, f"the registers of a copy with {name}", AddressSpace.rmem)
        held = size(self.memory_side[1])
        values = self.op.shape.registers * self.op.repeat.value * 32 // element_bits(self.value_type)
        for what, tensor in (("tensor memory", memory_tensor), ("registers", registers)):
            bits = element_bits(tensor.element_type)
            expected = element_bits(self.value_type)
            if bits != expected:
                raise type_error(
                    f"a copy with {name} of {self.value_type.__name__} has a tensor in {what} of "
                    f"{tensor.element_type.__name__}",
                    f"an atom of the type of the elements, or elements of {expected} bits",
                )
        count = calls(registers, values, "the registers")
        of_thread = size(memory_tensor.shape) == count * values
        if not of_thread and calls(memory_tensor, held, "the tensor memory") != count:
            count = size(memory_tensor.shape) // held
            raise type_error(
                f"a copy with {name} from {memory_tensor.layout} to {registers.layout}: {count} instructions access "
                f"{count * values} values of a thread",
                "registers of the shape of partition_D (loads) or partition_S (stores) of another tensor of the tile",
            )
        pointer = memory_tensor._iterator
        layout = memory_tensor.offset_layout
        step = values if of_thread else held
        addresses = [pointer.moved(layout(n * step)).tmem_address()[0] for n in range(count)]
        if of_thread:  # partitioned as registers are, so each thread has cells of its own: the warp's start at lane 0's
            addresses = [shuffle_sync(address, 0) for address in addresses]
        return [address.ir_value() for address in addresses], Registers(
            registers._iterator, registers.offset_layout, values
        )

    def _load(self, src: object, dst: object) -> None:
        kernel_only(f"a copy with {type(self.op).__name__}")
        addresses, registers = self._calls(src, dst)
        for number, address in enumerate(addresses):
            words = nvgpu.tcgen05.tcgen05_ld(address, **self._instruction(), pack=self.op.packed)
            registers.store(number, self._values(words, registers))

    def _values(self, words: ir.Value, registers: Registers) -> ir.Value:
        type_ = registers.pointer.dtype.vector_type(registers.values)
        return words if words.type == type_ else tracing.emit_value("vector.bitcast", type_, (words,))

    def _store(self, src: object, dst: object) -> None:
        kernel_only(f"a copy with {type(self.op).__name__}")
        addresses, registers = self._calls(dst, src)
        type_ = Int32.vector_type(self.op.shape.registers * self.op.repeat.value)
        for number, address in enumerate(addresses):
            value = registers.load(number)
            if not isinstance(value.type, ir.VectorType):
                value = tracing.emit_value("vector.from_elements", registers.pointer.dtype.vector_type(1), (value,))
            words = value if value.type == type_ else tracing.emit_value("vector.bitcast", type_, (value,))
            nvgpu.tcgen05.tcgen05_st(address, words, **self._instruction(), unpack=self.op.packed or None)


class TmemReduceTrait(TmemCopyTrait):
    """A load that also reduces the columns of each lane: to registers, and to one more for each instruction."""

    def _load(self, src: object, dst: object) -> None:
        op: Any = self.op
        name = type(op).__name__
        kernel_only(f"a copy with {name}")
        if not isinstance(dst, (tuple, list)) or len(dst) != 2:
            raise type_error(
                f"a copy with {name} has the destination {dst}", "(registers, one register for each instruction)"
            )
        kind = _REDUCED.get(self.value_type)
        if kind is None:
            raise type_error(f"{name} reduces Float32, Int32 or Uint32, not {self.value_type.__name__}")
        addresses, registers = self._calls(src, dst[0])
        reduced = memory(dst[1], f"the reduction of a copy with {name}", AddressSpace.rmem)
        if calls(reduced, 1, "the reduction") != len(addresses) or reduced.element_type is not self.value_type:
            raise type_error(
                f"a copy with {name} reduces to {reduced}",
                f"{len(addresses)} elements of {self.value_type.__name__}: one for each instruction",
            )
        which, _, of = op.redOp.value.partition(".")
        for number, address in enumerate(addresses):
            words = nvgpu.tcgen05.tcgen05_ld_red(
                address, reduction=which, type=kind, abs=of == "abs", nan=op.nan, **self._instruction()
            )
            count = words.type.shape[0]
            loaded = pick(words, count, range(count - 1), Int32)
            registers.store(number, self._values(loaded, registers))
            last = Int32._make(extract(words, count - 1, Int32)).bitcast(self.value_type)
            reduced._iterator.set_element(reduced.offset_layout(number), last)


_REDUCED = {Float32: "f32", Uint32: "u32", Int32: "s32"}
"""The types of reductions in PTX."""


def _in_tmem(x: object, what: str) -> TracedTensor:
    if not isinstance(x, TracedTensor) or x.memspace is not AddressSpace.tmem or not isinstance(x._iterator, Pointer):
        raise type_error(f"{what} takes a tensor in tensor memory, got {x}")
    return x


class Cp4x32x128bOp(CopyOp):
    """Copy 32 rows of 16 bytes from shared memory to tensor memory, to each of its four times 32 lanes.

    With `CtaGroup.TWO` each CTA of a pair copies its own shared memory to its own tensor memory.
    """

    def __init__(self, cta_group: Any) -> None:
        if not isinstance(cta_group, CtaGroup):
            raise type_error(f"cta_group of Cp4x32x128bOp is {cta_group!r}", "CtaGroup.ONE or CtaGroup.TWO")
        self.cta_group = cta_group

    def make_trait(self, copy_internal_type: object) -> SmemToTmemTrait:
        return SmemToTmemTrait(self, copy_internal_type)


class SmemToTmemTrait(CopyTrait):
    """A copy of 512 bytes of shared memory to four places in tensor memory, issued by one thread of a CTA group."""

    def __init__(self, op: Cp4x32x128bOp, value_type: object) -> None:
        bits = element_bits(value_type)
        ctas = op.cta_group.value
        source = recast_layout(bits, 1, make_layout((ctas, (32, 128, 4)), stride=(0, (1, 32, 0))))
        target = recast_layout(bits, 1, make_layout((ctas, 4 * 32 * 128), stride=(0, 1)))
        self.op = op
        super().__init__(value_type, make_layout(ctas), source, target)

    @property
    def layout_ref_tv(self) -> Layout:
        """The side of tensor memory."""
        return self.layout_dst_tv

    def copy(self, src: Any, dst: object, pred: object) -> None:
        """Issue one instruction for each call, from one thread of the warp."""
        kernel_only("a copy with Cp4x32x128bOp")
        target = _in_tmem(dst, "a copy with Cp4x32x128bOp")
        iterator = src._iterator if isinstance(src, TracedTensor) else None
        if not isinstance(iterator, UmmaDescriptor) or rank(src.layout[0]) < 1:
            raise type_error(
                f"a copy with Cp4x32x128bOp takes its source by descriptors, got {src}",
                "tcgen05.get_s2t_smem_desc_tensor(tiled_copy, thr_copy.partition_S(tensor in shared memory))",
            )
        held = size(self.layout_dst_tv[1])
        rows = size(src.layout[0][0])
        count = calls(target, held, "the destination")
        if calls(src, rows, "the source") != count:
            raise type_error(
                f"a copy with Cp4x32x128bOp from {src.layout} to {target.layout}: not the same number of calls"
            )
        source_layout = src.offset_layout
        target_layout = target.offset_layout
        issued = []
        for number in range(count):
            address, _ = target._iterator.moved(target_layout(number * held)).tmem_address()
            issued.append((address.ir_value(), iterator.element(source_layout(number * rows)).ir_value()))

        def issue() -> None:
            with elect_one():
                for address, descriptor in issued:
                    nvgpu.tcgen05.tcgen05_cp(
                        address, descriptor, shape="32x128b.warpx4", cta_group=self.op.cta_group.value
                    )

        under(pred, issue, "a copy with Cp4x32x128bOp")


def get_s2t_smem_desc_tensor(
    atom: object, smem_tensor: object, *, loc: object = None, ip: object = None
) -> TracedTensor:
    """Return the source of a copy from shared to tensor memory as a tensor of descriptors.

    Args:
        atom: a copy of `make_s2t_copy`, or an atom of `Cp4x32x128bOp`.
        smem_tensor: `partition_S` of the tensor in shared memory, not swizzled, at a multiple of 16 bytes.
    """
    if not isinstance(atom, CopyAtom) or not isinstance(atom.op, Cp4x32x128bOp):
        raise type_error(f"get_s2t_smem_desc_tensor takes an atom of Cp4x32x128bOp, got {atom!r}")
    what = "the source of a copy to tensor memory"
    tensor = memory(smem_tensor, what, AddressSpace.smem)
    pointer, layout, swizzle = plain_operand(tensor._iterator, tensor._layout, what, READER)
    bits = element_bits(pointer.dtype)
    pieces = recast_layout(128, bits, layout)
    first = pieces[0][0] if rank(pieces[0]) > 1 else pieces[0]
    rows = coalesce(filter_layout(first))
    if swizzle is not NO_SWIZZLE or rows != make_layout(_CP_ROWS, stride=1):
        raise type_error(
            f"{what} has the layout {layout}, swizzle {swizzle.name}, and a call of it rows of 16 bytes {rows}",
            f"mode 0 of partition_S is a packed block of {_CP_ROWS} rows of 16 bytes, without a swizzle",
        )
    require_alignment(pointer, 0, 16, what)
    value = nvgpu.tcgen05.tcgen05_matrix_descriptor(pointer.ir_value(), _CP_STRIDE, _CP_STRIDE, "none")
    return TracedTensor(from_value(value, pointer.dtype, OperandMajorMode.K, "none"), pieces)


def make_s2t_copy(atom: object, tmem_tensor: object, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a tiled copy of scale factors from shared memory to tensor memory (`tcgen05.cp`).

    Needs sm_100a, sm_103a or sm_110a.

    Args:
        atom: an atom of `Cp4x32x128bOp`.
        tmem_tensor: the scale factors in tensor memory without modes of stride 0 (`filter_zeros`).
    """
    if not isinstance(atom, CopyAtom) or not isinstance(atom.op, Cp4x32x128bOp):
        raise type_error(f"make_s2t_copy takes an atom of Cp4x32x128bOp, got {atom!r}")
    if not isinstance(tmem_tensor, TracedTensor) or tmem_tensor.memspace is not AddressSpace.tmem:
        raise type_error(f"make_s2t_copy takes a tensor in tensor memory, got {tmem_tensor}")
    bits = element_bits(atom.value_type)
    lane = _LANE_BITS // bits
    values = make_layout((32, 128 // bits, 4), stride=(lane, 1, 32 * lane))
    threads = make_layout(atom.op.cta_group.value, stride=0)
    return make_cotiled_copy(atom, make_layout([threads, values]), tmem_tensor.layout)


def make_tmem_copy(atom: Any, tmem_tensor: object, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a copy of 128 threads between registers and tensor memory: warp w has lanes 32 w to 32 w + 31.

    Needs sm_100a, sm_103a or sm_110a.

    Loads take the parts of `partition_S` to registers, stores registers to those of `partition_D`; of tensors in other
    memory of the same shape a thread gets the elements that its registers hold.

    Args:
        atom: an atom of a load or store, such as `Ld32x32bOp(Repetition.x32)`.
        tmem_tensor: the tensor in tensor memory; TypeError if it lacks lanes or columns of the atom.
    """
    op = _tmem_op(atom, "make_tmem_copy")
    if not isinstance(tmem_tensor, TracedTensor) or tmem_tensor.memspace is not AddressSpace.tmem:
        raise type_error(f"make_tmem_copy takes a tensor in tensor memory, got {tmem_tensor}")
    bits = element_bits(atom.value_type)
    values = coalesce(recast_layout(bits, 1, op.place_layout()))
    threads = make_layout((32, 4), stride=(0, 32 * _LANE_BITS // bits))
    data = tmem_tensor.layout
    try:
        places = composition(left_inverse(data), values)
        inside = cosize(places) <= size(data) and coalesce(composition(coalesce(data), places)) == values
    except LayoutError:
        inside = False
    if not inside:
        raise type_error(
            f"make_tmem_copy with {op} of a tensor with the layout {data}, which lacks lanes or columns of the copy",
            "fewer repetitions, an operation of 16 lanes for accumulators of 64 rows, or pack for elements of 16 bits "
            "in a column each",
        )
    return make_cotiled_copy(atom, make_layout([threads, values]), data)


def _tmem_op(atom: object, what: str) -> _TmemOp:
    if not isinstance(atom, CopyAtom) or not isinstance(atom.op, _TmemOp):
        raise type_error(f"{what} takes an atom of a copy of tensor memory, got {atom!r}", "such as Ld32x32bOp")
    return atom.op


def is_tmem_load(atom: object) -> bool:
    """Return whether `atom`, a copy atom, loads tensor memory into registers."""
    return isinstance(atom, CopyAtom) and isinstance(atom.op, _LdBase)


def is_tmem_store(atom: object) -> bool:
    """Return whether `atom`, a copy atom, stores registers to tensor memory."""
    return isinstance(atom, CopyAtom) and isinstance(atom.op, _StBase)


def get_tmem_copy_properties(atom: object) -> tuple[int, int, int, Pack | Unpack]:
    """Return the lanes, the bits of a lane, the repetitions and the packing of `atom`, a copy of tensor memory."""
    op = _tmem_op(atom, "get_tmem_copy_properties")
    bits = 32 if isinstance(op, (Ld16x32bx2Op, St16x32bx2Op)) else op.shape.bits
    packing = op.unpack if isinstance(op, _StBase) else op.pack  # pyright: ignore[reportAttributeAccessIssue]
    return op.shape.lanes, bits, op.repeat.value, packing
