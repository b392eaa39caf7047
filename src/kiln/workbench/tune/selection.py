"""Chooses a config: a pure function of Records, in whatever order they are in the journal.

Of the configs that are not significantly slower than the fastest, the first in canonical order is chosen, so that
equally fast configs do not alternate from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Any

from ...measure.statistics import median_interval, verdict
from ...tunings import canonical

if TYPE_CHECKING:
    from ..core.records import Record

FINALISTS = 5
NEAR = 0.03
"""The best `FINALISTS` and all configs within `NEAR` of the best are compared with each other in the end."""


@dataclass(frozen=True)
class Decision:
    """The chosen config, its time, and `why` in words."""

    config: dict[str, Any]
    us: tuple[float, float, float]
    why: str


@dataclass(frozen=True)
class Candidate:
    """A config in the running: its index, its interval, and its times by round if it was compared."""

    place: int
    config: dict[str, Any]
    us: tuple[float, float, float]
    rounds: tuple[float, ...] = ()


def newest(records: Iterable[Record]) -> list[Record]:
    """Return the last Record of each key, in order of keys."""
    last: dict[str, Record] = {}
    for record in records:
        before = last.get(record.key)
        if before is None or (_when(before), before.to_json()) < (_when(record), record.to_json()):
            last[record.key] = record
    return [last[key] for key in sorted(last)]


def of_configs(records: Iterable[Record]) -> list[Record]:
    """Return the last Record of every config, in canonical order."""
    last = {canonical(record.config): record for record in sorted(records, key=_when) if record.config is not None}
    return sorted(last.values(), key=lambda record: record.more.get("place", 0))


def _when(record: Record) -> float:
    return record.more.get("at", 0.0)


def screened(records: Iterable[Record]) -> list[Candidate]:
    """Return the configs that were measured one by one, the fastest first.

    If several GPUs measured, each also timed one and the same config (`reference`), and times are taken relative to
    it.
    """
    timed = [record for record in newest(records) if record.status == "ok" and record.us]
    good = [record for record in timed if record.config is not None and "finalists" not in record.more]
    typical = _typical(good)
    candidates: list[Candidate] = []
    for record in good:
        scale = 1.0
        if _is_relative(record):
            scale = typical[canonical(record.more["reference"])] / record.more["reference_us"]
        low, middle, high = (scale * us for us in record.us or ())
        candidates.append(Candidate(record.more.get("place", 0), record.config or {}, (low, middle, high)))
    return sorted(candidates, key=lambda one: (one.us[1], one.place))


def _is_relative(record: Record) -> bool:
    return bool(record.more.get("reference_us"))


def _typical(records: Iterable[Record]) -> dict[str, float]:
    """Return what each reference takes on the median GPU."""
    times: dict[str, dict[str, list[float]]] = {}
    for record in filter(_is_relative, records):
        gpus = times.setdefault(canonical(record.more["reference"]), {})
        gpus.setdefault(str(record.env.get("uuid")), []).append(record.more["reference_us"])
    return {name: median_low(map(median_low, gpus.values())) for name, gpus in times.items()}


def finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates to compare with each other, in canonical order."""
    if not candidates:
        return []
    ordered = sorted(candidates, key=lambda one: (one.us[1], one.place))
    limit = ordered[0].us[1] * (1 + NEAR)
    chosen = [one for number, one in enumerate(ordered) if number < FINALISTS or one.us[1] <= limit]
    return sorted(chosen, key=lambda one: one.place)


def compared(records: Iterable[Record], finalists: Sequence[Candidate]) -> list[Candidate]:
    """Return the result of comparing exactly these configs; empty if they were not compared."""
    asked = {canonical(one.config) for one in finalists}
    for record in sorted(newest(records), key=_when, reverse=True):
        earlier = record.more.get("finalists") if record.status == "ok" else None
        if earlier and {canonical(one["config"]) for one in earlier} == asked:
            return [Candidate(f["place"], f["config"], _three(f["us"]), tuple(f["rounds"])) for f in earlier]
    return []


def decide(records: Iterable[Record]) -> Decision | None:
    """Return the decision for one problem on one GPU model; None if nothing was measured."""
    return decisions({"": list(records)}).get("")


def choose(candidates: Sequence[Candidate], unit: str = "us") -> Decision | None:
    """Choose the first in canonical order of those not significantly slower than the fastest."""
    if not candidates:
        return None
    fastest = min(candidates, key=lambda one: (one.us[1], one.place))
    chosen = min((one for one in candidates if not _slower(one, fastest)), key=lambda one: one.place)
    how = "in a comparison of " if all(one.rounds for one in candidates) else "by intervals alone, of "
    of = f"{how}{len(candidates)} config{'s' if len(candidates) != 1 else ''}"
    if chosen is fastest:
        return Decision(chosen.config, chosen.us, f"the fastest {of}, or the first of equals")
    behind = 100 * (chosen.us[1] / fastest.us[1] - 1)
    other = f"{canonical(fastest.config)} ({fastest.us[1]:.2f} {unit}, {behind:+.1f} %, which the noise hides)"
    return Decision(chosen.config, chosen.us, f"no slower than {other} {of}, and before it in the list")


def _slower(one: Candidate, fastest: Candidate) -> bool:
    if one is fastest:
        return False
    if len(one.rounds) > 1 and len(one.rounds) == len(fastest.rounds):
        ratios = [mine / its for mine, its in zip(one.rounds, fastest.rounds, strict=True)]
        return verdict(median_interval(ratios)) == "slower"
    return one.us[0] > fastest.us[2]


def finals(by_problem: Mapping[str, Sequence[Record]], together: bool = False) -> dict[str, list[Candidate]]:
    """Return the configs to compare for each problem; with `together` the same for all."""
    if together and len(by_problem) > 1:
        same = finalists(_means([screened(records) for records in by_problem.values()]))
        return dict.fromkeys(by_problem, same)
    return {problem: finalists(screened(records)) for problem, records in by_problem.items()}


def decisions(by_problem: Mapping[str, Sequence[Record]], together: bool = False) -> dict[str, Decision]:
    """Return the decision for each problem of which something was measured.

    `together`: for all of them the config with the best geometric mean of ratios to each problem's best, among those
    that work everywhere.
    """
    finalists = finals(by_problem, together)
    if not together or len(by_problem) < 2:
        by_problem_ = {
            problem: choose(compared(records, finalists[problem]) or finalists[problem])
            for problem, records in by_problem.items()
        }
        return {problem: decision for problem, decision in by_problem_.items() if decision is not None}
    rounds = {problem: compared(records, finalists[problem]) for problem, records in by_problem.items()}
    same = next(iter(finalists.values()))
    decision = choose(_means(list(rounds.values())) if all(rounds.values()) else same, "times the best")
    if decision is None:
        return {}
    why = f"for all problems together: {decision.why}"
    times = {
        problem: {canonical(one.config): one.us for one in [*screened(records), *rounds[problem]]}
        for problem, records in by_problem.items()
    }
    chosen = canonical(decision.config)
    return {problem: Decision(decision.config, by_place[chosen], why) for problem, by_place in times.items()}


def _means(problems: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """Return each config with the geometric means over all problems of its ratios to the problem's best."""
    tables = [{canonical(one.config): one for one in problem} for problem in problems]
    if not tables or not all(tables):
        return []
    bests = [min(one.us[1] for one in table.values()) for table in tables]
    means: list[Candidate] = []
    for name in sorted(set.intersection(*(set(table) for table in tables))):
        own = [table[name] for table in tables]
        pairs = list(zip(own, bests, strict=True))
        low, middle, high = (_geometric([one.us[n] / best for one, best in pairs]) for n in range(3))
        rounds = zip(*([time / best for time in one.rounds] for one, best in pairs), strict=False)
        means.append(Candidate(own[0].place, own[0].config, (low, middle, high), tuple(map(_geometric, rounds))))
    return means


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _three(us: Sequence[float]) -> tuple[float, float, float]:
    return (us[0], us[1], us[2])


def summary(rounds: Sequence[float]) -> list[float]:
    """Return low end, median and high end of the times of a candidate's rounds."""
    return list(median_interval(rounds)[:3])


def groups(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Return the Records of tuning by GPU model and problem, each of the environment and source measured last.

    Records of another version of the kernel, the compiler or the driver say nothing about this one.
    """
    by_model: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        if record.kind != "tune":
            continue
        model = str(record.env.get("gpu") or "cpu")
        kept = {name: value for name, value in record.env.items() if name not in ("uuid", "node")}
        origin = canonical([kept, record.more.get("source")])
        by_model.setdefault((model, canonical(record.problem)), {}).setdefault(origin, []).append(record)
    return {
        place: max(sets.items(), key=lambda item: (max(map(_when, item[1])), item[0]))[1]
        for place, sets in sorted(by_model.items())
    }
