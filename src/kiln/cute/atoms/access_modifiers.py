"""Modifiers of memory accesses: order, scope, and eviction priority in the caches."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from ...base_dsl.diagnostics import type_error

__all__ = ["CacheEvictionPriority", "L2PrefetchSize", "LoadCacheMode", "MemoryOrder", "MemoryScope", "StoreCacheMode"]


Member = TypeVar("Member", bound=enum.Enum)


class CacheEvictionPriority(enum.Enum):
    """How long a line should stay in the cache."""

    EVICT_NORMAL = enum.auto()
    EVICT_FIRST = enum.auto()
    EVICT_LAST = enum.auto()
    EVICT_UNCHANGED = enum.auto()
    NO_ALLOCATE = enum.auto()


class LoadCacheMode(enum.Enum):
    """The level at which a load is cached; NONE leaves it to the hardware."""

    ALWAYS = enum.auto()
    GLOBAL = enum.auto()
    STREAMING = enum.auto()
    LAST_USE = enum.auto()
    NONE = enum.auto()


class StoreCacheMode(enum.Enum):
    """The level at which a store is cached; NONE leaves it to the hardware."""

    WRITE_BACK = enum.auto()
    GLOBAL = enum.auto()
    STREAMING = enum.auto()
    WRITE_THROUGH = enum.auto()
    NONE = enum.auto()


class L2PrefetchSize(enum.Enum):
    """The bytes around those loaded that may be prefetched into the L2 cache."""

    NONE = enum.auto()
    RESERVED = enum.auto()
    SIZE_64B = enum.auto()
    SIZE_128B = enum.auto()
    SIZE_256B = enum.auto()


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

_LOADS = {LoadCacheMode.GLOBAL: "cg", LoadCacheMode.STREAMING: "cs", LoadCacheMode.LAST_USE: "lu"}
_STORES = {StoreCacheMode.GLOBAL: "cg", StoreCacheMode.STREAMING: "cs", StoreCacheMode.WRITE_THROUGH: "wt"}
_PREFETCHES = {
    L2PrefetchSize.SIZE_64B: "L2::64B",
    L2PrefetchSize.SIZE_128B: "L2::128B",
    L2PrefetchSize.SIZE_256B: "L2::256B",
}


def modifiers_of(
    order: Any = MemoryOrder.WEAK,
    scope: Any = MemoryScope.CTA,
    priority: Any = CacheEvictionPriority.EVICT_NORMAL,
    invariant: bool = False,
    l2_priority: Any = CacheEvictionPriority.EVICT_NORMAL,
    loads: object = LoadCacheMode.ALWAYS,
    stores: object = StoreCacheMode.WRITE_BACK,
    prefetch: object = L2PrefetchSize.NONE,
) -> tuple[str, str]:
    """Return PTX's modifiers for loads and for stores. `invariant`: nothing writes the source while the kernel runs."""
    member_of("memory_order", order, MemoryOrder)
    member_of("memory_scope", scope, MemoryScope)
    member_of("l1c_evict_priority", priority, CacheEvictionPriority)
    load_mode = member_of("load_cache_mode", loads, LoadCacheMode)
    store_mode = member_of("store_cache_mode", stores, StoreCacheMode)
    ahead = member_of("l2_prefetch_size", prefetch, L2PrefetchSize)
    if ahead is L2PrefetchSize.RESERVED:
        raise type_error("l2_prefetch_size is RESERVED", "NONE, SIZE_64B, SIZE_128B or SIZE_256B")
    caches = _LOADS.get(load_mode, ""), _STORES.get(store_mode, "")
    if any(caches) and (order is not MemoryOrder.WEAK or _PRIORITIES[priority]):
        what = order.name if order is not MemoryOrder.WEAK else f"l1c_evict_priority={priority.name}"
        raise type_error(
            f"a cache mode goes with no {what}", "a copy has a cache mode, or an order and an eviction priority"
        )
    if caches[0] == "lu" and invariant:
        raise type_error("load_cache_mode=LAST_USE with invariant=True", "one of them")
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
    load += [caches[0], *hints, _PREFETCHES.get(ahead, "")]
    store += [caches[1], *hints]
    return ".".join(filter(None, load)), ".".join(filter(None, store))


def member_of(what: str, value: object, kind: type[Member]) -> Member:
    """Return a value; raise an error if it is no member of an enumeration."""
    if not isinstance(value, kind):
        raise type_error(f"{what} is {value!r}", f"{kind.__name__}: {', '.join(member.name for member in kind)}")
    return value


def l2_modifier(priority: object) -> str:
    """Return PTX's modifier for an eviction priority in the L2 cache."""
    if not isinstance(priority, CacheEvictionPriority) or priority is CacheEvictionPriority.NO_ALLOCATE:
        names = ", ".join(member.name for member in CacheEvictionPriority if member.name != "NO_ALLOCATE")
        raise type_error(f"l2_evict_priority is {priority!r}", f"CacheEvictionPriority: {names}")
    return _PRIORITIES[priority].replace("L1", "L2")
