"""Matrix products on Hopper beside cuBLAS, in bursts and sustained, with the plans that are taken, and plans beside each other.

    python benchmarks/products_hopper.py [--only squares,layers,after,plans] [--sizes 4096,8192]

A burst is 5 calls after 0.2 s of idleness, the median of three; sustained is the last third of 1.2 s back to back (0.6 s but for squares). Kiln and cuBLAS take
turns, with normal data; results are compared with cuBLAS's first. What is timed is compiled beforehand, in several processes:
the disk cache keeps it. `--sizes` are those of which plans are compared. All of it takes some two minutes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from attention_hopper import burst, power, sustained
from device_time import refuse_constants

from kiln import kernels
from kiln.kernels.common import arrays
from kiln.kernels.devices import current
from kiln.kernels.products import FAMILY, Product

if TYPE_CHECKING:
    from collections.abc import Callable

F16, BF16, E4M3, I8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8
_LONG, _SHORT = 1.2, 0.6
"""Seconds of sustained runs."""

SQUARES = [
    *((dtype, n, n, n, "NT") for dtype in (F16, BF16) for n in (2048, 4096, 8192)),
    (F16, 8192, 8192, 8192, "NN"), (E4M3, 8192, 8192, 8192, "NT"),
    (I8, 8192, 8192, 8192, "NT"),
]  # fmt: skip
LAYERS = [
    (BF16, 4096, 11008, 4096, "NT"), (BF16, 8192, 28672, 8192, "NT"), (BF16, 3000, 3000, 3000, "NT"), (BF16, 1024, 1024, 1024, "NT"),
    *((BF16, m, 28672, 8192, "NT") for m in (64, 128, 256)), (BF16, 256, 4096, 4096, "NT"),
]  # fmt: skip
"""Of language models, and others: type, M, N, K, and whether rows (N) or columns (T) of A and B are contiguous."""


def _plan(m: int, n: int, cluster: tuple[int, int], group: int, stages: int, pingpong: bool = False) -> Any:
    return kernels.HopperTiling((m, n, 64), cluster, stages, group, pingpong)


PLANS = [
    *(_plan(128, 256, (2, 1), group, 4) for group in (8, 4, 16)),
    _plan(128, 256, (2, 1), 8, 3), _plan(128, 256, (1, 2), 8, 4), _plan(128, 256, (1, 1), 16, 4), _plan(256, 128, (1, 2), 8, 4),
    _plan(256, 128, (2, 1), 4, 4), _plan(128, 192, (2, 1), 8, 5), _plan(128, 192, (2, 1), 8, 4, True),
    _plan(128, 128, (2, 1), 8, 6, True), _plan(64, 256, (2, 1), 16, 4, True), _plan(128, 128, (2, 2), 8, 6, True),
]  # fmt: skip
"""To compare, for f16."""


def matrix(rows: int, columns: int, dtype: Any, way: str) -> Any:
    """Normal data; N: rows are contiguous."""
    x = torch.randn((rows, columns) if way == "N" else (columns, rows), device="cuda")
    x = (x * 40 if dtype is I8 else x).to(dtype)
    refuse_constants(x[:64])
    return x if way == "N" else x.T


class Case:
    """A product: what is called, and how much is multiplied."""

    def __init__(self, dtype: Any, m: int, n: int, k: int, layout: str) -> None:
        self.a, self.b = matrix(m, k, dtype, layout[0]), matrix(k, n, dtype, layout[1])
        out = {E4M3: BF16, I8: torch.int32}.get(dtype, dtype)
        self.dtype, self.out = dtype, torch.empty(m, n, device="cuda", dtype=out)
        self.work = 2 * m * n * k / 1e12
        self.name = f"{str(dtype)[6:]} {layout} | {m} | {n} | {k}"

    def plan(self) -> Any:
        """What is taken by itself."""
        a, b, out = (arrays.laid(x[None]) for x in (self.a, self.b, self.out))
        return FAMILY.choose(Product(a, b, out), current()).plan

    def ours(self, plan: Any = None, **options: Any) -> Callable[[], Any]:
        return functools.partial(kernels.gemm, self.a, self.b, out=self.out, plan=plan, **options)

    def theirs(self) -> Callable[[], Any]:
        if self.dtype is E4M3:
            one = torch.ones((), device="cuda")
            return functools.partial(
                torch._scaled_mm, self.a, self.b, one, one, out_dtype=self.out.dtype, use_fast_accum=True
            )
        if self.dtype is I8:
            return functools.partial(torch._int_mm, self.a, self.b)
        return functools.partial(torch.mm, self.a, self.b, out=torch.empty_like(self.out))

    def check(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        wanted, got = theirs().float(), ours().float()
        worst = ((got - wanted).abs().max() / wanted.abs().max()).item()
        if not worst <= 1e-2:
            raise SystemExit(f"{self.name}: {worst:.2e} away from the peer's")

    def rates(self, calls: list[Callable[[], Any]], how: Callable[..., float], turns: int) -> list[float]:
        """TFLOP/s of each, in turns."""
        times = [[how(call) for call in calls] for _ in range(turns)]
        return [self.work / statistics.median(own) for own in zip(*times, strict=True)]


def short(plan: Any) -> str:
    """A plan in few characters."""
    text = f"{type(plan).__name__} {'x'.join(map(str, plan.block_mnk))}, {plan.stages} stages"
    if not isinstance(plan, kernels.HopperTiling):
        return f"{text}, warps {plan.warps_mn}, {plan.splits} parts"
    return f"{text}, cluster {plan.cluster_mn}, group {plan.group}{', pingpong' if plan.pingpong else ''}"


def _steady(duration: float) -> Callable[[Any], float]:
    return functools.partial(sustained, duration=duration)


def _pair(theirs: float, ours: float) -> str:
    return f" | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f}"


_HEAD = (
    "| | M | N | K | cuBLAS burst | Kiln burst | | cuBLAS sustained | Kiln sustained | | clock, power | plan |\n"
    + "|---" * 12
    + "|"
)


def beside(cases: list[Any], duration: float) -> None:
    """TFLOP/s of products."""
    print(f"\n{_HEAD}")
    for given in cases:
        case = Case(*given)
        calls = [case.theirs(), case.ours()]
        case.check(calls[1], calls[0])
        cells = _pair(*case.rates(calls, burst, 3)) + _pair(*case.rates(calls, _steady(duration), 1))
        print(f"| {case.name}{cells} | {power()} | {short(case.plan())} |", flush=True)


def following(n: int) -> dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]]:
    """What is done with the sums, and the same in PyTorch."""
    bias, c, gate = (torch.randn(shape, device="cuda", dtype=BF16) for shape in ((n,), (n, n), (n, n)))
    gelu = torch.nn.functional.gelu
    return {
        "+ bias": ({"bias": bias}, lambda a, b: torch.addmm(bias, a, b)),
        "gelu(+ bias)": ({"bias": bias, "activation": "gelu"}, lambda a, b: gelu(torch.addmm(bias, a, b))),
        "+ c": ({"c": c}, lambda a, b: torch.addmm(c, a, b)),
        "* gate": ({"epilogue": _times, "extras": [gate]}, lambda a, b: torch.mm(a, b) * gate),
    }


def _times(value: Any, gate: Any) -> Any:
    return value * gate


def after(n: int = 8192) -> None:
    """TFLOP/s of products with something after them, beside PyTorch's calls for the same."""
    print("\n| bf16 8192 | PyTorch burst | Kiln burst | | PyTorch sustained | Kiln sustained | |\n" + "|---" * 7 + "|")
    case = Case(BF16, n, n, n, "NT")
    for name, (options, peer) in following(n).items():
        calls = [functools.partial(peer, case.a, case.b), case.ours(**options)]
        case.check(calls[1], calls[0])
        print(
            f"| `{name}`{_pair(*case.rates(calls, burst, 3))}{_pair(*case.rates(calls, _steady(_SHORT), 1))} |",
            flush=True,
        )


def plans(sizes: list[int]) -> None:
    """TFLOP/s of plans for f16."""
    for n in sizes:
        case = Case(F16, n, n, n, "NT")
        print(f"\n| f16 NT {n} | burst | sustained |\n|---|---|---|")
        calls = [case.theirs(), *(case.ours(plan) for plan in PLANS)]
        for call in calls[1:]:
            case.check(call, calls[0])
        steady = case.rates(calls, _steady(_SHORT), 1)
        for name, *found in zip(["cuBLAS", *map(short, PLANS)], case.rates(calls, burst, 1), steady, strict=True):
            print(f"| {name} | {found[0]:.0f} | {found[1]:.0f} |", flush=True)


def compile_one(number: int, parts: list[str]) -> None:
    """Compile one of what is timed."""
    jobs = _jobs(parts)
    if number < len(jobs):
        jobs[number]()
        torch.cuda.synchronize()


def _jobs(parts: list[str]) -> list[Callable[[], Any]]:
    """Calls that compile everything, of small matrices where the plan is given."""
    jobs: list[Callable[[], Any]] = []
    cases = (SQUARES if "squares" in parts else []) + (LAYERS if "layers" in parts else [])
    jobs += [lambda given=given: Case(*given).ours()() for given in cases]
    if "after" in parts:
        jobs += [
            lambda name=name: Case(BF16, 8192, 8192, 8192, "NT").ours(**following(8192)[name][0])()
            for name in ("+ bias", "gelu(+ bias)", "+ c", "* gate")
        ]
    if "plans" in parts:
        jobs += [lambda plan=plan: Case(F16, 512, 512, 512, "NT").ours(plan)() for plan in PLANS]
    return jobs


def compile_all(parts: list[str]) -> None:
    context, start = multiprocessing.get_context("spawn"), time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(min(12, os.cpu_count() or 1), context) as pool:
        list(pool.map(compile_one, range(len(_jobs(parts))), [parts] * len(_jobs(parts))))
    print(f"compiled in {time.perf_counter() - start:.0f} s")


def main() -> None:
    known = ["squares", "layers", "after", "plans"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=known)
    parser.add_argument("--sizes", type=lambda text: [int(x) for x in text.split(",")], default=[4096, 8192])
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    compile_all(arguments.only)
    torch.manual_seed(0)
    tables: dict[str, Callable[[], None]] = {
        "squares": lambda: beside(SQUARES, _LONG),
        "layers": lambda: beside(LAYERS, _SHORT),
        "after": after,
        "plans": lambda: plans(arguments.sizes),
    }
    for part in arguments.only:
        tables[part]()


if __name__ == "__main__":
    main()
