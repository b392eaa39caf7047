"""Modifiers of memory accesses: order, scope, and eviction priority in the caches."""

from __future__ import annotations

import enum
from typing import Any

from ...base_dsl.diagnostics import type_error

__all__ = ["CacheEvictionPriority", "MemoryOrder", "MemoryScope"]


class CacheEvictionPriority(enum.Enum):
    """How long a line should stay in the cache."""

    EVICT_NORMAL = enum.auto()
    EVICT_FIRST = enum.auto()
    EVICT_LAST = enum.auto()
    EVICT_UNCHANGED = enum.auto()
    NO_ALLOCATE = enum.auto()


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


_ORDERS = {
    MemoryOrder.RELAXED: ("relaxed", "relaxed"),
    MemoryOrder.ACQUIRE: ("acquire", "relaxed"),
    MemoryOrder.RELEASE: ("relaxed", "release"),
    MemoryOrder.ACQ_REL: ("acquire", "release"),
    MemoryOrder.SC: ("acquire", "release"),
}
"""The modifiers of loads and of stores. A sequentially consistent access also needs a fence of the program."""
_PRIORITIES = {
    CacheEvictionPriority.EVICT_NORMAL: "",
    CacheEvictionPriority.EVICT_FIRST: "L1::evict_first",
    CacheEvictionPriority.EVICT_LAST: "L1::evict_last",
    CacheEvictionPriority.EVICT_UNCHANGED: "L1::evict_unchanged",
    CacheEvictionPriority.NO_ALLOCATE: "L1::no_allocate",
}


def modifiers_of(
    order: Any = MemoryOrder.WEAK,
    scope: Any = MemoryScope.CTA,
    priority: Any = CacheEvictionPriority.EVICT_NORMAL,
    invariant: bool = False,
    l2_priority: Any = CacheEvictionPriority.EVICT_NORMAL,
) -> tuple[str, str]:
    """Return PTX's modifiers for loads and for stores. `invariant`: nothing writes the source while the kernel runs."""
    for what, value, kind in (
        ("memory_order", order, MemoryOrder),
        ("memory_scope", scope, MemoryScope),
        ("l1c_evict_priority", priority, CacheEvictionPriority),
    ):
        if not isinstance(value, kind):
            names = ", ".join(member.name for member in kind)
            raise type_error(f"{what} is {value!r}", f"{kind.__name__}: {names}")
    hints = [part for part in (_PRIORITIES[priority], l2_modifier(l2_priority)) if part]
    load = []
    store = []
    if order in _ORDERS:
        load, store = ([part, scope.name.lower()] for part in _ORDERS[order])
    elif order is MemoryOrder.VOLATILE:
        load = ["volatile"]
        store = ["volatile"]
    elif order is MemoryOrder.MMIO:
        load = ["mmio", "relaxed", "sys"]
        store = ["mmio", "relaxed", "sys"]
    if (invariant or order is MemoryOrder.CONSTANT) and not load:
        load = ["nc"]
    return ".".join([*load, *hints]), ".".join([*store, *hints])


def l2_modifier(priority: object) -> str:
    """Return PTX's modifier for an eviction priority in the L2 cache."""
    if not isinstance(priority, CacheEvictionPriority) or priority is CacheEvictionPriority.NO_ALLOCATE:
        names = ", ".join(member.name for member in CacheEvictionPriority if member.name != "NO_ALLOCATE")
        raise type_error(f"l2_evict_priority is {priority!r}", f"CacheEvictionPriority: {names}")
    return _PRIORITIES[priority].replace("L1", "L2")
