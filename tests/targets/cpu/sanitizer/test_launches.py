"""What happens between launches, and what is reported of launches that do not end."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float32, Int32, Int64, cute
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


# --- launches that may run at the same time --------------------------------------------------------------------------


@cute.kernel
def fills(x: cute.Tensor):
    i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
    x[i] = Float32(1.0)
    cute.arch.griddepcontrol_launch_dependents()


@cute.kernel
def doubles(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    i = cute.arch.thread_idx()[0]
    if kiln.const_expr(waits == "first"):
        cute.arch.griddepcontrol_wait()
    y[i] = x[i] * 2.0
    if kiln.const_expr(waits == "later"):
        cute.arch.griddepcontrol_wait()


@cute.jit
def run_programmatic(x: cute.Tensor, y: cute.Tensor, waits: Constexpr, early: Constexpr):
    fills(x).launch(grid=2, block=32)
    doubles(x, y, waits).launch(grid=1, block=64, use_pdl=early)


@pytest.mark.parametrize(("waits", "early", "right"), [
    ("first", True, True), ("later", True, False), ("never", True, False), ("never", False, True),
])  # fmt: skip
def test_a_launch_that_may_start_early_waits_for_the_one_before(waits: str, early: bool, right: bool) -> None:
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    findings = found(run_programmatic, x, y, waits, early)
    assert bool(findings) != right, findings
    for finding in findings:
        assert (finding.rule, finding.kernel, finding.tensor) == ("write-read", "doubles", "x")
        assert (finding.thread, finding.other_block, finding.other_thread) == ((0, 0, 0), (0, 0, 0), (0, 0, 0))
        assert "of fills, launched before, wrote it" in finding.message
        assert "griddepcontrol_wait()" in finding.hint


@cute.kernel
def reads(x: cute.Tensor, y: cute.Tensor):
    i = cute.arch.thread_idx()[0]
    y[i] = x[i]


@cute.jit
def run_streams(x: cute.Tensor, y: cute.Tensor, first: Int64, second: Int64):
    fills(x).launch(grid=2, block=32, stream=first)
    reads(x, y).launch(grid=1, block=64, stream=second)


def test_launches_on_two_streams_are_not_ordered() -> None:
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    assert found(run_streams, x, y, 1, 1) == []
    assert found(run_streams, x, y, 0, 1) == []
    assert [f.rule for f in found(run_streams, x, y, 1, 2)] == ["write-read"]
    assert found(run_streams, x, y, 1, 1) == []


# --- launches that do not end ----------------------------------------------------------------------------------------


@cute.kernel
def waits_for_nobody(y: cute.Tensor, count: Int32):
    t = cute.arch.thread_idx()[0]
    barrier = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(barrier, count)
    cute.arch.sync_threads()
    cute.arch.mbarrier_arrive(barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    y[t] = Float32(1.0)


@cute.jit
def run_waits_for_nobody(y: cute.Tensor, count: Int32):
    waits_for_nobody(y, count).launch(grid=1, block=32)


def test_a_deadlock_is_a_finding() -> None:
    y = np.zeros(32, np.float32)
    assert found(run_waits_for_nobody, y, 32) == []
    with kiln.sanitize(raises=False) as report:
        run_waits_for_nobody(y, 33)
    (finding,) = report.findings
    assert (finding.kind, finding.rule, finding.kernel) == ("sync", "deadlock", "waits_for_nobody")
    assert "misses 1 arrival" in finding.message
    assert json.loads(report.json())[0]["span"]["line"] == finding.span.line
    with pytest.raises(DeadlockFault), kiln.sanitize():
        run_waits_for_nobody(y, 33)
    with pytest.raises(DeadlockFault), kiln.sanitize("race", raises=False):
        run_waits_for_nobody(y, 33)
