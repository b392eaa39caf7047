"""`kiln tune` with made-up times: stages, resuming, choosing, what is printed."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tuning_testing import CONTRACT, HELPER, FakeRunner

import kiln
from kiln.workbench import doctor
from kiln.workbench.core import cases, command_line, loading, tuned_file
from kiln.workbench.core.records import Record
from kiln.workbench.tune import cli as tune
from kiln.workbench.tune import config_locks, result
from kiln.workbench.tune import jobs as tune_jobs
from kiln.workbench.tune import tuner as tuning


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pair.py").write_text(CONTRACT)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def load(folder: Path) -> cases.Case:
    return loading.load(folder / "pair.py")


def by_tile(problem: dict, config: dict) -> float | str:
    return 10.0 + abs(config["tile"] - 32) / 8


def entries(folder: Path) -> list[dict]:
    return json.loads((folder / "tuned.json").read_text())["entries"]


def test_all_stages_end_in_tuned_json(folder: Path) -> None:
    runner = FakeRunner(by_tile)
    found = tune.tune(load(folder), runner=runner, target="cpu")
    assert found.best == {"tile": 32, "stages": 2}
    assert found.counts() == {"ok": 4, "invalid": 2}
    assert len(runner.done("compile_config")) == len(runner.done("screen")) == 4
    assert len(runner.done("compare")) == 1
    (entry,) = entries(folder)
    assert entry["config"] == found.best
    assert entry["gpu"] == "cpu"
    assert kiln.tuned(folder / "pair.py").get({"n": 64}) == found.best
    assert "128 threads are more than 64" in str(found)


def test_a_second_run_measures_nothing_and_fresh_all(folder: Path) -> None:
    tune.tune(load(folder), runner=FakeRunner(by_tile), target="cpu")
    before = (folder / "tuned.json").read_text()
    again = FakeRunner(by_tile)
    resumed = tune.tune(load(folder), runner=again, target="cpu")
    assert resumed.measured == 0 and "from the journal" in str(resumed)
    assert again.jobs == []
    assert (folder / "tuned.json").read_text() == before
    assert tune.tune(load(folder), runner=FakeRunner(by_tile), target="cpu", fresh=True).measured == 9


def test_c6_interrupted_after_any_job_it_goes_on(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that was measured is measured again, and the choice is that of a run that was not interrupted."""
    case = load(folder)
    for jobs in range(10):
        shutil.rmtree(folder / ".kiln", ignore_errors=True)
        first, second = FakeRunner(by_tile, stop_after=jobs), FakeRunner(by_tile)
        if jobs < 9:
            with pytest.raises(KeyboardInterrupt):
                tune.tune(case, runner=first, target="cpu")
        else:
            tune.tune(case, runner=first, target="cpu")
        assert tune.tune(case, runner=second, target="cpu").best == {"tile": 32, "stages": 2}
        assert len(first.jobs) + len(second.jobs) == 9


def test_every_failure_is_a_record_with_its_reason(folder: Path) -> None:
    statuses = {8: "compile_error", 16: "no_fit", 32: "crash", 64: 9.0, 128: "timeout", 256: "lost"}
    took = lambda problem, config: statuses[config["tile"]]  # noqa: E731
    found = tune.tune(load(folder), 1, runner=FakeRunner(took), target="cpu")
    ended = {json.dumps(record.config): record.status for record in found.records['{"n":4096}']}
    assert list(ended.values()) == [status if isinstance(status, str) else "ok" for status in statuses.values()]
    assert found.best == {"tile": 64, "stages": 2}
    text = str(found)
    assert "made-up timeout" in text
    assert "kiln tune" in text
    journal, torn = tuning.journal_of(load(folder)).read()
    assert torn == 0
    assert all(record.error and record.again for record in journal if record.status not in ("ok", "ranked"))
    again = FakeRunner(lambda problem, config: 5.0)
    tune.tune(load(folder), 1, runner=again, target="cpu")
    assert [job["config"]["tile"] for job in again.done("screen")] == [256]  # what was lost is tried again


def test_what_is_not_measured_is_pruned_with_its_estimate(folder: Path) -> None:
    found = tune.tune(load(folder), 1, runner=FakeRunner(by_tile), target="cpu", top=2)
    assert found.counts() == {"ok": 2, "pruned": 4}
    assert all(r.more["estimate_us"] for r in found.records['{"n":4096}'])
    more = FakeRunner(by_tile)
    assert tune.tune(load(folder), 1, runner=more, target="cpu", top=4).counts() == {"ok": 4, "pruned": 2}
    assert len(more.done("screen")) == 2
    rows = str(tune.tune(load(folder), 1, runner=more, target="cpu")).splitlines()
    alone = rows.index("  the others, timed alone and shortly:")
    assert rows[1].startswith("  compared with each other, in ") and (alone, rows[alone + 2][:6]) == (7, "  6 ok")


def test_estimates_take_the_peak_of_the_inputs_type_and_name_the_gpu(folder: Path, capsys) -> None:
    contract = CONTRACT.replace("float32", "float16") + "def flops_bytes(n):\n    return 2 * 1024**3, 6 * 1024**2\n"
    (folder / "pair.py").write_text(contract)
    (config, *_) = load(folder).configs({"n": 64})
    compiled = tune_jobs.compile_config(str(folder / "pair.py"), {"n": 64}, config.config, "sm_90a", 0)
    assert compiled == {"status": "ranked", "launches": [], "dtype": "f16"}
    runner = FakeRunner(by_tile, dtype="f16")
    found = tune.tune(load(folder), 1, runner=runner, arch="sm_90a")
    least = min(record.more["estimate_us"] for record in found.records['{"n":4096}'])
    assert 2.1 < least < 10, "at the f32 peak of 67 TFLOP/s the FLOPs alone take 32 us"
    assert str(found).count(" us by the roofline on H100 SXM  {") == 6
    shown = min(record.more["least_us"] for record in found.records['{"n":4096}'])
    assert f"at least {shown:.2f} us by the roofline on H100 SXM" in str(found)
    assert shown <= least
    assert "predicted" not in str(found)


def test_of_many_configs_with_a_model_of_their_own_the_best_are_compiled(folder: Path) -> None:
    model = "def perf_model(config, problem, device):\n    return 1000.0 / config['tile']\n"
    (folder / "pair.py").write_text(CONTRACT + model)
    runner = FakeRunner(by_tile)
    found = tune.tune(load(folder), 1, runner=runner, target="cpu", top=1)
    assert sorted(job["config"]["tile"] for job in runner.done("compile_config")) == [128, 256]
    assert found.counts() == {"pruned": 5, "ok": 1}
    assert found.best == {"tile": 256, "stages": 2}
    assert [r.more["estimate_us"] for r in found.records['{"n":4096}']][:2] == [125.0, 62.5]
    shown = str(tune.tune(load(folder), runner=FakeRunner(by_tile, dtype="f16"), arch="sm_90a"))
    assert "expected 62.50 us by perf_model on H100 SXM" in shown


def test_a_budget_ends_it_between_jobs(folder: Path) -> None:
    found = tune.tune(load(folder), runner=FakeRunner(by_tile), target="cpu", budget=0.0)
    assert found.stopped
    assert found.best is None


def test_together_is_one_config_for_all_problems(folder: Path) -> None:
    def took(problem: dict, config: dict) -> float:
        best = 16 if problem["n"] == 64 else 256
        return 10.0 + abs(config["tile"] - best) / (4 if problem["n"] == 64 else 64)

    case = load(folder)
    apart = tune.tune(case, problems=case.problems, runner=FakeRunner(took), target="cpu")
    assert [entry["config"]["tile"] for entry in entries(folder)] == [256, 16]
    one = tune.tune(case, problems=case.problems, runner=FakeRunner(took), target="cpu", together=True)
    assert len({entry["config"]["tile"] for entry in entries(folder)}) == 1
    assert one.best == {"tile": 16, "stages": 2}
    assert apart.decisions.keys() == one.decisions.keys()


def test_optuna_proposes_in_batches_and_a_resumed_run_goes_on(folder: Path) -> None:
    pytest.importorskip("optuna")
    case = load(folder)
    options = {"target": "cpu", "search": "tpe", "top": 5}
    with pytest.raises(KeyboardInterrupt):
        tune.tune(case, 1, runner=FakeRunner(by_tile, stop_after=7), **options)
    second, whole = FakeRunner(by_tile), FakeRunner(by_tile)
    best = tune.tune(case, 1, runner=second, **options).best
    assert len(second.jobs) == 11 - 7
    assert tune.tune(case, 1, runner=whole, fresh=True, **options).best == best
    assert len(whole.jobs) == 11


def test_c8_replay_writes_the_same_file_from_shuffled_lines(folder: Path) -> None:
    case = load(folder)
    draw = random.Random(1)
    runner = FakeRunner(lambda p, c: draw.uniform(9.9, 10.1))
    told = str(tune.tune(case, problems=case.problems, runner=runner, target="cpu"))
    wanted = (folder / "tuned.json").read_bytes()
    journal = folder / ".kiln" / "records.jsonl"
    lines = journal.read_text().splitlines()
    for _ in range(100):
        draw.shuffle(lines)
        journal.write_text("\n".join(lines) + "\n")
        (folder / "tuned.json").unlink()
        again = result.replay(case)
        assert (folder / "tuned.json").read_bytes() == wanted
    assert sorted(str(again).splitlines()[:-1]) == sorted(told.splitlines())  # but that nothing was measured


def test_c9_whatever_a_result_depends_on_is_part_of_its_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(problem: int = 0) -> int:
        return tune.tune(load(folder), problem, runner=FakeRunner(by_tile), target="cpu").measured

    assert measured() > 0
    assert measured() == 0
    (folder / "another.py").write_text("# not imported\n")
    assert measured() == 0
    (folder / "helper.py").write_text(HELPER + "# other\n")
    assert measured() > 0
    (folder / "pair.py").write_text(CONTRACT.replace("2 * x", "x * 2"))
    assert measured() > 0
    assert measured(1) > 0
    (folder / "pair.py").write_text(CONTRACT.replace("(8, 16,", "(8, 16, 24,"))
    assert measured() > 0
    for name in ("gpu", "driver", "kiln", "ptxas"):
        assert measured() == 0
        changed = {**tuning._environment("cpu", FakeRunner(by_tile)), name: f"another {name}"}
        monkeypatch.setattr(tuning, "_environment", lambda target, timing, changed=changed: changed)
        assert measured() > 0, name


def test_where_several_gpus_time_each_times_a_reference(folder: Path) -> None:
    runner = FakeRunner(by_tile)
    runner.timers = 2
    tune.tune(load(folder), runner=runner, target="cpu")
    assert [job.get("reference") for job in runner.done("screen")] == [None, *[runner.done("screen")[0]["config"]] * 3]


def test_a_config_tried_alone_is_no_choice(folder: Path) -> None:
    """The command of a record does one config again: it keeps its place in the list, and tuned.json stays."""
    case = load(folder)
    tune.tune(case, runner=FakeRunner(by_tile), target="cpu")
    written = (folder / "tuned.json").read_text()
    alone = FakeRunner(lambda problem, config: 1.0)
    only = [{"tile": 64, "stages": 2}, {"tile": 7, "stages": 1}]
    found = tune.tune(case, runner=alone, target="cpu", only=only, fresh=True)
    assert [record.more["place"] for record in found.records['{"n":64}']] == [3, 7]
    assert (folder / "tuned.json").read_text() == written


def test_check_fails_if_the_tuned_config_became_slower(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = load(folder)
    tune.tune(case, runner=FakeRunner(by_tile), target="cpu")
    written = (folder / "tuned.json").read_text()

    def check(factor: float, problem: int = 0) -> int:
        runner = FakeRunner(lambda problem, config: factor * by_tile(problem, config))
        args = argparse.Namespace(json=None)
        settings = tuning.Settings(target="cpu")
        return tune._check(args, case, [case.problem(problem)], settings, (runner, runner), tune._silent)

    assert check(1.0) == 0
    assert check(1.02) == 0
    assert check(1.10) == 1
    assert "slower by 9.9%" in capsys.readouterr().out
    assert check(1.0, 1) == 1
    assert "not in tuned.json" in capsys.readouterr().out
    assert (folder / "tuned.json").read_text() == written


def test_doctor_names_what_is_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune.tune(load(folder), runner=FakeRunner(by_tile), target="cpu")
    monkeypatch.chdir(folder)
    (one,) = doctor._tuned()
    assert (one.state, one.value) == ("ok", "1 entries")
    (folder / "helper.py").write_text(HELPER + "# other\n")
    (one,) = doctor._tuned()
    assert one.state == "missing"
    assert "1 of 1 entries are stale" in one.value
    assert "its source has changed" in one.value
    assert one.remedy == "kiln tune pair.py --problem all"
    changed = {**tuned_file.environment(), "ptxas": "9.9"}
    monkeypatch.setattr(tuned_file, "environment", lambda: changed)
    assert "ptxas was" in next(doctor._tuned()).value


def test_two_tuners_leave_each_other_what_they_have_begun(folder: Path) -> None:
    """The other holds a config: this one does the rest, waits, and takes what the other wrote."""
    case = load(folder)

    class Meanwhile(FakeRunner):
        """As long as it runs, another process measures tile 32."""

        def run(self, jobs):
            yield from super().run(jobs)
            if other is not None and self.done("screen"):
                release()

    tuner = tuning.Tuner(case, tuning.Settings(target="cpu"), FakeRunner(by_tile))
    problem, config = case.problem(), {"tile": 32, "stages": 2}
    key = cases.key_of("tune", case, problem, config, tuner.env, "screen/1 cpu")
    tuner.journal.make_folder()
    holds = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT);"
        "fcntl.lockf(fd, fcntl.LOCK_EX, 1, int(sys.argv[2])); print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", holds, str(folder / ".kiln" / "claims"), str(config_locks.offset_of(key))]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()

    def release() -> None:
        nonlocal other
        record = Record("tune", key, case.name, dict(problem), config, "ok", [1.0, 1.0, 1.0], env=tuner.env)
        record.more = {"place": 2, "at": 1.0, "source": case.digest()}
        tuner.journal.append(record)
        ended, other = other, None
        ended.communicate()

    runner = Meanwhile(by_tile)
    found = tune.tune(case, runner=runner, target="cpu")
    assert sorted(job["config"]["tile"] for job in runner.done("screen")) == [8, 16, 64]
    assert found.best == config


def test_what_is_for_another_gpu_is_on_record_as_skipped(folder: Path) -> None:
    case = load(folder)
    tuning.skip(case, [case.problem()], "it is for sm_100a, and this is sm_90a")
    (record,), _ = tuning.journal_of(case).read()
    assert (record.status, record.config) == ("skipped", None)
    assert "sm_100a" in json.dumps(record.error)


@pytest.mark.parametrize("words", [["--top", "0"], ["--jobs", "-1"], ["--budget", "soon"], ["--memory", "much"]])
def test_options_that_make_no_sense_are_refused(folder: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tune.main([str(folder / "pair.py"), *words])


def test_what_is_wrong_with_the_command_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(folder / "pair.py")
    assert tune.main([where, "--problem", "7"]) == 2
    assert "there is no problem 7" in capsys.readouterr().err
    (folder / "pair.py").write_text(CONTRACT.replace("configs", "other_names"))
    assert tune.main([where]) == 2
    assert "no `configs`" in capsys.readouterr().err
    (folder / "pair.py").write_text(CONTRACT.replace("(8, 16, 32, 64, 128, 256)", "(128, 256, 128)"))
    assert tune.main([where, "--target", "cpu", "--quiet"]) == 1
    printed = capsys.readouterr()
    assert "no config works" in printed.err
    assert "2 invalid" in printed.out
    assert "1 invalid: 128 threads are more than 64" in printed.out


def test_without_a_package_it_is_told_which(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert tune.main([str(folder / "pair.py"), "--ray", "local"]) == 3
    assert "pip install 'kiln-dsl[ray]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(command_line.NotHere, match=r"pip install 'kiln-dsl\[tune\]'"):
        tune.tune(load(folder), runner=FakeRunner(by_tile), target="cpu", search="tpe")


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_times(text: str, value: float) -> None:
    assert tune._seconds(text) == value


@pytest.mark.parametrize(("text", "value"), [("512M", 512 << 20), ("4G", 4 << 30), ("1GiB", 1 << 30), ("7", 7)])
def test_sizes(text: str, value: int) -> None:
    assert tune._bytes(text) == value


def test_where_a_worker_was_when_it_ended() -> None:
    stack = (
        "Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n"
        '  File "/x/kiln/base_dsl/frontend/loops.py", line 3 in unroll\n'
        '  File "/home/u/kernel.py", line 12 in body\n'
        '  File "/x/kiln/base_dsl/dsl.py", line 230 in trace\n'
    )
    assert tuning.compiling(stack)
    assert not tuning.compiling(stack.replace("in trace", "in another"))
    assert tuning.last_place(stack.replace("/x/kiln", str(Path(kiln.__file__).parent))) == ("/home/u/kernel.py", 12)
    assert tuning.last_place("nothing") is None
