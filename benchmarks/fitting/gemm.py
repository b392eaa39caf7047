"""Measure configs of GEMM on sm_90a, and fit the cost model to the measurements.

All configs that the library has for a shape are measured, but for those that the model expects to take more than `--within` times as
long as the best. Each is timed shortly (rows with `screened`); then the best `--best` of a shape and the chosen one take turns, which
is what tells them apart. With `--again 4` the chosen config of each shape and the best three others that are known take turns, and
nothing else is measured.

Shapes are those of `benchmarks/data/gemm_shapes.json`: the forty, of which every fourth is kept out of the fit (`held_out`), and
others, drawn by chance with seeds that stand there; those of the last seeds are kept out of everything. Each measurement is a line of
`benchmarks/data/gemm_h200.jsonl` (of a config, its fields in order), written when all of its shape are made: `measure` goes on where
it was stopped. Configs are measured beside cuBLAS, with normal data, in CUDA graphs, so that the speed of the host does not count.
Several processes compile, or load what `compile` left in the disk cache; one at a time has the GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import gc
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import numpy as np
import recorded
from recorded import Gemm

import kiln
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem, sm90_cost
from kiln.kernels.impl.gemm.sm80_config import Sm80GemmConfig
from kiln.kernels.impl.gemm.sm90_config import Sm90GemmConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

_DATA = Path(__file__).parent / "data"
_TYPES = {"float16": kiln.Float16, "bfloat16": kiln.BFloat16}
_CONFIGS = {"Sm90GemmConfig": Sm90GemmConfig, "Sm80GemmConfig": Sm80GemmConfig}
_FIXED = ("dram_tbps", "power_tflops", "power_l2_tbps", "fp8_promotion_rate", "fused_epilogue_us")
"""Coefficients that stay as they are: no shape here tells of them, or turns of 16384 cubed alone do."""
_MEASURED_GAIN = 1.02
"""How much faster a measured config must be than the model's choice to stand in the tuned table."""
REGRESSED = ("bfloat16 NT 128x192x9216", "bfloat16 NT 64x448x46080")
"""Unseen shapes that stand in the table even so: a model with more coefficients chose better for them."""
_STAY = 1.0
"""How much figures are held where they were: what few measurements tell of hardly moves."""
_ALL = 0.15
"""How much it counts how far all configs of a shape are from what was measured, beside how they differ."""
_REGRET, _BEHIND, _SHARP = 6.0, 1.01, 60
"""How much it counts that a chosen config is slower than the best, by more than that; and how sharply costs choose."""
_SCREENED, _HOT = (0.4, 0.03), 1.05
"""How much what was timed shortly counts beside what took turns: less of a shape whose configs are so much slower in turns, at the power limit, which differ otherwise there."""
_FAR = 1.8
"""Configs that take so many times as long as the best of a shape are left out of the fit."""
_STEPS = (0.1, 0.03, 0.01, -0.01, -0.03, -0.1)
"""By which logarithms of figures are moved."""
_SLICES = (8e-3, 60e-3)
"""Seconds of back to back calls that are timed at once, and of products that take long, which run at the power limit: two thirds of them, then."""
_WARM = 1.0
"""Seconds of work before anything is timed."""
_TURNS = 3
"""Of each config, if no other number is asked for."""
_LONG, _SLOW = 100.0, 1000.0
"""Microseconds of such a product; and of one that is called as few times as can be before it takes turns."""


def problem_of(shape: Gemm) -> GemmProblem:
    """Return the GEMM of dense arrays."""
    dtype, m, n, k = _TYPES[shape.dtype], shape.m, shape.n, shape.k
    a = TensorLayout.dense(dtype, 1, m, k) if shape.layout[0] == "N" else TensorLayout(dtype, (1, m, k), (m * k, 1, m))
    b = TensorLayout.dense(dtype, 1, k, n) if shape.layout[1] == "N" else TensorLayout(dtype, (1, k, n), (n * k, 1, k))
    return GemmProblem(a, b, TensorLayout.dense(dtype, 1, m, n))


def configs_of(shape: Gemm, within: float) -> list[Any]:
    """All that the library can choose from, but for those that the model expects to take so many times as long as the best; the cheapest first."""
    choices = REGISTRY.choices(problem_of(shape), device_of("sm_90a"))
    return [choice.config for choice in choices if choice.cost <= within * choices[0].cost]


class Journal(recorded.GemmJournal):
    """The measurements, by configs of the library."""

    def __init__(self, path: Path = recorded.DATA / "gemm_h200.jsonl") -> None:
        super().__init__(path)
        self.tried = {(row["shape"], row["config"]) for row in self.rows if "screened" in row}
        for name, rows in self.by_shape.items():
            if first := self.fullest(name):  # what took turns since then counts, too
                self.tried |= {(name, row["config"]) for row in rows if row.get("run", "") >= first}

    def config(self, kind: str, values: Any) -> Any:
        return _CONFIGS[kind](*(tuple(x) if isinstance(x, list) else x for x in values))

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write down what was measured of a shape."""
        with self.path.open("a") as file:
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)

    def last(self, shape: Gemm, config: Any) -> str:
        """Return the last run in which a config of a shape took turns with others, or in which any did."""
        rows = [row for row in self.by_shape.get(shape.name, ()) if "run" in row and "screened" not in row]
        runs, own = [row["run"] for row in rows], {row["run"] for row in rows if row["config"] == config}
        return max((run for run in runs if runs.count(run) > 1), key=lambda run: (run in own, run), default="")

    def of(self, shape: Gemm, run: str) -> list[tuple[Any, float, float]]:
        """Return the configs of a shape that took turns in a run with their microseconds, and cuBLAS's; the fastest first."""
        rows = [row for row in self.by_shape.get(shape.name, ()) if row.get("run") == run and "screened" not in row]
        return sorted(((row["config"], row["us"], row["cublas_us"]) for row in rows), key=lambda x: x[1])


# --- measuring -------------------------------------------------------------------------------------------------------


def _operands(shape: Gemm, random: bool) -> tuple[Any, Any, Any]:
    import torch

    dtype, m, n, k = getattr(torch, shape.dtype), shape.m, shape.n, shape.k
    made = torch.randn if random else torch.empty

    def matrix(rows: int, columns: int, way: str) -> Any:
        x = made((rows, columns) if way == "N" else (columns, rows), device="cuda", dtype=dtype)
        return x if way == "N" else x.T

    return (
        matrix(m, k, shape.layout[0]),
        matrix(k, n, shape.layout[1]),
        torch.empty(m, n, device="cuda", dtype=dtype),
    )


def _compile(job: tuple[Gemm, Any]) -> str:
    """Have a kernel in the disk cache and in this process, and launch nothing."""
    from kiln import kernels
    from kiln.base_dsl.target import get_target

    shape, config = job
    a, b, out = _operands(shape, False)
    try:
        with get_target().dry_run():
            kernels.gemm(a, b, out=out, config=config)
    except Exception as wrong:  # told, and not measured
        return f"{shape.name} {config}: {wrong}"
    return ""


def _kernel(config: Any) -> Any:
    """What is the same for configs of one kernel, however many sums they have."""
    few = isinstance(config, Sm90GemmConfig) and config.split_k > 1
    return (dataclasses.replace(config, split_k=2), config.split_k > 8) if few else config


def kernel_of(shape: Gemm, config: Any) -> Any:
    """What is the same for shapes and configs of one kernel: extents are not compiled in."""
    return (shape.dtype, shape.layout, shape.m == 1, shape.n % 8, shape.k % 8, _kernel(config))


def compile_all(jobs: list[tuple[Gemm, Any]], processes: int) -> None:
    """Each kernel once."""
    kinds: dict[Any, tuple[Gemm, Any]] = {}
    for shape, config in jobs:
        kinds.setdefault(kernel_of(shape, config), (shape, config))
    start, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(processes, os.cpu_count() or 1), context) as pool:
        for number, message in enumerate(pool.map(_compile, kinds.values(), chunksize=2)):
            if message or number % 50 == 49:
                print(message or f"{number + 1} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{len(kinds)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)


def _wanted(shape: Gemm, only: str | None) -> bool:
    """Whether a shape is of a kind: one of the data file, `forty` for those that were there first, `kept` for those of them that are kept out of the fit, some with
    commas, None for all but the unseen."""
    if only is None:
        return shape.kind != "unseen"
    kinds = {shape.kind}
    if shape.kind in recorded.FORTY:
        kinds |= {"forty", "kept"} if shape.held_out else {"forty"}
    return not kinds.isdisjoint(only.split(","))


def missing(journal: Journal, within: float, only: str | None) -> list[tuple[Gemm, list[Any]]]:
    """Shapes with the config that is chosen and those that are not measured."""
    found = [(shape, configs_of(shape, within)) for shape in recorded.gemm_shapes() if _wanted(shape, only)]
    left = [
        (shape, [p for p in configs if (shape.name, p) not in journal.tried], configs[0]) for shape, configs in found
    ]
    some = [(shape, list(dict.fromkeys([chosen, *configs]))) for shape, configs, chosen in left if configs]
    return _in_order(some, only)


def _in_order(found: list[tuple[Gemm, list[Any]]], only: str | None) -> list[tuple[Gemm, list[Any]]]:
    """Kinds in the order they are asked for, or the forty first; what takes long last."""
    kinds = (only or "forty").split(",")
    return sorted(found, key=lambda pair: ([not _wanted(pair[0], kind) for kind in kinds], _work(pair[0])))


def again(journal: Journal, count: int, only: str | None) -> list[tuple[Gemm, list[Any]]]:
    """The config that is chosen for each shape and the best others that were measured, so many in all."""
    found, device = [], device_of("sm_90a")
    for shape in recorded.gemm_shapes():
        if _wanted(shape, only):
            choices = [choice.config for choice in REGISTRY.choices(problem_of(shape), device)]
            known = [config for config in journal.known(shape.name) if config in choices]
            found.append((shape, list(dict.fromkeys([choices[0], *known, *choices[1:]]))[:count]))
    return _in_order(found, only)


def _work(shape: Gemm) -> int:
    return shape.m * shape.n * shape.k


def measure(
    todo: list[tuple[Gemm, list[Any]]], path: Path, seconds: float, best: int, processes: int, turns: int
) -> None:
    """Shapes in order: processes compile, or load, configs of some of them, while one measures those of another."""
    context, run = multiprocessing.get_context("spawn"), time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    queue, end = context.Queue(), time.time() + seconds
    for job in todo:
        queue.put(job)
    given = (queue, path, end, run, best, turns)
    workers = [context.Process(target=_measure_some, args=(n == 0, *given)) for n in range(min(processes, len(todo)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@contextlib.contextmanager
def _gpu(path: Path) -> Iterator[None]:
    """While open, no other process has the GPU, or writes to the journal; a process that ends in the middle of that gives it back."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _measure_some(warms: bool, queue: Any, path: Path, end: float, run: str, best: int, turns: int) -> None:
    import torch

    if warms:
        with _gpu(path):
            warm, large = time.time() + _WARM, torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
            while time.time() < warm:  # until clocks have risen
                torch.mm(large, large)
                torch.cuda.synchronize()
    journal = Journal(path)
    while True:
        try:
            shape, configs = queue.get(timeout=1)
        except Empty:
            return
        begun = time.time()
        for config in configs:
            if time.time() < end:
                _compile((shape, config))
        gc.collect()
        gc.freeze()  # or each graph looks through all that compiling left
        with _gpu(path):
            loaded = time.time()
            if loaded > end:
                print("time is up: the same command goes on from here", flush=True)
                return
            said = _measure(shape, configs, journal, run, best, turns)
            print(f"{said} (loaded in {loaded - begun:.1f} s, measured in {time.time() - loaded:.1f})", flush=True)


def _measure(shape: Gemm, configs: list[Any], journal: Journal, run: str, best: int, turns: int) -> str:
    """Time configs of a shape shortly, of which the first is the chosen one, and let that and the best others take turns; what came of it."""
    import torch

    from kiln import kernels

    a, b, out = _operands(shape, True)
    wanted = torch.mm(a, b).float()
    scale = wanted.abs().max()
    first = Timed(torch, functools.partial(torch.mm, a, b, out=out))
    calls: dict[Any, Timed] = {}
    for config in configs:
        out.zero_()
        try:
            calls[config] = Timed(torch, functools.partial(kernels.gemm, a, b, out=out, config=config), first.long)
        except Exception as wrong:
            print(f"{shape.name} {config}: {wrong}", flush=True)
            continue
        worst = ((out.float() - wanted).abs().max() / scale).item()
        if not worst <= 1e-2:
            print(f"{shape.name} {config}: WRONG, {worst:.1e} away from cuBLAS", flush=True)
            del calls[config]
    quick = [_row(shape, config, timed.took, first.took, run) for config, timed in calls.items()]
    apart: dict[Any, Timed] = {"cublas": first}
    others = sorted((config for config in calls if config != configs[0]), key=lambda config: calls[config].took)[:best]
    apart |= {config: calls[config] for config in (configs[0], *others) if config in calls}
    times = {name: [] for name in apart}
    turns = max(_TURNS, turns // 4) if first.long else turns
    for turn in range(1 + turns):  # in another order each time: what ran before decides how fast clocks are
        for name in random.Random(turn).sample(list(apart), len(apart)):
            took = apart[name].seconds()
            if turn:
                times[name].append(took)
    took = {name: statistics.median(own) for name, own in times.items()}
    rows = [_row(shape, config, took[config], took["cublas"], run) for config in apart if config != "cublas"]
    rows = [{**row, "turns": turns} for row in rows] if turns != _TURNS else rows
    quick = [{**row, "screened": True} for row in quick] if len(quick) > len(rows) else []
    journal.add([*quick, *rows])
    fastest = min((config for config in took if config != "cublas"), key=took.__getitem__, default=None)
    us = {name: f"{took[name] * 1e6:.1f} us" for name in took}
    said = f"{shape.name} {fastest}: {us.get(fastest)}, chosen {us.get(configs[0])}, cuBLAS {us['cublas']}, {len(configs)} configs"
    if configs[0] in times:
        behind = [x / y for x, y in zip(times[configs[0]], times[fastest], strict=True)]
        low, middle, high = statistics.quantiles(behind, n=4)
        said += f"; turn by turn chosen {middle:.3f} of the fastest ({low:.3f} to {high:.3f})"
    return said


def _row(shape: Gemm, config: Any, took: float, cublas: float, run: str) -> dict[str, Any]:
    return {
        "shape": shape.name, "kind": type(config).__name__, "plan": dataclasses.astuple(config), "us": round(took * 1e6, 2), "cublas_us": round(cublas * 1e6, 2), "run": run,
    }  # fmt: skip


class Timed:
    """A graph of calls that take some milliseconds."""

    def __init__(self, torch: Any, call: Any, long: bool | None = None) -> None:
        self.torch, self.events = torch, [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        call()
        took = self.elapsed(call)
        for _ in range(2 if took * 1e6 < _SLOW else 0):
            took = min(took, self.elapsed(call))
        self.long = took * 1e6 > _LONG if long is None else long
        self.count = max(1, min(200, int(2e-3 / took)))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.count):
                call()
        self.took = min(self.elapsed(self.graph.replay) for _ in range(2 if took * 1e6 < _SLOW else 1)) / self.count
        self.replays = max(1, int(_SLICES[self.long] / self.took / self.count))

    def elapsed(self, call: Any) -> float:
        start, end = self.events
        start.record()
        call()
        end.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    def seconds(self) -> float:
        """Of a call among others."""
        timed = self.replays
        if self.long:  # until clocks are what they will be
            timed = max(1, 2 * self.replays // 3)
            for _ in range(self.replays - timed):
                self.graph.replay()
        else:
            self.graph.replay()
        return self.elapsed(lambda: [self.graph.replay() for _ in range(timed)]) / timed / self.count


# --- the model -------------------------------------------------------------------------------------------------------


class Rows:
    """What the fit reads: configs of shapes that are not held out, one after the other."""

    def __init__(self, journal: Journal) -> None:
        self.device, self.given, shape_of, us, known, weights = device_of("sm_90a"), [], [], [], [], []
        for number, shape in enumerate(shape for shape in recorded.gemm_shapes() if not shape.held_out):
            problem = problem_of(shape)
            choices = {choice.config: choice.cost for choice in REGISTRY.choices(problem, self.device)}
            found = {config: x for config, x in journal.known(shape.name).items() if config in choices}
            best = min((us for us, _ in found.values()), default=0.0)
            hot = journal.slowed.get((shape.name, journal.fullest(shape.name)), 1.0) > _HOT
            for config, (took, turns) in found.items() if len(found) > 1 else ():
                if took < _FAR * best:
                    hopper = isinstance(config, Sm90GemmConfig)
                    self.given.append((problem, config) if hopper else None)
                    shape_of.append(number)
                    us.append(took)
                    known.append(math.nan if hopper else math.log(choices[config]))
                    weights.append(1.0 if turns else _SCREENED[hot])
        _, self.starts, self.shape = np.unique(shape_of, return_index=True, return_inverse=True)
        self.log_us, self.known, trusted = np.log(us), np.array(known), np.array(weights)
        # What took turns tells which is the best.
        self.best = np.minimum.reduceat(np.where(trusted == 1, self.log_us, self.log_us + 0.01), self.starts)[
            self.shape
        ]
        self.weights = np.exp(6 * np.minimum(0, self.best - self.log_us)) * trusted
        self.whole = np.add.reduceat(self.weights, self.starts)

    def costs(self, coefficients: sm90_cost.Coefficients) -> Any:
        """Return the logarithms of expected times."""
        return np.array(
            [
                math.log(sm90_cost.expected(given[0], given[1], self.device, coefficients)) if given else known
                for given, known in zip(self.given, self.known, strict=True)
            ]
        )

    def error(self, costs: Any) -> float:
        """How far configs of a shape do not differ as they were measured to, and how much slower than the best those are that are chosen, or nearly."""
        ratios = costs - self.log_us
        off = np.abs(ratios - (np.add.reduceat(self.weights * ratios, self.starts) / self.whole)[self.shape])
        total = np.sum(self.weights * np.minimum(off, 0.3 + 0.2 * off) ** 1.5)
        all_off = np.where(np.isnan(self.known), np.minimum(np.abs(ratios), 0.3), 0.0)
        total += _ALL * np.sum(self.weights * all_off**1.5)
        shares = np.exp(_SHARP * (np.minimum.reduceat(costs, self.starts)[self.shape] - costs))
        behind = np.add.reduceat(shares * np.exp(self.log_us - self.best), self.starts)
        return total + _REGRET * np.sum(np.maximum(0, behind / np.add.reduceat(shares, self.starts) - _BEHIND))


def fit(journal: Journal) -> dict[str, float]:
    """Return coefficients such that configs of a shape differ as they were measured to, and the best are chosen, for shapes that
    are not held out.

    What counts is which is faster; how far all configs of a shape are from the measurements counts little. Coefficients are moved
    one after the other, as if logarithms of times were linear in theirs, not far at a time; then times are computed anew.
    """
    rows, begun, reach = Rows(journal), sm90_cost.COEFFICIENTS, 0.3
    names = [x.name for x in dataclasses.fields(begun) if x.name not in _FIXED]

    def moved(logs: Any) -> sm90_cost.Coefficients:
        return dataclasses.replace(begun, **{name: math.exp(x) for name, x in zip(names, logs, strict=True)})

    first = np.array([math.log(getattr(begun, name)) for name in names])
    now, costs = first.copy(), rows.costs(begun)
    error = rows.error(costs)
    print(f"{len(costs)} measurements of {len(rows.starts)} shapes: {error:.3f}", flush=True)
    while reach > 0.1:
        ahead = now + 0.02 * np.eye(len(names))
        slopes = [(rows.costs(moved(logs)) - costs) / 0.02 for logs in ahead]
        tried, expected, least = now.copy(), costs.copy(), error
        for _ in range(40):
            before = least
            for n, slope in enumerate(slopes):
                for step in _STEPS:
                    if abs(tried[n] + step - now[n]) <= reach:
                        other = tried.copy()
                        other[n] += step
                        found = rows.error(expected + step * slope) + _STAY * float(np.sum((other - first) ** 2))
                        if found < least:
                            tried, expected, least = other, expected + step * slope, found
            if least > before - 1e-3:
                break
        there = rows.costs(moved(tried))
        found = rows.error(there) + _STAY * float(np.sum((tried - first) ** 2))
        print(f"{found:.3f}, where {least:.3f} was expected within {reach:.2f}", flush=True)
        if found < error - 0.02:
            now, costs, error = tried, there, found
        else:
            reach /= 2
    return {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(moved(now)).items()}


def measured_choices(journal: Journal, coefficients: sm90_cost.Coefficients) -> list[dict[str, Any]]:
    """Return the problems whose best measured config is faster than the model's choice by more than `_MEASURED_GAIN`."""
    found, device = [], device_of("sm_90a")
    for shape in recorded.gemm_shapes():
        problem = problem_of(shape)
        known = {config: us for config, (us, turns) in journal.known(shape.name).items() if turns}
        configs = list(sm90_cost.candidates(problem, device))
        best = min((x for x in configs if x in known), key=known.__getitem__, default=None)
        if best is None or (shape.kind == "unseen" and shape.name not in REGRESSED):
            continue
        chosen = min(configs, key=lambda config: sm90_cost.expected(problem, config, device, coefficients))
        took = journal.known(shape.name).get(chosen, (math.inf, False))[0]
        if took > _MEASURED_GAIN * known[best]:
            names = {"dtype": problem.dtype.__name__, "layout": shape.layout, "m": shape.m, "n": shape.n, "k": shape.k}
            found.append({**names, "config": dataclasses.asdict(best)})
    return found


def short(config: Any) -> str:
    """A config in few characters."""
    text = "x".join(map(str, config.tile_shape_mnk))
    if isinstance(config, Sm90GemmConfig):
        text += f", {config.ab_stages} stages"
        text = f"wgmma {text}, cluster {config.cluster_shape_mn[0]}x{config.cluster_shape_mn[1]}"
        text += ", pingpong" * config.pingpong + ", swap-AB" * config.swap_ab + ", transposed" * config.transpose_out
        text += f", split-K {config.split_k}" * (config.split_k > 1)
        text += f", {config.epi_stages} epilogue stages" * (config.epi_stages > 2 and not config.smem_epilogue)
        return text + f", split-K {config.split_k_cluster} in a cluster" * (config.split_k_cluster > 1)
    text = f"mma.sync {text}, {config.stages} stages, warps {config.warp_layout_mn[0]}x{config.warp_layout_mn[1]}"
    return text + f", split-K {config.split_k}" * (config.split_k > 1)


def report(journal: Journal, run: str | None = None) -> None:
    """What is chosen, as measured, beside the best that was measured and beside cuBLAS: the forty shapes, others of the fit, and the unseen."""
    for first in (True, False):
        for held_out in (False, True):
            some = [
                x
                for x in recorded.gemm_shapes()
                if x["held_out"] is held_out and (x["kind"] in recorded.FORTY) is first
            ]
            print(f"{'The forty' if first else 'Others'}, {'kept out of the fit' if held_out else 'in the fit'}:\n")
            _report(journal, some, run)


def _report(journal: Journal, some: list[Gemm], run: str | None) -> None:
    print(
        "| | M | N | K | configs | tried | cuBLAS us | best us | chosen us | of the best | of cuBLAS | chosen | best |"
    )
    print("|---" * 13 + "|")
    behind, ahead = [], []
    for shape in some:
        configs = configs_of(shape, math.inf)
        found = journal.of(shape, journal.last(shape, configs[0]) if run is None else run)
        if not found:
            continue
        us = next((took for config, took, _ in found if config == configs[0]), math.nan)
        tried = sum((shape.name, config) in journal.tried for config in configs)
        cublas = statistics.median(x for _, _, x in found)
        behind.append(found[0][1] / us)
        ahead.append(cublas / us)
        print(
            f"| {shape.dtype} {shape.layout} | {shape.m} | {shape.n} | {shape.k} | {len(configs)} | {tried} | {cublas:.1f} "
            f"| {found[0][1]:.1f} | {us:.1f} | {behind[-1]:.2f} | {ahead[-1]:.2f} | {short(configs[0])} | {short(found[0][0])} |"
        )
    known = [(x, y) for x, y in zip(behind, ahead, strict=True) if not math.isnan(x)]
    if known:
        mean = math.exp(statistics.mean(math.log(y) for _, y in known))
        print(
            f"\n{len(known)} shapes: chosen configs at worst {min(x for x, _ in known):.3f} of the best and {min(y for _, y in known):.2f} of cuBLAS, "
            f"on average {mean:.3f} of cuBLAS; {sum(x < 0.95 for x, _ in known)} more than 5 % behind the best\n"
        )


def count(within: float, only: str | None) -> None:
    """How many configs there are, and are measured."""
    total, kinds, us = [0, 0], [set[Any](), set[Any]()], 0.0
    for shape in recorded.gemm_shapes():
        if _wanted(shape, only):
            some = [configs_of(shape, math.inf), configs_of(shape, within)]
            us += sum(x.cost for x in REGISTRY.choices(problem_of(shape), device_of("sm_90a"))[: len(some[1])])
            print(shape.name, *map(len, some))
            for n, configs in enumerate(some):
                total[n] += len(configs)
                kinds[n] |= {kernel_of(shape, config) for config in configs}
    print(
        f"{total[0]} configs, {len(kinds[0])} kernels; {total[1]} and {len(kinds[1])} measured, {us / 1e6:.1f} s a call"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--best", type=int, default=6, help="configs of a shape that take turns, beside the chosen one")
    parser.add_argument("--only", help="kinds of shapes, with commas: of the data file, forty, or kept")
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument(
        "--run",
        help="whose turns are reported, by its date; else of the last that has the chosen config of a shape beside others",
    )


def run(action: str, asked: argparse.Namespace) -> dict[str, Any] | None:
    """Do what the command line says; return coefficients that were fitted."""
    journal = Journal(asked.journal or recorded.DATA / "gemm_h200.jsonl")
    within = asked.within or 2.0
    if action == "fit":
        return fit(journal)
    if action == "choices":
        return {"problems": measured_choices(journal, sm90_cost.COEFFICIENTS)}
    if action == "count":
        count(within, asked.only)
    elif action == "report":
        report(journal, asked.run)
    else:
        todo = again(journal, asked.again, asked.only) if asked.again else missing(journal, within, asked.only)
        if action == "compile":
            compile_all([(shape, config) for shape, configs in todo for config in configs], asked.processes)
        else:
            best, turns = asked.again or asked.best, asked.turns or _TURNS
            measure(todo, journal.path, asked.seconds, best, asked.processes, turns)
    return None
