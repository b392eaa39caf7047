"""Host time of a call of each function of the kernel library, beside PyTorch's.

    python benchmarks/calls.py [--profile] [--cpu] [--save]

Arrays are small, so that a call costs more than the work. The least of 30 batches of 200 calls counts; the device is
drained between batches, and the cases take turns, for the host's speed changes with time. `--profile` also prints
where Python spends the time of Kiln's calls; `--cpu` runs on the CPU target, where the work itself is part of the
time.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from results import Page, Table

import kiln
from kiln import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

functional = torch.nn.functional
Case = tuple[str, "Callable[[], Any]", str, "Callable[[], Any] | None"]
CALLS = Table("Host time of a call, least of 30 batches of 200", ("call", "Kiln us", "PyTorch us", "PyTorch call"))
FIRST = Table("First calls with arrays of another shape, median", ("call", "1st us", "2nd us", "3rd us"))
PAGE = Page(__file__, "Calls of the kernel library", CALLS, FIRST)


def cases(device: str) -> list[Case]:
    """Name and function of Kiln, name and function of PyTorch."""
    x, weight, bias = (torch.randn(*shape, device=device) for shape in ((8, 64), (64,), (64,)))
    dy, y = torch.randn_like(x), torch.softmax(x, -1)
    out, target = torch.empty_like(x), torch.randint(0, 64, (8,), device=device)
    a = torch.randn(64, 64, device=device, dtype=torch.float16)
    b, c = torch.randn_like(a), torch.empty_like(a)
    row = torch.randn(64, device=device, dtype=torch.float16)
    q = torch.randn(1, 64, 2, 64, device=device, dtype=torch.float16)
    heads = q.transpose(1, 2)
    attention = functional.scaled_dot_product_attention
    _, lse = kernels.cross_entropy(x, target, return_lse=True)
    cos, sin = torch.rand(64, 32, device=device), torch.rand(64, 32, device=device)
    seen, logarithms = kernels.flash_attention(q, q, q, return_lse=True)
    pages, table = (
        torch.zeros(4, 16, 2, 64, device=device, dtype=torch.float16),
        torch.zeros(1, 4, device=device, dtype=torch.int32),
    )
    lengths, absorbed = (
        torch.full((1,), 64, device=device, dtype=torch.int32),
        torch.zeros(1, 1, 16, 576, device=device, dtype=torch.bfloat16),
    )
    kv_cache, silu = torch.zeros(4, 64, 576, device=device, dtype=torch.bfloat16), functional.silu
    return [
        ("softmax(x, out=out)", lambda: kernels.softmax(x, out=out), "", lambda: torch.softmax(x, -1, out=out)),
        ("softmax(x)", lambda: kernels.softmax(x), "softmax(x, -1)", lambda: torch.softmax(x, -1)),
        ("rms_norm(x, weight)", lambda: kernels.rms_norm(x, weight), "", lambda: functional.rms_norm(x, (64,), weight)),
        (
            "layer_norm(x, weight, bias)",
            lambda: kernels.layer_norm(x, weight, bias),
            "",
            lambda: functional.layer_norm(x, (64,), weight, bias),
        ),
        (
            "softmax_backward(dy, y)",
            lambda: kernels.softmax_backward(dy, y),
            "",
            lambda: torch._softmax_backward_data(dy, y, -1, torch.float32),
        ),
        ("layer_norm_backward(dy, x, weight)", lambda: kernels.layer_norm_backward(dy, x, weight), "", None),
        ("sum(x, 1)", lambda: kernels.sum(x, 1), "", lambda: torch.sum(x, 1)),
        ("argmax(x, 1)", lambda: kernels.argmax(x, 1), "", lambda: torch.argmax(x, 1)),
        ("elementwise(lambda a: a + 1, x)", lambda: kernels.elementwise(lambda a: a + 1, x), "x + 1", lambda: x + 1),
        ("elementwise(add, x, y)", lambda: kernels.elementwise(_add, x, y), "x + y", lambda: x + y),
        (
            "cross_entropy(x, target)",
            lambda: kernels.cross_entropy(x, target),
            "",
            lambda: functional.cross_entropy(x, target),
        ),
        (
            "cross_entropy_backward(1.0, x, target, lse)",
            lambda: kernels.cross_entropy_backward(1.0, x, target, lse),
            "",
            None,
        ),
        ("gemm(a, b, out=c)", lambda: kernels.gemm(a, b, out=c), "mm(a, b, out=c)", lambda: torch.mm(a, b, out=c)),
        ("gemm(a, b)", lambda: kernels.gemm(a, b), "mm(a, b)", lambda: torch.mm(a, b)),
        (
            "gemm(a, b, bias=row)",
            lambda: kernels.gemm(a, b, bias=row),
            "addmm(row, a, b)",
            lambda: torch.addmm(row, a, b),
        ),
        (
            "flash_attention(q, q, q)",
            lambda: kernels.flash_attention(q, q, q),
            "scaled_dot_product_attention",
            lambda: attention(heads, heads, heads),
        ),
        (
            "flash_attention_backward(dy, q, q, q, y, lse)",
            lambda: kernels.flash_attention_backward(seen, q, q, q, seen, logarithms),
            "",
            None,
        ),
        (
            "paged_attention(q, k, v, table, lengths)",
            lambda: kernels.paged_attention(q[:, :1], pages, pages, table, lengths),
            "",
            None,
        ),
        (
            "mla_decode(q, kv_cache, table, lengths)",
            lambda: kernels.mla_decode(absorbed, kv_cache, table, lengths),
            "",
            None,
        ),
        (
            "fused_add_rms_norm(x, r, weight)",
            lambda: kernels.fused_add_rms_norm(x, dy, weight),
            "x + r, rms_norm",
            lambda: functional.rms_norm(x + dy, (64,), weight),
        ),
        (
            "fused_add_rms_norm(x, r, weight, quantize=e4m3)",
            lambda: kernels.fused_add_rms_norm(x, dy, weight, quantize=torch.float8_e4m3fn),
            "",
            None,
        ),
        (
            "fused_add_layer_norm(x, r, weight, bias)",
            lambda: kernels.fused_add_layer_norm(x, dy, weight, bias),
            "x + r, layer_norm",
            lambda: functional.layer_norm(x + dy, (64,), weight, bias),
        ),
        (
            "fused_add_rms_norm_backward(dy, ds, x, weight)",
            lambda: kernels.fused_add_rms_norm_backward(dy, x, y, weight),
            "",
            None,
        ),
        ("swiglu(x, y)", lambda: kernels.swiglu(x, y), "silu(x) * y", lambda: silu(x) * y),
        ("swiglu(xy)", lambda: kernels.swiglu(x), "silu of one half * other", lambda: silu(x[:, :32]) * x[:, 32:]),
        ("geglu(x, y)", lambda: kernels.geglu(x, y), "gelu(x) * y", lambda: functional.gelu(x) * y),
        ("swiglu_backward(dy, x, y)", lambda: kernels.swiglu_backward(dy, x, y), "", None),
        ("rotary_embedding(q, cos, sin)", lambda: kernels.rotary_embedding(q, cos, sin), "", None),
        (
            "topk_softmax(x, 4)",
            lambda: kernels.topk_softmax(x, 4),
            "softmax, topk",
            lambda: torch.topk(torch.softmax(x, -1), 4),
        ),
    ]


def _add(a: Any, b: Any) -> Any:
    return a + b


def nothing() -> None:
    """Wait for nothing."""


def measure(given: list[Case], rounds: int, batch: int, wait: Callable[[], None]) -> None:
    """Print the table."""
    best = [[float("inf"), float("inf")] for _ in given]
    for _ in range(rounds):
        for times, (_, ours, _, theirs) in zip(best, given, strict=True):
            for side, call in enumerate((ours, theirs)):
                if call is None:
                    continue
                call()
                wait()
                begun = time.perf_counter()
                for _ in range(batch):
                    call()
                times[side] = min(times[side], (time.perf_counter() - begun) / batch)
    wait()
    for times, (name, _, other, theirs) in zip(best, given, strict=True):
        peer = None if theirs is None else f"{times[1] * 1e6:.1f}"
        CALLS.add(f"`{name}`", f"{times[0] * 1e6:.1f}", peer, f"`{other}`" if other else None)


def first_calls(device: str, wait: Callable[[], None]) -> None:
    """Measure the first calls with arrays of a new shape, which Python takes; the kernel is compiled already."""
    found: list[list[float]] = [[] for _ in range(3)]
    for rows in range(9, 30):
        x = torch.randn(rows, 64, device=device)
        for times in found:
            wait()
            begun = time.perf_counter()
            kernels.softmax(x)
            times.append(time.perf_counter() - begun)
    FIRST.add("`softmax(x)`", *(f"{statistics.median(times) * 1e6:.0f}" for times in found))


def profile(given: list[Case], wait: Callable[[], None]) -> None:
    """Where Kiln's calls spend their time."""
    for name, ours, _, _ in given:
        wait()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(300):
            ours()
        profiler.disable()
        wait()
        print(f"\n--- {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


def main(arguments: list[str]) -> None:
    """Print what is asked for."""
    on_cpu = "--cpu" in arguments
    if on_cpu:
        kiln.target("cpu")
    torch.manual_seed(0)
    given = cases("cpu" if on_cpu else "cuda")
    wait = nothing if on_cpu else torch.cuda.synchronize
    measure(given, 5 if on_cpu else 30, 50 if on_cpu else 200, wait)
    first_calls("cpu" if on_cpu else "cuda", wait)
    if "--profile" in arguments:
        profile(given, wait)
    PAGE.finish("--save" in arguments)


if __name__ == "__main__":
    where = "the CPU target" if "--cpu" in sys.argv else torch.cuda.get_device_name()
    print(f"{where}, PyTorch {torch.__version__}\n")
    main(sys.argv[1:])
