"""Bulk reductions: elements are combined with those in memory, each atomically.

Other groups run on other OS threads, so each is a compare-and-swap of the element's bits.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....base_dsl.numeric.formats import BFLOAT16, FLOAT16, FLOAT32
from ....native import Ptr, atomic_load, compare_exchange, f32, f64, i32, i64, inline, native, u16, u32, u64
from ...host.soft_float import extended, truncated
from .engine_table import BULK_QUEUE
from .engines import BYTES, GROUP, give
from .records import FrameHeader, Operation
from .tensor_maps import accelerator

U32 = 2
S32 = 3
U64 = 4
S64 = 5
F16 = 6
F32 = 7
F64 = 8
BF16 = 9
F32_FTZ = 10
TF32 = 11
TF32_FTZ = 12
PACKED = 13
"""Element types, by the driver's numbers."""
ADD, MIN, MAX, INC, DEC, AND, OR, XOR = range(1, 9)
"""Reductions, as `Operation.reduction`; 0: none."""
REDUCED: dict[int, tuple[int, ...]] = {
    ADD: (U32, S32, U64, F32, F16, BF16, F32_FTZ),
    MIN: (U32, S32, U64, S64, F16, BF16),
    MAX: (U32, S32, U64, S64, F16, BF16),
    INC: (U32,),
    DEC: (U32,),
    AND: (U32, S32, U64, S64),
    OR: (U32, S32, U64, S64),
    XOR: (U32, S32, U64, S64),
}
"""Element types of each reduction."""


@inline
def combined_numbers(old, new, reduction):
    """Return the reduction of two integers of a type."""
    result = old + new
    if reduction == MIN:
        result = min(old, new)
    elif reduction == MAX:
        result = max(old, new)
    elif reduction == INC:
        result = type(old)(0) if old >= new else old + 1
    elif reduction == DEC:
        result = new if old == 0 or old > new else old - 1
    elif reduction == AND:
        result = old & new
    elif reduction == OR:
        result = old | new
    elif reduction == XOR:
        result = old ^ new
    return result


@native
def combined_floats(old: f32, new: f32, reduction: i32) -> f32:
    """Return the reduction of two floats; `min` and `max` prefer a number to NaN."""
    result = old + new
    if reduction != ADD:
        least = reduction == MIN
        takes_old = (old < new) == least if old == old and new == new else old == old
        result = old if takes_old else new
    return result


@inline
def change(place, combine):
    """Update an element in a compare-and-swap loop."""
    done = False
    while not done:
        old = atomic_load(place, "relaxed")
        _, done = compare_exchange(place, old, combine(old))


@inline
def each(row, values, kind, count, combine):
    target = Ptr[kind](row)
    source = Ptr[kind](values)
    for number in range(count):
        new = source[number]
        change(target + number, lambda old, new=new: combine(old, new))


@inline
def half(bits, format_):
    return extended(bits, format_, FLOAT32).bitcast(f32)


@native
def reduce_row(target: Ptr, values: Ptr, count: u32, element: u32, reduction: i32) -> None:
    """Reduce a row of elements into memory, each atomically."""
    for number, kind in ((U32, u32), (S32, i32), (U64, u64), (S64, i64)):
        if element == number:
            each(target, values, kind, count, lambda old, new: combined_numbers(old, new, reduction))
    for number, format_ in ((F16, FLOAT16), (BF16, BFLOAT16)):
        if element == number:
            each(
                target,
                values,
                u16,
                count,
                lambda old, new, of=format_: truncated(
                    combined_floats(half(old, of), half(new, of), reduction).bitcast(u32), FLOAT32, of
                ),
            )
    if element == F64:
        each(target, values, u64, count, lambda old, new: (old.bitcast(f64) + new.bitcast(f64)).bitcast(u64))
    for number in (F32, F32_FTZ):
        if element == number:
            each(
                target,
                values,
                u32,
                count,
                lambda old, new: combined_floats(old.bitcast(f32), new.bitcast(f32), reduction).bitcast(u32),
            )


@native
def reduce_bytes(operation: Ptr[Operation]) -> None:
    count = operation.bytes // operation.size
    reduce_row(operation.target, operation.source, count, u32(operation.reduction >> 8), operation.reduction & 255)


@inline
def set_reduction(operation, reduction):
    operation.reduction = reduction


@accelerator.export
def bulk_reduce(
    frame: Ptr[FrameHeader], target: Ptr, source: Ptr, bytes_: u32, width: u32, mbarrier: Ptr[u64], reduction: i32
) -> None:
    """Issue a reduction of elements of `width` bytes into shared memory or, without an mbarrier, into global memory.

    `reduction` has the number of the element type in its second byte.
    """
    more = lambda operation: set_reduction(operation, reduction)
    if mbarrier == None:
        give(frame, BULK_QUEUE, GROUP, reduce_bytes, target, source, bytes_, width, mbarrier, more)
    else:
        give(frame, BULK_QUEUE, BYTES, reduce_bytes, target, source, bytes_, width, mbarrier, more)
