"""Products of a few rows with weights of 8 or 4 bits, by `mma.sync`: weights stream through shared memory as they are, and are made f16 or bf16 in registers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ....cute.nvgpu import warp
from .mixed_input_fragments import ActivationFragments, GroupScales, WeightFragments, factor_rows
from .operand_copies import Int4OperandCopy, OperandCopy
from .sm80_epilogue import Sm80Epilogue
from .sm80_mainloop import MultistageGemmKernel

if TYPE_CHECKING:
    from .problem import Operand


class Sm80MixedInputGemmKernel(MultistageGemmKernel):
    """The kernel for weights of some kind: `packed` two in a byte; `group`: K of those that have a factor in common, 0: none."""

    swapped = True

    def __init__(self, *given: Any, packed: bool, group: int) -> None:
        super().__init__(*given)
        self.packed = packed
        self.group = group

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, d: Any, factors: Any, extras: Any, divisors: Any, alpha: Float32, beta: Float32,
    ):  # fmt: skip
        self.compute(a, b, d, factors, extras, divisors, alpha, beta)

    def smem_bytes(self) -> int:
        return smem_bytes(self.config, self.packed, self.group)

    def factors(self, given: Any) -> tuple[Any, Any]:
        return ([self.arranged(given[0], [2, 1, 0], 1)], given[1:]) if self.group else ([], given)

    def group_sums(self, part: Any, acc: Any, factors: Any, memory: Any, where: Any, thread: Any) -> Any:
        if not self.group:
            return None
        sums = GroupScales(self.group, self.config)
        sums.start(part, self.tile_mn(), factors[0], acc, memory, where, thread)
        return sums

    def fragments(self, side: int) -> Any:
        if side:
            return WeightFragments(self.b, self.config, self.packed, self.a.dtype)
        return ActivationFragments(self.a, self.config, self.packed)

    def mma(self, fragments: Any, half: bool) -> Any:
        return cute.make_tiled_mma(
            warp.MmaF16BF16Op(self.a.dtype, Float32, (16, 8, 16)), (self.config.warp_layout_mn[1], 1, 1)
        )

    def feed(self, operand: Operand, rows: int) -> OperandCopy:
        depth, threads = self.config.tile_shape_mnk[2], self.config.threads
        kind = OperandCopy
        if operand is self.b and self.packed:
            kind, depth = Int4OperandCopy, depth // 2
        return kind(operand, operand.width, rows, depth, threads, math.gcd(depth // operand.width, threads))


class Sm80MixedInputEpilogue(Sm80Epilogue):
    """The same for sums whose rows are columns of the result."""

    def write(self, *given: Any) -> None:
        part, thread, rank, acc, memory, d, rest, where = given
        self.write_combined(part, thread, rank, acc, memory, d, *rest, where)

    def slots(self, part: Any, staged: Any) -> Any:
        return part.partition_C(cute.select(staged, mode=[1, 0]))


def smem_bytes(config: Any, packed: bool, group: int) -> int:
    """Of the rings of operands and of factors of groups, or of the sums of a tile after them."""
    m, n, k = config.tile_shape_mnk
    factors = 4 * factor_rows(config) * (k // min(k, group)) if group else 0
    return max(((4 * m + (1 if packed else 2) * n) * k // 2 + factors) * config.stages, 4 * m * n)
