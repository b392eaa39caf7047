"""Attention by warp groups, as on Hopper: against float64 on the CPU target, and the machine code for GPUs that are not there."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_kinds import tensor_kinds
from attention_testing import RNG, close, exact, normal
from nvidia_testing import needs_nvdisasm
from sass import check_products

import kiln
from kiln import BFloat16, Float8E4M3FN, Float16, Float32, Int32, cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import REGISTRY, AttentionProblem
from kiln.kernels.impl.attention.args import AttentionScalars
from kiln.kernels.impl.attention.fwd import sm90, sm90_cost
from kiln.kernels.impl.attention.fwd.implementations import Sm90Attention
from kiln.kernels.impl.attention.fwd.sm90_config import Sm90AttentionConfig
from kiln.kernels.impl.attention.launch import compile_kernel
from kiln.kernels.impl.attention.score_mod import ScoreMod, check_score_mod

HOPPER = device_of("sm_90a")
ONE, TWO = Sm90AttentionConfig(1, 32), Sm90AttentionConfig(2, 32)


def check(q: np.ndarray, k: np.ndarray, v: np.ndarray, config: Any, **options: Any) -> None:
    with kiln.target("cpu"):
        got = kernels.flash_attention(q, k, v, return_lse=True, config=config, **options)
    close(got, exact(q, k, v, **options))


@pytest.fixture
def few_sms(monkeypatch):
    """A device on which blocks have several tiles."""
    few = dataclasses.replace(HOPPER, sm_count=3)
    monkeypatch.setattr("kiln.kernels.dispatch.devices.current", lambda: few)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (65, 31), (64, 100)])
def test_lengths(queries, keys):
    check(normal(1, queries, 1, 32), normal(1, keys, 1, 32), normal(1, keys, 1, 32), ONE, scale=0.3)


@pytest.mark.usefixtures("few_sms")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(200, 100), (130, 200), (129, 129)])
def test_causal(queries, keys, persistent):
    """Heads that share keys, tiles that see nothing (they get zeros, and -inf), several tiles of a block."""
    config = dataclasses.replace(TWO, persistent=persistent)
    check(normal(2, queries, 4, 32), normal(2, keys, 2, 32), normal(2, keys, 2, 32), config, causal=True)


@pytest.mark.parametrize("window", [(0, 0), (20, 9), (70, 64)])
def test_windows(window):
    """And caps, and heads of values that have another size; warp groups leave out blocks that only others see."""
    q, k, v = 2 * normal(1, 150, 1, 64), normal(1, 170, 1, 64), normal(1, 170, 1, 32)
    check(q, k, v, dataclasses.replace(TWO, pingpong=False), window=window, softcap=3.0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("tile_n", [128, 144])
def test_masks_of_many_keys(tile_n):
    """As many as a number has bits for, and more."""
    q, k, v = normal(1, 150, 1, 32), normal(1, 500, 1, 32), normal(1, 500, 1, 32)
    check(q, k, v, Sm90AttentionConfig(1, tile_n), window=(210, 9))


@pytest.mark.quick(0)
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (40, 9)}, {"window": (70, None)}], ids=str)
def test_masks_of_deep_heads(options):
    """Blocks that are masked and whole ones go through one loop: at both ends, at one of them; some rows see no key."""
    q, k, v = normal(1, 150, 2, 32), normal(1, 140, 1, 32), normal(1, 140, 1, 144)
    with kiln.sanitize():
        check(q, k, v, TWO, **options)


def test_bfloat16_in_another_layout():
    """Three warp groups, each when it is ready, that scale their sums in every step; heads before rows; outputs in the place of the queries."""
    config = Sm90AttentionConfig(3, 48, 3, pingpong=False, lazy_rescale=False)
    q, k, v = (normal(2, 2, 200, 80, dtype=ml_dtypes.bfloat16).swapaxes(1, 2) for _ in range(3))
    wanted = exact(q, k, v, causal=True)
    with kiln.target("cpu"):
        got = kernels.flash_attention(q, k, v, causal=True, out=q, return_lse=True, config=config)
    assert got[0] is q
    close(got, wanted)


def test_heads_that_are_one_and_the_same():
    k, v = (np.broadcast_to(normal(1, 40, 1, 32), (2, 40, 2, 32)) for _ in range(2))
    check(normal(2, 70, 2, 32), k, v, ONE)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("few_sms")
@pytest.mark.parametrize("config", [{}, {"dynamic_scheduler": True, "pack_gqa": True}], ids=str)
def test_sequences_of_any_length(config):
    """The last keys of each are not in use, and no numbers; slopes, sinks; rows before and after all sequences stay as they are."""
    queries, keys = [5, 0, 133, 16], [7, 20, 40, 3]
    starts_q, starts_k = (np.cumsum([3, *n]).astype(np.int32) for n in (queries, keys))
    q, k, v = normal(sum(queries) + 5, 4, 32), normal(sum(keys) + 3, 2, 32), normal(sum(keys) + 3, 2, 32)
    used = np.array([n - 3 for n in keys], np.int32)
    for end in starts_k[1:]:
        k[end - 3 : end] = v[end - 3 : end] = np.nan
    numbers = {"alibi_slopes": np.float32([0.1, 0.2, 0.0, 1.0]), "sinks": np.float32([0.5, -np.inf, 30.0, -1.0])}
    out = np.full_like(q, 7.0)
    with kiln.target("cpu"):
        _, lse = kernels.flash_attention(
            q, k, v, causal=True, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, seqused_k=used, out=out, return_lse=True,
            config=dataclasses.replace(TWO, **config), **numbers,
        )  # fmt: skip
    assert (out[:3] == 7.0).all()
    assert (out[-2:] == 7.0).all()
    for n in (0, 2, 3):
        rows, others = slice(*starts_q[n : n + 2]), slice(starts_k[n], starts_k[n] + used[n])
        wanted = exact(q[None, rows], k[None, others], v[None, others], causal=True, **numbers)
        close((out[rows][None], lse[:, rows][None]), wanted)


@pytest.mark.parametrize("starts", [([0, 5, 5], [0, 5, 5]), ([0, 0, 0], [0, 0, 0]), ([0, 70, 70, 70], [0, 0, 3, 70])])
def test_the_last_sequences_are_empty(starts):
    """What is computed of the tiles of a sequence that has none divides by nothing that is 0."""
    starts_q, starts_k = (np.array(x, np.int32) for x in starts)
    q, k, v = (normal(70, heads, 64) for heads in (2, 1, 1))
    out = np.full_like(q, 7.0)
    with kiln.target("cpu"):
        _, lse = kernels.flash_attention(
            q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, max_seqlen_q=70, out=out, return_lse=True, config=TWO
        )
    for n in range(len(starts_q) - 1):
        rows, keys = slice(*starts_q[n : n + 2]), slice(*starts_k[n : n + 2])
        if starts_q[n] < starts_q[n + 1]:
            close((out[rows][None], lse[None, :, rows]), exact(q[None, rows], k[None, keys], v[None, keys]))
    assert (out[starts_q[-1] :] == 7.0).all()


def test_a_cache_that_is_being_filled():
    """Few queries of heads that share keys are one tile."""
    q, k, v = normal(3, 5, 8, 32), normal(3, 70, 2, 32), normal(3, 70, 2, 32)
    used = np.array([70, 0, 33], np.int32)
    for n, length in enumerate(used):
        k[n, length:] = v[n, length:] = np.nan
    with kiln.target("cpu"):
        got = kernels.flash_attention(
            q, k, v, window=(30, 2), seqused_k=used, return_lse=True, config=dataclasses.replace(ONE, pack_gqa=True)
        )
    for n, length in enumerate(used):
        rows = slice(n, n + 1)
        wanted = exact(q[rows], k[rows, :length], v[rows, :length], window=(30, 2))
        close((got[0][rows], got[1][rows]), wanted)


def test_a_function_of_scores():
    """That branches, after a cap; queries in registers, and heads that are no multiples of 16 elements."""

    def changed(s, b, h, q, k):
        return s + 0.1 * h - b if q > k else s * 0.5 + k * 0.01

    def in_arrays(s, b, h, q, k):
        return np.where(q > k, s + 0.1 * h - b, s * 0.5 + k * 0.01)

    q, k, v = normal(2, 70, 2, 40), normal(2, 50, 1, 40), normal(2, 50, 1, 24)
    with kiln.target("cpu"):
        got = kernels.flash_attention(
            q, k, v, score=changed, softcap=2.0, return_lse=True, config=dataclasses.replace(ONE, q_in_regs=True)
        )
    close(got, exact(q, k, v, softcap=2.0, score=in_arrays))


FLOAT8 = ml_dtypes.float8_e4m3fn
FACTORS = ("q_descale", "k_descale", "v_descale")


def close_in_8_bits(got: Any, q: np.ndarray, k: np.ndarray, v: np.ndarray, factors: Any, **options: Any) -> None:
    """One sequence: outputs within a 14th of the sum of weight times |value|, and 2^-15 of that of |value|. Factors are of heads of keys."""
    keys = k.astype(np.float64) * (factors[0] * factors[1])[:, None]
    values = v.astype(np.float64) * factors[2][:, None]
    given = (q.astype(np.float64)[None], keys[None])
    wanted, logarithms = exact(*given, values[None], **options)
    lost = abs(values).sum(0).repeat(q.shape[1] // k.shape[1], 0) * 2.0**-15  # of weights below 2^-11 of the largest
    bound = exact(*given, abs(values)[None], **options)[0] / 14 + lost
    assert got[0].dtype == ml_dtypes.bfloat16
    assert (abs(got[0].astype(np.float64) - wanted[0]) <= bound[0]).all()
    np.testing.assert_allclose(got[1], logarithms[0], rtol=1e-3, atol=1e-3)


@pytest.mark.quick(0)
def test_floats_of_8_bits():
    """Weights are rounded to them; factors, a cap, values that do not exist and are no numbers."""
    q, k, v = (normal(2, n, heads, 32, dtype=np.float32).astype(FLOAT8) for n, heads in ((70, 4), (90, 2), (90, 2)))
    used = np.array([90, 37], np.int32)
    v[1, 37:] = np.nan
    factors = [np.float32(1.0 + RNG.random((2, 2))) for _ in FACTORS]
    options = {"causal": True, "softcap": 3.0}
    with kiln.target("cpu"):
        out, lse = kernels.flash_attention(
            q, k, v, seqused_k=used, return_lse=True, config=Sm90AttentionConfig(2, 32), **options,
            **dict(zip(FACTORS, factors, strict=True)),
        )  # fmt: skip
    for n, length in enumerate(used):
        rows = (q[n], k[n, :length], v[n, :length])
        close_in_8_bits((out[n], lse[n]), *rows, [x[n] for x in factors], **options)


@pytest.mark.quick(0)
def test_factors_of_8_bits_that_are_zero():
    """All keys that are seen weigh the same, others nothing."""
    q, k, v = (normal(1, n, heads, 32, dtype=np.float32).astype(FLOAT8) for n, heads in ((70, 4), (90, 2), (90, 2)))
    factors = [np.float32(1.0 + RNG.random((1, 2))) for _ in FACTORS]
    factors[1][0, 1] = factors[2][0, 0] = 0.0
    with kiln.target("cpu"):
        out, lse = kernels.flash_attention(
            q, k, v, causal=True, return_lse=True, config=Sm90AttentionConfig(2, 32), **dict(zip(FACTORS, factors, strict=True))
        )  # fmt: skip
    close_in_8_bits((out[0], lse[0]), q[0], k[0], v[0], [x[0] for x in factors], causal=True)


@pytest.mark.quick(0)
@pytest.mark.usefixtures("few_sms")
def test_sequences_of_8_bits():
    """Values of each are laid by themselves: those of the next, and those that are not in use, are no numbers."""
    queries, keys = [5, *[0] * 33, 133, 1, 70], [70, 20, *[1] * 32, 40, 3, 129]  # more than a warp has lanes
    starts_q, starts_k = (np.cumsum([0, *n]).astype(np.int32) for n in (queries, keys))
    starts_k += 7
    used = np.array([70, 20, *[1] * 32, 37, 3, 128], np.int32)
    q, k, v = (
        normal(n, heads, 32, dtype=np.float32).astype(FLOAT8)
        for n, heads in ((sum(queries), 4), (sum(keys) + 9, 2), (sum(keys) + 9, 2))
    )
    for n, length in enumerate(used):
        v[starts_k[n] + length : starts_k[n + 1]] = k[starts_k[n] + length : starts_k[n + 1]] = np.nan
    factors = [np.float32(1.0 + RNG.random((len(used), 2))) for _ in FACTORS]

    def run() -> Any:
        return kernels.flash_attention(
            q, k, v, causal=True, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, seqused_k=used, return_lse=True,
            config=Sm90AttentionConfig(2, 32, dynamic_scheduler=True), **dict(zip(FACTORS, factors, strict=True)),
        )  # fmt: skip

    with kiln.target("cpu"):
        out, lse = run()
        v[starts_k[1] : starts_k[34]] = np.nan  # neighbours of the others
        again = run()
    for n in (0, 34, 35, 36):
        rows, others = slice(*starts_q[n : n + 2]), slice(starts_k[n], starts_k[n] + used[n])
        close_in_8_bits((out[rows], lse[:, rows]), q[rows], k[others], v[others], [x[n] for x in factors], causal=True)
        assert np.array_equal(out[rows], again[0][rows])


@pytest.mark.quick(0)
def test_pages_of_8_bits():
    """Keys are copied from pages, values laid in order before; other rows of pages are no numbers."""
    page = 16
    starts, used = np.array([0, 5, 5, 75], np.int32), np.array([90, 0, 41], np.int32)
    count = 3 * (96 // page + 1)
    table = RNG.permutation(count + 6).astype(np.int32)[:count].reshape(3, -1)
    k, v = (np.full((count + 6, page, 2, 32), np.nan, np.float32).astype(FLOAT8) for _ in range(2))
    q, places = normal(75, 4, 32, dtype=np.float32).astype(FLOAT8), []
    for n, length in enumerate(used):
        places.append((table[n][np.arange(length) // page], np.arange(length) % page))
        k[places[n]], v[places[n]] = (normal(length, 2, 32, dtype=np.float32).astype(FLOAT8) for _ in range(2))
    with kiln.target("cpu"):
        out, lse = kernels.flash_attention(
            q, k, v, cu_seqlens_q=starts, seqused_k=used, page_table=table, causal=True, return_lse=True,
            config=Sm90AttentionConfig(1, 32),
        )  # fmt: skip
    for n in (0, 2):
        rows = slice(*starts[n : n + 2])
        close_in_8_bits((out[rows], lse[:, rows]), q[rows], k[places[n]], v[places[n]], np.ones((3, 2)), causal=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("page", [1, 24, 64])
def test_keys_in_pages(page):
    """Parts of several in a step, or a step a part of one; laid in succession first, those of one row; of packed queries; other rows of
    pages are no numbers."""
    starts, used = np.array([0, 5, 5, 75], np.int32), np.array([90, 0, 41], np.int32)
    count = 3 * (96 // page + 1)
    table = RNG.permutation(count + 6).astype(np.int32)[:count].reshape(3, -1)
    k, v = (np.full((count + 6, page, 2, dim), np.nan, np.float16) for dim in (32, 48))
    dense = []
    for n, length in enumerate(used):
        rows = table[n][np.arange(length) // page], np.arange(length) % page
        k[rows], v[rows] = normal(length, 2, 32), normal(length, 2, 48)
        dense.append((k[rows][None], v[rows][None]))
    q = normal(75, 4, 32)
    with kiln.target("cpu"):
        out, lse = kernels.flash_attention(
            q, k, v, cu_seqlens_q=starts, seqused_k=used, page_table=table, causal=True, return_lse=True, config=ONE
        )
    for n in (0, 2):
        rows = slice(*starts[n : n + 2])
        close((out[None, rows], lse[None, :, rows]), exact(q[None, rows], *dense[n], causal=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("dtype", "page"), [(np.float16, 0), (FLOAT8, 4)])
def test_all_options_at_once(dtype, page):
    """A window, a cap, slopes, a function, sinks, factors, for sequences of which not all keys exist; values of another size."""
    starts, used = np.array([0, 9, 100], np.int32), np.array([20, 77], np.int32)
    q = normal(100, 4, 64, dtype=np.float32).astype(dtype)
    rows = [[normal(n, 2, dim, dtype=np.float32).astype(dtype) for n in used] for dim in (64, 32)]
    lengths = {"cu_seqlens_q": starts, "seqused_k": used}
    if page:
        k, v = (np.full((80, page, 2, dim), np.nan, np.float32).astype(dtype) for dim in (64, 32))
        lengths["page_table"] = table = RNG.permutation(80).astype(np.int32).reshape(2, 40)
        for to, each in ((k, rows[0]), (v, rows[1])):
            for n, x in enumerate(each):
                to[table[n][np.arange(len(x)) // page], np.arange(len(x)) % page] = x
    else:
        k, v = (np.concatenate([x[0], np.full_like(x[0][:5], np.nan), x[1]]) for x in rows)
        lengths["cu_seqlens_k"] = np.array([0, 25, 102], np.int32)
    factors = [np.float32(1.0 + RNG.random((2, 2))) if page else np.ones((2, 2)) for _ in FACTORS]
    options: dict[str, Any] = {
        "window": (40, 9), "softcap": 3.0, "alibi_slopes": np.float32([0.1, 0.0, 0.2, 0.05]), "sinks": np.float32([0.5, -1.0, 2.0, -np.inf])
    }  # fmt: skip
    with kiln.target("cpu"):
        out, lse = kernels.flash_attention(
            q, k, v, score=lambda s, b, h, q, k: s + 0.1 * h if q > k else s * 0.5, return_lse=True, config=ONE, **options, **lengths,
            **(dict(zip(FACTORS, factors, strict=True)) if page else {}),
        )  # fmt: skip
    options["score"] = lambda s, b, h, q, k: np.where(q > k, s + 0.1 * h, s * 0.5)
    for n in range(2):
        own, keys, values = slice(*starts[n : n + 2]), rows[0][n], rows[1][n]
        if page:
            close_in_8_bits((out[own], lse[:, own]), q[own], keys, values, [x[n] for x in factors], **options)
        else:
            close((out[None, own], lse[None, :, own]), exact(q[None, own], keys[None], values[None], **options))


@pytest.mark.usefixtures("few_sms")
def test_outputs_where_queries_were(monkeypatch):
    monkeypatch.setattr(Sm90AttentionConfig, "separate_o", lambda *_: False)
    check(normal(1, 300, 2, 32), normal(1, 40, 1, 32), normal(1, 40, 1, 32), TWO)


@pytest.mark.parametrize("growth", [0.1, 3.0])
def test_maxima_that_grow(growth):
    """Scores that rise from key to key: earlier sums are scaled again and again."""
    k = (np.arange(96)[::-1] * growth / 32).astype(np.float16)[None, :, None, None] * np.ones((32,), np.float16)
    check(np.ones((1, 16, 1, 32), np.float16), k, normal(1, 96, 1, 32), ONE, scale=1.0)


@pytest.mark.quick(0)
@pytest.mark.usefixtures("few_sms")
def test_clean_under_the_sanitizer():
    with kiln.sanitize():
        check(normal(1, 130, 2, 32), normal(1, 70, 1, 32), normal(1, 70, 1, 32), TWO, causal=True)


@pytest.mark.quick(0)
@pytest.mark.usefixtures("few_sms")
def test_queries_are_not_freed_before_the_last_scores(monkeypatch):
    """A mutant: the sanitizer sees it."""
    release = sm90.Sm90ForwardKernel.release_q
    monkeypatch.setattr(
        sm90.Sm90ForwardKernel, "release_q", lambda self, loop, remaining: release(self, loop, remaining - 1)
    )
    forget = (launches.cached_kernel.cache_clear, compile_kernel.cache_clear)
    for clear in forget:
        clear()
    with pytest.raises(Exception, match="race"), kiln.sanitize():
        check(normal(1, 250, 4, 32), normal(1, 200, 1, 32), normal(1, 200, 1, 32), TWO, causal=True)
    for clear in forget:
        clear()


@pytest.mark.quick(0)
@pytest.mark.usefixtures("few_sms")
def test_sequences_are_clean_under_the_sanitizer(monkeypatch):
    """Values that are cleared are seen by products, nothing is stored beyond a sequence, and tiles are told in time."""
    monkeypatch.setenv("KILN_CPU_SEED", "7")
    starts = np.array([0, 5, 138], np.int32), np.array([0, 7, 47], np.int32)
    q, k, v = normal(138, 2, 32), normal(47, 1, 32), normal(47, 1, 32)
    config = dataclasses.replace(TWO, dynamic_scheduler=True, pingpong=False, q_in_regs=True)
    with kiln.target("cpu"), kiln.sanitize():
        out, lse = kernels.flash_attention(
            q, k, v, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], causal=True, return_lse=True, config=config
        )
    for n in range(2):
        rows, others = (slice(*s[n : n + 2]) for s in starts)
        close(
            (out[None, rows], lse[None, :, rows]), exact(q[None, rows], k[None, others], v[None, others], causal=True)
        )


# --- configs ---


def test_who_is_chosen():
    training = AttentionProblem(4, 8192, 8192, 16, 16, 128, 128)
    assert isinstance(REGISTRY.choose(training, HOPPER).implementation, Sm90Attention)
    for other in (
        dataclasses.replace(training, varlen=True, window_right=0),
        dataclasses.replace(training, has_seqused_k=True, has_alibi=True, has_sinks=True),
        dataclasses.replace(training, head_dim=40),
        dataclasses.replace(training, page_size=1, kv_capacity=8192),
    ):
        assert isinstance(REGISTRY.choose(other, HOPPER).implementation, Sm90Attention)
    for other in (
        dataclasses.replace(training, seqlen_q=1),  # few queries: keys are cut into parts
        AttentionProblem(
            16, 16, 16384, 32, 8, 128, 128, window_right=0, has_seqused_k=True, page_size=16, kv_capacity=16384
        ),
        dataclasses.replace(
            training, page_size=1, kv_capacity=1 << 20
        ),  # it would take too much memory to lay them in succession
    ):
        assert not isinstance(REGISTRY.choose(other, HOPPER).implementation, Sm90Attention)
    for arch in ("sm_80", "sm_90", "sm_100a"):
        assert not isinstance(REGISTRY.choose(training, device_of(arch)).implementation, Sm90Attention)


def test_plans_are_chosen_as_measured():
    """No choice is more than 5 % behind the best config that was measured for a shape; runs are compared by cuDNN's times in them."""
    lines = (Path(__file__).parents[4] / "benchmarks/data/attention_h200.jsonl").read_text().splitlines()
    shapes: dict[Any, dict[Any, float]] = {}
    for row in map(json.loads, lines):
        bits, batch, length, heads, heads_k, dim, causal = row["shape"]
        (dim, dim_v), dtype = (dim, dim) if isinstance(dim, int) else dim, Float16 if bits == 16 else Float8E4M3FN
        problem = AttentionProblem(
            batch, length, length, heads, heads_k, dim, dim_v, dtype, window_right=0 if causal else None
        )
        shapes.setdefault(problem, {})[tuple(row["plan"])] = row["us"] / (row["cudnn_us"] or 1.0)
    assert shapes
    for problem, times in shapes.items():
        config = sm90_cost.default_config(problem, HOPPER)
        chosen = (config.consumer_warpgroups, config.tile_n, config.kv_stages, config.pingpong, config.q_in_regs)
        assert times[chosen] <= 1.05 * min(times.values()), problem


@pytest.mark.parametrize("dim", [8, 64, 80, 128, 192, 256])
def test_plans_work(dim):
    problem = AttentionProblem(4, 8192, 8192, 16, 16, dim, dim)
    configs = list(Sm90Attention().configs(problem, HOPPER))
    assert configs[0] == sm90_cost.default_config(problem, HOPPER)
    for config in configs:
        config.check(dim, dim, HOPPER.smem)


@pytest.mark.parametrize("dtype", [Float16, Float8E4M3FN])
def test_plans_of_heads_of_two_sizes_work(dtype):
    """Outputs are not put where queries were: steps have fewer keys where shared memory has no room for them."""
    for dim, value_dim in itertools.product((16, 64, 96, 128, 144, 192, 224, 256), repeat=2):
        problem = AttentionProblem(4, 8192, 8192, 16, 4, dim, value_dim, dtype, window_left=100, has_seqused_k=True)
        assert isinstance(REGISTRY.choose(problem, HOPPER).implementation, Sm90Attention)
        for config in Sm90Attention().configs(problem, HOPPER):
            config.check(dim, value_dim, HOPPER.smem, dtype.width)


@pytest.mark.parametrize("page", [0, 16, 56])
def test_plans_of_8_bits_work(page):
    """With a function of scores steps have fewer keys, and still multiples of 32; pages need not divide them."""
    score = check_score_mod(lambda s, b, h, q, k: s + h)
    for dim in (64, 128, 256):
        problem = AttentionProblem(
            4, 8192, 8192, 16, 16, dim, dim, Float8E4M3FN, score_mod=score, page_size=page, has_seqused_k=page > 0
        )
        assert isinstance(REGISTRY.choose(problem, HOPPER).implementation, Sm90Attention)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Sm90AttentionConfig(4), "consumer_warpgroups must be 1 to 3"),
        (Sm90AttentionConfig(2, 24), "multiple of 16"),
        (Sm90AttentionConfig(2, 128, 1), "kv_stages must be at least 2"),
        (Sm90AttentionConfig(2, 192), "take 208 registers of a thread, which has 240"),
        (Sm90AttentionConfig(2, 128, 4), "bytes of shared memory"),
    ],
)
def test_plans_that_are_refused(config, message):
    x = np.zeros((1, 128, 1, 128), np.float16)
    with pytest.raises(DSLUserCodeTypeError, match=message), kiln.target("cpu"):
        kernels.flash_attention(x, x, x, config=config)


# --- the machine code ---


def compiled(
    head_dims: tuple[int, int], config: Sm90AttentionConfig, more: Any = (), dtype: Any = Float16, **options: Any
) -> Any:
    """A causal kernel, for arrays `more`."""
    separate_o = config.separate_o(*head_dims, HOPPER.smem, dtype.width)
    kernel = sm90.Sm90ForwardKernel(dtype, head_dims, config, (True, False, False), separate_o, **options)
    rows = [(x, 4) for x in (dtype, dtype, dtype, kernel.out_dtype)]
    scalars = AttentionScalars(Float32, Float32, Float32, Int32, Int32, Int32)
    kinds = (*rows, None, tensor_kinds(more), scalars, Int32)
    with kiln.target("nvidia"):
        return compile_kernel.__wrapped__(None, kernel, cute.AddressSpace.gmem, kinds)


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
def test_nothing_waits_where_there_is_much_besides(monkeypatch):
    """Sequences of any length, slopes, sinks, a function, queries in registers: nothing is spilled, and products run asynchronously."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    made = compiled(
        (192, 128), Sm90AttentionConfig(2, 80, q_in_regs=True), (
            "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "alibi_slopes", "sinks", "tile_counter",
        ),
        group_size=4, varlen=True, has_seqused_k=True,
        score_mod=ScoreMod(True, check_score_mod(lambda s, b, h, q, k: s + 0.1 * h)),
    )  # fmt: skip
    check_products(made, moves=8)


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize(
    ("dtype", "dim", "page", "config"),
    [
        (Float16, 128, 16, Sm90AttentionConfig(3, 80, 3, pingpong=False)),
        (Float8E4M3FN, 256, 0, Sm90AttentionConfig(2, 128)),
        (
            Float8E4M3FN,
            256,
            16,
            sm90_cost.default_config(
                AttentionProblem(
                    3, 1024, 1024, 4, 1, 256, 256, Float8E4M3FN, has_seqused_k=True, page_size=16, kv_capacity=1024
                ),
                HOPPER,
            ),
        ),
    ],
)
def test_warps_that_load_have_registers_enough(dtype, dim, page, config, monkeypatch):
    """To look pages up ahead, with 32 of them; and those that compute, steps of 128 keys of 8 bits beside outputs of 256."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    narrow, more = dtype.width == 8, ("cu_seqlens_q", "seqused_k", "tile_counter")
    more += ("page_table",) if page else ("cu_seqlens_k",)
    factors = ("q_descale", "k_descale", "v_descale") if narrow else ()
    options = {"varlen": True, "has_seqused_k": True, "page_size": page, "out_dtype": BFloat16 if narrow else None}
    check_products(compiled((dim, dim), config, more + factors, dtype, **options), moves=8)


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_softmax_beside_products(dim, monkeypatch):
    """Powers are computed while the product of weights and values runs: between the two waits of the main loop, but for the last one
    and those that sums are scaled by."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    config = sm90_cost.default_config(AttentionProblem(4, 8192, 8192, 16, 16, dim, dim), HOPPER)
    made = compiled((dim, dim), config)
    loops = check_products(made, moves=8)
    steps = 1 if dim > 128 else 2  # blocks that are masked, and whole ones; of deep heads both
    assert len(loops) >= steps
    for loop in loops[:steps]:
        assert len(loop.moves_of_sums) <= 2  # of scores, which are no sums any more
        assert len(loop.products) == dim // 16 + config.tile_n // 16
        assert not any(i.name == "WARPSYNC" for i in loop.instructions)  # warps are seen to be whole
        assert not any(i.name == "R2UR" for i in loop.instructions)  # and descriptors the same in all of one
        waits = [n for n, i in enumerate(loop.instructions) if i.name.startswith("WARPGROUP.DEPBAR")]
        powers = [n for n, i in enumerate(loop.instructions) if i.name.startswith("MUFU.EX2")]
        assert len(waits) == 2
        assert waits[0] < powers[0]
        assert sum(n > waits[1] for n in powers) <= 4
