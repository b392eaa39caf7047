"""Single instructions under their names in `cutlass.experimental.primitives`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.experimental import cuda
from kiln.experimental import primitives as prims


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def run(kernel, *arrays, threads=32):
    @cute.jit
    def f(*tensors):
        kernel(*tensors).launch(grid=1, block=threads)

    f(*(from_dlpack(x, assumed_align=x.itemsize) for x in arrays))


def test_words():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        if arch.thread_idx()[0] == 0:
            out[0] = prims.prmt(x[0], 0x4140, prims.PermuteMode.DEFAULT, hi=x[1])
            out[1] = kiln.Int32(prims.mov_b32(kiln.Float32(1.0), target_type=kiln.Uint32))
            out[2] = prims.convert_and_pack_integer(x[2], x[3], kiln.Int16.mlir_type, is_signed=True)
            out[3] = prims.prmt(x[0], 1, "rc8")

    out = np.zeros(4, np.int32)
    run(kernel, np.array([0x44332211, 0x55667788, 100000, -100000], np.int32), out)
    assert [n & 0xFFFFFFFF for n in out.tolist()] == [0x88228811, 0x3F800000, 0x7FFF8000, 0x22222222]


def test_reductions_of_a_warp_and_counters():
    @cute.kernel
    def kernel(count: cute.Tensor, out: cute.Tensor):
        lane = arch.lane_idx()
        old = prims.atomicrmw(prims.AtomicOp.INC, count.iterator.llvm_ptr, kiln.Int32(9))
        total = prims.redux_sync(old, prims.ReductionKind.MAX, 0xFFFFFFFF)
        prims.griddepcontrol(prims.GridDepAction.WAIT)
        if lane == 0:
            out[0] = total

    count, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(kernel, count, out)
    assert (count[0], out[0]) == (2, 9)  # 0 to 9, three times, then 0 and 1


@pytest.mark.parametrize("reduces", [False, True])
def test_bulk_copies_to_global_memory(reduces):
    @cute.kernel
    def kernel(out: cute.Tensor):
        lane = arch.lane_idx()
        tile = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout(32), 128)
        tile[lane] = kiln.Float32(lane)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_warp()
        if lane == 0:
            where, rows = out.iterator.llvm_ptr, tile.iterator.to_llvm_ptr()
            if kiln.const_expr(reduces):
                prims.cp_reduce_async_bulk_global_shared_cta(
                    where, rows, 128, op=prims.CpReduceOp.ADD, type=prims.CpReduceType.F32
                )
            else:
                prims.cp_async_bulk_global_shared_cta(where, rows, 128)
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    memory = np.ones(36, np.float32)
    out = memory[(-memory.ctypes.data // 4) % 4 :][:32]
    run(kernel, out)
    np.testing.assert_array_equal(out, np.arange(32) + reduces)


@cute.kernel
def of_warps_and_barriers(x: cute.Tensor, out: kiln.Array, f: cute.Tensor):
    lane = arch.thread_idx()[0] % 32
    warp = arch.warp_idx()
    mask = 0xFFFFFFFF
    value, valid = prims.shfl_sync(mask, x[lane], 3, 0x1F, prims.Shfl.DOWN, return_value_and_is_valid=True)
    moved = prims.shfl_sync(mask, kiln.Float32(lane), 1, 0x1F, "bfly")
    ballot = prims.vote_sync(mask, lane < 5, prims.VoteSync.BALLOT)
    low = prims.elect_sync(membermask=0xFFFF) if lane < 16 else prims.elect_sync(membermask=0xFFFF0000)
    largest = prims.redux_sync(x[lane], prims.ReductionKind.MAX, mask)
    both = prims.barrier_cta_red(lane != 31, 0, "and")
    one = prims.barrier_cta_red(lane == 31, 1, "or", thread_count=64)
    count = prims.barrier_cta_red(lane < 3, 2, "popc")
    if warp == 0:
        out[0, lane] = value + 100 * kiln.Int32(valid) + kiln.Int32(moved) * 1000
        out[1, lane] = ballot + 100 * kiln.Int32(low)
        out[2, lane] = largest
        out[3, lane] = kiln.Int32(both) + 2 * kiln.Int32(one) + 10 * count
        prims.barrier_cta_arrive(3, 64)
    else:
        prims.barrier_cta_sync(3, thread_count=64)
        prims.bar_warp_sync(mask)
    prims.red(prims.ReductionOp.ADD, prims.ReductionType.F16, f.iterator, 0.5, mem_scope=prims.MemScope.GPU)


def test_warps_and_barriers():
    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor, f: cute.Tensor):
        of_warps_and_barriers(x, out, f).launch(grid=1, block=64)

    x, out, f = np.arange(32, dtype=np.int32), np.zeros((4, 32), np.int32), np.zeros(1, np.float16)
    with kiln.sanitize():
        main(x, out, f)
    lanes = np.arange(32)
    inside = lanes < 29
    np.testing.assert_array_equal(out[0], np.where(inside, lanes + 3, lanes) + 100 * inside + 1000 * (lanes ^ 1))
    np.testing.assert_array_equal(out[1], 31 + 100 * ((lanes == 0) | (lanes == 16)))
    assert (out[2] == 31).all()
    assert (out[3] == 0 + 2 + 10 * 6).all()
    assert f[0] == 32


@cute.kernel
def of_copies_and_mbarriers(x: cute.Tensor, out: cute.Tensor, states: cute.Tensor):
    """Bring 32 words by cp.async and 128 bytes by a bulk copy, transpose matrices, and write all back."""
    lane = arch.thread_idx()[0]
    near = kiln.Array(kiln.Int32, (2, 32), space=kiln.AddressSpace.smem, alignment=128)
    far = kiln.Array(kiln.Int32, 32, space=kiln.AddressSpace.smem, alignment=128)
    bars = kiln.Array(kiln.Int64, 3, space=kiln.AddressSpace.smem)
    if lane == 0:
        prims.mbarrier_init(bars, 32)
        prims.mbarrier_init(bars.subview(1), 1)
        prims.mbarrier_init(bars.subview(2), 32)
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync_aligned(0)
    prims.cp_async_shared_global(near.subview(lane), x.iterator + lane, 4, "ca")
    prims.cp_async_mbarrier_arrive(bars, noinc=True)
    if prims.elect_sync():
        prims.mbarrier_expect_tx(bars.subview(1), 128)
        prims.mbarrier_arrive(bars.subview(1), count=1)
        prims.cp_async_bulk_prefetch(x.iterator, 128)
        prims.cp_async_bulk_shared_cluster_global(near.subview(32), x.iterator, bars.subview(1), 128)
    state = prims.mbarrier_arrive(bars.subview(2))
    while not prims.mbarrier_try_wait_timelimit(bars.subview(2), state, 1000):
        pass
    while not prims.mbarrier_try_wait_parity(bars, 0, scope="cluster"):
        pass
    while not prims.mbarrier_wait_parity(bars.subview(1), 0, prims.MBarrierWait.TEST):
        pass
    cluster = {"scope": prims.MBarrierScope.CLUSTER, "order": prims.MemOrder.ACQUIRE}
    while not prims.mbarrier_wait_parity(bars.subview(1), 0, "test", **cluster):
        pass
    while not prims.mbarrier_try_wait_parity(bars.subview(1), 0, time_limit=None, **cluster):
        pass
    while not prims.mbarrier_try_wait_timelimit(bars.subview(2), state, 1000, **cluster):
        pass
    rows = kiln.Pointer(near.data_ptr(), dtype=kiln.Float16) + (lane % 8) * 8
    word = prims.ldmatrix(rows, 1, prims.MMALayout.COL)
    prims.stmatrix(kiln.Pointer(far.data_ptr(), dtype=kiln.Float16) + (lane % 8) * 8, [word], "row")
    prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
    prims.bar_warp_sync(0xFFFFFFFF)
    if prims.elect_sync():
        prims.cp_async_bulk_global_shared_cta(out.iterator, near.subview(32), 128)
        prims.cp_async_bulk_global_shared_cta(out.iterator + 32, far, 128)
    prims.cp_async_bulk_commit_group()
    prims.cp_async_bulk_wait_group(0)
    states[lane] = near[0, lane]
    prims.barrier_cta_sync(0)
    if lane == 0:
        prims.mbarrier_inval(bars)


def test_copies_and_mbarriers():
    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor, states: cute.Tensor):
        of_copies_and_mbarriers(x, out, states).launch(grid=1, block=32)

    memory = np.zeros((3, 64 + 4), np.int32)
    x, out, states = (m[-m.ctypes.data % 16 // 4 :][:n] for m, n in zip(memory, (32, 64, 32), strict=True))
    x[:] = np.random.default_rng(1).integers(-(1 << 31), 1 << 31, 32)
    with kiln.sanitize():
        main(*(from_dlpack(a, assumed_align=16) for a in (x, out, states)))
    np.testing.assert_array_equal(states, x)
    np.testing.assert_array_equal(out[:32], x)
    np.testing.assert_array_equal(out[32:].view(np.int16).reshape(8, 8), x.view(np.int16).reshape(8, 8).T)


def test_clusters():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tx, rank = arch.thread_idx()[0], prims.cluster_ctarank()
        mine = kiln.Array(kiln.Int32, 32, space=kiln.AddressSpace.smem)
        got = kiln.Array(kiln.Int32, 32, space=kiln.AddressSpace.smem, alignment=16)
        bar = kiln.Array(kiln.Int64, 2, space=kiln.AddressSpace.smem)
        mine[tx] = 100 * rank + tx
        if tx == 0:
            prims.mbarrier_init(bar, 32)
            prims.mbarrier_init(bar.subview(1), 1)
            prims.mbarrier_arrive_expect_tx(bar.subview(1), 128)
        prims.fence_mbarrier_init()
        prims.fence_proxy("async_shared", space="shared_cta")
        prims.barrier_cluster_arrive()
        prims.barrier_cluster_wait()
        peer = prims.mapa(mine, rank ^ 1)
        value = peer[tx]
        prims.red(prims.ReductionOp.ADD, "s32", peer.data_ptr() + tx, 1000, mem_scope=prims.MemScope.CLUSTER)
        prims.mbarrier_arrive(prims.mapa(bar, rank ^ 1))
        if prims.elect_sync():
            there = prims.mapa(got, rank ^ 1)
            prims.cp_async_bulk_shared_cluster_shared_cta(
                there, got if kiln.const_expr(False) else mine, prims.mapa(bar.subview(1), rank ^ 1), 128
            )
        while not prims.mbarrier_try_wait_parity(bar, 0):
            pass
        while not prims.mbarrier_try_wait_parity(bar.subview(1), 0):
            pass
        out[rank, tx] = value + kiln.Int32(got[tx] >= 0)
        prims.barrier_cluster_arrive()
        prims.barrier_cluster_wait()

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=2, block=32, cluster=(2, 1, 1))

    out = np.zeros((2, 32), np.int32)
    main(out)
    np.testing.assert_array_equal(out, np.array([[101], [1]]) + np.arange(32))


def test_misuse_of_primitives_is_refused():
    smem = lambda kind=kiln.Int32, n=32: kiln.Array(kind, n, space=kiln.AddressSpace.smem)
    far = lambda x: x.iterator

    def refused(match, body):
        @cute.kernel
        def kernel(x: cute.Tensor):
            body(x)

        with pytest.raises(DSLBaseError, match=match):
            run(kernel, np.zeros(32, np.int32))

    refused("barrier_id is 16", lambda x: prims.barrier_cta_sync(16))
    refused("number_of_threads is 33", lambda x: prims.barrier_cta_sync(1, thread_count=33))
    refused("needs a thread_count", lambda x: prims.barrier_cta_arrive(1, None))
    refused("kind is 'xor'", lambda x: prims.barrier_cta_red(True, 0, "xor"))
    refused("kind is 'left'", lambda x: prims.shfl_sync(-1, 1, 1, 31, "left"))
    refused("in shared memory, and this one is in", lambda x: prims.mbarrier_init(far(x), 1))
    refused("of 0 arrivals", lambda x: prims.mbarrier_init(smem(kiln.Int64, 1), 0))
    refused("of another CTA", lambda x: prims.mbarrier_init(prims.mapa(smem(kiln.Int64, 1), 0), 1))
    refused("12 bytes", lambda x: prims.cp_async_shared_global(smem(), far(x), 12, "ca"))
    refused("8 bytes with cg", lambda x: prims.cp_async_shared_global(smem(), far(x), 8, "cg"))
    refused("in global memory", lambda x: prims.cp_async_bulk_prefetch(smem(), 16))
    refused("takes dst_mem", lambda x: prims.cp_async_bulk_shared_cluster_shared_cta(smem(), smem(), smem(), 16))
    refused("takes a Pointer or an Array", lambda x: prims.mbarrier_init(3, 1))
    refused("floats are added", lambda x: prims.red("max", "f32", far(x), 1.0))
    refused("3 words", lambda x: prims.stmatrix(smem(), [1, 2, 3], "row"))
    refused("16x16 matrices", lambda x: prims.ldmatrix(smem(), 1, "row", shape="m16n16", src_format="b8"))
    refused("of 64 bytes", lambda x: prims.fence_proxy_acquire("gpu", far(x), 64))
    refused("reg_count is 100", lambda x: prims.setmaxregister(100, "decrease"))
    refused("needs a new_value", lambda x: prims.tensormap_replace("rank", far(x)))
    refused("33 columns", lambda x: prims.tcgen05_alloc(smem(), 33))
    refused("an address in tensor memory", lambda x: prims.tcgen05_dealloc(smem(), 32))
    refused("leading_byte_offset", lambda x: prims.Tcgen05SmemDesc.build(smem(), 8))


MISUSE = [
    ("kind is 'mean'", lambda near, far, away: prims.redux_sync(kiln.Int32(1), "mean", -1)),
    ("kind is 'most'", lambda near, far, away: prims.vote_sync(-1, True, "most")),
    ("barrier_id is 16", lambda near, far, away: prims.barrier(barrier_id=16)),
    ("barrier_id is 16", lambda near, far, away: prims.barrier_cta_sync_aligned(16)),
    ("in shared memory", lambda near, far, away: prims.mapa(far, 0)),
    ("in shared memory", lambda near, far, away: prims.mbarrier_arrive(far)),
    ("in shared memory", lambda near, far, away: prims.mbarrier_arrive_expect_tx(far, 16)),
    ("in shared memory", lambda near, far, away: prims.mbarrier_expect_tx(far, 16)),
    ("scope is 'gpu'", lambda near, far, away: prims.mbarrier_arrive(near, scope="gpu")),
    ("of another CTA", lambda near, far, away: prims.mbarrier_inval(away)),
    ("of another CTA", lambda near, far, away: prims.mbarrier_try_wait_parity(away, 0)),
    ("of another CTA", lambda near, far, away: prims.mbarrier_try_wait_timelimit(away, 0, 1)),
    ("of another CTA", lambda near, far, away: prims.mbarrier_wait_parity(away, 0, "try")),
    ("of another CTA", lambda near, far, away: prims.cp_async_mbarrier_arrive(away)),
    (
        "from tensormap to generic",
        lambda near, far, away: prims.fence_proxy_release("gpu", from_proxy="tensormap", to_proxy="generic"),
    ),
    ("kind is 'sync'", lambda near, far, away: prims.fence_proxy("sync")),
    ("kind is 'stop'", lambda near, far, away: prims.griddepcontrol("stop")),
    ("in shared memory", lambda near, far, away: prims.cp_async_bulk_global_shared_cta(far, far, 16)),
    ("with a byte_mask", lambda near, far, away: prims.cp_async_bulk_global_shared_cta(far, near, 16, byte_mask=1)),
    ("in shared memory", lambda near, far, away: prims.cp_async_bulk_shared_cluster_global(far, far, near, 16)),
    ("in shared memory", lambda near, far, away: prims.cp_reduce_async_bulk_global_shared_cta(far, far, 16)),
    ("in shared memory", lambda near, far, away: prims.cp_async_bulk_tensor_shared_cta_global(far, far, (0,), near)),
    (
        "group is 'cta_3'",
        lambda near, far, away: prims.cp_async_bulk_tensor_shared_cluster_global(
            near, far, (0,), near, [], group="cta_3"
        ),
    ),
    ("in shared memory", lambda near, far, away: prims.cp_async_bulk_tensor_global_shared_cta(far, far, (0,))),
    ("mode is 'tiles'", lambda near, far, away: prims.cp_async_bulk_tensor_global_shared_cta(far, near, (0,), mode="tiles")),
    ("in global memory", lambda near, far, away: prims.prefetch_tensormap(near)),
    ("-1", lambda near, far, away: prims.cp_async_wait_group(-1)),
    ("-1", lambda near, far, away: prims.cp_async_bulk_wait_group(-1)),
    ("an address in tensor memory", lambda near, far, away: prims.make_tmem_ptr(near, kiln.Int32)),
    ("an address in tensor memory", lambda near, far, away: prims.make_tmem_ptr_from_warp_row_col(near, 0, 0, kiln.Int32)),
    ("in shared memory", lambda near, far, away: prims.tcgen05_commit(far)),
    ("8x8b", lambda near, far, away: prims.tcgen05_cp("8x8b", 0, kiln.Int64(0))),
    ("src_format is 'b5'", lambda near, far, away: prims.tcgen05_cp("128x128b", 0, kiln.Int64(0), src_format="b5")),
    ("kind is 'sideways'", lambda near, far, away: prims.tcgen05_fence("sideways")),
    ("shape is '8x8b'", lambda near, far, away: prims.tcgen05_ld("8x8b", prims.make_tmem_ptr(0, kiln.Int32))),
    ("shape is '8x8b'", lambda near, far, away: prims.tcgen05_st("8x8b", prims.make_tmem_ptr(0, kiln.Int32), kiln.Int32(1))),
    (
        "kind is 'f99'",
        lambda near, far, away: prims.tcgen05_mma("f99", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, True),
    ),
    (
        "there is no mma.sp m16n8k16 of f16 and bf16",
        lambda near, far, away: prims.mma_sp_sync(
            *(kiln.Vector.from_elements((x(0),) * 4, x) for x in (kiln.Float16, kiln.BFloat16, kiln.Float32)), 0
        ),
    ),
    (
        "kind is 'mxf4'",
        lambda near, far, away: prims.tcgen05_mma_sp("mxf4", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, 4, True),
    ),
    (
        "kind is 'f16'",
        lambda near, far, away: prims.tcgen05_mma_block_scale(
            "f16", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, True, 0, 0
        ),
    ),
    ("group is 'cta_3'", lambda near, far, away: prims.tcgen05_relinquish_alloc_permit(group="cta_3")),
    ("kind is 'both'", lambda near, far, away: prims.tcgen05_wait("both")),
    ("of 3 words", lambda near, far, away: prims.ldmatrix(near, 3, "row")),
    ("shape is 'm4n4'", lambda near, far, away: prims.ldmatrix(near, 1, "row", shape="m4n4")),
    ("in ROW layout", lambda near, far, away: prims.stmatrix(near, [1], "row", shape=prims.StoreShape.M16N8)),
    ("kind is 'wait'", lambda near, far, away: prims.mbarrier_wait_parity(near, 0, "wait")),
    ("scope is 'gpu'", lambda near, far, away: prims.mbarrier_wait_parity(near, 0, "try", scope="gpu")),
    ("order is", lambda near, far, away: prims.mbarrier_try_wait_parity(near, 0, order=prims.MemOrder.SC)),
    ("scope is 'sys'", lambda near, far, away: prims.mbarrier_try_wait_timelimit(near, 0, 1, scope="sys")),
    ("scope is 'sys'", lambda near, far, away: prims.mbarrier_expect_tx(near, 16, scope="sys")),
    ("order is 'sc'", lambda near, far, away: prims.fence_sync_restrict("sc")),
    ("op is 'mean'", lambda near, far, away: prims.atomicrmw("mean", far, 1)),
    ("by cas has no b", lambda near, far, away: prims.atomicrmw(prims.AtomicOp.CAS, far, 1)),
    ("of an empty mask", lambda near, far, away: prims.elect_sync(membermask=0)),
    ("has an empty mask", lambda near, far, away: prims.bar_warp_sync(0)),
    ("more places than", lambda near, far, away: prims.print_runtime("{} {}", 1)),
    ("with is_exclusive=True", lambda near, far, away: prims.tcgen05_alloc(near, 32, is_exclusive=True)),
    ("with is_exclusive=True", lambda near, far, away: prims.tcgen05_dealloc(0, 32, is_exclusive=True)),
    ("with smem_a_read=True", lambda near, far, away: prims.tcgen05_commit(near, smem_a_read=True)),
    (
        "b_collector_op .*'keep'",
        lambda near, far, away: prims.tcgen05_mma(
            "f16", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, True, b_collector_op="keep"
        ),
    ),
    (
        "with a_shift=True",
        lambda near, far, away: prims.tcgen05_mma_block_scale(
            "mxf4", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, True, 0, 0, a_shift=True
        ),
    ),
    ("with sparse_format=1", lambda near, far, away: prims.Tcgen05InstrDesc.build(n_dim=8, m_dim=64, sparse_format=1)),
    ("with a_sf_layout=1", lambda near, far, away: prims.Tcgen05MxInstrDesc.build(n_dim=8, m_dim=128, a_sf_layout=1)),
    ("with sparse_flag=1", lambda near, far, away: prims.Tcgen05MxOmmaInstrDesc.build(n_dim=8, m_dim=128, sparse_flag=1)),
    ("with leading_dim_mode=1", lambda near, far, away: prims.Tcgen05SmemDesc.build(near, 16, 32, leading_dim_mode=1)),
    ("base_offset of an operand is 8", lambda near, far, away: prims.Tcgen05SmemDesc.build(near, 16, 32, base_offset=8)),
    (
        "with keep_oob_fetch_window=True",
        lambda near, far, away: prims.tensormap_replace("rank", far, new_value=1, keep_oob_fetch_window=True),
    ),
    ("space is 'local'", lambda near, far, away: prims.prefetch_tensormap(far, space="local")),
    ("fills 12 bytes", lambda near, far, away: prims.st_bulk(near, 12)),
    ("in shared memory", lambda near, far, away: prims.st_bulk(far, 16)),
    ("init_val=1", lambda near, far, away: prims.st_bulk(near, 16, init_val=1)),
    ("of a generic address", lambda near, far, away: prims.st_bulk(away, 16)),
    ("addrspace of mapa", lambda near, far, away: prims.mapa(near, 0, addrspace=3)),
    (
        "in mode tile has 1 im2col_offsets",
        lambda near, far, away: prims.cp_async_bulk_tensor_shared_cta_global(near, far, (0,), near, [1], mode="tile"),
    ),
    (
        "in mode im2col has 0 im2col_offsets",
        lambda near, far, away: prims.cp_async_bulk_tensor_shared_cta_global(near, far, (0,), near, mode="im2col"),
    ),
    ("Float64 to Int32", lambda near, far, away: prims.mov_b32(kiln.Float64(1.0))),
    ("mode is 'rc4'", lambda near, far, away: prims.prmt(1, 2, "rc4")),
    ("convert_type", lambda near, far, away: prims.convert_and_pack_integer(1, 2, kiln.Int8.mlir_type)),
    ("the layout of an operand is 3", lambda near, far, away: prims.Tcgen05SmemDesc.build(near, layout=3)),
    (
        "collector_op is 'keep'",
        lambda near, far, away: prims.tcgen05_mma(
            "f16", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, True, collector_op="keep"
        ),
    ),
    (
        "scale_vec_size is 'block8'",
        lambda near, far, away: prims.tcgen05_mma_block_scale(
            "mxf4", "cta_1", 0, kiln.Int64(0), kiln.Int64(0), 0, True, 0, 0, scale_vec_size="block8"
        ),
    ),
    ("m_dim=100", lambda near, far, away: prims.Tcgen05InstrDesc.build(n_dim=8, m_dim=100)),
    ("a type of tcgen05.mma", lambda near, far, away: prims.Tcgen05InstrDesc.build(a_dtype=kiln.Float64, n_dim=8, m_dim=64)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISUSE)))
def test_misuse_by_memory_kind_and_number(number):
    match, body = MISUSE[number]

    @cute.kernel
    def kernel(x: cute.Tensor):
        near = kiln.Array(kiln.Int64, 16, space=kiln.AddressSpace.smem, alignment=128)
        far = kiln.inttoptr(kiln.Int64(1 << 20), kiln.AddressSpace.gmem, kiln.Int32)
        body(near, far, prims.mapa(near, 0))

    with pytest.raises(DSLBaseError, match=match):
        run(kernel, np.zeros(32, np.int32))


OUTSIDE = {
    "bar_warp_sync": (), "elect_sync": (), "barrier_cluster_arrive": (), "barrier_cluster_arrive_relaxed": (),
    "barrier_cluster_wait": (), "cluster_ctarank": (), "exit": (), "fence_mbarrier_init": (),
    "fence_sync_restrict": ("acquire",), "cp_async_commit_group": (), "cp_async_bulk_commit_group": (), "mov_b32": (1,),
    "prmt": (1, 2, prims.PermuteMode.RC8), "convert_and_pack_integer": (1, 2, kiln.Int16.mlir_type),
    "atomicrmw": (prims.AtomicOp.ADD, None, 1), "print_runtime": ("{}", 1), "ptx_add_comment": ("",),
    **dict.fromkeys(("add_packed_f32x2", "sub_packed_f32x2", "mul_packed_f32x2"), ((1.0, 2.0), (1.0, 2.0))),
    "fma_packed_f32x2": ((1.0, 2.0), (1.0, 2.0), (1.0, 2.0)), "mul_bf16x2": (1, 2), "inline_ptx": ("exit;",),
    **dict.fromkeys(
        ("barrier_cluster_arrive_aligned", "barrier_cluster_arrive_relaxed_aligned", "barrier_cluster_wait_aligned",
         "fence_proxy_async_acquire_sync_restrict", "fence_proxy_async_release_sync_restrict", "fence_sc_cluster",
         "wgmma_commit_group_sync_aligned", "wgmma_fence_aligned"), ()
    ),
    "nanosleep": (1,), "fabs": (None,), "fmin": (1.0, 2.0), "fmax": (1.0, 2.0),
    "cvt_packfloat_f32": (1.0, 2.0, 0, "f16x2"), "match_sync": (1, 1, "any"),
}  # fmt: skip
"""Primitives whose operands cannot be wrong, and what they are called with in host code, where they do not exist."""
IN_HOST_CODE = {"print_runtime"}


@pytest.mark.parametrize("name", [name for name in OUTSIDE if name not in IN_HOST_CODE])
def test_primitives_are_refused_outside_kernels(name):
    with pytest.raises((DSLBaseError, TypeError, RuntimeError)):
        getattr(prims, name)(*OUTSIDE[name])


def test_every_primitive_has_a_right_and_a_wrong_test():
    """A primitive is called somewhere in these tests, and in one that expects an error."""
    here = Path(__file__).parent
    files = [*here.rglob("test_*.py"), here.parent / "helpers" / "random_tasks.py"]
    right_text = "\n".join(file.read_text() for file in files)
    wrong_text = "\n".join(re.findall(r"refused\(.*|lambda (?:x, )?near.*(?:\n.*)?", right_text))
    for piece in wrong_text.split("\n"):
        right_text = right_text.replace(piece, "")
    names = [name for found in prims._UNITS.values() for name in found.split() if name[0].islower()]
    called = lambda name, where: re.search(rf"prims\.{name}\(", where)
    assert [name for name in names if not called(name, right_text)] == []
    assert [name for name in names if not called(name, wrong_text) and name not in OUTSIDE] == []


@needs_ptxas
def test_the_ptx_of_primitives_assembles():
    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor, states: cute.Tensor, f: cute.Tensor):
        of_copies_and_mbarriers(x, out, states).launch(grid=1, block=32)
        of_warps_and_barriers(x, cute.make_tensor(out.iterator, cute.make_layout((4, 32), stride=(32, 1))), f).launch(
            grid=1, block=64
        )

    kinds = (np.int32, 32), (np.int32, 128), (np.int32, 32), (np.float16, 1)
    arrays = [np.zeros(n, kind) for kind, n in kinds]
    arguments = [from_dlpack(a, assumed_align=a.itemsize) for a in arrays]
    compiled = compile_for(main, *arguments, options="--keep-ptx")
    ptx = compiled.__ptx__ if hasattr(compiled, "__ptx__") else ""
    for line in (
        "barrier.cta.sync", "barrier.cta.red.popc.u32", "mbarrier.arrive.shared::cta.b64", "stmatrix.sync.aligned",
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", "mbarrier.test_wait.parity.acquire.cluster",
        "mbarrier.try_wait.acquire.cluster", "cp.async.mbarrier.arrive.noinc", "elect.sync",
        "red.relaxed.gpu.add.noftz.f16", "fence.mbarrier_init.release.cluster", "bar.warp.sync",
    ):  # fmt: skip
        assert line in ptx, line


def test_exited_threads_are_not_counted():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tx = arch.thread_idx()[0]
        if arch.warp_idx() == 1:
            out[tx] = 5
            prims.exit()
        out[tx] = out[tx] + 1
        prims.barrier_cta_sync(0)
        out[tx] = out[tx] + 1

    out = np.zeros(96, np.int32)
    run(kernel, out, threads=96)
    np.testing.assert_array_equal(out.reshape(3, 32), np.array([[2], [5], [2]]) + np.zeros((3, 32)))


def test_groups_of_copies_registers_and_printing(capfd):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tx = arch.thread_idx()[0]
        near = kiln.Array(kiln.Int32, 128, space=kiln.AddressSpace.smem, alignment=16)
        prims.setmaxregister(40, prims.SetMaxRegisterAction.DECREASE)
        prims.cp_async_shared_global(near.subview(tx), x.iterator + tx, 4, prims.CpAsyncModifier.CA, cp_size=4)
        prims.cp_async_commit_group()
        prims.cp_async_wait_group(0)
        prims.barrier(barrier_id=1, number_of_threads=128)
        out[tx] = near[(tx + 1) % 128]
        prims.fence_sync_restrict("acquire")
        if tx == 3:
            prims.print_runtime("{} and {}", tx, out[tx])

    x, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    run(kernel, x, out, threads=128)
    np.testing.assert_array_equal(out, np.roll(x, -1))
    assert "3 and 4" in capfd.readouterr().out


def test_boxes_for_all_ctas_and_back():
    """One CTA of a cluster loads a box for both, and both store it, shifted by a row."""

    @cute.kernel
    def kernel(source: kiln.GridConstant[cuda.TensorMap], target: kiln.GridConstant[cuda.TensorMap]):
        rank = prims.cluster_ctarank()
        tile = kiln.Array(kiln.Int32, (4, 32), space=kiln.AddressSpace.smem, alignment=128)
        bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
        if prims.elect_sync():
            prims.mbarrier_init(bar, 1)
            prims.mbarrier_arrive_expect_tx(bar, source.global_tx_bytes())
        prims.fence_mbarrier_init()
        prims.barrier_cluster_arrive()
        prims.barrier_cluster_wait()
        if rank == 0:
            if prims.elect_sync():
                prims.cp_async_bulk_tensor_shared_cluster_global(tile, source, (0, 0), bar, [], multicast_mask=3)
        while not prims.mbarrier_try_wait_parity(bar, 0):
            pass
        if prims.elect_sync():
            prims.cp_async_bulk_tensor_global_shared_cta(target, tile, (0, 4 * rank + 1))
        prims.cp_async_bulk_commit_group()
        prims.cp_async_bulk_wait_group(0)
        prims.barrier_cluster_arrive()
        prims.barrier_cluster_wait()

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor):
        maps = [cuda.create_tensor_map_tiled_from_view(t, (4, 32), stride_order=(1, 0)) for t in (x, out)]
        kernel(*maps).launch(grid=2, block=32, cluster=(2, 1, 1))

    memory = np.zeros((2, 9 * 32 + 32), np.int32)
    x, out = (m[-m.ctypes.data % 128 // 4 :][: rows * 32].reshape(rows, 32) for m, rows in zip(memory, (4, 9)))
    x[:] = np.arange(128).reshape(4, 32)
    with kiln.sanitize():
        main(from_dlpack(x, assumed_align=128), from_dlpack(out, assumed_align=128))
    np.testing.assert_array_equal(out, np.concatenate([np.zeros((1, 32), np.int32), x, x]))
