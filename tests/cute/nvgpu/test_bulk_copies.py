# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Bulk copies as copy atoms: there and back through shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from bulk_kernels import SENDERS, launcher, multicaster, reducer, sender

import kiln
import kiln.cute as cute
from kiln import BFloat16, Float16, Float32, Float64, Int32, Int64, Uint32, Uint64
from kiln.base_dsl.diagnostics import DSLUserCodeError, DSLUserCodeTypeError
from kiln.cute.nvgpu import cpasync
from kiln.dialects.nvgpu import async_copy
from kiln.targets.nvidia import codegen

arch = cute.arch


def mover(bits, columns=64):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, _, _ = arch.thread_idx()
        barrier = arch.alloc_smem(Int64, 1, 8)
        layout = cute.make_layout((columns, 4), stride=(1, columns))
        shared = cute.make_tensor(arch.alloc_smem(x.element_type, columns * 4, 128), layout)
        load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), x.element_type, num_bits_per_copy=bits)
        store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), x.element_type, num_bits_per_copy=bits)
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(barrier, columns * 4 * x.element_type.width // 8)
            cute.copy(load, x, shared, mbar_ptr=barrier)
        arch.mbarrier_wait(barrier, 0)
        shared[t, 0] = shared[t, 0] + x.element_type(1)
        arch.fence_proxy("async", space="cta")
        arch.sync_threads()
        if t == 0:
            cute.copy(store, shared, y)
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=1, block=32)

    return launch


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [True, False])
def test_there_and_back(dtype, rows):
    x = np.arange(256).astype(dtype).reshape(4, 64).T
    y = np.zeros((4, 64), dtype).T
    arguments = [cute.runtime.from_dlpack(array, assumed_align=16) for array in (x, y)]
    bits = 64 * np.dtype(dtype).itemsize * 8 if rows else 0
    cute.compile(mover(bits), *arguments, target="cpu")(*arguments)
    wanted = x.copy()
    wanted[:32, 0] += 1
    assert np.array_equal(y, wanted)


@pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")
def test_instructions():
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (64, 4), assumed_align=16) for _ in range(2)]
    ptx = cute.compile(mover(64 * 32), *tensors, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert ptx.count("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") == 4
    assert ptx.count("cp.async.bulk.global.shared::cta.bulk_group") == 4
    with pytest.raises(DSLUserCodeError, match="needs sm_90 or newer, and this is compiled for sm_80"):
        cute.compile(mover(64 * 32), *tensors, target="nvidia", options="--gpu-arch sm_80")


def aligned(shape, dtype=np.float32):
    """Zeros at an address that bulk copies can take."""
    memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 16, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + memory.size - 16].view(dtype).reshape(shape)


def run(kernel, *arrays, blocks=1):
    """Run a kernel of a cluster on the CPU target, under the sanitizer."""
    with kiln.target("cpu"), kiln.sanitize():
        launcher(kernel, blocks)(*(cute.runtime.from_dlpack(a, assumed_align=16) for a in arrays))


def compiled(kernel, dtype, shape):
    """The PTX of a kernel, which ptxas takes."""
    tensors = [cute.runtime.make_fake_compact_tensor(dtype, shape, assumed_align=16) for _ in range(2)]
    return cute.compile(launcher(kernel, 2), *tensors, target="nvidia", options="--gpu-arch sm_90a").__ptx__


def test_a_row_goes_to_several_blocks():
    x, y = aligned((2, 32)).T, aligned((2, 32)).T
    x[:] = np.arange(64).reshape(32, 2)
    run(multicaster(cute.nvgpu.CacheEvictionPriority.EVICT_FIRST), x, y, blocks=2)
    np.testing.assert_array_equal(y, np.stack([x.sum(axis=1)[::-1]] * 2, axis=1))


@pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")
def test_instructions_with_hints():
    ptx = compiled(multicaster(cute.nvgpu.CacheEvictionPriority.EVICT_FIRST), Float32, (32, 2))
    assert "complete_tx::bytes.multicast::cluster.L2::cache_hint" in ptx
    assert "createpolicy.fractional.L2::evict_first.b64" in ptx
    assert "cp.async.bulk.prefetch.L2.global" in ptx
    assert "multicast::cluster [" in compiled(multicaster(None), Float32, (32, 2))


@pytest.mark.parametrize(("copy_op", "dtype", "instruction"), SENDERS)
def test_another_block_gets_what_is_sent(copy_op, dtype, instruction):
    numbers = {Float32: np.float32, Float16: np.float16, Int32: np.int32}[dtype]
    x, y = aligned((2, 32), numbers).T, aligned((2, 32), numbers).T
    x[:] = np.arange(64).reshape(32, 2)
    run(sender(copy_op, dtype), x, y, blocks=2)
    np.testing.assert_array_equal(y, x[:, ::-1] + (100 if "Reduce" in type(copy_op).__name__ else 0))
    if codegen.ptxas_version() is not None:
        assert instruction in compiled(sender(copy_op, dtype), dtype, (32, 2))


def test_rows_are_combined_in_global_memory():
    for kind, wanted in ((cpasync.ReductionOp.ADD, 100), (cpasync.ReductionOp.MAX, 2)):
        x, y = aligned((4, 32), np.float16).T, aligned((4, 32), np.float16).T
        x[:], y[:] = np.arange(128).reshape(32, 4), 2
        run(reducer(kind), x, y, blocks=4)
        total = x.sum(axis=1) + 2 if wanted == 100 else np.maximum(x.max(axis=1), 2)
        np.testing.assert_array_equal(y[:, 0], total)


@pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")
@pytest.mark.parametrize("how", async_copy.BULK_REDUCTIONS)
def test_reductions_are_instructions(how):
    kinds = {
        "u32": Uint32, "s32": Int32, "u64": Uint64, "s64": Int64, "f16": Float16, "bf16": BFloat16, "f32": Float32, "f64": Float64
    }  # fmt: skip
    for element in {*async_copy.BULK_REDUCTIONS[how][::3]}:
        priority = cute.nvgpu.CacheEvictionPriority.EVICT_LAST if element == "u32" else None
        ptx = compiled(reducer(cpasync.ReductionOp[how.upper()], priority), kinds[element], (32, 2))
        assert f"cp.reduce.async.bulk.global.shared::cta.bulk_group{'.L2::cache_hint' if priority else ''}.{how}" in ptx


def refused(dtype, shape, stride, body, words):
    @cute.kernel
    def kernel(x: cute.Tensor):
        body(x, cute.make_tensor(arch.alloc_smem(dtype, 1024, 128), cute.make_layout(shape, stride=stride)))

    @cute.jit
    def launch(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    x = cute.runtime.make_fake_compact_tensor(dtype, shape, assumed_align=16)
    with pytest.raises(DSLUserCodeTypeError, match=words):
        cute.compile(launch, x, target="cpu")


def test_what_is_refused():
    def load(bits=0, **more):
        def body(x, shared):
            atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), x.element_type, num_bits_per_copy=bits)
            cute.copy(atom, x, shared, **more)

        return body

    def with_barrier(x, shared):
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), x.element_type)
        cute.copy(atom, x, shared, mbar_ptr=arch.alloc_smem(Int64, 1))

    refused(Float32, (8, 2), (1, 8), load(), "needs an mbarrier")
    refused(Float32, (8, 2), (1, 16), with_barrier, "lie in a row in the destination")
    refused(Float16, (4,), (1,), with_barrier, "a bulk copy of 8 bytes: it takes multiples of 16")
    refused(Float32, (8,), (1,), load(96), "num_bits_per_copy=96")

    def without_mask(x, shared):
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SMulticastOp(), x.element_type)
        cute.copy(atom, x, shared, mbar_ptr=arch.alloc_smem(Int64, 1))

    def reduce(kind):
        return lambda x, shared: cute.make_copy_atom(cpasync.CopyReduceBulkS2GOp(kind), x.element_type)

    def policy(x, shared):
        atom = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), x.element_type)
        cute.copy(atom, shared, x, cache_policy="first")

    refused(Float32, (8,), (1,), without_mask, "needs an mcast_mask")
    refused(Float32, (8,), (1,), reduce(cpasync.ReductionOp.MAX), "a bulk reduction by max of Float32")
    refused(Float32, (8,), (1,), reduce("mul"), "reduction_kind is .mul.")
    refused(Float32, (8,), (1,), policy, "cache_policy is 'first'")
    refused(Float16, (8,), (1,), lambda x, _: cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), x.element_type, num_bits_per_copy=16),
            "takes 32, 64 or 128 bits")  # fmt: skip
