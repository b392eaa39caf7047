"""Functions of the kernel library as Cases."""

from __future__ import annotations

import pytest

from kiln import kernels
from kiln.hardware.devices import device_of
from kiln.kernels.tuned_configs import config_from_dict, config_to_dict
from kiln.workbench.core import cases, library_cases, loading

pytest.importorskip("torch")


def test_configs_are_those_of_all_implementations() -> None:
    case = loading.load("kiln.kernels:gemm")
    problem = case.problem({"m": 256, "n": 256, "k": 128})
    choices = case.configs(problem)
    assert {choice.config["config"] for choice in choices} >= {"Sm80GemmConfig", "Sm90GemmConfig"}
    assert all(choice.valid for choice in choices)
    config = config_from_dict(choices[0].config)
    assert config_from_dict(config_to_dict(config)) == config
    costs = [case.perf_model(choice.config, problem, device_of("sm_90a")) for choice in choices]
    assert costs == sorted(costs)
    assert case.flops_bytes(problem) == (2 * 256 * 256 * 128, 2 * (256 * 128 * 2 + 256 * 256))


def test_a_config_says_why_it_cannot_work() -> None:
    from kiln.kernels.impl.gemm import REGISTRY

    problem = library_cases._registry_and_problem("gemm", {"m": 64, "n": 64, "k": 64, "dtype": "float16"})[1]
    validate = lambda config, arch="sm_90a": REGISTRY.validate(problem, config, device_of(arch))  # noqa: E731
    assert validate(kernels.Sm80GemmConfig()) == []
    assert "shared memory" in validate(kernels.Sm80GemmConfig(stages=40))[0]
    assert validate(kernels.Sm90GemmConfig(), "sm_80")
    assert validate(kernels.ElementwiseConfig()) == ["ElementwiseConfig is no config of gemm"]


@pytest.mark.parametrize("name", ["sum", "flash_attention", "layer_norm"])
def test_every_function_has_configs(name: str) -> None:
    case = loading.load(f"kiln.kernels:{name}")
    assert any(choice.valid for choice in case.configs(case.problem()))


def test_asking_for_a_problem_leaves_no_recorded_call() -> None:
    before = dict(kernels.softmax._programs)
    library_cases._registry_and_problem("softmax", {"m": 4, "n": 72, "dtype": "float32"})
    assert kernels.softmax._programs == before


def test_what_is_no_function_is_told_by_name() -> None:
    with pytest.raises(cases.ContractError, match=r"kiln\.kernels:gem is not a Case; there are: gemm"):
        loading.load("kiln.kernels:gem")
