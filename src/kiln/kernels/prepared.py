"""Compiled functions whose tensor arguments are described once: a later call gives only where arrays lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..base_dsl.function import CompiledFunction


class Prepared:
    """A compiled function of tensors, then numbers, for arrays of the shapes and strides it was prepared with."""

    __slots__ = ("_leaves", "_places", "_run")

    def __init__(self, compiled: CompiledFunction, tensors: Sequence[Any]) -> None:
        self._leaves: list[Any] = []
        self._places: list[int] = []
        for tensor in tensors:
            self._places.append(len(self._leaves))
            self._leaves += tensor.__kiln_argument__()[1]  # the address first
        self._run = compiled.run_leaves

    def __call__(self, addresses: Iterable[int], numbers: Iterable[Any]) -> None:
        """Run it on arrays at some addresses."""
        leaves = self._leaves.copy()
        for place, address in zip(self._places, addresses):
            leaves[place] = address
        leaves += numbers
        self._run(leaves)
