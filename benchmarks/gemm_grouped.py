"""Grouped GEMM and GEMM of e4m3 on Hopper, beside PyTorch and cuBLAS.

    python benchmarks/gemm_grouped.py [--only groups,others,blocks,rows] [--configs] [--seconds 0.6] [--rounds 3]
                                      [--save]

Calls alternate, back to back, on normal data; of the `--seconds` of a round the last half counts, and the median round
is given. Results are compared first. `--configs` shows several configs of each instead of the chosen one. What is timed
is compiled beforehand, in several processes (`--compile` does nothing more, `--compiled` says that it was done).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

import back_to_back
import torch
from back_to_back import Work
from fitting.gemm import short
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels
from kiln.kernels.dispatch import arrays
from kiln.kernels.dispatch.devices import current
from kiln.kernels.impl.gemm import grouped_gemm
from kiln.kernels.impl.gemm.problem import GroupedGemmProblem

if TYPE_CHECKING:
    from collections.abc import Callable

PACE = [3, 0.6]
"""Rounds, and seconds of each call in them."""
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
GROUPS = [
    (64, 128, 4096, 2048, "equal"),
    (64, 128, 4096, 2048, "uneven"),
    (8, 1024, 4096, 7168, "equal"),
    (32, 256, 4096, 7168, "uneven"),
    (128, 64, 4096, 2048, "uneven"),
    (256, 32, 4096, 2048, "uneven"),
    (256, 16, 4096, 2048, "uneven"),
    (256, 64, 7168, 2048, "uneven"),
]
"""Groups, rows of each on average, N, K, and how rows are spread."""
BLOCKS = [(4096, 7168, 2048), (4096, 4096, 7168), (8192, 8192, 8192), (128, 7168, 2048)]
ROWS = [1, 16, 64, 128]
"""M of GEMMs with N 28672 and K 8192."""

GROUP_TABLE = Table(
    "Grouped GEMM, bfloat16, sustained",
    ("groups", "M of each", "N", "K", "PyTorch TFLOP/s", "Kiln TFLOP/s", "ratio", "TB/s of B", "config"),
)
OTHER_TABLE = Table(
    "Grouped GEMM, masked and block-scaled, sustained TFLOP/s",
    (
        "groups",
        "M of each",
        "N",
        "K",
        "PyTorch bf16",
        "Kiln bf16",
        "Kiln bf16 masked",
        "PyTorch e4m3, row scales",
        "Kiln e4m3, block scales",
        "Kiln e4m3, block scales, masked",
    ),
)
E4M3_TABLE = Table(
    "GEMM of e4m3 into bfloat16, sustained TFLOP/s",
    (
        "M",
        "N",
        "K",
        "cuBLAS fast accumulation",
        "Kiln fast accumulation",
        "Kiln f32 accumulation",
        "Kiln block scales",
        "block scales over f32 accumulation",
    ),
)
ROW_TABLE = Table(
    "GEMM of few rows, bfloat16, N 28672, K 8192, sustained",
    ("M", "cuBLAS us", "Kiln us", "cuBLAS, Kiln TB/s", "ratio"),
)
PAGE = Page(__file__, "Grouped and block-scaled GEMM", GROUP_TABLE, OTHER_TABLE, E4M3_TABLE, ROW_TABLE)


def make_config(m: int, n: int, k: int, cluster: tuple[int, int], stages: int, **options: Any) -> Any:
    return kernels.Sm90GemmConfig((m, n, k), cluster, stages, max(1, 2048 // (m * cluster[0])), **options)


GROUP_CONFIGS = [
    make_config(128, 256, 64, (1, 1), 4),
    make_config(128, 256, 64, (1, 2), 4),
    make_config(128, 192, 64, (1, 1), 4, pingpong=True),
    make_config(128, 128, 64, (1, 1), 6, pingpong=True),
    make_config(128, 128, 64, (1, 2), 6, pingpong=True),
    make_config(128, 128, 64, (1, 1), 4, swap_ab=True),
    make_config(128, 64, 64, (1, 1), 7, swap_ab=True),
    make_config(128, 32, 64, (1, 1), 9, swap_ab=True),
]
BLOCK_CONFIGS = [
    make_config(128, 128, 128, (2, 1), 6),
    make_config(128, 192, 128, (2, 1), 4),
    make_config(128, 128, 128, (1, 1), 6),
    make_config(128, 192, 128, (1, 2), 4),
    make_config(256, 96, 128, (1, 2), 4),
    make_config(128, 96, 128, (1, 1), 7, pingpong=True),
]
FAST_CONFIGS = [
    make_config(128, 256, 128, (2, 1), 4),
    make_config(256, 128, 128, (1, 2), 4),
    make_config(128, 192, 128, (2, 1), 4, pingpong=True),
]


def in_turns(calls: list[Callable[[], Any]]) -> list[float]:
    """Microseconds of each, sustained."""
    works = {str(number): Work(call, 0.0) for number, call in enumerate(calls)}
    return [turns.middle.us for turns in back_to_back.in_turns(works, *PACE).values()]


def agree(name: str, got: Any, wanted: Any) -> None:
    worst = ((got.float() - wanted.float()).abs().max() / wanted.float().abs().max()).item()
    if not worst <= 2e-2:
        raise SystemExit(f"{name}: {worst:.2e} away from the peer's")


class Groups:
    """A grouped GEMM."""

    def __init__(self, groups: int, rows: int, n: int, k: int, spread: str) -> None:
        generator = torch.Generator().manual_seed(0)
        total = groups * rows
        if spread == "equal":
            sizes = torch.full((groups,), rows)
        else:
            chances = torch.rand(groups, generator=generator) + 0.2
            sizes = torch.bincount(torch.multinomial(chances, total, True, generator=generator), minlength=groups)
        self.ends = torch.cumsum(sizes, 0).to(torch.int32).cuda()
        self.a = torch.randn(total, k, device="cuda", dtype=BF16)
        self.b = torch.randn(groups, n, k, device="cuda", dtype=BF16).mT
        refuse_constants(self.a[:64])
        self.out = torch.empty(total, n, device="cuda", dtype=BF16)
        self.work = 2 * total * n * k / 1e12
        self.weights = groups * n * k * 2 / 1e12
        self.rows = rows
        self.name = (groups, f"{rows} {spread}", n, k)

    def ours(self, config: Any = None) -> Callable[[], Any]:
        return functools.partial(kernels.grouped_gemm, self.a, self.b, offsets=self.ends, out=self.out, config=config)

    def theirs(self) -> Callable[[], Any]:
        return functools.partial(torch._grouped_mm, self.a, self.b, self.ends)

    def config(self) -> Any:
        a, out = (arrays.layout_of(x[None]) for x in (self.a, self.out))
        problem = GroupedGemmProblem(a, arrays.layout_of(self.b), out, expected_rows=self.rows)
        return grouped_gemm.REGISTRY.choose(problem, current()).config


def groups(configs: bool) -> None:
    for given in GROUPS:
        case = Groups(*given)
        tried = GROUP_CONFIGS if configs else [None]
        calls = [case.theirs(), *map(case.ours, tried)]
        for config, call in zip(tried, calls[1:], strict=True):
            agree(f"{case.name}, {config}", call(), calls[0]())
        theirs, *ours = in_turns(calls)
        for config, own in zip(tried, ours, strict=True):
            rates = [case.work / us * 1e6 for us in (theirs, own)]
            GROUP_TABLE.add(
                *case.name,
                f"{rates[0]:.0f}",
                f"{rates[1]:.0f}",
                f"{rates[1] / rates[0]:.2f}",
                f"{case.weights / own * 1e6:.2f}",
                short(config or case.config()),
            )


QUANTISED_GROUPS = [
    (64, 128, 4096, 2048, "equal"),
    (8, 1024, 4096, 7168, "equal"),
    (32, 256, 4096, 7168, "uneven"),
    (256, 64, 4096, 2048, "uneven"),
]
"""As `GROUPS`, of 8-bit floats."""


class OtherGroups(Groups):
    """The same groups masked (padded to the longest), and of e4m3 with block scales."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        starts = torch.cat([self.ends.new_zeros(1), self.ends[:-1]])
        self.counts = self.ends - starts
        (total, k), (count, _, n), most = self.a.shape, self.b.shape, int(self.counts.max())
        self.padded = torch.randn(count, most, k, device="cuda", dtype=BF16)
        self.padded_out = torch.empty(count, most, n, device="cuda", dtype=BF16)
        self.a8, self.b8 = self.a.to(E4M3), self.b.mT.contiguous().to(E4M3).mT
        self.padded8 = self.padded.to(E4M3)
        rows = [torch.rand(*shape, k // 128, device="cuda") + 0.5 for shape in ((total,), (count, most))]
        columns = torch.rand(count, k // 128, n // 128, device="cuda") + 0.5
        self.blocks, self.padded_blocks = ({"scale_a": x, "scale_b": columns} for x in rows)
        self.ones = torch.ones(total, device="cuda"), torch.ones(count, n, device="cuda")

    def calls(self) -> list[Callable[[], Any]]:
        """Return the calls in the order of the table's columns; PyTorch scales rows and columns."""
        grouped = functools.partial(functools.partial, kernels.grouped_gemm)
        masked = {"counts": self.counts, "expected_rows": self.rows, "out": self.padded_out}
        scaled = functools.partial(
            torch._scaled_grouped_mm, self.a8, self.b8, *self.ones, offs=self.ends, out_dtype=BF16, use_fast_accum=True
        )
        return [
            self.theirs(),
            self.ours(),
            grouped(self.padded, self.b, **masked),
            scaled,
            grouped(self.a8, self.b8, offsets=self.ends, out=self.out, **self.blocks),
            grouped(self.padded8, self.b8, **masked, **self.padded_blocks),
        ]


def other_groups() -> None:
    for given in QUANTISED_GROUPS:
        case = OtherGroups(*given)
        OTHER_TABLE.add(*case.name, *(f"{case.work / us * 1e6:.0f}" for us in in_turns(case.calls())))


class Quantised:
    """A GEMM of 8-bit floats."""

    def __init__(self, m: int, n: int, k: int) -> None:
        self.a, self.b = torch.randn(m, k, device="cuda").to(E4M3), torch.randn(n, k, device="cuda").to(E4M3).T
        self.out = torch.empty(m, n, device="cuda", dtype=BF16)
        self.blocks = torch.rand(m, k // 128, device="cuda") + 0.5, torch.rand(k // 128, n // 128, device="cuda") + 0.5
        self.work = 2 * m * n * k / 1e12
        self.name = (m, n, k)

    def ours(self, **options: Any) -> Callable[[], Any]:
        return functools.partial(kernels.gemm, self.a, self.b, out=self.out, **options)

    def of_blocks(self, config: Any = None) -> Callable[[], Any]:
        return self.ours(scale_a=self.blocks[0], scale_b=self.blocks[1], config=config)

    def theirs(self, fast: bool) -> Callable[[], Any]:
        one = torch.ones((), device="cuda")
        return functools.partial(torch._scaled_mm, self.a, self.b, one, one, out_dtype=BF16, use_fast_accum=fast)

    def wanted(self) -> Any:
        spread = torch.repeat_interleave
        of_a, of_b = self.blocks
        return (self.a.float() * spread(of_a, 128, 1)) @ (self.b.float() * spread(spread(of_b, 128, 0), 128, 1))


def e4m3(configs: bool) -> None:
    for given in BLOCKS:
        case = Quantised(*given)
        agree(f"{case.name}, block scales", case.of_blocks()(), case.wanted())
        calls = [case.theirs(True), case.ours(precision="fast"), case.ours(), case.of_blocks()]
        for call in calls[1:3]:
            agree(str(case.name), call(), calls[0]())
        rates = [case.work / us * 1e6 for us in in_turns(calls)]
        E4M3_TABLE.add(*case.name, *(f"{x:.0f}" for x in rates), f"{rates[3] / rates[2]:.2f}")
        if configs:
            kinds = [
                ("block scales", BLOCK_CONFIGS, case.of_blocks),
                ("f32 accumulation", BLOCK_CONFIGS, lambda p, c=case: c.ours(config=p)),
            ]
            kinds.append(("fast", FAST_CONFIGS, lambda p, c=case: c.ours(config=p, precision="fast")))
            for kind, tried, make in kinds:
                found = in_turns([make(p) for p in tried])
                print("  " + "; ".join(f"{kind} {short(p)}: {case.work / us * 1e6:.0f}" for p, us in zip(tried, found)))


def rows() -> None:
    for m in ROWS:
        a, b = torch.randn(m, 8192, device="cuda", dtype=BF16), torch.randn(28672, 8192, device="cuda", dtype=BF16).T
        out = torch.empty(m, 28672, device="cuda", dtype=BF16)
        calls = [functools.partial(torch.mm, a, b, out=out), functools.partial(kernels.gemm, a, b, out=out)]
        agree(str(m), calls[1](), torch.mm(a, b))
        theirs, ours = in_turns(calls)
        bytes_ = 28672 * 8192 * 2 / 1e6
        rates = f"{bytes_ / theirs:.2f}, {bytes_ / ours:.2f}"
        ROW_TABLE.add(m, f"{theirs:.1f}", f"{ours:.1f}", rates, f"{theirs / ours:.2f}")


def jobs(parts: list[str], configs: bool) -> list[Callable[[], Any]]:
    """Calls that compile everything."""
    made: list[Callable[[], Any]] = []
    if "groups" in parts:
        made += [lambda p=p: Groups(8, 128, 512, 256, "equal").ours(p)() for p in (GROUP_CONFIGS if configs else [])]
        made += [] if configs else [lambda g=g: Groups(*g).ours()() for g in GROUPS]
    if "blocks" in parts:
        made += [lambda g=g, w=w: getattr(Quantised(*g), w)()() for g in BLOCKS for w in ("of_blocks", "ours")]
        made += [lambda g=g: Quantised(*g).ours(precision="fast")() for g in BLOCKS]
        if configs:
            made += [lambda p=p: Quantised(512, 512, 512).of_blocks(p)() for p in BLOCK_CONFIGS]
            made += [lambda p=p: Quantised(512, 512, 512).ours(config=p)() for p in BLOCK_CONFIGS]
            made += [lambda p=p: Quantised(512, 512, 512).ours(config=p, precision="fast")() for p in FAST_CONFIGS]
    return made


def compile_some(numbers: list[int], parts: list[str], configs: bool) -> None:
    made = jobs(parts, configs)
    for number in numbers:
        made[number]()
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=["groups", "others", "blocks", "rows"])
    parser.add_argument("--configs", action="store_true")
    parser.add_argument("--seconds", type=float, default=PACE[1], help="of a call in a round")
    parser.add_argument("--rounds", type=int, default=PACE[0])
    parser.add_argument("--compile", action="store_true", help="and time nothing")
    parser.add_argument("--compiled", action="store_true", help="time only")
    parser.add_argument("--save", action="store_true", help="write docs/data/gemm_grouped.md")
    given = parser.parse_args()
    PACE[:] = given.rounds, given.seconds
    if not given.compiled:
        compile_all(given.only, given.configs)
    if given.compile:
        return
    torch.manual_seed(0)
    if "groups" in given.only:
        groups(given.configs)
    if "others" in given.only:
        other_groups()
    if "blocks" in given.only:
        e4m3(given.configs)
    if "rows" in given.only:
        rows()
    PAGE.finish(given.save)


def compile_all(parts: list[str], configs: bool) -> None:
    count, start = len(jobs(parts, configs)), time.perf_counter()
    workers = max(1, min(14, os.cpu_count() or 1, count))
    shares = [list(range(n, count, workers)) for n in range(workers)]
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_some, shares, [parts] * workers, [configs] * workers))
    print(f"{torch.cuda.get_device_name()}: compiled in {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
