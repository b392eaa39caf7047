"""Mixed-input GEMM on Hopper: bf16 with int8 and int4 weights, beside bf16 weights and PyTorch's int4.

    python benchmarks/gemm_mixed_input.py [--rows 1,16,64,256] [--columns 28672] [--depth 8192] [--configs FILE]
                                          [--seconds 0.4] [--rounds 3] [--save]

Calls alternate, back to back, on normal data; of the `--seconds` of a round the last half counts, and the median round
is given. Results are compared first. `--configs` times the configs of a file instead, or after the given `--rows`, one
line each: M, bits, groups of K (0: none), and the config as Python writes it. `--compile` does nothing more than
compile, of which `--part i/n` does a part.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import back_to_back
import torch
from back_to_back import Work
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

BF16 = torch.bfloat16
ROWS = [1, 8, 16, 32, 64, 128, 256, 1024]
CHOSEN = Table(
    "bfloat16 with int8 and int4 weights, sustained",
    (
        "M",
        "N",
        "K",
        "bf16 us",
        "int8 us",
        "int8, groups of 128 us",
        "int4 us",
        "int4, groups of 128 us",
        "PyTorch int4, groups of 128 us",
        "int8, int4 TB/s",
        "bf16 over int8, int4",
    ),
)
PAGE = Page(__file__, "Mixed-input GEMM", CHOSEN)


class Weights:
    """Weights (N, K) of 16, 8 and 4 bits."""

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        generator = torch.Generator("cuda").manual_seed(0)
        ints = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8, generator=generator)
        self.whole = {
            8: ints.T,
            4: ints[:, : k // 2].contiguous().T,
            16: torch.randn(n, k, device="cuda", dtype=BF16).T,
        }
        refuse_constants(self.whole[16][:64])

    def floats(self, bits: int, columns: int) -> Any:
        """Return the first columns as f32."""
        part = self.whole[bits][:, :columns]
        if bits != 4:
            return part.float()
        pair = part.int()
        return torch.stack([(pair << 28) >> 28, (pair << 24) >> 28], 1).reshape(self.k, columns).float()

    def call(self, rows: int, bits: int, groups: int = 0, config: Any = None) -> Callable[[], Any]:
        """Return a call of Kiln; its first columns are compared."""
        a = torch.randn(rows, self.k, device="cuda", dtype=BF16)
        out = torch.empty(rows, self.n, device="cuda", dtype=BF16)
        scale = torch.rand((groups, self.n) if groups else (self.n,), device="cuda") + 0.5
        call = functools.partial(kernels.gemm, a, self.whole[bits], out=out, config=config)
        if bits != 16:
            call = functools.partial(call, scale_b=scale)
        call()
        scales = scale[:, :256].repeat_interleave(self.k // groups, 0) if groups else scale[:256]
        wanted = a.float() @ (self.floats(bits, 256) * (scales if bits != 16 else 1))
        worst = ((out[:, :256].float() - wanted).abs().max() / wanted.abs().max()).item()
        if not worst <= 2e-2:
            print(f"WRONG: {rows} rows, {bits} bits, {groups} groups, {config}: {worst:.2e} away")
        return call

    def peer(self, rows: int) -> Callable[[], Any] | None:
        """Return PyTorch's int4 GEMM with groups of 128."""
        try:
            packed = torch.ops.aten._convert_weight_to_int4pack(self.whole[4].T.contiguous().view(torch.uint8), 8)
            scales = torch.ones(self.k // 128, self.n, 2, device="cuda", dtype=BF16)
            a = torch.randn(rows, self.k, device="cuda", dtype=BF16)
            call = functools.partial(torch.ops.aten._weight_int4pack_mm, a, packed, 128, scales)
            call()
        except RuntimeError as refused:
            print(f"PyTorch's int4: {refused}")
            return None
        return call


def times(calls: list[Callable[[], Any]], rounds: int, seconds: float) -> list[float]:
    """Microseconds of each, sustained."""
    works = {str(number): Work(call, 0.0) for number, call in enumerate(calls)}
    return [turns.middle.us for turns in back_to_back.in_turns(works, rounds, seconds).values()]


def table(weights: Weights, given: argparse.Namespace) -> None:
    """Measure the chosen configs beside bf16 and PyTorch."""
    groups = weights.k // 128
    for rows in given.rows:
        calls = [weights.call(rows, bits, count) for bits, count in ((16, 0), (8, 0), (8, groups), (4, 0), (4, groups))]
        peer = weights.peer(rows) if rows <= given.peer else None
        if given.compile:
            continue
        found = times([*calls, peer] if peer else calls, given.rounds, given.seconds)
        rates = [weights.n * weights.k * bits / 8e6 / us for bits, us in ((8, found[1]), (4, found[3]))]
        CHOSEN.add(
            rows,
            weights.n,
            weights.k,
            *(f"{us:.1f}" for us in found),
            *([] if peer else [None]),
            ", ".join(f"{x:.2f}" for x in rates),
            f"{found[0] / found[1]:.2f}, {found[0] / found[3]:.2f}",
        )


def configs(weights: Weights, given: argparse.Namespace) -> None:
    """Time the configs of a file, each by itself."""
    number, count = (int(x) for x in given.part.split("/"))
    for line in Path(given.configs).read_text().splitlines()[number::count]:
        rows, bits, groups, text = line.split(None, 3)
        config = eval(
            text, {"Sm80GemmConfig": kernels.Sm80GemmConfig, "Sm90MixedInputConfig": kernels.Sm90MixedInputConfig}
        )
        try:
            call = weights.call(int(rows), int(bits), int(groups), config)
        except Exception as refused:
            print(f"{line}: {type(refused).__name__} {refused}", flush=True)
            continue
        if not given.compile:
            (us,) = times([call], 1, given.seconds)
            print(
                f"{rows} {bits} {groups} {us:.1f} us {weights.n * weights.k * int(bits) / 8e6 / us:.2f} TB/s {text}",
                flush=True,
            )


def main() -> None:
    numbers = functools.partial(str.split, sep=",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: [int(x) for x in numbers(text)], default=[])
    parser.add_argument("--columns", type=int, default=28672)
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--configs")
    parser.add_argument("--peer", type=int, default=64, help="the greatest M that PyTorch is timed for")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a call in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="and time nothing")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--save", action="store_true", help="write docs/data/gemm_mixed_input.md")
    given = parser.parse_args()
    torch.manual_seed(0)
    weights = Weights(given.columns, given.depth)
    if given.rows or not given.configs:
        given.rows = given.rows or ROWS
        table(weights, given)
    if given.configs:
        configs(weights, given)
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
