"""Products with weights that are integers of 8 or 4 bits: B of other elements than A, with a factor for each column, or for groups of K."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import Float32, Int8, Int32, Uint8
from ...dispatch import arrays, devices
from ...dispatch.problem import TensorLayout
from ...dispatch.registry import Implementation, Registry

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .arguments import GemmArguments
    from .problem import GemmProblem

WEIGHT_TYPES = (Int8, Uint8)
_PASS = 4.0
_RATE = 3.5
"""Microseconds to begin a pass over weights, and TB/s, of an H200."""


def is_packed(a: Any, b: Any) -> bool:
    """Whether B has two elements of 4 bits in a byte: half as many rows as A has columns."""
    floats = arrays.element_type(a).is_float and arrays.element_type(b) in WEIGHT_TYPES
    return floats and 2 * b.shape[-2] == a.shape[-1]


def are_groups(scale: Any, k: int, n: int) -> bool:
    """Whether factors of weights are those of groups of K: (groups, N)."""
    return (
        scale is not None
        and scale.ndim >= 2
        and scale.shape[-2] > 1
        and scale.shape[-1] == n
        and k % scale.shape[-2] == 0
    )


@dataclasses.dataclass(frozen=True)
class DequantizeFallbackConfig:
    """A config: weights are made elements of A's type, times factors of groups, and multiplied as is expected to take least time."""


class DequantizeFallback(Implementation):
    """Products with such weights, of every target and layout."""

    config = DequantizeFallbackConfig
    repeats = True

    def __init__(self, family: Registry) -> None:
        self.family = family

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return None if problem.mixed_input else "operands have elements of one kind"

    def configs(self, problem: GemmProblem, device: Device) -> list[DequantizeFallbackConfig]:
        return [DequantizeFallbackConfig()]

    def cost(self, problem: GemmProblem, config: DequantizeFallbackConfig, device: Device) -> float:
        return sum(self.cost_terms(problem, config, device).values())

    def cost_terms(self, problem: GemmProblem, config: DequantizeFallbackConfig, device: Device) -> dict[str, float]:
        """One after the other: halves of bytes are written by themselves, every other element at a time, and multiplied by factors in place."""
        plain = self.plain(problem)
        passes = 1 + 3 * problem.int4 + (problem.group_scales is not None)
        moved = passes * (problem.b.bytes + plain.b.bytes) / 1e6 / _RATE
        return {"product": self.family.choose(plain, device).cost, "weights": passes * _PASS + moved}

    def plain(self, problem: GemmProblem) -> GemmProblem:
        """The same product with weights of A's type, contiguous in K."""
        (batches, _, n), k = problem.b.shape, problem.k
        made = TensorLayout(problem.dtype, (batches, k, n), (n * k if batches > 1 else 0, 1, k))
        return dataclasses.replace(problem, b=made, int4=False, group_scales=None)

    def run(self, problem: GemmProblem, config: DequantizeFallbackConfig, given: GemmArguments) -> None:
        from ..elementwise import elementwise as pointwise  # few products need another family

        batches, k, n = problem.b.shape[0], problem.k, problem.shape[2]
        made = arrays.transposed(arrays.empty(given.a, (batches, n, k), None))  # (L, K, N), K contiguous
        if problem.int4:  # pairs of K
            pairs = arrays.split(made, 1, k // 2)
            for place, function in enumerate((_low, _high)):
                pointwise.elementwise(function, given.b, out=arrays.part(pairs, 2, place))
            source = made
        else:
            source = given.b
        if problem.group_scales is not None:
            groups = problem.group_scales.shape[1]
            own, into = (arrays.split(x, 1, groups) for x in (source, made))
            pointwise.elementwise(_times, own, arrays.part(given.group_scales, 2, None), out=into)
        elif not problem.int4:
            pointwise.elementwise(_as_it_is, source, out=made)
        plain = dataclasses.replace(self.plain(problem), b=arrays.layout_of(made))
        self.family.run(plain, devices.current(), given._replace(b=made, group_scales=None))


def _low(pair: Any) -> Any:
    return (pair.to(Int32) << 28) >> 28


def _high(pair: Any) -> Any:
    return (pair.to(Int32) << 24) >> 28


def _as_it_is(weight: Any) -> Any:
    return weight.to(Float32)


def _times(weight: Any, factor: Any) -> Any:
    return weight.to(Float32) * factor.to(Float32)
