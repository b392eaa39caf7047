"""Attention backward beside cuDNN and FlashAttention-2, in bursts and sustained.

    python benchmarks/attention_backward.py [--dims 128,64] [--length 8192] [--configs] [--varlen] [--shapes] [--save]
    python benchmarks/attention_backward.py --sustained [--rows 128,256/4,192x128,varlen256] [--rounds 2] [--seconds 3]

A burst is 5 calls after 0.2 s of idleness, three of them at least; sustained is the last second of three back to back.
Peer and Kiln alternate on normal data in bf16: 32768 tokens, 2048 elements in all heads. TFLOP/s count the five GEMMs
of the backward pass. `--configs` compares configs, and `deterministic=False`, in bursts. `--varlen`: twelve sequences
of 100 to 8192, causal, beside PyTorch's `varlen_attn` (FlashAttention-2). `--shapes`: other lengths, GQA, few heads,
other head dims. `--sustained`: seconds of the peer, then of Kiln, in rounds; the last third of each is timed. Its rows
are head_dim (x head_dim_v), the GQA group size after a slash, or varlen.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels, measure
from kiln.measure import timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS, WIDTH = 32768, 2048
CONFIGS: dict[int, list[tuple[int, ...]]] = {
    128: [(64, 2), (48, 3)],
    64: [(96, 2), (96, 3), (96, 2, 2), (80, 2, 0, 2), (112, 2)],
}
"""Values of `kernels.Sm90AttentionBackwardConfig` to compare, by head_dim."""
LENGTHS = (3000, 500, 1200, 8192, 700, 4100, 2048, 100, 900, 6000, 2400, 3628)
"""Lengths of the varlen sequences: 32768 tokens in all."""

BESIDE = Table(
    "Bursts and sustained, TFLOP/s (of cuDNN)",
    (
        "dtype",
        "head_dim",
        "seqlen",
        "mask",
        "cuDNN burst",
        "Kiln burst",
        "cuDNN sustained",
        "Kiln sustained",
        "clock, power",
    ),
)
SUSTAINED = Table(
    "Sustained, rounds of peer and Kiln",
    (
        "case",
        "mask",
        "peer",
        "peer TFLOP/s",
        "Kiln TFLOP/s",
        "ratio of each round",
        "peer clock, power",
        "Kiln clock, power",
    ),
)
SHAPE_TABLE = Table(
    "Other shapes, bursts, TFLOP/s (of cuDNN)",
    ("batch", "seqlen", "heads Q/KV", "head_dim QK/V", "mask", "cuDNN", "Kiln", "Kiln, deterministic=False"),
)
VARLEN = Table(
    "Varlen, twelve sequences of 100 to 8192, causal, bursts",
    ("head_dim", "FlashAttention-2 TFLOP/s", "Kiln TFLOP/s", "Kiln mma.sync TFLOP/s"),
)
CONFIG_TABLE = Table("Configs, bursts, TFLOP/s (of cuDNN)", ("dtype", "head_dim", "seqlen", "mask", "config", "burst"))
PAGE = Page(__file__, "Attention backward", BESIDE, SUSTAINED, SHAPE_TABLE, VARLEN, CONFIG_TABLE)


SHAPES = [
    *((32768 // n, n, 16, 16, 128, 128) for n in (1024, 2048, 4096, 16384)),
    *((32768 // n, n, 32, 32, 64, 64) for n in (1024, 2048, 4096, 16384)),
    (4, 8192, 16, 4, 128, 128),
    (1, 8192, 2, 2, 128, 128),
    (1, 8192, 4, 4, 128, 128),
    (1, 8192, 8, 8, 128, 128),
    *((32768 // n, n, 8, 8, 256, 256) for n in (1024, 2048, 4096, 16384)),
    (4, 8192, 8, 2, 256, 256),
    (1, 8192, 2, 2, 256, 256),
    (2, 4096, 8, 8, 192, 192),
    (2, 4096, 8, 8, 192, 128),
    (2, 4096, 8, 8, 256, 256),
    (4, 8192, 8, 8, 192, 128),
]
"""Batch, seqlen, query heads, KV heads, head_dim, head_dim_v."""


class Case:
    """Attention backward of one shape: the calls and their TFLOP."""

    def __init__(self, dim: int, length: int, causal: bool, dtype: Any = torch.bfloat16) -> None:
        shape = (max(1, TOKENS // length), length, WIDTH // dim, dim)
        self.q, self.k, self.v, self.dout = (torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(4))
        refuse_constants(self.dout)
        self.causal = causal
        self.out, self.lse = kernels.flash_attention(self.q, self.k, self.v, causal=causal, return_lse=True)
        self.to = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        self.work = 10 * shape[0] * length * length * WIDTH / (2 if causal else 1) / 1e12
        self.name = (str(dtype)[6:], dim, length, "causal" if causal else "full")

    def ours(self, config: Any = None, deterministic: bool = True) -> Callable[[], Any]:
        tensors = (self.dout, self.q, self.k, self.v, self.out, self.lse)
        named = dict(zip(("dq", "dk", "dv"), self.to, strict=True))
        return functools.partial(
            kernels.flash_attention_backward,
            *tensors,
            causal=self.causal,
            config=config,
            deterministic=deterministic,
            **named,
        )

    def theirs(self) -> Callable[[], Any]:
        return _theirs(self.q, self.k, self.v, self.dout, self.causal)

    def check(self) -> None:
        for x, y in zip(self.ours()(), self.theirs()(), strict=True):
            torch.testing.assert_close(x, y.transpose(1, 2), rtol=3e-2, atol=3e-2)


def _theirs(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Callable[[], Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        gqa = q.shape[1] != k.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)
    return lambda: torch.autograd.grad(out, (q, k, v), dout.transpose(1, 2), retain_graph=True)


def beside(arguments: argparse.Namespace) -> None:
    """Measure cuDNN and Kiln in bursts and sustained."""
    for case in _cases(arguments):
        paces = measure.paces({"cuDNN": case.theirs(), "Kiln": case.ours()})
        cells = _rates(case, {name: found.burst for name, found in paces.items()})
        cells += _rates(case, {name: found.sustained for name, found in paces.items()})
        last = paces["Kiln"].sustained
        BESIDE.add(*case.name, *cells, f"{last.clock_mhz or 0:.0f} MHz, {last.watts or 0:.0f} W")


def configs(arguments: argparse.Namespace) -> None:
    """Measure configs in bursts."""
    for case in _cases(arguments):
        calls = {"cuDNN": case.theirs(), "default": case.ours(), "nondeterministic": case.ours(None, False)}
        calls |= {
            str(config): case.ours(kernels.Sm90AttentionBackwardConfig(*config)) for config in CONFIGS[case.q.shape[3]]
        }
        found = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements
        for name, rate in zip(found, _rates(case, found), strict=True):
            CONFIG_TABLE.add(*case.name, name, rate)


def shapes(arguments: argparse.Namespace) -> None:
    """Measure other shapes in bursts."""
    for (batch, length, heads, heads_k, dim, dim_v), causal in itertools.product(SHAPES, (False, True)):
        sizes = ((heads, dim), (heads_k, dim), (heads_k, dim_v), (heads, dim_v))
        q, k, v, dout = (torch.randn(batch, length, *x, device="cuda", dtype=torch.bfloat16) for x in sizes)
        out, lse = kernels.flash_attention(q, k, v, causal=causal, return_lse=True)
        ours = functools.partial(kernels.flash_attention_backward, dout, q, k, v, out, lse, causal=causal)
        calls = {
            "cuDNN": _theirs(q, k, v, dout, causal),
            "Kiln": ours,
            "nondeterministic": functools.partial(ours, deterministic=False),
        }
        found = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements
        work = 2 * batch * heads * length * length * (3 * dim + 2 * dim_v) / (2 if causal else 1) / 1e6
        theirs, *own = found.values()
        cells = (f"{work / one.us:.0f} ({theirs.us / one.us:.2f})" for one in own)
        kind = "causal" if causal else "full"
        SHAPE_TABLE.add(batch, length, f"{heads}/{heads_k}", f"{dim}/{dim_v}", kind, f"{work / theirs.us:.0f}", *cells)


def varlen(arguments: argparse.Namespace) -> None:
    """Measure varlen sequences in bursts."""
    for dim in arguments.dims:
        ours, theirs, work = _varlen_case(dim)
        calls = {"FlashAttention-2": theirs, "Kiln": ours}
        calls["Kiln, mma.sync"] = functools.partial(ours, config=kernels.Sm80AttentionBackwardConfig(64, 32))
        found = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements
        VARLEN.add(dim, *(f"{work / one.us:.0f}" for one in found.values()))


def _varlen_case(dim: int) -> tuple[Callable[..., Any], Callable[[], Any], float]:
    """Return Kiln's call, the peer's, and their MFLOP."""
    starts = torch.tensor([sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)], dtype=torch.int32, device="cuda")
    longest = max(LENGTHS)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}
    shape = (TOKENS, WIDTH // dim, dim)
    q, k, v, dout = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    refuse_constants(dout)
    out, lse = kernels.flash_attention(q, k, v, causal=True, return_lse=True, **lengths)
    ours = functools.partial(kernels.flash_attention_backward, dout, q, k, v, out, lse, causal=True, **lengths)
    theirs = _varlen_theirs(q, k, v, dout, starts, longest)
    for x, y in zip(ours(), theirs(), strict=True):
        torch.testing.assert_close(x, y, rtol=3e-2, atol=3e-2)
    return ours, theirs, 5 * sum(n * n for n in LENGTHS) * WIDTH / 1e6


def _varlen_theirs(q: Any, k: Any, v: Any, dout: Any, starts: Any, longest: int) -> Callable[[], Any]:
    from torch.nn.attention.varlen import varlen_attn  # pyright: ignore[reportMissingImports]

    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out: Any = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def sustained(arguments: argparse.Namespace) -> None:
    """Measure peer and Kiln at the power limit, round by round."""
    for name, causal in itertools.product(arguments.rows, (False, True)):
        if name.startswith("varlen") and not causal:
            continue
        try:
            calls, work = _long_case(name, causal)
        except RuntimeError as refused:
            print(f"{name}, causal {causal}: {str(refused)[:200]}", flush=True)
            continue
        for one in calls.values():
            one()
        times: dict[str, list[float]] = {peer: [] for peer in calls}
        clocks: dict[str, str] = {}
        for _ in range(arguments.rounds):
            for peer, call in calls.items():
                us, clocks[peer] = _last_third(call, arguments.seconds)
                times[peer].append(us)
        theirs, ours = times.values()
        cells = [f"{work / statistics.median(x):.0f}" for x in (theirs, ours)]
        cells.append(", ".join(f"{a / b:.3f}" for a, b in zip(theirs, ours, strict=True)))
        kind = "causal" if causal else "full"
        SUSTAINED.add(_label(name), kind, next(iter(calls)), *cells, *clocks.values())


def _label(row: str) -> str:
    """Return a row of `--rows` in words: `192x128` is head_dim 192/128, `256/4` a GQA group of 4."""
    if row.startswith("varlen"):
        return f"head_dim {row[6:] or 128}, varlen"
    dims, _, group = row.partition("/")
    return f"head_dim {dims.replace('x', '/')}" + (f", GQA {group}" if group else "")


def _long_case(name: str, causal: bool) -> tuple[dict[str, Any], float]:
    """Return the peer's call and Kiln's, and their MFLOP."""
    if name.startswith("varlen"):
        dim = int(name[6:] or 128)
        ours, theirs, work = _varlen_case(dim)
        return {"FlashAttention-2": theirs, "Kiln": ours}, work
    dims, _, group = name.partition("/")
    dim, dim_v = (int(x) for x in (dims.split("x") * 2)[:2])
    heads = WIDTH // dim
    heads_k = heads // int(group or 1)
    length, batch = 8192, TOKENS // 8192
    sizes = ((heads, dim), (heads_k, dim), (heads_k, dim_v), (heads, dim_v))
    q, k, v, dout = (torch.randn(batch, length, *x, device="cuda", dtype=torch.bfloat16) for x in sizes)
    refuse_constants(dout)
    out, lse = kernels.flash_attention(q, k, v, causal=causal, return_lse=True)
    to = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    ours = functools.partial(kernels.flash_attention_backward, dout, q, k, v, out, lse, causal=causal, **to)
    theirs = _theirs(q, k, v, dout, causal)
    for x, y in zip(ours(), theirs(), strict=True):
        torch.testing.assert_close(x, y.transpose(1, 2), rtol=3e-2, atol=3e-2)
    work = 2 * batch * heads * length * length * (3 * dim + 2 * dim_v) / (2 if causal else 1) / 1e6
    return {"cuDNN": theirs, "Kiln": ours}, work


def _last_third(call: Callable[[], Any], seconds: float) -> tuple[float, str]:
    """Return microseconds of a call, back to back, and clock and power while it was timed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    third = max(1, round(1e3 * seconds / 3 / start.elapsed_time(end)))
    watch = timers.timer().watch()
    for n in range(3 * third):
        if n == 2 * third:
            start.record()
        call()
    end.record()
    while not end.query():
        if start.query():
            watch.look()
        time.sleep(0.01)
    clocks = watch.clocks()
    return 1e3 * start.elapsed_time(end) / third, f"{clocks.sm_mhz or 0:.0f} MHz, {clocks.watts or 0:.0f} W"


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for dim in arguments.dims:
        for causal in (False, True):
            case = Case(dim, arguments.length, causal)
            case.check()
            yield case


def _rates(case: Case, found: dict[str, measure.Measurement]) -> list[str]:
    rates = {name: case.work * 1e6 / one.us for name, one in found.items()}
    return [f"{rate:.0f} ({rate / rates['cuDNN']:.2f})" for rate in rates.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=lambda text: [int(x) for x in text.split(",")], default=[128, 64])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--configs", action="store_true")
    parser.add_argument("--varlen", action="store_true")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        default=["128", "64", "256", "192", "192x128", "256/4", "varlen256"],
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--save", action="store_true", help="write docs/data/attention_backward.md")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    chosen = [run for run in (configs, varlen, shapes, sustained) if getattr(arguments, run.__name__)]
    for run in chosen or [beside]:
        run(arguments)
    PAGE.finish(arguments.save)


if __name__ == "__main__":
    main()
