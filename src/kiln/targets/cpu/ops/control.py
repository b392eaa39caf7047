"""What a thread asks of its multiprocessor: time, sleep, registers, the launch before this one."""

from __future__ import annotations

from ....mlir import ir
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import Handlers, Types
from ..expand import Expander
from ..runtime.in_kernels import Fields
from ..runtime.records import BlockRecord, FrameHeader
from ..sanitizer.hooks import Hooks

HANDLERS = Handlers()


@HANDLERS.expands("cute_nvgpu.set_max_register")
def _set_max_register(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, _b: Builder) -> list[ir.Value]:
    return []  # registers are not modelled


@HANDLERS.expands("cute_nvgpu.grid_dependency")
def _grid_dependency(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    """Launches are made in order: when a kernel starts, those before it are complete."""
    if op.attributes["action"].value == "wait":
        Hooks(x, op).depends(b)
    return []


@HANDLERS.expands("cute_nvgpu.nanosleep")
def _nanosleep(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    x.let_others_run(op, b, "nanosleep")
    return []


@HANDLERS.expands("cute_nvgpu.clock")
def _clock(x: Expander, op: ir.Operation, _o: Types, results: Types, b: Builder) -> list[ir.Value]:
    now = x.call(b, "kiln_cpu_now", [], int_type(64))
    return [now if results[0] == int_type(64) else b.value("arith.trunci", results[0], (now,))]


@HANDLERS.expands("cute_nvgpu.dynamic_smem_size")
def _dynamic_smem_size(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    return [Fields(b, Fields(b, x.frame_of(op), FrameHeader).load("block"), BlockRecord).load("dynamic_smem")]
