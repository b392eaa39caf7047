"""`kiln.utils` and `kiln.testing` without torch."""

from __future__ import annotations

import argparse

import numpy
import pytest

import kiln
from kiln import testing, utils
from kiln.cute.runtime import from_dlpack
from kiln.measure import timing


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


def test_shared_memory_of_a_block(monkeypatch: pytest.MonkeyPatch):
    sizes = {"sm_80": 163, "sm_86": 99, "sm_90": 227, "sm_90a": 227, "sm_100": 227, "sm_103a": 227, "sm_120": 99}
    assert {arch: utils.get_smem_capacity_in_bytes(arch) // 1024 for arch in sizes} == sizes
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_120a")
    assert utils.get_smem_capacity_in_bytes() == 99 * 1024
    with pytest.raises(ValueError, match="sm_90"):
        utils.get_smem_capacity_in_bytes("hopper")
    with pytest.raises(ValueError, match="older than sm_80"):
        utils.get_smem_capacity_in_bytes("sm_75")


def test_hardware_without_hardware(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    found = utils.HardwareInfo()
    assert found.get_device_multiprocessor_count() == 132
    assert found.get_l2_cache_size_in_bytes() == 50 << 20
    assert found.get_max_active_clusters(2) == 66
    with pytest.raises(ValueError, match="cluster of 0"):
        found.get_max_active_clusters(0)


def test_major_modes():
    row, column = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR
    x = numpy.zeros((3, 4), numpy.float32)
    assert utils.LayoutEnum.from_tensor(from_dlpack(x)) is row
    assert utils.LayoutEnum.from_tensor(from_dlpack(x.T)) is column
    assert row.is_k_major_a() and row.is_k_major_b() and row.is_n_major_c()
    assert column.is_m_major_a() and column.is_n_major_b() and column.is_m_major_c()
    with pytest.raises(TypeError, match="neither"):
        utils.LayoutEnum.from_tensor(from_dlpack(numpy.zeros((3, 4, 5), numpy.float32)))


def test_names_that_do_not_exist_are_absent():
    with pytest.raises(AttributeError, match="nonsense"):
        utils.nonsense
    assert "HardwareInfo" in dir(utils)


def test_benchmark_runs_and_uses_workspaces_in_turn():
    seen: list[int] = []
    numbers = iter(range(10))
    with pytest.warns(kiln.DSLWarning) if "cpu" not in timing._said else pytest.MonkeyPatch.context():
        time = testing.benchmark(
            lambda n, *, scale: seen.append(n * scale),
            workspace_generator=lambda: testing.JitArguments(next(numbers), scale=10),
            workspace_count=3,
            warmup_iterations=0,
            iterations=5,
        )
    assert time > 0 and seen == [0, 10, 20, 0, 10]
    with pytest.raises(kiln.DSLRuntimeError, match="iterations=0"):
        testing.benchmark(print, iterations=0)
    with pytest.raises(kiln.DSLRuntimeError, match="tuple"):
        testing.benchmark(print, workspace_generator=lambda: (1, 2))  # type: ignore[arg-type]
    with pytest.raises(kiln.DSLRuntimeError, match="kernel_arguments"):
        testing.benchmark(print, kernel_arguments=testing.JitArguments(), workspace_generator=testing.JitArguments)


def test_workspace_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90")
    assert testing.get_workspace_count(50 << 20, 10, 100) == 4
    assert testing.get_workspace_count(1 << 10, 1, 2) == 3
    assert testing.get_workspace_count(1 << 40, 1, 2) == 1


def test_options_of_test_programs(capsys: pytest.CaptureFixture[str]):
    parser = argparse.ArgumentParser()
    testing.add_tensor_init_args(parser)
    args = parser.parse_args(["--init_normal", "--normal_std", "2"])
    testing.validate_tensor_init_args(args, parser)
    assert (args.init_normal, args.normal_mean, args.normal_std) == (True, 0.0, 2.0)
    with pytest.raises(SystemExit):
        testing.validate_tensor_init_args(parser.parse_args(["--init_normal", "--normal_std", "0"]), parser)
    assert "positive" in capsys.readouterr().err
