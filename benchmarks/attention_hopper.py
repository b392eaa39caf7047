"""Attention of many queries on Hopper beside cuDNN's, in bursts and sustained.

    python benchmarks/attention_hopper.py [--dims 128,64] [--lengths 1024,2048,4096,8192,16384] [--sustained 8192] [--plans]

A burst is 5 calls after 0.2 s of idleness, twice; sustained is the last third of 1.8 s back to back. Both take turns, with
normal data, 32768 queries of 2048 elements in all heads. `--plans` compares plans at one length instead.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any

import torch
from attention import sdpa
from device_time import refuse_constants

from kiln import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS, WIDTH = 32768, 2048
PLANS = {
    128: [(2, 128), (2, 128, 2, False), (2, 128, 2, True, False), (2, 144), (2, 160), (2, 176)],
    64: [(3, 112, 4), (3, 112, 2), (3, 112, 4, True, False), (2, 128, 3), (2, 160, 3), (2, 192, 2)],
    256: [(2, 64), (2, 64, 2, True, True)],
}
"""To compare, by elements of a head; the first is the one that is taken by itself."""


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Of one of some calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def burst(call: Callable[[], Any]) -> float:
    time.sleep(0.2)
    return seconds(call, 5)


def sustained(call: Callable[[], Any], duration: float = 1.8) -> float:
    calls = max(1, int(duration / 3 / burst(call)))
    seconds(call, 2 * calls)
    return seconds(call, calls)


def power() -> str:
    """What the GPU runs at."""
    asked = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "-"


class Case:
    """Attention of one shape: what is called, and how much is multiplied."""

    def __init__(self, dtype: Any, dim: int, length: int, causal: bool) -> None:
        shape = (max(1, TOKENS // length), length, WIDTH // dim, dim)
        self.q, self.k, self.v = (torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(3))
        refuse_constants(self.q)
        self.out, self.causal = torch.empty_like(self.q), causal
        self.work = 4 * shape[0] * length * length * WIDTH / (2 if causal else 1) / 1e12
        self.name = f"{str(dtype)[6:]} | {dim} | {length} | {'causal' if causal else 'full'}"

    def ours(self, plan: Any = None) -> Callable[[], Any]:
        return functools.partial(
            kernels.flash_attention, self.q, self.k, self.v, causal=self.causal, out=self.out, plan=plan
        )

    def theirs(self) -> Callable[[], Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

        call = sdpa(self.q, self.k, self.v, self.causal)

        def run() -> Any:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                return call()

        return run

    def check(self) -> None:
        torch.testing.assert_close(self.ours()(), self.theirs()().transpose(1, 2), rtol=2e-2, atol=2e-2)

    def rates(self, calls: list[Callable[[], Any]], how: Callable[..., float], turns: int) -> list[float]:
        """TFLOP/s of each."""
        times = [[how(call) for call in calls] for _ in range(turns)]
        return [self.work / statistics.median(own) for own in zip(*times, strict=True)]


def beside(arguments: argparse.Namespace) -> None:
    print("| type | D | length | | cuDNN burst | Kiln burst | | cuDNN sustained | Kiln sustained | | clock, power |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for dim in arguments.dims:
        for length in arguments.lengths:
            for dtype in (torch.float16, torch.bfloat16):
                for causal in (False, True):
                    case = Case(dtype, dim, length, causal)
                    case.check()
                    calls = [case.theirs(), case.ours()]
                    cells = _pair(*case.rates(calls, burst, 2))
                    if length in arguments.sustained and (dtype == torch.float16 or dim == 128):
                        cells += _pair(*case.rates(calls, sustained, 1)) + f" | {power()}"
                    print(f"| {case.name}{cells} |", flush=True)


def _pair(theirs: float, ours: float) -> str:
    return f" | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f}"


def plans(arguments: argparse.Namespace) -> None:
    print("| type | D | length | | plan | burst | sustained |\n|---|---|---|---|---|---|---|")
    for dim in arguments.dims:
        for causal in (False, True):
            case = Case(torch.float16, dim, arguments.sustained[0], causal)
            tried = [kernels.HopperAttentionTiling(*plan) for plan in PLANS[dim]]
            calls = [case.ours(plan) for plan in tried]
            for call in calls:
                call()
            calls.append(case.theirs())
            bursts = case.rates(calls, burst, 3)
            long = case.rates(calls, functools.partial(sustained, duration=1.2), 1)
            for plan, short, steady in zip([*tried, "cuDNN"], bursts, long, strict=True):
                print(f"| {case.name} | {plan} | {short:.0f} | {steady:.0f} |", flush=True)


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(x) for x in text.split(",") if x]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=numbers, default=[128, 64])
    parser.add_argument("--lengths", type=numbers, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--sustained", type=numbers, default=[8192])
    parser.add_argument("--plans", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    (plans if arguments.plans else beside)(arguments)


if __name__ == "__main__":
    main()
