"""Finds the syntax tree of a function: in files, and in what `transient_sources` names."""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import math
import operator
import re
import types
from collections.abc import Mapping
from typing import Any

from ..diagnostics import DSLRuntimeError, Span
from . import nodes, transient_sources


@functools.lru_cache(maxsize=128)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", None)
    return min([node.lineno, *(d.lineno for d in decorators)]) if decorators else node.lineno


def _parameters(arguments: ast.arguments) -> tuple[str, ...]:
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return tuple(names)


def _code_parameters(code: types.CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


def _unmangled(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names without their class prefix: private names (`__x` in a class) appear mangled in code objects."""
    return tuple(
        n[n.index("__", 1) :] if n.startswith("_") and "__" in n[1:] and not n.startswith("__") else n for n in names
    )


def _column(code: Any) -> int:
    """Return the leftmost column of the code's first line, to tell lambdas on one line apart; -1 if unknown."""
    if not hasattr(code, "co_positions"):
        return -1
    columns = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]
    columns = [c for c in columns if c != (code.co_firstlineno, 0)]
    return min(columns)[1] if columns else -1


_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
"""Flags of a code object for what its file imported from `__future__`."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def find(code: types.CodeType, space: dict[str, Any] | None = None) -> FunctionNode:
    """Return the syntax node a code object was compiled from, in a tree of its own.

    `space` is the global namespace of its function. Raises DSLRuntimeError if its source cannot be found.
    """
    linecache.checkcache(code.co_filename)
    if not linecache.getlines(code.co_filename):  # in a zip file, or where else a loader finds it
        linecache.getlines(code.co_filename, space)
    return _find_alone(code) or nodes.clone(_find_in_whole(code, space or {}))


def _find_in_whole(code: types.CodeType, space: Mapping[str, object]) -> FunctionNode:
    """Return the node in the tree of a whole text, which is cached for other functions."""
    by_text: dict[str, FunctionNode] = {}
    for text in transient_sources.candidates(code):
        node = _find_in(text, code)
        if node is not None:
            by_text.setdefault(text, node)
    # another text than that of `-c` may have been compiled under the name that it has, too
    named = code.co_filename != "<string>" and not transient_sources.is_imported_file(code.co_filename, space)
    for text, node in by_text.items():
        if (named and len(by_text) == 1) or is_compiled_from(text, node, code):
            return node
    raise DSLRuntimeError(
        f"the source of {code.co_name!r} cannot be had (it was compiled under the name {code.co_filename!r})",
        hint="define it in a file or a notebook. Python forgets a string given to exec(): compile it under a name of its "
        "own, and put its lines into linecache.cache under that name. A program piped into Python's standard input, and "
        "what is typed before Python 3.13, cannot be read a second time. If the file changed since it was imported, "
        "import it again",
        span=Span(code.co_filename, code.co_firstlineno),
    )


def _find_alone(code: types.CodeType) -> FunctionNode | None:
    """Return the node of a function at the top level of a file or class, parsing nothing but its lines.

    None where that fails: the lines do not show where it ends, or compile to other code than this.
    """
    *classes, name = getattr(code, "co_qualname", "<unknown>").split(".")
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno - 1
    if "<" in "".join((*classes, name)) or not len(classes) <= first < len(lines):
        return None
    indentation = len(lines[first]) - len(lines[first].lstrip())
    if (indentation > 0) != bool(classes):
        return None
    end = _last_line(code)
    while end < len(lines) and (_indentation(lines[end]) > indentation):
        end += 1
    around = [f"{' ' * depth}class {owner}:\n" for depth, owner in enumerate(classes)]
    excerpt = "".join(["\n" * (first - len(around)), *around, *lines[first:end]])
    try:
        tree: Any = ast.parse(excerpt)
        for _ in classes:
            (tree,) = tree.body
        (node,) = tree.body
    except (SyntaxError, ValueError):  # it ends elsewhere, or is not alone
        return None
    definition = _choose([node], (ast.FunctionDef, ast.AsyncFunctionDef), code)
    text = "".join(lines)
    start = _DEFINITION.search(text)
    imports = _imports(text[: start.start()] if start else text)
    return definition if definition is not None and _gives_code(excerpt + imports, code) else None


_DEFINITION = re.compile(r"^(?:@|def |class |async )", re.MULTILINE)
"""The first definition in a file, before which its imports usually stand."""


def _last_line(code: types.CodeType) -> int:
    """Return the last line of a function that has code."""
    inner = (_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType))
    own = (line for _, _, line in code.co_lines() if line is not None)
    return max((code.co_firstlineno, *own, *inner))


def _indentation(line: str) -> float:
    """Return the indentation of a line; infinity for one without code, which cannot end a function."""
    code = line.lstrip()
    return len(line) - len(code) if code and not code.startswith("#") else math.inf


def _find_in(text: str, code: types.CodeType) -> FunctionNode | None:
    tree = _parse(text)
    if tree is None:
        return None
    kinds = ast.Lambda if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    # Places inside an f-string that spans lines may be wrong before Python 3.12: then everything is looked at.
    return _choose(_around(tree, code.co_firstlineno), kinds, code) or _choose(nodes.walk(tree), kinds, code)


def _around(tree: ast.Module, line: int) -> list[Any]:
    """Return the nodes of a tree that a line is part of."""
    reached: list[Any] = [tree]
    below: list[Any] = []
    for node in reached:  # the list grows in the loop
        nodes.add_children(node, below)
        for child in below:
            end = getattr(child, "end_lineno", None)  # some kinds of nodes have no place
            if end is None or (line <= end and _first_line(child) <= line):
                reached.append(child)
        below.clear()
    return reached


def _choose(candidates: list[Any], kinds: Any, code: types.CodeType) -> FunctionNode | None:
    matching: list[FunctionNode] = []
    for node in candidates:
        if not isinstance(node, kinds) or _first_line(node) != code.co_firstlineno:
            continue
        if not isinstance(node, ast.Lambda) and node.name != code.co_name:
            continue
        parameters = _parameters(node.args)
        if parameters != _code_parameters(code) and parameters != _unmangled(_code_parameters(code)):
            continue
        matching.append(node)
    if len(matching) > 1:
        column = _column(code)
        matching = [n for n in matching if isinstance(n, ast.Lambda) and n.body.col_offset == column] or matching
    if len(matching) > 1:  # Python 3.10 knows no columns
        matching = [n for n in matching if isinstance(n, ast.Lambda) and _gives(n, code)] or matching
    if len(matching) > 1 and len({ast.dump(n) for n in matching}) > 1:
        raise DSLRuntimeError(
            f"several lambdas with the same parameters stand on line {code.co_firstlineno}",
            hint="put each lambda on a line of its own",
            span=Span(code.co_filename, code.co_firstlineno),
        )
    return matching[0] if matching else None


def _gives(node: ast.Lambda, code: types.CodeType) -> bool:
    return _contains(compile(ast.Expression(node), code.co_filename, "eval", dont_inherit=True), code)


def is_compiled_from(text: str, node: FunctionNode, code: types.CodeType) -> bool:
    """Return whether compiling a node of a text gives the code: files change, and their times are not reliable."""
    tree = _parse(text)
    excerpt = "" if tree is None else _excerpt(text, tree.body, node) + _imports(text)
    return _gives_code(excerpt, code) or _contains(_compile(text, code.co_filename), code)


def _gives_code(excerpt: str, code: types.CodeType) -> bool:
    """Return whether compiling a part of a text gives the code."""
    try:
        compiled = compile(excerpt, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    except SyntaxError:  # places of nodes may be wrong, see above
        return False
    return _contains(compiled, code)


@functools.lru_cache(maxsize=128)
def _imports(text: str) -> str:
    """Return an import of the names that a text imports at its top: calls of their attributes compile differently."""
    tree = _parse(text)
    names: set[str] = set()
    todo: list[ast.AST] = [] if tree is None else list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler, ast.For, ast.While)):
            todo += ast.iter_child_nodes(node)
    names.discard("*")
    return f"\nimport {', '.join(sorted(names))}\n" if names else ""


def _excerpt(text: str, body: list[ast.stmt], node: FunctionNode) -> str:
    """Return the top-level statement that contains a node, at its line numbers; in a class, only that statement."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    while True:
        around = [s for s in body if _first_line(s) <= node.lineno <= (s.end_lineno or 0)]
        if not around:
            return "".join(kept)
        first = _first_line(around[0])
        end = around[-1].end_lineno
        outer = around[0]
        inside = isinstance(outer, ast.ClassDef) and outer.body and _first_line(outer.body[0]) <= node.lineno
        if not inside or not isinstance(outer, ast.ClassDef):
            return "".join([*kept, "\n" * (first - 1 - len(kept)), *lines[first - 1 : end]])
        kept += ["\n"] * (outer.lineno - 1 - len(kept))
        kept.append(f"{' ' * outer.col_offset}class {outer.name}:\n")
        body = outer.body


@functools.lru_cache(maxsize=16)
def _compile(text: str, filename: str) -> types.CodeType:
    return compile(text, filename, "exec", dont_inherit=True)


def _contains(module: types.CodeType, code: types.CodeType) -> bool:
    """Return whether code like `code` is somewhere in a module. Flags may differ: exec() passes on its caller's."""
    inner = [c for c in module.co_consts if isinstance(c, types.CodeType)]
    return any(identity(c) == identity(code) or _contains(c, code) for c in inner)


def identity(code: types.CodeType) -> tuple[object, ...]:
    """Return a value that identifies code, comparable across processes."""
    constants = [identity(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    return (code.co_name, code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, constants)


def _constant(value: object) -> tuple[object, ...]:
    """Return a constant in comparable form: 1 is not True, and equal sets may list their elements in any order."""
    if isinstance(value, (tuple, frozenset)):
        parts = [_constant(part) for part in value]
        return type(value), parts if isinstance(value, tuple) else sorted(parts, key=repr)
    return type(value), repr(value)
