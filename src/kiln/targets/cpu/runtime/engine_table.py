"""The asynchronous engines of a GPU, in one table that the CPU runtime and the sanitizer read.

The runtime keeps operations in the queues of engines (`engines.py`). The sanitizer has an identity for each engine and
issuer, and tracks what each of them reads and writes (`sanitizer/state.py`). A new engine is a row of `ENGINES`, with
its own queue if its operations are issued, grouped or completed separately.
"""

from __future__ import annotations

from typing import NamedTuple

from ....hardware.limits import WARPGROUP


class Queue(NamedTuple):
    """A queue of operations, one for each issuer: `threads` consecutive threads that issue an operation together."""

    name: str
    threads: int = 1
    ctas: int = 1
    """CTAs whose memory an operation may access."""
    ordered: bool = False
    """Whether the operations of an issuer are carried out in the order of issue."""


class Engine(NamedTuple):
    """A unit that accesses memory on behalf of the threads that issue operations to it."""

    name: str
    of_thread: str
    """The text that reports put before the issuing thread."""
    proxy: str
    """How it sees memory: "generic" or "async". What one proxy did the other sees after a proxy fence."""
    queue: Queue | None
    """None for the thread itself."""
    completion: str
    """How threads see that an operation is complete: groups that are committed and waited for, or an mbarrier."""


_COPY = Queue("cp.async")
_BULK = Queue("cp.async.bulk")
_WGMMA = Queue("wgmma", threads=WARPGROUP)
_TCGEN05 = Queue("tcgen05", ctas=2, ordered=True)
_TCGEN05_ST = Queue("tcgen05.st")

ENGINES = (
    Engine("thread", "", "generic", None, "program order"),
    Engine("cp.async", "an asynchronous copy of ", "generic", _COPY, "cp.async.wait_group, or an mbarrier"),
    Engine("bulk load", "a bulk copy of ", "async", _BULK, "an mbarrier that counts its bytes"),
    Engine("bulk store", "a bulk store of ", "async", _BULK, "cp.async.bulk.wait_group"),
    Engine("bulk store source", "a bulk store of ", "async", _BULK, "cp.async.bulk.wait_group.read"),
    Engine("wgmma", "a wgmma of ", "async", _WGMMA, "wgmma.wait_group"),
    Engine("tcgen05.mma", "a tcgen05.mma of ", "async", _TCGEN05, "an mbarrier that tcgen05.commit arrives at"),
    Engine("tcgen05.cp", "a tcgen05.cp of ", "async", _TCGEN05, "an mbarrier that tcgen05.commit arrives at"),
    Engine("tcgen05.ld", "a tcgen05.ld of ", "async", None, "tcgen05.wait::ld"),
    Engine("tcgen05.st", "a tcgen05.st of ", "async", _TCGEN05_ST, "tcgen05.wait::st"),
)
"""All engines, at most 16; those of the generic proxy come first."""
THREAD, COPY, BULK_LOAD, BULK_STORE, BULK_SOURCE, WGMMA, TCGEN05, TCGEN05_CP, TCGEN05_LD, TCGEN05_ST = range(
    len(ENGINES)
)
"""The numbers of engines.

The identities of BULK_LOAD are mbarriers (`sanitizer/mbarriers.py`), since copies to different ones may complete in any
order. The writes of a bulk store belong to BULK_STORE, its reads, which can be waited for alone, to BULK_SOURCE.
TCGEN05 are MMAs and shifts.
"""
GENERIC = sum(engine.proxy == "generic" for engine in ENGINES)
"""How many engines work through the generic proxy."""
assert all(engine.proxy == "generic" for engine in ENGINES[:GENERIC])

QUEUES = tuple(dict.fromkeys(engine.queue for engine in ENGINES if engine.queue is not None))
COPY_QUEUE, BULK_QUEUE, WGMMA_QUEUE, TCGEN05_QUEUE, TCGEN05_ST_QUEUE = range(len(QUEUES))
"""The numbers of queues: those of `FrameHeader.groups`."""
