"""`kiln bench`: times a kernel beside its baselines, in one run.

Candidates take turns in workers; ratios are of times of the same round. Everything is written to the journal.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._support import notebook
from ...base_dsl.diagnostics import DSLWarning
from ...clock import known
from ...hardware import current, driver, nvml
from ...hardware.devices import Model
from ...measure import clocks
from ...measure.comparison import ROUNDS, Comparison, in_rounds
from ...measure.measurement import Measurement
from .. import devices
from ..core import command_line, tuned_file, worker_case
from ..core.cases import Case, key_of
from ..core.command_line import EXIT
from ..core.contracts import ContractError
from ..core.environment import environment
from ..core.loading import load
from ..core.options import flag, option
from ..core.records import Record, journal_of
from ..core.runners import Job, Local, Outcome, Runner
from ..core.text import fields_text, table
from ..profile import predicting
from ..profile.clock_profile import ClockProfile
from ..profile.ncu import CannotProfile
from ..verify import cli as verify
from ..verify.cheating import CHECKS
from ..verify.verdicts import Verdict
from . import jobs
from .jobs import KERNEL, PEERS

_TIMEOUT = 300.0
"""Seconds for a job that compiles or measures."""
_IMPORT_TIMEOUT = 120.0
PREDICTION_TIMEOUT = 60.0
"""Seconds for the prediction beside a measurement, which does not wait longer."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to time: the kernel of a Case, its reference or a baseline."""

    name: str
    case: Case
    what: str
    config: dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The predicted time of a call in microseconds: the low end of its interval, itself, the high end; and by which version."""

    us: tuple[float, float, float]
    version: str
    device: str

    @staticmethod
    def of(profile: ClockProfile, steady: bool) -> Predicted:
        """Return the time of all kernels, at the clock that the GPU holds for long if it is `steady`."""
        times = [each["sustained" if steady else "burst"] for each in profile.predictions]
        low, us, high = (sum(each[name] for each in times) for name in ("low", "us", "high"))
        return Predicted((low, us, high), profile.extra["clock"]["version"], profile.predictions[0]["device"])

    def __str__(self) -> str:
        low, us, high = map(_us, self.us)
        return f"predicted {us} us [{low}, {high}]"


@dataclasses.dataclass(frozen=True)
class Benched:
    """The times of a Case, a Problem and its candidates."""

    case: Case
    problem: dict[str, Any]
    config: dict[str, Any] | None
    comparison: Comparison | None
    """None if the kernel, the first candidate, could not be timed."""
    failed: dict[str, dict[str, Any]]
    """`status` and `message` of what could not be timed, by name."""
    dtype: str | None
    work: tuple[float, float] | None
    """FLOPs and bytes."""
    model: Model | None
    predicted: Predicted | None = None
    """What the clock predicts, if it knows the GPU."""

    def rates(self, measurement: Measurement) -> dict[str, float]:
        """Return `tflops`, `tbs` and `roofline` (the fraction of the peak), as far as they are known."""
        if self.work is None or not measurement.us or measurement.protocol == "cpu-wall":
            return {}
        flops, size = self.work
        rates_ = {"tflops": flops / measurement.us / 1e6, "tbs": size / measurement.us / 1e6}
        least = self.model and self.model.least_us(flops, size, self.dtype)
        if least:
            rates_["roofline"] = least / measurement.us
        return rates_


def bench(
    case: Any,
    problem: Any = None,
    against: Sequence[str] = ("reference",),
    config: Any = None,
    *,
    runner: Runner | None = None,
    **options: Any,
) -> Comparison:
    """Time a Case's kernel, the first of the Comparison, beside others. Options: l2, steady, rounds, seed."""
    case = load(case)
    if not command_line.on_gpu() and not command_line.asked_for_cpu():
        text = "bench() times the CPU target, for there is no GPU: this says nothing about one"
        warnings.warn(f"{text}. KILN_TARGET=cpu says that it is meant", DSLWarning, stacklevel=2)
    if config == "tuned":
        config = tuned_file.tuned_config(case, case.problem(problem))
    candidates = [Candidate(KERNEL, case, KERNEL, config), *peers(case, against, config)]
    with command_line.progress(None, case.name, quiet=not notebook.is_here()) as advance:
        benched = timed(candidates, case.problem(problem), runner=runner, **{"progress": advance, **options})
    if benched.comparison is None:
        raise RuntimeError(f"{case.name} could not be timed: {benched.failed[KERNEL]['message']}")
    return benched.comparison


def peers(case: Case, names: Sequence[str], config: Any) -> list[Candidate]:
    """Return candidates to compare a Case with, by name; "all" means the reference and all baselines."""
    peer_names = [*PEERS, *case.baselines]
    each_name = [each for name in names for each in (["reference", *case.baselines] if name == "all" else [name])]
    for name in each_name:
        if name not in peer_names:
            raise ContractError(
                f"--against {name}: {case.name} can be compared with {', '.join([*peer_names, 'all'])}", case.file
            )
    return [Candidate(name, case, name, config) for name in dict.fromkeys(each_name)]


# --- turns -----------------------------------------------------------------------------------------------------------


class _Failed(Exception):
    def __init__(self, name: str, outcome: Outcome) -> None:
        super().__init__(name)
        self.name = name
        self.outcome = outcome
        self.error = outcome.error or {}

    @property
    def worker_ended(self) -> bool:
        """Whether its worker ended, perhaps through another's fault."""
        return self.error.get("type") == jobs.WorkerEnded.__name__

    def described(self) -> dict[str, Any]:
        status = "crash" if self.worker_ended else self.outcome.status
        record_ = {"status": status, **{name: self.error.get(name) for name in ("type", "message", "file", "line")}}
        if status in ("crash", "timeout", "oom"):  # only its output says why
            record_["stderr"] = self.outcome.stderr[-2000:]
        return record_


class _WorkerCandidate:
    """A candidate in a worker, with the interface that `in_rounds` takes."""

    def __init__(self, candidate: Candidate, runner: Runner) -> None:
        self.candidate = candidate
        self._runner = runner
        self.batches: list[list[float]] = []
        self.wrong: str | None = None

    def do(self, function: str, **arguments: object) -> Any:
        name = self.candidate.name
        job = Job(f"{jobs.__name__}:{function}", {"name": name, **arguments}, **command_line.job_options(_TIMEOUT))
        for outcome in self._runner.run([job]):
            if outcome.status == "ok":
                return outcome.result
            worker_case.raise_bad_contract(outcome)
            raise _Failed(name, outcome)
        raise AssertionError("a job without an outcome")

    def warm_up(self) -> None:
        self.do("warm_up")

    def run(self) -> list[float]:
        self.batches.append(self.do("turn"))
        return self.batches[-1]

    def result(self, at_least_us: float = 0.0) -> Measurement:
        answer = self.do("result", at_least_us=at_least_us)
        self.wrong = answer["wrong"]
        return Measurement.from_json(answer["measurement"])


def timed(
    candidates: Sequence[Candidate],
    problem: Mapping[str, object],
    *,
    l2: str = "cold",
    steady: bool = False,
    quick: bool = False,
    rounds: int = ROUNDS,
    seed: int = 0,
    runner: Runner | None = None,
    progress: Any = lambda text="", steps=1: None,
) -> Benched:
    """Time candidates in turns. One that fails is left out, and the others start again; the first is required."""
    first = candidates[0]
    model = current.device().model if command_line.on_gpu() and driver.available() else None
    work = first.case.flops_bytes(problem)
    left = list(candidates)
    failed = dict[str, dict[str, Any]]()
    restarted = False
    dtype: str | None = None
    counted = itertools.count(1)
    shared = {"problem": dict(problem), "seed": seed, "l2": l2, "steady": steady, "quick": quick}
    with _runners(candidates, runner) as runners:
        while left and left[0] is first:
            in_workers = {each.name: _WorkerCandidate(each, runners[each.case.where]) for each in left}
            try:
                for name, each in in_workers.items():
                    progress(f"compiling {name}", 0)
                    one = each.candidate
                    arguments = {"where": one.case.where, "what": one.what, "config": one.config}
                    ready = each.do("prepare", **arguments, **shared, workers=len(runners))
                    dtype = dtype or ready["dtype"]
                least = model and work and model.least_us(*work, dtype, most=True)
                after_each = lambda: progress(f"measured, round {next(counted)}")
                order = {"rounds": rounds, "seed": seed, "after_each": after_each}
                comparison = in_rounds(in_workers, at_least_us=least or 0.0, **order)
            except _Failed as reason:
                if reason.worker_ended and not restarted:
                    restarted = True
                    continue
                failed[reason.name] = reason.described()
                left = [each for each in left if each.name != reason.name]
                continue
            for name, each in in_workers.items():
                if each.wrong:
                    failed[name] = {"status": "cheat", "message": each.wrong}
            return Benched(first.case, dict(problem), first.config, comparison, failed, dtype, work, model)
    return Benched(first.case, dict(problem), first.config, None, failed, dtype, work, model)


@contextlib.contextmanager
def _runners(candidates: Sequence[Candidate], runner: Runner | None) -> Iterator[dict[str, Runner]]:
    """Provide a worker for each Case: two revisions of one module cannot live in a process."""
    with contextlib.ExitStack() as stack:
        runners: dict[str, Runner] = {}
        for where, case in {each.case.where: each.case for each in candidates}.items():
            own = case.runner if isinstance(case, worker_case.WorkerCase) else None
            runners[where] = runner or own or stack.enter_context(Local(jobs=1))
        yield runners


# --- records ---------------------------------------------------------------------------------------------------------


def record(benched: Benched, options: Mapping[str, object]) -> Record:
    """Return the Record of the kernel's time and those of its peers."""
    own = benched.comparison.measurements[KERNEL] if benched.comparison else None
    wrong = benched.failed.get(KERNEL) or ({"type": "Compiled", "message": own.error} if own and own.error else None)
    protocol = (own.protocol if own else "") + (" steady" if options.get("steady") else "")
    env = environment()
    more: dict[str, Any] = {"against": {}, **(benched.rates(own) if own else {}), "source": benched.case.digest()}
    if benched.predicted is not None:
        more |= {"predicted": list(benched.predicted.us), "predicted_by": benched.predicted.version}
    if benched.comparison:
        for name, ratio in benched.comparison.ratios.items():
            peer = benched.comparison.measurements[name]
            more["against"][name] = {
                "us": [peer.low, peer.us, peer.high],
                "ratio": [ratio.low, ratio.median, ratio.high],
                "verdict": benched.comparison.verdicts[name],
                "flags": peer.flags,
                "status": peer.status,
            }
    more["against"] |= {name: why for name, why in benched.failed.items() if name != KERNEL}
    words = [f"--l2={options['l2']}", *(["--steady"] if options.get("steady") else [])]
    return Record(
        "bench",
        key_of("bench", benched.case, benched.problem, benched.config, env, protocol),
        benched.case.name,
        benched.problem,
        benched.config,
        str(benched.failed[KERNEL]["status"]) if KERNEL in benched.failed else own.status if own else "error",
        us=[own.low, own.us, own.high] if own else None,
        n=own.n if own else 0,
        protocol=protocol,
        env=env,
        clock=own.to_json()["clock"] if own else {},
        flags=own.flags if own else [],
        error=wrong,
        again=command_line.again("bench", benched.case, benched.problem, *words, config=benched.config),
        more=more,
    )


# --- the verb --------------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.arguments("kiln bench", "Time a kernel beside its reference and baselines.", several=True)
    how = parser.add_argument_group("how to measure")
    peers = "what to compare with: reference, torch.compile, names of `baselines`, all (the default), or none"
    option(how, "--against NAMES", peers, action="append")
    option(how, "--l2", "the L2 cache before each call (cold)", choices=("cold", "warm", "rotate"), default="cold")
    flag(how, "--steady", "call back to back, without idle time: the speed under sustained load")
    option(how, "--lock base|max|MHZ", "lock the GPU's clock during the run", nargs="?", const="base")
    flag(how, "--strict", "end with exit status 5 if a flag makes the numbers doubtful")
    option(how, "--since REV", "time the kernel of this git revision, too")
    option(how, "--gate RATIO", "fail unless the kernel is this many times as fast as each of the others", type=float)
    flag(how, "--quick", "take fewer samples")
    flag(how, "--no-verify", "do not check results first")
    return parser


@command_line.report_errors
def main(argv: Sequence[str]) -> int:
    args = command_line.parse(make_parser(), argv)
    with contextlib.ExitStack() as workers:

        def there(where: str) -> Case:
            return worker_case.load(
                where, workers.enter_context(Local(jobs=1)), **command_line.job_options(_IMPORT_TIMEOUT)
            )

        first, *others = [command_line.open_case(args, where, load=there) for where in args.case]
        return _run(args, first, others, there)


def _run(args: Any, first: Case, others: list[Case], there: Callable[[str], Case]) -> int:
    here = driver.available() and command_line.on_gpu()
    estimating = not here and not command_line.asked_for_cpu()
    if why := command_line.refused(first):
        print(f"{why}: nothing was measured", file=sys.stderr)
        return EXIT.NOT_HERE
    chosen = command_line.problems(args, first)
    peers(first, _against(args), None)  # reports a misspelt name before anything runs
    unverified = None if args.no_verify else _unverified(first, chosen, args)
    if estimating and (unverified is None or _did_not_finish(unverified)):
        checked = not args.no_verify and unverified is None
        with contextlib.ExitStack() as stack:
            older = [stack.enter_context(revision(first, args.since, there))] if args.since else []
            return _estimate([first, *others, *older], chosen, args, checked)
    if unverified is not None:
        print("It was not timed: it has to be right first (--no-verify times it all the same).", file=sys.stderr)
        return EXIT.FAILED
    printed = list[dict[str, Any]]()
    statuses = list[int]()
    with contextlib.ExitStack() as stack:
        older = stack.enter_context(revision(first, args.since, there)) if args.since else None
        if args.lock:
            stack.enter_context(_locked(args.lock))
        for problem in chosen:
            benched = _with_prediction(_benched(args, first, others, older, problem), args)
            options = {"l2": args.l2, "steady": args.steady}
            entry = record(benched, options)
            journal_of(first).append(entry)
            printed.append(dataclasses.asdict(entry))
            show(benched, args)
            statuses.append(_status(benched, args))
    reached = devices.in_words(devices.ceilings(environment()["uuid"])) if here and not args.quiet else ""
    if reached:
        command_line.console(args).print(f"this GPU reaches: {reached}")
    command_line.write_json(args, printed)
    return max(statuses, key=[EXIT.GOOD, EXIT.UNTRUSTED, EXIT.FAILED].index)


def _against(args: Any) -> list[str]:
    return [name for text in args.against or ["all"] for name in text.split(",") if name != "none"]


def _benched(args: Any, first: Case, others: list[Case], older: Case | None, problem: Mapping[str, Any]) -> Benched:
    config = command_line.config(args, first, problem)
    candidates = [Candidate(KERNEL, first, KERNEL, config)]
    for case in others:
        name = case.name if case.name != first.name else case.where
        candidates.append(Candidate(name, case, KERNEL, command_line.config(args, case, problem)))
    if older is not None:
        candidates.append(Candidate(f"{KERNEL} of {args.since}", older, KERNEL, config))
    candidates += peers(first, _against(args), config)
    with command_line.progress(None, first.name, args.quiet) as advance:
        return timed(
            candidates, problem, l2=args.l2, steady=args.steady, quick=args.quick, seed=args.seed, progress=advance
        )


def _with_prediction(benched: Benched, args: argparse.Namespace) -> Benched:
    """Add what the clock predicts, if it knows this GPU and is done in time."""
    if not benched.comparison or not command_line.on_gpu() or not driver.available():
        return benched
    if known.device_named(driver.device_name(driver.current_device())) is None:
        return benched
    arguments = {"where": benched.case.where, "problem": benched.problem, "config": benched.config, "seed": args.seed}
    with Local(jobs=1, gpus=[]) as runner, command_line.progress(None, "predicting", args.quiet) as progress:
        try:
            answer = predicting.predict(
                benched.case, arguments, runner, PREDICTION_TIMEOUT, cold=args.l2 == "cold", progress=progress
            )
        except CannotProfile:  # the measurement is what was asked for
            return benched
    return dataclasses.replace(benched, predicted=Predicted.of(answer, args.steady))


def _unverified(case: Case, problems: Sequence[Mapping[str, object]], args: Any) -> Verdict | None:
    """Check the results and return the first verdict that is not ok; skip problems that the journal records as ok."""
    records = journal_of(case).by_key()
    env = environment()
    for problem in problems:
        config = command_line.config(args, case, problem)
        before = records.get(key_of("verify", case, problem, config, env, verify.PROTOCOL))
        if before is not None and before.status == "ok":
            continue
        verdict = verify.verify(case, problems=[problem], config=config, quick=True, quiet=args.quiet)
        if not verdict.ok:
            command_line.console(args).print(str(verdict))
            return verdict
    return None


def _did_not_finish(verdict: Verdict) -> bool:
    """Return whether nothing is known to be wrong: the failed checks only ran out of time or memory on this machine."""
    return bool(verdict.failures) and all(check.status in ("timeout", "oom") for check in verdict.failures)


@contextlib.contextmanager
def _locked(clock: str) -> Iterator[None]:
    try:
        with clocks.locked(nvml.Gpu(driver.uuid(0)), clock) as mhz:
            print(f"the clock is locked at {mhz} MHz", file=sys.stderr)
            yield
    except nvml.NvmlError as refused:
        command = devices.by_administrator(driver.uuid(0), "lock", clock) if refused.permission else ""
        hint = f"; an administrator may: {command}" if command else ""
        raise ContractError(f"--lock {clock}: {refused}{hint}") from None


@contextlib.contextmanager
def revision(case: Case, name: str, load: Callable[[str], Case] = load) -> Iterator[Case]:
    """While open, provide the Case as it was at a revision of its git repository, in a temporary folder."""
    if not case.file:
        raise ContractError(f"--since {name}: {case.name} has no file")
    file = Path(case.file).resolve()

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", "-C", str(file.parent), *words], capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ContractError(f"--since {name}: git {words[0]}: {said[-1] if said else 'failed'}")
        return done.stdout

    top = Path(git("rev-parse", "--show-toplevel").decode().strip())
    commit = git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix="kiln-since-") as folder:
        archive = git("-C", str(top), "archive", commit)
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        there = Path(folder) / file.relative_to(top)
        if not there.is_file():
            raise ContractError(f"--since {name}: there was no {file.relative_to(top)} then")
        _, colon, plan = case.where.partition(".py:")
        yield load(f"{there}:{plan}" if colon else str(there))


def _status(benched: Benched, args: Any) -> int:
    if benched.comparison is None or KERNEL in benched.failed:
        return EXIT.FAILED
    own = benched.comparison.measurements[KERNEL]
    if own.error:
        return EXIT.FAILED
    if "too-fast" in own.flags:
        print(f"physics: {CHECKS['physics']}: flops_bytes says too much, or not all was computed", file=sys.stderr)
        return EXIT.FAILED
    if args.gate is not None:
        slow = [name for name, ratio in benched.comparison.ratios.items() if ratio.high < args.gate]
        if slow:
            print(f"--gate {args.gate}: less than {args.gate:g} times as fast as {', '.join(slow)}", file=sys.stderr)
            return EXIT.FAILED
    if args.strict and not all(each.trusted for each in benched.comparison.measurements.values()):
        return EXIT.UNTRUSTED
    return EXIT.GOOD


# --- printing --------------------------------------------------------------------------------------------------------


def _us(value: float) -> str:
    """Format microseconds with four digits, without an exponent."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


_RATES = {"tflops": ".4g", "tbs": ".3g", "roofline": ".0%"}
"""Columns of rates, with their formats."""


def show(benched: Benched, args: Any) -> None:
    """Print the table of a problem."""
    out = command_line.console(args)
    out.print(
        f"{benched.case.name} {fields_text(benched.problem)}{f' config={benched.config}' if benched.config else ''}".strip()
    )
    rows: list[list[str]] = []
    measured = benched.comparison.measurements if benched.comparison else {}
    for name, one in measured.items():
        assert benched.comparison is not None
        rates = benched.rates(one)
        speeds = [f"{rates[what]:{form}}" if what in rates else "" for what, form in _RATES.items()]
        ratio = benched.comparison.ratios.get(name)
        beside = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "1"
        times = ["-", ""] if one.error else [_us(one.us), f"[{_us(one.low)}, {_us(one.high)}]"]
        machine = [f"{value:.0f}" if value else "" for value in (one.clock_mhz, one.watts)]
        flags = ", ".join([one.error, *one.flags] if one.error else one.flags)
        rows.append([name, *times, *speeds, *machine, beside, benched.comparison.verdicts.get(name, ""), flags])
    others = {name: why for name, why in benched.failed.items() if name not in measured}
    rows += [[name, "-", *[""] * 8, f"{why['status']}: {why['message']}"] for name, why in others.items()]
    head = ["", "us", "95 %", "TFLOP/s", "TB/s", "roofline", "MHz", "W", "time / kernel's", "", "flags"]
    used = [at for at in range(len(head)) if at < 2 or any(row[at] for row in rows)]
    left = {number for number, at in enumerate(used) if at in (0, 9, 10)}
    for line in table([[row[at] for at in used] for row in [head, *rows]], left):
        out.print(line)
    for name, why in benched.failed.items():
        for line in why.get("stderr", "").strip().splitlines()[-5:]:
            out.print(f"{name}: {line}")
    own = measured.get(KERNEL)
    if own is not None:
        on_cpu = "the CPU target, by the wall clock: this says nothing about a GPU"
        where = on_cpu if own.protocol == "cpu-wall" else own.protocol
        out.print(f"{own.n} samples, {where}" + (f", floor {own.floor:.2f} us" if own.floor else ""))
        if benched.predicted is not None:
            missed = benched.predicted.us[1] / own.us - 1
            out.print(f"the clock {benched.predicted}: {missed:+.0%} of what was measured")
    if KERNEL in benched.failed and benched.comparison:
        out.print(f"{benched.failed[KERNEL]['status']}: {benched.failed[KERNEL]['message']}")


def _estimate(cases: Sequence[Case], problems: Sequence[Mapping[str, Any]], args: Any, checked: bool) -> int:
    """Print what is known of Cases without a GPU: the roofline and the resources of the kernels.

    `checked`: whether the results of the first Case were checked.
    """
    out = command_line.console(args)
    written: list[dict[str, Any]] = []
    device = current.device()
    model = device.model
    with (
        _runners([Candidate(KERNEL, case, KERNEL, None) for case in cases], None) as runners,
        command_line.progress(len(problems) * len(cases), "compiles", args.quiet) as step,
    ):
        for problem, case in itertools.product(problems, cases):
            config = command_line.config(args, case, problem)
            arguments = {"where": case.where, "problem": dict(problem), "config": config, "seed": args.seed}
            job = Job("kiln.workbench.profile.jobs:static", arguments, **command_line.job_options(_TIMEOUT))
            (outcome,) = runners[case.where].run([job])
            step(case.name, 0)
            text = fields_text(problem)
            if outcome.status != "ok":
                out.print(f"{case.name} {text}: {outcome.status}: {(outcome.error or {}).get('message')}")
                step()
                continue
            predicted, why = _predicted(case, arguments, runners[case.where], args, step)
            step()
            work = case.flops_bytes(problem)
            least = model and work and model.least_us(*work, outcome.result["dtype"])
            kernels = outcome.result["kernels"]
            said = f"at least {least:.4g} us by the roofline" if least else "no roofline: flops_bytes is not defined"
            on = predicted.device if predicted else device.name
            out.print(f"{case.name} {text}\nESTIMATE for {on}, nothing was measured: {predicted or said}")
            if why:
                out.print(f"  not predicted: {why}")
            for one in kernels:
                smem = one["static_smem"] + one["dynamic_smem"]
                takes = f"grid {one['grid']}, {one['registers']} registers, {smem} bytes of shared memory"
                fits = f"occupancy {one['occupancy']:.0%} (limited by {one['limited_by']})"
                out.print(f"  {one['kernel']}: {takes}, {fits}")
            about = {"case": case.name, "problem": dict(problem), "device": device.name}
            written.append({**about, "estimate_us": least, "kernels": kernels})
            if predicted is not None:
                written[-1] |= {"predicted_us": list(predicted.us), "predicted_by": predicted.version}
                journal_of(case).append(_predicted_record(case, problem, config, predicted))
    command_line.write_json(args, written)
    results = "Results" if len(cases) == 1 else f"Results of {cases[0].name}"
    what = f" {results} were checked on the CPU target." if checked else " Results were not checked."
    print(f"There is no GPU: nothing was timed.{what} --target cpu times the CPU target.", file=sys.stderr)
    return EXIT.NOT_HERE


def _predicted(
    case: Case, arguments: Mapping[str, object], runner: Runner, args: argparse.Namespace, step: Callable[..., None]
) -> tuple[Predicted | None, str]:
    """Return what the clock predicts, or why it does not."""
    try:
        answer = predicting.predict(case, arguments, runner, _TIMEOUT, cold=args.l2 == "cold", progress=step)
    except CannotProfile as reason:
        return None, str(reason).partition("\n")[0]
    return Predicted.of(answer, args.steady), ""


def _predicted_record(
    case: Case, problem: Mapping[str, object], config: Mapping[str, object] | None, predicted: Predicted
) -> Record:
    """Return the Record of a prediction: nothing was timed."""
    env = environment()
    protocol = f"clock {predicted.version}"
    return Record(
        "bench",
        key_of("bench", case, problem, config, env, protocol),
        case.name,
        dict(problem),
        dict(config) if config else None,
        "predicted",
        protocol=protocol,
        env=env,
        again=command_line.again("bench", case, problem, config=config),
        more={"predicted": list(predicted.us), "predicted_by": predicted.version, "source": case.digest()},
    )
