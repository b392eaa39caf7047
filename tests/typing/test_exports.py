"""What packages give out: to type checkers the same names as to programs, and `dir()` has them all."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import types
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


MODULES = [
    "kiln", "kiln.aot", "kiln.bank_conflicts", "kiln.cuda", "kiln.cute", "kiln.cute.arch", "kiln.cute.experimental", "kiln.cute.math", "kiln.cute.nvgpu",
    "kiln.cute.nvgpu.cpasync", "kiln.cute.nvgpu.tcgen05", "kiln.cute.nvgpu.warp", "kiln.cute.nvgpu.warpgroup",
    "kiln.cute.nvgpu.common", "kiln.cute.runtime", "kiln.cute.testing", "kiln.experimental.cuda", "kiln.experimental.primitives", "kiln.sanitize", "kiln.jax", "kiln.kernels", "kiln.measure", "kiln.nn", "kiln.pipeline",
    "kiln.testing", "kiln.torch", "kiln.tunings", "kiln.utils", "kiln.utils.blackwell_helpers",
    "kiln.utils.hopper_helpers", "kiln.utils.sm90", "kiln.vector", "kiln.workbench",
]  # fmt: skip
"""Modules whose names users type."""


def public_names(module: str) -> dict[str, object]:
    """Return what `dir()` of a module shows."""
    for needed in ("torch", "jax"):
        if module == f"kiln.{needed}" or (module, needed) == ("kiln.nn", "torch"):
            pytest.importorskip(needed)
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in dir(found) if not name.startswith("__")}


@pytest.mark.parametrize("module", MODULES)
def test_dir_shows_nothing_that_a_module_imports_for_itself(module):
    foreign = ("typing", "collections", "contextlib", "dataclasses", "enum", "functools", "kiln._support")
    wrong = [
        name
        for name, value in public_names(module).items()
        if name.startswith("_")
        or name == "annotations"
        or ((home := getattr(value, "__module__", None) or "").startswith(foreign) and hasattr(sys.modules[home], name))
        or (isinstance(value, types.ModuleType) and not callable(value) and not value.__name__.startswith(f"{module}."))
    ]
    assert not wrong


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", re.sub("([a-z])([A-Z])", r"\1 \2", text).lower())


def _poor_docstring(name: str, value: object) -> str:
    """Return what is wrong with the text that an editor shows for a name."""
    text = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    if not text:
        return "no docstring"
    if not re.search(r"[.:]\W?$", text):
        return f"its first paragraph is no sentence: {text!r}"
    if len(_words(text)) < 3 or _words(text) == _words(name):
        return f"no more than its name: {text!r}"
    return ""


@pytest.mark.parametrize("module", MODULES)
def test_editors_show_a_sentence_for_every_function_and_class(module):
    wrong: list[str] = []
    for name, value in public_names(module).items():
        if not str(getattr(value, "__module__", "")).startswith("kiln") or not callable(value):
            continue
        found = {name: value}
        if isinstance(value, type):
            for member, kept in vars(value).items():
                if not member.startswith("_") and isinstance(kept, (types.FunctionType, property)):
                    # what overrides a documented method means the same
                    documented = [vars(base)[member] for base in value.__mro__ if member in vars(base)]
                    found[f"{name}.{member}"] = next((kept for kept in documented if kept.__doc__), kept)
        wrong += [
            f"{module}.{place}: {what}" for place, kept in found.items() if (what := _poor_docstring(place, kept))
        ]
    assert not wrong, "\n".join(wrong)


def test_the_stubs_of_cutlass_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/alias_stubs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run python tools/alias_stubs.py; these differ:\n{done.stdout}{done.stderr}"
