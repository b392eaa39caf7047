"""MLA of the newest tokens, as engines that serve DeepSeek's models call it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from ..attention.args import check_aligned, check_arrays, check_lengths, check_out, check_page_table, resolve_scale
from ..attention.problem import ELEMENTS
from .implementations import REGISTRY, MlaArguments
from .problem import CACHE_DTYPES, PAGE_SIZE, MlaProblem
from .sm90_config import default_config

__all__ = ["mla_decode"]


@kernel_function("q", "cache", "page_table", "lengths", "out", "cache_scale")
def mla_decode(
    q: Any,
    cache: Any,
    page_table: Any,
    lengths: Any,
    *,
    scale: float | None = None,
    value_dim: int = 512,
    causal: bool = True,
    num_splits: int | None = None,
    max_length: int | None = None,
    cache_scale: Any = None,
    out: Any = None,
    return_lse: bool = False,
    config: Any = None,
) -> Any:
    """Return the attention of the last tokens of each sequence to its paged, compressed KV (multi-head latent
    attention).

    Key n of sequence b is row `n % 64` of page `page_table[b, n // 64]`. The last token is aligned with the last key. A
    sequence without keys gets zeros and LSE -inf. The KV tiles of all sequences are divided evenly on the device; a
    second kernel combines sequences that lie in several. The same call gives the same bits.

    Args:
        q: (batch, tokens, heads, D), f16 or bf16: the queries, multiplied with the key weights, followed by their RoPE
            part.
        cache: (pages, 64, D) or (pages, 64, 1, D): the compressed KV, whose first `value_dim` columns are also the
            values, followed by its RoPE part; of the type of `q`, on sm_90a also float8_e4m3fn or float8_e5m2.
        page_table: (batch, pages of a sequence), int32, on the device. Entries beyond a sequence's length are not used.
        lengths: (batch), int32, on the device: the keys that exist, those of the tokens included. Rows beyond may hold
            anything.
        scale: a factor of the scores, by default D ** -0.5. Models that do not absorb the key weights have another D,
            and pass theirs.
        value_dim: how many columns of the cache are values.
        causal: hide the keys after a token.
        num_splits: into how many parts the keys of each 64 rows of tokens and heads are divided; by default as many as
            SMs run at once.
        max_length: at least the longest length, by default what the table has room for; it helps to choose a config.
        cache_scale: the scale factor of an 8-bit cache, an array of one f32 on the device.
        out: an array for the result, (batch, tokens, heads, value_dim).
        return_lse: also return the natural log-sum-exp, f32, (batch, heads, tokens).
        config: a config of an implementation; by default the library chooses.
    """
    name = "mla_decode"
    require = arrays.require
    if getattr(cache, "ndim", 0) == 4 and cache.shape[2] == 1:
        cache = arrays.reshaped(cache, (cache.shape[0], cache.shape[1], cache.shape[3]))
    check(q, cache, page_table, lengths, out, value_dim, cache_scale)
    softmax_scale = resolve_scale(name, q, scale)
    require(num_splits is None or num_splits >= 1, f"{name}: num_splits is {num_splits}, and must be at least 1")
    require(
        num_splits is None or config is None,
        f"{name}: num_splits is {num_splits}, and config has its own; pass one of them",
    )
    batch, queries, heads, _ = q.shape
    require(max_length is None or max_length >= 0, f"{name}: max_length is {max_length}; it must be at least 0")
    capacity = page_table.shape[1] * PAGE_SIZE
    keys = capacity if max_length is None else min(int(max_length), capacity)
    problem = MlaProblem(
        batch,
        queries,
        heads,
        max(1, keys),
        q.shape[3],
        value_dim,
        ELEMENTS[str(q.dtype).rpartition(".")[2]],
        causal,
        return_lse,
        CACHE_DTYPES.get(str(cache.dtype).rpartition(".")[2]),
    )

    if out is None:
        out = arrays.empty(q, (batch, queries, heads, value_dim), None)
    lse = arrays.empty(q, (batch, heads, queries), arrays.dtype_named(q, "float32")) if return_lse else None
    if page_table.shape[1] * cache.shape[0] > 0 and 0 not in out.shape:
        rows = q if arrays.is_contiguous(q) else arrays.contiguous(q)
        device = devices.current()
        chosen = config
        if num_splits is not None:
            chosen = dataclasses.replace(default_config(problem, device), num_splits=int(num_splits))
        args = MlaArguments(rows, cache, page_table, lengths, out, lse, softmax_scale, cache_scale)
        REGISTRY.run(problem, device, args, chosen)
    else:
        arrays.fill(out, 0.0)
        if lse is not None:
            arrays.fill(lse, -math.inf)
    return out if lse is None else (out, lse)


def check(q: Any, cache: Any, table: Any, lengths: Any, out: Any, value_dim: int, scale: Any) -> None:
    """Raise if arrays do not go together."""
    require = arrays.require
    name = "mla_decode"
    checked = {"q": q, "cache": cache, "page_table": table, "lengths": lengths, "out": out, "cache_scale": scale}
    check_arrays(name, checked, {"out", "cache_scale"})
    shapes = f"{tuple(q.shape)} and {tuple(cache.shape)}"
    require(
        q.ndim == 4 and cache.ndim == 3,
        f"{name} of shapes {shapes}: (batch, tokens, heads, D) and (pages, {PAGE_SIZE}, D)",
    )
    require(cache.shape[1] == PAGE_SIZE, f"{name}: pages have {cache.shape[1]} rows, not {PAGE_SIZE}")
    require(q.shape[3] == cache.shape[2], f"{name} of shapes {shapes}: q and cache must have the same D")
    require(str(q.dtype).rpartition(".")[2] in ELEMENTS, f"{name} of {q.dtype}", hint="float16 or bfloat16")
    narrow = str(cache.dtype).rpartition(".")[2] in CACHE_DTYPES
    require(
        q.dtype == cache.dtype or narrow,
        f"{name}: q is {q.dtype} but cache is {cache.dtype}; they must match, or the cache must be an 8-bit float",
    )
    require(
        scale is None or (narrow and tuple(scale.shape) == (1,) and str(scale.dtype).endswith("float32")),
        f"{name}: cache_scale must be an array of one float32, for an 8-bit cache",
    )
    check_page_table(name, table, q.shape[0])
    check_lengths(name, "lengths", lengths, q.shape[0])
    require(
        out is None or arrays.is_contiguous(out),
        f"{name} into an array with strides {None if out is None else arrays.strides(out)}: it must be contiguous",
    )
    check_out(name, out, (*q.shape[:3], value_dim), [q.dtype], {"q": q, "cache": cache})
    check_aligned(name, "cache", cache)
