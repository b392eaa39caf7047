"""Prefill attention on Hopper beside cuDNN and FlashAttention-2, in bursts and sustained.

    python benchmarks/attention_hopper.py [--rows base,seqlens,gqa,hd64,hd256,other,varlen,paged,float8] [--turns 3]
                                          [--compile 0/4] [--check] [--save]
    python benchmarks/attention_hopper.py --sustained

Peer and Kiln alternate on normal data, and each pair is measured three times. The median ratio counts; the spread of
the three is beside it, so that a disturbed run is seen (`?`: more than 4 %). A burst is 5 calls after 0.2 s of
idleness. Sustained: half a second of the one, then of the other, without a pause; the last third of each is timed,
after a first round of both. `--check` compares results only, `--compile` compiles a part of all kernels.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from attention import sdpa
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels
from kiln.measure import timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], Any]

TOKENS, WIDTH = 32768, 2048
_DOUBTFUL = 0.04
_SLICE = 0.5
"""Seconds of one call, back to back, in a sustained run."""

SUSTAINED = Table(
    "Sustained",
    (
        "dtype",
        "shape",
        "mask",
        "peer",
        "peer TFLOP/s",
        "Kiln TFLOP/s",
        "ratio",
        "spread of peer, Kiln, ratio",
        "clock, power",
    ),
)
BURSTS = Table(
    "Bursts", ("dtype", "shape", "mask", "peer", "peer TFLOP/s", "Kiln TFLOP/s", "ratio", "spread of peer, Kiln, ratio")
)
PAGE = Page(__file__, "Attention forward on Hopper", SUSTAINED, BURSTS)


class Case(NamedTuple):
    """Attention of one shape: the calls, of which the first is the reference, and their TFLOP."""

    name: tuple[str, str, str]
    """Dtype, shape, mask."""
    calls: dict[str, Call]
    work: float

    def check(self) -> None:
        theirs, ours = (call().float() for call in self.calls.values())
        if theirs.shape != ours.shape:  # padded: compared before
            return
        if "float8" in self.name[0]:  # P is rounded, too
            assert (ours - theirs).abs().mean() < 5e-3, (ours - theirs).abs().mean()
        else:
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def normal(*shape: int, dtype: Any = torch.float16) -> Any:
    x = torch.randn(*shape, device="cuda", dtype=torch.float32 if dtype.itemsize == 1 else dtype).to(dtype)
    if dtype.itemsize > 1:
        refuse_constants(x)
    return x


def cudnn(q: Any, k: Any, v: Any, causal: bool) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    call = sdpa(q, k, v, causal)

    def run() -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return call().transpose(1, 2)

    return run


def cudnn_of_equal_heads(q: Any, k: Any, v: Any, causal: bool) -> Call:
    """Return cuDNN's attention with V padded to the head_dim of K."""
    call = cudnn(q, k, torch.nn.functional.pad(v, (0, k.shape[3] - v.shape[3])), causal)
    return lambda: call()[..., : v.shape[3]]


def peer(q: Any, k: Any, v: Any, causal: bool) -> tuple[str, Call]:
    """Return the name and the call of cuDNN, with padded V where it needs that."""
    call = cudnn(q, k, v, causal)
    try:
        call()
    except RuntimeError:
        return "cuDNN, padded V", cudnn_of_equal_heads(q, k, v, causal)
    return "cuDNN", call


def case(shape: Any, causal: bool, dtype: Any = torch.float16) -> Case:
    """Return a shape (batch, seqlen, heads, KV heads, head_dim or (head_dim, head_dim_v)) beside cuDNN, float8 beside
    bf16."""
    batch, length, heads, heads_k, dims = shape
    narrow = dtype.itemsize == 1
    dim, dim_v = dims if isinstance(dims, tuple) else (dims, dims)
    modes = ((heads, dim), (heads_k, dim), (heads_k, dim_v))
    q, k, v = (normal(batch, length, *mode, dtype=dtype) for mode in modes)
    out = torch.empty((*q.shape[:3], dim_v), device="cuda", dtype=torch.bfloat16 if narrow else dtype)
    ours = functools.partial(kernels.flash_attention, q, k, v, causal=causal, out=out)
    if narrow:
        wide: Any = [x.to(torch.bfloat16) for x in (q, k, v)]
        whose, theirs = "Kiln bfloat16", functools.partial(kernels.flash_attention, *wide, causal=causal)
    else:
        whose, theirs = peer(q, k, v, causal)
    work = 2 * batch * heads * length * length * (dim + dim_v) / (2 if causal else 1) / 1e12
    shown = heads if heads == heads_k else f"{heads}/{heads_k}"
    name = (str(dtype)[6:], f"{batch} x {length}, {shown} heads, head_dim {dims}", "causal" if causal else "full")
    return Case(name, {whose: theirs, "Kiln": ours}, work)


def varlen(
    dtype: Any = torch.bfloat16, count: int = 24, least: int = 200, most: int = 4096, padded: bool = False
) -> Case:
    """Return varlen attention beside FlashAttention-2, or beside cuDNN of `padded` sequences; float8 beside bf16."""
    lengths = torch.linspace(least, most, count).round().int().tolist()
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    q, k, v = (normal(sum(lengths), 16, 128, dtype=dtype) for _ in range(3))
    options: dict[str, Any] = {
        "causal": True,
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": most,
        "max_seqlen_k": most,
    }
    ours = functools.partial(kernels.flash_attention, q, k, v, **options)
    if dtype.itemsize == 1:
        wide = [x.to(torch.bfloat16) for x in (q, k, v)]
        name, theirs = "Kiln bfloat16", functools.partial(kernels.flash_attention, *wide, **options)
    elif padded:
        there = torch.arange(most, device="cuda")[None] < torch.tensor(lengths, device="cuda")[:, None]
        rows = [torch.zeros(count, most, 16, 128, device="cuda", dtype=dtype) for _ in range(3)]
        for to, x in zip(rows, (q, k, v), strict=True):
            to[there] = x
        call = cudnn(rows[0], rows[1], rows[2], True)
        torch.testing.assert_close(ours(), call()[there], rtol=2e-2, atol=2e-2)
        name, theirs = "cuDNN, padded", call
    else:

        def theirs() -> Any:
            return torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, most, most, 0.0, True, False)[0]

        name = "FlashAttention-2"
    work = sum(2 * 16 * 128 * n * n for n in lengths) / 1e12
    title = (str(dtype)[6:], f"{count} sequences of {least} to {most}, 16 heads, head_dim 128", "causal")
    return Case(title, {name: theirs, "Kiln": ours}, work)


def paged(page: int, dtype: Any = torch.bfloat16) -> Case:
    """Return attention of 4 x 2048 queries to a shuffled paged KV cache of 8192, beside contiguous K and V."""
    batch, queries, keys = 4, 2048, 8192
    q, k, v = (normal(batch, n, heads, 128, dtype=dtype) for n, heads in ((queries, 32), (keys, 8), (keys, 8)))
    table = torch.randperm(batch * keys // page, device="cuda").reshape(batch, -1).int()
    k_pages, v_pages = (torch.empty(batch * keys // page, page, 8, 128, device="cuda", dtype=dtype) for _ in range(2))
    for pages, x in ((k_pages, k), (v_pages, v)):
        pages.view(torch.uint8)[table.flatten().long()] = x.view(torch.uint8).reshape(pages.view(torch.uint8).shape)
    used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    theirs = functools.partial(kernels.flash_attention, q, k, v, causal=True)
    ours = functools.partial(
        kernels.flash_attention, q, k_pages, v_pages, causal=True, page_table=table, seqused_k=used, max_seqlen_k=keys
    )
    work = 4 * batch * 32 * 128 * queries * (keys - queries / 2) / 1e12
    shape = f"4 x 2048, seqlen_k 8192, 32/8 heads, head_dim 128, page size {page}"
    return Case((str(dtype)[6:], shape, "causal"), {"Kiln, contiguous KV": theirs, "Kiln": ours}, work)


def cases(rows: list[str], paced: bool) -> Iterator[Callable[[], Case]]:
    """Return the cases of some rows; `paced` leaves those that are measured sustained."""
    both, make, float8 = (False, True), functools.partial, torch.float8_e4m3fn
    found = {
        "base": [make(case, (4, 8192, 16, 16, 128), c, t) for t in (torch.float16, torch.bfloat16) for c in both],
        "seqlens": [
            make(case, (TOKENS // n, n, 16, 16, 128), c) for n in (1024, 2048, 4096, 16384, 32768) for c in both
        ],
        "gqa": [make(case, (TOKENS // n, n, 32, 8, 128), c) for n in (8192, 1024, 2048, 32768) for c in both],
        "hd64": [
            make(case, (TOKENS // n, n, 32, 32, 64), c) for n in (8192, 1024, 2048, 4096, 16384, 32768) for c in both
        ],
        "hd256": [make(case, (TOKENS // n, n, 8, 8, 256), c) for n in (8192, 1024, 2048, 32768) for c in both],
        "other": [
            make(case, (TOKENS // n, n, 16, 16, d), c)
            for d in (96, 192, (192, 128))
            for n in (8192, 2048)
            for c in both
        ],
        "float8": [make(case, (1, 16384, WIDTH // d, WIDTH // d, d), c, float8) for d in (128, 256, 64) for c in both],
        "varlen": [
            varlen,
            make(varlen, padded=True),
            make(varlen, torch.bfloat16, 2048, 16, 112),
            make(varlen, float8),
        ],
        "paged": [*[make(paged, page) for page in (1, 16, 64, 256)], make(paged, 16, float8)],
    }
    if paced:
        found = {name: found[name][: {"base": 4, "float8": 6}.get(name, 2)] for name in list(found)[:-2]}
        del found["seqlens"], found["other"]
    for row in rows or found:
        yield from found[row]


def bursts(calls: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """Return microseconds of bursts: 5 calls after 0.2 s of idleness; the calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for call in calls.values():
        call()
    for _ in range(turns):
        for name, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(0.2)
            torch.cuda._sleep(600_000)  # until all calls are under way
            start.record()
            for _ in range(5):
                call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 5 * 1e3)
    return times


def sustained(calls: dict[str, Call], turns: int) -> tuple[dict[str, list[float]], str]:
    """Return microseconds of alternating calls, each back to back, and clock and power while they ran."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    counts: dict[str, int] = {}
    for name, call in calls.items():
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        counts[name] = max(1, round(_SLICE / 3e-3 / start.elapsed_time(end)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    watch = timers.timer().watch()
    for turn in range(turns + 1):
        for name, call in calls.items():
            timed = counts[name]
            for n in range(3 * timed):
                if n == 2 * timed:
                    start.record()
                call()
            end.record()
            watch.look()
            torch.cuda.synchronize()
            if turn:
                times[name].append(start.elapsed_time(end) / timed * 1e3)
    clocks = watch.clocks()
    return times, f"{clocks.sm_mhz or 0:.0f} MHz, {clocks.watts or 0:.0f} W"


def row(found: Case, times: dict[str, list[float]], clocks: str = "") -> float:
    """Add a row: TFLOP/s of both, their ratio, and the spread of all three."""
    theirs, ours = times.values()
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    cells, spreads = [], []
    for values, scale in ((theirs, 1e6 * found.work), (ours, 1e6 * found.work), (ratios, 0.0)):
        middle = statistics.median(values)
        spreads.append((max(values) - min(values)) / middle)
        cells.append(f"{scale / middle:.0f}" if scale else f"{middle:.3f}")
    doubt = "?" if max(spreads) > _DOUBTFUL else ""
    text = ", ".join(f"{x:.1%}" for x in spreads)
    row = (*found.name, next(iter(found.calls)), *cells, f"{text}{doubt}")
    if clocks:
        SUSTAINED.add(*row, clocks)
    else:
        BURSTS.add(*row)
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[])
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--compile", default="")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save", action="store_true", help="write docs/data/attention_hopper.md")
    given = parser.parse_args()
    torch.manual_seed(0)
    made = list(cases(given.rows, given.sustained))
    if given.compile or given.check:
        number, count = map(int, (given.compile or "0/1").split("/"))
        for make in made[number::count]:
            found = make()
            try:
                found.check()
            except AssertionError as wrong:
                print(*found.name, "WRONG", str(wrong)[:300], flush=True)
            else:
                print(*found.name, "agrees", flush=True)
        return
    ratios = []
    for make in made:
        found = make()
        try:
            found.check()
        except AssertionError as wrong:
            print(f"{found.name}: WRONG {str(wrong)[:200]}", flush=True)
            continue
        times, clocks = (
            sustained(found.calls, given.turns) if given.sustained else (bursts(found.calls, given.turns), "")
        )
        ratios.append(row(found, times, clocks))
    print(f"\n{math.exp(statistics.mean(map(math.log, ratios))):.3f} on average, {min(ratios):.3f} at least")
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
