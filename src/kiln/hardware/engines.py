"""The units of a GPU that carry out operations after the thread that issued them has gone on."""

from __future__ import annotations

from typing import NamedTuple

from .limits import WARPGROUP


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

THREAD = Engine("thread", "", "generic", None, "program order")
COPY = Engine("cp.async", "an asynchronous copy of ", "generic", _COPY, "cp.async.wait_group, or an mbarrier")
BULK_LOAD = Engine("bulk load", "a bulk copy of ", "async", _BULK, "an mbarrier that counts its bytes")
BULK_STORE = Engine("bulk store", "a bulk store of ", "async", _BULK, "cp.async.bulk.wait_group")
BULK_SOURCE = Engine("bulk store source", "a bulk store of ", "async", _BULK, "cp.async.bulk.wait_group.read")
WGMMA = Engine("wgmma", "a wgmma of ", "async", _WGMMA, "wgmma.wait_group")
TCGEN05 = Engine("tcgen05.mma", "a tcgen05.mma of ", "async", _TCGEN05, "an mbarrier that tcgen05.commit arrives at")
TCGEN05_CP = Engine("tcgen05.cp", "a tcgen05.cp of ", "async", _TCGEN05, "an mbarrier that tcgen05.commit arrives at")
TCGEN05_LD = Engine("tcgen05.ld", "a tcgen05.ld of ", "async", None, "tcgen05.wait::ld")
TCGEN05_ST = Engine("tcgen05.st", "a tcgen05.st of ", "async", _TCGEN05_ST, "tcgen05.wait::st")
"""The identities of BULK_LOAD are mbarriers, since copies to different ones may complete in any order. The writes of a
bulk store belong to BULK_STORE, its reads, which can be waited for alone, to BULK_SOURCE. TCGEN05 are MMAs and shifts.
"""
ENGINES = (THREAD, COPY, BULK_LOAD, BULK_STORE, BULK_SOURCE, WGMMA, TCGEN05, TCGEN05_CP, TCGEN05_LD, TCGEN05_ST)
"""All engines, at most 16; those of the generic proxy come first."""
