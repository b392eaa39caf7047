"""Attention to latents on a GPU, at the sizes of real models, against float64 computed by PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import kernels

torch = pytest.importorskip("torch")


class Cache:
    """Latents of sequences of some lengths, in pages anywhere; rows that do not exist hold NaN, pages that are not used do not exist."""

    def __init__(self, lengths: list[int], dtype: Any, room: int = 0) -> None:
        columns = max(room, -(-max(lengths) // 64), 1)
        count = sum(-(-n // 64) for n in lengths) + 3
        self.pages = torch.full((count, 64, 576), float("nan"), device="cuda", dtype=dtype)
        self.table = torch.full((len(lengths), columns), 1 << 30, device="cuda", dtype=torch.int32)
        self.lengths = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        order, first = torch.randperm(count, device="cuda", dtype=torch.int32), 0
        self.rows = []
        for n, length in enumerate(lengths):
            used = -(-length // 64)
            self.table[n, :used] = order[first : first + used]
            first += used
            rows = torch.randn(length, 576, device="cuda", dtype=dtype)
            at = torch.arange(length, device="cuda")
            self.pages[self.table[n, at // 64].long(), at % 64] = rows
            self.rows.append(rows)


def exact(q: Any, rows: Any, causal: bool = True) -> Any:
    """Outputs (tokens, heads, 512) and logarithms (heads, tokens) of one sequence in float64."""
    tokens, keys = q.shape[0], rows.shape[0]
    scores = torch.einsum("thd,kd->htk", q.double(), rows.double()) * 576**-0.5
    if causal:
        last = torch.arange(tokens, device="cuda")[:, None] + keys - tokens
        scores.masked_fill_(torch.arange(keys, device="cuda")[None] > last, -float("inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return torch.einsum("htk,kd->thd", weights, rows[:, :512].double()), torch.logsumexp(scores, -1)


def check(got: Any, q: Any, cache: Cache) -> None:
    """Within the rounding of weights and outputs to their type."""
    step = torch.finfo(q.dtype).eps
    for n, rows in enumerate(cache.rows):
        wanted = exact(q[n], rows)
        torch.testing.assert_close(got[0][n].double(), wanted[0], rtol=2 * step, atol=2 * step)
        torch.testing.assert_close(got[1][n].double(), wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "tokens"), [(128, 1), (128, 2), (64, 1), (32, 3), (16, 1), (16, 4), (20, 3)])
def test_ragged(heads, tokens, dtype):
    cache = Cache([5000, 0, 1, 64, 65, 3001, 130, 2, 8192], dtype)
    q = torch.randn(9, tokens, heads, 576, device="cuda", dtype=dtype)
    call = (q, cache.pages, cache.table, cache.lengths)
    got = kernels.mla_decode(*call, return_lse=True)
    check(got, q, cache)
    again = kernels.mla_decode(*call, return_lse=True)
    assert all(map(torch.equal, got, again))


@pytest.mark.parametrize("splits", [1, 2, 7, 132, 500])
def test_shares(splits):
    cache = Cache([20000, 100, 7000], torch.bfloat16, 400)
    q = torch.randn(3, 1, 16, 576, device="cuda", dtype=torch.bfloat16)
    check(kernels.mla_decode(q, cache.pages, cache.table, cache.lengths, num_splits=splits, return_lse=True), q, cache)


def test_many_sequences():
    cache = Cache([(37 * n) % 700 for n in range(300)], torch.bfloat16)
    q = torch.randn(300, 1, 16, 576, device="cuda", dtype=torch.bfloat16)
    check(kernels.mla_decode(q, cache.pages, cache.table, cache.lengths, return_lse=True), q, cache)


@pytest.mark.parametrize(("heads", "tokens"), [(128, 1), (16, 1), (16, 2), (20, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_latents_of_8_bits(heads, tokens, dtype):
    cache = Cache([5000, 0, 1, 64, 65, 3001, 8192], torch.float16)
    pages, scale = cache.pages.to(torch.float8_e4m3fn), torch.tensor([0.7], device="cuda")
    cache.rows = [rows.to(torch.float8_e4m3fn).double() * 0.7 for rows in cache.rows]
    q = torch.randn(7, tokens, heads, 576, device="cuda", dtype=dtype)
    got = kernels.mla_decode(q, pages, cache.table, cache.lengths, cache_scale=scale, return_lse=True)
    check(got, q, cache)


def test_many_tokens():
    """The last part of a prompt."""
    cache = Cache([1000, 300, 140], torch.bfloat16)
    q = torch.randn(3, 150, 16, 576, device="cuda", dtype=torch.bfloat16)
    got = kernels.mla_decode(q, cache.pages, cache.table, cache.lengths, return_lse=True)
    check(got, q, cache)


@pytest.mark.parametrize("heads", [16, 128])
def test_prompts(heads):
    """Tokens of sequences one after another; latents in pages, or one after another."""
    cache, counts = Cache([1000, 300, 140], torch.bfloat16), [150, 1, 139]
    starts, places = (torch.tensor([0, *x], device="cuda").cumsum(0).int() for x in (counts, [1000, 300, 140]))
    q = torch.randn(sum(counts) + 3, heads, 576, device="cuda", dtype=torch.bfloat16)
    paged = {"page_table": cache.table, "lengths": cache.lengths}
    got = kernels.mla_prefill(q, cache.pages, starts, **paged, return_lse=True)
    again = kernels.mla_prefill(q, torch.cat(cache.rows), starts, cu_seqlens_k=places, return_lse=True)
    first = 0
    for count, rows in zip(counts, cache.rows, strict=True):
        wanted = exact(q[first : first + count], rows)
        for outputs, logarithms in (got, again):
            step = torch.finfo(q.dtype).eps
            own = outputs[first : first + count].double(), logarithms[:, first : first + count].double()
            torch.testing.assert_close(own[0], wanted[0], rtol=2 * step, atol=2 * step)
            torch.testing.assert_close(own[1], wanted[1], rtol=1e-5, atol=1e-5)
        first += count
    assert not got[0][first:].any()


def test_in_a_graph():
    cache = Cache([3000, 200], torch.bfloat16)
    q = torch.randn(2, 1, 128, 576, device="cuda", dtype=torch.bfloat16)
    out = torch.zeros(2, 1, 128, 512, device="cuda", dtype=torch.bfloat16)
    wanted = kernels.mla_decode(q, cache.pages, cache.table, cache.lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.mla_decode(q, cache.pages, cache.table, cache.lengths, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)
    cache.lengths -= 100  # nothing of them was taken down
    wanted = kernels.mla_decode(q, cache.pages, cache.table, cache.lengths)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)
