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

from ....base_dsl.diagnostics import DSLNotImplemented, type_error
from ...atoms.atom import CopyAtom, CopyOp, CopyTrait, TiledCopy, make_cotiled_copy
from ...layout.algebra import coalesce, composition
from ...layout.inverses import left_inverse
from ...layout.layout import Layout, cosize, make_layout, size
from ...layout.leaf import LayoutError
from ...layout.recast import recast_layout
from ...tensor.pointer import AddressSpace, element_bits
from ...tensor.tensor import TracedTensor
from ..common import CtaGroup

__all__ = [
    "Cp4x32x128bOp", "Ld16x32bx2Op", "Ld16x64bOp", "Ld16x128bOp", "Ld16x256bOp", "Ld32x32bOp", "LdRed16x32bx2Op", "LdRed32x32bOp",
    "Pack", "Repetition", "St16x32bx2Op", "St16x64bOp", "St16x128bOp", "St16x256bOp", "St32x32bOp", "TmemLoadRedOp",
    "Unpack", "get_tmem_copy_properties", "is_tmem_load", "is_tmem_store", "make_s2t_copy", "make_tmem_copy",
]  # fmt: skip

_LANE_BITS = 32 << 16
"""The bits from a lane to the next, as pointers count."""
_REGISTERS = 128
"""The most registers of one instruction."""


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

    def _check_repeat(self, repeat: Any, least: int = 1) -> Repetition:
        most = _REGISTERS // self.shape.registers
        found = Repetition(repeat) if isinstance(repeat, int) and repeat in _POWERS else repeat
        if not isinstance(found, Repetition) or not least <= found.value <= most:
            raise type_error(
                f"repeat of {type(self).__name__} is {repeat!r}", f"Repetition.x{least} to Repetition.x{most}"
            )
        return found

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

    def make_trait(self, copy_internal_type: Any) -> TmemCopyTrait:
        return TmemCopyTrait(self, copy_internal_type)


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

    def __init__(self, repeat: Any = Repetition.x1, pack: Any = Pack.NONE) -> None:
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

    def __init__(self, repeat: Any, unpack: Any = Unpack.NONE) -> None:
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

    shape = _Shape(32, 32, 1)


class Ld16x64bOp(_LdBase):
    """Load 16 lanes, 2 N columns."""

    shape = _Shape(16, 64, 1)


class Ld16x128bOp(_LdBase):
    """Load 16 lanes, 4 N columns."""

    shape = _Shape(16, 128, 2)


class Ld16x256bOp(_LdBase):
    """Load 16 lanes, 8 N columns: registers are those of an accumulator of `mma.sync`."""

    shape = _Shape(16, 256, 4)


class Ld16x32bx2Op(_LdBase):
    """Load 16 lanes, N columns for the first 16 threads and the next N for the others."""

    shape = _Shape(16, 64, 1)


class St32x32bOp(_StBase):
    """Store 32 lanes, N columns: a thread has one lane."""

    shape = _Shape(32, 32, 1)


class St16x64bOp(_StBase):
    """Store 16 lanes, 2 N columns."""

    shape = _Shape(16, 64, 1)


class St16x128bOp(_StBase):
    """Store 16 lanes, 4 N columns."""

    shape = _Shape(16, 128, 2)


class St16x256bOp(_StBase):
    """Store 16 lanes, 8 N columns: registers are those of an accumulator of `mma.sync`."""

    shape = _Shape(16, 256, 4)


class St16x32bx2Op(_StBase):
    """Store 16 lanes, N columns of the first 16 threads and the next N of the others."""

    shape = _Shape(16, 64, 1)


class LdRed32x32bOp(Ld32x32bOp):
    """Load 32 lanes, N columns, and reduce the columns of each lane (sm_103a, sm_110a)."""

    def __init__(
        self, repeat: Any = Repetition.x2, pack: Any = Pack.NONE, redOp: Any = TmemLoadRedOp.MAX, nan: bool = False
    ) -> None:
        super().__init__(repeat, pack)
        self._check_repeat(repeat, 2)
        if not isinstance(redOp, TmemLoadRedOp):
            names = ", ".join(each.name for each in TmemLoadRedOp)
            raise type_error(f"redOp of {type(self).__name__} is {redOp!r}", f"TmemLoadRedOp: {names}")
        self.redOp, self.nan = redOp, nan


class LdRed16x32bx2Op(Ld16x32bx2Op):
    """Load 16 lanes twice N columns, and reduce the columns of each lane (sm_103a, sm_110a)."""

    def __init__(
        self, repeat: Any = Repetition.x2, pack: Any = Pack.NONE, redOp: Any = TmemLoadRedOp.MAX, nan: bool = False,
        half_split_off: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(repeat, pack)
        self._check_repeat(repeat, 2)
        if not isinstance(redOp, TmemLoadRedOp):
            names = ", ".join(each.name for each in TmemLoadRedOp)
            raise type_error(f"redOp of {type(self).__name__} is {redOp!r}", f"TmemLoadRedOp: {names}")
        self.redOp, self.nan, self.half_split_off = redOp, nan, half_split_off


class TmemCopyTrait(CopyTrait):
    """A copy between tensor memory, all of which every thread names, and the registers of a warp."""

    def __init__(self, op: _TmemOp, value_type: Any) -> None:
        bits = element_bits(value_type)
        registers = op.registers_layout()
        memory = make_layout((32, op.shape.registers * op.repeat.value * 32 * 32), stride=(0, 1))
        sides = [recast_layout(bits, 1, side) for side in (memory, registers)]
        self.op = op
        self.memory_side = sides[0]
        if isinstance(op, _StBase):
            sides.reverse()
        super().__init__(value_type, make_layout(32), *sides)

    @property
    def layout_ref_tv(self) -> Layout:
        """The side of tensor memory."""
        return self.memory_side

    def copy(self, src: Any, dst: Any, pred: Any) -> None:
        raise DSLNotImplemented(
            f"a copy with {type(self.op).__name__} is not implemented yet: Kiln has the layouts of tcgen05, not its instructions"
        )


class Cp4x32x128bOp(CopyOp):
    """Copy 32 rows of 16 bytes from shared memory to tensor memory, to each of its four times 32 lanes.

    With `CtaGroup.TWO` each CTA of a pair copies its own shared memory to its own tensor memory.
    """

    def __init__(self, cta_group: Any) -> None:
        if not isinstance(cta_group, CtaGroup):
            raise type_error(f"cta_group of Cp4x32x128bOp is {cta_group!r}", "CtaGroup.ONE or CtaGroup.TWO")
        self.cta_group = cta_group

    def make_trait(self, copy_internal_type: Any) -> SmemToTmemTrait:
        return SmemToTmemTrait(self, copy_internal_type)


class SmemToTmemTrait(CopyTrait):
    """A copy of 512 bytes of shared memory to four places in tensor memory, issued by one thread of a CTA group."""

    def __init__(self, op: Cp4x32x128bOp, value_type: Any) -> None:
        bits, ctas = element_bits(value_type), op.cta_group.value
        source = recast_layout(bits, 1, make_layout((ctas, (32, 128, 4)), stride=(0, (1, 32, 0))))
        target = recast_layout(bits, 1, make_layout((ctas, 4 * 32 * 128), stride=(0, 1)))
        self.op = op
        super().__init__(value_type, make_layout(ctas), source, target)

    @property
    def layout_ref_tv(self) -> Layout:
        """The side of tensor memory."""
        return self.layout_dst_tv

    def copy(self, src: Any, dst: Any, pred: Any) -> None:
        raise DSLNotImplemented(
            "a copy with Cp4x32x128bOp is not implemented yet: Kiln has the layouts of tcgen05, not its instructions"
        )


def make_s2t_copy(atom: Any, tmem_tensor: Any, *, loc: Any = None, ip: Any = None) -> TiledCopy:
    """Return a copy from shared memory to a tensor in tensor memory, of scale factors without modes of stride 0
    (`filter_zeros`)."""
    if not isinstance(atom, CopyAtom) or not isinstance(atom.op, Cp4x32x128bOp):
        raise type_error(f"make_s2t_copy takes an atom of Cp4x32x128bOp, got {atom!r}")
    if not isinstance(tmem_tensor, TracedTensor) or tmem_tensor.memspace is not AddressSpace.tmem:
        raise type_error(f"make_s2t_copy takes a tensor in tensor memory, got {tmem_tensor}")
    bits = element_bits(atom.value_type)
    lane = _LANE_BITS // bits
    values = make_layout((32, 128 // bits, 4), stride=(lane, 1, 32 * lane))
    threads = make_layout(atom.op.cta_group.value, stride=0)
    return make_cotiled_copy(atom, make_layout([threads, values]), tmem_tensor.layout)


def make_tmem_copy(atom: Any, tmem_tensor: Any, *, loc: Any = None, ip: Any = None) -> TiledCopy:
    """Return a copy of 128 threads between registers and a tensor in tensor memory: warp w has lanes 32 w to 32 w + 31.

    Loads take the parts of `partition_S` to registers, stores registers to those of `partition_D`; of tensors in other
    memory of the same shape a thread gets the elements that its registers hold.
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
            f"make_tmem_copy with {op} of a tensor with the layout {data}, which has not all lanes and columns of the copy",
            "fewer repetitions, an operation of 16 lanes for accumulators of 64 rows, or pack for elements of 16 bits in a "
            "column each",
        )
    return make_cotiled_copy(atom, make_layout([threads, values]), data)


def _tmem_op(atom: Any, what: str) -> _TmemOp:
    if not isinstance(atom, CopyAtom) or not isinstance(atom.op, _TmemOp):
        raise type_error(f"{what} takes an atom of a copy of tensor memory, got {atom!r}", "such as Ld32x32bOp")
    return atom.op


def is_tmem_load(atom: Any) -> bool:
    """Return whether an atom loads tensor memory into registers."""
    return isinstance(atom, CopyAtom) and isinstance(atom.op, _LdBase)


def is_tmem_store(atom: Any) -> bool:
    """Return whether an atom stores registers to tensor memory."""
    return isinstance(atom, CopyAtom) and isinstance(atom.op, _StBase)


def get_tmem_copy_properties(atom: Any) -> tuple[int, int, int, Pack | Unpack]:
    """Return the lanes, the bits of a lane, the repetitions and the packing of a copy of tensor memory."""
    op = _tmem_op(atom, "get_tmem_copy_properties")
    bits = 32 if isinstance(op, (Ld16x32bx2Op, St16x32bx2Op)) else op.shape.bits
    return op.shape.lanes, bits, op.repeat.value, op.unpack if isinstance(op, _StBase) else op.pack  # type: ignore[attr-defined]
