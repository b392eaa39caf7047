"""Bulk copies (`cp.async.bulk`) and asynchronous stores (`st.async`), from sm_90 on.

In a bulk copy one thread copies rows of bytes between global and shared memory, or to another CTA of the cluster. An
asynchronous store writes to another CTA, whose mbarrier counts its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import BFloat16, Float16, Float32, Float64, Int16, Int32, Int64, Uint32, Uint64
from ..arch.values import choice, i32, kernel_only, pointer
from ..atoms.atom import CopyOp, CopyTrait
from ..atoms.copying import checker
from ..deferred_dialects import nvgpu
from ..layout.int_tuple import pretty_str, product
from ..layout.layout import make_layout
from ..tensor.pointer import AddressSpace, address_at, element_bits
from ..tensor.tensor import TracedTensor
from ..tensor.vector_access import Registers, bits_pointer
from .access import (
    REDUCTIONS,
    ReductionKind,
    calls,
    memory,
    offsets,
    paired_rows,
    policy_of,
    require_alignment,
    require_rows,
    under,
)

_BYTES = 16
"""Sizes and addresses are multiples of this."""


class _BulkTrait(CopyTrait):
    """Rows of `bits` bits, each a copy; 0: the whole tensor is a row."""

    def __init__(self, value_type: object, bits: int) -> None:
        width = element_bits(value_type)
        if bits and (bits % width or bits % (8 * _BYTES)):
            raise type_error(
                f"num_bits_per_copy={bits} of a bulk copy of elements of {width} bits",
                f"a bulk copy takes a multiple of {8 * _BYTES} bits, a whole number of elements",
            )
        self.values = bits // width if bits else 1
        self.whole = not bits
        layout = make_layout((1, self.values), stride=(0, 1))
        super().__init__(value_type, make_layout(1), layout, layout)

    def _rows(
        self, src: TracedTensor, dst: TracedTensor
    ) -> tuple[list[tuple[ir.Value, ir.Value]], int, Callable[[], None]]:
        """Return (target, source) of each row, the bytes of a row, and a function that checks coordinates."""
        values: Any = product(dst.shape) if self.whole else self.values
        if not isinstance(values, int):
            values = product(src.shape)
        if not isinstance(values, int):
            raise type_error(f"a bulk copy of shape {pretty_str(dst.shape)}: its shape is static")
        size = values * element_bits(src.element_type) // 8
        if size % _BYTES or values * element_bits(src.element_type) % 8:
            raise type_error(f"a bulk copy of {size} bytes: it takes multiples of {_BYTES}")
        pairs = paired_rows(src, dst, values, _BYTES, "a bulk copy")
        check = checker(src, dst)
        return pairs, size, lambda: check(range(len(pairs) * values)) if check is not None else None


def _mbarrier(mbar_ptr: object) -> ir.Value:
    if mbar_ptr is None:
        raise type_error(
            "a bulk copy to shared memory needs an mbarrier",
            "cute.copy(atom, src, dst, mbar_ptr=...): its bytes are taken from what the mbarrier expects",
        )
    return pointer(mbar_ptr, "a bulk copy")


class _BulkToSharedTrait(_BulkTrait):
    """From global to shared memory."""

    def _load(
        self, src: object, dst: object, pred: object, mbar_ptr: object, policy: object, mask: object = None
    ) -> None:
        where = _mbarrier(mbar_ptr)
        rows, size, check = self._rows(
            memory(src, "the source of a bulk copy", AddressSpace.gmem),
            memory(dst, "the destination of a bulk copy", AddressSpace.smem),
        )
        hint = policy_of(policy)

        def move() -> None:
            check()
            for target, source in rows:
                nvgpu.async_copy.bulk_load(target, source, i32(size), where, mask=mask, policy=hint)

        under(pred, move, "a bulk copy")

    def prefetch(self, src: object) -> None:
        """Prefetch rows into the L2 cache."""
        kernel_only("prefetch")
        source = memory(src, "the source of a bulk copy", AddressSpace.gmem)
        pairs, size, check = self._rows(source, source)
        check()
        for row, _ in pairs:
            nvgpu.async_copy.bulk_prefetch(row, i32(size))


class BulkLoadTrait(_BulkToSharedTrait):
    """From global to shared memory."""

    def copy(
        self, src: object, dst: object, pred: object, *, mbar_ptr: object = None, cache_policy: object = None
    ) -> None:
        self._load(src, dst, pred, mbar_ptr, cache_policy)


class BulkMulticastTrait(_BulkToSharedTrait):
    """From global memory to the shared memory of several CTAs of the cluster."""

    def copy(
        self,
        src: object,
        dst: object,
        pred: object,
        *,
        mbar_ptr: object = None,
        mcast_mask: object = None,
        cache_policy: object = None,
    ) -> None:
        if mcast_mask is None:
            raise type_error(
                "a multicast copy needs an mcast_mask",
                "cute.copy(atom, src, dst, mbar_ptr=..., mcast_mask=...): a bit for each CTA of the cluster",
            )
        self._load(src, dst, pred, mbar_ptr, cache_policy, Int16(mcast_mask).ir_value())


class BulkStoreTrait(_BulkTrait):
    """From shared to global memory; `reduction`: combined with what is there."""

    def __init__(self, value_type: object, bits: int, reduction: str | None = None) -> None:
        super().__init__(value_type, bits)
        self.reduction: dict[str, str] = _reduction(reduction, value_type, "BULK_REDUCTIONS")

    def copy(self, src: object, dst: object, pred: object, *, cache_policy: object = None) -> None:
        rows, size, check = self._rows(
            memory(src, "the source of a bulk copy", AddressSpace.smem),
            memory(dst, "the destination of a bulk copy", AddressSpace.gmem),
        )
        hint = policy_of(cache_policy)

        def move() -> None:
            check()
            for target, source in rows:
                nvgpu.async_copy.bulk_store(target, source, i32(size), policy=hint, **self.reduction)

        under(pred, move, "a bulk copy")


class BulkSendTrait(_BulkTrait):
    """From shared memory to that of a CTA of the cluster; `reduction`: combined with what is there."""

    def __init__(self, value_type: object, bits: int, reduction: str | None = None) -> None:
        super().__init__(value_type, bits)
        self.reduction: dict[str, str] = _reduction(reduction, value_type, "SHARED_REDUCTIONS")

    def copy(self, src: object, dst: object, pred: object, *, mbar_ptr: object = None) -> None:
        where = _mbarrier(mbar_ptr)
        rows, size, check = self._rows(
            memory(src, "the source of a bulk copy", AddressSpace.smem),
            memory(dst, "the destination of a bulk copy", AddressSpace.smem),
        )

        def move() -> None:
            check()
            for target, source in rows:
                nvgpu.async_copy.bulk_send(target, source, i32(size), where, **self.reduction)

        under(pred, move, "a bulk copy")


_ELEMENTS = {
    Uint32: "u32",
    Int32: "s32",
    Uint64: "u64",
    Int64: "s64",
    Float16: "f16",
    BFloat16: "bf16",
    Float32: "f32",
    Float64: "f64",
}


def _reduction(reduction: str | None, value_type: Any, table: str) -> dict[str, str]:
    """Return the attributes of a reduction of elements of a type, if the dialect's table has it."""
    if reduction is None:
        return {}
    elements = getattr(nvgpu.async_copy, table)[reduction]
    element = _ELEMENTS.get(value_type, "")
    if element not in elements:
        names = [kind.__name__ for kind, name in _ELEMENTS.items() if name in elements]
        raise type_error(f"a bulk reduction by {reduction} of {value_type.__name__}", f"of {', '.join(names)}")
    return {"reduction": reduction, "element": element}


class DsmemStoreTrait(CopyTrait):
    """Stores of a thread's registers to the shared memory of a CTA of the cluster, `bits` (32, 64 or 128) at a time."""

    def __init__(self, value_type: object, bits: int) -> None:
        width = element_bits(value_type)
        bits = bits or max(width, 32)
        if bits not in (32, 64, 128) or bits % width:
            raise type_error(
                f"num_bits_per_copy={bits} of an asynchronous store of elements of {width} bits",
                "it takes 32, 64 or 128 bits, a whole number of elements",
            )
        self.bits = bits
        self.values: int = bits // width
        layout = make_layout((1, self.values), stride=(0, 1))
        super().__init__(value_type, make_layout(1), layout, layout)

    def copy(self, src: object, dst: object, pred: object, *, mbar_ptr: object = None) -> None:
        source = memory(src, "the source of an asynchronous store", AddressSpace.rmem)
        target = memory(dst, "the destination of an asynchronous store", AddressSpace.smem)
        where = _mbarrier(mbar_ptr)
        if source.element_type is not target.element_type:
            raise type_error(
                f"an asynchronous store of {source.element_type.__name__} to {target.element_type.__name__} elements",
                "it does not convert",
            )
        count = calls(target, self.values, "the destination")
        if calls(source, self.values, "the source") != count:
            raise type_error(f"an asynchronous store from {source._layout} to {target._layout}")
        require_rows(target, self.values, "the destination")
        places = offsets(target.offset_layout, range(0, count * self.values, self.values))
        for place in places:
            require_alignment(target._iterator, place, self.bits // 8, "the destination")
        registers = Registers(bits_pointer(source._iterator), source._layout, self.values)
        words = Int32.vector_type(self.bits // 32)

        def move() -> None:
            for call, place in enumerate(places):
                value = tracing.emit_value("vector.bitcast", words, (registers.load(call),))
                nvgpu.async_copy.store_async(address_at(target._iterator, place), value, where)

        under(pred, move, "an asynchronous store")


class _BulkOp(CopyOp):
    _TRAIT: Any

    def make_trait(self, copy_internal_type: object, *, num_bits_per_copy: int = 0) -> CopyTrait:
        return self._TRAIT(copy_internal_type, num_bits_per_copy, **self._options())

    def _options(self) -> dict[str, Any]:
        return {}


class CopyBulkG2SOp(_BulkOp):
    """Bulk copy from global to shared memory: one thread copies rows of bytes asynchronously.

    `cute.copy(atom, src, dst, mbar_ptr=...)` signals `complete_tx` on the mbarrier. Addresses and sizes are multiples
    of 16 bytes. `cache_policy` is a `CacheEvictionPriority` in the L2 cache, or the bits of a policy.
    `cute.prefetch(atom, src)` prefetches the rows into the L2 cache.
    """

    _TRAIT = BulkLoadTrait


class CopyBulkG2SMulticastOp(_BulkOp):
    """As `CopyBulkG2SOp`, to several CTAs of the cluster: to the same place in each whose bit is set in `mcast_mask`,
    signalling the mbarrier at the same place."""

    _TRAIT = BulkMulticastTrait


class CopyBulkS2GOp(_BulkOp):
    """Bulk copy from shared to global memory, in the thread's bulk group (`cute.arch.cp_async_bulk_commit_group`)."""

    _TRAIT = BulkStoreTrait


class CopyBulkS2SOp(_BulkOp):
    """Bulk copy to the shared memory of another CTA: `dst` and `mbar_ptr` are there (`cute.arch.map_dsmem_ptr`)."""

    _TRAIT = BulkSendTrait


class _Reducing(_BulkOp):
    def __init__(self, reduction_kind: object = ReductionKind.ADD) -> None:
        self.reduction_kind = ReductionKind(choice("reduction_kind", reduction_kind, REDUCTIONS))

    def _options(self) -> dict[str, Any]:
        return {"reduction": self.reduction_kind.value}


class CopyReduceBulkS2GOp(_Reducing):
    """As `CopyBulkS2GOp`, but elements are combined with those in global memory, each atomically."""

    _TRAIT = BulkStoreTrait


class CopyReduceBulkS2SOp(_Reducing):
    """As `CopyBulkS2SOp`, but each element (an integer) is combined atomically with the one in the other CTA."""

    _TRAIT = BulkSendTrait


class CopyDsmemStoreOp(_BulkOp):
    """Asynchronous store of registers to the shared memory of a CTA of the cluster: `dst` and `mbar_ptr` are there
    (`cute.arch.map_dsmem_ptr`), and the mbarrier is signalled. Each thread stores its own."""

    _TRAIT = DsmemStoreTrait
