"""The second half of a product whose K is cut among blocks: their sums are added, in order, and combined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32, Int64, const_expr, cute, range_constexpr, select_
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from .. import devices

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = 128
_TOGETHER = 8
"""Parts that are loaded before the first is added."""


class SplitSum:
    """Each D = a value of combine(the sum over S of parts (S, M, N)), `width` neighbours in N to a thread."""

    def __init__(self, out_types: tuple[Any, ...], width: int, combine: Callable[..., Any]) -> None:
        self.out_types = out_types
        self.width = width
        self.combine = combine

    @cute.jit
    def __call__(self, parts: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch it for parts (S, M, N), each D and other tensors (1, M, N)."""
        more = len(self.out_types) - 1
        extras = rest[more:]
        parts, d = self.aligned(parts), [self.aligned(x) for x in (d, *rest[:more])]
        pieces = d[0].shape[2] // self.width * d[0].shape[1]
        self.kernel(parts, d, extras, alpha, beta).launch(
            grid=(cute.ceil_div(pieces, _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    def aligned(self, x: Any) -> Any:
        """A tensor whose rows begin at a multiple of the width of an access."""
        stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=self.width) for s in x.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=stride))

    @cute.kernel
    def kernel(self, parts: cute.Tensor, d: Any, extras: Any, alpha: Float32, beta: Float32):
        width = self.width
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        piece = arch.block_idx()[0] * _THREADS + arch.thread_idx()[0]
        _, rows, columns = d[0].shape
        in_row = columns // width
        row, place = piece // in_row, piece % in_row
        if row < rows:
            total = cute.make_rmem_tensor((width,), Float32)
            held = cute.make_rmem_tensor((width, _TOGETHER), Float32)
            total.fill(0.0)
            load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * width)
            count = parts.shape[0]
            for first in range(0, count, _TOGETHER):
                for i in range_constexpr(_TOGETHER):
                    part = parts[min(first + i, count - 1), row, None]
                    cute.copy(load, cute.logical_divide(part, width)[None, place], held[None, i])
                for i in range_constexpr(_TOGETHER):
                    for j in range_constexpr(width):
                        total[j] = total[j] + select_(first + i < count, held[j, i], Float32(0.0))
            others = []
            for x in extras:
                other = cute.make_rmem_tensor((width,), x.element_type)
                for i in range_constexpr(width):
                    other[i] = x[0, row, place * width + i]
                others.append(other.load())
            for value, kind, x in zip(self.combine(total.load(), alpha, beta, *others), self.out_types, d):
                result = cute.make_rmem_tensor((width,), kind)
                result.store(value.to(kind))
                store = cute.make_copy_atom(CopyUniversalOp(), kind, num_bits_per_copy=width * kind.width)
                cute.copy(store, result, cute.logical_divide(x[0, row, None], width)[None, place])
