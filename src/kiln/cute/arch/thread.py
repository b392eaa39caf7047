"""Where a thread is in its block and grid."""

from __future__ import annotations

from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import DSLRuntimeError, error
from ...base_dsl.typing import Int32

Triple = tuple[Int32, Int32, Int32]


def _check(what: str) -> None:
    active = tracing.require(f"{what}()")
    if active.function.kind != "kernel":
        raise error(
            DSLRuntimeError,
            f"{what}() was called outside a kernel",
            hint="call it in a function decorated with @kernel, or inlined into one",
            depth=2,
        )


def _triple(name: str) -> Triple:
    from ...mlir import ir

    _check(name)
    x, y, z = (
        Int32._make(
            tracing.emit_value(f"cute.{name}", Int32.mlir_type, (), {"dim": ir.IntegerAttr.get(Int32.mlir_type, d)}),
            nonneg=True,
        )
        for d in range(3)
    )
    return x, y, z


def thread_idx(*, loc: Any = None, ip: Any = None) -> Triple:
    """Index of this thread in its block, (x, y, z)."""
    return _triple("thread_idx")


def block_idx(*, loc: Any = None, ip: Any = None) -> Triple:
    """Index of this block in the grid."""
    return _triple("block_idx")


def block_dim(*, loc: Any = None, ip: Any = None) -> Triple:
    """Threads in a block along each axis."""
    return _triple("block_dim")


def grid_dim(*, loc: Any = None, ip: Any = None) -> Triple:
    """Blocks in the grid along each axis."""
    return _triple("grid_dim")


def lane_idx(*, loc: Any = None, ip: Any = None) -> Int32:
    """Position of this thread in its warp, 0 to 31."""
    _check("lane_idx")
    return Int32._make(tracing.emit_value("cute.lane_idx", Int32.mlir_type), nonneg=True)


def warp_idx(*, loc: Any = None, ip: Any = None) -> Int32:
    """Number of this thread's warp in its block."""
    _check("warp_idx")
    return Int32._make(tracing.emit_value("cute.warp_idx", Int32.mlir_type), nonneg=True)
