"""What packages give out: to type checkers the same names as to programs, and `dir()` has them all."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "kiln"
PACKAGES = sorted(
    ".".join(file.relative_to(SOURCE.parent).parent.parts)
    for file in SOURCE.rglob("__init__.py")
    if "lazy.names(" in file.read_text() and "workbench" not in file.parts and file.parent.name != "aot"
)


def names_for_type_checkers(package: str) -> set[str]:
    """The names that `if TYPE_CHECKING:` imports by name."""
    text = (SOURCE.parent / package.replace(".", "/") / "__init__.py").read_text()
    return {
        alias.asname
        for node in ast.parse(text).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname is not None
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_what_loads_later(package):
    module = importlib.import_module(package)
    places = getattr(module, "_PLACES", None) or getattr(module, "_LAZY_NAMES", {})
    seen = names_for_type_checkers(package)
    whole = {name for name, place in places.items() if f"from {place} import *" in Path(module.__file__).read_text()}
    missing = sorted(places.keys() - seen - whole)
    assert not missing, "\n".join(f"    from {places[name]} import {name} as {name}" for name in missing)


@pytest.mark.parametrize("package", ["kiln", "kiln.cute", "kiln.utils", "kiln.kernels", "kiln.cute.nvgpu"])
def test_dir_has_all_names_and_no_helpers(package):
    listed = {name for name in dir(importlib.import_module(package)) if not name.startswith("__")}
    assert names_for_type_checkers(package) - {"_bank_conflicts", "_sanitize"} <= listed
    assert not listed & {"TYPE_CHECKING", "Any", "annotations", "importlib", "lazy", "gc_paused", "lost_by_joining"}


def test_the_stubs_of_cutlass_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/alias_stubs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run python tools/alias_stubs.py; these differ:\n{done.stdout}{done.stderr}"
