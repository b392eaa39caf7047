"""Decoding on one GPU: few queries and a cache that is read once, in pages and not, and of latents (MLA), beside PyTorch's attention.

    python benchmarks/decode.py [paged] [mla] [latents] [ragged] [prompt] [--quick] [--short] [--compile]

Times are of the device alone, with an empty L2 cache; those of `latents` and `ragged` are of bursts (5 calls after 0.2 s of idleness) and
sustained (the last second of three). TB/s are of the cache that sequences have, read once, beside a copy's. `--compile` only compiles and
compares, `--quick` leaves PyTorch and sustained rates out, `--short` takes less time for each.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from attention import normal, sdpa, shown

from kiln import kernels, measure
from kiln.measure.statistics import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = (
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
"""Batch, queries, keys; 32 heads that share 8 of keys, D 128, bf16."""
SHORT = measure.Effort(Stopping(0.015, 8, 0.0, 0.08), warmup=0.03, window=0.01, batch=0.003)
PAGES = (256, 64, 16, 1)
LATENT = (
    (128, 1, 16, 8192), (128, 1, 32, 4096), (64, 1, 64, 8192), (128, 1, 128, 4096), (128, 2, 128, 4096), (32, 1, 128, 16384),
    (16, 1, 16, 32768), (1, 1, 16, 131072), (1, 1, 128, 131072),
)  # fmt: skip
"""Batch, tokens, heads, latents of a sequence; bf16."""
PACED = (
    *((128, tokens, heads, 8192 if heads == 16 else 4096) for tokens in (1, 2, 4) for heads in (16, 32, 64, 128)),
    (128, 1, 128, 8192), (128, 1, 128, 16384),
)  # fmt: skip
"""The same, in bursts."""
SUSTAINED = PACED[:4] + PACED[7:8]
"""Those that are sustained, too."""
RAGGED = ((128, 1, 16, 8192), (128, 1, 32, 4096), (128, 1, 64, 4096), (128, 1, 128, 4096), (37, 2, 128, 16384))
"""The same, of sequences of lengths anywhere from 1 on."""
PROMPTS = ((4, 512, 16, 4096), (4, 512, 128, 4096), (1, 2048, 128, 16384), (4, 2048, 16, 2048), (1, 4096, 128, 4096))
"""The same: the last tokens of prompts, whose latents are in the cache already, or all."""


def device_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call; before each the L2 cache is emptied."""
    return measure.measure(call, effort=SHORT if "--short" in sys.argv else measure.QUICK).us


def copy_rate() -> float:
    """TB/s that a kernel reads and writes which copies 1 GiB with another sign. (`copy_` of a graph is not done by a kernel: 2.7 TB/s.)"""
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    return 8 * x.numel() / measure.measure(lambda: torch.neg(x, out=y), l2="warm", effort=measure.QUICK).us / 1e6


def in_pages(x: torch.Tensor, size: int, table: torch.Tensor) -> torch.Tensor:
    """Rows (batch, rows, heads, D) in pages, which lie as a table says."""
    pages = torch.empty(table.numel(), size, *x.shape[2:], device="cuda", dtype=x.dtype)
    pages[table.flatten().long()] = x.reshape(-1, size, *x.shape[2:])
    return pages


def paged(only_compile: bool) -> None:
    """Attention of few queries, of pages of several sizes and of none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    names = " | ".join(f"pages of {size} us" for size in PAGES)
    print(
        f"\n| batch | queries | keys | cuDNN us | Kiln us | {names} | Kiln TB/s | slower in pages | e4m3 us | e4m3 cache, pages of 64 us | TB/s |"
    )
    print("|---" * (10 + len(PAGES)) + "|", flush=True)
    for batch, queries, keys in FEW:
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
        print(
            f"| {batch} | {queries} | {keys} | {shown(theirs)} | {' | '.join(map(shown, us))} | {size / us[0] / 1e6:.2f} | {slower} "
            f"| {shown(us8)} | {shown(us_cache)} | {size / 2 / us_cache / 1e6:.2f} |",
            flush=True,
        )


def by_hand(q: torch.Tensor, latents: torch.Tensor) -> Callable[[], torch.Tensor]:
    """PyTorch's two products and softmax, of latents that are not in pages."""
    q, k, v = q.flatten(1, 2), latents.transpose(1, 2), latents[..., :512]
    return lambda: torch.softmax(torch.baddbmm(q.new_empty(1), q, k, beta=0, alpha=576**-0.5), -1) @ v


def latents_in_pages(batch: int, tokens: int, heads: int, keys: int) -> tuple[torch.Tensor, ...]:
    """Latents of sequences; and queries, the latents in pages anywhere, the table of pages, lengths, outputs."""
    latents, q = normal(batch, keys, 576), normal(batch, tokens, heads, 576)
    table = torch.randperm(batch * keys // 64, device="cuda", dtype=torch.int32).view(batch, -1)
    cache = in_pages(latents[:, :, None], 64, table)[:, :, 0]
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    return latents, q, cache, table, lengths, q.new_empty(batch, tokens, heads, 512)


def us_or_none(call: Callable[[], Any]) -> float | None:
    """Microseconds of a call, unless it refuses its arrays."""
    try:
        return device_us(call)
    except RuntimeError:
        return None


def expanded(batch: int, tokens: int, heads: int) -> list[Callable[[], Any]]:
    """Attention of all tokens of prompts to keys of 192 and values of 128, as latents are multiplied out for it (which is not timed): that of
    PyTorch, by cuDNN, and Kiln's."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    q, k, v = (normal(batch, tokens, heads, columns) for columns in (192, 192, 128))
    out, theirs = torch.empty_like(v), sdpa(q, k, v, True)

    def cudnn() -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return theirs()

    return [cudnn, functools.partial(kernels.flash_attention, q, k, v, causal=True, out=out)]


def prompt(only_compile: bool) -> None:
    """Attention of many tokens to latents in pages of 64, and one after another: each sees those before it, and its own."""
    columns = "batch | tokens | heads | latents | Kiln us | TFLOP/s | not in pages us | f8 cache us | TFLOP/s | (192, 128): cuDNN us | Kiln us"
    print(f"\n| {columns} |\n{'|---' * (columns.count('|') + 1)}|", flush=True)
    for batch, tokens, heads, keys in PROMPTS:
        latents, q, cache, table, lengths, _ = latents_in_pages(batch, tokens, heads, keys)
        q, out = q.flatten(0, 1), q.new_empty(batch * tokens, heads, 512)
        starts, places = (torch.arange(batch + 1, device="cuda", dtype=torch.int32) * n for n in (tokens, keys))
        work = 2 * batch * heads * tokens * (keys - (tokens - 1) / 2) * (576 + 512)
        paged = functools.partial(kernels.mla_prefill, page_table=table, lengths=lengths, out=out)
        calls = [
            functools.partial(paged, q, cache, starts),
            functools.partial(kernels.mla_prefill, q, latents.flatten(0, 1), starts, cu_seqlens_k=places, max_length=keys, out=out),
            functools.partial(paged, q, cache.to(torch.float8_e4m3fn), starts),
        ]  # fmt: skip
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
        print(f"| {batch} | {tokens} | {heads} | {keys} | {' | '.join(cells)} |", flush=True)


def mla(only_compile: bool, quick: bool = False) -> None:
    """Attention to latents in pages of 64."""
    columns = "batch | tokens | heads | latents | PyTorch us | Kiln us | Kiln TB/s | Kiln TFLOP/s | f8 cache us | TB/s"
    print(f"\n| {columns} |\n{'|---' * (columns.count('|') + 1)}|", flush=True)
    one = torch.ones(1, device="cuda")
    for batch, tokens, heads, keys in LATENT:
        latents, q, cache, table, lengths, out = latents_in_pages(batch, tokens, heads, keys)
        ours = functools.partial(kernels.mla_decode, q, cache, table, lengths, causal=False, out=out)
        theirs = by_hand(q, latents)
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
        cells = f"{'' if quick else shown(device_us(theirs))} | {shown(us)} | {size / us / 1e6:.2f} | {work / us / 1e6:.0f} | {shown(us8)} | {size / 2 / us8 / 1e6:.2f}"
        print(f"| {batch} | {tokens} | {heads} | {keys} | {cells} |", flush=True)


def latents(only_compile: bool, quick: bool = False, ragged: bool = False) -> None:
    """The same in bursts and sustained, of sequences of one length, or of several."""
    columns = "batch | tokens | heads | latents | burst us | TB/s | TFLOP/s | f8 cache us | TB/s | TFLOP/s | sustained us | TB/s | TFLOP/s | clock, power | f8 cache us | TFLOP/s | clock, power"
    print(f"\n| {columns} |\n{'|---' * (columns.count('|') + 1)}|", flush=True)
    burst = measure.BURST._replace(stopping=measure.statistics.Stopping(0.02, 6, 0.0, 0.7))
    for batch, tokens, heads, keys in RAGGED if ragged else PACED:
        _, q, cache, table, lengths, out = latents_in_pages(batch, tokens, heads, keys)
        if ragged:
            lengths = torch.randint(1, keys + 1, (batch,), device="cuda", dtype=torch.int32)
        total = int(lengths.sum())
        caches = cache, cache.to(torch.float8_e4m3fn)
        calls = [functools.partial(kernels.mla_decode, q, x, table, lengths, causal=False, out=out) for x in caches]
        if only_compile:
            wanted = calls[0]().clone()
            torch.testing.assert_close(calls[1](), wanted, rtol=2e-1, atol=1e-1)
            continue
        size, work = 2 * total * 576, 2 * tokens * heads * total * (576 + 512)
        cells = [str(batch), str(tokens), str(heads), f"{'1 to ' if ragged else ''}{keys}"]
        for n, call in enumerate(calls):
            us = measure.measure(call, l2="warm", effort=burst).us
            cells += [shown(us), f"{size / (n + 1) / us / 1e6:.2f}", f"{work / us / 1e6:.0f}"]
        if not ragged and not quick and (batch, tokens, heads, keys) in SUSTAINED:
            for n, call in enumerate(calls):
                found = measure.measure(call, l2="warm", steady=True, effort=measure.SUSTAINED)
                cells += [shown(found.us), *([f"{size / found.us / 1e6:.2f}"] if n == 0 else [])]
                cells += [
                    f"{work / found.us / 1e6:.0f}",
                    f"{found.clock_mhz or 0:.0f} MHz, {found.watts or 0:.0f} W",
                ]
        print("|", " | ".join(cells), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="paged, mla, latents, ragged, prompt; all by default")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short", action="store_true", help="each for less time")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    tables = {
        "paged": paged,
        "mla": functools.partial(mla, quick=arguments.quick),
        "latents": functools.partial(latents, quick=arguments.quick),
        "ragged": functools.partial(latents, quick=arguments.quick, ragged=True),
        "prompt": prompt,
    }
    for name in arguments.tables or tables:
        tables[name](arguments.compile)
    print(f"\nA copy of 1 GiB: {copy_rate():.2f} TB/s")


if __name__ == "__main__":
    main()
