"""`kiln bench`: turns, tables, records, gates, revisions, what fails, and what is said without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kiln import workbench as wb
from kiln.hardware import devices
from kiln.measure.measurement import Measurement
from kiln.measure.statistics import Interval
from kiln.workbench.bench import cli as bench
from kiln.workbench.bench import jobs as bench_jobs
from kiln.workbench.core import command_line
from kiln.workbench.core.command_line import EXIT
from kiln.workbench.core.records import Journal
from kiln.workbench.core.runners import Inline, Outcome
from kiln.workbench.profile import cli as profile
from kiln.workbench.profile import jobs as profile_jobs
from kiln.workbench.verify.check import Result
from kiln.workbench.verify.verdicts import Verdict

CONTRACT = """
import numpy as np

def kernel_fn(x):
    return x * SLOWER

def reference_fn(x):
    return x * 2

def get_inputs(n=64, dtype="float32"):
    return [np.arange(n, dtype=dtype)]

def flops_bytes(n, dtype):
    return n, 8 * n

baselines = {"raises": lambda x: x.no_such_thing(), "plus": lambda x: x + x}
"""
WORDS = ["--target", "cpu", "--quick", "--no-verify", "--quiet"]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(bench, "Local", lambda *_, **__: Inline())
    monkeypatch.setattr(bench_jobs.measurement, "QUICK", bench_jobs.measurement.QUICK._replace(warmup=0.0, batch=1e-4))


@pytest.fixture
def contract(tmp_path: Path) -> str:
    (tmp_path / "double.py").write_text(CONTRACT.replace("SLOWER", "2"))
    return str(tmp_path / "double.py")


def test_c10_on_the_cpu_target_times_are_told_to_be_its(contract, capsys, tmp_path):
    assert bench.main([contract, *WORDS, "--n", "32", "--against", "reference,plus"]) == EXIT.GOOD
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "double n=32 dtype=float32"
    assert [line.split()[0] for line in lines[2:5]] == ["kernel", "reference", "plus"]
    assert "this says nothing about a GPU" in lines[-1] and "MHz" not in lines[1]
    ((record,), torn) = Journal(tmp_path / ".kiln").read()
    assert (record.kind, record.status, record.protocol, torn) == ("bench", "ok", "cpu-wall", 0)
    assert record.us is not None and record.us[0] <= record.us[1] <= record.us[2] and record.n > 0
    assert set(record.more["against"]) == {"reference", "plus"} and len(record.more["against"]["plus"]["ratio"]) == 3
    assert "--n=32" in record.again and "--target=cpu" in record.again


def test_c10_without_a_gpu_there_is_an_estimate_that_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("KILN_TARGET", raising=False)
    monkeypatch.setattr(bench.driver, "available", lambda: False)
    found = {"kernel": "k", "grid": [8, 1, 1], "registers": 24, "static_smem": 0, "dynamic_smem": 64, "occupancy": 0.5}
    static = {"dtype": "f32", "kernels": [{**found, "limited_by": "registers"}]}
    monkeypatch.setattr(profile_jobs, "static", lambda **_: static)
    (tmp_path / "double.py").write_text(CONTRACT.replace("SLOWER", "2"))
    assert bench.main([str(tmp_path / "double.py"), "--no-verify", "--n", "1048576"]) == EXIT.NOT_HERE
    said = capsys.readouterr()
    assert "ESTIMATE for H100 SXM, nothing was measured: at least 2.504 us by the roofline" in said.out
    assert "24 registers" in said.out and "nothing was timed" in said.err
    assert Journal(tmp_path / ".kiln").read() == ([], 0), "an estimate is no record"
    assert bench.main([str(tmp_path / "double.py"), "--against", "cublas"]) == EXIT.BAD_USE
    (tmp_path / "other.py").write_text(CONTRACT.replace("SLOWER", "2"))
    both = [str(tmp_path / name) for name in ("double.py", "other.py")]
    assert bench.main([*both, "--no-verify", "--n", "1048576"]) == EXIT.NOT_HERE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "n=1048576" in line] == ["double", "other"]
    assert "  not predicted: it launches no kernel" in lines


def prediction(us, kernel="k"):
    times = {
        "burst": {"us": us, "low": 0.9 * us, "high": 1.1 * us},
        "sustained": {"us": 2 * us, "low": us, "high": 3 * us},
    }
    return {
        "kernel": kernel,
        "device": "H200",
        "busy": {},
        "limiter": "",
        "cycles": 9.0,
        "ctas_per_sm": 1,
        "waves": 1.0,
        **times,
    }


def test_without_a_gpu_the_prediction_stands_for_the_roofline(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("KILN_TARGET", raising=False)
    monkeypatch.setattr(bench.driver, "available", lambda: False)
    monkeypatch.setattr(profile_jobs, "static", lambda **_: {"dtype": "f32", "kernels": []})
    asked = []

    def predicted(**arguments):
        asked.append((arguments["device"], arguments["what_if"], arguments["problem"]["n"]))
        return {"version": "H200 1", "predictions": [prediction(3.0), prediction(4.0)], "trace": None, "files": {}}

    monkeypatch.setattr(profile_jobs, "predicted", predicted)
    (tmp_path / "double.py").write_text(CONTRACT.replace("SLOWER", "2"))
    words = [str(tmp_path / "double.py"), "--no-verify", "--n", "1048576", "--json", str(tmp_path / "e.json")]
    assert bench.main(words) == EXIT.NOT_HERE
    said = capsys.readouterr()
    assert (
        "ESTIMATE for H200, nothing was measured: predicted 7 us [6.3, 7.7]" in said.out and "at least" not in said.out
    )
    assert asked == [("H200", False, 1048576)]
    (written,) = json.loads((tmp_path / "e.json").read_text())
    assert written["predicted_us"] == pytest.approx([6.3, 7.0, 7.7]) and written["estimate_us"] == pytest.approx(
        2.504, rel=1e-3
    )
    ((record,), _) = Journal(tmp_path / ".kiln").read()
    assert (record.status, record.us, record.more["predicted_by"]) == ("predicted", None, "H200 1")
    assert bench.main([*words, "--steady"]) == EXIT.NOT_HERE
    assert "predicted 14 us [7, 21]" in capsys.readouterr().out


def test_beside_a_measurement_the_prediction_says_by_how_much_it_missed(contract, monkeypatch, capsys):
    """As on a GPU that the clock knows: the times are made up."""
    own = bench.Benched(wb.load(contract), {"n": 64}, None, types.SimpleNamespace(), {}, "f32", None, None)
    monkeypatch.setattr(command_line, "on_gpu", lambda: True)
    monkeypatch.setattr(bench.driver, "available", lambda: True)
    monkeypatch.setattr(bench.driver, "current_device", lambda: 0)
    monkeypatch.setattr(bench.driver, "device_name", lambda _: "NVIDIA H200")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    answer = {"version": "H200 1", "predictions": [prediction(3.0)], "trace": None, "files": {}}
    monkeypatch.setattr(profile_jobs, "predicted", lambda **_: answer)
    args = types.SimpleNamespace(seed=0, steady=False, quiet=True, l2="cold")
    made = bench._with_prediction(own, args)
    assert made.predicted is not None and made.predicted.us[1] == 3.0
    monkeypatch.setattr(bench.driver, "device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    assert bench._with_prediction(own, args) is own
    monkeypatch.setattr(bench.driver, "device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(profile_jobs, "predicted", lambda **_: 1 / 0)
    assert bench._with_prediction(own, args) is own


@pytest.mark.parametrize(("status", "exit_status"), [("timeout", 3), ("oom", 3), ("wrong", 1), ("crash", 1)])
def test_without_a_gpu_checks_that_do_not_finish_are_no_failure(status, exit_status, contract, capsys, monkeypatch):
    monkeypatch.delenv("KILN_TARGET", raising=False)
    monkeypatch.setattr(bench.driver, "available", lambda: False)
    monkeypatch.setattr(profile_jobs, "static", lambda **_: {"dtype": "f32", "kernels": []})

    def verify(case, **_):
        verdict = Verdict(case, "CPU target")
        verdict.checks.append(Result("normal", {"n": 64}, 0, "", status, "it did not end within 120 s"))
        return verdict

    monkeypatch.setattr(bench.verify, "verify", verify)
    assert bench.main([contract]) == exit_status
    said = capsys.readouterr()
    assert "it did not end within 120 s" in said.out
    if exit_status == EXIT.NOT_HERE:
        assert "ESTIMATE" in said.out and "nothing was timed. Results were not checked." in said.err
    else:
        assert "ESTIMATE" not in said.out and "it has to be right first" in said.err


def test_a_kernel_for_another_architecture_is_not_measured_here(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("KILN_TARGET", raising=False)
    monkeypatch.setattr(bench.driver, "available", lambda: False)
    (tmp_path / "double.py").write_text(CONTRACT.replace("SLOWER", "2") + "\narch = 'sm_90a'\n")
    assert bench.main([str(tmp_path / "double.py"), "--arch", "sm_80"]) == EXIT.NOT_HERE
    assert "double is for sm_90a, and this is sm_80: nothing was measured" in capsys.readouterr().err


def test_what_raises_is_left_out_and_told(contract, capsys, tmp_path):
    assert bench.main([contract, *WORDS]) == EXIT.GOOD
    assert "error: 'numpy.ndarray' object has no attribute 'no_such_thing'" in capsys.readouterr().out
    (record,) = Journal(tmp_path / ".kiln").read()[0]
    assert record.status == "ok" and record.more["against"]["raises"]["status"] == "error"
    assert {"reference", "plus"} <= set(record.more["against"])


def test_a_kernel_that_fails_is_a_record(tmp_path, capsys):
    (tmp_path / "bad.py").write_text(CONTRACT.replace("SLOWER", "nothing"))
    assert bench.main([str(tmp_path / "bad.py"), *WORDS]) == EXIT.FAILED
    assert "error: name 'nothing' is not defined" in capsys.readouterr().out
    (record,) = Journal(tmp_path / ".kiln").read()[0]
    assert record.status == "error" and record.us is None and record.error and record.error["line"] == 5


def test_unknown_names_are_bad_use(contract, capsys):
    assert bench.main([contract, *WORDS, "--against", "cublas"]) == EXIT.BAD_USE
    assert (
        "--against cublas: double can be compared with reference, torch.compile, raises, plus, all"
        in capsys.readouterr().err
    )


def test_two_cases_and_a_gate(tmp_path, contract, capsys):
    (tmp_path / "slow.py").write_text(CONTRACT.replace("x * SLOWER", "sum(x for _ in range(400)) / 200"))
    words = [contract, str(tmp_path / "slow.py"), *WORDS, "--against", "none"]
    assert bench.main([*words, "--gate", "2"]) == EXIT.GOOD
    out = capsys.readouterr().out
    assert "slower" in out and [line.split()[0] for line in out.splitlines()[2:4]] == ["kernel", "slow"]
    assert bench.main([words[1], words[0], *words[2:], "--gate", "1"]) == EXIT.FAILED
    assert "--gate 1.0: less than 1 times as fast as double" in capsys.readouterr().err


def test_since_a_revision(contract, tmp_path, capsys):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init")
    git("add", "double.py")
    git("commit", "-m", "first")
    Path(contract).write_text(CONTRACT.replace("x * SLOWER", "sum(x for _ in range(400)) / 200"))
    assert bench.main([contract, *WORDS, "--against", "none", "--since", "HEAD"]) == EXIT.GOOD
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kernel of HEAD")]
    assert "faster" in line
    assert bench.main([contract, *WORDS, "--since", "nowhere"]) == EXIT.BAD_USE
    assert "--since nowhere: git rev-parse" in capsys.readouterr().err


def test_outputs_of_timed_calls_are_checked(tmp_path, capsys):
    """It computes as long as nobody measures it."""
    cheats = CONTRACT.replace("return x * SLOWER", "calls.append(1)\n    return x * (2 if len(calls) < 3 else 0)")
    (tmp_path / "cheats.py").write_text(cheats.replace("def kernel_fn", "calls = []\n\ndef kernel_fn"))
    assert bench.main([str(tmp_path / "cheats.py"), *WORDS, "--against", "none"]) == EXIT.FAILED
    assert "outputs of timed calls are not those of a call that is not timed" in capsys.readouterr().out
    assert Journal(tmp_path / ".kiln").read()[0][0].status == "cheat"


def measured(us: float, flags: list[str] = [], error: str | None = None) -> Measurement:  # noqa: B006
    return Measurement(us, us, us, [us] * 9, "graph-flush/1", flags=flags, floor=2.0, error=error)


def benched(*found: Measurement) -> bench.Benched:
    names = [bench.KERNEL, "reference"]
    ratios = {name: Interval(1.0, 1.0, 1.0) for name in names[1 : len(found)]}
    comparison = bench.Comparison(dict(zip(names, found)), ratios)
    case: Any = types.SimpleNamespace(name="some")
    return bench.Benched(case, {"n": 1}, None, comparison, {}, "f16", (989.4e6, 9.6e6), devices.models()["H200"])


@pytest.mark.parametrize(
    ("found", "strict", "status"),
    [
        ([measured(9.0, ["too-fast"])], False, EXIT.FAILED), ([measured(9.0)], True, EXIT.GOOD), ([measured(9.0, ["power-cap"])], True, EXIT.UNTRUSTED),
        ([measured(9.0, ["power-cap"])], False, EXIT.GOOD), ([measured(9.0, error="1 compilations")], True, EXIT.FAILED),
        ([measured(9.0), measured(9.0, ["noisy"])], True, EXIT.UNTRUSTED), ([measured(9.0, ["near-floor"])], True, EXIT.GOOD),
    ],
)  # fmt: skip
def test_g5_strict(found, strict, status):
    args = types.SimpleNamespace(gate=None, strict=strict)
    assert bench._status(benched(*found), args) == status


def test_rates_and_flags_are_shown(capsys):
    made = benched(measured(4.0, ["near-floor"]))
    assert made.rates(measured(4.0)) == pytest.approx({"tflops": 247.35, "tbs": 2.4, "roofline": 0.5})
    bench.show(made, types.SimpleNamespace(json=None))
    head, row, last = capsys.readouterr().out.splitlines()[1:]
    assert "TFLOP/s" in head and "50%" in row and row.endswith("near-floor") and "floor 2.00 us" in last


class Scripted:
    """A runner that answers by what is asked."""

    def __init__(self, answers) -> None:
        self.answers, self.asked = answers, []

    def run(self, jobs):
        for job in jobs:
            function, name = job.do.partition(":")[2], job.arguments["name"]
            self.asked.append((function, name))
            status, result, error = self.answers(function, name, self.asked)
            yield Outcome(job, status, result, error)


def test_a_candidate_that_kills_its_worker_is_left_out_and_the_others_begin_anew(contract):
    found = measured(5.0).to_json()

    def answers(function, name, asked):
        if (function, name) == ("turn", "reference") and asked.count(("turn", "kernel")) >= 2:
            return "crash", None, {"type": "crash", "message": "it ended its process by SIGSEGV"}
        made = {"prepare": {"dtype": "f32"}, "turn": [5.0], "result": {"measurement": found, "wrong": None}}
        return "ok", made.get(function), None

    runner: Any = Scripted(answers)
    case = wb.load(contract)
    kernel, other = (
        bench.Candidate("kernel", case, "kernel", None),
        bench.Candidate("reference", case, "reference", None),
    )
    done = bench.timed([kernel, other], case.problem(), runner=runner)
    assert done.failed["reference"]["status"] == "crash" and done.comparison is not None
    assert list(done.comparison.measurements) == ["kernel"]
    assert [asked for asked in runner.asked if asked[0] == "prepare"] == [
        ("prepare", "kernel"),
        ("prepare", "reference"),
        ("prepare", "kernel"),
    ]


def test_a_worker_that_is_gone_is_begun_with_once_more(contract):
    runner: Any = Scripted(
        lambda function, name, asked: (
            ("ok", {"dtype": None}, None)
            if function == "prepare"
            else ("error", None, {"type": "WorkerEnded", "message": "ended"})
        )
    )
    case = wb.load(contract)
    done = bench.timed([bench.Candidate("kernel", case, "kernel", None)], case.problem(), runner=runner)
    assert done.comparison is None and done.failed["kernel"]["status"] == "crash"
    assert runner.asked.count(("prepare", "kernel")) == 2


def test_python_gives_a_comparison(contract):
    found = wb.load(contract).bench({"n": 8}, against=["plus"], runner=Inline(), rounds=3, quick=True)
    assert list(found.measurements) == ["kernel", "plus"] and found.verdict in ("same", "faster", "slower")


def test_fingerprints():
    x = np.arange(6, dtype=np.float32)
    assert bench_jobs.fingerprint(x) == bench_jobs.fingerprint((x.copy(),)) != bench_jobs.fingerprint(x + 1)
    assert bench_jobs.fingerprint(x) != bench_jobs.fingerprint(x.reshape(2, 3))
    assert bench_jobs.fingerprint({"a": x, "b": x[:2]}) == bench_jobs.fingerprint({"b": x[:2], "a": x})
    torch = pytest.importorskip("torch")
    assert bench_jobs.fingerprint(torch.ones(3, dtype=torch.bfloat16)) != bench_jobs.fingerprint(torch.ones(3))
    assert [bench_jobs.dtype_of([torch.ones(1, dtype=t)]) for t in (torch.bfloat16, torch.int64)] == ["bf16", None]


def test_json(contract, tmp_path):
    assert bench.main([contract, *WORDS, "--against", "none", "--json", str(tmp_path / "o.json")]) == EXIT.GOOD
    (found,) = json.loads((tmp_path / "o.json").read_text())
    assert found["case"] == "double" and found["status"] == "ok"
    assert command_line.EXIT.UNTRUSTED == 5


def test_it_is_checked_first_unless_the_journal_knows(contract, monkeypatch, capsys):
    from kiln.workbench.verify import cli as verify

    checked: list[Any] = []

    def verdict(case: Any, problems: Any, **_: Any) -> Any:
        checked.append(problems)
        return types.SimpleNamespace(ok=False)

    monkeypatch.setattr(verify, "verify", verdict)
    words = [word for word in WORDS if word != "--no-verify"]
    assert bench.main([contract, *words]) == EXIT.FAILED
    assert "has to be right first" in capsys.readouterr().err and checked == [[{"n": 64, "dtype": "float32"}]]
    case = wb.load(contract)
    key = bench.key_of("verify", case, case.problem(), None, bench.environment(), verify.PROTOCOL)
    bench.journal_of(case).append(bench.Record("verify", key, "double", {}, None, "ok"))
    assert bench.main([contract, *words, "--against", "none"]) == EXIT.GOOD and len(checked) == 1


@pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="KILN_LONG_TESTS=1")
def test_c18_interrupted_it_ends_at_once_and_leaves_nothing(tmp_path):
    """The kernel never returns."""
    file = tmp_path / "pid"
    waits = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    (tmp_path / "waits.py").write_text(CONTRACT.replace("return x * SLOWER", waits))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "kiln", "bench", "waits.py", *WORDS]
    program = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    while not (file.exists() and file.read_text()):
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    assert program.wait(3) == EXIT.INTERRUPTED
    assert not Path(f"/proc/{file.read_text()}").exists()


@pytest.mark.parametrize("verb", [bench, profile])
def test_a_contract_that_ends_its_process_does_so_in_a_worker(verb, tmp_path, monkeypatch, capsys):
    class Dying(Inline):
        def run(self, jobs):
            for job in jobs:
                yield Outcome(job, "crash", error={"message": "it ended its process by SIGSEGV"}, stderr="last words\n")

    (tmp_path / "ends.py").write_text("raise SystemExit(7)\n")
    monkeypatch.setattr(verb, "Local", lambda *_, **__: Dying())
    assert verb.main([str(tmp_path / "ends.py")]) == EXIT.BAD_USE
    said = capsys.readouterr().err
    assert "cannot be imported (crash): it ended its process by SIGSEGV" in said and "last words" in said


def test_a_contract_that_takes_too_long_to_load_is_told_with_the_load_of_the_machine(tmp_path, monkeypatch, capsys):
    frames = f'  File "{bench.__file__}", line 1 in main\n  File "{tmp_path}/slow.py", line 2 in <module>\n'

    class Slow(Inline):
        def run(self, jobs):
            for job in jobs:
                yield Outcome(job, "timeout", error={"message": "it did not end within 120 s"}, stderr=frames)

    monkeypatch.setattr(bench, "Local", lambda *_, **__: Slow())
    monkeypatch.setattr("os.getloadavg", lambda: (20.4, 0.0, 0.0))
    assert bench.main([str(tmp_path / "slow.py")]) == EXIT.BAD_USE
    said = capsys.readouterr().err
    assert "slow.py was not loaded: it did not end within 120 s; 20 processes want the" in said
    assert 'slow.py", line 2' in said and "bench/cli.py" not in said
