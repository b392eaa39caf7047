"""Kernels of QuACK and flash_attn.cute, compiled by Kiln, beside the peers they are published with and Kiln's own.

    python benchmarks/libraries.py PATH... [--only softmax,gemm] [--seconds 220] [--processes 8] [--check] [--save]

Each PATH is a checkout of QuACK or FlashAttention, or another folder to import from (einops, tvm_ffi); of `flash_attn`
only the folder `cute` is loaded. The calls of a row alternate in one run, by `kiln.measure`: medians of calls in a CUDA
graph with a cold L2 cache. Data is normal; results are compared with PyTorch's in Float32 first, and `--check` does
nothing more. Kernels are compiled beforehand in `--processes` processes, for the disk cache. After `--seconds` no new
row is begun. QuACK's GEMMs run with the config that it takes without tuning. torch.compile needs Triton.

"published" is what the libraries say about the same kernel on an H100: QuACK in media/2025-07-10-membound-sol.md,
FlashAttention-3 in the abstract of arXiv:2407.08608. An H200 has 1.43 times the memory bandwidth of an H100.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels, measure
from kiln.measure.statistics import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], Any]

functional = torch.nn.functional
BF16, F32 = torch.bfloat16, torch.float32

MEMORY_BOUND = Table(
    "QuACK, memory-bound kernels",
    (
        "function", "shape", "dtype", "torch us", "torch.compile us", "QuACK us", "Kiln us", "QuACK TB/s", "of a copy",
        "torch.compile / QuACK", "published",
    ),
)  # fmt: skip
GEMMS = Table(
    "GEMMs and attention",
    (
        "function", "shape", "dtype", "peer", "peer us", "library us", "Kiln us", "library TFLOP/s", "peer / library",
        "library / Kiln", "published",
    ),
)  # fmt: skip
PAGE = Page(__file__, "Libraries for CuTe DSL", MEMORY_BOUND, GEMMS)

EFFORT = measure.Effort(Stopping(0.015, 8, 0.0, 0.5), warmup=0.1, window=0.01, batch=0.003)
ABOUT_3 = "3 TB/s, 0.90 of the peak"


class Case(NamedTuple):
    """A row: the calls that are measured, by the column they fill, and the work of the problem."""

    table: Table
    name: tuple[str, str, str]
    """Function, shape, dtype."""
    calls: dict[str, Call]
    work: float
    """TB that must be moved, or TFLOP."""
    wanted: Call
    """Returns the results in Float32; of a tuple the first counts."""
    tolerance: float
    published: str = "-"
    peer: str = ""

    def check(self) -> None:
        wanted = self.wanted().float()
        for who, call in self.calls.items():
            if who != "copy":
                got = call()
                got = (got[0] if isinstance(got, tuple | list) else got).float().reshape(wanted.shape)
                torch.testing.assert_close(
                    got, wanted, rtol=3e-2, atol=self.tolerance, msg=lambda text, who=who: f"{who}: {text}"
                )

    def add(self) -> None:
        found = measure.compare(self.calls, rounds=6, effort=EFFORT)
        us = {who: one.us for who, one in found.measurements.items()}
        shown = {who: f"{value:.1f}" for who, value in us.items()}
        speed = self.work / us["library"] * 1e6
        if self.table is MEMORY_BOUND:
            beside = [f"{us['copy'] / us['library'] * self.moved():.2f}"]
            beside.append(f"{us['compiled'] / us['library']:.2f}" if "compiled" in us else "-")
            times = [shown.get(who, "-") for who in ("torch", "compiled", "library", "Kiln")]
            self.table.add(*self.name, *times, f"{speed:.2f}", *beside, self.published)
        else:
            times = [shown.get(who, "-") for who in ("torch", "library", "Kiln")]
            beside = [f"{us['torch'] / us['library']:.2f}", f"{us['library'] / us['Kiln']:.2f}"]
            self.table.add(*self.name[:3], self.peer, *times, f"{speed:.0f}", *beside, self.published)

    def moved(self) -> float:
        """Return what must be moved relative to the copy, which reads and writes the first argument."""
        return self.work / self.calls["copy"].keywords["bytes_"] * 1e12  # type: ignore[attr-defined]


def normal(*shape: int, dtype: Any = BF16) -> Any:
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    refuse_constants(x.flatten()[: 1 << 16])
    return x


def copying(x: Any) -> Call:
    out = torch.empty_like(x)
    return functools.partial(
        lambda out, x, bytes_: torch.neg(x, out=out), out, x, bytes_=2 * x.numel() * x.element_size()
    )


def rows_of(x: Any) -> str:
    return f"{x.shape[0]} x {x.shape[1]}"


def memory_bound(
    name: str, x: Any, arguments: tuple[Any, ...], theirs: Callable[..., Any], library: Call, ours: Call,
    arrays: float, published: str = "-", eager: Call | None = None, tolerance: float = 2e-2,
) -> Case:  # fmt: skip
    """Return a row whose torch is `theirs(*arguments)`, or `eager`; `arrays` of the size of x are read or written."""
    calls = {"library": library, "Kiln": ours, "torch": eager or (lambda: theirs(*arguments)), "copy": copying(x)}
    if _HAS_TRITON:
        fused = torch.compile(theirs, dynamic=False)
        calls["compiled"] = lambda: fused(*arguments)
    wide = [a.float() if a.is_floating_point() else a for a in arguments]

    def wanted() -> Any:
        found = theirs(*wide)
        return found[0] if isinstance(found, tuple) else found

    size = arrays * x.numel() * x.element_size() / 1e12
    return Case(MEMORY_BOUND, (name, rows_of(x), str(x.dtype)[6:]), calls, size, wanted, tolerance, published)


def softmax(rows: int, columns: int, dtype: Any, published: str) -> Case:
    from quack.softmax import softmax_fwd

    x = normal(rows, columns, dtype=dtype)
    return memory_bound(
        "softmax", x, (x,), lambda x: torch.softmax(x, -1), lambda: softmax_fwd(x), lambda: kernels.softmax(x), 2,
        published,
    )  # fmt: skip


def softmax_backward(rows: int, columns: int, dtype: Any) -> Case:
    from quack.softmax import softmax_bwd

    y, dy = torch.softmax(normal(rows, columns, dtype=dtype), -1), normal(rows, columns, dtype=dtype)
    return memory_bound(
        "softmax backward", y, (dy, y), lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)),
        lambda: softmax_bwd(dy, y), lambda: kernels.softmax_backward(dy, y), 3,
        eager=lambda: torch.ops.aten._softmax_backward_data(dy, y, -1, dtype),
    )  # fmt: skip


def rms_norm(rows: int, columns: int, dtype: Any, published: str) -> Case:
    from quack.rmsnorm import rmsnorm_fwd

    x, w = normal(rows, columns, dtype=dtype), normal(columns, dtype=dtype)
    return memory_bound(
        "rms_norm", x, (x, w), lambda x, w: functional.rms_norm(x, (columns,), w, 1e-6),
        lambda: rmsnorm_fwd(x, w, eps=1e-6), lambda: kernels.rms_norm(x, w, eps=1e-6), 2, published,
    )  # fmt: skip


def rms_norm_backward(rows: int, columns: int, dtype: Any) -> Case:
    from quack.rmsnorm import rmsnorm_bwd

    x, dy, w = normal(rows, columns, dtype=dtype), normal(rows, columns, dtype=dtype), normal(columns, dtype=dtype)
    rstd = torch.rsqrt(x.float().square().mean(-1) + 1e-6)

    def theirs(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
        unit, scaled = x.float() * rstd[:, None], dy.float() * w.float()
        dx = (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * rstd[:, None]
        return dx.to(x.dtype), (dy.float() * unit).sum(0).to(w.dtype)

    return memory_bound(
        "rms_norm backward", x, (dy, x, w, rstd), theirs, lambda: rmsnorm_bwd(x, w, dy, rstd),
        lambda: kernels.rms_norm_backward(dy, x, w), 3,
    )  # fmt: skip


def layer_norm(rows: int, columns: int, dtype: Any) -> Case:
    from quack.rmsnorm import layernorm_fwd

    x, w = normal(rows, columns, dtype=dtype), normal(columns, dtype=F32)
    wide = w.to(dtype)
    return memory_bound(
        "layer_norm", x, (x, wide), lambda x, w: functional.layer_norm(x, (columns,), w, None, 1e-5),
        lambda: layernorm_fwd(x, w, eps=1e-5), lambda: kernels.layer_norm(x, wide, eps=1e-5), 2,
    )  # fmt: skip


def cross_entropy(rows: int, columns: int, dtype: Any, published: str) -> Case:
    from quack.cross_entropy import cross_entropy_fwd

    x, target = normal(rows, columns, dtype=dtype), torch.randint(columns, (rows,), device="cuda")
    return memory_bound(
        "cross_entropy", x, (x, target), lambda x, t: functional.cross_entropy(x, t, reduction="none"),
        lambda: cross_entropy_fwd(x, target), lambda: kernels.cross_entropy(x, target, reduction="none"), 1, published,
    )  # fmt: skip


def topk(rows: int, columns: int, k: int) -> Case:
    """Top-k with softmax over the chosen; QuACK's own benchmark times torch.topk."""
    from quack.topk import topk_fwd

    x = normal(rows, columns)
    return memory_bound(
        f"topk, softmax, k = {k}", x, (x,), lambda x: torch.softmax(torch.topk(x, k)[0], -1),
        lambda: topk_fwd(x, k, softmax=True), lambda: kernels.topk_softmax(x, k, True), 1,
    )  # fmt: skip


def gemm(m: int, n: int, k: int) -> Case:
    from quack.gemm_interface import gemm as library

    a, b = normal(m, k), normal(n, k).T
    outs = [torch.empty(m, n, device="cuda", dtype=BF16) for _ in range(3)]
    calls = {
        "library": lambda: library(a, b, out=outs[0], tuned=False),
        "Kiln": lambda: kernels.gemm(a, b, out=outs[1]),
        "torch": lambda: torch.mm(a, b, out=outs[2]),
    }
    return Case(
        GEMMS, ("gemm", f"{m} x {n} x {k}", "bfloat16"), calls, 2 * m * n * k / 1e12,
        lambda: a.float() @ b.float(), 2e-2 * k**0.5, "-", "cuBLAS",
    )  # fmt: skip


def gemm_act(m: int, n: int, k: int) -> Case:
    """GEMM with SiLU in the epilogue; without Triton the peer is a kernel for each."""
    from quack.gemm_interface import gemm_act as library

    a, b = normal(m, k), normal(n, k).T / k**0.5
    out = torch.empty(m, n, device="cuda", dtype=BF16)

    def theirs(a: Any, b: Any) -> Any:
        return functional.silu(a @ b)

    calls = {
        "library": lambda: library(a, b, activation="silu", store_preact=False, tuned=False)[1],
        "Kiln": lambda: kernels.gemm(a, b, activation="silu", out=out),
        "torch": functools.partial(torch.compile(theirs, dynamic=False) if _HAS_TRITON else theirs, a, b),
    }
    return Case(
        GEMMS, ("gemm, silu", f"{m} x {n} x {k}", "bfloat16"), calls, 2 * m * n * k / 1e12,
        lambda: theirs(a.float(), b.float()), 2e-2, "-", "torch.compile" if _HAS_TRITON else "cuBLAS, torch",
    )  # fmt: skip


def attention(dim: int, length: int, causal: bool, dtype: Any, published: str) -> Case:
    from attention_hopper import cudnn
    from flash_attn.cute.interface import flash_attn_func

    batch, heads = 32768 // length, 2048 // dim
    q, k, v = (normal(batch, length, heads, dim, dtype=dtype) for _ in range(3))
    calls = {
        "library": lambda: flash_attn_func(q, k, v, causal=causal),
        "Kiln": lambda: kernels.flash_attention(q, k, v, causal=causal),
        "torch": cudnn(q, k, v, causal),
    }
    shape = f"{batch} x {length}, {heads} heads, head_dim {dim}, {'causal' if causal else 'full'}"
    work = 4 * batch * heads * length * length * dim / (2 if causal else 1) / 1e12
    return Case(GEMMS, ("attention", shape, str(dtype)[6:]), calls, work, calls["torch"], 2e-2, published, "cuDNN")


def attention_backward(dim: int, length: int, causal: bool, published: str) -> Case:
    import attention_backward as own
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd

    one = own.Case(dim, length, causal)
    peer = one.theirs()
    out, lse = _flash_attn_fwd(one.q, one.k, one.v, causal=causal, return_lse=True)[:2]
    calls = {
        "library": lambda: _flash_attn_bwd(one.q, one.k, one.v, out, one.dout, lse, causal=causal),
        "Kiln": one.ours(),
        "torch": lambda: peer()[0].transpose(1, 2),
    }
    shape = f"{32768 // length} x {length}, {2048 // dim} heads, head_dim {dim}, {'causal' if causal else 'full'}"
    return Case(
        GEMMS, ("attention backward", shape, "bfloat16"), calls, one.work, calls["torch"], 3e-2, published, "cuDNN"
    )


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield a name and how to make the row; its data is made when it is its turn."""
    make = functools.partial
    fa3_fwd, fa3_bwd = "up to 740 TFLOP/s fp16", "1.5 to 1.75 x FlashAttention-2"
    yield "softmax", make(softmax, 32768, 4096, BF16, ABOUT_3)
    yield "softmax", make(softmax, 16384, 32768, BF16, ABOUT_3)
    yield "softmax", make(softmax, 4096, 262144, F32, "3.01 TB/s; torch.compile / QuACK 1.59")
    yield "softmax", make(softmax_backward, 16384, 32768, BF16)
    yield "rms_norm", make(rms_norm, 32768, 4096, BF16, ABOUT_3)
    yield "rms_norm", make(rms_norm, 8192, 65536, BF16, ABOUT_3)
    yield "rms_norm", make(rms_norm_backward, 32768, 4096, BF16)
    yield "layer_norm", make(layer_norm, 32768, 4096, BF16)
    yield "cross_entropy", make(cross_entropy, 8192, 131072, BF16, ABOUT_3)
    yield "topk", make(topk, 65536, 256, 8)
    for n in (4096, 8192):
        yield "gemm", make(gemm, n, n, n)
    yield "gemm", make(gemm, 4096, 11008, 4096)
    yield "gemm", make(gemm_act, 8192, 8192, 8192)
    for dim, causal in ((128, False), (128, True), (64, True)):
        yield "attention", make(attention, dim, 8192, causal, torch.float16, fa3_fwd if dim == 128 else "-")
    for dim, causal in ((128, False), (128, True), (64, True)):
        yield "attention", make(attention_backward, dim, 8192, causal, fa3_bwd)


def load(paths: list[str]) -> None:
    """Make the libraries importable. `flash_attn` itself imports an extension: a bare package takes its place."""
    for path in map(os.path.abspath, paths):
        if (Path(path) / "flash_attn" / "cute").is_dir():
            package: Any = types.ModuleType("flash_attn")
            package.__path__ = [f"{path}/flash_attn"]
            sys.modules["flash_attn"] = package
        else:
            sys.path.append(path)


def compile_all(paths: list[str], chosen: list[str], processes: int) -> None:
    """Call every contender once in several processes: what they compile is in the disk cache then."""
    command = [sys.executable, __file__, *paths, *(["--only", ",".join(chosen)] if chosen else [])]
    running = [
        subprocess.Popen(
            [*command, "--compile", f"{i}/{processes}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for i in range(processes)
    ]
    for one in running:
        one.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="PATH")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    begun = time.monotonic()
    load(given.paths)
    torch.manual_seed(0)
    chosen = given.only.split(",") if given.only else []
    wanted = [make for name, make in cases() if not chosen or name in chosen]
    if given.compile:
        index, count = map(int, given.compile.split("/"))
        for make in wanted[index::count]:
            case = make()
            for call in case.calls.values():
                call()
        return
    if given.processes > 1:
        compile_all(given.paths, chosen, given.processes)
        print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)
    for number, make in enumerate(wanted):
        if time.monotonic() - begun > given.seconds:
            print(f"{len(wanted) - number} rows are left out: {given.seconds:.0f} s are over")
            break
        try:
            case = make()
            case.check()
            if not given.check:
                case.add()
            del case
        except Exception as failure:  # a row that fails is shown, and the others are measured
            print(f"{make.func.__name__} {make.args}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
        torch.cuda.empty_cache()
    PAGE.finish(given.save)


_HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Before the paths are added: a library's stand-in for Triton is none."""

if __name__ == "__main__":
    if not _HAS_TRITON:  # torch remembers the answer, whatever the paths add
        import torch.utils._triton as triton_checks

        for check in (name for name in dir(triton_checks) if name.startswith("has_triton")):
            try:
                getattr(triton_checks, check)()
            except TypeError:  # takes arguments
                continue
    main()
