"""Measure configs of attention and MLA on Hopper, and fit the cost models to the measurements.

Tables: `attention` (kinds: bits and head dimension), `decode` (32 heads, 8 of K and V, head_dim 128; kinds bf16 and
e4m3, bf16/64, bf16/1, e4m3/64: dtype and page size), `mla` (kinds 16, 8: bits of the cache), `backward` (kinds: the
head dimension, or that and V's). Configs are all that the registry offers, but for those that are expected to take
three times as long as the chosen one. Of `attention` and `backward` the first shape of a kind is measured with all of
them, the others with those that were less than a seventh behind there; of the backward pass for head_dim over 128,
configs that differ from the chosen one in one kernel.

Each line of `benchmarks/data/attention_h200.jsonl` and `choices_h200.jsonl` is a config of a shape: microseconds, the
spread of its turns. Lines are written at once, and a config that is there is not measured again, but with `--again 6`:
then the chosen config and the best five others that are known take `--turns`. Configs of a shape take turns, with
normal data: decode and MLA with an empty L2 cache, the others in short bursts, forward beside cuDNN. `compile` and
`measure` may have several processes (`--part`): they compile at the same time, and measure one after another.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import fcntl
import functools
import itertools
import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from recorded import DATA

from kiln import BFloat16, Float8E4M3FN, Float16, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl import attention, mla
from kiln.kernels.impl.attention import AttentionProblem, bwd
from kiln.kernels.impl.attention.bwd import sm90_cost as backward_cost
from kiln.kernels.impl.attention.bwd import sm90_hd256_config
from kiln.kernels.impl.attention.bwd.problem import AttentionBackwardProblem
from kiln.kernels.impl.attention.fwd import decode_cost, sm90_cost
from kiln.kernels.impl.mla.problem import MlaProblem

_H200 = dataclasses.replace(device_of("sm_90a"), name="H200")
_NEAR, _BEST = 1.15, 12
_ENOUGH = 12
"""Measurements of two passes."""
_LONG = 1500.0
"""Microseconds of a call of which one is enough."""
_RIVAL = "cuDNN"
_SPEEDS, _TILES = np.linspace(4.0, 13.0, 361), np.linspace(0.0, 8.0, 81)
"""TFLOP/s of an SM and microseconds of a tile that are tried for attention forward."""
_MOST_CONFIGS = 6
"""Configs of attention forward for one head dimension, at most, that are chosen among."""


def _normal(*shape: int, dtype: Any = None) -> Any:
    import torch

    made = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    return made if dtype is None else made.to(dtype)


_TOKENS = 32768
_BOTH = (False, True)


class Forward:
    """(bits, batch, length, heads, heads of K and V, head dimension or that of Q and of V, causal)."""

    family, cold, within = attention.REGISTRY, False, 3.0
    shapes = [
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

    @staticmethod
    def dims(shape: Any) -> tuple[int, int]:
        """Return the head dimension of Q and K, and that of V."""
        return (shape[5], shape[5]) if isinstance(shape[5], int) else tuple(shape[5])

    @staticmethod
    def kind(shape: Any) -> str:
        return f"{shape[0]}/{'x'.join(map(str, dict.fromkeys(Forward.dims(shape))))}"

    @staticmethod
    def problem(shape: Any) -> Any:
        bits, batch, length, heads, heads_k, _, causal = shape
        dtype, right = Float16 if bits == 16 else Float8E4M3FN, 0 if causal else None
        return AttentionProblem(batch, length, length, heads, heads_k, *Forward.dims(shape), dtype, window_right=right)

    @staticmethod
    def config(fields: Any, causal: bool) -> Any:
        warpgroups, tile_n, stages, pingpong, q_in_regs = fields
        options = {"pingpong": pingpong, "q_in_regs": q_in_regs, "dynamic_scheduler": causal}
        return kernels.Sm90AttentionConfig(warpgroups, tile_n, stages, **options)

    @staticmethod
    def fields(config: Any) -> tuple[Any, ...]:
        return config.consumer_warpgroups, config.tile_n, config.kv_stages, config.pingpong, config.q_in_regs

    @staticmethod
    def offered(shape: Any) -> list[Any]:
        """Return the configs of a shape: those that work, with steps of at least two thirds of the keys that fit.

        Three consumer warpgroups have three stages where these fit, two have two, and only two keep Q in registers: for
        head_dim 128 all configs were measured, and the others were behind for every shape.
        """
        found = []
        for warpgroups, q_in_regs in ((3, False), (2, False), (2, True)):
            working: dict[tuple[int, bool], Any] = {}
            for tile_n, stages, pingpong in itertools.product(
                range(32, 257, 256 // shape[0]), (2, 3)[: warpgroups - 1], _BOTH
            ):
                config = Forward.config((warpgroups, tile_n, stages, pingpong, q_in_regs), shape[6])
                with contextlib.suppress(DSLUserCodeTypeError):
                    config.check(*Forward.dims(shape), _H200.smem, shape[0])
                    working[tile_n, pingpong] = config
            most = max((tile_n for tile_n, _ in working), default=0)
            found += [config for config in working.values() if 3 * config.tile_n >= 2 * most]
        return found

    @staticmethod
    def small(shape: Any) -> Any:
        return (shape[0], 256, 64, 1, 1, *shape[5:])

    @staticmethod
    def kernel(shape: Any, config: Any) -> Any:
        return (shape[0], *Forward.dims(shape), shape[6]), _named(_fields(config))

    @staticmethod
    def group(shape: Any) -> Any:
        return (shape[0], *Forward.dims(shape), shape[6])

    @staticmethod
    def arrays(shape: Any) -> list[Any]:
        import torch

        bits, batch, length, heads, heads_k, *_ = shape
        dim, dim_v = Forward.dims(shape)
        modes = ((heads, dim), (heads_k, dim), (heads_k, dim_v))
        made = (torch.randn(batch, length, *mode, device="cuda", dtype=torch.float16) for mode in modes)
        return [x if bits == 16 else x.to(torch.float8_e4m3fn) for x in made]

    @staticmethod
    def call(shape: Any) -> Any:
        return functools.partial(kernels.flash_attention, *Forward.arrays(shape), causal=shape[6])

    @staticmethod
    def rival(shape: Any) -> Any:
        """Return a call of cuDNN's attention; None: it does not take such heads."""
        from attention import sdpa
        from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

        if shape[0] != 16:
            return None
        theirs = sdpa(*Forward.arrays(shape), shape[6])

        def cudnn() -> Any:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                return theirs()

        try:
            cudnn()
        except RuntimeError:
            return None
        return cudnn


class Decode:
    """(kind, rows of a page or 0, batch, queries, keys)."""

    family, cold, within = attention.REGISTRY, True, 3.0
    shapes = [
        (kind, page, *shape)
        for kind, page in (("bf16", 0), ("bf16", 64), ("bf16", 1), ("e4m3", 0), ("e4m3", 64))
        for shape in (
            (1, 1, 4096),
            (1, 4, 4096),
            (1, 1, 32768),
            (1, 8, 32768),
            (1, 16, 32768),
            (1, 1, 131072),
            (1, 4, 131072),
            (1, 8, 131072),
            (1, 16, 131072),
            (16, 1, 16384),
            (16, 4, 16384),
            (16, 8, 16384),
            (16, 16, 16384),
            (64, 1, 4096),
            (64, 4, 4096),
            (64, 8, 4096),
            (64, 16, 4096),
        )
    ]

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


class Mla:
    """MLA decode: bits of the KV cache, batch, seqlen_q, heads, seqlen_k."""

    family, cold, within = mla.REGISTRY, True, 3.0
    shapes = [
        (bits, *shape)
        for bits in (16, 8)
        for shape in (
            *(
                (128, tokens, heads, 8192 if heads == 16 else 4096)
                for tokens in (1, 2, 4)
                for heads in (16, 32, 64, 128)
            ),
            (64, 1, 64, 8192),
            (32, 1, 128, 16384),
            (16, 1, 16, 32768),
            (1, 1, 16, 131072),
            (1, 1, 128, 131072),
        )
    ]

    @staticmethod
    def kind(shape: Any) -> str:
        return str(shape[0])

    @staticmethod
    def problem(shape: Any) -> Any:
        bits, batch, tokens, heads, keys = shape
        return MlaProblem(batch, tokens, heads, keys, causal=False, cache_dtype=None if bits == 16 else Float8E4M3FN)

    @staticmethod
    def small(shape: Any) -> Any:
        return shape

    @staticmethod
    def kernel(shape: Any, config: Any) -> Any:
        if not hasattr(config, "turned"):
            return shape[0], _named(_fields(dataclasses.replace(config, num_splits=min(2, config.num_splits))))
        many = config.num_splits > 8 * shape[1]
        return shape[0], config.swap_ab and min(32, shape[2] * shape[3]), many, config.early

    @staticmethod
    def group(shape: Any) -> Any:
        return shape[0], shape[2] * shape[3] <= 32

    @staticmethod
    def call(shape: Any) -> Any:
        import torch
        from decode import mla_inputs

        bits, *rest = shape
        _, q, cache, table, lengths, out = mla_inputs(*rest)
        cache = cache if bits == 16 else cache.to(torch.float8_e4m3fn)
        return functools.partial(kernels.mla_decode, q, cache, table, lengths, causal=False, out=out)


class Backward:
    """Attention backward: head_dim, head_dim_v, batch, seqlen, heads, causal."""

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


TABLES = {"attention": Forward, "decode": Decode, "mla": Mla, "backward": Backward}


def _fields(config: Any) -> dict[str, Any]:
    return {"plan": type(config).__name__, **dataclasses.asdict(config)}


def _named(config: dict[str, Any]) -> str:
    name, *values = config.values()
    return f"{name}{tuple(values)}"


def _config_named(name: str) -> Any:
    kind, _, values = name.partition("(")
    return getattr(kernels, kind)(*ast.literal_eval("(" + values))


class Journal:
    """What was measured: microseconds of configs by tables and shapes. `again`: configs of a shape that are measured
    again, or 0; `turns`: that configs take, or None."""

    def __init__(self, path: Path, again: int = 0, turns: int | None = None) -> None:
        self.path, self.again, self.turns, self.rows = path, again, turns, {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self.keep(json.loads(line))

    def keep(self, row: dict[str, Any]) -> None:
        name = _named(_fields(_config_named(row["plan"])))  # fields that older rows do not have take their defaults
        self.rows.setdefault((row["table"], tuple(row["shape"])), {})[name] = row

    def add(self, row: dict[str, Any]) -> None:
        self.keep(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, table: str, shape: Any) -> dict[str, float]:
        return {config: row["us"] for config, row in self.rows.get((table, tuple(shape)), {}).items()}


class ForwardJournal(Journal):
    """The same of attention forward, whose rows have five fields of a config, and cuDNN's microseconds in the same
    run."""

    def keep(self, row: dict[str, Any]) -> None:
        shape = tuple(tuple(x) if isinstance(x, list) else x for x in row["shape"])
        name = _named(_fields(Forward.config(row["plan"], shape[6])))
        self.rows.setdefault(("attention", shape), {})[name] = row

    def add(self, row: dict[str, Any]) -> None:
        fields = Forward.fields(_config_named(row["plan"]))
        kept = {"shape": row["shape"], "plan": fields, **{name: row[name] for name in ("us", "spread")}}
        super().add({**kept, "cudnn_us": row.get("rival_us", 0.0)})

    def of(self, table: str, shape: Any) -> dict[str, float]:
        """Return microseconds of configs, as if measured beside the median of cuDNN's."""
        rows = self.rows.get((table, tuple(shape)), {})
        usual = statistics.median(row["cudnn_us"] for row in rows.values()) if rows else 0.0
        return {name: row["us"] * (usual / row["cudnn_us"] if row["cudnn_us"] else 1.0) for name, row in rows.items()}


def offered(table: Any, shape: Any) -> list[Any]:
    """Configs of a shape, the chosen one first."""
    device, problem = _H200, table.problem(shape)
    chosen = table.family.choose(problem, device)
    if table is Forward:
        return list(dict.fromkeys((chosen.config, *Forward.offered(shape))))
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
    if name in ("attention", "backward") and first != shape and there:
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
    rival = table.rival(shape) if table is Forward else None
    if rival is not None:
        calls[_RIVAL] = rival
    take_turns = _cold_in_turns if table.cold else _in_turns
    times = take_turns(calls, **({"turns": journal.turns} if journal.turns else {}))
    rival_us = statistics.median(times.pop(_RIVAL)) if rival is not None else 0.0
    for config, own in times.items():
        us = statistics.median(own)
        row = {"table": name, "shape": shape, "plan": config, "us": round(us, 2)}
        spread = {"spread": round((max(own) - min(own)) / us, 3)}
        journal.add({**row, **spread, **({"rival_us": round(rival_us, 1)} if rival is not None else {})})
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


# --- fits ------------------------------------------------------------------------------------------------------------


def fit_attention(journal: Journal) -> dict[str, Any]:
    """Return the rate and the time of a tile of each config: the pair for which relative errors are least.

    Configs are kept that are needed for all shapes to have one near the best, and those that are best most often.
    """
    made: dict[Any, list[sm90_cost.MeasuredConfig]] = {}
    for key in dict.fromkeys((shape[0], *Forward.dims(shape)) for shape in Forward.shapes):
        times = {
            shape: {Forward.fields(_config_named(name)): us for name, us in journal.of("attention", shape).items()}
            for shape in Forward.shapes
            if (shape[0], *Forward.dims(shape)) == key
        }
        times = {shape: own for shape, own in times.items() if own}
        if len(times) < 2:  # one shape alone does not tell both
            continue
        for fields in _kept(times):
            tflops, tile_us = _rate_and_tile(times, fields)
            made.setdefault(key, []).append(sm90_cost.MeasuredConfig(*key, *fields, tflops, tile_us))
    configs = sm90_cost.Sm90Coefficients.on(_H200).configs
    for known in configs:
        key = known.bits, known.head_dim, known.head_dim_v
        if all(known not in own for own in made.values()) and key not in made:
            made[key] = [x for x in configs if (x.bits, x.head_dim, x.head_dim_v) == key]
    rows = [x for _, own in sorted(made.items(), key=lambda item: (-item[0][0], *item[0][1:])) for x in own]
    return {"configs": [dataclasses.asdict(x) for x in rows]}


def _rate_and_tile(times: dict[Any, dict[Any, float]], fields: Any) -> tuple[float, float]:
    """Return TFLOP/s and microseconds of a tile of a config of attention forward."""
    tflops, tile = np.meshgrid(_SPEEDS, _TILES, indexing="ij")
    errors = np.zeros(tflops.shape)
    for shape, own in times.items():
        if fields in own:
            config, problem = Forward.config(fields, shape[6]), Forward.problem(shape)
            mflops, tiles = sm90_cost.units(problem, config, _H200)
            launch = sm90_cost.roofline(problem, config, _H200).phases["launch"]
            model = mflops / tflops + tiles * tile + launch
            errors += (model / own[fields] - 1) ** 2
    at = np.unravel_index(errors.argmin(), errors.shape)
    return round(float(tflops[at]), 3), round(float(tile[at]), 2)


def _kept(times: dict[Any, dict[Any, float]]) -> list[Any]:
    """Return configs to choose from: one after the other that which gains most, of those that were measured for all
    shapes."""
    common = [x for x in next(iter(times.values())) if all(x in own for own in times.values())]
    kept: list[Any] = []
    while len(kept) < _MOST_CONFIGS:

        def gained(fields: Any, kept: list[Any] = kept) -> float:
            return -sum(min(own[x] for x in (*kept, fields)) / min(own.values()) for own in times.values())

        best = max((x for x in common if x not in kept), key=gained, default=None)
        if best is None or (kept and gained(best) - gained(kept[-1], kept[:-1]) < 2e-3):
            break
        kept.append(best)
    return kept


_PAGES = {0: 1.0, 64: 1.03, 1: 1.07}
"""Extra time of a page size, whatever the config."""
_DECODE = ("uneven_rate", "launch_us", "combine_us")
"""Coefficients of the decode model that are fitted beside those of configs."""


def fit_decode(journal: Journal) -> dict[str, Any]:
    """Return the coefficients of the decode model for which relative errors are least; configs near the best count
    most."""
    from scipy.optimize import least_squares

    begun = decode_cost.DecodeCoefficients.on(_H200)
    tiles = [(x.bits, x.tile_m, x.tile_n, x.warps, x.max_ctas_per_sm) for x in begun.configs]
    rows: list[tuple[Any, Any, float, float, float]] = []
    for shape in Decode.shapes:
        known = journal.of("decode", shape)
        for name, us in known.items():
            config, bits = _config_named(name), 16 if shape[0] == "bf16" else 8
            if not isinstance(config, kernels.Sm80AttentionConfig):
                continue
            if (bits, config.tile_m, config.tile_n, config.warps, config.ctas_per_sm) in tiles:
                near = us / min(known.values())
                weight = 2.0 if near < 1.08 else 1.0 if near < 1.35 else 0.3
                rows.append((Decode.problem(shape), config, us, weight, _PAGES[shape[1]]))

    def coefficients(values: Any) -> decode_cost.DecodeCoefficients:
        """Return the figures of the model. All are positive."""
        *each, uneven, launch, combine = np.exp(values).tolist()
        times = iter(each)
        configs = tuple(
            dataclasses.replace(x, issue_us=next(times), latency_us=next(times), cta_us=next(times))
            for x in begun.configs
        )
        return dataclasses.replace(
            begun, configs=configs, **dict(zip(_DECODE, (min(1.0, uneven), launch, combine), strict=True))
        )

    def errors(values: Any) -> list[float]:
        c = coefficients(values)
        return [
            w * math.log(pages * decode_cost.roofline(p, config, _H200, c).us / us) for p, config, us, w, pages in rows
        ]

    first = [x for one in begun.configs for x in (one.issue_us, one.latency_us, one.cta_us)]
    first += [getattr(begun, name) for name in _DECODE]
    solved = least_squares(errors, np.log(first), max_nfev=60, loss="soft_l1", f_scale=0.15)
    print(f"{len(rows)} measurements, {np.mean(np.abs(errors(solved.x))):.3f} off on average")
    found = coefficients(solved.x)
    configs = [{k: _rounded(v) for k, v in dataclasses.asdict(x).items()} for x in found.configs]
    return {**{name: _rounded(getattr(found, name)) for name in _DECODE}, "configs": configs}


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


def fit_backward(journal: Journal) -> dict[str, Any]:
    """Return the microseconds of a step and of a block of keys for each config that is chosen among, and for head_dim
    over 128 the factors of steps beside their busiest unit: those for which relative errors are least. The latter only
    if there are shapes enough."""
    made: list[dict[str, Any]] = []
    for known in backward_cost.BackwardCoefficients.on(_H200).configs:
        rows = []
        for shape in Backward.shapes:
            us = journal.of("backward", shape).get(_named(_fields(known.config)))
            if us is not None and shape[0] == known.head_dim:
                rounds, steps, rest = backward_cost.units(Backward.problem(shape), known.config, _H200)
                rows.append((rounds * steps / us, rounds / us, 1 - rest / us))
        step, cta = _least_squares(np.array(rows))
        made.append({**dataclasses.asdict(known), "step_us": round(step, 3), "cta_us": round(cta, 1)})
    rows = []
    for shape in Backward.shapes:
        for name, us in journal.of("backward", shape).items() if shape[0] > 128 else ():
            config = _config_named(name)
            if isinstance(config, kernels.Sm90AttentionBackwardHd256Config):
                passes, rest = sm90_hd256_config.units(Backward.problem(shape), config, _H200)
                cells = [rounds * steps / us for rounds, steps in passes]
                rows.append((*cells, sum(rounds for rounds, _ in passes) / us, 1 - rest / us))
    found: dict[str, Any] = {}
    if len(rows) >= _ENOUGH:
        dkv, dq, cta = _least_squares(np.array(rows))
        found = {"dkv_hd256_slowdown": round(dkv, 3), "dq_hd256_slowdown": round(dq, 3), "hd256_cta_us": round(cta, 1)}
    return {**found, "configs": made}


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


FITS = {
    "attention": ("attention_sm90", fit_attention),
    "decode": ("attention_decode", fit_decode),
    "backward": ("attention_backward_sm90", fit_backward),
}
"""Models of the tuned table, and what fits them. MLA has no fitted coefficients."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--within", type=float, help="configs expected to take up to WITHIN times as long as the chosen one"
    )
    parser.add_argument("--again", type=int, help="AGAIN configs of each shape, measured before or not")
    parser.add_argument("--turns", type=int, help="that configs of a shape take")
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="of shapes, with commas")
    parser.add_argument("--part", default="0/1", help="I/N: part I of N of the kernels or shapes")


def run(action: str, name: str, asked: argparse.Namespace) -> dict[str, Any] | None:
    """Do what the command line says; return coefficients that were fitted."""
    kind, file = (ForwardJournal, "attention") if name == "attention" else (Journal, "choices")
    journal = kind(asked.journal or DATA / f"{file}_h200.jsonl", asked.again or 0, asked.turns)
    TABLES[name].within = asked.within or 3.0
    if action == "fit":
        return FITS[name][1](journal)
    if action == "report":
        report(name, journal)
    elif action == "compile":
        compile_all([name], journal, asked.kinds, asked.seconds, asked.part)
    else:
        measure([name], journal, asked.kinds, asked.seconds, asked.part)
    return None
