"""Clocks, registers, dependent grids, and what a block was launched with."""

from ...base_dsl.trace import emit, emit_value
from ...hardware.limits import REGISTER_UNIT, SET_REGISTERS
from ...mlir import ir
from ..declaration import PURE, Operand, Result
from ..definition import I32, I64, attributes, int_type, one_of
from .dialect import CuteNvgpu


class Clock(CuteNvgpu.Operation, name="clock"):
    """A counter: `clock` (cycles, i32), `clock64` (cycles, i64) or `globaltimer` (nanoseconds, i64)."""

    result: Result[I32 | I64]
    which: one_of("clock", "clock64", "globaltimer")

    def check(self) -> str:
        which, width = self.which, 32 if self.which == "clock" else 64
        return "" if self.result.type == int_type(width) else f"'{which}' gives {self.result.type}: it is an i{width}"


def clock(which: str) -> ir.Value:
    """Return a counter: an i32 for `clock`, else an i64."""
    return emit_value("cute_nvgpu.clock", int_type(32 if which == "clock" else 64), (), attributes(which=which))


class Nanosleep(CuteNvgpu.Operation, name="nanosleep"):
    """Do nothing for about so many nanoseconds."""

    duration: Operand[I32]


def nanosleep(duration: ir.Value) -> None:
    """Do nothing for about `duration` (i32) nanoseconds."""
    emit("cute_nvgpu.nanosleep", (), (duration,))


class SetMaxRegister(CuteNvgpu.Operation, name="set_max_register"):
    """Give registers back or ask for more, down or up to `count` (a multiple of 8 in 24 to 256) for each thread.

    All warps of a warpgroup execute it.
    """

    count: ir.IntegerAttr
    action: one_of("inc", "dec")

    def check(self) -> str:
        count, (least, most) = self.count, SET_REGISTERS
        if least <= count <= most and not count % REGISTER_UNIT:
            return ""
        return f"is to {count} registers: a multiple of {REGISTER_UNIT} from {least} to {most}"


def set_max_register(action: str, count: int) -> None:
    """Change the registers of each thread of the warpgroup."""
    emit("cute_nvgpu.set_max_register", (), (), attributes(count=count, action=action))


class GridDependency(CuteNvgpu.Operation, name="grid_dependency"):
    """`wait` until the grids this one depends on are complete, or allow (`launch_dependents`) the next to start."""

    action: one_of("wait", "launch_dependents")


def grid_dependency(action: str) -> None:
    """Wait for grids before, or let the next start."""
    emit("cute_nvgpu.grid_dependency", (), (), attributes(action=action))


class DynamicSmemSize(CuteNvgpu.Operation, name="dynamic_smem_size", traits=PURE):
    """Bytes of shared memory of the block; in a kernel with `dynamic_smem`, of that memory alone, as the launch gave them."""

    result: Result[I32]


def dynamic_smem_size() -> ir.Value:
    """Return a number of bytes, an i32."""
    return emit_value("cute_nvgpu.dynamic_smem_size", int_type(32))
