"""The numbers of asynchronous engines (`hardware/engines.py`), by which the CPU runtime and the sanitizer know them.

The runtime keeps operations in the queues of engines (`engines.py`). The sanitizer has an identity for each engine and
issuer, and tracks what each of them reads and writes (`sanitizer/state.py`). A new engine is a row of `ENGINES`, with
its own queue if its operations are issued, grouped or completed separately.
"""

from __future__ import annotations

from ....hardware.engines import ENGINES

THREAD, COPY, BULK_LOAD, BULK_STORE, BULK_SOURCE, WGMMA, TCGEN05, TCGEN05_CP, TCGEN05_LD, TCGEN05_ST = range(
    len(ENGINES)
)
GENERIC = sum(engine.proxy == "generic" for engine in ENGINES)
"""How many engines work through the generic proxy."""
assert all(engine.proxy == "generic" for engine in ENGINES[:GENERIC])

QUEUES = tuple(dict.fromkeys(engine.queue for engine in ENGINES if engine.queue is not None))
COPY_QUEUE, BULK_QUEUE, WGMMA_QUEUE, TCGEN05_QUEUE, TCGEN05_ST_QUEUE = range(len(QUEUES))
"""The numbers of queues: those of `FrameHeader.groups`."""
