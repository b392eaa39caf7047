"""tcgen05: allocation of tensor memory, MMAs, copies, loads, stores, waits, commits."""

from __future__ import annotations

from ....mlir import ir
from ....ptx import tcgen05 as forms
from ...lowering.builder import parsed_type
from ...lowering.expansion import Handlers
from ..ops import tcgen05
from ..runtime import tensor_memory, umma
from .machine import Fields, Machine, Refused, reads

INSTRUCTIONS = Handlers()


@reads(INSTRUCTIONS, forms.WAIT)
def _wait(m: Machine, f: Fields) -> None:
    tcgen05.wait(m.x, m.op, m.b, f.kind)


@reads(INSTRUCTIONS, forms.FENCE)
def _fence(m: Machine, _f: Fields) -> None:
    m.x.kernel_only(m.op)


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


@reads(INSTRUCTIONS, forms.RELINQUISH)
def _relinquish(m: Machine, f: Fields) -> None:
    tcgen05.relinquish(m.x, m.op, m.b, f.cta_group)


# --- MMA, copy, shift, commit ----------------------------------------------------------------------------------------


@reads(INSTRUCTIONS, forms.MMA, forms.MMA_TMEM)
def _mma(m: Machine, f: Fields) -> None:
    flags = umma.SHIFTS_A if f.form is forms.MMA_TMEM and f.a_shift else 0
    fields = {"cta_group": f.cta_group}
    if f.scale_input_d is not None:
        fields["scale_input_d"] = f.scale_input_d
    lanes = f.disable_output_lane or []
    tcgen05.issue_mma(m.x, m.op, m.b, f.kind, _operands(f), f.accumulate, flags, lanes, **fields)


@reads(INSTRUCTIONS, forms.MMA_BLOCK_SCALE, forms.MMA_BLOCK_SCALE_TMEM)
def _mma_block_scale(m: Machine, f: Fields) -> None:
    kind, block = f.scaling
    operands = _operands(f) | {"sfa": f.sfa, "sfb": f.sfb}
    fields = {"cta_group": f.cta_group, "vector": block}
    tcgen05.issue_mma(m.x, m.op, m.b, kind, operands, f.accumulate, 0, [], **fields)


@reads(INSTRUCTIONS, forms.MMA_WS, forms.MMA_WS_TMEM)
def _mma_ws(m: Machine, f: Fields) -> None:
    operands = _operands(f)
    if f.zero_column_mask is not None:
        operands["zero_columns"] = f.zero_column_mask
    tcgen05.issue_mma(m.x, m.op, m.b, f.kind, operands, f.accumulate, umma.WS, [], cta_group=1)


def _operands(f: Fields) -> dict[str, ir.Value]:
    return {"d": f.d, "a": f.a, "b": f.b, "idesc": f.idesc}


@reads(INSTRUCTIONS, forms.CP)
def _cp(m: Machine, f: Fields) -> None:
    tcgen05.cp(m.x, m.op, m.b, f.address, f.descriptor, f.shape, f.format, f.cta_group)


@reads(INSTRUCTIONS, forms.SHIFT)
def _shift(m: Machine, f: Fields) -> None:
    tcgen05.shift(m.x, m.op, m.b, f.address, f.cta_group)


@reads(INSTRUCTIONS, forms.COMMIT)
def _commit(m: Machine, f: Fields) -> None:
    tcgen05.commit(m.x, m.op, m.b, f.mbarrier, [] if f.mask is None else [f.mask], f.cta_group)


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
