"""`kiln report`: shows what the journals say, as one page with figures, as CSV or as JSON."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ...base_dsl import packages
from ..core import source_closure
from ..core.command_line import EXIT
from ..core.options import Parser, option
from ..core.records import Journal, Record
from . import model as report_model
from . import page


def main(argv: Sequence[str]) -> int:
    """Run the verb."""
    parser = make_parser()
    args = parser.parse_args(argv)
    folder = Path(args.folder)
    if not folder.exists():
        parser.error(f"there is no folder {folder}")
    records, torn = read(folder)
    if args.case:
        cases = sorted({record.case for record in records})
        records = [record for record in records if record.case == args.case]
        if not records and cases:
            parser.error(f"no records of {args.case!r}; there are: {', '.join(cases)}")
    if not records:
        print(f"kiln report: no records below {folder}; verify, bench, tune and profile write them", file=sys.stderr)
        return EXIT.FAILED
    if args.csv:
        table = io.StringIO(newline="")
        csv.writer(table).writerows([report_model.COLUMNS, *report_model.rows(records)])
        _write(args.csv, table.getvalue())
    if args.json:
        data = {"torn": torn, "records": [dataclasses.asdict(record) for record in records]}
        _write(args.json, json.dumps(data, indent=2) + "\n")
    if args.output or not (args.csv or args.json):
        return _write_page(args.output or "report.html", folder, records, torn)
    return EXIT.GOOD


def read(folder: Path) -> tuple[list[Record], int]:
    """Return the records of all journals in a folder and below it, and how many lines are torn."""
    read = [journal.read() for journal in _journals(folder)]
    return [record for records, _ in read for record in records], sum(torn for _, torn in read)


def _journals(folder: Path) -> list[Journal]:
    own = folder / "records.jsonl"
    files = [own] if own.is_file() else sorted(folder.rglob(".kiln/records.jsonl"))
    return [Journal(file.parent) for file in files]


def present_sources(folder: Path) -> dict[str, str]:
    """Return the digest of each Case's source as it is now, where its file still lies beside the journal."""
    digests: dict[str, str] = {}
    for journal in _journals(folder):
        for record in journal.read()[0]:
            where = [*shlex.split(record.again), "", "", ""][2]  # kiln VERB FILE.py:NAME
            file = journal.folder.resolve().parent / re.sub(r":\w+$", "", Path(where).name)
            if record.case not in digests and "source" in record.more and file.is_file():
                digests[record.case] = source_closure.digest(source_closure.source_files(file))
    return digests


def _write_page(output: str, folder: Path, records: list[Record], torn: int) -> int:
    try:
        packages.load("plotly")
        from plotly.offline import get_plotlyjs  # an optional package
    except ImportError:
        hint = "pip install plotly, or write the records with --csv FILE"
        print(f"kiln report: figures need plotly: {hint}", file=sys.stderr)
        return EXIT.NOT_HERE
    model = report_model.build(records, torn, present_sources(folder))
    _write(output, page.page(model, folder.resolve().name or str(folder), get_plotlyjs()))
    cases = ", ".join(f"{case['name']} ({case['records']})" for case in model["cases"])
    print(f"{output}: {cases}" + (f"; {torn} torn lines left out" if torn else ""))
    return EXIT.GOOD


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8", newline="")


def make_parser() -> argparse.ArgumentParser:
    description = (
        "Show what the journals in a folder and below it (.kiln/records.jsonl) say, on one page that needs no network: "
        "rooflines, sweeps, the history of tuning, failures and how to repeat them, environments."
    )
    parser = Parser(prog="kiln report", description=description)
    parser.add_argument("folder", metavar="DIR", nargs="?", default=".", help="where to look (the current folder)")
    option(parser, "-o --output FILE", "the page to write (report.html)")
    option(parser, "--csv FILE|-", "write one row for each record")
    option(parser, "--json FILE|-", "write the records")
    option(parser, "--case NAME", "only records of this Case")
    return parser
