"""`kiln learn`: fifteen lessons that run without a GPU, and their exercises.

kiln learn                    list the lessons
kiln learn start 6 [FOLDER]   write lesson 6 and its exercises into a folder
kiln learn check 6 [FOLDER]   test the exercises of lesson 6
kiln learn hint 6 [EXERCISE]  show hints for an exercise; --solution shows the whole solution
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core.command_line import EXIT
from ..core.options import Parser, flag
from . import checking
from .lessons import Lesson, lessons, notebook


def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    by_number = {lesson.number: lesson for lesson in lessons()}
    if args.verb is None:
        return _list(list(by_number.values()))
    if args.number not in by_number:
        there = (
            f"there are {min(by_number)} to {max(by_number)}" if by_number else "this Kiln is installed without lessons"
        )
        print(f"kiln learn: there is no lesson {args.number}; {there}", file=sys.stderr)
        return EXIT.BAD_USE
    return args.do(args, by_number[args.number])


def _list(listed: list[Lesson]) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("#", "lesson", "minutes", "afterwards you can"):
        table.add_column(name, justify="right" if name in ("#", "minutes") else "left")
    for lesson in listed:
        table.add_row(str(lesson.number), lesson.title, str(lesson.minutes), lesson.can)
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)
    print("`kiln learn start 1` writes a lesson and its exercises into a folder; `kiln learn check 1` tests them.")
    return EXIT.GOOD


def _start(args: argparse.Namespace, lesson: Lesson) -> int:
    """Write what is not there yet; the reader's own files stay as they are."""
    folder = Path(args.folder or _folder(lesson))
    files = {lesson.path.name: lesson.text, f"{lesson.path.stem}.ipynb": notebook(lesson)}
    files |= {f"pictures/{path.name}": path.read_text(encoding="utf-8") for path in lesson.pictures}
    numbers = range(1, len(checking.exercises(lesson.number)) + 1)
    files |= {f"exercise_{number}.py": checking.start_text(lesson.number, number) for number in numbers}
    try:
        for name, text in files.items():
            file = folder / name
            if file.exists():
                print(f"kept  {file}")
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file}")
    except OSError as reason:
        print(f"kiln learn: {reason.filename} cannot be written: {reason.strerror}", file=sys.stderr)
        return EXIT.BAD_USE
    where = f" {args.folder}" if args.folder else ""
    print(f"\nRead {folder / lesson.path.name}, fill in the exercises, then: kiln learn check {lesson.number}{where}")
    return EXIT.GOOD


def _check(args: argparse.Namespace, lesson: Lesson) -> int:
    folder = Path(args.folder) if args.folder else _own_folder(lesson)
    failed = 0
    for number, exercise in enumerate(checking.exercises(lesson.number), 1):
        file = folder / f"exercise_{number}.py"
        if not file.is_file():
            print(f"kiln learn: {file} is not there: kiln learn start {lesson.number} writes it", file=sys.stderr)
            return EXIT.BAD_USE
        wrong = checking.run_check(exercise, file)
        failed += wrong is not None
        print(f"{'FAILED' if wrong is not None else 'passed'}  {file.name}: {exercise.title}")
        if wrong is not None:
            print("\n".join(f"    {line}".rstrip() for line in wrong.splitlines()))
            if file.read_text(encoding="utf-8") == checking.start_text(lesson.number, number):
                print(f"    {file.name} is as `kiln learn start` wrote it: its TODO is yours")
            print(f"    stuck? kiln learn hint {lesson.number} {number}")
    if not failed:
        print(f"\nWell done. You can now {lesson.can}.")
    return EXIT.FAILED if failed else EXIT.GOOD


def _hint(args: argparse.Namespace, lesson: Lesson) -> int:
    there = checking.exercises(lesson.number)
    if args.exercise is not None and not 1 <= args.exercise <= len(there):
        print(f"kiln learn: lesson {lesson.number} has exercises 1 to {len(there)}", file=sys.stderr)
        return EXIT.BAD_USE
    for number in [args.exercise] if args.exercise else range(1, len(there) + 1):
        exercise = there[number - 1]
        print(f"exercise {number}: {exercise.title}")
        print("\n".join(f"  {step}. {hint}" for step, hint in enumerate(exercise.hints, 1)))
        if args.solution:
            print(f"\n{checking.solution(lesson.number, number)}")
    return EXIT.GOOD


def _folder(lesson: Lesson) -> str:
    return f"learn-{lesson.number:02}"


def _own_folder(lesson: Lesson) -> Path:
    """Return the folder that `start` made below this one, or this one if it is the one."""
    return Path(_folder(lesson)) if Path(_folder(lesson)).is_dir() else Path()


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln learn",
        description="Learn to write GPU kernels in fifteen lessons, without a GPU. Without a verb, list them.",
    )
    parser.set_defaults(verb=None)
    verbs = parser.add_subparsers(metavar="start|check|hint")
    for name, do, what in (
        ("start", _start, "write a lesson and its exercises into a folder; nothing that exists is overwritten"),
        ("check", _check, "test the exercises of a lesson, and say which case failed"),
        ("hint", _hint, "show hints for the exercises of a lesson"),
    ):
        verb = verbs.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        verb.set_defaults(verb=name, do=do)
        verb.add_argument("number", metavar="N", type=int, help="the number of the lesson")
        if do is _hint:
            verb.add_argument("exercise", metavar="EXERCISE", type=int, nargs="?", help="1 or 2; by default both")
            flag(verb, "--solution", "show a right solution, too")
        else:
            verb.add_argument("folder", metavar="FOLDER", nargs="?", help="the folder (learn-NN)")
    return parser
