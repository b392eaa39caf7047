"""Groups of asynchronous copies."""

from __future__ import annotations

from ...base_dsl.diagnostics import type_error
from ..deferred_dialects import nvgpu
from .values import kernel_only

__all__ = ["cp_async_bulk_commit_group", "cp_async_bulk_wait_group", "cp_async_commit_group", "cp_async_wait_group"]


def _count(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise type_error(
            f"{what}() takes a Python integer of at least 0, not {value!r}", "the count is part of the instruction"
        )
    return value


def cp_async_commit_group(*, loc: object = None, ip: object = None) -> None:
    """Commit this thread's copies since the last group as a group."""
    kernel_only("cp_async_commit_group")
    nvgpu.async_copy.cp_async_commit()


def cp_async_wait_group(n: object, *, loc: object = None, ip: object = None) -> None:
    """Wait until at most `n` of this thread's groups are not complete."""
    kernel_only("cp_async_wait_group")
    nvgpu.async_copy.cp_async_wait(_count("cp_async_wait_group", n))


def cp_async_bulk_commit_group(*, loc: object = None, ip: object = None) -> None:
    """Commit this thread's bulk copies since the last group as a group. Needs sm_90 or later."""
    kernel_only("cp_async_bulk_commit_group")
    nvgpu.async_copy.cp_async_bulk_commit()


def cp_async_bulk_wait_group(group: object, *, read: bool | None = None, loc: object = None, ip: object = None) -> None:
    """Wait until at most `group` of this thread's bulk groups are pending, or (`read`) have unread sources.

    Needs sm_90 or later.
    """
    kernel_only("cp_async_bulk_wait_group")
    nvgpu.async_copy.cp_async_bulk_wait(_count("cp_async_bulk_wait_group", group), bool(read))
