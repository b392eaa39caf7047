"""What operations depend on and change, as their declarations say. What no dialect of Kiln declares, touches no memory."""

from __future__ import annotations

import functools

from ..dialects.cute.types import Cute
from ..dialects.declaration import DECLARED, PURE, UNSTATED, Access, Alias
from ..hardware.engines import Engine
from ..hardware.features import Feature
from ..mlir import ir


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


def uses_memory(op: str, number: int) -> bool:
    """Return whether an operation accesses the memory that an operand leads to, or passes its address on.

    It is True for operations of other dialects.
    """
    kind = DECLARED.get(op)
    return kind is None or number in _numbers(op, "READS") | _numbers(op, "WRITES") | _others(op)


def stored(op: ir.Operation) -> ir.Value | None:
    """Return the value that an operation stores from registers to memory other threads see; None if it stores none.

    Tensor memory, whose addresses are integers, is not meant.
    """
    for address, value in _stores(op.name):
        if not isinstance(op.operands[address].type, ir.IntegerType):
            return op.operands[value]
    return None


@functools.cache
def _stores(op: str) -> tuple[tuple[int, int], ...]:
    """Return the numbers of the operands with the address and the value, for each value that is stored."""
    kind = DECLARED.get(op)
    number = [] if kind is None else list(kind.OPERANDS)
    stored = () if kind is None else [access for access in kind.WRITES if access.value]
    return tuple((number.index(access.operand), number.index(access.value)) for access in stored)


@functools.cache
def computes(op: str) -> bool:
    """Return whether the results of an operation depend on its operands themselves, and on no memory."""
    kind = DECLARED.get(op)
    return kind is not None and bool(kind.RESULTS) and not (kind.READS or kind.MBARRIER)


@functools.cache
def from_lanes(op: str) -> bool:
    """Return whether the result depends on the first operand of all lanes in the operand `mask`."""
    kind = DECLARED.get(op)
    return kind is not None and kind.CONVERGED == "mask" and bool(kind.RESULTS)


@functools.cache
def may_order(op: str) -> bool:
    """Return whether an operation may order accesses before it with accesses after it."""
    kind = DECLARED.get(op)
    if kind is None:
        return not op.startswith(("arith.", "math.", "vector."))
    said = (kind.WRITES, kind.ENGINE, kind.COMMITS, kind.AWAITS, kind.MBARRIER, kind.ORDERS, kind.WAITS, kind.STAYS)
    return any(said)


def makers() -> list[str]:
    """Return the operations whose results may be of types that no operand has."""
    return [name for name, kind in DECLARED.items() if {*kind.RESULTS.values()} - {*kind.OPERANDS.values()}]


def issued_to(engine: Engine) -> list[str]:
    """Return the operations that an engine carries out."""
    return [name for name, kind in DECLARED.items() if kind.ENGINE is engine]


def needs(op: ir.Operation, feature: Feature) -> bool:
    """Return whether an operation needs a feature of a GPU."""
    kind = DECLARED.get(op.name)
    return kind is not None and any(one == feature for one, _ in kind(op).needs())


@functools.cache
def varies(op: str) -> str:
    """Return who gets different results where the operands are the same, a key of `declaration.VARIES`."""
    kind = DECLARED.get(op)
    return "" if kind is None or kind.VARIES is UNSTATED else kind.VARIES


@functools.cache
def is_same_in(op: str, group: str) -> bool:
    """Return whether the threads of a group ("warp" or "cta") get the same result if their operands are the same.

    It is False for what reads memory, and for operations of other dialects.
    """
    kind = DECLARED.get(op)
    if kind is None or kind.READS or kind.MBARRIER:
        return False
    return varies(op) not in (("thread",) if group == "warp" else ("thread", "warp"))


@functools.cache
def _numbers(op: str, accesses: str) -> frozenset[int]:
    kind = DECLARED.get(op)
    if kind is None:
        return frozenset()
    places: tuple[Access, ...] = getattr(kind, accesses)
    return frozenset(list(kind.OPERANDS).index(access.operand) for access in places)


@functools.cache
def _others(op: str) -> frozenset[int]:
    """Return the numbers of operands that are mbarriers, or whose memory results lead to."""
    kind = DECLARED[op]
    names = {kind.MBARRIER, kind.ALIAS.operand if isinstance(kind.ALIAS, Alias) else ""}
    return frozenset(number for number, name in enumerate(kind.OPERANDS) if name in names)
