"""Attention, forward, beside PyTorch's: many queries, which take the tensor cores' time, and few, which take the memory's.

    python benchmarks/attention.py

PyTorch's FlashAttention-2 uses `mma.sync`, which every GPU since sm_80 has, and so does Kiln for few queries; cuDNN, and Kiln for many,
use Hopper's own instructions on Hopper (`attention_hopper.py` has more of that).
See `kernels.py` for how it is timed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from normal_data import refuse_constants

from kiln import kernels, measure

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = (
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

FEW = (
    (1, 1, 4096),
    (1, 1, 32768),
    (1, 1, 131072),
    (1, 4, 32768),
    (1, 16, 32768),
    (1, 16, 131072),
    (8, 1, 8192),
    (8, 16, 8192),
    (16, 1, 16384),
    (16, 16, 16384),
    (64, 1, 4096),
    (64, 4, 4096),
    (64, 16, 4096),
)
"""Batch, queries, keys; 32 heads that share 8 of keys, D 128, bf16."""


def sdpa(q: Any, k: Any, v: Any, causal: bool) -> Callable[[], torch.Tensor]:
    """PyTorch's attention of (batch, rows, heads, D)."""
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    shared = q.shape[2] != k.shape[2]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=causal, enable_gqa=shared)


def beside(ours: torch.Tensor, theirs: Callable[[], torch.Tensor], backends: list[Any]) -> list[float | None]:
    """Microseconds of each of PyTorch's ways that takes such arrays; each gives what ours did."""
    from torch.nn.attention import sdpa_kernel  # pyright: ignore[reportMissingImports]

    times: list[float | None] = []
    for backend in backends:
        with sdpa_kernel([backend]):
            try:
                wanted = theirs().transpose(1, 2)
                us = device_us(theirs)
            except RuntimeError:  # it does not take such heads
                times.append(None)
                continue
        torch.testing.assert_close(ours, wanted, rtol=2e-2, atol=2e-2)
        times.append(us)
    return times


def shown(us: float | None) -> str:
    return "-" if us is None else f"{us:.0f}" if us >= 200 else f"{us:.1f}"


def normal(*shape: int, dtype: Any = torch.bfloat16) -> torch.Tensor:
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    refuse_constants(x)
    return x


def device_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call; before each the L2 cache is emptied."""
    return measure.measure(call, effort=measure.QUICK).us


def many_queries() -> None:
    """Products that are not hidden count."""
    from torch.nn.attention import SDPBackend  # pyright: ignore[reportMissingImports]

    print(
        "\n| batch | length | heads | D | type | | FlashAttention-2 us | cuDNN us | Kiln us | Kiln TFLOP/s |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for batch, length, heads, heads_k, dim, dtype, causal in MANY:
        q, k, v = (normal(batch, length, h, dim, dtype=dtype) for h in (heads, heads_k, heads_k))
        out = torch.empty_like(q)
        ours = functools.partial(kernels.flash_attention, q, k, v, causal=causal, out=out)
        times = beside(ours(), sdpa(q, k, v, causal), [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])
        us = device_us(ours)
        work = 4 * batch * heads * length * length * dim / (2 if causal else 1)
        print(
            f"| {batch} | {length} | {heads}/{heads_k} | {dim} | {str(dtype)[6:]} | {'causal' if causal else 'full'} | "
            f"{' | '.join(map(shown, times))} | {us:.0f} | {work / us / 1e6:.0f} |",
            flush=True,
        )


def few_queries() -> None:
    """Keys and values are read once, from memory: the L2 cache is emptied before each call."""
    from torch.nn.attention import SDPBackend  # pyright: ignore[reportMissingImports]

    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    print(
        "\n| batch | queries | keys | FlashAttention-2 us | heads put together by hand us | cuDNN us | Kiln us | Kiln TB/s |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for batch, queries, keys in FEW:
        size = 2 * 2 * batch * keys * 8 * 128
        q, k, v = normal(batch, queries, 32, 128), normal(batch, keys, 8, 128), normal(batch, keys, 8, 128)
        together = q.view(batch, queries, 8, 4, 128).transpose(2, 3).reshape(batch, 4 * queries, 8, 128)
        out = torch.empty_like(q)

        ours = functools.partial(kernels.flash_attention, q, k, v, out=out)
        wanted = kernels.flash_attention(q, k, v)
        turned = wanted.view(batch, queries, 8, 4, 128).transpose(2, 3).reshape(together.shape)
        separate = beside(wanted, sdpa(q, k, v, False), backends)
        by_hand = beside(turned, sdpa(together, k, v, False), backends[:1])
        times = [separate[0], by_hand[0], separate[1]]
        us = device_us(ours)
        print(
            f"| {batch} | {queries} | {keys} | {' | '.join(map(shown, times))} | {shown(us)} | {size / us / 1e6:.2f} |",
            flush=True,
        )


def main() -> None:
    """Both tables."""
    many_queries()
    few_queries()


if __name__ == "__main__":
    main()
