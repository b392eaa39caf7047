"""Reports of native calls: printed text, warnings, and faults, which are raised as exceptions."""

from __future__ import annotations

import ctypes
import re
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import DSLCudaRuntimeError, DSLRuntimeError, DSLUserCodeRuntimeError, warn_at
from ..lowering.sites import Site
from . import signals
from .call_context import FAULT, MEMORY_FAULT, STOP_INTERRUPT, TEXT, WARNING, Context
from .launch_rules import refused_launch

if TYPE_CHECKING:
    Explain = Callable[[Context, Site, Sequence[Site], bytes], BaseException | None]
    """A target's exception for a fault, its site, all sites and the recorded state of a group; None for the common
    one."""

ILLEGAL_ADDRESS = 700
COOPERATIVE_LAUNCH_TOO_LARGE = 720
"""Numbers of the CUDA runtime's list of errors."""


class ZeroDivisionFault(DSLUserCodeRuntimeError, ZeroDivisionError):
    """An integer division by zero in compiled code."""


class NegativeShiftFault(DSLUserCodeRuntimeError, ValueError):
    """A shift by a negative number in compiled code."""


class RangeFault(DSLUserCodeRuntimeError, OverflowError):
    """A loop in compiled code whose counter would overflow after its last iteration."""


class MemoryFault(DSLCudaRuntimeError):
    """An access of compiled code to memory that is not there."""


class AssertionFault(DSLUserCodeRuntimeError, AssertionError):
    """A failed assertion in compiled code."""


_libc = ctypes.CDLL(None)
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


def report(address: int, sites: Sequence[Site], explain: Explain | None = None) -> None:
    """Read and free the context at `address`: write printed text, and raise the fault, which a target may `explain`."""
    record = Context.from_address(address)
    text = b""
    failure = None
    warned = None
    where = ""
    try:
        if record.status & TEXT and record.text:
            text = ctypes.string_at(record.text, record.text_size)
            _libc.free(record.text)
        if record.status & FAULT:
            details = b""
            if record.details:
                details = ctypes.string_at(record.details, record.details_size)
                _libc.free(record.details)
            failure = _fault(record, sites[record.site & ~MEMORY_FAULT], sites, details, explain)
        if record.status & WARNING:
            warned = sites[record.warned_site]
            where = _in_kernel(warned, record.warned_block, record.warned_thread)
    finally:
        _libc.free(address)
    if text:
        sys.stdout.write(text.decode(errors="replace"))
        sys.stdout.flush()
    if failure is not None:
        raise failure
    if warned is not None:
        what, _, result = warned.message.partition("\n")
        warn_at(warned.span, f"{what}{where}: {result}", _warned)


_warned: dict[Any, int] = {}
"""Warnings of kernels, which Python shows once for each line."""


def _in_kernel(site: Site, block: Sequence[int], thread: Sequence[int]) -> str:
    who = [f"{name} {tuple(index)}" for name, index in (("block", block), ("thread", thread)) if index[0] >= 0]
    return f" ({', '.join([f'kernel {site.kernel}', *who])})"


def where_in_kernel(record: Context, site: Site) -> str:
    """Return the kernel, block and thread of a fault, as text in parentheses; empty in host code."""
    if not site.kernel or site.kind == "launch":
        return ""
    return _in_kernel(site, record.block, record.thread)


def _fault(
    record: Context, site: Site, sites: Sequence[Site], details: bytes, explain: Explain | None
) -> BaseException:
    if record.site & MEMORY_FAULT:
        return _memory_fault(record, site)
    if record.stop & STOP_INTERRUPT:
        return KeyboardInterrupt(
            f"kernel {site.kernel} was interrupted" if site.kernel else "host code was interrupted"
        )
    if explain is not None and (explained := explain(record, site, sites, details)) is not None:
        return explained
    where = where_in_kernel(record, site)
    if site.kind == "launch":
        message, hint, cooperative = refused_launch(site.kernel, site.message, list(record.arguments))
        if cooperative:
            code = COOPERATIVE_LAUNCH_TOO_LARGE  # what the CUDA runtime says to it
            return DSLCudaRuntimeError(message, hint=hint, span=site.span, calls=site.calls, error_code=code)
        return DSLRuntimeError(message, hint=hint, span=site.span, calls=site.calls)
    if site.kind == "tensor_map":
        from .tensor_map_rules import explained  # it loads the dialects

        message, hint = explained(site.message, *list(record.arguments)[:3])
        return DSLRuntimeError(message, hint=hint, span=site.span, calls=site.calls)
    if site.kind == "assert":
        text = format_message(site.message, site.types, list(record.arguments))
        return AssertionFault(f"assertion failed: {text}{where}", span=site.span, calls=site.calls)
    kind = {"shift": NegativeShiftFault, "range": RangeFault}.get(site.kind, ZeroDivisionFault)
    return kind(f"{site.message}{where}", span=site.span, calls=site.calls)


def _memory_fault(record: Context, site: Site) -> MemoryFault:
    """Return the fault for a signal that ended a block of a kernel, or host code."""
    number = record.arguments[signals.SIGNAL]
    address = record.arguments[signals.ADDRESS] & (1 << 64) - 1
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


_LENGTH = r"(%[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|j|z|t)([diouxX])"


def format_message(message: str, types: Sequence[str], raw: Sequence[int]) -> str:
    """Return a C format applied to values that were recorded as 64-bit patterns."""
    values: list[int | float] = []
    for type_, bits in zip(types, raw):
        pattern = (bits & (1 << 64) - 1).to_bytes(8, "little")
        values.append(struct.unpack({"f64": "<d", "i32": "<i4x", "i64": "<q"}[type_], pattern)[0])
    python_format = re.sub(_LENGTH, r"\1\2", message).replace("%p", "0x%x")
    try:
        return python_format % tuple(values)
    except (TypeError, ValueError):
        return f"{message} {values}"
