"""tcgen05: allocation of tensor memory, loads and stores. The other instructions are operations."""

from __future__ import annotations

from ....ptx import tcgen05 as forms
from ...lowering.expansion import Handlers
from ..ops import tcgen05
from ..runtime import tensor_memory
from .machine import Fields, Machine, Refused, reads

INSTRUCTIONS = Handlers()


@reads(INSTRUCTIONS, forms.ALLOC)
def _alloc(m: Machine, f: Fields) -> None:
    _refuse_exclusive(f)
    tcgen05.alloc(m.x, m.op, m.b, f.pointer, f.columns, f.cta_group)


@reads(INSTRUCTIONS, forms.DEALLOC)
def _dealloc(m: Machine, f: Fields) -> None:
    _refuse_exclusive(f)
    tcgen05.dealloc(m.x, m.op, m.b, f.address, f.columns, f.cta_group)


def _refuse_exclusive(f: Fields) -> None:
    if f.exclusive:
        raise Refused("an exclusive allocation, of columns without alignment")


# --- registers -------------------------------------------------------------------------------------------------------


@reads(INSTRUCTIONS, forms.LD, forms.LD_HALVES, forms.LD_RED, forms.LD_RED_HALVES)
def _ld(m: Machine, f: Fields) -> None:
    reduction = None
    if f.reduction:
        reduction = tensor_memory.reduction_of(f.reduction, f.type, bool(f.abs), bool(f.nan))
    loaded = tcgen05.load(m.x, m.op, m.b, f.address, f.shape, f.repeat, f.split, bool(f.pack), reduction)
    for target, value in zip((*f.d, f.r) if reduction else f.d, m.b.elements(loaded), strict=True):
        m.set(target, value)


@reads(INSTRUCTIONS, forms.ST, forms.ST_HALVES)
def _st(m: Machine, f: Fields) -> None:
    tcgen05.store(m.x, m.op, m.b, f.address, m.b.vector(f.value), f.shape, f.repeat, f.split, bool(f.unpack))
