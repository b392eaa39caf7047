"""Every program of docs/mistakes.md says what the page says: an error, a warning or nothing, without frames of Kiln's own."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from said_by_programs import said_by

import kiln
from kiln.base_dsl.numeric import scalar

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
PACKAGE = str(Path(kiln.__file__ or "").parent)
NOTHING = "(nothing: it runs)"


@dataclasses.dataclass(frozen=True)
class Mistake:
    name: str
    program: str
    expected: list[str]


def mistakes() -> list[Mistake]:
    text = PAGE.read_text()
    head = re.search(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert head is not None
    blocks = re.findall(r"^```py (\w+)\n(.*?)^```$.*?^```now\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Mistake(name, f"{head[1]}\n\n{code}", now.splitlines()) for name, code, now in blocks]


MISTAKES = mistakes()


def _without_threads(text: str) -> str:
    """Return the text without the threads it names, and how many: they depend on the schedule."""
    return re.sub(r"thread (\d+|\(.*?\))|\(\d+ times\)", "thread", text)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_what_is_said(mistake, tmp_path, monkeypatch):
    if "torch" in mistake.program:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    monkeypatch.setenv("KILN_CHECKS", "first")
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    monkeypatch.setattr(scalar, "_printed", [])
    said = said_by(mistake.name, mistake.program, tmp_path)
    assert PACKAGE not in said
    if mistake.expected == [NOTHING]:
        assert said == ""
        return
    lines = _without_threads(re.sub(r"0x[0-9a-f]+", "0x...", said))
    for line in mistake.expected:
        if re.fullmatch(r" *[\^~]*", line) and sys.version_info < (3, 11):
            continue  # it knows no columns
        assert _without_threads(line) in lines, said


def test_there_are_forty_five():
    assert len(MISTAKES) == 45
