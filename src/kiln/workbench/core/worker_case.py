"""A Case whose code runs in workers alone: the process that keeps the journal knows what the contract says, and imports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import cases, source_closure
from .contracts import ContractError
from .runners import Job, Outcome, Runner

_FACTS = ("name", "where", "file", "arch", "tolerance", "mutates", "aliases", "nondeterministic", "streams")


def facts(where: str) -> dict[str, Any]:
    """A job: what a contract says of itself, as JSON. It is loaded anew."""
    from ..verify.jobs import opened

    case, _ = opened(where, anew=True)
    found = {name: getattr(case, name) for name in _FACTS}
    found["mutates"] = case.mutates if isinstance(case.mutates, bool) else list(case.mutates)
    return found | {"problems": case.problems, "baselines": list(case.baselines), "has_configs": case.has_configs}


def choices(where: str, problem: dict[str, Any]) -> list[Any]:
    """A job: the configs of a problem, with what speaks against each."""
    from ..verify.jobs import opened

    return [[each.config, list(each.reasons)] for each in opened(where)[0].configs(problem)]


def work(where: str, problem: dict[str, Any]) -> tuple[float, float] | None:
    """A job: flops and bytes of a problem."""
    from ..verify.jobs import opened

    return opened(where)[0].flops_bytes(problem)


class DistantCase(cases.Case):
    """What a worker said of a Case. Its functions cannot be called here; jobs load `where`."""

    def __init__(self, said: Mapping[str, Any], runner: Runner, options: Mapping[str, Any]) -> None:
        for name in _FACTS:
            setattr(self, name, said[name])
        self.problems = [cases.Problem(each) for each in said["problems"]]
        self.baselines = dict.fromkeys(said["baselines"], self._elsewhere)
        self.sources = source_closure.source_files(Path(said["file"])) if said["file"] else {}
        self.runner = runner
        """Has a worker that has loaded it."""
        self._has_configs, self._options = said["has_configs"], options
        self._names, self._of_plan = {}, False

    @property
    def has_configs(self) -> bool:
        """Whether there is anything to choose."""
        return self._has_configs

    def configs(self, problem: Mapping[str, Any]) -> list[cases.Choice]:
        """As the worker says."""
        return [cases.Choice(config, tuple(reasons), config) for config, reasons in self._ask("choices", problem)]

    def reasons(self, config: Mapping[str, Any], problem: Mapping[str, Any]) -> list[str]:
        """As the worker says; nothing speaks against what is not listed."""
        return next((list(each.reasons) for each in self.configs(problem) if each.config == config), [])

    def flops_bytes(self, problem: Mapping[str, Any]) -> tuple[float, float] | None:
        """As the worker says."""
        found = self._ask("work", problem)
        return (found[0], found[1]) if found else None

    def _ask(self, function: str, problem: Mapping[str, Any]) -> Any:
        job = Job(f"{__name__}:{function}", {"where": self.where, "problem": dict(problem)}, **self._options)
        return result_of(self.runner, job)

    def _elsewhere(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.name} is not loaded in this process: it runs in workers (cases.load loads it)")

    inputs = kernel = bound = reference = oracle = perf_model = _elsewhere  # pyright: ignore[reportAssignmentType]


def load(where: str, runner: Runner, **options: Any) -> DistantCase:
    """A Case, loaded in a worker of the runner; `options` are those of the jobs."""
    return DistantCase(result_of(runner, Job(f"{__name__}:facts", {"where": where}, **options)), runner, options)


def result_of(runner: Runner, job: Job) -> Any:
    """What one job gives that has to succeed; ContractError if it does not."""
    [outcome] = runner.run([job])
    raise_bad_contract(outcome)
    if outcome.status != "ok":
        printed = "".join(f"\n    {line}" for line in outcome.stderr.strip().splitlines()[-8:])
        message = (outcome.error or {}).get("message", outcome.status)
        raise ContractError(f"{job.arguments['where']} cannot be imported ({outcome.status}): {message}{printed}")
    return outcome.result


def raise_bad_contract(outcome: Outcome) -> None:
    """Raise here what was wrong with a contract there."""
    error = outcome.error or {}
    if outcome.status == "error" and error.get("type") == "ContractError":
        raise ContractError(error["message"], error.get("file"), error.get("line"))
