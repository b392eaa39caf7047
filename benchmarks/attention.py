"""Attention forward beside PyTorch's FlashAttention-2 and cuDNN: prefill, bound by tensor cores, and decode, bound by
memory.

    python benchmarks/attention.py [--save]

FlashAttention-2 uses `mma.sync`, which every GPU since sm_80 has, and so does Kiln's decode kernel; cuDNN and Kiln's
prefill kernel use WGMMA on Hopper (`attention_hopper.py` has more shapes). TFLOP/s count the scores that the mask
leaves, TB/s the bytes of K and V, read once. `kernels.py` says how calls are timed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from normal_data import refuse_constants
from results import Page, Table

from kiln import kernels, measure

if TYPE_CHECKING:
    from collections.abc import Callable

PREFILL = (
    (4, 8192, 16, 16, 128, torch.bfloat16, True),
    (4, 8192, 16, 16, 128, torch.bfloat16, False),
    (4, 8192, 16, 16, 128, torch.float16, True),
    (16, 1024, 16, 16, 128, torch.bfloat16, True),
    (4, 4096, 32, 8, 64, torch.bfloat16, True),
    (4, 4096, 16, 16, 96, torch.bfloat16, True),
    (4, 4096, 16, 16, 192, torch.bfloat16, True),
    (2, 4096, 16, 16, 256, torch.bfloat16, True),
)
"""Batch, seqlen, query heads, KV heads, head_dim, dtype, whether causal."""

DECODE = (
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
"""Batch, seqlen_q, seqlen_k."""

PREFILL_TABLE = Table(
    "Prefill",
    (
        "batch",
        "seqlen",
        "heads Q/KV",
        "head_dim",
        "dtype",
        "mask",
        "FlashAttention-2 us",
        "cuDNN us",
        "Kiln us",
        "Kiln TFLOP/s",
    ),
)
DECODE_TABLE = Table(
    "Decode, 32 query heads, 8 KV heads, head_dim 128, bfloat16",
    (
        "batch",
        "seqlen_q",
        "seqlen_k",
        "FlashAttention-2 us",
        "FlashAttention-2, packed GQA us",
        "cuDNN us",
        "Kiln us",
        "Kiln TB/s",
    ),
)
PAGE = Page(__file__, "Attention forward", PREFILL_TABLE, DECODE_TABLE)


def sdpa(q: Any, k: Any, v: Any, causal: bool) -> Callable[[], torch.Tensor]:
    """Return PyTorch's attention of tensors (batch, seqlen, heads, head_dim)."""
    transposed = [x.transpose(1, 2) for x in (q, k, v)]
    gqa = q.shape[2] != k.shape[2]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*transposed, is_causal=causal, enable_gqa=gqa)


def beside(ours: torch.Tensor, theirs: Callable[[], torch.Tensor], backends: list[Any]) -> list[float | None]:
    """Return microseconds of PyTorch's backends, None for one that refuses; their results are compared with ours."""
    from torch.nn.attention import sdpa_kernel  # pyright: ignore[reportMissingImports]

    times: list[float | None] = []
    for backend in backends:
        with sdpa_kernel([backend]):
            try:
                wanted = theirs().transpose(1, 2)
                us = device_us(theirs)
            except RuntimeError:  # this backend lacks the head_dim
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
    """Return microseconds of a call with a cold L2 cache."""
    return measure.measure(call, effort=measure.QUICK).us


def prefill() -> None:
    """Measure prefill."""
    from torch.nn.attention import SDPBackend  # pyright: ignore[reportMissingImports]

    for batch, length, heads, heads_k, dim, dtype, causal in PREFILL:
        q, k, v = (normal(batch, length, h, dim, dtype=dtype) for h in (heads, heads_k, heads_k))
        out = torch.empty_like(q)
        ours = functools.partial(kernels.flash_attention, q, k, v, causal=causal, out=out)
        times = beside(ours(), sdpa(q, k, v, causal), [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])
        us = device_us(ours)
        work = 4 * batch * heads * length * length * dim / (2 if causal else 1)
        PREFILL_TABLE.add(
            batch,
            length,
            f"{heads}/{heads_k}",
            dim,
            str(dtype)[6:],
            "causal" if causal else "full",
            *map(shown, times),
            f"{us:.0f}",
            f"{work / us / 1e6:.0f}",
        )


def decode() -> None:
    """Measure decode with a cold L2 cache; by hand, the query heads of a KV head are packed into rows of Q."""
    from torch.nn.attention import SDPBackend  # pyright: ignore[reportMissingImports]

    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    for batch, queries, keys in DECODE:
        size = 2 * 2 * batch * keys * 8 * 128
        q, k, v = normal(batch, queries, 32, 128), normal(batch, keys, 8, 128), normal(batch, keys, 8, 128)
        packed = q.view(batch, queries, 8, 4, 128).transpose(2, 3).reshape(batch, 4 * queries, 8, 128)
        out = torch.empty_like(q)

        ours = functools.partial(kernels.flash_attention, q, k, v, out=out)
        wanted = kernels.flash_attention(q, k, v)
        packed_out = wanted.view(batch, queries, 8, 4, 128).transpose(2, 3).reshape(packed.shape)
        separate = beside(wanted, sdpa(q, k, v, False), backends)
        by_hand = beside(packed_out, sdpa(packed, k, v, False), backends[:1])
        times = [separate[0], by_hand[0], separate[1]]
        us = device_us(ours)
        DECODE_TABLE.add(batch, queries, keys, *map(shown, times), shown(us), f"{size / us / 1e6:.2f}")


def main() -> None:
    """Measure both tables."""
    prefill()
    decode()
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    main()
