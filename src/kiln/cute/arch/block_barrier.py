"""Barriers of a CTA."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...hardware.limits import BARRIERS, THREADS_PER_BLOCK, WARP
from ..deferred_dialects import nvgpu
from .values import i32, kernel_only

__all__ = ["barrier", "barrier_arrive", "sync_threads"]


def sync_threads(*, loc: object = None, ip: object = None) -> None:
    """Wait for all threads of the CTA; their earlier writes are visible afterwards."""
    kernel_only("sync_threads")
    nvgpu.sync.barrier(i32(0), i32(0))


def barrier(
    *, barrier_id: object = None, number_of_threads: object = None, loc: object = None, ip: object = None
) -> None:
    """Wait at barrier `barrier_id` (0 to 15) for `number_of_threads` threads, a multiple of 32; by default for all."""
    kernel_only("barrier")
    _check(barrier_id, number_of_threads)
    nvgpu.sync.barrier(_or_zero(barrier_id), _or_zero(number_of_threads))


def barrier_arrive(
    *,
    barrier_id: object = None,
    number_of_threads: object = None,
    aligned: bool = True,
    loc: object = None,
    ip: object = None,
) -> None:
    """Arrive at a barrier of the CTA without waiting.

    Args:
        barrier_id: the barrier, 0 to 15; by default 0.
        number_of_threads: how many threads arrive or wait, a multiple of 32. It is needed.
        aligned: all threads of a warp get here together.
    """
    kernel_only("barrier_arrive")
    if number_of_threads is None:
        raise type_error(
            "barrier_arrive() needs number_of_threads", "the threads that arrive and those that wait, together"
        )
    _check(barrier_id, number_of_threads)
    nvgpu.sync.barrier_arrive(_or_zero(barrier_id), i32(number_of_threads))


def _or_zero(value: object) -> Any:
    return i32(0 if value is None else value)


def _check(barrier_id: object, threads: object) -> None:
    if isinstance(barrier_id, int) and not 0 <= barrier_id < BARRIERS:
        hint = f"a block has the barriers 0 to {BARRIERS - 1}"
        raise type_error(f"barrier_id is {barrier_id}", hint)
    if isinstance(threads, int) and (threads % WARP or not 0 < threads <= THREADS_PER_BLOCK):
        hint = f"a multiple of {WARP}, at most {THREADS_PER_BLOCK}"
        raise type_error(f"number_of_threads is {threads}", hint)
