"""Gradients of attention with heads of more than 128 elements, as on Hopper: against float64 on the CPU target, and the machine code for GPUs that are not there."""

from __future__ import annotations

import os
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_kinds import backward_kinds
from attention_testing import normal
from gradient_testing import changes, close_gradients, exact_gradients
from nvidia_testing import needs_nvdisasm
from sass import check_products

import kiln
from kiln import BFloat16, cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import AttentionProblem
from kiln.kernels.impl.attention.bwd import (
    REGISTRY,
    AttentionBackwardProblem,
    implementations,
    sm90_hd256_config,
    sm90_hd256_dkv,
    sm90_hd256_dq,
)
from kiln.kernels.impl.attention.bwd.implementations import Sm80AttentionBackward, Sm90AttentionBackwardHd256
from kiln.kernels.impl.attention.launch import compile_kernel

HOPPER = device_of("sm_90a")
SMALL = kernels.Sm90AttentionBackwardHd256Config(16, 2, 64, 16, 2, 1, 128)
long = pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="long: KILN_LONG_TESTS=1")


def gradients(q: Any, k: Any, v: Any, dout: Any, config: Any = SMALL, **options: Any) -> Any:
    forward = {name: x for name, x in options.items() if name not in ("score_gradient", "dq", "dk", "dv")}
    with kiln.target("cpu"):
        out, lse = kernels.flash_attention(
            q, k, v, return_lse=True, config=kernels.Sm80AttentionConfig(16, 16, 1, 1), **forward
        )
        return kernels.flash_attention_backward(dout, q, k, v, out, lse, config=config, **options)


def check(q: Any, k: Any, v: Any, **options: Any) -> None:
    dout = normal(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    got = gradients(q, k, v, dout, **options)
    options.pop("config", None)
    close_gradients(got, exact_gradients(dout, q, k, v, **options))


@pytest.mark.quick(0)
def test_causal():
    """Heads that share keys, values of fewer elements, filled up; queries that see nothing, and a block of keys without any."""
    check(normal(1, 60, 2, 136), normal(1, 20, 1, 136), normal(1, 20, 1, 40), causal=True)


@pytest.mark.quick(0)
def test_windows():
    """Another type, a cap; queries of three blocks of threads, and keys of three."""
    q, k, v = (normal(1, n, 1, d, dtype=ml_dtypes.bfloat16) for n, d in ((300, 72), (170, 72), (170, 136)))
    check(q, k, v, window=(20, 9), softcap=3.0)


@long
@pytest.mark.parametrize("config", [SMALL, None])
@pytest.mark.parametrize("names", [(), ("alibi_slopes", "sinks"), tuple(changes(4))])
def test_what_is_done_to_scores(names, config):
    """Heads that share keys, queries that see nothing but the sink; heads of 256, too."""
    q, k, v = normal(2, 150, 4, 256), normal(2, 140, 2, 256), normal(2, 140, 2, 192)
    check(q, k, v, causal=True, config=config, **{name: x for name, x in changes(4).items() if name in names})


def test_sequences_of_any_length():
    """None of queries, none of keys, keys that do not exist; what belongs to no sequence is no number, has no influence, and is not written."""
    queries, keys, exist, rest = [5, 0, 40, 16], [7, 20, 70, 0], [7, 3, 65, 0], 20
    starts_q, starts_k = (np.cumsum([0, *n]).astype(np.int32) for n in (queries, keys))
    q, dout = (normal(sum(queries) + rest, 2, 136) for _ in range(2))
    k, v = (normal(sum(keys) + rest, 1, 136) for _ in range(2))
    for x in (q, dout, k, v):
        x[-rest:] = np.nan
    for x in (k, v):
        for first, count, end in zip(starts_k, exist, starts_k[1:], strict=False):
            x[first + count : end] = np.nan
    made = {name: np.full(x.shape, 7.0, x.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "seqused_k": np.array(exist, np.int32)}
    got = gradients(q, k, v, dout, causal=True, **lengths, **made)
    for n in range(4):
        rows, others = slice(*starts_q[n : n + 2]), slice(starts_k[n], starts_k[n] + exist[n])
        wanted = exact_gradients(dout[None, rows], q[None, rows], k[None, others], v[None, others], causal=True)
        close_gradients([x[None, s] for x, s in zip(got, (rows, others, others), strict=True)], wanted)
        assert not any(x[others.stop : starts_k[n + 1]].any() for x in got[1:])
    assert all((x[-rest:] == 7.0).all() for x in got)


# --- under the sanitizer ---


def _sanitized(packed: bool) -> None:
    rest = () if packed else (1,)
    q, k, v = (normal(*rest, n, 1, d) for n, d in ((70, 136), (130, 136), (130, 64)))
    lengths = {}
    if packed:
        starts_q, starts_k = (np.array([0, n // 3, n], np.int32) for n in (70, 130))
        lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    with kiln.sanitize():
        gradients(q, k, v, normal(*rest, 70, 1, 64), **lengths)


@long
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("packed", [False, True])
def test_clean_under_the_sanitizer(packed, seed, monkeypatch):
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    _sanitized(packed)


def _without(monkeypatch: Any, place: Any, name: str, skipped: Any = lambda *given, **named: True) -> None:
    kept = getattr(place, name)
    monkeypatch.setattr(
        place, name, lambda *given, **named: None if skipped(*given, **named) else kept(*given, **named)
    )


def _without_barrier(monkeypatch: Any, number: int) -> None:
    made = sm90_hd256_dkv.pipeline.NamedBarrier

    class Nothing:
        arrive = arrive_and_wait = lambda self: None

    monkeypatch.setattr(
        sm90_hd256_dkv.pipeline,
        "NamedBarrier",
        lambda given, *more: Nothing() if isinstance(given, int) and given == number else made(given, *more),
    )


MUTANTS = {
    "products are not waited for": lambda p: _without(p, sm90_hd256_dkv.warpgroup, "wait_group"),
    "weights are read before they are there": lambda p: p.setattr(sm90_hd256_dkv, "_P_SENT", sm90_hd256_dkv._P_READ),
    "tiles are cleared without a fence for the tensor cores": lambda p: _without(p, sm90_hd256_dkv.arch, "fence_proxy"),
    "results are written while others are multiplied": lambda p: _without_barrier(p, sm90_hd256_dq._DONE),
}


@long
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, monkeypatch):
    for made in (compile_kernel, launches.cached_kernel):
        made.cache_clear()
    MUTANTS[name](monkeypatch)
    with pytest.raises(Exception, match="race|register|in flight|deadlock|wait"):
        _sanitized(True)
    for made in (compile_kernel, launches.cached_kernel):
        made.cache_clear()


# --- configs ---


@pytest.mark.parametrize("dims", [(192, 192), (192, 128), (256, 256), (136, 136), (256, 64), (64, 256), (192, 256)])
def test_who_is_chosen(dims):
    for change in ({}, {"window_right": 0}, {"varlen": True, "has_seqused_k": True}, {"has_softcap": True}):
        problem = AttentionBackwardProblem(AttentionProblem(4, 8192, 8192, 8, 4, *dims, **change))
        assert isinstance(REGISTRY.choose(problem, HOPPER).implementation, Sm90AttentionBackwardHd256)
        assert isinstance(REGISTRY.choose(problem, device_of("sm_100a")).implementation, Sm80AttentionBackward)
        assert REGISTRY.explain(problem, HOPPER).bound == ("shared memory" if sum(dims) > 384 else "tensor cores")
        for config in Sm90AttentionBackwardHd256().configs(problem, HOPPER):
            config.check(sm90_hd256_config.padded_head_dims(dims), HOPPER.smem)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (kernels.Sm90AttentionBackwardHd256Config(24), "tile_m must be a multiple of 16"),
        (kernels.Sm90AttentionBackwardHd256Config(tile_n=24), "tile_n must be a multiple of 16"),
        (kernels.Sm90AttentionBackwardHd256Config(q_stages=1), "q_stages and k_stages must be at least 2"),
        (kernels.Sm90AttentionBackwardHd256Config(k_stages=1), "q_stages and k_stages must be at least 2"),
        (
            kernels.Sm90AttentionBackwardHd256Config(kv_dims_in_regs=48),
            "kv_dims_in_regs must be 16, 32 or a multiple of 64",
        ),
        (kernels.Sm90AttentionBackwardHd256Config(128), "registers of a thread"),
        (kernels.Sm90AttentionBackwardHd256Config(q_dims_in_regs=192, tile_n=48), "registers of a thread"),
        (kernels.Sm90AttentionBackwardHd256Config(64, 4), "bytes of shared memory"),
    ],
)
def test_plans_that_are_refused(config, message):
    x = np.zeros((1, 128, 1, 256), np.float16)
    with pytest.raises(DSLUserCodeTypeError, match=message), kiln.target("cpu"):
        kernels.flash_attention_backward(x, x, x, x, x, np.zeros((1, 1, 128), np.float32), config=config)


# --- the machine code ---


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
def test_products_run_asynchronously(monkeypatch):
    """Of keys and values two in each step of a warp group, of queries three, and one after the last, and nothing spilled. Where operands begin is in uniform registers."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    config = sm90_hd256_config.default_config(
        AttentionBackwardProblem(AttentionProblem(4, 8192, 8192, 8, 8, 256, 256)), HOPPER
    )
    kernels_of = implementations.Sm90Hd256BackwardLaunch(BFloat16, (256, 256), config, (True, False, True), True, True)
    with kiln.target("nvidia"):
        kinds = backward_kinds(("cu_seqlens_q", "cu_seqlens_k", "seqused_k"))
        made = compile_kernel.__wrapped__(None, kernels_of, cute.AddressSpace.gmem, kinds)
    loops = check_products(
        made, products=2 * (16 + 2 * config.tile_m // 16) + 32 + 2 * config.tile_n // 16, moves=8
    )  # both warp groups of queries have the same code
    assert not any(one.name == "R2UR" for loop in loops for one in loop.instructions)
    # On a GPU gradients of queries begin while those of keys end: whoever comes after them waits for both.
    words = "griddepcontrol.wait|griddepcontrol.launch_dependents|cp.async.bulk.tensor.*?global.shared|st.global"
    order = {
        code.partition("_kernel")[0]: [word.partition(".")[2] for word in re.findall(words, code)]
        for code in made.__ptx__.split(".entry ")[1:]
    }
    assert order["Sm90Hd256DkDvKernel"][0] == "launch_dependents"
    assert order["Sm90Hd256DqKernel"][-1] == "wait"
    assert order["Sm90Hd256DqKernel"].count("wait") == 1
