"""Kiln's kernels beside PyTorch's, on one GPU, on the same standard-normal data, in one run.

    python benchmarks/kernels.py

Times are of the device alone: several calls are recorded in a CUDA graph, which is replayed; the least of five replays
counts. Results are compared with PyTorch's before they are timed. Memory-bound kernels: `memory_bound.py`; matrix products: `products.py`. Attention uses `mma.sync`,
which every GPU since sm_80 has, beside PyTorch's FlashAttention-2, which uses the same instructions, and cuDNN, which does not.
"""

from __future__ import annotations

import memory_bound
import products
import torch
from device_time import device_us, refuse_constants

from kiln import kernels

ATTENTION = (
    (4, 8192, 16, 16, 128, torch.bfloat16, True),
    (4, 8192, 16, 16, 128, torch.bfloat16, False),
    (4, 8192, 16, 16, 128, torch.float16, True),
    (16, 1024, 16, 16, 128, torch.bfloat16, True),
    (4, 4096, 32, 8, 64, torch.bfloat16, True),
    (4, 4096, 16, 16, 96, torch.bfloat16, True),
    (4, 4096, 16, 16, 192, torch.bfloat16, True),
    (2, 4096, 16, 16, 256, torch.bfloat16, True),
)
"""Batch, length, heads, heads of keys, D, elements, whether causal."""


def attention() -> None:
    """Attention, forward. Products that are not hidden count."""
    print(
        "\n| batch | length | heads | D | type | | FlashAttention-2 us | cuDNN us | Kiln us | Kiln TFLOP/s |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    for batch, length, heads, heads_k, dim, dtype, causal in ATTENTION:
        q, k, v = (torch.randn(batch, length, h, dim, device="cuda", dtype=dtype) for h in (heads, heads_k, heads_k))
        refuse_constants(q, k, v)
        out = torch.empty_like(q)
        ours = lambda q=q, k=k, v=v, out=out, causal=causal: kernels.flash_attention(q, k, v, causal=causal, out=out)
        turned = [x.transpose(1, 2) for x in (q, k, v)]
        theirs = lambda turned=turned, causal=causal, shared=heads != heads_k: (
            torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=causal, enable_gqa=shared)
        )
        times = []
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel([backend]):
                try:
                    torch.testing.assert_close(ours(), theirs().transpose(1, 2), rtol=2e-2, atol=2e-2)
                    times.append(f"{device_us(theirs, 5, 5):.0f}")
                except RuntimeError:  # it does not take such heads
                    times.append("-")
        us = device_us(ours, 5, 5)
        work = 4 * batch * heads * length * length * dim / (2 if causal else 1)
        print(
            f"| {batch} | {length} | {heads}/{heads_k} | {dim} | {str(dtype)[6:]} | {'causal' if causal else 'full'} | "
            f"{times[0]} | {times[1]} | {us:.0f} | {work / us / 1e6:.0f} |"
        )


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    torch.manual_seed(0)
    memory_bound.main([])
    products.main()
    attention()
