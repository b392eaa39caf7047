"""What traces cost, and what they show: a mark's cycles, and kernels traced beside the same kernels untraced.

    python benchmarks/kernel_trace.py [--level all] [--only TEXT] [--out FOLDER]     # needs an H200
    python benchmarks/kernel_trace.py --compile                                       # needs none

Results with and without a trace are compared. `--out` keeps the traces, for Perfetto and as kiln.trace/1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kiln import Int32, cute, kernels
from kiln.base_dsl.target import target
from kiln.cute.kernel_trace import KernelTrace, mark_cost
from kiln.hardware import driver
from kiln.measure import measurement
from kiln.measure.trace_format import Trace, dumps, to_chrome
from kiln.targets.nvidia.ops import trace as trace_ops
from kiln.testing import dry_run

ROOT = Path(__file__).resolve().parents[1]
Call = Callable[[], torch.Tensor]


def _data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda" if driver.available() else "cpu").half()


def _gemm(size: int) -> Call:
    a, b, out = (_data(size, size) for _ in range(3))
    chosen = kernels.Sm90GemmConfig((128, 256, 64), (2, 1), 4, 8, epi_stages=4)
    return lambda: kernels.gemm(a, b, out=out, config=chosen)


def _example(name: str, size: int) -> Call:
    gemm = importlib.import_module(name).gemm
    a, b, c = (_data(size, size) for _ in range(3))
    arguments = (a, b, c, *([66] if name == "step_6_persistent" else []))

    def call() -> torch.Tensor:
        gemm(*arguments)
        return c

    return call


def _attention(*shape: int, causal: bool) -> Call:
    q, k, v = (_data(*shape) for _ in range(3))
    return lambda: kernels.flash_attention(q, k, v, causal=causal)


def _softmax(*shape: int) -> Call:
    x = _data(*shape)
    return lambda: kernels.softmax(x)


PROGRAMS: dict[str, Callable[[], Call]] = {
    "gemm 4096": lambda: _gemm(4096),
    "step_3_pipeline 4096": lambda: _example("step_3_pipeline", 4096),
    "step_4_roles 4096": lambda: _example("step_4_roles", 4096),
    "step_6_persistent 4096": lambda: _example("step_6_persistent", 4096),
    "attention 2 4096 16 128": lambda: _attention(2, 4096, 16, 128, causal=False),
    "attention 4 2048 16 64 causal": lambda: _attention(4, 2048, 16, 64, causal=True),
    "softmax 8192 8192": lambda: _softmax(8192, 8192),
}
LEVELS = ("ranges", "waits", "all")


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def _shown(trace: Trace) -> None:
    """Print what a trace says, and check what must hold of it."""
    trace.check()
    warps = [event for event in trace.events if event.kind == "run"]
    lanes = sorted({str(event.args.get("lane")) for event in warps})
    clock = f"{trace.clock_mhz:.0f} MHz" if trace.clock_mhz else "no clock"
    counts = f"{len(warps)} warps, {len(trace.events)} events, {len(trace.edges)} edges, {trace.lost} lost"
    print(f"    {trace.kernel[:50]}: {counts}, {clock}, lane {', '.join(lanes)}, grid {trace.grid}")
    for note in trace.notes:
        print(f"      note: {note}")
    spans = {track: [event for event in warps if event.track == track] for track in {each.track for each in warps}}
    starts = sorted(event.begin for event in warps)
    print(
        f"      warps begin over {starts[-1] - starts[0]:.0f} cycles, run {_median([e.end - e.begin for e in warps]):.0f}"
    )
    outside = sum(
        not (spans[event.track][0].begin <= event.begin <= event.end <= spans[event.track][0].end)
        for event in trace.events
        if event.track in spans
    )
    backward = sum(trace.events[edge.source].begin > trace.events[edge.target].end for edge in trace.edges)
    print(f"      events outside of their warp's run: {outside}; edges that lead back: {backward}")
    times: dict[tuple[str, str, str], list[float]] = {}
    for event in trace.events:
        times.setdefault((event.kind, event.name, event.line), []).append(event.end - event.begin)
    for (kind, name, line), each in sorted(times.items(), key=lambda one: -sum(one[1]))[:14]:
        print(
            f"      {kind:8} {name:24} {line:28} {len(each):7} x median {_median(each):9.1f}  total {sum(each):12.0f}"
        )


BEHIND = {
    "nothing": "",
    "a load": "@p ld.volatile.{space}.b32 u, [$0]; @p st.{space}.b32 [$0], u;",
    "a load of all lanes": "mov.b32 u, 1024; ld.volatile.shared.b32 u, [u]; @p st.{space}.b32 [$0], u;",
    "a fence": "membar.cta;",
    "a store": trace_ops.BEHIND_BARRIER,
}
LATE = 20_000


@cute.kernel
def _late(x: cute.Tensor):
    """Let warp 1 come to two barriers 20,000 cycles after warp 0."""
    shared = cute.make_tensor(cute.arch.alloc_smem(Int32, 64), cute.make_layout(64))
    thread, _, _ = cute.arch.thread_idx()
    for _ in range(Int32(4)):
        if cute.arch.warp_idx() == 1:
            start = cute.arch.clock64()
            while cute.arch.clock64() - start < LATE:
                pass
        shared[thread] = thread
        cute.arch.sync_threads()
        x[thread] = shared[63 - thread]
        cute.arch.barrier(barrier_id=1, number_of_threads=64)


@cute.jit
def late(x: cute.Tensor):
    _late(x).launch(grid=1, block=64)


def barriers() -> None:
    """Print how long a warp seems to wait for one that comes late, by what a mark does before it reads the clock."""
    for name, code in BEHIND.items():
        for shared in (2048, 0):
            before = trace_ops.BEHIND_BARRIER
            trace_ops.BEHIND_BARRIER = code
            try:
                with KernelTrace("waits", blocks=(0,), shared_bytes=shared) as trace:
                    for _ in range(2):
                        late(torch.zeros(64, dtype=torch.int32, device="cuda"))
                (recorded,) = trace.traces()
            finally:
                trace_ops.BEHIND_BARRIER = before
            waits = [event for event in recorded.on(0) if event.kind == "wait"]
            others = [event for event in recorded.on(1) if event.kind == "wait"]
            texts = [f"{event.end - event.begin:.0f}" for event in waits]
            late_texts = [f"{event.end - event.begin:.0f}" for event in others]
            place = "shared" if shared else "global"
            print(f"{name} behind a barrier, {place}: {' '.join(texts)}; the late warp {' '.join(late_texts)}")


def _time(call: Call) -> measurement.Measurement:
    return measurement.measure(call, l2="warm", effort=measurement.QUICK)


def run(name: str, levels: Sequence[str], out: Path | None) -> None:
    """Time a program without a trace and under each level, and show what is recorded."""
    call = PROGRAMS[name]()
    expected = call().clone()
    untraced = _time(call)
    print(f"{name}: {untraced.us:.1f} us untraced [{untraced.low:.1f}, {untraced.high:.1f}]")
    for level in levels:
        trace = KernelTrace(level, blocks=range(8), marks=8192)
        with trace:
            result = call()
            torch.cuda.synchronize()
            equal = torch.equal(result, expected)
            traces = trace.traces()
            timed = _time(call)
        print(f"  {level}: {timed.us:.1f} us, {timed.us / untraced.us:.3f} x; result {'equal' if equal else 'DIFFERS'}")
        for each, kernel in zip(traces, trace.kernels, strict=False):
            layout = kernel.layout
            place = (
                f"{layout.shared_bytes} B shared, {layout.entries} a chunk"
                if layout.in_shared_memory
                else "global memory"
            )
            print(f"    marks in {place}, {len(kernel.sites)} sites")
            _shown(each)
        if out is not None:
            stem = f"{name.replace(' ', '_')}_{level}"
            (out / f"{stem}.kiln.json").write_text(dumps(traces))
            (out / f"{stem}.chrome.json").write_text(json.dumps(to_chrome(traces)))
    again = call()
    print(f"  untraced again: {_time(call).us:.1f} us, {'equal' if torch.equal(again, expected) else 'DIFFERS'}")


def compile_all(levels: Sequence[str], only: str) -> None:
    """Compile all programs for an H200, and say what ptxas says of them."""
    for name in [each for each in PROGRAMS if only in each]:
        for level in levels:
            trace = KernelTrace(level)
            trace.on_host = False
            with target("nvidia"), trace, warnings.catch_warnings(record=True) as warned, dry_run("sm_90a") as launches:
                warnings.simplefilter("always")
                PROGRAMS[name]()()
            print(f"{name}, {level}")
            for launch, kernel in zip(launches, trace.kernels, strict=False):
                sites = Counter(site.kind for site in kernel.sites)
                print(f"  {launch.kernel}: {launch.resources}, {kernel.layout.entries} entries, {dict(sites)}")
            for each in warned:
                print(f"  warning: {each.message}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "examples" / "hopper"))
    levels = options.level or list(LEVELS[1:])
    if options.compile:
        compile_all(levels, options.only)
        return
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    for kind in ("shared", "global"):
        print(f"a mark in {kind} memory: {mark_cost(in_shared_memory=kind == 'shared')}")
    barriers()
    for name in [each for each in PROGRAMS if options.only in each]:
        run(name, levels, options.out)


if __name__ == "__main__":
    main()
