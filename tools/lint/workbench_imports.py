"""Files of the workbench import each other in no circle, and inside functions only what is optional or slow to load."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from room_map import modules
from source_tree import Problem, Tree

WORKBENCH = "kiln.workbench"
FOLDER = "src/kiln/workbench"

OPTIONAL = {
    "torch",
    "torch.overrides",
    "yaml",
    "plotly.offline",
    "nvtx",
    "pytest",
    "rich_argparse",
    "shtab",
    "mcp.server",
    "mcp.server.fastmcp",
    "sqlite3",
    ".serve_cuda.marks",
    ".serve_cuda.flex_attention",
    ".serve_cuda.torch_cuda",
    ".ranks.host_accesses",
    ".ranks.nvshmem",
    ".ranks.process_group",
    ".ranks.symmetric_memory",
    ".ranks.symmetric_operators",
    "cuda.pathfinder",
}
"""Packages that may be missing, and the modules of the workbench that import one of them."""
SLOW = {
    "numpy": "200 ms",
    "rich": "100 ms",
    "rich.console": "100 ms",
    "rich.markdown": "150 ms",
    "rich.progress": "200 ms",
    "rich.syntax": "150 ms: pygments",
    "rich.table": "130 ms",
    "rich.text": "with rich.console",
    "kiln.kernels": "250 ms: the kernel library",
    "kiln.kernels.dispatch.arrays": "with kiln.kernels",
    "kiln.kernels.impl.gemm": "with kiln.kernels",
    "kiln.measure.comparison": "numpy",
    ".core.answers": "30 ms: subprocess, tempfile",
    ".core.library_cases": "kiln.kernels",
    ".core.loading": "100 ms: contracts",
    ".ranks.running": "200 ms: the runtime of the CPU target",
    ".core.text": "5 ms: difflib, of the 180 that `kiln --help` takes",
    ".inspect.highlight": "100 ms: pygments",
}
"""Modules that a verb loads when it needs them, and what they cost."""
OTHERS = {
    "doctor.py": "`kiln doctor` reports a broken installation; it does not end with its error",
    "core/opened_case.py": "loads what it watches, numpy and torch among it, just before a contract is imported",
    "core/ray_runner.py": "a function that Ray runs on nodes which may have no Kiln",
    "startup/sitecustomize.py": "runs at the start of every Python process",
}
"""Files that import inside functions for another reason."""


class Import(NamedTuple):
    """A module that a file imports, and whether a function does."""

    name: str
    in_function: bool
    line: int


def imports(syntax: ast.AST, package: str, files: set[str]) -> Iterator[Import]:
    """Yield what a program imports when it runs: imports for type checkers are none, `import_module` of a name is one."""

    def walk(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            names: list[str] = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                parts = package.split(".")
                base = parts[: len(parts) - child.level + 1] if child.level else []
                whole = ".".join([*base, *filter(None, [child.module])])
                names = [f"{whole}.{a.name}" if f"{whole}.{a.name}" in files else whole for a in child.names]
            elif isinstance(child, ast.Call) and getattr(child.func, "attr", "") == "import_module":
                names = [str(child.args[0].value)] if isinstance(child.args[0], ast.Constant) else []
            yield from (Import(name, in_function, child.lineno) for name in names)  # type: ignore[attr-defined]
            yield from walk(child, in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    yield from walk(syntax, False)


def all_imports(tree: Tree) -> dict[str, list[Import]]:
    """Return what each module of the workbench imports."""
    files = modules(tree)
    own = {name: file for name, file in files.items() if name.startswith(WORKBENCH) and "templates" not in file.parts}
    packages = {name: name if file.name == "__init__.py" else name.rpartition(".")[0] for name, file in own.items()}
    return {name: list(imports(tree.module(file), packages[name], {*files})) for name, file in own.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that are left when those without imports are taken away again and again."""
    left = {name: set(below) & graph.keys() - {name} for name, below in graph.items()}
    while lowest := {name for name, below in left.items() if not below}:
        left = {name: below - lowest for name, below in left.items() if name not in lowest}
    return sorted(left)


def check(tree: Tree) -> Iterator[Problem]:
    """Yield circles of files, imports inside functions without a reason, and reasons that no import needs."""
    every = all_imports(tree)
    if left := circle({name: {one.name for one in names} for name, names in every.items()}):
        yield Problem(FOLDER, 0, f"these import each other in a circle: {', '.join(left)}")
    files = modules(tree)
    used: set[str] = set()
    for module, names in every.items():
        file = files[module].relative_to(tree.root / FOLDER).as_posix()
        for one in names:
            name = one.name.removeprefix(WORKBENCH)
            if one.in_function and name in OPTIONAL | SLOW.keys():
                used.add(name)
            elif one.in_function and file in OTHERS:
                used.add(file)
            elif one.in_function:
                yield Problem(f"{FOLDER}/{file}", one.line, f"imports {one.name} inside a function: import it above")
    for name in sorted((OPTIONAL | SLOW.keys() | OTHERS.keys()) - used) if every else ():
        yield Problem(f"tools/lint/{Path(__file__).name}", 0, f"{name} is imported inside no function: take it out")
