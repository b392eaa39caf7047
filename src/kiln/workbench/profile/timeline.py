"""Writes traces as one HTML file that needs no server and no network: the timeline of warps, engines and stages of pipelines."""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...measure import trace_format, trace_reading
from ..inspect.page import fill, part

if TYPE_CHECKING:
    from ...measure.trace_format import Trace
    from .result import Profile

Record = dict[str, Any]
"""A prediction, or what a page shows of it, as JSON."""
MOST_FILES = 12
"""The most files whose text a page contains."""


def traces_of(profile: Profile) -> list[Trace]:
    """Return the traces that a profile has written or read, predicted or measured."""
    file = (profile.extra.get("trace") or {}).get("own")
    return trace_format.loads(Path(file).read_bytes()) if file else []


def page_of(profiles: Sequence[Profile], command: str) -> str:
    """Return the page of some profiles."""
    title = " and ".join(dict.fromkeys(each.name for each in profiles))
    traces: list[Trace] = []
    records: list[Record | None] = []
    files: dict[str, str] = {}
    for each in profiles:
        own = traces_of(each)
        traces += own
        records += (each.extra.get("clock") or {}).get("predictions") or [None] * len(own)
        files |= each.extra.get("files") or {}
    return page(title, traces, records, files, command)


def page(
    title: str,
    traces: Sequence[Trace],
    records: Sequence[Record | None] = (),
    files: Mapping[str, str] | None = None,
    command: str = "",
) -> str:
    """Return the page of some traces, with the predictions that they belong to, as `clock_profile.to_json` returns them.

    `files` has the paths of the program's files by the names that the traces' lines have.
    """
    launches = [_launch(trace, record) for trace, record in itertools.zip_longest(traces, records[: len(traces)])]
    model = {"title": title, "command": command, "launches": launches, "files": _texts(traces, files or {})}
    packed = zlib.compress(json.dumps(model, separators=(",", ":")).encode(), 9)
    return fill(
        "timeline.html",
        title=html.escape(f"{title} · timeline"),
        style=part("base.css") + part("timeline.css"),
        script=part("timeline.js"),
        model=base64.b64encode(packed).decode(),
    )


def _launch(trace: Trace, record: Record | None) -> Record:
    """Return what the page shows of a trace."""
    sites: dict[tuple[str, str, str], int] = {}
    rows: list[list[float]] = []
    args: dict[int, Mapping[str, object]] = {}
    for number, event in enumerate(trace.events):
        site = sites.setdefault((event.name, event.kind, event.line), len(sites))
        rows.append([event.track, site, round(event.begin, 1), round(event.end, 1)])
        if event.args:
            args[number] = event.args
    path = trace_reading.critical_path(trace)
    pipelines = trace_reading.pipelines(trace)
    return {
        "kernel": trace.kernel,
        "source": trace.source,
        "device": trace.device,
        "unit": trace.unit,
        "mhz": trace.clock_mhz,
        "size": [trace.grid, trace.block, trace.cluster],
        "notes": trace.notes,
        "record": {name: value for name, value in record.items() if name != "slices"} if record else None,
        "tracks": [[each.block, each.warp, each.engine, each.role, each.sm] for each in trace.tracks],
        "sites": list(sites),
        "events": [list(column) for column in zip(*rows)],
        "known": args,
        "edges": [[each.source for each in trace.edges], [each.target for each in trace.edges]],
        "path": [[one.track, one.begin, one.end, -1 if one.event is None else one.event] for one in path],
        "shares": [[one.what, one.where, one.line, one.cycles, one.share] for one in trace_reading.shares(trace, path)],
        "pipelines": [
            {
                "block": one.block,
                "lines": one.lines,
                "stages": one.stages,
                "early": one.early,
                "late": one.late,
                "empty": one.empty,
                "fills": [[each.stage, each.begin, each.landed, each.needed, each.released] for each in one.fills],
            }
            for one in pipelines
        ],
    }


def _texts(traces: Sequence[Trace], files: Mapping[str, str]) -> Record:
    """Return the text of the files that events lie in, with its highlighting."""
    from ..inspect import highlight  # loads pygments: 100 ms

    counts: dict[str, int] = {}
    for trace in traces:
        for event in trace.events:
            name = event.line.rpartition(":")[0]
            counts[name] = counts.get(name, 0) + 1
    most = [name for name in sorted(counts, key=lambda name: -counts[name]) if os.path.isfile(files.get(name, ""))]
    colours = highlight.Colours()
    texts: Record = {}
    for name in most[:MOST_FILES]:
        lines = Path(files[name]).read_text(encoding="utf-8", errors="replace").splitlines()
        texts[name] = {"lines": lines, "runs": colours.runs("python", lines)}
    return texts
