# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Tensor-core operations on a GPU, against the CPU target's definition of the same operations."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import launcher
from mma_cases import CASES, a_places, b_places, c_places, mma_kernel, random_matrix, spread

import kiln.cute as cute
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("a_kind", "b_kind", "k", "d_kind"), CASES)
def test_mma(a_kind, b_kind, k, d_kind):
    kernel, m = mma_kernel(a_kind, b_kind, k, d_kind)
    rng = np.random.default_rng(k)
    register = None if a_kind == "f64" else np.int32
    arrays = [
        spread(random_matrix(a_kind, (1, m, k), rng), lambda lane: a_places(a_kind, k, lane), 1, register),
        spread(random_matrix(b_kind, (1, k, 8), rng), lambda lane: b_places(b_kind, k, lane), 1, register),
        spread(random_matrix(d_kind, (1, m, 8), rng), lambda lane: c_places(a_kind, lane), 1, None),
    ]
    arrays.append(np.zeros_like(arrays[2]))
    results = []
    for target, device in (("cpu", "cpu"), ("nvidia", "cuda")):
        tensors = [torch.from_numpy(array.copy()).to(device) for array in arrays]
        arguments = [from_dlpack(tensor) for tensor in tensors]
        cute.compile(launcher(kernel, 4, grid=1, block=32), *arguments, target=target)(*arguments)
        results.append(tensors[3].cpu().double().numpy())
    if d_kind in ("i32", "f64"):
        np.testing.assert_array_equal(*results)
    else:  # the hardware adds in another order, and not all of it in f32
        tolerance = 2e-3 if d_kind == "f16" or a_kind in ("e4m3", "e5m2") else 1e-5
        np.testing.assert_allclose(*results, rtol=tolerance, atol=tolerance * np.abs(results[0]).max())


@pytest.mark.parametrize("rows", [True, False])
def test_bulk_copies(rows):
    from kiln import Int64
    from kiln.cute.nvgpu import cpasync
    from kiln.cute.runtime import from_dlpack

    arch = cute.arch

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, _, _ = arch.thread_idx()
        barrier = arch.alloc_smem(Int64, 1, 8)
        layout = cute.make_layout((64, 4), stride=(1, 64))
        shared = cute.make_tensor(arch.alloc_smem(x.element_type, 256, 128), layout)
        bits = 64 * 32 if rows else 0
        load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), x.element_type, num_bits_per_copy=bits)
        store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), x.element_type, num_bits_per_copy=bits)
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
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

    x = torch.arange(256, dtype=torch.float32, device="cuda").reshape(4, 64)
    y = torch.zeros_like(x)
    launch(*(from_dlpack(t.T, assumed_align=16) for t in (x, y)))
    x[0, :32] += 1
    assert torch.equal(x, y)
