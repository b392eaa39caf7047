"""Special registers: masks of lanes, the places of a thread on the GPU, sizes of shared memory."""

from __future__ import annotations

from ...base_dsl.typing import Int32, Int64
from .inline_assembly import assembly, inline_ptx
from .values import WARP_SIZE, kernel_only

__all__ = [
    "THREADS_PER_WARPGROUP",
    "WARPS_PER_WARPGROUP",
    "activemask",
    "aggr_smem_size",
    "globaltimer_lo",
    "gridid",
    "lanemask_eq",
    "lanemask_ge",
    "lanemask_gt",
    "lanemask_le",
    "lanemask_lt",
    "nsmid",
    "nwarpid",
    "physical_warp_id",
    "smid",
    "total_smem_size",
    "warpsize",
]

WARPS_PER_WARPGROUP = 4
THREADS_PER_WARPGROUP = WARPS_PER_WARPGROUP * WARP_SIZE


def _constant(what: str, register: str) -> Int32:
    """Return a register whose value stays the same for a thread."""
    kernel_only(what)
    return assembly(f"mov.u32 {{$w0}}, {register};", Int32)


def _changing(what: str, code: str) -> Int32:
    kernel_only(what)
    return inline_ptx(code, write_only_types=[Int32])


def lanemask_eq(*, loc: object = None, ip: object = None) -> Int32:
    """Return the bit of this thread's lane, as a word."""
    return _constant("lanemask_eq", "%lanemask_eq")


def lanemask_lt(*, loc: object = None, ip: object = None) -> Int32:
    """Return a word with the bits of the lanes below this thread's."""
    return _constant("lanemask_lt", "%lanemask_lt")


def lanemask_le(*, loc: object = None, ip: object = None) -> Int32:
    """Return a word with the bits of this thread's lane and those below."""
    return _constant("lanemask_le", "%lanemask_le")


def lanemask_gt(*, loc: object = None, ip: object = None) -> Int32:
    """Return a word with the bits of the lanes above this thread's."""
    return _constant("lanemask_gt", "%lanemask_gt")


def lanemask_ge(*, loc: object = None, ip: object = None) -> Int32:
    """Return a word with the bits of this thread's lane and those above."""
    return _constant("lanemask_ge", "%lanemask_ge")


def activemask(*, loc: object = None, ip: object = None) -> Int32:
    """Return the lanes of the warp that execute this together; on the CPU target those that have not exited."""
    return _changing("activemask", "activemask.b32 {$w0};")


def smid(*, loc: object = None, ip: object = None) -> Int32:
    """Return the number of the SM that the thread is on, which may change; 0 on the CPU target."""
    return _changing("smid", "mov.u32 {$w0}, %smid;")


def nsmid(*, loc: object = None, ip: object = None) -> Int32:
    """Return a bound of the numbers of SMs, which may have gaps; 1 on the CPU target."""
    return _constant("nsmid", "%nsmid")


def physical_warp_id(*, loc: object = None, ip: object = None) -> Int32:
    """Return the number of the warp on its SM, which may change; `warp_idx` is its number in the CTA."""
    return _changing("physical_warp_id", "mov.u32 {$w0}, %warpid;")


def nwarpid(*, loc: object = None, ip: object = None) -> Int32:
    """Return a bound of the numbers that `physical_warp_id` returns."""
    return _constant("nwarpid", "%nwarpid")


def warpsize(*, loc: object = None, ip: object = None) -> Int32:
    """Return the threads of a warp, 32."""
    return _constant("warpsize", "WARP_SZ")


def gridid(*, loc: object = None, ip: object = None) -> Int64:
    """Return the number of this launch; 0 on the CPU target."""
    kernel_only("gridid")
    return assembly("mov.u64 {$w0}, %gridid;", Int64)


def globaltimer_lo(*, loc: object = None, ip: object = None) -> Int32:
    """Return the lower 32 bits of `globaltimer`."""
    return _changing("globaltimer_lo", "mov.u32 {$w0}, %globaltimer_lo;")


def total_smem_size(*, loc: object = None, ip: object = None) -> Int32:
    """Return the bytes of shared memory of the CTA, without what the system reserves."""
    return _constant("total_smem_size", "%total_smem_size")


def aggr_smem_size(*, loc: object = None, ip: object = None) -> Int32:
    """Return the bytes of shared memory of the CTA, with what the system reserves. Needs sm_90 or later."""
    return _constant("aggr_smem_size", "%aggr_smem_size")
