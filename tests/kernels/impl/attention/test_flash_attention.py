"""Attention against float64, on the CPU target: masks, heads, lengths, types, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_testing import close, exact, normal

import kiln
from kiln import kernels
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import REGISTRY, AttentionProblem
from kiln.kernels.impl.attention.fwd.sm80_cost import default_config

SMALL = kernels.Sm80AttentionConfig(16, 16, 1, 1)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def check(q: np.ndarray, k: np.ndarray, v: np.ndarray, config: Any = SMALL, **options: Any) -> None:
    close(kernels.flash_attention(q, k, v, return_lse=True, config=config, **options), exact(q, k, v, **options))


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["full", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 33), (16, 16), (17, 50), (50, 17), (64, 64)])
def test_lengths(queries, keys, options):
    """With `causal` and more queries than keys the first see nothing: they get zeros, and -inf."""
    check(normal(1, queries, 1, 32), normal(1, keys, 1, 32), normal(1, keys, 1, 32), **options)


@pytest.mark.parametrize("window", [(0, 0), (5, 9), (20, None), (None, 3), (-1, 40)])
def test_windows(window):
    q, k, v = normal(1, 40, 1, 32), normal(1, 52, 1, 32), normal(1, 52, 1, 32)
    got = kernels.flash_attention(q, k, v, window=window, return_lse=True, config=SMALL)
    close(got, exact(q, k, v, window=tuple(None if x == -1 else x for x in window)))


def test_a_causal_window():
    check(normal(1, 60, 1, 32), normal(1, 60, 1, 32), normal(1, 60, 1, 32), causal=True, window=(18, None))


@pytest.mark.parametrize("heads_k", [1, 2, 4])
def test_queries_share_keys(heads_k):
    check(normal(2, 20, 4, 32), normal(2, 20, heads_k, 32), normal(2, 20, heads_k, 32))


@pytest.mark.parametrize(("dim", "dim_v"), [(8, 8), (40, 24), (64, 32)])
def test_head_dimensions(dim, dim_v):
    check(normal(1, 20, 1, dim), normal(1, 36, 1, dim), normal(1, 36, 1, dim_v))


@pytest.mark.quick(0)
def test_each_column_is_rounded_where_it_is(monkeypatch):
    """Optimized: LLVM's code for rounding 48 elements to f16 at once took some of them from other places."""
    monkeypatch.setenv("KILN_CPU_OPT", "2")
    q, v = np.zeros((1, 16, 1, 96), np.float16), np.empty((1, 64, 1, 96), np.float16)
    v[:] = np.arange(96)
    out = kernels.flash_attention(q, np.zeros_like(v), v, config=kernels.Sm80AttentionConfig(16, 64, 1, 4))
    assert (out == np.arange(96)).all()


def test_bfloat16():
    q, k, v = (normal(1, 40, 1, 32, dtype=ml_dtypes.bfloat16) for _ in range(3))
    check(q, k, v, causal=True)


@pytest.mark.parametrize("scale", [1.7, 1.0, 0.5, 0.3, 0.2, 0.125, 0.11, 0.07])
def test_scales(scale):
    """Queries that see nothing of the first block, with every rounding of the scale."""
    check(normal(1, 40, 1, 32), normal(1, 40, 1, 32), normal(1, 40, 1, 32), scale=scale, causal=True)


def test_softcap():
    check(2 * normal(1, 20, 1, 32), 2 * normal(1, 40, 1, 32), normal(1, 40, 1, 32), softcap=3.0, causal=True)


def test_several_warps_and_tiles_of_a_warp():
    config = kernels.Sm80AttentionConfig(64, 32, 2, 1)
    check(normal(1, 90, 1, 32), normal(1, 90, 1, 32), normal(1, 90, 1, 32), config, causal=True)


@pytest.mark.parametrize("growth", [0.1, 3.0])
def test_maxima_that_grow(growth):
    """Scores that rise from key to key, slowly and fast: earlier sums are scaled again and again."""
    q = np.ones((1, 16, 1, 32), np.float16)
    k = (np.arange(96)[::-1] * growth / 32).astype(np.float16)[None, :, None, None] * np.ones((32,), np.float16)
    check(q, k, normal(1, 96, 1, 32), scale=1.0)


def test_large_scores():
    check(60 * normal(1, 40, 1, 32), 60 * normal(1, 40, 1, 32), normal(1, 40, 1, 32), scale=1.0)


def test_arrays_of_torch():
    """Without gradients, which are not computed, strided, and in the place of the queries."""
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(2, 20, 3, 2, 32).bfloat16().unbind(2)
    wanted = exact(*(x.float().numpy() for x in (q, k, v)))
    got = kernels.flash_attention(q.clone().requires_grad_(), k, v, config=SMALL)
    assert not got.requires_grad
    assert torch.equal(kernels.flash_attention(q, k, v, out=q, config=SMALL), got)
    np.testing.assert_allclose(got.double().numpy(), wanted[0], rtol=2e-2, atol=2e-2)
    # heads that are one and the same
    k, v = (x[:, :, :1].expand(2, 20, 2, 32) for x in (k, v))
    got, lse = kernels.flash_attention(got, k, v, return_lse=True, config=SMALL)
    assert lse.dtype == torch.float32


def test_strided_views_and_out():
    qkv = normal(2, 20, 3, 2, 32)
    q, k, v = (qkv[:, :, i] for i in range(3))
    out = np.zeros((2, 2, 20, 32), np.float16).swapaxes(1, 2)
    assert kernels.flash_attention(q, k, v, out=out, config=SMALL) is out
    np.testing.assert_allclose(out.astype(np.float64), exact(q, k, v)[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_of_any_length(causal):
    queries, keys = [5, 0, 33, 16], [7, 20, 40, 0]
    starts_q, starts_k = (np.cumsum([0, *n]).astype(np.int32) for n in (queries, keys))
    q, k, v = normal(sum(queries), 2, 32), normal(sum(keys), 1, 32), normal(sum(keys), 1, 32)
    longest = {} if causal else {"max_seqlen_q": 33}
    out, lse = kernels.flash_attention(
        q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, causal=causal, return_lse=True, config=SMALL, **longest
    )
    assert lse.shape == (2, sum(queries))
    for n in range(4):
        rows, others = (slice(*s[n : n + 2]) for s in (starts_q, starts_k))
        wanted, logarithms = exact(q[None, rows], k[None, others], v[None, others], causal)
        close((out[rows][None], lse[:, rows][None]), (wanted, logarithms))


# --- few queries ---

PARTS = kernels.Sm80AttentionConfig(16, 16, 1, 1, num_splits=3, pack_gqa=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("queries", "heads", "heads_k", "num_splits", "options"),
    [
        (1, 4, 1, 3, {}),
        (7, 6, 2, 3, {"causal": True, "window": (30, 0)}),
        (7, 6, 2, 1, {"causal": True, "window": (30, 0)}),
        (9, 8, 2, 2, {"window": (20, 3)}),
        (3, 2, 2, 4, {"causal": True}),
    ],
)
def test_heads_in_one_tile_and_keys_in_parts(queries, heads, heads_k, num_splits, options):
    config = dataclasses.replace(PARTS, num_splits=num_splits)
    k, v = normal(2, 100, heads_k, 32), normal(2, 100, heads_k, 32)
    check(normal(2, queries, heads, 32), k, v, config, **options)


def test_more_parts_than_steps_and_queries_that_see_nothing():
    q, k, v = normal(1, 20, 4, 32), normal(1, 18, 2, 32), normal(1, 18, 2, 32)
    check(q, k, v, dataclasses.replace(PARTS, num_splits=9), causal=True)


def test_parts_of_other_head_dimensions():
    config = kernels.Sm80AttentionConfig(32, 32, 2, 1, num_splits=2, pack_gqa=True)
    check(normal(1, 9, 4, 24), normal(1, 100, 1, 24), normal(1, 100, 1, 40), config, causal=True)


def test_parts_of_sequences():
    """With rows before, between and after the sequences that belong to none: they are left alone."""
    starts_q, starts_k = np.array([2, 3, 3, 9], np.int32), np.array([0, 50, 60, 130], np.int32)
    q, k, v = normal(12, 4, 32), normal(130, 2, 32), normal(130, 2, 32)
    out = np.full_like(q, 7.0)
    _, lse = kernels.flash_attention(
        q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, causal=True, out=out, return_lse=True, config=PARTS
    )
    assert (out[:2] == 7.0).all()
    assert (out[9:] == 7.0).all()
    for n in (0, 2):
        rows, others = (slice(*s[n : n + 2]) for s in (starts_q, starts_k))
        wanted = exact(q[None, rows], k[None, others], v[None, others], causal=True)
        close((out[rows][None], lse[:, rows][None]), wanted)


@pytest.mark.parametrize("config", [SMALL, PARTS], ids=["whole", "parts"])
def test_a_cache_that_is_being_filled(config):
    """What is not in use has no influence: queries are aligned with the last key in use."""
    q, k, v = normal(3, 2, 4, 32), normal(3, 70, 2, 32), normal(3, 70, 2, 32)
    used = np.array([70, 0, 33], np.int32)
    for n, length in enumerate(used):
        k[n, length:] = v[n, length:] = np.nan
    out, lse = kernels.flash_attention(q, k, v, causal=True, seqused_k=used, return_lse=True, config=config)
    for n, length in enumerate(used):
        rows = slice(n, n + 1)
        close((out[rows], lse[rows]), exact(q[rows], k[rows, :length], v[rows, :length], causal=True))


@pytest.mark.parametrize("config", [SMALL, PARTS], ids=["whole", "parts"])
def test_slopes_sinks_and_a_function_of_scores(config):
    """Sinks count once, and may be above all scores or none."""
    q, k, v = normal(2, 5, 6, 32), normal(2, 50, 2, 32), normal(2, 50, 2, 32)
    options = {
        "alibi_slopes": np.arange(12, dtype=np.float32).reshape(2, 6) / 20,
        "sinks": np.float32([3, -1, 200, -np.inf, 0, 2]),
        "score": lambda s, b, h, q, k: s * 0.5 - (q - k) * 0.01 * (h + 1) + b,
    }
    check(q, k, v, config, causal=True, softcap=5.0, **options)


def test_every_part_counts_as_its_sum_does():
    """Scores of which those of one part, another for each query, are far above all others."""
    k = np.zeros((1, 96, 1, 32), np.float16)
    k[0, np.arange(96), 0, np.arange(96) // 16] = 30.0
    q = 4 * np.eye(6, 32, dtype=np.float16)[None, :, None]
    check(q, k, normal(1, 96, 1, 32), dataclasses.replace(PARTS, num_splits=6), scale=1.0)


def test_the_plan_cuts_keys_where_blocks_are_few():
    hopper = device_of("sm_90a")
    serving = AttentionProblem(1, 1, 32768, 32, 8, 128, 128)
    few = default_config(serving, hopper)
    assert few.pack_gqa
    assert 0.9 * 132 <= 8 * few.num_splits <= 132 * 8
    assert default_config(dataclasses.replace(serving, seqlen_k=64), hopper).num_splits == 1
    training = default_config(AttentionProblem(4, 8192, 8192, 16, 16, 128, 128), hopper)
    assert (training.num_splits, training.pack_gqa) == (1, False)


def test_problems_count_what_is_seen():
    problem = AttentionProblem(3, 5, 9, 4, 2, 32, 64)
    assert problem.visible_pairs == 5 * 9
    assert dataclasses.replace(problem, window_right=0).visible_pairs == 5 + 6 + 7 + 8 + 9
    assert dataclasses.replace(problem, window_left=1, window_right=0).visible_pairs == 5 * 2
    assert (
        dataclasses.replace(problem, seqlen_k=2, window_right=0).visible_pairs == 1 + 2
    )  # the last query is aligned with the last key
    assert problem.flops == 2 * 3 * 4 * 5 * 9 * (32 + 64)
    assert problem.bytes == 3 * 2 * (32 + 64) * (5 * 4 + 9 * 2)
    assert dataclasses.replace(problem, return_lse=True).bytes == problem.bytes + 4 * 3 * 4 * 5


def test_plans_are_for_tuners():
    problem, device = AttentionProblem(1, 1, 32768, 32, 8, 128, 128), device_of("sm_90a")
    choices = REGISTRY.choices(problem, device)
    assert REGISTRY.choose(problem, device).config == default_config(problem, device)
    assert len({choice.config for choice in choices}) == len(choices) > 3
    for choice in choices:
        choice.implementation.check(problem, choice.config, device)
        assert choice.cost > 0


@pytest.mark.parametrize("packed", [False, True])
def test_more_sequences_than_a_grid_has(packed, monkeypatch):
    monkeypatch.setattr("kiln.kernels.impl.attention.flash_attention.MAX_GRID_Z", 2)
    q, k, v = normal(5, 3, 2, 32), normal(5, 20, 1, 32), normal(5, 20, 1, 32)
    wanted = exact(q, k, v)
    if not packed:
        close(kernels.flash_attention(q, k, v, return_lse=True, config=SMALL), wanted)
        return
    starts = {"cu_seqlens_q": np.arange(6, dtype=np.int32) * 3, "cu_seqlens_k": np.arange(6, dtype=np.int32) * 20}
    rows = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    out, lse = kernels.flash_attention(*rows, **starts, return_lse=True, config=SMALL)
    close((out.reshape(q.shape), lse.reshape(2, 5, 3).swapaxes(0, 1)), wanted)


def test_nothing_to_do():
    assert kernels.flash_attention(normal(0, 8, 2, 32), normal(0, 8, 2, 32), normal(0, 8, 2, 32)).shape == (0, 8, 2, 32)
    out, lse = kernels.flash_attention(
        normal(1, 3, 1, 32), normal(1, 0, 1, 32), normal(1, 0, 1, 32), return_lse=True, config=SMALL
    )
    assert (out == 0).all()
    assert (lse == -np.inf).all()
    starts = {"cu_seqlens_q": np.array([0, 2, 5], np.int32), "cu_seqlens_k": np.zeros(3, np.int32)}
    out, lse = kernels.flash_attention(
        normal(5, 1, 32), normal(4, 1, 32), normal(4, 1, 32), max_seqlen_q=3, max_seqlen_k=0, return_lse=True, **starts
    )
    assert (out == 0).all()
    assert (lse == -np.inf).all()


def test_what_is_not_seen_does_not_matter():
    """Not even if it is no number."""
    q, k, v = normal(1, 20, 1, 32), normal(1, 40, 1, 32), normal(1, 40, 1, 32)
    wanted = exact(q[:, :, :], k[:, :30], v[:, :30])
    k[:, 30:] = v[:, 30:] = np.nan
    starts = np.array([0, 20], np.int32), np.array([0, 30], np.int32)
    got = kernels.flash_attention(
        q[0], k[0], v[0], cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], return_lse=True, config=SMALL
    )
    close((got[0][None], got[1][None]), wanted)


@pytest.mark.quick(0)
@pytest.mark.parametrize("seed", [0, 7])
def test_clean_under_the_sanitizer(seed, monkeypatch):
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    config = kernels.Sm80AttentionConfig(32, 16, 2, 1)
    with kiln.sanitize():
        check(normal(1, 40, 1, 32), normal(1, 50, 1, 32), normal(1, 50, 1, 32), config, causal=True)
        config = kernels.Sm80AttentionConfig(32, 16, 2, 1, num_splits=2, pack_gqa=True)
        check(normal(1, 9, 4, 32), normal(1, 50, 2, 32), normal(1, 50, 2, 32), config, causal=True)


X = np.zeros((1, 16, 2, 32), np.float16)
T = kernels.Sm80AttentionConfig
REFUSED = [
    (lambda: kernels.flash_attention(X[0], X, X), r"\(batch, rows, heads, D\)"),
    (lambda: kernels.flash_attention(X, None, X), "k is None"),
    (lambda: kernels.flash_attention([1], [2], [3]), "no arrays"),
    (lambda: kernels.flash_attention(X, X[:, ::-1], X), "negative strides"),
    (lambda: kernels.flash_attention(X, X, X, out=np.broadcast_to(X.copy(), X.shape)), "out is read-only"),
    (lambda: kernels.flash_attention(X, X, X, window=5), "keys before, keys after"),
    (lambda: kernels.flash_attention(X, X, X, scale=float("nan")), "scale is nan; it must be positive"),
    (
        lambda: kernels.flash_attention(X, X, X, seqused_k=np.zeros(2, np.int32)),
        r"seqused_k is int32 of shape \(2,\).* for 1 sequences",
    ),
    (lambda: kernels.flash_attention(X, X, X, config=(16, 16)), "config is tuple"),
    (lambda: kernels.flash_attention(X, X, X, config=T(16, 16, 1, 1, num_splits=257)), "num_splits must be 1 to 256"),
    (lambda: kernels.flash_attention(X, X[:, :8], X), "agree"),
    (lambda: kernels.flash_attention(X, X[..., :16], X), "D of q and K"),
    (lambda: kernels.flash_attention(X, X[:, :, [0, 1, 1]], X[:, :, [0, 1, 1]]), "q has 2 heads and k has 3"),
    (lambda: kernels.flash_attention(*[np.zeros((1, 4, 1, 12), np.float16)] * 3), "multiple of 8, up to 256"),
    (lambda: kernels.flash_attention(*[np.zeros((1, 4, 1, 264), np.float16)] * 3), "multiple of 8, up to 256"),
    (lambda: kernels.flash_attention(*[X.astype(np.float32)] * 3), "q is float32; it must be float16 or bfloat16"),
    (
        lambda: kernels.flash_attention(X, X.astype(ml_dtypes.bfloat16), X),
        "q is float16, k is bfloat16 and v is float16",
    ),
    (lambda: kernels.flash_attention(X, X, X, window=(-2, 0)), "at least 0, or -1"),
    (lambda: kernels.flash_attention(X, X, X, scale=0.0), "scale is 0.0; it must be positive"),
    (lambda: kernels.flash_attention(X, X, X, softcap=-1.0), "softcap is -1.0"),
    (lambda: kernels.flash_attention(X, X, X, score=0.5), "score is 0.5; it must be a function"),
    (lambda: kernels.flash_attention(X, X, X, score=lambda s: s), "score must take a score, its sequence"),
    (lambda: kernels.flash_attention(X, X, X, score=lambda s, *_: None), "score returned None"),
    (
        lambda: kernels.flash_attention(X, X, X, sinks=np.zeros(3, np.float32)),
        r"sinks is float32 of shape \(3,\); it must be a contiguous array of float32, \(2,\)",
    ),
    (lambda: kernels.flash_attention(X, X, X, alibi_slopes=np.zeros(2)), "alibi_slopes"),
    (
        lambda: kernels.flash_attention(X, X, X, out=X[:, :8].copy()),
        r"out is float16 of shape \(1, 8, 2, 32\); it must be float16 of shape",
    ),
    (lambda: kernels.flash_attention(X[0], X[0], X[0], cu_seqlens_q=np.zeros(2, np.int32)), "one of cu_seqlens"),
    (
        lambda: kernels.flash_attention(X[0], X[0], X[0], cu_seqlens_q=np.zeros(2), cu_seqlens_k=np.zeros(2)),
        r"cu_seqlens_q is float64 of shape \(2,\)",
    ),
    (lambda: kernels.flash_attention(X, X, X[:, :, :, ::2].repeat(2, 3)[:, :, :, ::2]), "contiguous"),
    (
        lambda: kernels.flash_attention(*[np.zeros((1, 16, 2, 36), np.float16)[..., 4:]] * 3),
        "begin at multiples of 16 bytes",
    ),
    (
        lambda: kernels.flash_attention(X, X, X, config=T(24, 16, 1, 1)),
        "tile_m must be a multiple of 16, 16 rows for each warp",
    ),
    (lambda: kernels.flash_attention(X, X, X, config=T(64, 8, 4, 1)), "tile_n must be a multiple of 16"),
    (lambda: kernels.flash_attention(X, X, X, config=T(64, 16, 4, 1)), "32 rows that 128 threads copy"),
    (lambda: kernels.flash_attention(X, X, X, config=T(1056, 16, 33, 1)), "warps must be 1 to 32"),
    (lambda: kernels.flash_attention(X, X, X, config=T(128, 512, 4, 1)), "registers of a thread"),
    (lambda: kernels.flash_attention(X, X, X, config=T(128, 64, 4, 4)), "registers of a thread"),
    (
        lambda: kernels.flash_attention(*[np.zeros((1, 16, 1, 256), np.float16)] * 3, config=T(128, 96, 8, 1)),
        "bytes of shared memory for head_dim 256",
    ),
]


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_default_tilings_fit():
    for device in map(device_of, ("sm_86", "sm_80", "sm_90a")):
        for dim in range(8, 257, 8):
            for dim_v in (dim, 64, 256):
                for queries in (1, 20, 64, 1000):
                    problem = AttentionProblem(1, queries, 4096, 8, 2, dim, dim_v)
                    default_config(problem, device).check(dim, dim_v, device.smem)
