"""`kiln export`, and what `kiln inspect` says of the file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kiln.cute.host import argument_text
from kiln.workbench import export, main
from kiln.workbench.core.contracts import ContractError

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
    assert main.main(["export", function, *ARGUMENTS, "--arch", "cpu", "-o", str(tmp_path / "build")]) == 0
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
        ([f"{file}:fill", "--arg", "f31[m]"], "this is neither a type"),
        ([f"{file}:fill", "--arg", "f32[m-1]"], "'m-1' is not an extent"),
        ([f"{file}:fill", *ARGUMENTS, "--arch", "cpu", "--result", "x"], "write NAME=INPUT"),
        ([f"{file}:fill", *ARGUMENTS, "--arch", "cpu", "--result", "y=x.0,16"], "outputs names 'y'"),
        ([f"{file}:fill", *ARGUMENTS, "--entry-points", "x"], "the entry point 'x'"),
        ([f"{file}:fill", "--arg", "f32[n%0]"], "the divisor of n is a number from 1 to"),
        ([f"{file}:fill", "--arg", "f32[n%]"], "the divisor of n is a number from 1 to"),
        ([f"{file}:fill", "--arg", "f32[n]@3"], "an alignment is a power of two, 4 or more for f32, and not 3"),
        ([f"{file}:fill", "--arg", "f32[n]@2"], "an alignment is a power of two, 4 or more for f32, and not 2"),
        ([f"{file}:fill", "--arg", "f32[n]@0"], "an alignment is a number from 1 to"),
        ([f"{file}:fill", "--arg", "f32@16"], "a number has no address"),
        ([f"{file}:fill", "--arg", "f32[0]"], "an extent is a number from 1 to"),
        ([f"{file}:fill", "--arg", "f32[²]"], "an extent is a number from 1 to"),
        ([f"{file}:fill", "--arg", "f32[4294967296,4294967296]"], "more elements than 64 bits count"),
        ([f"{file}:fill", "--arg", "f32[" + "9" * 5000 + "]"], "an extent is a number from 1 to"),
        ([f"{file}:fill", "--arg", f"f32[{','.join('n' * 33)}]"], "33 extents"),
        ([f"{file}:fill", "--arg", "{[]: 1}"], "nor a Python value"),
        ([f"{file}:fill", "--arg", "(" * 500], "nor a Python value"),
        ([f"{file}:fill", "--arg", "f32[n%4,n%8]"], "n is a multiple of 8 here, and of 4"),
        ([f"{file}:fill", "--arg", "f32[n,n]", "--arch", "cpu"], "program.py:10: error: fill(x, value, half, stream)"),
    ):
        assert main.main(["export", *words]) == 2
        assert said in capsys.readouterr().err
    assert main.main(["inspect", str(tmp_path / "none.so")]) == 2


def described(rng: random.Random) -> str:
    """A text like those that --arg takes."""
    extents = ["n", "m", "n%16", "n%0", "4", "0", "²", "k%3", "n%" + "9" * 30, "_", "-1", "", " n", "n %4", "1" * 5000]
    alignments = ["", "", "@16", "@3", "@0", "@1", "@99999999999999999999", "@", "@²", "@-1", "@4096"]
    types = [*argument_text.ELEMENTS, "f33", "stream", "x"]
    pieces = [*types, *"nm%019,[]@* (){}:'\"\0\n²é_\\", "9" * 5000, "None", "1e999", "lambda"]
    if rng.random() < 0.3:
        return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 8)))
    shape = f"[{','.join(rng.choice(extents) for _ in range(rng.randint(0, 5)))}]"
    text = rng.choice(types) + rng.choice(["", shape, shape, "*"]) + rng.choice(alignments)
    at = rng.randrange(len(text) + 1)
    return text if rng.random() < 0.8 else text[:at] + rng.choice(pieces) + text[at:]


RULES = (
    "is one word",
    "has no address",
    "is a power of two",
    "nor a Python value",
    "is not an extent",
    "the divisor of",
    "an extent is a number",
    "an alignment is a number",
    "was named first",
)
"""Of each message with which --arg refuses a random text, some words."""


def test_random_arguments_are_taken_or_refused_with_a_reason() -> None:
    rng = random.Random(83)  # with this seed 100 texts break every rule that 1500 do
    taken = 0
    reasons: list[str] = []
    for _ in range(100):
        text = described(rng)
        try:
            export._argument(text, {})
            taken += 1
        except ContractError as reason:
            assert str(reason).startswith("--arg "), text
            reasons.append(str(reason))
    assert 10 < taken < 90
    assert [rule for rule in RULES if not any(rule in reason for reason in reasons)] == []
