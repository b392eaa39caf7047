"""Benchmarks fit together, describe themselves, and report recorded choices without a GPU."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MODULES = {file.stem: file for file in BENCHMARKS.glob("*.py")}
PROGRAMS = sorted(path for path in MODULES.values() if '__name__ == "__main__"' in path.read_text())


def defined(file: Path) -> set[str]:
    """Return the names that a module defines or imports at its top."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return names


def test_imports_between_benchmarks_exist() -> None:
    wrong = []
    for file in BENCHMARKS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
                known = defined(MODULES[node.module])
                wrong += [f"{file.name}: {node.module}.{x.name}" for x in node.names if x.name not in known]
    assert wrong == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_says_how_it_is_called(program: Path) -> None:
    text = ast.get_docstring(ast.parse(program.read_text())) or ""
    assert f"python benchmarks/{program.name}" in text


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["attention", "decode", "mla", "backward"])
def test_recorded_choices_are_reported(family: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "fit.py", "report", family], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "% behind." in done.stdout


@pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="compiles kernels for half a minute")
def test_the_report_of_a_b200_is_written_without_one(tmp_path: Path) -> None:
    """Values, times and predictions, for small shapes on the CPU target."""
    pytest.importorskip("torch")
    command = [sys.executable, BENCHMARKS / "b200.py", "--small", "--seconds", "0.1", "--out", tmp_path / "b200.md"]
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_100a", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "b200.md").read_text()
    assert (
        text.count("| right |") == 6
        and "published" not in text
        and "Sm100GroupedGemm" in text
        and "say nothing of a GPU" in text
    )


@pytest.fixture
def b200(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("b200")
    for name in {"b200", "results"} - before:
        sys.modules.pop(name, None)


def test_wrong_values_are_seen_in_the_report_of_a_b200(b200) -> None:
    """In each tile of rows and in each group."""
    import torch

    left, right = torch.randn(8, 64).double(), torch.randn(16, 64).double()
    exact = left @ right.mT
    assert b200.excess(exact.float(), left, right) < 1.0 < b200.excess((exact + 0.01).float(), left, right)
    codes = torch.tensor([[0x21, 0xF8]], dtype=torch.uint8)
    assert b200.wide(codes, torch.full((1, 1), 2.0), 4).tolist() == [[1.0, 2.0, -0.0, -12.0]]
    rounded = b200.as_tf32(torch.tensor([1 + 2.0**-10, 1 + 2.0**-11 + 2.0**-20, -1 - 2.0**-13]))
    assert rounded.tolist() == [1 + 2.0**-10, 1 + 2.0**-10, -1.0]

    whole = b200.gemm(b200.Case("tf32", (4 * 128, 16, 32)), "cpu")
    groups = b200.groups(b200.Case("bf16 groups", (3, 70, 16, 32)), "cpu")
    for call, first, count, size in (whole, 0, 4, 128), (groups, 0, 3, 70):
        a, b = (x.double() for x in call.arguments)
        wanted = a @ b if b.ndim == 2 else torch.cat([a[70 * g : 70 * g + 70] @ b[g] for g in range(3)])
        assert call.wrong(wanted.float()) < 1.0
        for tile in range(count):
            broken = wanted.float()
            broken[first + tile * size : first + (tile + 1) * size, 3] += 0.1
            assert call.wrong(broken) > 1.0
            broken[first + tile * size : first + (tile + 1) * size] = torch.nan
            assert not call.wrong(broken) <= 1.0


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_wrong_quantised_rows_are_seen_in_the_report_of_a_b200(b200, name: str) -> None:
    """An element that is one step off, and a scale factor that is one step off."""
    import torch

    from kiln import kernels, target

    source = torch.randn(8, 64)
    with target("cpu"):
        data, scales = kernels.quantize(source, name, scale_layout="rows")
    exact = source.double()
    assert b200.quantised_excess(data, scales, exact, name) <= 1.0
    other = data.view(torch.uint8).clone()
    other[3, 5] ^= 1  # the next element in size
    assert b200.quantised_excess(other.view(data.dtype), scales, exact, name) > 1.0
    for by in (-1, 1):
        others = scales.view(torch.uint8).clone()
        others[2, 1] += by
        assert b200.quantised_excess(data, others.view(scales.dtype), exact, name) > 1.0


@pytest.mark.parametrize("must_run", [False, True])
def test_skipped_tests_are_no_success_on_a_gpu_that_can_run_them(b200, must_run: bool, tmp_path: Path) -> None:
    skipped = tmp_path / "test_nothing.py"
    skipped.write_text("import pytest\n\n\n@pytest.mark.skip\ndef test_it(): ...\n")
    table = b200.Table("Values", ("tests", "result"))
    assert b200.run_tests((str(skipped),), table, must_run) is not must_run
    assert table.rows == [(str(skipped), "1 skipped")]


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("against_cute_dsl")
    sys.modules.pop("against_cute_dsl", None)


def test_times_of_both_are_taken_in_turns(against, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two programs stand for the Pythons with the two packages; each writes down that it ran."""
    pythons = []
    for name, us in (("kiln", 10), ("cute", 12)):
        python = tmp_path / name
        python.write_text(
            f'#!/bin/sh\n[ "$1" = -c ] && echo 1.0 && exit 0\n'
            f"echo {name} $@ >> {tmp_path}/log\necho warm-up: 99 us\necho Execution time: 0.0{us} ms\n"
        )
        python.chmod(0o755)
        pythons.append(str(python))
    out = tmp_path / "out.jsonl"
    words = [
        "--kiln",
        pythons[0],
        "--cute-dsl",
        pythons[1],
        "--rounds",
        "2",
        "--out",
        str(out),
        "--",
        "gemm.py",
        "--m",
        "8",
    ]
    assert against.main(words) == 0
    assert "Kiln is 1.200 times as fast (1.200 to 1.200 in 2 rounds)" in capsys.readouterr().out
    ran = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in ran] == ["cute", "kiln", "kiln", "cute", "cute", "kiln"]
    assert ran[0] == "cute gemm.py --m 8" and ran[1] == "kiln -m kiln run gemm.py --m 8"
    record = json.loads(out.read_text())
    assert record["versions"] == {"Kiln": "1.0", "CuTe DSL": "1.0"} and len(record["rounds"]) == 2


def test_a_program_without_a_time_is_told(against, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho PASS\n")
    silent.chmod(0o755)
    assert against.main(["--kiln", str(silent), "--cute-dsl", str(silent), "--", "gemm.py"]) == 1
    assert "printed no time" in capsys.readouterr().err
    assert against.microseconds("took 3.5 ms, then 1.5e2 us") == 150.0
    assert against.microseconds("time = 7", r"time = (?P<time>\d+)") == 7.0
