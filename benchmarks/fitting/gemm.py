"""Measure configs of GEMM on sm_90a beside cuBLAS, and fit the cost model to the measurements.

Shapes are those of `benchmarks/gemm_shapes.py`. Of each, the configs that the model expects to be fastest are measured,
with the best of each family: they alternate with cuBLAS, each call after a flush of the L2 cache (`alternating.py`).
`measure` replaces the shapes that it measured in `benchmarks/data/gemm_h200.jsonl`. The fit reads shapes that are not
held out. Several processes compile, or load from the disk cache what `compile` left there; one at a time has the GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import gc
import json
import math
import multiprocessing
import os
import time
from queue import Empty
from typing import TYPE_CHECKING, Any

import gemm_shapes
import numpy as np
import recorded
from recorded import Measured

import kiln
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem, sm90_cost
from kiln.kernels.impl.gemm.sm80_config import Sm80GemmConfig
from kiln.kernels.impl.gemm.sm90_config import Sm90GemmConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gemm_shapes import Gemm

_TYPES = {"float16": kiln.Float16, "bfloat16": kiln.BFloat16, "float8_e4m3fn": kiln.Float8E4M3FN}
_CONFIGS = {"Sm90GemmConfig": Sm90GemmConfig, "Sm80GemmConfig": Sm80GemmConfig}
H200 = dataclasses.replace(device_of("sm_90a"), name="H200")
"""The GPU that measurements are of."""
_FIXED = ("fused_epilogue_us", "l2_tbps")
"""Coefficients that are not fitted. No shape here depends on the first. The L2 cache limits small tiles of large GEMMs at
full clocks (4096 cubed: 192 us with 128x128, 172 with 128x256), but these were measured at the power limit, where all
configs take the same time."""
_BEST, _FAMILIES = 10, 8
"""Configs of a shape that are measured: those that are expected to be fastest, and the best of some families."""
_WRONG = 1e-2
"""The difference to cuBLAS, relative to the largest result, from which on a config is not measured."""
_SHARPNESS = 60
"""The exponent of the softmin that stands for the choice."""
_REGRET_WEIGHT, _TOLERATED_REGRET, _LARGE_REGRET_WEIGHT = 30, 0.005, 150
"""The weights of the mean regret (the chosen time over the best, less 1) above a tolerated one, and of its square."""
_ERROR_WEIGHT = 40
"""The weight of errors of times; configs much slower than the best count little."""
_LEAST_GAIN = 1e-4


def shapes() -> list[Gemm]:
    """Return all GEMMs that may be measured."""
    return [*gemm_shapes.layers(), *gemm_shapes.others()]


def problem_of(shape: Gemm) -> GemmProblem:
    """Return the GEMM of dense arrays; that of 8-bit floats has results in bfloat16."""
    dtype, m, n, k = _TYPES[shape.dtype], shape.m, shape.n, shape.k
    a = TensorLayout.dense(dtype, 1, m, k) if shape.layout[0] == "N" else TensorLayout(dtype, (1, m, k), (m * k, 1, m))
    b = TensorLayout.dense(dtype, 1, k, n) if shape.layout[1] == "N" else TensorLayout(dtype, (1, k, n), (n * k, 1, k))
    return GemmProblem(a, b, TensorLayout.dense(kiln.BFloat16 if dtype.width == 8 else dtype, 1, m, n))


def config_of(row: recorded.Config) -> Any:
    """Return a recorded config."""
    return _CONFIGS[row.kind](*row.values)


def recorded_config(config: Any) -> recorded.Config:
    """Return a config as it is recorded."""
    return recorded.Config(type(config).__name__, dataclasses.astuple(config))


def choices_of(shape: Gemm) -> list[Any]:
    """Return the configs that dispatch chooses among, the fastest expected first."""
    return [choice.config for choice in REGISTRY.choices(problem_of(shape), H200)]


def measured_of(shape: Gemm) -> list[Any]:
    """Return the configs of a shape that `measure` measures."""
    choices, families = choices_of(shape), {}
    for config in choices:
        hopper = isinstance(config, Sm90GemmConfig)
        key = (config.tile_shape_mnk[0], config.pingpong, config.swap_ab, config.split_k > 1) if hopper else ()
        families.setdefault(key, config)
    return list(dict.fromkeys([*choices[:_BEST], *list(families.values())[:_FAMILIES]]))


# --- measuring -------------------------------------------------------------------------------------------------------


def operands(shape: Gemm, random: bool) -> tuple[Any, Any, Any]:
    """Return A, B and a result on the GPU, with normal data."""
    import torch

    dtype, small = getattr(torch, shape.dtype), shape.dtype.startswith("float8")

    def matrix(rows: int, columns: int, way: str) -> Any:
        extents = (rows, columns) if way == "N" else (columns, rows)
        if random:
            x = torch.randn(extents, device="cuda", dtype=torch.bfloat16 if small else dtype).to(dtype)
        else:
            x = torch.empty(extents, device="cuda", dtype=dtype)
        return x if way == "N" else x.T

    out = torch.empty(shape.m, shape.n, device="cuda", dtype=torch.bfloat16 if small else dtype)
    return matrix(shape.m, shape.k, shape.layout[0]), matrix(shape.k, shape.n, shape.layout[1]), out


def peer(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """Return cuBLAS's call; of 8-bit floats one that adds in f32, as Kiln's does."""
    import torch

    if a.element_size() == 1:
        one = torch.ones((), device="cuda")
        return functools.partial(torch._scaled_mm, a, b, one, one, out_dtype=out.dtype, use_fast_accum=False)
    return functools.partial(torch.mm, a, b, out=torch.empty_like(out))


def right_calls(shape: Gemm, configs: list[Any], a: Any, b: Any, out: Any) -> dict[Any, Callable[[], Any]]:
    """Return cuBLAS's call, by None, and those of configs whose results are the same."""
    import torch

    from kiln import kernels

    calls: dict[Any, Callable[[], Any]] = {None: peer(a, b, out)}
    wanted = calls[None]().float()
    scale = wanted.abs().max()
    for config in configs:
        out.zero_()
        call = functools.partial(kernels.gemm, a, b, out=out, config=config)
        try:
            call()
            torch.cuda.synchronize()
        except Exception as wrong:
            print(f"{shape.name} {config}: {wrong}", flush=True)
            continue
        worst = ((out.float() - wanted).abs().max() / scale).item()
        if worst <= _WRONG:
            calls[config] = call
        else:
            print(f"{shape.name} {config}: WRONG, {worst:.1e} away from cuBLAS", flush=True)
    return calls


def compile_one(job: tuple[Gemm, Any]) -> str:
    """Compile a kernel into the disk cache and this process, without launching it."""
    from kiln import kernels
    from kiln.base_dsl.target import get_target

    shape, config = job
    a, b, out = operands(shape, False)
    try:
        with get_target().dry_run():
            kernels.gemm(a, b, out=out, config=config)
    except Exception as wrong:  # told, and not measured
        return f"{shape.name} {config}: {wrong}"
    return ""


def kernel_of(shape: Gemm, config: Any) -> Any:
    """Return a key that is equal for shapes and configs of one kernel: extents and counts of split-K do not matter."""
    if isinstance(config, Sm90GemmConfig) and config.split_k > 1:
        config = dataclasses.replace(config, split_k=2), config.split_k > 8
    return (shape.dtype, shape.layout, shape.m == 1, shape.n % 8, shape.k % 8, config)


def compile_all(jobs: list[tuple[Gemm, Any]], processes: int) -> None:
    """Compile each kernel once."""
    kinds: dict[Any, tuple[Gemm, Any]] = {}
    for shape, config in jobs:
        kinds.setdefault(kernel_of(shape, config), (shape, config))
    start, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(processes, os.cpu_count() or 1), context) as pool:
        for message in filter(None, pool.map(compile_one, kinds.values(), chunksize=2)):
            print(message, flush=True)
    print(f"{len(kinds)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)


def measure(todo: list[tuple[Gemm, list[Any]]], path: Path, seconds: float, processes: int) -> None:
    """Measure shapes: processes compile, or load, configs of some, while one of them has the GPU."""
    context = multiprocessing.get_context("spawn")
    queue, found, gpu, end = context.Queue(), context.Queue(), context.Lock(), time.time() + seconds
    for job in todo:
        queue.put(job)
    workers = [
        context.Process(target=_measure_some, args=(queue, found, gpu, end)) for _ in range(min(processes, len(todo)))
    ]
    for worker in workers:
        worker.start()
    measured, running = recorded.gemms(path) if path.exists() else {}, len(workers)
    while running:
        row = found.get()
        if row is None:
            running -= 1
        else:
            measured |= dict([row])
            recorded.write_gemms(measured, path)
    for worker in workers:
        worker.join()


def _measure_some(queue: Any, found: Any, gpu: Any, end: float) -> None:
    try:
        while time.time() < end:
            try:
                shape, configs = queue.get(timeout=1)
            except Empty:
                return
            messages = {config: compile_one((shape, config)) for config in configs}
            gc.collect()
            gc.freeze()  # or each graph looks through all that compiling left
            with gpu:
                if time.time() < end:
                    found.put(_measure(shape, [config for config, wrong in messages.items() if not wrong]))
    finally:
        found.put(None)


def _measure(shape: Gemm, configs: list[Any]) -> tuple[str, Measured]:
    import alternating
    import torch

    a, b, out = operands(shape, True)
    times = alternating.cold(right_calls(shape, configs, a, b, out))
    torch.cuda.empty_cache()
    us = times.pop(None)
    chosen = times.get(configs[0], math.nan)
    print(f"{shape.name}: chosen {chosen:.1f} us, best {min(times.values()):.1f}, cuBLAS {us:.1f}", flush=True)
    return shape.name, Measured({recorded_config(x): one for x, one in times.items()}, min(times.values()), us)


# --- the model -------------------------------------------------------------------------------------------------------


class Rows:
    """The measurements that the fit reads: candidates of sm_90a for shapes that are not held out."""

    def __init__(self, measured: dict[str, Measured]) -> None:
        self.device, self.given, shape_of, us = H200, [], [], []
        for number, shape in enumerate(shape for shape in shapes() if not shape.held_out):
            problem = problem_of(shape)
            known = measured[shape.name].times if shape.name in measured else {}
            choices = sm90_cost.candidates(problem, self.device)
            for config in [config for config in choices if recorded_config(config) in known]:
                self.given.append((problem, config))
                shape_of.append(number)
                us.append(known[recorded_config(config)])
        _, self.starts, self.shape = np.unique(shape_of, return_index=True, return_inverse=True)
        self.log_us = np.log(us)
        self.behind = self.log_us - np.minimum.reduceat(self.log_us, self.starts)[self.shape]

    def costs(self, coefficients: sm90_cost.Sm90Coefficients) -> Any:
        """Return the logarithms of expected times."""
        return np.log([sm90_cost.roofline(p, config, self.device, coefficients).us for p, config in self.given])

    def loss(self, costs: Any) -> float:
        """Return the errors of times, and the regret of the choices."""
        off, weights = np.abs(costs - self.log_us), np.exp(-4 * self.behind)
        errors = np.mean(weights * np.minimum(off, 0.3 + 0.2 * off) ** 1.5)
        shares = np.exp(_SHARPNESS * (np.minimum.reduceat(costs, self.starts)[self.shape] - costs))
        chosen = np.add.reduceat(shares * np.exp(np.minimum(self.behind, 0.5)), self.starts)
        regret = np.maximum(0, chosen / np.add.reduceat(shares, self.starts) - 1 - _TOLERATED_REGRET)
        return float(
            _ERROR_WEIGHT * errors + _REGRET_WEIGHT * np.mean(regret) + _LARGE_REGRET_WEIGHT * np.mean(regret**2)
        )


def fit(measured: dict[str, Measured]) -> dict[str, float]:
    """Return the coefficients that minimise the loss of shapes that are not held out, by coordinate descent."""
    rows = Rows(measured)
    now = sm90_cost.Sm90Coefficients.on(rows.device)
    least = rows.loss(rows.costs(now))
    print(f"{len(rows.given)} measurements of {len(rows.starts)} shapes: {least:.4f}", flush=True)
    steps = {x.name: 0.1 for x in dataclasses.fields(now) if x.name not in _FIXED}
    while max(steps.values()) > 0.01:
        for name, step in steps.items():
            tried = [dataclasses.replace(now, **{name: getattr(now, name) * math.exp(x)}) for x in (step, -step)]
            loss, best = min(((rows.loss(rows.costs(x)), x) for x in tried), key=lambda pair: pair[0])
            if loss < least - _LEAST_GAIN:
                now, least, steps[name] = best, loss, min(0.3, 1.5 * step)
            else:
                steps[name] = 0.6 * step
        print(f"{least:.4f}", flush=True)
    return {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(now).items()}


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


def report(measured: dict[str, Measured]) -> None:
    """Print the measured time of each choice beside the best config's and cuBLAS's, in and out of the fit."""
    layers, others = gemm_shapes.layers(), gemm_shapes.others()
    kinds = {
        "Layers in the fit": [x for x in layers if not x.held_out],
        "Layers held out": [x for x in layers if x.held_out],
        "Others, held out": others,
    }
    for title, some in kinds.items():
        print(f"{title}:\n")
        _report(measured, some)


def _report(measured: dict[str, Measured], some: list[Gemm]) -> None:
    print("| | M | N | K | configs | cuBLAS us | best us | chosen us | of the best | of cuBLAS | chosen | best |")
    print("|---" * 12 + "|")
    behind, ahead = [], []
    for shape in some:
        if (found := measured.get(shape.name)) is None:
            continue
        chosen = choices_of(shape)[0]
        us, fastest = found.times.get(recorded_config(chosen), math.nan), min(found.times, key=found.times.__getitem__)
        if not math.isnan(us):
            behind.append(found.best / us)
            ahead.append(found.peer / us)
        print(
            f"| {shape.dtype} {shape.layout} | {shape.m} | {shape.n} | {shape.k} | {len(found.times)} "
            f"| {found.peer:.1f} | {found.best:.1f} | {us:.1f} | {found.best / us:.2f} | {found.peer / us:.2f} "
            f"| {short(chosen)} | {short(config_of(fastest))} |"
        )
    if behind:
        print(
            f"\n{len(behind)} shapes: chosen configs are {recorded.geometric_mean(behind):.3f} of the best and "
            f"{recorded.geometric_mean(ahead):.3f} of cuBLAS (geometric means), {min(behind):.2f} and "
            f"{min(ahead):.2f} at worst; {sum(x < 0.97 for x in ahead)} are more than 3 % behind cuBLAS\n"
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", help="kinds of shapes, with commas: `layers`, or those of gemm_shapes.py")
    parser.add_argument("--processes", type=int, default=14, help="that compile")


def _wanted(only: str | None) -> list[Gemm]:
    names = {shape.name for shape in gemm_shapes.layers()}
    kinds = None if only is None else only.split(",")
    return [x for x in shapes() if kinds is None or x.kind in kinds or ("layers" in kinds and x.name in names)]


def run(action: str, asked: argparse.Namespace) -> dict[str, Any] | None:
    """Do what the command line says; return coefficients that were fitted."""
    path = asked.journal or recorded.DATA / "gemm_h200.jsonl"
    if action in ("fit", "report"):
        measured = recorded.gemms(path)
        return fit(measured) if action == "fit" else report(measured)
    todo = [(shape, measured_of(shape)) for shape in _wanted(asked.only)]
    if action == "count":
        print(json.dumps({shape.name: len(configs) for shape, configs in todo}, indent=1))
    elif action == "compile":
        compile_all([(shape, config) for shape, configs in todo for config in configs], asked.processes)
    else:
        measure(todo, path, asked.seconds, asked.processes)
    return None
