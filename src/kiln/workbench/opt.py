"""`kiln opt`: runs passes of a target on a module's text and prints the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln import DSLBaseError
from kiln.base_dsl.target import Target, get_target
from kiln.hardware.architectures import DEFAULT, Arch

from .core.options import Parser, option

TARGETS = ("nvidia", "cpu")


def main(argv: Sequence[str]) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    target = get_target(args.target)
    names = [name.strip().replace("_", "-") for name in args.passes.split(",") if name.strip()]
    if not names:
        print(listing(target))
        return 0
    if args.file is None:
        parser.error("a FILE is needed to run passes on; - for standard input")
    if args.arch not in Arch.__members__:
        parser.error(f"argument --arch: {args.arch!r} is none of {', '.join(Arch.__members__)}")
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as failure:
        print(f"kiln opt: cannot read {args.file}: {failure}", file=sys.stderr)
        return 2
    try:
        print(target.run_passes(text, names, args.arch), end="")
    except DSLBaseError as failure:
        print(f"kiln opt: {failure}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln opt",
        description="Run passes on a module of MLIR and print the module. Without --pass, list the passes.",
    )
    option(parser, "--pass NAME[,NAME]", "the passes to run, in order", dest="passes", default="")
    option(parser, "--target", "the target whose passes they are (nvidia)", choices=TARGETS, default="nvidia")
    option(parser, "--arch", f"the GPU architecture to lower for ({DEFAULT})", default=DEFAULT)
    parser.add_argument("file", nargs="?", help="the text of a module; - for standard input")
    return parser


def listing(target: Target) -> str:
    """Return the passes of a target, one to a line."""
    passes = target.passes()
    width = max(map(len, passes))
    return "\n".join(f"{name:<{width}}  {what}" for name, what in passes.items())
