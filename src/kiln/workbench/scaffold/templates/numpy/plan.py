from dataclasses import dataclass

import numpy as np

from kiln import workbench as wb

from ..plan import RowTiling, launch, my_kernel


@dataclass
class MyKernel(wb.KernelPlan):
    m: int = 4096
    n: int = 4096
    dtype: str = "float16"

    tiling = RowTiling(8)

    def prepare_inputs(self):
        return [np.random.standard_normal((self.m, self.n)).astype(self.dtype)]

    def reference_fn(self, x):
        return x.sum(axis=1, dtype=np.result_type(x, np.float32))

    def _autotune_configs(self):
        return [RowTiling(warps) for warps in (4, 8, 16)]

    def _algorithmic_flops_bytes(self):
        return self.m * self.n, self.m * self.n * np.dtype(self.dtype).itemsize + 4 * self.m

    def plan(self, x):
        y = np.empty(x.shape[0], np.float32)
        return wb.CuteKernel(
            kernel_fn=my_kernel,
            launch_fn=lambda tiling: launch(x, y, tiling.num_warps),
            input_tensors=[x],
            output_tensors=[y],
            tiling=self.tiling,
            autotune_configs=self._autotune_configs(),
            algorithmic_flops_bytes_fn=self._algorithmic_flops_bytes,
        )
