"""Predictions as traces: the slices of the simulated SM in the format that measured traces have.

Tracks and events have the names that marks in the kernel give them, so that a measured and a predicted trace of a kernel lie over each
other.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from ..hardware.engines import WGMMA
from ..hardware.limits import WARPGROUP
from ..measure.trace_format import WARP_RUNS, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.trace_format import Object
    from .prediction import Prediction
    from .sm import Slice

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
        arch=prediction.arch,
        grid=_three(prediction.grid),
        block=_three(prediction.block),
        cluster=_three(prediction.cluster),
        launch=launch,
        clock_mhz=prediction.burst.mhz,
        notes=list(prediction.flags),
    )
    roles = _roles(prediction.slices)
    for one in prediction.slices:
        role = "" if one.engine else roles.get((one.block, one.warp), "")
        track = trace.track(one.block, one.warp, one.engine, role=role)
        line = f"{PurePath(one.span.filename).name}:{one.span.line}" if one.span else ""
        trace.add(track, one.name, one.begin, one.end, kind=one.kind, line=line, **_args(one))
    for number, one in enumerate(prediction.slices):
        if one.cause is not None:
            trace.link(one.cause, number)
    _add_runs(trace)
    return trace


def _three(size: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*size, 1, 1, 1)[:3]
    return x, y, z


def _args(one: Slice) -> Object:
    """Return what else a slice says."""
    args: Object = {} if one.mbarrier is None else {"mbarrier": one.mbarrier}
    return args | ({"bytes": one.bytes} if one.bytes else {})


def _roles(slices: Sequence[Slice]) -> dict[tuple[int, int | None], str]:
    """Return what each warp is called: what it issues, if that is of one kind, as in kernels whose warps have roles."""
    does: dict[tuple[int, int | None], set[str]] = {}
    for one in slices:
        warps = [one.warp]
        if one.engine == WGMMA.name and one.warp is not None:  # one warp issues what its warpgroup multiplies
            warps = [*range(one.warp, one.warp + WARPGROUP // 32)]
        elif one.engine:
            continue
        for warp in warps if one.name in _DOES else ():
            does.setdefault((one.block, warp), set()).add(_DOES[one.name])
    return {warp: _role(kinds) for warp, kinds in does.items()}


def _role(kinds: set[str]) -> str:
    if "mma" in kinds:
        return "" if "load" in kinds else "consumer"
    return {"load": "producer", "store": "epilogue"}.get("".join(kinds), "")


def _add_runs(trace: Trace) -> None:
    """Add each warp's life, from its first event to its last, if it is not there."""
    lives: dict[int, list[float]] = {}
    there: set[int] = set()
    for event in trace.events:
        life = lives.setdefault(event.track, [event.begin, event.end])
        lives[event.track] = [min(life[0], event.begin), max(life[1], event.end)]
        if event.kind == "run":
            there.add(event.track)
    for index, (begin, end) in lives.items():
        track = trace.tracks[index]
        if not track.engine and track.warp is not None and index not in there:
            trace.add(index, WARP_RUNS, begin, end, kind="run")
