"""GEMMs of layers of public models beside cuBLAS: those that no constant of the cost model was fitted to.

    python benchmarks/gemm_layers.py [--before choices.json] [--only 9728] [--seconds 300] [--save]

Calls alternate in a CUDA graph, in three states: each after a flush of the L2 cache ("cold"); back to back, each on
other operands, as layers follow each other ("in turn"); and back to back on the same operands ("again"), which stay in
the L2 cache as far as they fit. `--before` are the choices of another revision, which are timed as well: written by
`python tools/replay/choices.py --write FILE` with that revision on `PYTHONPATH`. Results are compared with cuBLAS
first. Several processes compile, or load from the disk cache; one at a time has the GPU.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import multiprocessing
import random
import statistics
import time
from pathlib import Path
from queue import Empty
from typing import Any

import alternating
import gemm_shapes
import recorded
import torch
from fitting import gemm
from gemm_shapes import Gemm
from results import Page, Table

from kiln import kernels

STATES = ("cold", "in turn", "again")
SUMMARY = Table(
    "Of cuBLAS, by the number of tokens: geometric mean, and the least",
    (
        "tokens",
        "layers",
        "cold, before",
        "least",
        "cold, now",
        "least",
        "in turn, before",
        "least",
        "in turn, now",
        "least",
        "again, before",
        "least",
        "again, now",
        "least",
    ),
)
TABLE = Table(
    "Layers held out of the fit",
    (
        "layer",
        "dtype",
        "M",
        "N",
        "K",
        "cuBLAS us, cold",
        "before",
        "now",
        "cuBLAS us, in turn",
        "before",
        "now",
        "cuBLAS us, again",
        "before",
        "now",
        "config",
    ),
)
PAGE = Page(__file__, "GEMMs of layers", SUMMARY, TABLE)
_SETS_BYTES, _MOST_SETS = 160e6, 64
"""Bytes of all operands that calls in turn have, more than the L2 cache; and how many they are at most."""
_GRACE = 10.0
"""Seconds for which processes are waited for when time is up."""


def chosen_before(path: Path | None) -> dict[str, Any]:
    """Return the configs that another revision chooses, by the names of shapes."""
    if path is None:
        return {}
    found = json.loads(path.read_text())["gemm"]
    return {
        name: recorded.Config(row["class"], tuple(_frozen(x) for x in row["fields"].values()))
        for name, row in found.items()
        if "class" in row and row["class"] in recorded.FIELDS
    }


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def timed(shape: Gemm, configs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return microseconds of cuBLAS and of configs, by state."""
    a, b, out = gemm.operands(shape, True)
    right = gemm.right_calls(shape, list(dict.fromkeys(configs.values())), a, b, out)
    calls = {"cuBLAS": right[None], **{name: right[config] for name, config in configs.items()}}
    own = {name: call for name, call in calls.items() if configs.get("before") != configs["now"] or name != "before"}
    count = min(_MOST_SETS, int(_SETS_BYTES // (a.nbytes + b.nbytes + out.nbytes)) + 2)
    sets = [(a, b, out), *(gemm.operands(shape, True) for _ in range(count - 1))]
    turns: dict[str, list[Any]] = {"cuBLAS": [gemm.peer(*x) for x in sets]}
    for name in own:
        if name != "cuBLAS":
            turns[name] = [functools.partial(kernels.gemm, x, y, out=z, config=configs[name]) for x, y, z in sets]
    states = (
        alternating.cold(own),
        alternating.back_to_back(turns),
        alternating.back_to_back({name: [call] for name, call in own.items()}),
    )
    return {state: {"before": us["now"], **us} for state, us in zip(STATES, states)}


def time_some(queue: Any, results: Any, gpu: Any, end: float) -> None:
    """Time shapes of a queue until it is empty or time is up; None says that this process is done."""
    try:
        while time.time() < end:
            try:
                shape, configs = queue.get(timeout=1)
            except Empty:
                return
            for config in configs.values():
                gemm.compile_one((shape, config))
            gc.collect()
            gc.freeze()  # or each graph looks through all that compiling left
            with gpu:
                try:
                    if time.time() < end:
                        results.put((shape, configs["now"], timed(shape, configs)))
                except Exception as wrong:
                    print(f"{shape.name}: {wrong}", flush=True)
                torch.cuda.empty_cache()
    finally:
        results.put(None)


def show(shape: Gemm, found: dict[str, dict[str, float]], config: Any, has_before: bool) -> None:
    """Add a row with cuBLAS's microseconds and the ratios to them."""
    cells: list[str | None] = []
    for us in found.values():
        cells += [f"{us['cuBLAS']:.1f}", f"{us['cuBLAS'] / us['before']:.2f}" if has_before else None]
        cells += [f"{us['cuBLAS'] / us['now']:.2f}"]
    TABLE.add(shape.kind, shape.dtype, shape.m, shape.n, shape.k, *cells, gemm.short(config))


def summarise(rows: list[tuple[Gemm, dict[str, dict[str, float]]]], has_before: bool) -> None:
    """Add the means of each number of tokens, and of all."""
    for m in [*sorted({shape.m for shape, _ in rows}), None]:
        some = [found for shape, found in rows if m in (None, shape.m)]
        cells: list[str | None] = []
        for state in STATES:
            for name in ("before", "now"):
                ratios = [found[state]["cuBLAS"] / found[state][name] for found in some]
                mean, least = statistics.geometric_mean(ratios), min(ratios)
                cells += [f"{mean:.3f}", f"{least:.2f}"] if has_before or name == "now" else [None, None]
        SUMMARY.add("all" if m is None else m, len(some), *cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="choices of another revision")
    parser.add_argument("--only", default="", help="a part of a shape's name")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which nothing further is begun")
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--save", action="store_true", help="write docs/data/gemm_layers.md")
    asked = parser.parse_args()
    end, before = time.time() + asked.seconds, chosen_before(asked.before)
    jobs: list[tuple[Gemm, dict[str, Any]]] = []
    for shape in gemm_shapes.layers():
        if shape.held_out and asked.only in shape.name:
            configs = {"now": gemm.choices_of(shape)[0]}
            if shape.name in before:
                configs["before"] = gemm.config_of(before[shape.name])
            jobs.append((shape, configs))
    context = multiprocessing.get_context("spawn")
    queue, results, gpu = context.Queue(), context.Queue(), context.Lock()
    for job in random.Random(0).sample(jobs, len(jobs)):  # if time is up, some of each kind were timed
        queue.put(job)
    given = (queue, results, gpu, end)
    workers = [context.Process(target=time_some, args=given, daemon=True) for _ in range(asked.processes)]
    for worker in workers:
        worker.start()
    running, timings = len(workers), list[Any]()
    while running:
        try:
            row = results.get(timeout=max(1.0, end + _GRACE - time.time()))
        except Empty:  # a process that died says nothing
            break
        running -= row is None
        timings += [] if row is None else [row]
    torch.cuda.init()  # the page names the GPU
    timings.sort(key=lambda row: (row[0].m, row[0].name))
    for shape, config, times in timings:
        show(shape, times, config, bool(before))
    rows = [(shape, times) for shape, _, times in timings]
    summarise(rows, bool(before))
    PAGE.finish(asked.save)


if __name__ == "__main__":
    main()
