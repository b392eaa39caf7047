"""Sources of programs that are in no file: passed to `exec` or `-c`, typed into a REPL, redirected into Python.

Python does not keep such a source once it is compiled. But while its program runs, the caller of `exec` usually still
has the source: in a variable, as a constant, or in an expression that can be evaluated again.
"""

from __future__ import annotations

import ast
import collections
import functools
import importlib.machinery
import inspect
import linecache
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

# Sources found when functions were decorated, by the names they were compiled under, newest last.
_seen: collections.deque[tuple[str, str]] = collections.deque(maxlen=512)
_MOST_FRAMES = 100


def remember_callers(function: types.FunctionType) -> None:
    """Keep sources that may define a function being decorated, if it is in no file."""
    for text in _on_the_stack(function.__code__):
        if (function.__code__.co_filename, text) not in _seen:
            _seen.append((function.__code__.co_filename, text))


def guesses(code: types.CodeType) -> list[str]:
    """Return sources that may contain `code`, because functions on the stack hold them."""
    found = [text for name, text in reversed(_seen) if name == code.co_filename]
    return found + [text for text in _on_the_stack(code) if text not in found]


def _on_the_stack(code: types.CodeType) -> list[str]:
    """Return sources that define a function of that name, among what the functions on the stack hold."""
    filename = code.co_filename
    # the text of `-c` is there under the name of all that `exec` runs, from 3.13 on
    if os.path.isabs(filename) or (filename != "<string>" and linecache.getlines(filename)):
        return []
    wanted = f"def {code.co_name}" if code.co_name != "<lambda>" else "lambda"
    found: dict[str, None] = {}
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        for value in (*list(frame.f_locals.values()), *frame.f_code.co_consts, *_computed_again(frame)):
            text = bytes(value).decode(errors="replace") if isinstance(value, (bytes, bytearray)) else value
            if isinstance(text, str) and wanted in text:
                found[text] = None
        frame = frame.f_back
    return list(found)


def _computed_again(frame: types.FrameType) -> Iterator[Any]:
    """Yield what a frame passed to `exec` or `compile` on its current line, if it can be evaluated again safely."""
    line = frame.f_lineno
    if line is None:
        return
    for call in _calls("".join(linecache.getlines(frame.f_code.co_filename))):
        if call.lineno <= line <= (call.end_lineno or call.lineno):
            try:
                yield _value(call.args[0], frame)
            except (_Unknown, AttributeError, KeyError, IndexError, TypeError, ValueError):
                continue


@functools.lru_cache(maxsize=256)
def _calls(text: str) -> list[ast.Call]:
    """Return the calls of `exec`, `compile` and `eval` in a text, cached: the stack has many frames of few files."""
    if not any(name in text for name in _RUNNERS):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in _RUNNERS]


_RUNNERS = ("exec", "compile", "eval")


class _Unknown(Exception):
    """Raised for an expression that is not evaluated again."""


_TEXT_METHODS = frozenset(
    (
        "capitalize",
        "expandtabs",
        "format",
        "join",
        "lower",
        "lstrip",
        "removeprefix",
        "removesuffix",
        "replace",
        "rstrip",
        "strip",
        "title",
        "upper",
    )
)
_TEXT_FUNCTIONS = frozenset((("textwrap", "dedent"), ("textwrap", "indent"), ("inspect", "cleandoc")))
_PLAIN = (str, int, float, bool, type(None))


def _value(node: ast.expr, frame: types.FrameType) -> Any:
    """Return the value of an expression of names, attributes, elements and strings, without calling the user's code."""

    def value(inner: ast.expr) -> Any:
        return _value(inner, frame)

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals[node.id] if node.id in frame.f_locals else frame.f_globals[node.id]
    if isinstance(node, ast.Attribute):
        found = inspect.getattr_static(value(node.value), node.attr)
        if type(found) in _PLAIN or isinstance(found, (dict, list, tuple)):
            return found
    if isinstance(node, ast.Subscript):
        owner = value(node.value)
        if type(owner) in (dict, list, tuple, str):
            return owner[value(node.slice)]
    if isinstance(node, ast.BinOp):
        left = _plain(value(node.left))
        right = value(node.right)
        if isinstance(left, str) and isinstance(node.op, ast.Mod):
            return left % (tuple(map(_plain, right)) if isinstance(right, tuple) else _plain(right))
        if isinstance(left, str) and isinstance(node.op, ast.Add):
            return left + _plain(right)
    if isinstance(node, ast.Tuple):
        return tuple(map(value, node.elts))
    if isinstance(node, ast.List):
        return [value(x) for x in node.elts]
    if isinstance(node, ast.JoinedStr):
        return "".join(str(value(part)) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        shown = _plain(value(node.value))
        shown = {ord("r"): repr, ord("a"): ascii, ord("s"): str}.get(node.conversion, lambda x: x)(shown)
        return format(shown, "" if node.format_spec is None else value(node.format_spec))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        arguments = [value(x) for x in node.args]
        named = {k.arg: _plain(value(k.value)) for k in node.keywords if k.arg is not None}
        if isinstance(node.func.value, ast.Name) and (node.func.value.id, node.func.attr) in _TEXT_FUNCTIONS:
            module = value(node.func.value)
            if module is sys.modules.get(node.func.value.id):
                return getattr(module, node.func.attr)(*map(_plain, arguments), **named)
        elif node.func.attr in _TEXT_METHODS:
            owner = _plain(value(node.func.value))
            for x in arguments:
                for part in x if isinstance(x, (list, tuple)) else [x]:
                    _plain(part)
            if isinstance(owner, str):
                return getattr(owner, node.func.attr)(*arguments, **named)
    raise _Unknown


def _plain(value: Any) -> Any:
    """Return a value whose operations are Python's own."""
    if type(value) not in _PLAIN:
        raise _Unknown
    return value


def is_imported_file(filename: str, space: dict[str, Any]) -> bool:
    """Return whether Python's own loader made a module from a file, so that its code is compiled from the file's text.

    Other loaders may change what they load, as pytest's does.
    """
    loader = space.get("__loader__")
    if type(loader) is not importlib.machinery.SourceFileLoader:
        return False
    return os.path.basename(loader.path) == os.path.basename(filename)


def candidates(code: types.CodeType) -> list[str]:
    """Return sources that `code` may have been compiled from, most likely first."""
    filename = code.co_filename
    found: list[str] = []
    lines = linecache.getlines(filename)
    if lines:
        found.append("".join(lines))
    elif filename.startswith("<"):
        found += _kept_for_code(code)
    if filename == "<string>":
        found += _of_command_line()
    if filename == "<stdin>":
        found += [text for text in (_redirected(), _typed(code.co_name)) if text]
    return found


def _kept_for_code(code: types.CodeType) -> list[str]:
    """Return the source that Python's REPL keeps for a code object, from 3.13 on."""
    lines = getattr(linecache, "_getlines_from_code", None)
    text = "" if lines is None else "".join(lines(code))
    return [text] if text else []


def _of_command_line() -> list[str]:
    """Return the program text of `python -c CODE` and `kiln run -c CODE`, also glued to its option."""
    words = sys.orig_argv[1:]
    for at, word in enumerate(words):
        if word.startswith("-c"):
            text = word[2:] or "".join(words[at + 1 : at + 2])
            import textwrap

            return [text, textwrap.dedent(text)] if text[:1].isspace() else [text]
    return []


@functools.lru_cache(maxsize=1)
def _redirected() -> str:
    """Return the program text of `python < prog.py`; empty for a pipe, which cannot be read twice."""
    try:
        size = os.fstat(0).st_size
        return os.pread(0, size, 0).decode() if size else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _typed(name: str) -> str:
    """Return the last definition of a function in the line history of an interactive Python that keeps no sources."""
    readline = sys.modules.get("readline")
    if readline is None or not hasattr(sys, "ps1"):
        return ""
    lines: list[str] = [readline.get_history_item(i + 1) or "" for i in range(readline.get_current_history_length())]
    for start in reversed(range(len(lines))):
        if not lines[start].startswith((f"def {name}(", f"def {name} ", f"def {name}[")):
            continue
        end = start + 1
        while end < len(lines) and (lines[end][:1].isspace() or not lines[end]):
            end += 1
        while start and lines[start - 1].startswith("@"):
            start -= 1
        return "\n".join(lines[start:end]) + "\n"
    return ""
