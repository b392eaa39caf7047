"""Kiln's kernels beside PyTorch's, on one GPU, on the same standard-normal data, in one run.

    python benchmarks/kernels.py

Times are of the device alone (`kiln.measure`). Results are compared with PyTorch's before they are timed. Memory-bound
kernels: `memory_bound.py`; GEMM: `gemm.py`; attention: `attention.py`.
"""

from __future__ import annotations

import attention
import gemm
import memory_bound
import torch

if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    torch.manual_seed(0)
    memory_bound.main([])
    gemm.main()
    attention.main()
