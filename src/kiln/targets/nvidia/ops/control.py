"""What a thread asks of its multiprocessor: time, sleep, registers, the launch before this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import ir
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import REGISTER, DeviceBuilder

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands("cute_nvgpu.clock")
def _clock(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    which = op.attributes["which"].value
    width = 32 if which == "clock" else 64
    return b.asm(f"mov.u{width} $0, %{which};", f"={REGISTER[width]}", [], [results[0]])


@HANDLERS.expands("cute_nvgpu.nanosleep")
def _nanosleep(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("nanosleep.u32 $0;", "r", [op.operands[0]])
    return []


@HANDLERS.expands("cute_nvgpu.set_max_register")
def _set_max_register(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.SET_MAX_REGISTERS)
    b.asm(f"setmaxnreg.{op.attributes['action'].value}.sync.aligned.u32 {op.attributes['count'].value};", "")
    return []


@HANDLERS.expands("cute_nvgpu.grid_dependency")
def _grid_dependency(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.GRID_DEPENDENCY)
    b.asm(f"griddepcontrol.{op.attributes['action'].value};", "")
    return []


@HANDLERS.expands("cute_nvgpu.dynamic_smem_size")
def _dynamic_smem_size(x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    made = b.asm("mov.u32 $0, %dynamic_smem_size;", "=r", [], [int_type(32)], pure=True)
    x.kernel.smem_sizes += [value.owner.operation for value in made]
    return made
