"""A Case that runs in workers only: the process that keeps the journal knows its declarations and imports nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import cases, source_closure
from .contracts import ContractError
from .opened_case import opened
from .runners import Job, Outcome, Runner
from .text import printed

_DECLARATIONS = ("name", "where", "file", "arch", "tolerance", "mutates", "aliases", "nondeterministic", "streams")


def declarations(where: str) -> dict[str, Any]:
    """Return, as a job, what a contract declares, as JSON. The contract is loaded anew."""
    case, _ = opened(where, anew=True)
    declared = {name: getattr(case, name) for name in _DECLARATIONS}
    declared["mutates"] = case.mutates if isinstance(case.mutates, bool) else list(case.mutates)
    return declared | {"problems": case.problems, "baselines": list(case.baselines), "has_configs": case.has_configs}


def configs(where: str, problem: Mapping[str, object]) -> list[Any]:
    """Return, as a job, the configs of a problem, each with the reasons against it."""
    return [[choice.config, list(choice.reasons)] for choice in opened(where)[0].configs(problem)]


def work(where: str, problem: Mapping[str, object]) -> tuple[float, float] | None:
    """Return, as a job, the FLOPs and bytes of a problem."""
    return opened(where)[0].flops_bytes(problem)


class WorkerCase(cases.Case):
    """A Case as a worker described it. Its functions cannot be called here; jobs load it by `where`."""

    def __init__(self, declared: Mapping[str, Any], runner: Runner, options: Mapping[str, Any]) -> None:
        for name in _DECLARATIONS:
            setattr(self, name, declared[name])
        self.problems: list[cases.Problem] = [cases.Problem(problem) for problem in declared["problems"]]
        self.baselines: dict[str, Callable[..., Any]] = dict.fromkeys(declared["baselines"], self._not_loaded)
        self.sources: dict[Path, bytes] = (
            source_closure.source_files(Path(declared["file"])) if declared["file"] else {}
        )
        self.runner = runner
        """The runner whose worker has loaded it."""
        self._has_configs = declared["has_configs"]
        self._options = options
        self._names = {}
        self._of_plan = False

    @property
    def has_configs(self) -> bool:
        """Whether the contract has configs to choose from."""
        return self._has_configs

    def configs(self, problem: Mapping[str, object]) -> list[cases.Choice]:
        """Return the configs that the worker lists."""
        return [cases.Choice(config, tuple(reasons), config) for config, reasons in self._ask("configs", problem)]

    def reasons(self, config: Mapping[str, object], problem: Mapping[str, object]) -> list[str]:
        """Return the worker's reasons against a config; none for a config that is not listed."""
        return next((list(choice.reasons) for choice in self.configs(problem) if choice.config == config), [])

    def flops_bytes(self, problem: Mapping[str, object]) -> tuple[float, float] | None:
        """Return the FLOPs and bytes that the worker computes."""
        answer = self._ask("work", problem)
        return (answer[0], answer[1]) if answer else None

    def _ask(self, function: str, problem: Mapping[str, object]) -> Any:
        job = Job(f"{__name__}:{function}", {"where": self.where, "problem": dict(problem)}, **self._options)
        return result_of(self.runner, job)

    def _not_loaded(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.name} is not loaded in this process: it runs in workers (kiln.workbench.load loads it)")

    inputs = kernel = bound = reference = oracle = perf_model = _not_loaded  # pyright: ignore[reportAssignmentType]


def load(where: str, runner: Runner, **options: Any) -> WorkerCase:
    """Load a Case in a worker of the runner; `options` are those of its jobs."""
    return WorkerCase(result_of(runner, Job(f"{__name__}:declarations", {"where": where}, **options)), runner, options)


def result_of(runner: Runner, job: Job) -> Any:
    """Run a job that has to succeed and return its result; raise ContractError otherwise."""
    [outcome] = runner.run([job])
    raise_bad_contract(outcome)
    if outcome.status != "ok":
        said = "".join(f"\n    {line}" for line in printed(outcome.stderr, 8))
        message = (outcome.error or {}).get("message", outcome.status)
        where = job.arguments["where"]
        if outcome.status == "timeout":  # a busy machine is a more frequent cause than the file
            busy = f"{os.getloadavg()[0]:.0f} processes want the {os.cpu_count()} cores of this machine"
            raise ContractError(f"{where} was not loaded: {message}; {busy}{said}")
        raise ContractError(f"{where} cannot be imported ({outcome.status}): {message}{said}")
    return outcome.result


def raise_bad_contract(outcome: Outcome) -> None:
    """Raise the ContractError that a job ended with, if it did."""
    error = outcome.error or {}
    if outcome.status == "error" and error.get("type") == "ContractError":
        raise ContractError(error["message"], error.get("file"), error.get("line"))
