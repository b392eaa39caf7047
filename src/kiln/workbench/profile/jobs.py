"""What workers do for `kiln profile`; and the program that profilers start: `python -m kiln.workbench.profile.jobs JSON`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ...base_dsl import packages
from ..core.cases import Case
from ..verify.jobs import opened
from .static_profile import calls_of, static_profile

Config = Mapping[str, Any] | None
CONFLICTS_ELEMENTS = 1 << 16
"""Of inputs for which bank conflicts are counted: every block has those of the others."""


def static(where: str, problem: Mapping[str, Any], config: Config, seed: int) -> dict[str, Any]:
    """The static profiles of what a Case launches, which it does not."""
    from ...testing import dry_run
    from ..bench.jobs import dtype_of

    case, _ = opened(where)
    inputs = case.inputs(problem, seed)
    with dry_run() as launches:
        case.kernel(*inputs, config=config, problem=problem)
    kernels = [found.to_json() for found in static_profile(launches)]
    return {"dtype": dtype_of(inputs), "kernels": kernels, "calls": calls_of(launches)}


def conflicts(where: str, problem: Mapping[str, Any], config: Config, seed: int) -> dict[str, Any]:
    """Bank conflicts by line, counted on the CPU target, of a problem that is made smaller if it is large."""
    from ... import bank_conflicts
    from ..verify import jobs as checking

    case, _ = opened(where)
    smaller = checking.describe(where, dict(problem), CONFLICTS_ELEMENTS)["problem"]
    inputs = case.inputs(smaller, seed)
    with bank_conflicts.Session() as report:
        case.kernel(*inputs, config=config, problem=smaller)
    return {"problem": smaller, "places": json.loads(report.json())}


def annotated(where: str, problem: Mapping[str, Any], config: Config, seed: int) -> dict[str, Any]:
    """The time of a call, with NVTX ranges around its phases for whoever watches."""
    from ...measure import measurement

    case, _ = opened(where)
    with nvtx_range("inputs"):
        inputs = case.inputs(problem, seed)
    with nvtx_range("first call"):
        case.kernel(*inputs, config=config, problem=problem)
    with nvtx_range("measuring"):
        found = measurement.measure(_ranged(case, inputs, problem, config))
    return {**found.to_json(), "nvtx": nvtx_is_here()}


def trace(where: str, problem: Mapping[str, Any], config: Config, seed: int, path: str) -> dict[str, Any]:
    """Run a call whose ranges are noted, and write them as a file for Perfetto; a summary."""
    from ...cute.kernel_ranges import RangeTrace
    from .kernel_ranges import chrome, spans, summary

    case, _ = opened(where)
    inputs = case.inputs(problem, seed)
    with RangeTrace() as found:
        case.kernel(*inputs, config=config, problem=problem)
    events = found.events()
    made = spans(events)
    with open(path, "w") as file:
        json.dump(chrome(made, found.on_host), file)
    return {"unit": "steps" if found.on_host else "cycles", "ranges": summary(made), "lost": found.lost, "path": path}


def _ranged(case: Case, inputs: list[Any], problem: Mapping[str, Any], config: Config) -> Any:
    def call() -> Any:
        with nvtx_range(case.name):
            return case.kernel(*inputs, config=config, problem=problem)

    return call


def nvtx_is_here() -> bool:
    """Whether ranges are marked."""
    return packages.is_here("nvtx")


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """While open, profilers show a range of this name; nothing without the package nvtx."""
    if not nvtx_is_here():
        yield
        return
    import nvtx

    with nvtx.annotate(name, domain="kiln"):
        yield


def main(text: str) -> None:
    """One call that a profiler is to look at, between its marks, after one that compiles."""
    from ...hardware import driver
    from ..core import command_line
    from . import ncu

    if not driver.available():
        sys.exit(f"{ncu.NO_GPU}: {command_line.why_no_gpu()}; LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH')!r}")
    given = json.loads(text)
    sys.path += [entry for entry in given.pop("path") if entry not in sys.path]
    calls = given.pop("calls")
    case, _ = opened(given["where"])
    problem, config = given["problem"], given["config"]
    with nvtx_range("inputs"):
        inputs = case.inputs(problem, given["seed"])
    with nvtx_range("first call"):
        case.kernel(*inputs, config=config, problem=problem)
        driver.call("cuCtxSynchronize")
    driver.call("cuProfilerStart")
    for _ in range(calls):
        with nvtx_range(case.name):
            case.kernel(*inputs, config=config, problem=problem)
    driver.call("cuCtxSynchronize")
    driver.call("cuProfilerStop")


if __name__ == "__main__":
    main(sys.argv[1])
