"""Decode on one GPU, beside cuDNN and PyTorch: a contiguous and a paged KV cache, and MLA, decode and prefill.

    python benchmarks/decode.py [paged] [mla] [mla_bursts] [mla_varlen] [mla_prefill] [--quick] [--short] [--compile]
                                [--save]

Times are of the device alone, with a cold L2 cache; those of `mla_bursts` and `mla_varlen` are of bursts (5 calls after
0.2 s of idleness) and sustained (the last second of three). TB/s count the KV cache, read once. `--compile` only
compiles and compares, `--quick` leaves PyTorch and sustained rates out, `--short` takes less time for each.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from attention import normal, sdpa, shown
from results import Page, Table

from kiln import kernels, measure
from kiln.measure.statistics import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable

DECODE = (
    (1, 1, 4096),
    (1, 1, 32768),
    (1, 1, 131072),
    (1, 16, 131072),
    (16, 1, 16384),
    (16, 4, 16384),
    (16, 16, 16384),
    (64, 1, 4096),
    (64, 4, 4096),
)
"""Batch, seqlen_q, seqlen_k."""
SHORT = measure.Effort(Stopping(0.015, 8, 0.0, 0.08), warmup=0.03, window=0.01, batch=0.003)
PAGES = (256, 64, 16, 1)
MLA = (
    (128, 1, 16, 8192),
    (128, 1, 32, 4096),
    (64, 1, 64, 8192),
    (128, 1, 128, 4096),
    (128, 2, 128, 4096),
    (32, 1, 128, 16384),
    (16, 1, 16, 32768),
    (1, 1, 16, 131072),
    (1, 1, 128, 131072),
)
"""Batch, seqlen_q, heads, seqlen_k; bf16."""
BURSTS = (
    *((128, tokens, heads, 8192 if heads == 16 else 4096) for tokens in (1, 2, 4) for heads in (16, 32, 64, 128)),
    (128, 1, 128, 8192),
    (128, 1, 128, 16384),
)
"""The same, in bursts."""
SUSTAINED = BURSTS[:4] + BURSTS[7:8]
"""The shapes that are measured sustained, too."""
VARLEN = ((128, 1, 16, 8192), (128, 1, 32, 4096), (128, 1, 64, 4096), (128, 1, 128, 4096), (37, 2, 128, 16384))
"""The same; seqlen_k is the greatest, lengths are random from 1 on."""
PREFILL = ((4, 512, 16, 4096), (4, 512, 128, 4096), (1, 2048, 128, 16384), (4, 2048, 16, 2048), (1, 4096, 128, 4096))
"""The same: the last tokens of prompts whose KV is in the cache already, or all tokens."""

PAGED_TABLE = Table(
    "Paged KV cache, 32 query heads, 8 KV heads, head_dim 128, bfloat16",
    (
        "batch",
        "seqlen_q",
        "seqlen_k",
        "cuDNN us",
        "Kiln us",
        "page size 256 us",
        "64 us",
        "16 us",
        "1 us",
        "Kiln TB/s",
        "paged over contiguous",
        "e4m3 us",
        "e4m3 KV, page size 64 us",
        "TB/s",
    ),
)
MLA_TABLE = Table(
    "MLA decode, page size 64",
    (
        "batch",
        "seqlen_q",
        "heads",
        "seqlen_k",
        "PyTorch us",
        "Kiln us",
        "Kiln TB/s",
        "Kiln TFLOP/s",
        "e4m3 KV us",
        "TB/s",
    ),
)
BURST_TABLE = Table(
    "MLA decode, bursts",
    ("batch", "seqlen_q", "heads", "seqlen_k", "us", "TB/s", "TFLOP/s", "e4m3 KV us", "TB/s", "TFLOP/s"),
)
VARLEN_TABLE = Table(
    "MLA decode, bursts, sequences of different lengths",
    ("batch", "seqlen_q", "heads", "seqlen_k", "us", "TB/s", "TFLOP/s", "e4m3 KV us", "TB/s", "TFLOP/s"),
)
SUSTAINED_TABLE = Table(
    "MLA decode, sustained",
    ("batch", "seqlen_q", "heads", "seqlen_k", "TFLOP/s", "clock, power", "e4m3 KV TFLOP/s", "clock, power"),
)
PREFILL_TABLE = Table(
    "MLA prefill, causal",
    (
        "batch",
        "seqlen_q",
        "heads",
        "seqlen_k",
        "Kiln us",
        "TFLOP/s",
        "Kiln, contiguous KV us",
        "e4m3 KV us",
        "TFLOP/s",
        "expanded KV: cuDNN us",
        "Kiln us",
    ),
)
PAGE = Page(
    __file__,
    "Decode: paged KV cache and MLA",
    PAGED_TABLE,
    MLA_TABLE,
    BURST_TABLE,
    VARLEN_TABLE,
    SUSTAINED_TABLE,
    PREFILL_TABLE,
)


def device_us(call: Callable[[], Any]) -> float:
    """Return microseconds of a call with a cold L2 cache."""
    return measure.measure(call, effort=SHORT if "--short" in sys.argv else measure.QUICK).us


def copy_rate() -> float:
    """Return TB/s of a kernel that negates 1 GiB. (`copy_` in a graph is not a kernel: 2.7 TB/s.)"""
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    return 8 * x.numel() / measure.measure(lambda: torch.neg(x, out=y), l2="warm", effort=measure.QUICK).us / 1e6


def in_pages(x: torch.Tensor, size: int, table: torch.Tensor) -> torch.Tensor:
    """Return rows (batch, rows, heads, head_dim) as a paged cache with this page table."""
    pages = torch.empty(table.numel(), size, *x.shape[2:], device="cuda", dtype=x.dtype)
    pages[table.flatten().long()] = x.reshape(-1, size, *x.shape[2:])
    return pages


def paged(only_compile: bool) -> None:
    """Measure decode with page tables of several page sizes, and without."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    for batch, queries, keys in DECODE:
        q, k, v = normal(batch, queries, 32, 128), normal(batch, keys, 8, 128), normal(batch, keys, 8, 128)
        out, lengths = torch.empty_like(q), torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        calls: list[Callable[[], Any]] = [functools.partial(kernels.flash_attention, q, k, v, causal=True, out=out)]
        wanted, float8 = calls[0]().clone(), torch.float8_e4m3fn
        for size in PAGES:
            table = torch.randperm(batch * keys // size, device="cuda", dtype=torch.int32).view(batch, -1)
            caches = [in_pages(x, size, table) for x in (k, v)]
            calls.append(functools.partial(kernels.paged_attention, q, *caches, table, lengths, out=out))
            if only_compile:
                torch.testing.assert_close(calls[-1](), wanted, rtol=2e-2, atol=2e-2)
        narrow = [x.to(float8) for x in (q, k, v)]
        table = torch.randperm(batch * keys // 64, device="cuda", dtype=torch.int32).view(batch, -1)
        caches = [in_pages(x.view(torch.uint8), 64, table).view(float8) for x in narrow[1:]]
        calls.append(functools.partial(kernels.flash_attention, *narrow, causal=True, out=out))
        calls.append(functools.partial(kernels.paged_attention, narrow[0].bfloat16(), *caches, table, lengths, out=out))
        if only_compile:
            wanted = kernels.flash_attention(*(x.bfloat16() for x in narrow), causal=True)
            for call in calls[-2:]:
                torch.testing.assert_close(call(), wanted, rtol=2e-2, atol=2e-2)
            continue
        *us, us8, us_cache = [device_us(call) for call in calls]
        theirs = None
        if queries == 1:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                theirs = device_us(sdpa(q, k, v, False))
        size = 2 * 2 * batch * keys * 8 * 128
        slower = ", ".join(f"{100 * x / us[0] - 100:.0f} %" for x in us[1:])
        PAGED_TABLE.add(
            batch,
            queries,
            keys,
            shown(theirs),
            *map(shown, us),
            f"{size / us[0] / 1e6:.2f}",
            slower,
            shown(us8),
            shown(us_cache),
            f"{size / 2 / us_cache / 1e6:.2f}",
        )


def by_hand(q: torch.Tensor, ckv: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return MLA as PyTorch's batched GEMMs and softmax, of a compressed KV that is not paged."""
    q, k, v = q.flatten(1, 2), ckv.transpose(1, 2), ckv[..., :512]
    return lambda: torch.softmax(torch.baddbmm(q.new_empty(1), q, k, beta=0, alpha=576**-0.5), -1) @ v


def mla_inputs(batch: int, tokens: int, heads: int, keys: int) -> tuple[torch.Tensor, ...]:
    """Return the compressed KV, queries, the same KV in pages, the page table, lengths and an output."""
    ckv, q = normal(batch, keys, 576), normal(batch, tokens, heads, 576)
    table = torch.randperm(batch * keys // 64, device="cuda", dtype=torch.int32).view(batch, -1)
    cache = in_pages(ckv[:, :, None], 64, table)[:, :, 0]
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    return ckv, q, cache, table, lengths, q.new_empty(batch, tokens, heads, 512)


def us_or_none(call: Callable[[], Any]) -> float | None:
    """Return microseconds of a call, None if it refuses its arrays."""
    try:
        return device_us(call)
    except RuntimeError:
        return None


def expanded(batch: int, tokens: int, heads: int) -> list[Callable[[], Any]]:
    """Return cuDNN's and Kiln's attention of whole prompts to expanded K and V, head_dim 192/128; expansion is not
    timed."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    q, k, v = (normal(batch, tokens, heads, columns) for columns in (192, 192, 128))
    out, theirs = torch.empty_like(v), sdpa(q, k, v, True)

    def cudnn() -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return theirs()

    return [cudnn, functools.partial(kernels.flash_attention, q, k, v, causal=True, out=out)]


def mla_prefill(only_compile: bool) -> None:
    """Measure causal MLA prefill with a paged and a contiguous KV cache, beside attention of expanded K and V."""
    for batch, tokens, heads, keys in PREFILL:
        ckv, q, cache, table, lengths, _ = mla_inputs(batch, tokens, heads, keys)
        q, out = q.flatten(0, 1), q.new_empty(batch * tokens, heads, 512)
        starts, places = (torch.arange(batch + 1, device="cuda", dtype=torch.int32) * n for n in (tokens, keys))
        work = 2 * batch * heads * tokens * (keys - (tokens - 1) / 2) * (576 + 512)
        paged = functools.partial(kernels.mla_prefill, page_table=table, lengths=lengths, out=out)
        calls = [
            functools.partial(paged, q, cache, starts),
            functools.partial(
                kernels.mla_prefill, q, ckv.flatten(0, 1), starts, cu_seqlens_k=places, max_length=keys, out=out
            ),
            functools.partial(paged, q, cache.to(torch.float8_e4m3fn), starts),
        ]
        if only_compile:
            wanted = calls[0]().clone()
            torch.testing.assert_close(calls[1](), wanted, rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(calls[2](), wanted, rtol=2e-1, atol=1e-1)
        others = expanded(batch, tokens, heads) if tokens == keys else []
        if only_compile:
            for call in others[1:]:
                call()
            continue
        us = [device_us(call) for call in calls]
        rates = [f"{work / x / 1e6:.0f}" for x in us]
        us += [us_or_none(call) for call in others]
        cells = [
            shown(us[0]),
            rates[0],
            shown(us[1]),
            shown(us[2]),
            rates[2],
            *(map(shown, us[3:]) if others else "--"),
        ]
        PREFILL_TABLE.add(batch, tokens, heads, keys, *cells)


def mla(only_compile: bool, quick: bool = False) -> None:
    """Measure MLA decode with a cold L2 cache, beside PyTorch."""
    one = torch.ones(1, device="cuda")
    for batch, tokens, heads, keys in MLA:
        ckv, q, cache, table, lengths, out = mla_inputs(batch, tokens, heads, keys)
        ours = functools.partial(kernels.mla_decode, q, cache, table, lengths, causal=False, out=out)
        theirs = by_hand(q, ckv)
        if only_compile:
            torch.testing.assert_close(ours().flatten(1, 2), theirs(), rtol=2e-2, atol=2e-2)
        narrow = functools.partial(
            kernels.mla_decode, q, cache.to(torch.float8_e4m3fn), table, lengths, causal=False, out=out, cache_scale=one
        )
        if only_compile:
            torch.testing.assert_close(narrow().flatten(1, 2), theirs(), rtol=2e-1, atol=1e-1)
            continue
        size, work = 2 * batch * keys * 576, 2 * batch * tokens * heads * keys * (576 + 512)
        us, us8 = device_us(ours), device_us(narrow)
        MLA_TABLE.add(
            batch,
            tokens,
            heads,
            keys,
            None if quick else shown(device_us(theirs)),
            shown(us),
            f"{size / us / 1e6:.2f}",
            f"{work / us / 1e6:.0f}",
            shown(us8),
            f"{size / 2 / us8 / 1e6:.2f}",
        )


def mla_bursts(only_compile: bool, quick: bool = False, varlen: bool = False) -> None:
    """Measure MLA decode in bursts and sustained, with sequences of one length or of several."""
    burst = measure.BURST._replace(stopping=measure.statistics.Stopping(0.02, 6, 0.0, 0.7))
    for batch, tokens, heads, keys in VARLEN if varlen else BURSTS:
        _, q, cache, table, lengths, out = mla_inputs(batch, tokens, heads, keys)
        if varlen:
            lengths = torch.randint(1, keys + 1, (batch,), device="cuda", dtype=torch.int32)
        total = int(lengths.sum())
        caches = cache, cache.to(torch.float8_e4m3fn)
        calls = [functools.partial(kernels.mla_decode, q, x, table, lengths, causal=False, out=out) for x in caches]
        if only_compile:
            wanted = calls[0]().clone()
            torch.testing.assert_close(calls[1](), wanted, rtol=2e-1, atol=1e-1)
            continue
        size, work = 2 * total * 576, 2 * tokens * heads * total * (576 + 512)
        cells = [str(batch), str(tokens), str(heads), f"{'1 to ' if varlen else ''}{keys}"]
        for n, call in enumerate(calls):
            us = measure.measure(call, l2="warm", effort=burst).us
            cells += [shown(us), f"{size / (n + 1) / us / 1e6:.2f}", f"{work / us / 1e6:.0f}"]
        (VARLEN_TABLE if varlen else BURST_TABLE).add(*cells)
        if not varlen and not quick and (batch, tokens, heads, keys) in SUSTAINED:
            found = [measure.measure(call, l2="warm", steady=True, effort=measure.SUSTAINED) for call in calls]
            rates = [(f"{work / x.us / 1e6:.0f}", f"{x.clock_mhz or 0:.0f} MHz, {x.watts or 0:.0f} W") for x in found]
            SUSTAINED_TABLE.add(*cells[:4], *rates[0], *rates[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="paged, mla, mla_bursts, mla_varlen, mla_prefill; all by default")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short", action="store_true", help="each for less time")
    parser.add_argument("--save", action="store_true", help="write docs/data/decode.md")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    tables = {
        "paged": paged,
        "mla": functools.partial(mla, quick=arguments.quick),
        "mla_bursts": functools.partial(mla_bursts, quick=arguments.quick),
        "mla_varlen": functools.partial(mla_bursts, quick=arguments.quick, varlen=True),
        "mla_prefill": mla_prefill,
    }
    for name in arguments.tables or tables:
        tables[name](arguments.compile)
    print(f"\nA copy of 1 GiB: {copy_rate():.2f} TB/s")
    PAGE.finish(arguments.save)


if __name__ == "__main__":
    main()
