"""Run tests on the CPU target under several schedules: `python tools/schedules.py [--seeds N] [-n PROCESSES] [paths ...]`.

Every seed is another order of threads and blocks, and other moments at which asynchronous copies land; each is tried with one
and with two worker threads. Prints a table; the exit status says whether all passed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

PATHS = ("targets/cpu", "pipeline", "kernels", "cute", "examples")
"""Folders of tests that run kernels."""
WITHOUT = ("kernels/test_kernel_resources.py", "examples/test_import_weight.py", "examples/test_docs_language.py")
"""Those of them that run none."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from 0 on")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", default="1,2", help="numbers of worker threads")
    parser.add_argument("-n", default="0", help="processes that pytest starts")
    parser.add_argument("paths", nargs="*", help=f"tests to run; default: {', '.join(PATHS)}")
    options = parser.parse_args()
    here = Path(__file__).parents[1] / "tests"
    paths = options.paths or [str(here / path) for path in PATHS]
    paths += [f"--ignore={here / path}" for path in WITHOUT]
    print("| seed | workers | passed | failed | skipped | seconds |\n|---|---|---|---|---|---|", flush=True)
    wrong = 0
    for seed in range(options.first, options.first + options.seeds):
        for workers in options.workers.split(","):
            environment = {**os.environ, "KILN_TARGET": "cpu", "KILN_CPU_SEED": str(seed), "KILN_CPU_THREADS": workers}
            start = time.monotonic()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", options.n, *paths]
            made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            last = made.stdout.strip().splitlines()[-1] if made.stdout.strip() else made.stderr
            counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
            failed = counts.get("failed", 0) + counts.get("error", 0) + (made.returncode not in (0, 1))
            wrong += failed
            cells = (seed, workers, counts.get("passed", 0), failed, counts.get("skipped", 0))
            print(f"| {' | '.join(map(str, cells))} | {time.monotonic() - start:.0f} |", flush=True)
            if failed:
                lines = [line for line in made.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                print("\n".join(lines) or made.stdout[-2000:] + made.stderr[-2000:], flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
