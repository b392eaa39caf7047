"""The result of tuning a Case: its decisions and Records, as text, as JSON and in `tuned.json`."""

from __future__ import annotations

import json
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ... import tunings
from ..core import tuned_file
from ..core.records import STATUSES, Journal, Record, journal_of
from ..core.text import fields_text
from . import selection
from .selection import Decision

if TYPE_CHECKING:
    from ..core.cases import Case

SHOWN = 10
"""The most configs that the text lists for a problem."""


@dataclass
class Tuning:
    """The decision for each problem, by its canonical JSON, and the last Record of every config."""

    case: Case
    decisions: dict[str, Decision] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    finals: dict[str, list[selection.Candidate]] = field(default_factory=dict)
    """The configs that were compared with each other, with their times in that comparison."""
    measured: int = 0
    """The number of jobs that were run; the journal answered the others."""
    stopped: bool = False
    """Whether the budget ended it."""
    predicted: bool = False
    """Whether the clock made the decisions, for there is no GPU."""
    notes: list[str] = field(default_factory=list)
    """Failures that are no config's fault."""

    @property
    def best(self) -> dict[str, Any] | None:
        """The config that was chosen for the first problem."""
        return next((decision.config for decision in self.decisions.values()), None)

    def counts(self) -> Counter[str]:
        """Count the configs of all problems by status."""
        return Counter(record.status for records in self.records.values() for record in records)

    def __str__(self) -> str:
        answered = (
            [f"all of it from the journal; --fresh {'predicts' if self.predicted else 'measures'} anew"]
            if self.decisions and not self.measured
            else []
        )
        return "\n".join([*(line for name in self.records for line in _of_problem(self, name)), *self.notes, *answered])

    def to_json(self) -> dict[str, Any]:
        """Return decisions and Records as JSON."""
        chosen = [
            {"problem": json.loads(name), "config": decision.config, "us": list(decision.us), "why": decision.why}
            for name, decision in self.decisions.items()
        ]
        records = [json.loads(record.to_json()) for records in self.records.values() for record in records]
        about = {"case": self.case.name, "measured": self.measured, "stopped": self.stopped}
        return {**about, "chosen": chosen, "records": records}


# --- text ------------------------------------------------------------------------------------------------------------


def _of_problem(tuning: Tuning, name: str) -> list[str]:
    records = list(tuning.records[name])
    decision = tuning.decisions.get(name)
    lines = [f"{tuning.case.name} {fields_text(records[0].problem) if records else name}".rstrip()]
    measured = sorted((r for r in records if r.status == "ok" and r.us), key=lambda r: r.us[1] if r.us else 0)
    unmeasured = [r for r in records if r.status in ("ranked", "predicted")]
    ranked = sorted(unmeasured, key=lambda r: r.more.get("estimate_us") or float("inf"))
    finals = sorted(tuning.finals.get(name, ()), key=lambda one: one.us[1])
    compared = [selection.canonical(one.config) for one in finals]
    others = [r for r in measured or ranked if selection.canonical(r.config) not in compared]
    by_config = {selection.canonical(record.config): record for record in measured}
    if finals:  # brief timings are not comparable with those of the comparison
        lines.append(f"  compared with each other, in {len(finals[0].rounds)} rounds:")
        for config, one in zip(compared, finals):
            lines.append(_row(by_config[config], one.us, config, decision))
        lines += ["  the others, timed alone and shortly:"] if others[: SHOWN - len(finals)] else []
    for record in others[: max(0, SHOWN - len(finals))]:
        lines.append(_row(record, record.us, selection.canonical(record.config), decision))
    counts = Counter(record.status for record in records)
    lines.append("  " + ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]))
    lines += _reasons(records)
    if decision is not None:
        low, middle, high = decision.us
        lines.append(f"  chosen: {selection.canonical(decision.config)}, {middle:.2f} us [{low:.2f}, {high:.2f}]")
        lines.append(f"  why: {decision.why}")
    return lines


def _row(record: Record, us: Sequence[float] | None, config: str, decision: selection.Decision | None) -> str:
    chosen = "*" if decision is not None and record.config == decision.config else " "
    return f"  {chosen} {_time(record, us)}  {config}{_flags(record)}"


_NO_ROOFLINE = "no roofline: flops_bytes is not defined"


def _time(record: Record, us: Sequence[float] | None) -> str:
    if us is not None:
        return f"{us[1]:10.2f} us [{us[0]:.2f}, {us[2]:.2f}]"
    more = record.more
    if more.get("predicted"):
        low, us, high = more["predicted"]
        return f"predicted {us:.2f} us [{low:.2f}, {high:.2f}] by the clock on {more['estimate_on']}"
    if more.get("estimate_by") == "perf_model":
        return f"expected {more['estimate_us']:.2f} us by perf_model on {more['estimate_on']}"
    least = more.get("least_us")
    return f"at least {least:.2f} us by the roofline on {more['estimate_on']}" if least else _NO_ROOFLINE


def _flags(record: Record) -> str:
    return f"  {' '.join(record.flags)}" if record.flags else ""


def _reasons(records: Sequence[Record]) -> list[str]:
    """Return why configs failed, grouped by reason, with the command that repeats the first of each."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.error and record.status != "ok":
            message = str(record.error.get("message") or record.error.get("type") or "").strip().splitlines()
            groups.setdefault((record.status, message[0] if message else ""), []).append(record)
    lines: list[str] = []
    for (status, reason), of in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        error = of[0].error or {}
        file = error.get("file")
        line = error.get("line")
        place = f" ({os.path.basename(file)}:{line})" if file and line else ""
        lines.append(f"  {len(of)} {status}: {textwrap.shorten(reason, 160, placeholder=' ...')}{place}")
        if status != "invalid":
            lines.append(f"      {of[0].again}")
    return lines


# --- tuned.json ------------------------------------------------------------------------------------------------------


def write(case: Case, gpu: str, decisions: Mapping[str, Decision], records: Mapping[str, Iterable[Record]]) -> None:
    """Write decisions, by problem, to `tuned.json`."""
    entries = [_entry(case, gpu, json.loads(name), decision, records[name]) for name, decision in decisions.items()]
    if entries:
        tunings.write(tuned_file.path_of(case), entries)


def write_predicted(tuning: Tuning, device: str) -> None:
    """Write choices that the clock made without a GPU to `tuned.json`, except where a measured one is there."""
    tuning.predicted = True
    gpu = f"NVIDIA {device}"  # as its driver calls it
    entries: list[Mapping[str, object]] = []
    for name, decision in tuning.decisions.items():
        problem = json.loads(name)
        before = tuned_file.entry_of(tuning.case, gpu, problem)
        if before is not None and not before.get("predicted"):
            measured = selection.canonical(before["config"])
            tuning.notes.append(f"{tunings.FILE} keeps {measured} for {fields_text(problem)}: a {gpu} measured it")
            continue
        records = [one for one in tuning.records[name] if one.status == "predicted"]
        entry = _entry(tuning.case, gpu, problem, decision, records, "predicted")
        entries.append({**entry, "predicted": next(one.more["predicted_by"] for one in records)})
    if entries:
        tunings.write(tuned_file.path_of(tuning.case), entries)


def _entry(
    case: Case,
    gpu: str,
    problem: Mapping[str, object],
    decision: Decision,
    records: Iterable[Record],
    status: str = "ok",
) -> dict[str, Any]:
    chosen = next(r for r in selection.newest(records) if r.config == decision.config and r.status == status)
    return {
        "case": case.name,
        "file": tuned_file.file_name_of(case),
        "gpu": gpu,
        "problem": dict(problem),
        "config": decision.config,
        "us": [round(time, 4) for time in decision.us],
        "env": {name: chosen.env.get(name) for name in ("kiln", "ptxas", "driver")},
        "source": chosen.more.get("source"),
        "key": chosen.key,
    }


def replay(case: Case, together: bool = False, journal: Journal | None = None) -> Tuning:
    """Choose again from the journal, in whatever order its lines are, and write `tuned.json`. Runs nothing."""
    records, _ = (journal or journal_of(case)).read()
    groups = selection.groups(record for record in records if record.case == case.name)
    tuning = Tuning(case)
    for gpu in sorted({gpu for gpu, _ in groups}):
        by_problem = {problem: selection.newest(group) for (model, problem), group in groups.items() if model == gpu}
        decisions = selection.decisions(by_problem, together)
        write(case, gpu, decisions, by_problem)
        tuning.records |= {name: selection.of_configs(group) for name, group in by_problem.items()}
        tuning.decisions |= decisions
        finals = selection.finals(by_problem, together)
        tuning.finals |= {name: selection.compared(by_problem[name], finalists) for name, finalists in finals.items()}
    return tuning
