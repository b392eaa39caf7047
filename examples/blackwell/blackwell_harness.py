"""Shared by the steps: matrices, the check of a GEMM, and its speed beside cuBLAS on a GPU of sm_100."""

import itertools
import sys
from typing import Any

import numpy as np

import kiln.cute as cute

DEVICE = ""
"""PyTorch's device of the matrices; empty for numpy's arrays. Tests and `use_gpu` set it."""


def has_tcgen05() -> bool:
    """Whether there is a GPU with tensor memory: compute capability 10.0, 10.3 or 11.0."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] in (10, 11)


def use_gpu() -> None:
    """Compute on the GPU if there is one with tensor memory, else on the CPU target."""
    global DEVICE
    DEVICE = "cuda" if has_tcgen05() else ""


def placed(array: np.ndarray):
    """Return an array where the kernels run."""
    if not DEVICE:
        return array
    import torch

    return torch.from_numpy(array).to(DEVICE)


def matrices(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Return A (m, k) and B (n, k) of normal data and C (m, n), all f16. Zeros run faster and prove nothing."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, k), np.float32).astype(np.float16) for rows in (m, n))
    return placed(a), placed(b), placed(np.zeros((m, n), np.float16))


def host(array) -> np.ndarray:
    """Return an array as numpy's."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def check(a, b, c) -> float:
    """Return the largest error of C = A B^T, in units of what rounding to f16 allows."""
    rows = slice(None, None, max(1, a.shape[0] // 256))  # a sample of the rows of large matrices
    exact = host(a[rows]).astype(np.float64) @ host(b).astype(np.float64).T
    allowed = np.abs(exact) * 2**-10 + 2**-10 * np.sqrt(a.shape[1]) + 1e-3
    return float((np.abs(host(c[rows]).astype(np.float64) - exact) / allowed).max())


def run(gemm, size, *further) -> None:
    """Compute a GEMM, check it, and on a GPU time it beside cuBLAS: `step.py [M N K]`."""
    use_gpu()
    m, n, k = tuple(int(argument) for argument in sys.argv[1:4]) or size
    a, b, c = matrices(m, n, k)
    compiled = cute.compile(gemm, a, b, c, *further)
    compiled(a, b, c, *further)
    error = check(a, b, c)
    assert error <= 1, f"{m} x {n} x {k}: {error:.2f} times the error that rounding allows"
    print(f"{m} x {n} x {k}: error {error:.2f} of what rounding allows")
    if DEVICE == "cuda":
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
