"""Pipelines that TMA fills."""

from __future__ import annotations

from typing import Any

from ... import pipeline


def tma_pipe(stages: int, warps: int, size: int) -> Any:
    """Return a pipeline whose stages of `size` bytes TMA fills and `warps` warps empty.

    Its barriers are usable after `pipeline_init_wait`."""
    return pipeline.PipelineTmaAsync.create(
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
        tx_count=size,
        defer_sync=True,
    )
