"""Run public CuTe DSL programs of `experimental` and `cute_ext` on the CPU target, and compile them for their GPUs.

    python tools/experimental_runs.py EXAMPLES [--only TEXT] [--jobs N] [--timeout SECONDS] [--save]

EXAMPLES is the folder examples/python/CuTeDSL of a checkout of NVIDIA/cutlass. Each line of `experimental_runs.jsonl` is a
program: `path`, `arch`, the least architecture it is written for, and `args`. Each runs unchanged, with its own check of its result, once
more under the sanitizer (`blackwell_runs.py` says how), and its kernels are compiled by ptxas and not launched
(`blackwell_programs.py`).
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import blackwell_programs as compiling  # noqa: E402  # pyright: ignore[reportMissingImports]
import blackwell_runs as running  # noqa: E402  # pyright: ignore[reportMissingImports]
from results import Page, Table  # noqa: E402  # pyright: ignore[reportMissingImports]

PROGRAMS = Table(
    "Run on the CPU target, compiled for a GPU", ("program", "arguments", "check", "s", "sanitizer", "arch", "cubin")
)
PAGE = Page(__file__, "Public programs of experimental and cute_ext", PROGRAMS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path, metavar="EXAMPLES")
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose path has this text")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N programs at a time")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--save", action="store_true", help="write docs/data/experimental_runs.md")
    options = parser.parse_args()
    programs = list(map(json.loads, Path(__file__).with_suffix(".jsonl").read_text().splitlines()))
    if options.only:
        programs = [program for program in programs if options.only in program["path"]]
        PAGE.restore()  # the rows of other programs stay
        PROGRAMS.rows[:] = [row for row in PROGRAMS.rows if options.only not in row[0]]
    tried = functools.partial(_tried, options.examples.resolve(), options.timeout)
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(tried, programs):
            PROGRAMS.add(*row)
    PAGE.finish(options.save)


def _tried(examples: Path, timeout: float, program: dict[str, Any]) -> tuple[str, ...]:
    """Run a program in both ways, compile it, and return its row."""
    path, args, arch = program["path"], program.get("args", ""), compiling.arch_of(program)
    plain = running.run(examples, path, args, timeout, arch)
    sanitized = running.run(examples, path, args, timeout, arch, sanitized=True)
    found = compiling.compile_program(examples, program | {"args": shlex.split(args)})
    cubin = "yes" if compiling.is_compiled(found) else compiling.failure(examples, found)
    return path, args, plain.verdict, f"{plain.seconds:.0f}", sanitized.verdict, arch, cubin


if __name__ == "__main__":
    main()
