"""The RoPE kernel.

A thread rotates a few neighbouring pairs by the angles of one position in several heads of a token: it reads their
cosines and sines once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...parts.vectors import as_f32, rounded, vector_atom
from .config import RopeConfig


@dataclasses.dataclass(frozen=True)
class RopeSpecialisation:
    """What a kernel is specialised for.

    `types`: element types of x, the result, cosines, sines and positions. `indexed`: modes of the array of positions.
    `wide`: thread indices are 64-bit.
    """

    types: tuple[Any, ...]
    indexed: int
    heads: int
    head_dim: int
    pairs: int
    width: int
    interleaved: bool
    conjugate: bool
    in_place: bool
    overlaps: bool
    config: RopeConfig
    wide: bool = False

    @property
    def thread_heads(self) -> int:
        """Heads of a thread."""
        return min(self.config.heads, self.heads)

    @property
    def head_groups(self) -> int:
        """Groups of heads that threads have."""
        return -(-self.heads // self.thread_heads)

    @property
    def rotating_threads(self) -> int:
        """Threads of a group of heads that rotate pairs."""
        return self.pairs // self.width

    @property
    def group_threads(self) -> int:
        """Threads of a group of heads: those that rotate pairs, and those that copy the elements behind them."""
        rest = 0 if self.in_place else self.head_dim - 2 * self.pairs
        return self.rotating_threads + rest // self.width


class RopeKernel:
    """The RoPE kernel."""

    def __init__(self, spec: RopeSpecialisation) -> None:
        self.spec = spec

    @cute.jit
    def __call__(
        self,
        addresses: Any,
        batch: Int32,
        tokens: Int32,
        table: Int32,
        first: Int64,
        strides: Any,
        ctas: Int32,
        stream: Int64,
    ):
        """Launch so many CTAs. `addresses`: x, the result, cosines, sines, positions if there are any. `table`: rows of
        cosines.

        `strides`: of batch, token and head of x and of the result; of rows of cosines and sines; of batch and token of
        positions.
        """
        spec = self.spec
        pointers = [
            arrays.pointer(p, t, 1 if k == 4 else spec.width)
            for k, (p, t) in enumerate(zip(addresses, spec.types, strict=False))
        ]
        self.kernel(pointers, batch * tokens, tokens, table, first, strides).launch(
            grid=(ctas, 1, 1), block=(spec.config.threads, 1, 1), stream=stream, use_pdl=spec.overlaps
        )

    @cute.kernel
    def kernel(self, pointers: Any, count: Int32, tokens: Int32, table: Int32, first: Int64, strides: Any):
        spec = self.spec
        if const_expr(spec.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        index = Int64 if const_expr(spec.wide) else Int32
        number = index(arch.block_idx()[0]) * spec.config.threads + arch.thread_idx()[0]
        chunk = Int32(number % spec.group_threads)
        rest = number // spec.group_threads
        head = Int32(rest % spec.head_groups) * spec.thread_heads
        place = Int32(rest // spec.head_groups)
        if place < count:
            row = place // tokens
            token = place % tokens
            source, target = (
                pointers[k] + (row * strides[3 * k] + token * strides[3 * k + 1] + head * strides[3 * k + 2])
                for k in range(2)
            )
            if chunk < spec.rotating_threads:
                position = first + token
                if const_expr(spec.indexed == 1):
                    position = (pointers[4] + row * strides[8]).load().to(Int64) + token
                elif const_expr(spec.indexed == 2):
                    position = (pointers[4] + (row * strides[8] + token * strides[9])).load().to(Int64)
                position = select_(position < 0, Int64(0), select_(position < table, position, Int64(table - 1)))
                angles = [self.angles(pointers[2 + k] + position * strides[6 + k], chunk) for k in range(2)]
                self.rotate(source, target, strides, angles, chunk, head)
            else:
                self.copy(source, target, strides, 2 * spec.pairs + (chunk - spec.rotating_threads) * spec.width, head)

    @property
    def halved(self) -> bool:
        """Whether half of a thread's pairs are in the first half of a head: neighbouring threads then access
        neighbouring vectors."""
        return self.spec.interleaved and self.spec.width > 1

    def angles(self, row: Any, chunk: Any) -> Any:
        """Load the cosines or sines of a thread's pairs."""
        width = self.spec.width
        pairs = self.spec.pairs
        if not self.halved:
            return as_f32(self.vector(row + chunk * width).load())
        width = width // 2
        halves = [as_f32(self.vector(row + (start + chunk * width), width).load()) for start in (0, pairs // 2)]
        return cute.TensorSSA.from_elements([x for half in halves for x in half.to_elements()], Float32)

    def vector(self, pointer: Any, width: int | None = None) -> Any:
        """Return the tensor of as many elements as a thread has pairs, or of `width`."""
        width = width or self.spec.width
        aligned = pointer.with_alignment(min(16, width * pointer.dtype.width // 8))
        return cute.make_tensor(aligned, cute.make_layout(width))

    def load_atom(self, dtype: Any) -> Any:
        """Return the copy that reads a vector; its lines leave L2 after written ones, so that memory takes both
        faster."""
        wide = self.spec.width * dtype.width == 128
        priority = CacheEvictionPriority.EVICT_LAST if wide else CacheEvictionPriority.EVICT_NORMAL
        return vector_atom(dtype, self.spec.width, priority)

    @cute.jit
    def rotate(self, source: Any, target: Any, strides: Any, angles: Any, chunk: Any, head: Any):
        """Rotate the thread's pairs in its heads: all are read before one is written."""
        spec = self.spec
        width = self.spec.width
        first = chunk * width
        second = spec.pairs + chunk * width
        if const_expr(spec.interleaved and not self.halved):
            first = 2 * chunk
            second = 2 * chunk + 1
        loaded = []
        for k in range_constexpr(spec.thread_heads):
            vectors = [cute.make_rmem_tensor((width,), source.dtype) for _ in range(2)]
            if head + k < spec.heads:
                for vector, at in zip(vectors, (first, second), strict=True):
                    cute.copy(self.load_atom(source.dtype), self.vector(source + (k * strides[2] + at)), vector)
            loaded.append(vectors)
        cos, sin = angles
        if const_expr(spec.conjugate):
            sin = -sin
        for k in range_constexpr(spec.thread_heads):
            a, b = (as_f32(vector.load()) for vector in loaded[k])
            if const_expr(spec.interleaved):
                a, b = deinterleaved(a, b)
            a, b = a * cos - b * sin, b * cos + a * sin
            if const_expr(spec.interleaved):
                a, b = interleaved_pairs(a, b)
            if head + k < spec.heads:
                for value, at in ((a, first), (b, second)):
                    cute.autovec_copy(rounded(value, target.dtype), self.vector(target + (k * strides[5] + at)))

    @cute.jit
    def copy(self, source: Any, target: Any, strides: Any, at: Any, head: Any):
        """Copy elements behind the pairs."""
        for k in range_constexpr(self.spec.thread_heads):
            if head + k < self.spec.heads:
                value = self.vector(source + (k * strides[2] + at)).load()
                cute.autovec_copy(rounded(value, target.dtype), self.vector(target + (k * strides[5] + at)))


def deinterleaved(a: Any, b: Any) -> tuple[Any, Any]:
    """Split two vectors of neighbours into the first and the second elements of pairs."""
    both = [*a.to_elements(), *b.to_elements()]
    return cute.TensorSSA.from_elements(both[::2], Float32), cute.TensorSSA.from_elements(both[1::2], Float32)


def interleaved_pairs(a: Any, b: Any) -> tuple[Any, Any]:
    """Interleave the first and the second elements of pairs."""
    both = [x for pair in zip(a.to_elements(), b.to_elements(), strict=True) for x in pair]
    half = len(both) // 2
    return cute.TensorSSA.from_elements(both[:half], Float32), cute.TensorSSA.from_elements(both[half:], Float32)
