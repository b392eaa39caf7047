"""Passes on MLIR text: what comes out is checked line by line, whatever its values are called."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cpu_testing import parse

from kiln.dialects import nvgpu
from kiln.mlir import context, ir


def after(source: str, run: Callable[[ir.Module], Any]) -> str:
    """A module's text after a pass; it is verified before and after. `R<f32>` is a pointer to a thread's own memory."""
    nvgpu.load_dialect()
    module = parse(re.sub(r"\bR<(\w+)>", r'!cute.ptr<\1, "rmem", 16 : i64>', source))
    with context(), ir.Location.unknown():
        module.operation.verify()
        run(module)
        module.operation.verify()
    return str(module)


def check(text: str, expected: str) -> None:
    """The lines of `expected` are found in the text in this order, other lines between them.

    A value `%name` is any value where it first stands, and the same from then on. No line between the one before and the
    one after a line `not: ...` has what stands there.
    """
    values: dict[str, str] = {}
    lines, at, absent = text.splitlines(), 0, []
    for wanted in filter(None, map(str.strip, expected.splitlines())):
        if wanted.startswith("not:"):
            absent.append(wanted.removeprefix("not:").strip())
            continue
        found = None
        for number in range(at, len(lines)):
            found = re.search(_pattern(wanted, values), lines[number])
            if found:
                break
            assert not any(part in lines[number] for part in absent), f"{lines[number].strip()!r} is there, in\n{text}"
        assert found, f"no line {wanted!r} (with {values}) after line {at} of\n{text}"
        values |= {name: value for name, value in found.groupdict().items() if value}
        at, absent = number + 1, []
    for line in lines[at:]:
        assert not any(part in line for part in absent), f"{line.strip()!r} is there, in\n{text}"


def _pattern(wanted: str, values: dict[str, str]) -> str:
    pattern, seen = "", set()
    for piece in re.split(r"(%\w+)", wanted):
        name = piece[1:]
        if not piece.startswith("%"):
            pattern += re.escape(piece)
        elif name in values:
            pattern += re.escape(values[name]) + r"\b"
        elif name in seen:
            pattern += f"(?P={name})"
        else:
            pattern += rf"(?P<{name}>%[\w#]+)"
            seen.add(name)
    return pattern


def traced(function: Any, *arguments: Any) -> str:
    """The module that a jit function is traced to, verified; nothing is compiled."""
    bound = function.parameters.bind(arguments, {})
    nodes = function.parameters.nodes(function.dsl, bound)
    module = function._trace(nodes, bound).module
    with context(), ir.Location.unknown():
        module.operation.verify()
    return str(module)
