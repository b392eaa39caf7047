"""`kiln inspect`: runs a program on the CPU target and says what its kernels do."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from . import run


def main(argv: Sequence[str]) -> int:
    options, program = run.split(argv, ("--json",))
    parser = _parser()
    args = parser.parse_args(options)
    if not args.bank_conflicts:
        parser.error("say what to look at: --bank-conflicts")
    if not program or program == ["-m"]:
        parser.error("name a program to run: a file, `-m module`, or `-` for standard input")
    os.environ["KILN_SANITIZE"] = "banks"
    os.environ["KILN_BANK_CONFLICTS_REPORT"] = os.path.abspath(args.json) if args.json else "-"
    return run.main(["--target", "cpu", "--", *program])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kiln inspect",
        usage="kiln inspect --bank-conflicts [--json FILE] (PROGRAM.py | -m MODULE | -) [ARGS ...]",
        description="Run a Python program on the CPU target, as `kiln run` does, and say at its end what its kernels did.",
    )
    parser.add_argument(
        "--bank-conflicts",
        action="store_true",
        help="count bank conflicts of shared memory, for each line that accesses it",
    )
    parser.add_argument("--json", metavar="FILE", help="write the counts to FILE as JSON instead of printing a table")
    return parser
