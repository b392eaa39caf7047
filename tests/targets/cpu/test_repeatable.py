"""Runs that give the same bits every time: additions of floats by several blocks, and every program under a seed."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, launcher

import kiln
from kiln import Float32, Int32, cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.targets.cpu.runtime import parts

BLOCKS, THREADS = 512, 32


@pytest.fixture(autouse=True, params=["first", "off"])
def on_cpu(request, monkeypatch):
    monkeypatch.setenv("KILN_CHECKS", request.param)
    with kiln.target("cpu"):
        yield
    parts.set_workers()
    parts.set_seed()


@cute.kernel
def added(x: cute.Tensor, total: cute.Tensor):
    t, b = arch.thread_idx()[0], arch.block_idx()[0]
    arch.atomic_add(total.iterator, x[b * THREADS + t])


@cute.kernel
def added_after_a_barrier(x: cute.Tensor, total: cute.Tensor):
    t, b = arch.thread_idx()[0], arch.block_idx()[0]
    staged = cute.make_tensor(arch.alloc_smem(Float32, THREADS), cute.make_layout(THREADS))
    staged[t] = x[b * THREADS + t]
    arch.sync_threads()
    arch.atomic_add(total.iterator, staged[THREADS - 1 - t])


@cute.kernel
def added_in_ptx(x: cute.Tensor, total: cute.Tensor):
    t, b = arch.thread_idx()[0], arch.block_idx()[0]
    asm(None, [total.iterator.toint().ir_value(), x[b * THREADS + t].ir_value()], "red.global.add.f32 [$0], $1;", "l,f")


@cute.kernel
def added_in_bulk(x: cute.Tensor, total: cute.Tensor):
    t, b = arch.thread_idx()[0], arch.block_idx()[0]
    staged = cute.make_tensor(arch.alloc_smem(Float32, THREADS, 128), cute.make_layout(THREADS))
    staged[t] = x[b * THREADS + t]
    arch.fence_view_async_shared()
    arch.sync_threads()
    if t == 0:
        whole = cute.make_tensor(total.iterator.align(16), cute.make_layout(THREADS))
        cute.copy(cute.make_copy_atom(cpasync.CopyReduceBulkS2GOp(cute.ReductionOp.ADD), Float32), staged, whole)
        arch.cp_async_bulk_commit_group()
        arch.cp_async_bulk_wait_group(0)


def values():
    rng = np.random.default_rng(1)
    count = BLOCKS * THREADS
    return (rng.standard_normal(count) * np.exp(rng.uniform(-10, 10, count))).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "kernel", [added, added_after_a_barrier, added_in_ptx, added_in_bulk], ids=lambda k: k.__name__
)
def test_additions_by_several_blocks(kernel, seed):
    x, seen = values(), set()
    main = launcher(kernel, 2, grid=BLOCKS, block=THREADS)
    for workers in (1, 2, 4):
        parts.set_workers(workers)
        parts.set_seed(seed)
        for _ in range(8):
            total = np.zeros(THREADS, np.float32)
            main(x, total)
            seen.add(total.tobytes())
    assert len(seen) == 1


def test_a_seed_repeats_what_atomics_return():
    """Blocks take the places of their results in a list in the order in which they come."""

    @cute.kernel
    def kernel(next_: cute.Tensor, came: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        value = Float32(0.0)
        for i in range(2000):  # so long that other OS threads help
            value += cute.math.sqrt(Float32(i + t))
        if value >= 0.0:
            came[arch.atomic_add(next_.iterator, Int32(1))] = b * THREADS + t

    main = launcher(kernel, 2, grid=64, block=THREADS)
    seen = {seed: set() for seed in (0, 2, 5)}
    for seed, orders in seen.items():
        parts.set_seed(seed)
        for workers in (1, 2, 4):
            parts.set_workers(workers)
            came = np.zeros(64 * THREADS, np.int32)
            main(np.zeros(1, np.int32), came)
            assert (np.sort(came) == np.arange(64 * THREADS)).all()
            orders.add(came.tobytes())
    assert len(seen[2]) == len(seen[5]) == 1
    assert seen[2] != seen[5]


def test_a_seed_that_is_taken_back_is_gone(child):
    """Also where the next call is the first of another function, which has checks."""
    program = """
import os
from kiln import Int32, cute

@cute.kernel
def k():
    cute.printf("{}", cute.arch.block_idx()[0])

@cute.jit
def f(n: Int32):
    k().launch(grid=n, block=1)

@cute.jit
def g(n: Int32):
    k().launch(grid=n, block=1)

f(9)
os.environ["KILN_CPU_SEED"] = "2"
f(9)
del os.environ["KILN_CPU_SEED"]
g(9)
g(9)
"""
    done = child("-c", program, KILN_TARGET="cpu", KILN_CHECKS="first")
    runs = [done.stdout.split()[start : start + 9] for start in range(0, 36, 9)]
    assert runs[0] == runs[2] == runs[3] != runs[1], done.stderr
