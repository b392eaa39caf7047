"""Products of warp groups: threads come to them one by one, and a product that all have come to is carried out.

A thread that runs ahead begins products that others come to later, so a warp group keeps all that are not done. They are
done in order: at once when the last thread comes or, under a schedule seed, at any moment until something waits for it.
"""
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from ....native import Library, Ptr, address, i32, i64, inline, local, native, ref, size_of, u32, u64
from ...host.libc import free, malloc, memcpy
from ...host.reports import fault
from .engine_table import WGMMA_QUEUE
from .engines import GROUP, new_operation
from .orders import schedule
from .records import WARP, WARPGROUP, BlockRecord, FrameHeader, Operation, Product, WarpGroup
from .tensor_core import A_IN_REGISTERS, multiply
from .threads import ALL, COME_AGAIN, GO_ON, wait

products = Library("products", prefix="kiln_cpu_")
DIFFERENT, OUTSIDE = range(2)
"""Why a product cannot be carried out: threads have come with different operands; an operand is not in shared memory."""


@inline
def group_of(frame):
    return ref(frame.block.warp_groups)[frame.thread // WARPGROUP]


@inline
def product_at(group, number):
    return group.products[number & (group.room - 1)]


@native
def grow(group: Ptr[WarpGroup]) -> None:
    """Room for twice as many products that are not done."""
    room = max(group.room * 2, u32(8))
    made = Ptr[Product](malloc(u64(room) * size_of(Product)))
    number = group.done
    while number != group.begun:
        memcpy(made[number & (room - 1)], product_at(group, number), size_of(Product))
        number += 1
    free(group.products)
    group.products = made
    group.room = room


@native
def fail(block: Ptr[BlockRecord], thread: u32, site: i32, why: i64) -> None:
    index, size, arguments = block.index, block.block_dim, local(i64, 1)
    arguments[0] = why
    x, rest = thread % size[0], thread // size[0]
    fault(block.context, site, index[0], index[1], index[2], x, rest % size[1], rest // size[1], 1, arguments)


@native
def carry_out(block: Ptr[BlockRecord], group: Ptr[WarpGroup], end: u32) -> None:
    """Carry out a warp group's products up to number `end`."""
    while i32(end - group.done) > 0:
        product = product_at(group, group.done)
        if multiply(product, block.smem, u32(address(block) - address(block.smem))) != 0:
            number = u32((address(group) - address(block.warp_groups)) // size_of(WarpGroup))
            fail(block, number * WARPGROUP, product.site, i64(OUTSIDE))
        group.done += 1


@native
def next_product(operation: Ptr[Operation]) -> None:
    """The oldest product that is not done: so they are done in order, whichever operation the engine takes up."""
    group = Ptr[WarpGroup](operation.target)
    if group.done != group.complete:
        carry_out(Ptr[BlockRecord](operation.source), group, group.done + 1)


@native
def warps_missing(product: Ptr[Product]) -> u32:
    missing = u32(0)
    for warp in range(u32(WARPGROUP // WARP)):
        missing |= u32(product.came[warp] != WARP) << warp
    return missing


@products.export
def wgmma(
    frame: Ptr[FrameHeader], d: Ptr, a: u64, b: u64, accumulate: u32, kind: u32, site: i32
) -> None:  # fmt: skip
    """A thread comes to its next product; `a` is the address of registers or a descriptor, as `kind` says."""
    block, group = frame.block, group_of(frame)
    thread, number = frame.thread % WARPGROUP, frame.products
    frame.products = number + 1
    if number == group.begun:
        if number - group.done == group.room:
            grow(group)
        group.begun = number + 1
        begin(product_at(group, number), a, b, accumulate, kind, site, frame.groups[WGMMA_QUEUE])
    product = product_at(group, number)
    different = product.kind != kind or product.b_descriptor != b or product.accumulate != accumulate
    in_registers = kind & A_IN_REGISTERS != 0
    if different or (not in_registers and product.a_descriptor != a):
        fail(block, frame.thread, site, i64(DIFFERENT))
    product.d[thread] = d
    product.a[thread] = Ptr(a)
    product.came[thread // WARP] += 1
    if number == group.complete:
        group.missing = warps_missing(product)
        while group.missing == 0:
            group.complete += 1
            hand_over(block, group)
            group.missing = (1 << WARPGROUP // WARP) - 1
            if group.complete != group.begun:
                group.missing = warps_missing(product_at(group, group.complete))


@inline
def begin(product, a, b, accumulate, kind, site, group):
    """The first thread comes to a product."""
    product.kind = kind
    product.accumulate = accumulate
    product.site = site
    product.group = group
    product.a_descriptor = a
    product.b_descriptor = b
    for warp in range(WARPGROUP // WARP):
        product.came[warp] = 0


@inline
def hand_over(block, group):
    """All threads have come to one more product: the schedule decides when it is done."""
    if schedule.value == 0:
        carry_out(block, group, group.complete)
    else:
        operation = new_operation(block)
        operation.queue = WGMMA_QUEUE
        operation.completion = GROUP
        operation.work = next_product
        operation.target = Ptr(group)
        operation.source = Ptr(block)


@products.export
def wgmma_wait(frame: Ptr[FrameHeader], latest: i32, site: i32) -> i32:
    """Wait for all groups of products but the latest ones: whether to suspend and to come again."""
    group, end = group_of(frame), frame.groups[WGMMA_QUEUE] - latest
    last = frame.products
    while i32(last - group.done) > 0 and product_at(group, last - 1).group >= end:
        last -= 1
    if i32(last - group.complete) > 0:
        wait(frame, ref(group).complete, ALL, group.complete, site)
        return COME_AGAIN
    carry_out(frame.block, group, last)
    return GO_ON
