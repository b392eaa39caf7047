"""TMA copies, and edits of tensor maps."""

from __future__ import annotations

from ....ptx import tma
from ...lowering.expansion import Handlers
from ..ops import tma as tma_ops
from .machine import Fields, Machine, Refused, reads

INSTRUCTIONS = Handlers()


@reads(INSTRUCTIONS, tma.LOAD, tma.LOAD_ROWS, tma.LOAD_PIXELS)
def _load(m: Machine, f: Fields) -> None:
    pixels = f.form is tma.LOAD_PIXELS
    if pixels and f.mode != "im2col":
        raise Refused("wide columns of pixels")
    tma_ops.load(
        m.x,
        m.op,
        m.b,
        f.map,
        f.target,
        f.mbarrier,
        f.coordinates,
        f.offsets or [],
        f.mask,
        gathers=f.form is tma.LOAD_ROWS,
        cta_group=f.cta_group or 1,
    )


@reads(INSTRUCTIONS, tma.STORE, tma.STORE_ROWS, tma.STORE_PIXELS, tma.REDUCE, tma.REDUCE_PIXELS)
def _store(m: Machine, f: Fields) -> None:
    reduction = f.reduction or ""
    im2col = f.form in (tma.STORE_PIXELS, tma.REDUCE_PIXELS)
    scatters = f.form is tma.STORE_ROWS
    tma_ops.store(m.x, m.op, m.b, f.map, f.source, f.coordinates, reduction, im2col, scatters)


@reads(INSTRUCTIONS, tma.PREFETCH, tma.PREFETCH_ROWS, tma.PREFETCH_PIXELS, tma.MAP_PREFETCH)
def _prefetch(_m: Machine, _f: Fields) -> None:
    """Do nothing: caches are not modelled."""


@reads(INSTRUCTIONS, tma.PUBLISH)
def _publish(m: Machine, f: Fields) -> None:
    tma_ops.publish(m.x, m.op, m.b, f.target, f.source)


@reads(
    INSTRUCTIONS, tma.REPLACE_ADDRESS, tma.REPLACE_STRIDE, tma.REPLACE_RANK, tma.REPLACE_EXTENT, tma.REPLACE_CONSTANT
)
def _replace(m: Machine, f: Fields) -> None:
    ordinal = f.ordinal or 0
    value = m.b.i32(f.value) if f.form is tma.REPLACE_CONSTANT else f.value
    tma_ops.replace(m.x, m.op, m.b, m.pointer(f.map, f.space or ""), f.field, ordinal, value)
