"""Kernels whose copies predicate themselves."""

from __future__ import annotations

import functools
from typing import Any

from ..program.compiling import compile
from ..program.dsl import DSL, KernelFunction, _plain_function
from .copies import with_extents

__all__ = ["compile", "jit", "kernel"]

jit = DSL.jit


class _Kernel(KernelFunction):
    """A kernel whose tensors know the coordinates of their elements."""

    def run(self, args: Any, kwargs: dict[str, Any]) -> Any:
        return super().run([with_extents(a) for a in args], {name: with_extents(a) for name, a in kwargs.items()})


def kernel(function: Any = None, *, preprocess: bool = True) -> Any:
    """Decorate a kernel: a function that a grid of threads runs."""
    if function is None:
        return functools.partial(kernel, preprocess=preprocess)
    return _Kernel(DSL, _plain_function(function, "kernel"), preprocess)
