"""Figures of a report as Plotly's plain data: roofline, sweeps, the history of tuning, estimates."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.records import FAILED
from .model import words

_HUES = ("#e4572e", "#2e86ab", "#6a994e", "#8e5aa8", "#c9a227", "#4d7c8a", "#b56576", "#5b6c8f")
_GREY = "#9a8f84"
_RED = "#cf4037"
_WHITE = "#fff"

Trace = dict[str, Any]
Figure = dict[str, Any]


def _scatter(
    mode: str, points: Sequence[tuple[object, object]], name: str = "", hover: str = "", **options: object
) -> Trace:
    """Return a scatter trace of (x, y) pairs; without a hover template, the pointer shows nothing."""
    shown = {"hovertemplate": hover} if hover else {"hoverinfo": "skip"}
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    return {"type": "scatter", "mode": mode, "x": xs, "y": ys, **({"name": name} if name else {}), **shown, **options}


def _marker(size: int, colour: str, symbol: str = "circle", **line: object) -> dict[str, Any]:
    return {"size": size, "color": colour, "symbol": symbol, **({"line": line} if line else {})}


def _error_bars(above: list[float], below: list[float], colour: str, thickness: float, width: int) -> dict[str, Any]:
    bars = {"array": above, "arrayminus": below, "color": colour, "thickness": thickness, "width": width}
    return {"type": "data", "symmetric": False, **bars}


def _axis(title: str, log: bool = False, **options: object) -> dict[str, Any]:
    return {"title": {"text": title}, **({"type": "log"} if log else {}), **options}


def _colour(names: list[str], name: str) -> str:
    return _HUES[names.index(name) % len(_HUES)]


def roofline(data: dict[str, Any]) -> Figure:
    """Return the points of all problems under the ceilings of their GPUs."""
    points = data["points"]
    low = min(point["x"] for point in points) / 4
    high = max(point["x"] for point in points) * 4
    traces: list[Trace] = []
    for ceiling in data["ceilings"]:
        drawn, high = _ceiling(ceiling, low, high)
        traces += drawn
    names = list(dict.fromkeys(point["who"] for point in points))
    for name in names:
        mine = [point for point in points if point["who"] == name]
        size, symbol = (11, "circle") if name == "kernel" else (8, "diamond-open")
        colour = _colour(names, name)
        marker = _marker(size, colour, symbol, width=1.5, color=colour)
        places = [(point["x"], point["y"]) for point in mine]
        texts = [_point_label(point) for point in mine]
        hover = "%{text}<extra>%{fullData.name}</extra>"
        traces.append(_scatter("markers", places, name, hover, text=texts, marker=marker))
    return {"data": traces, "layout": {"xaxis": _axis("FLOP per byte", True), "yaxis": _axis("TFLOP/s", True)}}


def _point_label(point: dict[str, Any]) -> str:
    part = f"<br>{100 * point['part']:.0f} % of the roofline" if point["part"] else ""
    return f"{point['name']}<br>{point['y']:.4g} TFLOP/s{part}"


def _ceiling(ceiling: dict[str, Any], low: float, high: float) -> tuple[list[Trace], float]:
    """Return the lines of a GPU's bandwidth and peaks from `low` on, and how far they reach."""
    types_of: dict[float, list[str]] = {}
    for dtype, peak in ceiling["peaks"].items():
        types_of.setdefault(peak, []).append(dtype)
    tbs = ceiling["tbs"]
    top = max(types_of, default=high * tbs)
    high = max(high, 2 * top / tbs)
    grey = {"color": _GREY, "width": 1.5}
    by_name = {"hoverinfo": "name", "showlegend": False}
    name = f"{ceiling['gpu']}, {tbs:.3g} TB/s"
    traces = [_scatter("lines", [(low, low * tbs), (top / tbs, top)], name, line=grey) | by_name]
    for peak, types in types_of.items():
        label = f"{', '.join(types)}: {peak:.4g}"
        dotted = {**grey, "dash": "dot"}
        ends = [(max(low, peak / tbs), peak), (high, peak)]
        traces.append(_scatter("lines", ends, label, line=dotted) | by_name)
        text = {
            "text": [label],
            "textposition": "top left",
            "textfont": {"size": 10},
            "showlegend": False,
            "cliponaxis": False,
        }
        traces.append(_scatter("text", [(high, peak)], **text))
    return traces, high


def sweep(data: dict[str, Any]) -> Figure:
    """Return the speed over a field, or the time if the work is unknown, with intervals."""
    names = [series["name"] for series in data["series"]]
    rates = all(rate is not None for series in data["series"] for rate in series["tflops"])
    traces: list[Trace] = []
    for series in data["series"]:
        colour = _colour(names, series["name"])
        if rates:
            ys = series["tflops"]
            above = [y * us[1] / us[0] - y for y, us in zip(ys, series["us"])]
            below = [y - y * us[1] / us[2] for y, us in zip(ys, series["us"])]
        else:
            ys = [us[1] for us in series["us"]]
            above = [us[2] - us[1] for us in series["us"]]
            below = [us[1] - us[0] for us in series["us"]]
        points = list(zip(series["x"], ys))
        texts = [f"{us[1]:.4g} us ({us[0]:.4g} to {us[2]:.4g})" for us in series["us"]]
        line = {"color": colour, "width": 2.5 if series["name"] == "kernel" else 1.5}
        options = {"text": texts, "error_y": _error_bars(above, below, colour, 1.2, 3), "line": line}
        hover = "%{x}: %{y:.4g}<br>%{text}<extra>%{fullData.name}</extra>"
        traces.append(_scatter("lines+markers", points, series["name"], hover, marker=_marker(7, colour), **options))
    xs = data["series"][0]["x"]
    log = min(xs) > 0 and max(xs) / min(xs) >= 8
    labels = [f"{x:g}" if isinstance(x, float) else str(x) for x in xs]
    ticks = {"tickvals": xs, "ticktext": labels} if len(xs) <= 12 else {}
    y = _axis("TFLOP/s" if rates else "us", not rates, **({"rangemode": "tozero"} if rates else {}))
    return {"data": traces, "layout": {"xaxis": _axis(data["field"], log, **ticks), "yaxis": y}}


def history(tuning: dict[str, Any]) -> Figure:
    """Return the configs in the order they were tried: the time, or a mark for why there is none; the best so far."""
    numbered = list(enumerate(tuning["rows"], 1))
    timed = [(number, row) for number, row in numbered if _is_timed(row)]
    statuses = list(dict.fromkeys(row["status"] for row in tuning["rows"] if not _is_timed(row)))
    traces = _timed_configs(timed, numbered, tuning["chosen"]) if timed else []
    for status in statuses:
        rows = [(number, row) for number, row in numbered if row["status"] == status and not _is_timed(row)]
        traces.append(_untimed_configs(status, rows))
    # Statuses are a band below the times, or the whole figure without any.
    band = min(0.5, 0.07 * len(statuses) + 0.05) if timed else 1.0
    ticks: dict[str, Any] = {"dtick": 1} if len(numbered) <= 16 else {}
    anchor = "y2" if statuses else "y"
    layout: dict[str, Any] = {"xaxis": _axis("config, in the order tried", anchor=anchor, **ticks)}
    if timed:
        layout["yaxis"] = _axis("us", True, domain=[min(band + 0.04, 0.96) if statuses else 0, 1])
    if statuses:
        layout["yaxis2"] = _axis("", domain=[0, max(band - 0.02, 0.05)], type="category", dtick=1, automargin=True)
    return {"data": traces, "layout": layout}


def _is_timed(row: Mapping[str, object]) -> bool:
    return bool(row["us"]) and row["status"] == "ok"


def _timed_configs(timed: list[Any], numbered: list[Any], chosen: Any) -> list[Trace]:
    """Return the times with their intervals, a star for the chosen config, and the best so far."""
    intervals = [row["us"] for _, row in timed]
    above = [us[2] - us[1] for us in intervals]
    below = [us[1] - us[0] for us in intervals]
    stars = [(number, row["us"][1]) for number, row in timed if row["config"] == chosen]
    bests = [(number, row["best"]) for number, row in numbered if row["best"]]
    points = [(number, row["us"][1]) for number, row in timed]
    texts = [words(row["config"]) for _, row in timed]
    bars = _error_bars(above, below, _HUES[1], 1, 2)
    dot = _marker(8, _HUES[1])
    star = _marker(17, _HUES[4], "star", width=1, color=_WHITE)
    steps = {"shape": "hv", "color": _HUES[0], "width": 2.5}
    hover = "%{text}<br>%{y:.4g} us<extra></extra>"
    return [
        _scatter("markers", points, "screened", hover, text=texts, error_y=bars, marker=dot),
        _scatter("markers", stars, "chosen", f"{html.escape(words(chosen))}<extra>chosen</extra>", marker=star),
        _scatter("lines", bests, "best so far", line=steps),
    ]


def _untimed_configs(status: str, rows: list[Any]) -> Trace:
    colour, symbol = (_RED, "x-thin") if status in FAILED else (_GREY, "line-ns")
    texts = [f"{words(row['config'])}<br>{html.escape((row['error'] or '')[:160])}" for _, row in rows]
    options = {"text": texts, "marker": _marker(9, colour, symbol, width=2, color=colour), "yaxis": "y2"}
    points = [(number, status) for number, _ in rows]
    name = f"{status} ({len(rows)})"
    hover = "%{text}<extra>"
    return _scatter("markers", points, name, f"{hover}{status}</extra>", showlegend=False, **options)


def estimates(tuning: dict[str, Any]) -> Figure:
    """Return measured times over estimated ones."""
    rows = [row for row in tuning["rows"] if row["estimated"] and _is_timed(row)]
    points = [(row["estimated"], row["us"][1]) for row in rows]
    ends = [(bound, bound) for bound in (min(map(min, points)), max(map(max, points)))]
    hover = "%{text}<br>estimated %{x:.4g}, measured %{y:.4g} us<extra></extra>"
    texts = [words(row["config"]) for row in rows]
    return {
        "data": [
            _scatter("lines", ends, "as estimated", line={"color": _GREY, "dash": "dot"}),
            _scatter("markers", points, "configs", hover, text=texts, marker=_marker(8, _HUES[3])),
        ],
        "layout": {"xaxis": _axis("estimated us", True), "yaxis": _axis("measured us", True)},
    }
