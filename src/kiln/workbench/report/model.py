"""What a journal says, as one JSON value: results, sweeps, rooflines, the history of tuning, environments.

cases     one for each Case: name, headline, results, sweeps, roofline, tuning, failures
  results   the last bench of each problem and config: times, rates, flags, what it was compared with
  sweeps    where problems differ in one field of numbers: field, fixed fields, series of points with intervals
  roofline  points of FLOPs per byte and TFLOP/s, and the ceilings of their GPUs
  tuning    of each problem all that was tried, in order, with the best so far
  failures  what did not end well, grouped by status and reason, with a command for one of each
environments, statuses, flags: what occurred, with its meaning
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable
from typing import Any

from ...hardware import devices
from ...measure.measurement import FLAGS
from ..core.records import STATUSES, Record
from ..tune import selection


def build(records: list[Record], torn: int = 0) -> dict[str, Any]:
    """Return the report on records in the order they were written."""
    by_case: dict[str, list[Record]] = collections.defaultdict(list)
    for record in records:
        by_case[record.case].append(record)
    statuses = collections.Counter(record.status for record in records)
    flags = collections.Counter(flag for record in records for flag in record.flags)
    return {
        "records": len(records),
        "torn": torn,
        "cases": [_case(name, found) for name, found in by_case.items()],
        "environments": _environments(records),
        "statuses": [[name, statuses[name], meaning] for name, meaning in STATUSES.items()],
        "flags": [[name, flags[name], FLAGS.get(name, "")] for name in dict.fromkeys((*FLAGS, *flags))],
    }


def _case(name: str, records: list[Record]) -> dict[str, Any]:
    last: dict[str, Record] = {}
    for record in records:
        last.pop(record.key, None)  # keeps the order of the journal
        last[record.key] = record
    # The last of several sources and versions counts.
    results = [_result(record) for record in _newest(records, "bench")]
    verified = collections.Counter(record.status == "ok" for record in _newest(records, "verify"))
    tuning = _tuning([record for record in records if record.kind == "tune"])
    return {
        "name": name, "records": len(records), "results": results, "verified": [verified[True], verified[False]],
        "sweeps": _sweeps(results), "roofline": _roofline(results), "tuning": tuning,
        "failures": _failures(list(last.values())),
    }  # fmt: skip


def _newest(records: list[Record], kind: str) -> list[Record]:
    """Return the last record of each problem, config, GPU and protocol."""
    found: dict[str, Record] = {}
    for record in records:
        if record.kind == kind and (kind != "verify" or "checks" in record.more):
            asked = [record.problem, record.config, record.env.get("gpu"), record.protocol]
            found[json.dumps(asked, sort_keys=True)] = record
    return list(found.values())


def words(value: Any) -> str:
    """Return a problem or config for people: `m=128 n=64`."""
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    return " ".join(f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())


def _result(record: Record) -> dict[str, Any]:
    more = record.more
    against = {name: one for name, one in (more.get("against") or {}).items() if isinstance(one, dict)}
    return {
        "problem": record.problem, "config": record.config, "status": record.status, "us": record.us, "n": record.n,
        "protocol": record.protocol, "gpu": record.env.get("gpu"), "clock": record.clock.get("sm_mhz"), "flags": record.flags,
        "tflops": more.get("tflops"), "tbs": more.get("tbs"), "roofline": more.get("roofline"), "again": record.again,
        "error": (record.error or {}).get("message"),
        "against": {name: {"us": one.get("us"), "ratio": one.get("ratio"), "verdict": one.get("verdict")} for name, one in against.items()},
    }  # fmt: skip


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
    for (field, key), found in groups.items():
        first = field.split(" = ", maxsplit=1)[0]
        points = {one["problem"][first]: one for one in found}
        if len(points) < 3:
            continue
        fixed, config, gpu, _ = json.loads(key)
        ordered = [points[x] for x in sorted(points)]
        xs = sorted(points)
        series = [{"name": "kernel", "x": xs, "us": [one["us"] for one in ordered], "tflops": [one["tflops"] for one in ordered]}]  # fmt: skip
        for name in dict.fromkeys(name for one in ordered for name in one["against"]):
            there = [(x, one) for x, one in zip(xs, ordered) if (one["against"].get(name) or {}).get("us")]
            times = [one["against"][name]["us"] for _, one in there]
            rates = [one["tflops"] * one["us"][1] / us[1] if one["tflops"] else None for (_, one), us in zip(there, times)]  # fmt: skip
            if there:
                series.append({"name": name, "x": [x for x, _ in there], "us": times, "tflops": rates})
        sweeps.append({"field": field, "fixed": fixed, "config": config, "gpu": gpu, "series": series})
    return sweeps


# --- rooflines -------------------------------------------------------------------------------------------------------


def _roofline(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    points: list[dict[str, Any]] = []
    for one in results:
        if not (one["us"] and one["tflops"] and one["tbs"]):
            continue
        name = words(one["problem"])
        intensity = one["tflops"] / one["tbs"]
        points.append({"who": "kernel", "name": name, "x": intensity, "y": one["tflops"], "gpu": one["gpu"], "part": one["roofline"]})  # fmt: skip
        for other, found in one["against"].items():
            if found["us"]:
                speed = one["tflops"] * one["us"][1] / found["us"][1]
                points.append({"who": other, "name": name, "x": intensity, "y": speed, "gpu": one["gpu"], "part": None})
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
    return [_history(found) for found in groups.values()]


def _history(records: list[Record]) -> dict[str, Any]:
    tried: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.config is None:  # a comparison of several
            continue
        key = json.dumps(record.config, sort_keys=True)
        before = tried.pop(key, {})
        tried[key] = {
            "config": record.config, "status": record.status, "us": record.us or before.get("us"), "flags": record.flags,
            "predicted": record.more.get("predicted_us") or before.get("predicted"), "error": (record.error or {}).get("message"),
            "again": record.again,
        }  # fmt: skip
    rows = sorted(tried.values(), key=lambda row: row["status"] in ("pruned", "ranked"))  # those were not tried
    best: float | None = None
    for row in rows:
        if row["status"] == "ok" and row["us"] and (best is None or row["us"][1] < best):
            best = row["us"][1]
        row["best"] = best
    counts = collections.Counter(row["status"] for row in rows)
    decision = selection.decide(records)
    return {
        "problem": records[0].problem, "gpu": records[-1].env.get("gpu"), "rows": rows, "counts": dict(counts), "best": best,
        "chosen": decision.config if decision else None, "why": decision.why if decision else "",
    }  # fmt: skip


def _failures(records: list[Record]) -> list[dict[str, Any]]:
    """Return failures of the present sources, grouped by reason; numbers in messages do not make another reason."""
    newest = next((record.more["source"] for record in reversed(records) if "source" in record.more), None)
    records = [record for record in records if record.more.get("source", newest) == newest]
    groups: dict[tuple[str, str, str], list[Record]] = collections.defaultdict(list)
    for record in records:
        if record.status not in ("ok", "pruned", "ranked"):
            message = str((record.error or {}).get("message") or "").splitlines()
            reason = re.sub(r"\d+(\.\d+)?", "N", message[0]) if message else ""
            groups[record.kind, record.status, reason].append(record)
    made = [
        {"kind": kind, "status": status, "count": len(found), "error": (found[0].error or {}).get("message"),
         "line": (found[0].error or {}).get("line"), "problem": found[0].problem, "config": found[0].config, "again": found[0].again}
        for (kind, status, _), found in groups.items()
    ]  # fmt: skip
    return sorted(made, key=lambda one: -one["count"])


def _environments(records: list[Record]) -> list[dict[str, Any]]:
    """Return the environments of results, each with its number of records."""
    counts: collections.Counter[str] = collections.Counter()
    for record in records:
        env = {name: record.env.get(name) for name in ("gpu", "driver", "kiln", "ptxas", "python", "node")}
        counts[json.dumps({**env, "protocol": record.protocol})] += 1
    return [{**json.loads(key), "records": count} for key, count in counts.most_common()]


# --- rows for other tools --------------------------------------------------------------------------------------------

COLUMNS = (
    "kind", "case", "problem", "config", "status", "us_low", "us", "us_high", "n", "protocol", "tflops", "tbs", "roofline", "predicted_us",
    "gpu", "driver", "kiln", "node", "flags", "error", "again",
)  # fmt: skip


def rows(records: Iterable[Record]) -> Iterable[list[Any]]:
    """Yield the records as rows of `COLUMNS`, for CSV."""
    for one in records:
        us = one.us or [None, None, None]
        more, env = one.more, one.env
        yield [
            one.kind, one.case, json.dumps(one.problem), "" if one.config is None else json.dumps(one.config), one.status, *us, one.n,
            one.protocol, more.get("tflops"), more.get("tbs"), more.get("roofline"), more.get("predicted_us"), env.get("gpu"),
            env.get("driver"), env.get("kiln"), env.get("node"), " ".join(one.flags), (one.error or {}).get("message"), one.again,
        ]  # fmt: skip
