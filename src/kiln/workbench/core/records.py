"""What the workbench finds out, one line of JSON each, in a journal that nothing is ever removed from.

A `Record` says what was done to which Case, Problem and Config, how it ended and which command does it again. Reports,
resumed runs and comparisons are readings of the journal; there is no second store.
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
}
"""How a job can end, and what that means."""


@dataclass
class Record:
    """One thing that was done. `problem`, `config`, `error` and `more` hold JSON values only."""

    kind: str
    """`verify`, `bench`, `tune` or `profile`."""
    key: str
    """Of everything the result depends on (`cases.key_of`)."""
    case: str
    problem: dict[str, Any]
    config: dict[str, Any] | None
    status: str
    us: list[float] | None = None
    """Microseconds: the low end of the interval, the median, the high end."""
    n: int = 0
    """Samples the time is made of."""
    protocol: str = ""
    env: dict[str, Any] = field(default_factory=dict)
    clock: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    """`type`, `message`, `line` of what went wrong."""
    again: str = ""
    """A command line that does it again."""
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"no status {self.status!r}; there are: {', '.join(STATUSES)}")

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps({"v": VERSION, **dataclasses.asdict(self)}, separators=(",", ":"), allow_nan=True)

    @staticmethod
    def from_json(line: str | bytes) -> Record:
        """The Record of a line; ValueError if it is none. Fields that a later version adds are left out."""
        found = json.loads(line)
        if not isinstance(found, dict) or "v" not in found:
            raise ValueError("no record")
        try:
            return Record(**{name: value for name, value in found.items() if name in _FIELDS})
        except TypeError as missing:
            raise ValueError(str(missing)) from None


_FIELDS = frozenset(each.name for each in dataclasses.fields(Record))


class Journal:
    """`records.jsonl` in a folder, which is made when the first record comes. Any number of processes may write to it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.file = self.folder / "records.jsonl"

    def append(self, record: Record) -> None:
        """Write a record; once this returns, it survives the end of the process and of the machine."""
        line = record.to_json().encode() + b"\n"
        self.make_folder()
        # Read and append: what is there before says whether somebody's last line was torn.
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
        """All records in the order they were written, and how many lines are none: torn, or not ours."""
        try:
            lines = self.file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], 0
        found: list[Record] = []
        torn = 0
        for line in lines:
            if not line.strip():
                continue
            try:
                found.append(Record.from_json(line))
            except ValueError:  # of JSON, of text that is no UTF-8, of a record
                torn += 1
        return found, torn

    def by_key(self) -> dict[str, Record]:
        """The last record of each key."""
        return {record.key: record for record in self.read()[0]}

    def make_folder(self) -> None:
        """Make the folder, with a `.gitignore`, if it is not there."""
        if self.folder.is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / ".gitignore").write_text("# Made by kiln; what is worth keeping is in tuned.json.\n*\n")


def journal_of(case: Case) -> Journal:
    """The journal beside a Case's file; of one in an installed package or a folder that is not ours, in the current folder."""
    beside = Path(case.file).resolve().parent if case.file else Path.cwd()
    installed = "site-packages" in beside.parts or not os.access(beside, os.W_OK)
    if installed or Path(__file__).resolve().parents[2] in (beside, *beside.parents):
        beside = Path.cwd()
    return Journal(beside / ".kiln")
