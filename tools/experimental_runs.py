"""Run public CuTe DSL programs of `experimental` and `cute_ext` on the CPU target, and compile them for their GPUs.

    python tools/experimental_runs.py EXAMPLES FILE.jsonl [...] [--only TEXT] [--timeout SECONDS] [--save]

EXAMPLES is the folder examples/python/CuTeDSL of a checkout of NVIDIA/cutlass. Each line of a file is a program: `path`,
`arch`, the least architecture it is written for, and `args`. Each runs unchanged, with its own check of its result, once
more under the sanitizer (`blackwell_runs.py` says how), and its kernels are compiled by ptxas and not launched
(`blackwell_programs.py`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

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
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose path has this text")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--save", action="store_true", help="write docs/data/experimental_runs.md")
    options = parser.parse_args()
    examples = options.examples.resolve()
    lines = [line for file in options.files for line in file.read_text().splitlines() if line.strip()]
    for program in map(json.loads, lines):
        path, args = program["path"], program.get("args", "")
        if options.only not in path:
            continue
        given = examples, path, args, options.timeout, compiling.arch_of(program)
        plain, sanitized = running.run(*given), running.run(*given, sanitized=True)
        found = compiling.compile_program(examples, program | {"args": shlex.split(args)})
        cubin = "yes" if compiling.is_compiled(found) else compiling.failure(examples, found)
        seconds = f"{plain.seconds:.0f}"
        PROGRAMS.add(path, args, plain.verdict, seconds, sanitized.verdict, compiling.arch_of(program), cubin)
    PAGE.finish(options.save)


if __name__ == "__main__":
    main()
