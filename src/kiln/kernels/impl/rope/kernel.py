"""The RoPE kernel.

A thread rotates a few neighbouring pairs by the angles of one position in some heads of a token: cosines and sines are read once for
all of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority, CopyUniversalOp
from ...dispatch import arrays
from ...parts.vectors import as_f32
from .config import RopeConfig


@dataclasses.dataclass(frozen=True)
class RopeSpecialisation:
    """What a kernel is specialised for. `indexed` is the number of modes of the array of positions."""

    types: tuple[Any, Any, Any, Any, Any]
    indexed: int
    heads: int
    size: int
    pairs: int
    width: int
    interleaved: bool
    conjugate: bool
    in_place: bool
    wide: bool
    overlaps: bool
    config: RopeConfig


class RopeKernel:
    """The RoPE kernel."""

    def __init__(self, spec: RopeSpecialisation) -> None:
        self.spec = spec
        self.each = min(spec.config.heads, spec.heads)
        self.groups = -(-spec.heads // self.each)
        self.rotated = spec.pairs // spec.width
        rest = 0 if spec.in_place else spec.size - 2 * spec.pairs
        self.chunks = self.rotated + rest // spec.width
        """Threads of a group of heads: those that rotate pairs, and those that copy the elements behind them."""

    @cute.jit
    def __call__(
        self,
        places: Any,
        batch: Int32,
        tokens: Int32,
        table: Int32,
        first: Int64,
        steps: Any,
        blocks: Int32,
        stream: Int64,
    ):
        """`steps`: strides of batch, token and head of x and of the result; of the position of cosines and sines; of batch and token of positions."""
        made = self.spec
        pointers = [
            arrays.pointer(p, t, 1 if k == 4 else made.width)
            for k, (p, t) in enumerate(zip(places, made.types, strict=False))
        ]
        self.kernel(pointers, batch * tokens, tokens, table, first, steps).launch(
            grid=(blocks, 1, 1), block=(made.config.threads, 1, 1), stream=stream, use_pdl=made.overlaps
        )

    @cute.kernel
    def kernel(self, pointers: Any, count: Int32, tokens: Int32, table: Int32, first: Int64, steps: Any):
        made = self.spec
        if const_expr(made.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        counted = Int64 if const_expr(made.wide) else Int32
        number = counted(arch.block_idx()[0]) * made.config.threads + arch.thread_idx()[0]
        chunk, rest = Int32(number % self.chunks), number // self.chunks
        head, place = Int32(rest % self.groups) * self.each, Int32(rest // self.groups)
        if place < count:
            row, token = place // tokens, place % tokens
            given, written = (
                pointers[k] + (row * steps[3 * k] + token * steps[3 * k + 1] + head * steps[3 * k + 2])
                for k in range(2)
            )
            if chunk < self.rotated:
                position = first + token
                if const_expr(made.indexed == 1):
                    position = (pointers[4] + row * steps[8]).load().to(Int64) + token
                elif const_expr(made.indexed == 2):
                    position = (pointers[4] + (row * steps[8] + token * steps[9])).load().to(Int64)
                position = select_(position < 0, Int64(0), select_(position < table, position, Int64(table - 1)))
                angles = [self.angles(pointers[2 + k] + position * steps[6 + k], chunk) for k in range(2)]
                self.rotate(given, written, steps, angles, chunk, head)
            else:
                self.copy(given, written, steps, 2 * made.pairs + (chunk - self.rotated) * made.width, head)

    @property
    def halved(self) -> bool:
        """Whether half of a thread's pairs are in the first half of a head: neighbouring threads then access neighbouring vectors."""
        return self.spec.interleaved and self.spec.width > 1

    def angles(self, row: Any, chunk: Any) -> Any:
        """Returns the cosines or sines of a thread's pairs."""
        width, pairs = self.spec.width, self.spec.pairs
        if not self.halved:
            return as_f32(self.vector(row + chunk * width).load())
        width = width // 2
        found = [as_f32(self.vector(row + (start + chunk * width), width).load()) for start in (0, pairs // 2)]
        return cute.TensorSSA.from_elements([x for half in found for x in half.to_elements()], Float32)

    def vector(self, pointer: Any, width: int | None = None) -> Any:
        """Returns the tensor of as many elements as a thread has pairs, or of `width`."""
        width = width or self.spec.width
        aligned = pointer.with_alignment(min(16, width * pointer.dtype.width // 8))
        return cute.make_tensor(aligned, cute.make_layout(width))

    def reading(self, dtype: Any) -> Any:
        """Returns a copy whose lines leave the L2 cache after written ones: memory then takes both faster."""
        bits = self.spec.width * dtype.width
        priority = CacheEvictionPriority.EVICT_LAST if bits == 128 else CacheEvictionPriority.EVICT_NORMAL
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits, l2_evict_priority=priority)

    @cute.jit
    def rotate(self, given: Any, written: Any, steps: Any, angles: Any, chunk: Any, head: Any):
        """Rotates the thread's pairs in its heads: all are read before one is written."""
        made, width = self.spec, self.spec.width
        first, second = chunk * width, made.pairs + chunk * width
        if const_expr(made.interleaved and not self.halved):
            first, second = 2 * chunk, 2 * chunk + 1
        held = []
        for k in range_constexpr(self.each):
            rooms = [cute.make_rmem_tensor((width,), given.dtype) for _ in range(2)]
            if head + k < made.heads:
                for room, at in zip(rooms, (first, second), strict=True):
                    cute.copy(self.reading(given.dtype), self.vector(given + (k * steps[2] + at)), room)
            held.append(rooms)
        cos, sin = angles
        if const_expr(made.conjugate):
            sin = -sin
        for k in range_constexpr(self.each):
            a, b = (as_f32(room.load()) for room in held[k])
            if const_expr(made.interleaved):
                a, b = deinterleaved(a, b)
            a, b = a * cos - b * sin, b * cos + a * sin
            if const_expr(made.interleaved):
                a, b = interleaved_pairs(a, b)
            if head + k < made.heads:
                for value, at in ((a, first), (b, second)):
                    room = cute.make_rmem_tensor((width,), written.dtype)
                    room.store(value.to(written.dtype))
                    cute.autovec_copy(room, self.vector(written + (k * steps[5] + at)))

    @cute.jit
    def copy(self, given: Any, written: Any, steps: Any, at: Any, head: Any):
        """Copies elements behind the pairs."""
        for k in range_constexpr(self.each):
            if head + k < self.spec.heads:
                room = cute.make_rmem_tensor((self.spec.width,), written.dtype)
                room.store(self.vector(given + (k * steps[2] + at)).load().to(written.dtype))
                cute.autovec_copy(room, self.vector(written + (k * steps[5] + at)))


def deinterleaved(a: Any, b: Any) -> tuple[Any, Any]:
    """Splits two vectors of neighbours into the first and the second elements of pairs."""
    both = [*a.to_elements(), *b.to_elements()]
    return cute.TensorSSA.from_elements(both[::2], Float32), cute.TensorSSA.from_elements(both[1::2], Float32)


def interleaved_pairs(a: Any, b: Any) -> tuple[Any, Any]:
    """Interleaves the first and the second elements of pairs."""
    both = [x for pair in zip(a.to_elements(), b.to_elements(), strict=True) for x in pair]
    half = len(both) // 2
    return cute.TensorSSA.from_elements(both[:half], Float32), cute.TensorSSA.from_elements(both[half:], Float32)
