"""Compile public CuTe DSL programs for Blackwell without a GPU, and compare their PTX with recorded PTX of CuTe DSL.

    python tools/blackwell_programs.py EXAMPLES FILE.jsonl [...] [--only TEXT] [--jobs N] [--save]

EXAMPLES is the folder examples/python/CuTeDSL of a checkout of NVIDIA/cutlass. Each line of a file is a program: `path`,
`arch` and `args`, and in `kernels` how often each instruction stands in the PTX that CuTe DSL made. Programs that only
`blackwell_runs.jsonl` has are compiled and not compared. Kernels are compiled by ptxas and never launched.

Two kernels have equal kinds of instructions if both contain the same asynchronous, matrix and synchronization
instructions, however often: loops may be unrolled otherwise. Two spellings of one instruction are one kind. Of some
programs the record has no more than a kernel that converts the inputs: there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import results  # noqa: E402  # pyright: ignore[reportMissingImports]
from results import Page, Table  # noqa: E402  # pyright: ignore[reportMissingImports]

from kiln.workbench.inspect.capture import Captured, Subject, compile_subject  # noqa: E402

PROGRAMS = Table(
    "Compiled without a GPU", ("program", "arch", "cubin", "registers", "spills", "kinds", "differences", "commit")
)
PAGE = Page(__file__, "Public Blackwell programs, compiled", PROGRAMS)

COMPARED = re.compile(
    r"bar(rier)?\.|clusterlaunchcontrol|cp\.(async|reduce)|elect\.|fence\.|griddepcontrol|ldmatrix|mbarrier|mma\.|multimem"
    r"|prefetch\.tensormap|redux|setmaxnreg|stmatrix|tcgen05|tensormap|wgmma"
)
"""The instructions of which kinds are compared."""
_SPELLINGS = (
    (r"\.shared(?=\.|$)", ".shared::cta"),  # the same state space
    (r"^bar\.sync$", "barrier.cta.sync.aligned"),
    (r"^barrier\.sync\b", "barrier.cta.sync"),
    (r"^bar\.arrive$", "barrier.cta.arrive.aligned"),
    (r"^barrier\.arrive\b", "barrier.cta.arrive"),
    (r"\.collector::a::discard", ""),
    (r"(mxf8f6f4\.block_scale)\.block32", r"\1"),
    (r"^(mbarrier\.try_wait.*)\.acquire\.cta", r"\1"),
    (r"^(mbarrier\.arrive.*)\.release\.cta", r"\1"),
    (r"(get_first_ctaid)(::[xyz]|\.v4)", r"\1"),
    (r"^(barrier\.cluster\.wait)\.acquire", r"\1"),
    (r"^(barrier\.cluster\.arrive)\.release", r"\1"),
)
"""Other spellings of the same instruction: old names of barriers, and modifiers that are the default."""


def kind(instruction: str) -> tuple[str, ...]:
    """Return what is the same for all spellings of an instruction; the order of modifiers is free."""
    for pattern, new in _SPELLINGS:
        instruction = re.sub(pattern, new, instruction)
    first, *modifiers = instruction.split(".")
    return first, *sorted(modifiers)


def kinds(instructions: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return the kinds of the compared instructions, each with one of its spellings."""
    return {kind(each): each for each in instructions if COMPARED.match(each)}


def instructions(ptx: str) -> set[str]:
    """Return the instructions of PTX, with their modifiers."""
    text = re.sub(r"//.*|\.(loc|file)\b.*", "", ptx)
    statements = re.split(r"[;{}\n]", text)
    return {
        found[1]
        for each in statements
        if (found := re.match(r"\s*(?:\S+:\s+)?(?:@!?\S+\s+)?([a-z]\w*(?:\.\w+(?:::\w+)*)+)", each))
    }


def differences(ptx: str, there: Iterable[str]) -> list[str]:
    """Return the kinds that only one of two kernels has, `+` before those that only Kiln's has."""
    ours, theirs = kinds(instructions(ptx)), kinds(there)
    more = [f"+{ours[each]}" for each in ours.keys() - theirs.keys()]
    return sorted(more + [f"-{theirs[each]}" for each in theirs.keys() - ours.keys()])


def script(path: Path, folder: str, assignment: str = "") -> Path:
    """Return a program, and for a notebook its code cells as a program.

    A notebook has no arguments: an `assignment` takes the place of its own one to the same names.
    """
    if path.suffix == ".py":
        return path
    cells = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    text = "\n\n".join("".join(x for x in lines if not x.lstrip().startswith(("%", "!"))) for lines in cells)
    if assignment:
        names = re.escape(assignment.partition("=")[0])
        text, count = re.subn(rf"^{names}=.*$", lambda _: assignment, text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{path.name} has {count} assignments to {names}, not one")
    made = Path(folder) / f"{path.stem}.py"
    made.write_text(text)
    return made


def arch_of(program: dict[str, Any]) -> str:
    """Return a program's architecture with the features that are its own alone, which sm_90 was the first to have."""
    return re.sub(r"sm_(9|1\d)\d$", r"\g<0>a", program["arch"])


def _stamped(examples: Path, program: dict[str, Any]) -> tuple[dict[str, Any], Captured, str | None]:
    """Compile the kernels of a program, and return them with the commit at which this began."""
    commit = results.commit()
    return program, compile_program(examples, program), commit


def compile_program(examples: Path, program: dict[str, Any]) -> Captured:
    """Compile the kernels of a program for its chip: with the features that are its own alone, as CuTe DSL does."""
    path = examples / program["path"]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (examples, path.parent)))
    with tempfile.TemporaryDirectory() as folder:
        return compile_subject(Subject([str(script(path, folder)), *program["args"]]), arch_of(program), sass=False)


def others(listed: Iterable[str]) -> list[dict[str, Any]]:
    """Return the programs of `blackwell_runs.jsonl` that are not listed; notebooks are compiled with their own sizes."""
    found = [json.loads(line) for line in (ROOT / "tools" / "blackwell_runs.jsonl").read_text().splitlines()]
    found = [{**program, "path": f"cute/{program['path']}"} for program in found]
    for program in found:
        program["args"] = [] if program["path"].endswith(".ipynb") else shlex.split(program.get("args", ""))
    return [program for program in found if program["path"] not in set(listed)]


def is_compiled(found: Captured) -> bool:
    """Return whether ptxas compiled all kernels of a program.

    Without results its check fails, and some programs ask for a GPU; other errors come before the last kernel.
    """
    expected = not found.failure or found.failure.startswith(("AssertionError", "DSLCudaRuntimeError"))
    return expected and any("registers" in kernel for one in found.compiled for kernel in one.kernels)


def failure(examples: Path, found: Captured) -> str:
    """Return why a program was not compiled, in a line for a table."""
    said = (found.failure.splitlines() or ["nothing was compiled"])[0]
    return said.replace(f"{examples}/", "")[:160].replace("|", "/")


def add(examples: Path, program: dict[str, Any], found: Captured, commit: str | None) -> None:
    """Add a program's row to the table."""
    used = [kernel for one in found.compiled for kernel in one.kernels if "registers" in kernel]
    registers = max((kernel["registers"] for kernel in used), default=None)
    spills = sum(kernel["spill_stores"] + kernel["spill_loads"] for kernel in used) if used else None
    compiled = is_compiled(found)
    recorded = [each["instructions"] for each in program.get("kernels", ()) if kinds(each["instructions"])]
    compared = [min((differences(one.ptx, there) for one in found.compiled), key=len) for there in recorded if compiled]
    same = None if not compared else "different" if any(compared) else "equal"
    words = "; ".join(each for some in compared for each in some) if compiled else failure(examples, found)
    PROGRAMS.add(program["path"], arch_of(program), "yes" if compiled else "no", registers, spills, same, words, commit)


def main() -> int:
    """Print a row for each program; return 1 if one of them does not compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument(
        "--only", default="", help="only programs with this in their paths; other rows stay as they are"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="compile N programs at a time")
    parser.add_argument("--save", action="store_true", help="write docs/data/blackwell_programs.md")
    options = parser.parse_args()
    examples = options.examples.resolve()
    programs = [json.loads(line) for file in options.files for line in file.read_text().splitlines() if line]
    programs += others([program["path"] for program in programs])
    PROGRAMS.order = [(program["path"], arch_of(program)) for program in programs]
    wanted = [program for program in programs if options.only in program["path"]]
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(_stamped, examples, program) for program in wanted]):
            add(examples, *done.result())
            if options.save:
                PAGE.write()
    PAGE.finish(options.save)
    return 0 if all(row[2] == "yes" for row in PROGRAMS.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
