"""The problem of element-wise functions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

from ...dispatch.arrays import require
from ...dispatch.problem import Problem, TensorLayout
from ...dispatch.promotion import Promotion
from ...parts.element_functions import of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .... import cute
    from ...parts.element_functions import Functions

_MOST_MODES = 8


_NUMPY = Promotion()


@dataclasses.dataclass(frozen=True)
class ElementwiseProblem(Problem):
    """A function of the elements of some arrays, broadcast to one shape, and of Python numbers.

    `numbers` are those, by the position of the argument, and `numbers_key` is their key. `promotion` says how types of
    values combine.
    """

    functions: Functions
    inputs: tuple[TensorLayout, ...]
    out: TensorLayout
    numbers_key: Any = ()
    numbers: dict[int, Any] = dataclasses.field(default_factory=dict, compare=False)
    promotion: Promotion = _NUMPY

    name = "elementwise"

    def __post_init__(self) -> None:
        require(
            all(x.shape == self.out.shape for x in self.inputs),
            f"elementwise of shapes {[x.shape for x in self.inputs]} into {self.out.shape}: inputs are broadcast before",
        )
        require(
            all(s != 0 or n == 1 for s, n in zip(self.out.strides, self.out.shape, strict=True)),
            f"elementwise into strides {self.out.strides}: elements of out are not repeated",
        )

    def applied(self) -> Callable[..., Any]:
        """Return the function of the values of the inputs alone."""
        count = len(self.inputs) + len(self.numbers)
        return with_numbers(self.functions.callables()[0], self.numbers, count, self.promotion)

    def walk(self) -> tuple[list[int], list[list[int]]]:
        """Return extents and strides of the fewest modes that reach all elements."""
        modes = walked(self.out.shape, [x.strides for x in (*self.inputs, self.out)])
        require(
            len(modes[0]) <= _MOST_MODES,
            f"elementwise of arrays that lie in {len(modes[0])} ways: at most {_MOST_MODES} modes",
            hint="make some of them contiguous",
        )
        return modes

    @property
    def flops(self) -> int:
        """One for each element: what the function does is not counted."""
        return math.prod(self.out.shape)

    @property
    def bytes(self) -> int:
        """Inputs are read once, the result is written once."""
        return sum(x.bytes for x in (*self.inputs, self.out))


def with_numbers(
    function: Callable[..., Any], numbers: dict[int, Any], count: int, promotion: Promotion
) -> Callable[..., Any]:
    """Bind the numbers of a function of `count` arguments; types of the others promote as those of arrays."""

    def call(*values: cute.TensorSSA) -> Any:
        left = iter(x if t is None else x.to(t) for x, t in itertools.zip_longest(values, promotion.types))
        arguments = [numbers[k] if k in numbers else next(left) for k in range(count)]
        return of_arrays(function, *arguments, rules=promotion.rules)

    return call


def walked(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Return extents and strides of the fewest modes that reach the same elements, ordered by the strides of the last
    array."""
    order = [m for m in range(len(shape)) if shape[m] != 1]
    order.sort(key=lambda m: -abs(strides[-1][m]))
    extents: list[int] = []
    steps: list[list[int]] = []
    for mode in order:
        step = [s[mode] for s in strides]
        if steps and all(before == now * shape[mode] for before, now in zip(steps[-1], step, strict=True)):
            extents[-1] *= shape[mode]
            steps[-1] = step
        else:
            extents.append(shape[mode])
            steps.append(step)
    if not extents:
        return [1], [[1] for _ in strides]
    return extents, [list(own) for own in zip(*steps, strict=True)]
