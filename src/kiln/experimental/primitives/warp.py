"""Primitives of a warp: elections, shuffles, votes, reductions, its barrier."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Float32, Int32
from ...cute import arch
from ...cute.arch.values import FULL_MASK, choice, kernel_only, number
from ...cute.deferred_dialects import nvgpu


def bar_warp_sync(mask: object = FULL_MASK, *, loc: object = None, ip: object = None) -> None:
    """Wait for the lanes of a mask; orders their memory accesses (`bar.warp.sync`)."""
    kernel_only("bar_warp_sync")
    arch.sync_warp(mask)


def elect_sync(*, membermask: object = FULL_MASK, loc: object = None, ip: object = None) -> Boolean:
    """Return true in one lane of the mask, the same one at every call (`elect.sync`)."""
    kernel_only("elect_sync")
    if isinstance(membermask, int) and not membermask & FULL_MASK:
        raise type_error("elect_sync() of an empty mask", "it has the bit of each lane that calls it")
    if isinstance(membermask, int) and membermask & FULL_MASK == FULL_MASK:
        return Boolean._make(nvgpu.warp.elect_one())
    code = "{ .reg .pred p; .reg .b32 lane; elect.sync lane|p, {$r0}; selp.u32 {$w0}, 1, 0, p; }"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[Int32(membermask)]) != 0


def shfl_sync(
    thread_mask: object,
    val: object,
    offset: object,
    mask_and_clamp: object,
    kind: object,
    *,
    return_value_and_is_valid: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return the value of another lane (`shfl.sync`); with the flag also whether the source lane was in range.

    `mask_and_clamp` is PTX's operand c: the clamp in bits 0 to 4, the mask of the segment in bits 8 to 12.
    """
    kernel_only("shfl_sync")
    how = choice("kind", kind, ("idx", "up", "down", "bfly"))
    if not return_value_and_is_valid:
        return arch.shuffle_sync_op(val, offset, thread_mask, mask_and_clamp, how)
    value: Any = number(val)
    code = "{ .reg .pred p; shfl.sync.%s.b32 {$w0}|p, {$r0}, {$r1}, {$r2}, {$r3}; selp.u32 {$w1}, 1, 0, p; }"
    bits = value.bitcast(Int32) if type(value).is_float else Int32(value)
    got, valid = arch.inline_ptx(
        code % how,
        write_only_types=[Int32, Int32],
        read_only_args=[bits, Int32(offset), Int32(mask_and_clamp), Int32(thread_mask)],
    )
    return got.bitcast(type(value)) if type(value).is_float else type(value)(got), valid != 0


def vote_sync(mask: object, pred: object, kind: object, *, loc: object = None, ip: object = None) -> Any:
    """Return whether any, all or equal predicates of the lanes of a mask hold, or (BALLOT) their bits."""
    kernel_only("vote_sync")
    return getattr(arch, f"vote_{choice('kind', kind, ('any', 'all', 'uni', 'ballot'))}_sync")(pred, mask)


def redux_sync(
    val: Any,
    kind: Any,
    mask_and_clamp: Any,
    *,
    abs: bool | None = None,
    nan: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Int32 | Float32:
    """Combine a 32-bit number of the lanes of a mask by the hardware; of floats on sm_100a."""
    kernel_only("redux_sync")
    return arch.warp_redux_sync(val, kind, mask_and_clamp, abs=abs, nan=nan)


def match_sync(
    thread_mask: object, val: object, kind: object, *, loc: object = None, ip: object = None
) -> Int32 | tuple[Int32, Boolean]:
    """Return the lanes of a mask that have this lane's value; for ALL the mask if all have it, else 0, and whether."""
    return arch.match_sync(thread_mask, val, kind)
