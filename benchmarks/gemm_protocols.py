"""NVIDIA's public `dense_gemm_persistent` beside cuBLAS under several timing protocols: the ratio depends on them.

    python benchmarks/gemm_protocols.py FOLDER [--size 8192] [--rounds 4] [--save]

FOLDER is `examples/python/CuTeDSL` of a checkout of NVIDIA's public repository. The program is as it is, with a tile
of 128 x 256, clusters of 2 x 1, swizzle 8 and normal data. Each measurement begins after 0.6 s of idleness, and both
alternate: 30 calls after 20 others, as the program times itself; Triton's `do_bench` as it is, and with 0.4 s of calls
after 0.1 s. (Both back to back, for as long as it takes, are rows of `gemm_bounds.py --public FOLDER`.)
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from compile_time import PUBLIC, program_at
from results import Page, Table

import kiln.cute as cute
from kiln import testing
from kiln.cute.runtime import from_dlpack

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE = 0.6
PROTOCOLS = Table(
    "`dense_gemm_persistent` and cuBLAS, float16, 8192 cubed, us",
    ("protocol", "dense_gemm_persistent", "cuBLAS", "ratio", "all runs"),
)
PAGE = Page(__file__, "Ways to time a GEMM", PROTOCOLS)
TILE, CLUSTER, SWIZZLE = (128, 256), (2, 1), 8


def public(program: Any, a: Any, b: Any, c: Any) -> Callable[[], Any]:
    """The program's kernel, compiled as the program has it compiled."""
    tensors = [
        from_dlpack(x[None].permute(1, 2, 0), assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in (a, b, c)
    ]
    kernel = program.HopperWgmmaGemmPersistentKernel(program.cutlass.Float32, TILE, CLUSTER, SWIZZLE, True)
    clusters = program.cutlass.utils.HardwareInfo().get_max_active_clusters(CLUSTER[0])

    def stream() -> Any:
        return program.cuda.CUstream(torch.cuda.current_stream().cuda_stream)

    compiled = cute.compile(kernel, *tensors, clusters, stream())
    return lambda: compiled(*tensors, stream())


def integer_data(program: Any, size: int) -> tuple[float, float]:
    """Return microseconds of the program's `run`, with its integer data from -2 to 2, and of cuBLAS with such data."""
    f16, f32 = program.cutlass.Float16, program.cutlass.Float32
    ours = program.run(
        (size, size, size, 1),
        f16,
        f16,
        f16,
        f32,
        "k",
        "k",
        "n",
        TILE,
        CLUSTER,
        SWIZZLE,
        warmup_iterations=20,
        iterations=30,
        skip_ref_check=True,
    )
    a, b = (torch.randint(-2, 3, (size, size), device="cuda").half() for _ in range(2))
    out = torch.empty_like(a)
    return ours, paused(of_calls, lambda: torch.mm(a, b.T, out=out))


def paused(way: Callable[[Callable[[], Any]], float], call: Callable[[], Any]) -> float:
    """Microseconds of a call, by a way, after some idleness."""
    call()
    torch.cuda.synchronize()
    time.sleep(IDLE)
    return way(call)


def of_calls(call: Callable[[], Any]) -> float:
    """30 calls after 20 others."""
    with torch.cuda.stream(torch.cuda.Stream()):
        stream = torch.cuda.current_stream().cuda_stream
        return testing.benchmark(call, warmup_iterations=20, iterations=30, stream=stream)


def by_triton(call: Callable[[], Any], **options: int) -> float:
    from triton.testing import do_bench  # pyright: ignore[reportMissingImports]

    return do_bench(call, **options) * 1e3


SHORT, LONG = "30 calls after 20", "`do_bench`, 0.4 s after 0.1"
WAYS: dict[str, Callable[[Callable[[], Any]], float]] = {
    SHORT: of_calls,
    "`do_bench`": by_triton,
    LONG: functools.partial(by_triton, warmup=100, rep=400),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--save", action="store_true", help="write docs/data/gemm_protocols.md")
    given = parser.parse_args(arguments)
    program = program_at(Path(given.folder) / "cute" / PUBLIC["dense_gemm_persistent"])
    torch.manual_seed(0)
    a, b = (torch.randn(given.size, given.size, device="cuda", dtype=torch.float16) for _ in range(2))
    outs = [torch.empty_like(a) for _ in range(2)]
    calls = {"the program": public(program, a, b, outs[0]), "cuBLAS": lambda: torch.mm(a, b.T, out=outs[1])}
    for call in calls.values():
        call()
    torch.testing.assert_close(*outs, atol=1.0, rtol=1e-2)
    found: dict[str, dict[str, list[float]]] = {way: {name: [] for name in calls} for way in WAYS}
    for number in range(given.rounds):
        for way, time_it in WAYS.items():
            for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
                found[way][name].append(paused(time_it, calls[name]))
    for way, own in found.items():
        ours, theirs = map(statistics.median, own.values())
        each = "; ".join(", ".join(f"{x:.0f}" for x in times) for times in own.values())
        PROTOCOLS.add(way, f"{ours:.0f}", f"{theirs:.0f}", f"{theirs / ours:.3f}", each)
    ours, theirs = integer_data(program, given.size)
    PROTOCOLS.add(f"{SHORT}, integer data", f"{ours:.0f}", f"{theirs:.0f}", f"{theirs / ours:.3f}", None)
    ours, theirs = statistics.median(found[SHORT]["the program"]), statistics.median(found[LONG]["cuBLAS"])
    PROTOCOLS.add(f"the program {SHORT}, cuBLAS {LONG}", f"{ours:.0f}", f"{theirs:.0f}", f"{theirs / ours:.3f}", None)
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
