"""Mbarriers: 8 bytes of shared memory each, with a phase parity, the pending arrivals and the tx-count of the phase.

A phase is complete when both counts are zero; then the parity flips and the arrivals start over.
"""

from typing import Any

from ...hardware.limits import MBARRIER_ARRIVALS, MBARRIER_BYTES
from ...mlir import ir
from ..declaration import Access, Build, Operand, Operands, Result
from ..definition import I1, I32, Pointer, constant, one_of
from .dialect import CuteNvgpu, wrong_space

Scope: Any = one_of("cta", "cluster")


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


class MbarrierInit(CuteNvgpu.Operation, name="mbarrier_init", writes=Access("pointer", 8), mbarrier="pointer"):
    """Initialise an mbarrier that expects `count` arrivals a phase; its first phase has parity 0."""

    pointer: Operand[Pointer]
    count: Operand[I32]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or _wrong_arrivals(self.count)


mbarrier_init: Build = MbarrierInit.build


class MbarrierInval(CuteNvgpu.Operation, name="mbarrier_inval", mbarrier="pointer"):
    """Invalidate an mbarrier, so that its memory can be used for something else."""

    pointer: Operand[Pointer]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer)


mbarrier_inval: Build = MbarrierInval.build


class MbarrierArrive(CuteNvgpu.Operation, name="mbarrier_arrive", mbarrier="pointer", orders="mbarrier"):
    """Add `bytes` to the tx-count of the phase, then arrive `count` times.

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


mbarrier_arrive: Build = MbarrierArrive.build


class MbarrierExpectTx(CuteNvgpu.Operation, name="mbarrier_expect_tx", mbarrier="pointer"):
    """Add `bytes` to the tx-count of the phase. `peer` as in `mbarrier_arrive`."""

    pointer: Operand[Pointer]
    bytes: Operand[I32]
    peer: Operand[I32]
    scope: Scope

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or _wrong_bytes(self.bytes)


mbarrier_expect_tx: Build = MbarrierExpectTx.build


class MbarrierTryWait(
    CuteNvgpu.Operation, name="mbarrier_try_wait", mbarrier="pointer", orders="mbarrier", waits=True, alias=None
):
    """Test whether the phase of parity `phase` is complete; may wait a while for it. Acquires what was released.

    `limit` is the most nanoseconds it may wait; without it the hardware decides.
    """

    pointer: Operand[Pointer]
    phase: Operand[I32]
    limit: Operands[I32]
    result: Result[I1]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer) or ("has more than one limit" if len(self.limit) > 1 else "")


mbarrier_try_wait: Build = MbarrierTryWait.build


class MbarrierTestWait(
    CuteNvgpu.Operation, name="mbarrier_test_wait", mbarrier="pointer", orders="mbarrier", waits=True, alias=None
):
    """Test whether the phase of parity `phase` is complete, without waiting. Acquires what was released."""

    pointer: Operand[Pointer]
    phase: Operand[I32]
    result: Result[I1]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer)


mbarrier_test_wait: Build = MbarrierTestWait.build


class MbarrierWait(CuteNvgpu.Operation, name="mbarrier_wait", mbarrier="pointer", orders="mbarrier", waits=True):
    """Wait until the phase of parity `phase` is complete."""

    pointer: Operand[Pointer]
    phase: Operand[I32]

    def check(self) -> str:
        return _wrong_mbarrier(self.pointer)


mbarrier_wait: Build = MbarrierWait.build
