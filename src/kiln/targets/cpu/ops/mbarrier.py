"""Mbarriers and asynchronous copies.

An mbarrier is a word of shared memory. Bits 0 to 19: arrivals missing; 20 to 39: arrivals of a phase; 40 to 62: bytes
missing; 63: parity of the phase. What copies do is in `runtime/engines.py`.
"""

from __future__ import annotations

from typing import Any

from ....mlir import ir
from ...host.expand import Expander
from ...lowering.builder import Builder, int_type
from ..runtime.engines import BULK, COPY
from ..runtime.in_kernels import Fields, wait, wait_softly
from ..runtime.records import FrameHeader
from ..sanitizer.hooks import Hooks
from .sync import call, frame_of, hardware, peer, site_of, suspend


def mbarrier_init(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, count: ir.Value) -> None:
    """An mbarrier at the start of its first phase."""
    Hooks(x, op).mbarrier_init(b, pointer, count)
    wide = b.value("arith.extui", int_type(64), (count,))
    b.store(b.binary("ori", wide, b.binary("shli", wide, b.i64(20))), pointer)


@hardware("mbarrier_init")
def _mbarrier_init(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    mbarrier_init(x, op, b, *op.operands)
    return []


@hardware("mbarrier_inval")
def _mbarrier_inval(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    Hooks(x, op).mbarrier_inval(b, op.operands[0])
    return []


def mbarrier_change(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, arrivals: ir.Value | None, bytes_: ir.Value
) -> None:
    """Add bytes to what a phase misses, then take arrivals from it."""
    hooks = Hooks(x, op)
    hooks.mbarrier_arrive(b, pointer, 0 if arrivals is None else arrivals, bytes_)
    call(x, b, "kiln_cpu_mbarrier", [pointer, b.i32(0), bytes_])
    if arrivals is not None:
        call(x, b, "kiln_cpu_mbarrier", [pointer, arrivals, b.i32(0)])
    hooks.mbarrier_after(b, pointer)


@hardware("mbarrier_arrive")
def _mbarrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, count, bytes_, rank = op.operands
    mbarrier_change(x, op, b, peer(x, op, b, pointer, rank), count, bytes_)
    return []


@hardware("mbarrier_expect_tx")
def _mbarrier_expect_tx(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, bytes_, rank = op.operands
    mbarrier_change(x, op, b, peer(x, op, b, pointer, rank), None, bytes_)
    return []


def _phase_bit(b: Builder, phase: ir.Value) -> ir.Value:
    return b.binary("shli", b.binary("andi", phase, b.i32(1)), b.i32(31))


def _incomplete(b: Builder, pointer: ir.Value, phase: ir.Value) -> ir.Value:
    """Whether the phase of a parity is still the current one."""
    word = b.load(int_type(32), b.byte_gep(pointer, 4))
    return b.compare("eq", b.binary("andi", word, b.i32(-(1 << 31))), _phase_bit(b, phase))


def mbarrier_wait(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, phase: ir.Value, may_fail: bool
) -> ir.Value:
    """Wait for the phase of a parity; whether it is complete. A wait that may fail does so when nothing else can happen."""
    frame, site = frame_of(x, op), site_of(x, op, "mbarrier")
    hooks = Hooks(x, op)
    hooks.mbarrier_wait(b, pointer, phase)
    had_to_wait = _incomplete(b, pointer, phase)
    then = b.if_(had_to_wait)
    record = wait_softly if may_fail else wait
    record(then, frame, then.byte_gep(pointer, 4), then.i32(-(1 << 31)), _phase_bit(then, phase), then.i32(site))
    suspend(x, then)
    if may_fail:
        Fields(then, frame, FrameHeader).store("soft", 0)
    done = b.const(int_type(1), 1)
    if may_fail:
        # to the sanitizer a try that had to wait fails: on a GPU it may, and a program must not count on the contrary
        failed = _incomplete(b, pointer, phase) if x.module.sanitizer is None else had_to_wait
        done = b.binary("xori", failed, done)
    hooks.mbarrier_waited(b, pointer, phase, done)
    return done


@hardware("mbarrier_wait")
def _mbarrier_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    mbarrier_wait(x, op, b, *op.operands, may_fail=False)
    return []


@hardware("mbarrier_try_wait")
@hardware("mbarrier_test_wait")
def _mbarrier_try_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [mbarrier_wait(x, op, b, *op.operands, may_fail=True)]


# --- asynchronous copies ----------------------------------------------------------------------------------------------


def _copies(x: Expander, op: ir.Operation) -> ir.Value:
    x.function.copies = True
    return frame_of(x, op)


def copy_async(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: int
) -> None:
    """`bytes_` of `size` bytes, and zeros for the rest."""
    target, source = Hooks(x, op).copy(b, target, source, bytes_, size)
    if x.module.banks is not None:
        x.module.banks.access(x, op, b, target, size, size, "cp.async")
    call(x, b, "kiln_cpu_copy", [_copies(x, op), target, source, bytes_, b.i32(size)])


@hardware("cp_async")
def _cp_async(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    target, source, bytes_ = op.operands
    copy_async(x, op, b, target, source, bytes_, op.attributes["size"].value)
    return []


@hardware("cp_async_commit")
def _cp_async_commit(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_commit", [_copies(x, op), b.i32(COPY)])
    Hooks(x, op).commit(b)
    return []


@hardware("cp_async_wait")
def _cp_async_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_wait_for_groups", [_copies(x, op), b.i32(COPY), b.i32(op.attributes["count"].value)])
    Hooks(x, op).waited(b, op.attributes["count"].value)
    return []


@hardware("cp_async_mbarrier_arrive")
def _cp_async_mbarrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    hooks = Hooks(x, op)
    hooks.copies_arrive(b, op.operands[0])
    call(x, b, "kiln_cpu_copy_arrive", [_copies(x, op), op.operands[0]])
    hooks.mbarrier_after(b, op.operands[0])
    return []


@hardware("cp_async_bulk_commit")
def _cp_async_bulk_commit(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_commit", [_copies(x, op), b.i32(BULK)])
    Hooks(x, op).commit(b, bulk=True)
    return []


@hardware("cp_async_bulk_wait")
def _cp_async_bulk_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_wait_for_groups", [_copies(x, op), b.i32(BULK), b.i32(op.attributes["count"].value)])
    Hooks(x, op).waited(b, op.attributes["count"].value, bulk=True)
    return []


def bulk_load(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value
) -> None:
    """A bulk copy to shared memory that takes its bytes from what an mbarrier misses."""
    hooks = Hooks(x, op)
    hooks.bulk_copy(b, target, source, bytes_, mbarrier)
    call(x, b, "kiln_cpu_bulk_load", [_copies(x, op), target, source, bytes_, mbarrier])
    hooks.mbarrier_after(b, mbarrier)


def multicast(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value,
    mask: ir.Value,
) -> None:  # fmt: skip
    """The same copy to each block of the cluster whose bit is set in `mask` (i16): to the same place there, and its mbarrier."""
    each, rank = b.for_(b.i32(0), b.i32(16), b.i32(1))
    wide = each.value("arith.extui", int_type(32), (mask,))
    bit = each.binary("andi", each.binary("shrui", wide, rank), each.i32(1))
    there = each.if_(each.compare("ne", bit, each.i32(0)))
    places = [peer(x, op, there, pointer, rank) for pointer in (target, mbarrier)]
    bulk_load(x, op, there, places[0], source, bytes_, places[1])


@hardware("bulk_load")
def _bulk_load(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    bulk_load(x, op, b, *op.operands)
    return []


@hardware("bulk_store")
def _bulk_store(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    Hooks(x, op).bulk_copy(b, *op.operands)
    call(x, b, "kiln_cpu_bulk_store", [_copies(x, op), *op.operands])
    return []
