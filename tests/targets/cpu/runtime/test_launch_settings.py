"""Settings for launches are those of the environment at the time of the launch, whoever makes the call."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

from kiln import cute
from kiln.base_dsl.typing import Int32
from kiln.targets.cpu.runtime.deadlock_report import TimeoutFault
from kiln.targets.cpu.runtime.parts import LAUNCH
from kiln.targets.host import jit
from kiln.targets.nvidia import codegen


@cute.kernel
def spin(a: cute.Tensor, n: Int32):
    i = Int32(0)
    while i < n:
        i = i + a[0]


@cute.jit
def implicit(a: cute.Tensor, n: Int32):
    spin(a, n).launch(grid=1, block=1)


def test_limits_set_after_the_first_launches_hold(monkeypatch):
    step = np.ones(1, np.int32)
    compiled = cute.compile(implicit, step, 5)
    for function in (compiled, implicit):
        for _ in range(8):  # from some call on native code takes them
            function(step, 5)
    step[0] = 0  # endless
    for function in (compiled, implicit):
        monkeypatch.setenv("KILN_CPU_TIMEOUT", "0.05")
        with pytest.raises(TimeoutFault, match="did not end in its time"):
            function(step, 5)
        monkeypatch.delenv("KILN_CPU_TIMEOUT")
        for steps in ("100", "1000"):
            monkeypatch.setenv("KILN_CPU_MAX_STEPS", steps)
            with pytest.raises(TimeoutFault, match="did not end in its number of steps"):
                function(step, 5)
        monkeypatch.delenv("KILN_CPU_MAX_STEPS")
    step[0] = 1
    compiled(step, 5)
    implicit(step, 5)


def test_every_setting_reaches_the_runtime(monkeypatch):
    step = np.ones(1, np.int32)
    compiled = cute.compile(implicit, step, 5)
    compiled(step, 5)
    for name, symbol, kind in (
        ("KILN_CPU_THREADS", "kiln_cpu_workers", ctypes.c_int32),
        ("KILN_CPU_SEED", "kiln_cpu_schedule", ctypes.c_int64),
    ):
        variable = kind.from_address(jit.part_library(LAUNCH).addresses[symbol])
        before = variable.value
        for value in (3, 2):
            monkeypatch.setenv(name, str(value))
            compiled(step, 5)
            assert variable.value == value
        monkeypatch.undo()
        compiled(step, 5)
        assert variable.value == before


def test_ptxas_is_the_one_of_the_environment_now(monkeypatch, tmp_path):
    codegen.ptxas_version()
    fake = tmp_path / "ptxas"
    fake.write_text("#!/bin/sh\necho release 12.3, V12.3.4\n")
    fake.chmod(0o755)
    monkeypatch.setenv("KILN_PTXAS", os.fspath(fake))
    assert codegen.ptxas_version() == "12.3.4"
