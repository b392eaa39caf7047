"""Returns what a journal says as one JSON value: results, sweeps, rooflines, the history of tuning, environments.

cases     one for each Case: name, headline, results, sweeps, roofline, tuning, failures
  verified  how many problems passed and failed with the present source; `unverified`: those checked with earlier ones
  results   the last bench of each problem and config: times, rates, flags, what it was compared with, whether it is of
            an earlier source
  sweeps    where problems differ in one field of numbers: field, fixed fields, series of points with intervals
  roofline  points of FLOPs per byte and TFLOP/s, and the ceilings of their GPUs
  tuning    of each problem all that was tried, in order, with the best so far; `us` is a config's time when it was
            screened, `compared` its time in the final comparison
  failures  what did not end well, grouped by status and reason, with a command for one of each
environments, statuses, flags: what occurred, with its meaning
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ... import tunings
from ...hardware import devices
from ...measure.measurement import FLAGS
from ..core.records import STATUSES, Record
from ..tune import selection


def build(records: list[Record], torn: int = 0, sources: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the report on records in the order they were written.

    `sources` has the digests of Cases' present sources. Of a Case it lacks, the source of the last record counts.
    """
    sources = sources or {}
    by_case: dict[str, list[Record]] = collections.defaultdict(list)
    for record in records:
        by_case[record.case].append(record)
    statuses = collections.Counter(record.status for record in records)
    flags = collections.Counter(flag for record in records for flag in record.flags)
    return {
        "records": len(records),
        "torn": torn,
        "cases": [_case(name, records_of_case, sources.get(name)) for name, records_of_case in by_case.items()],
        "environments": _environments(records),
        "statuses": [[name, statuses[name], meaning] for name, meaning in STATUSES.items()],
        "flags": [[name, flags[name], FLAGS.get(name, "")] for name in dict.fromkeys((*FLAGS, *flags))],
    }


def _case(name: str, records: list[Record], source: str | None) -> dict[str, Any]:
    if source is None:
        source = next((each.more["source"] for each in reversed(records) if "source" in each.more), None)

    def is_present(record: Record) -> bool:
        return record.more.get("source", source) == source

    last: dict[str, Record] = {}
    for record in records:
        last.pop(record.key, None)  # keeps the order of the journal
        last[record.key] = record
    results = [{**_result(record), "stale": not is_present(record)} for record in _newest(records, "bench", is_present)]
    checked = _newest(records, "verify", is_present)
    present = [record for record in checked if is_present(record)]
    verified = collections.Counter(record.status == "ok" for record in present)
    tuning = _tuning([record for record in records if record.kind == "tune" and is_present(record)])
    return {
        "name": name,
        "records": len(records),
        "results": results,
        "verified": [verified[True], verified[False]],
        "unverified": len(checked) - len(present),
        "sweeps": _sweeps(results),
        "roofline": _roofline(results),
        "tuning": tuning,
        "failures": _failures([record for record in last.values() if is_present(record)]),
    }


def _newest(records: list[Record], kind: str, is_present: Callable[[Record], bool]) -> list[Record]:
    """Return the last record of each problem, config, GPU and protocol: of the present source, else of an earlier one."""
    newest: dict[str, Record] = {}
    for record in records:
        if record.kind == kind and (kind != "verify" or "checks" in record.more):
            asked = json.dumps([record.problem, record.config, record.env.get("gpu"), record.protocol], sort_keys=True)
            if asked not in newest or is_present(record) or not is_present(newest[asked]):
                newest[asked] = record
    return list(newest.values())


def words(value: object) -> str:
    """Return a problem or config for people: `m=128 n=64`."""
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    return " ".join(f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())


def _result(record: Record) -> dict[str, Any]:
    more = record.more
    against = {name: one for name, one in (more.get("against") or {}).items() if isinstance(one, dict)}
    peers = {name: {what: one.get(what) for what in ("us", "ratio", "verdict")} for name, one in against.items()}
    return {
        **{name: getattr(record, name) for name in _SHOWN},
        **{name: more.get(name) for name in ("tflops", "tbs", "roofline", "predicted", "predicted_by")},
        "gpu": record.env.get("gpu"),
        "clock": record.clock.get("sm_mhz"),
        "error": message_of(record),
        "against": peers,
    }


_SHOWN = ("problem", "config", "status", "us", "n", "protocol", "flags", "again")


def message_of(record: Record) -> Any:
    """Return the message of a record's error; None without one."""
    return (record.error or {}).get("message")


# --- sweeps ----------------------------------------------------------------------------------------------------------


def _sweeps(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return fields of numbers over which three points or more differ in nothing else."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    for one in results:
        if not one["us"]:
            continue
        for field, value in one["problem"].items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                others = {name: other for name, other in one["problem"].items() if name != field}
                # Sizes that are equal in a square problem are one axis.
                tied = sorted(name for name, other in others.items() if other == value)
                fixed = {name: other for name, other in others.items() if name not in tied}
                key = json.dumps([fixed, one["config"], one["gpu"], one["protocol"]], sort_keys=True)
                groups[" = ".join(sorted([field, *tied])), key].append(one)
    sweeps: list[dict[str, Any]] = []
    for (field, key), rows_ in groups.items():
        first = field.split(" = ", maxsplit=1)[0]
        points = {one["problem"][first]: one for one in rows_}
        if len(points) < 3:
            continue
        fixed, config, gpu, _ = json.loads(key)
        ordered = dict(sorted(points.items()))
        series = [_series("kernel", {x: (one["us"], one["tflops"]) for x, one in ordered.items()})]
        for name in dict.fromkeys(name for one in ordered.values() for name in one["against"]):
            there = {x: one for x, one in ordered.items() if (one["against"].get(name) or {}).get("us")}
            if there:
                times = {x: one["against"][name]["us"] for x, one in there.items()}
                series.append(_series(name, {x: (us, _speed(there[x], us)) for x, us in times.items()}))
        sweeps.append({"field": field, "fixed": fixed, "config": config, "gpu": gpu, "series": series})
    return sweeps


def _series(name: str, points: dict[Any, tuple[Any, Any]]) -> dict[str, Any]:
    """Return a series of a sweep: its interval of microseconds and its TFLOP/s at each x."""
    us, tflops = (list(values) for values in zip(*points.values(), strict=True))
    return {"name": name, "x": list(points), "us": us, "tflops": tflops}


def _speed(one: dict[str, Any], us: list[float]) -> float | None:
    """Return the TFLOP/s of a peer that took `us` for the problem of a result; None if its FLOPs are unknown."""
    return one["tflops"] * one["us"][1] / us[1] if one["tflops"] else None


# --- rooflines -------------------------------------------------------------------------------------------------------


def _roofline(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    points: list[dict[str, Any]] = []
    for one in results:
        if not (one["us"] and one["tflops"] and one["tbs"] and one["gpu"]):  # the CPU target has no roofline
            continue
        shared = {"name": words(one["problem"]), "x": one["tflops"] / one["tbs"], "gpu": one["gpu"]}
        points.append({"who": "kernel", "y": one["tflops"], "part": one["roofline"], **shared})
        for other, peer in one["against"].items():
            if peer["us"]:
                points.append({"who": other, "y": _speed(one, peer["us"]), "part": None, **shared})
    if not points:
        return None
    ceilings: list[dict[str, Any]] = []
    for gpu in dict.fromkeys(point["gpu"] for point in points):
        model = devices.model_of(gpu) if gpu else None
        if model is not None and model.bandwidth_gbs:
            ceilings.append({"gpu": model.name, "tbs": model.bandwidth_gbs / 1e3, "peaks": model.tflops})
    return {"points": points, "ceilings": ceilings}


# --- tuning ----------------------------------------------------------------------------------------------------------


def _tuning(records: list[Record]) -> list[dict[str, Any]]:
    """Return the configs that were tried for each problem and GPU, each with its last record."""
    groups: dict[str, list[Record]] = collections.defaultdict(list)
    for record in records:
        groups[json.dumps([record.problem, record.env.get("gpu")], sort_keys=True)].append(record)
    return [_history(rows_) for rows_ in groups.values()]


def _history(records: list[Record]) -> dict[str, Any]:
    tried: dict[str, dict[str, Any]] = {}
    compared: dict[str, Any] = {}
    for record in records:
        if "finalists" in record.more and record.status == "ok":
            compared = {tunings.canonical(one["config"]): one["us"] for one in record.more["finalists"]}
        if record.config is None:  # a comparison of several
            continue
        key = json.dumps(record.config, sort_keys=True)
        before = tried.pop(key, {})
        tried[key] = {
            "config": record.config,
            "status": record.status,
            "us": record.us or before.get("us"),
            "estimated": record.more.get("estimate_us") or before.get("estimated"),
            "flags": record.flags,
            "error": message_of(record),
            "again": record.again,
        }
    for row in tried.values():
        row["compared"] = compared.get(tunings.canonical(row["config"]))
    rows = sorted(tried.values(), key=lambda row: row["status"] in ("pruned", "ranked"))  # those were not tried
    best: float | None = None
    for row in rows:
        if row["status"] == "ok" and row["us"] and (best is None or row["us"][1] < best):
            best = row["us"][1]
        row["best"] = best
    counts = collections.Counter(row["status"] for row in rows)
    decision = selection.decide(records)
    about = {"problem": records[0].problem, "gpu": records[-1].env.get("gpu"), "rows": rows, "counts": dict(counts)}
    chosen, why, us = (decision.config, decision.why, decision.us[1]) if decision else (None, "", None)
    return {**about, "best": best, "chosen": chosen, "chosen_us": us, "why": why}


def _failures(records: list[Record]) -> list[dict[str, Any]]:
    """Return failures grouped by reason; numbers in messages do not make another reason."""
    groups: dict[tuple[str, str, str], list[Record]] = collections.defaultdict(list)
    for record in records:
        if record.status not in ("ok", "pruned", "predicted", "ranked"):
            message = str(message_of(record) or "").splitlines()
            reason = re.sub(r"\d+(\.\d+)?", "N", message[0]) if message else ""
            groups[record.kind, record.status, reason].append(record)
    rows: list[dict[str, Any]] = []
    for (kind, status, _), same in groups.items():
        first = same[0]
        example = {"problem": first.problem, "config": first.config, "again": first.again}
        error = {"error": message_of(first), "line": (first.error or {}).get("line")}
        rows.append({"kind": kind, "status": status, "count": len(same), **error, **example})
    return sorted(rows, key=lambda one: -one["count"])


def _environments(records: list[Record]) -> list[dict[str, Any]]:
    """Return the environments of results, each with its number of records."""
    counts: collections.Counter[str] = collections.Counter()
    for record in records:
        env = {name: record.env.get(name) for name in ("gpu", "driver", "kiln", "ptxas", "python", "node")}
        counts[json.dumps({**env, "protocol": record.protocol})] += 1
    return [{**json.loads(key), "records": count} for key, count in counts.most_common()]


# --- rows for other tools --------------------------------------------------------------------------------------------

_MEASURED = ("tflops", "tbs", "roofline", "estimate_us", "predicted_us")
_ENVIRONMENT = ("gpu", "driver", "kiln", "node")
COLUMNS = (
    "kind",
    "case",
    "problem",
    "config",
    "status",
    "us_low",
    "us",
    "us_high",
    "n",
    "protocol",
    *_MEASURED,
    *_ENVIRONMENT,
    "flags",
    "error",
    "again",
)


def rows(records: Iterable[Record]) -> Iterable[list[Any]]:
    """Yield the records as rows of `COLUMNS`, for CSV."""
    for one in records:
        us = one.us or [None, None, None]
        config = "" if one.config is None else json.dumps(one.config)
        predicted = {"predicted_us": one.more["predicted"][1]} if one.more.get("predicted") else {}
        measured = map({**one.more, **predicted}.get, _MEASURED)
        env = map(one.env.get, _ENVIRONMENT)
        yield [
            one.kind,
            one.case,
            json.dumps(one.problem),
            config,
            one.status,
            *us,
            one.n,
            one.protocol,
            *measured,
            *env,
            " ".join(one.flags),
            message_of(one),
            one.again,
        ]
