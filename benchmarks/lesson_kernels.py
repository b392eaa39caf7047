"""Kernels of the lessons beside PyTorch and a copy, on one GPU, on the same data, in one run.

    python benchmarks/lesson_kernels.py [--save]

The kernels are those of the pages in docs/learn, as they stand there. Times are of the device alone, by `kiln.measure`:
medians of calls in a CUDA graph with a cold L2 cache. "of a copy" is the bandwidth relative to `torch.neg`, an
element-wise kernel, on as many bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from normal_data import refuse_constants
from results import Page, Table

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "figures"))

from lessons import program  # pyright: ignore[reportMissingImports]

from kiln import cute, measure

KERNELS = Table(
    "Memory-bound kernels of the lessons",
    ("lesson", "kernel", "shape", "dtype", "PyTorch call", "torch us", "Kiln us", "Kiln TB/s", "of a copy"),
)
PAGE = Page(__file__, "Kernels of the lessons", KERNELS)


def device_us(call: Callable[[], Any]) -> float:
    return measure.measure(call).us


def add(lesson: int, kernel: str, x: Any, size: int, peer: str, theirs: Callable[[], Any], ours: Callable[[], Any]):
    """Time a kernel that moves `size` bytes."""
    refuse_constants(x)
    source = torch.randn(size // 8, device="cuda")
    target = torch.empty_like(source)
    copy, torch_us, us = device_us(lambda: torch.neg(source, out=target)), device_us(theirs), device_us(ours)
    shape = " x ".join(map(str, x.shape))
    KERNELS.add(
        lesson,
        kernel,
        shape,
        str(x.dtype)[6:],
        f"`{peer}`",
        f"{torch_us:.1f}",
        f"{us:.1f}",
        f"{size / us / 1e6:.2f}",
        f"{copy / us:.2f}",
    )


def saxpy() -> None:
    function = program(1, "def saxpy")["saxpy"]
    x, y = (torch.randn(1 << 26, device="cuda") for _ in range(2))
    want = torch.add(y, x, alpha=2)
    function(2.0, x, y)
    torch.testing.assert_close(y, want)
    add(1, "saxpy", x, 3 * x.nbytes, "y.add_(x, alpha=2)", lambda: y.add_(x, alpha=2), lambda: function(2.0, x, y))


def gated() -> None:
    function, silu = program(5, "import kiln.cute", "def gated")["gated"], torch.nn.functional.silu
    x, b, y = (torch.randn(1 << 27, device="cuda", dtype=torch.float16) for _ in range(3))
    function(x, b, y)
    torch.testing.assert_close(y, (silu(x.float()) * b.float()).half(), rtol=2e-3, atol=1e-3)
    compiled = torch.compile(lambda x, b: silu(x) * b)
    add(5, "gated", x, 3 * x.nbytes, "torch.compile: silu(x) * b", lambda: compiled(x, b), lambda: function(x, b, y))


def softmax() -> None:
    names = program(6, "import kiln.cute", "def softmax", "def wide_softmax")
    names["VALUES"] = 32
    x = torch.randn(65536, 1024, device="cuda", dtype=torch.float16)
    y = torch.empty_like(x)
    for name, shown in (("softmax", "softmax, VALUES = 32"), ("wide_softmax", "wide_softmax")):
        names[name](x, y)
        torch.testing.assert_close(y, torch.softmax(x, -1), rtol=2e-3, atol=1e-5)
        add(
            6,
            shown,
            x,
            2 * x.nbytes,
            "softmax(x, -1)",
            lambda: torch.softmax(x, -1),
            lambda name=name: names[name](x, y),
        )


def transpose() -> None:
    names = program(7, "def transpose")
    x = torch.randn(8192, 8192, device="cuda")
    y, want = torch.empty_like(x), torch.empty_like(x)
    rows = cute.make_layout((32, 32), stride=(32, 1))
    padded = cute.make_layout((32, 32), stride=(33, 1))
    swizzled = cute.make_composed_layout(cute.make_swizzle(5, 0, 5), 0, rows)
    for name, layout in (("plain", rows), ("padded", padded), ("swizzled", swizzled)):
        y.zero_()
        names["transpose"](x, y, layout)
        assert torch.equal(y, x.T)
        add(
            7,
            f"transpose, {name}",
            x,
            2 * x.nbytes,
            "out.copy_(x.T)",
            lambda: want.copy_(x.T),
            lambda layout=layout: names["transpose"](x, y, layout),
        )


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    saxpy()
    gated()
    softmax()
    transpose()
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    main()
