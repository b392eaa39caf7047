"""`tuned.json` of a Case: what tuning writes, what others read, and the choice made again from the journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import tunings
from ..core import source_closure
from ..core.environment import environment
from ..core.records import Journal, Record, journal_of
from . import selection

if TYPE_CHECKING:
    from ..core.cases import Case
    from .selection import Decision


@dataclass
class Tuning:
    """What came out of tuning: by problem (as canonical JSON) the decision, and the last Record of every config."""

    case: Case
    decisions: dict[str, Decision] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    finals: dict[str, list[selection.Candidate]] = field(default_factory=dict)
    """Those that were compared with each other, with their times then."""
    measured: int = 0
    """Jobs that were run, not answered from the journal."""
    stopped: bool = False
    """Whether the budget ended it."""
    notes: list[str] = field(default_factory=list)
    """What went wrong without being a config's fault."""

    @property
    def best(self) -> dict[str, Any] | None:
        """The config of the first problem."""
        return next((decision.config for decision in self.decisions.values()), None)

    def counts(self) -> Counter[str]:
        """How many configs ended how, over all problems."""
        return Counter(record.status for records in self.records.values() for record in records)

    def __str__(self) -> str:
        from .cli import text

        return text(self)


def tuned_file(case: Case) -> Path:
    """`tuned.json` beside the Case's file, as its journal is."""
    return journal_of(case).folder.parent / tunings.FILE


def _file_of(case: Case) -> str:
    return Path(case.file).name if case.file else case.where.partition(":")[0]


def entry_of(case: Case, gpu: str, problem: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `tuned.json` says of just this problem."""
    for entry in tunings.read(tuned_file(case)):
        if (entry["case"], entry["file"], entry["gpu"], entry["problem"]) == (case.name, _file_of(case), gpu, problem):
            return entry
    return None


def tuned_config(case: Case, problem: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config of `tuned.json` for a problem, or for a near one."""
    known = tunings.tuned(tuned_file(case).with_name(_file_of(case)), lambda config, of, _: case.reasons(config, of))
    return known.get(problem)


def stale(entry: Mapping[str, Any], folder: Path) -> list[str]:
    """Why an entry of a folder's file may no longer be the fastest: what has changed since. Runs nothing of the program."""
    here = environment()
    names = ["kiln", "ptxas", *(["driver"] if here["gpu"] == entry["gpu"] else [])]
    then = entry.get("env") or {}
    found = [f"{name} was {then.get(name)}, now {here[name]}" for name in names if then.get(name) != here[name]]
    file = folder / entry["file"]
    if (
        file.is_file()
        and entry.get("source")
        and source_closure.digest(source_closure.source_files(file)) != entry["source"]
    ):
        found.append("its source has changed")
    return found


def write(case: Case, gpu: str, decisions: Mapping[str, Decision], records: Mapping[str, Iterable[Record]]) -> None:
    """Put decisions, by problem, into `tuned.json`."""
    entries = [_entry(case, gpu, json.loads(name), decision, records[name]) for name, decision in decisions.items()]
    if entries:
        tunings.write(tuned_file(case), entries)


def _entry(
    case: Case, gpu: str, problem: Mapping[str, Any], decision: Decision, records: Iterable[Record]
) -> dict[str, Any]:
    chosen = next(r for r in selection.newest(records) if r.config == decision.config and r.status == "ok")
    return {
        "case": case.name,
        "file": _file_of(case),
        "gpu": gpu,
        "problem": dict(problem),
        "config": decision.config,
        "us": [round(time, 4) for time in decision.us],
        "env": {name: chosen.env.get(name) for name in ("kiln", "ptxas", "driver")},
        "source": chosen.more.get("source"),
        "key": chosen.key,
    }


def replay(case: Case, together: bool = False, journal: Journal | None = None) -> Tuning:
    """Choose again from what the journal has, and write it: nothing is run, and the order of the lines does not matter."""
    found, _ = (journal or journal_of(case)).read()
    groups = selection.groups(record for record in found if record.case == case.name)
    result = Tuning(case)
    for gpu in sorted({gpu for gpu, _ in groups}):
        own = {problem: selection.newest(records) for (model, problem), records in groups.items() if model == gpu}
        decisions = selection.decisions(own, together)
        write(case, gpu, decisions, own)
        result.records |= {name: selection.of_configs(records) for name, records in own.items()}
        result.decisions |= decisions
        result.finals |= {
            name: selection.compared(own[name], of) for name, of in selection.finals(own, together).items()
        }
    return result
