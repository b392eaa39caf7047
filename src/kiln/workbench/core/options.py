"""Declares the options of a command line, a line each."""

from __future__ import annotations

from typing import Any


def option(parser: Any, names: str, help: str, **settings: Any) -> None:
    """Add an option that takes a value: `option(parser, "-o --output FILE", "the file to write")`."""
    words = names.split()
    flags = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(flags) :])
    parser.add_argument(*flags, help=help, **({"metavar": metavar} if metavar else {}), **settings)


def flag(parser: Any, names: str, help: str) -> None:
    """Add an option that is present or absent."""
    parser.add_argument(*names.split(), action="store_true", help=help)
