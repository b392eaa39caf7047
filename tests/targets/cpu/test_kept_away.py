"""Accesses out of bounds in builds that check or count: memory that is not the program's stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, run

import kiln
from kiln import Float32, Int32, cute
from kiln.base_dsl.diagnostics import DSLWarning
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.dialects import nvgpu
from kiln.mlir import ir


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("KILN_CHECKS", "first")
    with kiln.target("cpu"):
        yield


@cute.kernel
def stored(x: cute.Tensor):
    t = arch.thread_idx()[0]
    x[t] = 1.0


@cute.kernel
def updated(x: cute.Tensor):
    t = arch.thread_idx()[0]
    arch.atomic_add(x.iterator + t, Float32(1.0))


@cute.kernel
def sent(x: cute.Tensor):
    """Each thread sends 4 elements at once."""
    t = arch.thread_idx()[0]
    shared = cute.make_tensor(arch.alloc_smem(Float32, 128, 128), cute.make_layout(128))
    for i in range(4):
        shared[4 * t + i] = 1.0
    arch.fence_view_async_shared()
    arch.sync_threads()
    if t == 0:
        whole = cute.make_tensor(x.iterator, cute.make_layout(128))
        cute.copy(cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32), shared, whole)
        arch.cp_async_bulk_commit_group()
        arch.cp_async_bulk_wait_group(0)


@cute.kernel
def written_in_ptx(x: cute.Tensor):
    t = arch.thread_idx()[0]
    address = (x.iterator + t).toint()
    asm(None, [address.ir_value(), Float32(1.0).ir_value()], "st.volatile.global.f32 [$0], $1;", "l,f")


COUNTING = {
    "checks": lambda: None,
    "bank_conflicts": lambda: kiln.bank_conflicts(),
    "coalescing": lambda: kiln.coalescing(),
}


@pytest.mark.parametrize("build", COUNTING)
@pytest.mark.parametrize("kernel", [stored, updated, sent, written_in_ptx], ids=lambda kernel: kernel.__name__)
def test_writes_out_of_bounds_are_left_out(kernel, build):
    memory = np.zeros(256, np.float32)
    inside = memory[:16]  # the program has these; what is behind them is the rest of the process
    session = COUNTING[build]()
    with pytest.warns(DSLWarning, match=r"whose memory has 16 of f32"):
        if session is None:
            run(kernel, inside)
        else:
            with session:
                run(kernel, inside)
    assert (memory[16:] == 0).all()
    assert (inside == (0 if kernel is sent else 1)).all()


@pytest.mark.parametrize("build", COUNTING)
def test_reads_out_of_bounds_give_zeros(build):
    """They do so also after a write out of bounds."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        x[16 + t] = 5.0
        out[t] = x[16 + t]

    memory, out = np.full(64, 7, np.float32), np.ones(32, np.float32)
    session = COUNTING[build]()
    with pytest.warns(DSLWarning, match="whose memory has 16 of f32"):
        if session is None:
            run(kernel, memory[:16], out)
        else:
            with session:
                run(kernel, memory[:16], out)
    assert (memory == 7).all()
    assert (out == 0).all()


def test_matrices_out_of_bounds_are_left_out():
    """The rows of an `stmatrix` behind an allocation are not written to the next one."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        rows = cute.make_tensor(arch.alloc_smem(Int32, 16, 128), cute.make_layout(16))  # 4 of the 8 rows of a matrix
        behind = cute.make_tensor(arch.alloc_smem(Int32, 16, 128), cute.make_layout(16))
        if t < 16:
            rows[t] = 9
            behind[t] = 7
        arch.sync_threads()
        nines = (rows.iterator + 4 * (t % 4)).ir_value()
        value = nvgpu.mma.ldmatrix(nines, ir.VectorType.get([1], Int32.mlir_type), count=1)
        nvgpu.mma.stmatrix((rows.iterator + 4 * (t % 8)).ir_value(), value, count=1)
        arch.sync_threads()
        if t < 16:
            out[t] = behind[t]
            out[16 + t] = rows[t]

    out = np.zeros(32, np.int32)
    with pytest.warns(DSLWarning, match="writes element 64 of rows"):
        run(kernel, out)
    assert (out[:16] == 7).all()
    assert (out[16:] == 9).all()


def test_counting_goes_on():
    """What runs out of bounds is counted like the rest."""
    with pytest.warns(DSLWarning), kiln.coalescing() as report:
        run(stored, np.zeros(16, np.float32))
    assert [(place.accesses, place.lanes) for place in report] == [(1, 32)]
