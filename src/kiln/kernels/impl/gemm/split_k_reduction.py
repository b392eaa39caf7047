"""The second half of a product whose K is cut among blocks: their sums are added, in order, and combined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...dispatch import devices

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = 128
_TOGETHER = (8, 16)
"""Parts that are loaded before the first is added: the least that has all, or the most."""
_BLOCKS = 4
"""Of a multiprocessor. Left to itself the compiler wants as many as can be, and has registers for two loads at a time; blocks that also leave the L1 cache as
it is (one of them, or shared memory preferred) gather on the few multiprocessors that the kernel before leaves free, and add there."""


def together(count: int) -> int:
    """How many of so many parts are loaded at a time."""
    return next((few for few in _TOGETHER if count <= few), _TOGETHER[-1])


class SplitKReduction:
    """Each D = a value of combine(the sum over S of parts (S, M, N)), `width` neighbours in N to a thread, which loads so many parts
    `together`. Rows of parts have no gaps."""

    def __init__(self, out_types: tuple[Any, ...], width: int, together: int, combine: Callable[..., Any]) -> None:
        self.out_types = out_types
        self.width = width
        self.together = together
        self.combine = combine

    @cute.jit
    def __call__(self, parts: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch it for parts (S, M, N), each D and other tensors (1, M, N)."""
        more = len(self.out_types) - 1
        extras = rest[more:]
        parts, d = self.aligned(parts), [self.aligned(x) for x in (d, *rest[:more])]
        in_row = d[0].shape[2] // self.width
        self.kernel(parts, d, extras, alpha, beta, cute.fast_divmod_create_divisor(max(in_row, 1))).launch(
            grid=(cute.ceil_div(in_row * d[0].shape[1], _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=_BLOCKS,
            use_pdl=devices.current().overlaps,
        )

    def aligned(self, x: Any) -> Any:
        """A tensor whose rows begin at a multiple of the width of an access."""
        stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=self.width) for s in x.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=stride))

    @cute.kernel
    def kernel(self, parts: cute.Tensor, d: Any, extras: Any, alpha: Float32, beta: Float32, in_row: Any):
        width, together = self.width, self.together
        piece = arch.block_idx()[0] * _THREADS + arch.thread_idx()[0]
        count, rows, columns = parts.shape
        # Nothing is divided before the first load: rows lie side by side.
        of_parts = cute.make_layout((width, count), stride=(1, parts.stride[0]))
        own = cute.make_tensor(parts.iterator + Int64(piece) * width, of_parts)
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        if piece < columns // width * rows:
            total = cute.make_rmem_tensor((width,), Float32)
            held = cute.make_rmem_tensor((width, together), Float32)
            total.fill(0.0)
            load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * width)
            for first in range(0, count, together):
                held.fill(0.0)
                for i in range_constexpr(together):
                    cute.copy(load, own[None, first + i], held[None, i], pred=first + i < count)
                for i in range_constexpr(together):
                    for j in range_constexpr(width):
                        total[j] = total[j] + held[j, i]
            row, place = divmod(piece, in_row)
            others = []
            for x in extras:
                other = cute.make_rmem_tensor((width,), x.element_type)
                for i in range_constexpr(width):
                    other[i] = x[0, row, place * width + i]
                others.append(other.load())
            for value, kind, x in zip(self.combine(total.load(), alpha, beta, *others), self.out_types, d):
                result = cute.make_rmem_tensor((width,), kind)
                result.store(value.to(kind))
                store = cute.make_copy_atom(CopyUniversalOp(), kind, num_bits_per_copy=width * max(8, kind.width))
                cute.copy(store, result, cute.logical_divide(x[0, row, None], width)[None, place])
