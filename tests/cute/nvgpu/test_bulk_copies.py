# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Bulk copies as copy atoms: there and back through shared memory."""

from __future__ import annotations

import numpy as np
import pytest

import kiln.cute as cute
from kiln import Float16, Float32, Int64
from kiln.base_dsl.diagnostics import DSLUserCodeError, DSLUserCodeTypeError
from kiln.cute.nvgpu import cpasync
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
