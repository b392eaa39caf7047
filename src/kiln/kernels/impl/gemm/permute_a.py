"""A kernel that permutes K of A as the warpgroups of a mixed-input GEMM have the elements of B."""

from __future__ import annotations

from typing import Any

from .... import Int32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...dispatch import devices
from ...parts.tensor_views import permuted

_THREADS = 128
_LANES = 4
"""Lanes that share a row of B: each has a quarter of a stage, words in succession."""


class PermuteA:
    """Permutes K of A (L, M, K), of 16 bits, for stages with `words` words of B to a lane, of `word_k` elements each.

    Elements n and n + word_k / 2 of a word are a pair.

    A thread has a word of all lanes: it writes 4 lanes of the first pair, 4 of the second, ...
    """

    def __init__(self, dtype: Any, words: int, word_k: int) -> None:
        self.dtype = dtype
        self.words = words
        self.word_k = word_k

    @cute.jit
    def __call__(self, a: cute.Tensor, out: cute.Tensor, rest: Any, stream: Int64):
        """Launch the kernel; K is a multiple of a stage."""
        batches, rows, k = a.shape
        a, out = (permuted(x, None, 8) for x in (a, out))  # rows begin at multiples of 16 bytes
        self.kernel(a, out).launch(
            grid=(batches * rows, cute.ceil_div(k, _THREADS * _LANES * self.word_k), 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    @cute.kernel
    def kernel(self, a: cute.Tensor, out: cute.Tensor):
        words = self.words
        word_k = self.word_k
        half = self.word_k // 2
        row, block, _ = arch.block_idx()
        batch = row // a.shape[1]
        row = row % a.shape[1]
        number = block * _THREADS + arch.thread_idx()[0]
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()  # the kernel before has ended: the GEMM may load B
        if number * (_LANES * word_k) < a.shape[2]:
            stage = number // words * (words * _LANES * word_k)
            word = number % words * word_k
            loaded = cute.make_rmem_tensor((word_k, _LANES), self.dtype)
            paired = cute.make_rmem_tensor((2, _LANES, half), self.dtype)
            source = cute.make_tensor(
                a[batch, row, None].iterator + cute.assume(Int32(stage + word), divby=word_k),
                cute.make_layout((word_k, _LANES), stride=(1, words * word_k)),
            )
            target = cute.make_tensor(
                out[batch, row, None].iterator + cute.assume(Int32(stage + word * _LANES), divby=8),
                cute.make_layout((2 * _LANES, half)),
            )
            load, store = (
                cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=16 * n) for n in (word_k, 8)
            )
            for lane in range_constexpr(_LANES):
                cute.copy(load, source[None, lane], loaded[None, lane])
            for pair in range_constexpr(half):
                for lane in range_constexpr(_LANES):
                    for side in range_constexpr(2):
                        paired[side, lane, pair] = loaded[pair + half * side, lane]
            for pair in range_constexpr(half):
                both = cute.make_tensor(paired[None, None, pair].iterator, cute.make_layout((2 * _LANES,)))
                cute.copy(store, both, target[None, pair])
