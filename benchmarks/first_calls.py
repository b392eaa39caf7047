"""Host time of the first calls of a new process, with an empty disk cache and with a full one.

    python benchmarks/first_calls.py [--target cpu|nvidia] [--rounds N] [--calls N] [--save]

Each row is a program of its own that makes one kernel of one line (or calls one function of the library) and then
calls it 20 times; each call is timed by itself, on the host, and the device is drained between calls. Of each call the
least of the rounds counts, so what is left is not chance. "settled" is the median of the last ten; a stall is a call
that takes much longer, past the first two (the driver loads code lazily, in the first launch). Kiln's own native code
is no part of the disk cache (docs/native.md): a first round may have to make it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import Page, Table

CASES = ("cute.compile", "a jit function", "kernels.softmax")
FIRST = Table(
    "A kernel of one line, or one of the library; least of the rounds",
    ("call", "disk cache", "import ms", "compile ms", "calls 1 to 6, us", "slowest later, us", "settled us"),
)
PAGE = Page(__file__, "First calls of a process", FIRST)


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def program(case: str, target: str, calls: int) -> dict[str, Any]:
    """What one process measures: seconds of importing, of compiling (for what is not compiled first, of the first
    call), and of each call after that."""
    wait: Callable[[], Any] = int
    if target == "nvidia":
        import torch

        x, wait = torch.zeros(32, 32, device="cuda"), torch.cuda.synchronize
        wait()
    else:
        import numpy as np

        x = np.zeros((32, 32), np.float32)
    begun = time.perf_counter()
    import kiln
    from kiln import cute, kernels

    imported = time.perf_counter() - begun

    @cute.kernel
    def kernel(x: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        x[thread, 0] = x[thread, 0] + 1

    @cute.jit
    def launch(x: cute.Tensor) -> None:
        kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))

    kiln.target(target)
    begun = time.perf_counter()
    if case == "cute.compile":
        compiled = cute.compile(launch, x)
    elif case == "a jit function":
        compiled = launch
        launch(x)
    else:
        compiled = kernels.softmax
        kernels.softmax(x)
    prepared = time.perf_counter() - begun
    seconds: list[float] = []
    for _ in range(calls):
        wait()
        seconds.append(timed(lambda: compiled(x)))
    return {"import": imported, "compile": prepared, "calls": seconds}


def measured(case: str, target: str, cache: str, calls: int) -> dict[str, Any]:
    """The same in a new process, with the disk cache in a folder."""
    paths = [str(Path(__file__).parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "CUTE_DSL_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, __file__, "--target", target, "--calls", str(calls), "--program", case]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(target: str, rounds: int, calls: int) -> None:
    """Measure the table."""
    for case in CASES:
        found: dict[str, list[dict[str, Any]]] = {"empty": [], "full": []}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                for runs in found.values():  # the first fills it
                    runs.append(measured(case, target, folder, calls))
        for kind, runs in found.items():
            least = [1e6 * min(times) for times in zip(*(run["calls"] for run in runs), strict=True)]
            FIRST.add(
                f"`{case}`" if "." in case else case,
                kind,
                *(f"{1e3 * min(run[what] for run in runs):.0f}" for what in ("import", "compile")),
                " ".join(f"{us:.0f}" for us in least[:6]),
                f"{max(least[6:]):.1f}",
                f"{statistics.median(least[-10:]):.1f}",
            )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description="what the first calls of a process cost")
    parser.add_argument("--target", choices=("cpu", "nvidia"), default="", help="where; default: where Kiln would")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--save", action="store_true", help="write docs/data/first_calls.md")
    parser.add_argument("--program", choices=CASES, default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        print(json.dumps(program(given.program, given.target, given.calls)))
        return
    if not given.target:
        sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
        from kiln.base_dsl.target import target_name

        given.target = target_name()
    print(f"target {given.target}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, least of {given.rounds}\n")
    table(given.target, given.rounds, given.calls)
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
