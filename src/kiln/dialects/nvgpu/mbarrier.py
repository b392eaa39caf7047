"""Mbarriers: 8 bytes of shared memory each, with a phase parity, and the arrivals and the bytes (tx-count) still missing
from the phase. A phase is complete when neither is missing; then the parity flips and the arrivals start over.
"""

from ...base_dsl.trace import emit, emit_value
from ...hardware.limits import MBARRIER_ARRIVALS, MBARRIER_BYTES
from ...mlir import ir
from ..declaration import Operand, Operands, Result
from ..definition import I1, I32, Pointer, attributes, constant, int_type, one_of
from .dialect import CuteNvgpu, wrong_space

Scope = one_of("cta", "cluster")


def _wrong_mbarrier(pointer: ir.Value) -> str:
    return wrong_space(pointer, "mbarrier", "smem")


def _wrong_count(what: str, value: ir.Value, least: int, most: int) -> str:
    count = constant(value)
    if count is None or least <= count <= most:
        return ""
    return f"counts {count} {what}: {least} to {most} are possible"


def _wrong_arrivals(count: ir.Value) -> str:
    return _wrong_count("arrivals", count, 1, MBARRIER_ARRIVALS)


def _wrong_bytes(count: ir.Value) -> str:
    return _wrong_count("bytes", count, -MBARRIER_BYTES, MBARRIER_BYTES)


class MbarrierInit(CuteNvgpu.Operation, name="mbarrier_init"):
    """Make an mbarrier that expects `count` arrivals a phase; its first phase has parity 0."""

    pointer: Operand[Pointer]
    count: Operand[I32]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or _wrong_arrivals(self.count)


def mbarrier_init(pointer: ir.Value, count: ir.Value) -> None:
    """Make an mbarrier of `count` (i32) arrivals a phase."""
    emit("cute_nvgpu.mbarrier_init", (), (pointer, count))


class MbarrierInval(CuteNvgpu.Operation, name="mbarrier_inval"):
    """Give the memory of an mbarrier back to other uses."""

    pointer: Operand[Pointer]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer)


def mbarrier_inval(pointer: ir.Value) -> None:
    """End an mbarrier."""
    emit("cute_nvgpu.mbarrier_inval", (), (pointer,))


class MbarrierArrive(CuteNvgpu.Operation, name="mbarrier_arrive"):
    """First add `bytes` to the bytes the phase misses, then take `count` from the arrivals it misses.

    `peer` is the rank in the cluster of the block whose mbarrier at the same address is meant; -1: this block's.
    """

    pointer: Operand[Pointer]
    count: Operand[I32]
    bytes: Operand[I32]
    peer: Operand[I32]
    order: one_of("release", "relaxed")
    scope: Scope

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or _wrong_arrivals(self.count) or _wrong_bytes(self.bytes)


def mbarrier_arrive(
    pointer: ir.Value, count: ir.Value, bytes_: ir.Value, peer: ir.Value, order: str, scope: str
) -> None:
    """Expect bytes and arrive; `count`, `bytes_` and `peer` are i32."""
    emit("cute_nvgpu.mbarrier_arrive", (), (pointer, count, bytes_, peer), attributes(order=order, scope=scope))


class MbarrierExpectTx(CuteNvgpu.Operation, name="mbarrier_expect_tx"):
    """Add `bytes` to the bytes the phase misses. `peer` as in `mbarrier_arrive`."""

    pointer: Operand[Pointer]
    bytes: Operand[I32]
    peer: Operand[I32]
    scope: Scope

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or _wrong_bytes(self.bytes)


def mbarrier_expect_tx(pointer: ir.Value, bytes_: ir.Value, peer: ir.Value, scope: str) -> None:
    """Expect bytes; `bytes_` and `peer` are i32."""
    emit("cute_nvgpu.mbarrier_expect_tx", (), (pointer, bytes_, peer), attributes(scope=scope))


class MbarrierTryWait(CuteNvgpu.Operation, name="mbarrier_try_wait"):
    """Whether the phase of parity `phase` is complete; may wait a while for it. Acquires what was released.

    A `limit` says for how many nanoseconds it may wait at most; else the hardware decides.
    """

    pointer: Operand[Pointer]
    phase: Operand[I32]
    limit: Operands[I32]
    result: Result[I1]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or ("has more than one limit" if len(self.limit) > 1 else "")


def mbarrier_try_wait(pointer: ir.Value, phase: ir.Value, *limit: ir.Value) -> ir.Value:
    """Return whether a phase is complete, an i1; may wait, at most for `limit` nanoseconds."""
    return emit_value("cute_nvgpu.mbarrier_try_wait", int_type(1), (pointer, phase, *limit))


class MbarrierTestWait(CuteNvgpu.Operation, name="mbarrier_test_wait"):
    """As `mbarrier_try_wait`, without waiting."""

    pointer: Operand[Pointer]
    phase: Operand[I32]
    result: Result[I1]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer)


def mbarrier_test_wait(pointer: ir.Value, phase: ir.Value) -> ir.Value:
    """Return whether a phase is complete now, an i1."""
    return emit_value("cute_nvgpu.mbarrier_test_wait", int_type(1), (pointer, phase))


class MbarrierWait(CuteNvgpu.Operation, name="mbarrier_wait"):
    """Wait until the phase of parity `phase` is complete."""

    pointer: Operand[Pointer]
    phase: Operand[I32]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer)


def mbarrier_wait(pointer: ir.Value, phase: ir.Value) -> None:
    """Wait for a phase."""
    emit("cute_nvgpu.mbarrier_wait", (), (pointer, phase))
