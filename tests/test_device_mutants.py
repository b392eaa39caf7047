"""The tool that weakens flags of programs for several GPUs: its mutants, and what counts as found."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def _tool() -> Any:
    path = Path(__file__).resolve().parents[1] / "tools" / "device_mutants.py"
    spec = importlib.util.spec_from_file_location("device_mutants", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


device_mutants = _tool()

PROGRAM = """
def kernel(flag):
    utils.distributed.red_add1(flag)
    utils.spin_lock_atom_cas_acquire_wait(
        lock_ptr=flag,
        reset_val=0,
    )
    cute.arch.store(flag, 1, sem="release", scope="sys")
    after(flag)
    make_atom(memory_scope=Scope.SYS)
"""


def test_mutants_keep_their_lines() -> None:
    every = {(each.line, each.what): each.text for each in device_mutants.mutants(PROGRAM)}
    assert set(every) == {
        (3, "red_add1 deleted"),
        (4, "spin_lock_atom_cas_acquire_wait deleted"),
        (4, "spin_lock_atom_cas_acquire_wait relaxed"),
        (8, "store deleted"),
        (8, "store: release becomes relaxed"),
        (8, "store: scope gpu"),
        (10, "memory_scope becomes GPU"),
    }
    for text in every.values():
        ast.parse(text)
        assert text.splitlines()[8] == "    after(flag)"
    assert "acquire_wait" not in every[4, "spin_lock_atom_cas_acquire_wait deleted"]


def outcome(text: str = "", status: int = 0, *findings: tuple[int, str, bool]) -> Any:
    return device_mutants.Outcome(frozenset(findings), status, text, 1.0)


RACE = (7, "race", False)


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        (outcome(), outcome(), ""),
        (outcome("", 1, RACE), outcome("", 1, RACE), ""),
        (outcome("", 1, RACE), outcome("", 1, RACE, (9, "race", True)), "scope"),
        (outcome(), outcome("deadlock of several devices: rank 0 spins", 1), "deadlock"),
        (outcome(), outcome("", 124), "no end"),
        (outcome("", 124), outcome("", 124), ""),
        (outcome(), outcome("[0] AssertionError: 1 != 2", 1), "wrong result"),
        (outcome("[0] AssertionError", 1), outcome("[1] AssertionError", 1), ""),
        (outcome(), outcome("", 3), "wrong result"),
        (outcome(), outcome("[0] kiln.base_dsl.diagnostics.DSLUserCodeError: no such order", 1), "not run"),
        (outcome(), outcome("[1] ModuleNotFoundError: No module named 'beside'", 1), "not run"),
        (outcome(), outcome("[0] NameError: x\n[1] AssertionError", 1), "wrong result"),
    ],
)
def test_what_counts_as_found(before: Any, after: Any, how: str) -> None:
    assert device_mutants.verdict(before, after) == how


def test_a_mutant_imports_what_is_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "mutants").mkdir()
    mutant = tmp_path / "mutants" / "program.py"
    mutant.write_text("import beside")
    plain = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return plain([sys.executable, str(mutant)], **options)

    monkeypatch.setattr(subprocess, "run", run)
    options = argparse.Namespace(program=tmp_path / "program.py", devices=2, arch=None, timeout=60)
    done = device_mutants.run(mutant, options, [])
    assert done.status == 0, done.text
