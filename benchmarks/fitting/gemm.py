"""Measure configs of GEMM on sm_90a, and fit the cost model to the measurements.

All configs of a shape are measured, but for those that the model expects to take more than `--within` times as long as
the best. Each is timed shortly (rows with `screened`); then the best `--best` of a shape and the chosen one are timed
alternately, which tells them apart. With `--again 4` only the chosen config of each shape and the best three others are
timed.

Shapes are those of `benchmarks/data/gemm_shapes.json`: the forty, of which every fourth is held out of the fit, and
others drawn at random with the seeds in that file; those of the last seeds (`unseen`) are held out of everything. Each
measurement is a line of `benchmarks/data/gemm_h200.jsonl`, written when its shape is complete: `measure` resumes where
it was stopped. Configs are timed beside cuBLAS, with normal data, in CUDA graphs, so that host overhead does not
count. Several processes compile, or load from the disk cache what `compile` left there; one at a time has the GPU.
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
"""Coefficients that are not fitted: no shape here depends on them, or only 16384 cubed does."""
_MEASURED_GAIN = 1.02
"""How much faster a measured config must be than the model's choice to stand in the tuned table."""
REGRESSED = ("bfloat16 NT 128x192x9216", "bfloat16 NT 64x448x46080")
"""Unseen shapes that stand in the table even so: a model with more coefficients chose better for them."""
_REGULARISATION = 1.0
"""The weight of the squared distance of the coefficients' logarithms from where the fit began."""
_ABSOLUTE_WEIGHT = 0.15
"""The weight of absolute errors of predicted times, beside that of their ratios within a shape."""
_REGRET_WEIGHT, _TOLERATED_REGRET, _SHARPNESS = 6.0, 1.01, 60
"""The weight of regret (the chosen time over the best) above a tolerated one, and the exponent of its softmin."""
_SCREENED_WEIGHTS, _HOT = (0.4, 0.03), 1.05
"""The weights of short timings: of most shapes, and of those that are so much slower at the power limit."""
_MAX_SLOWDOWN = 1.8
"""Configs that are slower than this, relative to the best of a shape, are left out of the fit."""
_STEPS = (0.1, 0.03, 0.01, -0.01, -0.03, -0.1)
"""Steps of a coefficient's logarithm."""
_SLICES = (8e-3, 60e-3)
"""Seconds of back-to-back calls in one timing: of short GEMMs, and of long ones, which reach the power limit."""
_WARM = 1.0
"""Seconds of work before anything is timed."""
_TURNS = 3
"""Timings of each config, by default."""
_LONG, _SLOW = 100.0, 1000.0
"""Microseconds from which on a GEMM is long, and from which on it is called as few times as possible."""


def problem_of(shape: Gemm) -> GemmProblem:
    """Return the GEMM of dense arrays."""
    dtype, m, n, k = _TYPES[shape.dtype], shape.m, shape.n, shape.k
    a = TensorLayout.dense(dtype, 1, m, k) if shape.layout[0] == "N" else TensorLayout(dtype, (1, m, k), (m * k, 1, m))
    b = TensorLayout.dense(dtype, 1, k, n) if shape.layout[1] == "N" else TensorLayout(dtype, (1, k, n), (n * k, 1, k))
    return GemmProblem(a, b, TensorLayout.dense(dtype, 1, m, n))


def configs_of(shape: Gemm, within: float) -> list[Any]:
    """Return the configs that are expected to take at most `within` times as long as the best, the fastest first."""
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
        """Return (config, us, cuBLAS us) of a shape and a run, of configs timed alternately, the fastest first."""
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
    """Compile a kernel into the disk cache and this process, without launching it."""
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
    """Return a key that is equal for configs of one kernel: split-K counts do not matter."""
    few = isinstance(config, Sm90GemmConfig) and config.split_k > 1
    return (dataclasses.replace(config, split_k=2), config.split_k > 8) if few else config


def kernel_of(shape: Gemm, config: Any) -> Any:
    """Return a key that is equal for shapes and configs of one kernel: extents are not compiled in."""
    return (shape.dtype, shape.layout, shape.m == 1, shape.n % 8, shape.k % 8, _kernel(config))


def compile_all(jobs: list[tuple[Gemm, Any]], processes: int) -> None:
    """Compile each kernel once."""
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
    """Return whether a shape is of one of some kinds, with commas between them; None: all but the unseen.

    Kinds are those of the data file, `forty` for the first forty shapes, `kept` for those of them that are held out.
    """
    if only is None:
        return shape.kind != "unseen"
    kinds = {shape.kind}
    if shape.kind in recorded.FORTY:
        kinds |= {"forty", "kept"} if shape.held_out else {"forty"}
    return not kinds.isdisjoint(only.split(","))


def missing(journal: Journal, within: float, only: str | None) -> list[tuple[Gemm, list[Any]]]:
    """Return shapes with configs that were not measured, and the chosen one before these."""
    found = [(shape, configs_of(shape, within)) for shape in recorded.gemm_shapes() if _wanted(shape, only)]
    left = [
        (shape, [p for p in configs if (shape.name, p) not in journal.tried], configs[0]) for shape, configs in found
    ]
    some = [(shape, list(dict.fromkeys([chosen, *configs]))) for shape, configs, chosen in left if configs]
    return _in_order(some, only)


def _in_order(found: list[tuple[Gemm, list[Any]]], only: str | None) -> list[tuple[Gemm, list[Any]]]:
    """Sort by the order of kinds on the command line, or the forty first; long GEMMs last."""
    kinds = (only or "forty").split(",")
    return sorted(found, key=lambda pair: ([not _wanted(pair[0], kind) for kind in kinds], _work(pair[0])))


def again(journal: Journal, count: int, only: str | None) -> list[tuple[Gemm, list[Any]]]:
    """Return the chosen config of each shape and the best others that were measured, `count` in all."""
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
    """Measure shapes in order: processes compile, or load, configs of some, while one of them has the GPU."""
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
    """Hold the GPU and the journal; a process that dies releases them."""
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
    """Time configs of a shape shortly, then the first (the chosen one) and the best others alternately; return a
    report."""
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
    said = f"{shape.name} {fastest}: {us.get(fastest)}, chosen {us.get(configs[0])}, cuBLAS {us['cublas']}, "
    said += f"{len(configs)} configs"
    if configs[0] in times:
        behind = [x / y for x, y in zip(times[configs[0]], times[fastest], strict=True)]
        low, middle, high = statistics.quantiles(behind, n=4)
        said += f"; turn by turn chosen {middle:.3f} of the fastest ({low:.3f} to {high:.3f})"
    return said


def _row(shape: Gemm, config: Any, took: float, cublas: float, run: str) -> dict[str, Any]:
    return {
        "shape": shape.name, "kind": type(config).__name__, "plan": dataclasses.astuple(config),
        "us": round(took * 1e6, 2), "cublas_us": round(cublas * 1e6, 2), "run": run,
    }  # fmt: skip


class Timed:
    """A CUDA graph of calls that take some milliseconds."""

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
        """Return the seconds of a call, back to back with others."""
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
    """The measurements that the fit reads: configs of shapes that are not held out."""

    def __init__(self, journal: Journal) -> None:
        self.device, self.given, shape_of, us, known, weights = device_of("sm_90a"), [], [], [], [], []
        for number, shape in enumerate(shape for shape in recorded.gemm_shapes() if not shape.held_out):
            problem = problem_of(shape)
            choices = {choice.config: choice.cost for choice in REGISTRY.choices(problem, self.device)}
            found = {config: x for config, x in journal.known(shape.name).items() if config in choices}
            best = min((us for us, _ in found.values()), default=0.0)
            hot = journal.slowed.get((shape.name, journal.fullest(shape.name)), 1.0) > _HOT
            for config, (took, turns) in found.items() if len(found) > 1 else ():
                if took < _MAX_SLOWDOWN * best:
                    hopper = isinstance(config, Sm90GemmConfig)
                    self.given.append((problem, config) if hopper else None)
                    shape_of.append(number)
                    us.append(took)
                    known.append(math.nan if hopper else math.log(choices[config]))
                    weights.append(1.0 if turns else _SCREENED_WEIGHTS[hot])
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
        """Return the loss: errors of time ratios within shapes, a little of absolute errors, and regret of the
        choices."""
        ratios = costs - self.log_us
        off = np.abs(ratios - (np.add.reduceat(self.weights * ratios, self.starts) / self.whole)[self.shape])
        total = np.sum(self.weights * np.minimum(off, 0.3 + 0.2 * off) ** 1.5)
        all_off = np.where(np.isnan(self.known), np.minimum(np.abs(ratios), 0.3), 0.0)
        total += _ABSOLUTE_WEIGHT * np.sum(self.weights * all_off**1.5)
        shares = np.exp(_SHARPNESS * (np.minimum.reduceat(costs, self.starts)[self.shape] - costs))
        behind = np.add.reduceat(shares * np.exp(self.log_us - self.best), self.starts)
        regret = behind / np.add.reduceat(shares, self.starts)
        return total + _REGRET_WEIGHT * np.sum(np.maximum(0, regret - _TOLERATED_REGRET))


def fit(journal: Journal) -> dict[str, float]:
    """Return the coefficients that minimise the loss of shapes that are not held out.

    Coordinate descent on a linearisation (logarithms of times in those of coefficients) within a trust region; then
    times are computed anew, and the region shrinks if that was no better.
    """
    rows, begun, reach = Rows(journal), sm90_cost.COEFFICIENTS, 0.3
    names = [x.name for x in dataclasses.fields(begun) if x.name not in _FIXED]

    def moved(logs: Any) -> sm90_cost.Coefficients:
        return dataclasses.replace(begun, **{name: math.exp(x) for name, x in zip(names, logs, strict=True)})

    def distance(logs: Any) -> float:
        return _REGULARISATION * float(np.sum((logs - first) ** 2))

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
                        loss = rows.error(expected + step * slope) + distance(other)
                        if loss < least:
                            tried, expected, least = other, expected + step * slope, loss
            if least > before - 1e-3:
                break
        there = rows.costs(moved(tried))
        loss = rows.error(there) + distance(tried)
        print(f"{loss:.3f}, where {least:.3f} was expected within {reach:.2f}", flush=True)
        if loss < error - 0.02:
            now, costs, error = tried, there, loss
        else:
            reach /= 2
    return {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(moved(now)).items()}


def measured_choices(journal: Journal, coefficients: sm90_cost.Coefficients) -> list[dict[str, Any]]:
    """Return the problems whose best measured config is more than `_MEASURED_GAIN` faster than the model's choice."""
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
    """Return a config in few characters."""
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
    """Print the measured time of each choice beside the best config's and cuBLAS's, in and out of the fit."""
    for first in (True, False):
        for held_out in (False, True):
            some = [x for x in recorded.gemm_shapes() if x.held_out is held_out and (x.kind in recorded.FORTY) is first]
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
            f"| {shape.dtype} {shape.layout} | {shape.m} | {shape.n} | {shape.k} | {len(configs)} | {tried} "
            f"| {cublas:.1f} | {found[0][1]:.1f} | {us:.1f} | {behind[-1]:.2f} | {ahead[-1]:.2f} "
            f"| {short(configs[0])} | {short(found[0][0])} |"
        )
    known = [(x, y) for x, y in zip(behind, ahead, strict=True) if not math.isnan(x)]
    if known:
        mean = math.exp(statistics.mean(math.log(y) for _, y in known))
        print(
            f"\n{len(known)} shapes: chosen configs at worst {min(x for x, _ in known):.3f} of the best "
            f"and {min(y for _, y in known):.2f} of cuBLAS, "
            f"on average {mean:.3f} of cuBLAS; {sum(x < 0.95 for x, _ in known)} more than 5 % behind the best\n"
        )


def count(within: float, only: str | None) -> None:
    """Print how many configs and kernels there are, and how many are measured."""
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
        help="the run that is reported, by its date; by default the last one with the chosen config of a shape",
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
