"""GEMM with an integer B by dequantisation in memory: for every target and layout."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32
from ...dispatch import arrays, devices
from ...dispatch.problem import TensorLayout
from ...dispatch.registry import Implementation, Registry

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .arguments import GemmArguments
    from .problem import GemmProblem

_PASS_US, _PASS_TB_PER_S = 4.0, 3.5
"""The time to begin a pass over B, and its bandwidth, on an H200."""


@dataclasses.dataclass(frozen=True)
class DequantizeFallbackConfig:
    """B is converted to the type of A, times scales of groups, and multiplied with the config expected to be fastest."""


class DequantizeFallback(Implementation):
    """Dequantisation kernels, then a GEMM of one element type."""

    config = DequantizeFallbackConfig
    repeats = True

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return None if problem.mixed_input else "a and b have one element type"

    def configs(self, problem: GemmProblem, device: Device) -> list[DequantizeFallbackConfig]:
        return [DequantizeFallbackConfig()]

    def cost(self, problem: GemmProblem, config: DequantizeFallbackConfig, device: Device) -> float:
        return sum(self.cost_terms(problem, config, device).values())

    def cost_terms(self, problem: GemmProblem, config: DequantizeFallbackConfig, device: Device) -> dict[str, float]:
        """Return the times of the GEMM and of the passes over B: low and high halves of bytes have two passes that write every
        other element, and scales of groups are multiplied in place."""
        dequantized = self.dequantized(problem)
        passes = 1 + 3 * problem.int4 + (problem.group_scales is not None)
        moved = passes * (problem.b.bytes + dequantized.b.bytes) / 1e6 / _PASS_TB_PER_S
        return {"GEMM": self.registry.choose(dequantized, device).cost, "dequantisation": passes * _PASS_US + moved}

    def dequantized(self, problem: GemmProblem) -> GemmProblem:
        """Return the same problem with B of A's type, contiguous in K."""
        (batches, _, n), k = problem.b.shape, problem.k
        b = TensorLayout(problem.dtype, (batches, k, n), (n * k if batches > 1 else 0, 1, k))
        return dataclasses.replace(problem, b=b, int4=False, group_scales=None)

    def run(self, problem: GemmProblem, config: DequantizeFallbackConfig, args: GemmArguments) -> None:
        from ..elementwise.elementwise import elementwise  # start-up: few GEMMs need another family

        batches, k, n = problem.b.shape[0], problem.k, problem.shape[2]
        b = arrays.transposed(arrays.empty(args.a, (batches, n, k), None))  # (L, K, N), K contiguous
        if problem.int4:
            pairs = arrays.split(b, 1, k // 2)  # neighbours in K
            for half, function in enumerate((_low, _high)):
                elementwise(function, args.b, out=arrays.part(pairs, 2, half))
        if problem.group_scales is not None:
            groups = problem.group_scales.shape[1]
            source, target = (arrays.split(x, 1, groups) for x in (b if problem.int4 else args.b, b))
            elementwise(_scaled, source, arrays.part(args.group_scales, 2, None), out=target)
        elif not problem.int4:
            elementwise(_converted, args.b, out=b)
        dequantized = dataclasses.replace(self.dequantized(problem), b=arrays.layout_of(b))
        self.registry.run(dequantized, devices.current(), args._replace(b=b, group_scales=None))


def _low(pair: Any) -> Any:
    return (pair.to(Int32) << 28) >> 28


def _high(pair: Any) -> Any:
    return (pair.to(Int32) << 24) >> 28


def _converted(weight: Any) -> Any:
    return weight.to(Float32)


def _scaled(weight: Any, scale: Any) -> Any:
    return weight.to(Float32) * scale.to(Float32)
