"""A report as one HTML file, with Plotly in it: figures as plain data, tables, and what the words in them mean."""

from __future__ import annotations

import html
import json
import time
from typing import Any

from ..inspect.page import fill, part
from .model import words

_HUES = ("#e4572e", "#2e86ab", "#6a994e", "#8e5aa8", "#c9a227", "#4d7c8a", "#b56576", "#5b6c8f")
_FAILED = {"wrong", "nondeterministic", "cheat", "error", "device_error", "timeout", "crash", "oom", "lost", "compile_error", "compile_timeout", "compile_crash"}  # fmt: skip


def page(model: dict[str, Any], where: str, script: str) -> str:
    """The page of a report; `script` is Plotly's."""
    figures: dict[str, Any] = {}
    body = [_case(case, figures, number) for number, case in enumerate(model["cases"])]
    body += [_environments(model), _legend("Statuses", model["statuses"]), _legend("Flags", model["flags"])]
    cases = "".join(f'<a href="#case-{n}">{_e(case["name"])}</a>' for n, case in enumerate(model["cases"]))
    torn = f" · {model['torn']} torn line{'s' if model['torn'] != 1 else ''} left out" if model["torn"] else ""
    about = f"{model['records']} records of {where}{torn} · {time.strftime('%Y-%m-%d %H:%M')}"
    data = json.dumps(figures, separators=(",", ":")).replace("</", "<\\/")
    return fill("report.html", title=_e(f"{where} · kiln report"), style=part("base.css") + part("report.css"), cases=cases,
                about=_e(about), body="\n".join(body), figures=data, plotly=script.replace("</script", "<\\/script"),
                script=part("report.js"))  # fmt: skip


def _e(text: Any) -> str:
    return html.escape(str(text))


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def _interval(us: list[float] | None) -> str:
    if not us:
        return ""
    low, median, high = us
    spread = max(median - low, high - median)
    return f"{_number(median, 4)} <small>± {_number(spread, 2)}</small>"


def _table(head: list[str], rows: list[list[str]], name: str = "", left: int = 1) -> str:
    """A table; the first `left` columns are words, the others numbers."""
    cells = [
        [f'<td class="{"word" if n < left else "number"}">{cell}</td>' for n, cell in enumerate(row)] for row in rows
    ]
    heads = "".join(f'<th scope="col" class="{"word" if n < left else "number"}">{cell}</th>' for n, cell in enumerate(head))  # fmt: skip
    caption = f"<caption>{_e(name)}</caption>" if name else ""
    return f'<div class="scroll"><table>{caption}<thead><tr>{heads}</tr></thead><tbody>{"".join("<tr>" + "".join(row) + "</tr>" for row in cells)}</tbody></table></div>'


def _status(status: str) -> str:
    kind = "ok" if status == "ok" else "bad" if status in _FAILED else "mild"
    return f'<span class="status {kind}">{_e(status)}</span>'


def _why(error: str | None) -> str:
    """The first line of an error; all of it when pointed at."""
    lines = (error or "").strip().splitlines()
    return f'<span class="why" title="{_e(error)}">{_e(lines[0][:240])}</span>' if lines else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _card(name: str, value: str, more: str = "", kind: str = "") -> str:
    return f'<div class="card {kind}"><span>{_e(name)}</span><b>{value}</b><small>{more}</small></div>'


# --- a case ----------------------------------------------------------------------------------------------------------


def _case(case: dict[str, Any], figures: dict[str, Any], number: int) -> str:
    parts = [f'<h2 id="case-{number}">{_e(case["name"])}</h2>', _cards(case)]
    pictures: list[str] = []

    def picture(name: str, title: str, figure: dict[str, Any], about: str = "") -> None:
        figures[f"{name}-{number}"] = figure
        pictures.append(f'<figure><figcaption><b>{_e(title)}</b> {_e(about)}</figcaption><div class="plot" id="{name}-{number}" role="img" aria-label="{_e(title)}; the numbers are in the tables below"></div></figure>')  # fmt: skip

    if case["roofline"]:
        picture("roofline", "Roofline", roofline(case["roofline"]), "all problems, and what they were compared with")
    for n, sweep in enumerate(case["sweeps"]):
        fixed = words(sweep["fixed"])
        picture(f"sweep-{n}", f"Over {sweep['field']}", sweep_figure(sweep), f"with {fixed}" if fixed else "")
    for n, tuning in enumerate(case["tuning"]):
        title = words(tuning["problem"])
        picture(f"tuning-{n}", "Tuning", history(tuning), f"{title}: each config in the order it was tried")
        known = [row for row in tuning["rows"] if row["predicted"] and row["us"] and row["status"] == "ok"]
        if tuning["gpu"] and len(known) >= 3:  # predictions are of a GPU
            picture(f"predicted-{n}", "Predicted and measured", predictions(tuning), title)
    if pictures:
        parts.append(f'<div class="pictures">{"".join(pictures)}</div>')
    parts += [_results(case), *(_tuned(tuning) for tuning in case["tuning"]), _failures(case)]
    return f'<section aria-labelledby="case-{number}">{"".join(parts)}</section>'


def _cards(case: dict[str, Any]) -> str:
    made: list[str] = []
    good, bad = case["verified"]
    if good or bad:
        made.append(_card("verified", f"{bad} failed" if bad else "right", f"{good} passed" if bad else "all that was checked last", "bad" if bad else "good"))  # fmt: skip
    timed = [one for one in case["results"] if one["us"]]
    if timed:
        parts = [one["roofline"] for one in timed if one["roofline"]]
        if parts:
            made.append(_card("of the roofline", f"{100 * max(parts):.0f} %", f"best of {len(parts)} problems" if len(parts) > 1 else ""))  # fmt: skip
        ratios = [
            (found["ratio"][1], name) for one in timed for name, found in one["against"].items() if found["ratio"]
        ]
        for name in dict.fromkeys(name for _, name in ratios):
            mine = sorted(ratio for ratio, other in ratios if other == name)
            made.append(_card(f"beside {name}", f"{_times(mine[len(mine) // 2])}x", f"{_times(mine[0])} to {_times(mine[-1])}" if len(mine) > 1 else "its time over ours"))  # fmt: skip
    tried = sum(len(tuning["rows"]) for tuning in case["tuning"])
    if tried:
        counts: dict[str, int] = {}
        for tuning in case["tuning"]:
            for status, count in tuning["counts"].items():
                counts[status] = counts.get(status, 0) + count
        made.append(_card("configs", str(tried), ", ".join(f"{count} {_e(name)}" for name, count in sorted(counts.items(), key=lambda item: -item[1])[:4])))  # fmt: skip
        bests = [tuning["best"] for tuning in case["tuning"] if tuning["best"]]
        if bests:
            made.append(_card("best of tuning", f"{_number(min(bests), 4)} <small>us</small>", ""))
    return f'<div class="cards">{"".join(made)}</div>' if made else ""


def _results(case: dict[str, Any]) -> str:
    if not case["results"]:
        return ""
    peers = list(dict.fromkeys(name for one in case["results"] for name in one["against"]))
    head = ["problem", "config", "status", "us", "TFLOP/s", "TB/s", "roofline", *(f"beside {_e(name)}" for name in peers), "clock", "flags"]  # fmt: skip
    rows: list[list[str]] = []
    for one in case["results"]:
        beside: list[str] = []
        for name in peers:
            found = one["against"].get(name) or {}
            verdict = found.get("verdict")
            ratio = found.get("ratio")
            ours = {"faster": "slower", "slower": "faster"}.get(str(verdict), str(verdict))  # what is said of the other
            beside.append(f'<span class="{_e(ours)}">{_times(ratio[1])}x {_e(ours)}</span>' if ratio else "")
        flags = " ".join(f'<abbr title="see Flags">{_e(flag)}</abbr>' for flag in one["flags"])
        part_ = f"{100 * one['roofline']:.0f} %" if one["roofline"] else ""
        clock = f"{one['clock']:.0f} MHz" if one["clock"] else ""
        rows.append([_e(words(one["problem"])), _e(words(one["config"])), _status(one["status"]), _interval(one["us"]), _number(one["tflops"]), _number(one["tbs"]), part_, *beside, clock, flags])  # fmt: skip
    used = [
        n for n in range(len(head)) if n == 0 or any(row[n] for row in rows)
    ]  # without columns that nothing is known of
    left = sum(1 for n in used if n < 3)
    return _table([head[n] for n in used], [[row[n] for n in used] for row in rows], "Results", left)


def _tuned(tuning: dict[str, Any]) -> str:
    good = sorted((row for row in tuning["rows"] if row["status"] == "ok" and row["us"]), key=lambda row: row["us"][1])
    rest = [row for row in tuning["rows"] if row not in good]
    rows: list[list[str]] = []
    for row in [*good[:20], *rest[:40]]:
        slower = f"{_times(row['us'][1] / tuning['best'])}x" if row["us"] and tuning["best"] else ""
        star = '<span class="chosen" title="chosen">★</span> ' if row["config"] == tuning["chosen"] else ""
        rows.append([star + _e(words(row["config"])), _status(row["status"]), _why(row["error"]), _interval(row["us"]), slower, _number(row["predicted"])])  # fmt: skip
    more = len(good) + len(rest) - len(rows)
    title = f"Configs of {words(tuning['problem'])}" + (f" (and {more} more)" if more else "")
    inside = _table(["config", "status", "why", "us", "of the best", "predicted us"], rows, "", 3)
    why = f"<p>★ {_e(words(tuning['chosen']))}: {_e(tuning['why'])}</p>" if tuning["chosen"] else ""
    return f"<details><summary>{_e(title)}</summary>{why}{inside}</details>"


def _failures(case: dict[str, Any]) -> str:
    if not case["failures"]:
        return ""
    rows = [
        [
            _status(one["status"]), _e(one["kind"]), _why(one["error"]), _e(words(one["config"]) or words(one["problem"])),
            f'<code class="again" title="click, and copy: {_e(one["again"])}">{_e(one["again"])}</code>', str(one["count"]),
        ]
        for one in case["failures"]
    ]  # fmt: skip
    return _table(["status", "verb", "why", "for example", "again", "records"], rows, "What did not end well", 5)


def _environments(model: dict[str, Any]) -> str:
    names = ("gpu", "driver", "kiln", "ptxas", "python", "node", "protocol")
    rows = [[*(_e(one[name] or "none") for name in names), str(one["records"])] for one in model["environments"]]
    return f"<h2>Environments</h2>{_table([*names, 'records'], rows, '', len(names))}"


def _legend(title: str, found: list[list[Any]]) -> str:
    rows = [[_status(name) if title == "Statuses" else f"<code>{_e(name)}</code>", _e(meaning), str(count or "")] for name, count, meaning in found]  # fmt: skip
    return f"<h2>{title}</h2>{_table([title[:-2].lower() if title == 'Statuses' else 'flag', 'meaning', 'records'], rows, '', 2)}"


# --- figures ---------------------------------------------------------------------------------------------------------


def _colour(names: list[str], name: str) -> str:
    return _HUES[names.index(name) % len(_HUES)]


def _axis(title: str, log: bool = False, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **({"type": "log"} if log else {}), **more}


def roofline(found: dict[str, Any]) -> dict[str, Any]:
    """Points under the ceilings of their GPUs."""
    points = found["points"]
    names = list(dict.fromkeys(point["who"] for point in points))
    traces: list[dict[str, Any]] = []
    low, high = min(p["x"] for p in points) / 4, max(p["x"] for p in points) * 4
    for ceiling in found["ceilings"]:
        by_peak: dict[float, list[str]] = {}
        for dtype, peak in ceiling["peaks"].items():
            by_peak.setdefault(peak, []).append(dtype)
        top = max(by_peak, default=high * ceiling["tbs"])
        high = max(high, 2 * top / ceiling["tbs"])
        grey = {"color": "#9a8f84", "width": 1.5}
        traces.append(_line([low, top / ceiling["tbs"]], [low * ceiling["tbs"], top], f"{ceiling['gpu']}, {ceiling['tbs']:.3g} TB/s", grey))  # fmt: skip
        for peak, types in by_peak.items():
            label = f"{', '.join(types)}: {peak:.4g}"
            traces.append(_line([max(low, peak / ceiling["tbs"]), high], [peak, peak], label, {**grey, "dash": "dot"}))
            traces.append({
                "type": "scatter", "mode": "text", "x": [high], "y": [peak], "text": [label], "textposition": "top left",
                "textfont": {"size": 10}, "hoverinfo": "skip", "showlegend": False,
            })  # fmt: skip
    for name in names:
        mine = [point for point in points if point["who"] == name]
        label = [f"{p['name']}<br>{p['y']:.4g} TFLOP/s" + (f"<br>{100 * p['part']:.0f} % of the roofline" if p["part"] else "") for p in mine]  # fmt: skip
        traces.append({
            "type": "scatter", "mode": "markers", "name": name, "x": [p["x"] for p in mine], "y": [p["y"] for p in mine], "text": label,
            "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            "marker": {"size": 11 if name == "kernel" else 8, "color": _colour(names, name), "symbol": "circle" if name == "kernel" else "diamond-open", "line": {"width": 1.5, "color": _colour(names, name)}},
        })  # fmt: skip
    return {"data": traces, "layout": {"xaxis": _axis("FLOP per byte", True), "yaxis": _axis("TFLOP/s", True)}}


def _line(x: list[float], y: list[float], name: str, line: dict[str, Any]) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "name": name, "hoverinfo": "name", "showlegend": False}  # fmt: skip


def sweep_figure(sweep: dict[str, Any]) -> dict[str, Any]:
    """Speed, or time where the work is not known, over a field, with intervals."""
    names = [one["name"] for one in sweep["series"]]
    rates = all(rate is not None for one in sweep["series"] for rate in one["tflops"])
    traces: list[dict[str, Any]] = []
    for one in sweep["series"]:
        colour = _colour(names, one["name"])
        if rates:
            ys = one["tflops"]
            ups = [y * us[1] / us[0] - y for y, us in zip(ys, one["us"])]
            downs = [y - y * us[1] / us[2] for y, us in zip(ys, one["us"])]
        else:
            ys = [us[1] for us in one["us"]]
            ups, downs = [us[2] - us[1] for us in one["us"]], [us[1] - us[0] for us in one["us"]]
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": one["name"], "x": one["x"], "y": ys,
            "error_y": {"type": "data", "symmetric": False, "array": ups, "arrayminus": downs, "thickness": 1.2, "width": 3, "color": colour},
            "line": {"color": colour, "width": 2.5 if one["name"] == "kernel" else 1.5}, "marker": {"size": 7, "color": colour},
            "text": [f"{us[1]:.4g} us ({us[0]:.4g} to {us[2]:.4g})" for us in one["us"]], "hovertemplate": "%{x}: %{y:.4g}<br>%{text}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    xs = sweep["series"][0]["x"]
    log = min(xs) > 0 and max(xs) / min(xs) >= 8
    ticks = {"tickvals": xs, "ticktext": [f"{x:g}" if isinstance(x, float) else str(x) for x in xs]} if len(xs) <= 12 else {}  # fmt: skip
    y = _axis("TFLOP/s" if rates else "us", not rates, **({"rangemode": "tozero"} if rates else {}))
    return {"data": traces, "layout": {"xaxis": _axis(sweep["field"], log, **ticks), "yaxis": y}}


def history(tuning: dict[str, Any]) -> dict[str, Any]:
    """Each config in the order it was tried: its time, or a mark for why it has none; the best so far."""
    rows = tuning["rows"]
    timed = [(n, row) for n, row in enumerate(rows, 1) if row["us"] and row["status"] == "ok"]
    traces: list[dict[str, Any]] = []
    if timed:
        traces.append({
            "type": "scatter", "mode": "markers", "name": "measured", "x": [n for n, _ in timed], "y": [row["us"][1] for _, row in timed],
            "error_y": {"type": "data", "symmetric": False, "array": [r["us"][2] - r["us"][1] for _, r in timed], "arrayminus": [r["us"][1] - r["us"][0] for _, r in timed], "thickness": 1, "width": 2, "color": _HUES[1]},
            "marker": {"size": 8, "color": _HUES[1]}, "text": [words(row["config"]) for _, row in timed],
            "hovertemplate": "%{text}<br>%{y:.4g} us<extra></extra>",
        })  # fmt: skip
        chosen = [(n, row) for n, row in timed if row["config"] == tuning["chosen"]]
        traces.append({
            "type": "scatter", "mode": "markers", "name": "chosen", "x": [n for n, _ in chosen], "y": [row["us"][1] for _, row in chosen],
            "marker": {"size": 17, "symbol": "star", "color": _HUES[4], "line": {"width": 1, "color": "#fff"}}, "hovertemplate": f"{html.escape(words(tuning['chosen']))}<extra>chosen</extra>",
        })  # fmt: skip
        bests = [(n, row["best"]) for n, row in enumerate(rows, 1) if row["best"]]
        traces.append({"type": "scatter", "mode": "lines", "name": "best so far", "x": [n for n, _ in bests], "y": [y for _, y in bests], "line": {"shape": "hv", "color": _HUES[0], "width": 2.5}, "hoverinfo": "skip"})  # fmt: skip
    others = list(dict.fromkeys(row["status"] for row in rows if not (row["us"] and row["status"] == "ok")))
    for status in others:
        mine = [(n, row) for n, row in enumerate(rows, 1) if row["status"] == status and not (row["us"] and status == "ok")]  # fmt: skip
        traces.append({
            "type": "scatter", "mode": "markers", "name": f"{status} ({len(mine)})", "yaxis": "y2", "x": [n for n, _ in mine], "y": [status] * len(mine),
            "marker": {"size": 9, "symbol": "x-thin" if status in _FAILED else "line-ns", "line": {"width": 2, "color": "#cf4037" if status in _FAILED else "#9a8f84"}, "color": "#cf4037" if status in _FAILED else "#9a8f84"},
            "text": [f"{words(row['config'])}<br>{html.escape((row['error'] or '')[:160])}" for _, row in mine],
            "hovertemplate": "%{text}<extra>" + status + "</extra>", "showlegend": False,
        })  # fmt: skip
    split = min(0.5, 0.07 * len(others) + 0.05) if others and timed else (1.0 if others else 0.0)
    ticks: dict[str, Any] = {"dtick": 1} if len(rows) <= 16 else {}
    layout: dict[str, Any] = {"xaxis": _axis("config, in the order tried", anchor="y2" if others else "y", **ticks)}
    if timed:
        layout["yaxis"] = _axis("us", True, domain=[min(split + 0.04, 0.96) if others else 0, 1])
    if others:
        layout["yaxis2"] = _axis("", domain=[0, max(split - 0.02, 0.05)], type="category", automargin=True)
    return {"data": traces, "layout": layout}


def predictions(tuning: dict[str, Any]) -> dict[str, Any]:
    """What the model said against what was measured."""
    rows = [row for row in tuning["rows"] if row["predicted"] and row["us"] and row["status"] == "ok"]
    xs, ys = [row["predicted"] for row in rows], [row["us"][1] for row in rows]
    low, high = min(*xs, *ys), max(*xs, *ys)
    return {
        "data": [
            {"type": "scatter", "mode": "lines", "x": [low, high], "y": [low, high], "line": {"color": "#9a8f84", "dash": "dot"}, "hoverinfo": "skip", "name": "as predicted"},
            {"type": "scatter", "mode": "markers", "name": "configs", "x": xs, "y": ys, "marker": {"size": 8, "color": _HUES[3]}, "text": [words(row["config"]) for row in rows], "hovertemplate": "%{text}<br>predicted %{x:.4g}, measured %{y:.4g} us<extra></extra>"},
        ],
        "layout": {"xaxis": _axis("predicted us", True), "yaxis": _axis("measured us", True)},
    }  # fmt: skip
