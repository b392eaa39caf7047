"""`printf`: text at run time, from host functions and from kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl import tree
from ...base_dsl.diagnostics import type_error
from ...base_dsl.numeric.text import DynamicText
from ...base_dsl.source_context import node_at, user_span
from ...base_dsl.typing import Boolean, Float64, Int32, Int64, Integer, Numeric, Uint32, Uint64, as_numeric
from ..deferred_dialects import cute

# One place of a format: a C conversion, or braces as in str.format.
_PLACE = (
    r"%%|\{\{|\}\}"
    r"|%(?P<flags>[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|z|j)?(?P<letter>[diouxXeEfFgGaAcsp])"
    r"|\{(?P<index>\d*)(?::(?P<spec>[^{}]*))?\}"
)


class Formatted:
    """A value with the format it is printed in (`"016x"`), as a part that `__kiln_print__` returns."""

    __slots__ = ("spec", "value")

    def __init__(self, value: object, spec: str) -> None:
        self.value: Any = value
        self.spec: str = spec


def layout_parts(layout: Any) -> list[Any]:
    """Return a layout as parts to print: text, and its leaves."""
    if hasattr(layout, "outer"):
        name = getattr(layout.inner, "__name__", None) or str(layout.inner)
        inner = layout_parts(layout.inner) if hasattr(layout.inner, "_with_leaves") else [name]
        return [*inner, " o ", layout.offset, " o ", *layout_parts(layout.outer)]
    if hasattr(layout, "mode"):  # a scaled basis element
        return [layout.value, "".join(f"@{m}" for m in reversed(layout.mode))]
    return [layout.shape, ":", layout.stride]


def printf(*args: object, end: str = "\n", loc: object = None, ip: object = None) -> None:
    """Print when the program runs, from every thread that gets there: `printf("x[{}] = {:.3f}", i, x[i])`.

    Args:
        args: a format, with C conversions (`"%d"`) or braces (`"{}"`, `"{:.3f}"`), and values. Values without a place
            in it are appended, separated by spaces. Static values are printed as Python prints them.
        end: what ends the line.
    """
    tracing.require("printf")
    for arg in args:
        if isinstance(arg, DynamicText):
            raise type_error(
                f"printf got the text {str.__str__(arg)!r}, made while the program was traced: its ? are values that are "
                "known when the program runs",
                _as_format() or 'write printf("{}", x) in place of an f-string',
            )
    if args and isinstance(args[0], str):
        text, values = _format(args[0], list(args[1:]))
    else:
        text, values = _format("", list(args))
    cute.printf(text + end.replace("%", "%%"), values)


def _as_format() -> str:
    """Return how the f-string of the user's printf is written as a format and its values."""
    call = node_at(user_span(), ast.Call)
    if call is None or not call.args or not isinstance(call.args[0], ast.JoinedStr):
        return ""
    text = ""
    values = list[str]()
    for part in call.args[0].values:
        if isinstance(part, ast.FormattedValue):
            spec = part.format_spec
            static = isinstance(spec, ast.JoinedStr) and all(isinstance(v, ast.Constant) for v in spec.values)
            text += "{:" + "".join(str(v.value) for v in spec.values) + "}" if static else "{}"  # type: ignore[union-attr]
            values.append(ast.unparse(part.value))
        else:
            assert isinstance(part, ast.Constant)
            text += str(part.value).replace("{", "{{").replace("}", "}}")
    quoted = '"' + repr(text)[1:-1].replace('"', '\\"').replace("\\'", "'") + '"'
    return f"write {ast.unparse(call.func)}({', '.join([quoted, *values])})"


def _format(fmt: str, args: Sequence[object]) -> tuple[str, list[Any]]:
    pieces: list[str] = []
    values: list[Any] = []
    position = 0
    used = 0
    for match in re.finditer(_PLACE, fmt):
        pieces.append(fmt[position : match.start()].replace("%", "%%"))
        position = match.end()
        if match.group() in ("%%", "{{", "}}"):
            pieces.append("%%" if match.group() == "%%" else match.group()[0])
            continue
        index = int(match["index"]) if match["index"] else used
        used = max(used, index + 1)
        if index >= len(args):
            raise _too_few(fmt, len(args))
        if match["letter"]:
            _convert(args[index], match["flags"], match["letter"], pieces, values)
        else:
            _append(args[index], match["spec"] or "", pieces, values)
    pieces.append(fmt[position:].replace("%", "%%"))
    for i, arg in enumerate(args[used:]):
        if i or (fmt and not fmt[-1].isspace()):
            pieces.append(" ")
        _append(arg, "", pieces, values)
    return "".join(pieces), values


def _too_few(fmt: str, count: int) -> Exception:
    return type_error(f"the format {fmt!r} has more places than the {count} arguments given", "pass one for each place")


def _append(arg: Any, spec: str, pieces: list[str], values: list[Any]) -> None:
    """Append an argument by its own type."""
    if isinstance(arg, Formatted):
        arg, spec = arg.value, arg.spec
    if isinstance(arg, (tuple, list)):
        pieces.append("(" if isinstance(arg, tuple) else "[")
        for i, part in enumerate(arg):
            if i:
                pieces.append(",")
            _append(part, spec, pieces, values)
        pieces.append(")" if isinstance(arg, tuple) else "]")
        return
    if hasattr(arg, "__kiln_print__") or hasattr(arg, "_with_leaves"):
        for part in arg.__kiln_print__() if hasattr(arg, "__kiln_print__") else layout_parts(arg):
            pieces.append(part.replace("%", "%%")) if isinstance(part, str) else _append(part, spec, pieces, values)
        return
    if not tree.is_dynamic(arg):
        if isinstance(arg, Numeric):
            arg = arg.value
        if isinstance(arg, float) and not spec:
            spec = "f"
        pieces.append(format(arg, spec).replace("%", "%%") if spec else str(arg).replace("%", "%%"))
        return
    match = re.fullmatch(r"([<>^]?)([-+ 0]*\d*(?:\.\d+)?)([a-zA-Z]?)", spec)
    if match is None:
        raise type_error(f"printf cannot apply the format {spec!r} to a value at run time", "use for example {:8.3f}")
    flags = ("-" if match.group(1) == "<" else "") + match.group(2)
    is_float = isinstance(arg, Numeric) and type(arg).is_float
    _convert(arg, flags, match.group(3) or ("f" if is_float else "d"), pieces, values)


def _convert(arg: object, flags: str, conversion: str, pieces: list[str], values: list[Any]) -> None:
    """Append an argument by a C conversion; an argument of another kind is converted."""
    if not tree.is_dynamic(arg) and not isinstance(arg, (bool, int, float, Numeric)):
        pieces.append(str(arg).replace("%", "%%"))
        return
    if conversion == "s" and not tree.is_dynamic(arg):
        pieces.append(str(arg).replace("%", "%%"))
        return
    try:
        number = as_numeric(arg)
    except TypeError:
        hint = "wrap it in a numeric type"
        raise type_error(f"printf got {tree.describe(arg)}", hint) from None
    if conversion in "eEfFgGaA":
        pieces.append(f"%{flags}{conversion}")
        values.append(number.to(Float64).ir_value())
        return
    if type(number).is_float:
        if conversion in "ds":
            pieces.append(f"%{flags}f")
            values.append(number.to(Float64).ir_value())
            return
        number = number.to(Int64)
    if conversion in "cs":
        conversion = "c" if conversion == "c" else "d"
    assert isinstance(number, Integer)
    unsigned = not type(number).signed and not isinstance(number, Boolean)
    if unsigned and conversion in "di":
        conversion = "u"
    if type(number).width > 32 or conversion == "p":
        pieces.append(f"%{flags}ll{'x' if conversion == 'p' else conversion}")
        values.append(number.to(Uint64 if unsigned else Int64).ir_value())
    else:
        pieces.append(f"%{flags}{conversion}")
        values.append(number.to(Uint32 if unsigned else Int32).ir_value())
