"""Mbarriers.

An mbarrier is a word of shared memory. Bits 0 to 19: arrivals missing; 20 to 39: arrivals of a phase; 40 to 62: bytes
missing; 63: parity of the phase.
"""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware.limits import MBARRIER_ARRIVALS, MBARRIER_BYTES
from ....mlir import ir
from ...lowering.builder import Builder, constant_value, int_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..loop_iterations import loops_around
from ..runtime.deadlock_report import ALWAYS
from ..runtime.record_access import Fields, wait, wait_softly
from ..runtime.records import FrameHeader
from ..sanitizer.hooks import hooks_of
from .cluster import peer

HANDLERS = Handlers()


@HANDLERS.calls(nvgpu.mbarrier.MbarrierInit, "pointer", "count")
def mbarrier_init(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, count: ir.Value) -> None:
    """Initialize an mbarrier."""
    _check_arrivals(x, op, b, count)
    pointer = hooks_of(x, op).mbarrier_init(b, pointer, count)
    wide = b.value("arith.extui", int_type(64), (count,))
    b.store(b.binary("ori", wide, b.binary("shli", wide, 20)), pointer)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierInval)
def _mbarrier_inval(x: Expander, op: nvgpu.mbarrier.MbarrierInval, b: Builder) -> None:
    hooks_of(x, op).mbarrier_inval(b, op.pointer)


def mbarrier_change(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    pointer: ir.Value,
    arrivals: ir.Value | None,
    bytes_: ir.Value,
    modifiers: str = "",
) -> None:
    """Add bytes to those a phase waits for, then take arrivals from it. Inline PTX gives order and scope as modifiers."""
    if arrivals is not None:
        _check_arrivals(x, op, b, arrivals)
    most = MBARRIER_BYTES
    x.refuse_outside(op, b, bytes_, -most, most, "%d bytes at an mbarrier", f"it counts bytes from -{most} to {most}")
    hooks = hooks_of(x, op)
    used = hooks.mbarrier_arrive(b, pointer, 0 if arrivals is None else arrivals, bytes_, modifiers=modifiers)
    x.call(b, "kiln_cpu_mbarrier", [used, b.i32(0), bytes_])
    if constant_value(bytes_) != 0:
        _check_missing(x, op, b, used)
    if arrivals is not None:
        x.call(b, "kiln_cpu_mbarrier", [used, arrivals, b.i32(0)])
    hooks.mbarrier_after(b, pointer)


def _check_arrivals(x: Expander, op: ir.Operation, b: Builder, count: ir.Value) -> None:
    most = MBARRIER_ARRIVALS
    x.refuse_outside(op, b, count, 1, most, "%d arrivals at an mbarrier", f"it counts 1 to {most} arrivals")


def _check_missing(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value) -> None:
    """Refuse more bytes than a phase of the hardware can wait for: here there are more bits for them."""
    i64 = int_type(64)
    most = MBARRIER_BYTES
    word = b.binary("shli", b.load(i64, pointer), 1)
    missing = b.value("arith.trunci", int_type(32), (b.binary("shrsi", word, 41),))
    x.refuse_outside(
        op, b, missing, -most, most, "a phase of an mbarrier misses %d bytes", f"it counts at most {most} bytes"
    )


@HANDLERS.expands(nvgpu.mbarrier.MbarrierArrive)
def _mbarrier_arrive(x: Expander, op: nvgpu.mbarrier.MbarrierArrive, b: Builder) -> None:
    mbarrier_change(x, op, b, peer(x, op, b, op.pointer, op.peer), op.count, op.bytes)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierExpectTx)
def _mbarrier_expect_tx(x: Expander, op: nvgpu.mbarrier.MbarrierExpectTx, b: Builder) -> None:
    mbarrier_change(x, op, b, peer(x, op, b, op.pointer, op.peer), None, op.bytes)


def _phase_bit(b: Builder, phase: ir.Value) -> ir.Value:
    return b.binary("shli", b.binary("andi", phase, 1), 31)


def _incomplete(b: Builder, pointer: ir.Value, phase: ir.Value) -> ir.Value:
    """Return whether the phase of a parity is still the current one."""
    word = b.load(int_type(32), b.byte_gep(pointer, 4))
    return b.compare("eq", b.binary("andi", word, -(1 << 31)), _phase_bit(b, phase))


@HANDLERS.calls(nvgpu.mbarrier.MbarrierTryWait, "pointer", "phase", may_fail=True)
@HANDLERS.calls(nvgpu.mbarrier.MbarrierTestWait, "pointer", "phase", may_fail=True)
def mbarrier_wait(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, phase: ir.Value, may_fail: bool, relaxed: bool = False
) -> ir.Value:
    """Wait for the phase of a parity, and return whether it is complete.

    A wait that may fail does so when no thread can make progress.
    """
    always = constant_value(phase)
    steps = any(loop.name == "scf.for" for loop in loops_around(op))
    alike = f"{ALWAYS}{always & 1}" if always is not None and steps else ""
    frame = x.frame_of(op)
    site = x.site_of(op, f"mbarrier{alike}")
    hooks = hooks_of(x, op)
    used = hooks.mbarrier_wait(b, pointer, phase)
    had_to_wait = _incomplete(b, used, phase)
    then = b.if_(had_to_wait)
    record = wait_softly if may_fail else wait
    record(then, frame, then.byte_gep(used, 4), then.i32(-(1 << 31)), _phase_bit(then, phase), then.i32(site))
    x.suspend(then)
    if may_fail:
        Fields(then, frame, FrameHeader).store("soft", 0)
    done = b.const(int_type(1), 1)
    if may_fail:
        # to the sanitizer a try that had to wait fails: on a GPU it may, and a program must not count on the contrary
        failed = _incomplete(b, used, phase) if x.module.sanitizer is None else had_to_wait
        done = b.binary("xori", failed, done)
    hooks.mbarrier_waited(b, pointer, phase, done, relaxed)
    return done


@HANDLERS.expands(nvgpu.mbarrier.MbarrierWait)
def _mbarrier_wait(x: Expander, op: nvgpu.mbarrier.MbarrierWait, b: Builder) -> None:
    mbarrier_wait(x, op, b, op.pointer, op.phase, may_fail=False)
