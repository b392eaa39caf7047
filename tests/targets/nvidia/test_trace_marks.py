"""Marks of a trace in machine code: a clock and a store, no write to global memory, and no other code without a trace."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import kiln
from kiln import Int32, cute
from kiln.cute.experimental import iket
from kiln.cute.kernel_trace import KernelTrace
from kiln.hardware import sass, toolchain
from kiln.targets.nvidia import codegen
from kiln.testing import dry_run

pytestmark = pytest.mark.skipif(toolchain.find("ptxas") is None, reason="needs ptxas")
EXAMPLES = Path(__file__).parents[3] / "examples" / "hopper"


@cute.kernel
def _rounds(rounds: Int32):
    for _ in range(rounds):
        for _each in kiln.range_constexpr(4):
            iket.mark("here")


@cute.jit
def rounds(count: Int32):
    _rounds(count).launch(grid=4, block=64)


@cute.kernel
def _synced(x: cute.Tensor, smem_bytes: kiln.Constexpr[int]):
    thread, _, _ = cute.arch.thread_idx()
    pointer = cute.arch.alloc_smem(kiln.Float32, smem_bytes // 4)
    buffer = cute.make_tensor(pointer, cute.make_layout(smem_bytes // 4))
    for row in range(x.shape[0]):
        buffer[thread] = x[row, thread]
        cute.arch.sync_threads()
        x[row, thread] = buffer[127 - thread]
        cute.arch.sync_threads()


@cute.jit
def synced(x: cute.Tensor, smem_bytes: kiln.Constexpr[int]):
    _synced(x, smem_bytes).launch(grid=4, block=128)


def compiled(call, *arguments, arch="sm_90a", **settings):
    """Return the launch of a program that is compiled for a trace, and what is known of its kernel."""
    trace = KernelTrace(**settings)
    trace.on_host = False  # the marks of a GPU, also where there is none
    with kiln.target("nvidia"), trace, dry_run(arch) as launches:
        call(*arguments)
    return launches[0], trace.kernels[0]


def instructions(launch):
    (code,) = sass.kernels(codegen.disassemble(launch.artifacts["cubin"], "-g -c -hex")).values()
    return [f"{one.name} {one.operands}" for one in code.instructions]


def loop_of(names):
    """Return the shortest run of instructions that ends with a jump back and has the marks of a loop's body."""
    clocks = [n for n, text in enumerate(names) if text.startswith("CS2R.32")]
    return names[clocks[0] : clocks[3] + 6]


def test_a_mark_is_a_clock_and_a_store_to_shared_memory():
    launch, kernel = compiled(rounds, Int32(9), level="ranges")
    assert kernel.layout.in_shared_memory and kernel.layout.shared_bytes
    names = instructions(launch)
    stores = [n for n, text in enumerate(names) if text.startswith("STS.64")]
    clocks = [n for n, text in enumerate(names) if text.startswith("CS2R.32")]
    straight = names[clocks[0] : clocks[3]]
    assert len(straight) <= 3 * 4, straight
    assert not [text for text in straight if text.startswith(("STG", "ST.", "LD", "BRA", "BAR"))]
    assert len([n for n in stores if clocks[0] <= n <= clocks[3]]) == 3


def test_the_ptx_of_a_loop_stores_to_global_memory_only_where_there_is_no_more_room():
    launch, _ = compiled(rounds, Int32(9), level="ranges")
    ptx = launch.artifacts["ptx"]
    lines = [line.strip() for line in ptx.splitlines()]
    marks = [n for n, line in enumerate(lines) if "mov.u32 t, %clock; @p st.shared.v2.b32" in line]
    assert len(marks) == 4
    assert not [line for line in lines[marks[0] : marks[3]] if "st.global" in line or "bra" in line]
    moving = [line for line in lines if "cp.async.bulk.global.shared::cta" in line]
    assert len(moving) == 2  # where there is no more room, and at the end


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_marks_compile_for_every_architecture(arch):
    launch, kernel = compiled(synced, np.zeros((4, 128), np.float32), 1024, arch=arch, level="all")
    assert [site.name for site in kernel.sites if site.kind == "wait" and site.phase == "begin"] == [
        "cute_nvgpu.barrier"
    ] * 2
    assert ("cp.async.bulk" in launch.artifacts["ptx"]) == (arch != "sm_80")


def test_shared_memory_for_marks_takes_no_cta_from_an_sm():
    untraced = []
    for size in (1 << 10, 40 << 10, 100 << 10, 226 << 10):
        launch, kernel = compiled(synced, np.zeros((4, 128), np.float32), size)
        limit = 227 << 10
        blocks = (228 << 10) // (size + 1024)
        assert (size + kernel.layout.shared_bytes + 1024) * min(blocks, 16) <= 228 << 10
        assert size + kernel.layout.shared_bytes <= limit
        untraced.append(kernel.layout.in_shared_memory)
    assert untraced == [True, True, True, False]
    assert "no room" in kernel.notes[0]
    assert "st.global.v2.b32" in launch.artifacts["ptx"]


@cute.kernel
def _copies(x: cute.Tensor, smem_bytes: kiln.Constexpr[int]):
    thread, _, _ = cute.arch.thread_idx()
    pointer = cute.arch.alloc_smem(kiln.Float32, smem_bytes // 4, 128)
    buffer = cute.make_tensor(pointer, cute.make_layout((smem_bytes // 16, 4), stride=(4, 1)))
    rows = cute.make_tensor(x.iterator, cute.make_layout((smem_bytes // 16, 4), stride=(4, 1)))
    atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), kiln.Float32, num_bits_per_copy=128)
    for first in kiln.range_constexpr(3):
        for row in kiln.range_constexpr(2):
            at = thread + 64 * row
            cute.copy(atom, rows[at, None], buffer[at, None])
        cute.arch.cp_async_commit_group()
        if kiln.const_expr(first == 2):
            cute.arch.cp_async_wait_group(0)
    x[thread] = buffer[thread, 0]


@cute.jit
def copies(x: cute.Tensor, smem_bytes: kiln.Constexpr[int]):
    _copies(x, smem_bytes).launch(grid=1, block=64)


def test_operations_of_a_group_are_one_event():
    _, kernel = compiled(copies, np.zeros(2048, np.float32), 8192, level="all")
    begins = [site for site in kernel.sites if site.phase == "begin" and site.kind in ("issue", "wait")]
    assert [(site.name, site.count, site.left) for site in begins] == [
        *[("cute_nvgpu.cp_async", 2, None)] * 3,
        ("cute_nvgpu.cp_async_wait", 1, 0),
    ]
    assert {site.engine for site in begins} == {"cp.async"}


@pytest.mark.parametrize("level", ["waits", "all"])
def test_wgmmas_stay_asynchronous_between_marks(level, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import step_4_roles

    arguments = [np.zeros((512, 512), np.float16) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # ptxas says when it makes WGMMAs wait for each other
        launch, kernel = compiled(step_4_roles.gemm, *arguments, level=level)
    assert launch.resources.spill_stores == 0
    events = {(site.name.rpartition(".")[2], site.kind) for site in kernel.sites}
    assert {("mbarrier_wait", "wait"), ("wgmma_wait", "wait")} <= events
    issued = {("wgmma", "issue"), ("tma_load", "issue"), ("mbarrier_arrive", "arrive")}
    assert issued <= events if level == "all" else not issued & events
    assert "step_4_roles" not in sys.modules or sys.modules.pop("step_4_roles")


def test_other_code_has_no_marks():
    with kiln.target("nvidia"), dry_run("sm_90a") as launches:
        rounds(Int32(9))
        synced(np.zeros((4, 128), np.float32), 1024)
    assert not any(re.search(r"%clock|globaltimer", launch.artifacts["ptx"]) for launch in launches)
