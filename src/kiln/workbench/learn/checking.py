"""What checks of exercises are made of: cases, comparisons, the sanitizer, bank conflicts, sectors, bytes of an access.

An exercise is a file in the folder of its lesson, `exercises/lesson_01/exercise_1.py`. It holds the right solution;
between `# TODO: text`, with further lines of comment, and `# END` stands what the reader has to write, and `start_text`
leaves it out. Where there is wrong code to fix, lines of it stand in the gap after `#: `. The check of an exercise gets
the reader's module and raises `Wrong` for the first case that fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kiln
from kiln.base_dsl.diagnostics import DSLBaseError

EXERCISES = Path(__file__).with_name("exercises")
_GAP = re.compile(r"^([ ]*)(# TODO: [^\n]+\n(?:\1# [^\n]+\n)*)(.*?)^[ ]*# END\n", re.DOTALL | re.MULTILINE)


class Wrong(Exception):
    """A case that failed: what was tried, what came of it, and what to think about."""

    def __init__(
        self, case: str, said: str = "", *, expected: object = None, got: object = None, hint: str = ""
    ) -> None:
        lines = [case]
        if expected is not None or got is not None:
            lines += [f"  expected  {_short(expected)}", f"  got       {_short(got)}"]
        lines += [f"  {line}" for line in said.splitlines()]
        super().__init__("\n".join(lines + ([f"  hint: {hint}"] if hint else [])))


@dataclasses.dataclass(frozen=True)
class Exercise:
    """An exercise of a lesson: its title, its check, and hints from the first nudge to nearly the solution."""

    title: str
    check: Callable[[Any], None]
    hints: tuple[str, ...]


def exercises(lesson: int) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson."""
    return importlib.import_module(f"{__package__}.exercises.lesson_{lesson:02}.check").EXERCISES


def solution(lesson: int, number: int) -> str:
    """Return the right solution of an exercise."""
    text = (EXERCISES / f"lesson_{lesson:02}" / f"exercise_{number}.py").read_text(encoding="utf-8")
    return _GAP.sub(lambda match: re.sub(r"^ *#: .*\n", "", match[3], flags=re.MULTILINE), text)


def start_text(lesson: int, number: int) -> str:
    """Return the file that the reader starts from: the solution without what stands between `# TODO:` and `# END`."""
    text = (EXERCISES / f"lesson_{lesson:02}" / f"exercise_{number}.py").read_text(encoding="utf-8")
    return _GAP.sub(_gap, text)


def _gap(match: re.Match[str]) -> str:
    """Return the gap of a start file: the comment, and code to fix, or None for names that the function uses below."""
    indent, about, code = match.groups()
    if to_mend := re.findall(r"^ *#: (.*\n)", code, re.MULTILINE):
        return f"{indent}{about}" + "".join(indent + line for line in to_mend)
    below = match.string[match.end() :].partition("\n\n\n")[0]
    names = [name for name in re.findall(rf"^{indent}(\w+) = ", code, re.MULTILINE) if re.search(rf"\b{name}\b", below)]
    return f"{indent}{about}{indent}{' = '.join([*dict.fromkeys(names), 'None']) if names else 'pass'}\n"


def load(file: Path) -> Any:
    """Import the reader's file as a module of its own. Its byte code, stale if it was saved twice a second, is not used."""
    name = f"kiln_learn_{abs(hash(str(file.resolve())))}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module


def run_check(exercise: Exercise, file: Path) -> str | None:
    """Check a file on the CPU target; return what is wrong with it, or None."""
    try:
        with kiln.target("cpu"):
            exercise.check(load(file))
    except Wrong as wrong:
        return str(wrong)
    except DSLBaseError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # a mistake in the reader's Python, which ends no other check
        return f"{type(error).__name__}: {error}{_place(error, file)}"
    return None


def _place(error: BaseException, file: Path) -> str:
    """Return the line of the reader's file where an error arose."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" ({file.name}, line {line})" if line else ""


# --- what checks call ------------------------------------------------------------------------------------------------


def same(case: str, got: object, expected: object, *, tolerance: float = 0.0, hint: str = "") -> None:
    """Raise `Wrong` with the first element that differs, unless two arrays or values agree."""
    got = np.asarray(got)
    expected = np.asarray(expected)
    if got.shape != expected.shape:
        raise Wrong(f"{case}: the shape", expected=expected.shape, got=got.shape, hint=hint)
    bound = tolerance * np.maximum(1.0, np.abs(expected.astype(np.float64)))
    near = np.abs(got.astype(np.float64) - expected.astype(np.float64)) <= bound
    if near.all():
        return
    place = tuple(int(i) for i in np.argwhere(~near)[0])
    wrong = int((~near).sum())
    where = f"element {place[0] if len(place) == 1 else place}" if place else "the value"
    more = f" ({wrong} of {near.size} elements are wrong)" if near.size > 1 else ""
    raise Wrong(f"{case}: {where}{more}", expected=expected[place], got=got[place], hint=hint)


@contextlib.contextmanager
def sanitized(case: str, kinds: str = "race,memory,sync") -> Iterator[None]:
    """Run a block under the sanitizer; raise `Wrong` with its findings."""
    with kiln.sanitize(kinds, raises=False) as report:
        yield
    if report.findings:
        raise Wrong(f"{case}: the sanitizer reports", str(report))


def conflicts(run: Callable[[], object]) -> tuple[int, str]:
    """Run a function and count the wavefronts that its kernels lose to bank conflicts; return also the report."""
    with kiln.bank_conflicts() as report:
        run()
    return report.conflicts, str(report)


def sectors(run: Callable[[], object]) -> tuple[int, str]:
    """Run a function and return the most sectors that an access of its warps to global memory touches, and the report."""
    with kiln.coalescing() as report:
        run()
    return max((place.worst for place in report), default=0), str(report)


_ACCESS = re.compile(r"\b(ld|st)\.global((?:\.[a-zA-Z]\w*(?:::\w+)*)*?)(?:\.v(\d))?\.[bfusi](\d+)\b")


def bytes_per_access(function: Any, *arguments: Any) -> dict[str, set[int]]:
    """Return the widths of global loads and stores in the PTX of a jit function for sm_90a: {"ld": {16}, "st": {16}}."""
    compiled = kiln.cute.compile(function, *arguments, target="nvidia", options="--gpu-arch sm_90a")
    widths: dict[str, set[int]] = {"ld": set(), "st": set()}
    for kind, _, count, bits in _ACCESS.findall(compiled.artifacts["ptx"]):
        widths[kind].add(int(count or 1) * int(bits) // 8)
    return widths


def _short(value: object) -> str:
    text = (
        np.array2string(np.asarray(value), threshold=16, precision=6) if isinstance(value, np.ndarray) else repr(value)
    )
    return re.sub(r"^np\.\w+\((.*)\)$", r"\1", text).replace("\n", " ")
