"""The measurements of `benchmarks/data`: microseconds of configs, by family and problem.

A config is a tuple of its class and of the values of its fields, as they were called when the measurements were made
(`FIELDS`). This module imports nothing of Kiln, so that it reads the same for every revision.
"""

from __future__ import annotations

import ast
import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).resolve().parent / "data"
FIELDS = {
    "Sm80GemmConfig": ("tile_shape_mnk", "warp_layout_mn", "stages", "split_k"),
    "Sm90GemmConfig": (
        "tile_shape_mnk",
        "cluster_shape_mn",
        "ab_stages",
        "raster_group",
        "pingpong",
        "split_k_cluster",
        "swap_ab",
        "split_k",
        "epi_stages",
        "transpose_out",
    ),
    "Sm80AttentionConfig": ("tile_m", "tile_n", "warps", "ctas_per_sm", "num_splits", "pack_gqa"),
    "Sm90AttentionConfig": (
        "consumer_warpgroups",
        "tile_n",
        "kv_stages",
        "persistent",
        "pingpong",
        "lazy_rescale",
        "q_in_regs",
        "pack_gqa",
        "dynamic_scheduler",
    ),
    "Sm90MlaConfig": ("num_splits", "swap_ab", "prefetch"),
    "Sm90AttentionBackwardConfig": ("tile_m", "q_stages", "operands_in_regs", "kv_stages"),
    "Sm90AttentionBackwardHd256Config": (
        "tile_m",
        "q_stages",
        "kv_dims_in_regs",
        "tile_n",
        "k_stages",
        "v_stages",
        "q_dims_in_regs",
    ),
}
"""Fields of the recorded configs, in order."""
ADDED = {"Sm90AttentionBackwardConfig": (1,)}
"""Values of the last fields in records that are older than these fields."""
COMPARED = {
    ("attention", "Sm90AttentionConfig"): ("consumer_warpgroups", "tile_n", "kv_stages", "pingpong", "q_in_regs")
}
"""Where not all fields of a config were recorded, by family and class: those that were."""


def fields_of(family: str, kind: str) -> tuple[str, ...]:
    """Return the fields that tell the recorded configs of a family apart."""
    return COMPARED[family, kind] if (family, kind) in COMPARED else FIELDS[kind]


class Config(NamedTuple):
    """A recorded config: its class and the values of the fields that `fields_of` lists."""

    kind: str
    values: tuple[Any, ...]


def _config(kind: str, values: Any) -> Config:
    added = ADDED.get(kind, ())[len(values) - len(FIELDS[kind]) :] if len(values) < len(FIELDS[kind]) else ()
    return Config(kind, tuple(tuple(x) if isinstance(x, list) else x for x in (*values, *added)))


class Measured(NamedTuple):
    """Microseconds of the configs of a problem, of the best of them, and of the peer where it was measured beside."""

    times: dict[Config, float]
    best: float
    peer: float = math.nan


def gemms(path: Path = DATA / "gemm_h200.jsonl") -> dict[str, Measured]:
    """Return the measurements of GEMMs beside cuBLAS by the names of shapes (`gemm_shapes.py`).

    The first line of the file lists the configs, which other lines refer to by their places.
    """
    head, *lines = map(json.loads, path.read_text().splitlines())
    configs = [_config(*row) for row in head["configs"]]
    found: dict[str, Measured] = {}
    for row in lines:
        times = {configs[place]: us for place, us in row["us"]}
        found[row["shape"]] = Measured(times, min(times.values()), row["cublas_us"])
    return found


def write_gemms(found: dict[str, Measured], path: Path = DATA / "gemm_h200.jsonl") -> None:
    """Write measurements of GEMMs as `gemms` reads them."""
    places: dict[Config, int] = {}
    rows = [
        {
            "shape": name,
            "cublas_us": round(one.peer, 2),
            "us": [[places.setdefault(config, len(places)), round(us, 2)] for config, us in one.times.items()],
        }
        for name, one in found.items()
    ]
    lines = [{"configs": [list(config) for config in places]}, *rows]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


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
    return {"gemm": gemms(), "attention": attention(), **{FAMILIES[name]: shapes for name, shapes in tables().items()}}


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
