"""Asynchronous copies between global and shared memory: `cp.async` of a few bytes a thread, bulk copies, and stores to
other CTAs of the cluster.
"""

from typing import Any

from ...base_dsl.trace import emit, emit_value
from ...hardware.engines import BULK_LOAD, BULK_SOURCE, BULK_STORE, COPY
from ...mlir import ir
from ...ptx.copies import BULK_REDUCTIONS, SHARED_REDUCTIONS
from ..declaration import PURE, Access, Build, Operand, OptionalAttr, Result, attributes
from ..definition import I16, I32, I64, Pointer, constant, int_type, one_of
from .dialect import CuteNvgpu, wrong_space

L2_PRIORITIES = ("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged")
"""The eviction priorities of lines in the L2 cache."""


def _wrong_group_count(op: "CpAsyncWait | CpAsyncBulkWait") -> str:
    return "" if op.count >= 0 else f"leaves {op.count} groups: at least 0"


class CpAsync(
    CuteNvgpu.Operation,
    name="cp_async",
    reads=Access("source", "source_size"),
    writes=Access("target", "size"),
    engine=COPY,
):
    """Asynchronously copy `size` (4, 8 or 16) bytes from global to shared memory: `source_size` bytes, then zeros.

    `cache` is `ca`, or `cg`, which bypasses L1 (16 bytes only). `hint` is the eviction priority in the L2 cache,
    `prefetch` the bytes around the address that may be prefetched into it.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]
    source_size: Operand[I32]
    size: one_of(4, 8, 16)
    cache: one_of("ca", "cg")
    hint: OptionalAttr[one_of(*L2_PRIORITIES)]
    prefetch: OptionalAttr[one_of(64, 128, 256)]

    def check(self) -> str:
        size = self.size
        read = constant(self.source_size)
        if size != 16 and self.cache == "cg":
            return f"'cg' copies {size} bytes: past L1 it copies 16"
        if read is not None and not 0 <= read <= size:
            return f"reads {read} bytes of {size}"
        return wrong_space(self.target, "target", "smem") or wrong_space(self.source, "source", "gmem")


cp_async: Build = CpAsync.build


class CpAsyncCommit(CuteNvgpu.Operation, name="cp_async_commit", commits=(COPY,)):
    """Commit this thread's `cp.async` copies since the last commit as a group."""


cp_async_commit: Build = CpAsyncCommit.build


class CpAsyncWait(CuteNvgpu.Operation, name="cp_async_wait", awaits=(COPY,)):
    """Wait until at most `count` of this thread's latest groups are pending."""

    count: ir.IntegerAttr

    def check(self) -> str:
        return _wrong_group_count(self)


cp_async_wait: Build = CpAsyncWait.build


class CpAsyncMbarrierArrive(CuteNvgpu.Operation, name="cp_async_mbarrier_arrive", mbarrier="pointer", commits=(COPY,)):
    """Arrive at an mbarrier (`.noinc`) when this thread's `cp.async` copies so far are complete."""

    pointer: Operand[Pointer]

    def check(self) -> str:
        return wrong_space(self.pointer, "mbarrier", "smem")


cp_async_mbarrier_arrive: Build = CpAsyncMbarrierArrive.build


class CpAsyncBulkCommit(CuteNvgpu.Operation, name="cp_async_bulk_commit", commits=(BULK_STORE, BULK_SOURCE)):
    """Commit this thread's bulk copies since the last commit as a bulk group."""


cp_async_bulk_commit: Build = CpAsyncBulkCommit.build


class CpAsyncBulkWait(CuteNvgpu.Operation, name="cp_async_bulk_wait", awaits=(BULK_STORE, BULK_SOURCE)):
    """Wait until at most `count` of this thread's latest bulk groups are pending, or (`read`) have unread sources."""

    count: ir.IntegerAttr
    read: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_group_count(self)


cp_async_bulk_wait: Build = CpAsyncBulkWait.build


def _wrong_bytes(value: ir.Value) -> str:
    size = constant(value)
    return "" if size is None or (size >= 0 and not size % 16) else f"copies {size} bytes: multiples of 16"


class CachePolicy(CuteNvgpu.Operation, name="cache_policy", traits=PURE, varies=""):
    """Return the cache policy (i64) of an eviction priority in the L2 cache. Its encoding is the GPU's own."""

    result: Result[I64]
    priority: one_of(*L2_PRIORITIES)


cache_policy: Build = CachePolicy.build


def optional(value: "ir.Value | None", bits: int) -> ir.Value:
    """Return an operand that an attribute switches on: a zero if it is not given."""
    if value is not None:
        return value
    type_ = int_type(bits)
    return emit_value("arith.constant", type_, (), {"value": ir.IntegerAttr.get(type_, 0)})


class BulkLoad(
    CuteNvgpu.Operation,
    name="bulk_load",
    reads=Access("source", "bytes"),
    writes=Access("target", "bytes"),
    engine=BULK_LOAD,
    mbarrier="mbarrier",
):
    """Asynchronously copy `bytes` (a multiple of 16) from global to shared memory; signal `complete_tx` on the
    mbarrier.

    Addresses are aligned to 16 bytes. The copy goes through the async proxy; one thread executes it.

    `multicast`: copy to every CTA of the cluster whose bit is set in `mask` (i16), and signal the mbarrier there, both
    at the same offsets in shared memory. `hint`: `policy` (i64) is the cache policy.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]
    bytes: Operand[I32]
    mbarrier: Operand[Pointer]
    mask: Operand[I16]
    policy: Operand[I64]
    multicast: OptionalAttr[ir.BoolAttr]
    hint: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return (
            _wrong_bytes(self.bytes)
            or wrong_space(self.target, "target", "smem")
            or wrong_space(self.source, "source", "gmem")
            or wrong_space(self.mbarrier, "mbarrier", "smem")
        )


def bulk_load(
    target: ir.Value,
    source: ir.Value,
    bytes_: ir.Value,
    mbarrier: ir.Value,
    *,
    mask: ir.Value | None = None,
    policy: ir.Value | None = None,
) -> None:
    """Add a `bulk_load` of `bytes_` (i32) bytes."""
    attrs = attributes(multicast=None if mask is None else True, hint=None if policy is None else True)
    operands = (target, source, bytes_, mbarrier, optional(mask, 16), optional(policy, 64))
    emit("cute_nvgpu.bulk_load", (), operands, attrs)


Reduction: Any = one_of(*BULK_REDUCTIONS)
ReducedElement: Any = one_of("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")


def _wrong_reduction(op: "BulkSend | BulkStore", elements_by_reduction: "dict[str, tuple[str, ...]]") -> str:
    if not op.reduction and not op.element:
        return ""
    if not op.reduction or not op.element:
        return "has a reduction without an element type, or the other way round"
    elements = elements_by_reduction[op.reduction]
    return "" if op.element in elements else f"reduces by {op.reduction} of {op.element}: of {', '.join(elements)}"


class BulkSend(
    CuteNvgpu.Operation,
    name="bulk_send",
    reads=Access("source", "bytes"),
    writes=Access("target", "bytes"),
    engine=BULK_LOAD,
    mbarrier="mbarrier",
):
    """Asynchronously copy `bytes` (a multiple of 16) to the shared memory of another CTA; signal `complete_tx` there.

    `target` and `mbarrier` lie in a CTA of the cluster (`map_shared`). `reduction`: each element is combined
    atomically with the one in memory. Otherwise as `bulk_load`.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]
    bytes: Operand[I32]
    mbarrier: Operand[Pointer]
    reduction: OptionalAttr[Reduction]
    element: OptionalAttr[ReducedElement]

    def check(self) -> str:
        return (
            _wrong_bytes(self.bytes)
            or wrong_space(self.target, "target", "smem")
            or wrong_space(self.source, "source", "smem")
            or wrong_space(self.mbarrier, "mbarrier", "smem")
            or _wrong_reduction(self, SHARED_REDUCTIONS)
        )


bulk_send: Build = BulkSend.build


class BulkStore(
    CuteNvgpu.Operation,
    name="bulk_store",
    reads=Access("source", "bytes"),
    writes=Access("target", "bytes"),
    engine=BULK_STORE,
):
    """Asynchronously copy `bytes` (a multiple of 16) from shared to global memory, in the thread's current bulk group.

    `reduction`: each element is combined atomically with the one in memory. `hint`: `policy` (i64) is the cache policy.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]
    bytes: Operand[I32]
    policy: Operand[I64]
    reduction: OptionalAttr[Reduction]
    element: OptionalAttr[ReducedElement]
    hint: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return (
            _wrong_bytes(self.bytes)
            or wrong_space(self.target, "target", "gmem")
            or wrong_space(self.source, "source", "smem")
            or _wrong_reduction(self, BULK_REDUCTIONS)
        )


def bulk_store(
    target: ir.Value,
    source: ir.Value,
    bytes_: ir.Value,
    *,
    reduction: str | None = None,
    element: str | None = None,
    policy: ir.Value | None = None,
) -> None:
    """Add a `bulk_store` of `bytes_` (i32) bytes."""
    attrs = attributes(reduction=reduction, element=element, hint=None if policy is None else True)
    emit("cute_nvgpu.bulk_store", (), (target, source, bytes_, optional(policy, 64)), attrs)


class BulkPrefetch(CuteNvgpu.Operation, name="bulk_prefetch", stays="a hint for a cache"):
    """Prefetch `bytes` (a multiple of 16) of global memory into the L2 cache. It has no visible effect."""

    source: Operand[Pointer]
    bytes: Operand[I32]
    policy: Operand[I64]
    hint: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_bytes(self.bytes) or wrong_space(self.source, "source", "gmem")


def bulk_prefetch(source: ir.Value, bytes_: ir.Value, *, policy: ir.Value | None = None) -> None:
    """Add a `bulk_prefetch` of `bytes_` (i32) bytes."""
    attrs = attributes(hint=None if policy is None else True)
    emit("cute_nvgpu.bulk_prefetch", (), (source, bytes_, optional(policy, 64)), attrs)


class StoreAsync(
    CuteNvgpu.Operation,
    name="store_async",
    writes=Access("target", value="value"),
    engine=BULK_LOAD,
    mbarrier="mbarrier",
):
    """Asynchronously store 1, 2 or 4 words to the shared memory of another CTA and signal `complete_tx` there.

    `target` and `mbarrier` lie in a CTA of the cluster (`map_shared`); `target` is aligned to the size of the words.
    Each thread stores its own words.
    """

    target: Operand[Pointer]
    value: Operand[ir.VectorType]
    mbarrier: Operand[Pointer]

    def check(self) -> str:
        if str(self.value.type) not in ("vector<1xi32>", "vector<2xi32>", "vector<4xi32>"):
            return f"stores {self.value.type}: a vector of 1, 2 or 4 i32"
        return wrong_space(self.target, "target", "smem") or wrong_space(self.mbarrier, "mbarrier", "smem")


store_async: Build = StoreAsync.build
