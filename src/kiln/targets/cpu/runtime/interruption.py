"""Reasons to stop kernels: Ctrl-C (`host/reports.py`), the time limit of a launch, too many steps."""
# pyright: reportReturnType=false

from __future__ import annotations

from ....native import Array, Ptr, atomic, i32, i64, local, native, ref, struct, u64, volatile
from ...host.call_context import COUNTS_STEPS, STOP_STEPS, STOP_TIMEOUT, STOPS, Context
from ...host.libc import clock_gettime, pthread_create, pthread_join, sem_init, sem_post, sem_timedwait
from ...host.reports import stop
from .schedule_order import launching

REALTIME = 0
MONOTONIC = 1
PROCESS_CPU_TIME = 2
SECOND = 1_000_000_000

timeout = launching.variable("timeout", i64)
"""The time limit of a launch in milliseconds, which Python sets; 0 for none."""
max_steps = launching.variable("max_steps", i64)
"""The step limit of a launch, which Python sets; 0 for none."""


@native
def stop_reason(context: Ptr[Context]) -> i32:
    """Return why the kernels of a context have to stop; 0 if they need not."""
    return (volatile(stop.place) | volatile(ref(context).stop)) & STOPS


@launching.export
def step(context: Ptr[Context], steps: i32) -> i32:
    """Count steps if the launch has a limit, and return why kernels have to stop, or 0."""
    if context.stop & COUNTS_STEPS != 0:
        before = atomic("add", ref(context).steps, steps)
        if before + steps > max_steps.value:
            atomic("or", ref(context).stop, STOP_STEPS)
    return stop_reason(context)


@launching.export
def now() -> i64:
    """Return a monotonic clock in nanoseconds."""
    time = local(i64, 2)
    clock_gettime(MONOTONIC, time)
    return time[0] * SECOND + time[1]


@launching.export
def processor_time() -> i64:
    """Return the nanoseconds that processors have spent on this process."""
    time = local(i64, 2)
    clock_gettime(PROCESS_CPU_TIME, time)
    return time[0] * SECOND + time[1]


# --- the end of a launch's time --------------------------------------------------------------------------------------


@struct
class Guard:
    """A thread that stops a launch when its time is up."""

    context: Ptr[Context]
    deadline: Array[i64, 2]
    semaphore: Array[u64, 8]
    thread: u64


@native
def guard_launch(guard: Ptr[Guard]) -> Ptr:
    """Wait for the end of a launch, at most until its deadline."""
    time = local(i64, 2)
    while sem_timedwait(guard.semaphore, guard.deadline) != 0:
        clock_gettime(REALTIME, time)  # a signal, too, can end the wait
        late = time[0] > guard.deadline[0] or (time[0] == guard.deadline[0] and time[1] >= guard.deadline[1])
        if late:
            guard.context.stop = STOP_TIMEOUT
            break
    return None


@native
def start_guard(guard: Ptr[Guard], context: Ptr[Context], milliseconds: i64) -> None:
    guard.context = context
    deadline = guard.deadline
    clock_gettime(REALTIME, deadline)
    after = u64(deadline[1]) + u64(milliseconds) % 1000 * 1_000_000
    deadline[0] += u64(milliseconds) // 1000 + after // SECOND
    deadline[1] = after % SECOND
    sem_init(guard.semaphore, 0, 0)
    pthread_create(ref(guard).thread, None, guard_launch, guard)


@native
def end_guard(guard: Ptr[Guard]) -> None:
    sem_post(guard.semaphore)
    pthread_join(guard.thread, None)
