"""A Triton kernel of one tensor, for `gpu_basics.py`. (Triton reads the source of a kernel from its module.)"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _touch(pointer, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(pointer + lane, 0.0, mask=lane > 1000)


def launch(x: torch.Tensor) -> None:
    """One launch."""
    _touch[(1,)](x, BLOCK=32)
