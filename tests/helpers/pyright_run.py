"""Pyright over programs as users write them: examples, templates, the pages' blocks, and small programs of tests."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from doc_examples import examples

ROOT = Path(__file__).resolve().parents[2]
UNTYPED = ("base-dsl.md", "native.md", "precious")
"""Pages and examples in which Python is another language: MLIR dialects, native functions."""
PAGES = tuple(page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.name not in UNTYPED)
PROGRAMS = (
    *(file for file in sorted((ROOT / "examples").rglob("*.py")) if file.parent.name not in UNTYPED),
    *sorted((ROOT / "src/kiln/workbench/scaffold/templates").glob("[a-z]*.py")),
)


@dataclasses.dataclass
class Message:
    """What pyright says of a line of a file; `line` counts from 1."""

    file: str
    line: int
    text: str
    rule: str
    severity: str


def page_programs(page: Path) -> list[str]:
    """Return the python blocks of a page as programs, in which lines keep their numbers.

    A block that imports `cute` begins a program.
    """
    count = page.read_text().count("\n") + 1
    made = [[""] * count]
    for example in examples(page):
        code = _without_prompts(example.code)
        if (
            example.kind == "refused"
            or not (is_whole := _parses(code))
            and not _parses(f"def block():\n{_indented(code)}")
        ):
            continue  # wrong on purpose, or a part of a statement
        if re.search(r"^(from|import) .*\bcute$", code, re.MULTILINE):
            made.append([""] * count)
        lines = made[-1]
        if not is_whole:
            lines[example.line - 2] = "def block():"
            code = _indented(code)
        for i, line in enumerate(code.splitlines()):
            lines[example.line - 1 + i] = line
    return ["\n".join(lines) + "\n" for lines in made if any(lines)]


def _without_prompts(code: str) -> str:
    """Return the input of an interactive session; other code as it is."""
    if not code.lstrip().startswith(">>>"):
        return code
    return "\n".join(line[4:] if line.startswith((">>> ", "... ")) else "" for line in code.splitlines())


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else "" for line in code.splitlines())


def _parses(code: str) -> bool:
    try:
        compile(code, "a block", "exec")
    except SyntaxError:
        return False
    return True


def user_files(folder: Path) -> dict[str, Path]:
    """Write the examples, templates and pages below a folder; return the original of each file."""
    found: dict[str, Path] = {}
    for page in PAGES:
        for i, program in enumerate(page_programs(page)):
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            file = folder / "pages" / f"{name}_{i}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(program)
            found[str(file)] = page
    for program in PROGRAMS:
        file = folder / "programs" / program.relative_to(ROOT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(program.read_text())
        found[str(file)] = program
    return found


def run(folder: Path) -> list[Message]:
    """Run pyright in its standard mode over all files of a folder, with this checkout as an installed package."""
    config = {"typeCheckingMode": "standard", "pythonVersion": "3.10", "include": ["."]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    report = _report(folder, "--pythonpath", sys.executable, "-p", str(folder))
    return [
        Message(d["file"], d["range"]["start"]["line"] + 1, d["message"], d.get("rule", ""), d["severity"])
        for d in report["generalDiagnostics"]
    ]


def completeness(folder: Path) -> dict[str, Any]:
    """Return what `pyright --verifytypes kiln` says of this checkout, run in an empty folder."""
    return _report(folder, "--verifytypes", "kiln", "--ignoreexternal")["typeCompleteness"]


def _report(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run pyright in a folder, and return its report."""
    # with --verifytypes it takes the first Python that it finds
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", "pyright", "--outputjson", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"pyright did not run:\n{done.stdout}\n{done.stderr}") from None
