"""Problems: what a kernel computes, without the data. They are the keys of dispatch and what a tuner works on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ... import cute

MAX_VECTOR_BYTES = 16
"""Bytes of the widest vector access."""


class TensorLayout(NamedTuple):
    """The element type, shape, strides in elements, and address modulo 16 bytes of an array."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def dense(cls, dtype: type[cute.Numeric], *shape: int) -> TensorLayout:
        """Return the layout of a row-major array without gaps."""
        return cls(dtype, shape, tuple(math.prod(shape[mode + 1 :]) for mode in range(len(shape))))

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return max(8, self.dtype.width) // 8

    @property
    def bytes(self) -> int:
        """Bytes of the distinct elements: modes of stride 0 do not count."""
        return self.size * math.prod(n for n, stride in zip(self.shape, self.strides, strict=True) if stride)

    def leading(self, modes: tuple[int, ...]) -> int | None:
        """Return which of `modes` has stride 1, or None; of several the last that is longer than 1."""
        contiguous = [m for m in modes if self.strides[m] == 1]
        longer = [m for m in contiguous if self.shape[m] != 1]
        return (longer or contiguous or [None])[-1]

    def width(self, leading: int | None) -> int:
        """Return how many elements along a mode every aligned access can take, within `MAX_VECTOR_BYTES`; 1 for
        None."""
        if leading is None:
            return 1
        size = self.size
        width = max(1, MAX_VECTOR_BYTES // self.size)
        other_strides = [abs(s) for m, s in enumerate(self.strides) if m != leading and self.shape[m] != 1]
        while width > 1 and (
            self.offset % (width * size) or self.shape[leading] % width or any(s % width for s in other_strides)
        ):
            width //= 2
        return width


def peak_name(dtype: type[cute.Numeric]) -> str:
    """Return the name of an element type in the table of devices: "bf16", "f8"."""
    bits = dtype.width
    name = dtype.__name__
    return "bf16" if name == "BFloat16" else f"{'f' if name.startswith('Float') else 'i'}{bits}"


class Problem:
    """The base of problems: frozen dataclasses of layouts and options whose constructors refuse invalid
    combinations."""

    __slots__ = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of the definition, whatever a kernel does."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Least global memory traffic: every element is read or written once."""
        raise NotImplementedError

    @property
    def mma_dtype(self) -> str | None:
        """The tensor cores' input type as the table of devices names it ("f16", "tf32"); None if they are not used."""
        return None
