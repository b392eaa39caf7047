"""`kiln doctor` finds what is there, and says what to do about what is not."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base_dsl import packages
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.hardware import driver, toolchain
from kiln.workbench import doctor
from kiln.workbench.core import environment


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_ptxas(root: Path, version: str) -> Path:
    return program(root / "bin" / "ptxas", f"#!/bin/sh\necho 'Cuda compilation tools, release 1.2, V{version}'\n")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No CUDA wheels, no CUDA_HOME, an empty PATH."""
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def test_optional_packages_are_listed_with_what_they_are_for(monkeypatch):
    monkeypatch.setattr(packages, "is_here", lambda name: name == "yaml")
    found = {one.name: one for one in doctor._optional()}
    assert {"torch", "jax", "apache-tvm-ffi", "plotly", "optuna", "PyYAML", "shtab"} <= found.keys()
    assert found["PyYAML"].state == "ok" and "kiln kb check" in found["PyYAML"].value
    assert found["torch"].state == "missing" and found["torch"].remedy.startswith("pip install 'torch")
    assert "kiln report" in found["plotly"].meaning


@pytest.mark.usefixtures("bare")
class TestToolchain:
    def test_nothing_there(self):
        assert [toolchain.find(name) for name in toolchain.TOOLS] == [None] * 2

    def test_wheels_then_home_then_path(self, monkeypatch, tmp_path):
        class Nvidia:
            submodule_search_locations = [str(tmp_path / "nvidia")]

        found = []
        on_path = fake_ptxas(tmp_path / "path", "1.0.1")
        monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
        found.append(toolchain.find("ptxas"))
        monkeypatch.setenv("CUDA_HOME", str(fake_ptxas(tmp_path / "home", "1.0.2").parent.parent))
        found.append(toolchain.find("ptxas"))
        fake_ptxas(tmp_path / "nvidia" / "cu9", "9.0.0")
        fake_ptxas(tmp_path / "nvidia" / "cu13", "13.0.3")
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: Nvidia)
        found.append(toolchain.find("ptxas"))
        assert [(tool.origin, tool.version()) for tool in found if tool] == [
            ("PATH", "1.0.1"),
            ("CUDA_HOME", "1.0.2"),
            ("wheel", "13.0.3"),
        ]

    def test_a_tool_of_the_users_choice(self, monkeypatch, tmp_path):
        mine = fake_ptxas(tmp_path, "4.5.6")
        monkeypatch.setenv("KILN_PTXAS", str(mine))
        tool = toolchain.find("ptxas")
        assert tool is not None
        assert (tool.path, tool.origin, tool.version()) == (mine, "KILN_PTXAS", "4.5.6")
        monkeypatch.setenv("KILN_PTXAS", str(tmp_path / "none"))
        with pytest.raises(DSLRuntimeError, match="KILN_PTXAS is '.*none', which is no program"):
            toolchain.find("ptxas")
        finding = next(f for f in doctor._tools() if f.name == "ptxas")
        assert (finding.state, finding.remedy) == ("broken", "unset it, or name a program")

    def test_what_cannot_be_run_is_not_found(self, monkeypatch, tmp_path):
        fake_ptxas(tmp_path, "1.2.3").chmod(0o644)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        assert toolchain.find("ptxas") is None

    @pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/no/such/shell\n", "#!/bin/sh\necho no number\n"])
    def test_a_tool_that_does_not_tell_its_version(self, monkeypatch, tmp_path, text):
        program(tmp_path / "bin" / "ptxas", text)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        tool = toolchain.find("ptxas")
        assert tool is not None
        assert tool.version() is None


class TestDriver:
    def test_without_a_driver(self, monkeypatch):
        monkeypatch.setattr(driver, "library", lambda: None)
        found = environment.cuda_driver()
        assert found.gpus == []
        assert found.problem is not None
        assert "libcuda.so.1" in found.problem

    def test_a_library_that_is_not_a_driver(self, monkeypatch):
        monkeypatch.setattr(driver, "library", lambda: ctypes.CDLL(None))
        found = environment.cuda_driver()
        assert found.gpus == []
        assert found.problem is not None
        assert "has no cuDeviceGetCount" in found.problem


def by_name(findings):
    return {(finding.group, finding.name): finding for finding in findings}


@pytest.mark.quick(0)
def test_every_problem_comes_with_its_meaning():
    for finding in doctor.examine():
        assert finding.state in ("ok", "missing", "broken")
        assert finding.value
        assert finding.state == "ok" or finding.meaning, finding


@pytest.mark.usefixtures("bare")
def test_missing_tools_come_with_a_command():
    for finding in doctor._tools():
        assert finding.state == "missing"
        assert finding.remedy.startswith("pip install 'nvidia-")


@pytest.mark.parametrize(
    ("version", "state", "said"),
    [
        ("13.4.92", "ok", "H100 SXM (sm_90a), B200 (sm_100a), B300 (sm_103a), Jetson Thor (sm_110a), GeForce RTX 5090"),
        ("12.8.93", "missing", "none of these: B300 (sm_103a), Jetson Thor (sm_110a), GB10 (sm_121a)"),
    ],
)
def test_chips_that_ptxas_compiles_for(monkeypatch, version, state, said):
    tool = toolchain.Tool("ptxas", Path("ptxas"), "PATH")
    monkeypatch.setattr(toolchain.Tool, "version", lambda self: version)
    monkeypatch.setattr(toolchain, "find", lambda name: tool)
    (finding,) = doctor._chips()
    assert finding.state == state and said in finding.value


@pytest.mark.usefixtures("bare")
def test_chips_without_ptxas(monkeypatch):
    assert [*doctor._chips()] == []
    monkeypatch.setenv("KILN_PTXAS", "/no/such/program")
    assert [*doctor._chips()] == []


def test_a_missing_package_comes_with_a_command():
    finding = doctor._package("MLIR bindings", "no_such_bindings", "torch-mlir", "nothing can be compiled")
    assert finding.state == "broken"
    assert "no_such_bindings" in finding.value
    assert finding.remedy.startswith("pip install 'torch-mlir")


def test_requirements_are_those_of_the_distribution(monkeypatch):
    wanted = [
        "torch-mlir==1",
        "torch>=2; extra == 'torch'",
        "ml-dtypes<1,>=0.5",
        "nvidia-cuda-nvcc<14,>=13 ; extra == 'cuda'",
    ]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: wanted)
    assert doctor.requirement("torch") == "torch>=2"
    assert doctor.requirement("ml_dtypes") == "ml-dtypes<1,>=0.5"
    assert doctor.requirement("nvidia-cuda-nvcc") == "nvidia-cuda-nvcc<14,>=13"
    assert doctor.requirement("rich") == "rich"


def test_a_gpu_is_described(monkeypatch):
    one = environment.Gpu("Some GPU", "sm_90", 140 * 2**30, 132)
    findings = by_name(doctor._gpus(environment.Driver(None, "580.1", "13.0", [one])))
    assert findings["gpu", "driver"].value == "580.1, CUDA 13.0"
    assert findings["gpu", "device 0"].value == "Some GPU, sm_90, 132 SMs, 140 GiB"


def test_a_driver_that_shows_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = by_name(doctor._gpus(environment.Driver(None, "580.1", "13.0", [])))["gpu", "devices"]
    assert finding.state == "missing"
    assert finding.remedy == "unset CUDA_VISIBLE_DEVICES, which is ''"


@pytest.mark.parametrize(
    ("outcome", "state", "said"),
    [
        ((0, "42\n", ""), "ok", "compiled and ran"),
        ((0, "41\n", ""), "broken", "41"),
        ((1, "", "Traceback\nKilnError: no luck\n"), "broken", "KilnError: no luck"),
        ((-11, "", ""), "broken", "exit status -11"),
    ],
)
def test_the_cpu_target_is_believed_only_on_proof(monkeypatch, outcome, state, said):
    monkeypatch.setattr(doctor, "_exists", lambda module: True)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, *outcome))
    finding = doctor._cpu_target()
    assert finding.state == state
    assert said in finding.value


def test_a_probe_that_hangs(monkeypatch):
    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(doctor, "_exists", lambda module: True)
    monkeypatch.setattr(subprocess, "run", hang)
    assert doctor._cpu_target().state == "broken"


@pytest.mark.skipif(not packages.is_here("torch"), reason="there is no PyTorch")
@pytest.mark.parametrize(
    ("printed", "state", "said"),
    [
        ('{"torch": "9.9", "without": {}}', "ok", "torch 9.9: all that native code uses"),
        ('{"torch": "9.9", "without": {"torch records": "Python reads tensors (offset 8)"}}', "missing", "(offset 8)"),
        ("", "missing", "could not be looked at"),
    ],
)
def test_internals_of_torch_that_are_not_used_are_named(monkeypatch, printed, state, said):
    monkeypatch.setattr(doctor, "_run", lambda module: subprocess.CompletedProcess([], 0, printed, ""))
    (finding,) = doctor._torch()
    assert (finding.group, finding.state) == ("torch", state) and said in finding.value


@pytest.mark.quick(0)
def test_json_and_exit_status_agree(child):
    done = child("-m", "kiln", "doctor", "--json")
    report = json.loads(done.stdout)["result"]
    cpu = next(one for one in report["findings"] if (one["group"], one["name"]) == ("targets", "cpu"))
    assert report["works"] == (cpu["state"] == "ok") == (done.returncode == 0)


@pytest.mark.parametrize("terminal", ["", "1"])
def test_the_table_names_everything(terminal, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", terminal)
    findings = [
        doctor.Finding("versions", "python", "ok", "3.11"),
        doctor.Finding("toolchain", "ptxas", "missing", "nowhere", "no cubins", "pip install 'x[y]'"),
    ]
    doctor.show(findings)
    table = capsys.readouterr().out
    for word in ("versions", "python", "3.11", "ptxas", "missing", "no cubins.", "Try: pip install 'x[y]'"):
        assert word in table


def test_a_path_stays_whole_where_the_report_is_piped(capsys):
    path = "/folder" * 20
    doctor.show([doctor.Finding("toolchain", "ptxas", "ok", path)])
    assert path in capsys.readouterr().out


def test_long_names_do_not_run_into_what_is_said(capsys):
    doctor.show([doctor.Finding("tuned", "some/folder/tuned.json", "missing", "1 entry", "it is old", "do it again")])
    assert capsys.readouterr().out.split("\n") == [
        "tuned      missing  some/folder/tuned.json  1 entry",
        " " * 44 + "it is old. Try: do it again",
        "",
    ]


def test_configs_for_other_gpus_are_no_problem(tmp_path, monkeypatch):
    """In a fresh clone there are entries for a GPU that is not here: nobody can measure them anew."""
    entry = {
        "case": "c",
        "file": "c.py",
        "gpu": "NVIDIA H200",
        "problem": {"n": 1},
        "config": {},
        "us": 1.0,
        "env": {"kiln": "older"},
    }
    monkeypatch.setattr(doctor.tunings, "read", lambda _: [entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.json").write_text("{}")
    for gpu, state in ((None, "ok"), ("NVIDIA A100", "ok"), ("NVIDIA H200", "missing")):
        monkeypatch.setattr(
            doctor.tuned_file, "environment", lambda gpu=gpu: {"kiln": "now", "ptxas": None, "driver": None, "gpu": gpu}
        )
        (found,) = doctor._tuned()
        assert found.state == state
        assert ("NVIDIA H200" in found.value) == (state == "ok")


def test_the_report_needs_no_rich(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    doctor.show([doctor.Finding("gpu", "driver", "missing", "none", "no GPU", "get one")])
    assert capsys.readouterr().out.split("\n") == [
        "gpu        missing  driver          none",
        " " * 36 + "no GPU. Try: get one",
        "",
    ]


def test_the_cache_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    assert doctor._cache().value.startswith("0 files")
    (tmp_path / "cache" / "ab").mkdir()
    (tmp_path / "cache" / "ab" / "one.kiln").write_bytes(b"x" * 2**20)
    (tmp_path / "cache" / "ab" / "mine.txt").write_bytes(b"not the cache's")
    assert doctor._cache().value.startswith("1 files, 1.0 MiB")
    (tmp_path / "cache").chmod(0o777)
    found = doctor._cache()
    assert (found.state, "others can write" in found.value) == ("missing", True)


@pytest.mark.quick(0)
def test_the_report_survives_a_compiler_that_cannot_be_imported(monkeypatch):
    for module in ("kiln.base_dsl", "kiln.base_dsl.settings", "kiln.mlir"):
        monkeypatch.setitem(sys.modules, module, None)
    findings = by_name(doctor.examine())
    assert findings["versions", "MLIR bindings"].state == "broken"
    assert findings["cache", "compiled code"].state == "broken"


@pytest.mark.quick(0)
def test_which_cutlass_wins(child, tmp_path):
    def states():
        report = json.loads(child("-m", "kiln", "doctor", "--json").stdout)["result"]
        return [(one["name"], one["state"], one["value"]) for one in report["findings"] if one["group"] == "cutlass"]

    ((name, state, value),) = states()
    assert (name, state) == ("import cutlass", "ok")
    assert "gives Kiln" in value
    (tmp_path / "cutlass.py").write_text("")  # in the current folder, which comes first
    name, state, value = states()[0]
    assert (name, state) == ("import cutlass", "missing")
    assert str(tmp_path / "cutlass.py") in value


def test_unknown_options_are_refused():
    with pytest.raises(SystemExit) as end:
        doctor.main(["--bake"])
    assert end.value.code == 2
