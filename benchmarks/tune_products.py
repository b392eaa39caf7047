"""Measure configs of matrix products on Hopper, fit the model that chooses among them, and show what its choices cost.

    python benchmarks/tune_products.py count      # configs that there are of each shape, and those that are measured: needs no GPU
    python benchmarks/tune_products.py compile [--within 2] [--only forty]     # what is missing, for the disk cache: needs the GPU
    python benchmarks/tune_products.py measure [--seconds 180] [--within 2] [--only forty]     # the same
    python benchmarks/tune_products.py fit        # writes src/kiln/kernels/impl/gemm/sm90_coefficients.py
    python benchmarks/tune_products.py report [--run DATE]     # chosen and best configs, shape by shape

All configs that the library has for a shape are measured, but for those that the model expects to take more than `--within` times as long as the best. Each is
timed shortly (rows with `screened`), and then the best `--best` of a shape and the chosen one in turns, which is what tells them apart. With `--again 4` the
chosen config of each shape and the best three others that are known take turns, and nothing else is measured: `--again 6 --turns 60 --only kept` tells what the forty that
are kept out of the fit lose to half a percent.

Shapes are those of `benchmarks/data/products_shapes.json`: the forty, of which every fourth is kept out of the fit (`held_out`), and others, drawn by chance
with seeds that stand there: those of the last seeds are kept out of everything, and measured once, when all else is done. Each measurement is a
line of `benchmarks/data/products_h200.jsonl` (of a config, its fields in order), written when all of its shape are made: `measure` goes on where it was stopped. Configs of a shape are measured beside cuBLAS,
with normal data, in graphs of calls: how fast the host is does not count. Configs that were measured on different days are compared by how much faster
than cuBLAS they were. Several processes compile, or load what `compile` left in the disk cache; one at a time has the GPU.
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

import kiln
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem, sm90_coefficients, sm90_cost
from kiln.kernels.impl.gemm.sm80_config import Sm80GemmConfig
from kiln.kernels.impl.gemm.sm90_config import Sm90GemmConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

_DATA = Path(__file__).parent / "data"
_MODEL = Path(sm90_coefficients.__file__)
_TYPES = {"float16": kiln.Float16, "bfloat16": kiln.BFloat16}
_CONFIGS = {"Sm90GemmConfig": Sm90GemmConfig, "Sm80GemmConfig": Sm80GemmConfig}
_FIRST = {
    "launch": 0.5, "start": 0.05, "meet": 0.5, "small": 1.0, "store": 1.0, "store_area": 0.1, "pieces": 0.03, "staged": 1.2, "staged_area": 0.5,
    "parts": 0.1, "parts_area": 3.0, "apart": 1.04, "second": 0.5, "round": 0.3, "added": 10.0, "crowded": 0.2, "others": 0.5, "followed": 1.5,
    "shared": 5.5, "turns": 5.5, "operands": 20.0, "asked": 25.0, "bytes": 0.9, "promoted": 0.825, "alone": 0.8, "lines": 0.13, "between": 2.2,
    "cut": 1.6, "beyond": 0.6, "arrival": 0.12, "stage": 1.0, "memory": 4.2, "again": 0.1, "latency": 1.8, "single": 0.3, "busy": 0.5, "paired": 1.05,
    "once_rows": 1.0, "once_columns": 1.0, "once_turns": 1.0, "once_swapped": 1.0, "once_turned": 1.0,
    "often_rows": 1.0, "often_columns": 1.0, "often_turns": 1.0, "often_swapped": 1.0, "often_turned": 1.0,
    "power": 745.0, "power_cache": 55.0,
}  # fmt: skip
"""Figures that a fit begins with, round, so that it depends on measurements alone. Some stay: those that no shape here tells of, and those of the power limit, which are
what turns of 16384 cubed say: left free, they are given up for others that explain what was timed shortly, at higher clocks."""
_FIXED = {"power", "power_cache", "bytes", "promoted", "alone", "others", "followed", "launch"}
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
_FORTY = ("square", "layer", "few rows", "long K", "thin N", "odd", "layout")
"""Kinds of shapes that were there first."""


def shapes() -> list[dict[str, Any]]:
    """Those of the data file; `{"drawn": seed}` stands for ten."""
    found = json.loads((_DATA / "products_shapes.json").read_text())
    return [y for x in found for y in (drawn(**x) if "drawn" in x else [x])]


_HIDDEN, _WIDER = (2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192), (1.0, 1.5, 2.0, 2.6875, 3.5, 4.0)
"""Widths of layers, and of what is between them."""


def drawn(drawn: int, held_out: bool) -> list[dict[str, Any]]:
    """Ten shapes of the kinds of the forty, by chance, with a seed."""
    chance, found = random.Random(drawn), []

    def add(m: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "NT") -> None:
        found.append(
            {
                "kind": "unseen" if held_out else f"drawn {drawn}",
                "dtype": dtype,
                "m": m,
                "n": n,
                "k": k,
                "layout": layout,
                "held_out": held_out,
            }
        )

    def layer() -> tuple[int, int]:
        hidden = chance.choice(_HIDDEN)
        sizes = [hidden, int(hidden * chance.choice(_WIDER)) // 64 * 64]
        chance.shuffle(sizes)
        return sizes[0], sizes[1]

    for _ in range(2):  # layers
        add(128 * chance.randint(4, 64), *layer())
    for _ in range(3):  # few rows
        add(int(2 ** chance.uniform(0, 8)), *layer())
    for _ in range(2):  # long K
        add(64 * chance.randint(1, 12), 64 * chance.randint(1, 12), 1024 * chance.randint(8, 64))
    add(512 * chance.randint(4, 32), 8 * chance.randint(2, 32), layer()[1])  # thin N
    add(*(8 * chance.randint(60, 500) for _ in range(3)))  # type: ignore[reportArgumentType]  # odd
    add(*(64 * chance.randint(8, 64) for _ in range(3)), "float16", chance.choice(["NN", "TN", "TT"]))  # type: ignore[reportArgumentType]
    return found


def problem_of(shape: dict[str, Any]) -> GemmProblem:
    """The product of arrays without gaps."""
    dtype, m, n, k = _TYPES[shape["dtype"]], shape["m"], shape["n"], shape["k"]
    a = (
        TensorLayout.dense(dtype, 1, m, k)
        if shape["layout"][0] == "N"
        else TensorLayout(dtype, (1, m, k), (m * k, 1, m))
    )
    b = (
        TensorLayout.dense(dtype, 1, k, n)
        if shape["layout"][1] == "N"
        else TensorLayout(dtype, (1, k, n), (n * k, 1, k))
    )
    return GemmProblem(a, b, TensorLayout.dense(dtype, 1, m, n))


def configs_of(shape: dict[str, Any], within: float) -> list[Any]:
    """All that the library can choose from, but for those that the model expects to take so many times as long as the best; the cheapest first."""
    choices = REGISTRY.choices(problem_of(shape), device_of("sm_90a"))
    return [choice.config for choice in choices if choice.cost <= within * choices[0].cost]


def name_of(shape: dict[str, Any]) -> str:
    return f"{shape['dtype']} {shape['layout']} {shape['m']}x{shape['n']}x{shape['k']}"


class Journal:
    """What was measured."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = [json.loads(line) for line in lines]
        for row in self.rows:
            row["made"] = _CONFIGS[row["kind"]](*(tuple(x) if isinstance(x, list) else x for x in row["plan"]))
        self.by_shape: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            self.by_shape.setdefault(row["shape"], []).append(row)
        self.tried = {(row["shape"], row["made"]) for row in self.rows if "screened" in row}
        for name, rows in self.by_shape.items():
            if first := self._fullest(name):  # what took turns since then counts, too
                self.tried |= {(name, row["made"]) for row in rows if row.get("run", "") >= first}
        self._slow_down()

    def _slow_down(self) -> None:
        """What is timed shortly runs at higher clocks than what takes turns: by as much as configs of a shape that did both, and cuBLAS as in turns."""
        turns: dict[Any, dict[Any, dict[str, Any]]] = {}
        for row in self.rows:
            if "screened" not in row:
                turns.setdefault((row["shape"], row.get("run")), {})[row["made"]] = row
        ratios: dict[Any, list[float]] = {}
        short = [(row, turns.get((row["shape"], row["run"]), {})) for row in self.rows if "screened" in row]
        for row, own in short:
            if row["made"] in own:
                ratios.setdefault((row["shape"], row["run"]), []).append(own[row["made"]]["us"] / row["us"])
        self.slowed = {where: statistics.median(some) for where, some in ratios.items()}
        for row, own in short:
            if own:
                row["us"] *= self.slowed[row["shape"], row["run"]]
                row["cublas_us"] = next(iter(own.values()))["cublas_us"]

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write down what was measured of a shape."""
        with self.path.open("a") as file:
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)

    def last(self, shape: dict[str, Any], config: Any) -> str:
        """The last run in which a config of a shape took turns with others, or in which any did."""
        rows = [row for row in self.by_shape.get(name_of(shape), ()) if "run" in row and "screened" not in row]
        runs, own = [row["run"] for row in rows], {row["run"] for row in rows if row["made"] == config}
        return max((run for run in runs if runs.count(run) > 1), key=lambda run: (run in own, run), default="")

    def fullest(self, shape: dict[str, Any]) -> str:
        """The run in which most configs of a shape took turns, of those in which others were timed shortly besides, if there are any."""
        return self._fullest(name_of(shape))

    def _fullest(self, name: str) -> str:
        rows = [row for row in self.by_shape.get(name, ()) if "run" in row]
        short = {row["run"] for row in rows if "screened" in row}
        turns = [row["run"] for row in rows if "screened" not in row]
        return max(turns, key=lambda run: (run in short, turns.count(run), run), default="")

    def of(self, shape: dict[str, Any], run: str) -> list[tuple[Any, float, float]]:
        """Configs of a shape that took turns in a run, with their microseconds, and cuBLAS's; the fastest first."""
        rows = [row for row in self.by_shape.get(name_of(shape), ()) if row.get("run") == run and "screened" not in row]
        return sorted(((row["made"], row["us"], row["cublas_us"]) for row in rows), key=lambda x: x[1])

    def known(self, shape: dict[str, Any]) -> dict[Any, tuple[float, bool]]:
        """Microseconds of configs of a shape, and whether they took turns, as of the run that has most of them; in runs after it those took turns again, at other clocks:
        they are compared by the configs that both have, and count by how many turns they took."""
        first = self.fullest(shape)
        rows = [row for row in self.by_shape.get(name_of(shape), ()) if row.get("run", "") >= first]
        found = {row["made"]: [row["us"]] for row in rows if row.get("run") == first and "screened" in row}
        runs: dict[str, dict[Any, list[float]]] = {}  # as many times as configs took turns
        for row in rows:
            if "run" in row and "screened" not in row:
                runs.setdefault(row["run"], {})[row["made"]] = [row["us"]] * row.get("turns", _TURNS)
        turns = runs.pop(first, {})
        for _, some in sorted(runs.items()) if first else ():
            ratios = [(turns.get(x) or found[x])[0] / us[0] for x, us in some.items() if x in turns or x in found]
            for config, us in some.items() if len(ratios) > 1 else ():
                turns.setdefault(config, []).extend(x * statistics.median(ratios) for x in us)
        means = {config: (statistics.geometric_mean(us), config in turns) for config, us in (found | turns).items()}
        return dict(sorted(means.items(), key=lambda pair: pair[1]))


# --- measuring -------------------------------------------------------------------------------------------------------


def _operands(shape: dict[str, Any], random: bool) -> tuple[Any, Any, Any]:
    import torch

    dtype, m, n, k = getattr(torch, shape["dtype"]), shape["m"], shape["n"], shape["k"]
    made = torch.randn if random else torch.empty

    def matrix(rows: int, columns: int, way: str) -> Any:
        x = made((rows, columns) if way == "N" else (columns, rows), device="cuda", dtype=dtype)
        return x if way == "N" else x.T

    return (
        matrix(m, k, shape["layout"][0]),
        matrix(k, n, shape["layout"][1]),
        torch.empty(m, n, device="cuda", dtype=dtype),
    )


def _compile(job: tuple[dict[str, Any], Any]) -> str:
    """Have a kernel in the disk cache and in this process, and launch nothing."""
    from kiln import kernels
    from kiln.base_dsl.target import get_target

    shape, config = job
    a, b, out = _operands(shape, False)
    try:
        with get_target().dry_run():
            kernels.gemm(a, b, out=out, config=config)
    except Exception as wrong:  # told, and not measured
        return f"{name_of(shape)} {config}: {wrong}"
    return ""


def _kernel(config: Any) -> Any:
    """What is the same for configs of one kernel, however many sums they have."""
    few = isinstance(config, Sm90GemmConfig) and config.split_k > 1
    return (dataclasses.replace(config, split_k=2), config.split_k > 8) if few else config


def kernel_of(shape: dict[str, Any], config: Any) -> Any:
    """What is the same for shapes and configs of one kernel: extents are not compiled in."""
    return (*(shape[x] for x in ("dtype", "layout")), shape["m"] == 1, shape["n"] % 8, shape["k"] % 8, _kernel(config))


def compile_all(jobs: list[tuple[dict[str, Any], Any]], processes: int) -> None:
    """Each kernel once."""
    kinds: dict[Any, tuple[dict[str, Any], Any]] = {}
    for shape, config in jobs:
        kinds.setdefault(kernel_of(shape, config), (shape, config))
    start, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(processes, os.cpu_count() or 1), context) as pool:
        for number, message in enumerate(pool.map(_compile, kinds.values(), chunksize=2)):
            if message or number % 50 == 49:
                print(message or f"{number + 1} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{len(kinds)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)


def _wanted(shape: dict[str, Any], only: str | None) -> bool:
    """Whether a shape is of a kind: one of the data file, `forty` for those that were there first, `kept` for those of them that are kept out of the fit, some with
    commas, None for all but the unseen."""
    if only is None:
        return shape["kind"] != "unseen"
    kinds = {shape["kind"]}
    if shape["kind"] in _FORTY:
        kinds |= {"forty", "kept"} if shape["held_out"] else {"forty"}
    return not kinds.isdisjoint(only.split(","))


def missing(journal: Journal, within: float, only: str | None) -> list[tuple[dict[str, Any], list[Any]]]:
    """Shapes with the config that is chosen and those that are not measured."""
    found = [(shape, configs_of(shape, within)) for shape in shapes() if _wanted(shape, only)]
    left = [
        (shape, [p for p in configs if (name_of(shape), p) not in journal.tried], configs[0])
        for shape, configs in found
    ]
    some = [(shape, list(dict.fromkeys([chosen, *configs]))) for shape, configs, chosen in left if configs]
    return _in_order(some, only)


def _in_order(
    found: list[tuple[dict[str, Any], list[Any]]], only: str | None
) -> list[tuple[dict[str, Any], list[Any]]]:
    """Kinds in the order they are asked for, or the forty first; what takes long last."""
    kinds = (only or "forty").split(",")
    return sorted(found, key=lambda pair: ([not _wanted(pair[0], kind) for kind in kinds], _work(pair[0])))


def again(journal: Journal, count: int, only: str | None) -> list[tuple[dict[str, Any], list[Any]]]:
    """The config that is chosen for each shape and the best others that were measured, so many in all."""
    found, device = [], device_of("sm_90a")
    for shape in shapes():
        if _wanted(shape, only):
            choices = [choice.config for choice in REGISTRY.choices(problem_of(shape), device)]
            known = [config for config in journal.known(shape) if config in choices]
            found.append((shape, list(dict.fromkeys([choices[0], *known, *choices[1:]]))[:count]))
    return _in_order(found, only)


def _work(shape: dict[str, Any]) -> int:
    return math.prod(shape[x] for x in "mnk")


def measure(
    todo: list[tuple[dict[str, Any], list[Any]]], path: Path, seconds: float, best: int, processes: int, turns: int
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


def _measure(shape: dict[str, Any], configs: list[Any], journal: Journal, run: str, best: int, turns: int) -> str:
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
            print(f"{name_of(shape)} {config}: {wrong}", flush=True)
            continue
        worst = ((out.float() - wanted).abs().max() / scale).item()
        if not worst <= 1e-2:
            print(f"{name_of(shape)} {config}: WRONG, {worst:.1e} away from cuBLAS", flush=True)
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
    said = f"{name_of(shape)} {fastest}: {us.get(fastest)}, chosen {us.get(configs[0])}, cuBLAS {us['cublas']}, {len(configs)} configs"
    if configs[0] in times:
        behind = [x / y for x, y in zip(times[configs[0]], times[fastest], strict=True)]
        low, middle, high = statistics.quantiles(behind, n=4)
        said += f"; turn by turn chosen {middle:.3f} of the fastest ({low:.3f} to {high:.3f})"
    return said


def _row(shape: dict[str, Any], config: Any, took: float, cublas: float, run: str) -> dict[str, Any]:
    return {
        "shape": name_of(shape), "kind": type(config).__name__, "plan": dataclasses.astuple(config), "us": round(took * 1e6, 2), "cublas_us": round(cublas * 1e6, 2), "run": run,
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
        for number, shape in enumerate(shape for shape in shapes() if not shape["held_out"]):
            problem = problem_of(shape)
            choices = {choice.config: choice.cost for choice in REGISTRY.choices(problem, self.device)}
            found = {config: x for config, x in journal.known(shape).items() if config in choices}
            best = min((us for us, _ in found.values()), default=0.0)
            hot = journal.slowed.get((name_of(shape), journal.fullest(shape)), 1.0) > _HOT
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

    def costs(self, model: dict[str, float]) -> Any:
        """Logarithms of what configs are expected to take."""
        return np.array(
            [
                math.log(sm90_cost.expected(given[0], given[1], self.device, model)) if given else known
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


def fit(journal: Journal) -> None:
    """Figures such that configs of a shape differ as they were measured to, and the best are chosen, of shapes that are not held out.

    What counts is which is faster: how far all configs of a shape are from what was measured counts little. Figures are moved one after the other, as if logarithms
    of costs were linear in theirs, not far at a time; then costs are worked out anew."""
    rows, model, reach = Rows(journal), dict(_FIRST), 0.3
    names = [name for name in model if name not in _FIXED]

    def stay(moved: Any) -> float:
        return _STAY * float(np.sum(moved**2))

    begun = np.array([math.log(_FIRST[name]) for name in names])
    now, costs = begun.copy(), rows.costs(model)
    error = rows.error(costs)
    print(f"{len(costs)} measurements of {len(rows.starts)} shapes: {error:.3f}", flush=True)
    while reach > 0.1:
        slopes = [(rows.costs({**model, name: model[name] * math.exp(0.02)}) - costs) / 0.02 for name in names]
        tried, expected, least = now.copy(), costs.copy(), error
        for _ in range(40):
            before = least
            for n, slope in enumerate(slopes):
                for step in _STEPS:
                    if abs(tried[n] + step - now[n]) <= reach:
                        moved = tried.copy()
                        moved[n] += step
                        found = rows.error(expected + step * slope) + stay(moved - begun)
                        if found < least:
                            tried, expected, least = moved, expected + step * slope, found
            if least > before - 1e-3:
                break
        other = {**model, **{name: math.exp(x) for name, x in zip(names, tried, strict=True)}}
        there = rows.costs(other)
        found = rows.error(there) + stay(tried - begun)
        print(f"{found:.3f}, where {least:.3f} was expected within {reach:.2f}", flush=True)
        if found < error - 0.02:
            model, now, costs, error = other, tried, there, found
        else:
            reach /= 2
    lines = _MODEL.read_text().splitlines()
    made = ["MODEL = {", *(f'    "{name}": {value:.3g},' for name, value in model.items()), "}"]
    _MODEL.write_text("\n".join([*lines[: lines.index("MODEL = {")], *made, *lines[lines.index("}") + 1 :]]) + "\n")


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
            some = [x for x in shapes() if x["held_out"] is held_out and (x["kind"] in _FORTY) is first]
            print(f"{'The forty' if first else 'Others'}, {'kept out of the fit' if held_out else 'in the fit'}:\n")
            _report(journal, some, run)


def _report(journal: Journal, some: list[dict[str, Any]], run: str | None) -> None:
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
        tried = sum((name_of(shape), config) in journal.tried for config in configs)
        cublas = statistics.median(x for _, _, x in found)
        behind.append(found[0][1] / us)
        ahead.append(cublas / us)
        print(
            f"| {shape['dtype']} {shape['layout']} | {shape['m']} | {shape['n']} | {shape['k']} | {len(configs)} | {tried} | {cublas:.1f} "
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
    for shape in shapes():
        if _wanted(shape, only):
            some = [configs_of(shape, math.inf), configs_of(shape, within)]
            us += sum(x.cost for x in REGISTRY.choices(problem_of(shape), device_of("sm_90a"))[: len(some[1])])
            print(name_of(shape), *map(len, some))
            for n, configs in enumerate(some):
                total[n] += len(configs)
                kinds[n] |= {kernel_of(shape, config) for config in configs}
    print(
        f"{total[0]} configs, {len(kinds[0])} kernels; {total[1]} and {len(kinds[1])} measured, {us / 1e6:.1f} s a call"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["count", "compile", "measure", "fit", "report"])
    parser.add_argument("--journal", type=Path, default=_DATA / "products_h200.jsonl")
    parser.add_argument("--seconds", type=float, default=180.0, help="after which no further shape is begun")
    parser.add_argument("--within", type=float, default=2.0, help="times the least that is expected")
    parser.add_argument("--best", type=int, default=6, help="configs of a shape that take turns, beside the chosen one")
    parser.add_argument(
        "--turns",
        type=int,
        default=_TURNS,
        help="of each config that takes turns; a quarter of products that take long",
    )
    parser.add_argument("--only", help="kinds of shapes, with commas: of the data file, forty, or kept")
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--again", type=int, help="so many configs of each shape, measured before or not")
    parser.add_argument(
        "--run",
        help="whose turns are reported, by its date; else of the last that has the chosen config of a shape beside others",
    )
    given = parser.parse_args()
    journal = Journal(given.journal)
    if given.what == "count":
        count(given.within, given.only)
    elif given.what == "fit":
        fit(journal)
    elif given.what == "report":
        report(journal, given.run)
    else:
        more = given.again
        todo = again(journal, more, given.only) if more else missing(journal, given.within, given.only)
        if given.what == "compile":
            compile_all([(shape, config) for shape, configs in todo for config in configs], given.processes)
        else:
            measure(todo, given.journal, given.seconds, more or given.best, given.processes, given.turns)


if __name__ == "__main__":
    main()
