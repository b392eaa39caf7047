"""`kiln tune` on the CPU target, in real workers, of configs that do what must not lose the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest

import kiln
from kiln.workbench.core.records import Journal
from kiln.workbench.tune import cli as tune

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
OPTIONS = ("--target", "cpu", "--jobs", "2", "--timeout", "6", "--memory", "1G")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(str(faults.__file__), tmp_path / "faults.py")
    return tmp_path


def last_statuses(folder: Path) -> dict[str, str]:
    records, torn = Journal(folder / ".kiln").read()
    assert torn == 0
    return {record.config["fault"]: record.status for record in records if record.config}


def processes_with(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return [pid for pid in found if int(pid) != os.getpid()]


@pytest.mark.quick(0)
def test_c5_ten_faults_are_ten_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KILN_TEST_MARK", str(folder))
    assert tune.main([str(folder / "faults.py"), *OPTIONS]) == 0
    assert last_statuses(folder) == faults.STATUSES
    (entry,) = json.loads((folder / "tuned.json").read_text())["entries"]
    assert entry["config"] == {"fault": "good"}
    printed = capsys.readouterr().out
    assert "it ended its process by SIGSEGV (faults.py:" in printed
    assert processes_with(str(folder)) == []


def measured(folder: Path) -> list[str]:
    """The configs that were measured to the end, one for each time."""
    records, _ = Journal(folder / ".kiln").read()
    return sorted(r.config["fault"] for r in records if r.status == "ok" and r.config)


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "kiln", "tune", str(folder / "faults.py"), *OPTIONS]
    env = {**os.environ, "PYTHONPATH": str(Path(kiln.__file__).parents[1])}
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, env=env)


def lines(folder: Path) -> int:
    return len(Journal(folder / ".kiln").read()[0])


GOOD = ("good", "slow", "wrong", "raises")


@pytest.fixture
def quick(folder: Path) -> Path:
    """The contract with those configs that take no time."""
    text = (folder / "faults.py").read_text()
    (folder / "faults.py").write_text(text.replace("FAULTS = tuple(STATUSES)", f"FAULTS = {GOOD}"))
    return folder


@pytest.mark.parametrize("after", range(9) if LONG else [5])
def test_c6_killed_after_some_records_it_goes_on(quick: Path, after: int) -> None:
    """Four configs: four are compiled, four screened, two compared. Killed in the middle of a job, nothing is done twice."""
    first = start(quick)
    while lines(quick) < after and first.poll() is None:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert tune.main([str(quick / "faults.py"), *OPTIONS, "--quiet"]) == 0
    assert measured(quick) == ["good", "slow"]
    assert last_statuses(quick) == {fault: faults.STATUSES[fault] for fault in GOOD}
    (entry,) = json.loads((quick / "tuned.json").read_text())["entries"]
    assert entry["config"] == {"fault": "good"}


@pytest.mark.skipif(not LONG, reason="KILN_LONG_TESTS=1")
def test_c7_two_tuners_at_a_time_measure_nothing_twice(quick: Path) -> None:
    both = [start(quick), start(quick)]
    assert [one.wait() for one in both] == [0, 0]
    assert measured(quick) == ["good", "slow"]
    keys = [record.key for record in Journal(quick / ".kiln").read()[0]]
    assert len(keys) == len(set(keys))


@pytest.mark.skipif(not LONG, reason="KILN_LONG_TESTS=1")
def test_c18_interrupted_it_ends_at_once_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_TEST_MARK", str(folder))
    one = start(folder)
    while lines(folder) < 3:
        time.sleep(0.01)
    one.send_signal(signal.SIGINT)
    assert one.wait(5) == 130
    time.sleep(0.2)
    assert processes_with(str(folder)) == []
