"""Finding the syntax tree of a function: in files, notebooks, the REPL, `-c`, `exec` and redirected stdin."""

from __future__ import annotations

import ast
import collections
import functools
import linecache
import os
import sys
import types

from ..diagnostics import DSLRuntimeError, Span

# Source text given to compile() or exec() under a name that is no file, newest last.
_pseudo_sources: collections.deque[tuple[str, str]] = collections.deque(maxlen=512)


def _remember_source(event: str, args: tuple[object, ...]) -> None:
    """An audit hook: `exec("...")` and `compile("...")` leave no trace of their text elsewhere."""
    if event != "compile" or len(args) < 2:
        return
    source, filename = args[0], args[1]
    if isinstance(filename, bytes):
        filename = filename.decode(errors="replace")
    if not isinstance(filename, str) or os.path.isabs(filename):
        return
    if isinstance(source, bytes):
        source = source.decode(errors="replace")
    if isinstance(source, str) and "def " in source or isinstance(source, str) and "lambda" in source:
        _pseudo_sources.append((filename, source))


sys.addaudithook(_remember_source)


def _candidate_texts(filename: str) -> list[str]:
    """Texts that may have been compiled under `filename`, most likely first."""
    texts: list[str] = []
    lines = linecache.getlines(filename)
    if lines:
        texts.append("".join(lines))
    texts += [text for name, text in reversed(_pseudo_sources) if name == filename]
    if filename == "<string>" and "-c" in sys.orig_argv:
        texts.append(sys.orig_argv[sys.orig_argv.index("-c") + 1])
    if filename == "<stdin>":
        text = _redirected_stdin()
        if text:
            texts.append(text)
    return texts


@functools.lru_cache(maxsize=1)
def _redirected_stdin() -> str:
    """The program text of `python < prog.py`. A pipe cannot be read twice: nothing then."""
    try:
        size = os.fstat(0).st_size
        return os.pread(0, size, 0).decode() if size else ""
    except (OSError, UnicodeDecodeError):
        return ""


@functools.lru_cache(maxsize=128)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
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


def _mangled(names: tuple[str, ...], code: types.CodeType) -> tuple[str, ...]:
    """Private names (`__x` in a class) appear mangled in code objects; compare them unmangled."""
    return tuple(n[n.index("__", 1) :] if n.startswith("_") and "__" in n[1:] and not n.startswith("__") else n for n in names)


def _column(code: types.CodeType) -> int:
    """The leftmost column of the code's first line, to tell lambdas on one line apart; -1 if unknown."""
    if not hasattr(code, "co_positions"):
        return -1
    columns = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]
    columns = [c for c in columns if c != (code.co_firstlineno, 0)]
    return min(columns)[1] if columns else -1


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def find(code: types.CodeType) -> FunctionNode:
    """The syntax node a code object was compiled from. Raises DSLRuntimeError where its source cannot be had."""
    wanted = ast.Lambda if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    linecache.checkcache(code.co_filename)
    for text in _candidate_texts(code.co_filename):
        tree = _parse(text)
        if tree is None:
            continue
        found: list[FunctionNode] = []
        for node in ast.walk(tree):
            if not isinstance(node, wanted) or _first_line(node) != code.co_firstlineno:
                continue
            if not isinstance(node, ast.Lambda) and node.name != code.co_name:
                continue
            parameters = _parameters(node.args)
            if parameters != _code_parameters(code) and parameters != _mangled(_code_parameters(code), code):
                continue
            found.append(node)
        if len(found) > 1:
            column = _column(code)
            inside = [n for n in found if isinstance(n, ast.Lambda) and n.body.col_offset == column]
            found = inside or found
        if len(found) == 1:
            return found[0]
        if found:
            same = {ast.dump(n) for n in found}
            if len(same) == 1:
                return found[0]
            raise DSLRuntimeError(
                f"several lambdas with the same parameters stand on line {code.co_firstlineno}",
                hint="put each lambda on a line of its own",
                span=Span(code.co_filename, code.co_firstlineno),
            )
    raise DSLRuntimeError(
        f"the source of {code.co_name!r} cannot be had (it was compiled under the name {code.co_filename!r})",
        hint="define it in a file, a notebook or a string given to exec(); a program piped into Python's standard input "
        "cannot be read a second time. If the file changed since it was imported, import it again",
        span=Span(code.co_filename, code.co_firstlineno),
    )
