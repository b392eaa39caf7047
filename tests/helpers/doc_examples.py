"""Run the examples of a page of the documentation.

The blocks of a page run in order as parts of one program. After a `python` block, or a `{code-cell}` of a lesson, an `output` block
holds all that it prints, and a `refused` block lines that its error contains; there `cell.py` stands for the file of any block, and `0x...`
for any address. Other blocks (`console`, `text`, ...) are not run.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kiln


@dataclasses.dataclass
class Example:
    line: int
    code: str
    kind: str = ""
    expected: str = ""


def examples(page: Path) -> list[Example]:
    """The `python` blocks and code cells of a page, each with what follows from it."""
    found: list[Example] = []
    text = page.read_text()
    for block in re.finditer(r"^```(\w+|\{code-cell\})\n((?::[^\n]*\n)*\n?)(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        kind, _, code = block.groups()
        if kind in ("python", "{code-cell}"):
            found.append(Example(text[: block.start(3)].count("\n") + 1, code))
        elif kind in ("output", "refused"):
            found[-1].kind, found[-1].expected = kind, code
    return found


def run_page(
    page: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    errors: type[Exception] | tuple[type[Exception], ...],
) -> int:
    """Run all examples of a page on the CPU target; how many there are. `errors` is what refused ones may raise."""
    program = ModuleType(f"docs_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    found = examples(page)
    with kiln.target("cpu"):
        for example in found:
            file = folder / f"line_{example.line}.py"
            file.write_text(example.code)
            run = compile(example.code, str(file), "exec")
            where = f"{page.name}:{example.line}"
            if example.kind == "refused":
                with pytest.raises(errors) as failure:
                    exec(run, program.__dict__)
                said = f"{type(failure.value).__name__}: {failure.value}"
                said = re.sub(rf"{re.escape(str(folder))}/line_\d+\.py", "cell.py", said)
                said = re.sub(r"0x[0-9a-f]{10,}", "0x...", said)
                for line in example.expected.splitlines():
                    assert line in said, where
                continue
            exec(run, program.__dict__)
            printed = capsys.readouterr().out
            if example.kind == "output":
                assert printed == example.expected, where
    return len(found)
