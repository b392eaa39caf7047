"""Accesses to multicast memory, as PTX."""

from __future__ import annotations

from typing import TypedDict

from ....dialects import nvgpu
from ....dialects.nvgpu.multicast import words_of
from ....mlir import ir
from ....ptx import multicast
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder
from ..expand import Expander

HANDLERS = Handlers()
Multicast = nvgpu.multicast.MultimemLoadReduce | nvgpu.multicast.MultimemStore | nvgpu.multicast.MultimemReduce


class _Parts(TypedDict, total=False):
    order: str
    scope: str
    space: str
    type: str
    pointer: ir.Value
    count: int


def _parts(op: Multicast, words: int) -> _Parts:
    parts = _Parts(order=op.order, scope=op.scope, space="global", type=op.type, pointer=op.pointer)
    if words > 1:
        parts["count"] = words
    return parts


@HANDLERS.expands(nvgpu.multicast.MultimemLoadReduce)
def _load_reduce(x: Expander, op: nvgpu.multicast.MultimemLoadReduce, b: DeviceBuilder) -> ir.Value:
    words = words_of(op.result)
    form = multicast.LOAD_REDUCE_VECTOR if words > 1 else multicast.LOAD_REDUCE
    register = int_type(64 if "64" in op.type else 32)
    loaded = b.ptx(form, [register] * words, **_parts(op, words), kind=op.kind, acc=op.acc or None)
    return b.vector(loaded) if words > 1 else loaded[0]


def _value(b: DeviceBuilder, value: ir.Value) -> list[ir.Value] | ir.Value:
    return b.elements(value) if words_of(value) > 1 else value


@HANDLERS.expands(nvgpu.multicast.MultimemStore)
def _store(x: Expander, op: nvgpu.multicast.MultimemStore, b: DeviceBuilder) -> None:
    words = words_of(op.value)
    form = multicast.STORE_VECTOR if words > 1 else multicast.STORE
    b.ptx(form, **_parts(op, words), value=_value(b, op.value))


@HANDLERS.expands(nvgpu.multicast.MultimemReduce)
def _reduce(x: Expander, op: nvgpu.multicast.MultimemReduce, b: DeviceBuilder) -> None:
    words = words_of(op.value)
    form = multicast.REDUCE_VECTOR if words > 1 else multicast.REDUCE
    b.ptx(form, **_parts(op, words), kind=op.kind, value=_value(b, op.value))
