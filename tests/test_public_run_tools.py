"""The tools that run lists of public programs: verdicts, what a GPU can run, rows that are saved one by one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
_PATH = sys.path[:]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import blackwell_runs as running  # noqa: E402  # pyright: ignore[reportMissingImports]
import results  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path[:] = _PATH  # other tests mean their own helpers by the names of tools


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("SKIP: SM100+ (Blackwell) GPU required\n", "SKIP: SM100+ (Blackwell) GPU required"),
        ("CUDA not available, skipping tests.\n", "CUDA not available, skipping tests."),
        ("Traceback\nModuleNotFoundError: No module named 'jax'\nhelp: a | b\n", "needs the package jax"),
        ("kiln.SanitizerError: /a/b.py:7: race in kernel k: thread 1 reads x\nmore: kb\n", "b.py:7: race: thread 1 reads x"),
        ("one\na | b\n", "a / b"),
        ("", "no output"),
    ],
)  # fmt: skip
def test_a_verdict_says_why_a_program_failed(text: str, verdict: str) -> None:
    assert running.Run(False, text, 1.0).verdict == verdict


def test_a_gpu_runs_programs_up_to_its_architecture() -> None:
    programs = [{"arch": arch} for arch in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")]
    assert [each["arch"] for each in running.runnable(programs, (9, 0))] == ["sm_80", "sm_89", "sm_90"]
    assert len(running.runnable(programs, (12, 0))) == 5


def _tried(examples: Path, timeout: float, program: dict[str, Any]) -> tuple[str, ...]:
    if program["path"] == "broken.py":
        raise OSError("no such notebook")
    return program["path"], "", "pass"


def test_rows_are_saved_as_they_come_on_both_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module, name in ((results, "DATA"), (results, "ROOT")):
        monkeypatch.setattr(module, name, tmp_path)
    listed = [("a.py", "sm_80"), ("broken.py", "sm_80"), ("new.py", "sm_100"), ("z.py", "sm_90")]
    lines = [json.dumps({"path": path, "arch": arch}) for path, arch in listed]
    (tmp_path / "tool.jsonl").write_text("\n".join(lines))

    def main(*options: str) -> list[Any]:
        tables = (results.Table(f"On {each}", ("program", "arguments", "check", "commit")) for each in ("cpu", "gpu"))
        page = results.Page(str(tmp_path / "tool.py"), "Runs", *tables)
        monkeypatch.setattr(sys, "argv", ["tool", str(tmp_path), "--commit", "12345678", "--save", *options])
        assert running.run_listed(str(tmp_path / "tool.py"), "", page, _tried)
        return [(table.environment, table.rows) for table in results.parse((tmp_path / "tool.md").read_text()).tables]

    main("--only", "z.py")
    ((_, rows),) = main()
    assert rows == tuple((path, "", "pass", "12345678") for path in ("a.py", "new.py", "z.py"))
    assert "OSError: no such notebook" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        monkeypatch.setattr(running.driver, "available", lambda: False)
        main("--target", "nvidia")
    answers = {"available": lambda: True, "device_name": lambda _: "NVIDIA H200", "cuda_version": lambda: "13.0"}
    for name, answer in {**answers, "capability": lambda _: (9, 0)}.items():
        monkeypatch.setattr(running.driver, name, answer)
    monkeypatch.setattr(running, "_tried_on_gpu", _tried)
    (_, cpu), (machine, gpu) = main("--target", "nvidia")
    assert (cpu, gpu) == (rows, (rows[0], rows[2]))
    assert "NVIDIA H200, CUDA 13.0" in machine


def test_a_gpu_run_has_its_check_and_names_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        commands.append((command[3:6], env.get("CUTE_DSL_ARCH")))
        return running.subprocess.CompletedProcess(command, 1, "", "ModuleNotFoundError: No module named 'jax'\n")

    monkeypatch.setattr(running.subprocess, "run", run)
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    program = {"path": "a.py", "args": "--n 4", "arch": "sm_80"}
    row = running._tried_on_gpu(tmp_path, 9.0, program)
    assert row[:3] == ("a.py", "--n 4", "needs the package jax")
    assert running.run_program(tmp_path, 9.0, "sm_80", {**program, "error": "No module"})[2].startswith("ends with its")
    assert commands == [(["run", "--target", "nvidia"], None), (["run", "--target", "cpu"], "sm_80")]
