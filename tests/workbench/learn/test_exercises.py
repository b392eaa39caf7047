"""Checks of exercises accept the right solution and refuse at least three wrong ones each, with what is wrong in their words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from wrong_solutions import WRONG

from kiln.workbench.learn import checking

EXERCISES = [(lesson, number) for lesson in sorted({lesson for lesson, _ in WRONG}) for number in (1, 2)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_CPU_OPT", "0")


def said(lesson: int, number: int, text: str, folder: Path) -> str | None:
    file = folder / f"exercise_{number}.py"
    file.write_text(text)
    return checking.run_check(checking.exercises(lesson)[number - 1], file)


@pytest.mark.parametrize(("lesson", "number"), EXERCISES)
def test_the_right_solution_passes(lesson: int, number: int, tmp_path):
    assert said(lesson, number, checking.solution(lesson, number), tmp_path) is None


def cases() -> list[object]:
    made = []
    for (lesson, number), changes in WRONG.items():
        for i, (before, after, words) in enumerate(changes):
            made.append(pytest.param(lesson, number, before, after, words, id=f"{lesson}.{number}.{i}"))
    return made


@pytest.mark.quick(8)
@pytest.mark.parametrize(("lesson", "number", "before", "after", "words"), cases())
def test_a_wrong_solution_is_told_what_is_wrong(lesson, number, before, after, words, tmp_path):
    right = checking.solution(lesson, number)
    assert right.count(before) >= 1
    wrong = said(lesson, number, right.replace(before, after), tmp_path)
    assert wrong is not None, "the check passed a wrong solution"
    assert words in wrong


@pytest.mark.parametrize(("lesson", "number"), EXERCISES)
def test_the_start_is_a_program_with_a_gap(lesson: int, number: int):
    text = checking.start_text(lesson, number)
    compile(text, "the start", "exec")
    assert "# TODO: " in text and "# END" not in text
    assert len(WRONG[lesson, number]) >= 3


@pytest.mark.parametrize(("lesson", "number"), EXERCISES)
def test_the_start_keeps_what_the_gap_says(lesson: int, number: int):
    source = (checking.EXERCISES / f"lesson_{lesson:02}" / f"exercise_{number}.py").read_text()
    told = re.findall(r"# TODO: .*(?:\n *# \(.*)*", source)
    assert told
    text = checking.start_text(lesson, number)
    assert [each for each in told if each not in text] == []
