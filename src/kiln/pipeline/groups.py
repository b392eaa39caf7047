"""Participants of a pipeline: groups of agents, the kinds of arrival, producer and consumer."""

from __future__ import annotations

import enum
from typing import Any

from ..base_dsl.diagnostics import type_error


class Agent(enum.Enum):
    """The unit in which a group is counted."""

    Thread = enum.auto()
    Warp = enum.auto()
    ThreadBlock = enum.auto()
    ThreadBlockCluster = enum.auto()


class PipelineOp(enum.Enum):
    """The kind of agent that arrives at the mbarriers of a pipeline."""

    AsyncThread = enum.auto()
    """Threads, when they say so."""
    TCGen05Mma = enum.auto()
    """The tensor cores of sm_100, when all issued MMAs are done."""
    TmaLoad = enum.auto()
    """TMA's bytes, when they are in shared memory."""
    ClcLoad = enum.auto()
    """The answer to a cluster launch control query."""
    TmaStore = enum.auto()
    """Nothing: the thread that issued a store waits for it."""
    Composite = enum.auto()
    """Several of these kinds."""
    AsyncLoad = enum.auto()
    """Threads, each when its `cp.async` copies are complete."""


class PipelineUserType(enum.Enum):
    """The producer's or the consumer's side of a pipeline."""

    Producer = enum.auto()
    Consumer = enum.auto()
    ProducerConsumer = enum.auto()


class CooperativeGroup:
    """`size` agents that arrive together: threads, or warps, which arrive as often as the kind of arrival says."""

    __kiln_immutable__ = True

    def __init__(self, agent: Agent, size: Any = 1, alignment: int | None = None) -> None:
        if agent not in (Agent.Thread, Agent.Warp):
            raise type_error(
                f"agent of a CooperativeGroup is {getattr(agent, 'name', agent)!r}",
                "CooperativeGroup(Agent.Thread, number of threads), or Agent.Warp and the number of warps",
            )
        if isinstance(size, float) and size.is_integer():  # threads / 32
            size = int(size)
        if isinstance(size, float) or (isinstance(size, int) and size < 1):
            raise type_error(
                f"size of a CooperativeGroup is {size}: a whole number of {agent.name.lower()}s, at least 1"
            )
        self.agent = agent
        self.size = size
        self.alignment = alignment

    def arrivals(self, of_a_warp: int) -> Any:
        """Return how often the group arrives at a barrier, if `of_a_warp` threads of a warp do."""
        return self.size * of_a_warp if self.agent is Agent.Warp else self.size

    def __repr__(self) -> str:
        return f"CooperativeGroup({self.agent.name}, {self.size})"
