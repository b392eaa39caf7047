"""Pyright, in its standard mode, over code as users write it: what editors mark, complete and show.

All programs are checked by one process. A wrong program says with a comment, `# error: words`, which words the message
of that line has; `reveal_type(x)  # Int32` says the type that an editor shows.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("pyright")
import pyright_run
from pyright_run import Message

HERE = Path(__file__).parent / "programs"
NAMES = Path("all_public_names.py")
MODULES = (
    "kiln", "kiln.aot", "kiln.bank_conflicts", "kiln.cute", "kiln.cute.arch", "kiln.cute.nvgpu", "kiln.cute.nvgpu.cpasync",
    "kiln.cute.nvgpu.tcgen05", "kiln.cute.nvgpu.warp", "kiln.cute.nvgpu.warpgroup", "kiln.cute.runtime",
    "kiln.cute.testing", "kiln.experimental.cuda", "kiln.experimental.primitives", "kiln.kernels", "kiln.measure", "kiln.nn",
    "kiln.pipeline", "kiln.sanitize", "kiln.testing", "kiln.torch", "kiln.utils", "kiln.utils.blackwell_helpers",
    "kiln.utils.hopper_helpers", "kiln.vector",
)  # fmt: skip
COMPUTED = {"kiln.Arch", "kiln.cute.arch.Arch"}
"""An enumeration whose members no type checker can know."""
OF_PAGES = {
    "reportUndefinedVariable", "reportRedeclaration", "reportPossiblyUnboundVariable", "reportPossiblyUnbound",
    "reportUnboundVariable",
}  # fmt: skip
"""Rules that a page breaks because it is no whole program: the text around a block says what its names are."""


@pytest.fixture(scope="session")
def checked(tmp_path_factory) -> tuple[dict[str, Path], list[Message]]:
    folder = tmp_path_factory.mktemp("pyright")
    originals = pyright_run.user_files(folder)
    for program in sorted(HERE.glob("*.py")):
        file = folder / "tests" / program.name
        file.parent.mkdir(exist_ok=True)
        file.write_text(program.read_text())
        originals[str(file)] = program
    every_name = folder / NAMES
    every_name.write_text(
        "".join([*(f"import {module}\n" for module in MODULES), *map("reveal_type({})\n".format, public_names())])
    )
    originals[str(every_name)] = NAMES
    return originals, pyright_run.run(folder)


def public_names() -> list[str]:
    """Return the functions and classes that modules give out, with their modules."""
    found = {module: importlib.import_module(module) for module in MODULES}
    return [
        f"{module}.{name}"
        for module, what in found.items()
        for name in dir(what)
        if not name.startswith("_")
        and callable(getattr(what, name))
        and not isinstance(getattr(what, name), ModuleType)
    ]


def messages_of(checked, program: Path) -> list[Message]:
    originals, messages = checked
    return [message for message in messages if originals.get(message.file) == program]


def test_examples_templates_and_pages_have_no_errors(checked):
    originals, messages = checked
    wrong = [
        f"{originals[m.file].relative_to(pyright_run.ROOT)}:{m.line}: {m.text} [{m.rule}]"
        for m in messages
        if m.severity == "error" and originals[m.file].parent != HERE and originals[m.file] != NAMES
        and not (originals[m.file].suffix == ".md" and m.rule in OF_PAGES)
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_types_that_editors_show(checked):
    program = HERE / "revealed.py"
    expected: dict[int, str] = {}
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if found := re.search(r"reveal_type\(.*\)  # (.*)$", line):
            expected[number] = found[1]
    shown = {
        m.line: m.text.rpartition(' is "')[2].rstrip('"')
        for m in messages_of(checked, program)
        if m.severity == "information"
    }
    assert len(expected) >= 40
    assert shown == expected
    assert not [m for m in messages_of(checked, program) if m.severity == "error"]


def test_no_public_name_is_any(checked):
    names = dict(enumerate(public_names(), len(MODULES) + 1))
    messages = messages_of(checked, NAMES)
    assert {m.line for m in messages} == names.keys()
    wrong = {
        names[m.line]: m.text for m in messages if m.severity == "error" or re.search(r' is "(Any|Unknown)"$', m.text)
    }
    assert wrong.keys() == COMPUTED, wrong


def test_wrong_programs_are_marked_where_they_are_wrong(checked):
    program = HERE / "wrong.py"
    expected = {
        number: found[1]
        for number, line in enumerate(program.read_text().splitlines(), 1)
        if (found := re.search(r"# error: (.*)$", line))
    }
    assert len(expected) >= 20
    errors: dict[int, str] = {}
    for m in messages_of(checked, program):
        if m.severity == "error":
            errors[m.line] = errors.get(m.line, "") + m.text + "\n"
    assert errors.keys() == expected.keys()
    for line, words in expected.items():
        assert words in errors[line], f"line {line}: {errors[line]}"


@pytest.mark.skipif(os.environ.get("KILN_LONG_TESTS", "") in ("", "0"), reason="half a minute of processor time")
def test_nearly_all_types_are_known(tmp_path):
    found = pyright_run.completeness(tmp_path)
    unknown = [
        f"{symbol['name']}: {symbol['diagnostics'][0]['message']}"
        for symbol in found["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"] and symbol["diagnostics"]
    ]
    assert found["completenessScore"] >= 0.95, "\n".join(unknown)
