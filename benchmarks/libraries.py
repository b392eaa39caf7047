"""Kernels of the library beside their strongest peers, in one run.

    python benchmarks/libraries.py [PATH...] [--only memory,gemm,attention] [--rows softmax,mla_decode] [--seconds 170]
                                   [--processes 14] [--check] [--save]

Each PATH is a folder to import from, such as a checkout of QuACK or FlashAttention; what is installed needs none. Peers
are the modules `quack`, `flash_attn.cute`, `flash_attn_interface` (FlashAttention-3) and `flash_mla`. The calls of a row
alternate, by `kiln.measure`: medians of calls in a CUDA graph with a cold L2 cache. Data is normal; results are compared
first, and `--check` does nothing more. After `--seconds` no new row is begun.

Peers are set up as those who want them fast do. torch.compile tunes (`max-autotune-no-cudagraphs`). Of the configs
that QuACK's tuner tries for a GEMM the fastest counts. FlashAttention-3 chooses tiles, splits and packing of heads by
its own rules; its decode takes a cache of whole sequences. FlashMLA's schedule is made before. Backward passes of peers
add with atomics, in any order; Kiln's is deterministic, which is its default.

A star marks a peer written in CuTe DSL, which Kiln compiled: its kernels are the peer's, its machine code is not.
A dash is a peer without such a kernel; a reason stands beside it where the peer is missing here. "of the best" is the
time of the fastest peer divided by Kiln's.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from normal_data import refuse_constants
from peers import compiled, fastest, load, quack_configs, quack_gemm, quack_gemms, reason, versions
from results import Page, Table

from kiln import cute, kernels, measure
from kiln.measure.statistics import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], Any]

functional = torch.nn.functional
BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn

MEMORY = Table(
    "Memory-bound kernels",
    (
        "function",
        "shape",
        "dtype",
        "PyTorch us",
        "torch.compile us",
        "QuACK* us",
        "Kiln us",
        "Kiln TB/s",
        "of a copy",
        "of the best",
    ),
)
GEMMS = Table(
    "GEMMs",
    (
        "function",
        "shape",
        "dtype",
        "cuBLAS us",
        "torch.compile us",
        "QuACK* us",
        "Kiln us",
        "Kiln TFLOP/s",
        "of the best",
    ),
)
ATTENTION = Table(
    "Attention",
    (
        "function",
        "shape",
        "dtype",
        "cuDNN us",
        "FlashAttention-3 us",
        "flash_attn.cute* us",
        "FlashMLA us",
        "Kiln us",
        "Kiln TFLOP/s",
        "of the best",
    ),
)
PAGE = Page(__file__, "Kernels beside their strongest peers", MEMORY, GEMMS, ATTENTION)

EFFORT = measure.Effort(Stopping(0.015, 8, 0.0, 0.5), warmup=0.1, window=0.01, batch=0.003)


class Case(NamedTuple):
    """A row: its calls by the column they fill, why others are missing, and the work of the problem."""

    table: Table
    name: tuple[str, str, str]
    """Function, shape, dtype."""
    peers: dict[str, Callable[[], Call]]
    """They make the calls of peers."""
    calls: dict[str, Call]
    missing: dict[str, str]
    work: float
    """TB that must be moved, or TFLOP."""
    wanted: Call
    """Returns the result, or a tuple of the first results."""
    tolerance: float
    copied: float = 0.0
    """TB that the copy moves."""

    def prepare(self) -> None:
        """Make the calls of the peers; one that cannot run is missing, with its reason."""
        for who, make in self.peers.items():
            try:
                call = make()
                call()
                self.calls[who] = call
            except Exception as refused:
                self.missing[who] = reason(refused)

    def check(self) -> None:
        """Compare what Kiln and the peers compute."""
        wanted = _tuple(self.wanted())
        for who, call in self.calls.items():
            if who == "copy":
                continue
            got = _tuple(call())
            assert len(got) >= len(wanted), f"{who}: {len(got)} results, {len(wanted)} are wanted"
            for one, other in zip(got, wanted, strict=False):
                torch.testing.assert_close(
                    one.float().reshape(other.shape),
                    other.float(),
                    rtol=3e-2,
                    atol=self.tolerance,
                    msg=lambda text, who=who: f"{who}: {text}",
                )

    def add(self) -> None:
        """Time the calls, and add the row."""
        found = measure.compare(self.calls, rounds=6, effort=EFFORT)
        us = {who: one.us for who, one in found.measurements.items()}
        absent = {who: f"- ({why})" for who, why in self.missing.items()}
        shown = {**absent, **{who: f"{value:.1f}" for who, value in us.items()}}
        cells = [shown.get(column[:-3], "-") for column in self.table.columns if column.endswith(" us")]
        rate = self.work / us["Kiln"] * 1e6
        if self.table is MEMORY:
            cells += [f"{rate:.2f}", f"{us['copy'] / us['Kiln'] * self.work / self.copied:.2f}"]
        else:
            cells.append(f"{rate:.0f}")
        peers = [value for who, value in us.items() if who not in ("Kiln", "copy")]
        self.table.add(*self.name, *cells, f"{min(peers) / us['Kiln']:.2f}" if peers else "-")


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def row(
    table: Table,
    name: tuple[str, str, str],
    peers: dict[str, Callable[[], Call]],
    ours: Call,
    work: float,
    wanted: Call,
    tolerance: float,
    **others: Any,
) -> Case:
    """Return a row whose peers are not called yet."""
    return Case(table, name, peers, {"Kiln": ours}, {}, work, wanted, tolerance, **others)


def normal(*shape: int, dtype: Any = BF16) -> Any:
    x = torch.randn(*shape, device="cuda", dtype=F32 if dtype is E4M3 else dtype)
    refuse_constants(x.flatten()[: 1 << 16])
    return x.to(dtype)


def memory_bound(
    name: str,
    x: Any,
    arguments: tuple[Any, ...],
    theirs: Callable[..., Any],
    quack: Callable[[], Call],
    ours: Call,
    arrays: float,
    eager: Call | None = None,
    tolerance: float = 2e-2,
) -> Case:
    """Return a row whose torch is `theirs(*arguments)`, or `eager`; `arrays` of the size of x are read or written."""
    out = torch.empty_like(x)
    peers: dict[str, Callable[[], Call]] = {
        "PyTorch": lambda: eager or (lambda: theirs(*arguments)),
        "torch.compile": lambda: compiled(theirs, *arguments),
        "QuACK*": quack,
    }
    wide = [a.float() if a.is_floating_point() else a for a in arguments]
    size = x.numel() * x.element_size() / 1e12
    one = row(
        MEMORY,
        (name, f"{x.shape[0]} x {x.shape[1]}", str(x.dtype)[6:]),
        peers,
        ours,
        arrays * size,
        lambda: _tuple(theirs(*wide))[0],
        tolerance,
        copied=2 * size,
    )
    one.calls["copy"] = lambda: torch.neg(x, out=out)
    return one


def softmax(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.softmax import softmax_fwd

        return lambda: softmax_fwd(x)

    x = normal(rows, columns, dtype=dtype)
    return memory_bound("softmax", x, (x,), lambda x: torch.softmax(x, -1), quack, lambda: kernels.softmax(x), 2)


def softmax_backward(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.softmax import softmax_bwd

        return lambda: softmax_bwd(dy, y)

    y, dy = torch.softmax(normal(rows, columns, dtype=dtype), -1), normal(rows, columns, dtype=dtype)
    return memory_bound(
        "softmax backward",
        y,
        (dy, y),
        lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)),
        quack,
        lambda: kernels.softmax_backward(dy, y),
        3,
        eager=lambda: torch.ops.aten._softmax_backward_data(dy, y, -1, dtype),
    )


def rms_norm(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.rmsnorm import rmsnorm_fwd

        return lambda: rmsnorm_fwd(x, w, eps=1e-6)

    x, w = normal(rows, columns, dtype=dtype), normal(columns, dtype=dtype)
    return memory_bound(
        "rms_norm",
        x,
        (x, w),
        lambda x, w: functional.rms_norm(x, (columns,), w, 1e-6),
        quack,
        lambda: kernels.rms_norm(x, w, eps=1e-6),
        2,
    )


def fused_add_rms_norm(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.rmsnorm import rmsnorm_fwd

        return lambda: rmsnorm_fwd(x, w, residual=residual, eps=1e-6)

    x, residual, w = (
        normal(rows, columns, dtype=dtype),
        normal(rows, columns, dtype=dtype),
        normal(columns, dtype=dtype),
    )
    return memory_bound(
        "x + residual, rms_norm",
        x,
        (x, residual, w),
        lambda x, r, w: (functional.rms_norm(x + r, (columns,), w, 1e-6), x + r),
        quack,
        lambda: kernels.fused_add_rms_norm(x, residual, w, eps=1e-6),
        4,
        tolerance=6e-2,
    )


def rms_norm_backward(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.rmsnorm import rmsnorm_bwd

        return lambda: rmsnorm_bwd(x, w, dy, rstd)

    def theirs(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
        unit, scaled = x.float() * rstd[:, None], dy.float() * w.float()
        dx = (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * rstd[:, None]
        return dx.to(x.dtype), (dy.float() * unit).sum(0).to(w.dtype)

    x, dy, w = normal(rows, columns, dtype=dtype), normal(rows, columns, dtype=dtype), normal(columns, dtype=dtype)
    rstd = torch.rsqrt(x.float().square().mean(-1) + 1e-6)
    return memory_bound(
        "rms_norm backward", x, (dy, x, w, rstd), theirs, quack, lambda: kernels.rms_norm_backward(dy, x, w), 3
    )


def layer_norm(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.rmsnorm import layernorm_fwd

        return lambda: layernorm_fwd(x, w, eps=1e-5)

    x, w = normal(rows, columns, dtype=dtype), normal(columns, dtype=F32)
    wide = w.to(dtype)
    return memory_bound(
        "layer_norm",
        x,
        (x, wide),
        lambda x, w: functional.layer_norm(x, (columns,), w, None, 1e-5),
        quack,
        lambda: kernels.layer_norm(x, wide, eps=1e-5),
        2,
    )


def cross_entropy(rows: int, columns: int, dtype: Any) -> Case:
    def quack() -> Call:
        from quack.cross_entropy import cross_entropy_fwd

        return lambda: cross_entropy_fwd(x, target)

    x, target = normal(rows, columns, dtype=dtype), torch.randint(columns, (rows,), device="cuda")
    return memory_bound(
        "cross_entropy",
        x,
        (x, target),
        lambda x, t: functional.cross_entropy(x, t, reduction="none"),
        quack,
        lambda: kernels.cross_entropy(x, target, reduction="none"),
        1,
    )


def topk(rows: int, columns: int, k: int) -> Case:
    """Top-k with softmax over the chosen; QuACK's own benchmark times torch.topk."""

    def quack() -> Call:
        from quack.topk import topk_fwd

        return lambda: topk_fwd(x, k, softmax=True)

    x = normal(rows, columns)
    return memory_bound(
        f"topk, softmax, k = {k}",
        x,
        (x,),
        lambda x: torch.softmax(torch.topk(x, k)[0], -1),
        quack,
        lambda: kernels.topk_softmax(x, k, True),
        1,
    )


def gemm(m: int, n: int, k: int) -> Case:
    a, b = normal(m, k), normal(n, k).T
    outs = [torch.empty(m, n, device="cuda", dtype=BF16) for _ in range(3)]
    peers = {
        "cuBLAS": lambda: lambda: torch.mm(a, b, out=outs[0]),
        "QuACK*": lambda: fastest(quack_gemm(a, b, outs[1], None, None), quack_configs(a)),
    }
    return row(
        GEMMS,
        ("gemm", f"{m} x {n} x {k}", "bfloat16"),
        peers,
        lambda: kernels.gemm(a, b, out=outs[2]),
        2 * m * n * k / 1e12,
        lambda: a.float() @ b.float(),
        2e-2 * k**0.5,
    )


def gemm_fp8(m: int, n: int, k: int) -> Case:
    """GEMM of e4m3 to bf16 with f32 accumulation in both, where the tensor cores alone have some 13 bits."""
    a, b = normal(m, k, dtype=E4M3), normal(n, k, dtype=E4M3).T
    one, out = torch.ones((), device="cuda"), torch.empty(m, n, device="cuda", dtype=BF16)
    peers = {"cuBLAS": lambda: lambda: torch._scaled_mm(a, b, one, one, out_dtype=BF16, use_fast_accum=False)}
    return row(
        GEMMS,
        ("gemm", f"{m} x {n} x {k}", "float8_e4m3fn"),
        peers,
        lambda: kernels.gemm(a, b, out=out),
        2 * m * n * k / 1e12,
        lambda: a.float() @ b.float(),
        2e-2 * k**0.5,
    )


def gemm_silu(m: int, n: int, k: int) -> Case:
    """GEMM with SiLU in the epilogue; cuBLAS has none, and PyTorch takes a second kernel."""
    a, b = normal(m, k), normal(n, k).T / k**0.5
    outs = [torch.empty(m, n, device="cuda", dtype=BF16) for _ in range(2)]

    def theirs(a: Any, b: Any) -> Any:
        return functional.silu(a @ b)

    peers = {
        "torch.compile": lambda: compiled(theirs, a, b),
        "QuACK*": lambda: fastest(quack_gemm(a, b, outs[0], "silu", None), quack_configs(a, False)),
    }
    return row(
        GEMMS,
        ("gemm, silu", f"{m} x {n} x {k}", "bfloat16"),
        peers,
        lambda: kernels.gemm(a, b, activation="silu", out=outs[1]),
        2 * m * n * k / 1e12,
        lambda: theirs(a.float(), b.float()),
        2e-2,
    )


def gelu_tanh(x: Any) -> Any:
    """GELU as cuBLAS's epilogue has it."""
    return 0.5 * x * (1.0 + cute.math.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def gemm_gelu(m: int, n: int, k: int) -> Case:
    """GEMM with a bias and GELU in the epilogue, which cuBLAS has, too."""
    a, b, bias = normal(m, k), normal(n, k).T / k**0.5, normal(n)
    outs = [torch.empty(m, n, device="cuda", dtype=BF16) for _ in range(2)]

    def theirs(a: Any, b: Any, bias: Any) -> Any:
        return functional.gelu(a @ b + bias, approximate="tanh")

    peers = {
        "cuBLAS": lambda: lambda: torch._addmm_activation(bias, a, b, use_gelu=True),
        "torch.compile": lambda: compiled(theirs, a, b, bias),
        "QuACK*": lambda: fastest(quack_gemm(a, b, outs[0], "gelu_tanh_approx", bias), quack_configs(a, False)),
    }
    return row(
        GEMMS,
        ("gemm, bias, gelu", f"{m} x {n} x {k}", "bfloat16"),
        peers,
        lambda: kernels.gemm(a, b, bias=bias, activation=gelu_tanh, out=outs[1]),
        2 * m * n * k / 1e12,
        lambda: theirs(a.float(), b.float(), bias.float()),
        2e-2,
    )


def cudnn(q: Any, k: Any, v: Any, causal: bool) -> Call:
    import attention_hopper

    return attention_hopper.cudnn(q, k, v, causal)


def attention(dim: int, causal: bool, group: int = 1) -> Case:
    def three() -> Call:
        from flash_attn_interface import flash_attn_func

        return lambda: flash_attn_func(q, k, v, causal=causal)

    def cute_dsl() -> Call:
        from flash_attn.cute.interface import flash_attn_func

        return lambda: flash_attn_func(q, k, v, causal=causal)

    batch, length, heads = 4, 8192, 2048 // dim
    q, k, v = (normal(batch, length, h, dim) for h in (heads, heads // group, heads // group))
    theirs = cudnn(q, k, v, causal)
    peers = {"cuDNN": lambda: theirs, "FlashAttention-3": three, "flash_attn.cute*": cute_dsl}
    shown = f"{heads} heads" if group == 1 else f"{heads} heads on {heads // group}"
    shape = f"{batch} x {length}, {shown}, head_dim {dim}, {'causal' if causal else 'full'}"
    return row(
        ATTENTION,
        ("attention", shape, "bfloat16"),
        peers,
        lambda: kernels.flash_attention(q, k, v, causal=causal),
        4 * batch * heads * length * length * dim / (2 if causal else 1) / 1e12,
        theirs,
        2e-2,
    )


def attention_backward(dim: int, causal: bool) -> Case:
    import attention_backward as own

    def three() -> Call:
        from flash_attn_interface import _flash_attn_backward, flash_attn_func

        out, lse = flash_attn_func(one.q, one.k, one.v, causal=causal, return_attn_probs=True)
        grads = {name: torch.empty_like(x) for name, x in (("dq", one.q), ("dk", one.k), ("dv", one.v))}
        scale = dim**-0.5
        return lambda: (
            _flash_attn_backward(
                one.dout, one.q, one.k, one.v, out, lse, softmax_scale=scale, is_causal=causal, **grads
            ),
            tuple(grads.values()),
        )[1]

    def cute_dsl() -> Call:
        from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd

        out, lse = _flash_attn_fwd(one.q, one.k, one.v, causal=causal, return_lse=True)[:2]
        return lambda: _flash_attn_bwd(one.q, one.k, one.v, out, one.dout, lse, causal=causal)

    one = own.Case(dim, 8192, causal)
    theirs = one.theirs()

    def peer() -> tuple[Any, ...]:
        return tuple(x.transpose(1, 2) for x in theirs())

    peers = {"cuDNN": lambda: peer, "FlashAttention-3": three, "flash_attn.cute*": cute_dsl}
    shape = f"4 x 8192, {2048 // dim} heads, head_dim {dim}, {'causal' if causal else 'full'}"
    return row(ATTENTION, ("attention backward", shape, "bfloat16"), peers, one.ours(), one.work, peer, 3e-2)


def decode(batch: int, length: int) -> Case:
    """One query for each sequence, 32 heads on 8 KV heads."""

    def three() -> Call:
        from flash_attn_interface import flash_attn_with_kvcache

        return lambda: flash_attn_with_kvcache(q, k, v)

    q, k, v = normal(batch, 1, 32, 128), normal(batch, length, 8, 128), normal(batch, length, 8, 128)
    theirs = cudnn(q, k, v, False)
    shape = f"{batch} x {length}, 1 query, 32 heads on 8, head_dim 128"
    return row(
        ATTENTION,
        ("decode", shape, "bfloat16"),
        {"cuDNN": lambda: theirs, "FlashAttention-3": three},
        lambda: kernels.flash_attention(q, k, v),
        4 * batch * 32 * length * 128 / 1e12,
        theirs,
        2e-2,
    )


def mla_decode(batch: int, tokens: int, heads: int, length: int) -> Case:
    import decode as own

    def flash_mla() -> Call:
        from flash_mla import flash_mla_with_kvcache, get_mla_metadata

        schedule = get_mla_metadata()[0]
        return lambda: flash_mla_with_kvcache(q, cache[:, :, None], table, lengths, 512, schedule, causal=False)[0]

    ckv, q, cache, table, lengths, out = own.mla_inputs(batch, tokens, heads, length)
    shape = f"{batch} x {length}, {tokens} {'query' if tokens == 1 else 'queries'}, {heads} heads"
    return row(
        ATTENTION,
        ("MLA decode", shape, "bfloat16"),
        {"FlashMLA": flash_mla},
        lambda: kernels.mla_decode(q, cache, table, lengths, causal=False, out=out),
        2 * batch * tokens * heads * length * (576 + 512) / 1e12,
        lambda: own.by_hand(q, ckv)().reshape(out.shape),
        2e-2,
    )


def cases() -> Iterator[tuple[Table, Callable[[], Case]]]:
    """Yield the table of a row and how to make it; its data is made when it is its turn."""
    make = functools.partial
    for dim in (128, 64):
        for causal in (False, True):
            yield ATTENTION, make(attention, dim, causal)
    yield ATTENTION, make(attention, 128, True, 4)
    for dim in (128, 64):
        for causal in (False, True):
            yield ATTENTION, make(attention_backward, dim, causal)
    for batch, length in ((1, 131072), (16, 16384), (64, 4096)):
        yield ATTENTION, make(decode, batch, length)
    for shape in ((128, 1, 16, 8192), (128, 1, 128, 4096), (128, 1, 128, 8192), (128, 2, 128, 4096)):
        yield ATTENTION, make(mla_decode, *shape)
    for m, n, k in (
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        (4096, 11008, 4096),
        (4096, 2112, 7168),
        (200, 2560, 9728),
        (16, 28672, 8192),
    ):
        yield GEMMS, make(gemm, m, n, k)
    yield GEMMS, make(gemm_fp8, 8192, 8192, 8192)
    yield GEMMS, make(gemm_silu, 8192, 8192, 8192)
    yield GEMMS, make(gemm_gelu, 8192, 8192, 8192)
    for shape in ((32768, 4096, BF16), (16384, 32768, BF16), (4096, 262144, F32)):
        yield MEMORY, make(softmax, *shape)
    yield MEMORY, make(softmax_backward, 16384, 32768, BF16)
    yield MEMORY, make(rms_norm, 32768, 4096, BF16)
    yield MEMORY, make(rms_norm, 8192, 65536, BF16)
    yield MEMORY, make(fused_add_rms_norm, 16384, 8192, BF16)
    yield MEMORY, make(rms_norm_backward, 32768, 4096, BF16)
    yield MEMORY, make(layer_norm, 32768, 4096, BF16)
    yield MEMORY, make(cross_entropy, 8192, 131072, BF16)
    yield MEMORY, make(topk, 65536, 256, 8)
    yield MEMORY, make(topk, 65536, 128, 4)


def compile_share(wanted: list[Callable[[], Case]], index: int, count: int) -> None:
    """Compile a part of what the rows need into the disk caches; a failure shows later, in its row."""
    calls: list[Call] = []
    if any(make.func.__name__.startswith("gemm") for make in wanted):  # type: ignore[attr-defined]
        _quietly(lambda: calls.extend(quack_gemms()))
    for call in calls[index::count]:
        _quietly(call)
    for make in wanted[index::count]:
        _quietly(lambda make=make: _compile_row(make()))
        torch.cuda.empty_cache()


def _compile_row(case: Case) -> None:
    """Call what Kiln and Triton compile; torch.compile tunes GEMMs while it compiles, which needs a quiet GPU."""
    for call in case.calls.values():
        _quietly(call)
    for who, make in case.peers.items():
        if who not in ("cuBLAS", "PyTorch") and case.table is not GEMMS:
            _quietly(lambda make=make: make()())


def _quietly(call: Call) -> None:
    try:
        call()
    except Exception as failed:
        print(f"{type(failed).__name__}: {failed}", file=sys.stderr)


def compile_all(arguments: list[str], processes: int) -> None:
    """Compile everything in several processes: it is in the disk caches then."""
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--compile", f"{i}/{processes}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        )
        for i in range(processes)
    ]
    for one in running:
        one.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--only", default="", help="tables, by the first word of their titles in small letters")
    parser.add_argument("--rows", default="", help="names of functions of this file")
    parser.add_argument("--seconds", type=float, default=170.0)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    begun = time.monotonic()
    load(given.paths)
    torch.manual_seed(0)
    wanted = list(chosen(given.only, given.rows))
    if given.compile:
        compile_share(wanted, *map(int, given.compile.split("/")))
        return
    if given.processes > 1:
        compile_all([*given.paths, f"--only={given.only}", f"--rows={given.rows}"], given.processes)
        print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)
    for table in PAGE.tables:
        table.machine = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {versions()}"
    for number, make in enumerate(wanted):
        if time.monotonic() - begun > given.seconds:
            print(f"{len(wanted) - number} rows are left out: {given.seconds:.0f} s are over")
            break
        measure_row(make, given.check)
        if given.save:  # what is measured stays if a later row ends the process
            PAGE.write()
    print(f"\n{time.monotonic() - begun:.0f} s")
    PAGE.finish(given.save)


def chosen(tables: str, rows: str) -> Iterator[Callable[[], Case]]:
    """Yield the rows of the tables and functions that were named; all of them if none was."""
    for table, make in cases():
        word = table.title.split()[0].split("-")[0].lower().removesuffix("s")
        if (not tables or word in tables.split(",")) and (not rows or make.func.__name__ in rows.split(",")):  # type: ignore[attr-defined]
            yield make


def measure_row(make: Any, only_check: bool) -> None:
    """Make, compare and time a row; one that fails is shown, and the others are measured."""
    name = f"{make.func.__name__} {make.args}"
    try:
        case = make()
        case.prepare()
        case.check()
        if only_check:
            agreed = [who for who in case.calls if who != "copy"]
            print(f"{name}: {', '.join(agreed)} agree; missing: {case.missing or 'none'}", flush=True)
        else:
            case.add()
    except Exception as failure:
        print(f"{name}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
