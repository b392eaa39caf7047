"""The types of what Python passes to functions of the language, for type checkers. Programs never load this module."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar


class SupportsDLPack(Protocol):
    """An array that others can read: of numpy, PyTorch, JAX or CuPy."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class HasArrayInterface(Protocol):
    """An array with numpy's interface."""

    @property
    def __array_interface__(self) -> Any: ...


class HasCudaArrayInterface(Protocol):
    """An array in the memory of a GPU, with Numba's interface."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


PythonValue = SupportsDLPack | HasArrayInterface | HasCudaArrayInterface | float | tuple[Any, ...] | list[Any] | None
"""A value of Python that becomes a `Tensor`, numbers or nothing where it is an argument."""


class Array(Protocol):
    """An array of numpy, PyTorch, JAX or CuPy, as the kernel library takes it."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def ndim(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...


AnyArray = TypeVar("AnyArray", bound=Array)
"""An array of a framework: a function that takes one and returns one returns that framework's."""
