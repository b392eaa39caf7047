"""Bugs that users of such kernels reported, in kernels of our own: each is silent on most runs of a GPU."""

from __future__ import annotations

from pathlib import Path

import mutation
import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float16, Float32, Int32, Int64, cute, pipeline, utils
from kiln.base_dsl import settings
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.dialects import nvgpu
from kiln.targets.cpu.faults import WarpFault
from kiln.targets.cpu.runtime import parts

WARP = 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """In order: which of several findings a wrong program shows depends on the schedule."""
    parts.set_seed(0)
    with kiln.target("cpu"):
        yield
    parts.set_seed(settings.get("KILN_CPU_SEED"))


# --- an epilogue that stores a tile by bulk copies, and does not wait before it uses the buffer again ------------------


@cute.jit
def bulk_store(target, source, bytes_):
    nvgpu.async_copy.bulk_store(target.ir_value(), source.ir_value(), Int32(bytes_).ir_value())


@cute.kernel
def epilogue(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float32, 64, 128)
    tile = cute.make_tensor(memory, cute.make_layout(64))
    for i in range(3):
        tile[t] = x[i * 64 + t] * 2.0
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()
        if t == 0:
            bulk_store(y.iterator + i * 64, memory, 256)
            cute.arch.cp_async_bulk_commit_group()
            if kiln.const_expr(waits):
                cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.sync_threads()


@cute.jit
def run_epilogue(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    epilogue(x, y, waits).launch(grid=1, block=64)


def aligned(count: int) -> np.ndarray:
    memory = np.zeros(count + 4, np.float32)
    return memory[(-memory.ctypes.data // 4) % 4 :][:count]


def test_a_missing_wait_for_a_store_that_reads_its_buffer() -> None:
    x, y = aligned(192), aligned(192)
    x[:] = np.arange(192)
    assert found(run_epilogue, x, y, True) == []
    assert np.array_equal(y, 2 * x)
    finding = found(run_epilogue, x, y, False)[0]
    assert (finding.kind, finding.rule, finding.tensor) == ("race", "read-write", "tile")
    assert "cp_async_bulk_wait_group" in finding.hint


# --- a pipeline whose arrival count is not the number of threads that arrive -------------------------------------------


@cute.kernel
def counted(x: cute.Tensor, y: cute.Tensor, arrivals: Constexpr):
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    ring = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout((2, WARP)), 16)
    producer, consumer = pipeline.PipelineAsync.create(
        num_stages=2,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
    ).make_participants()
    if warp == 0:
        for i in range(Int32(5)):
            handle = producer.acquire_and_advance()
            ring[handle.index, lane] = x[i, lane]
            handle.commit()
    else:
        for i in range(Int32(5)):
            handle = consumer.wait_and_advance()
            y[i, lane] = ring[handle.index, 31 - lane]
            handle.release()


@cute.jit
def run_counted(x: cute.Tensor, y: cute.Tensor, arrivals: Constexpr):
    counted(x, y, arrivals).launch(grid=1, block=2 * WARP)


@pytest.mark.parametrize(
    ("arrivals", "rule"), [(1, "deadlock"), (31, "read-write"), (33, "deadlock"), (64, "deadlock")]
)
def test_wrong_arrival_counts(arrivals: int, rule: str) -> None:
    x, y = np.arange(160, dtype=np.int32).reshape(5, 32), np.zeros((5, 32), np.int32)
    assert found(run_counted, x, y, 32) == []
    rules = {finding.rule for finding in found(run_counted, x, y, arrivals)}
    assert rule in rules


# --- bytes that an mbarrier waits for ----------------------------------------------------------------------------------


@cute.jit
def bulk_load(target, source, bytes_, mbarrier):
    nvgpu.async_copy.bulk_load(target.ir_value(), source.ir_value(), Int32(bytes_).ir_value(), mbarrier.ir_value())


@cute.kernel
def brings(x: cute.Tensor, y: cute.Tensor, bytes_: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float32, WARP, 128)
    tile = cute.make_tensor(memory, cute.make_layout(WARP))
    full = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_)
        bulk_load(memory, x.iterator, 4 * WARP, full)
    cute.arch.mbarrier_wait(full, 0)
    y[t] = tile[31 - t]


@cute.jit
def run_brings(x: cute.Tensor, y: cute.Tensor, bytes_: Constexpr):
    brings(x, y, bytes_).launch(grid=1, block=WARP)


def test_bytes_expected_and_bytes_that_came() -> None:
    x, y = aligned(WARP), aligned(WARP)
    x[:] = np.arange(WARP)
    assert found(run_brings, x, y, 128) == []
    assert np.array_equal(y, x[::-1])
    finding = next(f for f in found(run_brings, x, y, 256) if f.rule == "mbarrier-bytes")
    assert "waits for bytes that do not come: 256 were expected and 128 arrived" in finding.message
    finding = found(run_brings, x, y, 64)[0]
    assert "gets more bytes than it expects: 64 were expected and 128 arrived" in finding.message


# --- copies that are not waited for; generic writes and asynchronous copies are of one proxy ---------------------------


@cute.kernel
def copies(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 64), cute.make_layout((1, 64)))
    source = cute.make_tensor(x.iterator, cute.make_layout((1, 64)))
    tile[0, t] = Float32(0.0)
    cute.arch.sync_threads()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    cute.copy(atom, source[None, t], tile[None, 63 - t])
    cute.arch.cp_async_commit_group()
    if kiln.const_expr(waits == "all"):
        cute.arch.cp_async_wait_group(0)
    if kiln.const_expr(waits == "others"):
        cute.arch.cp_async_wait_group(1)
    cute.arch.sync_threads()
    y[t] = tile[0, t]


@cute.jit
def run_copies(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    copies(x, y, waits).launch(grid=1, block=64)


def test_copies_that_are_read_before_their_wait() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    assert found(run_copies, x, y, "all") == []
    assert np.array_equal(y, x[::-1])
    for waits in ("none", "others"):
        finding = found(run_copies, x, y, waits)[0]
        assert (finding.rule, finding.tensor) == ("write-read", "tile")
        assert "cp_async_wait_group" in finding.hint


# --- operations of a whole warp, executed by a part of it --------------------------------------------------------------


@cute.kernel
def part_of_a_warp(x: cute.Tensor, y: cute.Tensor, lanes: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))
    part = mma.get_slice(t)
    a, b, c = part.partition_A(x), part.partition_B(cute.local_tile(x, (8, 16), (0, 0))), part.partition_C(y)
    fa, fb, fc = mma.make_fragment_A(a), mma.make_fragment_B(b), mma.make_fragment_C(c)
    cute.autovec_copy(a, fa)
    cute.autovec_copy(b, fb)
    fc.fill(0.0)
    if t < lanes:
        cute.gemm(mma, fc, fa, fb, fc)
    cute.autovec_copy(fc, c)


@cute.jit
def run_part_of_a_warp(x: cute.Tensor, y: cute.Tensor, lanes: Constexpr):
    part_of_a_warp(x, y, lanes).launch(grid=1, block=WARP)


def test_a_matrix_instruction_without_all_lanes() -> None:
    x, y = np.ones((16, 16), np.float16), np.zeros((16, 8), np.float32)
    arguments = (from_dlpack(x), from_dlpack(y))
    assert found(run_part_of_a_warp, *arguments, 32) == []
    with kiln.sanitize(raises=False) as report, pytest.raises(WarpFault, match="executed by 31 lanes"):
        run_part_of_a_warp(*arguments, 31)
    assert {finding.rule for finding in report} == {"lanes-exited"}


# --- two warps, two stages, fed by bulk copies: a trap for checkers of races -------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_fed_by_bulk_copies(seed: int, tmp_path: Path) -> None:
    right, findings, _ = mutation.outcome(mutation.load("bulk_ring", f"ring_{seed}", None, tmp_path), seed)
    assert right
    assert findings == []
    (without_wait,) = (
        m for m in mutation.mutants("bulk_ring") if "mbarrier_wait(full" in m.statement and m.change == "deleted"
    )
    _, findings, _ = mutation.outcome(mutation.load("bulk_ring", f"no_wait_{seed}", without_wait, tmp_path), seed)
    assert findings
    if seed == 0:
        assert (findings[0].kind, findings[0].tensor) == ("race", "buffers")
        assert any("a bulk copy of thread 0 wrote it" in finding.message for finding in findings)


@cute.kernel
def passed_by(y: cute.Tensor, arrivals: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    barrier = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(barrier, arrivals)
    cute.arch.sync_threads()
    if t < 64:
        cute.arch.mbarrier_arrive(barrier)
    else:
        cute.arch.mbarrier_wait(barrier, 0)
    y[t] = Float32(1.0)


@cute.jit
def run_passed_by(y: cute.Tensor, arrivals: Constexpr):
    passed_by(y, arrivals).launch(grid=1, block=96)


def test_a_phase_that_passes_its_waiter_by() -> None:
    y = np.zeros(96, np.float32)
    assert found(run_passed_by, y, 64) == []
    findings = found(run_passed_by, y, 32)
    assert (
        {"deadlock", "mbarrier-early"} <= {f.rule for f in findings} <= {"mbarrier-early", "mbarrier-phase", "deadlock"}
    )
    assert all("the mbarrier barrier" in f.message for f in findings if f.rule == "mbarrier-phase")
