"""Run public CuTe DSL programs of `experimental` and `cute_ext` on the CPU target, and compile them for their GPUs.

    python tools/experimental_runs.py EXAMPLES [--target nvidia] [--only TEXT] [--jobs N] [--timeout SECONDS] [--save]

EXAMPLES is the folder examples/python/CuTeDSL of a checkout of NVIDIA/cutlass. Each line of `experimental_runs.jsonl` is a
program: `path`, `arch`, the least architecture it is written for, and `args`. Each runs unchanged, with its own check of its result, once
more under the sanitizer (`blackwell_runs.py` says how), and its kernels are compiled by ptxas and not launched
(`blackwell_programs.py`). With `--target nvidia` they run on this machine's GPU instead.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import blackwell_programs as compiling  # noqa: E402  # pyright: ignore[reportMissingImports]
import blackwell_runs as running  # noqa: E402  # pyright: ignore[reportMissingImports]
from results import Page, Table  # noqa: E402  # pyright: ignore[reportMissingImports]

PROGRAMS = Table(
    "Run on the CPU target, compiled for a GPU",
    ("program", "arguments", "check", "s", "sanitizer", "arch", "cubin", "commit"),
)
ON_GPU = Table("Run on a GPU", ("program", "arguments", "check", "s", "commit"))
PAGE = Page(__file__, "Public programs of experimental and cute_ext", PROGRAMS, ON_GPU)


def main() -> None:
    PAGE.finish(running.run_listed(__file__, __doc__, PAGE, _tried))


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
