"""my_kernel: the sum of each row of a matrix, as a plan whose fields are the problem.

kiln verify kernel.py            check it against reference_fn
kiln bench kernel.py             time it beside the baselines
kiln tune kernel.py              choose among its tilings

Next: add a tiling to _autotune_configs and tune again.
"""

from dataclasses import dataclass

import kiln
import torch
from kiln import cute
from kiln import workbench as wb


@dataclass(frozen=True)
class RowTiling(wb.Tiling):
    """How many warps share a row."""

    num_warps: int

    def validate(self, pd):
        return self.fits(smem=4 * self.num_warps)


@cute.kernel
def my_kernel(x: cute.Tensor, y: cute.Tensor, warps: kiln.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    partial = cute.make_tensor(cute.arch.alloc_smem(kiln.Float32, warps), cute.make_layout(warps))

    total = kiln.Float32(0)
    for column in range(thread, x.shape[1], 32 * warps):
        total += x[row, column].to(kiln.Float32)
    total = cute.arch.warp_reduction_sum(total)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        for warp in kiln.range_constexpr(1, warps):
            total += partial[warp]
        y[row] = total


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, warps: kiln.Constexpr):
    my_kernel(x, y, warps).launch(grid=x.shape[0], block=32 * warps)


@dataclass
class MyKernel(wb.KernelPlan):
    m: int = 4096
    n: int = 4096
    dtype: str = "float16"

    tiling = RowTiling(8)

    def prepare_inputs(self):
        return [torch.randn(self.m, self.n, dtype=getattr(torch, self.dtype), device="cuda")]

    def reference_fn(self, x):
        return x.float().sum(dim=1)

    def _autotune_configs(self):
        return [RowTiling(warps) for warps in (4, 8, 16)]

    def _algorithmic_flops_bytes(self):
        return self.m * self.n, self.m * self.n * getattr(torch, self.dtype).itemsize + 4 * self.m

    def plan(self, x):
        y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        return wb.CuteKernel(
            kernel_fn=my_kernel,
            launch_fn=lambda tiling: launch(x, y, tiling.num_warps),
            input_tensors=[x],
            output_tensors=[y],
            tiling=self.tiling,
            autotune_configs=self._autotune_configs(),
            algorithmic_flops_bytes_fn=self._algorithmic_flops_bytes,
        )
