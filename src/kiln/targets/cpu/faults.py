"""Faults of kernels: deadlocks, launches that exceed their time, warp operations with missing lanes."""

from __future__ import annotations

from collections.abc import Sequence

from ...base_dsl.diagnostics import DSLBaseError, DSLRuntimeError, DSLUserCodeRuntimeError
from ..host.call_context import STOP_DEADLOCK, STOP_STEPS, STOP_TIMEOUT, Context
from ..host.faults import where_in_kernel
from ..lowering.sites import Site


class WarpFault(DSLUserCodeRuntimeError):
    """An operation of a whole warp that not all of its lanes execute."""


class WarpGroupFault(DSLUserCodeRuntimeError):
    """A WGMMA that cannot be carried out."""


class TensorMemoryFault(DSLUserCodeRuntimeError):
    """An operation of tensor memory that cannot be carried out."""


def explain(record: Context, site: Site, sites: Sequence[Site], details: bytes) -> BaseException | None:
    """Return the exception for a fault of a kernel; None if it is one that host code has, too
    (`host.faults.report`)."""
    if record.stop & STOP_DEADLOCK:
        from .runtime import deadlock_report

        return deadlock_report.across_devices(site, sites, details)
    if record.stop & (STOP_TIMEOUT | STOP_STEPS) or details:
        from .runtime import deadlock_report

    if record.stop & (STOP_TIMEOUT | STOP_STEPS):
        alone = (tuple(record.block), tuple(record.thread)) if record.thread[0] >= 0 else None
        return deadlock_report.timeout(site, sites, details, alone, steps=not record.stop & STOP_TIMEOUT)
    if details:
        return deadlock_report.deadlock(sites, details)
    kind, text, hint = _explained(record, site)
    if kind is None:
        return None
    return kind(f"{text}{where_in_kernel(record, site)}", hint=hint, span=site.span, calls=site.calls)


def _explained(record: Context, site: Site) -> tuple[type[DSLBaseError] | None, str, str]:
    """Return the class, message and hint of a fault by the kind of its site; no class if host code has it, too."""
    number = record.arguments[0]
    if site.kind == "lanes":
        text = f"{site.message} is executed by {number} lanes of a warp, the others having ended"
        return (
            WarpFault,
            text,
            "all 32 lanes execute it together: move it out of the branch, or let blocks have whole warps",
        )
    if site.kind == "recording":
        text = f"{site.message} at {number & (1 << 64) - 1:#x} waits for CTAs that do not run while others are recorded"
        from .events import (
            MOST_ADDITIONS,
        )  # it compiles: a process that found its kernel in the cache has no use for it

        hint = f"the loop saw no end after {MOST_ADDITIONS} additions to that memory: check that it is set before the launch"
        return DSLRuntimeError, text, hint
    if site.kind == "limit":
        what, _, hint = site.message.partition("\n")
        return DSLUserCodeRuntimeError, what % number, hint
    if site.kind == "tensor map":
        from .ops.tma import refused_copy  # it loads what compiles

        return DSLUserCodeRuntimeError, *refused_copy(number, site.message)
    if site.kind == "multicast":
        text = f"a multimem instruction at the address {number & (1 << 64) - 1:#x}, which is no multicast address"
        return DSLUserCodeRuntimeError, text, "pass the multicast view of symmetric memory, such as multicast_ptr"
    if site.kind == "tcgen05":
        from .ops.tcgen05 import refused_operation

        return TensorMemoryFault, *refused_operation(number, site.message)
    if site.kind == "launch control":
        from .ops.launch_control import refused_request

        return DSLUserCodeRuntimeError, *refused_request(number)
    if site.kind == "registers":
        hint = "setmaxregister_decrease goes down and setmaxregister_increase up from what a thread has"
        return WarpGroupFault, f"{site.message} registers by threads that have {number}", hint
    if site.kind == "wgmma":
        from .ops.wgmma import refused_wgmma

        what, hint = refused_wgmma(number)
        return WarpGroupFault, f"{site.message} {what}", hint
    return None, "", ""
