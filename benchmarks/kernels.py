"""Kiln's kernels beside PyTorch's, on one GPU, on the same standard-normal data, in one run.

    python benchmarks/kernels.py

Times are of the device alone: several calls are recorded in a CUDA graph, which is replayed; the least of five replays
counts. Results are compared with PyTorch's before they are timed. Matrix products: `products.py`. Attention uses `mma.sync`,
which every GPU since sm_80 has, beside PyTorch's FlashAttention-2, which uses the same instructions, and cuDNN, which does not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import products
import torch

from kiln import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = (
    (32768, 1024, torch.float32),
    (16384, 4096, torch.float16),
    (16384, 8192, torch.bfloat16),
    (4096, 32768, torch.bfloat16),
    (1024, 131072, torch.bfloat16),
)
ATTENTION = (
    (4, 8192, 16, 16, 128, torch.bfloat16, True),
    (4, 8192, 16, 16, 128, torch.bfloat16, False),
    (4, 8192, 16, 16, 128, torch.float16, True),
    (4, 8192, 32, 8, 64, torch.bfloat16, True),
    (16, 2048, 16, 16, 128, torch.bfloat16, True),
    (2, 8192, 16, 16, 96, torch.bfloat16, True),
    (2, 8192, 8, 8, 256, torch.bfloat16, True),
)
"""Batch, length, heads, heads of keys, D, elements, whether causal."""


def device_us(call: Callable[[], object], calls: int) -> float:
    """Microseconds of a call on the device."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    best = float("inf")
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / calls)
    return best


def rows() -> None:
    """Functions of rows: they move data, so what counts is how much a second."""
    print("| | rows | columns | type | torch us | Kiln us | Kiln TB/s | of a copy |\n|---|---|---|---|---|---|---|---|")
    for count, columns, dtype in ROWS:
        rows_of(count, columns, dtype)


def rows_of(count: int, columns: int, dtype: torch.dtype) -> None:
    """The functions of one matrix."""
    x = torch.randn(count, columns, device="cuda", dtype=dtype)
    weight, bias = (torch.randn(columns, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    copy = moved / device_us(lambda: out.copy_(x), 20)
    functional, shape = torch.nn.functional, (columns,)
    pairs = {
        "softmax": (lambda: kernels.softmax(x, out=out), lambda: torch.softmax(x, -1)),
        "rms_norm": (
            lambda: kernels.rms_norm(x, weight, out=out),
            lambda: functional.rms_norm(x, shape, weight, 1e-6),
        ),
        "layer_norm": (
            lambda: kernels.layer_norm(x, weight, bias, out=out),
            lambda: functional.layer_norm(x, shape, weight, bias),
        ),
    }
    for name, (ours, theirs) in pairs.items():
        torch.testing.assert_close(ours(), theirs(), rtol=2e-2, atol=2e-2)
        ours_us, theirs_us = device_us(ours, 20), device_us(theirs, 20)
        speed = moved / ours_us
        print(
            f"| {name} | {count} | {columns} | {str(dtype)[6:]} | {theirs_us:.1f} | {ours_us:.1f} | {speed / 1e6:.2f} | {speed / copy:.2f} |"
        )


def refuse_constants(*data: torch.Tensor) -> None:
    """Constant data runs faster than any other, and proves nothing."""
    for x in data:
        if x.float().std() < 0.1:
            raise SystemExit("the data of a benchmark is constant")


def attention() -> None:
    """Attention, forward. Products that are not hidden count."""
    print(
        "\n| batch | length | heads | D | type | | FlashAttention-2 us | cuDNN us | Kiln us | Kiln TFLOP/s |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    for batch, length, heads, heads_k, dim, dtype, causal in ATTENTION:
        q, k, v = (torch.randn(batch, length, h, dim, device="cuda", dtype=dtype) for h in (heads, heads_k, heads_k))
        refuse_constants(q, k, v)
        out = torch.empty_like(q)
        ours = lambda q=q, k=k, v=v, out=out, causal=causal: kernels.flash_attention(q, k, v, causal=causal, out=out)
        turned = [x.transpose(1, 2) for x in (q, k, v)]
        theirs = lambda turned=turned, causal=causal, shared=heads != heads_k: (
            torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=causal, enable_gqa=shared)
        )
        times = []
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel([backend]):
                try:
                    torch.testing.assert_close(ours(), theirs().transpose(1, 2), rtol=2e-2, atol=2e-2)
                    times.append(f"{device_us(theirs, 5):.0f}")
                except RuntimeError:  # it does not take such heads
                    times.append("-")
        us = device_us(ours, 5)
        work = 4 * batch * heads * length * length * dim / (2 if causal else 1)
        print(
            f"| {batch} | {length} | {heads}/{heads_k} | {dim} | {str(dtype)[6:]} | {'causal' if causal else 'full'} | "
            f"{times[0]} | {times[1]} | {us:.0f} | {work / us / 1e6:.0f} |"
        )


def calls() -> None:
    """What a call from Python costs the host."""
    x = torch.randn(8, 64, device="cuda")
    out = torch.empty_like(x)
    print("\n| a call from Python | us |\n|---|---|")
    for name, call in (
        ("kernels.softmax", lambda: kernels.softmax(x, out=out)),
        ("torch.softmax", lambda: torch.softmax(x, -1)),
    ):
        best = float("inf")
        for _ in range(10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                call()
            best = min(best, (time.perf_counter() - start) * 1e4)
        print(f"| {name} | {best:.1f} |")


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    torch.manual_seed(0)
    rows()
    products.main()
    attention()
    calls()
