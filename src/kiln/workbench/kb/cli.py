"""`kiln kb`: the knowledge base about kernels, with claims that are measured.

kiln kb WORDS                search pages, documentation, errors and examples: path and line; also kiln kb search WORDS
kiln kb show NAME            a page
kiln kb examples --goal G    what to read, in which order
kiln kb check [NAME ...]     measure the claims of pages anew, write their tables
kiln kb new NAME             begin a page; --from KEY takes its claim from the journal
kiln kb index [--check]      write docs/knowledge/README.md
kiln kb log CASE -m TEXT     add to the kernel's devlog in docs/kernels
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base_dsl import packages
from ..core import answers
from ..core.command_line import EXIT, progress, report_errors
from ..core.options import Parser, flag, option
from ..core.runners import Inline, Local
from ..core.text import did_you_mean
from . import claims, devlog
from . import pages as kb_pages
from . import search as kb_search
from .pages import PageError

_VERBS = ("search", "show", "new", "index", "check", "examples", "log")
_NO_PAGES = (
    "There is no knowledge base here: no docs/knowledge in this folder or above it, and this copy of Kiln lacks its own "
    "pages, which checkouts and wheels have. --folder names a project."
)


@report_errors
def main(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in _VERBS:
        argv = ["search", *argv]
    args = make_parser().parse_args(argv)
    if args.do is _search:
        args.words = [word for words in args.words for word in words.split()]  # quoted ones are words, too
    if args.do in (_index, _check, _new):
        try:
            packages.load("yaml")
        except ImportError:
            print(f"kiln kb {args.verb} reads heads of pages: pip install PyYAML", file=sys.stderr)
            return EXIT.NOT_HERE
    folder = kb_pages.root(Path(args.folder) if args.folder else None)
    try:
        return args.do(args, folder)
    except PageError as error:
        print(f"kiln kb: {error}", file=sys.stderr)
        return EXIT.BAD_USE


def _search(args: argparse.Namespace, folder: Path) -> int:
    folders = kb_pages.read_from(folder)
    if not folders:
        print(_NO_PAGES, file=sys.stderr)
        return EXIT.NOT_HERE
    places = kb_search.search((place for each in folders for place in kb_search.places(each)), args.words)
    if not places:
        looked = ", ".join(kb_pages.shown(each / "docs") for each in folders)
        print(f"nothing in {looked} has {' or '.join(map(repr, args.words))}", file=sys.stderr)
        return 1
    answers.put([{"file": str(p.path), "line": p.line, "title": p.title, "name": p.path.stem} for p in places])
    for place in places:
        print(f"{kb_pages.shown(place.path)}:{place.line}: {place.title}")
        if excerpt := _excerpt(place.text, args.words):
            print(f"    {excerpt}")
    return 0


def _excerpt(text: str, words: list[str]) -> str:
    skipped = ("```", "|--", "The whole program")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(skipped)]
    has = lambda line: (sum(word.lower() in line.lower() for word in words), not line.startswith("|"))
    best = max(lines, key=has, default="")  # a sentence rather than a row of a table
    return best if len(best) <= 140 else best[:137] + "..."


def _show(args: argparse.Namespace, folder: Path) -> int:
    folders = kb_pages.read_from(folder)
    if not folders:
        print(_NO_PAGES, file=sys.stderr)
        return EXIT.NOT_HERE
    pages = [path for each in folders for path in kb_pages.files(each)]
    docs = [path for each in folders for path in sorted((each / "docs").glob("**/*.md")) if path not in pages]
    path = kb_pages.path_of([*pages, *docs], args.name)
    text = path.read_text()
    body = text.split("---\n", 2)[2].strip() if text.startswith("---\n") else text.strip()
    answers.put({"file": str(path), "markdown": body})
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(body))
    else:
        print(f"{kb_pages.shown(path)}\n\n{body}")
    return 0


def _index(args: argparse.Namespace, folder: Path) -> int:
    text = kb_pages.index(folder)
    path = folder / kb_pages.INDEX
    if args.check:
        current = path.is_file() and path.read_text() == text
        if not current:
            print(f"{kb_pages.shown(path)} is not what the pages say: run `kiln kb index`", file=sys.stderr)
        return 0 if current else 1
    path.write_text(text)
    print(f"{kb_pages.shown(path)}: {len(kb_pages.pages(folder))} pages")
    return 0


def _check(args: argparse.Namespace, folder: Path) -> int:
    pages = [kb_pages.find(folder, name) for name in args.names] or kb_pages.pages(folder)
    check = claims.ClaimCheck(pages, folder, args.metric.split(",") if args.metric else ())
    results = check.results
    if not results:
        print("kiln kb check: there is no claim to measure", file=sys.stderr)
        return EXIT.FAILED
    try:
        with Inline() if args.inline else Local(jobs=args.jobs) as runner:
            with progress(len(check), "measured", args.quiet) as tell:
                check.run(runner, tell)
    finally:  # an interruption loses no results
        if not args.no_write:
            for page in pages:
                rows = [result.row() for owner, result in results if owner is page and result.measured]
                text = page.written({f"{row[0]} {row[4]}": row for row in rows})
                if text != page.text:
                    page.path.write_text(text)
    for page, result in results:
        if result.skipped:
            continue
        place = f"{kb_pages.shown(page.path)}:{result.claim.line}"
        if not result.holds:
            print(f"{place}: does not hold: {result.claim}: found {_value(result)}{result.note}")
        elif not args.quiet:
            print(f"{place}: holds: {result.claim}: {_value(result)}")
    wrong = sum(not result.holds and not result.skipped for _, result in results)
    skipped = [result.why for _, result in results if result.skipped]
    counts = f"{len(results) - wrong - len(skipped)} hold, {wrong} do not, {len(skipped)} skipped"
    print(f"{len(results)} claims of {len(pages)} pages: {counts}" + (f" ({skipped[0]})" if skipped else ""))
    return EXIT.FAILED if wrong else EXIT.NOT_HERE if len(skipped) == len(results) else EXIT.GOOD


def _value(result: Any) -> str:
    before = f" (before: {result.before})" if result.before is not None else ""
    return f"{result.value!r}{before}"


def _new(args: argparse.Namespace, folder: Path) -> int:
    kind = args.kind
    if not args.name.replace("-", "").isalnum() or args.name != args.name.lower():
        print(f"kiln kb new: {args.name!r}: a name is lower-case words with hyphens between them", file=sys.stderr)
        return 2
    path = folder / kb_pages.KINDS[kind] / f"{args.name}.md"
    if path.exists():
        print(f"kiln kb new: {kb_pages.shown(path)} exists", file=sys.stderr)
        return 2
    evidence = [{"claim": "TODO", "case": "TODO", "metric": "TODO", "expect": "TODO"}]
    source = "TODO"
    if args.key:
        evidence, source = devlog.claim_of(args.key, Path(args.journal), folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(kb_pages.new(args.title or args.name.replace("-", " ").capitalize(), kind, evidence, source))
    print(f"{kb_pages.shown(path)}: fill in what says TODO, then `kiln kb check {args.name}` and `kiln kb index`")
    return 0


def _examples(args: argparse.Namespace, folder: Path) -> int:
    folders = [each for each in kb_pages.read_from(folder) if kb_search.examples(each)["examples"]]
    if not folders:
        print(_NO_PAGES, file=sys.stderr)
        return EXIT.NOT_HERE
    listed = kb_search.examples(folders[0])
    if args.goal is None:
        print("goals:")
        for goal, path in listed["paths"].items():
            print(f"  {goal:<18} {path['about']}")
        print("\n`kiln kb examples --goal GOAL` says what to read, in which order; --all lists every example.")
        if not args.all:
            return 0
        chosen = listed["examples"]
    else:
        if args.goal not in listed["paths"]:
            hint = did_you_mean(args.goal, listed["paths"]) or f"there are: {', '.join(listed['paths'])}"
            print(f"kiln kb examples: no goal {args.goal!r}; {hint}", file=sys.stderr)
            return 2
        by_path = {example["path"]: example for example in listed["examples"]}
        chosen = [by_path[path] for path in listed["paths"][args.goal]["read"]]
        print(listed["paths"][args.goal]["about"])
    for number, example in enumerate(chosen, 1):
        print(f"{number:3}. {example['path']}  [{example['arch']}]")
        print(f"     {example['teaches']}\n     runs on Kiln: {example['runs']}")
    return 0


def _log(args: argparse.Namespace, folder: Path) -> int:
    print(devlog.log(args.case, args.message, args.patterns, folder))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln kb",
        description="Search the knowledge base, measure its claims anew, and add to it.",
        epilog="Exit status: 0 all is well; 1 a claim does not hold, the index is not current, or nothing was found; "
        "2 a page is malformed; 3 everything needs a device that is not here.",
    )
    option(parser, "--folder", "the project's folder; by default the nearest one up from here with docs/knowledge")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(_VERBS))

    def verb(name: str, do: object, what: str) -> argparse.ArgumentParser:
        parser = verbs.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        parser.set_defaults(do=do)
        return parser

    search = verb("search", _search, "find pages, documentation, errors and examples by words")
    search.add_argument("words", nargs="+", metavar="WORD")
    verb("show", _show, "show a page of the knowledge base or of the documentation").add_argument(
        "name", metavar="NAME"
    )
    index = verb("index", _index, "write the index of all pages")
    flag(index, "--check", "only say whether it is current")
    check = verb("check", _check, "measure the claims of pages anew, and write what was found into their tables")
    check.add_argument("names", nargs="*", metavar="NAME", help="pages; by default all")
    flag(check, "--no-write", "leave the pages as they are")
    option(check, "--metric", "only claims about these metrics, with commas between them")
    option(check, "--jobs", "processes that measure what needs no GPU (1)", type=int, default=1)
    flag(check, "--inline", "measure in this process: quicker, and a crash ends it")
    flag(check, "--quiet", "print only claims that do not hold")
    new = verb("new", _new, "begin a page")
    new.add_argument("name", metavar="NAME", help="words with hyphens between them")
    option(new, "--kind", "the kind of page (optimization)", choices=kb_pages.KINDS, default="optimization")
    option(new, "--title", "the heading of the page; by default the name as words")
    option(new, "--from KEY", "take the claim from the journal's record with this key", dest="key")
    option(new, "--journal", "the folder of the journal (.kiln)", default=".kiln")
    shown = verb("examples", _examples, "say what to read to learn something, in which order")
    option(shown, "--goal", "what to learn; without it, the goals are listed")
    flag(shown, "--all", "list every example")
    log = verb("log", _log, "add an entry to a kernel's devlog in docs/kernels")
    log.add_argument("case", metavar="CASE", help="a contract module or plan, as the other verbs take it")
    option(log, "-m --message", "what was done, and what came of it", required=True)
    option(log, "--patterns NAME", "pages of the knowledge base that were used", nargs="*", default=[])
    return parser
