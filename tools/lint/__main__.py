"""Check words, names, imports, pages and folders of the whole tree: `make lint`, or

    python tools/lint                    # all checks
    python tools/lint rooms names        # some of them
    python tools/lint --lower            # write counts that have become smaller into counts.json
    python tools/lint --list             # the checks, with what they say

Each check reads the tree as text and syntax, and prints the lines that break its rule, with what to write instead. It exits with 1
if there is one. `counts.json` has how often a rule that is not kept everywhere may be broken, by file or room. Numbers there only
shrink: `--lower`, a part of `make format`, writes those that have. To move a file, move its number; nothing raises one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import counted
import data_pages
import english_names
import folders_of_tests
import kernel_imports
import operation_names
import page_names
import peer_tables
import plain_english
import private_words
import room_map
import statements
import type_annotations
import workbench_imports
from source_tree import Problem, Tree

CHECKS: dict[str, Callable[[Tree], Iterator[Problem]]] = {
    "words": private_words.check,
    "names": english_names.check,
    "statements": statements.check,
    "annotations": type_annotations.check,
    "operations": operation_names.check,
    "rooms": room_map.check,
    "kernel-imports": kernel_imports.check,
    "workbench-imports": workbench_imports.check,
    "tests": folders_of_tests.check,
    "english": plain_english.check,
    "pages": page_names.check,
    "data": data_pages.check,
    "peers": peer_tables.check,
}


def main(argv: list[str] | None = None) -> int:
    """Run the checks that are asked for, all of them if none is."""
    parser = argparse.ArgumentParser(prog="tools/lint", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--lower", action="store_true", help="write counts that have become smaller, and check nothing")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--times", action="store_true", help="say how long each check took")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="the tree to check")
    args = parser.parse_args(argv)
    if unknown := {*args.checks} - CHECKS.keys():
        parser.error(f"no check is called {', '.join(sorted(unknown))}; the checks are {', '.join(CHECKS)}")
    if args.list:
        print("\n".join(f"{name:18}{sys.modules[check.__module__].__doc__}" for name, check in CHECKS.items()))
        return 0
    tree = Tree(args.root)
    now = {}
    if args.lower or not args.checks:
        now = {**english_names.counts(tree), **operation_names.counts(tree), **type_annotations.counts(tree)}
    if args.lower:
        print(f"{counted.COUNTS}: {counted.lowered(tree, now)} numbers lowered")
        return 0
    problems: list[Problem] = []
    for name in args.checks or CHECKS:
        start = time.process_time()
        of_check = sorted(CHECKS[name](tree))
        if args.times:
            print(f"{name}: {time.process_time() - start:.1f} s")
        for one in of_check:
            print(f"{one} [{name}]")
        problems += of_check
    if lower := counted.lower(tree, now):
        print(f"{lower} numbers of {counted.COUNTS} have become smaller: `make format` writes them")
    if problems:
        print(f"{len(problems)} lines break a rule", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
