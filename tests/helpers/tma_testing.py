"""Copies of boxes by the tensor memory accelerator: kernels that make them, and what they do, in numpy."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from kiln import cute
from kiln.base_dsl.trace import emit_value
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.dialects.definition import int_type
from kiln.dialects.nvgpu.tma import ELEMENTS, SWIZZLES

BITS = ELEMENTS


class Map:
    """A tensor map as an argument of a kernel."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.value]

    def __new_from_mlir_values__(self, values: Any) -> Map:
        return Map(values[0])

    def address(self) -> Any:
        return nvgpu.tma.tensor_map_address(self.value)

    def number(self) -> Any:
        """Its address as a number."""
        return cute.Int64(emit_value("cute.ptr_to_int", int_type(64), (self.address(),)))


@dataclasses.dataclass(frozen=True)
class Box:
    """A tensor and the box of it that is copied at a time; modes from the contiguous one on."""

    element: str
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str = "none"
    steps: tuple[int, ...] = ()
    fill: str = "zeros"
    pixel_box: tuple[int, ...] | None = None
    interleave: str = "none"

    @property
    def bits(self) -> int:
        return ELEMENTS[self.element]

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes, of all modes but the first; rows are padded to 16 bytes."""
        stride, made = -(-self.sizes[0] * self.bits // 128) * 16, []
        for size in self.sizes[1:]:
            made.append(stride)
            stride *= size
        return tuple(made)

    @property
    def memory(self) -> int:
        """Bytes of the tensor."""
        return (self.strides[-1] * self.sizes[-1]) if len(self.sizes) > 1 else -(-self.sizes[0] * self.bits // 128) * 16

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of the box in shared memory."""
        if self.pixel_box is not None:
            return self.box
        steps = self.steps or (1,) * len(self.box)
        return (self.box[0], *(-(-b // s) for b, s in zip(self.box[1:], steps[1:])))

    @property
    def bytes(self) -> int:
        """Of the box: those that an mbarrier counts."""
        return int(np.prod(self.extents)) * self.bits // 8

    @property
    def row(self) -> int:
        """Bytes of a row of the box."""
        return self.box[0] * self.bits // 8

    @property
    def distance(self) -> int:
        """Bytes from a row to the next in shared memory: rows shorter than a swizzle's span leave the rest of it alone."""
        return max(self.row, SWIZZLES[self.swizzle])

    @property
    def space(self) -> int:
        """Bytes of shared memory that a box lies in, as whole patterns of swizzles."""
        return -(-self.bytes // self.row * self.distance // 1024) * 1024

    def encode(self, tensor: Any) -> Map:
        """Its map; in host code, of a tensor of bytes that starts where it does."""
        i64 = lambda values: [cute.Int64(v).ir_value() for v in values]
        return Map(
            nvgpu.tma.tensor_map_encode(
                tensor.iterator.ir_value(), i64(self.sizes), i64(self.strides), element=self.element, box=self.box,
                element_strides=self.steps or (1,) * len(self.sizes), swizzle=self.swizzle, fill=self.fill, pixel_box=self.pixel_box,
                interleave=self.interleave, tensor="x",
            )
        )  # fmt: skip

    # -- the model ---------------------------------------------------------------------------------------

    def places(self, at: tuple[int, ...], offsets: tuple[int, ...] = ()) -> list[tuple[int, ...] | None]:
        """The coordinate of each row of a copy, without its first mode; None: outside."""
        if self.pixel_box is None:
            steps = (self.steps or (1,) * len(self.sizes))[1:]
            ranges = [range(0, e * s, s) for e, s in zip(self.extents[1:], steps)]
            rows = [
                tuple(c + i for c, i in zip(at[1:], reversed(index))) for index in itertools.product(*reversed(ranges))
            ]
        else:
            spatial = len(self.sizes) - 2
            lower, upper = self.pixel_box[:spatial], self.pixel_box[spatial:]
            steps = (self.steps or (1,) * len(self.sizes))[1:]
            ends = [s + u for s, u in zip(self.sizes[1:], upper)]
            rows, now = [], list(at[1:])
            for _ in range(self.box[1]):
                rows.append(tuple(p + o for p, o in zip(now, (*(offsets or (0,) * spatial), 0))))
                for mode in range(spatial):
                    now[mode] += steps[mode]
                    if now[mode] < ends[mode]:
                        break
                    now[mode] = lower[mode]
                else:
                    now[-1] += 1
        return [row if all(0 <= c < s for c, s in zip(row, self.sizes[1:])) else None for row in rows]

    def nan(self) -> np.ndarray:
        """The bits of an element that stands for none, as bytes."""
        return np.tile(np.array([0xF7, 0x7F], np.uint8), self.bits // 16)

    def load(
        self, memory: np.ndarray, at: tuple[int, ...], offsets: tuple[int, ...] = (), before: int = 0
    ) -> np.ndarray:
        """What lies in `space` bytes of shared memory after a load, all of them `before` then; elements of whole bytes only."""
        width, rows = self.bits // 8, []
        outside = self.nan() if self.fill == "nan" else np.zeros(width, np.uint8)
        for row in self.places(at, offsets):
            made = np.tile(outside, (self.box[0], 1))
            for i in range(self.box[0]):
                if row is not None and 0 <= at[0] + i < self.sizes[0]:
                    start = (at[0] + i) * width + sum(c * s for c, s in zip(row, self.strides))
                    made[i] = memory[start : start + width]
            rows.append(np.pad(made.reshape(-1), (0, self.distance - self.row), constant_values=before))
        plain = np.concatenate(rows)
        return self.swizzled(np.pad(plain, (0, self.space - plain.size), constant_values=before))

    def swizzled(self, plain: np.ndarray) -> np.ndarray:
        """Bytes, whole patterns of them, that are moved by a swizzle; the other way round it is the same."""
        mask, first = (
            (3, 5) if self.swizzle == "128b_32b" else ({0: 0, 32: 1, 64: 3, 128: 7}[SWIZZLES[self.swizzle]], 4)
        )
        index = np.arange(plain.size)
        return plain[index ^ ((index >> 7 & mask) << first)]

    def store(self, memory: np.ndarray, shared: np.ndarray, at: tuple[int, ...], combine: Any = None) -> np.ndarray:
        """Global memory after a store of a box from `space` bytes; `combine` takes the old and the new bytes of an element."""
        width, memory = self.bits // 8, memory.copy()
        rows = self.swizzled(shared)[: self.bytes // self.row * self.distance].reshape(-1, self.distance)
        plain = rows[:, : self.row].reshape(-1, self.box[0], width)
        for row, values in zip(self.places(at), plain):
            for i in range(self.box[0]):
                if row is not None and 0 <= at[0] + i < self.sizes[0]:
                    start = (at[0] + i) * width + sum(c * s for c, s in zip(row, self.strides))
                    old = memory[start : start + width]
                    memory[start : start + width] = values[i] if combine is None else combine(old, values[i])
        return memory


def coordinates(*values: Any) -> list[Any]:
    """Coordinates of a copy."""
    return [cute.Int32(v).ir_value() for v in values]


def tile(bytes_: int, alignment: int = 1024) -> Any:
    """Bytes of shared memory, as a tensor."""
    size = -(-bytes_ // 1024) * 1024
    return cute.make_tensor(arch.alloc_smem(cute.Uint8, size, alignment), cute.make_layout(size))
