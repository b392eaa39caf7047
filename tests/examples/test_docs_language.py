"""Every example of `docs/language.md` is run, and prints or is refused as the page says.

The blocks of the page run in order as parts of one program. After a `python` block, an `output` block holds all that
it prints, and a `refused` block lines that its error contains.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kiln
from kiln.base_dsl.diagnostics import DSLBaseError

PAGE = Path(__file__).parents[2] / "docs" / "language.md"


@dataclasses.dataclass
class Example:
    line: int
    code: str
    kind: str = ""
    expected: str = ""


def examples() -> list[Example]:
    found: list[Example] = []
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        kind, text = block.groups()
        if kind == "python":
            found.append(Example(PAGE.read_text()[: block.start()].count("\n") + 2, text))
        else:
            assert kind in ("output", "refused"), kind
            found[-1].kind, found[-1].expected = kind, text
    return found


def test_every_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    program = ModuleType("docs_language")
    monkeypatch.setitem(sys.modules, "docs_language", program)
    page = examples()
    assert len(page) > 15
    with kiln.target("cpu"):
        for example in page:
            file = tmp_path / f"line_{example.line}.py"
            file.write_text(example.code)
            run = compile(example.code, str(file), "exec")
            where = f"{PAGE.name}:{example.line}"
            if example.kind == "refused":
                with pytest.raises(DSLBaseError) as failure:
                    exec(run, program.__dict__)
                for line in example.expected.splitlines():
                    assert line in str(failure.value), where
                continue
            exec(run, program.__dict__)
            printed = capsys.readouterr().out
            if example.kind == "output":
                assert printed == example.expected, where
