"""Who takes part in a pipeline, and how."""

from __future__ import annotations

import enum
from typing import Any

from ..base_dsl.diagnostics import DSLUserCodeTypeError, error


class Agent(enum.Enum):
    """What a group is counted in."""

    Thread = enum.auto()
    Warp = enum.auto()
    ThreadBlock = enum.auto()
    ThreadBlockCluster = enum.auto()


class PipelineOp(enum.Enum):
    """What arrives at the barriers of a pipeline."""

    AsyncThread = enum.auto()
    """Threads, when they say so."""
    TCGen05Mma = enum.auto()
    """The tensor cores of sm_100, when they are done with all that was issued."""
    TmaLoad = enum.auto()
    """Bytes, when they are in shared memory."""
    ClcLoad = enum.auto()
    """The answer to a cluster-launch query."""
    TmaStore = enum.auto()
    """Nothing: stores are waited for by the thread that issued them."""
    Composite = enum.auto()
    """Several of these."""
    AsyncLoad = enum.auto()
    """Threads, each when its `cp.async` copies have arrived."""


class PipelineUserType(enum.Enum):
    """A side of a pipeline."""

    Producer = enum.auto()
    Consumer = enum.auto()
    ProducerConsumer = enum.auto()


class CooperativeGroup:
    """`size` agents that arrive together. What arrives at a barrier is counted in threads."""

    __kiln_immutable__ = True

    def __init__(self, agent: Agent, size: Any = 1, alignment: int | None = None) -> None:
        if agent not in (Agent.Thread, Agent.Warp, Agent.ThreadBlock, Agent.ThreadBlockCluster):
            raise error(DSLUserCodeTypeError, f"a group of {agent!r}", hint="pipeline.Agent.Thread")
        if agent is not Agent.Thread:
            raise error(
                DSLUserCodeTypeError,
                f"a group is counted in threads, not in {agent.name}",
                hint="CooperativeGroup(Agent.Thread, number of threads)",
            )
        if isinstance(size, float) and size.is_integer():  # threads / 32
            size = int(size)
        if isinstance(size, float) or (isinstance(size, int) and size < 1):
            raise error(DSLUserCodeTypeError, f"a group of {size} threads")
        self.agent = agent
        self.size = size
        self.alignment = alignment

    def __repr__(self) -> str:
        return f"CooperativeGroup({self.agent.name}, {self.size})"
