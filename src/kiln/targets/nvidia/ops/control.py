"""Clocks, `nanosleep`, `setmaxnreg`, and programmatic dependencies between launches."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ....ptx import control
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..device_builder import REGISTER, DeviceBuilder, prints
from ..expand import Expander

HANDLERS = Handlers()
prints(HANDLERS, {nvgpu.control.SetMaxRegister: control.SET_MAX_REGISTERS}, features.SET_MAX_REGISTERS)


@HANDLERS.expands(nvgpu.control.Clock)
def _clock(_x: Expander, op: nvgpu.control.Clock, b: DeviceBuilder) -> list[ir.Value]:
    which = op.which
    width = 32 if which == "clock" else 64
    return b.asm(f"mov.u{width} $0, %{which};", f"={REGISTER[width]}", [], [op.result.type])


@HANDLERS.expands(nvgpu.control.DynamicSmemSize)
def _dynamic_smem_size(x: Expander, _op: nvgpu.control.DynamicSmemSize, b: DeviceBuilder) -> list[ir.Value]:
    size = b.asm("mov.u32 $0, %dynamic_smem_size;", "=r", [], [int_type(32)], pure=True)
    x.kernel.smem_sizes += [value.owner.operation for value in size]
    return size
