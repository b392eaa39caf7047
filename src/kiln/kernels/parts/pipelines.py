"""Buffers in shared memory that one part of a block of threads fills for another."""

from __future__ import annotations

from typing import Any

from ... import pipeline


def tma_pipe(stages: int, warps: int, size: int) -> Any:
    """Buffers of so many bytes that the copy engine fills, and so many warps use. Barriers are there once `pipeline_init_wait` returns."""
    return pipeline.PipelineTmaAsync.create(
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
        tx_count=size,
        defer_sync=True,
    )
