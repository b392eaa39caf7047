"""Microseconds per call of the layout algebra, on layouts that kernels use.

    python benchmarks/layouts.py [--repeat N]

Columns: a first call on static layouts, the same call again (results are remembered), the call with dynamic extents and
strides (never remembered; here without emitting anything, to show the algebra alone), and pycute where it can be
imported.

Then the share of the algebra in tracing whole kernels (no code is generated): of samples of the stack taken while they
are traced, those whose innermost frame is in the algebra. Remembered results are forgotten before every trace.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from kiln.cute import layout as cute
from kiln.cute.layout.algebra import clear_caches


def imported(name: str) -> Any:
    """The module, or None if there is none."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


pycute = imported("pycute")


class Dynamic:
    """A dynamic leaf whose operators do next to nothing, so that only the algebra is measured."""

    _is_dynamic_int_leaf = True
    __slots__ = ("divisibility",)

    def __init__(self, divisibility: int = 1) -> None:
        self.divisibility = divisibility

    def _more(self, other: Any) -> Dynamic:
        return Dynamic()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _more
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _leaf_min = _leaf_max = _more


def median_us(call: Callable[[], Any], repeat: int, fresh: bool = False) -> float:
    """The median time of one call in microseconds; `fresh` forgets remembered results before every call."""
    times: list[int] = []
    for _ in range(repeat):
        if fresh:
            clear_caches()
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def rows() -> list[tuple[str, Callable[[], Any], Callable[[], Any] | None, Callable[[], Any] | None]]:
    """Name, call on static layouts, on dynamic ones, in pycute."""
    m, k, n = Dynamic(), Dynamic(8), Dynamic(8)
    static = cute.make_layout((4096, 2048), stride=(2048, 1))
    dynamic = cute.make_layout((m, k), stride=(k, 1))
    tiler, tv = cute.make_layout_tv(cute.make_ordered_layout((16, 8), (1, 0)), cute.make_ordered_layout((8, 8), (1, 0)))
    block = cute.make_layout(tiler, stride=(2048, 1))
    dynamic_block = cute.make_layout(tiler, stride=(k, 1))
    atom = cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
    mma = cute.make_layout(((4, 8), (2, 2, 2)), stride=((32, 1), (16, 8, 128)))
    coord, thread = (Dynamic(), Dynamic()), Dynamic()
    smem = cute.tile_to_shape(atom, (128, 64, 3), (0, 1, 2))
    p, have = pycute, pycute is not None
    if have:
        p_static, p_tv = p.Layout((4096, 2048), (2048, 1)), p.Layout(tv.shape, tv.stride)
        p_block, p_mma = p.Layout(tiler, (2048, 1)), p.Layout(mma.shape, mma.stride)

    def peer(call: Callable[[], Any]) -> Callable[[], Any] | None:
        return call if have else None

    return [
        (
            "make_layout((4096,2048))",
            lambda: cute.make_layout((4096, 2048)),
            lambda: cute.make_layout((m, n)),
            peer(lambda: p.Layout((4096, 2048))),
        ),
        ("layout(coord)", lambda: static((7, 9)), lambda: dynamic(coord), peer(lambda: p_static(7, 9))),
        ("tv_layout(index)", lambda: tv(77), lambda: tv((thread, 0)), peer(lambda: p_tv(77))),
        (
            "coalesce(mma tv)",
            lambda: cute.coalesce(mma),
            lambda: cute.coalesce(dynamic),
            peer(lambda: p.coalesce(p_mma)),
        ),
        (
            "zipped_divide(gmem, (128,64))",
            lambda: cute.zipped_divide(static, (128, 64)),
            lambda: cute.zipped_divide(dynamic, (128, 64)),
            peer(lambda: p.zipped_divide(p_static, (128, 64))),
        ),
        (
            "local_tile(gmem, (128,64), coord)",
            lambda: cute.local_tile(static, (128, 64), (3, None)),
            lambda: cute.local_tile(dynamic, (128, 64), (thread, None)),
            None,
        ),
        (
            "composition(tile, tv)",
            lambda: cute.composition(block, tv),
            lambda: cute.composition(dynamic_block, tv),
            peer(lambda: p.composition(p_block, p_tv)),
        ),
        ("right_inverse(tv)", lambda: cute.right_inverse(tv), None, peer(lambda: p.right_inverse(p_tv))),
        ("complement(mma thr)", lambda: cute.complement(mma[0], 256), None, peer(lambda: p.complement(p_mma[0], 256))),
        (
            "make_layout_tv(thr, val)",
            lambda: cute.make_layout_tv(
                cute.make_layout((16, 8), stride=(8, 1)), cute.make_layout((8, 8), stride=(8, 1))
            ),
            None,
            None,
        ),
        ("tile_to_shape(atom, (128,64,3))", lambda: cute.tile_to_shape(atom, (128, 64, 3), (0, 1, 2)), None, None),
        (
            "slice_(smem, (None,None,1))",
            lambda: cute.slice_(smem, (None, None, 1)),
            lambda: cute.slice_(smem, (None, None, thread)),
            None,
        ),
        (
            "max_common_vector",
            lambda: cute.max_common_vector(block, block),
            lambda: cute.max_common_vector(dynamic, dynamic),
            None,
        ),
    ]


# --- the share of a trace --------------------------------------------------------------------------------------------

ALGEBRA = ("algebra", "basis", "composed_layout", "int_tuple", "layout", "leaf", "modes", "swizzle", "tiling")


class Traced(Exception):
    """Raised where a trace is complete."""


def traced_kernels() -> list[tuple[str, Callable[[], Any]]]:
    """Calls that trace a kernel each time, with its name."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import elementwise  # pyright: ignore[reportMissingImports]

    from kiln import kernels
    from kiln.cute.runtime import from_dlpack

    half = [np.zeros((128, 128), np.float16) for _ in range(3)]
    static = [from_dlpack(x, assumed_align=16) for x in half]
    return [
        (
            "gemm, 128x128 tiles, tensor cores",
            lambda: kernels.gemm(half[0], half[1], config=kernels.Sm80GemmConfig((128, 128, 32), (2, 2), 3)),
        ),
        ("add by a tiled copy, dynamic layouts", lambda: elementwise.add(*half)),
        ("add by a tiled copy, static layouts", lambda: elementwise.add(*static)),
        ("softmax of rows", lambda: kernels.softmax(half[0])),
    ]


def print_shares(seconds: float) -> None:
    """Sample the stack while kernels are traced, and print where the time goes."""
    import kiln
    from kiln.base_dsl.dsl import BaseDSL

    counts = {"algebra": 0, "all": 0}
    in_algebra = {str(Path(kiln.__file__).parent / "cute" / f"{name}.py") for name in ALGEBRA}

    def sample(_: int, frame: Any) -> None:
        counts["all"] += 1
        while (
            frame is not None and "/kiln/" not in frame.f_code.co_filename
        ):  # Python's own functions count for callers
            frame = frame.f_back
        counts["algebra"] += frame is not None and frame.f_code.co_filename in in_algebra

    def stop(*_: Any) -> Any:
        raise Traced

    dsl: Any = BaseDSL
    compile_module, dsl.compile_module = BaseDSL.compile_module, stop
    signal.signal(signal.SIGPROF, sample)
    print(f"\n{'trace of':40} {'ms':>8} {'algebra':>8}")
    try:
        with kiln.target("cpu"):
            for name, trace in traced_kernels():
                times: list[float] = []
                counts.update(algebra=0, all=0)
                end = time.perf_counter() + seconds
                while time.perf_counter() < end or len(times) < 2:
                    clear_caches()
                    start = time.process_time()
                    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
                    try:
                        trace()
                    except Traced:
                        pass
                    finally:
                        signal.setitimer(signal.ITIMER_PROF, 0)
                    times.append(time.process_time() - start)
                    if len(times) == 1:
                        counts.update(algebra=0, all=0)  # the first one rewrites the sources too
                share = counts["algebra"] / max(counts["all"], 1)
                print(f"{name:40} {statistics.median(times[1:]) * 1000:8.1f} {share:8.0%}")
    finally:
        dsl.compile_module = compile_module


def main() -> None:
    parser = argparse.ArgumentParser(description="Microseconds per call of the layout algebra.")
    parser.add_argument("--repeat", type=int, default=500, help="calls per measurement (default 500)")
    parser.add_argument("--seconds", type=float, default=3, help="time to trace each kernel for (default 3)")
    options = parser.parse_args()
    repeat = options.repeat
    print(f"{'call':36} {'first':>8} {'again':>8} {'dynamic':>8} {'pycute':>8}   microseconds, median of {repeat}")
    for name, static, dynamic, peer in rows():
        times = [
            median_us(static, repeat, fresh=True),
            median_us(static, repeat),
            None if dynamic is None else median_us(dynamic, repeat),
            None if peer is None else median_us(peer, repeat),
        ]
        print(f"{name:36} " + " ".join("       -" if t is None else f"{t:8.1f}" for t in times))
    if pycute is None:
        print("pycute cannot be imported; put its parent folder on PYTHONPATH to compare")
    print_shares(options.seconds)


if __name__ == "__main__":
    main()
