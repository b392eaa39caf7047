"""Checks for tiles of shared memory that are written through one swizzle and read through another.

Such a read is ordered and inside its tile, but returns another element. Programs that are traced for the sanitizer name
the swizzle of each tensor in shared memory (`cute.through`). For each cell the detector stores where its bytes would
lie without the swizzle they were written through. A read that maps them elsewhere, while the element that belongs there
lies at another address with another value, is a finding. A tile that is filled with one value may be filled through any
view. Accesses through no tensor, bulk copies, atomics and writes of one value to a whole vector are not checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ....dialects.cute import Through
from ....mlir import ir
from ...lowering.builder import Builder
from .tiles import BITS, UNKNOWN

_ANY_VALUE = {"vector.broadcast", "vector.splat"}
_TAKING = {
    "vector.extract",
    "vector.extract_strided_slice",
    "vector.shape_cast",
    "vector.bitcast",
    "llvm.bitcast",
    "arith.bitcast",
    "arith.extui",
    "builtin.unrealized_conversion_cast",
}
"""Operations that take elements of their first operand, and nothing else."""
_CONSTANT = {"arith.constant", "llvm.mlir.constant", "llvm.mlir.zero"}


@dataclasses.dataclass(frozen=True)
class Swizzled:
    """The swizzle of a tensor in shared memory."""

    name: str
    """The swizzle as the program has it; empty for a plain layout."""
    code: int
    """Bits, base and shift, counted in bytes, in `tiles.BITS` bits each."""
    base: ir.Value | None
    """The address that offsets are counted from; None: addresses themselves are swizzled."""


def any_in(func: ir.Operation) -> bool:
    """Return whether a kernel has a swizzled tensor in shared memory."""
    return any(op.swizzle_name for op in Through.all_in(func))


def swizzled(op: Through, pointer: ir.Value) -> Swizzled | None:
    """Return the swizzle of a `cute.through`; None for one that moves bits upwards."""
    numbers = [int(n) for n in op.swizzle.split(",")] if op.swizzle else []
    if any(n < 0 for n in numbers):
        return None
    code = sum(n << BITS * k for k, n in enumerate(numbers))
    return Swizzled(op.swizzle_name, code, None if op.absolute else pointer)


def is_uniform(value: ir.Value | None) -> bool:
    """Return whether all elements of a value are the same, so that it does not matter which goes where."""
    if value is None or isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    if op.name in _CONSTANT:
        return not isinstance(value.type, ir.VectorType) or ir.DenseElementsAttr(op.attributes["value"]).is_splat
    return op.name in _ANY_VALUE or (op.name in _TAKING and is_uniform(op.operands[0]))


def look(
    b: Builder,
    tell: Callable[..., Any],
    address: ir.Value,
    bytes_: int | ir.Value,
    seen: Swizzled | None,
    write: bool,
    site: int,
) -> None:
    """After an access to shared memory, record or compare where its bytes lie without the swizzle."""
    if seen is not None or write:
        base = b.i64(0) if seen is None or seen.base is None else seen.base
        tell("tile", address, bytes_, base, UNKNOWN if seen is None else seen.code, int(write), site)
