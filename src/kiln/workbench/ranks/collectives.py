"""What the collectives of torch.distributed compute, on the tensors of all ranks of a group.

Each function gets what the ranks passed, in the order of their places in the group, and writes the results where they
asked. Floats with 16 bits or fewer are added in 32 bits, and rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

Tensors = Sequence[torch.Tensor]
ReduceOp = dist.ReduceOp | dist.ReduceOp.RedOpType

_PAIRWISE: dict[ReduceOp, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.RedOpType(2): torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def reduced(tensors: Tensors, op: ReduceOp) -> torch.Tensor:
    """Return the reduction of tensors of one shape and type."""
    kind = next((each for each in _PAIRWISE if op == each), None)
    if kind is None:
        raise NotImplementedError(f"reductions by {op} are not served: others than PREMUL_SUM are")
    first = tensors[0]
    wide = torch.float32 if first.is_floating_point() and first.itemsize < 4 else first.dtype
    total = functools.reduce(_PAIRWISE[kind], [tensor.to(wide) for tensor in tensors])
    if kind == dist.ReduceOp.AVG:
        total = total / len(tensors)
    return total.to(first.dtype)


def all_reduce(data: Sequence[Tensors], op: ReduceOp) -> None:
    """Write the reduction over the ranks to each of them."""
    for same in zip(*data, strict=True):
        result = reduced(same, op)
        for tensor in same:
            tensor.copy_(result)


def reduce(data: Sequence[Tensors], op: ReduceOp, root: int) -> None:
    """Write the reduction over the ranks to one of them."""
    for same in zip(*data, strict=True):
        same[root].copy_(reduced(same, op))


def broadcast(data: Sequence[Tensors], root: int) -> None:
    """Write the tensors of one rank to all others."""
    for same in zip(*data, strict=True):
        for place, tensor in enumerate(same):
            if place != root:
                tensor.copy_(same[root])


def all_gather(data: Sequence[tuple[Tensors, torch.Tensor]]) -> None:
    """Write what the ranks have to lists of all."""
    for outputs, _ in data:
        for output, (_, source) in zip(outputs, data, strict=True):
            output.copy_(source)


def gather(data: Sequence[tuple[Tensors, torch.Tensor]], root: int) -> None:
    """Write what the ranks have to the list of one."""
    for output, (_, source) in zip(data[root][0], data, strict=True):
        output.copy_(source)


def scatter(data: Sequence[tuple[torch.Tensor, Tensors]], root: int) -> None:
    """Write the list of one rank to all, an element to each."""
    for (output, _), source in zip(data, data[root][1], strict=True):
        output.copy_(source)


def reduce_scatter(data: Sequence[tuple[torch.Tensor, Tensors]], op: ReduceOp) -> None:
    """Write the reduction of element i of all lists to rank i."""
    results = [reduced(same, op) for same in zip(*(inputs for _, inputs in data), strict=True)]
    for (output, _), result in zip(data, results, strict=True):
        output.copy_(result)


def all_to_all(data: Sequence[tuple[Tensors, Tensors]]) -> None:
    """Write element i of the list of rank j to element j of the list of rank i."""
    for here, (outputs, _) in enumerate(data):
        for output, (_, inputs) in zip(outputs, data, strict=True):
            output.copy_(inputs[here])
