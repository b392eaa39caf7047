"""`flash_attention`: softmax(Q K^T) V, tile by tile, without storing the scores."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import cannot_repeat, kernel_function
from .args import AttentionArguments, AttentionParams, check_aligned, lse_shape
from .fwd.implementations import REGISTRY
from .problem import ALL_ELEMENTS, MAX_GRID_Z

__all__ = ["flash_attention"]


@kernel_function(
    "q",
    "k",
    "v",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "page_table",
    "alibi_slopes",
    "sinks",
    "q_descale",
    "k_descale",
    "v_descale",
    "out",
)
def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    score: Any = None,
    sinks: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    page_table: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Any = None,
    return_lse: bool = False,
    config: Any = None,
) -> Any:
    """Return softmax(scale * q k^T) v; with `return_lse` also the log-sum-exp of each row.

    Queries and keys are aligned at the end: the last query sees the last key. A query that sees no key gets zeros, and
    LSE -inf or its sink. Equal calls give equal bits.

    Sequences of different lengths (varlen) are concatenated: q is (all queries, heads, D), k and v (all keys, KV heads,
    D). In a paged KV cache, k and v are (pages, rows of a page, KV heads, D).

    Args:
        q: queries (batch, queries, heads, D), f16, bf16 or float8_e4m3fn; D a multiple of 8 up to 256.
        k: keys (batch, keys, KV heads, D); KV heads divide heads (GQA, MQA).
        v: values (batch, keys, KV heads, D of v).
        causal: hide the keys after a query.
        window: (left, right), the farthest visible keys on both sides; None or -1 for no limit.
        scale: a positive factor of the scores, by default D ** -0.5.
        softcap: c > 0 makes a score s into c tanh(s / c).
        alibi_slopes: (heads) or (batch, heads), f32; scores are lowered by slope times the distance of query and key.
        score: a function `score(s, b, h, q, k)` that returns the new score for sequence b, head h, query q and key k,
            counted from 0 in the sequence; it may branch.
        sinks: (heads), f32, logits of one more key for each head, which has no value.
        q_descale: scale factors of 8-bit queries, (batch, KV heads), f32, positive, or 0: then all visible keys weigh
            the same.
        k_descale: scale factors of 8-bit keys, likewise.
        v_descale: scale factors of 8-bit values, likewise.
        cu_seqlens_q: (batch + 1), int32, the first query of every sequence, and their number: varlen.
        cu_seqlens_k: (batch + 1), int32, the same for keys.
        seqused_k: (batch), int32, how many keys of each sequence exist.
        page_table: (batch, pages), int32, the pages of each sequence; without `cu_seqlens_k`.
        max_seqlen_q: at least the queries of the longest sequence; saves looking it up.
        max_seqlen_k: likewise for keys; only helps to choose a config.
        out: an array for the result. The result of 8-bit operands is bfloat16, or what this is.
        return_lse: also return the natural log-sum-exp, f32, (batch, heads, queries); varlen (heads, all queries).
        config: a config of an implementation; by default the library chooses.
    """
    params = AttentionParams(
        causal,
        window,
        scale,
        softcap,
        score,
        alibi_slopes,
        sinks,
        q_descale,
        k_descale,
        v_descale,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        page_table,
        max_seqlen_q,
        max_seqlen_k,
    )
    args = AttentionArguments(q, k, v, out, None, params)
    args.check(ALL_ELEMENTS)
    return run(args, return_lse, config)


def run(args: AttentionArguments, return_lse: bool, config: Any) -> Any:
    """Compute an attention whose arguments were checked, into new arrays where it has none."""
    q = args.q
    k = args.k
    v = args.v
    out = args.out
    if out is None:
        out = arrays.empty(q, (*q.shape[:-1], v.shape[-1]), args.out_dtypes()[0])
    lse = arrays.empty(q, lse_shape(q), arrays.dtype_named(q, "float32")) if return_lse else None
    args = dataclasses.replace(args, out=out, lse=lse)
    if 0 in out.shape:
        pass
    elif 0 in k.shape[:-2] or args.kv_capacity == 0:
        _run_without_keys(args)
    elif args.batch > MAX_GRID_Z:
        _run_in_parts(args, config)
    else:
        for label, x in (("q", q), ("k", k), ("v", v), ("out", out)):
            check_aligned(args.name, args.label(label), x)
        args = args.as_4d()
        REGISTRY.run(args.problem(args.longest_q()), devices.current(), args, config)
    return out if lse is None else (out, lse)


def _run_without_keys(args: AttentionArguments) -> None:
    """Write what queries get that see no key: LSE is that of the sink, if there is one."""
    arrays.fill(args.out, 0.0)
    if args.lse is not None and args.params.sinks is not None:
        arrays.assign(args.lse, arrays.part(args.params.sinks, 1, None))
    elif args.lse is not None:
        arrays.fill(args.lse, -math.inf)


def _run_in_parts(args: AttentionArguments, config: Any) -> None:
    """Compute more sequences than a grid can have, some at a time."""
    cannot_repeat("sequences are computed in parts")
    params = args.params
    for first in range(0, args.batch, MAX_GRID_Z):
        part = slice(first, first + MAX_GRID_Z)
        q, out = (x if params.cu_seqlens_q is not None else x[part] for x in (args.q, args.out))
        dense_k = params.cu_seqlens_k is None and params.page_table is None
        k, v = (x[part] if dense_k else x for x in (args.k, args.v))
        part_args = dataclasses.replace(args, q=q, k=k, v=v, out=out, params=params.of_sequences(first, MAX_GRID_Z))
        result = run(part_args, args.lse is not None, config)
        if args.lse is None:
            continue
        if params.cu_seqlens_q is None:
            args.lse[part] = result[1]
        else:
            last = min(first + MAX_GRID_Z, args.batch)
            rows = slice(int(params.cu_seqlens_q[first]), int(params.cu_seqlens_q[last]))
            args.lse[:, rows] = result[1][:, rows]
