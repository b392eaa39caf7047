"""Operations that every processor has, and the enumerations that copies share."""

from __future__ import annotations

import enum
from typing import Any

from ..atom import CopyOp, CopyTrait, UniversalCopyTrait

__all__ = [
    "CacheEvictionPriority", "CopyG2ROp", "CopyR2GOp", "CopyR2SOp", "CopyS2ROp", "CopyUniversalOp", "LoadCacheMode",
    "MemoryOrder", "MemoryScope", "OperandMajorMode",
]  # fmt: skip


class CacheEvictionPriority(enum.Enum):
    """How long a line should stay in the cache."""

    EVICT_NORMAL = enum.auto()
    EVICT_FIRST = enum.auto()
    EVICT_LAST = enum.auto()
    EVICT_UNCHANGED = enum.auto()
    NO_ALLOCATE = enum.auto()


class LoadCacheMode(enum.Enum):
    """At which level a load is cached."""

    ALWAYS = enum.auto()
    GLOBAL = enum.auto()
    STREAMING = enum.auto()
    LAST_USE = enum.auto()
    NONE = enum.auto()


class MemoryOrder(enum.Enum):
    """The memory order of an access."""

    WEAK = enum.auto()
    RELAXED = enum.auto()
    ACQUIRE = enum.auto()
    RELEASE = enum.auto()
    ACQ_REL = enum.auto()
    SC = enum.auto()
    MMIO = enum.auto()
    CONSTANT = enum.auto()
    VOLATILE = enum.auto()


class MemoryScope(enum.Enum):
    """The threads for which the order of an access holds."""

    CTA = enum.auto()
    CLUSTER = enum.auto()
    GPU = enum.auto()
    SYS = enum.auto()


class OperandMajorMode(enum.Enum):
    """Along which mode an operand of an MMA is contiguous."""

    MN = enum.auto()
    K = enum.auto()


class CopyUniversalOp(CopyOp):
    """Loads and stores, of any memory, by one thread."""

    def make_trait(
        self,
        copy_internal_type: Any,
        *,
        num_bits_per_copy: int = 0,
        memory_order: Any = MemoryOrder.WEAK,
        memory_scope: Any = MemoryScope.CTA,
        l1c_evict_priority: Any = CacheEvictionPriority.EVICT_NORMAL,
        invariant: bool = False,
        **_: Any,
    ) -> CopyTrait:
        return UniversalCopyTrait(copy_internal_type, num_bits_per_copy)


class CopyG2ROp(CopyUniversalOp):
    """Loads of global memory into registers."""


class CopyR2GOp(CopyUniversalOp):
    """Stores of registers to global memory."""


class CopyS2ROp(CopyUniversalOp):
    """Loads of shared memory into registers."""


class CopyR2SOp(CopyUniversalOp):
    """Stores of registers to shared memory."""
