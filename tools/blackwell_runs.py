"""Run public CuTe DSL programs for Blackwell on the CPU target, each with its own check of its result.

    python tools/blackwell_runs.py EXAMPLES [--target nvidia] [--only TEXT] [--jobs N] [--timeout SECONDS] [--save]

EXAMPLES is the folder examples/python/CuTeDSL/cute of a checkout of NVIDIA/cutlass. Each line of `blackwell_runs.jsonl`
is a program: `path`, `arch`, `args`, and in `odd` arguments of a size that is no multiple of its tiles, or of other
multiples where it takes these only. A notebook has no arguments: they are an assignment that takes the place of its
own, which is 8192 in m, n and k. Each runs unchanged but for this, with `kiln run --target cpu`: with its arguments, with those of
the odd size, and under the sanitizer. A run passes if the program ends with status 0 and has not skipped anything.
Seconds are those of the processor, compilation included. With `--target nvidia` the programs run on this machine's GPU,
once, with `args`: those whose architecture is not newer than the GPU's.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import results  # noqa: E402  # pyright: ignore[reportMissingImports]
from blackwell_programs import arch_of  # noqa: E402  # pyright: ignore[reportMissingImports]
from blackwell_programs import script as as_script  # noqa: E402  # pyright: ignore[reportMissingImports]
from results import Page, Table  # noqa: E402  # pyright: ignore[reportMissingImports]

from kiln.hardware import driver  # noqa: E402

PROGRAMS = Table(
    "Run on the CPU target", ("program", "arguments", "check", "s", "odd size", "check there", "sanitizer", "commit")
)
ON_GPU = Table("Run on a GPU", ("program", "arguments", "check", "s", "commit"))
PAGE = Page(__file__, "Public Blackwell programs, run", PROGRAMS, ON_GPU)
Row = tuple[Any, ...]


_SKIPPED = re.compile(r"^(SKIP\b|CUDA not available, skipping).*", re.MULTILINE)
"""What programs print instead of running where the GPU is not theirs; their status is 0 then."""
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_FINDING = re.compile(r"\b(\w+\.py:\d+): (?:DSLWarning: )?(race|memory|sync|numeric) in kernel \w+: (.*)")


class Run(NamedTuple):
    """How a program ended, and the seconds of the processor that it took."""

    passed: bool
    text: str
    seconds: float

    @property
    def verdict(self) -> str:
        """Pass, the package that is missing, the sanitizer's first finding, or the last line that the program wrote."""
        if self.passed:
            return "pass"
        skipped = _SKIPPED.search(self.text)
        if skipped:
            return skipped[0]
        missing = _MISSING.findall(self.text)
        if missing:
            return f"needs the package {missing[-1]}"
        found = _FINDING.search(self.text)
        said = f"{found[1]}: {found[2]}: {found[3]}" if found else (self.text.strip().splitlines() or ["no output"])[-1]
        return said[:160].replace("|", "/")


def run(
    examples: Path,
    path: str,
    args: str,
    timeout: float,
    arch: str | None,
    sanitized: bool = False,
    folder: str | None = None,
) -> Run:
    """Run a program as its author would, from a folder (default: a new one).

    It runs on the CPU target as a GPU with this architecture, or, without one, on this machine's GPU.
    """
    script = examples / path
    folders = (str(examples), str(script.parent), os.environ.get("PYTHONPATH", ""))
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    # JAX would take most of the GPU's memory from programs that run at the same time
    variables |= {"CUTE_DSL_ARCH": arch} if arch else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as there:
        command = [sys.executable, "-m", "kiln", "run", "--target", "cpu" if arch else "nvidia"]
        command += ["--sanitize"] if sanitized else []
        command += [str(as_script(script, there, args))] + (shlex.split(args) if script.suffix == ".py" else [])
        try:
            done = subprocess.run(
                command,
                cwd=there,
                env=os.environ | variables,
                timeout=timeout,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            text = f"{done.stdout}\n{done.stderr}"
            passed = done.returncode == 0 and not _SKIPPED.search(text)
        except subprocess.TimeoutExpired:
            passed, text = False, f"no end in {timeout:.0f} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(passed, text, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def run_program(examples: Path, timeout: float, arch: str | None, program: dict[str, Any]) -> Row:
    """Run a program after the one whose files it reads, if any; return its path, arguments, verdict and seconds.

    A program that ends on purpose with an error passes if it ends with that `error`.
    """
    path, args = program["path"], program.get("args", "")
    with tempfile.TemporaryDirectory() as folder:
        if "after" in program:
            run(examples, program["after"], "", timeout, arch, folder=folder)
        done = run(examples, path, args, timeout, arch, folder=folder)
    error = re.search(program.get("error", r"\b\B"), done.text)
    verdict = f"ends with its error: {error[0]}" if error and not done.passed else done.verdict
    return path, args, verdict, f"{done.seconds:.0f}"


def run_listed(file: str, text: str | None, page: Page, tried: Callable[[Path, float, dict[str, Any]], Row]) -> bool:
    """Run the programs of the list beside a tool, add the row of each to a table of its page, and return `--save`.

    The page has two tables: what `tried` returns on the CPU target, and runs on a GPU. `--save` writes the page after
    each row. What `tried` raises is printed, and other programs go on.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path, metavar="EXAMPLES")
    parser.add_argument("--target", choices=("cpu", "nvidia"), default="cpu", help="where programs run")
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose path has this text")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N programs at a time")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--commit", metavar="HASH", help="the commit of this source, where git is missing")
    parser.add_argument("--save", action="store_true", help=f"write docs/data/{page.path.name}")
    options = parser.parse_args()
    programs = list(map(json.loads, Path(file).with_suffix(".jsonl").read_text().splitlines()))
    table, on_gpu = page.tables
    order = [(program["path"], program.get("args", "")) for program in programs]
    if options.target == "nvidia":
        if not driver.available():
            parser.error("--target nvidia needs a GPU: the CUDA driver shows none on this machine")
        table, tried = on_gpu, _tried_on_gpu
        table.machine = f"{driver.device_name(0)}, CUDA {driver.cuda_version()}"
        programs = runnable(programs, driver.capability(0))
    table.order = order
    programs = [program for program in programs if options.only in program["path"]]
    with ProcessPoolExecutor(options.jobs) as pool:
        stamped = functools.partial(_stamped, tried, options.examples.resolve(), options.timeout, options.commit)
        for done in as_completed([pool.submit(stamped, program) for program in programs]):
            try:
                table.add(*done.result())
            except Exception:  # one program says nothing of the others
                traceback.print_exc()
            if options.save:
                page.write()
    return options.save


def runnable(programs: Iterable[dict[str, Any]], capability: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the programs whose architecture is not newer than a GPU's compute capability."""
    newest = capability[0] * 10 + capability[1]
    return [program for program in programs if int(re.sub(r"\D", "", program["arch"])) <= newest]


def _stamped(
    tried: Callable[[Path, float, dict[str, Any]], Row],
    examples: Path,
    timeout: float,
    commit: str | None,
    program: dict[str, Any],
) -> Row:
    """Return a program's row with the commit at which its run began."""
    commit = commit or results.commit()
    return *tried(examples, timeout, program), commit


def _tried_on_gpu(examples: Path, timeout: float, program: dict[str, Any]) -> Row:
    return run_program(examples, timeout, None, program)


def _tried(examples: Path, timeout: float, program: dict[str, Any]) -> Row:
    """Run a program in all ways, and return its row."""
    path, args, odd, arch = program["path"], program.get("args", ""), program.get("odd"), arch_of(program)
    plain = run(examples, path, args, timeout, arch)
    there = None if odd is None else run(examples, path, odd, timeout, arch).verdict
    sanitized = run(examples, path, args, timeout, arch, sanitized=True).verdict
    return path, args, plain.verdict, f"{plain.seconds:.0f}", odd, there, sanitized


def main() -> None:
    PAGE.finish(run_listed(__file__, __doc__, PAGE, _tried))


if __name__ == "__main__":
    main()
