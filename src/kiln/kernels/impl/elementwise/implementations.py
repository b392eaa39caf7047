"""The implementation of element-wise functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.problem import MAX_VECTOR_BYTES, TensorLayout
from ...dispatch.registry import MemoryBound, Registry, variants
from .config import ElementwiseConfig
from .kernel import Elementwise, Operand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...dispatch.devices import Device
    from .problem import ElementwiseProblem

REGISTRY = Registry("elementwise")

_MOST_GRID = (1 << 31) - 1


class ElementwiseArguments(NamedTuple):
    """The arrays of an element-wise function, not broadcast, and the one that is written."""

    inputs: Sequence[Any]
    out: Any


@REGISTRY.register
class ElementwiseVectors(MemoryBound):
    """A thread computes a few neighbouring elements."""

    config = ElementwiseConfig

    def supports(self, problem: ElementwiseProblem, device: Device) -> str | None:
        return None

    def configs(self, problem: ElementwiseProblem, device: Device) -> Iterator[ElementwiseConfig]:
        def check(config: ElementwiseConfig) -> None:
            self.check(problem, config, device)

        return variants(ElementwiseConfig(), check, threads=(128, 256, 512), elements=(0, 4, 8, 16))

    def check(self, problem: ElementwiseProblem, config: ElementwiseConfig, device: Device) -> None:
        config.check(1, device)

    def run(self, problem: ElementwiseProblem, config: ElementwiseConfig, given: ElementwiseArguments) -> None:
        laid = [*problem.inputs, problem.out]
        config = config.check(max(x.size for x in laid), devices.current())
        extents, steps = problem.walk()
        elements, modes = config.elements, len(extents) - 1
        operands = tuple(_operand(x, extents, own, elements) for x, own in zip(laid, steps, strict=True))
        units = -(-extents[-1] // elements)
        for extent in extents[:-1]:
            units *= extent
        blocks = -(-units // config.threads)
        arrays.require(
            blocks <= _MOST_GRID,
            f"elementwise of shape {problem.out.shape}: {blocks} blocks, and a grid has {_MOST_GRID}",
        )
        wide = (units + config.threads) * elements >= 1 << 31
        cut = (operands, modes, extents[-1] % elements == 0, wide, config)
        kernel = launches.cached_kernel_of(
            problem.functions, lambda: Elementwise(problem.applied(), *cut), Elementwise, problem.numbers_key, *cut
        )
        strides = tuple(tuple(Int64(s) for s in own) for own in steps)
        taken = [*given.inputs, given.out]
        launches.launcher(kernel, taken, tuple(kernel.index(e) for e in extents), strides, Int32(blocks))(taken)


def _operand(x: TensorLayout, extents: list[int], steps: list[int], elements: int) -> Operand:
    if steps[-1] == 0 and extents[-1] > 1:
        return Operand(x.dtype, 0, False)
    if steps[-1] != 1:
        return Operand(x.dtype, 1, False)
    size = x.size
    width = min(elements, max(1, MAX_VECTOR_BYTES // size))
    while width > 1 and (x.offset % (width * size) or any(s % width for s in steps[:-1])):
        width //= 2
    return Operand(x.dtype, width, True)
