"""Asynchronous copies between global and shared memory: `cp.async` of a few bytes a thread, and bulk copies of rows."""

from ...base_dsl.trace import emit
from ...mlir import ext, ir
from ..definition import I32, Pointer, attributes, constant, number, one_of, text
from .dialect import CuteNvgpu, wrong_space


def _wrong_group_count(op: ir.Operation) -> str:
    count = number(op, "count")
    return "" if count >= 0 else f"leaves {count} groups: at least 0"


class CpAsync(CuteNvgpu.Operation, name="cp_async"):
    """Copy `size` (4, 8 or 16) bytes from global to shared memory later: `source_size` bytes, and zeros for the rest.

    `cache` is `ca`, or `cg` (16 bytes only: past L1). `hint` says how long lines should stay in the L2 cache, `prefetch` how
    many bytes around the address may be brought there.
    """

    target: ext.Operand[Pointer]
    source: ext.Operand[Pointer]
    source_size: ext.Operand[I32]
    size: one_of(4, 8, 16)
    cache: one_of("ca", "cg")
    OPTIONAL = {
        "hint": one_of("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged"),
        "prefetch": one_of(64, 128, 256),
    }

    @staticmethod
    def check(op: ir.Operation) -> str:
        target, source, source_size = op.operands
        size, given = number(op, "size"), constant(source_size)
        if size != 16 and text(op, "cache") == "cg":
            return f"'cg' copies {size} bytes: past L1 it copies 16"
        if given is not None and not 0 <= given <= size:
            return f"reads {given} bytes of {size}"
        return wrong_space(target, "target", "smem") or wrong_space(source, "source", "gmem")


def cp_async(
    target: ir.Value, source: ir.Value, source_size: ir.Value, size: int, cache: str, hint: str | None = None,
    prefetch: int | None = None,
) -> None:  # fmt: skip
    """Copy `size` bytes later, of which `source_size` (i32) are read."""
    given = attributes(size=size, cache=cache, hint=hint, prefetch=prefetch)
    emit("cute_nvgpu.cp_async", (), (target, source, source_size), given)


class CpAsyncCommit(CuteNvgpu.Operation, name="cp_async_commit"):
    """This thread's copies since the last one become a group."""


def cp_async_commit() -> None:
    """Make a group of copies."""
    emit("cute_nvgpu.cp_async_commit")


class CpAsyncWait(CuteNvgpu.Operation, name="cp_async_wait"):
    """Wait until at most `count` of this thread's latest groups are not complete."""

    count: ir.IntegerAttr

    @staticmethod
    def check(op: ir.Operation) -> str:
        return _wrong_group_count(op)


def cp_async_wait(count: int) -> None:
    """Wait for all groups but the latest `count`."""
    emit("cute_nvgpu.cp_async_wait", (), (), attributes(count=count))


class CpAsyncMbarrierArrive(CuteNvgpu.Operation, name="cp_async_mbarrier_arrive"):
    """Arrive at an mbarrier when this thread's copies so far are complete; the phase expected this arrival already."""

    pointer: ext.Operand[Pointer]

    @staticmethod
    def check(op: ir.Operation) -> str:
        return wrong_space(op.operands[0], "mbarrier", "smem")


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
    OPTIONAL = {"read": ir.BoolAttr}

    @staticmethod
    def check(op: ir.Operation) -> str:
        return _wrong_group_count(op)


def cp_async_bulk_wait(count: int, read: bool) -> None:
    """Wait for all bulk groups but the latest `count`, or (`read`) until their sources have been read."""
    emit("cute_nvgpu.cp_async_bulk_wait", (), (), attributes(count=count, read=read or None))


def _wrong_bytes(value: ir.Value) -> str:
    size = constant(value)
    return "" if size is None or (size >= 0 and not size % 16) else f"copies {size} bytes: multiples of 16"


class BulkLoad(CuteNvgpu.Operation, name="bulk_load"):
    """Copy `bytes` (a multiple of 16) from global to shared memory later, then take them from what an mbarrier misses.

    Addresses are aligned to 16 bytes. Through the async proxy. One thread executes it.
    """

    target: ext.Operand[Pointer]
    source: ext.Operand[Pointer]
    bytes: ext.Operand[I32]
    mbarrier: ext.Operand[Pointer]

    @staticmethod
    def check(op: ir.Operation) -> str:
        target, source, bytes_, mbarrier = op.operands
        return (
            _wrong_bytes(bytes_) or wrong_space(target, "target", "smem") or wrong_space(source, "source", "gmem")
            or wrong_space(mbarrier, "mbarrier", "smem")
        )  # fmt: skip


def bulk_load(target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value) -> None:
    """Copy a row to shared memory; `bytes_` is an i32."""
    emit("cute_nvgpu.bulk_load", (), (target, source, bytes_, mbarrier))


class BulkStore(CuteNvgpu.Operation, name="bulk_store"):
    """Copy `bytes` (a multiple of 16) from shared to global memory later, as part of the thread's current bulk group."""

    target: ext.Operand[Pointer]
    source: ext.Operand[Pointer]
    bytes: ext.Operand[I32]

    @staticmethod
    def check(op: ir.Operation) -> str:
        target, source, bytes_ = op.operands
        return _wrong_bytes(bytes_) or wrong_space(target, "target", "gmem") or wrong_space(source, "source", "smem")


def bulk_store(target: ir.Value, source: ir.Value, bytes_: ir.Value) -> None:
    """Copy a row to global memory; `bytes_` is an i32."""
    emit("cute_nvgpu.bulk_store", (), (target, source, bytes_))
