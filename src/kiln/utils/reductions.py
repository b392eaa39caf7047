"""Reductions over the threads of a CTA."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Int32
from ..cute import arch
from ..cute.atoms.copying import guarded
from ..cute.deferred_dialects import cute
from ..cute.layout.layout import make_layout
from ..cute.tensor.tensor import make_tensor

__all__ = ["reduce_in_block", "reduce_in_warp"]

_WARP = 32


def _check(threads: object, most: int) -> None:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads & (threads - 1) or not 1 <= threads <= most:
        raise type_error(f"a reduction over {threads!r} threads", f"a power of two up to {most}, known when compiling")


def reduce_in_warp(value: Any, op: Any, threads: int = _WARP) -> Any:
    """Combine the values of neighbouring lanes; each of them gets the result.

    Args:
        value: this lane's value.
        op: a function of two values, such as `lambda a, b: a + b`.
        threads: how many lanes, a power of two up to 32.
    """
    _check(threads, _WARP)
    return arch.warp_reduction(value, op, threads_in_group=threads)


def reduce_in_block(value: Any, op: object, threads: int, block: int) -> Any:
    """Combine the values of neighbouring threads of a CTA; each of them gets the result.

    More than a warp go through shared memory of their own, and all threads of the CTA synchronise. A call that is
    repeated in a loop needs a `sync_threads()` between its rounds.

    Args:
        value: this thread's value.
        op: a function of two values, such as `lambda a, b: a + b`.
        threads: how many threads are combined, a power of two up to 1024.
        block: the threads of the CTA, in one mode, a multiple of `threads`.
    """
    _check(threads, 1024)
    if not isinstance(block, int) or block % threads or block > 1024:
        raise type_error(
            f"a reduction over {threads} threads in a block of {block!r}",
            f"the threads of a block are a multiple of {threads}, at most 1024, known when compiling",
        )
    value = reduce_in_warp(value, op, min(threads, _WARP))
    if threads <= _WARP:
        return value
    dtype = type(value)
    warps = threads // _WARP
    memory = arch.alloc_smem(dtype, block // _WARP)
    cute.name_allocation(memory.ir_value(), cute.REDUCTION_BUFFER)
    buffer = make_tensor(memory, make_layout(block // _WARP))
    thread = arch.thread_idx()[0]
    lane = Int32(thread % _WARP)
    warp = Int32(thread // _WARP)

    def write() -> None:
        buffer[warp] = value

    guarded(lane == 0, write)
    arch.sync_threads()
    return reduce_in_warp(buffer[warp // warps * warps + lane % warps], op, warps)
