"""Measure configs of attention on Hopper, fit the model that chooses among them, and show what its choices cost.

    python benchmarks/tune_attention.py compile [--only 16,128] [--seconds 80] [--part 0/4]   # what is missing, for the disk cache
    python benchmarks/tune_attention.py measure [--only 16,128] [--seconds 60] [--part 0/4]   # needs the GPU
    python benchmarks/tune_attention.py fit       # writes src/kiln/kernels/impl/attention/fwd/sm90_coefficients.py
    python benchmarks/tune_attention.py report    # chosen and best configs, shape by shape

Each line of `benchmarks/data/attention_h200.jsonl` is a config (groups, tile_n, stages, pingpong, q_in_regs) of a shape: bits of an element,
batch, length, heads, heads of keys, D (or D and that of values), whether causal; microseconds of it, the spread of its turns, and those of cuDNN in the same run (of 8
bits: 0). Lines are written at once, and `measure` goes on where it was stopped. The first shape of a kind (bits, D, causal or not) is measured with all
configs that may be best (`all_fields`); the others with the best of those that were less than a seventh behind there. Configs take
turns in short bursts with normal data, f16 or e4m3. `compile` goes first, in several processes; what it did is in `--compiled`, and no other config
is measured. `measure` may have several processes, too, with kinds of their own (`--part`): they trace at the same time, and then measure one after another.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import itertools
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from kiln import Float8E4M3FN, Float16
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import AttentionProblem
from kiln.kernels.impl.attention.fwd import sm90_coefficients, sm90_cost
from kiln.kernels.impl.attention.fwd.sm90_coefficients import FIGURES, Figures
from kiln.kernels.impl.attention.fwd.sm90_config import Sm90AttentionConfig

_DATA = Path(__file__).parent / "data" / "attention_h200.jsonl"
_MODEL = Path(sm90_coefficients.__file__)
_SPEEDS, _TILES = np.linspace(4.0, 13.0, 361), np.linspace(0.0, 8.0, 81)
"""TFLOP/s of a multiprocessor and microseconds of a tile that are tried."""
_NEAR, _MANY = 1.15, 20
_BEST = 12
"""Configs of the first shape of a kind that the others are measured with, at most."""
_LONG = 1500.0
"""Microseconds of a call of which one is enough."""
_KEPT = 6
"""Configs of a kind that are chosen among."""
_TOKENS = 32768
_BOTH = (False, True)
SHAPES = [
    *[(16, _TOKENS // n, n, 16, 16, 128, c) for n in (8192, 1024, 2048, 4096, 16384, 32768) for c in _BOTH],
    *[(16, _TOKENS // n, n, 32, 8, 128, c) for n in (8192, 1024, 2048, 32768) for c in _BOTH],
    *[(16, _TOKENS // n, n, 8, 8, 256, c) for n in (8192, 2048, 1024, 32768) for c in _BOTH],
    *[(16, _TOKENS // n, n, 32, 32, 64, c) for n in (8192, 2048, 1024, 4096, 16384, 32768) for c in _BOTH],
    *[(8, 1, 16384, 2048 // d, 2048 // d, d, c) for d in (128, 256, 64) for c in _BOTH],
    *[(8, 8, 2048, 2048 // d, 2048 // d, d, c) for d in (128, 256, 64) for c in _BOTH],
    *[(16, _TOKENS // n, n, 16, 16, (192, 128), c) for n in (8192, 2048) for c in _BOTH],
    *[(16, _TOKENS // n, n, 16, 16, 192, c) for n in (8192, 2048) for c in _BOTH],
    *[(16, _TOKENS // n, n, 16, 16, 96, c) for n in (8192, 2048) for c in _BOTH],
]


def dims_of(shape: Any) -> tuple[int, int]:
    """Elements of a head of queries and keys, and of values."""
    return (shape[5], shape[5]) if isinstance(shape[5], int) else tuple(shape[5])


def kind_of(shape: Any) -> tuple[Any, ...]:
    """What kernels are compiled for: extents are not compiled in."""
    return shape[0], *dims_of(shape), shape[6]


def first_of(kind: Any) -> Any:
    """The shape of a kind that is measured with all configs."""
    return next(x for x in SHAPES if kind_of(x) == kind)


def problem_of(shape: Any) -> AttentionProblem:
    bits, batch, length, heads, heads_k, _, causal = shape
    dtype = Float16 if bits == 16 else Float8E4M3FN
    return AttentionProblem(
        batch, length, length, heads, heads_k, *dims_of(shape), dtype, window_right=0 if causal else None
    )


def config_of(fields: Any, causal: bool) -> Sm90AttentionConfig:
    groups, tile_n, stages, pingpong, held = fields
    return Sm90AttentionConfig(groups, tile_n, stages, pingpong=pingpong, q_in_regs=held, dynamic_scheduler=causal)


def fields_of(config: Sm90AttentionConfig) -> tuple[Any, ...]:
    return config.consumer_warpgroups, config.tile_n, config.kv_stages, config.pingpong, config.q_in_regs


@functools.cache
def all_fields(bits: int, dim: int, dim_v: int) -> list[tuple[Any, ...]]:
    """Those that work, with steps of at least two thirds of the keys that fit. Three warp groups have three buffers where these fit, two have two, and
    only two hold queries: of heads of 128 all configs were measured, and others were behind for every shape."""
    device, found = device_of("sm_90a"), []
    for groups, held in ((3, False), (2, False), (2, True)):
        working: dict[tuple[int, bool], Any] = {}
        for tile_n, stages, pingpong in itertools.product(
            range(32, 257, 512 // bits // 2), (2, 3)[: groups - 1], (False, True)
        ):
            fields = (groups, tile_n, stages, pingpong, held)
            with contextlib.suppress(DSLUserCodeTypeError):
                config_of(fields, False).check(dim, dim_v, device.smem, bits)
                working[tile_n, pingpong] = fields
        most = max((tile_n for tile_n, _ in working), default=0)
        found += [fields for fields in working.values() if 3 * fields[1] >= 2 * most]
    return found


class Journal:
    """What was measured: microseconds of configs by shapes."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self.keep(json.loads(line))

    def keep(self, row: dict[str, Any]) -> None:
        row["shape"] = tuple(tuple(x) if isinstance(x, list) else x for x in row["shape"])
        self.rows[row["shape"], tuple(row["plan"])] = row

    def add(self, row: dict[str, Any]) -> None:
        self.keep(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, shape: Any) -> dict[Any, float]:
        """Microseconds of configs of a shape: as if measured beside the median of cuDNN's."""
        rows = [row for (other, _), row in self.rows.items() if other == tuple(shape)]
        usual = statistics.median(row["cudnn_us"] for row in rows) if rows else 0.0
        return {tuple(row["plan"]): row["us"] * (usual / row["cudnn_us"] if row["cudnn_us"] else 1.0) for row in rows}

    def cudnn(self, shape: Any) -> float:
        return statistics.median(row["cudnn_us"] for (other, _), row in self.rows.items() if other == tuple(shape))

    def wanted(self, shape: Any) -> list[Any]:
        """Configs of a shape that are to be measured: those of the model first."""
        kind = kind_of(shape)
        first = first_of(kind)
        candidates = [f.config for f in FIGURES.get(kind[:3], ())]
        there = self.of(first)
        if first == shape:
            candidates += all_fields(*kind[:3])
        elif there:
            near = [x for x, us in there.items() if us <= _NEAR * min(there.values())]
            candidates += sorted(near, key=there.__getitem__)[:_BEST]
        known = self.of(shape)
        return [x for x in dict.fromkeys(candidates) if x not in known]


# --- measuring -------------------------------------------------------------------------------------------------------


def _arrays(shape: Any) -> tuple[Any, Any, Any]:
    import torch

    bits, batch, length, heads, heads_k, *_ = shape
    dim, dim_v = dims_of(shape)
    modes = ((heads, dim), (heads_k, dim), (heads_k, dim_v))
    made = (torch.randn(batch, length, *mode, device="cuda", dtype=torch.float16) for mode in modes)
    q, k, v = (x if bits == 16 else x.to(torch.float8_e4m3fn) for x in made)
    return q, k, v


def _small(kind: Any) -> tuple[Any, Any, Any]:
    """Arrays of a kind that have more tiles than there are multiprocessors, and little work."""
    bits, dim, dim_v, causal = kind
    return _arrays((bits, 256, 64, 1, 1, (dim, dim_v), causal))


def _label(kind: Any, fields: Any) -> str:
    return f"{kind} {fields}"


def _parted(only: Any, part: str) -> list[Any]:
    """Shapes of the kinds that one of several processes has."""
    number, count = map(int, part.split("/"))
    kinds = list(dict.fromkeys(kind_of(s) for s in SHAPES if only is None or kind_of(s)[: len(only)] == only))
    own = [s for s in SHAPES if kind_of(s) in kinds[number::count]]
    return sorted(own, key=lambda shape: shape != first_of(kind_of(shape)))


def compile_all(journal: Journal, only: Any, seconds: float, part: str, compiled: Path) -> None:
    """Kernels of one of several processes."""
    from kiln import kernels

    number, count = map(int, part.split("/"))
    wanted = [(kind_of(s), fields) for s in _parted(only, "0/1") for fields in journal.wanted(s)]
    end = time.perf_counter() + seconds
    for kind, fields in list(dict.fromkeys(wanted))[number::count]:
        if time.perf_counter() > end:
            break
        try:
            kernels.flash_attention(*_small(kind), causal=kind[3], config=config_of(fields, kind[3]))
        except Exception as wrong:  # told, and not measured
            print(f"{_label(kind, fields)}: {wrong}", flush=True)
            continue
        with compiled.open("a") as file:
            file.write(_label(kind, fields) + "\n")


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Any:
    """While open, no other process measures (or, if it is shared, none does)."""
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def measure(journal: Journal, only: Any, seconds: float, part: str, compiled: Path) -> None:
    from kiln import kernels

    known = set(compiled.read_text().splitlines()) if compiled.exists() else None
    end = time.perf_counter() + seconds
    shapes, lock = _parted(only, part), compiled.with_suffix(".lock")

    def wanted(shape: Any) -> list[Any]:
        return [x for x in journal.wanted(shape) if known is None or _label(kind_of(shape), x) in known]

    with _locked(lock, fcntl.LOCK_SH):
        for kind in dict.fromkeys(map(kind_of, shapes)):
            candidates = {x: None for s in shapes if kind_of(s) == kind for x in wanted(s)}
            given = _small(kind) if candidates else ()
            for fields in candidates:
                kernels.flash_attention(*given, causal=kind[3], config=config_of(fields, kind[3]))
    for shape in shapes:
        if time.perf_counter() > end:
            print("time is up: the same command goes on from here")
            return
        candidates = wanted(shape)
        if candidates:
            with _locked(lock, fcntl.LOCK_EX):
                _measure_shape(journal, shape, candidates)


def _measure_shape(journal: Journal, shape: Any, candidates: list[Any]) -> None:
    import torch
    from attention import sdpa
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    from kiln import kernels

    bits, *_, causal = shape
    q, k, v = _arrays(shape)
    calls: dict[Any, Any] = {}
    wanted: Any = None
    if bits == 16:
        theirs = sdpa(q, k, v, causal)

        def cudnn() -> Any:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                return theirs()

        with contextlib.suppress(RuntimeError):  # it does not take such heads
            wanted = cudnn().transpose(1, 2)
            calls["cuDNN"] = cudnn
    for fields in candidates:
        call = functools.partial(kernels.flash_attention, q, k, v, causal=causal, config=config_of(fields, causal))
        wanted = call() if wanted is None else wanted
        if not (call() - wanted).abs().mean().item() < 5e-3:
            print(f"{shape} {fields}: WRONG", flush=True)
            continue
        calls[fields] = call
    times = _in_turns(torch, calls, 2 if len(calls) > _MANY else 3)
    theirs_us = statistics.median(times.pop("cuDNN")) if "cuDNN" in calls else 0.0
    for fields, own in times.items():
        us = statistics.median(own)
        row = {"shape": shape, "plan": fields, "us": round(us, 1), "spread": round((max(own) - min(own)) / us, 3)}
        journal.add({**row, "cudnn_us": round(theirs_us, 1)})
    found = journal.of(shape)
    best = min(found, key=found.__getitem__)
    print(f"{shape}: {len(candidates)} configs, best {best} {found[best]:.1f} us, cuDNN {theirs_us:.1f}", flush=True)


def _in_turns(torch: Any, calls: dict[Any, Any], turns: int) -> dict[Any, list[float]]:
    """Microseconds of calls, in another order each time; after each as long a pause as keeps the power limit away."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in random.Random(turn).sample(list(calls), len(calls)):
            count = 1 if times[name] and times[name][0] > _LONG else 3
            calls[name]()
            torch.cuda._sleep(400_000)  # until all calls are under way
            start.record()
            for _ in range(count):
                calls[name]()
            end.record()
            torch.cuda.synchronize()
            took = start.elapsed_time(end) / count
            times[name].append(took * 1e3)
            time.sleep(min(0.04, 2e-3 * took * (count + 1)))
    return times


# --- the model -------------------------------------------------------------------------------------------------------


def fit(journal: Journal) -> None:
    """Speed and time of a tile of each config: the pair for which relative errors are least. Configs are kept that are needed for all shapes to
    have one that is near the best, and those that are best most often."""
    device = device_of("sm_90a")
    made: dict[tuple[int, int, int], list[Figures]] = {}
    for key in dict.fromkeys(kind_of(shape)[:3] for shape, _ in journal.rows):
        shapes = [s for s in SHAPES if kind_of(s)[:3] == key and journal.of(s)]
        if len(shapes) < 2:  # of one alone both figures cannot be told
            continue
        times = {s: journal.of(s) for s in shapes}
        for fields in _kept(times):
            speed, tile = np.meshgrid(_SPEEDS, _TILES, indexing="ij")
            errors = np.zeros(speed.shape)
            for shape in shapes:
                if fields not in times[shape]:
                    continue
                config = config_of(fields, shape[6])
                steps, tiles, waiting = sm90_cost.units(problem_of(shape), config, device)
                launch = sm90_cost.parts(problem_of(shape), config, device)["launch"]
                model = (steps + waiting[0]) / speed + (tiles + waiting[1]) * tile + launch
                errors += (model / times[shape][fields] - 1) ** 2
            at = np.unravel_index(errors.argmin(), errors.shape)
            figures = Figures(fields, round(float(speed[at]), 3), round(float(tile[at]), 2))
            made.setdefault(key, []).append(figures)
    made |= {key: list(value) for key, value in FIGURES.items() if key not in made}
    text = _MODEL.read_text()
    start, end = text.index("FIGURES: "), text.index('"""By bits of')
    rows = [
        f"    {key}: (\n" + "".join(f"        Figures({f.config}, {f.speed}, {f.tile}),\n" for f in value) + "    ),\n"
        for key, value in sorted(made.items(), key=lambda item: (-item[0][0], *item[0][1:]))
    ]
    types = "dict[tuple[int, int, int], tuple[Figures, ...]]"
    _MODEL.write_text(text[:start] + f"FIGURES: {types} = {{\n" + "".join(rows) + "}\n" + text[end:])


def _kept(times: dict[Any, dict[Any, float]]) -> list[Any]:
    """Configs to choose from: one after the other that which lets most be gained, of those that were measured for all shapes."""
    common = [x for x in next(iter(times.values())) if all(x in own for own in times.values())]
    kept: list[Any] = []
    while len(kept) < _KEPT:

        def gained(fields: Any, kept: list[Any] = kept) -> float:
            return -sum(min(own[x] for x in (*kept, fields)) / min(own.values()) for own in times.values())

        best = max((x for x in common if x not in kept), key=gained, default=None)
        if best is None or (kept and gained(best) - gained(kept[-1], kept[:-1]) < 2e-3):
            break
        kept.append(best)
    return kept


def report(journal: Journal) -> None:
    """What the config that is chosen takes, beside the best that was measured."""
    device, worst, ahead = device_of("sm_90a"), 0.0, []
    print(
        "| bits | batch, length, heads, of keys, D | | configs | chosen | TFLOP/s | model | best | behind it | over cuDNN |"
        + "\n"
        + "|---" * 10
        + "|"
    )
    for shape in SHAPES:
        times, problem = journal.of(shape), problem_of(shape)
        if not times:
            continue
        config = sm90_cost.default_config(problem, device)
        chosen, best = fields_of(config), min(times, key=times.__getitem__)
        behind = times[chosen] / times[best] - 1
        worst = max(worst, behind)
        rate = problem.flops / times[chosen] / 1e6
        model = problem.flops / sm90_cost.expected(problem, config, device) / 1e6
        theirs = journal.cudnn(shape)
        ahead += [theirs / times[chosen]] if theirs else []
        print(
            f"| {shape[0]} | {', '.join(map(str, shape[1:6]))} | {'causal' if shape[6] else 'full'} | {len(times)} | {chosen} | {rate:.0f} | "
            f"{model:.0f} | {best} | {behind:.1%} | {f'{ahead[-1]:.2f}' if theirs else ''} |"
        )
    mean = float(np.exp(np.mean(np.log(ahead)))) if ahead else 0.0
    print(f"\nAt most {worst:.1%} behind; {mean:.3f} of cuDNN on average, {min(ahead, default=0.0):.2f} at least.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compile", "measure", "fit", "report"))
    parser.add_argument(
        "--only",
        type=lambda text: tuple(map(int, text.split(","))),
        help="bits and D (and that of values, and whether causal)",
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--part",
        default="0/1",
        help="of the kernels that are to be compiled, or of the kinds that are to be measured, this of so many",
    )
    parser.add_argument("--compiled", type=Path, default=Path("attention_compiled.txt"))
    parser.add_argument("--journal", type=Path, default=_DATA)
    given = parser.parse_args()
    journal = Journal(given.journal)
    if given.what == "compile":
        compile_all(journal, given.only, given.seconds, given.part, given.compiled)
    elif given.what == "measure":
        measure(journal, given.only, given.seconds, given.part, given.compiled)
    else:
        {"fit": fit, "report": report}[given.what](journal)


if __name__ == "__main__":
    main()
