"""The source closure of a program: its file and the project files it imports, found without running anything.

The standard library, installed packages and Kiln itself are not part of it: their versions stand for them.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def _foreign() -> tuple[Path, ...]:
    """Return folders whose files belong to no project."""
    paths = sysconfig.get_paths()
    folders = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own = Path(__file__).resolve().parents[2]
    return (*folders, own, own.with_name("cutlass"))


def is_project(path: Path) -> bool:
    """Return whether a file belongs to a user's project."""
    return "site-packages" not in path.parts and not any(folder in path.parents for folder in _foreign())


def source_files(file: Path) -> dict[Path, bytes]:
    """Return the closure of a file by resolved path, in order of path. Files that are no Python end it."""
    contents: dict[Path, bytes] = {}
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path in contents:
            continue
        try:
            contents[path] = path.read_bytes()
            tree = ast.parse(contents[path])
        except (OSError, SyntaxError, ValueError):
            continue
        package = path.with_name("__init__.py")
        while package.exists():  # of the enclosing packages
            waiting.append(package)
            package = package.parent.with_name("__init__.py")
        waiting += [each for each in _imported(tree, path, file.resolve().parent) if is_project(each)]
    return dict(sorted(contents.items()))


def digest(files: dict[Path, bytes]) -> str:
    """Return a hash of contents and names, independent of where the project is."""
    top = min((path.parent for path in files), key=lambda folder: len(folder.parts), default=Path())
    whole = hashlib.sha256()
    for path, data in files.items():
        name = path.relative_to(top) if top in path.parents else path.name
        whole.update(os.fsencode(name) + f"\0{len(data)}\0".encode() + data)
    return whole.hexdigest()


def asks_for_cuda(files: dict[Path, bytes]) -> bool:
    """Return whether sources name the `cuda` device, call `.cuda()` or import `cuda`."""
    for data in files.values():
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda"):
                return True
            if isinstance(node, ast.Attribute) and node.attr == "cuda":
                return True
            if isinstance(node, (ast.Import, ast.ImportFrom)) and _names(node, "cuda"):
                return True
    return False


def imports(files: dict[Path, bytes], top: str) -> bool:
    """Return whether sources import a package."""
    trees = [ast.parse(data) for data in files.values() if top.encode() in data]
    nodes = (node for tree in trees for node in ast.walk(tree))
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) and _names(node, top) for node in nodes)


def _names(node: ast.Import | ast.ImportFrom, top: str) -> bool:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.split(".")[0] == top for name in modules)


def _imported(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name.split("."), _roots(folder, path))
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            roots = [path.parents[node.level - 1]] if node.level else _roots(folder, path)
            yield from _module_files(base, roots)
            for alias in node.names:  # any of them may be a module
                yield from _module_files([*base, alias.name], roots)


def _roots(folder: Path, path: Path) -> list[Path]:
    """Return where absolute imports are looked up, in Python's order, the contract's folder first."""
    package = path.parent
    while (package / "__init__.py").exists():
        package = package.parent
    return [folder, package, *(Path(entry or ".").resolve() for entry in sys.path)]


def _module_files(parts: list[str], roots: list[Path]) -> Iterator[Path]:
    """Yield the files that an import of a dotted name runs: those of its packages, and its own."""
    for root in roots:
        if not parts or not any((root / parts[0]).with_suffix(suffix).exists() for suffix in ("", ".py")):
            continue
        for end in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:end])
            for file in (place / "__init__.py", place.with_suffix(".py")):
                if file.is_file():
                    yield file.resolve()
        return
