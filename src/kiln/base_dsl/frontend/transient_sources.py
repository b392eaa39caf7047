"""Sources of programs that are in no file, as far as Python or the one who runs them keeps them.

They are those that `linecache` has (notebooks, doctest, the REPL from Python 3.13 on), `python -c`, and standard input.
"""

from __future__ import annotations

import functools
import importlib.machinery
import linecache
import os
import sys
import textwrap
import types
from collections.abc import Mapping


def is_imported_file(filename: str, space: Mapping[str, object]) -> bool:
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
    texts: list[str] = []
    lines = linecache.getlines(filename)
    if lines:
        texts.append("".join(lines))
    elif filename.startswith("<"):
        texts += _kept_for_code(code)
    if filename == "<string>":
        texts += _of_command_line()
    if filename == "<stdin>":
        texts += _redirected()
    return texts


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
            return [text, textwrap.dedent(text)] if text[:1].isspace() else [text]
    return []


@functools.lru_cache(maxsize=1)
def _redirected() -> list[str]:
    """Return the program text of `python < prog.py`; none for a pipe, which cannot be read twice."""
    try:
        size = os.fstat(0).st_size
        return [os.pread(0, size, 0).decode()] if size else []
    except (OSError, UnicodeDecodeError):
        return []
