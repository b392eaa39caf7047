"""`kiln profile --prof-type trace -- program.py ...`: traces the kernels of a program, which runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ... import _alias
from ...cute.kernel_trace import mark_cost
from .. import run, serve_cuda
from ..core.contracts import ContractError
from ..core.runners import child_environment
from .kernel_ranges import choices_of, file_for, profile_of, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .kernel_ranges import Choices
    from .result import Profile


def program_of(words: Sequence[str]) -> list[str]:
    """Return a program and its arguments from a command line, which may begin with `python`."""
    program = list(words)
    if program and Path(program[0]).name.startswith("python"):
        del program[0]
    if not program:
        raise ContractError("name a program after `--`: kiln profile --prof-type trace -- program.py --m 512")
    return program


def trace_program(words: Sequence[str], choices: Choices, variables: Mapping[str, str]) -> Profile:
    """Run a program with its kernels traced, and return the profile of what they did."""
    program = program_of(words)
    name = Path(program[1] if program[0] in ("-m", "-c") and len(program) > 1 else program[0]).stem
    path = file_for(Path.cwd() / ".kiln" / "profiles" / name)
    summary = path.with_suffix(".summary")
    asked = json.dumps({"program": program, "choices": choices._asdict(), "path": str(path), "summary": str(summary)})
    done = subprocess.run([sys.executable, "-m", __spec__.name, asked], env=child_environment(**variables), check=False)
    if not summary.exists():
        raise ContractError(f"{' '.join(program)} ended with status {done.returncode}, and left no trace")
    result = json.loads(summary.read_text())
    summary.unlink()
    profile = profile_of(result, name)
    if done.returncode:
        profile.failed = f"the program ended with status {done.returncode}"
    return profile


def main(text: str) -> None:
    """Run the program that a JSON argument describes, and write what its kernels did."""
    asked = json.loads(text)
    _alias.take_over()
    if os.environ.get("KILN_TARGET", "").lower() == "cpu":
        serve_cuda.activate()
    trace = choices_of(asked["choices"]).trace()
    cost = None if trace.on_host else mark_cost()
    trace.cost = None if cost is None else cost.straight
    try:
        with trace:
            run.execute(asked["program"])
    finally:
        result = written(trace.traces(), asked["path"], [], cost)
        Path(asked["summary"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
