"""The tensor memory accelerator: copies of boxes, and tensor maps in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects import cute
from ....dialects.definition import text
from ....hardware import features
from ....mlir import ir
from ...host.tensor_map_encode import made_in_kernel
from ...lowering.builder import constant_value, ptr_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, pointer_type, shared_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..expand import Expander

HANDLERS = Handlers()

MAP_BYTES = 128


class _Asm:
    """Inline PTX whose operands are numbered as they are added."""

    def __init__(self) -> None:
        self.operands: list[ir.Value] = []
        self.letters: list[str] = []

    def __call__(self, value: ir.Value, letter: str) -> str:
        self.operands.append(value)
        self.letters.append(letter)
        return f"${len(self.operands) - 1}"

    def group(self, values: Sequence[ir.Value], letter: str) -> str:
        return "{" + ", ".join(self(value, letter) for value in values) + "}"

    def box(self, b: DeviceBuilder, map_: ir.Value, coordinates: ir.Value) -> str:
        """A place in a tensor."""
        return f"[{self(_generic(b, map_), 'l')}, {self.group(cute.unpack(coordinates), 'r')}]"

    def emit(self, b: DeviceBuilder, code: str) -> list[ir.Value]:
        b.asm(code, ",".join(self.letters), self.operands)
        return []


def _generic(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.cast_space(pointer, ptr_type())


def _rank(coordinates: ir.Value) -> str:
    return f"{len(cute.unpack(coordinates))}d"


@HANDLERS.expands("cute_nvgpu.tensor_map_encode")
def _encode(_x: Expander, op: ir.Operation, _o: Types, _r: Types, _b: DeviceBuilder) -> list[ir.Value]:
    raise made_in_kernel(op)


@HANDLERS.expands("cute_nvgpu.tensor_map_address")
def _address(x: Expander, op: ir.Operation, _o: Types, _r: Types, _b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    return [op.operands[0]]


@HANDLERS.expands("cute_nvgpu.tma_load")
def _load(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    map_, target, mbarrier, coordinates, packed, mask, policy = op.operands
    offsets, asm = cute.unpack(packed), _Asm()
    # an address of the block's own shared memory is one of the cluster's, too
    operands = [f"[{asm(shared_address(b, target), 'r')}]", asm.box(b, map_, coordinates)]
    operands.append(f"[{asm(shared_address(b, mbarrier), 'r')}]")
    mode = ".im2col" if offsets else ".tile"
    code = f"cp.async.bulk.tensor.{_rank(coordinates)}.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
    if offsets:
        operands.append(asm.group(offsets, "h"))
    if "multicast" in op.attributes:
        code += ".multicast::cluster"
        operands.append(asm(mask, "h"))
    if "hint" in op.attributes:
        code += ".L2::cache_hint"
        operands.append(asm(policy, "l"))
    return asm.emit(b, f"{code} {', '.join(operands)};")


@HANDLERS.expands("cute_nvgpu.tma_store")
def _store(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    map_, source, coordinates, policy = op.operands
    asm = _Asm()
    operands = [asm.box(b, map_, coordinates), f"[{asm(shared_address(b, source), 'r')}]"]
    mode = ".im2col_no_offs" if "im2col" in op.attributes else ".tile"
    reduction = f".{text(op, 'reduction')}" if "reduction" in op.attributes else ""
    kind = "cp.reduce.async" if reduction else "cp.async"
    code = f"{kind}.bulk.tensor.{_rank(coordinates)}.global.shared::cta{reduction}{mode}.bulk_group"
    if "hint" in op.attributes:
        code += ".L2::cache_hint"
        operands.append(asm(policy, "l"))
    return asm.emit(b, f"{code} {', '.join(operands)};")


@HANDLERS.expands("cute_nvgpu.tma_prefetch")
def _prefetch(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    map_, coordinates, packed = op.operands
    offsets, asm = cute.unpack(packed), _Asm()
    operands = [asm.box(b, map_, coordinates)]
    if offsets:
        operands.append(asm.group(offsets, "h"))
    mode = ".im2col" if offsets else ".tile"
    return asm.emit(b, f"cp.async.bulk.prefetch.tensor.{_rank(coordinates)}.L2.global{mode} {', '.join(operands)};")


# --- maps ------------------------------------------------------------------------------------------------------------


@HANDLERS.expands("cute_nvgpu.tensor_map_prefetch")
def _map_prefetch(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    b.asm("prefetch.tensormap [$0];", "l", [_generic(b, op.operands[0])])
    return []


_SPACES = {"gmem": ".global", "smem": ".shared::cta", "generic": ""}
_OF_A_MODE = ("box_dim", "global_dim", "global_stride", "element_stride")
_IMMEDIATE = ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode")


@HANDLERS.expands("cute_nvgpu.tensor_map_replace")
def _replace(x: Expander, op: ir.Operation, operands: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP_EDITS)
    map_, value = op.operands
    field, space = text(op, "field"), cute.info(operands[0]).space
    asm = _Asm()
    place = f"[{asm(shared_address(b, map_), 'r') if space == 'smem' else asm(map_, 'l')}]"
    bits = 64 if field in ("global_address", "global_stride") else 32
    if field in _IMMEDIATE:
        known = constant_value(value)
        if known is None:
            raise report_at(
                op.location, CompilerDiagnosticError, f"the {field} of a tensor map is replaced by a number of the run",
                hint="the instruction has it as part of itself: give a Python number",
            )  # fmt: skip
        new = str(known)
    else:
        new = asm(value, "l" if bits == 64 else "r")
    ordinal = f", {op.attributes['ordinal'].value}" if field in _OF_A_MODE else ""
    return asm.emit(b, f"tensormap.replace.tile.{field}{_SPACES[space]}.b1024.b{bits} {place}{ordinal}, {new};")


@HANDLERS.expands("cute_nvgpu.tensor_map_publish")
def _publish(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    target, source = op.operands
    code = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    operands = [b.cast_space(target, pointer_type(1)), shared_address(b, source)]
    b.asm(f"{code} [$0], [$1], {MAP_BYTES};", "l,r", operands)
    return []


@HANDLERS.expands("cute_nvgpu.tensor_map_release")
def _release(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    b.asm(f"fence.proxy.tensormap::generic.release.{text(op, 'scope')};", "")
    return []


@HANDLERS.expands("cute_nvgpu.tensor_map_acquire")
def _acquire(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.TENSOR_MAP)
    code = f"fence.proxy.tensormap::generic.acquire.{text(op, 'scope')} [$0], {MAP_BYTES};"
    b.asm(code, "l", [_generic(b, op.operands[0])])
    return []
