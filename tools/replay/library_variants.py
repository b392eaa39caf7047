"""Calls of the library's kernels in their variants: every kernel and every option that changes its code, one case each.

`library_calls` has what users get by default; these are compared between revisions only. They are compiled for GPUs that are not
there and launch nothing, so arrays are as large as a config needs to be chosen, and their contents do not matter.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
from config_names import option, with_config
from library_calls import BF16, E4M3, F16, F32, I8

from kiln import cute, kernels

E5M2, U8 = ml_dtypes.float8_e5m2, np.uint8
_memory = np.zeros(1 << 31, np.uint8)


def array(dtype: Any, *shape: int) -> Any:
    """Return an array; all share their memory, of which no page is ever touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return _memory[:size].view(dtype).reshape(shape)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


# --- attention -------------------------------------------------------------------------------------------------------


def heads(dim: int, count: int = 16, length: int = 1024, batch: int = 4, dtype: Any = BF16) -> Any:
    return array(dtype, batch, length, count, dim)


def forward(dim: int, dim_v: int | None = None, kv_heads: int = 16, dtype: Any = BF16, **options: Any) -> Any:
    k, v = heads(dim, kv_heads, dtype=dtype), heads(dim_v or dim, kv_heads, dtype=dtype)
    return kernels.flash_attention(heads(dim, dtype=dtype), k, v, **options)


def forward_e4m3(dim: int, **options: Any) -> Any:
    scales = {name: array(F32, 4, 16) for name in ("q_descale", "k_descale", "v_descale")}
    return forward(dim, dtype=E4M3, **scales, **options)


def forward_varlen(dim: int, kv_heads: int = 16, **options: Any) -> Any:
    q, k, starts = array(BF16, 4096, 16, dim), array(BF16, 4096, kv_heads, dim), ints(0, 1024, 4096)
    return kernels.flash_attention(q, k, k, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=3072, **options)


def forward_paged(page: int, queries: int = 1024, dtype: Any = BF16, **options: Any) -> Any:
    cache = array(dtype, 8192 // page, page, 4, 128)
    more = {"page_table": np.zeros((4, 2048 // page), np.int32), "seqused_k": ints(*[2048] * 4), **options}
    return kernels.flash_attention(array(dtype, 4, queries, 16, 128), cache, cache, **more)


def backward(dim: int, dim_v: int | None = None, kv_heads: int = 16, dtype: Any = BF16, **options: Any) -> Any:
    dim_v = dim_v or dim
    q, k, v = heads(dim, dtype=dtype), heads(dim, kv_heads, dtype=dtype), heads(dim_v, kv_heads, dtype=dtype)
    out = heads(dim_v, dtype=dtype)
    return kernels.flash_attention_backward(out, q, k, v, out, array(F32, 4, 16, 1024), **options)


def backward_varlen(dim: int, kv_heads: int = 16, **options: Any) -> Any:
    q, k, starts = array(BF16, 4096, 16, dim), array(BF16, 4096, kv_heads, dim), ints(0, 1024, 4096)
    more = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 3072, "max_seqlen_k": 3072, **options}
    return kernels.flash_attention_backward(q, q, k, k, q, array(F32, 16, 4096), **more)


def relative(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + (q - k).to(cute.Float32) * 0.01


def one(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 1.0


def slopes() -> Any:
    return array(F32, 16)


_gradient = ("score_gradient", "score_backward", "score_grad")
FORWARD = {
    **{f"{dim}": lambda dim=dim: forward(dim) for dim in (64, 96, 128, 192, 256)},
    **{f"{dim}, causal": lambda dim=dim: forward(dim, causal=True) for dim in (64, 128, 192, 256)},
    **{
        f"{dim}, GQA, causal, LSE": lambda dim=dim: forward(dim, kv_heads=4, causal=True, return_lse=True)
        for dim in (64, 128, 256)
    },
    "192x128, causal": lambda: forward(192, 128, causal=True),
    "128 f16, causal": lambda: forward(128, dtype=F16, causal=True),
    "128, window and softcap": lambda: forward(128, window=(256, 0), softcap=30.0),
    "256, window and softcap": lambda: forward(256, window=(256, 0), softcap=30.0),
    "128, sinks": lambda: forward(128, causal=True, sinks=array(F32, 16)),
    "128, ALiBi": lambda: forward(128, causal=True, alibi_slopes=slopes()),
    "128, score function": lambda: forward(128, score=relative, causal=True),
    "256, score function": lambda: forward(256, score=relative),
    "128 e4m3": lambda: forward_e4m3(128),
    "128 e4m3, causal": lambda: forward_e4m3(128, causal=True),
    "64 e4m3, causal": lambda: forward_e4m3(64, causal=True),
    "256 e4m3, causal": lambda: forward_e4m3(256, causal=True),
    "64, varlen": lambda: forward_varlen(64, causal=True),
    "128, varlen, GQA": lambda: forward_varlen(128, 4, causal=True, return_lse=True),
    "256, varlen": lambda: forward_varlen(256),
    "128, seqused_k": lambda: forward(128, seqused_k=ints(*[512] * 4), causal=True),
    "128, paged 64, prefill": lambda: forward_paged(64, causal=True),
    "128, paged 16, prefill": lambda: forward_paged(16, causal=True),
    "128, paged 64, decode": lambda: forward_paged(64, 1),
}
"""By the head dimension; batch 4, 1024 queries and keys, 16 heads, bf16 unless said."""


def decode(dim: int, queries: int, keys: int = 8192, dtype: Any = BF16, **options: Any) -> Any:
    k = array(dtype, 4, keys, 8, dim)
    return kernels.flash_attention(array(dtype, 4, queries, 32, dim), k, k, causal=True, **options)


def paged(page: int, queries: int, dtype: Any = BF16, **options: Any) -> Any:
    cache = array(dtype, 8192 // page, page, 8, 128)
    table, lengths = np.zeros((4, 8192 // page), np.int32), ints(*[8192] * 4)
    return kernels.paged_attention(array(BF16, 4, queries, 32, 128), cache, cache, table, lengths, **options)


DECODE = {
    "64, 1 query": lambda: decode(64, 1),
    "128, 1 query": lambda: decode(128, 1),
    "128, 8 queries": lambda: decode(128, 8),
    "256, 1 query": lambda: decode(256, 1),
    "128 e4m3, 1 query": lambda: decode(128, 1, dtype=E4M3),
    "128, 1 query, paged 16": lambda: paged(16, 1),
    "128, 4 queries, paged 64, LSE": lambda: paged(64, 4, return_lse=True),
    "128 e4m3, 1 query, paged 64": lambda: paged(64, 1, E4M3, k_descale=array(F32, 4, 8), v_descale=array(F32, 4, 8)),
    "128, 1 query, paged 64, window and softcap": lambda: paged(64, 1, window=(1024, 0), softcap=30.0),
}
BACKWARD = {
    **{f"{dim}": lambda dim=dim: backward(dim) for dim in (64, 96, 128, 192, 256)},
    **{f"{dim}, causal": lambda dim=dim: backward(dim, causal=True) for dim in (64, 128, 192, 256)},
    **{f"{dim}, GQA, causal": lambda dim=dim: backward(dim, kv_heads=4, causal=True) for dim in (64, 128, 256)},
    **{f"{dim}, varlen, causal": lambda dim=dim: backward_varlen(dim, causal=True) for dim in (64, 128, 192, 256)},
    **{
        f"{dim}, window and softcap": lambda dim=dim: backward(dim, window=(256, 0), softcap=30.0)
        for dim in (64, 128, 256)
    },
    **{f"{dim}, ALiBi": lambda dim=dim: backward(dim, causal=True, alibi_slopes=slopes()) for dim in (64, 128, 256)},
    **{
        f"{dim}, score function": lambda dim=dim: backward(
            dim, score=relative, **option(kernels.flash_attention_backward, one, *_gradient)
        )
        for dim in (64, 128, 256)
    },
    "192x128": lambda: backward(192, 128),
    "192x128, causal": lambda: backward(192, 128, causal=True),
    "128 f16": lambda: backward(128, dtype=F16),
    "128, sinks": lambda: backward(128, causal=True, sinks=array(F32, 16)),
    "256, sinks": lambda: backward(256, causal=True, sinks=array(F32, 16)),
    "128, not deterministic": lambda: backward(128, deterministic=False),
    "128, seqused_k": lambda: backward(128, seqused_k=ints(*[512] * 4), causal=True),
    "256, seqused_k": lambda: backward(256, seqused_k=ints(*[512] * 4), causal=True),
    "128, varlen, GQA": lambda: backward_varlen(128, 4),
}


def mla(head_count: int, tokens: int = 1, dtype: Any = BF16, value_dim: int = 512, **options: Any) -> Any:
    dim = value_dim + 64
    table, lengths = np.zeros((4, 128), np.int32), ints(*[8192] * 4)
    scale = {} if dtype is BF16 else {"cache_scale": array(F32, 1)}
    q, cache = array(BF16, 4, tokens, head_count, dim), array(dtype, 128, 64, dim)
    return kernels.mla_decode(q, cache, table, lengths, value_dim=value_dim, **scale, **options)


def mla_prefill(head_count: int, is_paged: bool, dtype: Any = BF16, **options: Any) -> Any:
    q, starts = array(BF16, 1024, head_count, 576), ints(0, 256, 1024)
    if is_paged:
        more = {"page_table": np.zeros((2, 32), np.int32), "lengths": ints(2048, 2048)}
        return kernels.mla_prefill(q, array(dtype, 64, 64, 576), starts, **more, **options)
    return kernels.mla_prefill(q, array(dtype, 1024, 576), starts, cu_seqlens_k=starts, **options)


MLA = {
    **{f"{count} heads": lambda count=count: mla(count) for count in (8, 16, 32, 64, 128)},
    **{f"{count} heads, e4m3": lambda count=count: mla(count, dtype=E4M3) for count in (16, 128)},
    "16 heads, 2 tokens, LSE": lambda: mla(16, 2, return_lse=True),
    "128 heads, 2 tokens, LSE": lambda: mla(128, 2, return_lse=True),
    "128 heads, values of 256": lambda: mla(128, value_dim=256),
    "16 heads, not causal": lambda: mla(16, 4, causal=False),
    "prefill, 16 heads, paged": lambda: mla_prefill(16, True),
    "prefill, 128 heads, paged, e4m3": lambda: mla_prefill(128, True, E4M3, cache_scale=array(F32, 1)),
    "prefill, 128 heads": lambda: mla_prefill(128, False, return_lse=True),
}


# --- GEMM ------------------------------------------------------------------------------------------------------------


def gemm(m: int, n: int, k: int, dtype: Any = BF16, layout: str = "NT", **options: Any) -> Any:
    """Multiply; the second letter T: K of B is contiguous, as in the weights of a layer."""
    a = array(dtype, m, k) if layout[0] == "N" else array(dtype, k, m).T
    b = array(dtype, k, n) if layout[1] == "N" else array(dtype, n, k).T
    return kernels.gemm(a, b, **options)


def int8_weights(m: int, n: int = 4096, k: int = 4096, groups: int = 1, **options: Any) -> Any:
    scale = array(F32, groups, n) if groups > 1 else array(F32, n)
    return kernels.gemm(array(BF16, m, k), array(I8, n, k).T, scale_b=scale, **options)


def int4_weights(m: int, n: int = 4096, k: int = 4096, groups: int = 32, dtype: Any = BF16) -> Any:
    return kernels.gemm(array(dtype, m, k), array(U8, n, k // 2).T, scale_b=array(F32, groups, n))


def block_scaled(m: int, n: int, k: int, **options: Any) -> Any:
    scales = {"scale_a": array(F32, m, k // 128), "scale_b": array(F32, k // 128, -(-n // 128))}
    return gemm(m, n, k, E4M3, **scales, **options)


def row_sums(m: int, n: int, k: int, how: Any = "squares", **options: Any) -> Any:
    more = option(kernels.gemm, how, "row_sums", "row_reduction", "row_reduce", "row_reductions")
    return gemm(m, n, k, **more, **options)


def sm90(m: int, n: int, k: int, *values: Any, **options: Any) -> Any:
    return gemm(m, n, k, **with_config(kernels.gemm, "sm90_gemm", *values), **options)


def gated(value: Any, gate: Any) -> Any:
    return value * gate


def two_results(value: Any) -> Any:
    return value, value * 0.5


GEMM = {
    **{f"int8 weights, M {m}": lambda m=m: int8_weights(m) for m in (1, 16, 64, 256, 4096)},
    **{f"int4 weights, M {m}": lambda m=m: int4_weights(m) for m in (1, 16, 64, 256, 4096)},
    "int8 weights, groups": lambda: int8_weights(64, groups=32),
    "int8 weights, bias": lambda: int8_weights(64, bias=array(BF16, 4096), activation="silu"),
    "int4 weights f16, M 64": lambda: int4_weights(64, dtype=F16),
    "block-scaled e4m3 4096": lambda: block_scaled(4096, 4096, 4096),
    "block-scaled e4m3, M 64": lambda: block_scaled(64, 4096, 7168),
    "block-scaled e4m3, M 1": lambda: block_scaled(1, 4096, 7168),
    "block-scaled e4m3, fast": lambda: block_scaled(4096, 4096, 4096, precision="fast"),
    "row- and column-scaled e4m3": lambda: gemm(
        4096, 4096, 4096, E4M3, scale_a=array(F32, 4096, 1), scale_b=array(F32, 4096), out_dtype=BF16
    ),
    "e4m3, fast": lambda: gemm(4096, 4096, 4096, E4M3, precision="fast", out_dtype=BF16),
    "e5m2": lambda: gemm(4096, 4096, 4096, E5M2, out_dtype=BF16),
    "row sums": lambda: row_sums(4096, 4096, 4096),
    "row sums of a function, residual": lambda: row_sums(
        2048, 4096, 4096, lambda value: value * 2.0, c=array(BF16, 2048, 4096)
    ),
    "row sums, M 64": lambda: row_sums(64, 4096, 4096),
    "two results": lambda: gemm(2048, 2048, 2048, epilogue=two_results),
    "gated": lambda: gemm(2048, 2048, 2048, epilogue=gated, extras=[array(BF16, 2048, 2048)]),
    "alpha, beta, C": lambda: gemm(4096, 4096, 4096, alpha=0.5, beta=0.25, c=array(BF16, 4096, 4096)),
    "f32 result": lambda: gemm(4096, 4096, 4096, out_dtype=F32),
    "batched": lambda: kernels.gemm(array(BF16, 8, 512, 512), array(BF16, 8, 512, 512).swapaxes(1, 2)),
    "batched, f16 NN": lambda: kernels.gemm(array(F16, 64, 128, 128), array(F16, 64, 128, 128)),
    "unaligned K": lambda: gemm(2048, 2048, 2047),
    "unaligned M, N": lambda: gemm(2047, 2045, 2048),
    "unaligned N, NN": lambda: gemm(2048, 2047, 2048, layout="NN"),
    **{
        f"bf16 {layout} {m}x{n}x{k}": lambda m=m, n=n, k=k, layout=layout: gemm(m, n, k, BF16, layout)
        for m, n, k, layout in (
            (4096, 4096, 4096, "NT"),
            (4096, 14336, 4096, "NT"),
            (1, 28672, 8192, "NT"),
            (16, 28672, 8192, "NT"),
            (64, 4096, 4096, "NT"),
            (128, 28672, 8192, "NT"),
            (256, 256, 16384, "NT"),
            (512, 512, 512, "NT"),
            (4096, 128, 4096, "NT"),
            (8192, 64, 4096, "NT"),
            (4096, 4096, 4096, "TN"),
            (1024, 1024, 1024, "NN"),
        )
    },
    "f16 TN 1024": lambda: gemm(1024, 1024, 1024, F16, "TN"),
    "f32 M 16": lambda: gemm(16, 4096, 4096, F32),
    "tf32 TN": lambda: gemm(2048, 2048, 2048, F32, "TN", precision="tf32"),
    "i8 4096": lambda: gemm(4096, 4096, 4096, I8),
    "sm90, split-K by a cluster": lambda: sm90(256, 256, 8192, (128, 128, 64), (1, 1), 4, 8, False, 2),
    "sm90, swap-AB": lambda: sm90(64, 4096, 4096, (128, 64, 64), (1, 1), 4, 8, False, 1, True),
    "sm90, swap-AB, split-K": lambda: sm90(64, 4096, 4096, (128, 64, 64), (1, 1), 4, 8, False, 1, True, 2),
    "sm90, pingpong, epilogue": lambda: sm90(
        2048, 2048, 2048, (128, 128, 64), (2, 1), 4, 8, True, bias=array(BF16, 2048), activation="gelu"
    ),
    "sm90, clusters of 1x2": lambda: sm90(2048, 2048, 2048, (256, 128, 64), (1, 2), 4, 8),
    "sm90, transposed result": lambda: sm90(2048, 2048, 2048, (128, 128, 64), (2, 1), 4, 8, True, 1, True, 1, 2, True),
}


def grouped(
    m: int, n: int, k: int, groups: int, dtype: Any = BF16, padded: bool = False, scaled: bool = False, **options: Any
) -> Any:
    b = array(dtype, groups, n, k).swapaxes(1, 2)
    a = array(dtype, groups, m, k) if padded else array(dtype, m, k)
    numbers = np.zeros(groups, np.int32)
    if scaled:
        options |= {"scale_a": array(F32, *a.shape[:-1], k // 128), "scale_b": array(F32, groups, k // 128, n // 128)}
    return kernels.grouped_gemm(a, b, **{"counts" if padded else "offsets": numbers}, **options)


GROUPED_GEMM = {
    "offsets 8192x2048x1024": lambda: grouped(8192, 2048, 1024, 8),
    "offsets, few rows": lambda: grouped(64, 2048, 1024, 32, expected_rows=2),
    "counts": lambda: grouped(512, 2048, 1024, 8, padded=True),
    "counts, f16": lambda: grouped(128, 2048, 1024, 8, F16, padded=True),
    "e4m3, block-scaled": lambda: grouped(8192, 2048, 1024, 8, E4M3, scaled=True),
    "e4m3, block-scaled, counts": lambda: grouped(128, 2048, 1024, 8, E4M3, True, True),
    "epilogue": lambda: grouped(8192, 2048, 1024, 8, epilogue=gated, extras=[array(BF16, 8192, 2048)]),
    "unaligned K": lambda: grouped(1024, 1024, 1001, 4),
}


# --- row-wise kernels ------------------------------------------------------------------------------------------------

_lengths = {
    "256 bf16": (BF16, 256),
    "4096 bf16": (BF16, 4096),
    "5120 f16": (F16, 5120),
    "8192 f32": (F32, 8192),
    "16384 bf16": (BF16, 16384),
    "65536 bf16": (BF16, 65536),
    "262144 bf16": (BF16, 262144),
    "1023 bf16, unaligned": (BF16, 1023),
    "8191 bf16, unaligned": (BF16, 8191),
    "50257 bf16, unaligned": (BF16, 50257),
}
"""Of rows: held by a warp or a CTA, read twice, held by a cluster, streamed, and unaligned ones."""
_some = ("4096 bf16", "16384 bf16", "65536 bf16", "8191 bf16, unaligned")


def rows(dtype: Any, n: int, count: int = 1024) -> Any:
    return array(dtype, min(count, (1 << 29) // n // np.dtype(dtype).itemsize), n)


NORM: dict[str, Any] = {}
for _name, (_dtype, _n) in _lengths.items():
    _x, _w = rows(_dtype, _n), array(_dtype, _n)
    NORM |= {
        f"softmax {_name}": lambda x=_x: kernels.softmax(x),
        f"rms_norm {_name}": lambda x=_x, w=_w: kernels.rms_norm(x, w),
        f"layer_norm {_name}": lambda x=_x, w=_w: kernels.layer_norm(x, w, w),
        f"rms_norm_backward {_name}": lambda x=_x, w=_w: kernels.rms_norm_backward(x, x, w),
        f"layer_norm_backward {_name}": lambda x=_x, w=_w: kernels.layer_norm_backward(x, x, w, bias=True),
    }
    if _name in _some:
        NORM |= {
            f"softmax_backward {_name}": lambda x=_x: kernels.softmax_backward(x, x),
            f"fused_add_rms_norm {_name}": lambda x=_x, w=_w: kernels.fused_add_rms_norm(x, x, w),
            f"fused_add_layer_norm {_name}": lambda x=_x, w=_w: kernels.fused_add_layer_norm(x, x, w, w),
            f"fused_add_rms_norm_backward {_name}": lambda x=_x, w=_w: kernels.fused_add_rms_norm_backward(x, x, x, w),
            f"fused_add_layer_norm_backward {_name}": lambda x=_x, w=_w: kernels.fused_add_layer_norm_backward(
                x, x, x, w, bias=True
            ),
            f"rms_norm to e4m3 {_name}": lambda x=_x, w=_w: kernels.rms_norm(x, w, quantize=E4M3),
            f"layer_norm to e4m3 {_name}": lambda x=_x, w=_w: kernels.layer_norm(x, w, w, quantize=E4M3),
            f"fused_add_rms_norm to e4m3 {_name}": lambda x=_x, w=_w: kernels.fused_add_rms_norm(
                x, x, w, quantize=E4M3
            ),
            f"swiglu {_name}": lambda x=_x: kernels.swiglu(x, x),
            f"swiglu to e4m3 {_name}": lambda x=_x: kernels.swiglu(x, x, quantize=E4M3),
            f"geglu {_name}": lambda x=_x: kernels.geglu(x, x),
            f"geglu_backward {_name}": lambda x=_x: kernels.geglu_backward(x, x, x),
        }
NORM |= {
    "softmax of rows with a pitch": lambda: kernels.softmax(array(BF16, 1024, 4099)[:, :4096]),
    "rms_norm without weight": lambda: kernels.rms_norm(array(BF16, 1024, 4096)),
    "layer_norm of rows with a pitch": lambda: kernels.layer_norm(array(BF16, 1024, 4096)[:, :4095], array(BF16, 4095)),
    "geglu of one array, tanh": lambda: kernels.geglu(array(BF16, 1024, 8192), approximate="tanh"),
    "swiglu of one array": lambda: kernels.swiglu(array(BF16, 1024, 28672)),
}


def loss(n: int, dtype: Any = BF16, **options: Any) -> Any:
    return kernels.cross_entropy(rows(dtype, n, 512), np.zeros(512, np.int64), **options)


def loss_backward(n: int, dtype: Any = BF16, **options: Any) -> Any:
    x = rows(dtype, n, 512)
    return kernels.cross_entropy_backward(array(F32), x, np.zeros(512, np.int64), array(F32, 512), **options)


LOSS = {
    "1000 f32": lambda: loss(1000, F32),
    "32768": lambda: loss(32768),
    "50257, unaligned": lambda: loss(50257),
    "128256": lambda: loss(128256),
    "128256, smoothed, of each row": lambda: loss(128256, label_smoothing=0.1, reduction="none", return_lse=True),
    "backward 32768": lambda: loss_backward(32768),
    "backward 50257, unaligned": lambda: loss_backward(50257),
    "backward 128256, smoothed": lambda: loss_backward(128256, label_smoothing=0.1),
    "backward 128256, in place": lambda: loss_backward(128256, out=rows(BF16, 128256, 512)),
}
REDUCTION = {
    **{
        f"{name} {kind}, axis {axis}": lambda name=name, dtype=dtype, axis=axis: getattr(kernels, name)(
            array(dtype, 2048, 4096), axis=axis
        )
        for name in ("sum", "mean", "max", "argmax")
        for kind, dtype in (("bf16", BF16), ("f32", F32))
        for axis in (0, 1, None)
    },
    "min i32, axis 1": lambda: kernels.min(array(np.int32, 2048, 4096), axis=1),
    "sum i32, all": lambda: kernels.sum(array(np.int32, 2048, 4096)),
    "sum f64, axis 1": lambda: kernels.sum(array(np.float64, 1024, 1024), axis=1),
    "sum f32, unaligned rows": lambda: kernels.sum(array(F32, 1023, 1023), axis=1),
    "sum f32, middle axis": lambda: kernels.sum(array(F32, 64, 128, 256), axis=1),
    "argmin f32, unaligned rows": lambda: kernels.argmin(array(F32, 1023, 1023), axis=1),
}


def scaled_sum(a: Any, b: Any) -> Any:
    return a * 2.0 + b


ELEMENTWISE = {
    "bf16": lambda: kernels.elementwise(scaled_sum, array(BF16, 4096, 4096), array(BF16, 4096, 4096)),
    "f32, broadcast row": lambda: kernels.elementwise(scaled_sum, array(F32, 4096, 4096), array(F32, 4096)),
    "f32, broadcast column": lambda: kernels.elementwise(scaled_sum, array(F32, 4096, 4096), array(F32, 4096, 1)),
    "bf16, transposed": lambda: kernels.elementwise(scaled_sum, array(BF16, 4096, 4096).T, array(BF16, 4096, 4096)),
    "f16 to f32, unaligned": lambda: kernels.elementwise(cute.math.exp, array(F16, 1023, 1023), out_dtype=F32),
    "i32, branches": lambda: kernels.elementwise(lambda a: cute.where(a > 3, a, -a), array(np.int32, 1 << 20)),
    "e4m3 to bf16": lambda: kernels.elementwise(lambda a: a, array(E4M3, 1 << 20), out_dtype=BF16),
}
TOPK = {
    f"{k} of {n} {kind}{', renormalised' * again}": lambda k=k, n=n, dtype=dtype, again=again: kernels.topk_softmax(
        array(dtype, 4096, n), k, again
    )
    for k, n, kind, dtype, again in (
        (1, 8, "f32", F32, False),
        (2, 64, "bf16", BF16, True),
        (8, 256, "f32", F32, True),
        (6, 160, "f32", F32, False),
        (8, 257, "f32", F32, False),
        (32, 4096, "f32", F32, False),
    )
}


def rope(dtype: Any, dim: int, pairs: int, **options: Any) -> Any:
    x = array(dtype, 4, 1024, 32, dim)
    return kernels.rotary_embedding(x, array(F32, 4096, pairs), array(F32, 4096, pairs), **options)


ROPE = {
    "bf16 128": lambda: rope(BF16, 128, 64),
    "bf16 128, interleaved": lambda: rope(BF16, 128, 64, interleaved=True),
    "bf16 128, in place, conjugate": lambda: kernels.rotary_embedding(
        np.empty((4, 1024, 32, 128), BF16), array(F32, 4096, 64), array(F32, 4096, 64), inplace=True, conjugate=True
    ),
    "f32 96, partly": lambda: rope(F32, 96, 32),
    "bf16 128, positions": lambda: kernels.rotary_embedding(
        array(BF16, 4096, 8, 128), array(F32, 4096, 64), array(F32, 4096, 64), positions=array(np.int32, 4096)
    ),
    "bf16 128, offsets of sequences": lambda: rope(BF16, 128, 64, seqlen_offsets=ints(0, 1, 2, 3)),
    "f16 100": lambda: rope(F16, 100, 50),
}


FAMILIES = {
    "attention": FORWARD,
    "attention decode": DECODE,
    "attention backward": BACKWARD,
    "mla": MLA,
    "gemm": GEMM,
    "grouped_gemm": GROUPED_GEMM,
    "norm": NORM,
    "cross_entropy": LOSS,
    "reduction": REDUCTION,
    "elementwise": ELEMENTWISE,
    "topk": TOPK,
    "rope": ROPE,
}
"""Cases by family."""
VARIANTS = {f"{family}/{name}": call for family, found in FAMILIES.items() for name, call in found.items()}


ELSEWHERE = {
    "sm_80": (
        r"attention/(64|256), causal",
        r"attention/128(, (causal|GQA|window|ALiBi|score|sinks|seqused|paged 64, pre)|$)",
        r"attention/.*varlen$",
        r"decode/.*(quer|paged 16)",
        r"backward/(64|128|256), causal",
        r"backward/192x128$",
        r"backward/128, (GQA, causal|varlen, causal|window|ALiBi|score|sinks)",
        r"mla/(16|128) heads(, 2|$)",
        r"gemm/int[48] weights, (M (16|4096)|groups)",
        r"^gemm/(row sums|two|gated|alpha|f32|batched|unaligned|tf32|i8)",
        r"^gemm/bf16 .*x(4096|512|16384)$",
        r"grouped_gemm/(offsets|counts|unaligned)",
        r"norm/[a-z_]+ (4096|65536|8191) ",
        r"norm/.*(pitch|one array)",
        r"cross_entropy/",
        r"reduction/.*bf16",
        r"reduction/.*f64",
        r"elementwise/",
        r"topk/",
        r"rope/",
    ),
    "sm_100a": (
        r"attention/128, (causal|GQA)",
        r"attention/128, varlen",
        r"decode/128, 1 query",
        r"backward/(64|128), causal",
        r"mla/16 heads$",
        r"gemm/int[48] weights, M 16",
        r"^gemm/(row sums$|bf16 .*x4096$|i8|e5m2|block)",
        r"grouped_gemm/(offsets|e4m3)",
        r"norm/[a-z_]+ (16384|8191) ",
        r"cross_entropy/(backward )?50257",
        r"reduction/(sum|argmax) bf16",
        r"elementwise/(bf16$|e4m3)",
        r"topk/8 of 256",
        r"rope/bf16 128$",
    ),
}
"""Of other GPUs than sm_90a, where most variants compile to the kernels of sm_80: patterns of the cases that are compiled."""


def variants(target: str) -> dict[str, Any]:
    """Return the cases of a target by name."""
    patterns = ELSEWHERE.get(target)
    found = VARIANTS.items()
    return {name: call for name, call in found if patterns is None or any(re.search(p, name) for p in patterns)}
