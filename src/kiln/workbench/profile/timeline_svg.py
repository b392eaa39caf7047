"""A trace as a picture that does not move: a row for each warp and engine of a CTA, in the colours of the page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...measure.trace_format import Event, Trace

COLOURS = {
    "wait": "#c9a227",
    "arrive": "#2e86ab",
    "issue": "#8e5aa8",
    "compute": "#6a994e",
    "work": "#e4572e",
    "range": "#4d7c8a",
    "mark": "#b56576",
}
"""Colours of kinds of events, readable on light and on dark ground."""
_WIDTH = 960
_LABEL = 150
_ROW = 16
_LEAST = 0.5
"""Events that are narrower are drawn with those beside them."""


def svg(trace: Trace, block: int | None = None) -> str:
    """Return the rows of a CTA, by default the first."""
    blocks = sorted({track.block for track in trace.tracks})
    if not blocks:
        return ""
    chosen = blocks[0] if block is None else block
    order = sorted((track.key, index) for index, track in enumerate(trace.tracks) if track.block == chosen)
    own = {index: [event for event in trace.on(index) if event.kind != "run"] for _, index in order}
    begin = min((event.begin for events in own.values() for event in events), default=0.0)
    end = max((event.end for events in own.values() for event in events), default=1.0)
    scale = (_WIDTH - _LABEL) / max(1e-9, end - begin)
    parts: list[str] = []
    for row, (_, index) in enumerate(order):
        y = row * _ROW
        name = html.escape(trace.tracks[index].name)
        parts.append(f'<text x="0" y="{y + 12}" fill="currentColor">{name}</text>')
        parts += [_box(*one, y, begin, scale) for one in merged(own[index], _LEAST / scale)]
    height = len(order) * _ROW
    about = f"{trace.kernel}, CTA {chosen}: {end - begin:.0f} {trace.unit}, {trace.source}"
    kinds = {event.kind for events in own.values() for event in events}
    used = [(kind, colour) for kind, colour in COLOURS.items() if kind in kinds]
    legend = " ".join(f'<tspan fill="{colour}">&#9632;</tspan> {kind}' for kind, colour in used)
    text = f'<text x="0" y="{height + 16}" fill="currentColor">{html.escape(about)}  {legend}</text>'
    style = "font:11px system-ui,sans-serif;max-width:100%;height:auto"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height + 22}" role="img" style="{style}">'
    )
    return f"{opening}<title>{html.escape(about)}</title>{''.join(parts)}{text}</svg>"


def merged(events: Sequence[Event], least: float) -> list[tuple[Event, float, float]]:
    """Return events with the times that they are drawn from and to: those that end where another is drawn already are part of it."""
    drawn: list[tuple[Event, float, float]] = []
    for event in events:
        if drawn and event.end - event.begin < least and event.end - drawn[-1][1] < 2 * least:
            drawn[-1] = (drawn[-1][0], drawn[-1][1], max(drawn[-1][2], event.end))
        else:
            drawn.append((event, event.begin, event.end))
    return drawn


def _box(event: Event, begin: float, end: float, y: int, start: float, scale: float) -> str:
    x = _LABEL + (begin - start) * scale
    width = max(_LEAST, (end - begin) * scale)
    said = f"{event.name} {event.end - event.begin:.0f} {event.line}".strip()
    box = f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" fill="{COLOURS.get(event.kind, "#888")}">'
    return f"{box}<title>{html.escape(said)}</title></rect>"
