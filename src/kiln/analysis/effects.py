"""What operations depend on and change, as their declarations say. What no dialect of Kiln declares, touches no memory."""

from __future__ import annotations

import functools

from ..dialects.cute.types import Cute
from ..dialects.declaration import DECLARED, PURE, Access


def reads(op: str, number: int) -> bool:
    """Return whether an operation reads the memory that an operand leads to."""
    return number in _numbers(op, "READS")


def writes(op: str, number: int) -> bool:
    """Return whether an operation writes the memory that an operand leads to."""
    return number in _numbers(op, "WRITES")


def in_host_code(op: str) -> bool:
    """Return whether an operation of `cute` depends on its operands alone: host code computes it as kernels do."""
    kind = DECLARED.get(op)
    return kind is not None and kind.dialect is Cute and kind.TRAITS is PURE and bool(kind.OPERANDS)


@functools.cache
def is_same_in(op: str, group: str) -> bool:
    """Return whether the threads of a group ("warp" or "cta") get the same result if their operands are the same.

    It is False for what reads memory, and for operations of other dialects.
    """
    kind = DECLARED.get(op)
    if kind is None or kind.READS or kind.MBARRIER or kind.ENGINE is not None:
        return False
    return kind.VARIES not in (("thread",) if group == "warp" else ("thread", "warp"))


@functools.cache
def _numbers(op: str, accesses: str) -> frozenset[int]:
    kind = DECLARED.get(op)
    if kind is None:
        return frozenset()
    places: tuple[Access, ...] = getattr(kind, accesses)
    return frozenset(list(kind.OPERANDS).index(access.operand) for access in places)
