"""GEMMs of the sm_80 kernel with an fp8 KV cache: K and V are converted to f16 between smem and the tensor cores.

ldmatrix takes pairs of 8-bit elements as one 16-bit element. A word of K then has four adjacent elements of one key,
where an MMA wants two and, eight further on, two more. Which elements those are does not matter as long as Q has the
same ones there, so Q is permuted once. A word of V has two columns of two keys: even and odd columns go to MMAs of
their own, so that a thread holds four adjacent columns of O (`QueryTile.adjacent_columns`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..... import Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from ....parts.fp8 import widened
from .sm80_mma import Sm80Mma, flat8

if TYPE_CHECKING:
    from .sm80 import Sm80ForwardKernel

_EVEN_BYTES_FIRST = 0x3120
"""The `prmt` selector that puts a word's even bytes first."""
_F16_MAX = 65504.0


@cute.jit
def load_q_as_f16(tile: Sm80ForwardKernel, source: cute.Tensor, smem_q: cute.Tensor, m_tile: Int32, rows: Int32):
    """Write a tile of Q to smem as f16, permuted, with zeros after the last row. bf16 beyond the range of f16 is
    clamped."""
    thread = arch.thread_idx()[0]
    threads = tile.config.threads
    tile_m = tile.config.tile_m
    words = tile.q_columns // 4
    smem_words = cute.recast_tensor(smem_q, Int32)
    is_16bit = tile.q_dtype.width == 16
    fragment = cute.make_rmem_tensor((4 if is_16bit else 2,), source.element_type)
    load = cute.make_copy_atom(CopyUniversalOp(), source.element_type, num_bits_per_copy=4 * tile.q_dtype.width)
    for i in range_constexpr(-(-tile_m * words // threads)):
        number = thread + i * threads
        row = number // words
        word = number % words
        if number < tile_m * words:
            fragment.fill(0)
            if (m_tile * tile_m + row < rows) & (2 * word < tile.dim):
                start = cute.domain_offset((m_tile * tile_m + row, cute.size(fragment) * word), source).iterator
                start = start.with_alignment(tile.q_dtype.width // 2)
                cute.copy(load, cute.make_tensor(start, fragment.layout), fragment)
            column = word // 4 * 8 + word % 4
            if const_expr(is_16bit):
                rounded = cute.make_rmem_tensor((4,), tile.dtype)
                for j in range_constexpr(4):
                    value = arch.fmin(Float32(fragment[j]), _F16_MAX, nan=True)
                    rounded[j] = arch.fmax(value, -_F16_MAX, nan=True).to(tile.dtype)
                pair = cute.recast_tensor(rounded, Int32)
                smem_words[row, column] = pair[0]
                smem_words[row, column + 4] = pair[1]
            else:
                word_pair = widened(cute.recast_tensor(fragment, Int32)[0], tile.kv_dtype)
                smem_words[row, column], smem_words[row, column + 4] = word_pair


class Fp8KvMma(Sm80Mma):
    """The two GEMMs with fp8 K and V: four matrices that are loaded at once are operands of twice as many MMAs."""

    def __init__(self, tile: Sm80ForwardKernel, *smem: Int32 | cute.Tensor) -> None:
        super().__init__(tile, *smem)
        self.kv_dtype: type[cute.Numeric] = tile.kv_dtype

    def widen(self, fragment: cute.Tensor, is_v: bool) -> list[cute.Tensor]:
        """Return four B operands: of K by (half of the keys, half of the elements), of V by (half of the columns,
        parity)."""
        wide = cute.make_rmem_tensor((4, 4), self.dtype)
        to = cute.recast_tensor(cute.make_tensor(wide.iterator, cute.make_layout(16)), Int32)
        words = cute.recast_tensor(flat8(fragment), Int32)
        for n in range(4):
            if is_v:
                half = n // 2
                key = n % 2
                converted = widened(arch.prmt(words[n], 0, _EVEN_BYTES_FIRST), self.kv_dtype)
                to[4 * half + key], to[4 * half + 2 + key] = converted
            else:
                to[2 * n], to[2 * n + 1] = widened(words[n], self.kv_dtype)
        return [wide[None, n] for n in range(4)]

    def load_q(self, k: int) -> None:
        for m in range(self.m_tiles):
            for half in range(2):
                cute.copy(self.load, self.q_matrix(m, 2 * k + half), self.q[None, m, 2 * k + half])

    def multiply_k(self, k: int, n: int) -> None:
        operands = self.widen(self.k[None, None, n, k], False)
        for part in range(2):
            for half in range(2):
                for m in range(self.m_tiles):
                    acc = self.acc_s[None, m, 2 * n + half]
                    if k == part == 0:
                        acc.fill(0.0)
                    cute.mma_atom_call(self.mma, acc, self.q[None, m, 2 * k + part], operands[2 * half + part], acc)

    def multiply_v(self, k: int, n: int) -> None:
        for number, operand in enumerate(self.widen(self.v[None, None, n, k], True)):
            for m in range(self.m_tiles):
                acc = self.acc_o[None, m, 4 * n + number]
                cute.mma_atom_call(self.mma, acc, self.p[None, m, k], operand, acc)
