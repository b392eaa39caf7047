"""`kiln completion SHELL`: prints a script with which a shell completes the verbs and options of `kiln`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .core.options import Parser, raw_formatter
from .main import VERBS, module_of

PLACES = {
    "bash": "~/.local/share/bash-completion/completions/kiln",
    "zsh": "~/.zfunc/_kiln",
    "fish": "~/.config/fish/completions/kiln.fish",
}
"""The shells, and the files in which they look for completions. zsh looks in the folders of its `fpath`."""

_FILES = ("FILE", "FILE|-", "FILE.py:FUNCTION", "CASE", "PAGE", "SVG", "PROGRAM")
_FOLDERS = ("DIR", "FOLDER")


def main(argv: Sequence[str]) -> int:
    shell = make_parser().parse_args(argv).shell
    try:
        import shtab
    except ModuleNotFoundError:
        print("kiln completion needs shtab: pip install shtab", file=sys.stderr)
        return 3
    print(shtab.complete(_whole_command(), shell))
    return 0


def _whole_command() -> argparse.ArgumentParser:
    """Return one parser of all verbs, which says where a file or a folder is meant."""
    whole = argparse.ArgumentParser(prog="kiln")
    whole.add_argument("--version", "-V", action="version", help="print the version")
    verbs = whole.add_subparsers()
    for verb, what in VERBS.items():
        own = module_of(verb).make_parser()
        if verb in ("run", "inspect"):  # these split off the program and its arguments before they parse
            own.add_argument("program", metavar="PROGRAM")
        _mark_files(own)
        verbs.add_parser(verb, help=what, parents=[own], add_help=False)
    return whole


def _mark_files(parser: Any) -> None:
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _mark_files(child)
            continue
        if isinstance(action.choices, dict):  # which shtab takes for subcommands
            action.choices = tuple(action.choices)
        if action.metavar in _FILES:
            action.complete = shtab.FILE
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY


def make_parser() -> argparse.ArgumentParser:
    lines = [f"  {shell:<5} kiln completion {shell} > {place}" for shell, place in PLACES.items()]
    parser = Parser(
        prog="kiln completion",
        description="Print a script with which a shell completes the verbs and options of kiln.",
        formatter_class=raw_formatter,
        epilog="to install it:\n" + "\n".join(lines),
    )
    parser.add_argument("shell", choices=PLACES, help="the shell that is to read the script")
    return parser
