"""Pages of docs/data: result tables that benchmarks print row by row and write with `--save`.

A program declares its tables as constants and its page once:

    PREFILL = Table("Prefill", ("batch", "seqlen", "cuDNN us", "Kiln us"))
    PAGE = Page(__file__, "Attention forward", PREFILL, DECODE)

`PREFILL.add(...)` prints a row, with the header before the first; `PAGE.finish(save)` writes `docs/data/<program>.md`.
Tables that this run did not measure stay as they are on the page. A table with a `commit` column keeps its rows one by
one: a run replaces those with the first two cells that it measured, and several runs may do so at a time. A page has tables
only: what they teach is written in docs/knowledge. `make lint` compares each page with the declarations of its program.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data"


def commit() -> str | None:
    """Return the commit of the working tree, or None where git or the repository is missing."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def environment(machine: str | None = None) -> str:
    """Return date, machine and versions, as they are written above a table."""
    parts = [datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()]
    torch: Any = sys.modules.get("torch")
    if machine is not None:
        parts.append(machine)
    elif torch is not None and torch.cuda.is_available():
        parts += [torch.cuda.get_device_name(), f"CUDA {torch.version.cuda}"]
    else:
        parts.append(platform.machine())
    parts += [f"PyTorch {torch.__version__}"] if torch is not None else []
    return ", ".join([*parts, f"Python {platform.python_version()}"])


class Recorded(NamedTuple):
    """A table as it stands on a page: where it was measured, and its cells."""

    title: str
    environment: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return f"## {self.title}\n\n{self.environment}\n\n{table}\n"


class Table:
    """A table that a program fills: its columns are fixed, its rows are printed as they come."""

    order: Sequence[tuple[str, ...]] = ()
    """The first two cells in the order in which rows with a commit stand on the page; other rows come last."""
    machine: str | None = None
    """The machine as it is written above the table; by default PyTorch's GPU, or else the processor."""

    def __init__(self, title: str, columns: tuple[str, ...]) -> None:
        self.title, self.columns, self.rows = title, columns, list[tuple[str, ...]]()

    def add(self, *cells: Any) -> None:
        """Print a row. Text is written as it is, None as `-`."""
        row = tuple("-" if cell is None else str(cell) for cell in cells)
        if len(row) != len(self.columns):
            raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns: {row}")
        if not self.rows:
            print(f"\n{self.title}\n| {' | '.join(self.columns)} |\n{'|---' * len(self.columns)}|")
        self.rows.append(row)
        print(f"| {' | '.join(row)} |", flush=True)

    def recorded(self, known: Recorded | None) -> Recorded | None:
        """Return the table as it stands on the page after this run; `known` is what the page has of it."""
        if not self.rows:
            return known
        if self.columns[-1] != "commit":
            parts = [environment(self.machine), *([f"commit {found}"] if (found := commit()) else [])]
            return Recorded(self.title, ", ".join(parts), self.columns, tuple(self.rows))
        rows = {row[:2]: row for row in (*(known.rows if known else ()), *self.rows)}
        place = {cells: number for number, cells in enumerate(self.order)}
        rows = sorted(rows.values(), key=lambda row: place.get(row[:2], len(place)))
        newest = f"{environment(self.machine)} (newest row; each row names its commit)"
        return Recorded(self.title, newest, self.columns, tuple(rows))


class Page:
    """The page of docs/data that a program writes."""

    def __init__(self, program: str, title: str, *tables: Table) -> None:
        self.program, self.title, self.tables = Path(program).resolve(), title, tables
        self.path = DATA / f"{self.program.stem}.md"

    def restore(self) -> None:
        """Begin with the rows that the page has, for a program whose runs add rows."""
        for known in self.known():
            next(table for table in self.tables if table.title == known.title).rows[:] = known.rows

    def write(self) -> None:
        """Write the page: this run's rows, and the rest as the file has it now, whoever wrote it in the meantime."""
        with _locked(self.path.parent):
            known = {table.title: table for table in self.known()}
            shown = [table.recorded(known.get(table.title)) for table in self.tables]
            text = page_text(self.program.relative_to(ROOT), self.title, [table for table in shown if table])
            new = self.path.with_suffix(".new")
            new.write_text(text)
            new.replace(self.path)

    def finish(self, save: bool) -> None:
        """Write the page if `save` says so."""
        if save:
            self.write()
            print(f"\n{self.path.relative_to(ROOT)} is written")

    def known(self) -> list[Recorded]:
        """Return the tables that the page has."""
        return parse(self.path.read_text()).tables if self.path.exists() else []


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process has locked a folder, and hold its lock."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def page_text(program: Path, title: str, tables: list[Recorded]) -> str:
    """Return a page: the command that wrote it, a title, and tables."""
    head = f"<!-- Written by `python {program.as_posix()} --save`; not edited by hand. -->\n\n# {title}\n\n"
    return head + "\n".join(table.text for table in tables)


class Parsed(NamedTuple):
    """A page that was read: the program that wrote it, its title and tables."""

    program: Path
    title: str
    tables: list[Recorded]

    @property
    def text(self) -> str:
        return page_text(self.program, self.title, self.tables)


def parse(text: str) -> Parsed:
    """Read a page. `ValueError` if it does not name its command."""
    named = re.match(r"<!-- Written by `python (\S+) --save`", text)
    if named is None:
        raise ValueError("the first line does not say which command wrote the page")
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    tables = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        measured, _, table = rest.strip("\n").partition("\n")
        rows = [tuple(line[2:-2].split(" | ")) for line in table.strip().splitlines()]
        tables.append(Recorded(heading, measured, rows[0], tuple(rows[2:])))
    return Parsed(Path(named[1]), title[1] if title else "", tables)
