"""What Python does after a native call that had something to report: pass on its text, raise its fault."""

from __future__ import annotations

import ctypes
import re
import signal
import struct
import sys
from typing import TYPE_CHECKING

from ...base_dsl.diagnostics import DSLCudaRuntimeError, DSLRuntimeError, DSLUserCodeRuntimeError
from ..cpu.runtime import stuck
from ..cpu.runtime.launches import LIMITS, MAX_COOPERATIVE, MAX_SMEM, MAX_THREADS
from . import signals
from .call_context import FAULT, MEMORY_FAULT, STOP_INTERRUPT, STOP_STEPS, STOP_TIMEOUT, TEXT, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..lowering.sites import Site

ILLEGAL_ADDRESS, COOPERATIVE_LAUNCH_TOO_LARGE = 700, 720
"""Numbers of the CUDA runtime's list of errors."""


class ZeroDivisionFault(DSLUserCodeRuntimeError, ZeroDivisionError):
    """An integer division by zero in compiled code."""


class MemoryFault(DSLCudaRuntimeError):
    """An access of compiled code to memory that is not there."""


class WarpFault(DSLUserCodeRuntimeError):
    """An operation of a whole warp that not all of its lanes execute."""


class AssertionFault(DSLUserCodeRuntimeError, AssertionError):
    """A failed assertion in compiled code."""


_libc = ctypes.CDLL(None)
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


def report(address: int, sites: Sequence[Site]) -> None:
    """Read and free the context at `address`; write what was printed, raise what failed."""
    record = Context.from_address(address)
    text, failure = b"", None
    try:
        if record.status & TEXT and record.text:
            text = ctypes.string_at(record.text, record.text_size)
            _libc.free(record.text)
        if record.status & FAULT:
            details = b""
            if record.details:
                details = ctypes.string_at(record.details, record.details_size)
                _libc.free(record.details)
            failure = _fault(record, sites[record.site & ~MEMORY_FAULT], sites, details)
    finally:
        _libc.free(address)
    if text:
        sys.stdout.write(text.decode(errors="replace"))
        sys.stdout.flush()
    if failure is not None:
        raise failure


def _fault(record: Context, site: Site, sites: Sequence[Site], details: bytes) -> BaseException:
    where = ""
    if record.site & MEMORY_FAULT:
        return _memory_fault(record, site)
    if record.stop & STOP_INTERRUPT:
        return KeyboardInterrupt(
            f"kernel {site.kernel} was interrupted" if site.kernel else "host code was interrupted"
        )
    if record.stop & (STOP_TIMEOUT | STOP_STEPS):
        alone = (tuple(record.block), tuple(record.thread)) if record.thread[0] >= 0 else None
        return stuck.timeout(site, sites, details, alone, steps=not record.stop & STOP_TIMEOUT)
    if details:
        return stuck.deadlock(sites, details)
    if site.kernel and site.kind != "launch":
        where = f" (kernel {site.kernel}, block {tuple(record.block)}, thread {tuple(record.thread)})"
    if site.kind == "launch":
        message, hint = _launch_rule(site.kernel, list(record.arguments))
        if "cooperative" in message:
            code = COOPERATIVE_LAUNCH_TOO_LARGE  # what the CUDA runtime says to it
            return DSLCudaRuntimeError(message, hint=hint, span=site.span, calls=site.calls, error_code=code)
        return DSLRuntimeError(message, hint=hint, span=site.span, calls=site.calls)
    if site.kind == "assert":
        text = format_message(site.message, site.types, list(record.arguments))
        return AssertionFault(f"assertion failed: {text}{where}", span=site.span, calls=site.calls)
    if site.kind == "lanes":
        return WarpFault(
            f"{site.message} is executed by {record.arguments[0]} lanes of a warp, the others having ended{where}",
            hint="all 32 lanes execute it together: move it out of the branch, or let blocks have whole warps",
            span=site.span,
            calls=site.calls,
        )
    return ZeroDivisionFault(f"{site.message}{where}", span=site.span, calls=site.calls)


def _memory_fault(record: Context, site: Site) -> MemoryFault:
    """A signal ended a block of a kernel, or host code."""
    number, address = record.arguments[signals.SIGNAL], record.arguments[signals.ADDRESS] & (1 << 64) - 1
    who = f"kernel {site.kernel}, block {tuple(record.block)}," if site.kernel else "host code"
    what = f"accessed memory that is not there, at address 0x{address:x}"
    if number == signal.SIGFPE:
        what = "divided numbers whose quotient does not fit"
    return MemoryFault(
        f"{who} {what}",
        hint="`kiln run --sanitize PROGRAM` finds the line; what was written before may have hit other memory of this process",
        span=site.span,
        calls=site.calls,
        error_code=ILLEGAL_ADDRESS,
    )


_LENGTH = re.compile(r"(%[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|j|z|t)([diouxX])")


def format_message(message: str, types: Sequence[str], raw: Sequence[int]) -> str:
    """A C format applied to values that were recorded as 64-bit patterns."""
    values: list[int | float] = []
    for type_, bits in zip(types, raw):
        pattern = (bits & (1 << 64) - 1).to_bytes(8, "little")
        values.append(struct.unpack({"f64": "<d", "i32": "<i4x", "i64": "<q"}[type_], pattern)[0])
    python_format = _LENGTH.sub(r"\1\2", message).replace("%p", "0x%x")
    try:
        return python_format % tuple(values)
    except (TypeError, ValueError):
        return f"{message} {values}"


def _launch_rule(kernel: str, numbers: list[int]) -> tuple[str, str]:
    """Which rule a launch broke."""
    grid, block, cluster, smem = numbers[:3], numbers[3:6], numbers[6:9], numbers[9]
    start = f"cannot launch kernel {kernel} with grid={tuple(grid)}, block={tuple(block)}"
    for name, sizes, limits in (("grid", grid, LIMITS[:3]), ("block", block, LIMITS[3:])):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if size < 1:
                return f"{start}: {name} {axis} is {size}", f"every size of a {name} is at least 1"
            if size > limit:
                return f"{start}: {name} {axis} is {size}", f"{name} {axis} is at most {limit}"
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        return f"{start}: {threads} threads per block", f"a block has at most {MAX_THREADS} threads"
    for axis, size, part in zip("xyz", grid, cluster, strict=True):
        if part < 1:
            return (
                f"{start}, cluster={tuple(cluster)}: cluster {axis} is {part}",
                "every size of a cluster is at least 1",
            )
        if size % part:
            return (
                f"{start}, cluster={tuple(cluster)}: grid {axis} is no multiple of cluster {axis}",
                "a grid consists of whole clusters",
            )
    everyone = threads * grid[0] * grid[1] * grid[2]
    if numbers[10] == 1 and everyone > MAX_COOPERATIVE:
        return (
            f"{start}, cooperative: {everyone} threads cannot be resident together",
            f"a cooperative launch has at most {MAX_COOPERATIVE} threads",
        )
    return (
        f"{start}, smem={smem}: too much shared memory",
        f"a block has at most {MAX_SMEM} bytes of it, static and dynamic",
    )
