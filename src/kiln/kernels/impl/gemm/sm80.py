"""Products on the tensor cores every GPU since sm_80 has (`mma.sync`).

Shared memory is swizzled, so that neither the copies in nor the loads out hit a bank twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float16, Float32, Int32, cute
from ....cute.nvgpu import warp
from .operand_copies import OperandCopy
from .operand_fragments import OperandFragments
from .problem import FLOATS8
from .sm80_config import k_step
from .sm80_mainloop import MultistageGemmKernel

if TYPE_CHECKING:
    from .problem import Operand


class Sm80GemmKernel(MultistageGemmKernel):
    """The kernel for operands of some kinds; f32 is rounded to TF32."""

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, d: Any, factors: Any, extras: Any, divisors: Any, alpha: Float32, beta: Float32,
    ):  # fmt: skip
        self.compute(a, b, d, factors, extras, divisors, alpha, beta)

    def smem_bytes(self) -> int:
        return self.config.smem_bytes(self.a.dtype.width)

    def fragments(self, side: int) -> OperandFragments:
        return OperandFragments(self.b if side else self.a, side, self.config)

    def mma(self, fragments: Any, half: bool) -> Any:
        dtype = Float16 if half else self.a.dtype
        if dtype in (Float16, BFloat16):
            op: Any = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
        elif dtype is Float32:
            op = warp.MmaTF32Op((16, 8, 8))
        elif dtype in FLOATS8:
            op = warp.MmaFP8Op(dtype, Float32, (16, 8, 32), b_dtype=self.b.dtype)
        else:
            op = warp.MmaI8Op(dtype, self.b.dtype, Int32, (16, 8, 32))
        order = (fragments[0].order(), fragments[1].order(), k_step(dtype))
        return cute.make_tiled_mma(op, (*self.config.warp_layout_mn, 1), order)

    def feed(self, operand: Operand, rows: int) -> OperandCopy:
        """Along the contiguous mode."""
        depth, threads = self.config.tile_shape_mnk[2], self.config.threads
        along = depth if operand.k_major else rows
        return OperandCopy(operand, operand.width, rows, depth, threads, math.gcd(along // operand.width, threads))
