"""Rows of A with K of each stage in the order in which warp groups have weights of it."""

from __future__ import annotations

from typing import Any

from .... import Int32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...dispatch import devices

_THREADS = 128
_LANES = 4
"""That share a row of weights: each has a quarter of a stage, words in succession."""


class PermuteA:
    """Copies (L, M, K) of 16 bits for stages of `words` words to a lane, each of so many `weights`, of which number n and number n + half are a pair.

    A word of all lanes is one thread's: what it writes is 4 lanes of the first pair, 4 of the second, ...
    """

    def __init__(self, dtype: Any, words: int, weights: int) -> None:
        self.dtype = dtype
        self.words = words
        self.weights = weights

    @cute.jit
    def __call__(self, a: cute.Tensor, laid: cute.Tensor, rest: Any, stream: Int64):
        """Launch it; K is a multiple of a stage."""
        batches, rows, k = a.shape
        a, laid = (self.aligned(x) for x in (a, laid))
        self.kernel(a, laid).launch(
            grid=(batches * rows, cute.ceil_div(k, _THREADS * _LANES * self.weights), 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    def aligned(self, x: Any) -> Any:
        """A tensor whose rows begin at multiples of 16 bytes."""
        stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=8) for s in x.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=stride))

    @cute.kernel
    def kernel(self, a: cute.Tensor, laid: cute.Tensor):
        words, weights, half = self.words, self.weights, self.weights // 2
        row, block, _ = arch.block_idx()
        batch, row = row // a.shape[1], row % a.shape[1]
        number = block * _THREADS + arch.thread_idx()[0]
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()  # what is before has ended: the product may load weights
        if number * (_LANES * weights) < a.shape[2]:
            stage, word = number // words * (words * _LANES * weights), number % words * weights
            given = cute.make_rmem_tensor((weights, _LANES), self.dtype)
            made = cute.make_rmem_tensor((2, _LANES, half), self.dtype)
            source = cute.make_tensor(
                a[batch, row, None].iterator + cute.assume(Int32(stage + word), divby=weights),
                cute.make_layout((weights, _LANES), stride=(1, words * weights)),
            )
            target = cute.make_tensor(
                laid[batch, row, None].iterator + cute.assume(Int32(stage + word * _LANES), divby=8),
                cute.make_layout((2 * _LANES, half)),
            )
            load, store = (
                cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=16 * n) for n in (weights, 8)
            )
            for lane in range_constexpr(_LANES):
                cute.copy(load, source[None, lane], given[None, lane])
            for pair in range_constexpr(half):
                for lane in range_constexpr(_LANES):
                    for which in range_constexpr(2):
                        made[which, lane, pair] = given[pair + half * which, lane]
            for pair in range_constexpr(half):
                out = cute.make_tensor(made[None, None, pair].iterator, cute.make_layout((2 * _LANES,)))
                cute.copy(store, out, target[None, pair])
