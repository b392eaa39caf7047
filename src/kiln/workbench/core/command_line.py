"""Shared parts of the verbs that take a CASE: arguments, exit statuses, output, progress, errors.

@report_errors
def main(argv):
    parser = arguments("kiln verify", "Check a kernel.")
    args = parse(parser, argv)
    case = open_case(args)
    for problem in problems(args, case): ...
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._support import notebook
from ...base_dsl.target import get_target
from ...hardware import current, driver
from ...hardware.architectures import DEFAULT
from . import environment, loading, tuned_file
from .cases import Case, Problem, arch_fits
from .contracts import ContractError
from .options import Parser, flag, option
from .runners import InfrastructureLost
from .text import near_path

if TYPE_CHECKING:
    from rich.console import Console


class EXIT:
    """Exit statuses of the verbs."""

    GOOD = 0
    FAILED = 1
    """The kernel failed a check, or could not be timed."""
    BAD_USE = 2
    """The command line or the contract is wrong."""
    NOT_HERE = 3
    """This machine cannot do it; the verb printed what it can do."""
    LOST = 4
    """Workers could not be started; the journal has what was done before."""
    UNTRUSTED = 5
    """The measurement is doubtful (`--strict`)."""
    INTERRUPTED = 130


class NotHere(Exception):
    """This machine cannot do something: exit status 3."""


_ENVIRONMENT = {"target": "KILN_TARGET", "arch": "CUTE_DSL_ARCH"}


def arguments(prog: str, description: str, several: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every verb that takes a Case, or with `several` some Cases."""
    epilog = "Fields of the problem are options, too: --m 512 --dtype float16."
    parser = Parser(prog=prog, description=description, allow_abbrev=False, epilog=epilog)
    about = "a contract: a file, `pkg.module`, or either with `:Plan`"
    parser.add_argument("case", metavar="CASE", nargs="+" if several else None, help=about)
    run = parser.add_argument_group("what to run")
    option(run, "--problem N|all", "the problem with this number, from 0 on, or all of them")
    option(run, "--set K=V", "another value for a field of the problem", action="append", default=[])
    option(run, "--config N|JSON|tuned", "a config by its number, as a JSON object, or the tuned one")
    option(run, "--arch SM", "compile for this architecture: sm_90a")
    option(run, "--target", "where kernels run; by default the GPU, if there is one", choices=("cpu", "nvidia", "cuda"))
    option(run, "--seed N", "the seed of the inputs (0)", type=int, default=0)
    output = parser.add_argument_group("what to print")
    option(output, "--json FILE|-", "write the results as JSON; - is standard output")
    flag(output, "--quiet", "print failures only, and no progress")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; options that the parser does not know become `fields` of the problem."""
    args, others = parser.parse_known_args(list(argv))
    args.fields = {}
    words = iter(others)
    word = next(words, None)
    while word is not None:
        if not word.startswith("--") or word == "--":
            parser.error(f"unrecognized argument: {word}")
        name, equals, value = word[2:].partition("=")
        word = next(words, None)
        if not equals:
            value = "true"  # `--causal`
            if word is not None and (not word.startswith("-") or _is_number(word)):
                value = word
                word = next(words, None)
        args.fields[name.replace("-", "_")] = value
    for each in args.set:
        name, equals, value = each.partition("=")
        if not equals:
            parser.error(f"--set {each}: write --set name=value")
        args.fields[name] = value
    args.words = list(argv)
    args.options = [word[2:] for action in parser._actions for word in action.option_strings if word.startswith("--")]
    return args


def _is_number(word: str) -> bool:
    with contextlib.suppress(ValueError):
        float(word)
        return True
    return False


def open_case(args: argparse.Namespace, where: str | None = None, load: Callable[[str], Case] | None = None) -> Case:
    """Load the CASE for the chosen target and architecture, which workers that start later take over."""
    for name, variable in _ENVIRONMENT.items():
        if getattr(args, name, None):
            os.environ[variable] = "nvidia" if getattr(args, name) == "cuda" else getattr(args, name)
    if os.environ.get("KILN_TARGET") == "nvidia" and not driver.available():
        raise NotHere(f"the target nvidia was asked for, and there is no NVIDIA GPU here: {why_no_gpu()}")
    case = (load or loading.load)(where or args.case)
    # Without a GPU, compile for the contract's architecture.
    if case.arch and not os.environ.get("CUTE_DSL_ARCH") and not on_gpu() and not arch_fits(case.arch, DEFAULT):
        os.environ["CUTE_DSL_ARCH"] = case.arch.split(",")[0].strip().rstrip("+")
    return case


def why_no_gpu() -> str:
    """Return why the driver shows no GPU to this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    said = environment.cuda_driver().problem or "the driver shows none to this process"
    return said if visible is None else f"{said} (CUDA_VISIBLE_DEVICES={visible!r})"


def asked_for_cpu() -> bool:
    """Return whether --target or KILN_TARGET chose the CPU target: it is timed only then."""
    return os.environ.get("KILN_TARGET") == "cpu"


def on_gpu() -> bool:
    """Return whether kernels run on a GPU, by the chosen target."""
    return not get_target().on_host


def arch_variable() -> dict[str, str]:
    """Return the environment variables that have workers compile for the chosen architecture, and without the CPU
    target's default checks: verbs time kernels, or run the sanitizer themselves."""
    arch = os.environ.get("CUTE_DSL_ARCH")
    checks = {"KILN_CHECKS": os.environ.get("KILN_CHECKS") or "never"}
    return {"CUTE_DSL_ARCH": arch, **checks} if arch else checks


def job_options(timeout: float) -> dict[str, Any]:
    """Return the options of a Case's jobs; workers that started before the architecture was known are not reused."""
    return {"needs_gpu": on_gpu() and driver.available(), "timeout": timeout, "env": arch_variable()}


def refused(case: Case) -> str | None:
    """Return why a Case cannot run on this GPU, or without one on the chosen architecture; None if it can."""
    name = current.architecture().name
    if not case.arch or arch_fits(case.arch, name):
        return None
    return f"{case.name} is for {case.arch}, and this is {name}"


def problems(args: argparse.Namespace, case: Case, default: str = "0") -> list[Problem]:
    """Return the chosen problems, with the fields of the command line."""
    for name in args.fields:
        if case.problems and name not in case.problems[0]:
            near = difflib.get_close_matches(name, [*case.problems[0], *args.options], 1)
            meant = f"did you mean --{near[0]}?" if near else f"its fields are: {', '.join(case.problems[0]) or 'none'}"
            raise ContractError(f"--{name} is neither an option nor a field of the problems of {case.name}; {meant}")
    which = args.problem or default
    if which == "all":
        chosen: list[Mapping[str, Any]] = [*case.problems]
    else:
        try:
            chosen = [case.problem(int(which))]
        except ValueError:
            raise ContractError(f"--problem {which}: a number or `all`") from None
    changed = [case.changed(each, args.fields) for each in chosen]
    return [each for number, each in enumerate(changed) if each not in changed[:number]]


def config(args: argparse.Namespace, case: Case, problem: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the config of --config; None if the kernel is to choose."""
    text = args.config
    if text is None:
        return None
    if text == "tuned":
        return tuned_file.tuned_config(case, problem)
    choices = case.configs(problem)
    if text.lstrip("-").isdigit():
        if not -len(choices) <= int(text) < len(choices):
            raise ContractError(f"--config {text}: {case.name} has {len(choices)} configs for this problem", case.file)
        return choices[int(text)].config
    try:
        config_ = json.loads(text)
    except ValueError:
        config_ = None
    if not isinstance(config_, dict):
        raise ContractError(f"--config {text}: a number, a JSON object, or `tuned`")
    return config_


def again(verb: str, case: Case, problem: Mapping[str, object], *more: str, config: object = None) -> str:
    """Return a command line that repeats a measurement."""
    words = ["kiln", verb, near_path(case.where) if os.path.isabs(case.where) else case.where]
    for name, value in problem.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += [f"--set={name}={text}"] if name in _OPTIONS else [f"--{name}={text}"]
    if config is not None:
        words.append(f"--config={json.dumps(config, separators=(',', ':'))}")
    target = os.environ.get("KILN_TARGET")
    words += [f"--target={target}"] if target else []
    return shlex.join([*words, *more])


_OPTIONS = frozenset(
    [
        "also",
        "against",
        "arch",
        "atol",
        "budget",
        "check",
        "clock",
        "compute_sanitizer",
        "config",
        "fresh",
        "gate",
        "gpus",
        "help",
        "html",
        "jobs",
        "json",
        "kernel",
        "kinds",
        "l2",
        "lines",
        "lock",
        "max_elements",
        "memory",
        "perfetto",
        "predict",
        "problem",
        "prof_type",
        "quick",
        "quiet",
        "ray",
        "read",
        "replay",
        "rtol",
        "search",
        "seed",
        "set",
        "since",
        "steady",
        "strict",
        "target",
        "timeout",
        "together",
        "top",
        "trace",
    ]
)
"""Options of the verbs: `--set` gives a field of such a name its value."""


# Printing


def console(args: argparse.Namespace | None = None) -> Console:
    """Return the console for results: standard output, or standard error if JSON goes there.

    Brackets in texts are not markup. In a pipe it prints plain text, 160 columns wide.
    """
    from rich.console import Console

    to_json = args is not None and getattr(args, "json", None) == "-"
    stream = sys.stderr if to_json else sys.stdout
    width = None if stream.isatty() else 160
    return Console(file=stream, highlight=False, markup=False, soft_wrap=True, width=width)


def write_json(args: argparse.Namespace, data: object) -> None:
    """Write results where `--json` says, if it is used."""
    if not args.json:
        return
    text = json.dumps(data, indent=2) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    else:
        with open(args.json, "w") as file:
            file.write(text)


@contextlib.contextmanager
def progress(total: int | None, what: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show progress on standard error; yield a function to call after each step, with the name of the next.

    A terminal shows a bar, and so does a notebook; others get plain lines, the first after two seconds, then at most
    one in ten seconds.
    """
    if quiet:
        yield lambda text="", steps=1: None
        return
    if notebook.is_here():
        with notebook.bar(total, what) as advance:
            yield advance
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)

            def advance(text: str = "", steps: int = 1) -> None:
                bar.update(task, advance=steps, description=f"{what} {text}".rstrip())

            yield advance
        return
    done = 0
    due = time.monotonic() + 2

    def say(text: str = "", steps: int = 1) -> None:
        nonlocal done, due
        done += steps
        now = time.monotonic()
        if now > due:
            due = now + 10
            count = f"{done} of {total} " if total else ""
            print(f"{what}: {count}{text}".rstrip(" :"), file=sys.stderr, flush=True)

    yield say


def report_errors(main: Callable[[Sequence[str]], int]) -> Callable[[Sequence[str]], int]:
    """Wrap a verb's `main` so that errors become messages and exit statuses."""

    @functools.wraps(main)
    def wrapped(argv: Sequence[str]) -> int:
        before = {name: os.environ.get(name) for name in _ENVIRONMENT.values()}
        try:
            return main(argv)
        except ContractError as error:
            print(error, file=sys.stderr)
            return EXIT.BAD_USE
        except NotHere as error:
            print(error, file=sys.stderr)
            return EXIT.NOT_HERE
        except InfrastructureLost as error:
            print(f"{error}\nWhat was done is in the journal; the same command goes on.", file=sys.stderr)
            return EXIT.LOST
        except KeyboardInterrupt:
            print("interrupted; the same command goes on", file=sys.stderr)
            return EXIT.INTERRUPTED
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    return wrapped
