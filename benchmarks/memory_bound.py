"""Memory-bound kernels beside PyTorch, torch.compile and a copy, on one GPU, on the same data, in one run.

    python benchmarks/memory_bound.py [forward] [backward] [fused] [quantised] [losses] [reductions] [elementwise]
                                      [--no-compile] [--short] [--ours] [--check] [--save]

Times are of the device alone, by `kiln.measure`: medians of calls in a CUDA graph with a cold L2 cache. Data is
standard normal; constant data is refused. Results are compared with PyTorch's in Float32 before they are timed.
`--ours` times Kiln's kernels and copies alone, and compares nothing; `--check` compares, and times nothing. "of a copy"
is the bandwidth relative to `out.copy_(x)` of the same array: bytes that must be read and written, once each.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels, measure
from kiln.measure.statistics import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable

functional = torch.nn.functional
FORWARD = Table(
    "Row-wise kernels, forward",
    ("function", "rows", "columns", "dtype", "torch us", "torch.compile us", "Kiln us", "Kiln TB/s", "of a copy"),
)
BACKWARD = Table(
    "Row-wise kernels, backward",
    ("function", "rows", "columns", "dtype", "torch us", "torch.compile us", "Kiln us", "Kiln TB/s", "of a copy"),
)
FUSED = Table(
    "Fused kernels, bfloat16",
    ("function", "shape", "torch us", "torch.compile us", "Kiln us", "Kiln TB/s", "of a copy"),
)
QUANTISED = Table(
    "Rows quantised to e4m3, us (of 4.25 TB/s)",
    (
        "rows",
        "columns",
        "x + residual, rms_norm",
        "rms_norm",
        "x + residual, layer_norm",
        "layer_norm",
        "swiglu",
        "geglu",
    ),
)
LOSSES = Table(
    "Cross-entropy",
    ("pass", "rows", "classes", "dtype", "torch us", "torch.compile us", "Kiln us", "Kiln TB/s", "of a copy"),
)
REDUCTION_TABLE = Table("Reductions", ("function", "shape", "axis", "dtype", "torch us", "Kiln us", "Kiln TB/s"))
ELEMENTWISE = Table("Element-wise functions, 8192 x 16384", ("function", "dtype", "torch us", "Kiln us", "Kiln TB/s"))
PAGE = Page(__file__, "Memory-bound kernels", FORWARD, BACKWARD, FUSED, QUANTISED, LOSSES, REDUCTION_TABLE, ELEMENTWISE)
ROWS = (
    (32768, 1024, torch.float32),
    (16384, 4096, torch.float16),
    (16384, 4096, torch.float32),
    (16384, 8192, torch.bfloat16),
    (8192, 16384, torch.bfloat16),
    (4096, 32768, torch.bfloat16),
    (2048, 65536, torch.bfloat16),
    (1024, 131072, torch.bfloat16),
    (512, 262144, torch.bfloat16),
    (16384, 8191, torch.bfloat16),
    (2048, 50257, torch.bfloat16),
)
UNALIGNED = tuple(
    (n, columns, torch.bfloat16)
    for n, columns in ((131072, 1027), (65536, 2047), (32768, 4097), (16384, 8190), (8192, 16383))
)
"""Rows that do not begin at multiples of 16 bytes, for the backward kernels."""
MORE_ROWS = tuple(
    (n, columns, torch.bfloat16)
    for n, columns in (
        (65536, 1536),
        (32768, 2880),
        (32768, 3584),
        (16384, 5120),
        (16384, 6144),
        (16384, 7168),
        (2048, 50256),
        (32768, 4097),
        (8192, 16383),
        (4096, 32767),
        (2048, 65535),
        (1024, 131071),
        (512, 262143),
    )
)
"""Rows whose length is not a power of two, some of them unaligned, for the forward kernels."""
LENGTHS = (
    (65536, 1536),
    (32768, 2880),
    (32768, 3584),
    (16384, 4096),
    (16384, 5120),
    (16384, 6144),
    (16384, 7168),
    (16384, 8192),
    (8192, 14336),
    (8192, 16384),
    (4096, 28672),
)
"""Rows and columns that are quantised."""
TOP_K = (
    (65536, 256, 8),
    (65536, 128, 4),
    (65536, 64, 6),
    (8192, 256, 8),
    (8192, 64, 2),
    (256, 256, 8),
    (512, 128256, 8),
    (128, 128256, 50),
)
"""Rows, columns, k."""
OURS, CHECK = "--ours" in sys.argv, "--check" in sys.argv
COMPILED = {(16384, 4096), (16384, 8192), (4096, 32768), (1024, 131072), (16384, 8191), (2048, 50257)}
"""Shapes for which torch.compile is timed: it takes seconds for each function."""
COMPILED_BACKWARD = {(16384, 8192), (4096, 32768)}
COMPILED_FUSIONS = {
    "x + residual, rms_norm",
    "x + residual, rms_norm, to e4m3",
    "layer_norm, to e4m3",
    "swiglu",
    "swiglu, to e4m3",
    "geglu",
    "rotary_embedding, 32 heads, head_dim 128",
    "topk_softmax, k = 8",
}
"""Fused functions for which it is timed: the first shape of each."""
SHORT = measure.Effort(Stopping(0.015, 8, 0.0, 0.08), warmup=0.03, window=0.01, batch=0.003)
REDUCTIONS = (
    ((16384, 8192), 1, torch.bfloat16),
    ((16384, 8192), 0, torch.bfloat16),
    ((8, 1 << 24), 1, torch.bfloat16),
    ((1 << 27,), None, torch.float32),
    ((64, 4096, 1024), 1, torch.bfloat16),
    ((1 << 20, 16), 1, torch.float32),
    ((16384, 8191), 1, torch.bfloat16),
    ((1 << 20, 100), 1, torch.bfloat16),
)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Standard-normal data."""
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    refuse_constants(x)
    return x


def device_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    if CHECK:
        call()
        return math.nan
    return measure.measure(call, effort=SHORT if "--short" in sys.argv else measure.QUICK).us


def peer_us(call: Callable[[], Any] | None) -> str:
    """Return microseconds of PyTorch as text, `-` where there is none or `--ours` leaves it out."""
    return "-" if OURS or CHECK or call is None else f"{device_us(call):.1f}"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def compare(got: Any, wanted: Any, dtype: torch.dtype, terms: int = 1) -> None:
    """Compare within the rounding of the dtype, for reductions over `terms` terms."""
    step = 2e-2 if dtype != torch.float32 else 1e-4
    torch.testing.assert_close(got.float(), wanted, rtol=step, atol=step * terms**0.5)


def forward(compiled: bool) -> None:
    """Measure row-wise kernels."""
    for count, n, dtype in ROWS + MORE_ROWS:
        x, weight, bias = normal(count, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype)
        out = torch.empty_like(x)
        copy = device_us(lambda out=out, x=x: out.copy_(x))
        cases: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
            "softmax": (lambda x=x, out=out: kernels.softmax(x, out=out), lambda x, w, b: torch.softmax(x, -1)),
            "rms_norm": (
                lambda x=x, w=weight, out=out: kernels.rms_norm(x, w, out=out),
                lambda x, w, b: functional.rms_norm(x, (x.shape[-1],), w, 1e-6),
            ),
            "layer_norm": (
                lambda x=x, w=weight, b=bias, out=out: kernels.layer_norm(x, w, b, out=out),
                lambda x, w, b: functional.layer_norm(x, (x.shape[-1],), w, b),
            ),
        }
        for name, (ours, theirs) in cases.items():
            if not OURS:
                compare(ours(), theirs(x.float(), weight.float(), bias.float()), dtype)
            eager = peer_us(lambda theirs=theirs, x=x, w=weight, b=bias: theirs(x, w, b))
            inductor = "-"
            if compiled and (count, n) in COMPILED:
                fused = torch.compile(theirs, dynamic=False)
                inductor = peer_us(lambda fused=fused, x=x, w=weight, b=bias: fused(x, w, b))
            us = device_us(ours)
            speed = 2 * x.numel() * x.element_size() / us / 1e6
            FORWARD.add(
                name, count, n, name_of(dtype), eager, inductor, f"{us:.1f}", f"{speed:.2f}", f"{copy / us:.2f}"
            )


def rms_norm_backward(dy: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    """RMSNorm backward for torch.compile, which recomputes the row statistics, too."""
    g, scale = dy.float(), torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    normal, scaled = x.float() * scale, g * weight.float()
    dx = (scaled - normal * (scaled * normal).mean(-1, keepdim=True)) * scale
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype)


def layer_norm_backward(dy: Any, x: Any, weight: Any) -> tuple[Any, Any, Any]:
    """LayerNorm backward for torch.compile."""
    g, distance = dy.float(), x.float() - x.float().mean(-1, keepdim=True)
    scale = torch.rsqrt(distance.square().mean(-1, keepdim=True) + 1e-5)
    normal, scaled = distance * scale, g * weight.float()
    shared = scaled.mean(-1, keepdim=True) + normal * (scaled * normal).mean(-1, keepdim=True)
    return ((scaled - shared) * scale).to(x.dtype), (g * normal).sum(0).to(weight.dtype), g.sum(0).to(weight.dtype)


def backward(compiled: bool) -> None:
    """Measure row-wise backward kernels: two arrays are read and one is written."""
    for count, n, dtype in ROWS + UNALIGNED:
        x, dy, weight = normal(count, n, dtype=dtype), normal(count, n, dtype=dtype), normal(n, dtype=dtype)
        bias, out = normal(n, dtype=dtype), torch.empty_like(x)
        y = torch.softmax(x, -1)
        copy = device_us(lambda out=out, x=x: out.copy_(x)) * 1.5
        _, mean, scale = torch.native_layer_norm(x, [n], weight, bias, 1e-5)
        cases: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None, Callable[..., Any] | None]] = {
            "softmax": (
                lambda dy=dy, y=y, out=out: kernels.softmax_backward(dy, y, out=out),
                lambda dy=dy, y=y, dtype=dtype: torch.ops.aten._softmax_backward_data(dy, y, -1, dtype),
                None,
            ),
            "rms_norm": (
                lambda dy=dy, x=x, w=weight, out=out: kernels.rms_norm_backward(dy, x, w, out=out),
                None,
                rms_norm_backward,
            ),
            "layer_norm": (
                lambda dy=dy, x=x, w=weight, out=out: kernels.layer_norm_backward(dy, x, w, bias=True, out=out),
                lambda dy=dy, x=x, n=n, m=mean, s=scale, w=weight, b=bias: torch.ops.aten.native_layer_norm_backward(
                    dy, x, [n], m, s, w, b, [True, True, True]
                ),
                layer_norm_backward,
            ),
        }
        for name, (ours, theirs, program) in cases.items():
            if not OURS:
                wanted = (theirs(),) if program is None and theirs is not None else None
                if program is not None:
                    wanted = program(dy.float(), x.float(), weight.float())
                found = ours()
                for got, value in zip(found if isinstance(found, tuple) else (found,), wanted or (), strict=True):
                    compare(got, value.float(), dtype, 1 if got.ndim > 1 else count)
            eager, inductor = peer_us(theirs), "-"
            if compiled and program is not None and (count, n) in COMPILED_BACKWARD:
                fused = torch.compile(program, dynamic=False)
                inductor = peer_us(lambda fused=fused, dy=dy, x=x, w=weight: fused(dy, x, w))
            us = device_us(ours)
            speed = 3 * x.numel() * x.element_size() / us / 1e6
            BACKWARD.add(
                name, count, n, name_of(dtype), eager, inductor, f"{us:.1f}", f"{speed:.2f}", f"{copy / us:.2f}"
            )


def quantized(y: Any) -> tuple[Any, Any]:
    """Return rows as e4m3 and their scales, as a PyTorch program would compute them."""
    scale = y.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    """RoPE of whole heads, the first half with the second."""
    a, b = x.float().chunk(2, -1)
    c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


def rotated_interleaved(x: Any, cos: Any, sin: Any) -> Any:
    """RoPE of neighbouring elements."""
    a, b = x.float()[..., ::2], x.float()[..., 1::2]
    c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
    return torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2).to(x.dtype)


def added_backward(dy: Any, dsum: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    """Backward of RMSNorm of a sum."""
    dx, dweight = rms_norm_backward(dy, x, weight)
    return (dx.float() + dsum.float()).to(x.dtype), dweight


def fused_cases() -> Any:
    """Yield fused functions: name, arrays, Kiln's call, PyTorch's, and the 16-bit elements that are moved."""
    bf16, silu, norm = torch.bfloat16, functional.silu, functional.rms_norm
    for count, n in ((16384, 8192), (16384, 4096), (16384, 8191), (16, 8192), (256, 8192)):
        given = tuple(normal(*shape, dtype=bf16) for shape in ((count, n), (count, n), (n,)))
        yield (
            "x + residual, rms_norm",
            given,
            lambda x, r, w: kernels.fused_add_rms_norm(x, r, w),
            lambda x, r, w: (norm(x + r, (x.shape[-1],), w, 1e-6), x + r),
            4 * given[0].numel(),
        )
    e4m3 = torch.float8_e4m3fn
    for count, n in ((16384, 8192), (16384, 4096), (16384, 5120), (8192, 16384), (16, 8192), (256, 8192)):
        x, r, w = (normal(*shape, dtype=bf16) for shape in ((count, n), (count, n), (n,)))
        yield (
            "x + residual, rms_norm, to e4m3",
            (x, r, w),
            lambda x, r, w: kernels.fused_add_rms_norm(x, r, w, quantize=e4m3),
            lambda x, r, w: (*quantized(norm((x + r).float(), (x.shape[-1],), w.float(), 1e-6)), x + r),
            3.5 * x.numel(),
        )
    count, n = 16384, 8192
    x, r, d = (normal(count, n, dtype=bf16) for _ in range(3))
    w, b = normal(n, dtype=bf16), normal(n, dtype=bf16)
    yield (
        "layer_norm, to e4m3",
        (x, w, b),
        lambda x, w, b: kernels.layer_norm(x, w, b, quantize=e4m3),
        lambda x, w, b: quantized(functional.layer_norm(x.float(), (x.shape[-1],), w.float(), b.float())),
        1.5 * x.numel(),
    )
    yield (
        "rms_norm, to e4m3",
        (x, w),
        lambda x, w: kernels.rms_norm(x, w, quantize=e4m3),
        lambda x, w: quantized(norm(x.float(), (x.shape[-1],), w.float(), 1e-6)),
        1.5 * x.numel(),
    )
    yield (
        "x + residual, layer_norm, to e4m3",
        (x, r, w, b),
        lambda x, r, w, b: kernels.fused_add_layer_norm(x, r, w, b, quantize=e4m3),
        lambda x, r, w, b: (
            *quantized(functional.layer_norm((x + r).float(), (x.shape[-1],), w.float(), b.float())),
            x + r,
        ),
        3.5 * x.numel(),
    )
    yield (
        "x + residual, layer_norm",
        (x, r, w, b),
        lambda x, r, w, b: kernels.fused_add_layer_norm(x, r, w, b),
        lambda x, r, w, b: (functional.layer_norm(x + r, (x.shape[-1],), w, b), x + r),
        4 * x.numel(),
    )
    yield (
        "x + residual, rms_norm, backward",
        (d, r, x, w),
        lambda d, r, x, w: kernels.fused_add_rms_norm_backward(d, r, x, w),
        added_backward,
        4 * x.numel(),
    )
    gate, up, dy = (normal(8192, 14336, dtype=bf16) for _ in range(3))
    both, size = torch.cat([gate, up], -1), gate.numel()
    for rows in (len(gate), 16, 256):
        pair = gate[:rows], up[:rows]
        yield "swiglu", pair, lambda g, u: kernels.swiglu(g, u), lambda g, u: silu(g) * u, 3 * pair[0].numel()
    yield (
        "swiglu, packed",
        (both,),
        lambda x: kernels.swiglu(x),
        lambda x: silu(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :],
        3 * size,
    )
    yield (
        "swiglu, to e4m3",
        (gate, up),
        lambda g, u: kernels.swiglu(g, u, quantize=e4m3),
        lambda g, u: quantized(silu(g.float()) * u.float()),
        2.5 * size,
    )
    yield (
        "swiglu, backward",
        (dy, gate, up),
        lambda d, g, u: kernels.swiglu_backward(d, g, u),
        lambda d, g, u: (torch.ops.aten.silu_backward(d * u, g), d * silu(g)),
        5 * size,
    )
    yield "geglu", (gate, up), lambda g, u: kernels.geglu(g, u), lambda g, u: functional.gelu(g) * u, 3 * size
    yield (
        "geglu, tanh",
        (gate, up),
        lambda g, u: kernels.geglu(g, u, approximate="tanh"),
        lambda g, u: functional.gelu(g, approximate="tanh") * u,
        3 * size,
    )
    heads, angles = (
        normal(4, 4096, 32, 128, dtype=bf16),
        torch.arange(4096, device="cuda")[:, None] * 0.01 * torch.rand(64, device="cuda"),
    )
    yield (
        "rotary_embedding, 32 heads, head_dim 128",
        (heads, angles.cos(), angles.sin()),
        lambda x, c, s: kernels.rotary_embedding(x, c, s),
        rotated,
        2 * heads.numel(),
    )
    yield (
        "rotary_embedding, interleaved",
        (heads, angles.cos(), angles.sin()),
        lambda x, c, s: kernels.rotary_embedding(x, c, s, True),
        rotated_interleaved,
        2 * heads.numel(),
    )
    for count, n, k in TOP_K:
        logits = normal(count, n, dtype=torch.float32)

        def theirs(x: Any, k: int = k) -> Any:
            values, indices = torch.topk(torch.softmax(x, -1), k)
            return values / values.sum(-1, keepdim=True), indices

        yield (
            f"topk_softmax, k = {k}",
            (logits,),
            lambda x, k=k: kernels.topk_softmax(x, k, True),
            theirs,
            2 * logits.numel() + 4 * k * count,
        )


def fused(compiled: bool) -> None:
    """Measure fused kernels beside a copy of as many bytes, of half a GB at most: larger PyTorch copies are slower."""

    @functools.cache
    def copied(moved: int) -> float:
        x = normal(moved // 2, dtype=torch.bfloat16)
        out = torch.empty_like(x)
        return 2 * moved / device_us(lambda: out.copy_(x))

    done: set[str] = set()
    for name, given, ours, theirs, moved in fused_cases():
        results = ((), ()) if OURS else (ours(*given), theirs(*given))
        for got, value in zip(*(x if isinstance(x, tuple) else (x,) for x in results), strict=True):
            if got.dtype == torch.float8_e4m3fn:  # x + residual is rounded before the norm or after: a step at most
                torch.testing.assert_close(got.float(), value.float(), rtol=0.13, atol=0.01)
            elif got.is_floating_point():
                compare(got, value.float(), torch.bfloat16, 1 if got.ndim > 1 else len(given[0]))
        eager, inductor = peer_us(lambda f=theirs, given=given: f(*given)), "-"
        if compiled and name not in done and name in COMPILED_FUSIONS:
            done.add(name)
            compiled_peer = torch.compile(theirs, dynamic=False)
            inductor = peer_us(lambda f=compiled_peer, given=given: f(*given))
        us = device_us(lambda f=ours, given=given: f(*given))
        shape = "x".join(map(str, given[0].shape))
        rate, limit = 2 * moved / us, copied(min(int(moved), 1 << 28))
        FUSED.add(name, shape, eager, inductor, f"{us:.1f}", f"{rate / 1e6:.2f}", f"{rate / limit:.2f}")


def quantised() -> None:
    """Measure rows quantised to e4m3, relative to 4.25 TB/s. `fused` compares the results of some of them."""
    named: dict[str, tuple[float, Callable[..., Any]]] = {
        "x + residual, rms_norm": (3.5, lambda x, r, w, b, q: kernels.fused_add_rms_norm(x, r, w, quantize=q)),
        "rms_norm": (1.5, lambda x, r, w, b, q: kernels.rms_norm(x, w, quantize=q)),
        "x + residual, layer_norm": (3.5, lambda x, r, w, b, q: kernels.fused_add_layer_norm(x, r, w, b, quantize=q)),
        "layer_norm": (1.5, lambda x, r, w, b, q: kernels.layer_norm(x, w, b, quantize=q)),
        "swiglu": (2.5, lambda x, r, w, b, q: kernels.swiglu(x, r, quantize=q)),
        "geglu": (2.5, lambda x, r, w, b, q: kernels.geglu(x, r, quantize=q)),
    }
    for count, n in LENGTHS:
        x, r = (normal(count, n, dtype=torch.bfloat16) for _ in range(2))
        w, b = (normal(n, dtype=torch.bfloat16) for _ in range(2))
        cells = []
        for moved, call in named.values():
            us = device_us(lambda call=call, x=x, r=r, w=w, b=b: call(x, r, w, b, torch.float8_e4m3fn))
            cells.append(f"{us:.1f} ({2 * moved * x.numel() / us / 4.25e6:.2f})")
        QUANTISED.add(count, n, *cells)


def losses(compiled: bool) -> None:
    """Measure cross-entropy: forward reads the logits, backward reads and writes them."""
    for count, n, dtype in (
        (4096, 32000, torch.bfloat16),
        (4096, 128256, torch.bfloat16),
        (1024, 262144, torch.bfloat16),
        (8192, 50257, torch.bfloat16),
        (4096, 32000, torch.float32),
    ):
        logits = normal(count, n, dtype=dtype)
        target = torch.randint(0, n, (count,), device="cuda")
        out, one = torch.empty_like(logits), torch.ones((), device="cuda")
        copy = device_us(lambda out=out, x=logits: out.copy_(x))
        loss, lse = kernels.cross_entropy(logits, target, return_lse=True)
        if not OURS:
            torch.testing.assert_close(loss, functional.cross_entropy(logits.float(), target), rtol=1e-5, atol=1e-5)
            compare(
                kernels.cross_entropy_backward(one, logits, target, lse, out=out)[:512].mul(count),
                _gradient(logits[:512].float(), target[:512], lse[:512], one).mul(512),
                dtype,
            )
        logarithms = torch.log_softmax(logits, -1)
        counted = torch.tensor(float(count), device="cuda", dtype=dtype)
        given = (one.to(dtype), logarithms, target, counted)
        cases: dict[str, tuple[int, Callable[[], Any], Callable[[], Any], Callable[..., Any], tuple[Any, ...]]] = {
            "forward": (
                1,
                lambda x=logits, t=target: kernels.cross_entropy(x, t),
                lambda x=logits, t=target: functional.cross_entropy(x, t),
                functional.cross_entropy,
                (logits, target),
            ),
            "backward": (
                2,
                lambda g=one, x=logits, t=target, lse=lse, out=out: kernels.cross_entropy_backward(
                    g, x, t, lse, out=out
                ),
                lambda given=given: _eager_gradient(*given),
                _gradient,
                (logits, target, lse, one),
            ),
        }
        for name, (passes, ours, theirs, written, arguments) in cases.items():
            inductor = "-"
            if compiled and n in (32000, 50257):
                fused = torch.compile(written, dynamic=False)
                inductor = peer_us(lambda fused=fused, arguments=arguments: fused(*arguments))
            eager, us = peer_us(theirs), device_us(ours)
            speed = passes * logits.numel() * logits.element_size() / us / 1e6
            LOSSES.add(
                name,
                count,
                n,
                name_of(dtype),
                eager,
                inductor,
                f"{us:.1f}",
                f"{speed:.2f}",
                f"{passes * copy / 2 / us:.2f}",
            )


def _gradient(logits: Any, target: Any, lse: Any, outer: Any) -> Any:
    """Cross-entropy backward for torch.compile."""
    chances = torch.exp(logits.float() - lse[:, None])
    named = torch.arange(logits.shape[1], device=logits.device) == target[:, None]
    return ((chances - named.float()) * (outer / logits.shape[0])).to(logits.dtype)


def _eager_gradient(outer: Any, logarithms: Any, target: Any, counted: Any) -> Any:
    """Cross-entropy backward by the two functions that PyTorch calls for it."""
    inner = torch.ops.aten.nll_loss_backward(outer, logarithms, target, None, 1, -100, counted)
    return torch.ops.aten._log_softmax_backward_data(inner, logarithms, -1, logarithms.dtype)


def reductions() -> None:
    """Measure reductions. Results are compared bit by bit, `sum` with float64."""
    for shape, axis, dtype in REDUCTIONS:
        x = normal(*shape, dtype=dtype)
        options = {} if axis is None else {"dim": axis}
        for name, theirs in (("sum", torch.sum), ("max", torch.amax), ("argmax", torch.argmax)):
            ours = getattr(kernels, name)
            if OURS:
                pass
            elif name == "sum":
                wanted = x.double().sum(**options)
                spread = (x.numel() / wanted.numel()) ** 0.5
                narrow = dtype != torch.float32
                torch.testing.assert_close(
                    ours(x, axis).double(),
                    wanted,
                    rtol=1e-2 if narrow else 1e-4,
                    atol=spread * (2e-2 if narrow else 1e-4),
                )
            elif not torch.equal(ours(x, axis), theirs(x, **options)):
                raise SystemExit(f"{name} of {shape} over {axis} is wrong")
            eager = peer_us(lambda theirs=theirs, x=x, options=options: theirs(x, **options))
            us = device_us(lambda ours=ours, x=x, axis=axis: ours(x, axis))
            REDUCTION_TABLE.add(
                name,
                "x".join(map(str, shape)),
                str(axis),
                name_of(dtype),
                eager,
                f"{us:.1f}",
                f"{x.numel() * x.element_size() / us / 1e6:.2f}",
            )


def elementwise() -> None:
    """Measure element-wise functions."""
    for dtype in (torch.bfloat16, torch.float32):
        x, y = normal(8192, 16384, dtype=dtype), normal(8192, 16384, dtype=dtype)
        row, column, out = normal(16384, dtype=dtype), normal(8192, 1, dtype=dtype), torch.empty_like(x)
        size = x.numel() * x.element_size()
        cases: tuple[tuple[str, float, Any, Any], ...] = (
            (
                "x + y",
                3,
                lambda x, y, r, c, o: kernels.elementwise(lambda a, b: a + b, x, y, out=o),
                lambda x, y, r, c, o: torch.add(x, y, out=o),
            ),
            (
                "x * row + column",
                2,
                lambda x, y, r, c, o: kernels.elementwise(lambda a, b, d: a * b + d, x, r, c, out=o),
                lambda x, y, r, c, o: torch.addcmul(c, x, r, out=o),
            ),
            (
                "max(x, 0) * 2 - y",
                3,
                lambda x, y, r, c, o: kernels.elementwise(lambda a, b: _clipped(a) * 2 - b, x, y, out=o),
                lambda x, y, r, c, o: torch.relu(x) * 2 - y,
            ),
        )
        for name, arrays, ours, theirs in cases:
            given = (x, y, row, column, out)
            if not OURS:
                torch.testing.assert_close(ours(*given).clone(), theirs(*given), rtol=2e-2, atol=5e-2)
            eager = peer_us(lambda theirs=theirs, given=given: theirs(*given))
            us = device_us(lambda ours=ours, given=given: ours(*given))
            ELEMENTWISE.add(name, name_of(dtype), eager, f"{us:.1f}", f"{arrays * size / us / 1e6:.2f}")


def _clipped(a: Any) -> Any:
    from kiln import cute

    return cute.where(a > 0, a, 0)


def main(chosen: list[str]) -> None:
    """Measure the chosen tables; all if none is chosen."""
    tables: dict[str, Callable[[], None]] = {
        "forward": lambda: forward("--no-compile" not in chosen),
        "backward": lambda: backward("--no-compile" not in chosen),
        "fused": lambda: fused("--no-compile" not in chosen),
        "quantised": quantised,
        "losses": lambda: losses("--no-compile" not in chosen),
        "reductions": reductions,
        "elementwise": elementwise,
    }
    torch.manual_seed(0)
    wanted = [name for name in chosen if name in tables]
    for name, table in tables.items():
        if not wanted or name in wanted:
            table()
    PAGE.finish("--save" in chosen)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    main(sys.argv[1:])
