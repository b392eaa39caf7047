"""GEMM with an integer B of 8 or 4 bits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import kernels
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm.implementations import REGISTRY, FallbackConfig
from kiln.kernels.impl.gemm.problem import GemmProblem
from kiln.targets.nvidia.remarks import FENCE_ADDED
from kiln.testing import dry_run

RNG = np.random.default_rng(0)
BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
H200 = device_of("sm_90a")
LONG = bool(os.environ.get("KILN_LONG_TESTS"))
T = kernels.Sm80GemmConfig


def H(columns, depth, rows=128, **options):
    return kernels.Sm90MixedInputConfig((rows, columns, depth), (1, 1), 3, 8, **options)


CONFIG = T((32, 32, 64), (1, 1), 2)


def stored(whole, bits):
    """Integers (N, K) as (K, N), contiguous in K, two in a byte if they have 4 bits."""
    return whole.T if bits == 8 else (whole[:, ::2] & 15 | whole[:, 1::2] << 4).astype(np.uint8).T


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("config", "kind", "bits", "dtype"),
    [
        *(
            (CONFIG, kind, bits, dtype)
            for dtype in (BF16, F16)
            for kind, bits in ((np.int8, 8), (np.uint8, 8), (np.int8, 4))
        ),
        *((H(32, 128), kind, 8, dtype) for dtype in (BF16, F16) for kind in (np.int8, np.uint8)),
        (H(32, 128), np.int8, 4, BF16),
    ],
)
def test_every_value(config, kind, bits, dtype):
    """Times one, exactly, and from its place in K."""
    low = 0 if kind is np.uint8 else -(1 << bits - 1)
    whole = RNG.permutation(np.arange(1024) % (1 << bits) + low).astype(kind).reshape(8, 128)
    got = kernels.gemm(np.eye(128, dtype=dtype)[-32:], stored(whole, bits), config=config)
    np.testing.assert_array_equal(got.astype(F32), whole.T[-32:].astype(F32))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("m", "k", "bits", "groups", "config"),
    [
        (9, 100, 8, 0, T((8, 16, 64), (1, 1), 3)),  # K that ends within a tile, rows at multiples of 4 bytes
        (20, 512, 4, 2, T((16, 32, 128), (1, 2), 3, 2)),  # groups of several tiles
        (9, 256, 8, 8, T((8, 16, 128), (1, 1), 2)),  # and of parts of one
        (9, 320, 8, 0, H(16, 64)),
        (9, 128, 8, 2, H(8, 64, 256)),
        (9, 256, 4, 2, H(16, 128, split_k_cluster=2)),
        (40, 320, 4, 0, H(64, 64)),
        (70, 192, 8, 0, H(72, 64)),
        (150, 192, 4, 0, H(144, 64)),  # a second tile of six rows
        (5, 96, 4, 12, None),  # groups that suit nobody: converted first
    ],
)
def test_gemms(m, k, bits, groups, config):
    n = 40
    dtype = BF16 if bits == 4 else F16
    a, scale = RNG.standard_normal((m, k)).astype(dtype), RNG.standard_normal((groups or 1, n)).astype(F32)
    whole = RNG.integers(-(1 << bits - 1), 1 << bits - 1, (n, k)).astype(np.int8)
    scaled = whole.T.astype(np.float64) * np.repeat(scale, k // (groups or 1), 0)
    short = groups == 0 or isinstance(config, T)  # to compile with the sanitizer's code
    with kiln.sanitize("all") if short else contextlib.nullcontext() as found:
        got = kernels.gemm(
            a, stored(whole, bits), scale_b=scale if groups else scale[0], out_dtype=np.dtype(F32), config=config
        )
    assert not found
    left = a.astype(np.float64)
    rounded = groups and not isinstance(config, T)  # integers times scales
    np.testing.assert_allclose(
        got, left @ scaled, rtol=0, atol=(2.0**-9 if rounded else 2.0**-20) * (np.abs(left) @ np.abs(scaled)).max()
    )


@pytest.mark.parametrize("config", [T((8, 16, 64), (1, 1), 2), H(8, 64)])
def test_scales_of_each_gemm_of_a_batch(config):
    """With a B that the batch shares, and scales that are contiguous along groups."""
    a, scale = RNG.standard_normal((2, 5, 128)).astype(F16), RNG.standard_normal((2, 40, 2)).astype(F32).swapaxes(1, 2)
    whole = RNG.integers(-128, 128, (40, 128)).astype(np.int8)
    got = kernels.gemm(a, stored(whole, 8), scale_b=scale, out_dtype=np.dtype(F32), config=config)
    left, right = a.astype(np.float64), whole.T * np.repeat(scale.astype(np.float64), 64, 1)
    np.testing.assert_allclose(got, left @ right, rtol=0, atol=2.0**-9 * (np.abs(left) @ np.abs(right)).max())


@pytest.mark.quick(0)
def test_results_of_16_bits_by_the_copy_engine():
    """And a cluster, whose CTAs share A."""
    config = kernels.Sm90MixedInputConfig((128, 32, 128), (2, 1), 4, 8, transpose_out=True)
    a, whole = RNG.standard_normal((40, 256)).astype(BF16), RNG.integers(-8, 8, (200, 256)).astype(np.int8)
    with kiln.sanitize("all") as found:
        got = kernels.gemm(a, stored(whole, 4), config=config)
    assert not found
    wanted = a.astype(np.float64) @ whole.T
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2.0**-8, atol=1e-3)


def problem(rows, bits, n=4096, k=4096, groups=0):
    deep = k if bits == 8 else k // 2
    return GemmProblem(
        TensorLayout.dense(kiln.BFloat16, 1, rows, k), TensorLayout(kiln.Int8, (1, deep, n), (deep * n, 1, deep)), TensorLayout.dense(kiln.BFloat16, 1, rows, n),
        int4=bits == 4, group_scales=TensorLayout.dense(kiln.Float32, 1, groups, n) if groups else None,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [8, 4])
def test_configs_fit(bits):
    for rows, groups in ((1, 0), (9, 32), (40, 0), (300, 32)):
        found = REGISTRY.choices(problem(rows, bits, groups=groups), H200)
        assert {type(x.config) for x in found} >= {T, kernels.Sm90MixedInputConfig}
        assert any(x.config.split_k > 1 for x in found if isinstance(x.config, T))
        for one in found:
            one.implementation.check(problem(rows, bits, groups=groups), one.config, H200)


def test_a_device_with_fewer_sms_than_a_cluster():
    """It has some config for mixed inputs, and for others."""
    small = dataclasses.replace(H200, sm_count=3)
    one = problem(64, 8)
    for x in (one, dataclasses.replace(one, b=one.b._replace(dtype=kiln.BFloat16))):
        assert min(choice.cost for choice in REGISTRY.choices(x, small)) > 0


def test_choices():
    """Few rows by `mma.sync`, more by WGMMA; otherwise B is dequantised first where rows are many."""
    for rows, kind in ((1, T), (64, kernels.Sm90MixedInputConfig), (512, kernels.Sm90MixedInputConfig)):
        assert type(REGISTRY.choose(problem(rows, 4, 28672, 8192), H200).config) is kind
    for rows, columns in (
        (130, 144),
        (200, 224),
        (256, 256),
        (300, 160),
        (384, 192),
        (700, 256),
    ):  # as few rows that are not there as can be
        assert REGISTRY.choose(problem(rows, 4, 28672, 8192), H200).config.tile_shape_mnk == (128, columns, 64)
    assert type(REGISTRY.choose(problem(1, 8), device_of("sm_80")).config) is T
    assert type(REGISTRY.choose(problem(4096, 8), device_of("sm_80")).config) is FallbackConfig
    one = problem(4, 8)
    across = dataclasses.replace(one, b=TensorLayout.dense(kiln.Int8, 1, 4096, 4096))
    assert type(REGISTRY.choose(across, H200).config) is FallbackConfig
    assert REGISTRY.explain(problem(1, 8, 28672, 8192), H200).bound == "memory"


def test_results_that_begin_anywhere():
    """They are not written by the mixed-input kernel of sm_90a."""
    one = problem(512, 4, 28672, 8192)
    assert type(REGISTRY.choose(one, H200).config) is kernels.Sm90MixedInputConfig
    moved = dataclasses.replace(one, out=one.out._replace(offset=6))
    found = REGISTRY.choose(moved, H200).config
    assert type(found) is not kernels.Sm90MixedInputConfig
    with pytest.raises(TypeError, match="the result does not begin at a multiple of 16 bytes"):
        REGISTRY.choose(moved, H200, H(16, 128))


@pytest.mark.parametrize("groups", [0, 64])
def test_split_k_without_clusters(groups):
    """Nobody adds partials: a second kernel knows nothing of scales, nor of two integers in a byte."""
    for bits in (8, 4):
        one, device = problem(1, bits, 256, 32768, groups), device_of("sm_80")
        configs = [x.config for x in REGISTRY.choices(one, device) if isinstance(x.config, T)]
        assert configs
        assert {x.split_k for x in configs} == {1}
        for where, splits, most in ((device, 2, 1), (H200, 16, 8)):
            with pytest.raises(TypeError, match=f"clusters of at most {most}"):
                REGISTRY.choose(one, where, T((8, 64, 128), (1, 2), 3, splits))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (kernels.Sm90GemmConfig(), "an integer b has kernels.Sm90MixedInputConfig"),
        (H(16, 32), "an integer B has 128 or 256 rows of the tile, for 64 or 128 of K"),
        (H(16, 128), "groups of it, are no multiples of 128"),
        (dataclasses.replace(H(16, 64), ab_stages=2), "for 2 stages"),
        (
            dataclasses.replace(H(128, 64, split_k_cluster=2), ab_stages=7),
            "32768 bytes, take the place of its stages of A",
        ),
        (T((16, 64, 128), (2, 2), 3), "warps must lie along N"),
        (T((8, 64, 64), (1, 4), 3), "8 elements of 16 bits each at once, more than a tile of 8 x 64"),
    ],
)
def test_configs_that_cannot_work(config, message):
    with pytest.raises(TypeError, match=message):
        REGISTRY.choose(problem(9, 4, groups=64), H200, config)


def test_configs_are_called_by_their_names():
    with pytest.raises(TypeError, match="^Sm90MixedInputConfig: ab_stages is 0"):
        kernels.Sm90MixedInputConfig(ab_stages=0)


def test_bytes_of_group_scales_are_counted():
    assert problem(9, 4, groups=32).bytes - problem(9, 4).bytes == 32 * 4096 * 4


def test_split_k_without_a_stage():
    REGISTRY.choose(problem(9, 8, k=256), H200, H(32, 64, split_k_cluster=4))
    with pytest.raises(TypeError, match="K of 192 is 3 stages, and each part of split-K must have one at least"):
        REGISTRY.choose(problem(9, 8, k=192), H200, H(32, 64, split_k_cluster=4))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rows", "bits", "groups"),
    [(16, 4, 16), (32, 8, 0), (200, 4, 0), (300, 8, 0), *([(64, 8, 16), (300, 4, 16)] if LONG else [])],
)
def test_nothing_is_spilled(rows, bits, groups):
    """By the chosen configs, compiled for a GPU that is not there; nor do MMAs wait for each other."""
    a, b = np.zeros((rows, 2048), BF16), stored(np.zeros((2048, 2048), np.int8), bits)
    scale = np.zeros((groups, 2048) if groups else (2048,), F32)
    with kiln.target("nvidia"), dry_run("sm_90a"):
        kernels.gemm(a, b, scale_b=scale)
    (found,) = [*launches._compiled.values()][-1].executable.resources.values()
    assert (found.stack, found.spill_stores, found.spill_loads) == (0, 0, 0)
    assert not [text for text in found.messages if not text.startswith(FENCE_ADDED)]


def test_only_integers_are_loaded_before_a_is_permuted(monkeypatch):
    """On a GPU the GEMM starts beside `PermuteA`; the CPU target runs one after the other: the order is that of the code."""
    monkeypatch.setattr(launches, "_compiled", {})
    a, b = np.zeros((64, 512), BF16), stored(np.zeros((512, 512), np.int8), 8)
    with kiln.target("nvidia"), dry_run("sm_90a"):
        kernels.gemm(
            a, b, scale_b=np.zeros((512,), F32), config=kernels.Sm90MixedInputConfig((128, 64, 64), (1, 1), 4, 2)
        )
    kinds = {
        "griddepcontrol.wait": "wait",
        "griddepcontrol.launch_dependents": "let go",
        "cp.async.bulk.tensor": "load",
    }
    laying, product = (
        [kinds[found] for found in re.findall("|".join(map(re.escape, kinds)), made.__ptx__)]
        for made in launches._compiled.values()
    )
    assert laying == ["wait", "let go"]  # what wrote B has ended
    # integers of the first stages; consumers; A of those, and then both
    assert product == ["load", "wait", "let go", "wait", "load", "load", "load"]
