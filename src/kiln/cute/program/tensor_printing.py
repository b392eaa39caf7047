"""`print_tensor`: the elements of a tensor as text, when the program runs."""

from __future__ import annotations

import itertools
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import type_error
from ..layout.int_tuple import product
from ..layout.layout import idx2crd
from ..tensor.printing import Formatted, printf
from ..tensor.tensor import TracedTensor, make_rmem_tensor
from ..tensor.tensor_ssa import TensorSSA
from .dsl import DSL

_ONE_PIECE = 512
"""Up to so many elements a tensor is printed in one piece, which no other thread's text can interrupt."""


def print_tensor(tensor: object, *, verbose: bool = False, loc: object = None, ip: object = None) -> None:
    """Print a tensor when the program runs: its address, its layout and its elements.

    Mode 0 runs down, mode 1 to the right; further modes are separate matrices.

    Args:
        tensor: a tensor in memory or in registers.
        verbose: print one element to a line, with its coordinate.
    """
    tracing.require("print_tensor")
    if isinstance(tensor, TensorSSA):
        copy = make_rmem_tensor(tensor.shape, tensor.dtype)
        copy.store(tensor)
        tensor = copy
    if not isinstance(tensor, TracedTensor):
        raise type_error(f"print_tensor takes a tensor or a vector, got {type(tensor).__name__}")
    shape = tensor.shape if isinstance(tensor.shape, tuple) else (tensor.shape,)
    sizes: list[int] = [product(mode) for mode in shape]
    head = ["tensor(", *tensor._head_parts(), ", data="]
    if all(isinstance(s, int) for s in sizes) and product(shape) <= _ONE_PIECE:
        printf("{}" * 2, _Parts(head), _Parts(_verbose(tensor, sizes) if verbose else _matrices(tensor, sizes)))
        return
    printf("{}", _Parts(head), end="")
    _print_dynamic(tensor, sizes, verbose, _place(tensor))
    printf("\n)" if verbose else ")")


class _Parts:
    """Parts that are printed one after the other."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __kiln_print__(self) -> list[Any]:
        return self._parts


def _place(tensor: TracedTensor) -> str:
    """Return the format of an element: numbers leave room for a sign."""
    kind = tensor._iterator.number_format
    return " {}" if kind is None else f"% {kind}"


def _element(tensor: TracedTensor, coord: Any) -> list[Any]:
    kind = tensor._iterator.number_format
    value = tensor[coord]
    return [" ", value] if kind is None else [Formatted(value, f" {kind}")]


def _matrices(tensor: TracedTensor, sizes: list[int]) -> list[Any]:
    """Return the parts of `[[ 1, 2, ],\\n [ 3, 4, ]]`, aligned under the first bracket."""
    indent = " " * 7
    if not sizes:
        return [f"\n{indent}[", *_element(tensor, ()), "])"]
    depth = len(sizes) - 1
    rows = sizes[0]
    columns = sizes[1] if len(sizes) > 1 else 1
    parts: list[Any] = []
    outer = [range(s) for s in reversed(sizes[2:])]
    for number, rest in enumerate(itertools.product(*outer)):
        closed = 0  # levels that begin anew here
        while number and closed < len(rest) and rest[len(rest) - 1 - closed] == 0:
            closed += 1
        for row in range(rows):
            if row == 0:
                opened = depth + 1 if number == 0 else closed + 2
                if number:
                    parts.append("]" * (closed + 1) + ",\n\n")
                else:
                    parts.append("\n")
                parts.append(indent + " " * (depth + 1 - opened) + "[" * opened)
            else:
                parts.append(",\n" + indent + " " * depth + "[")
            for column in range(columns):
                coord = (row, column, *reversed(rest)) if len(sizes) > 1 else row
                parts += [*_element(tensor, coord), ", "]
            parts.append("]")
    return [*parts, "]" * depth + ")"]


def _verbose(tensor: TracedTensor, sizes: list[int]) -> list[Any]:
    parts: list[Any] = [" ("]
    for coord in itertools.product(*(range(s) for s in sizes)):
        parts += ["\n\t(" + ",".join(map(str, coord)) + ")=", *_element(tensor, coord if len(coord) != 1 else coord[0])]
    return [*parts, "\n)"]


@DSL.jit
def _print_dynamic(tensor, sizes, verbose, place):  # type: ignore[no-untyped-def]
    """Print a large tensor, or one of dynamic shape, by loops, one matrix after the other."""
    printf(" (" if verbose else "", end="")
    rest = tuple(sizes[2:])
    deep = len(sizes) > 1
    for matrix in range(product(rest)):
        where = idx2crd(matrix, rest)
        for row in range(sizes[0]):
            if not verbose:
                if row == 0:
                    printf("\n       [[" if deep else "\n       [", end="")
                else:
                    printf(",\n        [" if deep else ",\n       [", end="")
            for column in range(sizes[1] if deep else 1):
                coord = (row, column, *where) if deep else row
                if verbose:
                    printf("\n\t{}=" + place, coord, tensor[coord], end="")
                else:
                    printf(place + ", ", tensor[coord], end="")
            if not verbose:
                printf("]", end="")
        if deep and not verbose:
            printf("]", end="")
