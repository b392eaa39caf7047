"""Times a program under Kiln and under CuTe DSL, each installed in an environment of its own, alternating.

    python benchmarks/against_cute_dsl.py --kiln .venv/bin/python --cute-dsl ../cute/bin/python -- \
        dense_gemm.py --mnkl 8192,8192,8192,1 --warmup_iterations 5 --iterations 50

The program is one that CuTe DSL runs and that prints its time, such as the examples of CUTLASS: the last number before
`us`, `microseconds` or `ms` counts, or what `--pattern` finds. Each round runs it once under each, in alternating order,
so that both see the same GPU at about the same clocks. It prints the median of the ratios of the rounds, with its range.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TIME = r"(?P<time>[\d.]+(?:e[+-]?\d+)?)\s*(?P<unit>us|µs|microseconds|ms|milliseconds)\b"
_IN_US = {"us": 1.0, "µs": 1.0, "microseconds": 1.0, "ms": 1e3, "milliseconds": 1e3}
KILN, CUTE_DSL = "Kiln", "CuTe DSL"


class DidNotRun(Exception):
    """A program failed, or printed no time."""


def microseconds(output: str, pattern: str = TIME) -> float | None:
    """Return the last time that a program printed, in microseconds; None if there is none.

    A pattern with a group `time` alone means microseconds.
    """
    matches = list(re.finditer(pattern, output))
    if not matches:
        return None
    groups = matches[-1].groupdict()
    value = groups["time"] if "time" in groups else matches[-1].group(1)
    return float(value) * _IN_US[groups.get("unit") or "us"]


def environment(python: str, kiln: bool) -> dict[str, str]:
    """Return the environment of a program: that of its Python alone, on the GPU."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "PYTHON", "VIRTUAL_ENV"))
    }
    kept["PATH"] = os.pathsep.join([str(Path(python).parent), kept.get("PATH", "")])
    return {**kept, "KILN_TARGET": "nvidia"} if kiln else kept


def run(name: str, python: str, program: Sequence[str], pattern: str, timeout: float) -> float:
    """Run a program once and return its microseconds."""
    words = [python, *(["-m", "kiln", "run"] if name == KILN else []), *program]
    done = subprocess.run(
        words, env=environment(python, name == KILN), capture_output=True, text=True, timeout=timeout, check=False
    )
    last = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-8:])
    if done.returncode:
        raise DidNotRun(f"under {name} it ended with {done.returncode}:\n  {last}")
    us = microseconds(done.stdout, pattern)
    if us is None:
        raise DidNotRun(f"under {name} it printed no time that {pattern!r} finds:\n  {last}")
    return us


def version(name: str, python: str) -> str:
    """Return the version of a package as its environment has it; the package is not imported."""
    package = "kiln-dsl" if name == KILN else "nvidia-cutlass-dsl"
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not installed by name"


def rounds(
    pythons: dict[str, str], program: Sequence[str], count: int, pattern: str, timeout: float
) -> list[dict[str, float]]:
    """Return the microseconds under each, round by round; a first round that compiles does not count."""
    times: list[dict[str, float]] = []
    for number in range(count + 1):
        order = list(pythons) if number % 2 else list(reversed(pythons))
        one = {name: run(name, pythons[name], program, pattern, timeout) for name in order}
        if number:
            times.append(one)
            print(f"round {number}: " + ", ".join(f"{name} {one[name]:.2f} us" for name in pythons), flush=True)
    return times


def summary(times: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the medians, and the time of CuTe DSL over that of Kiln: median and range over the rounds."""
    ratios = sorted(one[CUTE_DSL] / one[KILN] for one in times)
    return {
        "kiln_us": statistics.median(one[KILN] for one in times),
        "cute_dsl_us": statistics.median(one[CUTE_DSL] for one in times),
        "ratio": statistics.median(ratios),
        "low": ratios[0],
        "high": ratios[-1],
    }


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kiln", required=True, metavar="PYTHON", help="the Python with Kiln")
    parser.add_argument("--cute-dsl", required=True, metavar="PYTHON", help="the Python with nvidia-cutlass-dsl")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pattern", default=TIME, help="a regular expression; its group `time` is the time")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of one run")
    parser.add_argument("--out", help="a file that a line of JSON is added to")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="after `--`: the program and its arguments")
    args = parser.parse_args(words)
    program = [word for number, word in enumerate(args.program) if number or word != "--"]
    if not program or args.rounds < 1:
        parser.error("name a program after `--`, and at least one round")
    pythons = {KILN: args.kiln, CUTE_DSL: args.cute_dsl}
    versions = {name: version(name, python) for name, python in pythons.items()}
    print(", ".join(f"{name} {versions[name]}" for name in pythons) + f": {' '.join(program)}")
    try:
        times = rounds(pythons, program, args.rounds, args.pattern, args.timeout)
    except (DidNotRun, subprocess.TimeoutExpired) as reason:
        print(f"against_cute_dsl.py: {reason}", file=sys.stderr)
        return 1
    told = summary(times)
    print(
        f"Kiln {told['kiln_us']:.2f} us, CuTe DSL {told['cute_dsl_us']:.2f} us: Kiln is {told['ratio']:.3f} times as fast "
        f"({told['low']:.3f} to {told['high']:.3f} in {len(times)} rounds)"
    )
    if args.out:
        record = {
            "program": program,
            "versions": versions,
            "rounds": times,
            **told,
            "at": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        }
        with open(args.out, "a") as file:
            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
