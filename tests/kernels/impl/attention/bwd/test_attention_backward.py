"""Gradients of attention against float64, on the CPU target: masks, heads, lengths, types, what is refused."""

from __future__ import annotations

import math
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_testing import normal
from gradient_testing import changes, close_gradients, exact_gradients

import kiln
from kiln import Int32, cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import AttentionProblem
from kiln.kernels.impl.attention.bwd import REGISTRY, AttentionBackwardProblem, preprocess, sm80_mma
from kiln.kernels.impl.attention.bwd.implementations import Sm80AttentionBackward

SMALL = kernels.Sm80AttentionBackwardConfig(16, 16)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def check(q: Any, k: Any, v: Any, config: Any = SMALL, **options: Any) -> None:
    dout = normal(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    forward = {name: x for name, x in options.items() if name != "score_gradient"}
    out, lse = kernels.flash_attention(
        q, k, v, return_lse=True, config=kernels.Sm80AttentionConfig(16, 16, 1, 1), **forward
    )
    got = kernels.flash_attention_backward(dout, q, k, v, out, lse, config=config, **options)
    close_gradients(got, exact_gradients(dout, q, k, v, **options))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 40), (40, 17)])
def test_lengths(queries, keys):
    check(normal(1, queries, 1, 32), normal(1, keys, 1, 32), normal(1, keys, 1, 32))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dim", [8, 16, 24, 136])
def test_more_queries_than_threads(dim):
    """Sums of rows are of more rows than a block of threads has threads, in blocks of several rows of a thread."""
    check(
        normal(1, 600, 1, dim),
        normal(1, 16, 1, dim),
        normal(1, 16, 1, dim),
        kernels.Sm80AttentionBackwardConfig(64, 64),
    )


@pytest.mark.parametrize(("queries", "keys"), [(50, 17), (33, 50)])
def test_causal(queries, keys):
    """Heads that share keys; with more queries than keys the first see nothing, and their gradient is 0."""
    check(normal(2, queries, 4, 32), normal(2, keys, 2, 32), normal(2, keys, 2, 32), causal=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("window", [(0, 0), (5, 9), (20, 40)])
def test_windows(window):
    """And caps, heads of values of another size, another type: keys that no query sees have gradient 0, too."""
    q, k, v = (2 * normal(1, n, 1, d, dtype=ml_dtypes.bfloat16) for n, d in ((30, 40), (52, 40), (52, 24)))
    check(q, k, v, window=window, softcap=3.0, scale=0.3)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "names", [("alibi_slopes", "sinks"), ("score", "score_gradient"), ("alibi_slopes", "sinks", "softcap", "score", "score_gradient")]
)  # fmt: skip
def test_what_is_done_to_scores(names):
    """Heads that share keys, queries that see nothing but the sink."""
    q, k, v = normal(2, 40, 4, 32), normal(2, 33, 2, 32), normal(2, 33, 2, 32)
    check(q, k, v, causal=True, **{name: x for name, x in changes(4).items() if name in names})


def test_large_scores():
    """Weights of 1 and of 0: gradients of scores are differences of numbers that are nearly the same."""
    check(20 * normal(1, 40, 1, 32), 20 * normal(1, 40, 1, 32), normal(1, 40, 1, 32), scale=1.0)


def test_sequences_of_any_length():
    """None of queries, none of keys, keys that do not exist yet."""
    queries, keys, exist = [5, 0, 33, 16], [7, 20, 40, 0], [7, 3, 35, 0]
    starts_q, starts_k = (np.cumsum([0, *n]).astype(np.int32) for n in (queries, keys))
    q, k, v = normal(sum(queries), 2, 32), normal(sum(keys), 1, 32), normal(sum(keys), 1, 32)
    dout = normal(*q.shape)
    options = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "seqused_k": np.array(exist, np.int32)}
    out, lse = kernels.flash_attention(
        q, k, v, causal=True, return_lse=True, config=kernels.Sm80AttentionConfig(16, 16, 1, 1), **options
    )
    got = kernels.flash_attention_backward(dout, q, k, v, out, lse, causal=True, config=SMALL, **options)
    for n in range(4):
        rows, others = slice(*starts_q[n : n + 2]), slice(starts_k[n], starts_k[n] + exist[n])
        wanted = exact_gradients(dout[None, rows], q[None, rows], k[None, others], v[None, others], causal=True)
        close_gradients([x[None, s] for x, s in zip(got, (rows, others, others), strict=True)], wanted)
        for x in got[1:]:  # of keys that do not exist
            assert not x[others.stop : starts_k[n + 1]].any()


@pytest.mark.quick(1)
@pytest.mark.parametrize("config", [SMALL, kernels.Sm80AttentionBackwardConfig()])
def test_what_lies_behind_the_keys_that_exist(config):
    """No numbers there: they have no gradients, and no influence."""
    q, dout, k, v = (normal(2, n, 1, 64) for n in (20, 20, 40, 40))
    used = np.array([25, 0], np.int32)
    for n, there in enumerate(used):
        k[n, there:] = v[n, there:] = np.nan
    out, lse = kernels.flash_attention(
        q, k, v, seqused_k=used, return_lse=True, config=kernels.Sm80AttentionConfig(16, 16, 1, 1)
    )
    got = kernels.flash_attention_backward(dout, q, k, v, out, lse, seqused_k=used, config=config)
    wanted = exact_gradients(dout[:1], q[:1], k[:1, :25], v[:1, :25])
    close_gradients([got[0][:1], got[1][:1, :25], got[2][:1, :25]], wanted)
    assert not any(x[0, 25:].any() or x[1].any() for x in got[1:])
    assert not got[0][1].any()


def test_strided_views_of_torch():
    """Into arrays that are given; the same bits each time."""
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(2, 20, 3, 2, 32).half().unbind(2)
    dout = torch.randn(2, 2, 20, 32).half().transpose(1, 2)
    out, lse = kernels.flash_attention(q, k, v, return_lse=True, config=kernels.Sm80AttentionConfig(16, 16, 1, 1))
    given = torch.zeros(2, 20, 3, 2, 32).half().unbind(2)
    got = kernels.flash_attention_backward(
        dout, q, k, v, out, lse, config=SMALL, **dict(zip(("dq", "dk", "dv"), given, strict=True))
    )
    assert all(a is b for a, b in zip(got, given, strict=True))
    close_gradients([x.numpy() for x in got], exact_gradients(*(x.numpy() for x in (dout, q, k, v))))
    again = kernels.flash_attention_backward(dout, q, k, v, out, lse, config=SMALL)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


def test_many_threads_clear_counters():
    """More than 32 bits count, as where there are many short sequences of many heads."""
    grid = (12000, 32, 64)
    found = np.zeros(2, np.int64)
    _tell_share(found, *(n - 1 for n in grid), *grid)
    assert found.tolist() == [256 * (math.prod(grid) - 1), 256 * math.prod(grid)]


@cute.jit
def _tell_share(found: cute.Tensor, *numbers: Int32):
    first, every = preprocess.thread_numbers(numbers[:3], numbers[3:])
    found[0], found[1] = first, every


def test_nothing():
    q, k = normal(1, 4, 1, 32), normal(1, 0, 1, 32)
    got = kernels.flash_attention_backward(q, q, k, k, q, np.full((1, 1, 4), -np.inf, np.float32))
    assert not got[0].any()
    assert got[1].shape == k.shape


@pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="long: KILN_LONG_TESTS=1")
def test_clean_under_the_sanitizer():
    with kiln.sanitize():
        check(normal(1, 20, 2, 32), normal(1, 30, 1, 32), normal(1, 30, 1, 32), causal=True)


@pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="long: KILN_LONG_TESTS=1")
def test_a_pass_rounds_only_what_it_made(monkeypatch):
    """Gradients of values have a pass of their own where heads are deep, which has no gradients of scores: f16 does not hold what is there."""
    made = sm80_mma.BackwardMma.__init__

    def filled(self: Any, *given: Any) -> None:
        made(self, *given)
        self.acc_dp.fill(1e30)

    monkeypatch.setattr(sm80_mma.BackwardMma, "__init__", filled)
    with kiln.sanitize("all"):
        check(normal(1, 5, 1, 32), normal(1, 20, 1, 32), normal(1, 20, 1, 136), causal=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lse": np.zeros((1, 4, 1), np.float32)}, "lse is"),
        ({"dout": np.zeros((1, 4, 1, 16), np.float16)}, "dout is"),
        ({"dk": np.zeros((1, 4, 1, 32), np.float32)}, "dk is"),
        ({"scale": 0.0}, "it must be positive"),
        ({"score": lambda s, *_: s}, "score is given alone"),
        ({"score": lambda s, *_: s, "score_gradient": lambda s: 1.0}, "score_gradient must take"),
        ({"dsinks": np.zeros(1, np.float32)}, "without sinks"),
        ({"config": kernels.Sm80AttentionBackwardConfig(24, 16)}, "tile_m must be a multiple of 16"),
        ({"config": kernels.Sm80AttentionBackwardConfig(64, 24)}, "tile_n must be a multiple of 16"),
    ],
)
def test_what_is_refused(change, message):
    x = np.zeros((1, 4, 1, 32), np.float16)
    given = {"dout": x, "q": x, "k": x, "v": x, "out": x, "lse": np.zeros((1, 1, 4), np.float32), **change}
    with pytest.raises(DSLUserCodeTypeError, match=message):
        kernels.flash_attention_backward(**given)


def test_a_gradient_in_the_place_of_what_is_read_is_refused():
    x = np.zeros((1, 4, 1, 32), np.float16)
    with pytest.raises(DSLUserCodeTypeError, match="shares memory"):
        kernels.flash_attention_backward(x.copy(), x, x, x, x, np.zeros((1, 1, 4), np.float32), dq=x)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("dim", [8, 40, 64, 96, 128, 192, 256])
def test_plans_work(arch, dim):
    problem, device = AttentionBackwardProblem(AttentionProblem(4, 8192, 8192, 16, 16, dim, dim)), device_of(arch)
    for config in Sm80AttentionBackward().configs(problem, device):
        config.check((dim, dim), device.smem)
    assert REGISTRY.choose(problem, device).cost > 0
