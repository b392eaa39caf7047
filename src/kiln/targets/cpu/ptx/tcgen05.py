"""tcgen05: allocation of tensor memory, loads and stores. The other instructions are operations."""

from __future__ import annotations

from ....ptx import tcgen05 as forms
from ...lowering.builder import parsed_type
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


def _split(f: Fields) -> int | None:
    """Return the columns between the halves of 16x32bx2."""
    return f.split if "split" in f.form.names else None


@reads(INSTRUCTIONS, forms.LD, forms.LD_HALVES, forms.LD_RED, forms.LD_RED_HALVES)
def _ld(m: Machine, f: Fields) -> None:
    targets = f.d
    reduction = None
    if reduces := "reduction" in f.form.fields:
        targets = (*f.d, f.r)
        reduction = tensor_memory.reduction_of(f.reduction, f.type, bool(f.abs), bool(f.nan))
    packs = not reduces and bool(f.pack)
    loaded = tcgen05.load(m.x, m.op, m.b, f.address, f.shape, f.repeat, _split(f), packs, reduction)
    for target, value in zip(targets, m.b.elements(loaded), strict=True):
        m.set(target, value)


@reads(INSTRUCTIONS, forms.ST, forms.ST_HALVES)
def _st(m: Machine, f: Fields) -> None:
    value = m.b.value("vector.from_elements", parsed_type(f"vector<{len(f.value)}xi32>"), f.value)
    tcgen05.store(m.x, m.op, m.b, f.address, value, f.shape, f.repeat, _split(f), bool(f.unpack))
