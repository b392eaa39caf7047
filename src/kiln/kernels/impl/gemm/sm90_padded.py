"""Products on sm_90a of arrays that the copy engine cannot step through: copied first into ones that it can."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays
from ...dispatch.problem import TensorLayout
from ...dispatch.registry import Implementation
from .grouped_problem import GroupedGemmProblem
from .sm90_config import Sm90GemmConfig
from .sm90_implementation import batched, ends, steps

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .arguments import GemmArguments
    from .problem import GemmProblem
    from .sm90_implementation import Sm90Gemm

_COPY = 3.0
"""Microseconds of a copy, and TB/s that it reads and writes."""
_RATE = 1.5


class Sm90PaddedGemm(Implementation):
    """Another implementation, of arrays whose rows begin at multiples of 16 bytes, and whose results have nothing behind them before the next: copies, where
    those that are given do not lie so."""

    config = Sm90GemmConfig
    repeats = True

    def __init__(self, other: Sm90Gemm) -> None:
        self.other = other

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if self.other.supports(problem, device) is None:
            return "arrays lie as the copy engine needs them"
        return self.other.suits(_padded(problem), device)

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm90GemmConfig]:
        return self.other.configs(_padded(problem), device)

    def cost(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> float:
        return sum(self.cost_terms(problem, config, device).values())

    def cost_terms(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> dict[str, float]:
        """One after the other: each array that is copied is read and written once more."""
        names, made = ("copy of a", "copy of b", "copy of the result"), _padded(problem)
        pairs = zip(itertools.chain(names, itertools.repeat(names[-1])), _taken(problem), _arrays(made))
        copies = {name: _COPY + 2 * x.bytes / 1e6 / _RATE for name, taken, x in pairs if not taken}
        return {"product": self.other.cost(made, config, device), **copies}

    def check(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> None:
        self.other.check(_padded(problem), config, device)

    def run(self, problem: GemmProblem, config: Sm90GemmConfig, given: GemmArguments) -> None:
        made = _padded(problem)
        pairs = zip((given.a, given.b, given.out, *given.extra_outs), _taken(problem), _arrays(made), strict=True)
        a, b, out, *more = (x if taken else _like(x, now) for x, taken, now in pairs)
        kept = [(out, given.out)] if given.group_bounds is not None else []  # of rows that no group has
        for x, y in ((a, given.a), (b, given.b), *kept):
            if x is not y:
                arrays.assign(x, y if x.shape[0] == y.shape[0] else arrays.part(y, 0, slice(0, 1)))
        a, b = (arrays.broadcast_batches(x, laid.shape[0]) for x, laid in ((a, made.a), (b, made.b)))
        self.other.run(made, config, given._replace(a=a, b=b, out=out, extra_outs=more))
        for x, wanted in zip((out, *more), (given.out, *given.extra_outs), strict=True):
            if x is not wanted:
                arrays.assign(wanted, x)


def _arrays(problem: GemmProblem) -> tuple[TensorLayout, ...]:
    return problem.a, problem.b, *problem.outs


def _modes(problem: GemmProblem) -> tuple[int, ...]:
    """Along which arrays are contiguous for the copy engine. 8-bit operands, and rows of groups, are in K."""
    a, b = problem.operands()
    narrow, grouped = problem.dtype.width != 16, isinstance(problem, GroupedGemmProblem)
    return 2 if a.k_major or narrow or grouped else 1, 1 if b.k_major or narrow else 2, *(2 for _ in problem.outs)


def _taken(problem: GemmProblem) -> list[bool]:
    """Which arrays are taken as they lie."""
    found = [steps(x, mode) for x, mode in zip(_arrays(problem), _modes(problem), strict=True)]
    return [*found[:2], *(stepped and ends(x) for stepped, x in zip(found[2:], problem.outs, strict=True))]


def _padded(problem: GemmProblem) -> GemmProblem:
    """The same problem of arrays that the copy engine can step through."""
    triples = zip(_arrays(problem), _modes(problem), _taken(problem), strict=True)
    left, right, out, *more = (x if taken else _rows(x, mode) for x, mode, taken in triples)
    return dataclasses.replace(problem, a=left, b=right, out=out, extra_outs=tuple(more))


def _rows(x: TensorLayout, mode: int) -> TensorLayout:
    """A dense array of the same extents, contiguous along a mode, whose rows begin at multiples of 16 bytes."""
    extents = x.shape[1:]
    each = 16 // x.size
    row = -(-extents[mode - 1] // each) * each
    strides = (row, 1) if mode == 2 else (1, row)
    return TensorLayout(x.dtype, x.shape, (row * extents[2 - mode] if batched(x) else 0, *strides), 0)


def _like(x: Any, laid: TensorLayout) -> Any:
    """A new array that lies so; of batches that are all the same, one."""
    batches, rows, columns = laid.shape
    if not batched(laid):
        batches = 1
    along = laid.leading((1, 2)) == 2
    row = laid.strides[1] if along else laid.strides[2]
    made = arrays.empty(x, (batches, rows if along else columns, row), None)
    made = arrays.part(made, 2, slice(0, columns if along else rows))
    return made if along else arrays.transposed(made)
