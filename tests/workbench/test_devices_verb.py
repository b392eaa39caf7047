"""`kiln devices`: the table, a project's own rows, names that are not there, what needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.hardware import devices, driver, nvml
from kiln.workbench import devices as verb
from kiln.workbench.core.command_line import EXIT


def test_the_table(capsys):
    assert verb.main([]) == EXIT.GOOD
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["device", "code", "SMs"] and any("H200" in line and "4.8" in line for line in lines)
    assert verb.main(["h200", "--json"]) == EXIT.GOOD
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert (row["name"], row["registers"], row["smem_per_block"], row["cluster"]) == ("H200", 65536, 232448, 16)


def test_chips_of_blackwell(capsys):
    assert verb.main(["--json"]) == EXIT.GOOD
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
    code = {
        "B200": "sm_100a", "B300": "sm_103a", "GB300": "sm_103a", "Jetson Thor": "sm_110a",
        "GeForce RTX 5090": "sm_120a", "RTX PRO 6000 Blackwell": "sm_120a", "GB10": "sm_121a",
    }  # fmt: skip
    for name, arch in code.items():
        assert rows[name]["architectures"] == [arch]
        assert rows[name]["tmem_columns"] == (0 if arch > "sm_12" else 512)
    assert verb.main(["B200", "RTX 5090"]) == EXIT.GOOD
    head, b200, rtx = capsys.readouterr().out.splitlines()
    assert "tmem KiB" in head and " 256 " in b200 and " 256 " not in rtx


def test_every_row_has_limits_and_what_a_roofline_needs():
    for model in devices.models().values():
        assert model.source  # of its numbers
        assert model.generation.smem and model.bandwidth_gbs and model.tflops and model.sm_count
        assert devices.model_of(model.name) == model


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"), ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"), ("NVIDIA L4", "L4"), ("Tesla T4", None),
        ("NVIDIA GB300", "GB300"), ("NVIDIA B300 SXM6 AC", "B300"), ("NVIDIA Thor", "Jetson Thor"), ("NVIDIA GB10", "GB10"),
        ("DGX Spark", "GB10"), ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
    ],
)  # fmt: skip
def test_names_that_drivers_give(said, name):
    model = devices.model_of(said)
    assert (model and model.name) == name


def test_unknown_names_are_answered_with_near_ones(capsys):
    assert verb.main(["H20"]) == EXIT.BAD_USE
    assert "did you mean H200?" in capsys.readouterr().err
    assert verb.main(["zzz"]) == EXIT.BAD_USE
    assert "there are: A100" in capsys.readouterr().err


def own_table(folder: Path, rows: object) -> None:
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "devices.json").write_text(json.dumps(rows))
    devices.models.cache_clear()


def test_a_project_has_rows_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new = {"name": "X1", "architectures": ["sm_90a"], "sm_count": 10, "l2_mib": 1, "bandwidth_gbs": 100}
    own_table(tmp_path, [new, {"name": "H200", "bandwidth_gbs": 4500}])
    assert devices.model_of("X1").sm_count == 10  # type: ignore[union-attr]
    assert devices.model_of("H200").bandwidth_gbs == 4500 and devices.model_of("H200").l2_mib == 60  # type: ignore[union-attr]
    for rows, said in (
        ([{"name": "X1", "architecture": ["sm_90a"]}], "X1 has 'architecture'; did you mean 'architectures'?"),
        ([{"name": "X1"}], "X1: missing 3 required positional arguments: 'architectures'"),
        ({"X1": {}}, "no list of objects with a name"),
    ):
        own_table(tmp_path, rows)
        assert verb.main([]) == EXIT.BAD_USE
        assert said in capsys.readouterr().err


def test_least_times():
    model = devices.models()["H200"]
    assert model.least_us(989.4e6, 0, "f16") == pytest.approx(1.0)
    assert model.least_us(0, 4.8e6, "f16") == pytest.approx(1.0) and model.least_us(
        989.4e6, 9.6e6, "bf16"
    ) == pytest.approx(2.0)
    assert model.least_us(66.9e6, 0, "f32") == pytest.approx(1.0)
    assert model.least_us(494.7e6, 0, "f32", most=True) == pytest.approx(1830 / 1980), "by tf32, at the highest clock"
    assert model.least_us(0, 4.8e6, "f16", most=True) == 0.0, "it may all be in the L2 cache"
    assert model.least_us(1e9, 0, "f3") is None and model.least_us(0, 0, "f16") is None


@pytest.mark.parametrize("words", [["measure"], ["lock"], ["lock", "1500"], ["unlock"]])
def test_without_a_gpu_it_cannot_be_done(words, monkeypatch, capsys):
    monkeypatch.setattr(driver, "available", lambda: False)
    assert verb.main(words) == EXIT.NOT_HERE
    assert "there is no GPU 0 here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["lock", "fast"], ["unlock", "now"], ["measure", "it"]])
def test_bad_words(words):
    assert verb.main(words) == EXIT.BAD_USE


class Refusing:
    """A GPU whose clock only an administrator may hold."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def base_clock(self):
        return 1500

    def highest_clock(self):
        return 1980

    def lock(self, mhz):
        raise nvml.NvmlError("Insufficient Permissions", 4)

    unlock = lock


def test_without_the_right_an_administrators_command_is_told(monkeypatch, capsys):
    monkeypatch.setattr(verb, "here", lambda: {0: "NVIDIA H200"})
    monkeypatch.setattr(driver, "uuid", lambda number: "GPU-1")
    monkeypatch.setattr(nvml, "Gpu", Refusing)
    assert verb.main(["lock"]) == EXIT.NOT_HERE
    assert "sudo nvidia-smi -i GPU-1 --lock-gpu-clocks=1500,1500" in capsys.readouterr().err


def test_what_was_measured_is_shown(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(verb, "here", lambda: {0: "NVIDIA H200"})
    monkeypatch.setattr(driver, "uuid", lambda number: "GPU-1")
    monkeypatch.setattr(driver, "set_device", lambda number: 0)
    monkeypatch.setattr(verb.cache_folder, "directory", lambda: str(tmp_path))
    monkeypatch.setattr(verb, "measure_ceilings", lambda: {"copy TB/s": 4.23, "name": "NVIDIA H200"})
    assert verb.main([]) == EXIT.GOOD and "not measured yet" in capsys.readouterr().out
    assert verb.main(["measure"]) == EXIT.GOOD and verb.main(["H200"]) == EXIT.GOOD
    out = capsys.readouterr().out
    assert "*0 NVIDIA H200: copy TB/s 4.23." in out and "H200 *0" in out
