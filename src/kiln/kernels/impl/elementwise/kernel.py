"""The kernel of element-wise functions: any Python function of values, compiled into one kernel.

Modes that are contiguous in all arrays are merged. A thread computes a few neighbouring elements: those of arrays in
which they are neighbours too are accessed at once, up to 16 bytes; a repeated element is read once; others are read one
by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64, const_expr, cute, range_constexpr
from ....cute import TensorSSA, arch
from ...dispatch import arrays
from ...parts.vectors import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import ElementwiseConfig


class Operand(NamedTuple):
    """How a thread accesses an array: element type, elements of an access (0: all of a thread's are one), whether they
    are neighbours."""

    dtype: Any
    width: int
    neighbours: bool


class Elementwise:
    """The kernel of a function, for operands of some kinds; the last is written."""

    def __init__(
        self,
        function: Callable[..., Any],
        operands: tuple[Operand, ...],
        modes: int,
        whole: bool,
        wide: bool,
        config: ElementwiseConfig,
    ) -> None:
        self.function = function
        self.operands = operands
        self.modes = modes
        """Modes beside the innermost."""
        self.whole = whole
        """Whether every thread has all its elements."""
        self.index: type[Int64] | type[Int32] = Int64 if wide else Int32
        """The type of element indices."""
        self.config = config

    @cute.jit
    def __call__(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        shape: tuple[Int32 | Int64, ...],
        strides: tuple[tuple[Int64, ...], ...],
        ctas: Int32,
        stream: Int64,
    ):
        pointers = [
            arrays.pointer(place, operand.dtype, operand.width or 1)
            for place, operand in zip(addresses, self.operands, strict=True)
        ]
        self.kernel(pointers, shape, strides).launch(
            grid=(ctas, 1, 1), block=(self.config.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self, pointers: list[cute.Pointer], shape: tuple[Int32 | Int64, ...], strides: tuple[tuple[Int64, ...], ...]
    ):
        """Compute elements; `shape` and `strides` go from the outermost to the innermost mode."""
        elements = self.config.elements
        inner = shape[self.modes]
        number = self.index(arch.block_idx()[0]) * self.config.threads + arch.thread_idx()[0]
        if const_expr(self.modes == 0):
            rest = number
            start = number * elements
        else:
            units = (inner + (elements - 1)) // elements
            rest = number // units
            start = number % units * elements
        coordinates: list[Any] = []
        for mode in range_constexpr(self.modes - 1, -1, -1):
            if const_expr(mode == 0):
                coordinates.insert(0, rest)
            else:
                coordinates.insert(0, rest % shape[mode])
                rest = rest // shape[mode]
        exists = start < inner if const_expr(self.modes == 0) else coordinates[0] < shape[0]
        if exists:
            moved = [
                self.moved(pointer, operand, stride, coordinates, start)
                for pointer, operand, stride in zip(pointers, self.operands, strides, strict=True)
            ]
            if self.whole or start + elements <= inner:
                self.compute(moved, strides, start, inner, True)
            else:
                self.compute(moved, strides, start, inner, False)

    def moved(
        self,
        pointer: cute.Pointer,
        operand: Operand,
        stride: tuple[Int64, ...],
        coordinates: list[Int32] | list[Int64],
        start: Int32 | Int64,
    ) -> cute.Pointer:
        """Return the address of a thread's first element of an array."""
        offset = Int64(0)
        for coordinate, step in zip(coordinates, stride, strict=False):
            offset = offset + coordinate * step
        if operand.width:
            offset = offset + (start if operand.neighbours else start * stride[self.modes])
        return pointer + cute.assume(offset, divby=operand.width) if operand.width > 1 else pointer + offset

    @cute.jit
    def compute(
        self,
        pointers: list[cute.Pointer],
        strides: tuple[tuple[Int64, ...], ...],
        start: Int32 | Int64,
        inner: Int32 | Int64,
        full: bool,
    ):
        """Compute all elements of a thread, or those before the end."""
        elements = self.config.elements
        values = []
        for k in range_constexpr(len(self.operands) - 1):
            operand = self.operands[k]
            held = cute.make_rmem_tensor((elements,), operand.dtype)
            if const_expr(operand.width == 0):
                held.fill(pointers[k].load())
            elif const_expr(full and operand.neighbours):
                for part in range_constexpr(elements // operand.width):
                    source = cute.make_tensor(pointers[k] + part * operand.width, cute.make_layout(operand.width))
                    cute.autovec_copy(source, cute.local_tile(held, (operand.width,), (part,)))
            else:
                # behind the end stands the first element: the function sees no element that does not exist
                held.fill(pointers[k].load())
                for i in range_constexpr(elements):
                    if full or start + i < inner:
                        held[i] = (pointers[k] + self.place(operand, strides[k], i)).load()
            values.append(held.load())
        operand = self.operands[-1]
        pointer = pointers[-1]
        results = rounded(self.result(values), operand.dtype)
        if const_expr(full and operand.neighbours):
            for part in range_constexpr(elements // operand.width):
                target = cute.make_tensor(pointer + part * operand.width, cute.make_layout(operand.width))
                cute.autovec_copy(cute.local_tile(results, (operand.width,), (part,)), target)
        else:
            for i in range_constexpr(elements):
                if full or start + i < inner:
                    (pointer + self.place(operand, strides[-1], i)).store(results[i])

    def place(self, operand: Operand, stride: tuple[Int64, ...], i: int) -> Int64 | int:
        """Return the offset of a thread's element `i` from its first."""
        return i if operand.neighbours else stride[self.modes] * i

    def result(self, values: list[cute.TensorSSA]) -> cute.TensorSSA:
        """Return the function's results for some elements."""
        result = self.function(*values)
        if isinstance(result, TensorSSA):
            return result
        return cute.full((self.config.elements,), result, self.operands[-1].dtype)
