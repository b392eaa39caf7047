"""Shared by the steps: matrices, the check of a GEMM, and its speed beside cuBLAS on a GPU."""

import itertools
import sys
from typing import Any

import numpy as np

import kiln.cute as cute


def has_gpu() -> bool:
    """Whether there is a GPU that PyTorch knows."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def matrices(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """A (m, k), B (n, k) and C (m, n) of f16: PyTorch's on a GPU, else numpy's. Normal data: zeros run faster and prove
    nothing."""
    if not has_gpu():
        random = np.random.default_rng(0)
        left, right = (random.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
        return left, right, np.zeros((m, n), np.float16)
    import torch

    torch.manual_seed(0)
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    return a, b, torch.zeros(m, n, device="cuda", dtype=torch.float16)


def host(array) -> np.ndarray:
    """Return an array as numpy's."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def check(a, b, c) -> float:
    """The largest error of C = A B^T, in units of what rounding to f16 allows."""
    rows = slice(None, None, max(1, a.shape[0] // 256))  # a sample of the rows of large matrices
    exact = host(a[rows]).astype(np.float64) @ host(b).astype(np.float64).T
    allowed = np.abs(exact) * 2**-10 + 2**-10 * np.sqrt(a.shape[1]) + 1e-3
    return float((np.abs(host(c[rows]).astype(np.float64) - exact) / allowed).max())


def run(gemm, sizes=((256, 256, 192),), *further) -> None:
    """Compute GEMMs, check them, and on a GPU time them beside cuBLAS: `step.py [M N K]`."""
    given = tuple(int(argument) for argument in sys.argv[1:4])
    for size in [given] if given else sizes:
        run_one(gemm, size, *further)


def run_one(gemm, size, *further) -> None:
    """Run one GEMM."""
    m, n, k = size
    a, b, c = matrices(*size)
    compiled = cute.compile(gemm, a, b, c, *further)
    compiled(a, b, c, *further)
    error = check(a, b, c)
    assert error <= 1, f"{m} x {n} x {k}: {error:.2f} times the error that rounding allows"
    print(f"{m} x {n} x {k}: error {error:.2f} of what rounding allows")
    if has_gpu():
        import torch

        ours, peer = seconds(lambda: compiled(a, b, c, *further), lambda: torch.matmul(a, b.T, out=c))
        flops = 2 * m * n * k
        print(f"  {flops / ours / 1e12:.0f} TFLOP/s, cuBLAS {flops / peer / 1e12:.0f}: {peer / ours:.2f}x")


def seconds(*calls) -> list[float]:
    """Return the times of alternating calls on the GPU: medians of 30 rounds after 20 others."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(50 * len(calls) + 1)]
    for number, event in enumerate(events[:-1]):
        event.record()
        calls[number % len(calls)]()
    events[-1].record()
    torch.cuda.synchronize()
    times = [x.elapsed_time(y) / 1e3 for x, y in itertools.pairwise(events)]
    return [float(np.median(times[20 * len(calls) + number :: len(calls)])) for number in range(len(calls))]
