"""GEMM with `mma.sync` beside cuBLAS, on one GPU, on the same standard-normal data, in one run.

    python benchmarks/gemm.py [--save]

Results are compared with float64 on the device before they are timed. "burst" is the median of calls in fives, each
after a pause; "sustained" that of calls without one, at which large GEMMs are limited by the power of the device: it
lowers its clock. `kiln.kernels.gemm` uses `mma.sync`, which every GPU since sm_80 has; cuBLAS uses what is fastest on
the device. Layouts: first letter A, N if its rows are contiguous; second B.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels, measure

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = 5
_LAYOUTS = ("NN", "NT", "TN", "TT")
SQUARE = (
    *((8192, torch.float16, layout) for layout in _LAYOUTS),
    (8192, torch.bfloat16, "NT"),
    (4096, torch.float16, "NT"),
    (2048, torch.float16, "NT"),
)
PRECISE = (
    *((torch.float32, "ieee", layout, 1e-6) for layout in _LAYOUTS),
    (torch.float32, "tf32", "NT", 1e-3),
    *((torch.int8, "ieee", layout, 0.0) for layout in _LAYOUTS),
    *((torch.float8_e4m3fn, "ieee", layout, 1e-3) for layout in ("NN", "NT", "TN")),
)
_PAUSE = 0.06
SQUARE_TABLE = Table(
    "Large square GEMMs",
    (
        "layout",
        "M = N = K",
        "dtype",
        "cuBLAS burst us",
        "Kiln burst us",
        "Kiln burst TFLOP/s",
        "cuBLAS sustained us",
        "Kiln sustained us",
    ),
)
DTYPE_TABLE = Table("Other dtypes, bursts", ("layout", "M = N = K", "dtype", "cuBLAS us", "Kiln us", "Kiln TFLOP/s"))
SKINNY_TABLE = Table("Small and skinny GEMMs, float16, NT", ("M", "N", "K", "cuBLAS us", "Kiln us"))
EPILOGUE_TABLE = Table("Epilogues, 4096 cubed, float16, NT", ("epilogue", "PyTorch us", "Kiln us"))
PAGE = Page(__file__, "GEMM with mma.sync", SQUARE_TABLE, DTYPE_TABLE, SKINNY_TABLE, EPILOGUE_TABLE)
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
    effort = measure.BURST._replace(calls=calls, idle=pause)
    return measure.measure(call, l2="warm", effort=effort).us


def steady_us(call: Callable[[], object]) -> float:
    """Microseconds of a call among many, back to back for 0.3 s."""
    return measure.measure(call, l2="warm", steady=True, effort=measure.sustained(0.3)).us


def matrices(m: int, n: int, k: int, dtype: torch.dtype, layout: str) -> tuple[Any, Any]:
    """Operands of a GEMM."""
    a = torch.randn((m, k) if layout[0] == "N" else (k, m), device="cuda")
    b = torch.randn((k, n) if layout[1] == "N" else (n, k), device="cuda")
    if dtype is torch.int8:
        a, b = (x * 40 for x in (a, b))
    a, b = a.to(dtype), b.to(dtype)
    refuse_constants(a, b)
    return a if layout[0] == "N" else a.T, b if layout[1] == "N" else b.T


def pair(a: Any, b: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The GEMM by Kiln and by cuBLAS, into the same matrix."""
    out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
    return lambda: kernels.gemm(a, b, out=out), lambda: torch.mm(a, b, out=out)


def check(got: Any, a: Any, b: Any, tolerance: float) -> None:
    """Compare some rows with float64, relative to the GEMM of absolute values."""
    rows = slice(0, min(256, a.shape[0]))
    left, right = a[rows].double(), b.double()
    error = (got[rows].double() - left @ right).abs() / (left.abs() @ right.abs()).clamp(min=1e-30)
    worst = error.max().item()
    if not worst <= tolerance:
        raise SystemExit(f"a GEMM is wrong: {worst:.2e} of {tolerance:.0e}")


def square() -> None:
    """Large square GEMMs."""
    for n, dtype, layout in SQUARE:
        a, b = matrices(n, n, n, dtype, layout)
        ours, theirs = pair(a, b)
        check(ours(), a, b, 2e-3 if dtype is torch.float16 else 1e-2)
        times = [burst_us(theirs), burst_us(ours), steady_us(theirs), steady_us(ours)]
        theirs, ours, theirs_steady, ours_steady = (f"{us:.0f}" for us in times)
        rate = f"{2 * n**3 / times[1] / 1e6:.0f}"
        SQUARE_TABLE.add(layout, n, str(dtype)[6:], theirs, ours, rate, theirs_steady, ours_steady)


def precise() -> None:
    """GEMM of f32, TF32, int8 and e4m3."""
    n = 4096
    for dtype, precision, layout, tolerance in PRECISE:
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
        peer = None if theirs is None else f"{theirs:.0f}"
        DTYPE_TABLE.add(layout, n, name, peer, f"{took:.0f}", f"{2 * n**3 / took / 1e6:.0f}")
    torch.backends.cuda.matmul.allow_tf32 = False


def skinny() -> None:
    """GEMMs with few tiles."""
    for m, n, k in SKINNY:
        a, b = matrices(m, n, k, torch.float16, "NT")
        ours, theirs = pair(a, b)
        check(ours(), a, b, 2e-3)
        SKINNY_TABLE.add(m, n, k, f"{burst_us(theirs, 20, 0.0):.1f}", f"{burst_us(ours, 20, 0.0):.1f}")


def epilogues() -> None:
    """GEMM with an epilogue, beside PyTorch's calls for the same."""
    n = 4096
    a, b = matrices(n, n, n, torch.float16, "NT")
    bias, gate = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((n,), (n, 1)))
    c = torch.randn(n, n, device="cuda", dtype=torch.float16)
    gelu = torch.nn.functional.gelu
    cases: tuple[tuple[str, dict[str, Any], Callable[[Any], Any], Callable[[], Any]], ...] = (
        ("a @ b", {}, lambda x: x, lambda: torch.mm(a, b)),
        ("+ bias", {"bias": bias}, lambda x: x + bias, lambda: torch.addmm(bias, a, b)),
        (
            "gelu(+ bias)",
            {"bias": bias, "activation": "gelu"},
            lambda x: gelu(x + bias),
            lambda: gelu(torch.addmm(bias, a, b)),
        ),
        ("+ c", {"c": c}, lambda x: x + c, lambda: torch.addmm(c, a, b)),
        (
            "gelu(+ c + bias) * gate",
            {"c": c, "bias": bias, "activation": "gelu", "epilogue": lambda v, g: v * g, "extras": [gate]},
            lambda x: gelu(x + c + bias) * gate,
            lambda: gelu(torch.addmm(c, a, b) + bias) * gate,
        ),
    )
    accumulators = a.double() @ b.double()
    for name, options, wanted, theirs in cases:
        ours = lambda options=options: kernels.gemm(a, b, **options)
        error = ((ours().double() - wanted(accumulators)).abs().max() / accumulators.abs().max()).item()
        if not error <= 1e-3:
            raise SystemExit(f"{name} is wrong: {error:.2e}")
        EPILOGUE_TABLE.add(f"`{name}`", f"{burst_us(theirs):.0f}", f"{burst_us(ours):.0f}")


def compile_one(case: tuple[int, int, int, torch.dtype, str, str]) -> None:
    """Compile a GEMM."""
    m, n, k, dtype, layout, precision = case
    a, b = matrices(m, n, k, dtype, layout)
    kernels.gemm(a, b, precision=precision)
    torch.cuda.synchronize()


def compile_all() -> None:
    """Compile what is timed, in several processes: the disk cache keeps it."""
    cases: list[tuple[int, int, int, torch.dtype, str, str]] = [(n, n, n, t, layout, "ieee") for n, t, layout in SQUARE]
    cases += [(4096, 4096, 4096, t, layout, precision) for t, precision, layout, _ in PRECISE]
    cases += [(*shape, torch.float16, "NT", "ieee") for shape in SKINNY]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(12, os.cpu_count() or 1), context) as pool:
        list(pool.map(compile_one, cases))


def main() -> None:
    """Measure all tables."""
    compile_all()
    torch.manual_seed(0)
    square()
    precise()
    skinny()
    epilogues()
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    main()
