# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Element-wise kernels and call costs on a GPU, beside PyTorch (and Triton, for a call) in the same run.

python benchmarks/gpu_basics.py [--quick] [--calls]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import kiln
import kiln.cute as cute
from kiln import Float32, Int32
from kiln.cute.runtime import from_dlpack

THREADS = 256


def elementwise(name: str, vector: int, rows: int) -> Any:
    """A jit function over 1-D tensors, the last of which is written; `vector` elements a load, `rows` loads a thread."""

    @cute.kernel
    def kernel(*tensors: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        *sources, target = tensors
        start = block * (THREADS * rows) + thread
        count = cute.size(target, mode=[1])
        if start + THREADS * (rows - 1) < count:
            loaded = [[s[None, start + THREADS * r].load() for s in sources] for r in range(rows)]
            for r in kiln.range_constexpr(rows):
                target[None, start + THREADS * r] = combine(name, loaded[r])
        else:
            for r in kiln.range_constexpr(rows):
                if start + THREADS * r < count:
                    target[None, start + THREADS * r] = combine(
                        name, [s[None, start + THREADS * r].load() for s in sources]
                    )

    @cute.jit
    def run_two(a: cute.Tensor, b: cute.Tensor):
        start(a, b)

    @cute.jit
    def run_three(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        start(a, b, c)

    @cute.jit
    def start(*tensors: cute.Tensor):
        n = cute.size(tensors[0])
        layout = cute.make_layout((vector, n // vector), stride=(1, vector))
        views = [cute.make_tensor(t.iterator, layout) for t in tensors]
        blocks = cute.ceil_div(n // vector, THREADS * rows)
        kernel(*views).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))

    return run_three if name == "add" else run_two


def combine(name: str, values: list[Any]) -> Any:
    if name == "add":
        return values[0] + values[1]
    if name == "relu":
        return cute.where(values[0] > values[0].dtype(0), values[0], cute.full_like(values[0], 0))
    return values[0]


def gpu_time(run: Callable[[], Any], seconds: float = 0.15) -> float:
    """Median seconds of one run on the device."""
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    count = max(5, min(200, int(seconds * 1e3 / max(start.elapsed_time(end), 1e-3))))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for first, second in events:
        first.record()
        run()
        second.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(second) for first, second in events) * 1e-3


def bandwidth(quick: bool) -> None:
    peer = {
        "copy": lambda t: t[1].copy_(t[0]),
        "add": lambda t: torch.add(t[0], t[1], out=t[2]),
        "relu": lambda t: torch.clamp_min(t[0], 0, out=t[1]),
    }
    sizes = [1 << 26, 1 << 30] if quick else [1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30, 1 << 31]
    print(f"{'':6}{'type':>6}{'MiB':>7}{'torch us':>11}{'kiln us':>11}{'torch TB/s':>12}{'kiln TB/s':>11}{'ratio':>8}")
    for name, tensors in (("copy", 2), ("add", 3), ("relu", 2)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            width = 16 // dtype.itemsize
            compiled = None
            for size in sizes:
                data = [torch.randn(size // dtype.itemsize, device="cuda").to(dtype) for _ in range(tensors - 1)]
                data.append(torch.empty_like(data[0]))
                prepared = [from_dlpack(t, assumed_align=16).mark_layout_dynamic() for t in data]
                if compiled is None:
                    compiled = cute.compile(elementwise(name, width, 1), *prepared)
                compiled(*prepared)
                result = data[-1].clone()
                peer[name](data)
                assert torch.equal(result, data[-1]), name
                theirs, ours = gpu_time(partial(peer[name], data)), gpu_time(partial(compiled, *prepared))
                moved = tensors * size
                print(
                    f"{name:6}{str(dtype)[6:]:>9}{size >> 20:>6}{theirs * 1e6:>11.1f}{ours * 1e6:>11.1f}"
                    f"{moved / theirs * 1e-12:>11.2f}{moved / ours * 1e-12:>11.2f}{theirs / ours:>9.3f}",
                    flush=True,
                )


# --- calls -----------------------------------------------------------------------------------------------------------


@cute.kernel
def touch(tensors: list[cute.Tensor]):
    thread, _, _ = cute.arch.thread_idx()
    for tensor in tensors:
        if thread > 1000:
            tensor[thread] = Float32(0.0)


T = cute.Tensor


@cute.jit
def call_five(a: T, b: T, c: T, d: T, e: T):
    touch([a, b, c, d, e]).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.jit
def call_twenty(
    a: T, b: T, c: T, d: T, e: T, f: T, g: T, h: T, i: T, j: T, k: T, l: T, m: T, n: T, o: T, p: T, q: T, r: T, s: T, t: T
):  # fmt: skip
    touch([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t]).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.jit
def call_one(tensor: cute.Tensor):
    touch([tensor]).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def nothing(n: Int32):
    pass


@cute.jit
def call_scalar(n: Int32):
    nothing(n).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.jit
def call_on_stream(tensor: cute.Tensor, stream):
    touch([tensor]).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@cute.jit
def native_loop(n: Int32):
    for i in range(n):
        nothing(i).launch(grid=(1, 1, 1), block=(32, 1, 1))


def host_time(run: Callable[[], Any], batch: int = 200, rounds: int = 30) -> float:
    """Least seconds of one call on the host; the device is drained between batches."""
    for _ in range(batch):
        run()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(batch):
            run()
        best = min(best, (time.perf_counter() - begun) / batch)
    torch.cuda.synchronize()
    return best


def calls() -> None:
    torch.zeros(1, device="cuda")
    loop = cute.compile(native_loop, 1)
    loop(1)

    def bare(count: int = 200) -> float:
        best = float("inf")
        for _ in range(30):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            loop(count)
            best = min(best, (time.perf_counter() - begun) / count)
        torch.cuda.synchronize()
        return best

    print(f"{'cuLaunchKernelEx in a native loop':44}{bare() * 1e6:8.2f} us")
    scalar = cute.compile(call_scalar, 1)
    print(f"{'compiled call, one Int32':44}{host_time(lambda: scalar(1)) * 1e6:8.2f} us")
    print(f"{'jit call, one Int32':44}{host_time(lambda: call_scalar(1)) * 1e6:8.2f} us")
    for count, many in ((1, call_one), (5, call_five), (20, call_twenty)):
        tensors = [torch.zeros(64, device="cuda") for _ in range(count)]
        prepared = [from_dlpack(t) for t in tensors]
        compiled, raw = cute.compile(many, *prepared), cute.compile(many, *tensors)
        print(f"{f'compiled call, {count} prepared tensors':44}{host_time(partial(compiled, *prepared)) * 1e6:8.2f} us")
        print(f"{f'compiled call, {count} torch tensors':44}{host_time(partial(raw, *tensors)) * 1e6:8.2f} us")
    x = torch.zeros(64, device="cuda")
    fitted = cute.compile(call_one, from_dlpack(x).mark_layout_dynamic())
    stream = torch.cuda.current_stream()
    on_stream = cute.compile(call_on_stream, x, stream)
    for name, run in (
        ("compiled for a dynamic layout, a torch tensor", lambda: fitted(x)),
        ("compiled call, a torch tensor and its stream", lambda: on_stream(x, stream)),
        ("compiled call, by from_dlpack in each call", lambda: fitted(from_dlpack(x).mark_layout_dynamic())),
        ("jit call, a torch tensor", lambda: call_one(x)),
        ("torch: x.fill_(0)", lambda: x.fill_(0)),
        ("torch: x.add_(1)", lambda: x.add_(1)),
    ):
        print(f"{name:44}{host_time(run) * 1e6:8.2f} us")
    triton_call(x)
    library_calls()


def library_calls() -> None:
    """What a call of the kernel library costs the host, beside PyTorch."""
    from kiln import kernels

    row = torch.randn(16, 256, device="cuda", dtype=torch.float16)
    a, b, c = (torch.randn(128, 128, device="cuda", dtype=torch.float16) for _ in range(3))
    for name, run in (
        ("kernels.softmax, 16 rows", lambda: kernels.softmax(row)),
        ("torch.softmax, 16 rows", lambda: torch.softmax(row, -1)),
        ("kernels.gemm, 128 cubed", lambda: kernels.gemm(a, b, out=c)),
        ("torch.mm, 128 cubed", lambda: torch.mm(a, b, out=c)),
    ):
        print(f"{name:44}{host_time(run) * 1e6:8.2f} us")


def triton_call(x: torch.Tensor) -> None:
    try:
        from gpu_basics_triton import launch
    except ImportError:
        return
    print(f"{'Triton: one tensor':44}{host_time(lambda: launch(x)) * 1e6:8.2f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes only")
    parser.add_argument("--calls", action="store_true", help="only what calls cost")
    wanted = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    calls()
    if not wanted.calls:
        bandwidth(wanted.quick)


if __name__ == "__main__":
    main()
