"""The tests lie where their sources do, under names of their own, and share nothing but fixtures and the modules of `helpers`."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "kiln"

OF_NO_ROOM = {"examples", "gpu", "helpers", "targets/cpu/sanitizer/mutants", "typing", "typing/programs"}
"""Programs that are run whole, what needs a GPU, modules that tests import, programs that tests change or pyright reads."""


def files() -> list[Path]:
    return sorted(TESTS.rglob("*.py"))


def test_folders_are_those_of_the_source() -> None:
    folders = {file.parent.relative_to(TESTS).as_posix() for file in files()} - OF_NO_ROOM
    assert [folder for folder in sorted(folders) if not (SOURCE / folder).is_dir()] == []


def test_every_room_has_a_folder() -> None:
    rooms = [
        file.parent for pattern in ("*", "interop/*", "targets/*") for file in SOURCE.glob(f"{pattern}/__init__.py")
    ]
    assert [room.name for room in rooms if not (TESTS / room.relative_to(SOURCE)).is_dir()] == []


def test_every_file_has_a_name_of_its_own() -> None:
    names = Counter(file.name for file in files() if file.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_what_tests_import_is_in_helpers() -> None:
    """pytest finds it there for all of them; no test is imported by another, and no path is made for it."""
    tests = [file for file in files() if file.name.startswith(("test_", "conftest"))]
    names = {file.stem for file in tests}
    wrong: list[str] = []
    for file in tests:
        for node in ast.walk(ast.parse(file.read_text())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                found = [node.module or ""]
            if isinstance(node, ast.Attribute) and node.attr in ("insert", "append"):
                path = isinstance(node.value, ast.Attribute) and node.value.attr == "path"
                found = [ast.unparse(node.value)] if path else []
            wrong += [f"{file.relative_to(TESTS)}: {name}" for name in found if name in names or name == "sys.path"]
    assert wrong == []
