"""MLA of prompts of different lengths, as serving engines call it."""

from __future__ import annotations

from typing import Any

from ...dispatch import arrays
from .mla_decode import mla_decode
from .problem import PAGE_SIZE
from .sm90_config import Q_TILE

__all__ = ["mla_prefill"]


def mla_prefill(
    q: Any,
    compressed_kv: Any,
    cu_seqlens_q: Any,
    *,
    page_table: Any = None,
    lengths: Any = None,
    cu_seqlens_k: Any = None,
    scale: float | None = None,
    value_dim: int = 512,
    causal: bool = True,
    max_length: int | None = None,
    cache_scale: Any = None,
    out: Any = None,
    return_lse: bool = False,
    config: Any = None,
) -> Any:
    """Return the attention of the tokens of several sequences to their compressed KV (multi-head latent attention).

    The compressed KV is in pages, with `page_table` and `lengths`, or concatenated, with `cu_seqlens_k`. The last token
    of a sequence is aligned with its last key. Tokens that belong to no sequence get zeros. `mla_decode` computes it:
    so many tokens as have 64 rows together with their heads, or one, are a sequence of their own there, with the keys
    that they see.

    Args:
        q: (tokens, heads, D), f16 or bf16, absorbed as for `mla_decode`; all sequences, one after the other.
        compressed_kv: (pages, 64, D) or, concatenated, (keys, D).
        cu_seqlens_q: (batch + 1), int32, on the device: the first token of every sequence, and their number.
        page_table: as for `mla_decode`.
        lengths: as for `mla_decode`.
        cu_seqlens_k: (batch + 1), int32, on the device: the first key of every sequence, and their number.
        scale: a factor of the scores, by default D ** -0.5.
        value_dim: how many columns of the compressed KV are values.
        causal: hide the keys after a token.
        max_length: at least the longest length; it helps to choose a config.
        cache_scale: the scale factor of an 8-bit cache, an array of one f32 on the device.
        out: an array for the result, (tokens, heads, value_dim).
        return_lse: also return the natural log-sum-exp, f32, (heads, tokens).
        config: a config of an implementation; by default the library chooses.
    """
    name = "mla_prefill"
    require = arrays.require
    library = _library(name, q)
    require(q.ndim == 3, f"{name} of queries {tuple(q.shape)}: (tokens, heads, D)")
    paged = page_table is not None and lengths is not None
    require(
        paged != (cu_seqlens_k is not None) and (page_table is None) == (lengths is None),
        f"{name}: pass either page_table and lengths, or cu_seqlens_k",
    )
    table: Any = page_table
    tokens, heads, _ = q.shape
    batch = cu_seqlens_q.shape[0] - 1
    require(batch >= 1, f"{name} with cu_seqlens_q of {batch + 1}: one more than sequences")
    if tokens == 0:
        result = arrays.empty(q, (0, heads, value_dim), None) if out is None else out
        return (result, arrays.empty(q, (heads, 0), arrays.dtype_named(q, "float32"))) if return_lse else result
    if not paged:
        require(
            compressed_kv.ndim == 2,
            f"{name}: compressed_kv has shape {tuple(compressed_kv.shape)}, and must be (keys, D)",
        )
        lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        room = -(-(compressed_kv.shape[0] if max_length is None else max_length) // PAGE_SIZE) * PAGE_SIZE
        table = cu_seqlens_k[:-1, None] + library.arange(room, PAGE_SIZE)
        compressed_kv = library.overlapping(compressed_kv)
    each = max(1, Q_TILE // heads)
    owner, first, seen, place = library.parts(cu_seqlens_q, lengths, tokens, each, causal)
    rows = q[:, None] if each == 1 else q[(first[:, None] + library.arange(each)).clip(0, max(0, tokens - 1))]
    options: dict[str, Any] = {"out": out[:, None]} if each == 1 and out is not None else {}
    attention = mla_decode(
        rows,
        compressed_kv,
        table[owner],
        seen,
        scale=scale,
        value_dim=value_dim,
        causal=causal,
        max_length=max_length,
        cache_scale=cache_scale,
        return_lse=return_lse,
        config=config,
        **options,
    )
    outputs, lse = attention if return_lse else (attention, None)
    if each == 1:
        result = outputs[:, 0] if out is None else out
    else:
        result = outputs[place]
        if out is not None:
            out[...] = result
            result = out
    if lse is None:
        return result
    return result, library.transposed(lse[place[0], :, place[1]])


def _library(name: str, q: Any) -> _Numpy:
    arrays.require(
        arrays.is_torch(q) or arrays.is_numpy(q), f"{name} of {type(q).__name__}", hint="PyTorch's or numpy's arrays"
    )
    return _Torch(q.device) if arrays.is_torch(q) else _Numpy()


class _Numpy:
    """Index arithmetic of numpy arrays."""

    def __init__(self) -> None:
        import numpy

        self.library: Any = numpy

    def arange(self, end: int, step: int = 1) -> Any:
        return self.library.arange(0, end, step, dtype=self.library.int32)

    def whole(self, x: Any) -> Any:
        return x.astype(self.library.int32)

    def search(self, ends: Any, numbers: Any) -> Any:
        return self.whole(self.library.searchsorted(ends, numbers, side="right"))

    def overlapping(self, compressed_kv: Any) -> Any:
        """Return the keys as pages that begin at each of them; zeros follow the last."""
        rows, columns = compressed_kv.shape
        padded = self.library.zeros((rows + PAGE_SIZE, columns), compressed_kv.dtype)
        padded[:rows] = compressed_kv
        row, column = padded.strides
        return arrays.as_strided(padded, (rows + 1, PAGE_SIZE, columns), (row, row, column))

    def transposed(self, x: Any) -> Any:
        return self.library.ascontiguousarray(x.T)

    def parts(self, starts: Any, lengths: Any, tokens: int, each: int, causal: bool) -> tuple[Any, Any, Any, Any]:
        """Divide tokens into parts of `each`, those of a sequence counted from its last on.

        Return for each part its sequence, its first token (in the first part it may be before the sequence) and the
        keys that its last one sees; and for each token its part and place in it.
        """
        batch = lengths.shape[0]
        counts = -((starts[:-1] - starts[1:]) // each)
        ends = self.whole(counts.cumsum(0))
        # parts of all sequences, and one or more of none, for tokens of no sequence
        none = tokens // each + batch
        number = self.arange(tokens if each == 1 else none + 1)
        owner = self.search(ends, number)
        exists = owner < batch
        owner = owner.clip(0, batch - 1)
        later = (ends[owner] - 1 - number) * each  # tokens of the sequence behind the part
        seen = self.whole((lengths[owner] - later * causal) * exists)
        token = self.arange(tokens)
        if each == 1:
            return owner, token, seen, (token, token * 0)
        of = self.search(starts[1:], token)
        somebody = of < batch
        of = of.clip(0, batch - 1)
        after = starts[of + 1] - 1 - token  # tokens of the sequence behind it
        part = self.library.where(somebody, ends[of] - 1 - after // each, none)
        return owner, starts[owner + 1] - later - each, seen, (part, each - 1 - after % each)


class _Torch(_Numpy):
    def __init__(self, device: Any) -> None:
        import torch

        self.library = torch
        self.device = device

    def arange(self, end: int, step: int = 1) -> Any:
        return self.library.arange(0, end, step, dtype=self.library.int32, device=self.device)

    def whole(self, x: Any) -> Any:
        return x.to(self.library.int32)

    def search(self, ends: Any, numbers: Any) -> Any:
        return self.library.searchsorted(ends, numbers, right=True, out_int32=True)

    def overlapping(self, compressed_kv: Any) -> Any:
        rows, columns = compressed_kv.shape
        padded = compressed_kv.new_zeros(rows + PAGE_SIZE, columns)
        padded[:rows] = compressed_kv
        return padded.as_strided((rows + 1, PAGE_SIZE, columns), (columns, columns, 1))

    def transposed(self, x: Any) -> Any:
        return x.T.contiguous()
