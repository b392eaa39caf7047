"""Declares command lines: parsers whose help is coloured on terminals, and their options, a line each."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def coloured(stream: Any = None) -> bool:
    """Return whether a stream, by default standard output, shows colours: a terminal, or whatever FORCE_COLOR says."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream or sys.stdout).isatty()


def _formatter(prog: str, raw: bool = False) -> argparse.HelpFormatter:
    if coloured():
        try:
            import rich_argparse
        except ModuleNotFoundError:
            pass
        else:
            kind = rich_argparse.RawDescriptionRichHelpFormatter if raw else rich_argparse.RichHelpFormatter
            formatter: Any = kind(prog)
            formatter.text_markup = formatter.help_markup = False  # brackets in our texts are no markup
            return formatter
    return (argparse.RawDescriptionHelpFormatter if raw else argparse.HelpFormatter)(prog)


def raw_formatter(prog: str) -> argparse.HelpFormatter:
    """Return a formatter that keeps the lines of descriptions: a parser's `formatter_class`."""
    return _formatter(prog, raw=True)


class Parser(argparse.ArgumentParser):
    """A parser of a command line whose help has colours on a terminal."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"formatter_class": _formatter, **settings})


def option(parser: Any, names: str, help: str, also: str = "", **settings: Any) -> None:
    """Add an option that takes a value: `option(parser, "-o --output FILE", "the file to write")`.

    `also` is another spelling, which the help does not show.
    """
    words = names.split()
    flags = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(flags) :])
    action = parser.add_argument(*flags, help=help, **({"metavar": metavar} if metavar else {}), **settings)
    if also:
        hidden = {"dest": action.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        parser.add_argument(also, **{**settings, **hidden})


def flag(parser: Any, names: str, help: str) -> None:
    """Add an option that is present or absent."""
    parser.add_argument(*names.split(), action="store_true", help=help)
