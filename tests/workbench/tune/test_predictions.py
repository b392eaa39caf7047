"""`kiln tune` with predictions of the clock: the order, what is measured, and the choice where nothing can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuning_testing import CONTRACT, HELPER, FakeRunner

from kiln import tunings
from kiln.hardware import driver
from kiln.workbench.core import loading, tuned_file
from kiln.workbench.core.records import journal_of
from kiln.workbench.tune import cli as tune
from kiln.workbench.tune import predictions

pytestmark = pytest.mark.skipif(driver.available(), reason="there is a GPU")
GPU = {"gpu": "NVIDIA H200", "uuid": "u", "driver": "1", "kiln": "1", "ptxas": "13", "python": "3.12", "node": "n"}


class OnGpu(FakeRunner):
    """As on a machine with an H200."""

    def environment(self):
        return dict(GPU)

    def run(self, jobs):
        yield from super().run(jobs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pair.py").write_text(CONTRACT)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def load(folder: Path):
    return loading.load(folder / "pair.py")


def slower(problem, config):
    """10, 20, 40, ... us: with intervals of 10 % only the best stands alone."""
    return 10.0 * config["tile"] / 8


def measured(problem, config):
    return 100.0 - config["tile"] / 8


def tiles(runner, what):
    return [job["config"]["tile"] for job in runner.done(what)]


def test_without_a_gpu_the_choice_is_predicted_and_written_as_such(folder, capsys):
    runner = FakeRunner(measured, predicted=slower)
    found = tune.tune(load(folder), 1, runner=runner, arch="sm_90a")
    assert sorted(tiles(runner, "predicted")) == [8, 16, 32, 64, 128, 256] and not runner.done("screen")
    assert found.best == {"tile": 8, "stages": 2} and found.counts() == {"predicted": 6} and found.predicted
    said = str(found)
    assert "  * predicted 10.00 us [9.00, 11.00] by the clock on H200  " in said
    assert "why: predicted, not measured: the least time of 6 configs on H200\n" in f"{said}\n"
    (entry,) = json.loads((folder / "tuned.json").read_text())["entries"]
    assert (entry["gpu"], entry["config"]["tile"], entry["us"], entry["predicted"]) == (
        "NVIDIA H200",
        8,
        [9, 10, 11],
        "v1",
    )
    assert tunings.tuned(folder / "pair.py").get({"n": 4096}, gpu="NVIDIA H200")["tile"] == 8
    again = FakeRunner(measured, predicted=slower)
    assert "--fresh predicts anew" in str(tune.tune(load(folder), 1, runner=again, arch="sm_90a")) and again.jobs == []


def test_a_measured_choice_is_kept(folder):
    case = load(folder)
    entry = {"case": "pair", "file": "pair.py", "gpu": "NVIDIA H200", "problem": {"n": 4096}, "config": {"tile": 64}, "us": [1, 2, 3]}  # fmt: skip
    tunings.write(folder / "tuned.json", [entry])
    found = tune.tune(case, 1, runner=FakeRunner(measured, predicted=slower), arch="sm_90a")
    assert tuned_file.entry_of(case, "NVIDIA H200", {"n": 4096}) == entry
    assert 'tuned.json keeps {"tile":64} for n=4096: a NVIDIA H200 measured it' in str(found)


def test_on_a_gpu_the_best_few_are_measured_and_those_whose_intervals_overlap(folder):
    runner = OnGpu(measured, predicted=slower)
    found = tune.tune(load(folder), 1, runner=runner, arch="sm_90a")
    assert tiles(runner, "screen") == [8, 16, 32, 64, 128]  # in the predicted order
    assert found.best == {"tile": 128, "stages": 2} and found.counts() == {"ok": 5, "pruned": 1}
    assert [one.more["estimate_us"] for one in found.records['{"n":4096}']][:2] == [10.0, 20.0]
    (entry,) = json.loads((folder / "tuned.json").read_text())["entries"]
    assert "predicted" not in entry
    near = OnGpu(measured, predicted=lambda problem, config: 10.0 + config["tile"] / 256)
    tune.tune(load(folder), 1, runner=near, arch="sm_90a", fresh=True)
    assert sorted(tiles(near, "screen")) == [8, 16, 32, 64, 128, 256]  # all intervals overlap


def test_what_is_not_predicted_is_measured_after_the_others(folder):
    def some(problem, config):
        return None if config["tile"] in (8, 256) else 1000.0 - config["tile"]

    runner = OnGpu(measured, predicted=some)
    tune.tune(load(folder), 1, runner=runner, arch="sm_90a")
    order = tiles(runner, "screen")
    assert order[:4] == [128, 64, 32, 16] and set(order[4:]) == {8, 256}
    records = [one for one in journal_of(load(folder)).read()[0] if one.status == "skipped"]
    assert {(one.error or {})["message"] for one in records} == {"no anchors"} and len(records) == 2


def test_a_perf_model_replaces_the_clock_and_a_budget_ends_predictions(folder):
    runner = FakeRunner(measured, predicted=slower)
    assert tune.tune(load(folder), 1, runner=runner, arch="sm_90a", predict=0.0).counts() == {"ranked": 6}
    assert not runner.done("predicted")
    model = "def perf_model(config, problem, device):\n    return 1000.0 / config['tile']\n"
    (folder / "pair.py").write_text(CONTRACT + model)
    runner = FakeRunner(measured, predicted=slower)
    found = tune.tune(load(folder), 1, runner=runner, arch="sm_90a")
    assert not runner.done("predicted") and not found.decisions and "by perf_model" in str(found)


def test_time_for_predictions_that_is_over_leaves_configs_ranked(folder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tune.tuner.time, "monotonic", lambda: now[0])

    def slow(problem, config):
        now[0] += 30.0
        return slower(problem, config)

    found = tune.tune(load(folder), 1, runner=FakeRunner(measured, predicted=slow), arch="sm_90a", predict=100.0)
    assert found.counts() == {"predicted": 4, "ranked": 2} and found.best == {"tile": 8, "stages": 2}


def test_the_cpu_target_and_unknown_gpus_have_no_predictions(folder):
    for settings in ({"target": "cpu"}, {"arch": "sm_80"}):
        runner = FakeRunner(measured, predicted=slower)
        tune.tune(load(folder), 1, runner=runner, **settings)
        assert not runner.done("predicted")


def test_one_config_for_all_problems(folder):
    def by_problem(problem, config):
        best = 16 if problem["n"] == 64 else 64
        return 10.0 * max(config["tile"] / best, best / config["tile"])

    settings = {"problems": [{"n": 64}, {"n": 4096}], "arch": "sm_90a"}
    apart = tune.tune(load(folder), runner=FakeRunner(measured, predicted=by_problem), **settings)
    assert [one.config["tile"] for one in apart.decisions.values()] == [16, 64]
    found = tune.tune(load(folder), runner=FakeRunner(measured, predicted=by_problem), together=True, **settings)
    (tile,) = {one.config["tile"] for one in found.decisions.values()}
    assert tile in (16, 32, 64) and all(one.why.startswith("for all problems") for one in found.decisions.values())


def test_the_command_says_that_the_choice_is_predicted(folder, monkeypatch, capsys):
    runner = FakeRunner(measured, predicted=slower)
    monkeypatch.setattr(tune, "_runners", lambda *_: (runner, runner))
    monkeypatch.setattr(tune.worker_case, "load", lambda where, *_, **__: load(folder))
    assert tune.main([str(folder / "pair.py"), "--n", "4096", "--arch", "sm_90a", "--quiet"]) == 0
    assert tune.main([str(folder / "pair.py"), "--n", "4096", "--arch", "sm_90a"]) == 0
    assert "predicted choices, not measured, are in " in capsys.readouterr().out


def test_a_predicted_entry_is_stale_where_it_can_be_measured(folder, monkeypatch):
    entry = {"file": "pair.py", "gpu": "NVIDIA H200", "predicted": "v1", "env": {"kiln": "1", "ptxas": "13"}}
    monkeypatch.setattr(tuned_file, "environment", lambda: GPU)
    assert tuned_file.stale(entry, folder) == ["it was predicted, and this GPU can measure it"]
    monkeypatch.setattr(tuned_file, "environment", lambda: {**GPU, "gpu": None})
    assert tuned_file.stale(entry, folder) == []


def test_the_device_is_this_gpu_or_that_of_the_architecture():
    assert predictions.device_of("NVIDIA H200", "sm_90a") == "H200" == predictions.device_of(None, "sm_90a")
    assert predictions.device_of("NVIDIA H100 80GB HBM3", "sm_90a") is None
