# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Element-wise kernels and call costs on a GPU, beside PyTorch and Triton in the same run.

python benchmarks/gpu_basics.py [--quick] [--calls] [--save]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from results import Page, Table

import kiln
import kiln.cute as cute
from kiln import Float32, Int32, measure
from kiln.cute.runtime import from_dlpack

THREADS = 256
BANDWIDTH = Table(
    "Bandwidth",
    ("kernel", "dtype", "MiB", "torch us", "Triton us", "Kiln us", "Kiln TB/s", "torch / Kiln", "Triton / Kiln"),
)
CALLS = Table("Host time of a call, least of 40 batches of 200", ("call", "us"))
PAGE = Page(__file__, "Element-wise kernels and calls", BANDWIDTH, CALLS)


def elementwise(name: str, vector: int, rows: int) -> Any:
    """A jit function over 1-D tensors, the last of which is written; `vector` elements a load, `rows` loads a
    thread."""

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


def gpu_time(run: Callable[[], Any]) -> float:
    """Median seconds of one run on the device, the L2 cache emptied before."""
    return measure.measure(run, effort=measure.QUICK).us * 1e-6


def bandwidth(quick: bool) -> None:
    peer = {
        "copy": lambda t: t[1].copy_(t[0]),
        "add": lambda t: torch.add(t[0], t[1], out=t[2]),
        "relu": lambda t: torch.clamp_min(t[0], 0, out=t[1]),
    }
    sizes = [1 << 26, 1 << 30] if quick else [1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30, 1 << 32]
    rival = _triton()
    for name, tensors in (("copy", 2), ("add", 3), ("relu", 2)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            width = 16 // dtype.itemsize
            compiled = None
            for size in sizes:
                count = size // dtype.itemsize
                data = [torch.randn(count, device="cuda", dtype=dtype) for _ in range(tensors - 1)]
                data.append(torch.empty_like(data[0]))
                prepared = [from_dlpack(t, assumed_align=16).mark_layout_dynamic() for t in data]
                if compiled is None or count >= 1 << 31:  # extents of 64 bits are other code
                    compiled = cute.compile(elementwise(name, width, 1), *prepared)
                compiled(*prepared)
                result = data[-1].clone()
                peer[name](data)
                assert torch.equal(result, data[-1]), name
                del result
                runs = [
                    partial(peer[name], data),
                    *([rival(name, data)] if rival else []),
                    partial(compiled, *prepared),
                ]
                theirs, *between, ours = map(gpu_time, runs)
                triton = between[0] if between else float("nan")
                BANDWIDTH.add(
                    name,
                    str(dtype)[6:],
                    size >> 20,
                    *(f"{x * 1e6:.1f}" for x in (theirs, triton, ours)),
                    f"{tensors * size / ours * 1e-12:.2f}",
                    f"{theirs / ours:.3f}",
                    f"{triton / ours:.3f}",
                )


def _triton() -> Any:
    try:
        from gpu_basics_triton import elementwise as made
    except ImportError:
        return None
    return made


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
    a: T,
    b: T,
    c: T,
    d: T,
    e: T,
    f: T,
    g: T,
    h: T,
    i: T,
    j: T,
    k: T,
    l: T,
    m: T,
    n: T,
    o: T,
    p: T,
    q: T,
    r: T,
    s: T,
    t: T,
):
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


BATCH = 200
Cases = list[tuple[str, Callable[[], Any], int]]


def host_times(cases: Cases, rounds: int = 40) -> None:
    """Measure the least time of one call on the host. A case is a name, a function, and how many calls it makes.

    The device is drained between batches, and the cases take turns: the host's speed changes with time.
    """
    best = [float("inf")] * len(cases)
    for _ in range(rounds):
        for number, (_, run, count) in enumerate(cases):
            times = max(1, BATCH // count)
            run()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(times):
                run()
            best[number] = min(best[number], (time.perf_counter() - begun) / (times * count))
    torch.cuda.synchronize()
    for (name, _, _), seconds in zip(cases, best):
        CALLS.add(name, f"{seconds * 1e6:.2f}")


def calls() -> None:
    """A launch from native code, then calls from Python that make one launch each."""
    x = torch.zeros(64, device="cuda")
    loop, scalar = cute.compile(native_loop, 1), cute.compile(call_scalar, 1)
    cases: Cases = [
        ("cuLaunchKernelEx in a native loop", lambda: loop(BATCH), BATCH),
        ("compiled function, one Int32", lambda: scalar(1), 1),
        ("jit function, one Int32", lambda: call_scalar(1), 1),
    ]
    for count, many in ((1, call_one), (5, call_five), (20, call_twenty)):
        tensors = [torch.zeros(64, device="cuda") for _ in range(count)]
        prepared = [from_dlpack(t) for t in tensors]
        what = "tensor" if count == 1 else "tensors"
        cases += [
            (f"compiled function, {count} prepared {what}", partial(cute.compile(many, *prepared), *prepared), 1),
            (f"compiled function, {count} torch {what}", partial(cute.compile(many, *tensors), *tensors), 1),
        ]
    fitted = cute.compile(call_one, from_dlpack(x).mark_layout_dynamic())
    stream = torch.cuda.current_stream()
    on_stream = cute.compile(call_on_stream, x, stream)
    cases += [
        ("compiled for a dynamic layout, 1 torch tensor", lambda: fitted(x), 1),
        ("compiled function, a torch tensor and its stream", lambda: on_stream(x, stream), 1),
        (
            "compiled function, from_dlpack(x).mark_layout_dynamic()",
            lambda: fitted(from_dlpack(x).mark_layout_dynamic()),
            1,
        ),
        ("jit function, 1 torch tensor", lambda: call_one(x), 1),
        ("torch: x.fill_(0)", lambda: x.fill_(0), 1),
        ("torch: x.add_(1)", lambda: x.add_(1), 1),
    ]
    try:
        from gpu_basics_triton import launch

        cases.append(("Triton: 1 tensor", lambda: launch(x), 1))
    except ImportError:
        pass
    host_times(cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes only")
    parser.add_argument("--calls", action="store_true", help="only what calls cost")
    parser.add_argument("--save", action="store_true", help="write docs/data/gpu_basics.md")
    wanted = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    calls()
    if not wanted.calls:
        bandwidth(wanted.quick)
    PAGE.finish(wanted.save)


if __name__ == "__main__":
    main()
