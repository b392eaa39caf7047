"""Reads a program's syntax tree: jit functions, kernels, options of its command line. The program is not run."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.contracts import ContractError


@dataclass
class Source:
    """A file, and what its syntax tree says."""

    path: Path
    data: bytes
    tree: ast.Module
    imports: list[str]
    names: dict[str, ast.FunctionDef | ast.ClassDef]
    """Top-level definitions."""
    jit: dict[str, ast.FunctionDef] = field(default_factory=dict[str, ast.FunctionDef])
    """Functions with `@cute.jit`, methods as Class.name."""
    kernels: dict[str, ast.FunctionDef] = field(default_factory=dict[str, ast.FunctionDef])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of its command line with their defaults; None for a default that is no constant."""

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def licence(self) -> str:
        """The line of the file that names its licence, else the first copyright line."""
        lines = [line.strip("# \t") for line in self.text.splitlines()[:60]]
        for word in ("SPDX-License-Identifier", "icense", "opyright"):
            for line in lines:
                if word in line:
                    return line
        return "the file names no licence"


def beside(sources: Sequence[Source], but: Sequence[str]) -> dict[str, Source]:
    """Return the modules, by name, that sources import from beside them or from the folder above, except `but`."""
    imported: dict[str, Source] = {}
    waiting = list(sources)
    while waiting:
        each = waiting.pop()
        for top in sorted({name.partition(".")[0] for name in each.imports}):
            here, above = each.path.resolve().parents[:2]
            path = here / f"{top}.py"
            if not path.is_file() and importlib.util.find_spec(top) is None:
                path = above / f"{top}.py"
            if path.is_file() and top not in (*imported, *but):
                imported[top] = read(path)
                waiting.append(imported[top])
    return imported


def read(path: Path) -> Source:
    """Return a file's source without running it."""
    try:
        data = path.read_bytes()
    except OSError as reason:
        raise ContractError(f"cannot read {path}: {reason.strerror}") from None
    try:
        tree = ast.parse(data, str(path))
    except SyntaxError as reason:
        raise ContractError(f"SyntaxError: {reason.msg}", path, reason.lineno) from None
    except ValueError as reason:
        raise ContractError(f"no Python: {reason}", path) from None
    definitions = (ast.FunctionDef, ast.ClassDef)
    source = Source(
        path, data, tree, list(_imports(tree)), {node.name: node for node in tree.body if isinstance(node, definitions)}
    )
    for name, node in _functions(tree):
        decorators = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}
        if "jit" in decorators:
            source.jit[name] = node
        if "kernel" in decorators:
            source.kernels[name] = node
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            _option(node, source.options)
    return source


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _option(call: ast.Call, options: dict[str, Any]) -> None:
    names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    long = next((name for name in names if name.startswith("--")), None)
    if long is None:
        return
    keywords = {each.arg: each.value for each in call.keywords}
    default: Any = None
    if "default" in keywords:
        try:
            default = ast.literal_eval(keywords["default"])
        except ValueError:
            default = ast.unparse(keywords["default"]).rpartition(".")[2]  # cutlass.Float16
    elif "action" in keywords and ast.unparse(keywords["action"]) == "'store_true'":
        default = False
    options[long[2:].replace("-", "_")] = default


def parameters(node: ast.FunctionDef) -> list[tuple[str, str, str | None]]:
    """Return name, annotation and default of each parameter but self."""
    args = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(args) - len(node.args.defaults)) + [ast.unparse(each) for each in node.args.defaults]
    args += node.args.kwonlyargs
    defaults += [ast.unparse(each) if each else None for each in node.args.kw_defaults]
    return [
        (arg.arg, ast.unparse(arg.annotation) if arg.annotation else "", default)
        for arg, default in zip(args, defaults)
        if arg.arg not in ("self", "cls")
    ]
