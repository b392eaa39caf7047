"""Clocks, `nanosleep`, `setmaxnreg`, and programmatic dependencies between launches."""

from __future__ import annotations

from ....dialects import cute, nvgpu
from ....mlir import ir
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import AnyOp, Handlers
from ..expand import Expander
from ..runtime.record_access import block_of
from ..sanitizer.hooks import hooks_of

HANDLERS = Handlers()


@HANDLERS.calls(nvgpu.control.SetMaxRegister, "action", "count")
def set_registers(x: Expander, op: ir.Operation, b: Builder, action: str, count: int) -> None:
    """Expand `setmaxnreg` if a launch names the CTAs per SM: these determine how many registers each CTA has."""
    blocks = _blocks_together(x)
    if not blocks:
        return
    frame = x.frame_of(op)
    site, group_site = (
        x.module.site(op, "registers", what, x.function.name)
        for what in (f"setmaxnreg.{action} to {count}", "setmaxnreg")
    )
    numbers = [count, int(action == "inc"), blocks, site, group_site]

    def again(c: Builder) -> tuple[ir.Value]:
        status = x.call(c, "kiln_cpu_set_registers", [frame, *(c.i32(number) for number in numbers)], int_type(32))
        return (c.compare("ne", status, 0),)

    loop, _ = b.while_(again)
    x.suspend(loop)


def _blocks_together(x: Expander) -> int:
    """Return how many blocks per SM launches of the kernel ask for; 0 if none does."""
    launches = cute.Launch.all_in(x.module.module.operation)
    return max((op.min_blocks or 0 for op in launches if op.kernel == x.function.name), default=0)


@HANDLERS.calls(nvgpu.control.GridDependency, "action")
def _grid_dependency(x: Expander, op: AnyOp, b: Builder, action: str) -> None:
    """Wait for earlier launches. They are complete: launches run in order."""
    if action == "wait":
        hooks_of(x, op).depends(b)


@HANDLERS.calls(nvgpu.control.Nanosleep)
def _nanosleep(x: Expander, op: AnyOp, b: Builder) -> None:
    x.let_others_run(op, b, "nanosleep")


@HANDLERS.expands(nvgpu.control.Clock)
def _clock(x: Expander, op: nvgpu.control.Clock, b: Builder) -> ir.Value:
    now = x.call(b, "kiln_cpu_now", [], int_type(64))
    return now if op.result.type == int_type(64) else b.value("arith.trunci", op.result.type, (now,))


@HANDLERS.expands(nvgpu.control.DynamicSmemSize)
def _dynamic_smem_size(x: Expander, op: nvgpu.control.DynamicSmemSize, b: Builder) -> ir.Value:
    return block_of(b, x.frame_of(op)).load("dynamic_smem")
