"""Enumerations of task scheduling."""

from __future__ import annotations

import enum

from ..._support import lazy

__dir__ = lazy.listing(__name__)
__all__ = ["PipelineGroupMode", "PipelineType", "SignalingThreads", "TileSchedulerType", "WorkAttr"]


class WorkAttr(enum.Flag):
    """Properties of a work method."""

    NONE = 0
    AUXILIARY = enum.auto()
    """It is called and not checked: it sets up state, or computes conditions."""


class PipelineType(enum.Enum):
    """Who fills the stages of a pipeline, and who empties them."""

    AsyncAsync = "async_async"
    TmaAsync = "tma_async"
    TmaUmma = "tma_umma"
    UmmaAsync = "umma_async"
    AsyncUmma = "async_umma"
    UmmaUmma = "umma_umma"
    ClcFetchAsync = "clc_fetch_async"


class TileSchedulerType(enum.Enum):
    """Who says which tile is next."""

    StaticPersistent = "static"
    ClcDynamicPersistent = "clc"


class PipelineGroupMode(enum.Enum):
    """How the pipelines of a group are joined."""

    Merge = enum.auto()
    """Several producers, one consumer, which releases all members at once."""
    Fork = enum.auto()
    """One producer, which fills all members at once, and several consumers."""
    FusedMerge = enum.auto()
    """As Merge, with one full barrier for all producers."""


class SignalingThreads(enum.Flag):
    """The threads of a task that execute barrier instructions."""

    All = 0
    CtaLeader = enum.auto()
    TaskWarpLeader = enum.auto()
