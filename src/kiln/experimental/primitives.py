"""Single instructions by their names in NVVM. Kiln has those with which libraries write kernels for Ampere and Hopper."""

from __future__ import annotations

import enum
from typing import Any

from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Boolean, Float32, Int32, Numeric, Uint32
from ..cute import arch
from ..cute.arch.values import i32, kernel_only, number, pointer
from ..cute.deferred_dialects import nvgpu
from ..cute.tensor.pointer import AddressSpace, Pointer, pointer_to, space_of_llvm_pointer

__all__ = [
    "AtomicOp", "CpReduceOp", "CpReduceType", "GridDepAction", "MBarrierScope", "MBarrierWait", "MemOrder", "MemScope",
    "PermuteMode", "ReductionKind", "SharedSpace", "atomicrmw", "convert_and_pack_integer",
    "cp_async_bulk_global_shared_cta", "cp_reduce_async_bulk_global_shared_cta", "fence_sync_restrict",
    "griddepcontrol", "mapa", "mbarrier_arrive", "mbarrier_wait_parity", "mov_b32", "prmt", "redux_sync",
]  # fmt: skip


def _names(name: str, members: str) -> Any:
    """Return an enumeration whose values are its names in PTX."""
    return enum.Enum(name, {member: member.lower() for member in members.split()}, module=__name__)


AtomicOp = _names("AtomicOp", "AND OR XOR CAS EXCH ADD INC DEC MIN MAX")
CpReduceOp = _names("CpReduceOp", "ADD MIN MAX INC DEC AND OR XOR")
CpReduceType = _names("CpReduceType", "F16 BF16 B32 B64 U32 U64 S32 S64 F32 F64")
GridDepAction = _names("GridDepAction", "WAIT LAUNCH_DEPENDENTS")
MBarrierScope = _names("MBarrierScope", "CTA CLUSTER")
MBarrierWait = _names("MBarrierWait", "TEST TRY")
MemOrder = _names("MemOrder", "WEAK RELAXED ACQUIRE RELEASE ACQ_REL SC MMIO VOLATILE CONSTANT")
MemScope = _names("MemScope", "CTA CLUSTER GPU SYS")
PermuteMode = _names("PermuteMode", "DEFAULT F4E B4E RC8 ECL ECR RC16")
ReductionKind = _names("ReductionKind", "ADD AND MAX MIN OR UMAX UMIN XOR FMIN FMAX")
SharedSpace = _names("SharedSpace", "shared_cta shared_cluster")


def atomicrmw(
    op: Any, ptr: Any, a: Any, *, b: Any = None, mem_order: Any = None, syncscope: Any = None, space: Any = None,
    results: Any = None, loc: Any = None, ip: Any = None,
) -> Any:  # fmt: skip
    """Combine the element at a pointer with `a` in one step and return the old element. CAS writes `b` where it is `a`."""
    if op is AtomicOp.CAS:
        return arch.atomic_cas(ptr, a, b, sem=mem_order, scope=syncscope)
    return arch.atomic_rmw(op.value, ptr, a, sem=mem_order, scope=syncscope)


def convert_and_pack_integer(
    src_a: Any, src_b: Any, convert_type: Any, *, src_c: Any = None, is_signed: bool | None = None, loc: Any = None,
    ip: Any = None,
) -> Int32:  # fmt: skip
    """Return two words saturated to `convert_type` (16 bits), `src_a` in the upper half; narrower ones move up `src_c`."""
    target = f"{'s' if is_signed is None or is_signed else 'u'}{convert_type.width}"
    reads = [src_a, src_b] if src_c is None else [src_a, src_b, src_c]
    places = ", ".join(f"{{$r{n}}}" for n in range(len(reads)))
    code = f"cvt.pack.sat.{target}.s32{'' if src_c is None else '.b32'} {{$w0}}, {places};"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[Int32(x) for x in reads])


def cp_async_bulk_global_shared_cta(
    dst_mem: Any, src_mem: Any, size: Any, *, l2_cache_hint: Any = None, byte_mask: Any = None, loc: Any = None,
    ip: Any = None,
) -> None:  # fmt: skip
    """Copy `size` bytes from shared to global memory later, as part of the thread's current bulk group."""
    if byte_mask is not None:
        raise type_error("cp_async_bulk_global_shared_cta() with a byte_mask", "Kiln copies whole rows only")
    _bulk_store("cp_async_bulk_global_shared_cta", dst_mem, src_mem, size, l2_cache_hint)


def cp_reduce_async_bulk_global_shared_cta(
    dst: Any, src: Any, size: Any, *, op: Any = CpReduceOp.ADD, type: Any = CpReduceType.BF16, noftz: bool = False,
    l2_cache_hint: Any = None, loc: Any = None, ip: Any = None,
) -> None:  # fmt: skip
    """Combine `size` bytes of shared memory with global memory later, as part of the thread's current bulk group."""
    kind = str(type.value)
    element = {"b32": "u32", "b64": "u64"}.get(kind, kind)
    what = "cp_reduce_async_bulk_global_shared_cta"
    _bulk_store(what, dst, src, size, l2_cache_hint, reduction=op.value, element=element)


def _bulk_store(what: str, target: Any, source: Any, size: Any, policy: Any, **reduction: str) -> None:
    kernel_only(what)
    where, rows = pointer(target, what, "gmem"), pointer(source, what, "smem")
    hint = None if policy is None else number(policy).ir_value()
    nvgpu.async_copy.bulk_store(where, rows, i32(size), policy=hint, **reduction)


def fence_sync_restrict(order: Any, *, loc: Any = None, ip: Any = None) -> None:
    """Order this thread's accesses to shared memory with those of the cluster; Kiln's fence orders all accesses."""
    arch.fence_acq_rel_cluster()


def griddepcontrol(kind: Any, *, loc: Any = None, ip: Any = None) -> None:
    """Wait for the grids this one depends on, or allow those that depend on it to start."""
    if kind is GridDepAction.WAIT:
        arch.griddepcontrol_wait()
    else:
        arch.griddepcontrol_launch_dependents()


def _typed(address: Any) -> Any:
    """Return a pointer of the language for an LLVM pointer; others stay."""
    if isinstance(address, Pointer):
        return address
    return pointer_to(Uint32, address, space_of_llvm_pointer(address.type))


def mapa(addr: Any, cta_rank: Any, *, addrspace: int = 7, loc: Any = None, ip: Any = None) -> Any:
    """Return the pointer into the shared memory of another CTA of the cluster that corresponds to one into this CTA's."""
    return arch.map_dsmem_ptr(_typed(addr), cta_rank)


def mbarrier_arrive(
    addr: Any, *, count: Any = None, scope: Any = None, relaxed: bool | None = None, loc: Any = None, ip: Any = None
) -> None:
    """Arrive at an mbarrier of this CTA."""
    where = _typed(addr)
    if where.memspace is not AddressSpace.smem:
        raise type_error(
            "mbarrier_arrive() of an mbarrier of another CTA",
            "cute.arch.mbarrier_arrive(barrier, peer_cta_rank_in_cluster) arrives there",
        )
    arch.mbarrier_arrive(where, None, 1 if count is None else count, relaxed=bool(relaxed), scope=scope)


def mbarrier_wait_parity(
    addr: Any, phase: Any, kind: Any, *, scope: Any = None, order: Any = None, loc: Any = None, ip: Any = None
) -> Boolean:
    """Return whether the phase of a parity is complete: now (TEST), or after a while (TRY)."""
    wait = arch.mbarrier_test_wait if kind is MBarrierWait.TEST else arch.mbarrier_try_wait
    return wait(addr, phase)


def mov_b32(a: Any, *, target_type: Any = Int32, loc: Any = None, ip: Any = None) -> Any:
    """Return the bits of a 32-bit number as another type."""
    value: Numeric = number(a)
    if type(value).mlir_type == target_type.mlir_type:
        return target_type._make(value.ir_value())
    return target_type._make(tracing.emit_value("arith.bitcast", target_type.mlir_type, (value.ir_value(),)))


def prmt(lo: Any, selector: Any, mode: Any, *, hi: Any = None, loc: Any = None, ip: Any = None) -> Int32:
    """Return four of the eight bytes of two words, chosen by `selector` in a mode."""
    if mode is PermuteMode.DEFAULT:
        return Int32(arch.prmt(lo, 0 if hi is None else hi, selector))
    reads = [Int32(lo), Int32(0 if hi is None else hi), Int32(selector)]
    code = f"prmt.b32.{mode.value} {{$w0}}, {{$r0}}, {{$r1}}, {{$r2}};"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=reads)


def redux_sync(
    val: Any, kind: Any, mask_and_clamp: Any, *, abs: bool | None = None, nan: bool | None = None, loc: Any = None,
    ip: Any = None,
) -> Int32 | Float32:  # fmt: skip
    """Combine a 32-bit number of the lanes of a mask by the hardware."""
    return arch.warp_redux_sync(val, kind, mask_and_clamp, abs=abs, nan=nan)
