"""The same program run twice: as plain Python, and as a Kiln program on the CPU."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import math
import textwrap
from typing import TYPE_CHECKING, Any

import kiln
from kiln import cute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), as_python)
    exec(compile(text, name, "exec"), as_kiln)
    return as_python, as_kiln


def plain(x: Any) -> Any:
    """A returned structure as something that compares by value: objects as their attributes."""
    if isinstance(x, (tuple, list)):
        return [plain(e) for e in x]
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if hasattr(x, "__dict__"):
        return {k: plain(v) for k, v in vars(x).items()}
    return x


def same(got: Any, want: Any, tolerance: float = 0.0) -> bool:
    """Ints and bools exactly (a bool is equal to 0 or 1 as in Python); floats within a relative tolerance."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(same(g, w, tolerance) for g, w in zip(got, want))
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[k], want[k], tolerance) for k in want)
    if isinstance(want, float):
        return isinstance(got, float) and (got == want or math.isclose(got, want, rel_tol=tolerance, abs_tol=tolerance))
    if isinstance(want, int):
        return isinstance(got, int) and got == want
    return got == want


def agree(
    python: Callable[..., Any], compiled: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], tolerance: float = 0.0
) -> None:
    """Assert that both give the same results for every input."""
    for arguments in inputs:
        want, got = plain(python(*arguments)), plain(compiled(*arguments))
        assert same(got, want, tolerance), f"{arguments}: Kiln gives {got}, Python {want}"


class Programs:
    """A table of programs: functions without decorators that run as Python and, through `jit`, as Kiln."""

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def __call__(self, *inputs: tuple[Any, ...] | Any, tolerance: float = 0.0) -> Callable[[Any], Any]:
        """Decorator: add a function with its inputs (a bare value stands for one argument)."""
        import pytest

        arguments = [i if isinstance(i, tuple) else (i,) for i in inputs]

        def add(function: Any) -> Any:
            self.cases.append(pytest.param(function, arguments, tolerance, id=function.__name__))
            return function

        return add

    @staticmethod
    def check(function: Any, inputs: list[tuple[Any, ...]], tolerance: float) -> None:
        """Run one case."""
        agree(function, cute.jit(function), inputs, tolerance)


def check_text(text: str, *inputs: tuple[Any, ...], tolerance: float = 0.0, **more: Any) -> None:
    """A program as text, whose functions are decorated with `@jit` where Kiln should see them; the main one is `f`."""
    as_python, as_kiln = load(text, **more)
    agree(as_python["f"], as_kiln["f"], inputs, tolerance)
