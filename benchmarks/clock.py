"""The clock's predictions beside times of an H200 whose clock was held: kernels of the library and the steps of examples/hopper.

    python benchmarks/clock.py measure [--clock 1305]                  # needs a GPU, and an administrator
    python benchmarks/clock.py [report] [--only TEXT] [--jobs 2] [--save]       # needs none

`measure` writes data/clock_h200.jsonl; a row's name says the program and its shape. No constant of the clock is fitted to a row. Rows
are "held out" that nobody had looked at while anything was modelled: GEMMs and attention of other shapes. Norms, softmax, elementwise
kernels, decode and backward are "seen": memory and launches were modelled with a look at them.

docs/data/clock.md is not of one run: its classes were set, and its errors summed up, from the table of calls afterwards. Of backward
the two calls with 2048 tokens were predicted anew, with the right number of tiles for each CTA; the third was not. Limiters above
100 % are of a time that ended with the last warp; it ends with the last request now.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import torch
from results import Page, Table

from kiln import DSLRuntimeError, cute, kernels
from kiln.clock import prediction
from kiln.hardware import driver, nvml
from kiln.measure import clocks, measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).parent / "data" / "clock_h200.jsonl"
STEPS = ("step_2_gemm", "step_3_pipeline", "step_4_roles", "step_5_stores", "step_6_persistent")
CONFIGS = {
    "g1": kernels.Sm90GemmConfig((128, 256, 64), (2, 1), 4, 8, epi_stages=4),
    "g2": kernels.Sm90GemmConfig((128, 128, 64), (1, 1), 4, 8),
    "g3": kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 6, 8, epi_stages=4),
    "g4": kernels.Sm90GemmConfig((256, 128, 64), (1, 1), 4, 8),
    "g5": kernels.Sm90GemmConfig((128, 256, 64), (1, 1), 2, 8),
    "g7": kernels.Sm90GemmConfig((128, 192, 64), (1, 1), 4, 8),
}
SHAPES = ((4096, 4096, 4096), (1024, 1024, 4096), (2048, 2048, 1024), (512, 4096, 4096))
UNSEEN = ((8192, 2048, 2048), (3072, 4096, 2048), (256, 8192, 4096), (2048, 11008, 4096))
STEP_SIZES = (4096, 2048)
ERRORS = Table("Errors", ("class", "of", "rows", "mean absolute error %", "p90 %", "bias %"))
ORDER = Table(
    "Order of configs", ("GEMM", "pairs more than 10 % apart", "in order", "the one predicted best is slower by %")
)
LADDER = Table("Steps of examples/hopper", ("step", "m = n = k", "measured %", "predicted %"))
EFFECTS = Table("Changes of a config", ("change", "GEMM", "measured %", "predicted %"))
CALLS = Table("Calls", ("call", "of", "measured us", "predicted us", "miss %", "limiter", "seconds to predict"))
PAGE = Page(__file__, "Predictions of the clock on an H200 at 1305 MHz", ERRORS, ORDER, LADDER, EFFECTS, CALLS)


class Row(TypedDict):
    """A recorded time."""

    kernel: str
    us: float
    low: float
    high: float
    mhz: float


def names() -> Iterator[str]:
    """Yield the names of all rows."""
    yield from (f"{step} {size}" for size in STEP_SIZES for step in STEPS)
    yield from (f"gemm {config} {' '.join(map(str, shape))}" for shape in SHAPES for config in CONFIGS)
    yield from ("attention 2 4096 16 128 0", "attention 4 2048 16 64 1")
    yield from (f"{kernel} {shape}" for shape in ("8192 8192", "4096 1024") for kernel in ("rms_norm", "softmax"))
    yield from ("backward 2 4096 16 128 0", "backward 4 2048 16 64 1", "backward 2 2048 16 128 1")
    yield from ("decode 16 32 8 128 8192", "decode 4 32 8 128 16384", "decode 64 16 16 128 2048")
    for kernel in ("rms_norm", "softmax", "layer_norm", "fused_add_rms_norm"):
        yield from (f"{kernel} {shape}" for shape in ("32768 4096", "2048 16384"))
    yield from (f"{kernel} {shape}" for shape in ("16384 4096", "2048 2048") for kernel in ("add", "swiglu"))
    yield from held_out()


def held_out() -> Iterator[str]:
    """Yield the names of the rows that no constant was chosen by."""
    for shape in UNSEEN:
        yield from (f"gemm {config} {' '.join(map(str, shape))}" for config in CONFIGS)
    yield from (
        "attention 2 8192 16 128 1",
        "attention 8 1024 16 64 0",
        "attention 4 4096 8 128 1",
        "attention 1 2048 32 128 0",
    )


def call_of(name: str, device: str) -> Callable[[], Any]:
    """Return the call that a row's name says."""
    kind, *words = name.split()

    def data(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).half()

    if kind in STEPS:
        size = int(words[0])
        arguments = (*(data(size, size) for _ in range(3)), *([66] if kind == STEPS[-1] else []))
        gemm = importlib.import_module(kind).gemm
        if device == "cpu":
            return lambda: gemm(*arguments)
        compiled: Any = cute.compile(gemm, *arguments)
        return lambda: compiled(*arguments)
    if kind == "gemm":
        m, n, k = map(int, words[1:])
        a, b, out = data(m, k), data(k, n), data(m, n)
        return lambda: kernels.gemm(a, b, out=out, config=CONFIGS[words[0]])
    if kind in ("attention", "backward"):
        batch, tokens, heads, head_dim, causal = map(int, words)
        q, k, v = (data(batch, tokens, heads, head_dim) for _ in range(3))
        if kind == "attention":
            return lambda: kernels.flash_attention(q, k, v, causal=bool(causal))
        out, gradient = data(batch, tokens, heads, head_dim), data(batch, tokens, heads, head_dim)
        lse = torch.full((batch, heads, tokens), 8.0, device=device)
        return lambda: kernels.flash_attention_backward(gradient, q, k, v, out, lse, causal=bool(causal))
    if kind == "decode":
        batch, heads, kv_heads, head_dim, tokens = map(int, words)
        q = data(batch, 1, heads, head_dim)
        k, v = (data(batch, tokens, kv_heads, head_dim) for _ in range(2))
        return lambda: kernels.flash_attention(q, k, v)
    x, weight = data(*map(int, words)), data(int(words[1]))
    other = data(*map(int, words))
    return {
        "rms_norm": lambda: kernels.rms_norm(x, weight),
        "layer_norm": lambda: kernels.layer_norm(x, weight, weight),
        "fused_add_rms_norm": lambda: kernels.fused_add_rms_norm(x, other, weight),
        "softmax": lambda: kernels.softmax(x),
        "swiglu": lambda: kernels.swiglu(x, other),
        "add": lambda: kernels.elementwise(lambda a, b: a + b, x, other),
    }[kind]


def measure(mhz: int, only: str) -> None:
    """Time rows on the current GPU, with its clock held; those that were not measured are kept."""
    gpu = nvml.Gpu(driver.uuid(driver.current_device()))
    chosen = [name for name in names() if only in name]
    kept = [line for line in ROWS.read_text().splitlines() if json.loads(line)["kernel"] not in chosen]
    with clocks.locked(gpu, mhz), ROWS.open("w") as file:
        file.writelines(f"{line}\n" for line in kept)
        for name in chosen:
            timed = measurement.measure(call_of(name, "cuda"), l2="warm", effort=measurement.BURST)
            row = {"kernel": name, "us": timed.us, "low": timed.low, "high": timed.high, "mhz": timed.clock_mhz}
            print(json.dumps(row), file=file, flush=True)
            print(f"{name:32} {timed.us:8.1f} us")


class Predicted(NamedTuple):
    """A prediction of a row's call: microseconds, or NaN; what limits its longest kernel, or why there is none; seconds it took."""

    us: float
    limiter: str
    seconds: float


def predicted(row: Row) -> Predicted:
    """Predict a row's call at the row's clock."""
    began = time.perf_counter()
    try:
        predictions = prediction.predict(call_of(row["kernel"], "cpu"), "H200", row["mhz"], what_if=False)
    except DSLRuntimeError as reason:
        return Predicted(math.nan, str(reason).splitlines()[0], time.perf_counter() - began)
    longest = max(predictions, key=lambda one: one.burst.us)
    limiter = f"{longest.limiter} {longest.busy[longest.limiter]:.0%}"
    return Predicted(sum(one.burst.us for one in predictions), limiter, time.perf_counter() - began)


CLASSES = {
    **dict.fromkeys(("gemm", "step_5_stores", "step_6_persistent"), "GEMM"),
    **dict.fromkeys(("step_2_gemm", "step_3_pipeline", "step_4_roles"), "GEMM stored by threads"),
    "attention": "attention",
    "backward": "attention backward",
    "decode": "decode",
    **dict.fromkeys(("add", "swiglu"), "elementwise"),
}
"""Classes of kernels by the first word of a row's name; all others are rows: norms and softmax."""
ABLATIONS = (
    ("two stages for four, without multicast", "g1", "g5"),
    ("64 more rows a warpgroup", "g2", "g4"),
    ("multicast, six stages for four", "g2", "g3"),
    ("192 columns for 128", "g2", "g7"),
)
"""Changes of a GEMM's config: what, from which config to which."""
APART = 0.1
"""Pairs of configs whose times differ by less are not compared."""


def report(only: str, jobs: int, save: bool) -> None:
    """Print predictions beside the recorded times, their errors by class, and whether they say what is faster."""
    rows: list[Row] = [json.loads(line) for line in ROWS.read_text().splitlines()]
    rows = [row for row in rows if only in row["kernel"]]
    if not rows:
        sys.exit(f"no row's name has {only!r}")
    unseen = set(held_out())
    times: dict[str, tuple[float, float]] = {}
    misses: dict[tuple[str, str], list[float]] = {}
    workers = concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _find_steps)
    with workers:
        for row, (us, limiter, seconds) in zip(rows, workers.map(predicted, rows), strict=True):
            name = row["kernel"]
            seen = "held out" if name in unseen else "seen"
            miss = us / row["us"] - 1
            shown = None if math.isnan(us) else f"{us:.1f}"
            CALLS.add(name, seen, f"{row['us']:.1f}", shown, _percent(miss), limiter, f"{seconds:.0f}")
            if not math.isnan(miss):
                times[name] = row["us"], us
                misses.setdefault((CLASSES.get(name.split()[0], "rows"), seen), []).append(miss)
    for (name, seen), values in sorted(misses.items()):
        absolute = sorted(map(abs, values))
        p90 = absolute[math.ceil(0.9 * len(absolute)) - 1]
        mean = f"{100 * statistics.mean(absolute):.1f}"
        ERRORS.add(name, seen, len(values), mean, f"{100 * p90:.1f}", _percent(statistics.mean(values)))
    _order(times)
    _ladder(times)
    _ablations(times)
    PAGE.finish(save)


def _percent(part: float) -> str | None:
    return None if math.isnan(part) else f"{100 * part:+.1f}"


def _order(times: dict[str, tuple[float, float]]) -> None:
    """Compare the order of the configs of each GEMM: pairs, and the one predicted best with the best."""
    for shape in SHAPES + UNSEEN:
        name = " ".join(map(str, shape))
        own = [times[row] for config in CONFIGS if (row := f"gemm {config} {name}") in times]
        if len(own) < len(CONFIGS):
            continue
        pairs = [(a, b) for a, b in itertools.combinations(own, 2) if max(a[0], b[0]) > (1 + APART) * min(a[0], b[0])]
        right = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
        chosen = min(own, key=lambda one: one[1])[0]
        ORDER.add(name, len(pairs), right, _percent(chosen / min(own)[0] - 1))


def _ladder(times: dict[str, tuple[float, float]]) -> None:
    """Compare what each step of examples/hopper gains."""
    for size in STEP_SIZES:
        for before, step in itertools.pairwise(STEPS):
            if f"{before} {size}" in times and f"{step} {size}" in times:
                gains = [b / a - 1 for a, b in zip(times[f"{before} {size}"], times[f"{step} {size}"], strict=True)]
                LADDER.add(step, size, *map(_percent, gains))


def _ablations(times: dict[str, tuple[float, float]]) -> None:
    """Compare what changes of a GEMM's config cost or gain."""
    for what, old, new in ABLATIONS:
        for shape in SHAPES + UNSEEN:
            name = " ".join(map(str, shape))
            before, after = f"gemm {old} {name}", f"gemm {new} {name}"
            if before in times and after in times:
                effects = [b / a - 1 for a, b in zip(times[before], times[after], strict=True)]
                EFFECTS.add(what, name, *map(_percent, effects))


def _find_steps() -> None:
    sys.path.insert(0, str(ROOT / "examples" / "hopper"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "report"), nargs="?", default="report")
    parser.add_argument("--clock", type=int, default=1305)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write docs/data/clock.md")
    options = parser.parse_args()
    _find_steps()
    if options.what == "measure":
        measure(options.clock, options.only)
    else:
        report(options.only, options.jobs, options.save)


if __name__ == "__main__":
    main()
