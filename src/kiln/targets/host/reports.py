"""Native code that records faults and printed text of a call, and handles Ctrl-C."""
# pyright: reportReturnType=false

from __future__ import annotations

from ...native import Fn, Library, Ptr, address, atomic, i32, i64, inline, native, ref, size_of, u64
from .call_context import FAULT, STOP_INTERRUPT, TEXT, WARNING, Context
from .libc import fclose, free, malloc, memcpy, open_memstream, signal

reports: Library = Library("reports", prefix="kiln_cpu_", passes=0, opt=0)
stop = reports.variable("stop", i32)
"""Why all loops and kernels have to stop."""
watchers = reports.variable("watchers", i32)
old_handler = reports.variable("old_handler", u64)
SIGINT = 2
IN_HOST_CODE = (1 << 63) - 1


@native
def has_fault(context: Ptr[Context]) -> bool:
    return context.status & FAULT != 0


@inline
def order_of(context, x, y, z):
    """Return the linear index of a block."""
    return x + i64(context.grid[0]) * (y + i64(context.grid[1]) * z)


@reports.export
def fault_with(
    context: Ptr[Context],
    site: i32,
    block_x: i32,
    block_y: i32,
    block_z: i32,
    thread_x: i32,
    thread_y: i32,
    thread_z: i32,
    count: i32,
    arguments: Ptr[i64],
    details: Ptr,
    details_size: i64,
) -> None:
    """Record a fault; of several, the one in the lowest block is kept. Block x is negative in host code.

    It owns the details, and frees them if they are not kept.
    """
    order = i64(IN_HOST_CODE)
    if block_x >= 0:
        order = order_of(context, block_x, block_y, block_z)
    while atomic("xchg", ref(context).lock, 1) != 0:
        pass
    if not has_fault(context) or order < context.order:
        free(context.details)
        context.details = details
        context.details_size = details_size
        context.order = order
        context.site = site
        for axis, block, thread in ((0, block_x, thread_x), (1, block_y, thread_y), (2, block_z, thread_z)):
            context.block[axis] = block
            context.thread[axis] = thread
        memcpy(context.arguments, arguments, i64(count) * 8)
    else:
        free(details)
    atomic("or", ref(context).status, FAULT)
    atomic("xchg", ref(context).lock, 0)


@reports.export
def fault(
    context: Ptr[Context],
    site: i32,
    block_x: i32,
    block_y: i32,
    block_z: i32,
    thread_x: i32,
    thread_y: i32,
    thread_z: i32,
    count: i32,
    arguments: Ptr[i64],
) -> None:
    """Record a fault without details."""
    fault_with(context, site, block_x, block_y, block_z, thread_x, thread_y, thread_z, count, arguments, None, 0)


@reports.export
def warn(
    context: Ptr[Context],
    site: i32,
    block_x: i32,
    block_y: i32,
    block_z: i32,
    thread_x: i32,
    thread_y: i32,
    thread_z: i32,
) -> None:
    """Record a warning; of several, the first one in the lowest block is kept."""
    order = order_of(context, block_x, block_y, block_z)
    while atomic("xchg", ref(context).lock, 1) != 0:
        pass
    if context.status & WARNING == 0 or order < context.warned_order:
        context.warned_order = order
        context.warned_site = site
        for axis, block, thread in ((0, block_x, thread_x), (1, block_y, thread_y), (2, block_z, thread_z)):
            context.warned_block[axis] = block
            context.warned_thread[axis] = thread
    atomic("or", ref(context).status, WARNING)
    atomic("xchg", ref(context).lock, 0)


@reports.export
def stream(context: Ptr[Context]) -> Ptr:
    """Return the call's FILE*, opened when first needed. Kernels that print run on one thread."""
    if context.stream == None:
        context.stream = open_memstream(ref(context).text, ref(context).text_size)
        atomic("or", ref(context).status, TEXT)
    return context.stream


@reports.export
def finish(context: Ptr[Context]) -> Ptr:
    """Finish a call; return null, or a copy of the context for Python, which frees it."""
    report = Ptr(None)
    if context.status != 0:
        if context.stream != None:
            fclose(context.stream)
        report = malloc(size_of(Context))
        memcpy(report, context, size_of(Context))
    stop.value = 0
    return report


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


@native
def interrupted(number: i32) -> None:
    """Handle SIGINT while a call watches: stop all loops and kernels, then call the previous handler."""
    stop.value = STOP_INTERRUPT
    if old_handler.value > 1:
        Fn[[i32], None](old_handler.value)(number)


@reports.export
def watch() -> None:
    """Let Ctrl-C stop loops and kernels, unless SIGINT is ignored or ends the process."""
    if atomic("add", watchers.place, 1) == 0:
        before = address(signal(SIGINT, interrupted))
        if before != address(interrupted):  # another launch may have ended and not yet taken the handler away
            old_handler.value = before
        if before <= 1:
            signal(SIGINT, Ptr(before))


@reports.export
def unwatch() -> None:
    """Stop watching; the last one removes the handler."""
    if atomic("sub", watchers.place, 1) == 1 and old_handler.value > 1:
        signal(SIGINT, Ptr(old_handler.value))
