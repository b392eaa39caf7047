"""Jobs of `kiln profile`, and the program that profilers run: `python -m kiln.workbench.profile.jobs JSON`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import bank_conflicts
from ...base_dsl import packages
from ...clock import known
from ...clock.prediction import predict
from ...clock.trace import trace_of
from ...cute.kernel_trace import mark_cost
from ...hardware import driver
from ...measure import measurement
from ...measure.trace_format import dumps
from ...testing import dry_run
from ..bench.jobs import dtype_of
from ..core import command_line
from ..core.cases import Case
from ..core.opened_case import opened
from ..verify import jobs as verify_jobs
from . import clock_profile, ncu, timeline
from .kernel_ranges import choices_of, written
from .static_profile import calls_of, static_profile

Config = Mapping[str, Any] | None
COUNTED_ELEMENTS = 1 << 16
"""The most elements of inputs when accesses are counted: all CTAs make the same ones."""


def static(where: str, problem: Mapping[str, object], config: Config, seed: int) -> dict[str, Any]:
    """Return the static profiles of what a Case would launch."""
    case, _ = opened(where)
    inputs = case.inputs(problem, seed)
    with dry_run() as launches:
        case.kernel(*inputs, config=config, problem=problem)
    kernels = [each.to_json() for each in static_profile(launches)]
    return {"dtype": dtype_of(inputs), "kernels": kernels, "calls": calls_of(launches)}


def accesses(where: str, problem: Mapping[str, object], config: Config, seed: int) -> dict[str, Any]:
    """Return the accesses of warps by line, counted on the CPU target on a problem that is shrunk if it is large."""
    case, _ = opened(where)
    smaller = verify_jobs.shrunk(where, problem, COUNTED_ELEMENTS).problem
    inputs = case.inputs(smaller, seed)
    with bank_conflicts.AccessSession() as counted:
        case.kernel(*inputs, config=config, problem=smaller)
    reports = {"bank_conflicts": counted.conflicts, "coalescing": counted.coalescing}
    return {"problem": smaller, **{name: json.loads(report.json()) for name, report in reports.items()}}


def predicted(
    where: str,
    problem: Mapping[str, object],
    config: Config,
    seed: int,
    device: str,
    mhz: float | None = None,
    what_if: bool = True,
    cold: bool = False,
    path: str | None = None,
    notes: str | None = None,
) -> timeline.Record:
    """Return the clock's predictions of what a Case launches, and write their traces to `path`.

    With `cold`, the call finds nothing in the L2 cache. What is being done goes to the file `notes`, a line for each step.
    """
    case, _ = opened(where)
    inputs = case.inputs(problem, seed)
    with open(notes or os.devnull, "a", buffering=1) as log:
        print("recording", file=log)
        call = lambda: case.kernel(*inputs, config=config, problem=problem)
        predictions = predict(call, device, mhz, what_if, cold)
        traces = [trace_of(each, launch) for launch, each in enumerate(predictions)]
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(dumps(traces))
    records = [clock_profile.to_json(each, trace) for each, trace in zip(predictions, traces)]
    spans = [one.span for each in predictions for one in (*each.slices, *each.stalls) if one.span]
    files = {os.path.basename(span.filename): span.filename for span in spans}
    about = {"version": known.version(device), "dtype": dtype_of(inputs), "trace": path, "files": files}
    return {**about, "predictions": records}


def annotated(where: str, problem: Mapping[str, object], config: Config, seed: int) -> dict[str, Any]:
    """Return the time of a call, with NVTX ranges around its phases."""
    case, _ = opened(where)
    with nvtx_range("inputs"):
        inputs = case.inputs(problem, seed)
    with nvtx_range("first call"):
        case.kernel(*inputs, config=config, problem=problem)
    with nvtx_range("measuring"):
        measured = measurement.measure(_ranged(case, inputs, problem, config))
    return {**measured.to_json(), "nvtx": nvtx_is_here()}


def trace(
    where: str, problem: Mapping[str, object], config: Config, seed: int, path: str, choices: Mapping[str, object]
) -> dict[str, Any]:
    """Trace a call, write what happened to files, and return a summary."""
    case, _ = opened(where)
    inputs = case.inputs(problem, seed)
    traced = choices_of(choices).trace()
    call = _ranged(case, inputs, problem, config)
    cost = None if traced.on_host else mark_cost()
    traced.cost = None if cost is None else cost.straight
    with traced:
        case.kernel(*inputs, config=config, problem=problem)
        traces = traced.traces()
        times = [] if traced.on_host else [measurement.measure(call, effort=measurement.QUICK).us]
    if times:
        times.append(measurement.measure(call, effort=measurement.QUICK).us)
    return written(traces, path, times, cost)


def _ranged(case: Case, inputs: Sequence[object], problem: Mapping[str, object], config: Config) -> Any:
    def call() -> Any:
        with nvtx_range(case.name):
            return case.kernel(*inputs, config=config, problem=problem)

    return call


def nvtx_is_here() -> bool:
    """Return whether the package nvtx is installed."""
    return packages.is_here("nvtx")


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """While open, profilers show a range of this name; nothing without the package nvtx."""
    if not nvtx_is_here():
        yield
        return
    import nvtx  # an optional package

    with nvtx.annotate(name, domain="kiln"):
        yield


def main(text: str) -> None:
    """Run one call for a profiler, between its start and stop, after one that compiles."""
    if not driver.available():
        sys.exit(f"{ncu.NO_GPU}: {command_line.why_no_gpu()}; LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH')!r}")
    arguments = json.loads(text)
    sys.path += [entry for entry in arguments.pop("path") if entry not in sys.path]
    calls = arguments.pop("calls")
    case, _ = opened(arguments["where"])
    problem = arguments["problem"]
    config = arguments["config"]
    with nvtx_range("inputs"):
        inputs = case.inputs(problem, arguments["seed"])
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
