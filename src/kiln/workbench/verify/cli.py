"""`kiln verify CASE`: checks whether a kernel is right.

Each problem is checked on several kinds of data, with odd extents, other strides and shifted addresses, for
determinism and against self-deception, and on the CPU target under the sanitizer. All of it runs in workers
(runners.py).
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._support import notebook
from ...base_dsl.target import get_target
from ...hardware import current
from ..core import command_line, opened_case, ray_runner, worker_case
from ..core.cases import Case, Problem, key_of
from ..core.command_line import EXIT
from ..core.contracts import ContractError
from ..core.environment import environment
from ..core.loading import load
from ..core.options import flag, option
from ..core.records import Record, journal_of
from ..core.runners import Inline, Job, Local, Outcome, Runner
from ..core.worker_case import raise_bad_contract
from ..profile import ncu
from . import jobs as verify_jobs
from .check import FATAL, KINDS, LAYOUTS, Check, CheckedProblem, Result
from .verdicts import Verdict, first_line

QUICK = ("normal", "integers")
PROTOCOL = "verify/1"
MAX_ELEMENTS = 1 << 18
MAX_ON_GPU = 1 << 27
"""The most elements of inputs: a check keeps copies of the inputs, and the results in fp64."""
TIMEOUT = 120.0
MOST_FATAL = 2
"""The number of checks that end their worker after which the others are skipped."""


# Checking


@dataclass
class Options:
    """The options of checking a Case."""

    kinds: Sequence[str] = tuple(KINDS)
    seeds: Sequence[int] = (0, 1, 2)
    config: dict[str, Any] | None = None
    tolerance: dict[str, float] | None = None
    max_elements: int | None = None
    """None means `MAX_ELEMENTS` on the CPU target, `MAX_ON_GPU` on a GPU."""
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ContractError(f"there is no kind of check {unknown[0]!r}; there are: {', '.join(KINDS)}")


def verify(
    case: object,
    problems: object = "all",
    seeds: int | Sequence[int] = 3,
    kinds: Iterable[str] | None = None,
    config: Any = None,
    tolerance: dict[str, float] | None = None,
    runner: Runner | None = None,
    quick: bool = False,
    quiet: bool | None = None,
    record: bool = True,
    **more: Any,
) -> Verdict:
    """Check a Case on problems: "all", a number, one problem or a list of them. Records go to its journal.

    Unless `quiet`, progress is shown; by default in notebooks only.
    """
    case = load(case)
    quiet = not notebook.is_here() if quiet is None else quiet
    seeds = [0] if quick else list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    kinds = tuple(kinds or (QUICK if quick else KINDS))
    if tolerance is not None:  # rtol and atol are about finite numbers
        kinds = tuple(kind for kind in kinds if kind != "special") if set(kinds) == set(KINDS) else kinds
    options = Options(kinds, seeds, config, tolerance, **more)
    verdict = Verdict(case, _where_it_runs())
    reason = command_line.refused(case)
    if reason:
        verdict.skipped = reason
        return verdict
    own = runner is None
    # No worker can load a Case that a notebook or a program defines.
    runner = runner or (Inline() if case.where.startswith("__main__:") else Local(timeout=options.timeout))
    try:
        _run(case, _problems(case, problems), options, runner, verdict, quiet)
    finally:
        if own:
            runner.close()
    if record:
        _record(case, verdict, options)
    return verdict


def _problems(case: Case, asked: Any) -> list[Problem]:
    if asked == "all":
        return case.problems
    if isinstance(asked, (list, tuple)):
        return [case.problem(each) for each in asked]
    return [case.problem(asked)]


def _where_it_runs() -> str:
    name = current.architecture().name
    return f"{current.device().name}, {name}" if command_line.on_gpu() else f"CPU target, {name}"


def _run(
    case: Case, problems: Sequence[Problem], options: Options, runner: Runner, verdict: Verdict, quiet: bool
) -> None:
    if isinstance(runner, Inline) and not isinstance(case, worker_case.WorkerCase):
        opened_case.use(case)
    on_gpu = command_line.on_gpu()
    common = _common(options.timeout)
    limit = options.max_elements or (MAX_ON_GPU if on_gpu else MAX_ELEMENTS)
    checks: list[Check] = []
    arguments = [{"where": case.where, "problem": dict(each), "max_elements": limit} for each in problems]
    with command_line.progress(len(arguments), f"verify {case.name}, problems", quiet) as step:
        for outcome in runner.run(Job(f"{verify_jobs.__name__}:describe", each, **common) for each in arguments):
            step()
            raise_bad_contract(outcome)
            if outcome.status != "ok":
                problem = outcome.job.arguments["problem"]
                check = Check(case.where, "normal", problem, problem, 0, "", options.config, options.tolerance)
                verdict.checks.append(_result(case, check, outcome))
                continue
            checked = CheckedProblem(**outcome.result)
            asked = next(each for each in problems if dict(each) == outcome.job.arguments["problem"])
            same = any(each.problem == checked.problem for _, each in verdict.problems)
            verdict.problems.append((asked, checked))
            if not same:  # two problems that were made smaller are one
                verdict.checks += _left_out(case, checked, options)
                checks += _checks_of(case, checked, options, on_gpu)
    verdict.problems.sort(key=lambda each: problems.index(each[0]))
    jobs = [Job(f"{verify_jobs.__name__}:run", each.to_json(), tag=each, **common) for each in checks]
    with command_line.progress(len(jobs), f"verify {case.name}", quiet) as step:
        verdict.checks += _checked(case, jobs, runner, step)


def _checked(case: Case, jobs: list[Job], runner: Runner, step: Callable[..., None]) -> list[Result]:
    """Run checks and return their results, in order."""
    done: dict[int, Result] = {}
    order = {id(job.tag): number for number, job in enumerate(jobs)}
    fatal: list[str] = []

    def until_fatal() -> Iterator[Job]:
        for number, job in enumerate(jobs):
            if len(fatal) < MOST_FATAL or job.tag.kind == "sanitizer":  # it tells the reason
                yield job
                continue
            # Each would end another worker, or take all of its time.
            text = f"{MOST_FATAL} checks before ended by {', '.join(dict.fromkeys(fatal))}"
            done[number] = job.tag.result("skipped", text)

    for outcome in runner.run(until_fatal()):
        check: Check = outcome.job.tag
        step(f"{check.kind} {check.variant}".strip())
        if check.kind == "normal":
            raise_bad_contract(outcome)
        result = _result(case, check, outcome)
        done[order[id(check)]] = result
        fatal += [result.status] if result.status in FATAL else []
    return [done[number] for number in sorted(done)]


def _common(timeout: float) -> dict[str, Any]:
    """Return the options that all jobs have in common."""
    return {"needs_gpu": command_line.on_gpu(), "timeout": timeout, "env": _environment(timeout)}


def _environment(timeout: float) -> dict[str, str]:
    # Its own timeout comes first: it reports where each warp of an endless kernel is.
    patience = os.environ.get("KILN_CPU_TIMEOUT") or f"{timeout / 2:g}"
    return {"KILN_TARGET": get_target().name, "KILN_CPU_TIMEOUT": patience, **command_line.arch_variable()}


def _checks_of(case: Case, checked: CheckedProblem, options: Options, on_gpu: bool) -> list[Check]:
    """Return the checks of one problem."""
    base = checked.problem
    checks: list[Check] = []
    once = {
        "deterministic": not case.nondeterministic,
        "streams": on_gpu and not case.streams,
        "sanitizer": not on_gpu,
        "repeated": True,
    }

    def add(kind: str, variant: str = "", seed: int = options.seeds[0], **fields: int) -> None:
        problem = {**base, **fields}
        checks.append(Check(case.where, kind, problem, base, seed, variant, options.config, options.tolerance))

    for kind in options.kinds:
        if kind == "odd":
            for name in checked.extents:
                size = base[name]
                for variant, value in ((f"{name}+1", size + 1), (f"{name}-1", size - 1), (f"{name}=1", 1)):
                    if value > 0 and value != size and (variant[-2:] != "=1" or size > 2):
                        add(kind, variant, **{name: value})
        elif kind in LAYOUTS:
            for layout in LAYOUTS[kind]:
                add(kind, "" if layout == kind else layout)
        elif kind in once:
            if once[kind]:
                add(kind)
            if kind == "sanitizer" and once[kind]:  # what is wrong at the edges shows where tiles stick out
                for name in checked.extents:
                    add(kind, f"{name}+1", **{name: base[name] + 1})
        else:
            for seed in options.seeds:
                add(kind, seed=seed)
    return checks


def _left_out(case: Case, checked: CheckedProblem, options: Options) -> list[Result]:
    """Return results for the kinds of checks that the contract or an option excludes."""
    reasons: dict[str, str] = {}
    if "odd" in options.kinds and not checked.extents:
        reasons["odd"] = "get_inputs takes no sizes: give it parameters, as in get_inputs(m=1024, n=512)"
    if options.tolerance is not None and "special" not in options.kinds and "wide" in options.kinds:
        reasons["special"] = "rtol and atol are about finite numbers; --kinds=special compares patterns of NaN"
    problem = checked.problem
    return [Check(case.where, kind, problem, problem).result("skipped", text) for kind, text in reasons.items()]


def _result(case: Case, check: Check, outcome: Outcome) -> Result:
    """Return an outcome as the result of a check."""
    result = Result(**outcome.result) if outcome.status == "ok" else _without_result(check, outcome)
    result.seconds = outcome.seconds
    result.stderr = outcome.stderr
    words = [f"--kinds={'normal' if check.kind == 'odd' else check.kind}", f"--seed={check.seed}"]
    if check.tolerance is not None:
        words += [f"--rtol={check.tolerance['rtol']}", f"--atol={check.tolerance['atol']}"]
    result.again = command_line.again("verify", case, check.problem, *words, config=check.config)
    if result.status == "device_error" and command_line.on_gpu():
        result.notes = [*result.notes, "with --compute-sanitizer, NVIDIA's sanitizer says which access it was"]
    return result


def _without_result(check: Check, outcome: Outcome) -> Result:
    """Return the result of a check whose worker ended or failed."""
    error = outcome.error or {}
    message = error.get("message", "")
    is_contract = error.get("type") == "ContractError"
    if is_contract and check.kind != "normal":
        return check.result("skipped", message)
    text = message if outcome.status != "error" else f"{error.get('type')}: {message}"
    return check.result(outcome.status, text, raised=error if error.get("traceback") else None)


def _record(case: Case, verdict: Verdict, options: Options) -> None:
    """Write a Record for each problem, and one for each check that failed."""
    journal = journal_of(case)
    env = environment()
    whole = set(options.kinds) >= set(QUICK)
    for asked, checked in verdict.problems:
        mine = [check for check in verdict.checks if check.base == checked.problem]
        for each in [check for check in mine if not check.ok]:
            protocol = f"{PROTOCOL}:{each.kind}:{each.variant}:{each.seed}"
            key = key_of("verify", case, each.problem, options.config, env, protocol)
            journal.append(_record_of(case, key, each.problem, options, env, each.status, each))
        if whole and mine:
            bad = next((check for check in mine if not check.ok), None)
            key = key_of("verify", case, asked, options.config, env, PROTOCOL)
            more = {"checks": len(mine), "checked": checked.problem}  # it may have been shrunk
            journal.append(_record_of(case, key, asked, options, env, bad.status if bad else "ok", bad, **more))


def _record_of(
    case: Case,
    key: str,
    problem: Mapping[str, Any],
    options: Options,
    env: dict[str, Any],
    status: str,
    check: Result | None,
    **more: Any,
) -> Record:
    error = {"type": check.kind, "message": check.message, "line": (check.raised or {}).get("line")} if check else None
    again = check.again if check else command_line.again("verify", case, problem, config=options.config)
    about = {"variant": check.variant, "seed": check.seed, "output": check.output} if check else {}
    return Record(
        "verify",
        key,
        case.name,
        dict(problem),
        options.config,
        status,
        protocol=PROTOCOL,
        env=env,
        error=error,
        again=again,
        more={**about, **more, "source": case.digest()},
    )


def verified(case: Case, problem: Mapping[str, Any], config: Any = None) -> Record | None:
    """Return the last Record of verifying a problem with the present sources; None if there is none."""
    key = key_of("verify", case, problem, config, environment(), PROTOCOL)
    return journal_of(case).by_key().get(key)


# For pytest


class ProblemCheck:
    """One kind of check of one problem, for `pytest.mark.parametrize`: `run` fails as an assertion does."""

    def __init__(self, case: Case, problem: Problem, kind: str) -> None:
        self.case = case
        self.problem = problem
        self.kind = kind

    def __str__(self) -> str:
        fields = "-".join(str(value) for value in self.problem.values())
        return f"{self.kind}-{fields}" if fields else self.kind

    __repr__ = __str__

    def run(self, runner: Runner | None = None) -> None:
        """Run the check in a worker that all checks of this process share; skip what the kernel refuses."""
        verdict = verify(self.case, [self.problem], kinds=[self.kind], runner=runner or _shared(), record=False)
        if verdict.failures:
            raise AssertionError(verdict.failures[0].report())
        if not verdict.ok:
            import pytest

            texts = [check.message for check in verdict.checks] or [verdict.skipped or KINDS[self.kind]]
            pytest.skip(first_line(texts[0]))


_runner: Local | None = None


def _shared() -> Local:
    global _runner
    if _runner is None:
        _runner = Local(timeout=TIMEOUT)
        atexit.register(_runner.close)
    return _runner


def checks(case: object, kinds: Iterable[str] = tuple(KINDS)) -> list[ProblemCheck]:
    """Return the checks of all problems of a Case: `@pytest.mark.parametrize("check", case.checks(), ids=str)`."""
    case = load(case)
    gpu_only = () if command_line.on_gpu() else ("streams",)
    return [ProblemCheck(case, problem, kind) for problem in case.problems for kind in kinds if kind not in gpu_only]


# The command


@command_line.report_errors
def main(argv: Sequence[str]) -> int:
    parser = make_parser()
    args = command_line.parse(parser, argv)
    runner = make_runner(args)
    with runner:
        # A cluster has a copy of the project, so the contract is read here.
        there = None if args.ray else lambda where: worker_case.load(where, runner, **_common(args.timeout))
        case = command_line.open_case(args, load=there)
        verdicts = _verdicts(args, case, runner)
        checked = [each.problem for _, each in verdicts[0].problems]
        config = command_line.config(args, case, checked[0]) if checked else None
    out = command_line.console(args)
    for verdict in verdicts:
        verdict.print(out, args.quiet)
    results = [each.to_json() for each in verdicts]
    command_line.write_json(args, results[0] if len(results) == 1 else results)
    status = max(verdict.exit_status for verdict in verdicts)
    if args.compute_sanitizer and not status and checked:
        job = {"where": case.where, "problem": checked[0], "config": config, "seed": args.seed}
        status = _compute_sanitizer(job, args.timeout, out)
    return status


def _verdicts(args: argparse.Namespace, case: Case, runner: Runner) -> list[Verdict]:
    problems = command_line.problems(args, case, default="0" if args.fields else "all")
    if (args.rtol is None) != (args.atol is None):
        args.rtol = args.rtol or 0.0
        args.atol = args.atol or 0.0
    options: dict[str, Any] = {
        "seeds": [args.seed] if args.quick or args.kinds else [args.seed + number for number in range(args.seeds)],
        "kinds": [kind.strip() for kind in args.kinds.split(",")] if args.kinds else None,
        "quick": args.quick,
        "quiet": args.quiet,
        "config": command_line.config(args, case, problems[0]),
        "tolerance": {"rtol": args.rtol, "atol": args.atol} if args.rtol is not None else None,
        "max_elements": args.max_elements,
        "timeout": args.timeout,
        "runner": runner,
    }
    verdicts = [verify(case, problems, **options)]
    if args.also == "cpu" and command_line.on_gpu():
        os.environ["KILN_TARGET"] = "cpu"
        verdicts.append(verify(case, problems, **options))
    return verdicts


def make_runner(args: argparse.Namespace) -> Runner:
    """Return the runner for checks: workers of this machine, or a cluster."""
    if args.ray:
        return ray_runner.of_case(args.ray, args.case, args.timeout)
    return Local(timeout=args.timeout)


def _compute_sanitizer(job: Mapping[str, object], timeout: float, out: Any) -> int:
    """Run the kernel once more under NVIDIA's compute-sanitizer, in a call of its own since that slows everything."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None or not command_line.on_gpu():
        out.print("compute-sanitizer: " + ("it is not on PATH" if tool is None else "there is no GPU"))
        return EXIT.NOT_HERE
    try:
        # Errors that the driver returns to Kiln's own queries, such as a missing context, are not the kernel's.
        said, status = ncu.ended([tool, "--report-api-errors", "no", "--error-exitcode", "9"], job, timeout, calls=0)
    except ncu.CannotProfile as reason:
        out.print(f"compute-sanitizer: {reason}")
        return EXIT.NOT_HERE
    out.print(said.strip() if status else "compute-sanitizer: no errors")
    if status and ncu.NO_GPU in said:
        return EXIT.NOT_HERE
    return EXIT.FAILED if status else EXIT.GOOD


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.arguments(
        "kiln verify",
        "Check a kernel against its reference: several kinds of data, odd extents, other strides, determinism, "
        "self-deception, and without a GPU races and bounds, on the CPU target.",
    )
    group = parser.add_argument_group("what to check")
    option(group, "--kinds LIST", f"some of {', '.join(KINDS)}, with commas between them; with one seed each")
    flag(group, "--quick", f"only {' and '.join(QUICK)}, with one seed")
    option(group, "--seeds N", "how many seeds (3)", type=int, default=3)
    option(group, "--rtol", "compare as torch.testing.assert_close does, finite numbers only", type=float)
    option(group, "--atol", "the absolute tolerance of such a comparison", type=float)
    most = f"the most elements of inputs; larger problems are shrunk ({MAX_ELEMENTS}, on a GPU {MAX_ON_GPU})"
    option(group, "--max-elements N", most, type=int)
    option(group, "--also", "on a GPU: check on the CPU target, too, with its sanitizer", choices=("cpu",))
    flag(group, "--compute-sanitizer", "on a GPU: run once under NVIDIA's sanitizer")
    option(group, "--timeout S", "seconds for one check", type=float, default=TIMEOUT)
    option(group, "--ray ADDRESS", "work on a Ray cluster: auto, ray://host:10001, local")
    return parser
