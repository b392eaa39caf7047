"""Descriptors of operands of `tcgen05.mma` and of sources of `tcgen05.cp` in shared memory."""

from __future__ import annotations

from typing import Any

from ....base_dsl.bindings import ir
from ....base_dsl.diagnostics import type_error
from ....base_dsl.typing import Int32, Int64
from ...deferred_dialects import nvgpu
from ...layout.layout import make_layout, rank
from ...tensor.pointer import AddressSpace, Pointer, element_bits
from ..common import OperandMajorMode
from ..matrix_descriptor import (
    SWIZZLES,
    MatrixDescriptor,
    Reader,
    SmemSwizzle,
    descriptor_offsets,
    make_descriptor,
    plain_operand,
)

__all__ = ["make_umma_smem_desc", "smem_descriptor_to_int"]


class UmmaDescriptor(MatrixDescriptor):
    """The descriptor of an operand of `tcgen05.mma`, or of a source of `tcgen05.cp`."""

    __slots__ = ()

    def __str__(self) -> str:
        return "!cute_nvgpu.smem_desc"

    def __repr__(self) -> str:
        return str(self)


def _emit(pointer: ir.Value, leading: int, stride: int, swizzle: str) -> ir.Value:
    return nvgpu.tcgen05.tcgen05_matrix_descriptor(pointer, leading, stride, swizzle)


READER = Reader("tcgen05.mma", {**SWIZZLES, (2, 5, 2): SmemSwizzle("128b_32b", 8, 4)}, UmmaDescriptor, _emit)
"""`tcgen05.mma` reads 32-bit elements that are MN-major by the swizzle of 32-byte pieces."""
_CHUNK_SWIZZLE = SWIZZLES[3, 4, 3]


def from_value(value: ir.Value, dtype: object, major: OperandMajorMode, swizzle: str) -> UmmaDescriptor:
    """Return a descriptor as the iterator of a tensor."""
    whole = Int64._make(value)
    return UmmaDescriptor(Int32._make(Int32(whole).ir_value(), True), whole & -1 << 32, dtype, major, swizzle)


def make_umma_smem_desc(
    src: object, layout: object, major: str, next_src: Any = None, *, loc: object = None, ip: object = None
) -> UmmaDescriptor:
    """Return the descriptor of an operand of one `tcgen05.mma` in shared memory.

    Args:
        src: a pointer to the operand in shared memory.
        layout: its layout, (MN, K) of one MMA or ((MN, K), ...).
        major: the contiguous mode, "k" or "mn".
        next_src: for an MMA with K = 96 (sm_103a), where its rows of 48 bytes continue in another buffer of rows of 128
            bytes.
    """
    what = "make_umma_smem_desc"
    for name, pointer in (("src", src), ("next_src", next_src)):
        if pointer is None and name == "next_src":
            continue
        if not isinstance(pointer, Pointer) or pointer.memspace is not AddressSpace.smem:
            raise type_error(f"{name} of {what} is {pointer}", "a pointer to shared memory")
    if major not in ("k", "mn"):
        raise type_error(f"major of {what} is {major!r}", '"k" or "mn"')
    mode = OperandMajorMode(major)
    pointer, plain, swizzle = plain_operand(src, layout, what, READER)
    if rank(plain) == 2 and rank(plain[0]) != 2:
        plain = make_layout([plain])
    if next_src is None:
        return make_descriptor(pointer, plain, swizzle, mode, what, READER)  # type: ignore[return-value]
    if mode is not OperandMajorMode.K or swizzle != _CHUNK_SWIZZLE:
        raise type_error(
            f"{what} with next_src of a {mode.name}-major operand with the swizzle {swizzle.name}",
            "rows of 128 bytes that continue in another buffer are K-major and swizzled by 128 bytes",
        )
    first = plain[0]
    offsets = descriptor_offsets(first[0], first[1], element_bits(pointer.dtype), mode, swizzle)
    if isinstance(offsets, str):
        raise type_error(f"{what} of the layout {layout}: {offsets}")
    value = nvgpu.tcgen05.tcgen05_matrix_descriptor(
        pointer.ir_value(), 0, offsets.stride, swizzle.name, next_src.ir_value()
    )
    return from_value(value, pointer.dtype, mode, swizzle.name)


def smem_descriptor_to_int(desc: object, *, loc: object = None, ip: object = None) -> Int64:
    """Return the 64 bits of a descriptor, for inline PTX.

    Args:
        desc: a descriptor of `make_umma_smem_desc`, or `iterator` of a fragment in shared memory.
    """
    if not isinstance(desc, MatrixDescriptor):
        raise type_error(
            f"smem_descriptor_to_int takes a descriptor, got {desc}", "make_umma_smem_desc(...), or tensor.iterator"
        )
    return desc.element(0)
