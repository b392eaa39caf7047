"""Operations of `cute` in kernels: indices, shared memory, launches; and those that instrumented builds observe."""

from __future__ import annotations

from ....dialects import cute
from ....mlir import ir
from ...lowering import memory
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import KEEP, AnyOp, Handlers
from ...lowering.shared_memory import OFFSET
from ..expand import INDICES, Expander
from ..runtime.record_access import block_of
from ..runtime.records import WINDOW_BITS

HANDLERS = Handlers()
OVERRIDES = Handlers()
"""Handlers that replace those of host code."""


@HANDLERS.expands(cute.Launch)
def _launch(x: Expander, op: cute.Launch, _b: Builder) -> object:
    x.module.launches.append((x, op))  # until all is known of the kernels
    return KEEP


@HANDLERS.expands(*INDICES)
def _index(x: Expander, op: cute.ThreadIdx, _b: Builder) -> ir.Value:
    x.kernel_only(op)
    return x.function.indices[INDICES[type(op)]][op.dim]


def _linear_thread(x: Expander, b: Builder) -> ir.Value:
    return b.linear(x.function.indices["thread_idx"], x.function.indices["block_dim"])


@HANDLERS.expands(cute.LaneIdx)
def _lane_idx(x: Expander, op: cute.LaneIdx, b: Builder) -> ir.Value:
    x.kernel_only(op)
    return b.binary("andi", _linear_thread(x, b), 31)


@HANDLERS.expands(cute.WarpIdx)
def _warp_idx(x: Expander, op: cute.WarpIdx, b: Builder) -> ir.Value:
    x.kernel_only(op)
    return b.binary("shrui", _linear_thread(x, b), 5)


@HANDLERS.expands(cute.AllocSmem)
def _alloc_smem(x: Expander, op: cute.AllocSmem, b: Builder) -> ir.Value:
    x.kernel_only(op)
    assert x.function.smem is not None
    start = op.attributes[OFFSET].value
    x.function.smem_bytes = max(x.function.smem_bytes, start + op.bytes)
    memory = b.byte_gep(x.function.smem, start)
    if x.module.sanitizer is not None:
        x.module.sanitizer.allocated(op, memory, start, op.bytes)
    return memory


@HANDLERS.expands(cute.DynamicSmem)
def _dynamic_smem(x: Expander, op: cute.DynamicSmem, _b: Builder) -> ir.Value:
    x.kernel_only(op)
    assert x.function.dynamic_smem is not None
    if x.module.sanitizer is not None:
        x.module.sanitizer.allocated(op, x.function.dynamic_smem, 0, None)
    return x.function.dynamic_smem


def shared_pointer(x: Expander, op: AnyOp, b: Builder, address: ir.Value) -> ir.Value:
    """Return the pointer with an address of 32 bits in the window of shared memory."""
    i64 = int_type(64)
    assert x.function.smem is not None
    if not x.has_clusters:
        return b.byte_gep(x.function.smem, b.value("arith.extsi", i64, (address,)))
    record = block_of(b, x.frame_of(op))
    # a program may subtract from an address before it adds: the rank is that of the nearest start of a CTA's window
    rank = b.binary("shrsi", b.binary("addi", address, 1 << WINDOW_BITS - 1), WINDOW_BITS)
    offset = b.binary("subi", address, b.binary("shli", rank, WINDOW_BITS))
    ranks = b.value("arith.extsi", i64, (b.binary("subi", rank, record.load("rank")),))
    distance = b.binary("shli", ranks, b.value("arith.extui", i64, (record.load("chunk_bits"),)))
    return b.byte_gep(x.function.smem, b.binary("addi", distance, b.value("arith.extsi", i64, (offset,))))


def shared_address(x: Expander, op: AnyOp, b: Builder, pointer: ir.Value) -> ir.Value:
    """Return the address of a pointer in the window of shared memory, in 64 bits.

    It is the offset from the start of a CTA's shared memory, with the CTA's rank in the cluster from bit 24.
    """
    i64 = int_type(64)
    distance = b.binary("subi", *(b.value("llvm.ptrtoint", i64, (p,)) for p in (pointer, x.function.smem)))  # pyright: ignore[reportArgumentType]
    if not x.has_clusters:
        return distance
    record = block_of(b, x.frame_of(op))
    bits = b.value("arith.extui", i64, (record.load("chunk_bits"),))
    ranks = b.binary("shrsi", distance, bits)
    offset = b.binary("subi", distance, b.binary("shli", ranks, bits))
    rank = b.binary("addi", ranks, b.value("arith.extui", i64, (record.load("rank"),)))
    return b.binary("ori", offset, b.binary("shli", rank, WINDOW_BITS))


def descriptor_address(x: Expander, b: Builder, pointer: ir.Value) -> ir.Value:
    """Return an address in this CTA's shared memory as descriptors of matrices have it: 14 bits, in units of 16 bytes."""
    distance = b.binary("subi", *(b.value("llvm.ptrtoint", int_type(64), (p,)) for p in (pointer, x.function.smem)))  # pyright: ignore[reportArgumentType]
    return b.binary("andi", b.binary("shrui", distance, 4), 0x3FFF)


_WINDOWS = ("smem", "dsmem")
"""Memory whose addresses are those of the window of shared memory."""


@OVERRIDES.expands(cute.IntToPtr)
def _int_to_ptr(x: Expander, op: cute.IntToPtr, b: Builder) -> ir.Value | list[ir.Value]:
    if x.function.is_kernel and cute.info(op.result.type).space in _WINDOWS:
        return shared_pointer(x, op, b, b.value("arith.trunci", int_type(32), (op.address,)))
    return memory.int_to_ptr(x, op, b)


@OVERRIDES.expands(cute.PtrToInt, types=True)
def _ptr_to_int(x: Expander, op: cute.PtrToInt, b: Builder) -> ir.Value:
    if x.function.is_kernel and cute.info(op.types.pointer).space in _WINDOWS:
        return shared_address(x, op, b, op.pointer)
    return memory.ptr_to_int(x, op, b)


@OVERRIDES.expands(cute.View)
def _view(x: Expander, op: cute.View, b: Builder) -> list[ir.Value]:
    if x.module.sanitizer is not None:
        x.module.sanitizer.viewed(x, op, op.pointer, op.result.type)
    return memory.view(x, op, b)


@OVERRIDES.expands(cute.Bounds, types=True)
def _bounds(x: Expander, op: cute.Bounds, b: Builder) -> None:
    if x.module.sanitizer is not None and x.function.is_kernel:
        x.module.sanitizer.bounds(x, op, b, op.types.pointer)


@OVERRIDES.expands(cute.Through)
def _through(x: Expander, op: cute.Through, b: Builder) -> ir.Value:
    pointer = op.pointer
    if x.module.sanitizer is None or not x.function.is_kernel:
        return pointer
    return x.module.sanitizer.through(op, b, pointer)


@OVERRIDES.expands(cute.AllocRmem)
def _alloc_rmem(x: Expander, op: cute.AllocRmem, b: Builder) -> ir.Value:
    pointer = memory.alloc_rmem(x, op, b)
    x.module.register_bytes[pointer] = memory.private_bytes(op)
    if x.module.sanitizer is not None:
        x.module.sanitizer.allocated_private(op, pointer, memory.private_bytes(op))
    return pointer
