"""Measure plans of attention on Hopper, fit the model that chooses among them, and show what its choices cost.

    python benchmarks/tune_attention.py measure   # needs the GPU: replaces the measurements
    python benchmarks/tune_attention.py fit       # writes src/kiln/kernels/attentions/hopper_model.py
    python benchmarks/tune_attention.py report    # chosen and best plans, shape by shape

Each line of `benchmarks/data/attention_h200.jsonl` is a shape: batch, length, heads, heads of keys, D, whether causal; and microseconds of
cuDNN and of each plan (groups, block_k, stages, in_turns, queries_held), which took turns in bursts, f16, with normal data.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from kiln.kernels.attentions import Attention, hopper_cost, hopper_model
from kiln.kernels.attentions.hopper_model import FIGURES, Figures
from kiln.kernels.attentions.hopper_plan import HopperAttentionTiling
from kiln.kernels.devices import device_of

_DATA = Path(__file__).parent / "data" / "attention_h200.jsonl"
_MODEL = Path(hopper_model.__file__)
_SPEEDS, _TILES = np.linspace(4.0, 8.0, 161), np.linspace(0.0, 8.0, 81)
"""TFLOP/s of a multiprocessor and microseconds of a tile that are tried."""
MORE = {
    64: ((3, 112, 4, True, False), (2, 128, 3, False, True)),
    96: ((3, 112, 2, False, False), (2, 128, 3, False, True)),
    128: ((3, 80, 2, True, False), (3, 64, 3, False, False)),
    192: ((2, 112, 2, True, False), (2, 96, 2, False, False)),
    256: ((2, 80, 2, True, False), (2, 64, 2, False, False)),
}
"""Tilings that are measured besides those of the model."""
_TOKENS = 32768
SHAPES = [
    *[(_TOKENS // n, n, 16, 16, 128, c) for n in (1024, 2048, 4096, 8192, 16384, 32768) for c in (False, True)],
    *[(4, 8192, 32, 8, 128, c) for c in (False, True)],
    *[(_TOKENS // n, n, 32, 32, 64, c) for n in (2048, 8192) for c in (False, True)],
    *[(4, 8192, 8, 8, 256, c) for c in (False, True)],
    *[(4, 4096, 16, 16, 192, c) for c in (False, True)],
    *[(4, 8192, 16, 16, 96, c) for c in (False, True)],
    *[(1, 1024, 16, 16, 128, c) for c in (False, True)],
    (2, 1536, 16, 16, 128, True),
]


def problem_of(shape: Any) -> Attention:
    batch, length, heads, heads_k, dim, causal = shape
    return Attention(batch, length, length, heads, heads_k, dim, dim, right=0 if causal else None)


def plan_of(tiling: Any, causal: bool) -> HopperAttentionTiling:
    groups, block_k, stages, in_turns, held = tiling
    return HopperAttentionTiling(groups, block_k, stages, in_turns=in_turns, queries_held=held, counted=causal)


def measured() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _DATA.read_text().splitlines()]


def measure() -> None:
    import torch
    from attention import sdpa
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    from kiln import kernels
    from kiln import measure as timing

    lines = []
    for shape in SHAPES:
        batch, length, heads, heads_k, dim, causal = shape
        q, k, v = (
            torch.randn(batch, length, n, dim, device="cuda", dtype=torch.float16) for n in (heads, heads_k, heads_k)
        )
        theirs = sdpa(q, k, v, causal)

        def cudnn(call: Any = theirs) -> Any:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                return call()

        tilings = [f.tiling for f in FIGURES[16, dim]]
        calls: dict[str, Any] = {"cuDNN": cudnn}
        for tiling in dict.fromkeys([*tilings, *MORE[dim]]):
            plan = plan_of(tiling, causal)
            calls[str(tiling)] = functools.partial(kernels.flash_attention, q, k, v, causal=causal, plan=plan)
        found = timing.compare(
            calls, l2="warm", rounds=3, effort=dataclasses.replace(timing.BURST, idle=0.06)
        ).measurements
        lines.append(json.dumps({"shape": shape, "us": {name: round(one.us, 1) for name, one in found.items()}}))
        print(lines[-1], flush=True)
        _DATA.write_text("\n".join(lines) + "\n")


def fit() -> None:
    """Speed and time of a tile of each tiling: the pair for which relative errors are least."""
    device, found = device_of("sm_90a"), measured()
    made: dict[tuple[int, int], list[Figures]] = {}
    for dim in sorted({line["shape"][4] for line in found}):
        lines = [line for line in found if line["shape"][4] == dim]
        for name in dict.fromkeys(name for line in lines for name in line["us"] if name != "cuDNN"):
            tiling = ast.literal_eval(name)
            speed, tile = np.meshgrid(_SPEEDS, _TILES, indexing="ij")
            errors = np.zeros(speed.shape)
            for line in lines:
                if name not in line["us"]:
                    continue
                shape = line["shape"]
                plan = plan_of(tiling, shape[5])
                steps, tiles, waiting = hopper_cost.units(problem_of(shape), plan, device)
                launch = hopper_cost.parts(problem_of(shape), plan, device)["launch"]
                model = (steps + waiting[0]) / speed + (tiles + waiting[1]) * tile + launch
                errors += (model / line["us"][name] - 1) ** 2
            at = np.unravel_index(errors.argmin(), errors.shape)
            figures = Figures(tiling, round(float(speed[at]), 3), round(float(tile[at]), 2))
            made.setdefault((16, dim), []).append(figures)
    made |= {key: list(value) for key, value in FIGURES.items() if key not in made}
    text = _MODEL.read_text()
    start, end = text.index("FIGURES: "), text.index('"""By bits of')
    rows = [
        f"    {key}: (\n" + "".join(f"        Figures({f.tiling}, {f.speed}, {f.tile}),\n" for f in value) + "    ),\n"
        for key, value in sorted(made.items(), key=lambda item: (-item[0][0], item[0][1]))
    ]
    types = "dict[tuple[int, int], tuple[Figures, ...]]"
    _MODEL.write_text(text[:start] + f"FIGURES: {types} = {{\n" + "".join(rows) + "}\n" + text[end:])


def report() -> None:
    """What the plan that is chosen takes, beside the best that was measured."""
    device, worst = device_of("sm_90a"), 0.0
    print(
        "| batch, length, heads, of keys, D | | chosen | TFLOP/s | model | best | behind it | over cuDNN |\n|---|---|---|---|---|---|---|---|"
    )
    for line in measured():
        shape, times = line["shape"], dict(line["us"])
        problem, theirs = problem_of(shape), times.pop("cuDNN")
        plan = hopper_cost.default_tiling(problem, device)
        chosen = str((plan.groups, plan.block_k, plan.stages, plan.in_turns, plan.queries_held))
        best = min(times, key=lambda name: times[name])
        behind = times[chosen] / times[best] - 1
        worst = max(worst, behind)
        rate = problem.flops / times[chosen] / 1e6
        model = problem.flops / hopper_cost.expected(problem, plan, device) / 1e6
        print(
            f"| {', '.join(map(str, shape[:5]))} | {'causal' if shape[5] else 'full'} | {chosen} | {rate:.0f} | {model:.0f} | {best} | "
            f"{behind:.1%} | {theirs / times[chosen]:.2f} |"
        )
    print(f"\nAt most {worst:.1%} behind.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit", "report"))
    {"measure": measure, "fit": fit, "report": report}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
