"""Gradients of attention by warp groups, as on Hopper: against float64 on the CPU target, and the machine code for GPUs that are not there."""

from __future__ import annotations

import dataclasses
import itertools
import os
from types import SimpleNamespace
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
from kiln import BFloat16, Float32, Int32, cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.runtime import from_dlpack
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import AttentionProblem
from kiln.kernels.impl.attention.args import AttentionTensors, BackwardScalars
from kiln.kernels.impl.attention.bwd import (
    REGISTRY,
    AttentionBackwardProblem,
    implementations,
    sm90,
    sm90_config,
    sm90_cost,
    sm90_hd256_config,
    sm90_scheduler,
)
from kiln.kernels.impl.attention.bwd.implementations import Sm90AttentionBackward
from kiln.kernels.impl.attention.launch import compile_kernel
from kiln.kernels.impl.attention.score_mod import ScoreMod
from kiln.kernels.parts.element_functions import Functions
from kiln.testing import assert_no_spills

HOPPER = device_of("sm_90a")
SMALL, HELD = kernels.Sm90AttentionBackwardConfig(32), kernels.Sm90AttentionBackwardConfig(32, 3, 2)
AHEAD = kernels.Sm90AttentionBackwardConfig(32, kv_stages=2)
long = pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="long: KILN_LONG_TESTS=1")


def forward(q: Any, k: Any, v: Any, **options: Any) -> Any:
    with kiln.target("cpu"):
        return kernels.flash_attention(
            q, k, v, return_lse=True, config=kernels.Sm80AttentionConfig(16, 16, 1, 1), **options
        )


def gradients(
    q: Any, k: Any, v: Any, dout: Any, config: Any = SMALL, deterministic: bool = True, **options: Any
) -> Any:
    out, lse = forward(q, k, v, **{name: x for name, x in options.items() if name not in ("score_gradient", "dq")})
    with kiln.target("cpu"):
        return kernels.flash_attention_backward(
            dout, q, k, v, out, lse, config=config, deterministic=deterministic, **options
        )


def check(q: Any, k: Any, v: Any, **options: Any) -> None:
    dout = normal(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    got = gradients(q, k, v, dout, **options)
    for name in ("config", "deterministic"):
        options.pop(name, None)
    close_gradients(got, exact_gradients(dout, q, k, v, **options))


def run_at_once(monkeypatch: Any, blocks: int) -> None:
    """Have so many blocks of threads: each has several blocks of keys."""
    device = dataclasses.replace(HOPPER, sm_count=blocks)
    monkeypatch.setattr(implementations.devices, "current", lambda: device)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (70, 130), (33, 300)])
def test_lengths(queries, keys):
    """Blocks of keys that begin at different queries, and end before their last key; keys and values in registers."""
    check(normal(1, queries, 2, 64), normal(1, keys, 1, 64), normal(1, keys, 1, 64), config=HELD, scale=0.3)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("queries", "keys"), [(200, 140), (150, 300)])
def test_causal(queries, keys):
    """Heads that share keys, queries that see nothing."""
    check(normal(1, queries, 4, 64), normal(1, keys, 2, 64), normal(1, keys, 2, 64), causal=True, config=AHEAD)


@pytest.mark.quick(2)
@pytest.mark.parametrize("window", [(0, 0), (20, 9), (70, 64), (30, None)])
def test_windows(window):
    """Heads of keys and values of other sizes, filled up, in another type, with a cap; values in registers, in any order."""
    q, k, v = (normal(1, n, 1, d, dtype=ml_dtypes.bfloat16) for n, d in ((150, 72), (170, 72), (170, 40)))
    check(
        q, k, v, window=window, softcap=3.0, config=kernels.Sm90AttentionBackwardConfig(32, 2, 1), deterministic=False
    )


@pytest.mark.quick(0)
@pytest.mark.parametrize("names", [("alibi_slopes", "sinks"), tuple(changes(4))])
def test_what_is_done_to_scores(names):
    """Heads that share keys, queries that see nothing but the sink."""
    q, k, v = normal(2, 150, 4, 64), normal(2, 140, 2, 64), normal(2, 140, 2, 64)
    check(q, k, v, causal=True, **{name: x for name, x in changes(4).items() if name in names})


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("exist", "tile_m", "options"),
    [([7, 3, 135, 0, 40], 32, {"causal": True}), (None, 48, {"window": (20, 30), "softcap": 3.0})],
)
def test_sequences_of_any_length(exist, tile_m, options, monkeypatch):
    """None of queries, none of keys, keys that do not exist; what belongs to no sequence is no number, has no influence, and is not written."""
    run_at_once(monkeypatch, 2)
    queries, keys, rest = [5, 0, 100, 16, 40], [7, 20, 170, 0, 40], 20
    starts_q, starts_k = (np.cumsum([0, *n]).astype(np.int32) for n in (queries, keys))
    q, dout = (normal(sum(queries) + rest, 2, 64) for _ in range(2))
    k, v = (normal(sum(keys) + rest, 1, 64) for _ in range(2))
    there = exist or keys
    for x in (q, dout, k, v):
        x[-rest:] = np.nan
    for x in (k, v):
        for first, count, end in zip(starts_k, there, starts_k[1:], strict=False):
            x[first + count : end] = np.nan
    lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    if exist is not None:
        lengths["seqused_k"] = np.array(exist, np.int32)
    out, lse = forward(q, k, v, **lengths, **options)
    made = [np.full(x.shape, 7.0, x.dtype) for x in (q, k, v)]
    with kiln.target("cpu"):
        got = kernels.flash_attention_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            config=kernels.Sm90AttentionBackwardConfig(tile_m, kv_stages=2),
            **lengths,
            **options,
            **dict(zip(("dq", "dk", "dv"), made, strict=True)),
        )
    for n in range(5):
        rows, others = slice(*starts_q[n : n + 2]), slice(starts_k[n], starts_k[n] + there[n])
        wanted = exact_gradients(dout[None, rows], q[None, rows], k[None, others], v[None, others], **options)
        close_gradients([x[None, s] for x, s in zip(got, (rows, others, others), strict=True)], wanted)
        assert not any(x[others.stop : starts_k[n + 1]].any() for x in got[1:])
    assert all((x[-rest:] == 7.0).all() for x in got)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("side", "config", "options"), [((2, 2, 2), HELD, {}), ((1, 1 << 20, 1), AHEAD, {"causal": True})]
)
def test_the_same_bits_in_every_order(side, config, options, monkeypatch):
    """However threads and blocks take turns, two of them having six blocks of keys; two blocks of keys of three have their own sums. Heads one after the
    other: queries of one are done while the next is."""
    run_at_once(monkeypatch, 2)
    monkeypatch.setattr(sm90_config, "head_groups", lambda *_: side)
    if side[2] == 1:
        monkeypatch.setattr(sm90_config, "converted_heads", lambda *_: 1)
    q, dout, k, v = (normal(1, n, 2, 64) for n in (100, 100, 300, 300))
    options = {"scale": 0.3, **options}
    first = gradients(q, k, v, dout, config, **options)
    close_gradients(first, exact_gradients(dout, q, k, v, **options))
    monkeypatch.setenv("KILN_CPU_SEED", "7")
    for x, y in zip(first, gradients(q, k, v, dout, config, **options), strict=True):
        np.testing.assert_array_equal(x, y)


# --- who waits for whom ---


class Turns:
    """What `BackwardTileScheduler` says, in a row for each block of threads: what it took, and its rank for each block of queries (-1: it does not see them); in the last row, how many
    add to those."""

    def __init__(self, masks: tuple[bool, bool, bool], staggers_heads: bool) -> None:
        self.of = sm90.Sm90BackwardKernel(BFloat16, 64, SMALL, masks, True, staggers_heads=staggers_heads)

    @cute.jit
    def __call__(self, q: Any, k: Any, counters: Any, scalars: Any, schedule: Any, found: Any):
        tiles = cute.ceil_div(k.shape[0], 128)
        grid = tiles * k.shape[2] * k.shape[3]
        self.kernel(q, k, counters, scalars, schedule, found, tiles).launch(grid=(grid, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, q: Any, k: Any, counters: Any, scalars: Any, schedule: Any, found: Any, tiles: Any):
        scheduler = sm90_scheduler.BackwardTileScheduler(self.of, q, k, AttentionTensors(), tiles, scalars, schedule)
        number = scheduler.take(counters.next_tile)
        work = scheduler.work(number)
        span = scheduler.span(work)
        if cute.arch.thread_idx()[0] == 0:
            row = found[number, None]
            row[0], row[1] = work.layer * k.shape[2] + work.head, work.tile
            for tile in range(found.shape[1] - 2):
                seen = (tile >= span.first) & (tile < span.first + span.count)
                row[tile + 2] = scheduler.rank(work, tile) if seen else Int32(-1)
                found[found.shape[0] - 1, tile + 2] = scheduler.num_additions(work.batch, tile)


@pytest.mark.parametrize(
    ("side", "part", "stride"), [(1, 4, 0), (3, 4, 0), (4, 3, 0), (1, 4, 4), (2, 4, 2), (2, 4, 3), (4, 4, 1)]
)
@pytest.mark.parametrize("window", [(None, None), (None, 0), (150, 40), (30, None)])
def test_blocks_wait_only_for_those_that_began_before(window, side, part, stride, monkeypatch):
    """Whatever order they start in: those that add to a block of queries do so in the order in which they took their keys."""
    monkeypatch.setenv("KILN_CPU_SEED", "5")
    queries, keys, heads, tiles = 300, 500, 2, 10
    left, right = (x if x is not None else 1 << 20 for x in window)
    with kiln.target("cpu"):
        q, k = (from_dlpack(np.zeros((n, 1, heads, 2), np.int32)) for n in (queries, keys))
        counters = sm90_scheduler.DqCounters(None, from_dlpack(np.zeros(1, np.int32)))
        scalars = BackwardScalars(Float32(1), Float32(1), Float32(1), Int32(left), Int32(right), Float32(1))
        schedule = sm90_config.BackwardSchedule(*(Int32(x) for x in (side, stride, part, 0, 1)))
        found = np.full((4 * (heads * 2 + side) + 1, 2 + tiles), -7, np.int32)
        Turns((window[1] is not None, window[0] is not None, False), stride > 0)(
            q, k, counters, scalars, schedule, from_dlpack(found)
        )
    found, adders = found[:-1], found[-1, 2:]
    found = found[found[:, 0] >= 0]  # numbers without a head are skipped
    assert len(found) == 16
    assert {tuple(x) for x in found[:, :2]} == {(head, block) for head in range(4) for block in range(4)}
    for head in range(4):
        rows = found[found[:, 0] == head]
        for tile in range(tiles):
            here = rows[rows[:, 2 + tile] >= 0]
            for first in range(0, 4, part):
                ranks = here[(here[:, 1] >= first) & (here[:, 1] < first + part), 2 + tile]
                assert ranks.tolist() == list(range(len(ranks)))
            position = np.arange(tile * 32, min(queries, tile * 32 + 32)) + keys - queries
            seen = [
                ((position - left < block * 128 + 128) & (position + right >= block * 128)).any() for block in range(4)
            ]
            assert len(here) == sum(seen) == adders[tile]


@pytest.mark.quick(0)
@pytest.mark.parametrize("said", [0, 1, 256])
def test_a_number_of_keys_that_is_too_small(said, monkeypatch):
    """Arrays have the lengths they have; what is known of queries lies within what was made for it."""
    q, k, v, dout = (normal(1, n, 1, 64) for n in (40, 600, 600, 40))
    wanted = gradients(q, k, v, dout)
    parts = []
    kept = sm90_config.head_groups
    monkeypatch.setattr(sm90_config, "head_groups", lambda *given: parts.append(kept(*given)) or parts[-1])
    with kiln.sanitize("memory"):
        got = gradients(q, k, v, dout, max_seqlen_k=said)
    assert parts[-1][2] > 2
    assert all(map(np.array_equal, got, wanted))


def test_sequences_without_keys():
    starts = np.array([0, 3], np.int32), np.array([0, 0], np.int32)
    q, k = normal(3, 1, 64), normal(2, 1, 64)
    got = gradients(
        q, k, k, q, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], max_seqlen_q=3, max_seqlen_k=0, causal=True
    )
    assert not got[0].any()
    for implementation, dim in ((Sm90AttentionBackward(), 64), (implementations.Sm90AttentionBackwardHd256(), 192)):
        problem = AttentionBackwardProblem(AttentionProblem(1, 3, 0, 1, 1, dim, dim, window_right=0, varlen=True))
        assert implementation.cost(problem, next(iter(implementation.configs(problem, HOPPER))), HOPPER) > 0.0
    assert sm90_hd256_config.head_group(problem, HOPPER) == 1


# --- under the sanitizer ---


@long
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("packed", [False, True])
def test_clean_under_the_sanitizer(packed, seed, monkeypatch):
    monkeypatch.setenv("KILN_CPU_SEED", str(seed))
    run_at_once(monkeypatch, 1)  # which has two blocks of keys
    rest = (1,) if not packed else ()
    q, k, v = (normal(*rest, n, 1, 64) for n in (70, 130, 130))
    lengths = {}
    if packed:
        starts_q, starts_k = (np.array([0, n // 3, n], np.int32) for n in (70, 130))
        lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "softcap": 3.0}
    with kiln.sanitize():
        gradients(q, k, v, normal(*q.shape), causal=True, **lengths)


@pytest.mark.quick(0)
def test_keys_that_no_query_sees_are_clean_under_the_sanitizer():
    """There are no steps between holding values and writing results over them."""
    q, k, v, dout = (normal(1, n, 1, 128) for n in (1, 140, 140, 1))
    with kiln.sanitize():
        got = gradients(q, k, v, dout, config=kernels.Sm90AttentionBackwardConfig(32, 2, 1), window=(3, 0))
    close_gradients(got, exact_gradients(dout, q, k, v, window=(3, 0)))


def _without(monkeypatch: Any, place: Any, name: str, skipped: Any = lambda *given, **named: True) -> None:
    kept = getattr(place, name)
    monkeypatch.setattr(
        place, name, lambda *given, **named: None if skipped(*given, **named) else kept(*given, **named)
    )


def _without_barrier(monkeypatch: Any, number: int) -> None:
    made = sm90.pipeline.NamedBarrier
    nothing = SimpleNamespace(arrive_and_wait=lambda: None)
    is_it = lambda given: isinstance(given, int) and given == number  # noqa: E731
    monkeypatch.setattr(
        sm90.pipeline, "NamedBarrier", lambda given, *more: nothing if is_it(given) else made(given, *more)
    )


MUTANTS = {
    "dS is written without a fence for the tensor cores": lambda p: _without(p, sm90.arch, "fence_proxy"),
    "products are not waited for": lambda p: _without(p, sm90.warpgroup, "wait_group"),
    "dQ is written before its product is complete": lambda p: _without(
        p, sm90.warpgroup, "wait_group", lambda n, found=iter([False, True, False, False, False]): next(found)
    ),
    "dQ is written again before it has been read": lambda p: _without(
        p, sm90.arch, "cp_async_bulk_wait_group", lambda n, read=False: read
    ),
    "tiles are cleared without a barrier": lambda p: _without_barrier(p, sm90._CLEARED),
}


@long
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, monkeypatch):
    for made in (compile_kernel, launches.cached_kernel):
        made.cache_clear()
    MUTANTS[name](monkeypatch)
    starts_q, starts_k = (np.array([0, n], np.int32) for n in (70, 130))
    q, k, v = (normal(n, 1, 64) for n in (70, 130, 130))
    lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    with pytest.raises(Exception, match="race|register|in flight"), kiln.sanitize():
        gradients(q, k, v, normal(70, 1, 64), **lengths)
    for made in (compile_kernel, launches.cached_kernel):
        made.cache_clear()


# --- configs ---


def test_who_is_chosen():
    training = AttentionProblem(4, 8192, 8192, 16, 16, 128, 128)
    assert isinstance(REGISTRY.choose(AttentionBackwardProblem(training), HOPPER).implementation, Sm90AttentionBackward)
    for change in ({"varlen": True}, {"has_seqused_k": True}, {"has_softcap": True}, {"head_dim": 192}):
        other = AttentionBackwardProblem(dataclasses.replace(training, **change))
        chosen = REGISTRY.choose(other, HOPPER).implementation
        assert isinstance(chosen, Sm90AttentionBackward) == ("head_dim" not in change)
    for arch in ("sm_80", "sm_90", "sm_100a"):
        chosen = REGISTRY.choose(AttentionBackwardProblem(training), device_of(arch))
        assert not isinstance(chosen.implementation, Sm90AttentionBackward)


def test_which_heads_start_one_after_the_other():
    """Those of many heads under a causal mask, where results are deterministic."""
    problem = AttentionBackwardProblem(AttentionProblem(4, 8192, 8192, 32, 32, 64, 64, window_right=0))
    assert sm90_config.staggered_heads(problem, 8, 1) == (8, 8)
    assert sm90_config.staggered_heads(problem, 7, 1) == (8, 9)  # 64 tiles, at most 9 of each head
    assert sm90_config.staggered_heads(problem, 8, 2) == (8, 0)
    for change in ({"batch": 1, "heads_k": 16}, {"window_right": None}, {"window_left": 100}, {"varlen": True}):
        other = dataclasses.replace(problem, attention=dataclasses.replace(problem.attention, **change))
        assert sm90_config.staggered_heads(other, 8, 1) == (8, 0)
    assert sm90_config.staggered_heads(dataclasses.replace(problem, deterministic=False), 8, 1) == (8, 0)


def test_what_is_made_meanwhile():
    """Queries of other heads, if blocks of threads are long enough for that."""
    long, middle, short = (
        AttentionBackwardProblem(AttentionProblem(4, n, n, 16, 16, 128, 128, window_right=0))
        for n in (8192, 4096, 1024)
    )
    full = AttentionBackwardProblem(AttentionProblem(16, 1024, 1024, 16, 16, 128, 128))
    for problem, wanted in ((long, 60), (middle, 56), (short, 0), (full, 240)):
        config = sm90_cost.default_config(problem, HOPPER)
        side, _, parts = sm90_config.head_groups(problem, config, HOPPER)
        assert sm90_config.converted_heads(problem, config, side, parts) == wanted
    assert sm90_config.converted_heads(dataclasses.replace(long, deterministic=False), config, 4, 1) == 0
    odd = AttentionBackwardProblem(AttentionProblem(1, 8192, 8192, 17, 17, 128, 128, window_right=0))
    assert sm90_config.converted_heads(odd, config, 4, 1) == 16  # all but the last, which has nobody beside it


@pytest.mark.quick(0)
@pytest.mark.parametrize(
    ("dim", "shared", "queries", "keys", "stride"), [(128, 1, 70, 130, 0), (40, 2, 150, 60, 0), (64, 2, 200, 300, 2)]
)
def test_gradients_made_meanwhile(dim, shared, queries, keys, stride, monkeypatch):
    """Of three heads of keys, two side by side: those of queries that see no key, that share keys, of elements and queries that are not there."""
    monkeypatch.setattr(sm90_config, "head_groups", lambda *_: (2, 1 << 20, 1))
    monkeypatch.setattr(sm90_config, "staggered_heads", lambda *_: (2, stride))
    monkeypatch.setattr(sm90_config, "converted_heads", lambda *_: (1 if stride else 2) * shared)
    run_at_once(monkeypatch, 2)
    room = np.full((1, queries, 3 * shared, 128), 7.0, np.float16)  # nothing is written where a head has no elements
    q, k, v = normal(1, queries, 3 * shared, dim), *(normal(1, keys, 3, dim) for _ in "kv")
    options, dout = {"causal": True, "scale": 0.3}, normal(*q.shape)
    got = gradients(q, k, v, dout, dq=room[..., :dim], **options)
    close_gradients(got, exact_gradients(dout, q, k, v, **options))
    assert (room[..., dim:] == 7.0).all()


def test_what_bounds_it():
    problem = AttentionBackwardProblem(AttentionProblem(4, 8192, 8192, 16, 16, 128, 128))
    assert REGISTRY.explain(problem, HOPPER).bound == "shared memory"


@pytest.mark.parametrize("dim", [16, 64, 80, 128])
def test_plans_work(dim):
    problem = AttentionBackwardProblem(AttentionProblem(4, 8192, 8192, 16, 16, dim, dim))
    for config in Sm90AttentionBackward().configs(problem, HOPPER):
        config.check(sm90_config.padded_head_dim((dim, dim)), HOPPER.smem)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (kernels.Sm90AttentionBackwardConfig(24), "multiple of 16"),
        (kernels.Sm90AttentionBackwardConfig(64, 1), "q_stages must be at least 2"),
        (kernels.Sm90AttentionBackwardConfig(64, 2, 3), "operands_in_regs must be 0, 1"),
        (kernels.Sm90AttentionBackwardConfig(128), "registers of a thread"),
        (kernels.Sm90AttentionBackwardConfig(64, 4), "bytes of shared memory"),
    ],
)
def test_plans_that_are_refused(config, message):
    x = np.zeros((1, 128, 1, 128), np.float16)
    with pytest.raises(DSLUserCodeTypeError, match=message), kiln.target("cpu"):
        kernels.flash_attention_backward(x, x, x, x, x, np.zeros((1, 1, 128), np.float32), config=config)


# --- the machine code ---


def compiled(dim: int, masks: tuple[bool, bool, bool], packed: bool = False, change: str = "") -> Any:
    """The config that is chosen, and the kernels, for Hopper."""
    right, left, capped = masks
    slope = lambda s, *_: 0.1 * s + 1.0  # noqa: E731
    functions, sloped = Functions(bent, slope, branching=True) if "function" in change else None, "sloped" in change
    of = AttentionProblem(
        4, 8192, 8192, 16, 16, dim, dim, BFloat16, 9 if left else None, 0 if right else None, capped,
        varlen=packed, has_seqused_k=packed, has_alibi=sloped,
    )  # fmt: skip
    config = sm90_cost.default_config(AttentionBackwardProblem(of, True, functions), HOPPER)
    shape = (BFloat16, (dim, dim), config, masks, True, packed, packed)
    with kiln.target("nvidia"):
        there = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k") * packed + ("alibi_slopes",) * sloped
        launch = implementations.Sm90BackwardLaunch(*shape, ScoreMod(sloped, functions))
        memory = {"dq_acc": (Float32, 3), "additions": (Int32, 3), "next_tile": (Int32, 1)}
        made = compile_kernel.__wrapped__(None, launch, cute.AddressSpace.gmem, backward_kinds(there, **memory))
    return config, made


def bent(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 0.05 * s * s + s - 0.25 * b + 0.5 * h - 0.001 * (q - k)


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize(
    ("dim", "masks", "packed"), [(64, (False, False, False), False), (128, (True, False, True), True)]
)
def test_products_run_asynchronously(dim, masks, packed, monkeypatch):
    """Five for each step, one after the last, and one for steps of which only the other warp group sees keys, waited for once each, and nothing spilled."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    config, made = compiled(dim, masks, packed)
    idle = int(masks[0])
    check_products(made, products=2 * dim // 16 + 2 * config.tile_m // 16 + (2 + idle) * 128 // 16, moves=8)
    assert made.executable.artifacts["sass"].count("WARPGROUP.DEPBAR") == 5 + idle


OFFERED = list(
    itertools.product(
        (64, 128),
        [(r, l, c) for r, l in ((False, False), (True, False), (True, True)) for c in (False, True)],
        (False, True),
        ("", "sloped", "function", "sloped, function"),
    )
)
TIGHT = [(dim, (True, False, False), True, "sloped, function") for dim in (64, 128)]


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.parametrize(
    ("dim", "masks", "packed", "change"), OFFERED if os.environ.get("KILN_LONG_TESTS") else TIGHT, ids=str
)
def test_nothing_is_spilled(dim, masks, packed, change, monkeypatch):
    """Whatever is done to scores, in the configs that are chosen."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    assert_no_spills(compiled(dim, masks, packed, change)[1])
