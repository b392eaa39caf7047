"""Writes a report as one HTML file that contains Plotly: cards, figures, tables, and what statuses and flags mean."""

from __future__ import annotations

import html
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..core.records import FAILED
from ..inspect.page import fill, part
from ..profile.timeline import Record
from . import figures
from .model import words


def page(model: dict[str, Any], where: str, script: str) -> str:
    """Return the page of a report (`model.build`); `script` is Plotly's."""
    drawn: dict[str, figures.Figure] = {}
    body = [_case(case, drawn, number) for number, case in enumerate(model["cases"])]
    body += [_environments(model), _glossary(model)]
    torn = f" · {model['torn']} torn line{'s' if model['torn'] != 1 else ''} left out" if model["torn"] else ""
    about = f"{model['records']} records of {where}{torn} · {time.strftime('%Y-%m-%d %H:%M')}"
    return fill(
        "report.html",
        title=_e(f"{where} · kiln report"),
        style=part("base.css") + part("report.css"),
        cases="".join(f'<a href="#case-{n}">{_e(case["name"])}</a>' for n, case in enumerate(model["cases"])),
        about=_e(about),
        body="\n".join(body),
        figures=json.dumps(drawn, separators=(",", ":")).replace("</", "<\\/"),
        plotly=script.replace("</script", "<\\/script"),
        script=part("report.js"),
    )


def _e(text: object) -> str:
    return html.escape(str(text))


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def _interval(us: list[float] | None) -> str:
    if not us:
        return ""
    low, median, high = us
    return f"{_number(median, 4)} <small>± {_number(max(median - low, high - median), 2)}</small>"


def _table(head: list[str], rows: list[list[str]], name: str = "", left: int = 1) -> str:
    """Return a table whose first `left` columns are words, the others numbers. On a phone each cell has its own head."""
    kinds = ["word" if n < left else "number" for n in range(len(head))]
    caption = f"<caption>{_e(name)}</caption>" if name else ""
    heads = "".join(f'<th scope="col" class="{kind}">{cell}</th>' for kind, cell in zip(kinds, head))
    names = [re.sub("<.*?>", "", cell) for cell in head]
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{k}" data-head="{n}">{cell}</td>' for k, n, cell in zip(kinds, names, row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _status(status: str) -> str:
    kind = "ok" if status == "ok" else "bad" if status in FAILED else "mild"
    return f'<span class="status {kind}">{_e(status)}</span>'


def _why(error: str | None) -> str:
    """Return the first line of an error, with all of it under the pointer."""
    lines = (error or "").strip().splitlines()
    return f'<span class="why" title="{_e(error)}">{_e(lines[0][:240])}</span>' if lines else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _card(name: str, value: str, detail: str = "", kind: str = "") -> str:
    return f'<div class="card {kind}"><span>{_e(name)}</span><b>{value}</b><small>{detail}</small></div>'


# --- a case ----------------------------------------------------------------------------------------------------------


def _case(case: dict[str, Any], drawn: dict[str, figures.Figure], number: int) -> str:
    pictures: list[str] = []

    def picture(name: str, title: str, figure: figures.Figure, about: str = "") -> None:
        drawn[f"{name}-{number}"] = figure
        caption = f"<figcaption><b>{_e(title)}</b> {_e(about)}</figcaption>"
        label = f"{_e(title)}; the numbers are in the tables below"
        plot = f'<div class="plot" id="{name}-{number}" role="img" aria-label="{label}"></div>'
        pictures.append(f"<figure>{caption}{plot}</figure>")

    if case["roofline"]:
        about = "all problems, and what they were compared with"
        picture("roofline", "Roofline", figures.roofline(case["roofline"]), about)
    for n, sweep in enumerate(case["sweeps"]):
        fixed = words(sweep["fixed"])
        about = ", ".join(filter(None, [f"with {fixed}" if fixed else "", "" if sweep["gpu"] else _CPU_TIMES]))
        picture(f"sweep-{n}", f"Over {sweep['field']}", figures.sweep(sweep), about)
    for n, tuning in enumerate(case["tuning"]):
        title = words(tuning["problem"])
        about = f"{title}: each config in the order it was tried, by its time when it was screened"
        about += "" if tuning["gpu"] else f"; {_CPU_TIMES}"
        picture(f"tuning-{n}", "Tuning", figures.history(tuning), about)
        points = [row for row in tuning["rows"] if row["estimated"] and row["us"] and row["status"] == "ok"]
        if tuning["gpu"] and len(points) >= 3:  # estimates are for GPUs
            picture(f"estimated-{n}", "Estimated and measured", figures.estimates(tuning), title)
    parts = [f'<h2 id="case-{number}">{_e(case["name"])}</h2>', _cards(case), _failures(case)]
    parts += [f'<div class="pictures">{"".join(pictures)}</div>'] if pictures else []
    parts += [_results(case), *(_tuned(tuning) for tuning in case["tuning"])]
    return f'<section aria-labelledby="case-{number}">{"".join(parts)}</section>'


def _cards(case: dict[str, Any]) -> str:
    cards = [*_verified_card(case), *_speed_cards(case), *_tuning_cards(case)]
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _verified_card(case: dict[str, Any]) -> list[str]:
    passed, failed = case["verified"]
    stale = f"{case['unverified']} not checked since the source changed" if case["unverified"] else ""
    if failed:
        return [_card("verified", f"{failed} failed", ", ".join(filter(None, [f"{passed} passed", stale])), "bad")]
    if passed:
        return [_card("verified", "right", stale or "all that was checked last", "" if stale else "good")]
    return [_card("verified", "not now", stale)] if stale else []


def _speed_cards(case: dict[str, Any]) -> list[str]:
    timed = [result for result in case["results"] if result["us"] and result["gpu"] and not result["stale"]]
    parts = [result["roofline"] for result in timed if result["roofline"]]
    cards: list[str] = []
    if parts:
        detail = f"best of {len(parts)} problems" if len(parts) > 1 else ""
        cards.append(_card("of the roofline", f"{100 * max(parts):.0f} %", detail))
    ratios: dict[str, list[float]] = {}
    for result in timed:
        for name, peer in result["against"].items():
            if peer["ratio"]:
                ratios.setdefault(name, []).append(peer["ratio"][1])
    for name, values in ratios.items():
        detail = f"{_times(min(values))} to {_times(max(values))}" if len(values) > 1 else "its time over ours"
        cards.append(_card(f"beside {name}", f"{_times(statistics.median_high(values))}x", detail))
    if not timed and any(result["us"] and not result["gpu"] for result in case["results"]):
        cards.append(_card("speed", "unknown", _CPU_TIMES))
    return cards


def _tuning_cards(case: dict[str, Any]) -> list[str]:
    counts = Counter[str]()
    for tuning in case["tuning"]:
        counts.update(tuning["counts"])
    if not counts:
        return []
    detail = ", ".join(f"{count} {_e(name)}" for name, count in counts.most_common(4))
    chosen = [(tuning["chosen_us"], tuning) for tuning in case["tuning"] if tuning["chosen_us"]]
    best: list[str] = []
    if chosen:
        us, tuning = min(chosen, key=lambda pair: pair[0])
        where = _e(words(tuning["chosen"])) + ("" if tuning["gpu"] else f"; {_CPU_TIMES}")
        best = [_card("chosen by tuning", f"{_number(us, 4)} <small>us</small>", where)]
    return [_card("configs", str(counts.total()), detail), *best]


def _results(case: dict[str, Any]) -> str:
    if not case["results"]:
        return ""
    peers = list(dict.fromkeys(name for result in case["results"] for name in result["against"]))
    head = ["problem", "config", "status", "on", "us", "predicted us", "of measured", "TFLOP/s", "TB/s", "roofline"]
    head += [*(f"beside {_e(name)}" for name in peers), "clock", "flags"]
    rows = [_result_row(result, peers) for result in case["results"]]
    used = [n for n in range(len(head)) if n == 0 or any(row[n] for row in rows)]  # without empty columns
    left = sum(1 for n in used if n < 4)
    return _table([head[n] for n in used], [[row[n] for n in used] for row in rows], "Results", left)


_CPU_TIMES = "times of the CPU target say nothing about a GPU"


def _where(result: Mapping[str, object]) -> str:
    if result["status"] == "predicted":
        return _e(result["predicted_by"])
    name = _e(result["gpu"]) if result["gpu"] else f'<span class="status mild" title="{_CPU_TIMES}">CPU target</span>'
    return name + (" <small>earlier source</small>" if result["stale"] else "")


def _result_row(result: dict[str, Any], peers: list[str]) -> list[str]:
    beside: list[str] = []
    for name in peers:
        peer = result["against"].get(name) or {}
        verdict = str(peer.get("verdict"))
        ratio = peer.get("ratio")
        ours = {"faster": "slower", "slower": "faster"}.get(verdict, verdict)  # the verdict is about the other
        kind = ours if result["gpu"] else "same"  # times of the CPU target are no praise and no blame
        times = _times(1 / ratio[1] if ours == "slower" else ratio[1]) if ratio else ""
        beside.append(f'<span class="{_e(kind)}">{times}x {_e(ours)}</span>' if ratio else "")
    return [
        _e(words(result["problem"])),
        _e(words(result["config"])),
        _status(result["status"]),
        _where(result),
        _interval(result["us"]),
        _interval(result["predicted"]),
        _missed(result),
        _number(result["tflops"]),
        _number(result["tbs"]),
        f"{100 * result['roofline']:.0f} %" if result["roofline"] else "",
        *beside,
        f"{result['clock']:.0f} MHz" if result["clock"] else "",
        " ".join(f'<abbr title="see Flags">{_e(flag)}</abbr>' for flag in result["flags"]),
    ]


def _missed(result: Record) -> str:
    """Return by how much the prediction is more or less than what a GPU took."""
    if not (result["us"] and result["predicted"] and result["gpu"]):
        return ""
    return f"{100 * (result['predicted'][1] / result['us'][1] - 1):+.0f} %"


def _tuned(tuning: dict[str, Any]) -> str:
    good = sorted((row for row in tuning["rows"] if row["status"] == "ok" and row["us"]), key=lambda row: row["us"][1])
    rest = [row for row in tuning["rows"] if row not in good]
    shown = [*good[:20], *rest[:40]]
    rows: list[list[str]] = []
    for row in shown:
        slower = f"{_times(row['us'][1] / tuning['best'])}x" if row["us"] and tuning["best"] else ""
        compared = _interval(row["compared"])
        star = '<span class="chosen" title="chosen">★</span> ' if row["config"] == tuning["chosen"] else ""
        config = star + _e(words(row["config"]))
        times = [_interval(row["us"]), slower, compared, _number(row["estimated"])]
        rows.append([config, _status(row["status"]), _why(row["error"]), *times])
    hidden = len(good) + len(rest) - len(shown)
    title = f"Configs of {words(tuning['problem'])}" + (f" (and {hidden} more)" if hidden else "")
    head = ["config", "status", "why", "screened us", "of the best", "compared us", "estimated us"]
    used = [n for n in range(len(head)) if n < 2 or any(row[n] for row in rows)]
    left = sum(1 for n in used if n < 3)
    table = _table([head[n] for n in used], [[row[n] for n in used] for row in rows], "", left)
    why = f"<p>★ {_e(words(tuning['chosen']))}: {_e(tuning['why'])}</p>" if tuning["chosen"] else ""
    return f"<details><summary>{_e(title)}</summary>{why}{table}</details>"


def _failures(case: dict[str, Any]) -> str:
    """Return what failed, verification first, and folded below it what was refused or did not fit."""
    failures = sorted(case["failures"], key=lambda one: one["kind"] != "verify")
    failed = [one for one in failures if one["status"] in FAILED]
    others = [one for one in failures if one["status"] not in FAILED]
    about = f"Not possible here: {sum(one['count'] for one in others)} records"
    folded = f"<details><summary>{about}</summary>{_failure_table(others)}</details>" if others else ""
    return (_failure_table(failed, "Failures") if failed else "") + folded


def _failure_table(failures: list[dict[str, Any]], name: str = "") -> str:
    rows: list[list[str]] = []
    for failure in failures:
        example = _e(words(failure["config"]) or words(failure["problem"]))
        again = _e(failure["again"])
        words_of_it = " ".join(f"<span>{word}</span>" for word in again.split(" "))
        command = f'<code class="again" title="click, and copy: {again}">{words_of_it}</code>'
        reason = [_status(failure["status"]), _e(failure["kind"]), _why(failure["error"])]
        rows.append([*reason, example, command, str(failure["count"])])
    head = ["status", "verb", "why", "for example", "again", "records"]
    return _table(head, rows, name, 5)


def _environments(model: dict[str, Any]) -> str:
    names = ("gpu", "driver", "kiln", "ptxas", "python", "node", "protocol")
    rows = [[*(_e(env[name] or "none") for name in names), str(env["records"])] for env in model["environments"]]
    table = _table([*names, "records"], rows, "", len(names))
    return f"<details><summary>Environments</summary>{table}</details>"


def _glossary(model: dict[str, Any]) -> str:
    legends = _legend("Statuses", model["statuses"]) + _legend("Flags", model["flags"])
    return f"<details><summary>What statuses and flags mean</summary>{legends}</details>"


def _legend(title: str, meanings: list[list[Any]]) -> str:
    shown = _status if title == "Statuses" else lambda name: f"<code>{_e(name)}</code>"
    rows = [[shown(name), _e(meaning), str(count or "")] for name, count, meaning in meanings]
    head = ["status" if title == "Statuses" else "flag", "meaning", "records"]
    return _table(head, rows, title, 2)
