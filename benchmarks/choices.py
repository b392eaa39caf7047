"""What is chosen for attention of few queries, to latents, and for gradients, beside the best of all configs that are offered.

    python benchmarks/choices.py compile decode gradients [--kinds bf16,64] [--seconds 80] [--part 0/4]   # for the disk cache; needs the GPU
    python benchmarks/choices.py measure decode gradients [--kinds bf16,64] [--seconds 60] [--part 0/4]
    python benchmarks/choices.py fit gradients     # writes src/kiln/kernels/impl/attention/bwd/sm90_coefficients.py
    python benchmarks/choices.py fit decode        # writes src/kiln/kernels/impl/attention/fwd/decode_coefficients.py; needs scipy
    python benchmarks/choices.py report decode     # chosen and best configs, shape by shape

Tables: `decode` (32 heads that share 8, D 128; kinds bf16 and e4m3, bf16/64, bf16/1, e4m3/64 in pages of so many rows), `latents` (kinds 16, 8), `gradients` (kinds are D, or D and
that of values). Configs are all that families offer (`kiln.kernels` `REGISTRY.choices`), but those that are expected to take three times as long as what is chosen; of gradients
of the first shape of a kind all, of the others those that were less than a seventh behind there. Of gradients in two passes those configs are taken that differ from the
chosen one in one of the passes. Each line of `benchmarks/data/choices_h200.jsonl` is a config of a shape: microseconds, the spread of its turns. Lines are written at once; a config
that is there is not measured again, but with `--again 6`, for which the chosen config and the best five others that are known take `--turns`, in place of what was known of them. Configs of a shape take turns, with normal data: few queries with an empty L2 cache, gradients in short bursts.
`compile` and `measure` may have several processes (`--part`): they compile at the same time, and measure one after another.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import random
import re
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from kiln import BFloat16, Float8E4M3FN, kernels
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl import attention, mla
from kiln.kernels.impl.attention import AttentionProblem, bwd
from kiln.kernels.impl.attention.bwd import sm90_coefficients, sm90_cost, sm90_hd256_config
from kiln.kernels.impl.attention.bwd.problem import AttentionBackwardProblem
from kiln.kernels.impl.attention.fwd import decode_coefficients, decode_cost
from kiln.kernels.impl.mla.problem import LatentAttention

_H200 = dataclasses.replace(device_of("sm_90a"), name="H200")
_MODEL = Path(sm90_coefficients.__file__)
_DATA = Path(__file__).parent / "data" / "choices_h200.jsonl"
_NEAR, _BEST = 1.15, 12
_ENOUGH = 12
"""Measurements of two passes."""
_LONG = 1500.0
"""Microseconds of a call of which one is enough."""


def _normal(*shape: int, dtype: Any = None) -> Any:
    import torch

    made = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    return made if dtype is None else made.to(dtype)


class Decode:
    """(kind, rows of a page or 0, batch, queries, keys)."""

    family, cold, within = attention.REGISTRY, True, 3.0
    shapes = [
        (kind, page, *shape)
        for kind, page in (("bf16", 0), ("bf16", 64), ("bf16", 1), ("e4m3", 0), ("e4m3", 64))
        for shape in (
            (1, 1, 4096), (1, 4, 4096), (1, 1, 32768), (1, 8, 32768), (1, 16, 32768), (1, 1, 131072), (1, 4, 131072), (1, 8, 131072),
            (1, 16, 131072), (16, 1, 16384), (16, 4, 16384), (16, 8, 16384), (16, 16, 16384), (64, 1, 4096), (64, 4, 4096),
            (64, 8, 4096), (64, 16, 4096),
        )
    ]  # fmt: skip

    @staticmethod
    def kind(shape: Any) -> str:
        return f"{shape[0]}/{shape[1]}" if shape[1] else shape[0]

    @staticmethod
    def problem(shape: Any) -> Any:
        """In pages, queries are of bf16; else they are as keys."""
        kind, page, batch, queries, keys = shape
        dtype = BFloat16 if kind == "bf16" else Float8E4M3FN
        more: dict[str, Any] = {"has_seqused_k": True, "page_size": page, "kv_capacity": keys} if page else {}
        if kind == "e4m3":
            more |= {"out_dtype": BFloat16, "q_dtype": BFloat16 if page else None}
        return AttentionProblem(batch, queries, keys, 32, 8, 128, 128, dtype, None, 0, **more)

    @staticmethod
    def small(shape: Any) -> Any:
        return (*shape[:2], 1, shape[3], 4096)

    @staticmethod
    def kernel(shape: Any, config: Any) -> Any:
        """What is compiled of a config."""
        return shape[:2], _named(
            {**_fields(config), **({"num_splits": min(2, config.num_splits)} if hasattr(config, "num_splits") else {})}
        )

    @staticmethod
    def group(shape: Any) -> Any:
        """Shapes that have their kernels in common."""
        return shape[:2], max(16, 4 * shape[3])

    @staticmethod
    def call(shape: Any) -> Any:
        import torch
        from decode import in_pages

        kind, page, batch, queries, keys = shape
        dtype = None if kind == "bf16" else torch.float8_e4m3fn
        q = _normal(batch, queries, 32, 128, dtype=None if page else dtype)
        k, v = (_normal(batch, keys, 8, 128, dtype=dtype) for _ in range(2))
        out = torch.empty(batch, queries, 32, 128, device="cuda", dtype=torch.bfloat16)
        if not page:
            return functools.partial(kernels.flash_attention, q, k, v, causal=True, out=out)
        table = torch.randperm(batch * keys // page, device="cuda", dtype=torch.int32).view(batch, -1)
        lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        caches = (in_pages(x.view(torch.uint8), page, table).view(x.dtype) for x in (k, v))
        return functools.partial(kernels.paged_attention, q, *caches, table, lengths, out=out)


class Latents:
    """(bits, batch, tokens, heads, latents)."""

    family, cold, within = mla.REGISTRY, True, 3.0
    shapes = [
        (bits, *shape)
        for bits in (16, 8)
        for shape in (
            *((128, tokens, heads, 8192 if heads == 16 else 4096) for tokens in (1, 2, 4) for heads in (16, 32, 64, 128)),
            (64, 1, 64, 8192), (32, 1, 128, 16384), (16, 1, 16, 32768), (1, 1, 16, 131072), (1, 1, 128, 131072),
        )
    ]  # fmt: skip

    @staticmethod
    def kind(shape: Any) -> str:
        return str(shape[0])

    @staticmethod
    def problem(shape: Any) -> Any:
        bits, batch, tokens, heads, keys = shape
        return LatentAttention(batch, tokens, heads, keys, causal=False, stored=None if bits == 16 else Float8E4M3FN)

    @staticmethod
    def small(shape: Any) -> Any:
        return shape

    @staticmethod
    def kernel(shape: Any, config: Any) -> Any:
        if not hasattr(config, "turned"):
            return shape[0], _named(_fields(dataclasses.replace(config, num_splits=min(2, config.num_splits))))
        many = config.shares > 8 * shape[1]
        return shape[0], config.turned and min(32, shape[2] * shape[3]), many, config.early

    @staticmethod
    def group(shape: Any) -> Any:
        return shape[0], shape[2] * shape[3] <= 32

    @staticmethod
    def call(shape: Any) -> Any:
        import torch
        from decode import latents_in_pages

        bits, *rest = shape
        _, q, cache, table, lengths, out = latents_in_pages(*rest)
        cache = cache if bits == 16 else cache.to(torch.float8_e4m3fn)
        return functools.partial(kernels.mla_decode, q, cache, table, lengths, causal=False, out=out)


class Gradients:
    """(elements of a head of queries and of values, batch, length, heads, causal)."""

    family, cold, within = bwd.REGISTRY, False, 3.0
    shapes = [
        (dim, dim_v, 32768 // length, length, 2048 // dim, causal)
        for dim, dim_v in ((128, 128), (256, 256), (64, 64), (192, 192), (192, 128))
        for causal in (False, True)
        for length in (2048, 1024, 4096, 8192, 16384, 512, 256)
    ]

    @staticmethod
    def kind(shape: Any) -> str:
        return str(shape[0]) if shape[0] == shape[1] else f"{shape[0]}x{shape[1]}"

    @staticmethod
    def problem(shape: Any) -> Any:
        dim, dim_v, batch, length, heads, causal = shape
        right = 0 if causal else None
        return AttentionBackwardProblem(
            AttentionProblem(batch, length, length, heads, heads, dim, dim_v, BFloat16, None, right)
        )

    @staticmethod
    def small(shape: Any) -> Any:
        return (*shape[:2], 1, 256, 1, shape[5])

    @staticmethod
    def kernel(shape: Any, config: Any) -> Any:
        return (*shape[:2], shape[5]), _named(_fields(config))

    @staticmethod
    def group(shape: Any) -> Any:
        return (*shape[:2], shape[5])

    @staticmethod
    def call(shape: Any) -> Any:
        dim, dim_v, batch, length, heads, causal = shape
        q, k, v, dout = (_normal(batch, length, heads, d) for d in (dim, dim, dim_v, dim_v))
        out, lse = kernels.flash_attention(q, k, v, causal=causal, return_lse=True)
        to = {name: x.new_empty(x.shape) for name, x in (("dq", q), ("dk", k), ("dv", v))}
        return functools.partial(kernels.flash_attention_backward, dout, q, k, v, out, lse, causal=causal, **to)


TABLES = {"decode": Decode, "latents": Latents, "gradients": Gradients}


def _fields(config: Any) -> dict[str, Any]:
    return {"plan": type(config).__name__, **dataclasses.asdict(config)}


def _named(config: dict[str, Any]) -> str:
    name, *values = config.values()
    return f"{name}{tuple(values)}"


def _config_named(name: str) -> Any:
    kind, _, values = name.partition("(")
    return getattr(kernels, kind)(*ast.literal_eval("(" + values))


class Journal:
    """What was measured: microseconds of configs by tables and shapes. `again`: configs of a shape that are measured again, or 0; `turns`: that configs take, or None."""

    def __init__(self, path: Path, again: int = 0, turns: int | None = None) -> None:
        self.path, self.again, self.turns, self.rows = path, again, turns, {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self.keep(json.loads(line))

    def keep(self, row: dict[str, Any]) -> None:
        self.rows.setdefault((row["table"], tuple(row["shape"])), {})[row["plan"]] = row

    def add(self, row: dict[str, Any]) -> None:
        self.keep(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, table: str, shape: Any) -> dict[str, float]:
        return {config: row["us"] for config, row in self.rows.get((table, tuple(shape)), {}).items()}


def offered(table: Any, shape: Any) -> list[Any]:
    """Configs of a shape, the chosen one first."""
    device, problem = _H200, table.problem(shape)
    chosen = table.family.choose(problem, device)
    configs = [x.config for x in table.family.choices(problem, device) if x.cost < table.within * chosen.cost]
    return list(dict.fromkeys((chosen.config, *(config for config in configs if _one_pass(config, chosen.config)))))


def _one_pass(config: Any, chosen: Any) -> bool:
    """Whether a config of two passes differs from the chosen one in one of them at most."""
    if type(config) is not kernels.Sm90AttentionBackwardHd256Config or type(chosen) is not type(config):
        return True
    keys = (config.tile_m, config.q_stages, config.kv_dims_in_regs) == (
        chosen.tile_m,
        chosen.q_stages,
        chosen.kv_dims_in_regs,
    )
    return (
        keys
        or dataclasses.replace(
            config, tile_m=chosen.tile_m, q_stages=chosen.q_stages, kv_dims_in_regs=chosen.kv_dims_in_regs
        )
        == chosen
    )


def wanted(name: str, journal: Journal, shape: Any) -> list[Any]:
    """Configs that are still to be measured, or again."""
    table = TABLES[name]
    configs, known = offered(table, shape), journal.of(name, shape)
    if journal.again:
        best = (_config_named(x) for x in sorted(known, key=known.__getitem__))
        return list(dict.fromkeys((configs[0], *best)))[: journal.again]
    first = next(x for x in table.shapes if table.kernel(x, configs[0])[0] == table.kernel(shape, configs[0])[0])
    there = journal.of(name, first)
    if name == "gradients" and first != shape and there:
        near = sorted((x for x in there if there[x] <= _NEAR * min(there.values())), key=there.__getitem__)[:_BEST]
        configs = [config for config in configs if config == configs[0] or _named(_fields(config)) in near]
    return [config for config in configs if _named(_fields(config)) not in known]


def _all_kernels(journal: Journal, shapes: list[Any]) -> dict[Any, Any]:
    """Kernels of configs that are to be measured: the table, a small shape and the config."""
    found: dict[Any, Any] = {}
    for name, shape in shapes:
        table = TABLES[name]
        for config in wanted(name, journal, shape):
            found.setdefault((name, table.kernel(shape, config)), (table, table.small(shape), config))
    return found


def _shapes(names: list[str], kinds: Any) -> list[Any]:
    return [(n, x) for n in names for x in TABLES[n].shapes if not kinds or TABLES[n].kind(x) in kinds]


def compile_all(names: list[str], journal: Journal, kinds: Any, seconds: float, part: str) -> None:
    """Kernels of one of several processes."""
    end, (number, count) = time.perf_counter() + seconds, map(int, part.split("/"))
    found = _all_kernels(journal, _shapes(names, kinds))
    own = dict(list(found.items())[number::count])
    print(f"{part}: {len(_compile(own, end))} of {len(own)} kernels", flush=True)


def _compile(kernels: dict[Any, Any], end: float) -> set[Any]:
    """Those that work, compiled or from the disk cache, before time is up."""
    done: set[Any] = set()
    for name, (table, shape, config) in kernels.items():
        if time.perf_counter() > end:
            break
        try:
            table.call(shape)(config=config)
            done.add(name)
        except Exception as wrong:  # told, and not measured
            print(f"{shape} {config}: {str(wrong)[:300]}", flush=True)
    return done


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Any:
    """While open, no other process measures (or, if it is shared, none does)."""
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def measure(names: list[str], journal: Journal, kinds: Any, seconds: float, part: str) -> None:
    """Configs of one of several processes."""
    import torch

    end, lock, (number, count) = (
        time.perf_counter() + seconds,
        journal.path.with_suffix(".lock"),
        map(int, part.split("/")),
    )
    shapes = _shapes(names, kinds)
    groups = list(dict.fromkeys((name, TABLES[name].group(shape)) for name, shape in shapes))[number::count]
    shapes = [(name, shape) for name, shape in shapes if (name, TABLES[name].group(shape)) in groups]
    with _locked(lock, fcntl.LOCK_SH):
        found = _all_kernels(journal, shapes)
        there = _compile(found, end - 0.6 * seconds)
        print(f"{part}: {len(there)} of {len(found)} kernels", flush=True)
    for name, shape in shapes:
        with _locked(lock, fcntl.LOCK_EX):
            if time.perf_counter() > end:
                print(f"{part}: time is up: the same command goes on from here", flush=True)
                return
            configs = [x for x in wanted(name, journal, shape) if (name, TABLES[name].kernel(shape, x)) in there]
            if configs:
                _measure_shape(name, journal, shape, configs)
        torch.cuda.empty_cache()


def _measure_shape(name: str, journal: Journal, shape: Any, configs: list[Any]) -> None:
    table = TABLES[name]
    call, calls, right = table.call(shape), {}, None
    for config in configs:
        one = functools.partial(call, config=config)
        try:
            found = one()
        except Exception as wrong:
            print(f"{shape} {config}: {str(wrong)[:200]}", flush=True)
            continue
        result = [x.float() for x in (found if isinstance(found, tuple) else (found,))]
        right = right or [x.clone() for x in result]
        far = max(((x - y).abs().mean() / y.abs().mean()).item() for x, y in zip(result, right, strict=True))
        if not far < 4e-2:  # of 8 bits, some round weights, too
            print(f"{shape} {config}: WRONG, {far}", flush=True)
            continue
        calls[_named(_fields(config))] = one
    take_turns = _cold_in_turns if table.cold else _in_turns
    times = take_turns(calls, **({"turns": journal.turns} if journal.turns else {}))
    for config, own in times.items():
        us = statistics.median(own)
        row = {"table": name, "shape": shape, "plan": config, "us": round(us, 2)}
        journal.add({**row, "spread": round((max(own) - min(own)) / us, 3)})
    known = journal.of(name, shape)
    best, chosen = min(known, key=known.__getitem__), _named(_fields(offered(table, shape)[0]))
    us = known.get(chosen, 0.0)
    print(f"{shape}: {len(times)} configs, best {best} {known[best]:.1f} us, chosen {chosen} {us:.1f}", flush=True)


def _cold_in_turns(calls: dict[str, Any], turns: int = 4, count: int = 3) -> dict[str, list[float]]:
    """Microseconds of calls with an empty L2 cache, in another order each time."""
    import torch

    from kiln.measure.timers import GpuTimer

    timer = GpuTimer.of_current_device()
    stream = timer.stream()
    times: dict[str, list[float]] = {name: [] for name in calls}
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for turn in range(turns):
        for name in random.Random(turn).sample(list(calls), len(calls)):
            torch.cuda._sleep(500_000)  # until all calls are under way
            for start, end in events:
                timer.flush(stream)
                start.record()
                calls[name]()
                end.record()
            torch.cuda.synchronize()
            if turn:
                times[name] += [1e3 * start.elapsed_time(end) for start, end in events]
    return times


def _in_turns(calls: dict[str, Any], turns: int = 3) -> dict[str, list[float]]:
    """Microseconds of calls, in another order each time; after each as long a pause as keeps the power limit away."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in random.Random(turn).sample(list(calls), len(calls)):
            count = 1 if times[name] and times[name][0] > _LONG else 2
            torch.cuda._sleep(600_000)  # until all calls are under way
            start.record()
            for _ in range(count):
                calls[name]()
            end.record()
            torch.cuda.synchronize()
            took = start.elapsed_time(end) / count
            times[name].append(took * 1e3)
            time.sleep(min(0.02, 1e-3 * took * count))
    return times


def report(name: str, journal: Journal) -> None:
    """What the config that is chosen takes, beside the best that was measured."""
    table, worst, device = TABLES[name], 0.0, _H200
    print("| shape | configs | chosen | us | model | best | us | behind it |\n" + "|---" * 8 + "|")
    for shape in table.shapes:
        times = journal.of(name, shape)
        if not times:
            continue
        chosen = table.family.choose(table.problem(shape), device)
        own, best = _named(_fields(chosen.config)), min(times, key=times.__getitem__)
        cells = [", ".join(map(str, shape)), str(len(times)), own]
        if own in times:
            behind = times[own] / times[best] - 1
            worst = max(worst, behind)
            cells += [f"{times[own]:.1f}", f"{chosen.cost:.1f}", best, f"{times[best]:.1f}", f"{behind:.1%}"]
        else:
            cells += ["not measured", f"{chosen.cost:.1f}", best, f"{times[best]:.1f}", ""]
        print(f"| {' | '.join(cells)} |")
    print(f"\nAt most {worst:.1%} behind.")


# --- the model of few queries ------------------------------------------------------------------------------------------


def fit_few(journal: Journal) -> None:
    """All figures of configs that are chosen among: those for which relative errors are least; configs that are near the best of their shape count most."""
    from scipy.optimize import least_squares

    rows: list[tuple[Any, Any, float, float, float]] = []
    configs = {_tile_fields(f): n for n, f in enumerate(decode_coefficients.FIGURES)}
    for shape in Decode.shapes:
        known = journal.of("decode", shape)
        for name, us in known.items():
            config = _config_named(name)
            if isinstance(config, kernels.Sm80AttentionConfig) and _tile_fields_of(shape, config) in configs:
                near = us / min(known.values())
                weight = 2.0 if near < 1.08 else 1.0 if near < 1.35 else 0.3
                rows.append((Decode.problem(shape), config, us, weight, _PAGES[shape[1]]))

    def figures(values: Any) -> dict[str, Any]:
        """As `few_model` has them. All are positive."""
        *each, uneven, launch, parts, part = np.exp(values).tolist()
        times = iter(each)
        made = [
            f._replace(issue=next(times), alone=next(times), begin=next(times)) for f in decode_coefficients.FIGURES
        ]
        return {"FIGURES": tuple(made), "UNEVEN": min(1.0, uneven), "LAUNCH": launch, "PARTS": parts, "PART": part}

    def errors(values: Any) -> list[float]:
        for name, value in figures(values).items():
            setattr(decode_cost, name, value)
        return [w * math.log(pages * decode_cost.expected(p, config, _H200) / us) for p, config, us, w, pages in rows]

    first = [x for f in decode_coefficients.FIGURES for x in (f.issue, f.alone, f.begin)]
    first += [
        decode_coefficients.UNEVEN,
        decode_coefficients.LAUNCH,
        decode_coefficients.PARTS,
        decode_coefficients.PART,
    ]
    found = least_squares(errors, np.log(first), max_nfev=60, loss="soft_l1", f_scale=0.15)
    made = figures(found.x)
    lines = "".join(
        f"    Figures({', '.join(map(str, f[:5]))}, {', '.join(f'{x:.3g}' for x in f[5:])}),\n"
        for f in made.pop("FIGURES")
    )
    text = Path(decode_coefficients.__file__).read_text()
    changed = {"FIGURES: ": f"FIGURES: tuple[Figures, ...] = (\n{lines})\n"}
    changed |= {f"{name} = ": f"{name} = {value:.3g}\n" for name, value in made.items()}
    Path(decode_coefficients.__file__).write_text(_changed(text, changed))
    print(f"{len(rows)} measurements, {np.mean(np.abs(errors(found.x))):.3f} off on average")


_PAGES = {0: 1.0, 64: 1.03, 1: 1.07}
"""What pages of so many rows take more, whatever the config."""


def _tile_fields(figures: Any) -> tuple[int, ...]:
    return figures.bits, figures.tile_m, figures.tile_n, figures.warps, figures.blocks


def _tile_fields_of(shape: Any, config: Any) -> tuple[int, ...]:
    return 16 if shape[0] == "bf16" else 8, config.tile_m, config.tile_n, config.warps, config.ctas_per_sm


def _changed(text: str, values: dict[str, str]) -> str:
    """A module with other values of some of its names, each of which has a line of its own and a text after it, or another name."""
    for name, value in values.items():
        start = text.index("\n" + name) + 1
        ends = [found.start() for found in re.finditer(r'^(?:"""|[A-Z_]+ = |\Z)', text, re.M) if found.start() > start]
        text = text[:start] + value + text[ends[0] :]
    return text


# --- the model of gradients ----------------------------------------------------------------------------------------------


def fit(journal: Journal) -> None:
    """Microseconds of a step and of a block of keys for each config that is chosen among, and what steps take of the busiest unit where there are two passes: those for
    which relative errors are least. The latter only if there are shapes enough."""
    device = _H200
    made: dict[int, list[sm90_coefficients.Figures]] = {}
    for dim, known in sm90_coefficients.FIGURES.items():
        for fields in (figures.config for figures in known):
            config, rows = kernels.Sm90AttentionBackwardConfig(*fields), []
            for shape in Gradients.shapes:
                us = journal.of("gradients", shape).get(_named(_fields(config))) if shape[0] == dim else None
                if us is not None:
                    rounds, steps, rest = sm90_cost.units(Gradients.problem(shape), config, device)
                    rows.append((rounds * steps / us, rounds / us, 1 - rest / us))
            step, block = _least_squares(np.array(rows))
            made.setdefault(dim, []).append(sm90_coefficients.Figures(fields, round(step, 3), round(block, 1)))
    rows = []
    for shape in Gradients.shapes:
        for name, us in journal.of("gradients", shape).items() if shape[0] > 128 else ():
            if name.startswith("HopperDeep"):
                config = _config_named(name)
                passes, rest = sm90_hd256_config.units(Gradients.problem(shape), config, device)
                cells = [rounds * steps / us for rounds, steps in passes]
                rows.append((*cells, sum(rounds for rounds, _ in passes) / us, 1 - rest / us))
    deep = (
        _least_squares(np.array(rows))
        if len(rows) >= _ENOUGH
        else (*sm90_coefficients.DEEP_OVER, sm90_coefficients.DEEP_BLOCK)
    )
    text = _MODEL.read_text()
    figures = "".join(
        f"    {key}: (\n"
        + "".join(f"        Figures({tuple(f.config)}, {f.step}, {f.block}),\n" for f in value)
        + "    ),\n"
        for key, value in sorted(made.items())
    )
    changed = {
        "FIGURES: ": f"FIGURES: dict[int, tuple[Figures, ...]] = {{\n{figures}}}\n",
        "DEEP_OVER = ": f"DEEP_OVER = {deep[0]:.3f}, {deep[1]:.3f}\n",
        "DEEP_BLOCK = ": f"DEEP_BLOCK = {deep[2]:.1f}\n",
    }
    _MODEL.write_text(_changed(text, changed))


def _least_squares(rows: Any) -> list[float]:
    """Numbers, none of them negative, with which the first columns make the last."""
    columns = list(range(rows.shape[1] - 1))
    found = np.zeros(len(columns))
    while columns:
        found[:] = 0.0
        found[columns] = np.linalg.lstsq(rows[:, columns], rows[:, -1], rcond=None)[0]
        if (found >= 0).all():
            break
        columns.remove(int(found.argmin()))
    return found.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compile", "measure", "fit", "report"))
    parser.add_argument("tables", choices=TABLES, nargs="+")
    parser.add_argument("--kinds", type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--part", default="0/1", help="of kernels, or of shapes, this of so many")
    parser.add_argument("--again", type=int, default=0, help="so many configs of each shape, measured before or not")
    parser.add_argument("--turns", type=int, help="that configs of a shape take")
    parser.add_argument("--journal", type=Path, default=_DATA)
    parser.add_argument(
        "--within", type=float, default=3.0, help="configs expected to take so many times as long as what is chosen"
    )
    given = parser.parse_args()
    Decode.within = Latents.within = Gradients.within = given.within
    journal = Journal(given.journal, given.again, given.turns)
    if given.what == "fit":
        for name in given.tables:
            {"decode": fit_few, "gradients": fit}[name](journal)
    elif given.what == "report":
        for name in given.tables:
            report(name, journal)
    else:
        run = {"compile": compile_all, "measure": measure}[given.what]
        run(given.tables, journal, given.kinds, given.seconds, given.part)


if __name__ == "__main__":
    main()
