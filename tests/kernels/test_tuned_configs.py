"""Configs that tuning found: read from `tuned.json`, for the problem and the function they were found for."""

from __future__ import annotations

import dataclasses

import pytest

from kiln import kernels, tunings
from kiln.kernels.tuned_configs import config_from_dict, config_to_dict


def test_a_config_is_that_of_the_function_and_the_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(tunings, "_model", lambda: "H200")
    config, problem = dataclasses.replace(kernels.Sm90GemmConfig(), ab_stages=3), {"m": 64, "dtype": "float16"}
    entry = {
        "case": "gemm",
        "file": "kiln.kernels",
        "gpu": "H200",
        "problem": problem,
        "config": config_to_dict(config),
    }
    tunings.write(tmp_path / "tuned.json", [entry])
    program = tmp_path / "program.py"
    assert kernels.tuned_config("gemm", program, **problem) == config
    assert kernels.tuned_config("gemm", program, m=128, dtype="float16") is None  # near is not the same
    assert kernels.tuned_config("softmax", program, **problem) is None
    assert kernels.tuned_config("gemm", tmp_path / "elsewhere" / "program.py", **problem) is None


def test_configs_of_types_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="no implementation has a config class 'Nothing'"):
        config_from_dict({"config": "Nothing"})
