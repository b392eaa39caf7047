"""What the language costs before any kernel runs: imports, tracing, compiling a small kernel, calling it.

    python benchmarks/frontend.py [--rounds N]

Times are the best of several rounds; processes start with Python's byte code cached. The last column is what CuTe DSL
was measured to take on the same kind of machine, for orientation; it is not run here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"

IMPORT = """
import time
begun = time.perf_counter()
import {module}
print(time.perf_counter() - begun)
"""

ONE_LINE_KERNEL = """
import json, time
begun = time.perf_counter()
import kiln.cute as cute

@cute.kernel
def first(x):
    cute.printf("{}", x)

@cute.jit
def launch_first(x):
    first(x).launch(grid=1, block=1)

@cute.kernel
def second(x):
    cute.printf("{}", x)

@cute.jit
def launch_second(x):
    second(x).launch(grid=1, block=1)

report = {}
for name, function in (("cold", launch_first), ("warm", launch_second)):
    start = time.perf_counter()
    compiled = cute.compile(function, 1)
    report[name] = time.perf_counter() - start
    stages = dict(getattr(compiled.executable, "timings", {}))
    report[name + " stages"] = {"rewrite and trace": report[name] - sum(stages.values()), **stages}
report["process"] = time.perf_counter() - begun
print(json.dumps(report))
"""

TRACE = """
import json, time
import kiln.cute as cute
from kiln import Constexpr, Int32, range_constexpr

@cute.jit
def many(x: Int32, y: Int32, times: Constexpr):
    for _ in range_constexpr(times):
        x = (x + y) * x - (y ^ x)
    return x

def trace_time(times):
    start = time.perf_counter()
    compiled = cute.compile(many, 1, 2, times)
    spent = time.perf_counter() - start - sum(getattr(compiled.executable, "timings", {}).values())
    return spent, compiled.__mlir__.count(" = arith.")

trace_time(1)
few, many_ = min(trace_time(5) for _ in range(3)), min(trace_time(500) for _ in range(3))
print(json.dumps([(many_[0] - few[0]) / (many_[1] - few[1]), many_[1]]))
"""

CALLS = """
import json, timeit
import kiln.cute as cute
{tensor_setup}

@cute.jit
def none(): return

@cute.jit
def one(a): return

@cute.jit
def five(a, b, c, d, e): return

def best(run):
    for _ in range(20):  # the first calls are slower
        run()
    count = max(1, int(0.001 / max(timeit.timeit(run, number=20) / 20, 1e-9)))
    return min(timeit.repeat(run, number=count, repeat=100)) / count

report = {{}}
cases = [("no argument", none, ()), ("1 scalar", one, (1,)), ("5 scalars", five, (1, 2.0, True, 4, 5.0))]
{tensor_case}
for name, function, arguments in cases:
    compiled = cute.compile(function, *arguments)
    function(*arguments)
    report[name] = [best(lambda: function(*arguments)), best(lambda: compiled(*arguments))]
print(json.dumps(report))
"""
TENSOR_SETUP = """
import numpy as np
from kiln.cute.runtime import from_dlpack
array = np.zeros((4, 4), np.float32)
tensor = from_dlpack(array)
"""
TENSOR_CASE = """ cases += [("1 prepared tensor", one, (tensor,)), ("5 prepared tensors", five, (tensor,) * 5), ("1
numpy array", one, (array,))] try:
    import torch
    cases += [(f"{n} torch tensors", f, (torch.zeros(4, 4),) * n) for n, f in ((1, one), (5, five))]
except ImportError:
    pass
"""


class Runner:
    """Runs programs in fresh processes, with a byte code cache of their own."""

    def __init__(self, rounds: int, cache: str) -> None:
        self.rounds = rounds
        self._file = Path(cache) / "program.py"
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KILN_", "CUTE_DSL_"))}
        self._environment |= {"PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": cache, "KILN_TARGET": "cpu"}

    def run(self, program: str) -> str:
        """What a program prints."""
        self._file.write_text(program)
        command = [sys.executable, str(self._file)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def several(self, program: str) -> list[Any]:
        """What each of several runs prints, as JSON; the first run only fills the caches."""
        self.run(program)
        return [json.loads(self.run(program)) for _ in range(self.rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':44}{'Kiln':>12}   CuTe DSL")
    with tempfile.TemporaryDirectory() as cache:
        measure(Runner(rounds, cache))


def measure(runner: Runner) -> None:
    """Measure and print."""
    for module in ("kiln", "kiln.cute", "cutlass.cute"):
        row(f"import {module}", min(runner.several(IMPORT.format(module=module))), "1.07 s" if "." in module else "")

    kernels = runner.several(ONE_LINE_KERNEL)
    warm = min(kernels, key=lambda report: report["warm"])
    cold = min(kernels, key=lambda report: report["cold"])
    row("one-line kernel, first of a process", cold["cold"], "")
    row("one-line kernel, warm", warm["warm"], "0.10 to 0.20 s")
    for stage, spent in sorted(warm["warm stages"].items(), key=lambda item: -item[1]):
        row(f"    {stage}", spent, f"cold {show(cold['cold stages'].get(stage, 0.0))}")
    row("a process that compiles two kernels", min(report["process"] for report in kernels), "")

    per_op, count = min(runner.several(TRACE))
    row(f"trace, for each of {count} operations", per_op, "")

    with_tensor = CALLS.format(tensor_setup=TENSOR_SETUP, tensor_case=TENSOR_CASE)
    without = CALLS.format(tensor_setup="", tensor_case="")
    try:
        runner.run(with_tensor)
    except RuntimeError:
        with_tensor = without
    calls = runner.several(with_tensor)
    for name in calls[0]:
        row(f"implicit call, {name}", min(report[name][0] for report in calls), "7.2 ms")
        row(f"compiled call, {name}", min(report[name][1] for report in calls), "")
    empty = min(timeit.repeat(lambda: None, number=100_000, repeat=5)) / 100_000
    row("a Python call, to compare with", empty, "")


def row(what: str, seconds: float, peer: str) -> None:
    """One line of the table."""
    print(f"{what:44}{show(seconds):>12}   {peer}", flush=True)


def show(seconds: float) -> str:
    """A time with a unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


if __name__ == "__main__":
    main()
