"""Runners: whatever a job does is an outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kiln.workbench.core.runners import InfrastructureLost, Inline, Job, Local

JOBS = "workbench_jobs"


def job(name: str, **more) -> Job:
    options = {each: more.pop(each) for each in ("timeout", "memory", "env", "needs_gpu", "tag") if each in more}
    return Job(f"{JOBS}:{name}", more, **options)


def alive(pid: int) -> bool:
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(fields) and fields[0] != "Z"


def processes(parent: int) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        fields = _text(file).rpartition(")")[2].split()
        if fields and fields[0] != "Z" and int(fields[1]) == parent:
            found.append(int(file.parent.name))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_every_end_of_a_job_is_an_outcome() -> None:
    expected = {
        "raise": ("error", "no"),
        "leave": ("error", "3"),
        "abort": ("crash", "SIGABRT"),
        "segfault": ("crash", "SIGSEGV"),
        "exit": ("crash", "exit status 0"),
        "hang": ("timeout", "within 1.5 s"),
        "eat": ("oom", "150 MiB are allowed"),
        "memory error": ("oom", "all of it"),
        "no json": ("error", "not JSON serializable"),
        "write to the pipes": ("crash", "exit status 1"),
    }
    jobs = [job("fail", how=how, tag=how, timeout=1.5, memory=150 << 20) for how in expected]
    jobs.insert(3, job("add", a=1, b=2))
    before = set(processes(os.getpid()))
    with Local(jobs=2, gpus=[]) as runner:
        found = {outcome.job.tag: outcome for outcome in runner.run(jobs)}
    assert found[None].result == 3
    for how, (status, said) in expected.items():
        assert found[how].status == status, how
        assert said in found[how].error["message"], how
        if how != "write to the pipes":
            assert found[how].stderr.startswith(f"about to {how}\non the way out\n")
        if how in ("abort", "segfault", "hang"):  # where it was
            assert "workbench_jobs.py" in found[how].stderr
    assert "workbench_jobs.py" in found["raise"].error["file"]
    assert set(processes(os.getpid())) <= before
    started = f"sleep\x001000.{os.getpid()}"  # by the job that hangs
    assert not [file for file in Path("/proc").glob("[0-9]*/cmdline") if _text(file).startswith(started)]


def test_a_worker_serves_many_jobs_and_is_not_blamed_for_those_before() -> None:
    with Local(gpus=[]) as runner:
        found = [outcome.result for outcome in runner.run([job("count"), job("count")])]
        assert [number for number, _ in found] == [1, 2]
        assert len({pid for _, pid in found}) == 1
        # It ends a worker that others used, and is well in one of its own.
        [outcome] = runner.run([job("fail_after_others", how="abort")])
        assert (outcome.status, outcome.result) == ("ok", "good")
        # One that fails there, too, is not tried a third time.
        [first, outcome] = runner.run([job("count"), job("fail", how="abort")])
        assert (first.result[0], outcome.status) == (2, "crash")
        [outcome] = runner.run([job("count", env={"SOME": "1"})])
        assert outcome.result[0] == 1


def test_jobs_that_need_a_gpu_are_skipped_where_there_is_none() -> None:
    [outcome] = Local(gpus=[]).run([job("add", a=1, b=2, needs_gpu=True)])
    assert outcome.status == "skipped"


def test_workers_that_cannot_start_end_the_run() -> None:
    with Local(gpus=[]) as runner, pytest.raises(InfrastructureLost, match="three workers in a row could not start"):
        list(runner.run([job("add", a=1, b=2, env={"PYTHONHOME": "/nowhere"})]))


def test_in_this_process() -> None:
    good, bad = Inline().run([job("add", a=1, b=2), job("fail", how="raise")])
    assert (good.status, good.result) == ("ok", 3)
    assert (bad.status, (bad.error or {})["type"], (bad.error or {})["message"]) == ("error", "ValueError", "no")


PROGRAM = f"""
from kiln.workbench.core.runners import Job, Local
with Local(gpus=[]) as runner:
    for outcome in runner.run([Job("{JOBS}:wait_for", {{"file": "pid"}})]):
        print(outcome)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_c18_no_worker_outlives_the_one_who_asked(how: signal.Signals, tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL
    )
    file = tmp_path / "pid"
    try:
        while not (file.exists() and file.read_text()):
            assert program.poll() is None
            time.sleep(0.02)
        worker = int(file.read_text())
        assert alive(worker)
        program.send_signal(how)
        program.wait(2.0)
        end = time.monotonic() + 2.0
        while alive(worker):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        program.kill()
        program.wait()
