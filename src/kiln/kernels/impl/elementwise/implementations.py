"""The implementation of element-wise functions."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, launches
from ...dispatch.problem import MAX_VECTOR_BYTES, TensorLayout
from ...dispatch.registry import MemoryBound, Registry
from .config import ElementwiseConfig
from .kernel import Elementwise, Operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import ElementwiseProblem

REGISTRY = Registry("elementwise")

_MAX_GRID = (1 << 31) - 1


class ElementwiseArguments(NamedTuple):
    """The arrays of an element-wise function, not broadcast, and the one that is written."""

    inputs: Sequence[Any]
    out: Any


@REGISTRY.register
class ElementwiseVectors(MemoryBound):
    """A thread computes a few neighbouring elements."""

    config = ElementwiseConfig
    tried = {"threads": (128, 256, 512), "elements": (0, 4, 8, 16)}

    def run(self, problem: ElementwiseProblem, config: ElementwiseConfig, args: ElementwiseArguments) -> None:
        layouts = [*problem.inputs, problem.out]
        elements = config.elements or max(1, MAX_VECTOR_BYTES // max(x.size for x in layouts))
        extents, steps = problem.walk()
        threads = -(-extents[-1] // elements) * math.prod(extents[:-1])
        ctas = -(-threads // config.threads)
        arrays.require(
            ctas <= _MAX_GRID, f"elementwise of shape {problem.out.shape}: {ctas} CTAs, and a grid has {_MAX_GRID}"
        )
        specialisation = (
            tuple(_operand(x, extents, own, elements) for x, own in zip(layouts, steps, strict=True)),
            len(extents) - 1,
            extents[-1] % elements == 0,
            (threads + config.threads) * elements >= 1 << 31,
            dataclasses.replace(config, elements=elements),
        )
        kernel = launches.cached_kernel_of(
            problem.functions,
            lambda: Elementwise(problem.applied(), *specialisation),
            Elementwise,
            problem.numbers_key,
            problem.promotion,
            *specialisation,
        )
        strides = tuple(tuple(Int64(s) for s in own) for own in steps)
        operands = [*args.inputs, args.out]
        launches.launch(kernel, operands, tuple(kernel.index(e) for e in extents), strides, Int32(ctas))


def _operand(x: TensorLayout, extents: list[int], steps: list[int], elements: int) -> Operand:
    """Return how threads that have so many elements each access an array."""
    if steps[-1] == 0 and extents[-1] > 1:
        return Operand(x.dtype, 0, False)
    if steps[-1] != 1:
        return Operand(x.dtype, 1, False)
    size = x.size
    width = min(elements, max(1, MAX_VECTOR_BYTES // size))
    while width > 1 and (x.offset % (width * size) or any(s % width for s in steps[:-1])):
        width //= 2
    return Operand(x.dtype, width, True)
