"""Who imports whom, against the map in docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "kiln"
DIVIDED = ("interop", "targets")
"""Folders of which each folder is a room."""
ABOVE = ("cute/experimental",)
"""Folders that stand above the rest of theirs, and are rooms of their own."""

STILL_WRONG: dict[tuple[str, str], str] = {}
"""Arrows between rooms that are to go, and what they wait for."""


def room_map(text: str) -> tuple[dict[str, set[str]], set[str]]:
    """The rooms that each room may import, from top to bottom, and those that all may."""
    block = re.search(r"```rooms\n(.*?)```", text, re.DOTALL)
    assert block is not None, "the page has no map"
    lines = [line.partition(":") for line in block.group(1).splitlines() if line.strip()]
    *rooms, (last, _, ground) = lines
    assert last == "ground", "the last line says what all rooms may import"
    return {room: set(arrows.split()) for room, _, arrows in rooms}, set(ground.split())


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """The files of the package by the names of their modules."""
    found: dict[str, Path] = {}
    for file in sorted(source.rglob("*.py")):
        parts = [source.name, *file.relative_to(source).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def room_of(module: str) -> str:
    parts = module.split(".")[1:]
    if not parts:
        return "kiln"
    if parts[0] == "__main__":
        return "workbench"
    inside = parts[0] in DIVIDED and len(parts) > 1 and (SOURCE / parts[0] / parts[1]).is_dir()
    inside = inside or "/".join(parts[:2]) in ABOVE
    return "/".join(parts[:2]) if inside else parts[0]


def imports(module: str, file: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """The modules of the package that a file imports anywhere, each with a line."""
    text = file.read_text()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    loads_names = "lazy.names(" in text
    for node in ast.walk(ast.parse(text)):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None and _gives_out(node):
            continue  # as below
        elif isinstance(node, ast.ImportFrom):
            base = _resolved("." * node.level + (node.module or ""), package)
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("importlib.import_module", "lazy.Module"):
            found = [_text(node.args[0], module)]
        elif loads_names and isinstance(node, ast.Constant) and isinstance(node.value, str):
            # names that load when they are used, by their relative place; to give modules below out is no import
            if re.fullmatch(r"\.+\w[\w.]*", node.value):
                found = [_resolved(node.value, package)]
        for name in found:
            if name.split(".")[0] == "kiln":
                yield _innermost(name, known), getattr(node, "lineno", 0)


def _gives_out(node: ast.ImportFrom) -> bool:
    """Whether a package gives out its modules: `from . import cute as cute`, which type checkers look for."""
    return all(alias.asname is not None and alias.asname.lstrip("_") == alias.name for alias in node.names)


def _dotted(node: ast.expr) -> str:
    """Return `importlib.import_module` as it is written; `ast.unparse` of each call would take seconds."""
    return (
        f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    )


def _text(node: ast.expr, module: str) -> str:
    """A name given as text, as far as it is known: `f"{__name__}.host"`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    made = ""
    for part in node.values if isinstance(node, ast.JoinedStr) else ():
        if isinstance(part, ast.Constant):
            made += str(part.value)
        elif isinstance(part, ast.FormattedValue) and getattr(part.value, "id", "") == "__name__":
            made += module
        else:
            return ""  # chosen at run time
    return made


def _resolved(name: str, package: str) -> str:
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    base = package.split(".")
    return ".".join([*base[: len(base) - dots + 1], *filter(None, [name[dots:]])])


def _innermost(name: str, known: dict[str, Path]) -> str:
    while name not in known:
        name = name.rpartition(".")[0]
    return name


@functools.lru_cache(maxsize=1)
def arrows() -> dict[tuple[str, str], list[str]]:
    """Pairs of rooms, the first of which imports the second, and where."""
    known = modules()
    found: dict[tuple[str, str], list[str]] = {}
    for module, file in known.items():
        for name, line in imports(module, file, known):
            pair = room_of(module), room_of(name)
            if pair[0] != pair[1]:
                found.setdefault(pair, []).append(f"{file.relative_to(ROOT)}:{line}")
    return found


def test_imports_keep_to_the_map() -> None:
    rooms, ground = room_map((ROOT / "docs" / "architecture.md").read_text())
    wrong = [
        f"{room} imports {other}: {', '.join(places[:4])}"
        for (room, other), places in sorted(arrows().items())
        if other not in rooms.get(room, set()) | ground and room not in ground and (room, other) not in STILL_WRONG
    ]
    assert not wrong, "not in the map of docs/architecture.md:\n" + "\n".join(wrong)


def test_what_is_still_wrong_is_there() -> None:
    assert STILL_WRONG.keys() <= arrows().keys()


def test_the_map_has_every_room_and_no_circle() -> None:
    rooms, ground = room_map((ROOT / "docs" / "architecture.md").read_text())
    there = {room_of(module) for module in modules()}
    assert there == rooms.keys() | ground
    order = list(rooms)
    for room, below in rooms.items():
        assert below <= set(order[order.index(room) + 1 :]), f"{room} imports a room that does not stand below it"


def test_what_all_may_import_has_no_circle() -> None:
    ground = room_map((ROOT / "docs" / "architecture.md").read_text())[1]
    left = {pair for pair in arrows() if pair[0] in ground}
    assert {other for _, other in left} <= ground
    while left:
        lowest = {other for _, other in left} - {room for room, _ in left}
        assert lowest, f"a circle: {sorted(left)}"
        left = {pair for pair in left if pair[1] not in lowest}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from ..llvm import binding", "kiln.llvm"),
        ("def f():\n    from .. import llvm", "kiln.llvm"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..mlir import ir", "kiln.mlir"),
        ("import kiln.mlir", "kiln.mlir"),
        ("import importlib\nimportlib.import_module('kiln.mlir')", "kiln.mlir"),
        ("import importlib\nimportlib.import_module(f'{__name__}.bindings')", "kiln.hardware"),
        ("__getattr__ = lazy.names(__name__, {'ir': '..mlir'})", "kiln.mlir"),
        ("ir = lazy.Module('kiln.mlir', 'ir')", "kiln.mlir"),
        ("import numpy", None),
    ],
)
def test_every_kind_of_import_is_seen(text: str, found: str | None, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(text)
    known = {"kiln": file, "kiln.llvm": file, "kiln.mlir": file, "kiln.hardware": file}
    names = {name for name, _ in imports("kiln.hardware.example", file, known)}
    assert names == ({found} if found else set())
