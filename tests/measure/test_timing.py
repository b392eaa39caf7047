"""Timing on the CPU target, and the arguments of what is timed; with a GPU: tests/hardware/test_driver_binding.py."""

from __future__ import annotations

import pytest

import kiln
from kiln.measure import timing


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


def test_benchmark_runs_and_uses_workspaces_in_turn():
    seen: list[int] = []
    numbers = iter(range(10))
    with pytest.warns(kiln.DSLWarning) if "cpu" not in timing._said else pytest.MonkeyPatch.context():
        time = timing.benchmark(
            lambda n, *, scale: seen.append(n * scale),
            workspace_generator=lambda: timing.JitArguments(next(numbers), scale=10),
            workspace_count=3,
            warmup_iterations=0,
            iterations=5,
        )
    assert time > 0 and seen == [0, 10, 20, 0, 10]
    with pytest.raises(kiln.DSLRuntimeError, match="iterations=0"):
        timing.benchmark(print, iterations=0)
    with pytest.raises(kiln.DSLRuntimeError, match="tuple"):
        timing.benchmark(print, workspace_generator=lambda: (1, 2))  # type: ignore[arg-type]
    with pytest.raises(kiln.DSLRuntimeError, match="kernel_arguments"):
        timing.benchmark(print, kernel_arguments=timing.JitArguments(), workspace_generator=timing.JitArguments)


def test_workspace_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90")
    assert timing.get_workspace_count(50 << 20, 10, 100) == 4
    assert timing.get_workspace_count(1 << 10, 1, 2) == 3
    assert timing.get_workspace_count(1 << 40, 1, 2) == 1


def test_a_compilation_that_is_timed_is_told(monkeypatch):
    def compiles() -> None:
        timing.cache.compilations += 1

    monkeypatch.setattr(timing, "_said", {"cpu"})
    with pytest.warns(kiln.DSLWarning, match="timed 2 compilations"):
        timing.benchmark(compiles, warmup_iterations=1, iterations=2)
