"""Converged lanes that update one word of shared memory store the same value, as on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from ir_testing import after
from kernel_testing import launcher, runs
from sanitizer_testing import found, shared

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.mlir import ir
from kiln.targets.cpu.lower import HANDLERS, KernelExpansion
from kiln.targets.host.expand import expand_module


@cute.kernel
def flip_phases(out: cute.Tensor):
    tx = arch.thread_idx()[0]
    phases = shared(cute.Int32, 4)
    if tx < 4:
        phases[tx] = 0
    arch.sync_threads()
    for i in range(cute.Int32(7)):
        phases[i % 4] = phases[i % 4] ^ 1
        arch.sync_warp()
    out[tx] = phases[tx % 4]


def test_all_lanes_flip_a_phase_once():
    # a seed may run lanes in another order, as independent thread scheduling may
    for (out,) in runs(flip_phases, np.zeros(32, np.int32), schedules=[(1, 0)]):
        np.testing.assert_array_equal(out, np.tile([0, 0, 0, 1], 8))


def test_the_sanitizer_reports_the_race():
    with kiln.target("cpu"):
        findings = found(launcher(flip_phases, 1, grid=1, block=32), np.zeros(32, np.int32))
    assert {finding.kind for finding in findings} == {"race"}


@pytest.mark.parametrize(
    ("at", "value", "pauses"),
    [
        ("%stage", "%changed", 1),
        ("%tx", "%changed", 0),  # every lane has its own word
        ("%stage", "%one", 0),  # no update
    ],
)
def test_only_updates_at_an_address_that_lanes_share_pause(at: str, value: str, pauses: int) -> None:
    source = f"""
    func.func @k(%count: i32) attributes {{cute.kernel}} {{
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %words = "cute.alloc_smem"() {{alignment = 16 : i64, bytes = 256 : i64, kiln.offset = 0 : i64}} : () -> S<i32>
      %tx = "cute.thread_idx"() {{dim = 0 : i32}} : () -> i32
      %last = scf.for %i = %zero to %count step %one iter_args(%stage = %zero) -> (i32) : i32 {{
        %old = "cute.load"(%words, {at}) : (S<i32>, i32) -> i32
        %changed = arith.xori %old, %one : i32
        "cute.store"({value}, %words, {at}) : (i32, S<i32>, i32) -> ()
        %next = arith.xori %stage, %one : i32
        scf.yield %next : i32
      }}
      func.return
    }}""".replace("S<i32>", '!cute.ptr<i32, "smem", 16 : i64>')

    def expand(module: ir.Module) -> None:
        expand_module(KernelExpansion(module, HANDLERS, "the CPU target"))

    assert after(source, expand).count("call @kiln_suspend") == pauses
