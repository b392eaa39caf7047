"""The measurements of `benchmarks/data`: microseconds of configs, by family and problem.

A config is a tuple of its class and of the values of its fields, as they were called when the measurements were made
(`FIELDS`). This module imports nothing of Kiln, so that it reads the same for every revision.
"""

from __future__ import annotations

import ast
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).resolve().parent / "data"
FIELDS = {
    "Sm80GemmConfig": ("tile_shape_mnk", "warp_layout_mn", "stages", "split_k"),
    "Sm90GemmConfig": (
        "tile_shape_mnk", "cluster_shape_mn", "ab_stages", "raster_group", "pingpong", "split_k_cluster", "swap_ab",
        "split_k", "epi_stages", "transpose_out",
    ),
    "Sm80AttentionConfig": ("tile_m", "tile_n", "warps", "ctas_per_sm", "num_splits", "pack_gqa"),
    "Sm90AttentionConfig": (
        "consumer_warpgroups", "tile_n", "kv_stages", "persistent", "pingpong", "lazy_rescale", "q_in_regs", "pack_gqa",
        "dynamic_scheduler",
    ),
    "Sm90MlaConfig": ("num_splits", "swap_ab", "prefetch"),
    "Sm90AttentionBackwardConfig": ("tile_m", "q_stages", "operands_in_regs"),
    "Sm90AttentionBackwardHd256Config": (
        "tile_m", "q_stages", "kv_dims_in_regs", "tile_n", "k_stages", "v_stages", "q_dims_in_regs",
    ),
}  # fmt: skip
"""Fields of the recorded configs, in order."""
COMPARED = {
    ("attention", "Sm90AttentionConfig"): ("consumer_warpgroups", "tile_n", "kv_stages", "pingpong", "q_in_regs")
}
"""Where not all fields of a config were recorded, by family and class: those that were."""


def fields_of(family: str, kind: str) -> tuple[str, ...]:
    """Return the fields that tell the recorded configs of a family apart."""
    return COMPARED[family, kind] if (family, kind) in COMPARED else FIELDS[kind]


FORTY = ("square", "layer", "few rows", "long K", "thin N", "odd", "layout")
"""Kinds of the forty GEMMs that configs were first chosen for."""
_TURNS = 3
"""Turns of a measurement that does not say how many it took."""


class Config(NamedTuple):
    """A recorded config: its class and the values of the fields that `fields_of` lists."""

    kind: str
    values: tuple[Any, ...]


class Gemm(NamedTuple):
    """A GEMM of 16-bit elements: `layout` says for A and B whether rows (N) or columns (T) are contiguous."""

    dtype: str
    layout: str
    m: int
    n: int
    k: int
    kind: str = ""
    held_out: bool = False

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.layout} {self.m}x{self.n}x{self.k}"


def gemm_shapes() -> list[Gemm]:
    """Return the measured GEMMs: the forty, and others that were drawn by chance."""
    found = json.loads((DATA / "gemm_shapes.json").read_text())
    return [shape for row in found for shape in (_drawn(**row) if "drawn" in row else [Gemm(**row)])]


_HIDDEN, _WIDER = (2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192), (1.0, 1.5, 2.0, 2.6875, 3.5, 4.0)
"""Widths of layers, and of the layers between them relative to these."""


def _drawn(drawn: int, held_out: bool) -> list[Gemm]:
    """Return ten GEMMs of the kinds of the forty, drawn by chance with a seed."""
    chance, found = random.Random(drawn), []

    def add(m: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "NT") -> None:
        found.append(Gemm(dtype, layout, m, n, k, "unseen" if held_out else f"drawn {drawn}", held_out))

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
    m, n, k = (8 * chance.randint(60, 500) for _ in range(3))  # odd
    add(m, n, k)
    m, n, k = (64 * chance.randint(8, 64) for _ in range(3))
    add(m, n, k, "float16", chance.choice(["NN", "TN", "TT"]))
    return found


def _config(kind: str, values: Any) -> Config:
    return Config(kind, tuple(tuple(x) if isinstance(x, list) else x for x in values))


class GemmJournal:
    """Measurements of GEMMs: some configs of a shape took turns, others were timed shortly (`screened`)."""

    def __init__(self, path: Path = DATA / "gemm_h200.jsonl") -> None:
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.by_shape: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            row["config"] = self.config(row["kind"], row["plan"])
            self.by_shape.setdefault(row["shape"], []).append(row)
        self._slow_down()

    def config(self, kind: str, values: Any) -> Any:
        """Return the config of a row."""
        return _config(kind, values)

    def _slow_down(self) -> None:
        """Scale short timings, which run at higher clocks, by the configs of the shape that did both."""
        turns: dict[Any, dict[Any, dict[str, Any]]] = {}
        for row in self.rows:
            if "screened" not in row:
                turns.setdefault((row["shape"], row.get("run")), {})[row["config"]] = row
        ratios: dict[Any, list[float]] = {}
        short = [(row, turns.get((row["shape"], row["run"]), {})) for row in self.rows if "screened" in row]
        for row, own in short:
            if row["config"] in own:
                ratios.setdefault((row["shape"], row["run"]), []).append(own[row["config"]]["us"] / row["us"])
        self.slowed = {where: statistics.median(some) for where, some in ratios.items()}
        for row, own in short:
            if own:
                row["us"] *= self.slowed[row["shape"], row["run"]]
                row["cublas_us"] = next(iter(own.values()))["cublas_us"]

    def fullest(self, name: str) -> str:
        """Return the run in which most configs of a shape took turns, if there is one among those with short
        timings."""
        rows = [row for row in self.by_shape.get(name, ()) if "run" in row]
        short = {row["run"] for row in rows if "screened" in row}
        turns = [row["run"] for row in rows if "screened" not in row]
        return max(turns, key=lambda run: (run in short, turns.count(run), run), default="")

    def known(self, name: str) -> dict[Any, tuple[float, bool]]:
        """Return microseconds of configs of a shape, and whether they took turns.

        They are those of the fullest run. Later runs, at other clocks, are scaled by the configs that both have, and
        count by how many turns they took.
        """
        first = self.fullest(name)
        rows = [row for row in self.by_shape.get(name, ()) if row.get("run", "") >= first]
        found = {row["config"]: [row["us"]] for row in rows if row.get("run") == first and "screened" in row}
        runs: dict[str, dict[Any, list[float]]] = {}
        for row in rows:
            if "run" in row and "screened" not in row:
                runs.setdefault(row["run"], {})[row["config"]] = [row["us"]] * row.get("turns", _TURNS)
        turns = runs.pop(first, {})
        for _, some in sorted(runs.items()) if first else ():
            ratios = [(turns.get(x) or found[x])[0] / us[0] for x, us in some.items() if x in turns or x in found]
            for config, us in some.items() if len(ratios) > 1 else ():
                turns.setdefault(config, []).extend(x * statistics.median(ratios) for x in us)
        means = {x: (statistics.geometric_mean(us), x in turns) for x, us in (found | turns).items()}
        return dict(sorted(means.items(), key=lambda pair: pair[1]))


class Measured(NamedTuple):
    """Microseconds of the configs of a problem; the best of those that took turns, if any did."""

    times: dict[Config, float]
    best: float


def gemms() -> dict[str, Measured]:
    """Return the measurements of GEMMs by the names of shapes."""
    journal, found = GemmJournal(), {}
    for shape in gemm_shapes():
        known = journal.known(shape.name)
        if len(known) > 1:
            trusted = [us for us, turns in known.values() if turns] or [us for us, _ in known.values()]
            found[shape.name] = Measured({config: us for config, (us, _) in known.items()}, min(trusted))
    return found


def attention() -> dict[str, Measured]:
    """Return the measurements of attention forward by shapes, as JSON; runs are compared by cuDNN's times in them."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in (DATA / "attention_h200.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(json.dumps(row["shape"]), []).append(row)
    found: dict[str, Measured] = {}
    for shape, own in rows.items():
        usual = statistics.median(row["cudnn_us"] for row in own)
        scales = [usual / row["cudnn_us"] if row["cudnn_us"] else 1.0 for row in own]
        times = {_config("Sm90AttentionConfig", row["plan"]): row["us"] * x for row, x in zip(own, scales, strict=True)}
        found[shape] = Measured(times, min(times.values()))
    return found


def tables() -> dict[str, dict[str, Measured]]:
    """Return the measurements of decode, MLA and attention backward by shapes, as JSON."""
    times: dict[str, dict[str, dict[Config, float]]] = {}
    for line in (DATA / "choices_h200.jsonl").read_text().splitlines():
        row = json.loads(line)
        kind, _, values = row["plan"].partition("(")
        own = times.setdefault(row["table"], {}).setdefault(json.dumps(row["shape"]), {})
        values = ast.literal_eval("(" + values)
        own[_config(kind, values)] = row["us"]
    return {
        table: {shape: Measured(own, min(own.values())) for shape, own in shapes.items()}
        for table, shapes in times.items()
    }


FAMILIES = {"decode": "attention decode", "mla": "mla", "backward": "attention backward"}
"""What the tables of `choices_h200.jsonl` are about."""


def everything() -> dict[str, dict[str, Measured]]:
    """Return all measurements, by family and problem."""
    return {
        "gemm": gemms(), "attention": attention(),
        **{FAMILIES[name]: shapes for name, shapes in tables().items()},
    }  # fmt: skip


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
