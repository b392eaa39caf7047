"""Calls of the kernel library with two source trees, alternating, on one GPU: what a change costs.

    git worktree add /tmp/base main~3
    python benchmarks/revisions.py /tmp/base/src src
    python benchmarks/revisions.py /tmp/base/src src --only attention --rounds 11

The calls are those of the tables of docs/performance.md. Each tree has a process of its own, which compiles all calls
first; then both time each call alternately, and the table has the medians. A call that one tree refuses is listed with
the error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Calls = dict[str, Callable[[], Any]]
WINDOW_US = 20_000
"""Device time of one measurement; a call is repeated until it is filled."""


def calls() -> Calls:
    """Return the calls by name; each makes its arrays once, when it is called first."""
    import torch

    from kiln import kernels

    half, bf16, f32, e4m3 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    table: dict[str, Callable[[], Callable[[], Any]]] = {}

    def normal(*shape: int, dtype: Any = bf16) -> Any:
        if dtype is torch.int8:
            return torch.randint(-127, 128, shape, dtype=dtype, device="cuda")
        return torch.randn(shape, dtype=half if dtype is e4m3 else dtype, device="cuda").to(dtype)

    def gemm(m: int, n: int, k: int, dtype: Any, **options: Any) -> Callable[[], Any]:
        a, b = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype).T
        out = kernels.gemm(a, b, **options)
        return lambda: kernels.gemm(a, b, out=out, **options)

    for name, dtype, sizes in (
        ("f16", half, (2048, 4096, 8192)),
        ("bf16", bf16, (1024, 8192)),
        ("e4m3", e4m3, (8192,)),
        ("i8", torch.int8, (8192,)),
    ):
        for size in sizes:
            table[f"gemm {name} {size}"] = lambda size=size, dtype=dtype: gemm(size, size, size, dtype)
    table["gemm e4m3 8192, fast"] = lambda: gemm(8192, 8192, 8192, e4m3, precision="fast")
    table["gemm tf32 4096"] = lambda: gemm(4096, 4096, 4096, f32, precision="tf32")
    table["gemm f32 4096"] = lambda: gemm(4096, 4096, 4096, f32)
    for m, n, k in (
        (16, 4096, 4096),
        (1, 8192, 8192),
        (128, 192, 9216),
        (64, 448, 46080),
        (192, 7168, 4096),
        (64, 28672, 4096),
    ):
        table[f"gemm bf16 {m}x{n}x{k}"] = lambda m=m, n=n, k=k: gemm(m, n, k, bf16)
    table["gemm bf16 8192, gelu and bias"] = lambda: gemm(8192, 8192, 8192, bf16, activation="gelu", bias=normal(8192))

    def mixed(m: int, size: int, **options: Any) -> Callable[[], Any]:
        a, b = normal(m, size), torch.randint(-127, 128, (size, size), dtype=torch.int8, device="cuda").T
        scales = torch.rand(size, dtype=f32, device="cuda")
        return lambda: kernels.gemm(a, b, scale_b=scales, **options)

    table["gemm bf16 x i8, 16 rows"] = lambda: mixed(16, 8192)
    table["gemm bf16 x i8, 512 rows"] = lambda: mixed(512, 8192)

    def grouped() -> Callable[[], Any]:
        x, w = normal(8192, 4096), normal(8, 4096, 4096).transpose(1, 2)
        ends = torch.arange(1, 9, dtype=torch.int32, device="cuda") * 1024
        return lambda: kernels.grouped_gemm(x, w, offsets=ends)

    table["grouped_gemm bf16, 8 x 1024 rows"] = grouped

    def attention(
        batch: int, length: int, heads: int, dims: Any, dtype: Any = half, kv: int = 0, **options: Any
    ) -> Any:
        dim, dim_v = dims if isinstance(dims, tuple) else (dims, dims)
        q = normal(batch, length, heads, dim, dtype=dtype)
        k, v = (
            normal(batch, length, kv or heads, dim, dtype=dtype),
            normal(batch, length, kv or heads, dim_v, dtype=dtype),
        )
        return lambda: kernels.flash_attention(q, k, v, **options)

    def backward(batch: int, length: int, heads: int, dims: Any, kv: int = 0, **options: Any) -> Any:
        dim, dim_v = dims if isinstance(dims, tuple) else (dims, dims)
        q, k, v = (
            normal(batch, length, heads, dim),
            normal(batch, length, kv or heads, dim),
            normal(batch, length, kv or heads, dim_v),
        )
        out, lse = kernels.flash_attention(q, k, v, return_lse=True, **options)
        dout = normal(*out.shape)
        return lambda: kernels.flash_attention_backward(dout, q, k, v, out, lse, **options)

    for causal in (False, True):
        more = ", causal" if causal else ""
        for label, *rest in (
            ("4x8192, 16 heads, 128", 4, 8192, 16, 128),
            ("4x8192, 32 heads, 64", 4, 8192, 32, 64),
            ("4x8192, 16 heads, (192, 128)", 4, 8192, 16, (192, 128)),
            ("4x8192, 8 heads, 256", 4, 8192, 8, 256),
            ("4x8192, 32 on 8 heads, 128", 4, 8192, 32, 128, half, 8),
            ("1x16384, 16 heads, 128, e4m3", 1, 16384, 16, 128, e4m3),
            ("1x16384, 8 heads, 256, e4m3", 1, 16384, 8, 256, e4m3),
            ("16x512, 16 heads, 128", 16, 512, 16, 128),
        ):
            table[f"attention {label}{more}"] = lambda rest=rest, causal=causal: attention(*rest, causal=causal)
        for label, *rest in (
            ("4x8192, 16 heads, 128", 4, 8192, 16, 128),
            ("4x8192, 32 heads, 64", 4, 8192, 32, 64),
            ("4x8192, 10 heads, (192, 128)", 4, 8192, 10, (192, 128)),
            ("4x8192, 8 on 2 heads, 256", 4, 8192, 8, 256, 2),
        ):
            table[f"backward {label}{more}"] = lambda rest=rest, causal=causal: backward(*rest, causal=causal)
    table["attention 4x8192, window"] = lambda: attention(4, 8192, 16, 128, causal=True, window=(1024, 0))
    table["attention 4x8192, softcap"] = lambda: attention(4, 8192, 16, 128, causal=True, softcap=20.0)

    def decode(batch: int, keys: int, page: int = 0) -> Callable[[], Any]:
        q = normal(batch, 1, 32, 128)
        if not page:
            k, v = normal(batch, keys, 8, 128), normal(batch, keys, 8, 128)
            return lambda: kernels.flash_attention(q, k, v)
        k, v = (normal(batch * keys // page, page, 8, 128) for _ in range(2))
        pages = torch.randperm(batch * keys // page, dtype=torch.int32, device="cuda").view(batch, -1)
        used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        return lambda: kernels.paged_attention(q, k, v, pages, used)

    for batch, keys, page in ((1, 131072, 0), (64, 4096, 0), (64, 4096, 16), (16, 16384, 64)):
        table[f"decode {batch} x {keys}, pages of {page}"] = lambda b=batch, k=keys, p=page: decode(b, k, p)

    def mla(batch: int, heads: int, keys: int, dtype: Any = bf16) -> Callable[[], Any]:
        q, cache = normal(batch, 1, heads, 576), normal(batch * keys // 64, 64, 576, dtype=dtype)
        pages = torch.randperm(batch * keys // 64, dtype=torch.int32, device="cuda").view(batch, -1)
        used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        return lambda: kernels.mla_decode(q, cache, pages, used)

    for batch, heads, keys, dtype in (
        (128, 128, 4096, bf16),
        (128, 64, 4096, bf16),
        (128, 16, 4096, bf16),
        (128, 128, 4096, e4m3),
        (128, 16, 4096, e4m3),
    ):
        name = "e4m3" if dtype is e4m3 else "bf16"
        table[f"mla {name} {batch} x {heads} heads x {keys}"] = lambda b=batch, h=heads, k=keys, d=dtype: mla(
            b, h, k, d
        )

    def rows(
        function: Callable[..., Any], m: int, n: int, inputs: str, dtype: Any = bf16, **options: Any
    ) -> Callable[[], Any]:
        arrays = [normal(n, dtype=dtype) if kind == "w" else normal(m, n, dtype=dtype) for kind in inputs]
        return lambda: function(*arrays, **options)

    for m, n in ((16384, 8192), (16384, 1024), (16384, 8191), (2048, 50257), (512, 262144), (131072, 1027)):
        size = f"{m}x{n}"
        table[f"softmax {size}"] = lambda m=m, n=n: rows(kernels.softmax, m, n, "x")
        table[f"rms_norm {size}"] = lambda m=m, n=n: rows(kernels.rms_norm, m, n, "xw")
        table[f"layer_norm {size}"] = lambda m=m, n=n: rows(kernels.layer_norm, m, n, "xww")
        if n <= 65536:
            table[f"layer_norm_backward {size}"] = lambda m=m, n=n: rows(
                kernels.layer_norm_backward, m, n, "xxw", bias=True
            )
            table[f"rms_norm_backward {size}"] = lambda m=m, n=n: rows(kernels.rms_norm_backward, m, n, "xxw")
            table[f"softmax_backward {size}"] = lambda m=m, n=n: rows(kernels.softmax_backward, m, n, "xx")
        table[f"sum {size}"] = lambda m=m, n=n: rows(kernels.sum, m, n, "x", axis=1)
        table[f"argmax {size}"] = lambda m=m, n=n: rows(kernels.argmax, m, n, "x", axis=1)
    for n in (8192, 8191):
        table[f"fused_add_rms_norm 16384x{n}"] = lambda n=n: rows(kernels.fused_add_rms_norm, 16384, n, "xxw")
        table[f"fused_add_layer_norm to e4m3 16384x{n}"] = lambda n=n: rows(
            kernels.fused_add_layer_norm, 16384, n, "xxww", quantize=e4m3
        )
        table[f"rms_norm to e4m3 16384x{n}"] = lambda n=n: rows(kernels.rms_norm, 16384, n, "xw", quantize=e4m3)
    table["swiglu 8192x14336"] = lambda: rows(kernels.swiglu, 8192, 14336, "xx")
    table["swiglu to e4m3 8192x14336"] = lambda: rows(kernels.swiglu, 8192, 14336, "xx", quantize=e4m3)
    table["swiglu_backward 8192x14336"] = lambda: rows(kernels.swiglu_backward, 8192, 14336, "xxx")
    table["topk_softmax 65536x256"] = lambda: rows(lambda x: kernels.topk_softmax(x, 8, True), 65536, 256, "x", f32)
    table["topk_softmax 512x128256"] = lambda: rows(lambda x: kernels.topk_softmax(x, 8, True), 512, 128256, "x", f32)
    table["elementwise 16384x8192"] = lambda: rows(
        lambda x, y: kernels.elementwise(lambda a, b: a * b + a, x, y), 16384, 8192, "xx"
    )

    def rope() -> Callable[[], Any]:
        x, cos, sin = normal(4 * 4096, 32, 128), normal(4 * 4096, 64, dtype=f32), normal(4 * 4096, 64, dtype=f32)
        return lambda: kernels.rotary_embedding(x, cos, sin)

    def loss(m: int, n: int) -> Callable[[], Any]:
        x, target = normal(m, n), torch.randint(0, n, (m,), device="cuda")
        return lambda: kernels.cross_entropy(x, target)

    table["rotary_embedding 16384 x 32 x 128"] = rope
    table["cross_entropy 4096x128256"] = lambda: loss(4096, 128256)
    table["cross_entropy 16384x32000"] = lambda: loss(16384, 32000)
    return table


def serve(only: str) -> None:
    """Answer requests of the parent, a line each: the names first, then for each name asked for its microseconds."""
    import torch

    def answer(value: Any) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    out, sys.stdout = sys.stdout, sys.stderr
    torch.manual_seed(0)
    table = {name: make for name, make in calls().items() if only in name}
    answer(list(table))
    current: tuple[str, Any, int] = ("", None, 0)
    for line in sys.stdin:
        name = json.loads(line)
        try:
            if name != current[0]:
                current = ("", None, 0)
                torch.cuda.empty_cache()
                call = table[name]()
                for _ in range(3):
                    call()
                once = milliseconds(call, 3) * 1000
                current = (name, call, max(3, min(2000, math.ceil(WINDOW_US / once))))
                answer(None)
            else:
                answer(milliseconds(current[1], current[2]) * 1000)
        except Exception as error:
            answer(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the device's milliseconds of one call among several."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


class Tree:
    """A process that times calls with one source tree."""

    def __init__(self, path: str, only: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.path.abspath(path), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, __file__, "--serve", "--only", only]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.names = self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the process of a tree has ended")
        return json.loads(line)

    def ask(self, name: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", help="the folders `src` of base and change")
    parser.add_argument("--only", default="", help="calls with this text in their names")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.only)
        return
    if len(options.trees) != 2:
        parser.error("two folders are compared: base/src and src")
    base, change = (Tree(path, options.only) for path in options.trees)
    ratios: list[float] = []
    print("| call | base us | change us | change / base |\n|---|--:|--:|--:|", flush=True)
    for name in (name for name in change.names if name in base.names):
        for tree in (base, change):  # both compile at the same time
            tree.ask(name)
        errors = [tree.read() for tree in (base, change)]
        if any(errors):
            print(f"| {name} | {errors[0] or ''} | {errors[1] or ''} | |", flush=True)
            continue
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(options.rounds):
            for number in (0, 1) if turn % 2 == 0 else (1, 0):
                tree = (base, change)[number]
                tree.ask(name)
                times[number].append(tree.read())
        before, after = (statistics.median(of) for of in times)
        ratios.append(after / before)
        print(f"| {name} | {before:.1f} | {after:.1f} | {after / before:.3f} |", flush=True)
    if ratios:
        print(f"\nGeometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
