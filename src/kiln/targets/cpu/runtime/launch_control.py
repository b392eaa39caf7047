"""Cluster launch control: a running cluster takes the work of one that has not started.

Clusters are taken from the counter from which OS threads take theirs (`launches.py`). The answer is 16 bytes: the index
of the cluster's first block, and 1; all zero if there was none.
"""
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from ....native import Ptr, address, i32, i64, inline, local, native, ref, u32, u64
from ...host.libc import memcpy, memset
from .engine_table import BULK_QUEUE
from .engines import BYTES, give
from .launches import Job, next_cluster
from .records import FrameHeader, Operation
from .schedule_order import random, schedule
from .tensor_maps import accelerator

ANSWER = 16
"""Bytes of an answer."""
OVER = 1
ALIGNMENT = 2
"""Codes for refused requests: one after an answer that said no; an address that is not aligned."""


@native
def answer(operation: Ptr[Operation]) -> None:
    memcpy(operation.target, operation.extra, ANSWER)


@inline
def take(block, words):
    """Write an answer for a cluster."""
    memset(words, 0, ANSWER)
    first = block.cluster
    seeded = schedule.value != 0
    willing = block.job != None
    if seeded:
        willing = willing and random(ref(block).random, 4) != 0
    if willing:
        if next_cluster(Ptr[Job](block.job), u32(seeded), first.canceled, words):
            first.canceled += 1
            words[3] = 1


@accelerator.export
def clc_try_cancel(frame: Ptr[FrameHeader], response: Ptr, mbarrier: Ptr[u64], multicast: i32) -> i64:
    """Request the work of a cluster that has not started; return 0 or why not."""
    block = frame.block
    if frame.refused != 0:
        return OVER
    if address(response) % ANSWER != 0:
        return ALIGNMENT
    words = local(u32, 4)
    take(block, words)
    if multicast == 0:
        give(frame, BULK_QUEUE, BYTES, answer, response, None, ANSWER, ANSWER, mbarrier, None, Ptr(words), ANSWER)
    else:
        for rank in range(block.cluster_x * block.cluster_y * block.cluster_z):
            distance = (i64(rank) - block.rank) * block.chunk
            there = response + distance
            barrier = Ptr[u64](Ptr(mbarrier) + distance)
            give(frame, BULK_QUEUE, BYTES, answer, there, None, ANSWER, ANSWER, barrier, None, Ptr(words), ANSWER)
    return 0
