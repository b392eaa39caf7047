"""`kiln inspect`: shows what the compiler makes of a program's kernels, as a page, an outline or a table."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...base_dsl import conventions
from ...base_dsl.diagnostics import DSLBaseError
from ...hardware.architectures import Arch
from .. import run
from ..core import command_line
from ..core.loading import names_case
from ..core.options import Parser, flag, option
from ..core.text import no_file
from . import capture, outline, page, resources
from . import model as inspect_model
from .capture import Subject

_WITH_VALUE = ("--html", "--json", "--tasks", "--arch", "--config", "--problem", "--set", "--timeout")
_USAGE = """\
kiln inspect [--html PAGE] [--json FILE] [--outline] [--resources] [--arch ARCH] (FILE.py | -m MODULE | CASE) [ARGS ...]
       kiln inspect --tasks SVG [--arch ARCH] (FILE.py | -m MODULE) [ARGS ...]
       kiln inspect (--bank-conflicts | --coalescing) [--json FILE] (PROGRAM.py | -m MODULE | -) [ARGS ...]
       kiln inspect (FILE.o | FILE.so)"""


@command_line.report_errors
def main(argv: Sequence[str]) -> int:
    """Run the verb."""
    parser = make_parser()
    args, program = _split(parser, argv)
    if not program or program == ["-m"]:
        parser.error("name a program to run: a file, `-m module`, or `-` for standard input")
    if args.arch and args.arch not in Arch.__members__:
        parser.error(f"--arch {args.arch}: there are {', '.join(Arch.__members__)}")
    if program[0].endswith((".o", ".so")):
        return _describe_exported(program[0])
    if args.bank_conflicts or args.coalescing:
        if args.html or args.outline or args.resources:
            parser.error("--bank-conflicts and --coalescing print a table; in a page conflicts are in the margin")
        if args.bank_conflicts and args.coalescing:
            parser.error("--bank-conflicts or --coalescing, one at a time")
        os.environ["KILN_SANITIZE"] = "banks" if args.bank_conflicts else "sectors"
        os.environ["KILN_REPORT"] = os.path.abspath(args.json) if args.json else "-"
        return run.main(["--target", "cpu", "--", *program])
    if not (args.html or args.json or args.outline or args.resources or args.tasks):
        kinds = "--html PAGE, --json FILE, --outline, --resources, --tasks SVG, --bank-conflicts, --coalescing"
        parser.error(f"say what to look at: {kinds}")
    if args.html and args.html != "-" and not os.path.isdir(os.path.dirname(os.path.abspath(args.html))):
        parser.error(f"--html {args.html}: there is no such folder")
    if program[0] == "-":
        parser.error("a program on standard input has no lines to show: save it as a file")
    return _look(args, program, parser)


def _describe_exported(path: str) -> int:
    """Print what an exported file says about its functions, as JSON."""
    try:
        metadata = conventions.exporter().read_metadata(path)
    except DSLBaseError as reason:
        print(f"kiln inspect: {reason}", file=sys.stderr)
        return command_line.EXIT.BAD_USE
    print(json.dumps(metadata, indent=2))
    return 0


def _look(args: argparse.Namespace, program: list[str], parser: argparse.ArgumentParser) -> int:
    """Compile a program or a Case, run it on the CPU target for a page, and print or write what was asked for."""
    subjects = _subjects(args, program, parser)
    whole = bool(args.html or args.json)
    runs = _captured(args, subjects, whole)
    for captured in runs:
        if captured.failure.startswith("ContractError: "):
            print(captured.failure.removeprefix("ContractError: "), file=sys.stderr)
            return command_line.EXIT.BAD_USE
        if not captured.compiled:
            why = f": {captured.failure}" if captured.failure else ""
            print(f"kiln inspect: no kernel was compiled{why}", file=sys.stderr)
            return 1
    if args.outline:
        print("\n\n".join(outline.outline(one, captured) for captured in runs for one in captured.compiled))
    if args.resources:
        print(resources.resources(runs))
    if args.tasks and (status := _write_tasks(args.tasks, runs)):
        return status
    return _write_page(args, subjects, runs) if whole else 0


def _write_tasks(file: str, runs: list[capture.Captured]) -> int:
    """Write the picture of the last task schedule that the program made."""
    pictures = [picture for captured in runs for picture in captured.tasks]
    if not pictures:
        print("kiln inspect: --tasks: no kernel of the program has a TaskManager", file=sys.stderr)
        return 1
    try:
        Path(file).write_text(pictures[-1], encoding="utf-8")
    except OSError as reason:
        print(f"kiln inspect: {file} cannot be written: {reason.strerror}", file=sys.stderr)
        return 2
    print(f"wrote {file}")
    return 0


def _subjects(args: argparse.Namespace, program: list[str], parser: argparse.ArgumentParser) -> list[Subject]:
    """Return the program, or the Case with each config, as subjects."""
    is_case = program[0] != "-m" and names_case(program[0])
    if not is_case and (args.config or args.problem or args.set):
        why = "it has neither kernel_fn and get_inputs nor a KernelPlan"
        parser.error(f"--config, --problem and --set are for Cases, and {program[0]} is none: {why}")
    if not is_case and program[0] != "-m" and not os.path.exists(program[0]):
        parser.error(no_file(program[0]))
    if not is_case:
        return [Subject(program=program)]
    fields = command_line.parse(_fields(), [*(f"--set={one}" for one in args.set), *program[1:]]).fields
    problem = {"number": args.problem, "set": fields}
    return [Subject(case=program[0], problem=problem, config=config) for config in args.config or [None]]


def _captured(args: argparse.Namespace, subjects: list[Subject], whole: bool) -> list[capture.Captured]:
    """Compile the subjects, and for a whole page run them on the CPU target beside it, with progress."""
    on_cpu = whole and not args.no_run
    names = f"{subjects[0].name} for {args.arch}" if args.arch else subjects[0].name
    what = f"compiling {names} (nothing is launched)" + (", running it on the CPU target" if on_cpu else "")
    steps = len(subjects) * (1 + on_cpu)
    with ThreadPoolExecutor(2) as pool, command_line.progress(steps, what, args.quiet) as advance:
        compiling = [pool.submit(capture.compile_subject, one, args.arch, whole) for one in subjects]
        running = [pool.submit(capture.run_on_cpu, one, args.timeout) for one in subjects] if on_cpu else []
        for one in (*compiling, *running):
            one.add_done_callback(lambda _: advance())
        runs = [one.result() for one in compiling]
        for captured, observed in zip(runs, running):
            for name, value in observed.result().items():
                setattr(captured, name, value)
    return runs


def _write_page(args: argparse.Namespace, subjects: list[Any], runs: list[Any]) -> int:
    subject = subjects[0]
    arch = ["--arch", args.arch] if args.arch else []
    again = shlex.join(["kiln", "inspect", *(subject.program or [subject.case]), "--html", *arch])
    stalls = inspect_model.stalls_of(subject.case or subject.program[0])
    model = inspect_model.build(runs, subject.name, again, stalls)
    if args.json:
        text = json.dumps(model)
        print(text) if args.json == "-" else Path(args.json).write_text(text)
    if args.html:
        html = page.page(model)
        try:
            Path(args.html).write_text(html, encoding="utf-8")
        except OSError as reason:
            print(f"kiln inspect: {args.html} cannot be written: {reason.strerror}", file=sys.stderr)
            return 2
        kernels = ", ".join(dict.fromkeys(kernel["name"] for unit in model["units"] for kernel in unit["kernels"]))
        print(f"{args.html}: {kernels} ({len(html) // 1024} KiB)", file=sys.stderr if args.json == "-" else sys.stdout)
    for note in model["notes"] if not args.quiet else ():
        print(f"kiln inspect: {note}", file=sys.stderr)
    return 0


def _fields() -> argparse.ArgumentParser:
    """Return a parser for the words behind a Case: fields of its problem."""
    parser = Parser(prog="kiln inspect", add_help=False, allow_abbrev=False)
    parser.add_argument("--set", action="append", default=[])
    return parser


def _split(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and the program with its own.

    Ours stand before the program; behind it they are ours if none stands before.
    """
    before, program = run.split(argv, _WITH_VALUE)
    args = parser.parse_args(before)
    if before or not program:
        return args, program
    first = program[:2] if program[0] == "-m" else program[:1]
    rest = program[len(first) :]
    theirs: list[str] = []
    if "--" in rest:
        at = rest.index("--")
        rest, theirs = rest[:at], rest[at + 1 :]
    args, unknown = parser.parse_known_args(rest)
    return args, [*first, *unknown, *theirs]


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln inspect",
        usage=_USAGE,
        allow_abbrev=False,
        description="Compile the kernels of a program (or of a Case) for a GPU, which need not be here, and show what "
        "the compiler makes of every line. Options stand before or behind the program; options of the same names that "
        "are for the program stand behind `--`.",
    )
    built = "print how kernels are built: tensor maps, grid, clusters, shared memory, roles, barriers, pipelines, MMAs"
    banks = "run on the CPU target and count bank conflicts of shared memory, for each line that accesses it"
    sectors = "run on the CPU target and count sectors of global memory, for each line that accesses it"
    field = "another value for a field of the problem; also as --NAME VALUE behind the Case"
    option(parser, "--html PAGE", "write one page with Python, MLIR, LLVM, PTX and SASS side by side")
    flag(parser, "--outline", built)
    flag(parser, "--resources", "print registers, spills, shared memory and occupancy")
    option(parser, "--tasks SVG", "write a picture of the task schedule of the program's kernel (task_scheduling)")
    flag(parser, "--bank-conflicts", banks)
    flag(parser, "--coalescing", sectors)
    option(
        parser, "--arch", "compile for this architecture, such as sm_90a; default: the GPU's, else sm_90a", default=""
    )
    option(parser, "--config N|JSON|tuned", "a Case's config; given twice, a page compares the two", action="append")
    option(parser, "--problem N", "a Case's problem, by number (0)", type=int, default=0)
    option(parser, "--set NAME=VALUE", field, action="append", default=[])
    flag(parser, "--no-run", "do not run the program on the CPU target for bank conflicts and the sanitizer's findings")
    option(parser, "--timeout S", "the seconds that such a run may take (120)", type=float, default=120.0)
    option(
        parser,
        "--json FILE",
        "write the contents of the page, or the counts of --bank-conflicts or --coalescing, as JSON",
    )
    flag(parser, "--quiet", "print nothing on standard error")
    return parser
