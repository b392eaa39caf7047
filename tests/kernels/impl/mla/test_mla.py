"""Attention to latents, against float64 on the CPU target. Rows that do not exist hold NaN, their pages do not exist."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_testing import close, exact, normal
from nvidia_testing import needs_nvdisasm
from sass import check_products, is_product
from sass import kernels as kernels_of

import kiln
from kiln import BFloat16, Constexpr, Float8E4M3FN, Float32, Int32, cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.nvgpu import warpgroup
from kiln.kernels.dispatch import devices, launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention.launch import _example
from kiln.kernels.impl.mla import REGISTRY, MlaProblem, mla_prefill, sm90, sm90_kv_tiles, sm90_swap_ab
from kiln.kernels.impl.mla.implementations import Sm90Mla
from kiln.kernels.impl.mla.sm80 import Sm80Mla
from kiln.kernels.impl.mla.sm90_mainloop import MlaWarpgroup
from kiln.kernels.impl.mla.sm90_swap_ab_mainloop import SwapAbWarpgroup

VALUES = 128
LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


class Cache:
    """Latents of sequences of some lengths, each in pages anywhere."""

    def __init__(self, *lengths: int, dtype: Any = np.float16, value_dim: int = VALUES, scale: float = 1.0) -> None:
        self.scale = scale
        columns = -(-max(lengths) // 64) + 1
        self.lengths, self.value_dim = np.array(lengths, np.int32), value_dim
        self.pages = normal(len(lengths) * columns + 1, 64, value_dim + 64, dtype=dtype)
        order = np.random.default_rng(0).permutation(len(self.pages))[: len(lengths) * columns]
        self.table = order.reshape(-1, columns).astype(np.int32)
        for row, length in zip(self.table, lengths, strict=True):
            beyond = np.arange(length, columns * 64)
            self.pages[row[beyond // 64], beyond % 64] = np.nan
            row[-(-length // 64) :] = (1 << 30, -1)[length % 2]

    def sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.arange(self.lengths[number])
        rows = self.pages[self.table[number, at // 64], at % 64][None, :, None]
        if rows.itemsize == 1:
            rows = rows.astype(np.float64) * self.scale
        return rows, rows[..., : self.value_dim]


def check(q: np.ndarray, cache: Cache, **options: Any) -> Any:
    with kiln.target("cpu"):
        got = kernels.mla_decode(
            q, cache.pages, cache.table, cache.lengths, value_dim=cache.value_dim, return_lse=True, **options
        )
    reference = {name: value for name, value in options.items() if name in ("causal", "scale")}
    for n in range(len(q)):
        close([x[n : n + 1] for x in got], exact(q[n : n + 1], *cache.sequence(n), **{"causal": True, **reference}))
    return got


@pytest.mark.quick(2)
@pytest.mark.parametrize("heads", [16, 20])
@pytest.mark.parametrize("num_splits", [1, 3, 40])
def test_lengths(num_splits, heads):
    """Sequences without latents, with fewer than tokens, that fill pages or not; in one share, cut anywhere, in more shares than blocks.
    Queries are columns of products, or rows."""
    check(normal(6, 2, heads, VALUES + 64), Cache(0, 1, 64, 65, 330, 128), num_splits=num_splits)


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_splits", [5, 40])
def test_many_rows_are_put_together_by_one_block(num_splits, monkeypatch):
    """Where fewer blocks run at once than there are rows; by one group of threads, and by several."""
    with kiln.target("cpu"):
        few = dataclasses.replace(devices.current(), sm_count=1)
    monkeypatch.setattr(devices, "current", lambda: few)
    launches.cached_kernel.cache_clear()  # code is kept by kernel object
    try:
        with kiln.sanitize() if LONG else contextlib.nullcontext():
            check(normal(3, 2, 9, VALUES + 64), Cache(70, 300, 513), num_splits=num_splits)
    finally:
        launches.cached_kernel.cache_clear()


@pytest.mark.quick(1)
@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (3, 30), (4, 32)])
def test_rows(tokens, heads):
    """Tiles that are not full, and several of them, whose tokens see different latents of two pages."""
    check(normal(2, tokens, heads, VALUES + 64), Cache(130, 66), num_splits=2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("heads", [16, 20])
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_latents_of_8_bits(dtype, heads):
    """With a factor, or without one; made operands in registers, or in shared memory. In registers they are f16: queries of bf16 are scaled,
    row by row, to what that holds."""
    scale = 0.5 if dtype == ml_dtypes.float8_e4m3fn else 1.0
    cache = Cache(0, 1, 330, 64, dtype=dtype, scale=scale)
    factor = {"cache_scale": np.array([scale], np.float32)} if scale != 1.0 else {}
    q = normal(4, 2, heads, VALUES + 64, dtype=ml_dtypes.bfloat16 if factor else np.float16)
    if factor:
        q[:, :, :3] *= np.array([[3e5], [1e-30], [0.0]], ml_dtypes.bfloat16)
    check(q, cache, num_splits=3, **factor)


@pytest.mark.quick(0)
@pytest.mark.parametrize(("dtype", "heads"), [(np.float16, 16), (np.float16, 20), (ml_dtypes.bfloat16, 20)])
def test_a_factor_of_zero(dtype, heads):
    """Latents that are seen weigh the same, others nothing; made operands in registers, or in shared memory, with scales of rows or without."""
    cache = Cache(0, 1, 130, 64, dtype=ml_dtypes.float8_e4m3fn, scale=0.0)
    out, lse = check(
        normal(4, 2, heads, VALUES + 64, dtype=dtype), cache, num_splits=3, cache_scale=np.zeros(1, np.float32)
    )
    assert not out.any()
    assert np.allclose(np.exp(lse[2, 0]), (129, 130), rtol=1e-3)


@pytest.mark.parametrize(("early", "dtype"), [(0, np.float16), (8, ml_dtypes.float8_e4m3fn)])
def test_scores_begun_early(early, dtype):
    """None before the other warp group's weights are there, or all that can be."""
    config = kernels.Sm90MlaConfig(2, early=early)
    check(normal(2, 1, 40, VALUES + 64), Cache(330, 65, dtype=dtype), config=config)


def test_many_tokens():
    """As when a prompt is read: tiles see different numbers of latents, and leave out what they do not see."""
    check(normal(3, 70, 2, VALUES + 64), Cache(300, 70, 20), num_splits=1)


@pytest.mark.parametrize("heads", [20, 64])
def test_prompts(heads):
    """Tokens of sequences one after another, in parts of three tokens that begin before a sequence does, or of one; latents in pages, or one
    after another. Tokens at the end belong to nobody."""
    cache, counts = Cache(70, 5, 130), (3, 5, 2)
    starts = np.cumsum((0, *counts)).astype(np.int32)
    q = normal(starts[-1] + 2, heads, VALUES + 64)
    rows = [cache.sequence(n)[0][0, :, 0] for n in range(3)]
    places = np.cumsum((0, *map(len, rows))).astype(np.int32)
    options = {"value_dim": VALUES, "return_lse": True}
    with kiln.target("cpu"):
        got = kernels.mla_prefill(
            q, cache.pages, starts, page_table=cache.table, lengths=cache.lengths, max_length=130, **options
        )
        again = kernels.mla_prefill(q, np.concatenate(rows), starts, cu_seqlens_k=places, max_length=130, **options)
    for n, (first, last) in enumerate(itertools.pairwise(starts)):
        wanted = exact(q[None, first:last], *cache.sequence(n), causal=True)
        close([got[0][None, first:last], got[1][None, :, first:last]], wanted)
    assert not got[0][starts[-1] :].any()
    assert all(map(np.array_equal, got, again))
    with kiln.target("cpu"):
        nothing = kernels.mla_prefill(
            q[:0], cache.pages, starts * 0, page_table=cache.table, lengths=cache.lengths, **options
        )
    assert [x.shape for x in nothing] == [(0, heads, VALUES), (heads, 0)]
    with pytest.raises(DSLUserCodeTypeError, match="either page_table and lengths, or cu_seqlens_k"):
        kernels.mla_prefill(q, cache.pages, starts)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_configs_work(arch):
    """All that are offered, by the checks of those that take them."""
    device = device_of(arch)
    for heads, (dim, value_dim) in itertools.product((1, 4, 20, 128), ((576, 512), (520, 512), (392, 384), (192, 128))):
        problem = MlaProblem(7, 4, heads, 1000, dim, value_dim)
        choices = REGISTRY.choices(problem, device)
        assert choices
        assert not [x for x in choices if REGISTRY.validate(problem, x.config, device)]


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=str
)
def test_latents_one_after_another_are_pages(dtype):
    """That begin at each of them, whatever their type; after the last are zeros."""
    latents = normal(70, 8, dtype=dtype)
    pages = mla_prefill._Numpy().overlapping(latents)
    assert (pages.dtype, pages.shape) == (latents.dtype, (71, 64, 8))
    for first in (0, 30, 69, 70):
        there = latents[first : first + 64]
        np.testing.assert_array_equal(pages[first, : len(there)].astype(np.float32), there.astype(np.float32))
        assert not pages[first, len(there) :].astype(np.float32).any()


@pytest.mark.parametrize("value_dim", [128, 256, 384, 512])
def test_products_have_the_columns_of_a_half(value_dim):
    """And none of what lies behind it, whatever the type of latents."""
    for stored in (None, Float8E4M3FN):
        kernel = sm90.Sm90MlaKernel(BFloat16, value_dim, stored)
        assert kernel.half % kernel.pv_columns == 0


def test_options():
    """Values of another size in bf16, all latents seen, another scale; the same twice."""
    q, cache = normal(1, 2, 16, 320, dtype=ml_dtypes.bfloat16), Cache(200, dtype=ml_dtypes.bfloat16, value_dim=256)
    first = check(q, cache, causal=False, scale=0.02, num_splits=2)
    again = check(q, cache, causal=False, scale=0.02, num_splits=2)
    assert all(map(np.array_equal, first, again))


@pytest.mark.parametrize("heads", [16, 40])
def test_scores_that_grow(heads):
    """Rising from block to block, so that what was summed is scaled again in both warp groups; and far below zero."""
    cache = Cache(300, 300)
    for row, sign in zip(cache.table, (1, -1), strict=True):
        cache.pages[row[:5], :, VALUES:] = sign * np.arange(5, 0, -1)[:, None, None]
    q = normal(2, 1, heads, VALUES + 64)
    q[..., VALUES:] = 1.0
    check(q, cache, num_splits=1, scale=0.1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("value_dim", [40, VALUES])
def test_columns(value_dim):
    """Without warp groups."""
    config = kernels.Sm80AttentionConfig(16, 32, 1, 1, num_splits=2, pack_gqa=True)
    check(normal(2, 2, 20, value_dim + 64), Cache(0, 100, value_dim=value_dim), config=config)


@pytest.mark.skipif(not LONG, reason="instrumented code of warp groups takes long to compile; set KILN_LONG_TESTS=1")
@pytest.mark.parametrize("heads", [8, 40])
@pytest.mark.parametrize(
    ("dtype", "value_dim"), [(np.float16, VALUES), (ml_dtypes.float8_e4m3fn, VALUES), (ml_dtypes.float8_e4m3fn, 384)]
)
def test_clean_under_the_sanitizer(dtype, value_dim, heads):
    with kiln.sanitize():
        check(normal(2, 1, heads, value_dim + 64), Cache(70, 260, value_dim=value_dim, dtype=dtype), num_splits=2)


@cute.jit
def _released_too_early(self, barriers, some, later: Constexpr):
    for barrier in barriers:
        if some & (cute.arch.lane_idx() == 0):
            cute.arch.mbarrier_arrive(barrier)
    warpgroup.wait_group(later)


def _released_before_products_end(self, count, again):
    self.rescale()
    self.issue_pv(self.uniform_here(count))
    self.release(self.uniform_here(count), again)
    warpgroup.wait_group(0)


MUTANTS = {
    (MlaWarpgroup, "sync_warpgroup"): (lambda self: None, "race"),
    (MlaWarpgroup, "wait_other_pv"): (_released_too_early, "race"),
    (MlaWarpgroup, "rescale"): (lambda self, begun=False: None, "Mismatched"),
    (MlaWarpgroup, "zero_missing"): (lambda self, count, there: None, "nan"),
    (SwapAbWarpgroup, "sync_warpgroup"): (lambda self: None, "race"),
    (SwapAbWarpgroup, "sync_consumers"): (lambda self: None, "race"),
    (SwapAbWarpgroup, "update_o"): (_released_before_products_end, "race"),
    (SwapAbWarpgroup, "rescale"): (lambda self: None, "Mismatched"),
    (SwapAbWarpgroup, "zero_missing"): (lambda self, count, there: None, "nan"),
}
"""What is left out or done wrong, and what is said of it."""


@pytest.mark.skipif(not LONG, reason="nine programs, instrumented; set KILN_LONG_TESTS=1")
@pytest.mark.parametrize(("steps", "name"), MUTANTS)
def test_mutants(steps, name, monkeypatch):
    mutant, said = MUTANTS[steps, name]
    monkeypatch.setattr(steps, name, mutant)
    launches.cached_kernel.cache_clear()  # code is kept by kernel object
    try:
        with pytest.raises(Exception, match=f"(?i){said}"), kiln.sanitize():
            check(8 * normal(2, 1, 40 if steps is MlaWarpgroup else 8, VALUES + 64), Cache(70, 600), num_splits=1)
    finally:
        launches.cached_kernel.cache_clear()


@pytest.mark.parametrize("value_dim", [128, 384, 512])
@pytest.mark.parametrize("stored", [None, Float8E4M3FN])
@pytest.mark.parametrize("rows", [16, 32])
def test_each_warp_group_sees_every_filling_of_its_buffers(rows, stored, value_dim):
    """A wait tells only two fillings of a buffer apart."""
    kernel = sm90_swap_ab.Sm90MlaSwapAbKernel(BFloat16, value_dim, rows, cache_dtype=stored)
    filled: dict[int, list[int]] = {}
    for count in range(40):
        for index, turn in (kernel.stage_of(count, piece) for piece in range(kernel.column_tiles)):
            groups = filled.setdefault(index, [])
            assert turn == len(groups) and set(groups) <= {count % 2}
            groups.append(count % 2)
    assert sorted(filled) == list(range(kernel.stages))


def test_what_is_refused():
    cache, q = Cache(5, 9), normal(2, 1, 2, VALUES + 64)
    given = {"q": q, "cache": cache.pages, "page_table": cache.table, "lengths": cache.lengths, "value_dim": VALUES}
    for wrong, message in (
        ({"cache": cache.pages[:, :32]}, "pages have 32 rows, not 64"),
        ({"q": q[..., :64]}, "the same D"),
        ({"value_dim": 1000}, "value_dim at most D"),
        ({"num_splits": 0}, "num_splits is 0"),
        ({"cache_scale": np.ones(1, np.float32)}, "for an 8-bit cache"),
        ({"num_splits": 2, "config": kernels.Sm90MlaConfig(2)}, "config has its own"),
        ({"config": kernels.Sm90MlaConfig(2, early=9)}, "early is 9, and must be 0 to 8"),
        ({"out": np.zeros((2, 1, 2, 64), np.float16)}, "it must be float16 of shape \\(2, 1, 2, 128\\)"),
    ):
        with pytest.raises(DSLUserCodeTypeError, match=message), kiln.target("cpu"):
            kernels.mla_decode(**{**given, **wrong})


# --- configs ---


def test_who_is_chosen():
    hopper_device = device_of("sm_90a")
    for heads in (16, 32, 64, 128):
        chosen = REGISTRY.choose(MlaProblem(128, 1, heads, 4096), hopper_device)
        assert isinstance(chosen.implementation, Sm90Mla)
        # 128 sequences are not cut, where that takes nearly all SMs
        assert chosen.config == kernels.Sm90MlaConfig(128 // max(1, heads // 64), swap_ab=heads <= 32)
    assert REGISTRY.choose(MlaProblem(100, 1, 16, 4096), hopper_device).config.num_splits == 132
    for arch in ("sm_80", "sm_86", "sm_120a"):
        for heads in (16, 128):
            chosen = REGISTRY.choose(MlaProblem(4, 2, heads, 4096), device_of(arch))
            assert isinstance(chosen.implementation, Sm80Mla)
    explained = str(REGISTRY.explain(MlaProblem(128, 1, 16, 4096), hopper_device))
    assert "Sm90Mla" in explained
    assert "bound by memory" in explained


# --- the machine code ---


def _machine_code(kernel: Any, stored: Any = BFloat16, moves: int = 0) -> Any:
    """What is made of a kernel for bf16, nothing being spilled and no product waiting for another: its innermost loops of products,
    that of blocks, and all of it. `moves`: of scores, which are rounded and written where sums stay."""
    space = cute.AddressSpace.gmem
    given = sm90_kv_tiles.MlaTensors(
        *(_example(kind, space) for kind in ((Int32, 2), (Int32, 1), (Int32, 2), (Float32, 3), (BFloat16, 3))), lse=None
    )  # fmt: skip
    rows = [_example((x, 3), space) for x in (BFloat16, stored)]
    numbers = sm90_kv_tiles.MlaScalars(Float32(1.0), 1, 0, 1)
    made = cute.compile(kernel, *rows, given, Int32(1), numbers, 0, target="nvidia")
    inner = check_products(made, moves=moves)
    (code,) = (code for name, code in kernels_of(made.executable.artifacts["sass"]).items() if "Mla" in name)
    blocks = [x for x in code.loops() if any(map(is_product, x.instructions)) and _powers(x.instructions)]
    return inner, min(blocks, key=lambda x: len(x.instructions)).instructions, code


def _powers(instructions: Any) -> list[int]:
    return [n for n, i in enumerate(instructions) if i.name.startswith("MUFU.EX2")]


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize("stored", [None, Float8E4M3FN])
def test_products_are_begun_together(stored, monkeypatch):
    """Those of the other's weights and the scores run one after the other without a wait, unless sums have to be scaled between them."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    inner, loop, code = _machine_code(sm90.Sm90MlaKernel(BFloat16, 512, stored), stored or BFloat16)
    # of nine tiles' scores, four each: of 16 bits, two loops and the last tile; and with weights, of 256 columns, or of 128
    scored, weighted, left = (3 * 4, 1, 5) if stored is None else (9 * 4, 2, 1)
    # Loops of the other's weights, of its last ones, and of 16 bits of scores: products are in flight all through them.
    assert sorted(len(x.products) for x in inner) == [weighted, weighted] + ([4, 4] if stored is None else [])
    assert not any(x.waits for x in inner)
    assert sum(map(is_product, loop)) == scored + 5 * weighted
    waits = [(n, int(i.operands.split()[1], 16)) for n, i in enumerate(loop) if i.name.startswith("WARPGROUP.DEPBAR")]
    # for sums that are scaled; for the other's, but not for some turns of scores; for these; for its own
    assert [number for _, number in waits] == [0, left, 0, 0]
    scales, others, scores, own = (n for n, _ in waits)
    assert sum(map(is_product, loop[:scores])) == scored + weighted
    assert sum(scores < n < own for n in _powers(loop)) >= 34
    # The first is jumped over, if nothing is scaled.
    begun = max(n for n in range(scales) if is_product(loop[n]))
    names = [
        i.name for i in loop[begun : scales + 130] if i.name.startswith(("VOTE.", "BRA", "FMUL", "WARPGROUP", "HGMMA"))
    ]
    voted = names.index("VOTE.ANY")
    scaled = set(names[voted + 2 : names.index("WARPGROUP.ARRIVE")])
    assert (names[voted + 1], scaled) == ("BRA", {"FMUL", "WARPGROUP.DEPBAR.LE"})
    # Where tiles begin is in uniform registers: products would wait for copies to them.
    assert not any(i.name.startswith("R2UR") for i in loop)
    # Loads wait for what is let go: where that is was found before the wait.
    assert "SYNCS.ARRIVE" in loop[others + 2].name
    # Of outputs nothing is written by four bytes: a warp would write half of each 32 that memory takes at once.
    assert sum(i.name == "STG.E" for i in code.instructions) <= 4


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
def test_scores_after_the_others_weights(monkeypatch):
    """Nine groups are begun then, more than a wait can leave."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    _, loop, _ = _machine_code(sm90.Sm90MlaKernel(BFloat16, 512, early=0))
    assert [i.operands for i in loop if i.name.startswith("WARPGROUP.DEPBAR")][0].endswith("0x7")


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize("stored", [None, Float8E4M3FN])
def test_latents_as_rows(stored, monkeypatch):
    """Latents of 8 bits are widened while products of those before them run: a wait leaves one group."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    kernel = sm90_swap_ab.Sm90MlaSwapAbKernel(BFloat16, 512, 32, cache_dtype=stored)
    _, loop, _ = _machine_code(kernel, stored or BFloat16, 10)
    assert sum(map(is_product, loop)) == 36 + 32
    waits = sum(i.name.startswith("WARPGROUP.DEPBAR") for i in loop)
    assert waits == (2 if stored is None else 2 + 7 + 6)
