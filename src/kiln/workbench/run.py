"""`kiln run`: runs a program as `python` would; `import cutlass` gives Kiln, even if nvidia-cutlass-dsl is installed.

The program may rely on everything as under `python prog.py`: `sys.argv`, `sys.path[0]`, `__main__` and its attributes,
the exit status, tracebacks (no frame of this runner in them), `multiprocessing`. What is set up for the program holds
in every Python process it starts, too, through environment variables (`environment`) and a `sitecustomize` (folder
`startup`); what later options change belongs there.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import functools
import io
import linecache
import os
import runpy
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

from kiln import _alias
from kiln.hardware.architectures import Arch

from . import serve_cuda
from .core.options import Parser, option

STARTUP = os.path.join(os.path.dirname(os.path.realpath(__file__)), "startup")
_TARGETS = ("cpu", "nvidia", "cuda")
"""Targets by name; `cuda` is another name of `nvidia`."""
_STDIN = "<stdin>"
MOST_DEVICES = 16
"""The most simulated devices."""


def main(argv: Sequence[str]) -> int:
    options, program = split(argv)
    parser = make_parser()
    args = parser.parse_args(options)
    args.target = "nvidia" if args.target == "cuda" else args.target
    if program in (["-m"], ["-c"]):
        parser.error(f"argument expected for the {program[0]} option")
    if not program:
        parser.error("name a program to run: a file, `-m module`, `-c code`, or `-` for standard input")
    if args.sanitize is not None and args.target == "nvidia":
        parser.error("--sanitize works on the CPU target")
    if args.devices is not None and (args.target == "nvidia" or not 1 <= args.devices <= MOST_DEVICES):
        parser.error(f"--devices N works on the CPU target, with 1 to {MOST_DEVICES} devices")
    if args.arch is not None and args.arch not in Arch.__members__:
        parser.error(f"--arch {args.arch}: there are {', '.join(Arch.__members__)}")
    os.environ.update(environment(args))
    counts_findings = args.sanitize is not None and args.sanitize_report is None
    if counts_findings:
        atexit.register(_report_findings, os.getpid())
    _alias.take_over()
    if os.environ.get("KILN_TARGET", "").lower() == "cpu":
        # Tensors and streams of programs for GPUs come from host memory, in child processes too.
        serve_cuda.activate()
    try:
        if args.devices is None:
            execute(program)
        elif status := _on_devices(args.devices, program):
            raise SystemExit(status)
    except SystemExit as end:
        if end.code not in (None, 0) or not (counts_findings and _fails()):
            raise
        raise SystemExit(1) from None
    except BaseException as failure:
        _ended_with.append(type(failure).__name__)
        raise
    return int(counts_findings and _fails())


def _on_devices(count: int, program: list[str]) -> int:
    """Run a program on several simulated devices, and return its exit status."""
    from .ranks import running  # not above: it imports torch if there is one

    run, attributes = prepared(program)
    return running.run_ranks(count, run, functools.partial(new_main, attributes))


_ended_with: list[str] = []
"""The class of the exception that ended the program."""


def _distinct(findings: Sequence[Any]) -> list[Any]:
    """Return findings, each place once."""
    return list({(f.rule, f.kernel, f.span, f.other_span): f for f in findings}.values())


def _fails() -> bool:
    """Return whether a program that has ended by itself fails by what the sanitizer found in it."""
    sanitizing = sys.modules.get("kiln.base_dsl.sanitizing")
    if sanitizing is None:
        return False
    unasked = sanitizing.unasked
    return bool(unasked.faults or unasked.errors) or any(
        warning.kind in sanitizing.FAILING for warning in unasked.warnings
    )


def _report_findings(process: int) -> None:
    """Say what the sanitizer found in the program, and under how many schedules it ran."""
    sanitizing = sys.modules.get("kiln.base_dsl.sanitizing")
    if sanitizing is None or os.getpid() != process:  # nothing was compiled, or this is a forked process
        return
    unasked = sanitizing.unasked
    schedules = sanitizing.schedules
    said = [f"the program ended with {name}" for name in _ended_with]
    counts = [(len(_distinct(unasked.errors)) + unasked.faults, "error"), (len(_distinct(unasked.warnings)), "warning")]
    numbers = [f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count]
    if numbers:
        said.append(f"the sanitizer found {' and '.join(numbers)}")
    elif not schedules:
        said.append("no kernel ran to its end in this process")
    else:
        said.append("the sanitizer had no findings before that" if said else "the sanitizer found nothing")
    tried = f" under {sanitizing.schedules_text(schedules)}" if schedules else ""
    why = f" (a launch ran once: {', '.join(sanitizing.once)})" if schedules == 1 and sanitizing.once else ""
    print(f"kiln run: {'; '.join(said)}{tried}{why}", file=sys.stderr)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln run",
        usage="kiln run [--target {cpu,nvidia}] [--arch ARCH] [--devices N] [--sanitize[=KINDS]] "
        "(PROGRAM.py | -m MODULE | -c CODE | -) [ARGS ...]",
        description="Run a Python program as `python` would. `import cutlass` gives Kiln, even if nvidia-cutlass-dsl is "
        "installed, and in child processes too. Everything after the program belongs to the program.",
    )
    target = (
        "where kernels run (sets KILN_TARGET; default: the GPU if any); with cpu, the program's use of CUDA "
        "(torch's `cuda` device, cuda-bindings) is served from host memory"
    )
    arch = (
        "the architecture to compile for, and the GPU that the program sees on the CPU target, such as sm_100a (sets "
        "CUTE_DSL_ARCH; default: the GPU's, else sm_90a)"
    )
    devices = (
        f"run the program as `torchrun --nproc-per-node N` does, on N simulated devices of the CPU target (1 to {MOST_DEVICES}): "
        "a rank, a thread of this process, for each"
    )
    sanitize = (
        "look for races and for misuse of memory and synchronization, on the CPU target (sets KILN_SANITIZE); "
        "KINDS, after a `=`, is a comma list of race, memory, sync, numeric"
    )
    report = "go on after findings and write them to FILE as JSON at the end (sets KILN_REPORT)"
    option(parser, "--target", target, choices=_TARGETS)
    option(parser, "--arch ARCH", arch)
    option(parser, "--devices N", devices, type=int)
    option(parser, "--sanitize KINDS", sanitize, nargs="?", const="default")
    option(parser, "--sanitize-report FILE", report)
    return parser


def split(
    argv: Sequence[str], with_value: Sequence[str] = ("--target", "--arch", "--devices", "--sanitize-report")
) -> tuple[list[str], list[str]]:
    """Split a command line into our options and the program with its arguments.

    The program starts at the first word that is not one of our options, of which `with_value` take a word. `-m` and
    `-c` come back as words of their own.
    """
    words = list(argv)
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return words[:at], words[at + 1 :]
        if word.startswith(("-m", "-c")):
            glued = [word[2:]] if len(word) > 2 else []
            return words[:at], [word[:2], *glued, *words[at + 1 :]]
        if word == "-" or not word.startswith("-"):
            break
        at += 2 if word in with_value else 1
    return words[:at], words[at:]


def environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that make this process and its children run as `args` say."""
    # An empty entry means the current folder, so it is kept; an empty or missing variable means no entry.
    before = os.environ.get("PYTHONPATH")
    inherited = [entry for entry in before.split(os.pathsep) if entry != STARTUP] if before else []
    variables = {"PYTHONPATH": os.pathsep.join([STARTUP, *inherited])}
    if args.target is not None:
        variables["KILN_TARGET"] = args.target
    if args.arch is not None:
        variables["CUTE_DSL_ARCH"] = args.arch
    if args.devices is not None:
        variables["KILN_TARGET"] = "cpu"
        variables["KILN_CHECKS"] = (
            os.environ.get("KILN_CHECKS") or "never"
        )  # they run a launch at a time, and ranks wait
    if args.sanitize is not None or args.sanitize_report is not None:
        variables |= {"KILN_SANITIZE": args.sanitize or "default", "KILN_TARGET": "cpu"}
    if args.sanitize_report is not None:
        variables["KILN_REPORT"] = os.path.abspath(args.sanitize_report)
    return variables


def execute(program: list[str]) -> None:
    """Run the program in a new `__main__`, which stays `__main__`: threads and exit handlers may outlive the code."""
    run, attributes = prepared(program)
    main = new_main(attributes)
    sys.modules["__main__"] = main
    _without_our_frames(lambda: run(main))


def new_main(attributes: Mapping[str, object]) -> ModuleType:
    """Return an empty module `__main__` with some attributes."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __loader__=BuiltinImporter)
    if sys.version_info < (3, 14):
        main.__dict__.setdefault("__annotations__", {})
    main.__dict__.update(attributes)
    return main


def prepared(program: list[str]) -> tuple[Callable[[ModuleType], None], dict[str, object]]:
    """Set `sys.argv` and `sys.path` as Python does for a program; return what runs it in a module that is `__main__`, and
    the attributes of that module."""
    first = program[0]
    rest = program[1:]
    if first == "-m":
        module = rest[0]
        arguments = rest[1:]
        sys.argv = ["-m", *arguments]
        _replace_first_path(os.getcwd())
        return lambda _: runpy._run_module_as_main(module), {}  # pyright: ignore[reportAttributeAccessIssue]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        _replace_first_path("")
        # Without a file, as under `python -c`; dedented as Python 3.14 does, and the newline is what python adds, too.
        text = (textwrap.dedent(rest[0]) if sys.version_info >= (3, 14) else rest[0]).encode() + b"\n"
        return lambda main: _exec_source(text, "<string>", main), {}
    sys.argv = program
    if first == "-":
        _replace_first_path("")
        read = functools.cache(_read_stdin)
        return lambda main: _exec_source(read(), _STDIN, main), {"__file__": _STDIN, "__cached__": None}
    if os.path.isdir(first) or first.endswith((".zip", ".pyz")):
        _replace_first_path(os.path.abspath(first), always=True)
        return lambda _: runpy._run_module_as_main("__main__", False), {}  # pyright: ignore[reportAttributeAccessIssue]
    path = os.path.abspath(first)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        from .core.text import did_you_mean_file  # only a mistake needs difflib

        hint = did_you_mean_file(path) if isinstance(error, FileNotFoundError) else ""
        said = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        print(f"kiln run: {said}{f'; {hint}' if hint else ''}", file=sys.stderr)
        sys.exit(2)
    _replace_first_path(os.path.dirname(os.path.realpath(first)))
    attributes = {"__file__": path, "__cached__": None, "__loader__": SourceFileLoader("__main__", path)}
    return lambda main: _exec_source(source, path, main), attributes


def _exec_source(source: bytes, filename: str, main: ModuleType) -> None:
    # Bytes, so that an encoding declaration is honoured; none of this module's __future__ features are inherited.
    exec(compile(source, filename, "exec", dont_inherit=True), main.__dict__)


def _read_stdin() -> bytes:
    source = sys.stdin.buffer.read()
    # Tracebacks and inspect.getsource, so the language itself, find the text here. No time stamp: it never goes stale.
    lines = source.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[_STDIN] = (len(source), None, lines, _STDIN)
    return source


def _replace_first_path(entry: str, always: bool = False) -> None:
    """Put `entry` where Python puts the program's folder; nowhere if the interpreter runs isolated."""
    safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if not safe:
        sys.path[0] = entry
    elif always:
        sys.path.insert(0, entry)


def _without_our_frames(run: Callable[[], None]) -> None:
    """Run the program; if it raises, have the interpreter report the error from the program's first frame on.

    The error still reaches the interpreter, which alone knows how to end the process for SystemExit and
    KeyboardInterrupt, so the frames it passes on the way are dropped where it is shown.
    """
    try:
        run()
    except BaseException as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename == __file__:
            own = own.tb_next
        programs_hook = sys.excepthook
        shown = error

        def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
            sys.excepthook = programs_hook
            if value is shown:
                traceback = sys.last_traceback = own
                value = value.with_traceback(own)
            programs_hook(kind, value, traceback)

        sys.excepthook = show
        raise
