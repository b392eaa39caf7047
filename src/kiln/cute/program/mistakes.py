"""Exceptions that a known mistake causes while a program is traced, as errors that name it.

Loaded when something has failed.
"""

from __future__ import annotations

import ast
import difflib
import re
import types

from ...base_dsl.diagnostics import (
    DSLBaseError,
    DSLUserCodeAttributeError,
    DSLUserCodeIndexError,
    DSLUserCodeNameError,
    DSLUserCodeTypeError,
    DSLUserCodeValueError,
    Span,
    is_internal,
)
from ...base_dsl.dsl import last_frame, last_user_span, raised_on_purpose
from ...base_dsl.source_context import foreign_call, node_at
from . import expression_mistakes


def explain(failure: Exception, tb: types.TracebackType | None) -> DSLBaseError | None:
    """Return the error for a function of Python's numbers, a launch without its sizes, a mode that is not there, or an
    expression that Python refuses for a traced value."""
    span = last_user_span(tb)
    frame = _last_user_frame(tb)
    at = (span, frame)
    text = str(failure)
    explanation = None
    kind: type[DSLBaseError] = DSLUserCodeTypeError
    if isinstance(failure, IndexError):
        missing = _missing_mode(span, frame)
        if missing is not None:
            return missing
        explanation = expression_mistakes.array_index(at)
        kind = DSLUserCodeIndexError
    elif isinstance(failure, AttributeError):
        explanation = expression_mistakes.attribute_mistake(failure, at)
        kind = DSLUserCodeAttributeError
        explanation = explanation or _launch_attribute(failure)
    elif isinstance(failure, NameError):
        explanation = expression_mistakes.name_mistake(getattr(failure, "name", "") or "")
        kind = DSLUserCodeNameError
    elif isinstance(failure, TypeError):
        at_once = _foreign_function(failure, span, frame) or _launch_without_sizes(text, span)
        if at_once is not None:
            return at_once
        explanation = expression_mistakes.type_mistake(text, at)
    elif isinstance(failure, ValueError):
        explanation = expression_mistakes.unpacking_mistake(text, at)
        kind = DSLUserCodeValueError
    if explanation is None and isinstance(failure, (TypeError, ValueError)):
        last = last_frame(tb)
        if last is not None and is_internal(last.tb_frame.f_code) and raised_on_purpose(failure, last):
            explanation = text, ""
    return None if explanation is None else kind(explanation[0] or text, hint=explanation[1], span=span)


def _launch_attribute(failure: AttributeError) -> expression_mistakes.Explanation | None:
    """Return what to say of `k.launch(...)` and `k(...).run(...)`."""
    kind = type(failure.obj).__name__
    name = failure.name
    if kind == "KernelFunction" and name == "launch":
        return "the kernel is launched before it has its arguments", "write k(x, y).launch(grid=..., block=...)"
    if kind == "KernelLaunch":
        return f"a call of a kernel has no .{name}", "launch it: k(...).launch(grid=..., block=...)"
    return None


def _foreign_function(failure: TypeError, span: Span | None, frame: types.FrameType | None) -> DSLBaseError | None:
    """Return the error for a function of Python's numbers that got a traced value."""
    called = foreign_call(span, frame)
    if called is not None:
        written, name = called
        hint = numbers_hint(written, name)
        return DSLUserCodeTypeError(f"{written}() got a traced value: {failure}", hint=hint, span=span)
    return None


def _launch_without_sizes(text: str, span: Span | None) -> DSLBaseError | None:
    """Return the error for a launch without its grid or block."""
    if text.startswith("KernelLaunch.launch() missing"):
        missing = re.findall(r"'(\w+)'", text)
        return DSLUserCodeTypeError(
            f"launch() needs grid= and block=, and got no {' and no '.join(missing)}",
            hint=_misspelt(span, missing)
            or "write k(...).launch(grid=(CTAs in x, y, z), block=(threads in x, y, z)); y and z may be left out",
            span=span,
        )
    return None


def _missing_mode(span: Span | None, frame: types.FrameType | None) -> DSLBaseError | None:
    """Return the error for `x.shape[1]` of a tensor with one mode."""
    match node_at(span, ast.Subscript):
        case (
            ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape" | "stride"),
                slice=ast.Constant(value=int(mode)),
            ) as node
        ):
            shape = getattr(frame.f_locals.get(name), "shape", None) if frame is not None else None
        case _:
            return None
    if not isinstance(shape, tuple) or mode < len(shape):
        return None
    modes = f"{len(shape)} mode{'s' * (len(shape) != 1)}"
    return DSLUserCodeTypeError(
        f"{ast.unparse(node)} asks for mode {mode}, and {name} has {modes}, counted from 0",
        hint=f"pass a tensor with {mode + 1} modes or more, or look at cute.rank({name}) first",
        span=span,
    )


def _misspelt(span: Span | None, missing: list[str]) -> str:
    """Return the help for a launch whose options come close to what is missing."""
    call = node_at(span, ast.Call)
    for keyword in call.keywords if call is not None else ():
        close = difflib.get_close_matches(keyword.arg or "", missing, 1)
        if close:
            return f"did you mean {close[0]}= in place of {keyword.arg}=?"
    return ""


def numbers_hint(written: str, name: str) -> str:
    """Return the help for a call of a function that takes Python's numbers."""
    own = "`a if condition else b`" if name == "where" else instead_of(name)
    if own:
        return f"{written} computes with numbers of Python while the program is traced; use {own}"
    return f"{written} computes with numbers of Python while the program is traced; cute.math has functions of dynamic values"


_SAME = {
    "maximum": "max",
    "fmax": "max",
    "minimum": "min",
    "fmin": "min",
    "absolute": "abs",
    "fabs": "abs",
    "power": "pow",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsin": "asin",
    "arccos": "acos",
}


def instead_of(name: str) -> str:
    """Return the function of `cute.math` for one of Python's `math`, numpy or torch."""
    from .. import math

    name = _SAME.get(name, name)
    return f"cute.math.{name}" if name in math.__all__ else ""


def _last_user_frame(tb: types.TracebackType | None) -> types.FrameType | None:
    frame: types.FrameType | None = None
    while tb is not None:
        if not is_internal(tb.tb_frame.f_code):
            frame = tb.tb_frame
        tb = tb.tb_next
    return frame
