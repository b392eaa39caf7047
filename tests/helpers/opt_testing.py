"""Passes run by name on the text of a module, as `kiln opt` runs them."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path

from kiln.workbench.main import main


def opt(source: str, passes: str, *options: str) -> str:
    """What `kiln opt --pass PASSES` prints for a module. `P<f32>` and `R<f32>` are pointers to global and to a thread's memory."""
    text = re.sub(r"\bR<(\w+)>", r'!cute.ptr<\1, "rmem", 16 : i64>', source)
    text = re.sub(r"\bP<(\w+)>", r'!cute.ptr<\1, "gmem", 16 : i64>', text)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "module.mlir"
        file.write_text(text)
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            status = main(["opt", "--pass", passes, *options, str(file)])
    assert status == 0, said.getvalue()
    return printed.getvalue()


def check_words(text: str, expected: str) -> None:
    """The lines of `expected` are found in the text in this order: a line is found if its words are, one after the other.

    A value `%name` is any value where it first stands, and the same from then on. No line before the one that is found next has
    what stands in a line `not: ...`.
    """
    values: dict[str, str] = {}
    at, absent, lines = 0, [], text.splitlines()
    for wanted in expected.splitlines():
        if wanted.startswith("not: "):
            absent.append(wanted.removeprefix("not: "))
            continue
        for number in range(at, len(lines)):
            found = _found(lines[number], wanted.split(), values)
            if found is not None:
                values, at, absent = found, number + 1, []
                break
            assert not any(part in lines[number] for part in absent), f"{lines[number].strip()!r} is there, in\n{text}"
        else:
            raise AssertionError(f"no line {wanted!r} (with {values}) after line {at} of\n{text}")


def _found(line: str, words: list[str], values: dict[str, str]) -> dict[str, str] | None:
    place, seen = 0, dict(values)
    for word in words:
        pieces = [piece for piece in re.split(r"(%\w+)", word) if piece]
        patterns = [
            re.escape(seen.get(piece, piece)) + (r"\b" if piece in seen else "")
            if not piece.startswith("%") or piece in seen
            else rf"(?P<{piece[1:]}>%\w+)"
            for piece in pieces
        ]
        match = re.compile("".join(patterns)).search(line, place)
        if not match:
            return None
        seen |= {f"%{name}": value for name, value in match.groupdict().items()}
        place = match.end()
    return seen
