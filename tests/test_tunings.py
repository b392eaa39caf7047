"""`kiln.tuned(__file__)` and its file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import kiln
from kiln import tunings


def entry(problem: dict, config: dict, gpu: str = "cpu", file: str = "k.py") -> dict:
    return {"case": "k", "file": file, "gpu": gpu, "problem": problem, "config": config, "us": [1, 2, 3]}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    tunings.write(
        tmp_path / "tuned.json",
        [
            entry({"m": 64, "dtype": "float16"}, {"tile": [1, 2]}),
            entry({"m": 4096, "dtype": "float16"}, {"tile": [3, 4]}),
            entry({"m": 64, "dtype": "float16"}, {"tile": [9, 9]}, "NVIDIA H200"),
            entry({"m": 64, "dtype": "float16"}, {"tile": [8, 8]}, file="other.py"),
        ],
    )
    return tmp_path / "k.py"


def test_the_problem_itself_else_the_nearest_else_the_default(program: Path) -> None:
    tuned = kiln.tuned(program)
    assert tuned.get({"m": 64, "dtype": "float16"}) == {"tile": [1, 2]}
    assert tuned.get({"m": 300, "dtype": "float16"}) == {"tile": [1, 2]}
    assert tuned.get({"m": 1000, "dtype": "float16"}) == {"tile": [3, 4]}
    assert tuned.get({"m": 64, "dtype": "float16"}, gpu="NVIDIA H200") == {"tile": [9, 9]}
    default = {"tile": 0}
    assert tuned.get({"m": 64, "dtype": "float32"}, default) is default
    assert tuned.get({"m": 64}, default) is default
    assert tuned.get({"m": 64, "dtype": "float16"}, default, gpu="NVIDIA B200") is default
    assert tuned.get() is None


def test_a_near_config_is_taken_only_if_it_is_valid(program: Path) -> None:
    def validate(config, problem, device):
        return [] if config["tile"] == [3, 4] else ["too small"]

    assert kiln.tuned(program, validate).get({"m": 65, "dtype": "float16"}) == {"tile": [3, 4]}

    def raises(config, problem, device):
        raise ValueError("no")

    assert kiln.tuned(program, raises).get({"m": 65, "dtype": "float16"}, 7) == 7
    assert kiln.tuned(program, raises).get({"m": 64, "dtype": "float16"}) == {"tile": [1, 2]}  # itself was measured


def test_a_config_comes_in_the_type_of_the_default(program: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Tiling:
        tile: tuple[int, int] = (0, 0)
        stages: int = 2

    @dataclasses.dataclass(frozen=True)
    class Another:
        block: int = 0

    problem = {"m": 64, "dtype": "float16"}
    assert kiln.tuned(program).get(problem, Tiling(stages=5)) == Tiling((1, 2), 5)
    assert kiln.tuned(program).get(problem, Another(7)) == Another(7)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": 3}', '{"entries": [{"gpu": 1}, 4]}'])
def test_what_is_broken_is_a_miss(tmp_path: Path, text: str) -> None:
    (tmp_path / "tuned.json").write_text(text)
    assert kiln.tuned(tmp_path / "k.py").get({"m": 1}, "default") == "default"
    assert kiln.tuned(tmp_path / "nowhere" / "k.py").get({"m": 1}, "default") == "default"


def test_writing_replaces_what_is_of_the_same_problem_and_sorts(program: Path) -> None:
    file = program.with_name("tuned.json")
    before = file.read_text()
    tunings.write(file, tunings.read(file)[::-1])
    assert file.read_text() == before
    tunings.write(file, [entry({"m": 64, "dtype": "float16"}, {"tile": [5, 5]})])
    assert len(json.loads(file.read_text())["entries"]) == 4
    assert kiln.tuned(program).get({"m": 64, "dtype": "float16"}) == {"tile": [5, 5]}
    assert [path.name for path in file.parent.iterdir()] == ["tuned.json"]
