"""`paged_attention`: decode with a paged KV cache, as inference engines keep it."""

from __future__ import annotations

from typing import Any

from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from .args import AttentionArguments, AttentionParams
from .flash_attention import run
from .problem import ELEMENTS

__all__ = ["paged_attention"]

_LABELS = (("k", "k_cache"), ("v", "v_cache"), ("seqused_k", "lengths"), ("max_seqlen_k", "max_length"))


@kernel_function("q", "k_cache", "v_cache", "page_table", "lengths", "out", "k_descale", "v_descale")
def paged_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    page_table: Any,
    lengths: Any,
    *,
    causal: bool = True,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    max_length: int | None = None,
    k_descale: Any = None,
    v_descale: Any = None,
    out: Any = None,
    return_lse: bool = False,
    config: Any = None,
) -> Any:
    """Return the attention of the last queries of each sequence to a paged KV cache, as a decode step needs it.

    Key n of sequence b is row `n % rows` of page `page_table[b, n // rows]`. The last query is aligned with the last
    key. The KV sequence is split among CTAs so that all SMs have work. Tables and lengths stay on the device.

    Args:
        q: (batch, queries, heads, D), f16 or bf16.
        k_cache: (pages, rows of a page, KV heads, D), of the type of `q` or e4m3.
        v_cache: the same with its own D.
        page_table: (batch, pages), int32; entries beyond a sequence's length are not used.
        lengths: (batch), int32: the keys that exist, those of the queries included. Rows beyond may hold anything.
        causal: hide the keys after a query.
        window: (left, right), the farthest visible keys on both sides; None or -1 for no limit.
        scale: a positive factor of the scores, by default D ** -0.5.
        softcap: c > 0 makes a score s into c tanh(s / c).
        max_length: at least the longest length, by default what the table has room for; it chooses a config, and
            changes results only by rounding.
        k_descale: scale factors of 8-bit keys, (batch, KV heads), f32.
        v_descale: scale factors of 8-bit values, likewise.
        out: an array for the result.
        return_lse: also return the log-sum-exp of each row.
        config: a config of an implementation; by default the library chooses.
    """
    for label, x in (("page_table", page_table), ("lengths", lengths)):
        arrays.require(x is not None, f"paged_attention: {label} is None")
    params = AttentionParams(
        causal,
        window,
        scale,
        softcap,
        k_descale=k_descale,
        v_descale=v_descale,
        seqused_k=lengths,
        page_table=page_table,
        max_seqlen_k=max_length,
    )
    args = AttentionArguments(q, k_cache, v_cache, out, None, params, "paged_attention", _LABELS)
    args.check(ELEMENTS, fp8_cache=True)
    arrays.require(k_cache.shape[1] > 0, "paged_attention: pages of k_cache have no rows")
    return run(args, return_lse, config)
