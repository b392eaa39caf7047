"""Every cell of every lesson is run, and prints or is refused as the page says; pictures and English are looked at."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from doc_examples import run_page

from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.layout.leaf import LayoutError
from kiln.workbench.learn.checking import exercises
from kiln.workbench.learn.lessons import Lesson, lessons, notebook

ROOT = Path(__file__).parents[3]
ALL = lessons()


@pytest.fixture(autouse=True)
def _as_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are checked, as in a notebook; code is not optimized, which takes most of the time."""
    monkeypatch.setenv("KILN_CHECKS", "always")
    monkeypatch.setenv("KILN_CPU_OPT", "0")


@pytest.mark.parametrize("lesson", ALL, ids=lambda lesson: lesson.path.stem)
@pytest.mark.usefixtures("in_order")
def test_every_cell_of_a_lesson(lesson: Lesson, tmp_path, capsys, monkeypatch):
    assert run_page(lesson.path, tmp_path, capsys, monkeypatch, (DSLBaseError, LayoutError)) >= 2


@pytest.mark.parametrize("lesson", ALL, ids=lambda lesson: lesson.path.stem)
def test_a_lesson_has_its_parts(lesson: Lesson):
    """A picture with a description in both themes, a mistake, two exercises, and what the reader can do afterwards."""
    text = lesson.path.read_text()
    assert lesson.minutes <= 15
    assert lesson.can[0].islower() and not lesson.can.endswith(".")
    assert "## A mistake to make on purpose" in text and "```refused" in text
    assert "## You can now" in text and "## Exercises" in text
    assert len(exercises(lesson.number)) == 2
    assert all(exercise.hints for exercise in exercises(lesson.number))
    images = re.findall(r"```\{image\} pictures/(\S+)\.(light|dark)\.svg\n:alt: (.{20,})\n:class: only-(\w+)\n", text)
    assert images and all(theme == only for _, theme, _, only in images)
    assert {name for name, *_ in images if not name.startswith(f"{lesson.number:02}-")} == set()
    assert all((lesson.path.parent / "pictures" / f"{name}.{theme}.svg").is_file() for name, theme, *_ in images)


def sentences(lesson: Lesson) -> list[list[str]]:
    """Return the words of each sentence; code, tables, headings and options of pictures are not counted."""
    text = re.sub(r"^```.*?^```$", "", lesson.text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"^(?:\||#).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", ". ", text, flags=re.MULTILINE)
    parts = re.split(r"(?<=[.!?:;])\s+", re.sub(r"\n\n+", " . ", text))
    return [part.split() for part in parts if len(part.split()) > 1]


@pytest.mark.parametrize("lesson", ALL, ids=lambda lesson: lesson.path.stem)
def test_english_is_plain(lesson: Lesson):
    found = sentences(lesson)
    assert [" ".join(sentence) for sentence in found if len(sentence) > 35] == []
    assert sum(map(len, found)) / len(found) < 18
    assert "you" in lesson.text.lower()


@pytest.mark.parametrize("lesson", ALL, ids=lambda lesson: lesson.path.stem)
def test_a_lesson_becomes_a_notebook(lesson: Lesson):
    made = json.loads(notebook(lesson))
    cells = made["cells"]
    assert made["nbformat"] == 4 and len({cell["id"] for cell in cells}) == len(cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == lesson.path.read_text().count("```{code-cell}")
    for cell in code:
        compile("".join(cell["source"]), "a cell", "exec")
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "{image}" not in prose and "code-cell" not in prose
    assert not re.search(r"\]\((?!https?:|pictures/)", prose)


def test_pictures_are_those_of_the_program(tmp_path, monkeypatch):
    """`python docs/figures/lessons.py` writes what is committed."""
    monkeypatch.setattr("sys.argv", ["lessons.py"])
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    written = runpy.run_path(str(ROOT / "docs/figures/lessons.py"))["main"](tmp_path)
    there = ROOT / "docs" / "learn" / "pictures"
    assert sorted(path.name for path in written) == sorted(path.name for path in there.iterdir())
    for path in written:
        assert path.read_text() == (there / path.name).read_text(), f"{path.name}: run docs/figures/lessons.py"
