"""Predictions of Cases by the clock, made in workers: for which GPU, by which job, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...base_dsl.target import get_target
from ...clock import known
from ...hardware import current
from ...hardware.architectures import Arch, Architecture
from ..core import command_line, worker_case
from ..core.runners import Job, Outcome, Runner
from . import clock_profile
from .clock_profile import ClockProfile
from .ncu import CannotProfile

if TYPE_CHECKING:
    from ..core.cases import Case
    from .timeline import Record

JOB = "kiln.workbench.profile.jobs:predicted"


def architecture_of(case: Case) -> Architecture:
    """Return the architecture that a Case is predicted for: the one that programs are compiled for, or its own."""
    own = case.arch if command_line.refused(case) else None
    if own:
        return Arch[str(own).split(",")[0].strip().rstrip("+")]
    return current.architecture(target=get_target("nvidia"))


def device_of(case: Case) -> str:
    """Return the GPU that a Case is predicted for; raise CannotProfile if the clock knows none."""
    architecture = architecture_of(case)
    device = known.device_of(architecture)
    if device is None:
        raise CannotProfile(f"the clock does not know the units of a GPU of {architecture.name}")
    return device


def job_of(case: Case, arguments: Mapping[str, object], device: str, timeout: float, **more: object) -> Job:
    """Return the job that predicts a call; `arguments` are those of all jobs: where, problem, config and seed."""
    env = {**command_line.arch_variable(), "CUTE_DSL_ARCH": architecture_of(case).name, "KILN_TARGET": "cpu"}
    return Job(JOB, {"what_if": False, **arguments, **more, "device": device}, timeout=timeout, env=env)


def answer_of(outcome: Outcome) -> Record:
    """Return what the job says; raise CannotProfile with the reason if it says nothing."""
    if outcome.status == "ok" and not outcome.result["predictions"]:
        raise CannotProfile("it launches no kernel")
    if outcome.status == "ok":
        return outcome.result
    worker_case.raise_bad_contract(outcome)
    why = str((outcome.error or {}).get("message") or outcome.status).strip()
    problem = outcome.job.arguments["problem"]
    large = [name for name, value in problem.items() if type(value) is int and value > 64]
    if outcome.status in ("timeout", "oom") and large:
        why += f"; smaller extents may do: {' '.join(f'--{name}=64' for name in large)}"
    raise CannotProfile(why)


def predict(
    case: Case,
    arguments: Mapping[str, object],
    runner: Runner,
    timeout: float,
    *,
    clock: float | str | None = None,
    trace: Path | None = None,
    what_if: bool = False,
    cold: bool = False,
    progress: Callable[..., None] = lambda text="", steps=1: None,
) -> ClockProfile:
    """Return the clock's profile of a call; raise CannotProfile if there is none. `trace` is the file for the timeline."""
    device = device_of(case)
    mhz = clock if isinstance(clock, float) else None
    with clock_profile.Progress(progress) as notes:
        more = {"mhz": mhz, "what_if": what_if, "cold": cold, "path": str(trace) if trace else None, "notes": notes}
        (outcome,) = runner.run([job_of(case, arguments, device, timeout, **more)])
    return clock_profile.profile_of({**answer_of(outcome), "at": clock}, case.name)
