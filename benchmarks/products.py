"""Matrix products of Kiln beside cuBLAS, on one GPU, on the same standard-normal data, in one run.

    python benchmarks/products.py

Results are compared with float64 on the device before they are timed. "burst" is the least of five replays of a CUDA graph of
five calls, each after a pause; "steady" the mean of a hundred calls without one, at which large products are limited by the
power of the device: it lowers its clock. `kiln.kernels.gemm` uses `mma.sync`, which every GPU since sm_80 has; cuBLAS uses what
is fastest on the device. Layouts: first letter A, N if its rows are contiguous; second B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from device_time import device_us, refuse_constants

from kiln import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = 5
_PAUSE = 0.06
SKINNY = (
    (1, 4096, 4096),
    (16, 4096, 4096),
    (32, 4096, 4096),
    (64, 4096, 4096),
    (128, 4096, 4096),
    (256, 4096, 4096),
    (64, 11008, 4096),
    (512, 512, 512),
    (1024, 1024, 1024),
    (1536, 1536, 1536),
    (256, 256, 8192),
    (4096, 4096, 64),
    (3000, 3000, 3000),
    (3072, 3072, 3072),
)


def burst_us(call: Callable[[], object], calls: int = _CALLS, pause: float = _PAUSE) -> float:
    """Microseconds of a call on the device, after a pause."""
    return device_us(call, calls, 5, pause)


def steady_us(call: Callable[[], object], calls: int = 100) -> float:
    """Microseconds of a call among many."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / calls


def matrices(m: int, n: int, k: int, dtype: torch.dtype, layout: str) -> tuple[Any, Any]:
    """Operands of a product."""
    a = torch.randn((m, k) if layout[0] == "N" else (k, m), device="cuda")
    b = torch.randn((k, n) if layout[1] == "N" else (n, k), device="cuda")
    if dtype is torch.int8:
        a, b = (x * 40 for x in (a, b))
    a, b = a.to(dtype), b.to(dtype)
    refuse_constants(a, b)
    return a if layout[0] == "N" else a.T, b if layout[1] == "N" else b.T


def pair(a: Any, b: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The product by Kiln and by cuBLAS, into the same matrix."""
    out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
    return lambda: kernels.gemm(a, b, out=out), lambda: torch.mm(a, b, out=out)


def check(got: Any, a: Any, b: Any, tolerance: float) -> None:
    """Compare some rows with float64, relative to the sum of the absolute values of the products."""
    rows = slice(0, min(256, a.shape[0]))
    left, right = a[rows].double(), b.double()
    error = (got[rows].double() - left @ right).abs() / (left.abs() @ right.abs()).clamp(min=1e-30)
    worst = error.max().item()
    if not worst <= tolerance:
        raise SystemExit(f"a product is wrong: {worst:.2e} of {tolerance:.0e}")


def square() -> None:
    """Large square products."""
    print(
        "| | n | type | cuBLAS us | Kiln us | Kiln TFLOP/s | cuBLAS steady | Kiln steady |\n|---|---|---|---|---|---|---|---|"
    )
    cases = [(8192, torch.float16, layout) for layout in ("NN", "NT", "TN", "TT")]
    cases += [(8192, torch.bfloat16, "NT"), (4096, torch.float16, "NT"), (2048, torch.float16, "NT")]
    for n, dtype, layout in cases:
        a, b = matrices(n, n, n, dtype, layout)
        ours, theirs = pair(a, b)
        check(ours(), a, b, 2e-3 if dtype is torch.float16 else 1e-2)
        times = [burst_us(theirs), burst_us(ours), steady_us(theirs), steady_us(ours)]
        print(
            f"| {layout} | {n} | {str(dtype)[6:]} | {times[0]:.0f} | {times[1]:.0f} | {2 * n**3 / times[1] / 1e6:.0f} | {times[2]:.0f} | {times[3]:.0f} |"
        )


def precise() -> None:
    """f32 as it is, and other types."""
    print("\n| | n | type | cuBLAS us | Kiln us | Kiln TFLOP/s |\n|---|---|---|---|---|---|")
    n = 4096
    cases: list[tuple[torch.dtype, str, str, float]] = [
        (torch.float32, "ieee", t, 1e-6) for t in ("NN", "NT", "TN", "TT")
    ]
    cases += [
        (torch.float32, "tf32", "NT", 1e-3),
        *((torch.int8, "ieee", t, 0.0) for t in ("NN", "NT", "TN", "TT")),
        *((torch.float8_e4m3fn, "ieee", t, 1e-3) for t in ("NN", "NT", "TN", "TT")),
    ]
    for dtype, precision, layout, tolerance in cases:
        a, b = matrices(n, n, n, dtype, layout)
        ours = lambda a=a, b=b, precision=precision: kernels.gemm(a, b, precision=precision)
        check(ours(), a, b, tolerance)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        theirs = None
        if dtype is torch.float32:
            theirs = burst_us(lambda a=a, b=b: torch.mm(a, b))
        elif dtype is torch.int8:
            theirs = burst_us(lambda a=a, b=b: torch._int_mm(a, b))
        took = burst_us(ours)
        name = precision if precision != "ieee" else str(dtype)[6:]
        print(
            f"| {layout} | {n} | {name} | {'' if theirs is None else f'{theirs:.0f}'} | {took:.0f} | {2 * n**3 / took / 1e6:.0f} |"
        )
    torch.backends.cuda.matmul.allow_tf32 = False


def skinny() -> None:
    """Products that leave much of a GPU idle."""
    print("\n| m | n | k | cuBLAS us | Kiln us |\n|---|---|---|---|---|")
    for m, n, k in SKINNY:
        a, b = matrices(m, n, k, torch.float16, "NT")
        ours, theirs = pair(a, b)
        check(ours(), a, b, 2e-3)
        print(f"| {m} | {n} | {k} | {burst_us(theirs, 20, 0.0):.1f} | {burst_us(ours, 20, 0.0):.1f} |")


def main() -> None:
    """All tables."""
    torch.manual_seed(0)
    square()
    precise()
    skinny()


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    main()
