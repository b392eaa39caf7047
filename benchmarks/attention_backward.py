"""Gradients of attention beside cuDNN's, in bursts and sustained.

    python benchmarks/attention_backward.py [--dims 128,64] [--length 8192] [--configs] [--packed] [--shapes]
    python benchmarks/attention_backward.py --sustained [--rows 128,256/4,192x128,packed256] [--rounds 2] [--seconds 3]

A burst is 5 calls after 0.2 s of idleness, thrice at least; sustained is the last second of three back to back. All take turns, with
normal data in bf16, 32768 queries of 2048 elements in all heads. The work is that of five products. `--configs` compares configs, and gradients
that are added up in any order, in bursts instead. `--packed`: twelve sequences of 100 to 8192 one after another, causal, beside PyTorch's
`varlen_attn` (FlashAttention-2), in bursts. `--shapes`: other lengths, heads that share keys, few heads, other sizes of heads, in bursts.
`--sustained`: seconds of the one, then of the other, so many rounds, the last third of each timed; the ratio of each round is told. Rows are
elements of a head (and of values), heads that share keys after a slash, or sequences that are packed.
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

from kiln import kernels, measure
from kiln.measure import timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS, WIDTH = 32768, 2048
CONFIGS: dict[int, list[tuple[int, ...]]] = {
    128: [(64, 2), (48, 3)],
    64: [(96, 2), (96, 2, 1), (96, 2, 2), (80, 2, 2), (112, 2)],
}
"""Of `kernels.Sm90AttentionBackwardConfig`, to compare, by elements of a head."""
LENGTHS = (3000, 500, 1200, 8192, 700, 4100, 2048, 100, 900, 6000, 2400, 3628)
"""Of sequences that lie one after another: 32768 in all."""


SHAPES = [
    *((32768 // n, n, 16, 16, 128, 128) for n in (1024, 2048, 4096, 16384)),
    *((32768 // n, n, 32, 32, 64, 64) for n in (1024, 2048, 4096, 16384)),
    (4, 8192, 16, 4, 128, 128), (1, 8192, 2, 2, 128, 128), (1, 8192, 4, 4, 128, 128), (1, 8192, 8, 8, 128, 128),
    *((32768 // n, n, 8, 8, 256, 256) for n in (1024, 2048, 4096, 16384)), (4, 8192, 8, 2, 256, 256), (1, 8192, 2, 2, 256, 256),
    (2, 4096, 8, 8, 192, 192), (2, 4096, 8, 8, 192, 128), (2, 4096, 8, 8, 256, 256), (4, 8192, 8, 8, 192, 128),
]  # fmt: skip
"""Sequences, their length, heads, those of keys, elements of a head of queries and of values."""


class Case:
    """Gradients of one shape: what is called, and how much is multiplied."""

    def __init__(self, dim: int, length: int, causal: bool, dtype: Any = torch.bfloat16) -> None:
        shape = (max(1, TOKENS // length), length, WIDTH // dim, dim)
        made = (torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(4))
        self.q, self.k, self.v, self.dout = made
        refuse_constants(self.dout)
        self.causal = causal
        self.out, self.lse = kernels.flash_attention(self.q, self.k, self.v, causal=causal, return_lse=True)
        self.to = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        self.work = 10 * shape[0] * length * length * WIDTH / (2 if causal else 1) / 1e12
        self.name = f"{str(dtype)[6:]} | {dim} | {length} | {'causal' if causal else 'full'}"

    def ours(self, config: Any = None, deterministic: bool = True) -> Callable[[], Any]:
        given = (self.dout, self.q, self.k, self.v, self.out, self.lse)
        named = dict(zip(("dq", "dk", "dv"), self.to, strict=True))
        return functools.partial(
            kernels.flash_attention_backward,
            *given,
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
        shared = q.shape[1] != k.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shared)
    return lambda: torch.autograd.grad(out, (q, k, v), dout.transpose(1, 2), retain_graph=True)


def beside(arguments: argparse.Namespace) -> None:
    """TFLOP/s of both."""
    print("| type | D | length | | cuDNN burst | Kiln burst | cuDNN sustained | Kiln sustained | clock, power |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in _cases(arguments):
        paces = measure.paces({"cuDNN": case.theirs(), "Kiln": case.ours()})
        cells = _rates(case, {name: found.burst for name, found in paces.items()})
        cells += _rates(case, {name: found.sustained for name, found in paces.items()})
        last = paces["Kiln"].sustained
        print(
            f"| {case.name} | {' | '.join(cells)} | {last.clock_mhz or 0:.0f} MHz, {last.watts or 0:.0f} W |",
            flush=True,
        )


def configs(arguments: argparse.Namespace) -> None:
    """TFLOP/s of configs."""
    print("| type | D | length | | config | burst |\n|---|---|---|---|---|---|")
    for case in _cases(arguments):
        calls = {"cuDNN": case.theirs(), "the one that is taken": case.ours(), "in any order": case.ours(None, False)}
        calls |= {
            str(config): case.ours(kernels.Sm90AttentionBackwardConfig(*config)) for config in CONFIGS[case.q.shape[3]]
        }
        found = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements
        for name, rate in zip(found, _rates(case, found), strict=True):
            print(f"| {case.name} | {name} | {rate} |", flush=True)


def shapes(arguments: argparse.Namespace) -> None:
    """TFLOP/s of other shapes."""
    print("| sequences | length | heads | D | | cuDNN | Kiln | in any order |\n|---|---|---|---|---|---|---|---|")
    for (batch, length, heads, heads_k, dim, dim_v), causal in itertools.product(SHAPES, (False, True)):
        sizes = ((heads, dim), (heads_k, dim), (heads_k, dim_v), (heads, dim_v))
        q, k, v, dout = (torch.randn(batch, length, *x, device="cuda", dtype=torch.bfloat16) for x in sizes)
        out, lse = kernels.flash_attention(q, k, v, causal=causal, return_lse=True)
        ours = functools.partial(kernels.flash_attention_backward, dout, q, k, v, out, lse, causal=causal)
        calls = {
            "cuDNN": _theirs(q, k, v, dout, causal),
            "Kiln": ours,
            "any": functools.partial(ours, deterministic=False),
        }
        found = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements
        work = 2 * batch * heads * length * length * (3 * dim + 2 * dim_v) / (2 if causal else 1) / 1e6
        cells = (f"{work / one.us:.0f} ({found['cuDNN'].us / one.us:.2f})" for one in found.values())
        kind = "causal" if causal else "full"
        print(
            f"| {batch} | {length} | {heads}, {heads_k} | {dim}, {dim_v} | {kind} | {' | '.join(cells)} |", flush=True
        )


def packed(arguments: argparse.Namespace) -> None:
    """TFLOP/s for sequences one after another."""
    print("| D | | TFLOP/s |\n|---|---|---|")
    for dim in arguments.dims:
        ours, theirs, work = _packed_case(dim)
        calls = {"FlashAttention-2": theirs, "Kiln": ours}
        calls["Kiln, mma.sync"] = functools.partial(ours, config=kernels.Sm80AttentionBackwardConfig(64, 32))
        found = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements
        for name, one in found.items():
            print(f"| {dim} | {name} | {work / one.us:.0f} |", flush=True)


def _packed_case(dim: int) -> tuple[Callable[..., Any], Callable[[], Any], float]:
    """Kiln's call and the peer's, and how much is multiplied, in millions."""
    starts = torch.tensor([sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)], dtype=torch.int32, device="cuda")
    longest = max(LENGTHS)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}
    shape = (TOKENS, WIDTH // dim, dim)
    q, k, v, dout = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    refuse_constants(dout)
    out, lse = kernels.flash_attention(q, k, v, causal=True, return_lse=True, **lengths)
    ours = functools.partial(kernels.flash_attention_backward, dout, q, k, v, out, lse, causal=True, **lengths)
    theirs = _packed_theirs(q, k, v, dout, starts, longest)
    for x, y in zip(ours(), theirs(), strict=True):
        torch.testing.assert_close(x, y, rtol=3e-2, atol=3e-2)
    return ours, theirs, 5 * sum(n * n for n in LENGTHS) * WIDTH / 1e6


def _packed_theirs(q: Any, k: Any, v: Any, dout: Any, starts: Any, longest: int) -> Callable[[], Any]:
    from torch.nn.attention.varlen import varlen_attn  # pyright: ignore[reportMissingImports]

    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out: Any = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def sustained(arguments: argparse.Namespace) -> None:
    """TFLOP/s of both at the power limit, round by round."""
    print("| case | | peer | peer | Kiln | ratio of each round | peer's clock, power | Kiln's |\n" + "|---" * 8 + "|")
    for name, causal in itertools.product(arguments.rows, (False, True)):
        if name.startswith("packed") and not causal:
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
        print(
            f"| {name} | {kind} | {next(iter(calls))} | {' | '.join(cells)} | {' | '.join(clocks.values())} |",
            flush=True,
        )


def _long_case(name: str, causal: bool) -> tuple[dict[str, Any], float]:
    """The peer's call and Kiln's, and how much is multiplied, in millions."""
    if name.startswith("packed"):
        dim = int(name[6:] or 128)
        ours, theirs, work = _packed_case(dim)
        return {"FlashAttention-2": theirs, "Kiln": ours}, work
    dims, _, shared = name.partition("/")
    dim, dim_v = (int(x) for x in (dims.split("x") * 2)[:2])
    heads = WIDTH // dim
    heads_k = heads // int(shared or 1)
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
    """Microseconds of a call, back to back, and clock and power meanwhile."""
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
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        default=["128", "64", "256", "192", "192x128", "256/4", "packed256"],
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    chosen = [run for run in (configs, packed, shapes, sustained) if getattr(arguments, run.__name__)]
    (chosen or [beside])[0](arguments)


if __name__ == "__main__":
    main()
