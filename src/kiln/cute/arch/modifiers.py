"""The modifiers of PTX `ld` and `st`: memory orders, cache operators, eviction priorities."""

from __future__ import annotations

from .values import choice

ORDERS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("gpu", "cta", "cluster", "sys")
_EVICTIONS = {
    "evict_normal": "L1::evict_normal",
    "evict_first": "L1::evict_first",
    "evict_last": "L1::evict_last",
    "evict_no_allocate": "L1::no_allocate",
    "evict_unchanged": "L1::evict_unchanged",
}


def access_modifiers(sem: object, scope: object, cop: object, eviction: object, prefetch: object = None) -> str:
    """Return the modifiers, joined by dots, of a memory order, its scope, a cache operator and hints, each or None."""
    parts: list[str] = []
    if sem is not None:
        parts += [choice("sem", sem, ORDERS), choice("scope", scope or "gpu", SCOPES)]
    if cop is not None:
        parts.append(choice("cop", cop, ("ca", "cg", "cs", "lu", "cv", "wb", "wt")))
    if eviction is not None:
        parts.append(_EVICTIONS[choice("level1_eviction_priority", eviction, tuple(_EVICTIONS))])
    if prefetch is not None:
        size = choice("level_prefetch_size", prefetch, ("size_64b", "size_128b", "size_256b"))
        parts.append(f"L2::{size.removeprefix('size_')[:-1].upper()}B")
    return ".".join(parts)
