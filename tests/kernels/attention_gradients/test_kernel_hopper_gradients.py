"""Gradients of attention by warp groups, as on Hopper: against float64 on the CPU target, and the machine code for GPUs that are not there."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_testing import normal
from gradient_testing import close_gradients, exact_gradients
from nvidia_testing import needs_ptxas
from sass import check_products

import kiln
from kiln import BFloat16, cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.attention_gradients import (
    FAMILY,
    AttentionGradient,
    hopper,
    hopper_plan,
    hopper_steps,
    implementations,
)
from kiln.kernels.attention_gradients.implementations import HopperGradients
from kiln.kernels.attentions import Attention
from kiln.kernels.devices import device_of

HOPPER = device_of("sm_90a")
SMALL, HELD = kernels.HopperGradientTiling(32), kernels.HopperGradientTiling(32, 3, 2)
long = pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="long: KILN_LONG_TESTS=1")


def gradients(q: Any, k: Any, v: Any, dout: Any, plan: Any = SMALL, deterministic: bool = True, **options: Any) -> Any:
    with kiln.target("cpu"):
        first = kernels.AttentionTiling(16, 16, 1, 1)
        out, lse = kernels.flash_attention(q, k, v, return_lse=True, plan=first, **options)
        return kernels.flash_attention_backward(
            dout, q, k, v, out, lse, plan=plan, deterministic=deterministic, **options
        )


def check(q: Any, k: Any, v: Any, **options: Any) -> None:
    dout = normal(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    got = gradients(q, k, v, dout, **options)
    for name in ("plan", "deterministic"):
        options.pop(name, None)
    close_gradients(got, exact_gradients(dout, q, k, v, **options))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (70, 130), (33, 300)])
def test_lengths(queries, keys):
    """Blocks of keys that begin at different queries, and end before their last key; keys and values in registers."""
    check(normal(1, queries, 2, 64), normal(1, keys, 1, 64), normal(1, keys, 1, 64), plan=HELD, scale=0.3)


@pytest.mark.parametrize("multiprocessors", [132, 1])
@pytest.mark.parametrize(("queries", "keys"), [(200, 140), (150, 300)])
def test_causal(queries, keys, multiprocessors, monkeypatch):
    """Heads that share keys, queries that see nothing; keys backwards where not all blocks of threads run at once."""
    device = dataclasses.replace(HOPPER, multiprocessors=multiprocessors)
    monkeypatch.setattr("kiln.kernels.devices.current", lambda: device)
    check(normal(1, queries, 4, 64), normal(1, keys, 2, 64), normal(1, keys, 2, 64), causal=True)


@pytest.mark.parametrize("window", [(0, 0), (20, 9), (70, 64)])
def test_windows(window):
    """Heads of keys and values of other sizes, filled up, in another type; values in registers, in any order."""
    q, k, v = (normal(1, n, 1, d, dtype=ml_dtypes.bfloat16) for n, d in ((150, 72), (170, 72), (170, 40)))
    check(q, k, v, window=window, plan=kernels.HopperGradientTiling(32, 2, 1), deterministic=False)


def test_the_same_bits_in_every_order(monkeypatch):
    """However threads and blocks take turns."""
    q, k, v, dout = (normal(1, 100, 2, 64) for _ in range(4))
    first = gradients(q, k, v, dout, HELD, scale=0.3)
    monkeypatch.setenv("KILN_CPU_SEED", "7")
    for x, y in zip(first, gradients(q, k, v, dout, HELD, scale=0.3), strict=True):
        np.testing.assert_array_equal(x, y)


# --- under the sanitizer ---


@long
@pytest.mark.parametrize("seed", [0, 7])
def test_clean_under_the_sanitizer(seed, monkeypatch):
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    with kiln.sanitize():
        check(normal(1, 70, 1, 64), normal(1, 130, 1, 64), normal(1, 130, 1, 64), causal=True)


def _without(monkeypatch: Any, place: Any, name: str, skipped: Any = lambda *given, **named: True) -> None:
    kept = getattr(place, name)
    monkeypatch.setattr(
        place, name, lambda *given, **named: None if skipped(*given, **named) else kept(*given, **named)
    )


MUTANTS = {
    "dS is written without a fence for the tensor cores": lambda p: _without(p, hopper_steps.arch, "fence_proxy"),
    "products are not waited for": lambda p: _without(p, hopper.warpgroup, "wait_group"),
    "dQ is written before its product is complete": lambda p: _without(
        p, hopper.warpgroup, "wait_group", lambda n, found=iter([False, True, False, False, False]): next(found)
    ),
}


@long
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, monkeypatch):
    for made in (implementations._compiled_hopper, hopper.hopper_backward):
        made.cache_clear()
    MUTANTS[name](monkeypatch)
    with pytest.raises(Exception, match="race|register|in flight"), kiln.sanitize():
        check(normal(1, 70, 1, 64), normal(1, 130, 1, 64), normal(1, 130, 1, 64))
    for made in (implementations._compiled_hopper, hopper.hopper_backward):
        made.cache_clear()


# --- plans ---


def test_who_is_chosen():
    training = Attention(4, 8192, 8192, 16, 16, 128, 128)
    assert isinstance(FAMILY.choose(AttentionGradient(training), HOPPER).implementation, HopperGradients)
    for change in ({"packed": True}, {"partial": True}, {"capped": True}, {"head_dim": 192}):
        other = AttentionGradient(dataclasses.replace(training, **change))
        assert not isinstance(FAMILY.choose(other, HOPPER).implementation, HopperGradients)
    for arch in ("sm_80", "sm_90", "sm_100a"):
        chosen = FAMILY.choose(AttentionGradient(training), device_of(arch))
        assert not isinstance(chosen.implementation, HopperGradients)


@pytest.mark.parametrize("dim", [16, 64, 80, 128])
def test_plans_work(dim):
    problem = AttentionGradient(Attention(4, 8192, 8192, 16, 16, dim, dim))
    for plan in HopperGradients().plans(problem, HOPPER):
        plan.check(hopper_plan.padded((dim, dim)), HOPPER.smem)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (kernels.HopperGradientTiling(24), "multiple of 16"),
        (kernels.HopperGradientTiling(64, 1), "at least two buffers"),
        (kernels.HopperGradientTiling(64, 2, 3), "values, or values and keys"),
        (kernels.HopperGradientTiling(128), "registers of a thread"),
        (kernels.HopperGradientTiling(64, 4), "bytes of shared memory"),
    ],
)
def test_plans_that_are_refused(plan, message):
    x = np.zeros((1, 128, 1, 128), np.float16)
    with pytest.raises(DSLUserCodeTypeError, match=message), kiln.target("cpu"):
        kernels.flash_attention_backward(x, x, x, x, x, np.zeros((1, 1, 128), np.float32), plan=plan)


# --- the machine code ---


@needs_ptxas
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize(("dim", "masks"), [(64, (False, False)), (128, (True, False))])
def test_products_run_asynchronously(dim, masks, monkeypatch):
    """Five for each step and one after the last, waited for once each, and nothing spilled."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    plan = hopper_plan.default_tiling(AttentionGradient(Attention(4, 8192, 8192, 16, 16, dim, dim)), HOPPER)
    compiled = implementations._compiled_hopper.__wrapped__
    with kiln.target("nvidia"):
        made = compiled(None, BFloat16, cute.AddressSpace.gmem, (dim, dim), plan, masks, True)
    check_products(made, products=2 * dim // 16 + 2 * plan.block_q // 16 + 2 * 128 // 16, moves=8)
    assert made.executable.artifacts["sass"].count("WARPGROUP.DEPBAR") == 5
