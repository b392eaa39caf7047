"""Texts of programs that stand in no file: given to `exec` or `-c`, typed into a REPL, redirected into Python.

Kiln watches from the moment it is loaded, because Python keeps nothing of such a text once it is compiled.
"""

from __future__ import annotations

import collections
import functools
import linecache
import os
import sys
import time
import types

# Texts compiled under a name that is no file, newest last.
_compiled: collections.deque[tuple[str, str]] = collections.deque(maxlen=512)


def _remember(event: str, args: tuple[object, ...]) -> None:
    """An audit hook: sees every `compile("...")` and `exec("...")`."""
    if event != "compile" or len(args) < 2:
        return
    text, filename = args[0], args[1]
    if isinstance(filename, bytes):
        filename = filename.decode(errors="replace")
    if not isinstance(filename, str) or os.path.isabs(filename):
        return
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text).decode(errors="replace")
    if isinstance(text, str) and ("def " in text or "lambda" in text):
        _compiled.append((filename, text))


@functools.lru_cache(maxsize=1)
def watch() -> None:
    """From now on, keep what is compiled under a name that is no file."""
    sys.addaudithook(_remember)


def remember_callers(function: types.FunctionType) -> None:
    """Keep the text of a function that is being decorated by a program that imports Kiln itself.

    Such a program was compiled before the audit hook could see it. Whoever called `exec` may still hold its text.
    """
    filename = function.__code__.co_filename
    if not filename.startswith("<"):
        return
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_filename == filename and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None or frame.f_back is None:
        return
    wanted = f"def {function.__name__}" if function.__name__ != "<lambda>" else "lambda"
    for value in list(frame.f_back.f_locals.values()):
        if isinstance(value, str) and wanted in value and (filename, value) not in _compiled:
            _compiled.append((filename, value))


_started = time.time()


def may_be_stale(filename: str) -> bool:
    """Whether a file was written after Kiln was loaded: what is in it now may not be what was imported."""
    try:
        return os.stat(filename).st_mtime > _started
    except OSError:
        return False


def candidates(code: types.CodeType) -> list[str]:
    """Texts that `code` may have been compiled from, most likely first."""
    filename = code.co_filename
    found: list[str] = []
    lines = linecache.getlines(filename)
    if lines:
        found.append("".join(lines))
    found += [text for name, text in reversed(_compiled) if name == filename]
    if filename == "<string>" and "-c" in sys.orig_argv:
        found.append(sys.orig_argv[sys.orig_argv.index("-c") + 1])
    if filename == "<stdin>":
        found += [text for text in (_redirected(), _typed(code.co_name)) if text]
    return found


@functools.lru_cache(maxsize=1)
def _redirected() -> str:
    """The program text of `python < prog.py`. A pipe cannot be read twice: nothing then."""
    try:
        size = os.fstat(0).st_size
        return os.pread(0, size, 0).decode() if size else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _typed(name: str) -> str:
    """The last definition of a function in the line history of an interactive Python that keeps no sources."""
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
