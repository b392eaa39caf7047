"""The tuner: lists, validates, compiles, ranks, screens and compares configs, with a Record of each step.

The journal has all that is known between two jobs: a run that was ended resumes. Two tuners may work on one Case at a
time; each leaves to the other what that one has begun.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base_dsl.target import get_target
from ...clock import known
from ...hardware import current
from ...hardware.devices import Device, device_of
from ...tunings import canonical
from ..core import command_line, worker_case
from ..core.cases import Case, Choice, arch_fits, key_of
from ..core.environment import environment
from ..core.records import Journal, Record, journal_of
from ..core.runners import Job, Local, Outcome, Runner
from . import estimates, predictions, result, selection
from .config_locks import ConfigLocks
from .optuna_search import BATCH, Search
from .result import Tuning

JOBS = "kiln.workbench.tune.jobs"
RANK = "rank/2"
SCREEN = "screen/1"
FINAL = "final/1"
"""The stages that a config goes through, as parts of keys."""
AGAIN = frozenset({"lost", "pruned", "skipped"})
"""Statuses that the next run does not accept as an answer."""
_WAIT = 0.2
"""Seconds between two looks at what another tuner has begun."""


@dataclass
class Settings:
    """Settings of a tuner."""

    top: int = 64
    search: str = "rank"
    """`rank`: the most promising first. `tpe`: Optuna proposes."""
    budget: float | None = None
    """Seconds after which no new job begins."""
    timeout: float = 60.0
    fresh: bool = False
    """Whether to measure what the journal already has."""
    together: bool = False
    seed: int = 0
    target: str | None = None
    """`cpu` times on the CPU target, whatever the machine has."""
    arch: str | None = None
    predict: float = 120.0
    """Seconds after which no further config is predicted; 0 for none."""
    only: Sequence[Mapping[str, Any]] = ()
    """Configs to try in place of the Case's."""


@dataclass(frozen=True)
class _Config:
    """A config of a problem; `estimate_us` is the contract's estimate."""

    place: int
    choice: Choice
    estimate_us: float | None = None


@dataclass(frozen=True)
class _Stage:
    """A step that configs of a problem go through, and the Record of each outcome."""

    name: str
    runner: Runner
    problem: Mapping[str, Any]
    protocol: str
    job_of: Callable[[_Config], Job]
    record_of: Callable[[_Config, str, Outcome], Record]
    until: float = float("inf")
    """When no new job begins."""


class Tuner:
    """Tunes one Case. `timing` runs what is timed; on the CPU target a runner of one undisturbed worker."""

    def __init__(
        self,
        case: Case,
        settings: Settings,
        runner: Runner,
        timing: Runner | None = None,
        report: Callable[[str, int, int], None] = lambda stage, done, total: None,
        journal: Journal | None = None,
    ) -> None:
        self.case = case
        self.settings = settings
        self.runner = runner
        self.timing: Runner = timing or runner
        self.report = report
        self.journal: Journal = journal or journal_of(case)
        self.env: dict[str, Any] = _environment(settings.target, self.timing)
        self.model: str = str(self.env["gpu"] or "cpu")
        self.on_gpu: bool = settings.target != "cpu" and self.env["gpu"] is not None
        self.times: bool = self.on_gpu or settings.target == "cpu"
        there = getattr(self.timing, "arch", None)
        if there is not None and settings.arch is None:
            settings = dataclasses.replace(settings, arch=there)
        self.settings: Settings = settings
        self.device: Device
        self.arch: str
        self.device, self.arch = _device_and_arch(case, settings, self.on_gpu)
        self.started: float = time.time()
        self.deadline: float | None = None if settings.budget is None else time.monotonic() + settings.budget
        self.result: Tuning = Tuning(case)
        self._locks = ConfigLocks(self.journal)
        self._recorded: dict[str, Record] = {}
        self._size = -1
        self._clock: str | None = (
            None if settings.target == "cpu" else predictions.device_of(self.env["gpu"], self.arch)
        )
        """The device that the clock predicts for; None if it knows none."""
        self._work: Sequence[float] | None = None
        """FLOPs and bytes of the problem that is tuned."""

    # -- all problems

    def tune(self, problems: Sequence[Mapping[str, object]]) -> Tuning:
        """Tune for each problem, or for all of them together."""
        own = {canonical(problem): self.states(problem) for problem in problems}
        last = {name: [states[place] for place in sorted(states)] for name, states in own.items()}
        self.result.records = last
        if not self.times:
            self.result.decisions = predictions.decisions(last, self.settings.together)
            if self._clock is not None and not self.settings.only:
                result.write_predicted(self.result, self._clock)
            return self.result
        kept: dict[str, list[Record]] = {}
        for name, finalists in selection.finals(last, self.settings.together).items():
            kept[name] = [*last[name], *self._compared(json.loads(name), finalists)]
            self.result.finals[name] = selection.compared(kept[name], finalists)
        self.result.decisions = selection.decisions(kept, self.settings.together)
        if not self.settings.only:  # a choice among some configs does not count
            result.write(self.case, self.model, self.result.decisions, last)
        return self.result

    def states(self, problem: Mapping[str, object]) -> dict[int, Record]:
        """List, compile, rank and screen the configs of a problem; return the last Record of each, by index."""
        configs = self._described(problem)
        states: dict[int, Record] = {}
        for config in configs:
            if not config.choice.valid:
                states[config.place] = self._refused(problem, config)
        valid = [config for config in configs if config.choice.valid]
        if self.settings.search == "tpe":
            self._by_search(problem, valid, states)
            return states
        promising = self._promising(valid)
        order = self._predict(problem, self._rank(problem, promising, states), states)
        if not self.times:
            return states
        worth = predictions.worth_measuring([states[config.place] for config in order])
        measured = [config for config in order if config.place in worth][: self.settings.top]
        for config in valid:
            if config not in measured and (config not in promising or config in order):
                before = states.get(config.place)
                us = before.more.get("estimate_us") if before else config.estimate_us
                states[config.place] = self._pruned(problem, config, us)
        self._screen(problem, measured, states)
        return states

    def _described(self, problem: Mapping[str, object]) -> list[_Config]:
        """Return the configs of a problem as a worker describes them: only workers run the contract."""
        arguments = {"where": self.case.where, "problem": dict(problem)}
        job = Job(f"{JOBS}:describe", arguments, self.on_gpu, self.settings.timeout, env=self._job_env())
        # Not in the timing worker, unless that needs the GPU: a job that is not its first is retried if it hangs.
        said = worker_case.result_of(self.timing if self.on_gpu else self.runner, job)
        self._work = said["flops_bytes"]
        listed = [
            _Config(place, Choice(one["config"], tuple(one["reasons"])), one["estimate_us"])
            for place, one in enumerate(said["choices"])
        ]
        if not self.settings.only:
            return listed
        by_config = {canonical(config.choice.config): config for config in listed}
        others = (_Config(len(listed) + n, Choice(dict(config))) for n, config in enumerate(self.settings.only))
        return [by_config.get(canonical(config.choice.config), config) for config in others]

    def _promising(self, valid: Sequence[_Config]) -> Sequence[_Config]:
        """Return the configs to compile: the best estimated if the Case estimates times and there are very many, else all."""
        most = 2 * self.settings.top
        if len(valid) <= most or any(config.estimate_us is None for config in valid):
            return valid
        best = sorted(valid, key=lambda config: (config.estimate_us or 0.0, config.place))[:most]
        return sorted(best, key=lambda config: config.place)

    def _by_search(self, problem: Mapping[str, object], valid: list[_Config], states: dict[int, Record]) -> None:
        search: Search = Search([config.choice.config for config in valid], self.settings.seed)
        measured: list[tuple[int, float | None]] = []
        for batch in range(-(-min(self.settings.top, len(valid)) // BATCH)):
            proposed = search.propose(batch, measured, min(BATCH, self.settings.top - len(measured)))
            chosen = [valid[place] for place in proposed]
            order = self._rank(problem, chosen, states)
            if self.times:
                self._screen(problem, order, states)
            for place in proposed:
                record = states.get(valid[place].place)
                measured.append((place, record.us[1] if record and record.status == "ok" and record.us else None))
            if self._is_over():
                break

    # -- stages

    def _rank(
        self, problem: Mapping[str, object], configs: Sequence[_Config], states: dict[int, Record]
    ) -> list[_Config]:
        """Compile configs without a GPU; return those that may run, in the order to measure them."""

        def job(config: _Config) -> Job:
            arguments = self._job_arguments(problem) | {"config": config.choice.config, "arch": self.arch}
            return Job(f"{JOBS}:compile_config", arguments, timeout=self.settings.timeout)

        stage = _Stage("compile", self.runner, problem, f"{RANK} {self.arch}", job, self._compiled)
        self._run(stage, configs, states)
        estimated: list[tuple[int, estimates.Estimate | None]] = []
        for config in configs:
            record = states.get(config.place)
            if record is not None and record.status == "ranked":
                us = record.more.get("estimate_us")
                estimate = None if us is None else estimates.Estimate(us, record.more["spills"])
                estimated.append((config.place, estimate))
        by_place = {config.place: config for config in configs}
        return [by_place[place] for place in estimates.order(estimated)]

    def _predict(
        self, problem: Mapping[str, object], configs: list[_Config], states: dict[int, Record]
    ) -> list[_Config]:
        """Predict the times of configs that the Case has no estimate of, in their order, and order them by these."""
        device = self._clock
        settings = self.settings
        if device is None or not settings.predict or any(config.estimate_us is not None for config in configs):
            return configs

        def job(config: _Config) -> Job:
            arguments = self._job_arguments(problem) | {"config": config.choice.config}
            return predictions.job_of(self.case, arguments, device, self.arch, settings.timeout)

        def predicted(config: _Config, key: str, outcome: Outcome) -> Record:
            facts = predictions.facts_of(outcome)
            if isinstance(facts, str):
                return self._record(problem, config, key, "skipped", protocol, outcome, facts, "NotPredicted")
            record = self._record(problem, config, key, "predicted", protocol, outcome)
            before = states[config.place].more
            record.more |= {"least_us": before.get("least_us"), "spills": before.get("spills", 0), **facts}
            return record

        protocol = f"{predictions.PREDICT} {self.arch} {known.version(device)}"
        until = time.monotonic() + settings.predict
        records: dict[int, Record] = {}
        self._run(_Stage("predict", self.runner, problem, protocol, job, predicted, until), configs, records)
        states |= {place: record for place, record in records.items() if record.status == "predicted"}
        by_place = {config.place: config for config in configs}
        return [by_place[place] for place in predictions.in_order([states[config.place] for config in configs])]

    def _least_us(self, dtype: str | None) -> float | None:
        """Return the roofline's microseconds for the work of the problem on inputs of a type; None if unknown."""
        work = self._work
        model = self.device.model
        return model.least_us(work[0], work[1], dtype) if work and model else None

    def _screen(self, problem: Mapping[str, object], configs: Sequence[_Config], states: dict[int, Record]) -> None:
        """Check and time configs one by one."""
        reference: dict[str, Any] = {}

        def job(config: _Config) -> Job:
            good = [r for r in states.values() if r.status == "ok" and r.us]
            best = min((r.us[1] for r in good if r.us), default=None)
            arguments = self._job_arguments(problem) | {"config": config.choice.config, "best_us": best}
            if self.timing.timers > 1 and good:
                reference.setdefault("config", good[0].config)
                arguments["reference"] = reference["config"]
            return Job(f"{JOBS}:screen", arguments, self.on_gpu, self.settings.timeout, env=self._job_env())

        def screened(config: _Config, key: str, outcome: Outcome) -> Record:
            before = states.get(config.place)
            estimated = before.more.get("estimate_us") if before else None
            return self._timed(problem, config, key, outcome, estimated)

        self._run(_Stage("screen", self.timing, problem, self._of_target(SCREEN), job, screened), configs, states)

    def _compared(self, problem: Mapping[str, object], finalists: Sequence[selection.Candidate]) -> list[Record]:
        """Return the Record of comparing some configs, from the journal or made now; none for fewer than two."""
        if len(finalists) < 2:
            return []
        configs = [one.config for one in finalists]
        places = [one.place for one in finalists]
        arguments = self._job_arguments(problem) | {"configs": configs}
        timeout = self.settings.timeout + 15 * len(finalists)

        def finished(config: _Config, key: str, outcome: Outcome) -> Record:
            record = self._timed(problem, config, key, outcome, None)
            record.config = None
            if record.status == "ok":
                rounds = outcome.result["rounds"]
                record.more["finalists"] = [
                    {"config": one, "place": place, "us": selection.summary(times), "rounds": times}
                    for one, place, times in zip(configs, places, rounds, strict=True)
                ]
            return record

        states: dict[int, Record] = {}
        whole = _Config(0, Choice({"finalists": configs}))
        job = Job(f"{JOBS}:compare", arguments, self.on_gpu, timeout, env=self._job_env())
        stage = _Stage("compare", self.timing, problem, self._of_target(FINAL), lambda _: job, finished)
        self._run(stage, [whole], states)
        for record in states.values():
            if record.status != "ok":
                reason = str((record.error or {}).get("message", "")).partition("\n")[0]
                self.result.notes.append(f"the comparison of the best failed: {record.status}: {reason}")
        return list(states.values())

    def _job_arguments(self, problem: Mapping[str, object]) -> dict[str, Any]:
        return {"where": self.case.where, "problem": dict(problem), "seed": self.settings.seed}

    def _job_env(self) -> dict[str, str]:
        return job_env(self.on_gpu)

    def _of_target(self, stage: str) -> str:
        return f"{stage} {'gpu' if self.on_gpu else 'cpu'}"

    # -- jobs

    def _run(self, stage: _Stage, configs: Sequence[_Config], states: dict[int, Record]) -> None:
        """Put each config's Record into `states`: from the journal, from a job, or from another tuner."""
        self.report(stage.name, 0, len(configs))
        waiting = list(configs)
        done = 0
        while waiting and not self._is_over():
            elsewhere: list[_Config] = []
            for outcome in stage.runner.run(self._jobs(stage, waiting, states, elsewhere)):
                config, key = outcome.job.tag
                states[config.place] = self._keep(stage.record_of(config, key, outcome))
                self._locks.free(key)
                self.result.measured += 1
                done += 1
                self.report(stage.name, done, len(configs))
            if elsewhere:
                time.sleep(_WAIT)
            waiting = elsewhere

    def _jobs(
        self, stage: _Stage, configs: Sequence[_Config], states: dict[int, Record], elsewhere: list[_Config]
    ) -> Iterator[Job]:
        """Yield jobs for configs that nobody has measured or is measuring; put known Records into `states`."""
        for config in configs:
            if self._is_over() or time.monotonic() > stage.until:
                return
            key = key_of("tune", self.case, stage.problem, config.choice.config, self.env, stage.protocol)
            answer = self._answer(key)
            if answer is None and not self._locks.take(key):
                elsewhere.append(config)
                continue
            if answer is None:
                answer = self._answer(key)  # another tuner may have written it just before unlocking
            if answer is None:
                yield dataclasses.replace(stage.job_of(config), tag=(config, key))
            else:
                self._locks.free(key)
                states[config.place] = answer

    def _is_over(self) -> bool:
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.result.stopped = True
        return self.result.stopped

    def _answer(self, key: str) -> Record | None:
        """Return the journal's Record of a key, other tuners' included, or None."""
        size = self.journal.file.stat().st_size if self.journal.file.exists() else 0
        if size != self._size:
            self._recorded = self.journal.by_key()
            self._size = size
        answer = self._recorded.get(key)
        if answer is None or answer.status in AGAIN:
            return None
        return None if self.settings.fresh and answer.more.get("at", 0.0) < self.started else answer

    def _keep(self, record: Record) -> Record:
        self.journal.append(record)
        return record

    # -- records

    def _refused(self, problem: Mapping[str, object], config: _Config) -> Record:
        key = key_of("tune", self.case, problem, config.choice.config, self.env, "list/1")
        reason = "; ".join(config.choice.reasons)
        answer = self._answer(key)
        if answer is not None:
            return answer
        return self._keep(self._record(problem, config, key, "invalid", "list/1", message=reason, kind="validate"))

    def _pruned(self, problem: Mapping[str, object], config: _Config, estimated: float | None) -> Record:
        key = key_of("tune", self.case, problem, config.choice.config, self.env, self._of_target(SCREEN))
        answer = self._answer(key)  # a run with a larger --top may have measured it
        if answer is not None:
            return answer
        earlier = self._recorded.get(key)
        record = self._record(problem, config, key, "pruned", SCREEN)
        record.more["estimate_us"] = estimated
        return earlier if earlier is not None and earlier.status == "pruned" else self._keep(record)

    def _compiled(self, config: _Config, key: str, outcome: Outcome) -> Record:
        problem = outcome.job.arguments["problem"]
        said = outcome.result if outcome.status == "ok" else {}
        status = outcome.status
        message = ""
        kind = ""
        if outcome.status == "ok":
            status = "ranked" if said["status"] == "unknown" else said["status"]
            message = said.get("message", "")
            kind = said.get("type", "")
        elif status in ("crash", "timeout") and compiling(outcome.stderr):
            status = f"compile_{status}"
        launches = said.get("launches")
        least = self._least_us(said.get("dtype"))
        estimate = estimates.estimate(launches, self.device, least) if launches else None
        if estimate is not None and estimate.no_fit:
            status = "no_fit"
            message = estimate.no_fit
            kind = "NoFit"
        elif config.estimate_us is not None:
            estimate = estimates.Estimate(config.estimate_us)
        record = self._record(problem, config, key, status, RANK, outcome, message, kind)
        if launches:
            record.more["launches"] = launches
        if estimate is not None and status == "ranked":
            by = "roofline" if config.estimate_us is None else "perf_model"
            estimated = {"estimate_us": estimate.us, "estimate_by": by, "estimate_on": self.device.name}
            record.more |= {**estimated, "least_us": estimate.least_us, "spills": estimate.spills}
        if record.error is not None and said.get("line"):
            record.error["line"] = said["line"]
        return record

    def _timed(
        self, problem: Mapping[str, object], config: _Config, key: str, outcome: Outcome, estimated: float | None
    ) -> Record:
        said = outcome.result if outcome.status == "ok" else {}
        message = said.get("message") or said.get("error") or ""
        status = outcome.status if outcome.status != "ok" else said.get("status") or ("error" if message else "ok")
        record = self._record(problem, config, key, status, SCREEN, outcome, message, said.get("type", ""))
        record.us = said.get("us")
        record.n = said.get("n", 0)
        record.protocol = said.get("protocol", "")
        record.clock = said.get("clock") or {}
        record.flags = list(said.get("flags") or ())
        if estimated is not None:
            record.more["estimate_us"] = estimated
        if said.get("reference_us"):
            record.more["reference"] = outcome.job.arguments["reference"]
            record.more["reference_us"] = said["reference_us"]
            record.env["uuid"] = said["uuid"]
        return record

    def _record(
        self,
        problem: Mapping[str, object],
        config: _Config,
        key: str,
        status: str,
        stage: str,
        outcome: Outcome | None = None,
        message: str = "",
        kind: str = "",
    ) -> Record:
        error: dict[str, Any] | None = None
        if message:
            error = {"type": kind or "error", "message": message, "line": None}
        elif outcome is not None and outcome.error:
            error = {name: outcome.error.get(name) for name in ("type", "message", "file", "line")}
            place = last_place(outcome.stderr)
            if place and error.get("line") is None:
                error["file"], error["line"] = place
        env = dict(self.env)
        if outcome is not None and outcome.node:
            env["node"] = outcome.node
        more = {"stage": stage, "place": config.place, "at": round(time.time(), 3), "source": self.case.digest()}
        if outcome is not None:
            more["seconds"] = round(outcome.seconds, 3)
        again = command_line.again("tune", self.case, problem, "--fresh", config=config.choice.config)
        return Record(
            "tune",
            key,
            self.case.name,
            dict(problem),
            config.choice.config,
            status,
            protocol=stage,
            env=env,
            error=error,
            again=again,
            more=more,
        )


def job_env(on_gpu: bool) -> dict[str, str]:
    """Return the environment variables of workers that time."""
    # Dry runs cache code with line information; the same option here avoids a second compilation.
    own = {"CUTE_DSL_LINEINFO": "1"} if on_gpu else {"KILN_TARGET": "cpu"}
    return own | command_line.arch_variable()


def _environment(target: str | None, timing: Runner) -> dict[str, Any]:
    """Return the environment of the machines that time: this one, or those of the runner."""
    here = getattr(timing, "environment", environment)()
    return {**here, "gpu": None, "uuid": None, "driver": None} if target == "cpu" else here


def _device_and_arch(case: Case, settings: Settings, on_gpu: bool) -> tuple[Device, str]:
    """Return the device that estimates are for, and the architecture that dry runs compile for."""
    arch = settings.arch or current.architecture(target=get_target("nvidia")).name
    if case.arch and not settings.arch and not on_gpu and not arch_fits(case.arch, arch):
        arch = re.split(r"[,+ ]", case.arch.strip())[0]  # the kernel's own architecture
    return (current.device() if on_gpu and not settings.arch else device_of(arch)), arch


def compiling(stderr: str) -> bool:
    """Return whether the stack that a worker printed before it ended shows it tracing or compiling."""
    compiler = os.path.join("base_dsl", "dsl.py")
    frames = [(path, function) for path, _, function in _frames(stderr)]
    return any(path.endswith(compiler) and name in ("trace", "compile_module") for path, name in frames)


def last_place(stderr: str) -> tuple[str, int] | None:
    """Return the innermost line of a stack of faulthandler that is neither Kiln's nor Python's own."""
    own = str(Path(__file__).resolve().parents[2])
    for path, line, _ in _frames(stderr):
        if not path.startswith((own, "<")) and f"{os.sep}lib{os.sep}python" not in path:
            return path, line
    return None


def _frames(stderr: str) -> list[tuple[str, int, str]]:
    frames = re.findall(r'^  File "(.+)", line (\d+) in (\S+)', stderr, re.MULTILINE)
    return [(path, int(line), function) for path, line, function in frames]


def skip(case: Case, problems: Sequence[Mapping[str, object]], why: str) -> None:
    """Record that a Case cannot be tuned here."""
    env = environment()
    for problem in problems:
        key = key_of("tune", case, problem, None, env, "skip/1")
        error = {"type": "Arch", "message": why, "line": None}
        again = command_line.again("tune", case, problem)
        journal_of(case).append(
            Record("tune", key, case.name, dict(problem), None, "skipped", env=env, error=error, again=again)
        )


def local_runners(
    settings: Settings, jobs: int, gpus: Sequence[int | str] | None, memory: int | None
) -> tuple[Runner, Runner]:
    """Return the runners for compiling and for timing: on the CPU target one worker that nothing disturbs."""
    if settings.target == "cpu":
        many = Local(jobs, [], settings.timeout, memory)
        return many, many if jobs == 1 else Local(1, [], settings.timeout, memory)
    one = Local(jobs, gpus, settings.timeout, memory)
    return one, one
