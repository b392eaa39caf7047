"""Names and commands in the pages for contributors exist: identifiers in the sources, programs and their options."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / "architecture.md", *sorted(ROOT.glob("docs/project/*.md")), ROOT / "CONTRIBUTING.md"]
COMMANDS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
FOREIGN = {
    "cutlass",
    "llvmlite",
    "numpy",
    "pytest",
    "hypothesis",
    "ruff",
    "pyright",
    "rich",
    "libcuda",
    "ptxas",
    "nvdisasm",
    "python3",
}
"""Names that are not ours."""
NAME = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)*")
PROGRAM = re.compile(r"python ((?:benchmarks|tests|tools)/[\w/]+\.py)((?: [^`\n#|&]*)?)")


def sources() -> str:
    tops = ("src/kiln", "tests", "tools", "benchmarks")
    files = [file for top in tops for file in (ROOT / top).rglob("*.py")]
    return "\n".join(file.read_text() for file in files) + (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_identifiers_of_a_page_occur_in_the_sources(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = {part for code in re.findall(r"`([^`\n]+)`", text) if NAME.fullmatch(code) for part in code.split(".")}
    known = set(re.findall(r"\w+", sources()))
    folders = {part for file in (ROOT / "src").rglob("*") for part in (file.name, file.stem)}
    assert sorted(names - known - folders - FOREIGN) == []


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for program, arguments in PROGRAM.findall(page.read_text()):
        source = ROOT / program
        if not source.exists():
            wrong.append(program)
            continue
        text = source.read_text()
        wrong += [f"{program} {x}" for x in re.findall(r"(?<=\s)--[a-z][\w-]*", arguments) if x not in text]
    assert wrong == []


CONFIG = re.compile(r"(?:kernels\.)?(\w+Config)\(([\w\s,]+)\)")


def test_library_names_of_the_kernel_page_exist() -> None:
    from kiln import kernels

    text = (ROOT / "docs" / "kernels.md").read_text()
    names = set(re.findall(r"\bkernels\.([A-Za-z]\w*)(?![\w/]*[/.])", text)) - {"md", "Implementation"}
    assert [name for name in sorted(names) if not hasattr(kernels, name)] == []


def test_configs_of_the_kernel_page_have_their_fields() -> None:
    from kiln import kernels

    text = re.sub(r"```.*?```", "", (ROOT / "docs" / "kernels.md").read_text(), flags=re.DOTALL)
    found = {name: [x.strip() for x in fields.split(",")] for name, fields in CONFIG.findall(text)}
    assert len(found) > 5
    for name, fields in found.items():
        assert fields == [field.name for field in dataclasses.fields(getattr(kernels, name))], name
    tables = re.findall(r"^\| `(\w+Config)` \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 3
    for name, rows in tables:
        fields = [x for row in rows.splitlines() for x in re.findall(r"`(\w+)`", row.split(" | ")[0])]
        assert fields == [field.name for field in dataclasses.fields(getattr(kernels, name))], name


def test_a_command_that_does_not_exist_is_seen() -> None:
    assert PROGRAM.findall("`python benchmarks/gone.py --fast x`") == [("benchmarks/gone.py", " --fast x")]
