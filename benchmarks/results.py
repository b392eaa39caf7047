"""Pages of docs/data: result tables that benchmarks print row by row and write with `--save`.

A program declares its tables as constants and its page once:

    PREFILL = Table("Prefill", ("batch", "seqlen", "cuDNN us", "Kiln us"))
    PAGE = Page(__file__, "Attention forward", PREFILL, DECODE)

`PREFILL.add(...)` prints a row, with the header before the first; `PAGE.finish(save)` writes `docs/data/<program>.md`.
Tables that this run did not measure stay as they are on the page. A page has tables only: what they teach is written
in docs/knowledge. `tests/test_data_pages.py` compares each page with the declarations of its program.
"""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data"


def environment() -> str:
    """Return date, machine, versions and commit, as they are written above a table."""
    parts = [datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()]
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        parts += [torch.cuda.get_device_name(), f"CUDA {torch.version.cuda}"]
    else:
        parts.append(platform.machine())
    parts += [f"PyTorch {torch.__version__}"] if torch is not None else []
    parts.append(f"Python {platform.python_version()}")
    found = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return ", ".join(parts + ([f"commit {found.stdout.strip()}"] if found.returncode == 0 else []))


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

    def recorded(self) -> Recorded:
        return Recorded(self.title, environment(), self.columns, tuple(self.rows))


class Page:
    """The page of docs/data that a program writes."""

    def __init__(self, program: str, title: str, *tables: Table) -> None:
        self.program, self.title, self.tables = Path(program).resolve(), title, tables
        self.path = DATA / f"{self.program.stem}.md"

    def text(self, known: dict[str, Recorded]) -> str:
        """Return the page: the tables with rows, and those that are known from before."""
        shown = {table.title: table.recorded() if table.rows else known.get(table.title) for table in self.tables}
        return page_text(self.program.relative_to(ROOT), self.title, [table for table in shown.values() if table])

    def restore(self) -> None:
        """Begin with the rows that the page has, for a program whose runs add rows."""
        for known in parse(self.path.read_text()).tables if self.path.exists() else []:
            next(table for table in self.tables if table.title == known.title).rows[:] = known.rows

    def finish(self, save: bool) -> None:
        """Write the page if `save` says so."""
        if save:
            before = parse(self.path.read_text()).tables if self.path.exists() else []
            self.path.write_text(self.text({table.title: table for table in before}))
            print(f"\n{self.path.relative_to(ROOT)} is written")


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
