"""`kiln tune`: finds the fastest config of a kernel for a problem and writes it to `tuned.json`.

Configs are validated, compiled without a GPU, ranked by their estimated time, checked and timed one by one, and the
best compared with each other. A config that fails loses nothing but its own time; an interrupted run resumes.
`kiln.tuned(__file__)` reads the file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ... import tunings
from ..._support import notebook
from ..core import command_line, ray_runner, tuned_file, worker_case
from ..core.cases import Case
from ..core.command_line import EXIT
from ..core.contracts import ContractError
from ..core.options import flag, option
from ..core.ray_runner import Ray
from ..core.runners import Local, Runner
from ..core.text import fields_text, near_path
from . import result, tuner
from .result import Tuning
from .tuner import Settings, Tuner

LOST = 0.03
"""The loss of speed of a tuned config at which `--check` fails."""


def tune(
    case: Case,
    problem: Any = None,
    *,
    problems: Sequence[Mapping[str, Any]] | None = None,
    runner: Runner | None = None,
    jobs: int | None = None,
    gpus: Sequence[int | str] | None = None,
    memory: int | None = None,
    report: Any = None,
    **settings: Any,
) -> Tuning:
    """Tune a Case for a problem (a number, fields, or None for the first) or several.

    `settings` are those of `tuner.Settings`. `runner` runs all jobs; the default is workers of this machine.
    """
    asked = Settings(**settings)
    if asked.target is None and os.environ.get("KILN_TARGET") == "cpu":
        asked.target = "cpu"
    asked_problems = list(problems) if problems is not None else [case.problem(problem)]
    if runner is not None:
        return Tuner(case, asked, runner, report=report or _silent).tune(asked_problems)
    with contextlib.ExitStack() as ends:
        if report is None and notebook.is_here():
            report = ends.enter_context(_Progress(quiet=False))
        pair = tuner.local_runners(asked, jobs or os.cpu_count() or 1, gpus, memory)
        for one in dict.fromkeys(pair):
            ends.enter_context(one)
        return Tuner(case, asked, *pair, report=report or _silent).tune(asked_problems)


def _silent(stage: str, done: int, total: int) -> None:
    pass


@command_line.report_errors
def main(argv: Sequence[str]) -> int:
    """Run the verb."""
    args = command_line.parse(make_parser(), argv)
    if args.replay:
        with Local() as runner:
            options = command_line.job_options(args.timeout)
            case = command_line.open_case(args, load=lambda where: worker_case.load(where, runner, **options))
            return _tell(args, result.replay(case, args.together), timed=True)
    target = args.target or os.environ.get("KILN_TARGET")
    settings = Settings(
        args.top,
        args.search,
        args.budget,
        args.timeout,
        args.fresh,
        args.together,
        args.seed,
        "cpu" if target == "cpu" else None,
        args.arch,
        args.predict,
    )
    with contextlib.ExitStack() as ends:
        report = ends.enter_context(_Progress(args.quiet))
        runners = _runners(args, settings)
        for one in dict.fromkeys(runners):
            ends.enter_context(one)
        return _run(args, settings, runners, report)


def _run(args: argparse.Namespace, settings: Settings, runners: tuple[Runner, Runner], report: Any) -> int:
    here = settings.target != "cpu" and (command_line.on_gpu() if not args.ray else bool(_models(runners[1])))
    options = {"needs_gpu": here, "timeout": settings.timeout, "env": tuner.job_env(here)}
    case = command_line.open_case(args, load=lambda where: worker_case.load(where, runners[int(here)], **options))
    problems = command_line.problems(args, case)
    if not case.has_configs and not args.config:
        raise ContractError("there is nothing to tune: the contract has no `configs`", case.file)
    if here and not args.ray and (why := command_line.refused(case)):
        print(f"skipped: {why}", file=sys.stderr)
        tuner.skip(case, problems, why)
        return EXIT.NOT_HERE
    if args.config and args.config != "tuned":
        settings.only = [command_line.config(args, case, problems[0]) or {}]
    if args.check:
        return _check(args, case, problems, settings, runners, report)
    timed = here or settings.target == "cpu"
    status = EXIT.GOOD
    for _ in _models_in_turn(runners[0], settings):
        tuning = Tuner(case, settings, *runners, report=report).tune(problems)
        status = max(status, _tell(args, tuning, timed))
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.arguments("kiln tune", "Find the fastest config for a problem, and write it to tuned.json.")
    how = parser.add_argument_group("how to tune")
    option(how, "--top N", "measure the N most promising configs (64)", type=_count, default=64)
    search = "measure all configs in order of rank, or what Optuna proposes (rank)"
    option(how, "--search", search, choices=("rank", "tpe"), default="rank")
    option(how, "--budget TIME", "begin no job after this time: 10m, 90s", type=_seconds)
    longest = "predict configs for at most this time before they are measured (2m); 0 ranks them by the roofline"
    option(how, "--predict TIME", longest, type=_seconds, default=120.0)
    option(how, "--jobs N", "compile this many configs at a time", type=_count, default=os.cpu_count() or 1)
    option(how, "--timeout TIME", "the time a job may take (60s)", type=_seconds, default=60.0)
    option(how, "--memory SIZE", "the host memory a job may take: 4G", type=_bytes)
    option(how, "--gpus N,N", "time on these GPUs (the first)", type=_list)
    option(how, "--ray ADDRESS", "work on a Ray cluster: auto, ray://host:10001, local")
    flag(how, "--ship-kiln", "send this Kiln to nodes of the cluster that have another")
    flag(how, "--fresh", "measure again what the journal has")
    flag(how, "--together", "choose one config for all problems: the best geometric mean")
    flag(how, "--check", "measure the configs in tuned.json; fail if one is more than 3 %% slower")
    flag(how, "--replay", "choose again from the journal; run nothing")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)([smh]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: 90s, 10m, 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([\d.]+)([KMGT]?)i?B?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: 512M, 4G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _runners(args: argparse.Namespace, settings: Settings) -> tuple[Runner, Runner]:
    if not args.ray:
        return tuner.local_runners(settings, args.jobs, args.gpus, args.memory)
    one = ray_runner.of_case(args.ray, args.case, settings.timeout, args.memory, args.ship_kiln)
    return one, one


def _models(runner: Runner) -> list[str]:
    return runner.models if isinstance(runner, Ray) else []


def _models_in_turn(runner: Runner, settings: Settings) -> Iterator[str | None]:
    """Yield every GPU model of a cluster, each of which is tuned by itself; None elsewhere."""
    models = [] if settings.target == "cpu" else _models(runner)
    for model in models or [None]:
        if isinstance(runner, Ray):
            runner.model = model
        yield model


class _Progress(contextlib.AbstractContextManager["_Progress"]):
    """Shows the progress of one stage after another."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._open = contextlib.ExitStack()
        self._done = 0
        self._advance: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if done == 0:
            self._open.close()
            self._advance = self._open.enter_context(command_line.progress(total, stage, self._quiet))
            self._done = 0
        elif done > self._done:
            self._advance(steps=done - self._done)
            self._done = done

    def __exit__(self, *_: object) -> None:
        self._open.close()


# --- what is printed -------------------------------------------------------------------------------------------------


def _tell(args: argparse.Namespace, tuning: Tuning, timed: bool) -> int:
    """Print the result and return the exit status. `timed`: whether there was a device to time on."""
    command_line.write_json(args, tuning.to_json())
    console = command_line.console(args)
    good = bool(tuning.decisions)
    if not args.quiet or not good:
        console.print(str(tuning))
    if good:
        if not args.quiet and not args.config:
            what = "predicted choices, not measured, are in" if tuning.predicted else "written to"
            console.print(f"{what} {near_path(tuned_file.path_of(tuning.case))}")
        return EXIT.GOOD
    if not timed and tuning.counts()["ranked"]:
        ranked = "There is no GPU: configs were compiled and ranked, not measured."
        print(f"{ranked} --target cpu times on the CPU.", file=sys.stderr)
        return EXIT.NOT_HERE
    print("no config was measured" if tuning.stopped else "no config works", file=sys.stderr)
    return EXIT.FAILED


# --- checking --------------------------------------------------------------------------------------------------------


def _check(
    args: argparse.Namespace,
    case: Case,
    problems: Sequence[Mapping[str, object]],
    settings: Settings,
    runners: tuple[Runner, Runner],
    report: Any,
) -> int:
    """Measure the configs of `tuned.json` again; fail if one became slower."""
    console = command_line.console(args)
    lost = False
    for problem in problems:
        settings.fresh = True
        measuring = Tuner(case, settings, *runners, report=report)
        if not measuring.times:
            print("There is no GPU: nothing can be measured. --target cpu measures on the CPU.", file=sys.stderr)
            return EXIT.NOT_HERE
        entry = tuned_file.entry_of(case, str(measuring.env["gpu"] or "cpu"), problem)
        if entry is None:
            console.print(f"{fields_text(problem)}: not in {tunings.FILE}; write `kiln tune {case.where}`")
            lost = True
            continue
        settings.only = [entry["config"]]
        (record,) = measuring.states(problem).values()
        before = entry["us"][1]
        if record.status != "ok" or not record.us:
            message = (record.error or {}).get("message", "")
            console.print(f"{fields_text(problem)}: {record.status}: {message}")
            lost = True
            continue
        ratio = record.us[1] / before
        bad = record.us[0] > (1 + LOST) * before
        lost |= bad
        said = f"slower by {ratio - 1:.1%}" if bad else f"{ratio:.3f} times that"
        console.print(f"{fields_text(problem)}: {record.us[1]:.2f} us, tuned {before:.2f} us: {said}")
    return EXIT.FAILED if lost else EXIT.GOOD
