"""What kernels are asked for, without the arrays: keys of what is chosen and made, and what a tuner works on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

WIDEST = 16
"""Bytes of the widest access."""


class Laid(NamedTuple):
    """How an array lies: elements, extents, strides in elements, and its address modulo 16 bytes."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def dense(cls, dtype: Any, *shape: int) -> Laid:
        """An array without gaps, the last mode contiguous."""
        return cls(dtype, shape, tuple(math.prod(shape[mode + 1 :]) for mode in range(len(shape))))

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return max(8, self.dtype.width) // 8

    @property
    def bytes(self) -> int:
        """Bytes of its elements; a mode of stride 0 repeats them."""
        return self.size * math.prod(n for n, step in zip(self.shape, self.strides, strict=True) if step)

    def leading(self, modes: tuple[int, ...]) -> int | None:
        """The one of some modes along which elements are adjacent; the last of several."""
        found = [m for m in modes if self.strides[m] == 1]
        longer = [m for m in found if self.shape[m] != 1]
        return (longer or found or [None])[-1]

    def width(self, leading: int | None) -> int:
        """How many elements along a mode can be accessed at once everywhere, at most `WIDEST` bytes' worth; 1 along none."""
        if leading is None:
            return 1
        size, width = self.size, max(1, WIDEST // self.size)
        others = [abs(s) for m, s in enumerate(self.strides) if m != leading and self.shape[m] != 1]
        while width > 1 and (
            self.offset % (width * size) or self.shape[leading] % width or any(s % width for s in others)
        ):
            width //= 2
        return width


def peak_name(dtype: Any) -> str:
    """How the table of devices names a type of elements: "bf16", "f8"."""
    bits, name = dtype.width, dtype.__name__
    return "bf16" if name == "BFloat16" else f"{'f' if name.startswith('Float') else 'i'}{bits}"


class Problem:
    """What is asked for: shapes, types, strides, what follows. A frozen dataclass; making one refuses what makes no sense."""

    __slots__ = ()

    @property
    def flops(self) -> int:
        """Floating-point operations that the definition takes, whatever a kernel does."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Bytes that are read and written at least: every element once."""
        raise NotImplementedError

    @property
    def multiplies(self) -> str | None:
        """What tensor cores multiply for it, as the table of devices names it ("f16", "tf32"); None: they do not."""
        return None
