"""Addresses of shared memory as integers: offsets in its window, with the rank of the CTA in the cluster from bit 24."""

from __future__ import annotations

import contextlib

import cutlass.cute as cute
import numpy as np
import pytest
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

import cutlass
import kiln
from cutlass import Int32, Int64, Uint64

RANK = 1 << 24


def asm(result, operands, text, constraints):
    values = [operand if hasattr(operand, "owner") else operand.ir_value() for operand in operands]
    return llvm.inline_asm(result, values, text, constraints, has_side_effects=True)


@cute.kernel
def addresses(out: cute.Tensor):
    rank = cute.arch.block_idx_in_cluster()
    shared = cutlass.utils.SmemAllocator()
    shared.allocate_tensor(Int32, cute.make_layout(64), 1024)
    cells = shared.allocate_tensor(Int32, cute.make_layout(64), 1024)
    cells[cute.arch.thread_idx()[0]] = rank * 100 + 7
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if cute.arch.thread_idx()[0] == 0:
        row = out[cute.arch.block_idx()[0], None]
        pointer = cells.iterator
        here = pointer.toint()
        row[0] = here
        there = Int32(asm(T.i32(), [here, Int32(1) - rank], "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"))
        row[1] = there
        row[2] = Int32(asm(T.i32(), [there], "ld.shared::cluster.b32 $0, [$1];", "=r,r"))
        # an address may leave the window on the way
        back = cute.make_ptr(Int32, (here - 2048) + 2048, cute.AddressSpace.smem)
        row[3] = cute.make_tensor(back, cute.make_layout(1))[0]
        below = cute.make_ptr(Int32, here - 2048, cute.AddressSpace.smem)
        row[4] = cute.make_tensor(below + 512, cute.make_layout(1))[0]
        generic = asm(T.i64(), [Int64(there)], "cvta.shared::cluster.u64 $0, $1;", "=l,l")
        row[5] = Int32(asm(T.i32(), [generic], "ld.b32 $0, [$1];", "=r,l"))
        row[6] = Int32(Int64(asm(T.i64(), [generic], "cvta.to.shared::cluster.u64 $0, $1;", "=l,l")))
        row[7] = Int32(asm(T.i32(), [pointer.llvm_ptr], "mov.u32 $0, $1;", "=r,r"))
        row[8] = Int32(llvm.ptrtoint(T.i32(), pointer.llvm_ptr))
        row[9] = Int32(asm(T.i32(), [there], "getctarank.shared::cluster.u32 $0, $1;", "=r,r"))
        again = Int32(asm(T.i32(), [there, rank], "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"))
        row[10] = again
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def in_clusters(out: cute.Tensor):
    addresses(out).launch(grid=(4, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1))


@pytest.mark.parametrize("sanitized", [False, True])
def test_addresses_have_the_rank_of_their_cta_from_bit_24(sanitized: bool) -> None:
    out = np.zeros((4, 11), np.int32)
    with kiln.sanitize() if sanitized else contextlib.nullcontext():
        in_clusters(out)
    for block, row in enumerate(out):
        rank = block % 2
        here, there = rank * RANK + 1024, (1 - rank) * RANK + 1024
        own, other = rank * 100 + 7, (1 - rank) * 100 + 7
        assert row.tolist() == [here, there, other, own, own, other, there, here, here, 1 - rank, here]


@cute.kernel
def without_cluster(out: cute.Tensor):
    shared = cutlass.utils.SmemAllocator()
    shared.allocate_tensor(Int32, cute.make_layout(4), 16)
    swizzled = shared.allocate_tensor(
        Int32, cute.make_layout((8, 32), stride=(32, 1)), 1024, cute.make_swizzle(3, 4, 3)
    )
    thread = cute.arch.thread_idx()[0]
    for row in range(8):
        swizzled[row, thread] = row * 32 + thread
    cute.arch.sync_threads()
    for row in range(8):
        address = swizzled.iterator.toint() + ((row * 128 + thread * 4) ^ (row << 4))
        out[row, thread] = Int32(asm(T.i32(), [address], "ld.shared.b32 $0, [$1];", "=r,r"))
    out[8, thread] = swizzled.iterator.toint()


@cute.jit
def alone(out: cute.Tensor):
    without_cluster(out).launch(grid=(1, 1, 1), block=(32, 1, 1))


def test_addresses_count_from_the_start_of_shared_memory():
    out = np.zeros((9, 32), np.int32)
    alone(out)
    assert (out[:8] == np.arange(256).reshape(8, 32)).all()
    assert (out[8] == 1024).all()


@cute.kernel
def descriptors(out: cute.Tensor):
    """A descriptor as programs make it by hand, without a mask of 14 bits."""
    shared = cutlass.utils.SmemAllocator()
    shared.allocate_tensor(Int32, cute.make_layout(4), 16)
    operand = shared.allocate_tensor(cutlass.Float16, cute.make_layout((8, 64), stride=(64, 1)), 1024)
    start = Uint64(operand.iterator.toint()) >> 4
    out[cute.arch.thread_idx()[0]] = Int64(start | Uint64(1 << 16) | Uint64(64 << 32) | Uint64(1 << 62))


@cute.jit
def one_warp(out: cute.Tensor):
    descriptors(out).launch(grid=(1, 1, 1), block=(32, 1, 1))


def test_a_descriptor_needs_no_mask():
    out = np.zeros(32, np.int64)
    one_warp(out)
    assert (out == 1024 >> 4 | 1 << 16 | 64 << 32 | 1 << 62).all()
