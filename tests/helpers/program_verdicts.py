"""What Kiln makes of a random program, compared with plain Python.

The same text runs twice. As plain Python its decorators do nothing and its number types are those of `program_numbers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import linecache
import re
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import program_numbers

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from random_programs import Program

RIGHT, WRONG, REFUSED, UNCLEAR, INVALID = "right", "wrong", "refused", "unclear", "invalid"
CRASH, HANG = "crash", "hang"
"""Seen from outside: the process ended, or did not end."""
VERDICTS = (RIGHT, REFUSED, WRONG, UNCLEAR, CRASH, HANG, INVALID)
BAD = (WRONG, UNCLEAR, CRASH, HANG, INVALID)

_INTERNAL_WORDS = re.compile(
    r"dominate|operand #|mlir|\bscf\b|\bllvm|ir\.Value|arith\.|\bSSA\b|isolation|__kiln|UNDEFINED|<object object|verif(y|ier)|"
    r"block argument|NoneType|Traceback",
    re.IGNORECASE,
)
"""Words that mean nothing to whoever wrote the program."""
_counter = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program."""

    verdict: str
    detail: str = ""
    """For a wrong program the first difference, for a refused one the error."""

    @property
    def kind(self) -> str:
        """The verdict with the wording of its error, without names and places: what two programs have in common."""
        if self.verdict in (RIGHT, WRONG):
            return self.verdict
        first = re.sub(r"<program \d+>:\d+: ", "", self.detail.split("\n")[0])
        return f"{self.verdict}: " + re.sub(r"'[^']*'|\d+", "_", first)[:160]


class _Plain:
    """Decorators and helpers of programs that run as plain Python."""

    @staticmethod
    def namespace() -> dict[str, Any]:
        def range_of(*bounds: Any, **hints: Any) -> range:
            return range(*bounds)

        return {
            "jit": lambda f: f,
            "kernel": lambda f: f,
            "crange": range_of,
            "range_constexpr": range,
            "const_expr": lambda x: x,
            "Constexpr": object,
            "narrow": program_numbers.narrow,
            **program_numbers.TYPES,
        }


def _kiln_namespace() -> dict[str, Any]:
    return {
        "jit": cute.jit,
        "kernel": cute.kernel,
        "crange": kiln.range,
        "range_constexpr": kiln.range_constexpr,
        "const_expr": kiln.const_expr,
        "Constexpr": kiln.Constexpr,
        "narrow": kiln.Int32,
        **{name: getattr(kiln, name) for name in program_numbers.TYPES},
    }


@contextlib.contextmanager
def _module(text: str, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The globals of a program after its text ran, as a module of its own while open."""
    number = next(_counter)
    filename = f"<program {number}>"
    module = types.ModuleType(f"random_program_{number}")
    vars(module).update(names, K=3, nullcontext=contextlib.nullcontext)
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    sys.modules[module.__name__] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(text, filename, "exec")
        exec(code, vars(module))
        yield vars(module)
    finally:
        del sys.modules[module.__name__], linecache.cache[filename]


def _plain_results(text: str, name: str, inputs: Sequence[tuple[int, ...]], convert: Any) -> list[Any]:
    with _module(text, _Plain.namespace()) as names:
        return [tuple(map(int, names[name](*map(convert, arguments)))) for arguments in inputs]


def expected(program: Program, inputs: Sequence[tuple[int, ...]]) -> list[list[Any]]:
    """What each input may give: Python's answer, and the documented one where that is another."""
    name = "body" if program.in_kernel else "f"
    answers = [_plain_results(program.text, name, inputs, int)]
    if program.documented:
        answers.append(_plain_results(program.text, name, inputs, program_numbers.Dynamic))
    return [list(each) for each in zip(*answers, strict=True)]


def _kiln_result(f: Any, in_kernel: bool, arguments: tuple[int, ...]) -> Any:
    if not in_kernel:
        return tuple(map(int, f(*arguments)))
    out = np.full(3, -12345, np.int32)
    f(from_dlpack(out), *arguments)
    return tuple(map(int, out))


def judge(program: Program, inputs: Sequence[tuple[int, ...]], alone: bool = False) -> Verdict:
    """Run a program both ways. `alone`: see also that each call gives what it would give alone."""
    try:
        wanted = expected(program, inputs)
        if alone and wanted != [expected(program, [arguments])[0] for arguments in inputs]:
            return Verdict(INVALID, "what it gives depends on earlier calls")
    except Exception as failure:
        return Verdict(INVALID, f"Python raises {type(failure).__name__}: {failure}")
    try:
        with _module(program.text, _kiln_namespace()) as names:
            for arguments, answers in zip(inputs, wanted, strict=True):
                got = _kiln_result(names["f"], program.in_kernel, arguments)
                if got not in answers:
                    return Verdict(WRONG, f"f{arguments} gives {got}, Python {answers[0]}")
            return Verdict(RIGHT)
    except kiln.DSLBaseError as failure:
        return Verdict(REFUSED if is_clear(failure) else UNCLEAR, str(failure))
    except Exception as failure:
        return Verdict(UNCLEAR, f"{type(failure).__name__}: {failure}")


def is_clear(failure: kiln.DSLBaseError) -> bool:
    """Whether an error names a line of the program and speaks of the program."""
    if failure.span is None or not failure.span.filename.startswith("<program") or failure.span.line < 1:
        return False
    return bool(failure.message) and not _INTERNAL_WORDS.search(f"{failure.message} {failure.hint}")
