"""Asynchronous copies between global and shared memory: `cp.async` of a few bytes a thread, bulk copies of rows, stores to other
blocks of the cluster.
"""

from ...base_dsl.trace import emit, emit_value
from ...mlir import ir
from ..declaration import PURE, Operand, OptionalAttr, Result
from ..definition import I16, I32, I64, Pointer, attributes, constant, int_type, one_of
from .dialect import CuteNvgpu, wrong_space

L2_PRIORITIES = ("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged")
"""How long lines should stay in the L2 cache."""


def _wrong_group_count(op: "CpAsyncWait | CpAsyncBulkWait") -> str:
    return "" if op.count >= 0 else f"leaves {op.count} groups: at least 0"


class CpAsync(CuteNvgpu.Operation, name="cp_async"):
    """Copy `size` (4, 8 or 16) bytes from global to shared memory later: `source_size` bytes, and zeros for the rest.

    `cache` is `ca`, or `cg` (16 bytes only: past L1). `hint` says how long lines should stay in the L2 cache, `prefetch` how
    many bytes around the address may be brought there.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]
    source_size: Operand[I32]
    size: one_of(4, 8, 16)
    cache: one_of("ca", "cg")
    hint: OptionalAttr[one_of(*L2_PRIORITIES)]
    prefetch: OptionalAttr[one_of(64, 128, 256)]

    def check(self) -> str:
        size, read = self.size, constant(self.source_size)
        if size != 16 and self.cache == "cg":
            return f"'cg' copies {size} bytes: past L1 it copies 16"
        if read is not None and not 0 <= read <= size:
            return f"reads {read} bytes of {size}"
        return wrong_space(self.target, "target", "smem") or wrong_space(self.source, "source", "gmem")


def cp_async(
    target: ir.Value, source: ir.Value, source_size: ir.Value, size: int, cache: str, hint: str | None = None,
    prefetch: int | None = None,
) -> None:  # fmt: skip
    """Copy `size` bytes later, of which `source_size` (i32) are read."""
    attrs = attributes(size=size, cache=cache, hint=hint, prefetch=prefetch)
    emit("cute_nvgpu.cp_async", (), (target, source, source_size), attrs)


class CpAsyncCommit(CuteNvgpu.Operation, name="cp_async_commit"):
    """This thread's copies since the last one become a group."""


def cp_async_commit() -> None:
    """Make a group of copies."""
    emit("cute_nvgpu.cp_async_commit")


class CpAsyncWait(CuteNvgpu.Operation, name="cp_async_wait"):
    """Wait until at most `count` of this thread's latest groups are not complete."""

    count: ir.IntegerAttr

    def check(self) -> str:
        return _wrong_group_count(self)


def cp_async_wait(count: int) -> None:
    """Wait for all groups but the latest `count`."""
    emit("cute_nvgpu.cp_async_wait", (), (), attributes(count=count))


class CpAsyncMbarrierArrive(CuteNvgpu.Operation, name="cp_async_mbarrier_arrive"):
    """Arrive at an mbarrier when this thread's copies so far are complete; the phase expected this arrival already."""

    pointer: Operand[Pointer]

    def check(self) -> str:
        return wrong_space(self.pointer, "mbarrier", "smem")


def cp_async_mbarrier_arrive(pointer: ir.Value) -> None:
    """Arrive when the copies so far are complete."""
    emit("cute_nvgpu.cp_async_mbarrier_arrive", (), (pointer,))


class CpAsyncBulkCommit(CuteNvgpu.Operation, name="cp_async_bulk_commit"):
    """As `cp_async_commit`, for bulk copies."""


def cp_async_bulk_commit() -> None:
    """Make a group of bulk copies."""
    emit("cute_nvgpu.cp_async_bulk_commit")


class CpAsyncBulkWait(CuteNvgpu.Operation, name="cp_async_bulk_wait"):
    """As `cp_async_wait`, for bulk copies; with `read`, until their sources have been read."""

    count: ir.IntegerAttr
    read: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_group_count(self)


def cp_async_bulk_wait(count: int, read: bool) -> None:
    """Wait for all bulk groups but the latest `count`, or (`read`) until their sources have been read."""
    emit("cute_nvgpu.cp_async_bulk_wait", (), (), attributes(count=count, read=read or None))


def _wrong_bytes(value: ir.Value) -> str:
    size = constant(value)
    return "" if size is None or (size >= 0 and not size % 16) else f"copies {size} bytes: multiples of 16"


class CachePolicy(CuteNvgpu.Operation, name="cache_policy", traits=PURE):
    """The cache policy (i64) that lines should stay in the L2 cache for so long. What policies look like is the GPU's business."""

    result: Result[I64]
    priority: one_of(*L2_PRIORITIES)


def cache_policy(priority: str) -> ir.Value:
    """Return a cache policy, an i64."""
    return emit_value("cute_nvgpu.cache_policy", int_type(64), (), attributes(priority=priority))


def optional(value: "ir.Value | None", bits: int) -> ir.Value:
    """Return an operand that only counts where an attribute says so: a zero if it is not given."""
    if value is not None:
        return value
    type_ = int_type(bits)
    return emit_value("arith.constant", type_, (), {"value": ir.IntegerAttr.get(type_, 0)})


class BulkLoad(CuteNvgpu.Operation, name="bulk_load"):
    """Copy `bytes` (a multiple of 16) from global to shared memory later, then take them from what an mbarrier misses.

    Addresses are aligned to 16 bytes. Through the async proxy. One thread executes it.

    `multicast`: to the same place, with the mbarrier at the same place, of every block of the cluster whose bit is set in `mask`
    (i16). `hint`: `policy` (i64) is the cache policy.
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
            _wrong_bytes(self.bytes) or wrong_space(self.target, "target", "smem")
            or wrong_space(self.source, "source", "gmem") or wrong_space(self.mbarrier, "mbarrier", "smem")
        )  # fmt: skip


def bulk_load(
    target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value, *, mask: ir.Value | None = None,
    policy: ir.Value | None = None,
) -> None:  # fmt: skip
    """Copy a row to shared memory; `bytes_` is an i32."""
    attrs = attributes(multicast=None if mask is None else True, hint=None if policy is None else True)
    operands = (target, source, bytes_, mbarrier, optional(mask, 16), optional(policy, 64))
    emit("cute_nvgpu.bulk_load", (), operands, attrs)


_INTEGERS = ("u32", "s32", "u64", "s64")
BULK_REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",), "and": _INTEGERS, "or": _INTEGERS,
    "xor": _INTEGERS,
}  # fmt: skip
"""How bulk copies to global memory combine elements, and of which types."""
SHARED_REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",), "dec": ("u32",),
    "and": ("u32", "s32"), "or": ("u32", "s32"), "xor": ("u32", "s32"),
}  # fmt: skip
"""The same for copies to the shared memory of a CTA of the cluster."""
Reduction = one_of(*BULK_REDUCTIONS)
ReducedElement = one_of("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")


def _wrong_reduction(op: "BulkSend | BulkStore", known: "dict[str, tuple[str, ...]]") -> str:
    if not op.reduction and not op.element:
        return ""
    if not op.reduction or not op.element:
        return "has a reduction without an element type, or the other way round"
    elements = known[op.reduction]
    return "" if op.element in elements else f"reduces by {op.reduction} of {op.element}: of {', '.join(elements)}"


class BulkSend(CuteNvgpu.Operation, name="bulk_send"):
    """Copy `bytes` (a multiple of 16) from shared memory to that of a block of the cluster later, then take them from what an mbarrier
    there misses.

    `target` and `mbarrier` are what `map_shared` gives. `reduction`: elements are combined with those there, each atomically.
    Otherwise as `bulk_load`.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]
    bytes: Operand[I32]
    mbarrier: Operand[Pointer]
    reduction: OptionalAttr[Reduction]
    element: OptionalAttr[ReducedElement]

    def check(self) -> str:
        return (
            _wrong_bytes(self.bytes) or wrong_space(self.target, "target", "smem")
            or wrong_space(self.source, "source", "smem") or wrong_space(self.mbarrier, "mbarrier", "smem") or _wrong_reduction(self, SHARED_REDUCTIONS)
        )  # fmt: skip


def bulk_send(
    target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value, *, reduction: str | None = None,
    element: str | None = None,
) -> None:  # fmt: skip
    """Copy a row to a block of the cluster, or combine it with what is there; `bytes_` is an i32."""
    attrs = attributes(reduction=reduction, element=element)
    emit("cute_nvgpu.bulk_send", (), (target, source, bytes_, mbarrier), attrs)


class BulkStore(CuteNvgpu.Operation, name="bulk_store"):
    """Copy `bytes` (a multiple of 16) from shared to global memory later, as part of the thread's current bulk group.

    `reduction`: elements are combined with those there, each atomically. `hint`: `policy` (i64) is the cache policy.
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
            _wrong_bytes(self.bytes) or wrong_space(self.target, "target", "gmem")
            or wrong_space(self.source, "source", "smem") or _wrong_reduction(self, BULK_REDUCTIONS)
        )  # fmt: skip


def bulk_store(
    target: ir.Value, source: ir.Value, bytes_: ir.Value, *, reduction: str | None = None, element: str | None = None,
    policy: ir.Value | None = None,
) -> None:  # fmt: skip
    """Copy a row to global memory, or combine it with what is there; `bytes_` is an i32."""
    attrs = attributes(reduction=reduction, element=element, hint=None if policy is None else True)
    emit("cute_nvgpu.bulk_store", (), (target, source, bytes_, optional(policy, 64)), attrs)


class BulkPrefetch(CuteNvgpu.Operation, name="bulk_prefetch"):
    """Ask for `bytes` (a multiple of 16) of global memory to be brought into the L2 cache. Has no effect that a program could see."""

    source: Operand[Pointer]
    bytes: Operand[I32]
    policy: Operand[I64]
    hint: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_bytes(self.bytes) or wrong_space(self.source, "source", "gmem")


def bulk_prefetch(source: ir.Value, bytes_: ir.Value, *, policy: ir.Value | None = None) -> None:
    """Ask for a row."""
    attrs = attributes(hint=None if policy is None else True)
    emit("cute_nvgpu.bulk_prefetch", (), (source, bytes_, optional(policy, 64)), attrs)


class StoreAsync(CuteNvgpu.Operation, name="store_async"):
    """Store 1, 2 or 4 words to the shared memory of a block of the cluster later, then take their bytes from what an mbarrier there misses.

    `target` and `mbarrier` are what `map_shared` gives; `target` is aligned to the words' bytes. Each thread stores its own.
    """

    target: Operand[Pointer]
    value: Operand[ir.VectorType]
    mbarrier: Operand[Pointer]

    def check(self) -> str:
        if str(self.value.type) not in ("vector<1xi32>", "vector<2xi32>", "vector<4xi32>"):
            return f"stores {self.value.type}: a vector of 1, 2 or 4 i32"
        return wrong_space(self.target, "target", "smem") or wrong_space(self.mbarrier, "mbarrier", "smem")


def store_async(target: ir.Value, value: ir.Value, mbarrier: ir.Value) -> None:
    """Store words to a block of the cluster."""
    emit("cute_nvgpu.store_async", (), (target, value, mbarrier))
