"""Attention on a GPU, at the sizes of real models, against float64 computed by PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import kernels

torch = pytest.importorskip("torch")


def normal(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def exact(
    q: Any, k: Any, v: Any, causal: bool = False, window: Any = None, softcap: float = 0.0, slopes: Any = None, sinks: Any = None,
    score: Any = None,
) -> Any:  # fmt: skip
    """Outputs (queries, heads, D) and logarithms (heads, queries) of one sequence, head by head in float64."""
    outputs, logarithms = [], []
    shared = q.shape[1] // k.shape[1]
    distance = torch.arange(k.shape[0], device="cuda")[None] - (
        torch.arange(q.shape[0], device="cuda")[:, None] + k.shape[0] - q.shape[0]
    )
    left, right = (None, None) if window is None else window
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal or right is not None:
        hidden |= distance > (0 if causal else right)
    if left is not None:
        hidden |= distance < -left
    for head in range(q.shape[1]):
        a, b, c = q[:, head].double(), k[:, head // shared].double(), v[:, head // shared].double()
        scores = a @ b.T * q.shape[2] ** -0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if slopes is not None:
            scores = scores - slopes[head].double() * distance.abs()
        if score is not None:
            places = torch.arange(q.shape[0], device="cuda")[:, None], torch.arange(k.shape[0], device="cuda")[None]
            scores = score(scores, head, *places)
        scores.masked_fill_(hidden, -float("inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks[head].double().expand(len(scores), 1)], 1)
            c = torch.cat([c, torch.zeros_like(c[:1])])
        logarithms.append(torch.logsumexp(scores, -1))
        outputs.append(torch.softmax(scores, -1).nan_to_num(0.0) @ c)
    return torch.stack(outputs, 1), torch.stack(logarithms)


def check(got: Any, wanted: Any) -> None:
    outputs, logarithms = got
    step = torch.finfo(outputs.dtype).eps
    torch.testing.assert_close(outputs.double(), wanted[0], rtol=2 * step, atol=2 * step)
    torch.testing.assert_close(logarithms.double(), wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": (500, 100)},
        {"causal": True, "window": (1000, None)},
        {"causal": True, "softcap": 20.0},
    ],
    ids=str,
)
def test_options(options, dtype):
    q, k, v = normal(2, 3000, 4, 128, dtype=dtype), *(normal(2, 3500, 2, 128, dtype=dtype) for _ in range(2))
    outputs, logarithms = kernels.flash_attention(q, k, v, return_lse=True, **options)
    for n in range(2):
        check((outputs[n], logarithms[n]), exact(q[n], k[n], v[n], **options))


@pytest.mark.parametrize("dim", [32, 40, 64, 80, 96, 112, 128, 160, 192, 256])
def test_head_dimensions(dim):
    q, k, v = (normal(1, 1024, 2, dim) for _ in range(3))
    outputs, logarithms = kernels.flash_attention(q, k, v, causal=True, return_lse=True)
    check((outputs[0], logarithms[0]), exact(q[0], k[0], v[0], causal=True))


@pytest.mark.parametrize("queries", [1, 16, 50, 64, 100])
def test_few_queries(queries):
    q, k, v = normal(1, queries, 8, 128), *(normal(1, 5000, 1, 128) for _ in range(2))
    outputs, logarithms = kernels.flash_attention(q, k, v, causal=True, return_lse=True)
    check((outputs[0], logarithms[0]), exact(q[0], k[0], v[0], causal=True))


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("queries", [1, 4, 16])
def test_serving(queries, dim):
    """Few queries, heads that share keys, a cache that is filled to different lengths."""
    q, k, v = normal(3, queries, 32, dim), *(normal(3, 9000, 8, dim) for _ in range(2))
    used = torch.tensor([9000, 17, 4097], dtype=torch.int32, device="cuda")
    got = kernels.flash_attention(q, k, v, causal=True, seqused_k=used, return_lse=True)
    again = kernels.flash_attention(q, k, v, causal=True, seqused_k=used, return_lse=True)
    for n, length in enumerate(used.tolist()):
        check((got[0][n], got[1][n]), exact(q[n], k[n, :length], v[n, :length], causal=True))
    assert all(map(torch.equal, got, again))


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": (700, None)}, {"softcap": 5.0}], ids=str)
@pytest.mark.parametrize("num_splits", [1, 7, 100])
def test_parts(num_splits, options):
    config = kernels.Sm80AttentionConfig(64, 64, 4, 2, num_splits=num_splits, pack_gqa=True)
    q, k, v = normal(2, 40, 6, 128), *(normal(2, 3001, 2, 128) for _ in range(2))
    outputs, logarithms = kernels.flash_attention(q, k, v, return_lse=True, config=config, **options)
    for n in range(2):
        check((outputs[n], logarithms[n]), exact(q[n], k[n], v[n], **options))


def test_parts_of_packed_sequences():
    queries, keys = [1, 3, 0, 2], [30000, 5, 100, 4097]
    starts = [torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32, device="cuda") for n in (queries, keys)]
    q, k, v = normal(sum(queries), 8, 128), normal(sum(keys), 2, 128), normal(sum(keys), 2, 128)
    outputs, logarithms = kernels.flash_attention(
        q, k, v, causal=True, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], max_seqlen_q=3, return_lse=True
    )
    for n in (0, 1, 3):
        rows, others = (slice(*s[n : n + 2].tolist()) for s in starts)
        check((outputs[rows], logarithms[:, rows]), exact(q[rows], k[others], v[others], causal=True))


def test_packed_sequences():
    lengths = [1, 1000, 0, 257, 4096]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    q, k, v = normal(sum(lengths), 4, 64), normal(sum(lengths), 1, 64), normal(sum(lengths), 1, 64)
    outputs, logarithms = kernels.flash_attention(
        q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, return_lse=True
    )
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        rows = slice(first, last)
        if last > first:
            check((outputs[rows], logarithms[:, rows]), exact(q[rows], k[rows], v[rows], causal=True))


hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="for Hopper"
)
PLANS = {
    64: [(3, 112, 4)],
    96: [(2, 128, 3)],
    40: [(2, 128, 3)],
    128: [(2, 128), (2, 128, 2, False), (3, 80), (2, 128, 2, True, False, False, True, False, True)],
    192: [(2, 96, 2, True, False)],
    256: [(2, 64, 2, True, False)],
}
"""Of warp groups, by elements of a head."""


@hopper
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 70), "softcap": 9.0}], ids=str)
@pytest.mark.parametrize(
    ("dim", "config"), [(dim, config) for dim, configs in PLANS.items() for config in configs], ids=str
)
def test_warp_groups(dim, config, options):
    """More tiles than SMs, of odd lengths, heads that lie before rows; and the same twice."""
    config = kernels.Sm90AttentionConfig(*config)
    q = normal(3, 12, 1777, dim, dtype=torch.float16).transpose(1, 2)
    k, v = (normal(3, 2001, 4, dim, dtype=torch.float16) for _ in range(2))
    got = kernels.flash_attention(q, k, v, return_lse=True, config=config, **options)
    again = kernels.flash_attention(q, k, v, return_lse=True, config=config, **options)
    assert all(map(torch.equal, got, again))
    for n in range(3):
        check((got[0][n], got[1][n]), exact(q[n], k[n], v[n], **options))


@hopper
@pytest.mark.parametrize(
    "config", [{}, {"dynamic_scheduler": True}, {"pack_gqa": True}, {"q_in_regs": True, "lazy_rescale": False}], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_warp_groups_of_packed_sequences(config, causal):
    """Whose last keys, and what comes after them, are no numbers; with slopes and sinks; tiles in order of asking."""
    lengths = [1, 1000, 0, 257, 4096, *[130] * 40]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    used = torch.tensor([max(0, n - 5) for n in lengths], dtype=torch.int32, device="cuda")
    q, k, v = normal(sum(lengths), 8, 128), normal(sum(lengths), 2, 128), normal(sum(lengths), 2, 128)
    for end in starts[1:].tolist():
        k[max(0, end - 5) : end] = v[max(0, end - 5) : end] = float("nan")
    slopes, sinks = torch.rand(8, device="cuda"), torch.randn(8, device="cuda")
    got = kernels.flash_attention(
        q, k, v, causal=causal, cu_seqlens_q=starts, cu_seqlens_k=starts, seqused_k=used, alibi_slopes=slopes, sinks=sinks,
        max_seqlen_q=4096, return_lse=True, config=kernels.Sm90AttentionConfig(2, 128, **config),
    )  # fmt: skip
    for n in (1, 3, 4, 7, 44):
        rows = slice(*starts[n : n + 2].tolist())
        others = slice(rows.start, rows.start + int(used[n]))
        check((got[0][rows], got[1][:, rows]), exact(q[rows], k[others], v[others], causal, slopes=slopes, sinks=sinks))


@hopper
@pytest.mark.parametrize("page", [1, 16, 128, 256])
def test_pages_of_packed_queries(page):
    """Of packed queries; pages of one row are laid in succession first; other rows of pages are no numbers."""
    lengths, used = [300, 1, 777], [2000, 1, 1500]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    count = -(-2048 // page)
    k, v = (torch.full((4 * count, page, 2, 128), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    table = torch.randperm(4 * count, device="cuda")[: 3 * count].reshape(3, count).int()
    dense = []
    for n, length in enumerate(used):
        rows = torch.arange(length, device="cuda")
        place = table[n].long()[rows // page], rows % page
        k[place], v[place] = normal(length, 2, 128), normal(length, 2, 128)
        dense.append((k[place], v[place]))
    q = normal(sum(lengths), 8, 128)
    got = kernels.flash_attention(
        q, k, v, causal=True, cu_seqlens_q=starts, page_table=table, max_seqlen_q=777, return_lse=True,
        seqused_k=torch.tensor(used, dtype=torch.int32, device="cuda"),
    )  # fmt: skip
    for n in range(3):
        rows = slice(*starts[n : n + 2].tolist())
        check((got[0][rows], got[1][:, rows]), exact(q[rows], *dense[n], causal=True))


DESCALES = ("q_descale", "k_descale", "v_descale")


def check_8_bits(got: Any, q: Any, k: Any, v: Any, factors: Any, causal: bool, **options: Any) -> None:
    """Of one sequence: weights are rounded, so that outputs are within a 14th of the sum of weight times |value|.

    Those below 2^-11 of the largest, which have fewer bits, change by at most 2^-15 of it. It is no more than the root of the sum of their squares.
    """
    keys = k.double() * (factors[0] * factors[1])[:, None]
    values = v.double() * factors[2][:, None]
    wanted, logarithms = exact(q, keys, values, causal, **options)
    largest = torch.ones_like(logarithms)
    if not options:
        largest = (exact(2 * q.double(), keys, values, causal)[1] / 2 - logarithms).exp().nan_to_num(0.0)
    lost = largest.T[..., None] * values.abs().sum(0).repeat_interleave(q.shape[1] // k.shape[1], 0) * 2.0**-15
    assert ((got[0].double() - wanted).abs() <= exact(q, keys, values.abs(), causal, **options)[0] / 14 + lost).all()
    torch.testing.assert_close(got[1].double(), logarithms, rtol=2e-3, atol=2e-3)


@hopper
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_floats_of_8_bits(dim, causal):
    q, k, v = (normal(2, 1500, n, dim).to(torch.float8_e4m3fn) for n in (4, 2, 2))
    factors = [1 + torch.rand(2, 2, device="cuda") for _ in range(3)]
    out, lse = kernels.flash_attention(
        q, k, v, causal=causal, return_lse=True, **dict(zip(DESCALES, factors, strict=True))
    )
    for n in range(2):
        check_8_bits((out[n], lse[n]), q[n], k[n], v[n], [x[n] for x in factors], causal)


@hopper
def test_sequences_of_8_bits():
    """Whose last keys are no numbers; what is laid for one has nothing of the next."""
    lengths = [1, 1000, 0, 257, 2049, *[130] * 40]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    used = torch.tensor([max(0, n - 5) for n in lengths], dtype=torch.int32, device="cuda")
    q, k, v = (normal(sum(lengths), n, 128).to(torch.float8_e4m3fn) for n in (8, 2, 2))
    for end in starts[1:].tolist():
        v[max(0, end - 5) : end] = k[max(0, end - 5) : end] = torch.full((), float("nan"), dtype=v.dtype, device="cuda")
    factors = [1 + torch.rand(len(lengths), 2, device="cuda") for _ in range(3)]
    out, lse = kernels.flash_attention(
        q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, seqused_k=used, max_seqlen_q=2049, return_lse=True,
        **dict(zip(DESCALES, factors, strict=True)),
    )  # fmt: skip
    for n in (1, 3, 4, 7, 44):
        rows = slice(*starts[n : n + 2].tolist())
        others = slice(rows.start, rows.start + int(used[n]))
        check_8_bits((out[rows], lse[:, rows]), q[rows], k[others], v[others], [x[n] for x in factors], True)


@hopper
@pytest.mark.parametrize("page", [1, 16, 64, 256])
def test_pages_of_8_bits(page):
    """Other rows of pages are no numbers."""
    used, count = [2000, 1, 1500], -(-2048 // page)
    q = normal(3, 300, 8, 128).to(torch.float8_e4m3fn)
    k, v = (torch.full((4 * count, page, 2, 128), float("nan"), device="cuda").to(q.dtype) for _ in range(2))
    table = torch.randperm(4 * count, device="cuda")[: 3 * count].reshape(3, count).int()
    dense = []
    for n, length in enumerate(used):
        rows = torch.arange(length, device="cuda")
        place = table[n].long()[rows // page], rows % page
        dense.append([normal(length, 2, 128).to(q.dtype) for _ in range(2)])
        for cache, x in zip((k, v), dense[n], strict=True):
            cache.view(torch.uint8)[place] = x.view(torch.uint8)
    lengths = torch.tensor(used, dtype=torch.int32, device="cuda")
    out, lse = kernels.flash_attention(q, k, v, page_table=table, seqused_k=lengths, return_lse=True)
    for n in range(3):
        keys, values = dense[n]
        check_8_bits((out[n], lse[n]), q[n], keys, values, [torch.ones(2, device="cuda")] * 3, False)


@hopper
@pytest.mark.parametrize(("dim", "page", "queries"), [(64, 1, 1), (128, 16, 16), (256, 64, 3)])
def test_few_queries_of_caches_of_8_bits(dim, page, queries):
    """Of 16 bits and of 8; other rows of pages are no numbers. Outputs are as exact as with keys and values of 16 bits."""
    used, count = [5000, 1, 1500], -(-5120 // page)
    table = torch.randperm(4 * count, device="cuda")[: 3 * count].reshape(3, count).int()
    k, v = (
        torch.full((4 * count, page, 2, dim), float("nan"), device="cuda").to(torch.float8_e4m3fn) for _ in range(2)
    )
    q, lengths = normal(3, queries, 8, dim).to(k.dtype), torch.tensor(used, dtype=torch.int32, device="cuda")
    factors = [1 + torch.rand(3, 2, device="cuda") for _ in range(2)]
    dense = []
    for n, length in enumerate(used):
        rows = torch.arange(length, device="cuda")
        place = table[n].long()[rows // page], rows % page
        dense.append([normal(length, 2, dim).to(k.dtype) for _ in range(2)])
        for cache, x in zip((k, v), dense[n], strict=True):
            cache.view(torch.uint8)[place] = x.view(torch.uint8)
    descale = {"k_descale": factors[0], "v_descale": factors[1]}
    wide = kernels.paged_attention(q.bfloat16(), k, v, table, lengths, causal=False, return_lse=True, **descale)
    narrow = kernels.flash_attention(
        q, k, v, page_table=table, seqused_k=lengths, return_lse=True, q_descale=torch.ones_like(factors[0]), **descale
    )
    for n, rows in enumerate(dense):
        keys, values = (x.double() * f[n, :, None] for x, f in zip(rows, factors, strict=True))
        for out, lse in (wide, narrow):
            check((out[n], lse[n]), exact(q[n].double(), keys, values, False))


@hopper
@pytest.mark.parametrize("dim", [64, 128])
def test_a_function_of_scores(dim):
    def far(s, b, h, q, k):
        return s + 0.01 * (b + 1) * h if q >= k else s * 0.5

    q, k, v = normal(2, 700, 4, dim), *(normal(2, 900, 2, dim) for _ in range(2))
    got = kernels.flash_attention(q, k, v, score=far, return_lse=True)
    places = torch.arange(700, device="cuda")[:, None], torch.arange(900, device="cuda")[None]
    for n in range(2):
        for head in range(4):
            a, b, c = (x[n, :, i].double() for x, i in ((q, head), (k, head // 2), (v, head // 2)))
            s = a @ b.T * dim**-0.5
            s = torch.where(places[0] >= places[1], s + 0.01 * (n + 1) * head, s * 0.5)
            wanted = (torch.softmax(s, -1) @ c)[:, None], torch.logsumexp(s, -1)[None]
            check((got[0][n, :, head : head + 1], got[1][n, head : head + 1]), wanted)


@hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("dims", "page"), [((64, 64), 0), ((128, 128), 16), ((192, 128), 1), ((256, 256), 0)])
def test_all_options_at_once(dims, page, dtype):
    """A window, a cap, slopes, a function, sinks, factors, for sequences of which not all keys exist, one after another or in pages."""
    lengths, used = [300, 0, 777, 130], [1000, 5, 1500, 77]
    starts, starts_k = (torch.tensor([0, *n], device="cuda").cumsum(0).int() for n in (lengths, [n + 5 for n in used]))
    q = normal(sum(lengths), 8, dims[0]).to(dtype)
    rows = [[normal(n, 2, dim).to(dtype) for n in used] for dim in dims]
    more: dict[str, Any] = {"cu_seqlens_k": starts_k}
    k, v = (torch.full((sum(used) + 20, 2, dim), float("nan"), device="cuda").to(dtype) for dim in dims)
    if page:
        count = -(-2000 // page)
        k, v = (torch.full((5 * count, page, 2, dim), float("nan"), device="cuda").to(dtype) for dim in dims)
        more = {"page_table": torch.randperm(5 * count, device="cuda", dtype=torch.int32)[: 4 * count].view(4, count)}
    for to, each in zip((k, v), rows, strict=True):
        for n, x in enumerate(each):
            at = torch.arange(len(x), device="cuda")
            place = (more["page_table"][n][at // page].long(), at % page) if page else (at + int(starts_k[n]),)
            to.view(torch.uint8)[place] = x.view(torch.uint8)
    narrow = dtype.itemsize == 1
    factors = [1 + torch.rand(4, 2, device="cuda") for _ in range(3)]
    slopes, sinks = 0.01 * torch.rand(8, device="cuda"), torch.randn(8, device="cuda")
    options: dict[str, Any] = {"window": (400, 90), "softcap": 9.0, "sinks": sinks}
    out, lse = kernels.flash_attention(
        q, k, v, cu_seqlens_q=starts, seqused_k=torch.tensor(used, dtype=torch.int32, device="cuda"), max_seqlen_q=777, return_lse=True,
        alibi_slopes=slopes, score=lambda s, b, h, q, k: s + 0.1 * h if q > k else s * 0.5, **options, **more,
        **(dict(zip(DESCALES, factors, strict=True)) if narrow else {}),
    )  # fmt: skip
    options |= {"slopes": slopes, "score": lambda s, h, q, k: torch.where(q > k, s + 0.1 * h, s * 0.5)}
    for n in (0, 2, 3):
        own, keys, values = slice(*starts[n : n + 2].tolist()), rows[0][n], rows[1][n]
        got = out[own], lse[:, own]
        if narrow:
            check_8_bits(got, q[own], keys, values, [x[n] for x in factors], False, **options)
        else:
            check(got, exact(q[own], keys, values, **options))


@hopper
def test_warp_groups_of_heads_that_are_one_and_the_same():
    """And of values of another size."""
    q, k, v = normal(2, 500, 4, 192), normal(2, 600, 1, 192), normal(2, 600, 1, 128)
    wanted = [exact(q[n], k[n], v[n], causal=True) for n in range(2)]
    k, v = (x.expand(2, 600, 4, x.shape[3]) for x in (k, v))
    config = kernels.Sm90AttentionConfig(2, 96)
    outputs, logarithms = kernels.flash_attention(q, k, v, causal=True, return_lse=True, config=config)
    for n in range(2):
        check((outputs[n], logarithms[n]), wanted[n])


@hopper
def test_warp_groups_where_queries_see_nothing():
    q, k, v = normal(1, 1500, 3, 128), *(normal(1, 300, 3, 128) for _ in range(2))
    got = kernels.flash_attention(q, k, v, causal=True, return_lse=True, config=kernels.Sm90AttentionConfig())
    check((got[0][0], got[1][0]), exact(q[0], k[0], v[0], causal=True))


def test_full_size():
    """The last queries, which see most keys, of every head; and the same twice."""
    q, k, v = (normal(2, 8192, 8, 128) for _ in range(3))
    outputs, logarithms = kernels.flash_attention(q, k, v, causal=True, return_lse=True)
    again = kernels.flash_attention(q, k, v, causal=True)
    assert torch.equal(outputs, again)
    for n in range(2):
        wanted = exact(q[n, -300:], k[n], v[n], causal=True)
        check((outputs[n, -300:], logarithms[n, :, -300:]), wanted)


@pytest.mark.parametrize("queries", [512, 1])
def test_in_a_graph(queries):
    q, k, v = normal(1, queries, 2, 64), *(normal(1, 5000, 2, 64) for _ in range(2))
    out = torch.zeros_like(q)
    wanted = kernels.flash_attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.flash_attention(q, k, v, out=out)
    assert not out.any()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("size", [1, 16, 24, 64, 256])
@pytest.mark.parametrize("queries", [1, 4, 16])
def test_pages(size, queries):
    """What is in pages gives the same as what is not, bit for bit; rows that do not exist hold NaN."""
    lengths = torch.tensor([9000, 17, 0, 4097], dtype=torch.int32, device="cuda")
    q, columns = normal(4, queries, 32, 128), -(-9000 // size)
    k, v = (torch.full((4 * columns, size, 8, 128), float("nan"), device="cuda", dtype=q.dtype) for _ in range(2))
    table = torch.randperm(4 * columns, device="cuda", dtype=torch.int32).view(4, columns)
    rows = [normal(4, 9000, 8, 128) for _ in range(2)]
    for n, length in enumerate(lengths.tolist()):
        at = torch.arange(length, device="cuda")
        for cache, x in zip((k, v), rows, strict=True):
            cache[table[n, at // size].long(), at % size] = x[n, :length]
    config = kernels.explain(kernels.paged_attention, q, k, v, table, lengths, max_length=9000).config
    got = kernels.paged_attention(q, k, v, table, lengths, max_length=9000, return_lse=True)
    wanted = kernels.flash_attention(q, *rows, causal=True, seqused_k=lengths, return_lse=True, config=config)
    assert all(map(torch.equal, got, wanted))
