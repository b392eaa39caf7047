"""`kiln tune` on a GPU: what kernels do to it, and whether the choice can be repeated."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from kiln.workbench.core import loading
from kiln.workbench.core.records import Journal
from kiln.workbench.core.runners import Local
from kiln.workbench.tune import cli as tune
from kiln.workbench.tune.result import Tuning
from kiln.workbench.tune.tuner import Settings, Tuner

torch = pytest.importorskip("torch")
gpu_faults = pytest.importorskip("gpu_faults")

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


def last(folder: Path) -> dict[str, str]:
    records, torn = Journal(folder / ".kiln").read()
    assert torn == 0
    return {json.dumps(record.config): record.status for record in records if record.config}


@pytest.mark.skipif(not LONG, reason="KILN_LONG_TESTS=1: it takes 90 s")
def test_g2_five_faults_among_twenty_good_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(str(gpu_faults.__file__), tmp_path / "gpu_faults.py")
    assert tune.main([str(tmp_path / "gpu_faults.py"), "--timeout", "15"]) == 0
    print(capsys.readouterr().out)
    ended = last(tmp_path)
    faults = {json.loads(config)["fault"]: status for config, status in ended.items() if json.loads(config)["fault"]}
    assert faults == gpu_faults.STATUSES
    assert Counter(ended.values())["ok"] == 20
    x = torch.ones(8, device="cuda")  # the GPU is as it was
    assert (x + x).tolist() == [2.0] * 8


def test_g4_a_product_tuned_twice_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same choice, or one within the interval; with the first journal nothing is measured."""
    case = loading.load("kiln.kernels:gemm")
    problem = case.problem({"m": 1024, "n": 1024, "k": 512})
    monkeypatch.chdir(tmp_path)
    with Local(jobs=8, timeout=60.0) as runner:

        def tuned(name: str) -> Tuning:
            journal = Journal(tmp_path / name)
            found = Tuner(case, Settings(top=4), runner, journal=journal).tune([problem])
            print(found)
            assert not found.notes
            return found

        first, second, again = tuned("one"), tuned("two"), tuned("one")
    assert first.measured == second.measured == 8 + 4 + 1
    assert again.measured == 0
    (one,), (two,) = first.decisions.values(), second.decisions.values()
    assert again.best == one.config
    if one.config != two.config:
        assert one.us[0] <= 1.005 * two.us[2]
        assert two.us[0] <= 1.005 * one.us[2]
