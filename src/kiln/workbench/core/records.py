"""Records of what the workbench measured and checked: lines of JSON in an append-only journal.

A `Record` says what was done to which Case, Problem and Config, how it ended and which command repeats it. Reports,
resumed runs and comparisons read the journal; there is no second store.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cases import Case

VERSION = 1

STATUSES = {
    "ok": "did what was asked",
    "invalid": "the config was refused, with reasons, before anything was compiled",
    "pruned": "not measured: others were predicted to be faster",
    "ranked": "compiled and ranked, not measured: there is no GPU",
    "compile_error": "does not compile",
    "compile_timeout": "the compiler did not end in time",
    "compile_crash": "the compiler ended the process",
    "no_fit": "needs more registers, shared memory or threads than the GPU has",
    "wrong": "the results are wrong",
    "nondeterministic": "the same inputs gave different bits",
    "cheat": "a check against self-deception failed",
    "error": "raised an exception",
    "device_error": "the GPU reported an error",
    "timeout": "did not end in time",
    "crash": "ended the process",
    "oom": "took more memory than allowed",
    "lost": "the machine was lost; tried again at the next run",
    "skipped": "not possible here",
    "predicted": "not measured: there is no GPU, and the clock says what it takes on one",
}
"""The statuses with which a job can end, and their meanings."""
FAILED = frozenset(STATUSES) - {"ok", "invalid", "pruned", "predicted", "ranked", "no_fit", "skipped"}
"""Statuses of jobs that did not do what they should."""


@dataclass
class Record:
    """One thing that was done. `problem`, `config`, `error` and `more` hold JSON values only."""

    kind: str
    """`verify`, `bench`, `tune` or `profile`."""
    key: str
    """A hash of everything the result depends on (`cases.key_of`)."""
    case: str
    problem: dict[str, Any]
    config: dict[str, Any] | None
    status: str
    us: list[float] | None = None
    """Microseconds: low end of the confidence interval, median, high end."""
    n: int = 0
    """The number of samples."""
    protocol: str = ""
    env: dict[str, Any] = field(default_factory=dict)
    clock: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    """`type`, `message` and `line` of the failure."""
    again: str = ""
    """The command line that repeats it."""
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"no status {self.status!r}; there are: {', '.join(STATUSES)}")

    def to_json(self) -> str:
        """Return the record as one line, without a newline."""
        return json.dumps({"v": VERSION, **dataclasses.asdict(self)}, separators=(",", ":"), allow_nan=True)

    @staticmethod
    def from_json(line: str | bytes) -> Record:
        """Return the Record of a line; raise ValueError if it is none. Unknown fields are ignored."""
        record = json.loads(line)
        if not isinstance(record, dict) or "v" not in record:
            raise ValueError("no record")
        try:
            return Record(**{name: value for name, value in record.items() if name in _FIELDS})
        except TypeError as missing:
            raise ValueError(str(missing)) from None


_FIELDS = frozenset(each.name for each in dataclasses.fields(Record))


class Journal:
    """`records.jsonl` in a folder, created with the first record. Any number of processes may write to it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = Path(folder)
        self.file: Path = self.folder / "records.jsonl"

    def append(self, record: Record) -> None:
        """Write a record; once this returns, it survives the end of the process and of the machine."""
        line = record.to_json().encode() + b"\n"
        self.make_folder()
        # Reads as well: the byte before says whether another process's last line was torn.
        descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise OSError(f"{self.file}: the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> tuple[list[Record], int]:
        """Return all records in the order they were written, and how many lines are torn or foreign."""
        try:
            lines = self.file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], 0
        records: list[Record] = []
        torn = 0
        for line in lines:
            if not line.strip():
                continue
            try:
                records.append(Record.from_json(line))
            except ValueError:  # no JSON, no UTF-8 or no record
                torn += 1
        return records, torn

    def by_key(self) -> dict[str, Record]:
        """Return the last record of each key."""
        return {record.key: record for record in self.read()[0]}

    def make_folder(self) -> None:
        """Create the folder with a `.gitignore`, if it is missing."""
        if self.folder.is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / ".gitignore").write_text("# Made by kiln; what is worth keeping is in tuned.json.\n*\n")


def journal_of(case: Case) -> Journal:
    """Return the journal beside a Case's file; in the current folder if that file is installed or not writable."""
    beside = Path(case.file).resolve().parent if case.file else Path.cwd()
    installed = "site-packages" in beside.parts or not os.access(beside, os.W_OK)
    if installed or Path(__file__).resolve().parents[2] in (beside, *beside.parents):
        beside = Path.cwd()
    return Journal(beside / ".kiln")
