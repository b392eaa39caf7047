"""Bulk copies (`cp.async.bulk`): one thread copies a row of bytes between global and shared memory (from sm_90 on)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..arch.values import i32, pointer
from ..atoms.atom import CopyOp, CopyTrait
from ..atoms.copying import checker, guarded
from ..layout.int_tuple import pretty_str, product
from ..layout.layout import make_layout
from ..tensor.pointer import AddressSpace, address_at, element_bits
from ..tensor.tensor import TracedTensor
from .access import calls, memory, offsets, require_alignment, require_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...mlir import ir

_BYTES = 16
"""Sizes and addresses are multiples of it."""


class _BulkTrait(CopyTrait):
    """Rows of `bits` bits, each a copy; 0: the whole tensor is a row."""

    def __init__(self, value_type: Any, bits: int) -> None:
        width = element_bits(value_type)
        if bits and (bits % width or bits % (8 * _BYTES)):
            raise error(
                DSLUserCodeTypeError,
                f"num_bits_per_copy={bits} of a bulk copy of elements of {width} bits",
                hint=f"a bulk copy takes a multiple of {8 * _BYTES} bits, a whole number of elements",
            )
        self.values = bits // width if bits else 1
        self.whole = not bits
        layout = make_layout((1, self.values), stride=(0, 1))
        super().__init__(value_type, make_layout(1), layout, layout)

    def _rows(
        self, src: TracedTensor, dst: TracedTensor
    ) -> tuple[list[tuple[ir.Value, ir.Value]], int, Callable[[], None]]:
        """(target, source) of each row; its bytes; what compares the coordinates of all with the extents of both."""
        if src.element_type is not dst.element_type:
            raise error(
                DSLUserCodeTypeError,
                f"a bulk copy from {src.element_type.__name__} to {dst.element_type.__name__} elements",
                hint="it does not convert",
                depth=3,
            )
        values: Any = product(dst.shape) if self.whole else self.values
        if not isinstance(values, int):
            values = product(src.shape)
        if not isinstance(values, int):
            raise error(
                DSLUserCodeTypeError, f"a bulk copy of shape {pretty_str(dst.shape)}: its shape is static", depth=3
            )
        size = values * element_bits(src.element_type) // 8
        if size % _BYTES or values * element_bits(src.element_type) % 8:
            raise error(DSLUserCodeTypeError, f"a bulk copy of {size} bytes: it takes multiples of {_BYTES}", depth=3)
        count = calls(dst, values, "the destination")
        if calls(src, values, "the source") != count:
            raise error(DSLUserCodeTypeError, f"a bulk copy from the layout {src.layout} to {dst.layout}", depth=3)
        require_rows(src, values, "the source")
        require_rows(dst, values, "the destination")
        indices = range(0, count * values, values)
        ends = list(zip(offsets(dst.offset_layout, indices), offsets(src.offset_layout, indices), strict=True))
        for to, of in ends:
            require_alignment(src.iterator, of, _BYTES, "the source")
            require_alignment(dst.iterator, to, _BYTES, "the destination")
        check = checker(src, dst)
        pairs = [(address_at(dst.iterator, to), address_at(src.iterator, of)) for to, of in ends]
        return pairs, size, lambda: check(range(count * values)) if check is not None else None


class BulkLoadTrait(_BulkTrait):
    """From global to shared memory."""

    def copy(self, src: Any, dst: Any, pred: Any, *, mbar_ptr: Any = None) -> None:
        from ...dialects import nvgpu

        if mbar_ptr is None:
            raise error(
                DSLUserCodeTypeError,
                "a bulk copy to shared memory needs an mbarrier",
                hint="cute.copy(atom, src, dst, mbar_ptr=...): its bytes are taken from what the mbarrier expects",
                depth=2,
            )
        rows, size, check = self._rows(
            memory(src, "the source of a bulk copy", AddressSpace.gmem),
            memory(dst, "the destination of a bulk copy", AddressSpace.smem),
        )
        where = pointer(mbar_ptr, "a bulk copy")

        def move() -> None:
            check()
            for target, source in rows:
                nvgpu.async_copy.bulk_load(target, source, i32(size), where)

        _under(pred, move)


class BulkStoreTrait(_BulkTrait):
    """From shared to global memory."""

    def copy(self, src: Any, dst: Any, pred: Any) -> None:
        from ...dialects import nvgpu

        rows, size, check = self._rows(
            memory(src, "the source of a bulk copy", AddressSpace.smem),
            memory(dst, "the destination of a bulk copy", AddressSpace.gmem),
        )

        def move() -> None:
            check()
            for target, source in rows:
                nvgpu.async_copy.bulk_store(target, source, i32(size))

        _under(pred, move)


def _under(pred: Any, move: Any) -> None:
    if pred is None:
        move()
    elif isinstance(pred, TracedTensor):
        raise error(DSLUserCodeTypeError, "a bulk copy has one predicate, a Boolean", depth=3)
    else:
        guarded(pred, move)


class CopyBulkG2SOp(CopyOp):
    """Bulk copy from global to shared memory: one thread copies rows of bytes, which arrive later.

    `cute.copy(atom, src, dst, mbar_ptr=...)` takes their bytes from what the mbarrier expects. Addresses and sizes are
    multiples of 16 bytes.
    """

    def make_trait(self, copy_internal_type: Any, *, num_bits_per_copy: int = 0) -> CopyTrait:
        return BulkLoadTrait(copy_internal_type, num_bits_per_copy)


class CopyBulkS2GOp(CopyOp):
    """Bulk copy from shared to global memory, as part of the thread's bulk group (`cute.arch.cp_async_bulk_commit_group`)."""

    def make_trait(self, copy_internal_type: Any, *, num_bits_per_copy: int = 0) -> CopyTrait:
        return BulkStoreTrait(copy_internal_type, num_bits_per_copy)
