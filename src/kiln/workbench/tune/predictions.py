"""Orders configs by what the clock predicts: which of them are worth measuring, and which is chosen where nothing can be measured.

Predictions of configs of one kernel have most of their error in common, so they order better than their intervals say.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...base_dsl.diagnostics import DSLBaseError
from ...clock import known
from ...hardware.architectures import Arch
from ...tunings import canonical
from ..core.runners import Job, Outcome
from ..profile import predicting
from ..profile.ncu import CannotProfile
from ..profile.timeline import Record as Json
from .selection import Decision

if TYPE_CHECKING:
    from ..core.cases import Case
    from ..core.records import Record

PREDICT = "predict/1"
"""The stage, as part of keys."""
FEW = 5
"""The best predicted ones that are measured, whatever the intervals say."""


def device_of(gpu: object, arch: str) -> str | None:
    """Return the device that the clock predicts for: this GPU, or without one that of an architecture; None if it knows neither."""
    return known.device_of(Arch[arch]) if gpu is None else known.device_named(str(gpu))


def job_of(case: Case, arguments: Mapping[str, object], device: str, arch: str, timeout: float) -> Job:
    """Return the job that predicts a config for an architecture."""
    job = predicting.job_of(case, arguments, device, timeout, cold=True)  # as configs are timed
    return dataclasses.replace(job, env={**job.env, "CUTE_DSL_ARCH": arch})


def facts_of(outcome: Outcome) -> Json | str:
    """Return what is kept of a prediction: `predicted` (low, us, high), the version; or why there is none."""
    try:
        answer = predicting.answer_of(outcome)
    except (CannotProfile, DSLBaseError) as reason:
        return str(reason)
    times = [each["burst"] for each in answer["predictions"]]
    us = [sum(each[name] for each in times) for name in ("low", "us", "high")]
    device = answer["predictions"][0]["device"]
    return {
        "predicted": us,
        "predicted_by": answer["version"],
        "estimate_us": us[1],
        "estimate_by": "clock",
        "estimate_on": device,
    }


def in_order(records: Sequence[Record]) -> list[int]:
    """Return the indices of configs as they are measured: predicted ones by time, then the others as they are."""
    predicted = [record for record in records if _us(record) is not None]
    others = [record.more["place"] for record in records if _us(record) is None]
    return [record.more["place"] for record in sorted(predicted, key=lambda one: one.more["predicted"][1])] + others


def worth_measuring(records: Sequence[Record]) -> set[int]:
    """Return the indices of the best few, of those whose intervals overlap the best one's, and of all that are not predicted."""
    times = {record.more["place"]: us for record in records if (us := _us(record)) is not None}
    best = sorted(times, key=lambda place: times[place][1])
    limit = times[best[0]][2] if best else 0.0
    chosen = {place for number, place in enumerate(best) if number < FEW or times[place][0] <= limit}
    return chosen | {record.more["place"] for record in records} - times.keys()


def _us(record: Record) -> Sequence[float] | None:
    return record.more.get("predicted") if record.status == "predicted" else None


def decisions(by_problem: Mapping[str, Sequence[Record]], together: bool = False) -> dict[str, Decision]:
    """Return the config that is predicted to be the fastest for each problem; with `together` one for all problems."""
    tables = {
        name: {canonical(one.config): one for one in records if _us(one) is not None}
        for name, records in by_problem.items()
    }
    tables = {name: table for name, table in tables.items() if table}
    if not together or len(tables) < 2:
        return {name: _decision(table, min(table, key=lambda one: _rank(table[one]))) for name, table in tables.items()}
    bests = {name: min(map(_middle, table.values())) for name, table in tables.items()}
    shared = set.intersection(*(set(table) for table in tables.values()))
    if not shared:
        return {}
    loss = {one: math.prod(_middle(table[one]) / bests[name] for name, table in tables.items()) for one in shared}
    chosen = min(shared, key=lambda one: (loss[one], one))
    same = {name: _decision(table, chosen) for name, table in tables.items()}
    return {name: dataclasses.replace(one, why=f"for all problems together: {one.why}") for name, one in same.items()}


def _middle(record: Record) -> float:
    return record.more["predicted"][1]


def _rank(record: Record) -> tuple[float, int]:
    return _middle(record), record.more["place"]


def _decision(table: Mapping[str, Record], chosen: str) -> Decision:
    record = table[chosen]
    low, us, high = record.more["predicted"]
    near = sum(one.more["predicted"][0] <= high for name, one in table.items() if name != chosen)
    overlap = f"; the intervals of {near} others overlap its own" if near else ""
    why = f"predicted, not measured: the least time of {len(table)} configs on {record.more['estimate_on']}{overlap}"
    return Decision(record.config or {}, (low, us, high), why)
