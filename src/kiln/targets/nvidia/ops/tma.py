"""TMA: copies of boxes, and tensor maps in memory."""

from __future__ import annotations

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects import cute, nvgpu
from ....hardware import features
from ....mlir import ir
from ...host.tensor_map_encode import made_in_kernel
from ...lowering.builder import constant_value, int_type, ptr_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, Instruction, emits, pointer_type, shared_address, special_register
from ..expand import Expander

HANDLERS = Handlers()
_RELEASE = "fence.proxy.tensormap::generic.release.{op.scope}"
emits(HANDLERS, {nvgpu.tma.TensorMapRelease: _RELEASE}, features.TENSOR_MAP)

MAP_BYTES = 128


def _box(asm: Instruction, b: DeviceBuilder, map_: ir.Value, coordinates: ir.Value) -> str:
    """Return the operand for a box: `[map, {coordinates}]`."""
    return f"[{asm(_generic(b, map_))}, {asm.group(cute.unpack(coordinates))}]"


def _of_leader(b: DeviceBuilder, address: ir.Value) -> ir.Value:
    """Return the same address in the shared memory of the even CTA of this pair."""
    leader = b.binary("andi", special_register(b, "cluster.ctarank"), b.i32(~1))
    (mapped,) = b.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, leader], [int_type(32)], pure=True)
    return mapped


def _generic(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.cast_space(pointer, ptr_type())


def _rank(coordinates: ir.Value) -> str:
    return f"{len(cute.unpack(coordinates))}d"


@HANDLERS.expands(nvgpu.tma.TensorMapEncode)
def _encode(_x: Expander, op: nvgpu.tma.TensorMapEncode, _b: DeviceBuilder) -> None:
    raise made_in_kernel(op)


@HANDLERS.expands(nvgpu.tma.TensorMapAddress)
def _address(x: Expander, op: nvgpu.tma.TensorMapAddress, _b: DeviceBuilder) -> ir.Value:
    x.require(op, features.TENSOR_MAP)
    return op.map


@HANDLERS.expands(nvgpu.tma.TmaLoad)
def _load(x: Expander, op: nvgpu.tma.TmaLoad, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    offsets = cute.unpack(op.offsets)
    asm = Instruction(b)
    operands = [asm.at(shared_address(b, op.target)), _box(asm, b, op.map, op.coordinates)]
    mbarrier = shared_address(b, op.mbarrier)
    operands.append(asm.at(_of_leader(b, mbarrier) if op.to_leader else mbarrier))
    mode = ".im2col" if offsets else ".tile"
    rank = _rank(op.coordinates)
    alone = not op.multicast and not op.cta_group
    if op.gather4:
        x.require(op, features.TMA_GATHER_TO_CTA if alone else features.TMA_GATHER)
        mode = ".tile::gather4"
        rank = "2d"
    # an address of the CTA's own shared memory is one of the cluster's, too, and the only form of older PTX for sm_90
    space = "cta" if alone and x.arch.number >= 100 else "cluster"
    code = f"cp.async.bulk.tensor.{rank}.shared::{space}.global{mode}.mbarrier::complete_tx::bytes"
    if offsets:
        operands.append(asm.group(offsets))
    if op.multicast:
        code += ".multicast::cluster"
        operands.append(asm(op.mask))
    if op.cta_group:
        x.require(op, features.CTA_PAIRS)
        code += f".cta_group::{op.cta_group}"
    asm.emit_hinted(op, code, operands)


@HANDLERS.expands(nvgpu.tma.TmaStore)
def _store(x: Expander, op: nvgpu.tma.TmaStore, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    asm = Instruction(b)
    operands = [_box(asm, b, op.map, op.coordinates), asm.at(shared_address(b, op.source))]
    if op.scatter4:
        x.require(op, features.TMA_GATHER)
    mode = ".im2col_no_offs" if op.im2col else ".tile::scatter4" if op.scatter4 else ".tile"
    reduction = f".{op.reduction}" if op.reduction is not None else ""
    kind = "cp.reduce.async" if reduction else "cp.async"
    rank = "2d" if op.scatter4 else _rank(op.coordinates)
    code = f"{kind}.bulk.tensor.{rank}.global.shared::cta{reduction}{mode}.bulk_group"
    asm.emit_hinted(op, code, operands)


@HANDLERS.expands(nvgpu.tma.TmaPrefetch)
def _prefetch(x: Expander, op: nvgpu.tma.TmaPrefetch, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    offsets = cute.unpack(op.offsets)
    asm = Instruction(b)
    operands = [_box(asm, b, op.map, op.coordinates)]
    if offsets:
        operands.append(asm.group(offsets))
    mode = ".im2col" if offsets else ".tile"
    asm.emit_hinted(op, f"cp.async.bulk.prefetch.tensor.{_rank(op.coordinates)}.L2.global{mode}", operands)


# --- maps ------------------------------------------------------------------------------------------------------------


@HANDLERS.expands(nvgpu.tma.TensorMapPrefetch)
def _map_prefetch(x: Expander, op: nvgpu.tma.TensorMapPrefetch, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    b.asm("prefetch.tensormap [$0];", "l", [_generic(b, op.map)])


_SPACES = {"gmem": ".global", "smem": ".shared::cta", "generic": ""}
_OF_A_MODE = ("box_dim", "global_dim", "global_stride", "element_stride")
_IMMEDIATE = ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode", "swizzle_atomicity")


@HANDLERS.expands(nvgpu.tma.TensorMapReplace, types=True)
def _replace(x: Expander, op: nvgpu.tma.TensorMapReplace, b: DeviceBuilder) -> None:
    narrow = op.field == "swizzle_atomicity"
    x.require(op, features.TENSOR_MAP_NARROW_EDITS if narrow else features.TENSOR_MAP_EDITS)
    field = op.field
    space = cute.info(op.types.map).space
    asm = Instruction(b)
    place = asm.at(shared_address(b, op.map) if space == "smem" else op.map)
    bits = 64 if field in ("global_address", "global_stride") else 32
    if field in _IMMEDIATE:
        known = constant_value(op.value)
        if known is None:
            raise report_at(
                op.location,
                CompilerDiagnosticError,
                f"the {field} of a tensor map is replaced by a number of the run",
                hint="the instruction has it as part of itself: give a Python number",
            )
        new = str(known)
    else:
        new = asm(op.value)
    ordinal = [str(op.ordinal)] if field in _OF_A_MODE else []
    asm.emit(f"tensormap.replace.tile.{field}{_SPACES[space]}.b1024.b{bits}", place, *ordinal, new)


@HANDLERS.expands(nvgpu.tma.TensorMapPublish)
def _publish(x: Expander, op: nvgpu.tma.TensorMapPublish, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    code = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    operands = [b.cast_space(op.target, pointer_type(1)), shared_address(b, op.source)]
    b.asm(f"{code} [$0], [$1], {MAP_BYTES};", "l,r", operands)


@HANDLERS.expands(nvgpu.tma.TensorMapAcquire)
def _acquire(x: Expander, op: nvgpu.tma.TensorMapAcquire, b: DeviceBuilder) -> None:
    x.require(op, features.TENSOR_MAP)
    code = f"fence.proxy.tensormap::generic.acquire.{op.scope} [$0], {MAP_BYTES};"
    b.asm(code, "l", [_generic(b, op.map)])
