"""Clocks, registers per thread, dependent grids, and the size of shared memory."""

from ...base_dsl.trace import emit_value
from ...hardware import features
from ...hardware.limits import REGISTER_UNIT, SET_REGISTERS
from ...mlir import ir
from ...ptx import control as forms
from ..declaration import PURE, Build, Operand, Result, attributes
from ..definition import I32, I64, int_type, one_of
from .dialect import CuteNvgpu


class Clock(CuteNvgpu.Operation, name="clock", varies="thread", stays="time passes"):
    """Read a counter: `clock` (cycles, i32), `clock64` (cycles, i64) or `globaltimer` (nanoseconds, i64)."""

    result: Result[I32 | I64]
    which: one_of("clock", "clock64", "globaltimer")

    def check(self) -> str:
        which = self.which
        width = 32 if self.which == "clock" else 64
        return "" if self.result.type == int_type(width) else f"'{which}' gives {self.result.type}: it is an i{width}"


def clock(which: str) -> ir.Value:
    """Return a counter: an i32 for `clock`, else an i64."""
    return emit_value("cute_nvgpu.clock", int_type(32 if which == "clock" else 64), (), attributes(which=which))


class Nanosleep(CuteNvgpu.Operation, name="nanosleep", ptx=forms.NANOSLEEP, stays="time passes"):
    """Suspend the thread for about `duration` nanoseconds."""

    duration: Operand[I32]


nanosleep: Build = Nanosleep.build


class SetMaxRegister(CuteNvgpu.Operation, name="set_max_register", converged="warpgroup", waits=True):
    """Release or request registers, down or up to `count` (a multiple of 8 in 24 to 256) for each thread.

    All warps of a warpgroup execute it.
    """

    count: ir.IntegerAttr
    action: one_of("inc", "dec")

    def check(self) -> str:
        count = self.count
        least, most = SET_REGISTERS
        if least <= count <= most and not count % REGISTER_UNIT:
            return ""
        return f"is to {count} registers: a multiple of {REGISTER_UNIT} from {least} to {most}"


set_max_register: Build = SetMaxRegister.build


class GridDependency(
    CuteNvgpu.Operation,
    name="grid_dependency",
    ptx=forms.GRID_DEPENDENCY,
    feature=features.GRID_DEPENDENCY,
    orders="grid",
):
    """`wait` until the grids this one depends on are complete, or allow (`launch_dependents`) the next to start."""

    action: one_of("wait", "launch_dependents")


grid_dependency: Build = GridDependency.build


class DynamicSmemSize(CuteNvgpu.Operation, name="dynamic_smem_size", traits=PURE, varies=""):
    """Return the bytes of shared memory of the CTA; in a kernel with `dynamic_smem`, of the dynamic memory alone."""

    result: Result[I32]


dynamic_smem_size: Build = DynamicSmemSize.build
