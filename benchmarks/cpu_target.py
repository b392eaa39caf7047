"""How fast the CPU target is: element-wise kernels, barriers, lanes, tensor cores; peers beside it on the same work.

    python benchmarks/cpu_target.py [--alone]

Peers are measured where they can be imported: numpy, Triton's interpreter (`TRITON_INTERPRET=1`) and numba's CUDA
simulator (`NUMBA_ENABLE_CUDASIM=1`). Both simulate a GPU on the CPU, as Kiln does. They get less work where they are
slow; times are given for one unit of work. Best of several runs, processor time for one thread and wall time for
several.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import numpy as np

import kiln
from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.dialects import nvgpu
from kiln.mlir import ir
from kiln.targets.cpu.runtime import parts

cuda: Any = None


def best(call: Callable[[], Any], repeat: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several calls."""
    times: list[float] = []
    for _ in range(repeat):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def clock_for(workers: int) -> Callable[[], float]:
    """Processor time for one thread, which other processes do not disturb; wall time for several."""
    return time.process_time if workers == 1 else time.perf_counter


def row(what: str, value: float, unit: str, note: str = "") -> None:
    print(f"{what:<58}{value:>12.3f} {unit:<22}{note}")


def vector_of(values: list[Any], kind: Any) -> Any:
    """Values of the program as a vector of the IR."""
    type_ = ir.VectorType.get([len(values)], kind.mlir_type)
    return tracing.emit_value("vector.from_elements", type_, [v.ir_value() for v in values])


def elements_of(vector: Any, kind: Any) -> list[Any]:
    """The elements of a vector."""
    return [
        kind._make(
            tracing.emit_value(
                "vector.extract", kind.mlir_type, (vector,), {"static_position": ir.DenseI64ArrayAttr.get([n])}
            )
        )
        for n in range(vector.type.shape[0])
    ]


# --- element-wise ---


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    i = arch.block_idx()[0] * arch.block_dim()[0] + arch.thread_idx()[0]
    if i < cute.size(a):
        c[i] = a[i] + b[i]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    add_kernel(a, b, c).launch(grid=((cute.size(a) + 255) // 256, 1, 1), block=(256, 1, 1))


def element_wise(peers: dict[str, Any]) -> None:
    n = 1 << 24
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    c = np.zeros_like(a)
    tensors = [from_dlpack(v, assumed_align=16).mark_layout_dynamic() for v in (a, b, c)]
    call = cute.compile(add, *tensors)
    cores = os.cpu_count() or 1
    for workers in sorted({1, cores}):
        parts.set_workers(workers)
        seconds = best(lambda: call(*tensors), clock=clock_for(workers))
        assert (c == a + b).all()
        row(
            f"f32 c = a + b, 16M elements, Kiln, {workers} thread{'s' * (workers > 1)}",
            seconds / n * 1e9,
            "ns per element",
        )
    parts.set_workers(1)
    row("   numpy", best(lambda: np.add(a, b, out=c), clock=time.process_time) / n * 1e9, "ns per element")
    small = 1 << 16
    if "triton" in peers:
        call = triton_add(peers["triton"])
        row(
            "   Triton interpreter, 64k elements",
            best(lambda: call(small), 3, time.process_time) / small * 1e9,
            "ns per element",
        )
    if "numba" in peers:
        call = numba_add()
        row(
            "   numba CUDA simulator, 4k elements",
            best(lambda: call(4096), 2, time.process_time) / 4096 * 1e9,
            "ns per element",
        )


def triton_add(triton: Any) -> Callable[[int], None]:
    import torch
    import triton.language as tl

    globals()["tl"] = tl

    def kernel(a, b, c, n, size: tl.constexpr):  # pyright: ignore[reportInvalidTypeForm]
        offsets = tl.program_id(0) * size + tl.arange(0, size)
        mask = offsets < n
        tl.store(c + offsets, tl.load(a + offsets, mask) + tl.load(b + offsets, mask), mask)

    kernel.__annotations__["size"] = tl.constexpr
    made = triton.jit(kernel)

    def call(n: int) -> None:
        a, b = torch.randn(n), torch.randn(n)
        c = torch.zeros(n)
        made[(n // 1024,)](a, b, c, n, size=1024)

    return call


def numba_add() -> Callable[[int], None]:
    @cuda.jit
    def kernel(a, b, c):
        i = cuda.grid(1)
        if i < a.size:
            c[i] = a[i] + b[i]

    def call(n: int) -> None:
        a, b = np.ones(n, np.float32), np.ones(n, np.float32)
        c = np.zeros(n, np.float32)
        kernel[n // 256, 256](a, b, c)
        assert (c == 2).all()

    return call


# --- barriers ---


@cute.kernel
def barrier_kernel(out: cute.Tensor, n: cute.Int32):
    t = arch.thread_idx()[0]
    for _ in range(n):
        arch.sync_threads()
    out[t] = n


@cute.kernel
def shuffle_kernel(out: cute.Tensor, n: cute.Int32):
    t = arch.thread_idx()[0]
    v = cute.Int32(t)
    for _ in range(n):
        v = arch.shuffle_sync_bfly(v, 1)
    out[t] = v


@cute.kernel
def vote_kernel(out: cute.Tensor, n: cute.Int32):
    t = arch.thread_idx()[0]
    v = cute.Int32(0)
    for _ in range(n):
        v = v + arch.vote_ballot_sync(t < 5)
    out[t] = v


def launcher(kernel: Any, threads: int) -> Any:
    @cute.jit
    def launch(out: cute.Tensor, n: cute.Int32):
        kernel(out, n).launch(grid=1, block=threads)

    return launch


def waiting(peers: dict[str, Any]) -> None:
    out = np.zeros(1024, np.int32)
    for threads, rounds in ((1024, 3000), (128, 20000)):
        launch = launcher(barrier_kernel, threads)
        launch(out, 1)
        seconds = best(functools.partial(launch, out, rounds), clock=time.process_time)
        row(f"barrier, block of {threads}", seconds / rounds / threads * 1e9, "ns per thread")
    if "numba" in peers:
        call = numba_barrier()
        row(
            "   numba CUDA simulator, block of 128",
            best(lambda: call(10), 2, time.process_time) / 10 / 128 * 1e9,
            "ns per thread",
        )
    for name, kernel in (("shuffle", shuffle_kernel), ("vote.ballot", vote_kernel)):
        launch = launcher(kernel, 32)
        launch(out, 1)
        row(name, best(functools.partial(launch, out, 50000), clock=time.process_time) / 50000 * 1e9, "ns per warp")


def numba_barrier() -> Callable[[int], None]:
    @cuda.jit
    def kernel(out, n):
        for _ in range(n):
            cuda.syncthreads()
        out[cuda.threadIdx.x] = n

    def call(n: int) -> None:
        kernel[1, 128](np.zeros(128, np.int32), n)

    return call


# --- tensor cores ---

MMA = [("f16", 16, "f32"), ("bf16", 16, "f32"), ("tf32", 8, "f32"), ("s8", 32, "i32"), ("e4m3", 32, "f32")]


def mma(kind: str, k: int, sum_kind: str) -> None:
    element = {"f32": cute.Float32, "i32": cute.Int32}[sum_kind]

    @cute.kernel
    def kernel(a: cute.Tensor, out: cute.Tensor, n: cute.Int32):
        t = arch.thread_idx()[0]
        x = vector_of([a[t * 4 + i] for i in range(4)], cute.Int32)
        y = vector_of([a[t * 4 + i] for i in range(2)], cute.Int32)
        sums = cute.make_rmem_tensor(4, element)
        for i in kiln.range_constexpr(4):
            sums[i] = element(0)
        for _ in range(n):
            c = vector_of([sums[i] for i in range(4)], element)
            d = nvgpu.mma.mma_sync((16, 8, k), kind, kind, x, y, c)
            for i, value in enumerate(elements_of(d, element)):
                sums[i] = value
        for i in kiln.range_constexpr(4):
            out[t * 4 + i] = sums[i]

    @cute.jit
    def launch(a: cute.Tensor, out: cute.Tensor, n: cute.Int32):
        kernel(a, out, n).launch(grid=1, block=32)

    a = np.zeros(128, np.int32)
    out = np.zeros(128, np.float32 if sum_kind == "f32" else np.int32)
    launch(a, out, 1)
    seconds = best(lambda: launch(a, out, 20000), clock=time.process_time) / 20000
    row(f"mma.sync m16n8k{k} {kind}", 1e-6 / seconds, "million per second", f"{seconds * 1e6:.2f} us each")


SIZE, TILE_M, TILE_N, TILE_K = 256, 64, 64, 32


@cute.kernel
def gemm_kernel(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    """C = A B, all row-major; a block of four warps computes 64x64, a warp 32x32 of it. Copies of 16 bytes."""
    left_layout, right_layout = (cute.make_layout(s, stride=(s[1], 1)) for s in ((TILE_M, TILE_K), (TILE_K, TILE_N)))
    left = cute.make_tensor(arch.alloc_smem(cute.Float16, TILE_M * TILE_K, 128), left_layout)
    right = cute.make_tensor(arch.alloc_smem(cute.Float16, TILE_K * TILE_N, 128), right_layout)
    t, lane, warp = arch.thread_idx()[0], arch.lane_idx(), arch.warp_idx()
    bx, by, _ = arch.block_idx()
    first_row, first_column = warp // 2 * 32, warp % 2 * 32
    sums = cute.make_rmem_tensor(32, cute.Float32)
    for i in kiln.range_constexpr(32):
        sums[i] = cute.Float32(0)
    four, two = (ir.VectorType.get([count], cute.Int32.mlir_type) for count in (4, 2))
    for step in range(SIZE // TILE_K):
        a_tile = cute.local_tile(a, (TILE_M, TILE_K), (by, step))
        b_tile = cute.local_tile(b, (TILE_K, TILE_N), (step, bx))
        for source, target in ((a_tile, left), (b_tile, right)):
            columns = cute.size(target, mode=[1]) // 8
            for i in kiln.range_constexpr(cute.size(target) // 8 // 128):
                place = ((i * 128 + t) // columns, (i * 128 + t) % columns)
                cute.autovec_copy(cute.local_tile(source, (1, 8), place), cute.local_tile(target, (1, 8), place))
        arch.sync_threads()
        for inner in kiln.range_constexpr(TILE_K // 16):
            xs, ys = [], []
            for i in kiln.range_constexpr(2):
                r, c = first_row + i * 16 + lane % 16, inner * 16 + lane // 16 * 8
                pointer = (left.iterator + (r * TILE_K + c)).ir_value()
                xs.append(nvgpu.mma.ldmatrix(pointer, four, count=4))
            for j in kiln.range_constexpr(4):
                r, c = inner * 16 + lane % 16, first_column + j * 8
                pointer = (right.iterator + (r * TILE_N + c)).ir_value()
                ys.append(nvgpu.mma.ldmatrix(pointer, two, count=2, transpose=True))
            for i in kiln.range_constexpr(2):
                for j in kiln.range_constexpr(4):
                    at = (i * 4 + j) * 4
                    start = vector_of([sums[at + n] for n in range(4)], cute.Float32)
                    made = nvgpu.mma.mma_sync((16, 8, 16), "f16", "f16", xs[i], ys[j], start)
                    for n, value in enumerate(elements_of(made, cute.Float32)):
                        sums[at + n] = value
        arch.sync_threads()
    for i in kiln.range_constexpr(2):
        for j in kiln.range_constexpr(4):
            for n in kiln.range_constexpr(4):
                r = by * TILE_M + first_row + i * 16 + lane // 4 + 8 * (n // 2)
                c = bx * TILE_N + first_column + j * 8 + lane % 4 * 2 + n % 2
                out[r * SIZE + c] = sums[(i * 4 + j) * 4 + n]


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    gemm_kernel(a, b, out).launch(grid=(SIZE // TILE_N, SIZE // TILE_M, 1), block=128)


def tensor_cores(peers: dict[str, Any]) -> None:
    parts.set_workers(1)
    for kind in MMA:
        mma(*kind)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(np.float16) for _ in range(2))
    out = np.zeros(SIZE * SIZE, np.float32)
    tensors = from_dlpack(a, assumed_align=16), from_dlpack(b, assumed_align=16), out
    start = time.perf_counter()
    gemm(*tensors)
    first = time.perf_counter() - start
    want = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(out.reshape(SIZE, SIZE) - want).max()
    assert error < 1e-3, error
    for workers in sorted({1, os.cpu_count() or 1}):
        parts.set_workers(workers)
        seconds = best(lambda: gemm(*tensors), 9, clock_for(workers))
        row(
            f"GEMM {SIZE}^3 f16, ldmatrix and mma.sync, {workers} thread{'s' * (workers > 1)}",
            seconds * 1e3,
            "ms",
            f"first call with compilation {first:.2f} s" if workers == 1 else "",
        )
    parts.set_workers(1)
    if "triton" in peers:
        call = triton_gemm(peers["triton"])
        row(
            "   Triton interpreter (tl.dot on numpy's matmul)",
            best(lambda: call(a.reshape(-1), b.reshape(-1)), 2, time.process_time) * 1e3,
            "ms",
        )
    if "numba" in peers:
        call = numba_gemm()
        scale = (SIZE // 16) ** 3
        row("   numba CUDA simulator, one 16^3 tile, scaled", best(call, 2, time.process_time) * 1e3 * scale, "ms")


def triton_gemm(triton: Any) -> Callable[..., None]:
    import torch
    import triton.language as tl

    globals()["tl"] = tl

    def kernel(  # pyright: ignore[reportInvalidTypeForm]
        a, b, c, size: tl.constexpr, tile: tl.constexpr, step: tl.constexpr
    ):
        rows = tl.program_id(1) * tile + tl.arange(0, tile)
        columns = tl.program_id(0) * tile + tl.arange(0, tile)
        inner = tl.arange(0, step)
        total = tl.zeros((tile, tile), dtype=tl.float32)
        for k in range(0, size, step):
            x = tl.load(a + rows[:, None] * size + (k + inner)[None, :])
            y = tl.load(b + (k + inner)[:, None] * size + columns[None, :])
            total += tl.dot(x, y)
        tl.store(c + rows[:, None] * size + columns[None, :], total)

    for name in ("size", "tile", "step"):
        kernel.__annotations__[name] = tl.constexpr
    made = triton.jit(kernel)

    def call(a: np.ndarray, b: np.ndarray) -> None:
        c = torch.zeros(SIZE * SIZE)
        made[(SIZE // 64, SIZE // 64)](torch.from_numpy(a), torch.from_numpy(b), c, size=SIZE, tile=64, step=32)

    return call


def numba_gemm() -> Callable[[], None]:
    @cuda.jit
    def kernel(a, b, c):
        left, right = cuda.shared.array((16, 16), np.float32), cuda.shared.array((16, 16), np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        left[y, x], right[y, x] = a[y, x], b[y, x]
        cuda.syncthreads()
        total = np.float32(0)
        for k in range(16):
            total += left[y, k] * right[k, x]
        c[y, x] = total

    a, b = (np.ones((16, 16), np.float32) for _ in range(2))

    def call() -> None:
        kernel[(1, 1), (16, 16)](a, b, np.zeros((16, 16), np.float32))

    return call


def find_peers() -> dict[str, Any]:
    peers: dict[str, Any] = {}
    try:
        import torch  # noqa: F401
        import triton

        peers["triton"] = triton
    except ImportError:
        pass
    try:
        from numba import cuda

        peers["numba"] = globals()["cuda"] = cuda  # the simulator replaces a global of this name while a kernel runs
    except ImportError:
        pass
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="without peers")
    options = parser.parse_args()
    peers = {} if options.alone else find_peers()
    print(f"peers: numpy{''.join(f', {name}' for name in peers)}; {os.cpu_count()} cores\n")
    with kiln.target("cpu"):
        for part in (element_wise, waiting, tensor_cores):
            part(peers)


if __name__ == "__main__":
    main()
