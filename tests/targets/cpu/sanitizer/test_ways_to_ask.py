"""The sanitizer from the command line, from the environment and from pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.workbench.run import split

PROGRAM = """
import sys
import numpy as np
from kiln import Float32, cute

@cute.kernel
def shift(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float32, 64), cute.make_layout(64))
    staged[t] = x[t]
    y[t] = staged[(t + 40) % 64]

@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    shift(x, y).launch(grid=1, block=64)

def test_shift():
    main(np.zeros(64, np.float32), np.zeros(64, np.float32))

if __name__ == "__main__":
    test_shift()
    print("done", *sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "test_program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.quick(0)
def test_kiln_run(child, program: Path) -> None:
    assert child("-m", "kiln", "run", "--target", "cpu", program).stdout == "done\n"
    wrong = child("-m", "kiln", "run", "--sanitize", program, "--target")
    assert wrong.returncode == 1
    assert "race in kernel shift" in wrong.stderr
    assert "staged[t] = x[t]" in wrong.stderr
    right = child("-m", "kiln", "run", "--sanitize=sync", program)
    assert right.stdout == "done\n"
    assert "kiln run: the sanitizer found nothing under 4 schedules\n" in right.stderr
    assert "found nothing" not in wrong.stderr


def test_a_report_as_json(child, program: Path, tmp_path: Path) -> None:
    done = child("-m", "kiln", "run", "--sanitize-report", "found.json", program, "x")
    assert done.stdout == "done x\n", done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert {entry["kind"] for entry in found} >= {"race"}


def test_a_report_goes_where_the_program_began(child, program: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    program.write_text(f"import kiln, os\nos.chdir('elsewhere')\n{PROGRAM}")
    done = child(program, KILN_SANITIZE="race", KILN_SANITIZE_REPORT="found.json")
    assert done.stdout == "done\n", done.stderr
    assert "race" in (tmp_path / "found.json").read_text()


@pytest.mark.parametrize("setting", ["KILN_SANITIZE_REPORT", "KILN_BANK_CONFLICTS_REPORT"])
def test_a_report_that_cannot_be_written_is_told(child, program: Path, setting: str) -> None:
    kind = "race" if "SANITIZE" in setting else "banks"
    done = child(program, KILN_SANITIZE=kind, **{setting: "nowhere/found.json"})
    assert "nowhere/found.json cannot be written (No such file or directory)" in done.stderr
    assert '"shift"' in done.stderr


def test_the_environment(child, program: Path) -> None:
    assert "race in kernel shift" in child(program, KILN_SANITIZE="race").stderr
    assert "unknown: rice" in child(program, KILN_SANITIZE="rice").stderr


def test_pytest(child, program: Path) -> None:
    # an installed Kiln would be loaded by itself, too
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plain = child("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", program, KILN_TARGET="cpu", **alone)
    assert plain.returncode == 0, plain.stdout
    watched = child("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", "--kiln-sanitize", program, **alone)
    assert watched.returncode == 1
    assert "SanitizerError" in watched.stdout
    kinds = child("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", "--kiln-sanitize-kinds=sync", program, **alone)
    assert kinds.returncode == 0 and "kiln: kernels ran under up to 4 schedules" in kinds.stdout


def test_the_option_takes_its_value_after_an_equals_sign() -> None:
    assert split(["--sanitize", "p.py"]) == (["--sanitize"], ["p.py"])
    assert split(["--sanitize=race", "p.py", "-x"]) == (["--sanitize=race"], ["p.py", "-x"])
    assert split(["--sanitize-report", "f", "p.py"]) == (["--sanitize-report", "f"], ["p.py"])
