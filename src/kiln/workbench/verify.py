"""`kiln verify CASE`: whether a kernel is right.

Each problem is checked on several kinds of data, with odd extents, other strides and shifted addresses, for determinism and
against self-deception, and on the CPU target under the sanitizer. All of it runs in workers (runners.py).
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from . import checking, command, distant
from .cases import Case, Problem, key_of, load
from .checking import LAYOUT_KINDS
from .command import EXIT
from .contracts import ContractError
from .distant import raise_bad_contract
from .environment import environment
from .records import Record, journal_of
from .runners import Inline, Job, Local, Outcome, Runner

KINDS = {
    "normal": "data as get_inputs draws it",
    "integers": "small integers: results must be equal, bit for bit",
    "wide": "magnitudes from 2^-8 to 2^8",
    "special": "NaN, infinities, -0 and subnormal numbers among the data",
    "odd": "each extent one more, one less, and 1",
    "strided": "inputs transposed in memory, and every second row of a larger array",
    "shifted": "inputs that begin one element after an aligned address",
    "repeated": "new contents behind the same pointers, of a seed not seen before",
    "streams": "on a GPU: what the stream has to do comes first",
    "deterministic": "three runs give the same bits; on the CPU target under three schedules",
    "sanitizer": "on the CPU target: races, bounds, uninitialized memory, barriers",
}
"""What is checked, in this order."""

QUICK = ("normal", "integers")
PROTOCOL = "verify/1"
MAX_ELEMENTS = 1 << 18
TIMEOUT = 120.0


@dataclass
class Result:
    """One check done: of one problem, kind of data, seed and layout."""

    kind: str
    problem: dict[str, Any]
    seed: int
    variant: str
    """What differs from the problem as it is: "m+1", "transposed"."""
    status: str
    """One of the statuses of records, or `refused`: the kernel said that it does not take this."""
    message: str = ""
    error: float = 0.0
    bound: float = 0.0
    how: str = ""
    notes: list[str] = field(default_factory=list)
    output: dict[str, Any] | None = None
    """Of wrong results: how many, the first, the worst, where they lie, what they look like."""
    raised: dict[str, Any] | None = None
    stderr: str = ""
    seconds: float = 0.0
    again: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    """The problem that this one is a variant of, or itself."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: it passed, was refused or was not possible."""
        return self.status in ("ok", "refused", "skipped")

    def report(self) -> str:
        """A failure in full: what, where, what it looks like, and the command that does it again."""
        of = f" {self.variant}" if self.variant else ""
        fields = " ".join(f"{name}={value}" for name, value in self.problem.items())
        lines = [f"{self.kind}{of}, seed {self.seed}{': ' + fields if fields else ''}", *self.message.splitlines()]
        if self.output is not None:
            lines += _shown(self.output, self)
        if self.raised is not None and self.raised.get("traceback"):
            lines += self.raised["traceback"].rstrip().splitlines()
        tail = (
            self.stderr.strip().splitlines()[-12:] if self.status in ("crash", "timeout", "oom", "device_error") else []
        )
        lines += ["it printed:", *(f"  {line}" for line in tail)] if tail else []
        lines += [f"note: {note}" for note in self.notes]
        return "\n  ".join([*lines, f"again: {self.again}"])


def _shown(output: Mapping[str, Any], result: Result) -> list[str]:
    element = lambda each: (
        f"[{', '.join(map(str, each['index']))}]: got {_short(each['got'])}, expected {_short(each['expected'])}"
    )
    lines = [f"first at {element(output['first'])}"]
    lines += [f"where: {text}" for text in output["where"]]
    lines += [f"look: {text}" for text in output["look"]]
    worst = [element(each) for each in output["worst"] if each != output["first"]][:3]
    lines += [f"worst at {text}" for text in worst]
    if result.bound and result.error > result.bound:
        lines.append(f"error {result.error:.3g}, allowed {result.bound:.3g}: {result.how}")
    elif result.how and not result.bound:
        lines.append(f"allowed: {result.how}")
    return lines


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Verdict:
    """What came of checking a Case."""

    def __init__(self, case: Case, where: str) -> None:
        self.case, self.where = case, where
        self.checks: list[Result] = []
        self.problems: list[tuple[Problem, dict[str, Any]]] = []
        """Each problem that was asked for, with what it became here (`checking.describe`)."""
        self.skipped = ""
        """Why nothing was done."""

    @property
    def ok(self) -> bool:
        """Whether every check passed, and something was checked."""
        return (
            not self.skipped and all(check.ok for check in self.checks) and any(c.status == "ok" for c in self.checks)
        )

    @property
    def failures(self) -> list[Result]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.ok]

    @property
    def exit_status(self) -> int:
        """Of the command."""
        return EXIT.NOT_HERE if self.skipped else EXIT.GOOD if self.ok else EXIT.FAILED

    def lines(self) -> list[tuple[str, str, str]]:
        """One for each kind of check of each problem: kind, status, details; a problem begins with its name."""
        found: list[tuple[str, str, str]] = []
        for asked, described in self.problems:
            fields = "".join(f" {name}={value}" for name, value in described["problem"].items())
            shrunk = " (made smaller)" if dict(asked) != described["problem"] else ""
            found.append(("", "", f"{self.case.name}{fields}{shrunk}: {', '.join(described['inputs'])}; {self.where}"))
            mine = [check for check in self.checks if check.base == described["problem"]]
            for kind in KINDS:
                of_kind = [check for check in mine if check.kind == kind]
                if of_kind:
                    found.append((kind, *_summary(of_kind)))
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "case": self.case.name,
            "ok": self.ok,
            "where": self.where,
            "skipped": self.skipped,
            "checks": [asdict(each) for each in self.checks],
        }

    def __str__(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        lines = [f"  {kind:<14} {status:<8} {text}".rstrip() if kind else text for kind, status, text in self.lines()]
        failures = self.failures
        if failures:
            lines += ["", f"FAILED {failures[0].report()}"]
            lines += [f"also {each.kind} {each.variant}: {each.again}" for each in _distinct(failures)[1:]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{escape(kind)}<td>{escape(status)}<td>{escape(text)}" for kind, status, text in self.lines()
        )
        failure = f"<pre>{escape(self.failures[0].report())}</pre>" if self.failures else ""
        return f"<table>{rows}</table>{failure}"


def _distinct(failures: Sequence[Result]) -> list[Result]:
    """One for each kind and variant."""
    return list({(each.kind, each.variant): each for each in reversed(failures)}.values())[::-1]


def _summary(checks: Sequence[Result]) -> tuple[str, str]:
    """Status and details of the checks of one kind."""
    failed = [check for check in checks if not check.ok]
    if failed:
        first = failed[0]
        variant = f"{first.variant}: " if first.variant else ""
        where = f", first at {first.output['first']['index']}" if first.output else ""
        more = f" ({len(failed)} of {len(checks)} checks)" if len(checks) > 1 else ""
        return "FAILED", f"{first.status}: {variant}{_line(first.message)}{where}{more}"
    passed = [check for check in checks if check.status == "ok"]
    rest = [check for check in checks if check.status != "ok"]
    if not passed:
        return _word(rest[0].status), "; ".join(dict.fromkeys(_line(check.message) for check in rest))
    others = [f"{check.variant} {_word(check.status)}: {_line(check.message)}" for check in rest]
    worst = max(passed, key=lambda check: check.error / check.bound if check.bound else 0.0)
    if worst.bound == 1.0:
        text = f"{100 * worst.error:.0f} % of {worst.how}"
    elif worst.bound:
        text = f"error {worst.error:.2g}, allowed {worst.bound:.2g}"
    else:
        text = worst.how
    variants = list(dict.fromkeys(check.variant for check in passed if check.variant))
    seeds = len({check.seed for check in passed})
    counted = ", ".join(variants) if variants else f"{seeds} seeds" if seeds > 1 else ""
    notes = [f"({note})" for note in worst.notes]
    return "ok", "; ".join(filter(None, [counted, text, *dict.fromkeys(others), *notes]))


def _word(status: str) -> str:
    return "not tried" if status == "skipped" else status


def _line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


# Doing it


@dataclass
class Options:
    """How a Case is checked."""

    kinds: Sequence[str] = tuple(KINDS)
    seeds: Sequence[int] = (0, 1, 2)
    config: dict[str, Any] | None = None
    tolerance: dict[str, float] | None = None
    max_elements: int | None = None
    """None: `MAX_ELEMENTS` on the CPU target, no limit on a GPU."""
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ContractError(f"there is no kind of check {unknown[0]!r}; there are: {', '.join(KINDS)}")


def verify(
    case: Any,
    problems: Any = "all",
    seeds: int | Sequence[int] = 3,
    kinds: Iterable[str] | None = None,
    config: Any = None,
    tolerance: dict[str, float] | None = None,
    runner: Runner | None = None,
    quick: bool = False,
    quiet: bool = True,
    record: bool = True,
    **more: Any,
) -> Verdict:
    """Check a Case on problems: "all", a number, one problem or a list of them. Records go to its journal."""
    case = load(case)
    seeds = [0] if quick else list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    kinds = tuple(kinds or (QUICK if quick else KINDS))
    if tolerance is not None:  # of finite numbers
        kinds = tuple(kind for kind in kinds if kind != "special") if set(kinds) == set(KINDS) else kinds
    options = Options(kinds, seeds, config, tolerance, **more)
    verdict = Verdict(case, _where_it_runs())
    reason = command.refused(case)
    if reason:
        verdict.skipped = reason
        return verdict
    own = runner is None
    runner = runner or Local(timeout=options.timeout)
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
    from kiln.hardware import current

    name = current.architecture().name
    return f"{current.device().name}, {name}" if command.on_gpu() else f"CPU target, {name}"


def _run(
    case: Case, problems: Sequence[Problem], options: Options, runner: Runner, verdict: Verdict, quiet: bool
) -> None:
    if isinstance(runner, Inline) and not isinstance(case, distant.DistantCase):
        checking.use(case)
    on_gpu, common = command.on_gpu(), _common(options.timeout)
    limit = options.max_elements or (None if on_gpu else MAX_ELEMENTS)
    with command.progress(None, f"verify {case.name}", quiet) as step:
        jobs: list[Job] = []
        arguments = [{"where": case.where, "problem": dict(each), "max_elements": limit} for each in problems]
        for outcome in runner.run(Job(f"{checking.__name__}:describe", each, **common) for each in arguments):
            step("problems")
            raise_bad_contract(outcome)
            if outcome.status != "ok":
                verdict.checks.append(
                    _result(case, {"kind": "normal", "problem": outcome.job.arguments["problem"]}, outcome, options)
                )
                continue
            asked = next(each for each in problems if dict(each) == outcome.job.arguments["problem"])
            verdict.problems.append((asked, outcome.result))
            verdict.checks += _left_out(outcome.result, options)
            for each in _plan(case, outcome.result, options, on_gpu):
                given = {"where": case.where, "config": options.config, "tolerance": options.tolerance}
                words = {name: value for name, value in each.items() if name not in ("label", "base", "shown")}
                jobs.append(Job(f"{checking.__name__}:check", given | words, tag=each, **common))
        verdict.problems.sort(key=lambda each: problems.index(each[0]))
        done: dict[int, Result] = {}
        order = {id(job.tag): number for number, job in enumerate(jobs)}
        for outcome in runner.run(jobs):
            tag = outcome.job.tag
            step(f"{tag['kind']} {tag['label']}".strip())
            if tag["kind"] == "normal" and not tag["label"]:
                raise_bad_contract(outcome)
            done[order[id(tag)]] = _result(case, tag, outcome, options)
        verdict.checks += [done[number] for number in sorted(done)]


def _common(timeout: float) -> dict[str, Any]:
    """What the jobs have in common."""
    return {"needs_gpu": command.on_gpu(), "timeout": timeout, "env": _environment()}


def _environment() -> dict[str, str]:
    from kiln.base_dsl.target import get_target

    arch = os.environ.get("CUTE_DSL_ARCH")
    return {"KILN_TARGET": get_target().name, **({"CUTE_DSL_ARCH": arch} if arch else {})}


def _plan(case: Case, described: Mapping[str, Any], options: Options, on_gpu: bool) -> list[dict[str, Any]]:
    """The checks of one problem: what `checking.check` is given, and a label for each."""
    problem, first = described["problem"], options.seeds[0]
    found: list[dict[str, Any]] = []

    def add(kind: str, seed: int = first, label: str = "", problem: dict[str, Any] = problem, **more: Any) -> None:
        found.append(
            {"kind": kind, "problem": problem, "seed": seed, "label": label, "base": described["problem"], **more}
        )

    for kind in options.kinds:
        if kind == "odd":
            for name in described["extents"]:
                size = problem[name]
                for label, value in ((f"{name}+1", size + 1), (f"{name}-1", size - 1), (f"{name}=1", 1)):
                    if value > 0 and value != size and (label[-2:] != "=1" or size > 2):
                        add("normal", label=label, problem={**problem, name: value}, variant=True)
                        found[-1]["shown"] = "odd"
        elif kind in LAYOUT_KINDS:
            for layout in LAYOUT_KINDS[kind]:
                add(kind, label=layout, layout=layout)
        elif kind == "deterministic":
            if not case.nondeterministic:
                add(kind)
        elif kind == "streams":
            if on_gpu and not case.streams:
                add(kind)
        elif kind == "sanitizer":
            if not on_gpu:
                add(kind)
        elif kind == "repeated":
            add(kind)
        else:
            for seed in options.seeds:
                add(kind, seed)
    return found


def _left_out(described: Mapping[str, Any], options: Options) -> list[Result]:
    """Kinds of checks that a contract or an option leaves no room for."""
    reasons: dict[str, str] = {}
    if "odd" in options.kinds and not described["extents"]:
        reasons["odd"] = "get_inputs takes no sizes: give it parameters, as in get_inputs(m=1024, n=512)"
    if options.tolerance is not None and "special" not in options.kinds and "wide" in options.kinds:
        reasons["special"] = "rtol and atol are about finite numbers; --kinds=special compares patterns of NaN"
    problem = described["problem"]
    return [Result(kind, problem, 0, "", "skipped", text, base=problem) for kind, text in reasons.items()]


def _result(case: Case, tag: Mapping[str, Any], outcome: Outcome, options: Options) -> Result:
    """An outcome as the result of a check."""
    kind, seed, problem = tag.get("shown", tag["kind"]), tag.get("seed", 0), tag["problem"]
    found: dict[str, Any] = outcome.result if outcome.status == "ok" else {}
    if outcome.status != "ok":
        error = outcome.error or {}
        message = error.get("message", "")
        is_contract = error.get("type") == "ContractError"
        if is_contract and (tag["kind"] != "normal" or tag.get("variant")):
            found = {"status": "skipped", "message": message}
        else:
            text = message if outcome.status != "error" else f"{error.get('type')}: {message}"
            found = {"status": outcome.status, "message": text, "raised": error if error.get("traceback") else None}
    words = [f"--kinds={tag['kind']}", f"--seed={seed}"]
    words += [f"--rtol={options.tolerance['rtol']}", f"--atol={options.tolerance['atol']}"] if options.tolerance else []
    made = Result(
        kind, problem, seed, tag.get("label", ""), found.pop("status"), seconds=outcome.seconds, stderr=outcome.stderr
    )
    for name in ("message", "error", "bound", "how", "notes", "output", "raised"):
        if found.get(name) is not None:
            setattr(made, name, found[name])
    made.again = command.again("verify", case, problem, *words, config=options.config)
    made.base = tag.get("base", problem)
    return made


def _record(case: Case, verdict: Verdict, options: Options) -> None:
    """A Record for each problem, and one for each check that failed."""
    journal, env = journal_of(case), environment()
    whole = set(options.kinds) >= set(QUICK)
    for _, described in verdict.problems:
        problem = described["problem"]
        mine = [check for check in verdict.checks if check.base == problem]
        for each in [check for check in mine if not check.ok]:
            key = key_of(
                "verify", case, each.problem, options.config, env, f"{PROTOCOL}:{each.kind}:{each.variant}:{each.seed}"
            )
            journal.append(_made(case, key, each.problem, options, env, each.status, each))
        if whole and mine:
            bad = next((check for check in mine if not check.ok), None)
            key = key_of("verify", case, problem, options.config, env, PROTOCOL)
            journal.append(_made(case, key, problem, options, env, bad.status if bad else "ok", bad, checks=len(mine)))


def _made(
    case: Case,
    key: str,
    problem: dict[str, Any],
    options: Options,
    env: dict[str, Any],
    status: str,
    check: Result | None,
    **more: Any,
) -> Record:
    error = {"type": check.kind, "message": check.message, "line": (check.raised or {}).get("line")} if check else None
    again = check.again if check else command.again("verify", case, problem, config=options.config)
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
        more={**about, **more},
    )


def verified(case: Case, problem: Mapping[str, Any], config: Any = None) -> Record | None:
    """The last Record of verifying a problem as the sources are now; None if there is none."""
    key = key_of("verify", case, problem, config, environment(), PROTOCOL)
    return journal_of(case).by_key().get(key)


# For pytest


class Check:
    """One kind of check of one problem, for `pytest.mark.parametrize`: `run` fails as an assertion does."""

    def __init__(self, case: Case, problem: Problem, kind: str) -> None:
        self.case, self.problem, self.kind = case, problem, kind

    def __str__(self) -> str:
        fields = "-".join(str(value) for value in self.problem.values())
        return f"{self.kind}-{fields}" if fields else self.kind

    __repr__ = __str__

    def run(self, runner: Runner | None = None) -> None:
        """Do it, in a worker that all checks of this process share; what the kernel refuses is skipped."""
        verdict = verify(self.case, [self.problem], kinds=[self.kind], runner=runner or _shared(), record=False)
        if verdict.failures:
            raise AssertionError(verdict.failures[0].report())
        if not verdict.ok:
            import pytest

            texts = [check.message for check in verdict.checks] or [verdict.skipped or KINDS[self.kind]]
            pytest.skip(_line(texts[0]))


_runner: Local | None = None


def _shared() -> Local:
    global _runner
    if _runner is None:
        _runner = Local(timeout=TIMEOUT)
        atexit.register(_runner.close)
    return _runner


def checks(case: Any, kinds: Iterable[str] = tuple(KINDS)) -> list[Check]:
    """The checks of all problems of a Case: `@pytest.mark.parametrize("check", case.checks(), ids=str)`."""
    case = load(case)
    gpu_only = () if command.on_gpu() else ("streams",)
    return [Check(case, problem, kind) for problem in case.problems for kind in kinds if kind not in gpu_only]


# The command


@command.report_errors
def main(argv: Sequence[str]) -> int:
    parser = _parser()
    args = command.parse(parser, argv)
    runner = make_runner(args)
    with runner:
        case = command.open_case(args, load=lambda where: distant.load(where, runner, **_common(args.timeout)))
        verdicts = _verdicts(args, case, runner)
    out = command.console(args)
    for verdict in verdicts:
        _print(verdict, out, args.quiet)
    command.write_json(args, verdicts[0].to_json() if len(verdicts) == 1 else [each.to_json() for each in verdicts])
    status = max(verdict.exit_status for verdict in verdicts)
    if args.compute_sanitizer and not status:
        status = _compute_sanitizer(args, out)
    return status


def _verdicts(args: argparse.Namespace, case: Case, runner: Runner) -> list[Verdict]:
    problems = command.problems(args, case, default="0" if args.fields else "all")
    if (args.rtol is None) != (args.atol is None):
        args.rtol, args.atol = args.rtol or 0.0, args.atol or 0.0
    options: dict[str, Any] = {
        "seeds": [args.seed] if args.quick or args.kinds else [args.seed + number for number in range(args.seeds)],
        "kinds": [kind.strip() for kind in args.kinds.split(",")] if args.kinds else None,
        "quick": args.quick,
        "quiet": args.quiet,
        "config": command.config(args, case, problems[0]),
        "tolerance": {"rtol": args.rtol, "atol": args.atol} if args.rtol is not None else None,
        "max_elements": args.max_elements,
        "timeout": args.timeout,
        "runner": runner,
    }
    found = [verify(case, problems, **options)]
    if args.also == "cpu" and command.on_gpu():
        os.environ["KILN_TARGET"] = "cpu"
        found.append(verify(case, problems, **options))
    return found


def make_runner(args: argparse.Namespace) -> Runner:
    """Where checks run: in workers of this machine."""
    return Local(timeout=args.timeout)


def _print(verdict: Verdict, out: Any, quiet: bool) -> None:
    from rich.text import Text

    if verdict.skipped:
        out.print(f"skipped: {verdict.skipped}", markup=False)
        return
    colours = {"ok": "green", "FAILED": "bold red", "refused": "yellow", "not tried": "dim"}
    for kind, status, text in [] if quiet else verdict.lines():
        line = (
            Text(text, style="bold")
            if not kind
            else Text.assemble("  ", f"{kind:<14} ", (f"{status:<9} ", colours.get(status, "")), text)
        )
        out.print(line)
    failures = _distinct(verdict.failures)
    if failures:
        out.print()
        out.print(Text.assemble(("FAILED ", "bold red"), failures[0].report()))
        for each in failures[1:]:
            out.print(Text.assemble(("also ", "bold red"), f"{each.kind} {each.variant}".rstrip(), f": {each.again}"))


def _compute_sanitizer(args: argparse.Namespace, out: Any) -> int:
    """Run the kernel once more under NVIDIA's compute-sanitizer."""
    tool = shutil.which("compute-sanitizer")
    if tool is None or not command.on_gpu():
        out.print("compute-sanitizer: " + ("it is not on PATH" if tool is None else "there is no GPU"), markup=False)
        return EXIT.NOT_HERE
    words = [
        word for word in args.words if word != "--compute-sanitizer" and not word.startswith(("--json", "--kinds"))
    ]
    inner = [sys.executable, "-m", "kiln", "verify", *words, "--kinds=normal", "--quick", "--quiet"]
    done = subprocess.run([tool, "--target-processes", "all", "--error-exitcode", "9", *inner], check=False)
    return EXIT.FAILED if done.returncode else EXIT.GOOD


def _parser() -> argparse.ArgumentParser:
    parser = command.arguments(
        "kiln verify",
        "Check a kernel against its reference: several kinds of data, odd extents, other strides, determinism, "
        "self-deception, and without a GPU races and bounds, on the CPU target.",
    )
    group = parser.add_argument_group("what to check")
    group.add_argument("--kinds", metavar="LIST", help=f"some of {', '.join(KINDS)}; with one seed each")
    group.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}, with one seed")
    group.add_argument("--seeds", type=int, default=3, metavar="N", help="how many seeds (default 3)")
    group.add_argument("--rtol", type=float, help="compare as torch.testing.assert_close does, finite numbers only")
    group.add_argument("--atol", type=float, help="the same, absolute")
    group.add_argument(
        "--max-elements", type=int, metavar="N", help=f"make problems smaller (CPU target: {MAX_ELEMENTS})"
    )
    group.add_argument("--also", choices=("cpu",), help="on a GPU: check on the CPU target, too, with its sanitizer")
    group.add_argument("--compute-sanitizer", action="store_true", help="on a GPU: run once under NVIDIA's sanitizer")
    group.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S", help="seconds for one check")
    return parser
