"""Tensor memory, and the tcgen05 operations on it.

A block's tensor memory is `BlockRecord.tmem`: 128 lanes of 512 cells of 32 bits. An address has the lane in bits 16 to
31 and the column in the others.
"""
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from ....native import Ptr, i64, size_of, u32, u64
from .engine_table import TCGEN05_QUEUE
from .engines import ARRIVAL, GROUP, give, nothing
from .records import FrameHeader, Mma
from .umma import multiply, refused, tcgen05


@tcgen05.export
def tcgen05_mma(frame: Ptr[FrameHeader], mma: Ptr[Mma]) -> i64:
    """Issue an MMA; return 0 or why not."""
    why = refused(frame.block, mma)
    if why == 0:
        give(frame, TCGEN05_QUEUE, GROUP, multiply, extra=Ptr(mma), extra_bytes=size_of(Mma))
    return why


@tcgen05.export
def tcgen05_commit(frame: Ptr[FrameHeader], mbarrier: Ptr[u64], blocks: u32) -> None:
    """Issue an arrival after what this thread has issued; `blocks` as in `Operation.blocks`."""

    def more(operation):
        operation.blocks = blocks

    give(frame, TCGEN05_QUEUE, ARRIVAL, nothing, mbarrier=mbarrier, more=more)
