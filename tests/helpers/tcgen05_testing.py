"""Kernels with tensor memory: pieces that tests share, in terms of the dialect's operations."""

from __future__ import annotations

from typing import Any

from mma_cases import elements_of, vector_of

from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.cute import arch
from kiln.dialects.nvgpu import mbarrier, tcgen05
from kiln.mlir import ir

STEP = 32
"""Columns that `fill` and `read_all` access at a time."""


def word(value: Any) -> ir.Value:
    return cute.Int32(value).ir_value()


def long(value: Any) -> ir.Value:
    return cute.Int64(value).ir_value()


def i16(value: int) -> ir.Value:
    type_ = ir.IntegerType.get_signless(16)
    return tracing.emit_value("arith.constant", type_, (), {"value": ir.IntegerAttr.get(type_, value)})


def holder() -> Any:
    """A word of shared memory for an address of tensor memory."""
    return cute.make_tensor(arch.alloc_smem(cute.Int32, 4, 16), cute.make_layout(4))


def mbarriers(count: int) -> Any:
    return arch.alloc_smem(cute.Int64, count, 8)


@cute.jit
def allocate(place: Any, columns: int, cta_group: int = 1, warp: int = 0) -> cute.Int32:
    """Let a warp allocate, and all threads of the CTA read the address."""
    if arch.thread_idx()[0] // 32 == warp:
        tcgen05.tcgen05_alloc(place.iterator.ir_value(), word(columns), cta_group=cta_group)
    arch.sync_threads()
    return place[0]


@cute.jit
def free(address: Any, columns: int, cta_group: int = 1, warp: int = 0) -> None:
    arch.sync_threads()
    if arch.thread_idx()[0] // 32 == warp:
        tcgen05.tcgen05_relinquish_alloc_permit(cta_group=cta_group)
        tcgen05.tcgen05_dealloc(cute.Int32(address).ir_value(), word(columns), cta_group=cta_group)


def lanes_of_warp(address: Any) -> cute.Int32:
    """The address of the lanes that the running warp accesses."""
    return address + (arch.thread_idx()[0] // 32 % 4 << 21)


def store(address: Any, words: Any, shape: str, repeat: int, **options: Any) -> None:
    tcgen05.tcgen05_st(address.ir_value(), vector_of(list(words), cute.Int32), shape=shape, repeat=repeat, **options)


def load(address: Any, shape: str, repeat: int, **options: Any) -> list[Any]:
    return elements_of(tcgen05.tcgen05_ld(address.ir_value(), shape, repeat, **options), cute.Int32)


@cute.jit
def fill(address: Any, values: Any, columns: int) -> None:
    """Store columns of an array of 128 rows, by four warps."""
    t = arch.thread_idx()[0]
    for block in range(cute.Int32(columns // STEP)):
        at = lanes_of_warp(address) + block * STEP
        store(at, [values[t, block * STEP + n] for n in range(STEP)], "32x32b", STEP)
    tcgen05.tcgen05_wait(kind="st")


@cute.jit
def read_all(address: Any, out: Any, columns: int) -> None:
    """Load columns into an array of 128 rows, by four warps."""
    t = arch.thread_idx()[0]
    for block in range(cute.Int32(columns // STEP)):
        words = load(lanes_of_warp(address) + block * STEP, "32x32b", STEP)
        tcgen05.tcgen05_wait(kind="ld")
        for n, value in enumerate(words):
            out[t, block * STEP + n] = value


def wait(barrier: Any, phase: Any = 0) -> None:
    mbarrier.mbarrier_wait(barrier.ir_value(), word(phase))


def commit(barrier: Any, *mask: int, cta_group: int = 1) -> None:
    tcgen05.tcgen05_commit(barrier.ir_value(), *[i16(m) for m in mask], cta_group=cta_group)
