"""GEMM on Hopper beside cuBLAS, in bursts and sustained, with the chosen configs, and configs beside each other.

    python benchmarks/gemm_hopper.py [--only squares,layers,epilogues,weights,configs] [--sizes 4096,8192] [--seconds 1]
                                     [--rounds 3] [--save]

A burst is 5 calls after 0.2 s of idleness, three of them at least. Sustained: cuBLAS and Kiln alternate back to back,
`--rounds` times; of the `--seconds` of each the last half counts, and the median round is given, with the range of
Kiln's. Data is normal; results are compared with cuBLAS first. Epilogues are beside `torch.compile` of the same. What
is timed is compiled beforehand, in several processes: the disk cache keeps it (`--compile` does nothing more,
`--compiled` says that it was done).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from back_to_back import Work, in_turns
from fitting.gemm import short
from normal_data import refuse_constants
from results import Page, Table

from kiln import cute, kernels, measure
from kiln.kernels.dispatch import arrays
from kiln.kernels.dispatch.devices import current
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem

if TYPE_CHECKING:
    from collections.abc import Callable

F16, BF16, F32, E4M3, I8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8

_BURST = measure.BURST._replace(stopping=measure.BURST.stopping._replace(at_most=1.2))
"""Three times, or more where a call is short."""


SQUARES = [
    *((dtype, n, n, n, "NT") for dtype in (F16, BF16) for n in (2048, 4096, 8192)),
    (E4M3, 8192, 8192, 8192, "NT"),
    (E4M3, 8192, 8192, 8192, "NT", "ieee", False),
    (E4M3, 8192, 8192, 8192, "NT", "fast"),
    (F32, 4096, 4096, 4096, "NT", "tf32"),
    (I8, 8192, 8192, 8192, "NT"),
]
LAYERS = [
    (BF16, 4096, 11008, 4096, "NT"),
    (BF16, 8192, 28672, 8192, "NT"),
    (BF16, 3000, 3000, 3000, "NT"),
    (BF16, 1024, 1024, 1024, "NT"),
    *((BF16, m, 28672, 8192, "NT") for m in (1, 16, 64, 128, 256)),
    (BF16, 256, 4096, 4096, "NT"),
    (BF16, 512, 512, 32768, "NT"),
    (BF16, 4099, 2053, 1025, "NT"),
]
"""GEMMs of language models, and others: dtype, M, N, K, and whether rows (N) or columns (T) of A and B are
contiguous."""

SQUARE_TABLE = Table(
    "Square GEMMs, TFLOP/s",
    (
        "dtype, layout",
        "M",
        "N",
        "K",
        "cuBLAS burst",
        "Kiln burst",
        "ratio",
        "cuBLAS sustained",
        "Kiln sustained",
        "ratio",
        "range",
        "clock, power",
        "config",
    ),
)
LAYER_TABLE = Table(
    "GEMMs of layers, TFLOP/s",
    (
        "dtype, layout",
        "M",
        "N",
        "K",
        "cuBLAS burst",
        "Kiln burst",
        "ratio",
        "cuBLAS sustained",
        "Kiln sustained",
        "ratio",
        "range",
        "clock, power",
        "config",
    ),
)
EPILOGUE_TABLE = Table(
    "Epilogues, bfloat16, 8192 cubed, TFLOP/s",
    (
        "epilogue",
        "torch.compile burst",
        "Kiln burst",
        "ratio",
        "torch.compile sustained",
        "Kiln sustained",
        "ratio",
        "range",
        "clock, power",
    ),
)
WEIGHT_TABLE = Table(
    "Mixed input, us", ("M", "N", "K", "cuBLAS bf16", "Kiln bf16", "Kiln int8", "Kiln int4, groups of 128")
)
CONFIG_TABLE = Table(
    "Configs, float16, NT, TFLOP/s", ("M = N = K", "config", "burst", "sustained", "range", "clock, power")
)
PAGE = Page(__file__, "GEMM on Hopper", SQUARE_TABLE, LAYER_TABLE, EPILOGUE_TABLE, WEIGHT_TABLE, CONFIG_TABLE)


def _make_config(m: int, n: int, cluster: tuple[int, int], group: int, stages: int, pingpong: bool = False) -> Any:
    return kernels.Sm90GemmConfig((m, n, 64), cluster, stages, group, pingpong)


CONFIGS = [
    *(_make_config(128, 256, (2, 1), group, 4) for group in (8, 4, 16)),
    _make_config(128, 256, (2, 1), 8, 3),
    _make_config(128, 256, (1, 2), 8, 4),
    _make_config(128, 256, (1, 1), 16, 4),
    _make_config(256, 128, (1, 2), 8, 4),
    _make_config(256, 128, (2, 1), 4, 4),
    _make_config(128, 192, (2, 1), 8, 5),
    _make_config(128, 192, (2, 1), 8, 4, True),
    _make_config(128, 128, (2, 1), 8, 6, True),
    _make_config(64, 256, (2, 1), 16, 4, True),
    _make_config(128, 128, (2, 2), 8, 6, True),
]
"""Configs to compare, for f16."""


def matrix(rows: int, columns: int, dtype: Any, way: str) -> Any:
    """Normal data; N: rows are contiguous."""
    x = torch.randn((rows, columns) if way == "N" else (columns, rows), device="cuda")
    x = (x * 40 if dtype is I8 else x).to(dtype)
    refuse_constants(x[:64])
    return x if way == "N" else x.T


class Case:
    """A GEMM: the calls and their TFLOP."""

    def __init__(
        self, dtype: Any, m: int, n: int, k: int, layout: str, precision: str = "ieee", peer_fast: bool = True
    ) -> None:
        self.precision, self.peer_fast = precision, peer_fast
        self.a, self.b = matrix(m, k, dtype, layout[0]), matrix(k, n, dtype, layout[1])
        out = {E4M3: BF16, I8: torch.int32}.get(dtype, dtype)
        self.dtype, self.out = dtype, torch.empty(m, n, device="cuda", dtype=out)
        self.work = 2 * m * n * k / 1e12
        kind = "f32 accumulation" if dtype is E4M3 and precision == "ieee" else precision
        kind = kind if peer_fast else f"{kind} of both"
        self.name = (f"{str(dtype)[6:]}{'' if kind == 'ieee' else f', {kind}'} {layout}", m, n, k)

    def config(self) -> Any:
        """Return the config that dispatch chooses."""
        a, b, out = (arrays.layout_of(x[None]) for x in (self.a, self.b, self.out))
        return REGISTRY.choose(GemmProblem(a, b, out, precision=self.precision), current()).config

    def ours(self, config: Any = None, **options: Any) -> Callable[[], Any]:
        options = {"out": self.out, "precision": self.precision, "config": config, **options}
        return functools.partial(kernels.gemm, self.a, self.b, **options)

    def theirs(self) -> Callable[[], Any]:
        if self.dtype is E4M3:
            one = torch.ones((), device="cuda")
            return functools.partial(
                torch._scaled_mm, self.a, self.b, one, one, out_dtype=self.out.dtype, use_fast_accum=self.peer_fast
            )
        if self.dtype is I8:
            return functools.partial(torch._int_mm, self.a, self.b)
        return functools.partial(torch.mm, self.a, self.b, out=torch.empty_like(self.out))

    def check(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        wanted, got = ((x[0] if isinstance(x, tuple) else x).float() for x in (theirs(), ours()))
        worst = ((got - wanted).abs().max() / wanted.abs().max()).item()
        fast = self.dtype is E4M3 and self.peer_fast  # fewer bits of the accumulator: one per cent off at K = 8192
        if not worst <= (2e-2 if fast else 1e-2):
            raise SystemExit(f"{self.name}: {worst:.2e} away from the peer's")

    def cells(self, calls: dict[str, Callable[[], Any]], pace: Pace) -> list[str]:
        """Return TFLOP/s of peer and Kiln in bursts and sustained, with clock and power of Kiln's sustained run."""
        short = measure.compare(calls, l2="warm", rounds=3, effort=_BURST).measurements.values()
        works = {name: Work(call, self.work * 1e12) for name, call in calls.items()}
        theirs, ours = in_turns(works, pace.rounds, pace.seconds).values()
        bursts = [self.work * 1e6 / own.us for own in short]
        low, high = ours.spread
        at = f"{ours.middle.mhz:.0f} MHz, {ours.middle.watts:.0f} W"
        return [*_pair(*bursts), *_pair(theirs.speed, ours.speed), f"{low:.0f} to {high:.0f}", at]


class Pace(NamedTuple):
    """How often, and for how long."""

    rounds: int
    seconds: float


def _pair(theirs: float, ours: float) -> tuple[str, str, str]:
    return f"{theirs:.0f}", f"{ours:.0f}", f"{ours / theirs:.2f}"


def beside(table: Table, cases: list[Any], pace: Pace) -> None:
    """Measure GEMMs beside cuBLAS."""
    for given in cases:
        case = Case(*given)
        calls = {"cuBLAS": case.theirs(), "Kiln": case.ours()}
        case.check(calls["Kiln"], calls["cuBLAS"])
        table.add(*case.name, *case.cells(calls, pace), short(case.config()))


EPILOGUES = ("+ bias", "gelu(+ bias)", "+ c", "* gate", "and relu", "and squares of rows")


def epilogues(n: int) -> dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]]:
    """Return epilogues as options of `gemm`, and as functions for `torch.compile`."""
    bias, c, gate = (torch.randn(shape, device="cuda", dtype=BF16) for shape in ((n,), (n, n), (n, n)))
    gelu = torch.nn.functional.gelu
    return {
        "+ bias": ({"bias": bias}, lambda a, b: torch.addmm(bias, a, b)),
        "gelu(+ bias)": ({"bias": bias, "activation": "gelu"}, lambda a, b: gelu(torch.addmm(bias, a, b))),
        "+ c": ({"c": c}, lambda a, b: torch.addmm(c, a, b)),
        "* gate": ({"epilogue": _times, "extras": [gate]}, lambda a, b: torch.mm(a, b) * gate),
        "and relu": (
            {"epilogue": _and_relu, "out": (torch.empty_like(c), torch.empty_like(c))},
            lambda a, b: _pair_of(torch.mm(a, b)),
        ),
        "and squares of rows": ({"row_reduction": "squares"}, lambda a, b: _with_squares(torch.mm(a, b))),
    }


def _of_torch(name: str) -> None:
    case = Case(BF16, 8192, 8192, 8192, "NT")
    torch.compile(epilogues(8192)[name][1])(case.a, case.b)


def _times(value: Any, gate: Any) -> Any:
    return value * gate


def _and_relu(value: Any) -> tuple[Any, Any]:
    return value, cute.where(value > 0.0, value, cute.full_like(value, 0.0))


def _pair_of(x: Any) -> tuple[Any, Any]:
    return x, torch.relu(x)


def _with_squares(x: Any) -> tuple[Any, Any]:
    return x, torch.linalg.vector_norm(x, dim=1, dtype=torch.float32)


def after(pace: Pace, n: int = 8192) -> None:
    """Measure GEMMs with an epilogue beside `torch.compile` of the same."""
    case = Case(BF16, n, n, n, "NT")
    for name, (options, peer) in epilogues(n).items():
        calls = {"PyTorch": functools.partial(torch.compile(peer), case.a, case.b), "Kiln": case.ours(**options)}
        case.check(calls["Kiln"], calls["PyTorch"])
        EPILOGUE_TABLE.add(f"`{name}`", *case.cells(calls, pace))


def _weights(m: int, n: int, k: int) -> dict[str, Callable[[], Any]]:
    """Return GEMMs of bf16 with weights of 16, 8 and 4 bits, the last with a scale for each 128 of K."""
    a, b = torch.randn(m, k, device="cuda", dtype=BF16), torch.randn(n, k, device="cuda", dtype=BF16).T
    eight, four = (torch.randint(-128, 128, (n, x), device="cuda", dtype=torch.int8).T for x in (k, k // 2))
    columns, groups = (torch.rand(shape, device="cuda") for shape in ((n,), (k // 128, n)))
    return {
        "cuBLAS, bf16": functools.partial(torch.mm, a, b),
        "Kiln, bf16": functools.partial(kernels.gemm, a, b),
        "Kiln, 8 bits": functools.partial(kernels.gemm, a, eight, scale_b=columns),
        "Kiln, 4 bits": functools.partial(kernels.gemm, a, four, scale_b=groups),
    }


WEIGHTS = [(m, 28672, 8192) for m in (1, 16, 64, 256)]


def weights(pace: Pace) -> None:
    """Measure GEMMs with integer weights."""
    for shape in WEIGHTS:
        works = {name: Work(call, 0.0) for name, call in _weights(*shape).items()}
        found = in_turns(works, pace.rounds, pace.seconds / 3).values()
        WEIGHT_TABLE.add(*shape, *(f"{x.middle.us:.1f}" for x in found))


def configs(sizes: list[int], pace: Pace) -> None:
    """Measure configs for f16."""
    for n in sizes:
        case = Case(F16, n, n, n, "NT")
        calls = {"cuBLAS": case.theirs(), **{short(config): case.ours(config) for config in CONFIGS}}
        for call in list(calls.values())[1:]:
            case.check(call, calls["cuBLAS"])
        bursts = measure.compare(calls, l2="warm", rounds=3, effort=_BURST).measurements
        works = {name: Work(call, case.work * 1e12) for name, call in calls.items()}
        for name, found in in_turns(works, pace.rounds, pace.seconds).items():
            low, high = found.spread
            CONFIG_TABLE.add(
                n,
                name,
                f"{case.work * 1e6 / bursts[name].us:.0f}",
                f"{found.speed:.0f}",
                f"{low:.0f} to {high:.0f}",
                f"{found.middle.mhz:.0f} MHz, {found.middle.watts:.0f} W",
            )


def compile_one(number: int, parts: list[str]) -> None:
    """Compile one of what is timed."""
    jobs = _jobs(parts)
    if number < len(jobs):
        jobs[number]()
        torch.cuda.synchronize()


def _jobs(parts: list[str]) -> list[Callable[[], Any]]:
    """Calls that compile everything, of small matrices where the config is given."""
    jobs: list[Callable[[], Any]] = []
    cases = (SQUARES if "squares" in parts else []) + (LAYERS if "layers" in parts else [])
    jobs += [lambda given=given: Case(*given).ours()() for given in cases]
    if "epilogues" in parts:
        jobs += [
            lambda name=name: Case(BF16, 8192, 8192, 8192, "NT").ours(**epilogues(8192)[name][0])()
            for name in EPILOGUES
        ]
        jobs += [lambda name=name: _of_torch(name) for name in EPILOGUES]
    if "weights" in parts:
        jobs += [call for shape in WEIGHTS for call in list(_weights(*shape).values())[1:]]
    if "configs" in parts:
        jobs += [lambda config=config: Case(F16, 512, 512, 512, "NT").ours(config)() for config in CONFIGS]
    return jobs


def compile_all(parts: list[str]) -> None:
    context, start = multiprocessing.get_context("spawn"), time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(min(12, os.cpu_count() or 1), context) as pool:
        list(pool.map(compile_one, range(len(_jobs(parts))), [parts] * len(_jobs(parts))))
    print(f"compiled in {time.perf_counter() - start:.0f} s")


def main() -> None:
    known = ["squares", "layers", "epilogues", "weights", "configs"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=known)
    parser.add_argument("--sizes", type=lambda text: [int(x) for x in text.split(",")], default=[4096, 8192])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a call in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="and time nothing")
    parser.add_argument("--compiled", action="store_true", help="time only")
    parser.add_argument("--save", action="store_true", help="write docs/data/gemm_hopper.md")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    if not arguments.compiled:
        compile_all(arguments.only)
    if arguments.compile:
        return
    pace = Pace(arguments.rounds, arguments.seconds)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    tables: dict[str, Callable[[], None]] = {
        "squares": lambda: beside(SQUARE_TABLE, SQUARES, pace),
        "layers": lambda: beside(LAYER_TABLE, LAYERS, pace),
        "epilogues": lambda: after(pace),
        "weights": lambda: weights(pace),
        "configs": lambda: configs(arguments.sizes, pace),
    }
    for part in arguments.only:
        tables[part]()
    PAGE.finish(arguments.save)


if __name__ == "__main__":
    main()
