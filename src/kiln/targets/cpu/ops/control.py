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
def _set_max_register(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    set_registers(x, op, b, op.attributes["action"].value, op.attributes["count"].value)
    return []


def set_registers(x: Expander, op: ir.Operation, b: Builder, action: str, count: int) -> None:
    """`setmaxnreg`, if it is known how many registers there are: as many as the blocks that a launch asks for leave to each."""
    blocks = _blocks_together(x)
    if not blocks:
        return
    frame = x.frame_of(op)
    site, group_site = (
        x.module.site(op, "registers", what, x.function.name)
        for what in (f"setmaxnreg.{action} to {count}", "setmaxnreg")
    )
    given = [count, int(action == "inc"), blocks, site, group_site]

    def again(c: Builder) -> tuple[ir.Value]:
        status = x.call(c, "kiln_cpu_set_registers", [frame, *(c.i32(number) for number in given)], int_type(32))
        return (c.compare("ne", status, c.i32(0)),)

    loop, _ = b.while_(again)
    x.suspend(loop)


def _blocks_together(x: Expander) -> int:
    """How many blocks of the running kernel a launch wants on a multiprocessor; 0: it does not say."""
    found: list[int] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if (
            op.name == "cute.launch"
            and op.attributes["kernel"].value == x.function.name
            and "cute.min_blocks" in op.attributes
        ):
            found.append(op.attributes["cute.min_blocks"].value)
        return ir.WalkResult.ADVANCE

    x.module.module.operation.walk(visit)
    return max(found, default=0)


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
