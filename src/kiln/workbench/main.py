"""The `kiln` command: picks a verb and hands it the rest of the command line.

A verb is a module or a package of `kiln.workbench` with the verb's name (`MODULES` has the exceptions). It has a
function `main(argv) -> int`, which takes the words after the verb and returns the exit status, and a function
`make_parser()`. To add a verb, write it and give it a line in `GROUPS`.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

import kiln

from .core.options import coloured

GROUPS = {
    "start": {
        "tour": "20 seconds: a race that the CPU target finds, its fix, and what to read next",
        "learn": "learn to write kernels: lessons that run without a GPU, and exercises that are checked",
        "doctor": "show what this machine has for Kiln, and how to get what is missing",
        "new": "make a folder with a kernel that works, its test and its benchmark",
        "import": "make a package of somebody's program, a KernelBench or a GPU MODE problem",
    },
    "run and check": {
        "run": "run a Python program with `cutlass` served by Kiln; --sanitize finds races",
        "verify": "check a kernel: data, shapes, strides, races, self-deception",
    },
    "speed up": {
        "inspect": "show what became of every line of a program: a page, an outline, resources, bank conflicts",
        "profile": "show where the time of a kernel goes: machine code, ncu, nsys, ranges inside it",
        "bench": "time a kernel beside its reference and baselines",
        "tune": "find the fastest config of a kernel for a problem",
        "report": "show what the journals of a folder say: rooflines, sweeps, tuning, failures; one page, or CSV",
    },
    "ship": {
        "export": "write a function as an object file for C, C++ and TVM-FFI, for several architectures",
        "mcp": "serve these verbs to agents, by the Model Context Protocol",
    },
    "look up": {
        "kb": "search what is known about kernels, measure its claims anew, add to it",
        "draw": "draw a layout, or a thread-value layout on its tile, as SVG or LaTeX",
        "devices": "show known GPUs, measure what this machine's reach, lock their clocks",
        "opt": "run passes of a target on the text of a module, and print it",
        "cache": "show what the cache of compiled code holds, or empty it",
        "completion": "print a script with which bash, zsh or fish completes kiln's verbs and options",
    },
}
"""The verbs, by what people do with them."""
VERBS = {verb: what for verbs in GROUPS.values() for verb, what in verbs.items()}

MODULES = {"import": "scaffold.import_program", "new": "scaffold.new"}
"""Verbs whose modules have other names."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, without the command's own name; the default is this process's."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(usage(), file=sys.stderr)
        return 2
    verb = words[0]
    rest = words[1:]
    if verb in ("-h", "--help", "help"):
        print(usage())
        return 0
    if verb in ("-V", "--version", "version"):
        print(f"kiln {kiln.__version__}")
        return 0
    if verb not in VERBS:
        from .core.text import did_you_mean

        meant = did_you_mean(verb, VERBS)
        if os.path.isfile(verb):
            meant = f"to run it: kiln run {verb}"
        print(f"kiln: no verb {verb!r}; {f'{meant} ' if meant else ''}there are: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    result_file = os.environ.pop("_KILN_RESULT", None)  # then this process runs for the answer of another one
    if result_file is not None or any(word.startswith("--json") for word in rest):
        from .core import answers

        answers.result_file[:] = [result_file] if result_file else []
        target, asked = answers.split(verb, rest)
        if target is not None and result_file is None:
            return answers.answer(verb, asked, target)
    # Only the chosen verb is imported: some of them load a compiler.
    try:
        module = module_of(verb)
    except KeyboardInterrupt:
        return 130
    try:
        status = module.main(rest)
        sys.stdout.flush()
    except BrokenPipeError:
        if verb == "run" or not _nobody_reads():
            raise
        return 141
    if argv is None and verb != "run":  # the process ends: an interrupt must not print a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


def _nobody_reads() -> bool:
    """Return whether the reader of standard output is gone (`kiln report --csv - | head`); drop the rest if so."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def module_of(verb: str) -> ModuleType:
    """Return the module of a verb."""
    return importlib.import_module(f"kiln.workbench.{MODULES.get(verb, verb)}")


def usage() -> str:
    """Return the help of the command itself, with colours on a terminal."""
    width = max(map(len, VERBS))
    verb, plain = ("\x1b[36m", "\x1b[0m") if coloured() else ("", "")
    groups = "\n".join(
        f"{group}:\n" + "\n".join(f"  {verb}{name:<{width}}{plain}  {what}" for name, what in verbs.items())
        for group, verbs in GROUPS.items()
    )
    more = "`kiln VERB --help` tells more; with --json every verb writes one JSON object; `kiln --version`."
    return f"usage: kiln VERB [...]\n\n{groups}\n\n{more}"
