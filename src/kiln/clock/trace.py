"""Predictions as traces: the slices of the simulated SM in the format that measured traces have.

Tracks and events have the names that marks in the kernel give them, so that a measured and a predicted trace of a kernel lie over each
other.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..hardware.engines import BULK_LOAD, BULK_STORE, COPY, TCGEN05, WGMMA
from ..hardware.limits import WARPGROUP
from ..measure.trace_format import WARP_RUNS, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.trace_format import Object
    from .prediction import Prediction, Slice

ENGINES = {
    "tensor": WGMMA.name,
    "tma load": BULK_LOAD.name,
    "tma store": BULK_STORE.name,
    "copies": COPY.name,
    "tcgen05": TCGEN05.name,
}
"""The names of engines by the simulator's own."""
NAMES = {
    ("tma load", "load"): "tma_load",
    ("tma store", "store"): "tma_store",
    ("tensor", "mma"): "wgmma",
    ("warp", "mma"): "wgmma",
    ("warp", "load"): "tma_load",
    ("warp", "store"): "tma_store",
    ("warp", "wait mbarrier"): "mbarrier_wait",
    ("warp", "wait wgmma"): "wgmma_wait",
    ("warp", "wait barrier"): "barrier",
    ("warp", "wait cluster"): "cluster_wait",
    ("warp", "wait store"): "cp_async_bulk_wait",
    ("warp", "wait cp.async"): "cp_async_wait",
}
"""The names of events, by what the simulator says that a warp or an engine does."""
WAITS = frozenset(
    ("mbarrier_wait", "wgmma_wait", "barrier", "cluster_wait", "cp_async_bulk_wait", "cp_async_wait", "tcgen05_wait")
)
_ISSUES = frozenset(("tma_load", "tma_store", "tma_reduce", "wgmma", "bulk_load", "bulk_store", "cp_async"))
_DOES = {
    **dict.fromkeys(("tma_load", "bulk_load"), "load"),
    **dict.fromkeys(("wgmma", "mma_sync", "tcgen05_mma"), "mma"),
    **dict.fromkeys(("tma_store", "bulk_store"), "store"),
}
"""What a warp does that issues an operation."""


def trace_of(prediction: Prediction, launch: int = 0) -> Trace:
    """Return what a prediction says happened, as a trace of the launch with this number in its call."""
    trace = Trace(
        prediction.kernel,
        source="predicted",
        device=prediction.device,
        grid=_three(prediction.grid),
        block=_three(prediction.block),
        cluster=_three(prediction.cluster),
        launch=launch,
        clock_mhz=prediction.burst.mhz,
        notes=list(prediction.flags),
    )
    roles = _roles(prediction.slices)
    for one in prediction.slices:
        warp, engine = _place(one)
        track = trace.track(one.cta, warp, engine, role="" if engine else roles.get((one.cta, one.track), ""))
        name = _name(one)
        line = f"{PurePath(one.span.filename).name}:{one.span.line}" if one.span else ""
        trace.add(track, name, one.begin, one.end, kind=_kind(name, engine), line=line, **_args(one))
    for number, one in enumerate(prediction.slices):
        if one.cause is not None:
            trace.link(one.cause, number)
    _add_runs(trace)
    return trace


def _three(size: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*size, 1, 1, 1)[:3]
    return x, y, z


def _warp(track: str) -> int | None:
    match = re.fullmatch(r"warp (\d+)", track)
    return int(match[1]) if match else None


def _place(one: Slice) -> tuple[int | None, str]:
    """Return the warp and the engine of a slice's track; MMAs belong to the warpgroup that issued them."""
    warp = _warp(one.track)
    if warp is not None:
        return warp, ""
    track, _, of = one.track.partition(", warp ")
    if of:
        first = WARPGROUP // 32
        return int(of) // first * first, ENGINES.get(track, track)
    return None, ENGINES.get(track, track)


def _name(one: Slice) -> str:
    track = "warp" if _warp(one.track) is not None else one.track.partition(", warp ")[0]
    return NAMES.get((track, one.name), one.name)


def _kind(name: str, engine: str) -> str:
    if engine:
        return "work"
    if name in WAITS:
        return "wait"
    return "issue" if name in _ISSUES else "arrive" if name.endswith("arrive") else "compute"


def _args(one: Slice) -> Object:
    """Return what else a slice says."""
    values = {name: getattr(one, name, None) for name in ("mbarrier", "bytes", "stage")}
    return {name: value for name, value in values.items() if value is not None}


def _roles(slices: Sequence[Slice]) -> dict[tuple[int, str], str]:
    """Return what each warp is called: what it issues, if that is of one kind, as in kernels whose warps have roles."""
    does: dict[tuple[int, str], set[str]] = {}
    for one in slices:
        if _warp(one.track) is not None:
            does.setdefault((one.cta, one.track), set()).update(filter(None, [_DOES.get(_name(one))]))
    return {track: _role(kinds) for track, kinds in does.items()}


def _role(kinds: set[str]) -> str:
    if "mma" in kinds:
        return "" if "load" in kinds else "consumer"
    return {"load": "producer", "store": "epilogue"}.get("".join(kinds), "")


def _add_runs(trace: Trace) -> None:
    """Add each warp's life, from its first event to its last, if it is not there."""
    for index, track in enumerate(trace.tracks):
        own = [event for event in trace.events if event.track == index]
        if track.engine or track.warp is None or not own or any(event.kind == "run" for event in own):
            continue
        trace.add(index, WARP_RUNS, min(one.begin for one in own), max(one.end for one in own), kind="run")
