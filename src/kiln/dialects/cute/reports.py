"""Prints and assertions: `cute` operations that report to the host while a program runs."""

import re
from collections.abc import Sequence
from typing import Any

from ...base_dsl.trace import emit
from ...mlir import ir
from ..declaration import Operand
from ..definition import I1
from .packing import is_pack, pack, unpack
from .types import Cute

__all__ = ["Assert", "Printf", "assert_", "conversions", "printf"]


class Printf(Cute.Operation, name="printf", stays="it prints"):
    """Print `arguments` (a tuple, see `pack`) by the C format `format`.

    The conversion of each argument suits its type: i32, i64 (pointers too) or f64. The text of one operation is never
    split; it is visible in Python's `sys.stdout` by the time the call of the host function returns.
    """

    arguments: Operand[Any]
    format: ir.StringAttr

    def check(self) -> str:
        return _broken_format(self.arguments, self.format)


def printf(format_: str, arguments: Sequence[ir.Value] = ()) -> ir.Operation:
    """Print arguments of type i32, i64 or f64 that suit the format's conversions."""
    return emit("cute.printf", (), (pack(arguments),), {"format": ir.StringAttr.get(format_)})


class Assert(Cute.Operation, name="assert_", stays="it may end the program"):
    """Record a fault if `condition` is false, which the call of the host function raises.

    `message` is a C format for `arguments` (a tuple, see `pack`, of at most 8 values of type i32, i64 or f64). The
    fault also names the source line, the kernel, the block and the thread.
    """

    condition: Operand[I1]
    arguments: Operand[Any]
    message: ir.StringAttr

    def check(self) -> str:
        arguments = self.arguments
        if is_pack(arguments) and len(unpack(arguments)) > 8:
            return f"has {len(unpack(arguments))} arguments: at most 8 are possible"
        return _broken_format(arguments, self.message)


def assert_(condition: ir.Value, message: str, arguments: Sequence[ir.Value] = ()) -> ir.Operation:
    """Check an i1; `message` is a C format for the arguments."""
    return emit("cute.assert_", (), (condition, pack(arguments)), {"message": ir.StringAttr.get(message)})


_CONVERSION = r"%(?:%|[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(hh|h|ll|l|j|z|t)?([diouxXcpeEfFgGaA]))"


def conversions(format_: str) -> list[str]:
    """Return the type each conversion of a C format takes: "i32", "i64" or "f64"."""
    kinds: list[str] = []
    for match in re.finditer(_CONVERSION, format_):
        length, letter = match.groups()
        if letter is None:
            continue
        if letter in "eEfFgGaA":
            kinds.append("f64")
        else:
            kinds.append("i64" if letter == "p" or length in ("ll", "l", "j", "z", "t") else "i32")
    return kinds


def _broken_format(arguments: ir.Value, format_: str) -> str:
    if not is_pack(arguments):
        return "takes its arguments as a tuple (`pack`)"
    types = [str(argument.type) for argument in unpack(arguments)]
    for type_ in types:
        if type_ not in ("i32", "i64", "f64"):
            return f"takes i32, i64 and f64 arguments, not {type_}"
    kinds = conversions(format_)
    if len(kinds) != len(types) or any((k == "f64") != (g == "f64") for k, g in zip(kinds, types, strict=True)):
        return f'has the format "{format_}" and arguments of types ({", ".join(types)})'
    return ""
