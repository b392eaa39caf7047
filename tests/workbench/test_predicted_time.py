"""Predicted times in tests: the fixture `predicted`, its baselines, and the example that catches a removed stage."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kiln.hardware import driver
from kiln.workbench import predicted_time
from kiln.workbench.core.runners import Inline, Outcome
from kiln.workbench.predicted_time import Baselines, NoBaseline, PredictedTime, Predictor, TestPredictor
from kiln.workbench.profile.ncu import CannotProfile

EXAMPLE = Path(__file__).parents[2] / "examples" / "hopper"
LONG = os.environ.get("KILN_LONG_TESTS") == "1"
pytestmark = pytest.mark.skipif(driver.available(), reason="there is a GPU")
CASE = """
import numpy as np

def kernel_fn(x):
    return 2 * x

def reference_fn(x):
    return x + x

def get_inputs(n=64):
    return [np.zeros(n, np.float32)]
"""


def answer(*us: float, version: str = "v1"):
    kernels = [{"burst": {"us": one, "low": one - 1, "high": one + 1}, "sustained": {"us": 2 * one}, "limiter": f"unit {one}"} for one in us]  # fmt: skip
    return {"version": version, "predictions": kernels}


def test_the_time_of_a_call_is_that_of_its_kernels():
    found = PredictedTime.of(answer(3.0, 5.0))
    assert (found.us, found.low, found.high, found.sustained_us) == (8.0, 6.0, 10.0, 16.0)
    assert (found.limiter, found.version, len(found.predictions)) == ("unit 5.0", "v1", 2)
    with pytest.raises(NoBaseline, match="use the fixture `predicted`"):
        _ = found.baseline


def test_baselines_are_written_and_read_within_one_version(tmp_path):
    file = tmp_path / "predicted.json"
    with pytest.raises(NoBaseline, match=r"has no baseline of test_a; write baselines .* --kiln-baselines=write"):
        Baselines(file, False).of("test_a", "v1", 3.0)
    assert Baselines(file, True).of("test_a", "v1", 3.0) == 3.0 and Baselines(file, True).of("test_b", "v1", 4.0) == 4.0
    assert json.loads(file.read_text()) == {
        "format": "kiln.predicted/1",
        "baselines": {"test_a": {"us": 3.0, "version": "v1"}, "test_b": {"us": 4.0, "version": "v1"}},
    }
    assert Baselines(file, False).of("test_a", "v1", 99.0) == 3.0
    with pytest.raises(NoBaseline, match="predicted by v1, this is v2: only predictions of one version"):
        Baselines(file, False).of("test_a", "v2", 3.0)
    file.write_text("[]")
    with pytest.raises(NoBaseline, match=r"not of the format kiln.predicted/1"):
        Baselines(file, False).of("test_a", "v1", 3.0)


def test_calls_of_a_test_have_baselines_of_their_own(tmp_path):
    times = iter((3.0, 4.0, 3.2, 9.0))
    predictor = lambda *_: PredictedTime.of(answer(next(times)))
    written = TestPredictor(predictor, Baselines(tmp_path / "p.json", True), "t.py::test_x")
    assert written("k.py").baseline == 3.0 and written("k.py", {"n": 8}).baseline == 4.0
    again = TestPredictor(predictor, Baselines(tmp_path / "p.json", False), "t.py::test_x")
    for limit in (True, False):  # within 10 %, and not
        found = again("k.py") if limit else again("k.py", {"n": 8})
        assert (found.us < 1.1 * found.baseline) == limit


def test_a_case_is_predicted_in_a_worker(tmp_path, monkeypatch):
    asked = []

    class Runner(Inline):
        def run(self, jobs):
            for job in jobs:
                if job.do.endswith(":predicted"):
                    asked.append((job.arguments["problem"], job.arguments["config"], job.env["CUTE_DSL_ARCH"]))
                    yield Outcome(job, "ok", answer(3.0))
                else:
                    yield from super().run([job])

    monkeypatch.setattr(predicted_time, "Local", lambda **_: Runner())
    file = tmp_path / "case.py"
    file.write_text(CASE)
    predictor = Predictor()
    assert predictor(file, {"n": 8}, arch="sm_90a").us == predictor(str(file), arch="sm_90a").us == 3.0
    assert asked == [({"n": 8}, None, "sm_90a"), ({"n": 64}, None, "sm_90a")]
    predictor.close()
    with pytest.raises(CannotProfile, match="does not know the units of a GPU of sm_80"):
        predictor(file, arch="sm_80")
    with pytest.raises(CannotProfile, match="launches no kernel"):
        predictor(lambda: None, arch="sm_90a")


def test_a_gemm_with_fewer_stages_is_predicted_to_be_slower(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    source = (EXAMPLE / "step_4_roles.py").read_text()
    arrays = [np.zeros((1024, 1024), np.float16) for _ in range(3)]
    times = {}
    for stages in (4, 2):
        (tmp_path / f"gemm_of_{stages}.py").write_text(source.replace("STAGES = 4", f"STAGES = {stages}"))
        gemm = importlib.import_module(f"gemm_of_{stages}").gemm
        times[stages] = Predictor()(lambda gemm=gemm: gemm(*arrays), arch="sm_90a").us
    assert times[2] > 1.03 * times[4]


@pytest.mark.skipif(not LONG, reason="KILN_LONG_TESTS=1")
def test_the_example_fails_if_stages_are_removed(tmp_path):
    folder = tmp_path / "hopper"
    shutil.copytree(EXAMPLE, folder)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_speed.py", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout

    assert "has no baseline of test_speed.py::test_the_gemm_is_as_fast_as_it_was" in run()
    assert "1 passed" in run("--kiln-baselines=write") and "1 passed" in run()
    step = folder / "step_4_roles.py"
    step.write_text(step.read_text().replace("STAGES = 4", "STAGES = 2"))
    assert "1 failed" in run()
