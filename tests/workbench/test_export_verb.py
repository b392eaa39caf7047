"""`kiln export`, and what `kiln inspect` says of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.workbench import main

PROGRAM = """
import cutlass
import cutlass.cute as cute

@cute.kernel
def filled(x: cute.Tensor, value: cutlass.Float32, half: cutlass.Constexpr):
    i, _, _ = cute.arch.thread_idx()
    x[0, i] = value * (0.5 if half else 1.0)

@cute.jit
def fill(x: cute.Tensor, value: cutlass.Float32, half: cutlass.Constexpr, stream):
    filled(x, value, half).launch(grid=1, block=16, stream=stream)
"""
ARGUMENTS = ["--arg", "f32[m,n%16]@16", "--arg", "f32", "--arg", "True", "--arg", "stream"]


def test_a_function_is_exported_and_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    function = f"{tmp_path / 'program.py'}:fill"
    assert main.main(["export", function, *ARGUMENTS, "--archs", "cpu", "-o", str(tmp_path / "build")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "build" / f"fill.{end}") for end in "oh"]
    assert main.main(["inspect", str(tmp_path / "build" / "fill.o")]) == 0
    about = json.loads(capsys.readouterr().out)["fill"]
    assert about["architectures"] == ["cpu"] and [each["name"] for each in about["arguments"]] == [
        "x",
        "value",
        "stream",
    ]
    assert about["arguments"][0]["shape"] == [{"bits": 32, "divisibility": 1}, {"bits": 32, "divisibility": 16}]
    assert about["arguments"][0]["alignment"] == 16


def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    file = str(tmp_path / "program.py")
    for words, said in (
        ([f"{file}:fil"], "has no function fil"),
        ([f"{file}x:fill"], "there is no file"),
        ([f"{file}:fill", "--arg", "f31[m]"], "this is no type"),
        ([f"{file}:fill", "--arg", "f32[m-1]"], "'m-1' is no extent"),
        ([f"{file}:fill", *ARGUMENTS, "--archs", "cpu", "--result", "x"], "write NAME=INPUT"),
        ([f"{file}:fill", *ARGUMENTS, "--archs", "cpu", "--result", "y=x.0,16"], "outputs names 'y'"),
        ([f"{file}:fill", *ARGUMENTS, "--doors", "x"], "no door 'x'"),
        ([f"{file}:fill", "--arg", "f32[n%4,n%8]"], "n is a multiple of 8 here, and of 4"),
        ([f"{file}:fill", "--arg", "f32[n,n]", "--archs", "cpu"], "program.py:10: error: fill(x, value, half, stream)"),
    ):
        assert main.main(["export", *words]) == 2
        assert said in capsys.readouterr().err
    assert main.main(["inspect", str(tmp_path / "none.so")]) == 2
