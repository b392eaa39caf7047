"""Who imports whom, against the map in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import Problem, Tree

PAGE = "docs/architecture.md"
DIVIDED = ("interop", "targets")
"""Folders of which each folder is a room."""
ABOVE = ("cute/experimental",)
"""Folders that stand above the rest of theirs, and are rooms of their own."""


def room_map(text: str) -> tuple[dict[str, set[str]], set[str]]:
    """The rooms that each room may import, from top to bottom, and those that all may."""
    block = re.search(r"```rooms\n(.*?)```", text, re.DOTALL)
    assert block is not None, "the page has no map"
    lines = [line.partition(":") for line in block.group(1).splitlines() if line.strip()]
    *rooms, (last, _, ground) = lines
    assert last == "ground", "the last line says what all rooms may import"
    return {room: set(arrows.split()) for room, _, arrows in rooms}, set(ground.split())


def modules(tree: Tree) -> dict[str, Path]:
    """Return the files of the package by the names of their modules."""
    source = tree.root / "src" / "kiln"
    files: dict[str, Path] = {}
    for file in tree.files("src/kiln"):
        parts = [source.name, *file.relative_to(source).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


def room_of(tree: Tree, module: str) -> str:
    """Return the room of a module."""
    parts = module.split(".")[1:]
    if not parts:
        return "kiln"
    if parts[0] == "__main__":
        return "workbench"
    inside = parts[0] in DIVIDED and len(parts) > 1 and (tree.root / "src" / "kiln" / parts[0] / parts[1]).is_dir()
    inside = inside or "/".join(parts[:2]) in ABOVE
    return "/".join(parts[:2]) if inside else parts[0]


def imports(tree: Tree, module: str, files: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """The modules of the package that a file imports anywhere, each with a line."""
    file = files[module]
    text = tree.text(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    loads_names = "lazy.names(" in text
    for node in tree.nodes(file):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None and _gives_out(node):
            continue  # as below
        elif isinstance(node, ast.ImportFrom):
            base = _resolved("." * node.level + (node.module or ""), package)
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base for alias in node.names]
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("importlib.import_module", "lazy.Module"):
            names = [_text(node.args[0], module)]
        elif loads_names and isinstance(node, ast.Constant) and isinstance(node.value, str):
            # names that load when they are used, by their relative place; to give modules below out is no import
            if re.fullmatch(r"\.+\w[\w.]*", node.value):
                names = [_resolved(node.value, package)]
        for name in names:
            if name.split(".")[0] == "kiln":
                yield _innermost(name, files), getattr(node, "lineno", 0)


def _gives_out(node: ast.ImportFrom) -> bool:
    """Whether a package gives out its modules: `from . import cute as cute`, which type checkers look for."""
    return all(alias.asname is not None and alias.asname.lstrip("_") == alias.name for alias in node.names)


def _dotted(node: ast.expr) -> str:
    """Return `importlib.import_module` as it is written; `ast.unparse` of each call would take seconds."""
    return (
        f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    )


def _text(node: ast.expr, module: str) -> str:
    """A name given as text, as far as it is files: `f"{__name__}.host"`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    text = ""
    for part in node.values if isinstance(node, ast.JoinedStr) else ():
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue) and getattr(part.value, "id", "") == "__name__":
            text += module
        else:
            return ""  # chosen at run time
    return text


def _resolved(name: str, package: str) -> str:
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    base = package.split(".")
    return ".".join([*base[: len(base) - dots + 1], *filter(None, [name[dots:]])])


def _innermost(name: str, files: dict[str, Path]) -> str:
    while name not in files:
        name = name.rpartition(".")[0]
    return name


def arrows(tree: Tree) -> dict[tuple[str, str], list[str]]:
    """Return the pairs of rooms of which the first imports the second, and where."""
    files = modules(tree)
    places: dict[tuple[str, str], list[str]] = {}
    for module, file in files.items():
        for name, line in imports(tree, module, files):
            pair = (room_of(tree, module), room_of(tree, name))
            if pair[0] != pair[1]:
                places.setdefault(pair, []).append(f"{tree.name(file)}:{line}")
    return places


def check(tree: Tree) -> Iterator[Problem]:
    """Yield imports that the map does not have, rooms that it lacks, and cycles in it."""
    rooms, ground = room_map(tree.text(tree.root / PAGE))
    there = {room_of(tree, module) for module in modules(tree)}
    for room in sorted(there ^ (rooms.keys() | ground)):
        yield Problem(PAGE, 0, f"{room} is {'not in the map' if room in there else 'in the map, and no room'}")
    order = list(rooms)
    for room, below in rooms.items():
        for other in sorted(below - set(order[order.index(room) + 1 :])):
            yield Problem(PAGE, 0, f"{room} imports {other}, which does not stand below it in the map")
    used = arrows(tree)
    for (room, other), places in sorted(used.items()):
        if other not in rooms.get(room, set()) | ground and room not in ground:
            yield Problem(PAGE, 0, f"{room} imports {other}, which the map does not have: {', '.join(places[:4])}")
        if room in ground and other not in ground:
            yield Problem(PAGE, 0, f"{room}, which all may import, imports {other}: {', '.join(places[:4])}")
    left = {pair for pair in used if {*pair} <= ground}
    while left:
        lowest = {other for _, other in left} - {room for room, _ in left}
        if not lowest:
            yield Problem(PAGE, 0, f"rooms that all may import, import each other in a circle: {sorted(left)}")
            return
        left = {pair for pair in left if pair[1] not in lowest}
