"""Attention of many queries on Hopper beside cuDNN's, in bursts and sustained.

    python benchmarks/attention_hopper.py [--dims 128,64] [--lengths 1024,2048,4096,8192,16384] [--sustained 8192] [--plans]

A burst is 5 calls after 0.2 s of idleness, thrice at least; sustained is the last second of three back to back. Both take turns, with
normal data, 32768 queries of 2048 elements in all heads. `--plans` compares plans at one length instead.
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any

import torch
from attention import sdpa
from normal_data import refuse_constants

from kiln import kernels, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOKENS, WIDTH = 32768, 2048
PLANS = {
    128: [(3, 80, 3, True, False), (3, 80), (2, 128, 2, True, False, True, True), (3, 80, 3, True, False, False)],
    64: [(3, 128, 3, True, False), (3, 112, 4), (2, 128, 3, True, False, True, True)],
    256: [(2, 64), (2, 80), (2, 64, 2, True, False)],
}
"""To compare, by elements of a head; the first is the one that is taken by itself."""


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


def beside(arguments: argparse.Namespace) -> None:
    """TFLOP/s of both."""
    print("| type | D | length | | cuDNN burst | Kiln burst | | cuDNN sustained | Kiln sustained | | clock, power |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for dim in arguments.dims:
        for length in arguments.lengths:
            for dtype in (torch.float16, torch.bfloat16):
                for causal in (False, True):
                    case = Case(dtype, dim, length, causal)
                    case.check()
                    calls = {"cuDNN": case.theirs(), "Kiln": case.ours()}
                    if length in arguments.sustained and (dtype == torch.float16 or dim == 128):
                        paces = measure.paces(calls)
                        long = [paces[name].sustained for name in calls]
                        cells = _pair(case, [paces[name].burst for name in calls]) + _pair(case, long)
                        cells += f" | {long[1].clock_mhz or 0:.0f} MHz, {long[1].watts or 0:.0f} W"
                    else:
                        cells = _pair(
                            case,
                            measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements.values(),
                        )
                    print(f"| {case.name}{cells} |", flush=True)


def _pair(case: Case, found: Iterable[measure.Measurement]) -> str:
    theirs, ours = (case.work * 1e6 / one.us for one in found)
    return f" | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f}"


def plans(arguments: argparse.Namespace) -> None:
    """TFLOP/s of plans."""
    print("| type | D | length | | plan | burst | sustained |\n|---|---|---|---|---|---|---|")
    for dim in arguments.dims:
        for causal in (False, True):
            case = Case(torch.float16, dim, arguments.sustained[0], causal)
            calls = {str(plan): case.ours(kernels.HopperAttentionTiling(*plan)) for plan in PLANS[dim]}
            for name, found in measure.paces({**calls, "cuDNN": case.theirs()}).items():
                rates = [case.work * 1e6 / one.us for one in (found.burst, found.sustained)]
                print(f"| {case.name} | {name} | {rates[0]:.0f} | {rates[1]:.0f} |", flush=True)


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
