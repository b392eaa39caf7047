"""Primitives of clusters, mbarriers, fences, warp and tcgen05 MMAs that libraries call."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import arch
from kiln.experimental import primitives as prims
from kiln.mlir import context, ir


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def quad():
    return ir.Type.parse("!llvm.struct<(f32, f32, f32, f32)>", context())


@cute.kernel
def of_words(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, numbers: cute.Tensor):
    lane = arch.thread_idx()[0]
    row, column = lane // 4, lane % 4
    words = [a[row, column], a[row + 8, column], a[row, column + 4], a[row + 8, column + 4]]
    result = prims.mma_sync(
        quad(),
        shape=(16, 8, 16),
        layout_a=prims.MMALayout.ROW,
        layout_b=prims.MMALayout.COL,
        operand_a=[word.ir_value() for word in words],
        operand_b=[b[row, column].ir_value(), b[row, column + 4].ir_value()],
        operand_c=[cute.Float32(n).ir_value() for n in range(4)],
        multiplicand_a_ptx_type=prims.MMAType.BF16,
        multiplicand_b_ptx_type=prims.MMAType.BF16,
    )
    for n in kiln.range_constexpr(4):
        at = {"position": ir.DenseI64ArrayAttr.get([n])}
        value = kiln.base_dsl.trace.emit_value("llvm.extractvalue", cute.Float32.mlir_type, (result,), at)
        out[row + n // 2 * 8, 2 * column + n % 2] = cute.Float32._make(value)
    barrier = kiln.Array(cute.Int64, 1, space=kiln.AddressSpace.smem)
    if lane == 0:
        prims.mbarrier_init(barrier, 33)
        prims.mbarrier_expect_tx(barrier, 64)
    prims.barrier_cta_sync(0)
    state = prims.mbarrier_arrive_nocomplete(barrier, 1)
    early = prims.mbarrier_test_wait(barrier, state)
    prims.bar_warp_sync()
    if lane == 0:
        prims.mbarrier_complete_tx(barrier, cute.Int32(64))
        prims.mbarrier_arrive(barrier)
    prims.mbarrier_wait(barrier, 0)
    while not prims.mbarrier_try_wait(barrier, state):
        pass
    prims.fence_acq_rel(prims.MemScope.GPU)
    prims.memory_barrier(prims.MemScope.CTA)
    prims.nanosleep(1)
    if lane == 0:
        numbers[0] = prims.fabs(-2.5) + prims.fmin(1.0, 2.0) + prims.fmax(1.0, 2.0)
        numbers[1] = cute.Float32(early)
        numbers[2] = prims.mov_b32(arch.cvt_f32_tf32(1.0 + 2.0**-11), target_type=cute.Float32)
        numbers[3] = prims.mov_b32(arch.cvt_f32_tf32(1.0 + 2.0**-11, rnd="rn"), target_type=cute.Float32)


@cute.jit
def words(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, numbers: cute.Tensor):
    of_words(a, b, out, numbers).launch(grid=1, block=32)


def operands():
    random = np.random.default_rng(5)
    a, b = (random.integers(-8, 9, (n, 16)).astype(ml_dtypes.bfloat16) for n in (16, 8))
    return a, b, a.view(np.int32), b.view(np.int32), np.zeros((16, 8), np.float32), np.zeros(4, np.float32)


def test_mmas_and_mbarriers():
    a, b, *arguments = operands()
    words(*arguments)
    _, _, out, numbers = arguments
    c = np.tile([[0, 1]], (16, 4)) + 2 * (np.arange(16)[:, None] >= 8)
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T + c)
    np.testing.assert_array_equal(numbers, [2.5 + 1 + 2, 0, 1 + 2.0**-10, 1])


@cute.kernel
def of_clusters(out: cute.Tensor):
    lane = arch.thread_idx()[0]
    rank = prims.cluster_ctarank()
    memory = kiln.Array(cute.Int32, 32, space=kiln.AddressSpace.smem)
    memory[lane] = 100 * rank + lane
    prims.fence_proxy_async_release_sync_restrict()
    prims.barrier_cluster_arrive_aligned()
    prims.barrier_cluster_wait_aligned()
    prims.fence_proxy_async_acquire_sync_restrict()
    prims.fence_sc_cluster()
    there = prims.cvta_to(prims.mapa(memory, rank ^ 1), prims.CvtaSpace.SHARED)
    out[rank, lane] = there[lane]
    if arch.warp_idx() == 0:
        prims.barrier_cta_arrive_aligned(1, 32)
    prims.barrier_cluster_arrive_relaxed_aligned()
    prims.barrier_cluster_wait_aligned()


@cute.jit
def clusters(out: cute.Tensor):
    of_clusters(out).launch(grid=2, block=32, cluster=(2, 1, 1))


def test_clusters():
    out = np.zeros((2, 32), np.int32)
    clusters(out)
    np.testing.assert_array_equal(out, np.arange(32) + np.array([[100], [0]]))


@cute.kernel
def of_tensor_memory(out: cute.Tensor):
    lane = arch.thread_idx()[0]
    holder = kiln.Array(cute.Int32, 1, space=kiln.AddressSpace.smem)
    prims.tcgen05_alloc(holder, 32)
    prims.tcgen05_relinquish_alloc_permit()
    prims.barrier_cta_sync_aligned(0)
    tmem = prims.make_tmem_ptr(holder[0], cute.Float32)
    row = [cute.Float32(n * 3 % 8 - 4) * (lane + 1) for n in range(8)]
    prims.tcgen05_st(prims.Tcgen05LdStShape.SHAPE_32X32B, tmem, cute.TensorSSA.from_elements(row, cute.Float32))
    prims.tcgen05_wait(prims.Tcgen05Wait.STORE)
    loaded, most = prims.tcgen05_ld_red(prims.Tcgen05LdStShape.SHAPE_32X32B, tmem, prims.ReductionKind.MAX, num=8)
    prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
    out[lane, 0] = prims.mov_b32(most, target_type=cute.Float32)
    out[lane, 1] = prims.mov_b32(loaded[1], target_type=cute.Float32)
    prims.barrier_cta_sync_aligned(0)
    prims.tcgen05_dealloc(holder[0], 32)


@cute.jit
def tensor_memory(out: cute.Tensor):
    of_tensor_memory(out).launch(grid=1, block=32)


def test_loads_of_tensor_memory_that_reduce():
    out = np.zeros((32, 2), np.float32)
    with kiln.target("cpu"):
        cute.compile(tensor_memory, out, options="--gpu-arch sm_103a")(out)
    lanes = np.arange(1, 33)
    np.testing.assert_array_equal(out, np.stack([3 * lanes, -lanes], 1))


@cute.kernel
def of_asynchronous_units(out: cute.Tensor):
    barrier = kiln.Array(cute.Int64, 1, space=kiln.AddressSpace.smem)
    response = kiln.Array(cute.Int32, 4, space=kiln.AddressSpace.smem, alignment=16)
    tmem = prims.make_tmem_ptr(0, cute.Float32)
    descriptor = prims.Tcgen05SmemDesc.build(barrier.data_ptr())
    idesc = prims.Tcgen05InstrDesc.build(
        a_dtype=cute.BFloat16, b_dtype=cute.BFloat16, c_dtype=cute.Float32, m_dim=64, n_dim=128
    )
    if prims.elect_sync():
        prims.tcgen05_mma_ws(prims.Tcgen05MMAKind.F16, tmem, descriptor, descriptor, idesc, True, col_b_zero_mask=None)
        how = {
            "collector_b_buffer": prims.Tcgen05MMACollectorBBuffer.B1,
            "collector_op": prims.Tcgen05MMACollectorOp.FILL,
        }
        prims.tcgen05_mma_ws("f16", tmem, descriptor, descriptor, idesc, True, **how)
        prims.tcgen05_shift(tmem, group=prims.CTAGroup.CTA_1)
        prims.clusterlaunchcontrol_try_cancel(response, barrier)
    query = prims.ClusterLaunchControlQueryType
    canceled = prims.clusterlaunchcontrol_query_cancel(query.IS_CANCELED, response)
    out[0] = prims.clusterlaunchcontrol_query_cancel(query.GET_FIRST_CTA_ID_Y, response) + cute.Int32(canceled)


@cute.jit
def asynchronous_units(out: cute.Tensor):
    of_asynchronous_units(out).launch(grid=1, block=32)


@cute.kernel
def of_groups():
    prims.wgmma_fence_aligned()
    prims.wgmma_commit_group_sync_aligned()
    prims.wgmma_wait_group_sync_aligned(0)


@cute.jit
def groups():
    of_groups().launch(grid=1, block=128)


@needs_ptxas
def test_gpus_have_them():
    text = compile_for(asynchronous_units, np.zeros(1, np.int32), arch="sm_100a").__ptx__
    for part in ("tcgen05.mma.ws", "collector::b1::fill", "tcgen05.shift", "clusterlaunchcontrol.try_cancel"):
        assert part in text
    assert "tcgen05.ld.red" in compile_for(tensor_memory, np.zeros((32, 2), np.float32), arch="sm_103a").__ptx__
    text = compile_for(clusters, np.zeros((2, 32), np.int32)).__ptx__
    for part in ("arrive.relaxed.aligned", "wait.acquire.aligned", "sync_restrict"):
        assert part in text
    assert "wgmma.wait_group.sync.aligned" in compile_for(groups).__ptx__
    text = compile_for(words, *operands()[2:]).__ptx__
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    assert "mbarrier.complete_tx" in text


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("needs a thread_count", lambda x, near: prims.barrier_cta_arrive_aligned(1, None)),
        ("scope is 'warp'", lambda x, near: prims.fence_acq_rel("warp")),
        ("scope is 'warp'", lambda x, near: prims.memory_barrier("warp")),
        ("takes a Pointer", lambda x, near: prims.mbarrier_complete_tx(3, 4)),
        ("takes a Pointer", lambda x, near: prims.mbarrier_arrive_nocomplete(3, 4)),
        ("takes a Pointer", lambda x, near: prims.mbarrier_wait(3, 0)),
        ("takes a Pointer", lambda x, near: prims.mbarrier_test_wait(3, 0)),
        ("takes a Pointer", lambda x, near: prims.mbarrier_try_wait(3, 0)),
        ("takes a Pointer", lambda x, near: prims.clusterlaunchcontrol_try_cancel(near, 3)),
        ("query_type is 'w'", lambda x, near: prims.clusterlaunchcontrol_query_cancel("w", near)),
        ("cvta_to.. GLOBAL of an address in smem", lambda x, near: prims.cvta_to(near, "global")),
        ("space is", lambda x, near: prims.cvta_to(near, prims.CvtaSpace.LOCAL)),
        ("of Int64", lambda x, near: prims.tcgen05_ld_red("32x32b", prims.make_tmem_ptr(0, cute.Int64), "max")),
        ("op is 'add'", lambda x, near: prims.tcgen05_ld_red("32x32b", prims.make_tmem_ptr(0, cute.Int32), "add")),
        ("mma_kind is 'mxf4'", lambda x, near: prims.tcgen05_mma_ws("mxf4", 0, cute.Int64(0), cute.Int64(0), 0, True)),
        ("group is", lambda x, near: prims.tcgen05_shift(prims.make_tmem_ptr(0, cute.Int32), group="cta_3")),
        ("row-major A", lambda x, near: prims.mma_sync(None, shape=(16, 8, 16), layout_a="col", layout_b="col",
            operand_a=(), operand_b=(), operand_c=(), multiplicand_a_ptx_type="f16", multiplicand_b_ptx_type="f16")),
        ("leaves 9 groups", lambda x, near: prims.wgmma_wait_group_sync_aligned(9)),
        ("rounded by 'rm'", lambda x, near: arch.cvt_f32_tf32(1.0, rnd="rm")),
    ],
)  # fmt: skip
def test_what_they_do_not_take_is_refused(match, call):
    @cute.kernel
    def kernel(x: cute.Tensor):
        call(kiln.make_array_view(x), kiln.Array(kiln.Int64, 4, space=kiln.AddressSpace.smem))

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=1)

    with pytest.raises(DSLBaseError, match=match):
        main(np.zeros(32, np.int32))
