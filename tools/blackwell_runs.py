"""Run public CuTe DSL programs for Blackwell on the CPU target, each with its own check of its result.

    python tools/blackwell_runs.py EXAMPLES [--only TEXT] [--jobs N] [--timeout SECONDS] [--save]

EXAMPLES is the folder examples/python/CuTeDSL/cute of a checkout of NVIDIA/cutlass. Each line of `blackwell_runs.jsonl`
is a program: `path`, `arch`, `args`, and in `odd` arguments of a size that is no multiple of its tiles, or of other
multiples where it takes these only. A notebook has no arguments: they are an assignment that takes the place of its
own, which is 8192 in m, n and k. Each runs unchanged but for this, with `kiln run --target cpu`: with its arguments, with those of
the odd size, and under the sanitizer. A run passes if the program ends with status 0 and has not skipped anything.
Seconds are those of the processor, compilation included.
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

from blackwell_programs import arch_of  # noqa: E402  # pyright: ignore[reportMissingImports]
from blackwell_programs import script as as_script  # noqa: E402  # pyright: ignore[reportMissingImports]
from results import Page, Table  # noqa: E402  # pyright: ignore[reportMissingImports]

PROGRAMS = Table(
    "Run on the CPU target", ("program", "arguments", "check", "s", "odd size", "check there", "sanitizer")
)
PAGE = Page(__file__, "Public Blackwell programs, run", PROGRAMS)
Row = tuple[Any, ...]


_SKIPPED = re.compile(r"^SKIP\b.*", re.MULTILINE)
"""What programs print instead of running where the GPU is not theirs; their status is 0 then."""


class Run(NamedTuple):
    """How a program ended, and the seconds of the processor that it took."""

    passed: bool
    text: str
    seconds: float

    @property
    def verdict(self) -> str:
        """Pass, the first finding of the sanitizer, or the last line that the program wrote."""
        if self.passed:
            return "pass"
        skipped = _SKIPPED.search(self.text)
        if skipped:
            return skipped[0]
        found = re.search(r"\n\S*?(\w+\.py:\d+): (race|memory|sync|numeric) in kernel \w+: (.*)", self.text)
        said = f"{found[1]}: {found[2]}: {found[3]}" if found else (self.text.strip().splitlines() or ["no output"])[-1]
        return said[:160].replace("|", "/")


def run(
    examples: Path, path: str, args: str, timeout: float, arch: str, sanitized: bool = False, folder: str | None = None
) -> Run:  # fmt: skip
    """Run a program as its author would, on the emulated GPU of an architecture, from a folder (default: a new one)."""
    script = examples / path
    variables = {"PYTHONPATH": os.pathsep.join((str(examples), str(script.parent))), "CUTE_DSL_ARCH": arch}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as there:
        command = [sys.executable, "-m", "kiln", "run", "--target", "cpu"]
        command += ["--sanitize"] if sanitized else []
        command += [str(as_script(script, there, args))] + (shlex.split(args) if script.suffix == ".py" else [])
        try:
            done = subprocess.run(
                command, cwd=there, env=os.environ | variables, timeout=timeout,
                capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            text = f"{done.stdout}\n{done.stderr}"
            passed = done.returncode == 0 and not _SKIPPED.search(text)
        except subprocess.TimeoutExpired:
            passed, text = False, f"no end in {timeout:.0f} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(passed, text, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    PAGE.finish(run_listed(__file__, __doc__, PAGE, _tried))


def run_listed(file: str, text: str | None, page: Page, tried: Callable[[Path, float, dict[str, Any]], Row]) -> bool:
    """Try the programs of the list beside a tool, add the row of each to the one table of its page, and return `--save`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path, metavar="EXAMPLES")
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose path has this text")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N programs at a time")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--save", action="store_true", help=f"write docs/data/{page.path.name}")
    options = parser.parse_args()
    programs = list(map(json.loads, Path(file).with_suffix(".jsonl").read_text().splitlines()))
    order = [program["path"] for program in programs]
    (table,) = page.tables
    if options.only:
        programs = [program for program in programs if options.only in program["path"]]
        page.restore()  # the rows of other programs stay
        table.rows[:] = [row for row in table.rows if options.only not in row[0]]
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(functools.partial(tried, options.examples.resolve(), options.timeout), programs):
            table.add(*row)
    table.rows.sort(key=lambda row: order.index(row[0]))
    return options.save


def _tried(examples: Path, timeout: float, program: dict[str, Any]) -> Row:
    """Run a program in all ways, and return its row."""
    path, args, odd, arch = program["path"], program.get("args", ""), program.get("odd"), arch_of(program)
    plain = run(examples, path, args, timeout, arch)
    there = None if odd is None else run(examples, path, odd, timeout, arch).verdict
    sanitized = run(examples, path, args, timeout, arch, sanitized=True).verdict
    return path, args, plain.verdict, f"{plain.seconds:.0f}", odd, there, sanitized


if __name__ == "__main__":
    main()
