"""TMA: copies of boxes, and tensor maps in memory."""

from __future__ import annotations

from typing import Any

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects import cute, nvgpu
from ....hardware import features
from ....mlir import ir
from ....ptx import control, sync, tma
from ....ptx.form import Form
from ...host.tensor_map_encode import refused_in_kernel
from ...lowering.builder import constant_value, int_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, parts_of, prints, shared_address, special_register
from ..expand import Expander

HANDLERS = Handlers()
prints(HANDLERS, {nvgpu.tma.TensorMapPrefetch: tma.MAP_PREFETCH}, features.TENSOR_MAP)
prints(HANDLERS, {nvgpu.tma.TensorMapPublish: tma.PUBLISH}, features.TENSOR_MAP, scope="gpu")
prints(HANDLERS, {nvgpu.tma.TensorMapAcquire: sync.FENCE_OF_MAP}, features.TENSOR_MAP)


def _of_leader(b: DeviceBuilder, address: ir.Value) -> ir.Value:
    """Return the same address in the shared memory of the even CTA of this pair."""
    leader = b.binary("andi", special_register(b, "cluster.ctarank"), b.i32(~1))
    (mapped,) = b.ptx(control.MAPA, [int_type(32)], pure=True, space="shared::cluster", address=address, rank=leader)
    return mapped


@HANDLERS.expands(nvgpu.tma.TensorMapRelease)
def _release(x: Expander, op: nvgpu.tma.TensorMapRelease, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    b.ptx(sync.FENCE, kind=f"proxy.tensormap::generic.release.{op.scope}")


def _box(op: nvgpu.tma.TmaLoad | nvgpu.tma.TmaStore | nvgpu.tma.TmaPrefetch, form: Form, mode: str) -> dict[str, Any]:
    """Return the parts of a copy of a box: coordinates are vectors, and give the rank."""
    parts = parts_of(op, form) | {"coordinates": cute.unpack(op.coordinates)}
    if "rank" in form.names:
        parts |= {"rank": len(parts["coordinates"]), "mode": mode}
    return parts


@HANDLERS.expands(nvgpu.tma.TensorMapEncode)
def _encode(_x: Expander, op: nvgpu.tma.TensorMapEncode, _b: DeviceBuilder) -> None:
    raise refused_in_kernel(op)


@HANDLERS.expands(nvgpu.tma.TensorMapAddress)
def _address(x: Expander, op: nvgpu.tma.TensorMapAddress, _b: DeviceBuilder) -> ir.Value:
    x.require(op, features.TENSOR_MAP)
    return op.map


@HANDLERS.expands(nvgpu.tma.TmaLoad)
def _load(x: Expander, op: nvgpu.tma.TmaLoad, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    alone = not op.multicast and not op.cta_group
    if op.gather4:
        x.require(op, features.TMA_GATHER_TO_CTA if alone else features.TMA_GATHER)
    if op.cta_group:
        x.require(op, features.CTA_PAIRS)
    offsets = cute.unpack(op.offsets)
    form = tma.LOAD_PIXELS if offsets else tma.LOAD_ROWS if op.gather4 else tma.LOAD
    parts = _box(op, form, "im2col" if offsets else "tile")
    # an address of the CTA's own shared memory is one of the cluster's, too, and the only form of older PTX for sm_90
    parts["space"] = "cta" if alone and x.arch.number >= 100 else "cluster"
    if op.to_leader:
        parts["mbarrier"] = _of_leader(b, shared_address(b, op.mbarrier))
    if offsets:
        parts["offsets"] = offsets
    b.ptx(form, **parts)


@HANDLERS.expands(nvgpu.tma.TmaStore)
def _store(x: Expander, op: nvgpu.tma.TmaStore, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    if op.scatter4:
        x.require(op, features.TMA_GATHER)
    if op.reduction is not None:
        form = tma.REDUCE_PIXELS if op.im2col else tma.REDUCE
    else:
        form = tma.STORE_PIXELS if op.im2col else tma.STORE_ROWS if op.scatter4 else tma.STORE
    b.ptx(form, **_box(op, form, "im2col_no_offs" if op.im2col else "tile"))


@HANDLERS.expands(nvgpu.tma.TmaPrefetch)
def _prefetch(x: Expander, op: nvgpu.tma.TmaPrefetch, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    offsets = cute.unpack(op.offsets)
    if offsets:
        parts = _box(op, tma.PREFETCH_PIXELS, "im2col")
        parts["offsets"] = offsets
        b.ptx(tma.PREFETCH_PIXELS, **parts)
    else:
        b.ptx(tma.PREFETCH, **_box(op, tma.PREFETCH, "tile"))


# --- maps ------------------------------------------------------------------------------------------------------------


_SPACES = {"gmem": "global", "smem": "shared::cta", "generic": None}


@HANDLERS.expands(nvgpu.tma.TensorMapReplace, types=True)
def _replace(x: Expander, op: nvgpu.tma.TensorMapReplace, b: DeviceBuilder) -> None:
    narrow = op.field == "swizzle_atomicity"
    x.require(op, features.TENSOR_MAP_NARROW_EDITS if narrow else features.TENSOR_MAP_EDITS)
    space = cute.info(op.types.map).space
    form = tma.replacement(op.field)
    parts = parts_of(op, form) | {"space": _SPACES[space]}
    if space == "smem":
        parts["map"] = shared_address(b, op.map)
    if form is tma.REPLACE_CONSTANT:
        parts["value"] = constant_value(op.value)
        if parts["value"] is None:
            raise report_at(
                op.location,
                CompilerDiagnosticError,
                f"the {op.field} of a tensor map is replaced by a number of the run",
                hint="the instruction has it as part of itself: give a Python number",
            )
    b.ptx(form, **parts)
