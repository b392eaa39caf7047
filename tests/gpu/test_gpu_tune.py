"""`kiln tune` on a GPU: what kernels do to it, and whether the choice can be repeated."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import gpu_faults
import pytest
import torch

from kiln.workbench import tune
from kiln.workbench.records import Journal


def last(folder: Path) -> dict[str, str]:
    records, torn = Journal(folder / ".kiln").read()
    assert torn == 0
    return {json.dumps(record.config): record.status for record in records if record.config}


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


def tuned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, int]:
    """The entry of tuned.json and how many jobs were run."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    words = ["kiln.kernels:gemm", "--m", "1024", "--n", "1024", "--k", "512", "--top", "8", "--json", "found.json"]
    assert tune.main([*words, "--timeout", "60"]) == 0
    (entry,) = json.loads((folder / "tuned.json").read_text())["entries"]
    return entry, json.loads((folder / "found.json").read_text())["measured"]


def test_g4_a_product_tuned_twice_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, jobs = tuned(tmp_path / "one", monkeypatch)
    second, _ = tuned(tmp_path / "two", monkeypatch)
    assert jobs > 8
    if first["config"] != second["config"]:
        assert first["us"][0] <= 1.005 * second["us"][2]
        assert second["us"][0] <= 1.005 * first["us"][2]
    again, jobs = tuned(tmp_path / "one", monkeypatch)
    assert jobs == 0
    assert again == first
