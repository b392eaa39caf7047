"""The same source text run twice: as plain Python, and as a Kiln program on the CPU."""

from __future__ import annotations

import contextlib
import itertools
import textwrap
from typing import Any

import kiln
from kiln import cute

_numbers = itertools.count(1)


def namespace(jit: Any, **more: Any) -> dict[str, Any]:
    """Globals of a program. Decorators are the identity for plain Python."""
    return {
        "__name__": "differential_program",
        "jit": jit,
        "kiln": kiln,
        "crange": kiln.range,
        "range_constexpr": kiln.range_constexpr,
        "const_expr": kiln.const_expr,
        "nullcontext": contextlib.nullcontext,
        **more,
    }


def load(text: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(globals after running the program as Python, globals after running it with Kiln's decorators)."""
    text = textwrap.dedent(text)
    name = f"<program {next(_numbers)}>"
    as_python = namespace(lambda f: f, **more)
    as_kiln = namespace(cute.jit, **more)
    exec(compile(text, name, "exec"), as_python)
    exec(compile(text, name, "exec"), as_kiln)
    return as_python, as_kiln
