"""Plans that tuning found: read from `tuned.json`, for the problem and the function they were found for."""

from __future__ import annotations

import dataclasses

import pytest

from kiln import kernels, tunings
from kiln.kernels.tuned_configs import config_of, plan_of


def test_a_plan_is_that_of_the_function_and_the_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(tunings, "_model", lambda: "H200")
    plan, problem = dataclasses.replace(kernels.Sm90GemmConfig(), ab_stages=3), {"m": 64, "dtype": "float16"}
    entry = {"case": "gemm", "file": "kiln.kernels", "gpu": "H200", "problem": problem, "config": config_of(plan)}
    tunings.write(tmp_path / "tuned.json", [entry])
    program = tmp_path / "program.py"
    assert kernels.tuned_plan("gemm", program, **problem) == plan
    assert kernels.tuned_plan("gemm", program, m=128, dtype="float16") is None  # near is not the same
    assert kernels.tuned_plan("softmax", program, **problem) is None
    assert kernels.tuned_plan("gemm", tmp_path / "elsewhere" / "program.py", **problem) is None


def test_plans_of_types_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="no implementation has plans of the type 'Nothing'"):
        plan_of({"plan": "Nothing"})
