"""Attention of the kernel library: keys and values in two buffers each, filled by `cp.async` while the others are used; and keys
cut into parts, which a second kernel puts together."""

import numpy as np

LIBRARY = ("impl.attention.fwd.sm80", "impl.attention.fwd.sm80_epilogue", "impl.attention.fwd.combine")


def run(kernels):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, n, 1, 32)).astype(np.float16) for n in (40, 72, 72))
    config = kernels.Sm80AttentionConfig(32, 32, 2, 1)
    a, b, c = (x[0, :, 0].astype(np.float64) for x in (q, k, v))
    p = np.exp(a @ b.T / 32**0.5)
    wanted = p / p.sum(1, keepdims=True) @ c
    got = kernels.flash_attention(q, k, v, config=config)
    right = np.abs(got[0, :, 0] - wanted).max() < 0.02
    # as the heads of few queries, which share keys
    heads = q[:, :8].swapaxes(1, 2)
    config = kernels.Sm80AttentionConfig(32, 32, 2, 1, num_splits=2, pack_gqa=True)
    parts = kernels.flash_attention(heads, k, v, config=config)
    right = right and np.abs(parts[0, 0] - wanted[:8]).max() < 0.02
    # the first queries see none of these keys
    last = kernels.flash_attention(q, k[:, :1], v[:, :1], causal=True, config=kernels.Sm80AttentionConfig(32, 32, 2, 1))
    return right and not last[0, :39].any() and np.abs(last[0, 39, 0] - c[0]).max() < 0.02
