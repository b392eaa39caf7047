"""The gallery's examples beside PyTorch, torch.compile and a copy, on one GPU, on the same data, in one run.

    python benchmarks/gallery.py [--static] [--short] [--save]

Times are of the device alone, by `kiln.measure`: medians of calls in a CUDA graph with a cold L2 cache. Results are
compared with PyTorch's before they are timed. torch.compile tunes its kernels. "of a copy" is the bandwidth relative to
`torch.neg` on as many bytes: `copy_` calls cudaMemcpy, which is slower for large arrays. PyTorch calls cuDNN for
convolutions, in channels-last memory with its autotuner on, and CUB for scans.

`--static` needs no GPU: it compiles each example for sm_90a, and counts bank conflicts on the CPU target. "bytes loaded"
and "stored" are those of a thread's widest access to global memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from normal_data import refuse_constants
from peers import compiled, reason
from results import Page, Table

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import convolution
import histogram
import scan
import transpose

import kiln
from kiln import cute, measure
from kiln.cute.runtime import from_dlpack
from kiln.measure.statistics import Stopping

MEMORY = Table(
    "Memory-bound examples",
    ("example", "shape", "dtype", "torch us", "torch.compile us", "Kiln us", "Kiln TB/s", "of a copy"),
)
CONVOLUTION = Table(
    "Convolution, float16", ("images", "filters", "stride", "padding", "torch TFLOP/s", "Kiln TFLOP/s", "of torch")
)
STATIC = Table(
    "Static profile, sm_90a",
    (
        "example",
        "case",
        "registers",
        "spilled bytes",
        "shared memory",
        "bytes loaded",
        "bytes stored",
        "bank conflicts",
    ),
)
PAGE = Page(__file__, "Examples of the gallery", MEMORY, CONVOLUTION, STATIC)
SHORT = measure.Effort(Stopping(0.015, 8, 0.0, 0.08), warmup=0.03, window=0.01, batch=0.003)


def device_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    return measure.measure(call, effort=SHORT if "--short" in sys.argv else measure.QUICK).us


def memory_bound(
    name: str, x: Any, out: Any, ours: Callable[[], Any], theirs: Callable[[], Any], function: Callable[[Any], Any]
) -> None:
    """Time an example that reads `x` once and writes `out` once, beside a copy of as many bytes; torch.compile gets
    `function`."""
    refuse_constants(x)
    size = x.nbytes + out.nbytes
    source = torch.randn(size // 8, device="cuda")
    target = torch.empty_like(source)
    copy, peer, us = device_us(lambda: torch.neg(source, out=target)), device_us(theirs), device_us(ours)
    try:
        fused = compiled(function, x)
        torch.testing.assert_close(fused().double(), function(x).double(), rtol=1e-3, atol=2.0)
        tuned = f"{device_us(fused):.1f}"
    except Exception as refused:
        tuned = f"- ({reason(refused)})"
    shape = " x ".join(map(str, x.shape)) + (f", {len(out)} bins" if name == "histogram" else "")
    MEMORY.add(
        name, shape, str(x.dtype)[6:], f"{peer:.1f}", tuned, f"{us:.1f}", f"{size / us / 1e6:.2f}", f"{copy / us:.2f}"
    )


def transposes() -> None:
    for m, n, dtype in (
        (8192, 8192, torch.float32),
        (16384, 8192, torch.bfloat16),
        (16384, 16384, torch.uint8),
        (8191, 8193, torch.float32),
    ):
        x = torch.randn(m, n, device="cuda").mul(8).to(dtype)
        y, want = (torch.empty(n, m, device="cuda", dtype=dtype) for _ in range(2))
        transpose.transpose(x, y)
        assert torch.equal(y, x.T)
        memory_bound(
            "transpose",
            x,
            y,
            lambda x=x, y=y: transpose.transpose(x, y),
            lambda x=x, want=want: want.copy_(x.T),
            lambda x: x.T.contiguous(),
        )


def histograms() -> None:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for bins in (16, 256, 4096):
        x = torch.rand(1 << 28, device="cuda")
        counts, bin_of = torch.zeros(bins, dtype=torch.int32, device="cuda"), histogram.even_bins(0.0, 1.0, bins)
        histogram.histogram(x, counts, bin_of, bins, 4 * sms)
        # `histc` counts in float32, which ends at 2^24; `bins` is a power of two, so that `x * bins` is exact
        assert torch.equal(counts, torch.bincount((x * bins).int(), minlength=bins).int())
        memory_bound(
            "histogram",
            x,
            counts,
            lambda x=x, counts=counts, f=bin_of, n=bins: histogram.histogram(x, counts, f, n, 4 * sms),
            lambda x=x, n=bins: torch.histc(x, n, 0.0, 1.0),
            lambda x, n=bins: torch.histc(x, n, 0.0, 1.0),
        )


def scans() -> None:
    for count, dtype in (
        (1 << 20, torch.int32),
        (1 << 28, torch.int32),
        (1 << 28, torch.float32),
        ((1 << 28) - 1, torch.int32),
    ):
        x = torch.randn(count, device="cuda").mul(8).to(dtype)
        y, want = torch.empty_like(x), torch.empty_like(x)
        state = torch.empty(scan.words(count, x.itemsize), dtype=torch.int64, device="cuda")
        scan.scan(x, y, state)
        torch.cumsum(x, 0, dtype=dtype, out=want)
        if dtype == torch.int32:
            assert torch.equal(y, want)
        else:
            torch.testing.assert_close(y, x.double().cumsum(0).float(), rtol=1e-3, atol=1.0)
        memory_bound(
            "scan",
            x,
            y,
            lambda x=x, y=y, s=state: scan.scan(x, y, s),
            lambda x=x, w=want: torch.cumsum(x, 0, dtype=w.dtype, out=w),
            lambda x: torch.cumsum(x, 0, dtype=x.dtype),
        )


def convolutions() -> None:
    torch.backends.cudnn.benchmark = True
    for images, filters, stride, padding in (
        ((64, 56, 56, 64), (64, 3, 3, 64), 1, 1),
        ((64, 28, 28, 128), (128, 3, 3, 128), 1, 1),
        ((64, 14, 14, 256), (256, 3, 3, 256), 1, 1),
        ((64, 56, 56, 256), (512, 1, 1, 256), 2, 0),
        ((16, 64, 64, 512), (512, 3, 3, 512), 1, 1),
        ((64, 224, 224, 8), (64, 7, 7, 8), 2, 3),
    ):
        x, w = (torch.randn(shape, dtype=torch.float16, device="cuda") for shape in (images, filters))
        w /= (filters[1] * filters[2] * filters[3]) ** 0.5
        y = torch.empty(convolution.output_size(x, w, stride, padding), dtype=x.dtype, device="cuda")
        channels_last = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)

        def theirs(operands=channels_last, stride=stride, padding=padding):
            return torch.nn.functional.conv2d(*operands, stride=stride, padding=padding)

        def ours(x=x, w=w, y=y, stride=stride, padding=padding):
            convolution.convolution(x, w, y, stride, padding)

        ours()
        torch.testing.assert_close(y, theirs().permute(0, 2, 3, 1), rtol=1e-2, atol=1e-2)
        flops = 2 * y.numel() * filters[1] * filters[2] * filters[3]
        speeds = [flops / device_us(call) / 1e6 for call in (theirs, ours)]
        shapes = (" x ".join(map(str, shape)) for shape in (images, filters))
        CONVOLUTION.add(*shapes, stride, padding, *(f"{speed:.0f}" for speed in speeds), f"{speeds[1] / speeds[0]:.2f}")


def widest(ptx: str, access: str) -> int | None:
    """Return the bytes of a thread's widest access to global memory: `ld` (with `cp.async`) or `st`; None without any."""
    found = [int(n or 1) * int(bits) // 8 for n, bits in re.findall(rf"{access}\.global(?:\.v(\d))?\.b(\d+)", ptx)]
    copied = [int(n) for n in re.findall(r"cp\.async\.c[ag]\.shared\.global[.\w:]* \[[^]]*\], \[[^]]*\], (\d+)", ptx)]
    return max(found + (copied if access == "ld" else []), default=None)


def static() -> None:
    """Show what the compiler and the CPU target tell."""
    f32, f16, bins = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float16), 256
    flat, images = np.zeros(5000, np.float32), np.zeros((1, 8, 8, 64), np.float16)
    filters, bin_of = np.zeros((64, 3, 3, 64), np.float16), histogram.even_bins(0.0, 1.0, bins)
    cases: tuple[tuple[str, str, Any, tuple[Any, ...]], ...] = (
        ("transpose", "float32", transpose.launch, (f32, f32.copy(), 4)),
        ("transpose", "float16", transpose.launch, (f16, f16.copy(), 8)),
        ("histogram", "float32, 256 bins", histogram.histogram, (flat, np.zeros(bins, np.int32), bin_of, bins, 2)),
        ("scan", "float32", scan.launch, (flat, flat.copy(), np.zeros(scan.words(len(flat), 4), np.int64), True)),
        (
            "convolution",
            "64 filters of 3 x 3 x 64",
            convolution.launch,
            (images, filters, images.copy(), filters.shape, 1, 1),
        ),
    )
    for name, what, launch, given in cases:
        prepared = [
            from_dlpack(x, assumed_align=16).mark_layout_dynamic() if isinstance(x, np.ndarray) else x for x in given
        ]
        compiled = cute.compile(launch, *prepared, target="nvidia", options="--gpu-arch sm_90a")
        used = compiled.resources[f"{name}_kernel"]
        with kiln.target("cpu"), kiln.bank_conflicts() as report:
            launch(*given)
        ptx = compiled.artifacts["ptx"]
        STATIC.add(
            name,
            what,
            used.registers,
            used.spill_stores,
            used.smem,
            widest(ptx, "ld"),
            widest(ptx, "st"),
            report.conflicts,
        )


def main() -> None:
    if "--static" in sys.argv:
        static()
    else:
        transposes()
        histograms()
        scans()
        convolutions()
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    main()
