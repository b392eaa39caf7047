"""Jobs of `kiln tune`: compile a config without running it, check and time one, compare several."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kiln import DSLBaseError, cute, mlir, testing  # noqa: F401  (the compiler is loaded before the first job's time)
from kiln.hardware import current
from kiln.measure import comparison, measurement
from kiln.measure.statistics import Stopping

from ...tunings import canonical
from ..bench.jobs import dtype_of
from ..core.cases import Case
from ..core.environment import environment
from ..core.opened_case import opened
from ..core.worker import described
from ..verify import jobs as verify_jobs
from ..verify.check import Check
from . import estimates

_PILOT = measurement.Effort(Stopping(0.2, 3, 0.0, 0.1), warmup=0.0)
"""Enough effort to see that a config is far slower than another."""
_FINAL = measurement.Effort(warmup=0.3)
"""The effort for finalists, whose warm-ups take turns as well."""
TOO_SLOW = 2.0
"""A config that takes this many times as long as the best is not measured more precisely."""


def _case(where: str) -> Case:
    """Return a Case, which a worker loads once for many jobs."""
    return opened(where)[0]


def describe(where: str, problem: Mapping[str, object]) -> dict[str, Any]:
    """Return the configs of a problem with reasons against them and estimated times, and its FLOPs and bytes."""
    case = _case(where)
    device = current.device()
    choices: list[dict[str, Any]] = []
    for choice in case.configs(problem):
        estimated = case.perf_model(choice.config, problem, device) if choice.valid else None
        choices.append({"config": choice.config, "reasons": list(choice.reasons), "estimate_us": estimated})
    return {"choices": choices, "flops_bytes": case.flops_bytes(problem)}


def compile_config(
    where: str, problem: Mapping[str, object], config: Mapping[str, object], arch: str | None, seed: int
) -> dict[str, Any]:
    """Return the launches of a dry run of a config, or why it cannot be compiled.

    `unknown` is an error that is not the compiler's: it may be due to nothing having run.
    """
    case = _case(where)
    inputs = case.inputs(problem, seed)
    try:
        with testing.dry_run(arch) as launches:
            case.kernel(*inputs, config=config, problem=problem)
    except testing.CantImplementError as refused:
        return {"status": "invalid", "message": str(refused), "type": "CantImplementError"}
    except DSLBaseError as failed:
        line = failed.span.line if failed.span else None
        return {"status": "compile_error", "message": str(failed), "type": type(failed).__name__, "line": line}
    except Exception as failed:
        status = "compile_error" if getattr(failed, "while_tracing", False) else "unknown"
        line = described(failed)["line"]
        return {"status": status, "message": str(failed), "type": type(failed).__name__, "line": line}
    facts = [estimates.launch_facts(launch) for launch in launches]
    return {"status": "ranked", "launches": facts, "dtype": dtype_of(inputs)}


def screen(
    where: str,
    problem: Mapping[str, object],
    config: Mapping[str, object],
    seed: int,
    best_us: float | None = None,
    reference: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Check a config on integers and normal numbers, and time it briefly.

    If several GPUs time, each also times the config `reference` now and then: `reference_us`.
    """
    case = _case(where)
    for kind in ("integers", "normal"):
        check = Check(where, kind, dict(problem), dict(problem), seed, config=dict(config))
        result = verify_jobs.result_of(check)
        if not result.ok:
            return {"status": result.status, "message": f"{kind}: {result.message}", "type": kind}
    inputs = case.inputs(problem, seed)
    beside: dict[str, Any] = {}
    if reference is not None:
        call = functools.partial(case.bound(reference, problem), *inputs)
        beside = _beside(call, canonical([problem, reference]))
    return {**_timed(functools.partial(case.bound(config, problem), *inputs), best_us), **beside}


def _timed(call: Any, best_us: float | None) -> dict[str, Any]:
    if best_us is not None:
        pilot = measurement.measure(call, effort=_PILOT)
        if pilot.low > TOO_SLOW * best_us:
            return _facts(pilot) | {"flags": [*pilot.flags, "cut-short"]}
    return _facts(measurement.measure(call, effort=measurement.QUICK))


_EVERY = 20
"""Jobs of a worker after which the reference is timed again."""
_references: dict[str, list[float]] = {}
"""Microseconds of references, and how many jobs have used them."""


def _beside(call: Any, name: str) -> dict[str, Any]:
    """Return the time of the reference on this GPU, and which GPU it is."""
    if name not in _references or _references[name][1] >= _EVERY:
        _references[name] = [measurement.measure(call, effort=measurement.QUICK).us, 0]
    _references[name][1] += 1
    return {"reference_us": _references[name][0], "uuid": environment()["uuid"]}


def _facts(measured: measurement.Measurement) -> dict[str, Any]:
    return {
        "status": "error" if measured.error else "ok",
        "message": measured.error,
        "us": [measured.low, measured.us, measured.high],
        "n": measured.n,
        "protocol": measured.protocol,
        "clock": {name: value for name, value in measured.clocks._asdict().items() if name != "flags"},
        "flags": list(measured.flags),
    }


def compare(
    where: str, problem: Mapping[str, object], configs: Sequence[Mapping[str, object]], seed: int
) -> dict[str, Any]:
    """Compare configs with each other, round by round."""
    case = _case(where)
    inputs = case.inputs(problem, seed)
    bound = [functools.partial(case.bound(config, problem), *inputs) for config in configs]
    calls = {str(number): call for number, call in enumerate(bound)}
    for call in bound:
        call()  # compiles or loads, outside the measurement
    compared = comparison.compare(calls, seed=seed, effort=_FINAL)
    measured = list(compared.measurements.values())
    return {
        "rounds": [compared.rounds[name] for name in calls],
        "protocol": measured[0].protocol,
        "flags": sorted({flag for one in measured for flag in one.flags}),
        "clock": _facts(measured[0])["clock"],
        "error": next((one.error for one in measured if one.error), None),
    }
