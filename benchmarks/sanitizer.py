"""Cost of the sanitizer: processor time of one core, against the normal build on one core.

python benchmarks/sanitizer.py        # prints the table of docs/sanitizer.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kiln
from kiln import Float32, Int32, cute
from kiln.targets.cpu.runtime import parts

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "targets" / "cpu" / "sanitizer" / "mutants"))
import copy_ring
import mbarrier_ring

ROUNDS = 5


@cute.kernel
def add(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: Int32):
    i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
    if i < n:
        z[i] = x[i] + y[i]


@cute.jit
def run_add(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: Int32):
    add(x, y, z, n).launch(grid=n // 256, block=256)


@cute.kernel
def sgemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, k: Int32):
    tx, ty, _ = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    layout = cute.make_layout((16, 16), stride=(16, 1))
    a_tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 256), layout)
    b_tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 256), layout)
    total = Float32(0.0)
    for step in range(k // 16):
        a_tile[ty, tx] = a[by * 16 + ty, step * 16 + tx]
        b_tile[ty, tx] = b[step * 16 + ty, bx * 16 + tx]
        cute.arch.sync_threads()
        for i in range(16):
            total += a_tile[ty, i] * b_tile[i, tx]
        cute.arch.sync_threads()
    c[by * 16 + ty, bx * 16 + tx] = total


@cute.jit
def run_sgemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, k: Int32):
    sgemm(a, b, c, k).launch(grid=(8, 8), block=(16, 16))


@cute.kernel
def reduction(x: cute.Tensor, y: cute.Tensor):
    t, b = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    sums = cute.make_tensor(cute.arch.alloc_smem(Float32, 256), cute.make_layout(256))
    sums[t] = x[b * 256 + t]
    cute.arch.sync_threads()
    for k in kiln.range_constexpr(8):
        if t < 128 >> k:
            sums[t] = sums[t] + sums[t + (128 >> k)]
        cute.arch.sync_threads()
    if t == 0:
        y[b] = sums[0]


@cute.jit
def run_reduction(x: cute.Tensor, y: cute.Tensor):
    reduction(x, y).launch(grid=1024, block=256)


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of the quickest of some calls, the first of which compiles."""
    call()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    parts.set_workers(1)
    size = 1 << 18
    x, y, z = (np.ones(size, np.float32) for _ in range(3))
    a, b, c = (np.ones((128, 128), np.float32) for _ in range(3))
    tiles = 4000
    for module in (mbarrier_ring, copy_ring):
        module.TILES = tiles
    ring_x, ring_y = np.ones(tiles * 32, np.float32), np.zeros(32, np.float32)
    half = np.ones((128, 128), np.float16)
    cases: dict[str, Callable[[], Any]] = {
        "element-wise add, 2^18 elements (normally vectorized)": lambda: run_add(x, y, z, size),
        "block reduction, 1024 blocks of 256": lambda: run_reduction(x, np.zeros(1024, np.float32)),
        "mbarrier pipeline, 4000 tiles": lambda: mbarrier_ring.main(ring_x, ring_y),
        "multistage `cp.async`, 4000 tiles": lambda: copy_ring.main(ring_x, ring_y),
        "tiled SGEMM, 128 x 128 x 128": lambda: run_sgemm(a, b, c, 128),
        "GEMM of the library with `mma.sync`, 128 x 128 x 128": lambda: kiln.kernels.gemm(half, half),
    }
    print("| program | normal, ms | race, ms | race, memory, sync, ms |", "|---|---|---|---|", sep="\n")
    for name, call in cases.items():
        with kiln.target("cpu"):
            plain = seconds(call)
            cells = [f"{1e3 * plain:.2g}"]
            for kinds in ("race", "default"):
                with kiln.sanitize(kinds):
                    slow = seconds(call)
                cells.append(f"{1e3 * slow:.3g} ({slow / plain:.0f}x)")
        print("| " + " | ".join([name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
