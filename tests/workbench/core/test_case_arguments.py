"""The command line of verbs that take a CASE."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from kiln.workbench.core import command_line
from kiln.workbench.core.contracts import ContractError
from kiln.workbench.core.runners import InfrastructureLost

CONTRACT = """
import numpy as np
kernel_fn = lambda x, config=None: x
reference_fn = lambda x: x
get_inputs = lambda m=4, causal=False, json="a", scale=1.0: [np.ones(m)]
problems = [{"m": 4}, {"m": 8}]
configs = [{"t": 1}, {"t": 2}]
arch = "sm_100a"
"""


@pytest.fixture
def contract(tmp_path: Path) -> str:
    (tmp_path / "some.py").write_text(CONTRACT)
    return str(tmp_path / "some.py")


def parsed(*words: str):
    return command_line.parse(command_line.arguments("kiln some", "Something."), words)


def test_fields_of_the_problem_are_options(contract: str) -> None:
    args = parsed(contract, "--m=16", "--causal", "--set", "json=b", "--scale", "-2", "--seed", "7", "--problem", "all")
    assert args.seed == 7
    case = command_line.open_case(args)
    both = command_line.problems(args, case)
    assert both == [{"m": 16, "causal": True, "json": "b", "scale": -2.0}]  # the two are the same now
    assert command_line.problems(parsed(contract, "--problem", "1"), case)[0].m == 8


def test_a_command_that_does_it_again(contract: str) -> None:
    case = command_line.open_case(parsed(contract))
    problem = case.problem({"m": 3, "json": "a b"})
    words = shlex.split(command_line.again("some", case, problem, "--seed=2", config={"t": 2}))
    args = parsed(*words[2:])
    assert command_line.problems(args, case) == [problem]
    assert (args.seed, command_line.config(args, case, problem)) == (2, {"t": 2})


def test_configs(contract: str) -> None:
    case = command_line.open_case(parsed(contract))
    for text, made in (("1", {"t": 2}), ('{"t": 9}', {"t": 9})):
        assert command_line.config(parsed(contract, "--config", text), case, case.problem()) == made
    for text in ("2", "one", "[1]"):
        with pytest.raises(ContractError, match=f"--config .{text[1:-1]}"):
            command_line.config(parsed(contract, "--config", text), case, case.problem())


@pytest.mark.parametrize("words", [["--problem"], ["extra"], ["--set", "m"], ["--", "m"]])
def test_bad_words(words: list[str], contract: str, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        parsed(contract, *words)
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ContractError("no good", "kernel.py", 3), 2, "kernel.py:3: no good"),
        (command_line.NotHere("there is no GPU"), 3, "there is no GPU"),
        (InfrastructureLost("no workers"), 4, "the same command goes on"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_exit_statuses(error: BaseException, status: int, said: str, capsys, monkeypatch) -> None:
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)

    def main(argv):
        os.environ["CUTE_DSL_ARCH"] = "sm_80"
        raise error

    assert command_line.report_errors(main)([]) == status
    assert "CUTE_DSL_ARCH" not in os.environ
    assert said in capsys.readouterr().err


def test_architecture_of_the_contract(contract: str, monkeypatch) -> None:
    monkeypatch.setenv("KILN_TARGET", "cpu")
    monkeypatch.setenv("CUTE_DSL_ARCH", "")
    case = command_line.open_case(parsed(contract))
    assert command_line.refused(case) is None
    assert os.environ["CUTE_DSL_ARCH"] == "sm_100a"
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    assert command_line.refused(case) == "some is for sm_100a, and this is sm_90a"


def test_json_goes_where_it_is_told(contract: str, tmp_path: Path, capsys) -> None:
    command_line.write_json(parsed(contract, "--json", "-"), [1])
    assert json.loads(capsys.readouterr().out) == [1]
    command_line.write_json(parsed(contract, "--json", str(tmp_path / "out.json")), [2])
    assert json.loads((tmp_path / "out.json").read_text()) == [2]


def test_progress_is_quiet_when_nobody_looks(capsys) -> None:
    with command_line.progress(3, "working") as step:
        step("on it")
    assert capsys.readouterr() == ("", "")


def test_progress_is_told_after_two_seconds(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(command_line.time, "monotonic", lambda: now[0])
    with command_line.progress(4, "working") as step:
        for now[0] in (1.0, 3.0, 12.0, 14.0):
            step("on it")
    assert capsys.readouterr().err == "working: 2 of 4 on it\nworking: 4 of 4 on it\n"
