"""`kiln profile`: shows where the time of a kernel goes, as far as this machine can tell."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base_dsl import kernel_trace
from ...base_dsl.target import get_target
from ...clock import known
from ...hardware import current, devices, driver
from ...measure import trace_format
from ..bench import cli as bench
from ..core import command_line, worker_case
from ..core.cases import Case, key_of
from ..core.command_line import EXIT
from ..core.contracts import ContractError
from ..core.environment import environment
from ..core.options import flag, option
from ..core.records import Record, journal_of
from ..core.runners import Job, Local, Outcome, Runner
from ..core.text import fields_text
from ..verify import cli as verify
from . import advice, kernel_ranges, ncu, nsys, predicting, program_trace, timeline
from .ncu import CannotProfile
from .result import KernelProfile, LineProfile, Profile, Value, add_row, compared, new_table, shorter, with_calls
from .static_profile import StaticProfile
from .timeline import Record as Json

if TYPE_CHECKING:
    from rich.console import RenderableType

PROF_TYPES = {
    "disabled": "the time only, as `kiln bench` measures it",
    "annotation": "the time, with NVTX ranges for a profiler that watches",
    "ncu": "counters and stalls by line, by Nsight Compute",
    "nsys": "the timeline of host and GPU, by Nsight Systems",
    "trace": "what its warps wait for and do, and ranges that it names, as files for Perfetto and for programs",
    "static": "what the machine code tells: needs no GPU",
    "clock": "the predicted time and why, with a timeline of warps and engines: needs no GPU, and is the default without one",
}
TIMEOUT = 300.0
_DEFAULT_TRACE = kernel_ranges.Choices()
COUNTING_TIMEOUT = 20.0
"""Seconds for counting accesses on the CPU target; a profile does not wait longer."""
SECTOR = 32
"""Bytes that global memory moves at least."""


@command_line.report_errors
def main(argv: Sequence[str]) -> int:
    """Run `kiln profile CASE [CASE2]`, `kiln profile --read FILE [--read FILE2]`, or a program behind `--`."""
    parser = make_parser()
    argv, program = _split(argv)
    args = command_line.parse(parser, argv)
    if program is not None and (args.prof_type != "trace" or args.case):
        parser.error("a program after `--` stands alone, for --prof-type trace")
    console = command_line.console(args)
    if args.read:
        if args.case:
            parser.error("--read FILE takes no CASE")
        profiles = [read(each) for each in args.read]
    elif program is not None:
        variables = {"KILN_TARGET": args.target or "", "CUTE_DSL_ARCH": args.arch or ""}
        named = {name: value for name, value in variables.items() if value}
        profiles = [program_trace.trace_program(program, _traced(args), named)]
    else:
        if not 1 <= len(args.case) <= 2:
            parser.error("name a CASE, or two to compare")
        if args.check:
            for where in args.case:
                status = _verified(where, args)
                if status not in (EXIT.GOOD, EXIT.NOT_HERE):
                    return status
        if args.prof_type == "disabled":
            return _bench(args)
        if (args.html or args.perfetto) and args.prof_type not in (None, "clock", "trace"):
            parser.error(f"--html and --perfetto show what --prof-type clock and trace say, not {args.prof_type}")
        with Local(jobs=1, timeout=TIMEOUT) as runner:
            profiles = [_one(where, args, runner) for where in args.case]
    command_line.write_json(args, [each.to_json() for each in profiles])
    if not args.quiet:
        for each in profiles:
            for note in each.notes:
                console.print(note)
        parts: list[RenderableType] = [part for each in profiles for part in tables(each, args.lines, args.kernel)]
        if len(profiles) == 2:
            parts = [*compared(*profiles), *parts]
        for part in parts:
            console.print(part)
    _write_timelines(profiles, args)
    for each in profiles:
        if each.failed:
            print(f"{each.name}: {each.failed}", file=sys.stderr)
    if any(each.failed for each in profiles):
        return EXIT.FAILED
    return EXIT.NOT_HERE if any(each.missing for each in profiles) else EXIT.GOOD


def _split(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the words before `--`, and the program behind it; None if there is no `--`."""
    words = list(argv)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def make_parser() -> argparse.ArgumentParser:
    described = "; ".join(f"{name}: {what}" for name, what in PROF_TYPES.items())
    parser = command_line.arguments("kiln profile", f"Say where the time of a kernel goes. {described}.", several=True)
    for action in parser._actions:
        if action.dest == "case":
            action.nargs = "*"
            action.default = []
            action.required = False
    kind = "the kind of profile (without a GPU clock, where the clock knows the architecture; else static)"
    option(parser, "--prof-type", kind, "--prof_type", choices=PROF_TYPES)
    option(parser, "--clock burst|sustained|MHZ", "predict at this clock of the SMs (burst and sustained)", type=_clock)
    option(parser, "--html FILE", "write the timeline, predicted or traced, as a page")
    option(parser, "--perfetto FILE", "write the timeline for Perfetto (ui.perfetto.dev); several lie side by side")
    flag(parser, "--check", "verify the kernel first")
    option(parser, "--kernel NAME", "show only kernels with this in their name", default="")
    option(parser, "--lines N", "how many source lines to show (10)", type=int, default=10)
    levels = "what --prof-type trace marks: ranges of the program, what threads wait for, or all that it does (waits)"
    option(parser, "--trace LEVEL", levels, choices=kernel_trace.LEVELS, default="waits")
    option(parser, "--trace-ctas LIST", "the CTAs that it records, such as 0-7,131 (0-7)", default="0-7")
    option(parser, "--trace-marks N", "how many marks it keeps of a warp (4096)", type=int, default=4096)
    option(parser, "--trace-lane N", "the lane of a warp that makes marks (the elected one)", type=int)
    reports = (
        "show a report of ncu (.ncu-rep), an export of nsys (.sqlite) or a trace (.kiln.json) instead of profiling"
    )
    option(parser, "--read FILE", reports, action="append")
    return parser


def _write_timelines(profiles: Sequence[Profile], args: argparse.Namespace) -> None:
    """Write the timelines of profiles as a page and for Perfetto."""
    traces = [trace for each in profiles for trace in timeline.traces_of(each)]
    if args.html and traces:
        command = shlex.join(["kiln", "profile", *args.words])
        Path(args.html).write_text(timeline.page_of(profiles, command), encoding="utf-8")
    if args.perfetto and traces:
        Path(args.perfetto).write_text(json.dumps(trace_format.to_chrome(traces)), encoding="utf-8")
    for file in filter(None, (args.html, args.perfetto)):
        if not traces:
            print(f"{file} was not written: there is no timeline", file=sys.stderr)
        elif not args.quiet:
            print(f"written to {file}", file=sys.stderr)


def _clock(text: str) -> float | str:
    if text in ("burst", "sustained"):
        return text
    try:
        mhz = float(text)
    except ValueError:
        mhz = 0.0
    if not 100 <= mhz <= 5000:
        raise argparse.ArgumentTypeError(f"{text!r} is no clock: burst, sustained, or MHz such as 1305")
    return mhz


def default_type() -> str:
    """Return the kind of profile that is made if none is asked for."""
    if command_line.on_gpu() and driver.available():
        return "static"
    return "clock" if known.device_of(current.architecture(target=get_target("nvidia"))) else "static"


def _verified(where: str, args: argparse.Namespace) -> int:
    fields = [word for name, value in args.fields.items() for word in ("--set", f"{name}={value}")]
    which = [word for name in ("problem", "config") if (value := getattr(args, name)) for word in (f"--{name}", value)]
    own = [f"--{name}={value}" for name in ("target", "arch") if (value := getattr(args, name))]
    return verify.main([where, *fields, *which, *own, "--quick"])


def _bench(args: argparse.Namespace) -> int:
    own = {
        "--prof-type",
        "--prof_type",
        "--lines",
        "--kernel",
        "--clock",
        "--html",
        "--perfetto",
        "--trace",
        "--trace-ctas",
        "--trace-marks",
        "--trace-lane",
    }
    words = []
    skip = False
    for word in args.words:
        if not skip and word.partition("=")[0] not in {*own, "--check"}:
            words.append(word)
        skip = not skip and word in own
    return bench.main([*words, *(["--no-verify"] if args.check else [])])


def _one(where: str, args: argparse.Namespace, runner: Runner) -> Profile:
    def there(where: str) -> Case:
        options = command_line.job_options(TIMEOUT)
        here = args.prof_type in ("static", "clock")
        return worker_case.load(where, runner, **options | ({"needs_gpu": False} if here else {}))

    case = command_line.open_case(args, where, load=there)
    (problem,) = command_line.problems(args, case)[:1]
    chosen = command_line.config(args, case, problem)
    asked = {"config": chosen, "seed": args.seed, "runner": runner, "clock": args.clock, "traced": _traced(args)}
    with command_line.progress(None, f"profiling {case.name}", args.quiet) as advance:
        return profile(case, problem, args.prof_type, progress=advance, **asked)


def _traced(args: argparse.Namespace) -> kernel_ranges.Choices:
    blocks = kernel_ranges.blocks_of(args.trace_ctas)
    return kernel_ranges.Choices(args.trace, blocks, args.trace_marks, args.trace_lane)


def read(path: str) -> Profile:
    """Read a report of ncu, an export of nsys, or a trace."""
    if path.endswith(kernel_ranges.OWN):
        return kernel_ranges.read(path)
    if Path(path).suffix == ".sqlite":
        return nsys.read(path)
    try:
        return ncu.read(path)
    except CannotProfile as reason:
        return Profile("ncu", Path(path).stem, [], notes=[str(reason)], missing=str(reason))


# --- profiles --------------------------------------------------------------------------------------------------------


def profile(
    case: Case,
    problem: Mapping[str, object] | int | None = None,
    prof_type: str | None = None,
    *,
    config: Mapping[str, object] | None = None,
    seed: int = 0,
    clock: float | str | None = None,
    runner: Runner | None = None,
    timeout: float = TIMEOUT,
    traced: kernel_ranges.Choices = _DEFAULT_TRACE,
    progress: Callable[..., None] = lambda text="", steps=1: None,
) -> Profile:
    """Profile one call of a Case. What this machine cannot do becomes a static profile, whose `missing` says why.

    A kernel that does not compile, crashes or hangs gives a profile without kernels, whose `failed` says what
    happened. `traced` is what the type `trace` records. `clock` is the clock at which times are predicted: "burst",
    "sustained", or MHz; by default the first two.
    """
    default = prof_type is None
    prof_type = prof_type or default_type()
    if prof_type not in PROF_TYPES:
        raise ContractError(f"no prof_type {prof_type!r}; there are: {', '.join(PROF_TYPES)}")
    fields = case.problem(problem) if isinstance(problem, int) or problem is None else problem
    if prof_type == "disabled":
        return case.bench(fields, config=config)
    job = {"where": case.where, "problem": dict(fields), "config": config, "seed": seed}
    own = runner if runner is not None else Local(jobs=1, timeout=timeout)
    status = None
    try:
        result = _profile(case, prof_type, job, own, timeout, traced, clock, progress)
    except _Failed as failure:
        status = failure.outcome.status
        result = Profile(prof_type, case.name, [], failed=str(failure))
    finally:
        if runner is None:
            own.close()
    if "static" in result.extra:
        advice.advise(result)
    if timeline.traces_of(result):
        result.extra["files"] = {file.name: str(file) for file in case.sources} | result.extra.get("files", {})
    if default and result.missing:  # the static profile is what there is: nothing else was asked for
        result.missing = ""
    return _recorded(case, fields, config, prof_type, result, status or ("skipped" if result.missing else "ok"))


def _profile(
    case: Case,
    prof_type: str,
    job: Json,
    runner: Runner,
    timeout: float,
    choices: kernel_ranges.Choices,
    clock: float | str | None,
    progress: Callable[..., None],
) -> Profile:
    missing = ""
    report = _folder(case) / f"{case.name}-{_short_key(job)}"
    try:
        if prof_type == "trace":
            path = kernel_ranges.file_for(report)
            env = ncu.ON_GPU if command_line.on_gpu() else {}
            arguments = {**job, "path": str(path), "choices": choices._asdict()}
            traced = Job(f"{_JOBS}:trace", arguments, needs_gpu=command_line.on_gpu(), env=env)
            return kernel_ranges.profile_of(_done(runner, traced), case.name)
        if prof_type == "clock":
            file = report.with_name(f"{report.name}.clock{kernel_ranges.OWN}")
            asked: Json = {"clock": clock, "trace": file, "what_if": True, "progress": progress}
            predicted = predicting.predict(case, job, runner, timeout, **asked)
            (compiled,) = runner.run([_static_job(case, job)])
            if compiled.status == "ok":
                _add_facts(predicted, case, job, runner, compiled.result)
            return predicted
        if prof_type != "static":
            reason = command_line.refused(case) or ("" if command_line.on_gpu() else "there is no NVIDIA GPU here")
            if reason:
                raise CannotProfile(reason)
            if prof_type == "ncu":
                result = ncu.record(job, report.with_name(f"{report.name}.ncu-rep"), timeout)
                (compiled,) = runner.run([Job(f"{_JOBS}:static", job)])
                if compiled.status == "ok":  # the report lacks inlined calls
                    for kernel in result.kernels:
                        kernel.lines = with_calls(kernel.lines, compiled.result["calls"])
                    _add_facts(result, case, job, runner, compiled.result)
            elif prof_type == "nsys":
                result = nsys.record(job, report.with_name(f"{report.name}.sqlite"), timeout)
            else:
                result = _annotated(job, runner)
            result.name = case.name
            return result
    except CannotProfile as reason:
        missing = str(reason)
    result = static(case, job, runner)
    if missing:
        result.missing = missing
        result.notes.insert(0, f"{prof_type} is not possible here: {missing}\nThe static profile instead:")
    return result


def _static_job(case: Case, job: Json) -> Job:
    own = str(case.arch).split(",")[0].strip().rstrip("+") if command_line.refused(case) else None
    compiled_for = {"CUTE_DSL_ARCH": own} if own else command_line.job_options(TIMEOUT)["env"]
    return Job(f"{_JOBS}:static", job, env=compiled_for)


def static(case: Case, job: Json, runner: Runner) -> Profile:
    """Return a static profile with accesses counted on the CPU target, for the Case's architecture if this GPU has another."""
    refused = command_line.refused(case)
    own = str(case.arch).split(",")[0].strip().rstrip("+") if refused else None
    done = _done(runner, _static_job(case, job))
    kernels = [StaticProfile.from_json(each) for each in done["kernels"]]
    result = Profile("static", case.name, [_kernel(each, done["calls"]) for each in kernels], counted="instructions")
    if refused:
        result.notes.append(f"{refused}: the profile is for {own}")
    work = case.flops_bytes(job["problem"])
    device = devices.device_of(own) if own else current.device()
    result.extra["work"] = [*work, done["dtype"]] if work else None
    if work and device.model and (least := device.model.least_us(*work, done["dtype"])) is not None:
        takes = f"take {least:.3g} us at least on {device.name}"
        result.notes.append(f"{work[0]:.3g} operations and {work[1]:.3g} bytes {takes}")
    _add_facts(result, case, job, runner, done)
    for kernel in result.kernels:
        kernel.metrics |= _counts(kernel.name, result.extra)
    return result


def _add_facts(result: Profile, case: Case, job: Json, runner: Runner, compiled: Json) -> None:
    """Add to a profile what the machine code tells, and accesses counted on the CPU target: what advice follows from."""
    result.extra |= {"static": compiled["kernels"], "calls": compiled["calls"]}
    mixes = [each["mix"] for each in compiled["kernels"]]
    if not any(mix.get("shared") or mix.get("global") for mix in mixes):
        return
    counting = Job(f"{_JOBS}:accesses", job, timeout=COUNTING_TIMEOUT, env={"KILN_TARGET": "cpu"})
    (outcome,) = runner.run([counting])
    if outcome.status != "ok":
        why = (outcome.error or {}).get("message", outcome.status)
        large = [name for name, value in job["problem"].items() if type(value) is int and value > 64]
        if outcome.status == "timeout" and large:
            why += f"; smaller extents may do: {' '.join(f'--{name}=64' for name in large)}"
        result.notes.append(f"bank conflicts and sectors of {case.name} were not counted: {why}")
        return
    for name in ("bank_conflicts", "coalescing"):
        result.extra[name] = outcome.result[name]
    smaller = outcome.result["problem"]
    result.extra["moved"] = bytes_moved(case, smaller, outcome.result["coalescing"])
    if smaller != job["problem"]:
        fields = fields_text(smaller, ", ")
        result.notes.append(f"bank conflicts and sectors are those of a smaller problem: {fields}")


def bytes_moved(case: Case, problem: Mapping[str, object], coalescing: Sequence[Json]) -> float | None:
    """Return the bytes that global memory moves for each one that a problem reads or writes; None if it does not say."""
    work = case.flops_bytes(problem)
    return SECTOR * sum(one["sectors"] for one in coalescing) / work[1] if work and work[1] else None


def _counts(kernel: str, counted: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Value]:
    """Return the accesses of a kernel's warps, as counted on the CPU target."""
    kinds = ("bank_conflicts", "coalescing")
    shared, global_ = ([one for one in counted.get(name, ()) if one["kernel"] == kernel] for name in kinds)
    total = {name: sum(one[name] for one in global_) for name in ("accesses", "sectors", "ideal")}
    metrics: dict[str, Value] = {}
    if global_:
        metrics["Global accesses by warps"] = total["accesses"]
        metrics["Sectors/global access"] = total["sectors"] / total["accesses"]
        metrics["Ideal sectors/access"] = total["ideal"] / total["accesses"]
    if shared:
        times = sum(one["accesses"] for one in shared)
        metrics["Shared accesses by warps"] = times
        metrics["Wavefronts/shared access"] = sum(one["wavefronts"] for one in shared) / times
    return metrics


_JOBS = "kiln.workbench.profile.jobs"


class _Failed(Exception):
    """A job failed through the kernel's fault."""

    def __init__(self, outcome: Outcome) -> None:
        error = outcome.error or {}
        kind = "" if error.get("type") in (None, outcome.status) else f"{error['type']}: "
        # The last output of a crashed process comes before Python's traceback, which has the innermost frame first.
        said, _, traceback = outcome.stderr.partition("Fatal Python error")
        last = "\n  ".join(["", *said.strip().splitlines()[-5:]]) if outcome.status == "crash" else ""
        frame = re.search(r'File "([^"]+)", line (\d+)', traceback)
        file, line = frame.groups() if frame else (error.get("file"), error.get("line"))
        place = f" ({file}:{line})" if file and line else ""
        super().__init__(f"{outcome.status}: {kind}{error.get('message', '')}{place}{last}")
        self.outcome = outcome


def _done(runner: Runner, job: Job) -> Any:
    """Run a job and return its result."""
    (outcome,) = runner.run([job])
    if outcome.status == "ok":
        return outcome.result
    worker_case.raise_bad_contract(outcome)
    raise _Failed(outcome)


def _kernel(static_: StaticProfile, calls: Sequence[Any]) -> KernelProfile:
    runs = static_.occupancy
    widths = ", ".join(f"{size} ({count}x)" for size, count in static_.widths.items())
    metrics: dict[str, Value] = {
        "Theoretical%": 100 * runs.fraction,
        "Limited by": runs.limiter,
        "Registers/thread": static_.registers,
        "SMEM/block (KB)": static_.smem / 1024,
        "Spills (B)": static_.spill_stores + static_.spill_loads,
        "Local memory (B)": static_.stack,
        "Grid": _extents(static_.grid),
        "Block": _extents(static_.block),
        "Warps in the grid": math.prod(static_.grid) * -(-static_.threads // 32),
        **({"Cluster": _extents(static_.cluster)} if math.prod(static_.cluster) > 1 else {}),
        "Blocks/SM": runs.blocks,
        **({"Bytes/global access": widths} if widths else {}),
        "Code size (instructions)": sum(static_.mix.values()),
        "In flight/SM (KB)": static_.bytes_in_flight / 1024,
    }
    lines = with_calls([LineProfile(line.file, line.line, line.mix) for line in static_.lines], calls)
    return KernelProfile(static_.kernel, metrics, lines, static_.launches)


def _extents(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def _annotated(job: Json, runner: Runner) -> Profile:
    measured = _done(runner, Job(f"{_JOBS}:annotated", job, needs_gpu=True, env=ncu.ON_GPU))
    done = _done(runner, Job(f"{_JOBS}:static", job))
    kernels = [_kernel(StaticProfile.from_json(each), done["calls"]) for each in done["kernels"]]
    low, median, high = measured["us"]
    clock = measured["clock"].get("sm_mhz")
    note = f"one call: {median:.4g} us [{low:.4g}, {high:.4g}], {measured['n']} samples, {measured['protocol']}"
    notes = [", ".join([note, *([f"{clock:.0f} MHz"] if clock else []), *measured["flags"]])]
    if not measured["nvtx"]:
        notes.append("no NVTX ranges were marked: pip install nvtx")
    if len(kernels) == 1 and kernels[0].launches == 1:
        kernels[0].metrics["Duration (us)"] = median
    return Profile("annotation", "", kernels, "instructions", notes, {"measurement": measured})


# --- files -----------------------------------------------------------------------------------------------------------


def _folder(case: Case) -> Path:
    return journal_of(case).folder / "profiles"


def _short_key(job: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:8]


def _recorded(
    case: Case,
    problem: Mapping[str, object],
    config: Mapping[str, object] | None,
    asked: str,
    result: Profile,
    status: str,
) -> Profile:
    """Write a profile to the journal and return it."""
    env = environment()
    protocol = f"profile-{asked}"
    times = [kernel.metrics["Duration (us)"] for kernel in result.kernels if "Duration (us)" in kernel.metrics]
    total = float(sum(each for each in times if not isinstance(each, str)))
    why = result.failed or result.missing
    kernels = [kernel.to_json() for kernel in result.kernels]
    record = Record(
        "profile",
        key_of("profile", case, problem, config, env, protocol),
        case.name,
        dict(problem),
        dict(config) if config else None,
        status,
        us=[total] * 3 if times else None,
        n=len(times),
        protocol=protocol,
        env=env,
        error={"type": asked, "message": why} if why else None,
        again=command_line.again("profile", case, problem, f"--prof-type={asked}", config=config),
        more={"prof_type": result.prof_type, "kernels": kernels, "source": case.digest()},
    )
    journal_of(case).append(record)
    return result


# --- what is shown besides -------------------------------------------------------------------------------------------


def tables(result: Profile, lines: int, kernel: str = "") -> list[RenderableType]:
    """Return what is printed of a profile."""
    parts = result.tables(lines, kernel)
    if result.prof_type == "static":
        parts += _counted_tables(result, lines, kernel)
    parts += nsys.tables(result.extra.get("timeline"))
    parts += kernel_ranges.tables(result.extra.get("trace") if result.prof_type == "trace" else None)
    if "advice" in result.extra:
        parts.append(advice.text([each for each in result.extra["advice"] if kernel in each["kernel"]]))
    return parts


def _counted_tables(result: Profile, lines: int, kernel: str) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for each in map(StaticProfile.from_json, result.extra.get("static", ())):
        if kernel in each.kernel:
            parts += _static_tables(each, result.extra.get("work"))
    counted = result.extra.get("bank_conflicts", ())
    conflicts = [each for each in counted if kernel in each["kernel"] and each["conflicts"]]
    if conflicts:
        parts.append(_conflicts_table(conflicts[:lines]))
    elif result.extra.get("bank_conflicts"):
        parts.append("no bank conflicts of shared memory (counted on the CPU target)\n")
    moved = [each for each in result.extra.get("coalescing", ()) if kernel in each["kernel"]]
    if moved:
        parts.append(_sectors_table(moved[:lines]))
    return parts


def _static_tables(static_: StaticProfile, work: Sequence[Any] | None) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if static_.unread:
        parts.append(f"{static_.kernel}: no instructions: {static_.unread}")
    for message in static_.messages:
        parts.append(f"{static_.kernel}: ptxas: {message}")
    if static_.mix:
        total = sum(static_.mix.values())
        table = new_table("instructions", *static_.mix, "all", left=(0,))
        add_row(table, static_.kernel, *map(str, static_.mix.values()), str(total))
        for loop in static_.loops:
            each = "" if loop.per_mma is None else f", {loop.per_mma:.1f} per MMA"
            name = f"{'  ' * loop.depth}loop at {shorter(loop.file)}:{loop.line}{each}"
            add_row(table, name, *(str(loop.mix.get(kind, "")) for kind in static_.mix), str(loop.instructions))
        parts.append(table)
    local = [line for line in static_.lines if line.local_loads or line.local_stores]
    if local:
        table = new_table("local memory", "stores", "loads", left=(0,))
        for line in sorted(local, key=lambda line: -line.local_loads - line.local_stores)[:10]:
            add_row(table, f"{shorter(line.file)}:{line.line}", str(line.local_stores), str(line.local_loads))
        parts.append(table)
    table = new_table("on", "arch", "blocks/SM", "warps", "%", "limited by", "waves", "least us", left=(0, 1, 5))
    elsewhere: dict[str, list[str]] = {}
    for model in devices.table().values():
        runs = static_.occupancy_on(model.generation)
        lacks = static_.lacks(model.generation) or ("" if runs.blocks else runs.limiter)
        if lacks:
            elsewhere.setdefault(lacks, []).append(model.name)
            continue
        least = model.least_us(*work) if work else None
        fits = (runs.blocks, runs.warps, f"{100 * runs.fraction:.0f}", runs.limiter)
        bound = f"{least:.3g}" if least else "-"
        add_row(table, model.name, f"sm_{model.generation.number}", *fits, f"{static_.waves(model):.2f}", bound)
    parts += [table, f"With the registers that ptxas gave it for {static_.arch}."]
    parts += [f"Cannot run on {', '.join(names)}: {lacks}." for lacks, names in elsewhere.items()]
    return [*parts, ""]


def _conflicts_table(places: Sequence[Mapping[str, object]]) -> RenderableType:
    table = new_table("bank conflicts", "lost", "wavefronts", "accesses", "worst", "operation", left=(0, 5))
    for each in places:
        counts = (each[name] for name in ("conflicts", "wavefronts", "accesses"))
        add_row(table, _place(each), *counts, f"{each['worst']}-way", _operation(each))
    return table


def _sectors_table(places: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = ("global memory", "sectors", "ideal", "accesses", "sectors/access", "worst", "operation")
    table = new_table(*columns, left=(0, 6))
    for each in places:
        counts = (each[name] for name in ("sectors", "ideal", "accesses"))
        per_access = f"{each['sectors'] / each['accesses']:.4g}"
        add_row(table, _place(each), *counts, per_access, each["worst"], _operation(each))
    return table


def _place(counted: Mapping[str, Any]) -> str:
    span = counted["span"]
    return f"{shorter(span['file'])}:{span['line']}" if span else "?"


def _operation(counted: Mapping[str, object]) -> str:
    return f"{counted['operation']} {counted['width']} B"
