"""Traces that are computed by a recurrence: a GEMM whose producer loads stages that a warpgroup multiplies."""

from __future__ import annotations

from kiln.base_dsl.diagnostics import Span
from kiln.clock.prediction import Prediction, Stall, Time, WhatIf
from kiln.clock.sm import Slice
from kiln.measure.trace_format import Trace


def gemm(stages: int = 3, steps: int = 12, source: str = "predicted", load: float = 700.0, mma: float = 260.0) -> Trace:
    """The trace of a CTA: a copy takes `load` cycles, 150 of which the engine is taken, and the MMAs of a stage `mma`."""
    trace = Trace(
        "gemm_kernel", source=source, device="H200", grid=(8, 4, 1), block=(256, 1, 1), clock_mhz=1980.0,
        notes=["not calibrated: TMA stores"],
    )  # fmt: skip
    producer = trace.track(0, 0, role="producer")
    consumers = [trace.track(0, warp, role="consumer") for warp in range(4, 8)]
    copies = trace.track(0, engine="bulk load")
    tensor = trace.track(0, 4, engine="wgmma")
    stores = trace.track(0, engine="bulk store")
    at, engine, free = 400.0, 0.0, 400.0
    released: list[tuple[float, int]] = []
    now = [500.0] * 4
    for step in range(steps):
        full, empty = 1024 + 8 * (step % stages), 1024 + 8 * (stages + step % stages)
        began = at
        if step >= stages:
            when, arrival = released[step - stages]
            at = max(at + 20, when + 40)
            trace.link(
                arrival, trace.add(producer, "mbarrier_wait", began, at, kind="wait", line="step.py:5", mbarrier=empty)
            )
        issue = trace.add(producer, "tma_load", at, at + 30, kind="issue", line="step.py:6", mbarrier=full)
        at += 30
        engine = max(engine, at) + 150
        work = trace.add(
            copies,
            "tma_load",
            engine - 150,
            engine - 150 + load,
            kind="work",
            line="step.py:6",
            mbarrier=full,
            bytes=32768,
        )
        trace.link(issue, work)
        landed = engine - 150 + load
        for number, track in enumerate(consumers):
            waited = max(now[number] + 20, landed + 40)
            wait = trace.add(track, "mbarrier_wait", now[number], waited, kind="wait", line="step.py:9", mbarrier=full)
            trace.link(work, wait)
            now[number] = waited
        began = now[0]
        mmas = [trace.add(track, "wgmma", now[number], now[number] + 12, kind="issue", line="step.py:10") for number, track in enumerate(consumers)]  # fmt: skip
        free = max(free, began + 12) + mma
        multiplied = trace.add(tensor, "wgmma", free - mma, free, kind="work", line="step.py:10")
        trace.link(mmas[0], multiplied)
        for number, track in enumerate(consumers):
            wait = trace.add(track, "wgmma_wait", now[number] + 12, free + 30, kind="wait", line="step.py:11")
            trace.link(multiplied, wait)
            now[number] = free + 30
        arrival = trace.add(
            consumers[0], "mbarrier_arrive", now[0], now[0] + 10, kind="arrive", line="step.py:12", mbarrier=empty
        )
        now[0] += 10
        released.append((now[0], arrival))
    issue = trace.add(consumers[0], "tma_store", now[0] + 200, now[0] + 230, kind="issue", line="step.py:15")
    store = trace.add(stores, "tma_store", now[0] + 230, now[0] + 900, kind="work", line="step.py:15", bytes=32768)
    trace.link(issue, store)
    trace.link(
        store, trace.add(consumers[0], "cp_async_bulk_wait", now[0] + 230, now[0] + 920, kind="wait", line="step.py:16")
    )
    for track in (producer, *consumers):
        own = trace.on(track)
        trace.add(track, "warp", min(each.begin for each in own) - 100, max(each.end for each in own), kind="run")
    return trace


def prediction(stages: int = 3, us: float = 11.5, folder: str = "/nowhere", **fields: object) -> Prediction:
    """A prediction of the GEMM, with the slices of its trace."""
    trace = gemm(stages)
    causes = {edge.target: edge.source for edge in trace.edges}
    slices = []
    for number, event in enumerate(trace.events):
        track = trace.tracks[event.track]
        if event.kind != "run":
            file, _, line = event.line.partition(":")
            span = Span(f"{folder}/{file}", int(line))
            where = track.block, track.warp, track.engine, event.kind, event.name, event.begin, event.end, span
            slices.append(Slice(*where, causes.get(number), event.args.get("mbarrier"), event.args.get("bytes", 0)))
    stall = Stall(Span(f"{folder}/step.py", 9), "mbarrier", 0.31, (4, 5, 6, 7), "bulk load")
    values = {
        "kernel": "gemm_kernel", "device": "H200", "grid": (8, 4, 1), "block": (256, 1, 1), "cluster": (1, 1, 1),
        "ctas_per_sm": 1, "waves": 0.242, "cycles": 1980 * us, "burst": Time(us, 0.9 * us, 1.1 * us, 1980.0),
        "sustained": Time(1.2 * us, us, 1.4 * us, 1590.0), "limiter": "tensor", "busy": {"tensor": 0.83, "smem": 0.52},
        "stalls": (stall,), "slices": tuple(slices), "flags": ("not calibrated: TMA stores",),
        "what_ifs": (WhatIf("MMAs twice as fast", 1700 * us), WhatIf("one more stage", 1980 * us)),
    }  # fmt: skip
    return Prediction(**{**values, **fields})
