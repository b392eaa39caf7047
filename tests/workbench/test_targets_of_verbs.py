"""What verbs do where there is no GPU: the CPU target is timed if it was asked for, and never in a GPU's place."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from kiln import DSLWarning
from kiln import workbench as wb
from kiln.hardware import driver
from kiln.workbench.bench import cli as bench
from kiln.workbench.bench import jobs as bench_jobs
from kiln.workbench.core.command_line import EXIT
from kiln.workbench.core.records import Journal
from kiln.workbench.core.runners import Inline
from kiln.workbench.profile import cli as profile
from kiln.workbench.profile import jobs as profile_jobs
from kiln.workbench.tune import cli as tune
from kiln.workbench.verify import cli as verify

pytestmark = pytest.mark.skipif(driver.available(), reason="there is a GPU here")
CONTRACT = """
import numpy as np

def kernel_fn(x, config=None):
    return x * 2

def reference_fn(x):
    return x * 2

def get_inputs(n=64, dtype="float32"):
    return [np.arange(n, dtype=dtype)]

def configs(**problem):
    return [{}]
"""
VERBS = {
    "verify": (verify.main, ("--quick",)),
    "bench": (bench.main, ("--quick", "--no-verify")),
    "tune": (tune.main, ()),
    "profile": (profile.main, ()),
}


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.delenv("KILN_TARGET", raising=False)
    monkeypatch.setattr(driver, "available", lambda: False)
    for module in (bench, tune, verify, profile):
        monkeypatch.setattr(module, "Local", lambda *_, **__: Inline())
    monkeypatch.setattr(bench_jobs.measurement, "QUICK", bench_jobs.measurement.QUICK._replace(warmup=0.0, batch=1e-4))
    monkeypatch.setattr(profile_jobs, "static", lambda **_: {"dtype": "f32", "kernels": []})


@pytest.fixture
def contract(tmp_path: Path) -> str:
    (tmp_path / "double.py").write_text(CONTRACT)
    return str(tmp_path / "double.py")


@pytest.mark.parametrize("by", ["option", "setting"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_gpu_that_is_asked_for_and_not_here(verb, by, contract, capsys, monkeypatch):
    main, words = VERBS[verb]
    if by == "setting":
        monkeypatch.setenv("KILN_TARGET", "nvidia")
    assert main([contract, *words, *(("--target", "nvidia") if by == "option" else ())]) == EXIT.NOT_HERE
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["nothing", "option", "setting"])
def test_bench_times_what_was_asked_for(by, contract, capsys, monkeypatch, tmp_path):
    if by == "setting":
        monkeypatch.setenv("KILN_TARGET", "cpu")
    status = bench.main([contract, "--quick", "--no-verify", *(("--target", "cpu") if by == "option" else ())])
    said = capsys.readouterr()
    records = Journal(tmp_path / ".kiln").read()[0]
    if by == "nothing":
        assert status == EXIT.NOT_HERE and "nothing was timed" in said.err and not records
    else:
        assert status == EXIT.GOOD and "this says nothing about a GPU" in said.out
        assert [record.protocol for record in records] == ["cpu-wall"]


def test_verify_says_where_it_ran(contract, capsys):
    assert verify.main([contract, "--quick"]) == EXIT.GOOD
    assert "CPU target" in capsys.readouterr().out


def test_bench_of_python_warns(contract, monkeypatch):
    with pytest.warns(DSLWarning, match="there is no GPU"):
        wb.load(contract).bench(quick=True, rounds=2, runner=Inline())
    monkeypatch.setenv("KILN_TARGET", "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wb.load(contract).bench(quick=True, rounds=2, runner=Inline())
