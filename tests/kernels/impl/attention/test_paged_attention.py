"""Attention to keys and values in pages, against float64 on the CPU target. Rows that do not exist hold NaN, their pages do not exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_testing import close, exact, normal

import kiln
from kiln import kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError

PARTS = kernels.Sm80AttentionConfig(16, 32, 1, 2, num_splits=3, pack_gqa=True)


class Cache:
    """Keys and values of sequences of some lengths, each in pages anywhere."""

    def __init__(self, size: int, lengths: tuple[int, ...], heads: int = 1, dims: tuple[int, int] = (32, 32)) -> None:
        columns = -(-max(lengths) // size) + 1
        pages = len(lengths) * columns + 2
        self.size, self.lengths = size, np.array(lengths, np.int32)
        self.k, self.v = (normal(pages, size, heads, dim) for dim in dims)
        self.table = np.random.default_rng(0).permutation(pages)[: len(lengths) * columns].reshape(-1, columns)
        self.table = self.table.astype(np.int32)
        for row, length in zip(self.table, lengths, strict=True):
            beyond = np.arange(length, columns * size)
            self.k[row[beyond // size], beyond % size] = self.v[row[beyond // size], beyond % size] = np.nan
            row[-(-length // size) :] = (1 << 30, -1)[length % 2]

    def sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.arange(self.lengths[number])
        pages = self.table[number, at // self.size]
        return self.k[pages, at % self.size][None], self.v[pages, at % self.size][None]


def check(q: np.ndarray, cache: Cache, config: Any = None, **options: Any) -> None:
    with kiln.target("cpu"):
        got = kernels.paged_attention(
            q, cache.k, cache.v, cache.table, cache.lengths, return_lse=True, config=config, **options
        )
    for n in range(len(q)):
        wanted = exact(q[n : n + 1], *cache.sequence(n), **{"causal": True, **options})
        close([x[n : n + 1] for x in got], wanted)


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_pages(size):
    """Sequences of which one has no keys and one fewer than queries, heads that share keys, keys cut into parts."""
    check(normal(3, 2, 4, 32), Cache(size, (0, 1, 100), 2), PARTS)


def test_heads_of_different_sizes():
    """Rows of keys and of values are not copied alike."""
    check(normal(2, 1, 1, 64), Cache(8, (40, 65), 1, (64, 32)), window=(30, 0), softcap=2.0)


@pytest.mark.quick(0)
def test_clean_under_the_sanitizer():
    with kiln.sanitize():
        check(normal(1, 1, 2, 32), Cache(4, (70,)), PARTS)


def test_what_is_refused():
    cache, q = Cache(4, (5, 9)), normal(2, 1, 2, 32)
    given = dict(q=q, k_cache=cache.k, v_cache=cache.v, page_table=cache.table, lengths=cache.lengths)
    for wrong, message in (
        ({"page_table": cache.table[:1]}, "for 2 sequences"),
        ({"page_table": cache.table[:0]}, "for 2 sequences"),
        ({"lengths": cache.lengths[:0]}, "for 2 sequences"),
        ({"lengths": cache.lengths.astype(np.int64)}, "int32"),
        ({"v_cache": cache.v[:, :2]}, "agree"),
        ({"out": cache.k[:2, :1].repeat(2, 2)[..., :16]}, "it must be float16 of shape \\(2, 1, 2, 32\\)"),
        ({"q": q.astype(np.float32)}, "float16 or bfloat16"),
        ({"out": np.lib.stride_tricks.as_strided(q.copy(), q.shape, (0, *q.strides[1:]))}, "its elements lie apart"),
    ):
        with pytest.raises(DSLUserCodeTypeError, match=message), kiln.target("cpu"):
            kernels.paged_attention(**{**given, **wrong})


def test_a_cache_without_pages():
    """Queries see nothing, whoever is asked; a sink is all that their logarithms are of."""
    q, none = normal(2, 3, 2, 32), normal(0, 16, 1, 32)
    table, lengths, sinks = np.zeros((2, 2), np.int32), np.zeros(2, np.int32), np.float32([0.5, -3.0])
    keys = normal(2, 4, 1, 32)
    with kiln.target("cpu"):
        for pages in (none, normal(3, 0, 1, 32)):
            for out, lse in (
                kernels.flash_attention(q, pages, pages, page_table=table, seqused_k=lengths, return_lse=True),
                kernels.flash_attention(
                    q, pages, pages, page_table=table, seqused_k=lengths, return_lse=True, config=kernels.Sm90AttentionConfig(1, 64)
                ),
                *([kernels.paged_attention(q, pages, pages, table, lengths, return_lse=True)] if pages is none else []),
            ):  # fmt: skip
                assert not out.any()
                assert (lse == -np.inf).all()
        for given in (
            (q, none, none, {"page_table": table, "seqused_k": lengths}),
            (q, keys[:, :0], keys[:, :0], {}),
            (q, keys, keys, {"seqused_k": lengths, "config": kernels.Sm80AttentionConfig(16, 16, 1, 1)}),
        ):
            out, lse = kernels.flash_attention(*given[:3], sinks=sinks, return_lse=True, **given[3])
            assert not out.any()
            np.testing.assert_allclose(lse, np.broadcast_to(sinks[:, None], (2, 2, 3)), rtol=1e-6)
