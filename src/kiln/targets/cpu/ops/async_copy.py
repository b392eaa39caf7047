"""Asynchronous copies. What becomes of them is in `runtime/engines.py`."""

from __future__ import annotations

from ....dialects.nvgpu.tma import REDUCTIONS
from ....hardware.tensor_maps import ELEMENTS
from ....mlir import context, ir
from ...lowering.builder import Builder, int_type, ptr_type
from ...lowering.expansion import Handlers, Types
from ..expand import Expander
from ..runtime.engines import BULK, COPY
from ..sanitizer import state
from ..sanitizer.hooks import Hooks
from .cluster import peer

HANDLERS = Handlers()


def _copies(x: Expander, op: ir.Operation) -> ir.Value:
    x.function.copies = True
    return x.frame_of(op)


def copy_async(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: int
) -> None:
    """`bytes_` of `size` bytes, and zeros for the rest."""
    target, source = Hooks(x, op).copy(b, target, source, bytes_, size)
    if x.module.banks is not None:
        x.module.banks.access(x, op, b, target, size, size, "cp.async")
    x.call(b, "kiln_cpu_copy", [_copies(x, op), target, source, bytes_, b.i32(size)])


@HANDLERS.expands("cute_nvgpu.cp_async")
def _cp_async(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    target, source, bytes_ = op.operands
    copy_async(x, op, b, target, source, bytes_, op.attributes["size"].value)
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_commit")
def _cp_async_commit(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    x.call(b, "kiln_cpu_commit", [_copies(x, op), b.i32(COPY)])
    Hooks(x, op).commit(b, state.COPY)
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_wait")
def _cp_async_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    x.call(b, "kiln_cpu_wait_for_groups", [_copies(x, op), b.i32(COPY), b.i32(op.attributes["count"].value)])
    Hooks(x, op).waited(b, op.attributes["count"].value, state.COPY)
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_mbarrier_arrive")
def _cp_async_mbarrier_arrive(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    hooks = Hooks(x, op)
    hooks.copies_arrive(b, op.operands[0])
    x.call(b, "kiln_cpu_copy_arrive", [_copies(x, op), op.operands[0]])
    hooks.mbarrier_after(b, op.operands[0])
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_bulk_commit")
def _cp_async_bulk_commit(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    x.call(b, "kiln_cpu_commit", [_copies(x, op), b.i32(BULK)])
    Hooks(x, op).bulk_commit(b)
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_bulk_wait")
def _cp_async_bulk_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    x.call(b, "kiln_cpu_wait_for_groups", [_copies(x, op), b.i32(BULK), b.i32(op.attributes["count"].value)])
    Hooks(x, op).bulk_waited(b, op.attributes["count"].value, "read" in op.attributes)
    return []


def bulk_load(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value
) -> None:
    """A bulk copy to shared memory, this block's or another's, that takes its bytes from what an mbarrier there misses."""
    hooks = Hooks(x, op)
    hooks.bulk_copy(b, target, source, bytes_, mbarrier)
    x.call(b, "kiln_cpu_bulk_load", [_copies(x, op), target, source, bytes_, mbarrier])
    hooks.mbarrier_after(b, mbarrier)


def multicast(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value,
    mask: ir.Value,
) -> None:  # fmt: skip
    """The same copy to each block of the cluster whose bit is set in `mask` (i16): to the same place there, and its mbarrier."""
    each, rank = b.for_(b.i32(0), b.i32(16), b.i32(1))
    wide = each.value("arith.extui", int_type(32), (mask,))
    bit = each.binary("andi", each.binary("shrui", wide, rank), each.i32(1))
    there = each.if_(each.compare("ne", bit, each.i32(0)))
    places = [peer(x, op, there, pointer, rank) for pointer in (target, mbarrier)]
    bulk_load(x, op, there, places[0], source, bytes_, places[1])


def bulk_store(x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value) -> None:
    """A bulk copy to global memory."""
    Hooks(x, op).bulk_copy(b, target, source, bytes_)
    x.call(b, "kiln_cpu_bulk_store", [_copies(x, op), target, source, bytes_])


def bulk_reduce(
    x: Expander, op: ir.Operation, b: Builder, how: tuple[str, str], target: ir.Value, source: ir.Value, bytes_: ir.Value,
    mbarrier: ir.Value | None = None,
) -> None:  # fmt: skip
    """A bulk reduction (its name, the type of elements): of global memory, or with an mbarrier of a block's shared memory."""
    hooks = Hooks(x, op)
    hooks.bulk_copy(b, target, source, bytes_, mbarrier, combines=True)
    number = REDUCTIONS.index(how[0]) + 1 | list(ELEMENTS).index(how[1]) << 8
    place = mbarrier if mbarrier is not None else b.value("llvm.mlir.zero", ptr_type())
    x.call(
        b,
        "kiln_cpu_bulk_reduce",
        [_copies(x, op), target, source, bytes_, b.i32(ELEMENTS[how[1]] // 8), place, b.i32(number)],
    )
    if mbarrier is not None:
        hooks.mbarrier_after(b, mbarrier)


def store_async(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, parts: list[ir.Value], mbarrier: ir.Value
) -> None:
    """Store integers one after the other, then take their bytes from what an mbarrier misses."""
    hooks, each = Hooks(x, op), parts[0].type.width // 8  # pyright: ignore[reportAttributeAccessIssue]
    hooks.store_async(b, target, each * len(parts), mbarrier)
    for number, part in enumerate(parts):
        b.store(part, b.byte_gep(target, number * each))
    x.frame_of(op)
    x.call(b, "kiln_cpu_mbarrier", [mbarrier, b.i32(0), b.i32(-each * len(parts))])
    hooks.mbarrier_after(b, mbarrier)


def _reduction(op: ir.Operation) -> tuple[str, str] | None:
    """How an operation combines elements, if it does."""
    if "reduction" not in op.attributes:
        return None
    return op.attributes["reduction"].value, op.attributes["element"].value


@HANDLERS.expands("cute_nvgpu.cache_policy")
def _cache_policy(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    return [b.i64(0)]  # caches are not modelled


@HANDLERS.expands("cute_nvgpu.bulk_load")
def _bulk_load(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    target, source, bytes_, mbarrier, mask, _policy = op.operands
    if "multicast" in op.attributes:
        multicast(x, op, b, target, source, bytes_, mbarrier, mask)
    else:
        bulk_load(x, op, b, target, source, bytes_, mbarrier)
    return []


@HANDLERS.expands("cute_nvgpu.bulk_send")
def _bulk_send(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    how = _reduction(op)
    if how is None:
        bulk_load(x, op, b, *op.operands)
    else:
        bulk_reduce(x, op, b, how, *op.operands)
    return []


@HANDLERS.expands("cute_nvgpu.bulk_store")
def _bulk_store(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    *operands, _policy = op.operands
    how = _reduction(op)
    if how is None:
        bulk_store(x, op, b, *operands)
    else:
        bulk_reduce(x, op, b, how, *operands)
    return []


@HANDLERS.expands("cute_nvgpu.bulk_prefetch")
def _bulk_prefetch(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, _b: Builder) -> list[ir.Value]:
    return []


@HANDLERS.expands("cute_nvgpu.store_async")
def _store_async(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    target, value, mbarrier = op.operands
    count = value.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    positions = [{"static_position": ir.DenseI64ArrayAttr.get([n], context())} for n in range(count)]
    parts = [b.value("vector.extract", int_type(32), (value,), position) for position in positions]
    store_async(x, op, b, target, parts, mbarrier)
    return []
