"""A representative set of kernels, checked against references: run under compute-sanitizer by `test_gpu_memcheck.py`."""

from __future__ import annotations

import sys

import test_gpu_launch as launches
import torch

import kiln
import kiln.cute as cute
from kiln import Float32, Int32, kernels


def gemms() -> None:
    for dtype, m, n, k in ((torch.float16, 128, 128, 64), (torch.bfloat16, 77, 130, 45), (torch.float32, 64, 96, 33)):
        a, b = torch.randn(m, k, device="cuda").to(dtype), torch.randn(k, n, device="cuda").to(dtype)
        for left, right in ((a, b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
            torch.testing.assert_close(
                kernels.gemm(left, right).float(), left.float() @ right.float(), rtol=2e-2, atol=2e-1
            )


def rows() -> None:
    for dtype, columns in ((torch.float32, 1000), (torch.float16, 1023), (torch.bfloat16, 4096)):
        x = torch.randn(5, columns, device="cuda").to(dtype)
        weight = torch.randn(columns, device="cuda").to(dtype)
        torch.testing.assert_close(kernels.softmax(x).float(), torch.softmax(x.float(), -1), rtol=2e-2, atol=2e-2)
        wanted = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight.float()
        torch.testing.assert_close(kernels.rms_norm(x, weight).float(), wanted, rtol=2e-2, atol=6e-2)


def shared_memory() -> None:
    launches.test_dynamic_shared_memory_beyond_the_default_limit(12_000)
    launches.test_static_shared_memory_beyond_the_static_limit()
    launches.test_branches_that_share_memory()


def clusters() -> None:
    launches.test_clusters_read_each_others_shared_memory()


@cute.kernel
def overrun(x: cute.Tensor, n: Int32):
    t, _, _ = cute.arch.thread_idx()
    x[t + n] = Float32(1.0)  # the overrun


@cute.jit
def launch_overrun(x: cute.Tensor, n: Int32):
    overrun(x, n).launch(grid=1, block=32)


def beyond() -> None:
    """Writes past the end of an array: for the test that this is found."""
    x = cute.runtime.from_dlpack(torch.zeros(128, device="cuda"))
    compiled = cute.compile(launch_overrun, x, 0, options="--generate-line-info")
    compiled(x, 1 << 28)
    torch.cuda.synchronize()


if __name__ == "__main__":
    with kiln.target("nvidia"):
        for name in sys.argv[1:]:
            globals()[name]()
    torch.cuda.synchronize()
    print("done", *sys.argv[1:])
