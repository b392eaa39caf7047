"""Errors of the language, with a caret under the expression in the user's source.

Every exception a user may see derives from `DSLBaseError`. `DSLBaseError` renders itself as

    prog.py:12: error: message
        y = x + 1
            ^
    help: what to write instead
    in f, called from prog.py:30 in main
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import linecache
import os
import re
import sys
import types
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Rooms of the package whose frames are internal; the kernel library and the examples are user code.
_internal_rooms = tuple(
    _PACKAGE_DIR + room
    for room in (
        "_support",
        "aot.py",
        "base_dsl",
        "cute",
        "dialects",
        "experimental",
        "hardware",
        "interop",
        "jax",
        "measure",
        "native",
        "pipeline",
        "targets",
        "utils",
        "workbench",
        "mlir.py",
        "torch.py",
    )
)

internal_files: dict[str, bool] = {}
"""Source files seen so far, and whether they are internal (see `is_internal`)."""


def mark_internal(filename: str) -> None:
    """Mark a source file, or a folder (with a trailing slash), as internal.

    Another language marks its own modules (`mark_internal(__file__)`), so that operations and errors are located in
    the program that called them.
    """
    global _internal_rooms
    internal_files[filename] = True
    _internal_rooms += (filename,) if filename.endswith(os.sep) else ()


def mark_program(filename: str) -> None:
    """Mark a source file of the package as a program: errors in it are located there."""
    internal_files[filename] = False


generated_names: weakref.WeakKeyDictionary[types.CodeType, str] = weakref.WeakKeyDictionary()
"""Code that the front end made for a part of a function, with that function's name."""


def _name_shown(filename: str) -> str:
    """Return how a source file is called in texts: a cell of a notebook as IPython calls it, "Cell In[3]"."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        return " ".join(shell.compile.format_code_name(filename)) if shell is not None else filename
    except (AttributeError, TypeError):  # an IPython that names no cells; no cell
        return filename


@dataclasses.dataclass(frozen=True)
class Span:
    """A range of user source. Lines count from 1, columns from 0; `end_column` is exclusive; -1: unknown."""

    filename: str
    line: int
    column: int = -1
    end_line: int = -1
    end_column: int = -1
    function: str = ""

    def __str__(self) -> str:
        return f"{_name_shown(self.filename)}:{self.line}"

    def snippet(self) -> str:
        """Return the source line with a caret under the range, or nothing where the source cannot be had."""
        text = linecache.getline(self.filename, self.line).rstrip("\n")
        if not text.strip():
            return ""
        indent = len(text) - len(text.lstrip())
        start = self.column
        end = self.end_column
        if start < 0:
            start = indent
            end = len(text)
        else:  # columns count UTF-8 bytes
            raw = text.encode()
            start = len(raw[:start].decode(errors="replace"))
            end = len(raw[:end].decode(errors="replace")) if end >= 0 else start + 1
        if self.end_line > self.line:
            end = len(text)
        shift = indent if indent <= start else 0
        return f"    {text[shift:]}\n    {' ' * (start - shift)}{'^' * max(1, end - start)}"


class DSLBaseError(Exception):
    """Base of all of Kiln's errors. `span` says where in the user's program, `hint` what to write instead.

    `page` is the page of the knowledge base that tells more; a note of the exception names it.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        span: Span | None = None,
        calls: tuple[Span, ...] = (),
        notes: tuple[tuple[Span, str], ...] = (),
        error_code: object = None,
        page: str = "",
        filename: str = "",
        line: int = 0,
        snippet: str = "",
        context: object = None,
        suggestion: str = "",
        cause: BaseException | None = None,
    ) -> None:
        """Create an error. Programs that raise Kiln's give its place and what to write instead as in CuTe DSL:
        `filename` and `line`, else a `snippet`; `suggestion`; `context` and `cause` say how it came about.
        """
        super().__init__(message)
        self.message = message
        hint = hint or suggestion
        if span is None and filename:
            span = Span(filename, line)
        for about in filter(None, (snippet, context)):
            message += f"\n{about}"
        self.message = message
        self.__cause__ = cause
        self.hint = hint
        self.span = span
        self.calls = calls
        self.notes = notes
        self.error_code = error_code
        self.page = page
        if page:
            self.__notes__: list[str] = [f"more: kiln kb show {page}"]

    def __str__(self) -> str:
        text = self.text()
        return in_colour(text) if _colours.get() else text

    def __reduce__(self) -> Any:
        """Errors go from process to process, as those of pools and of parallel tests do."""
        return _restored, (type(self), self.args, self.__dict__)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows."""
        from .uncaught import render_for_ipython

        return render_for_ipython(self)

    def text(self) -> str:
        """Return the message with its place, source line, notes and help."""
        lines = [f"{self.span}: error: {self.message}" if self.span else self.message]
        if self.span:
            lines.append(self.span.snippet())
        for span, text in self.notes:
            lines += [f"{span}: note: {text}", span.snippet()]
        if self.hint:
            lines.append(f"help: {self.hint}")
        inside = self.span.function if self.span else ""
        for call in self.calls:
            place = f"in {inside}, " if inside else ""
            lines.append(f"{place}called from {call}" + (f" in {call.function}" if call.function else ""))
            inside = call.function
        return "\n".join(line for line in lines if line)


def _restored(kind: type[DSLBaseError], args: tuple[object, ...], state: Mapping[str, object]) -> DSLBaseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


_colours: contextvars.ContextVar[bool] = contextvars.ContextVar("colours", default=False)


@contextlib.contextmanager
def coloured(enabled: bool = True) -> Iterator[None]:
    """Let the texts of errors have colours while open."""
    token = _colours.set(enabled)
    try:
        yield
    finally:
        _colours.reset(token)


_HEAD = re.compile(r"^(\S.*?:\d+:)( note:| [^:\n]+:)?", re.MULTILINE)
_CARETS = re.compile(r"^( +)(\^+)$", re.MULTILINE)
_LABEL = re.compile(r"^(help|more):", re.MULTILINE)


def in_colour(text: str) -> str:
    """Return the text of an error with escape sequences: place bold, kind and carets red, notes and help green."""

    def head(match: re.Match[str]) -> str:
        place, kind = match.groups(default="")
        return f"\x1b[1m{place}\x1b[0m\x1b[{'1;32' if kind == ' note:' else '1;31'}m{kind}\x1b[0m"

    text = _CARETS.sub("\\1\x1b[1;31m\\2\x1b[0m", _HEAD.sub(head, text))
    return _LABEL.sub("\x1b[1;32m\\1:\x1b[0m", text)


class DSLRuntimeError(DSLBaseError):
    """A rule of the language was broken while a function was traced, compiled or called."""


class DSLUserCodeError(DSLBaseError):
    """The user's program is at fault."""


class DSLUserCodeTypeError(DSLUserCodeError, TypeError):
    """A value of the wrong type."""


class DSLUserCodeValueError(DSLUserCodeTypeError, ValueError, RuntimeError, AssertionError):
    """An argument of the right kind that a compiled function does not take.

    Its element type, rank, device, extents, strides or address differ, or extents that must be equal are not. The
    class derives from those that other libraries raise, so that their users catch it.
    """


class DSLUserCodeAttributeError(DSLUserCodeError, AttributeError):
    """An attribute that a value does not have."""


class DSLUserCodeIndexError(DSLUserCodeError, IndexError):
    """An index that a value does not take."""


class DSLUserCodeNameError(DSLUserCodeError, NameError):
    """A name that the program does not have."""


class DSLUserCodeRuntimeError(DSLUserCodeError, RuntimeError):
    """A check of the user's program that failed while tracing."""


class DSLSyntaxError(DSLUserCodeError):
    """A construct the language does not take."""


class DSLNotImplemented(DSLBaseError):
    """Something a target does not offer."""


class DSLArchitectureError(DSLUserCodeError, DSLNotImplemented):
    """The program uses what the architecture it is compiled for does not have."""


class DSLCudaRuntimeError(DSLBaseError, RuntimeError):
    """The CUDA driver reported an error; `error_code` holds it."""


class DSLCudaVerNotImplemented(DSLNotImplemented):
    """Something this CUDA version does not offer."""


class DSLOperationBuildError(DSLBaseError):
    """An operation could not be built."""


class DSLSubprocessCallError(DSLBaseError):
    """An external tool failed."""


class DSLTreeFlattenError(DSLBaseError):
    """A value could not be taken apart into leaves."""


class CompilerDiagnosticError(DSLBaseError):
    """MLIR or LLVM rejected the program."""


class DSLWarning(UserWarning):
    """Base of Kiln's warnings."""

    __notes__: list[str]
    _render_traceback_ = DSLBaseError._render_traceback_  # pyright: ignore


def warn_at(span: Span | None, text: str, registry: dict[Any, int] | None = None) -> None:
    """Warn at a line of the user's program. Where warnings are errors, a note of the exception names the line."""
    warning = DSLWarning(text)
    if span is not None:
        warning.__notes__ = [f"{span}: warned here\n{span.snippet()}".rstrip()]
    place = (span.filename, span.line) if span is not None else ("<unknown>", 0)
    warnings.warn_explicit(warning, DSLWarning, *place, registry=registry)


class DSLOptimizationWarning(Warning):
    """Something will be slower than it could be."""


for _kind in (DSLWarning, DSLOptimizationWarning):
    if os.environ.get("CUTE_DSL_WARNINGS_AS_ERRORS", "0") not in ("", "0"):
        warnings.simplefilter("error", _kind)
    if os.environ.get("CUTE_DSL_WARNINGS_IGNORE", "0") not in ("", "0"):
        warnings.simplefilter("ignore", _kind)


def is_internal(code: types.CodeType) -> bool:
    """Return whether a code object belongs to Kiln's machinery rather than to a user's program."""
    internal = internal_files.get(code.co_filename)
    if internal is None:
        internal = internal_files[code.co_filename] = code.co_filename.startswith(_internal_rooms)
    return internal


def user_frame(depth: int = 1) -> types.FrameType | None:
    """Return the innermost frame of user code on the stack, looking from `depth` frames above the caller."""
    frame: types.FrameType | None = sys._getframe(depth + 1)
    while frame is not None and is_internal(frame.f_code):
        frame = frame.f_back
    return frame


Positions = list[tuple[int | None, int | None, int | None, int | None]]


def position_table(code: types.CodeType) -> Positions:
    """Return the source range of every instruction of a code object."""
    read = getattr(code, "co_positions", None)
    return list(read()) if read is not None else []


def positions(code: types.CodeType, lasti: int, table: Positions | None = None) -> tuple[int, int, int, int]:
    """Return (line, end line, column, end column) of an instruction; -1 where unknown (Python 3.10 has lines only)."""
    table = position_table(code) if table is None else table
    if 0 <= lasti // 2 < len(table):
        line, end_line, column, end_column = table[lasti // 2]
        if line is not None:
            return line, end_line or line, -1 if column is None else column, -1 if end_column is None else end_column
    return -1, -1, -1, -1


def function_name(code: types.CodeType) -> str:
    """Return a readable name of the function a code object came from, without the parts the front end generated."""
    if code in generated_names:
        return generated_names[code]
    name = getattr(code, "co_qualname", code.co_name)
    parts = [p for p in name.split(".") if p != "<locals>" and not p.startswith("__kiln")]
    return parts[-1] if parts else name


def generated_name(code: types.CodeType) -> str:
    """Return the name of a part of a function that the front end generated, such as the body of a loop; empty for others."""
    if code.co_name.startswith("__kiln"):
        return code.co_name
    last = code.co_consts[-1] if code.co_consts else None  # as `rewriter._renamed` leaves it
    return last if isinstance(last, str) and last.startswith("__kiln_") else ""


def frame_span(frame: types.FrameType) -> Span:
    """Return where a frame is now."""
    code = frame.f_code
    line, end_line, column, end_column = positions(code, frame.f_lasti)
    if line < 0:
        line = end_line = frame.f_lineno or code.co_firstlineno
    return Span(code.co_filename, line, column, end_line, end_column, function_name(code))


def node_span(node: ast.AST, filename: str, function: str = "") -> Span:
    """Return where a syntax node stands."""
    return Span(
        filename,
        getattr(node, "lineno", 1),
        getattr(node, "col_offset", -1),
        getattr(node, "end_lineno", None) or -1,
        getattr(node, "end_col_offset", None) or -1,
        function,
    )


def _frames_of_trace(frame: types.FrameType | None) -> list[types.FrameType]:
    """Return the user's frames from here to the one that called into the language; outside a trace, the innermost."""
    frames: list[types.FrameType] = []
    inside = True
    while frame is not None:
        code = frame.f_code
        if not is_internal(code):
            frames.append(frame)
            if not inside:
                return frames
        elif code.co_name in _ENTRIES and code.co_filename.startswith(_LANGUAGES):
            inside = False
        frame = frame.f_back
    return frames[:1]


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def in_rewritten_code(depth: int = 1) -> bool:
    """Return whether the innermost user code on the stack is part of a decorated function."""
    frame = user_frame(depth + 1)
    while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        frame = frame.f_back
    return frame is not None and "__kiln__" in frame.f_code.co_freevars


_ENTRIES = ("trace", "compile_module")
_LANGUAGES = (_PACKAGE_DIR + "base_dsl", _PACKAGE_DIR + "native")
"""Methods of a language below which the user's program is traced and compiled, and where they are."""


def call_chain(depth: int = 1, limit: int = 8) -> tuple[Span, ...]:
    """Return the spans of the user frames on the stack, innermost first: one for each function, not for generated
    parts.

    The chain ends at the outermost call into the language.
    """
    spans: list[Span] = []
    last: str | None = None
    lazy: Span | None = None
    for frame in _frames_of_trace(sys._getframe(depth + 1)):
        code = frame.f_code
        generated = bool(generated_name(code))
        name = function_name(code)
        if lazy is not None:  # a lazily evaluated part of an expression of this function, or a lambda of the user's
            if lazy.filename == code.co_filename and lazy.line == frame.f_lineno:
                spans.append(dataclasses.replace(lazy, function=name))
                lazy = None
                last = name if generated else None
                continue
            spans.append(lazy)
            lazy = None
        if last is not None and name == last and spans and spans[-1].filename == code.co_filename:
            last = name if generated else None
            continue
        if code.co_name in _COMPREHENSIONS or (code.co_name == "<lambda>" and not code.co_argcount):
            lazy = frame_span(frame)
            last = None
            continue
        spans.append(frame_span(frame))
        last = name if generated else None
        if len(spans) == limit or code.co_name == "<module>":
            break
    if lazy is not None:
        spans.append(lazy)
    return tuple(spans)


def error(
    kind: type[DSLBaseError],
    message: str,
    *,
    hint: str = "",
    span: Span | None = None,
    notes: tuple[tuple[Span, str], ...] = (),
    page: str = "",
) -> DSLBaseError:
    """Return an exception to raise, located at the user's innermost frame (or `span`), with the calls to it."""
    chain = call_chain()
    if chain and (span is None or span.function == chain[0].function):
        span = span or chain[0]
        chain = chain[1:]
    return kind(message, hint=hint, span=span, calls=chain, notes=notes, page=page)


def type_error(message: str, hint: str = "", **where: Any) -> DSLBaseError:
    """Return a `DSLUserCodeTypeError` to raise: `message` says what is wrong, `hint` what to write instead."""
    return error(DSLUserCodeTypeError, message, hint=hint, **where)


def value_error(message: str, hint: str = "", **where: Any) -> DSLBaseError:
    """Return a `DSLUserCodeValueError` to raise, as `type_error` does."""
    return error(DSLUserCodeValueError, message, hint=hint, **where)


def runtime_error(message: str, hint: str = "", **where: Any) -> DSLBaseError:
    """Return a `DSLRuntimeError` to raise, as `type_error` does."""
    return error(DSLRuntimeError, message, hint=hint, **where)


def _of_kiln(frame: types.FrameType) -> bool:
    """Return whether a frame is one of Kiln's own: its machinery, the kernel library or another module with programs."""
    filename = frame.f_code.co_filename
    if filename == "<string>":  # what `dataclasses` makes
        return str(frame.f_globals.get("__name__")).startswith("kiln.")
    return is_internal(frame.f_code) or filename.startswith(_PACKAGE_DIR)


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _is_around(code: types.CodeType, part: types.CodeType) -> bool:
    """Return whether code is of the function that a generated part belongs to."""
    return code.co_filename == part.co_filename and function_name(code) == function_name(part)


def strip_internal_frames(tb: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without the frames of Kiln's own code; None if nothing is left.

    Those of the standard library that Kiln calls go, too. Of a function and its generated parts the innermost is left.
    """
    program: list[types.TracebackType] = []
    cursor = tb
    within = False
    while cursor is not None:
        frame = cursor.tb_frame
        filename = frame.f_code.co_filename
        called = within and filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
        within = _of_kiln(frame) or called
        if not within:
            if generated_name(frame.f_code) and program and _is_around(program[-1].tb_frame.f_code, frame.f_code):
                program.pop()
            program.append(cursor)
        cursor = cursor.tb_next
    result: types.TracebackType | None = None
    for entry in reversed(program):
        result = types.TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
