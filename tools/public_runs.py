"""Run public CuTe DSL programs that are neither for Blackwell nor for `experimental` on the CPU target.

    python tools/public_runs.py EXAMPLES [--target nvidia] [--only TEXT] [--jobs N] [--timeout SECONDS] [--save]

EXAMPLES is the folder examples/python/CuTeDSL of a checkout of NVIDIA/cutlass. Each line of `public_runs.jsonl` is a
program: `path`, `arch`, `args`; `after`, a program whose files it reads; `error`, the message with which it ends on
purpose. Each runs unchanged, with its own check of its result (`blackwell_runs.py` says how). With
`--target nvidia` they run on this machine's GPU instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import blackwell_runs as running  # noqa: E402  # pyright: ignore[reportMissingImports]
from blackwell_programs import arch_of  # noqa: E402  # pyright: ignore[reportMissingImports]
from results import Page, Table  # noqa: E402  # pyright: ignore[reportMissingImports]

PROGRAMS = Table("Run on the CPU target", ("program", "arguments", "check", "s", "commit"))
ON_GPU = Table("Run on a GPU", ("program", "arguments", "check", "s", "commit"))
PAGE = Page(__file__, "Public programs up to Hopper, run", PROGRAMS, ON_GPU)


def main() -> None:
    PAGE.finish(running.run_listed(__file__, __doc__, PAGE, _tried))


def _tried(examples: Path, timeout: float, program: dict[str, Any]) -> tuple[Any, ...]:
    return running.run_program(examples, timeout, arch_of(program), program)


if __name__ == "__main__":
    main()
