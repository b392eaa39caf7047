"""Scopes of atomic accesses, fences and arrivals: what is atomic and ordered for whom, each right and with a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found

from kiln import Constexpr, Float32, Int32, Int64, cute

CLUSTER = (2, 1, 1)


def rules(findings: list[Any]) -> list[str]:
    return [finding.rule for finding in findings]


def zeros(count: int = 64) -> np.ndarray:
    return np.zeros(count, np.int32)


# --- atomic accesses to one word -------------------------------------------------------------------------------------


@cute.kernel
def counted(count: cute.Tensor, first: Constexpr, others: Constexpr):
    b, _, _ = cute.arch.block_idx()
    if b == 0:
        cute.arch.atomic_add(count.iterator, Int32(1), scope=first)
    else:
        cute.arch.atomic_add(count.iterator, Int32(1), scope=others)


@cute.jit
def run_counted(count: cute.Tensor, first: Constexpr, others: Constexpr, cluster: Constexpr):
    counted(count, first, others).launch(grid=2, block=32, cluster=cluster)


@pytest.mark.parametrize(
    ("first", "others", "cluster", "right"),
    [
        ("gpu", "gpu", None, True), ("sys", "gpu", None, True), ("cta", "cta", None, False), ("cta", "gpu", None, False),
        ("gpu", "cta", None, False), ("cluster", "cluster", None, False), ("cluster", "cluster", CLUSTER, True),
        ("cluster", "gpu", CLUSTER, True), ("cta", "cluster", CLUSTER, False), ("gpu", "cta", CLUSTER, False),
    ],
)  # fmt: skip
def test_updates_are_atomic_to_those_in_their_scope(first: str, others: str, cluster: Any, right: bool) -> None:
    findings = found(run_counted, zeros(1), first, others, cluster)
    assert rules(findings) == ([] if right else ["scope"])
    for finding in findings:
        assert finding.kind == "race" and finding.block != finding.other_block
        assert f'"{first}"' in finding.message and f'"{others}"' in finding.message
        assert finding.span is not None and "atomic_add" in finding.span.snippet()
        ((place, text),) = finding.notes
        assert text.startswith("accessed here by thread") and "atomic_add" in place.snippet()
        assert finding.span.line != place.line
        wider = '"cluster" or "gpu"' if cluster else '"gpu"'
        assert finding.hint == f"give both the scope {wider}"


@cute.kernel
def mixed(count: cute.Tensor, wrong: Constexpr):
    """Three accesses: the second and the third include each other, the first and the third do not."""
    b, _, _ = cute.arch.block_idx()
    t, _, _ = cute.arch.thread_idx()
    if b == 0 and t == 0:
        cute.arch.atomic_add(count.iterator, Int32(1), scope="cta" if wrong else "gpu")
    elif t == 0 or (b == 0 and t < 4):
        cute.arch.atomic_add(count.iterator, Int32(1), scope="gpu")


@cute.jit
def run_mixed(count: cute.Tensor, wrong: Constexpr):
    mixed(count, wrong).launch(grid=2, block=32)


def test_an_update_of_a_narrow_scope_is_remembered_behind_later_ones() -> None:
    assert rules(found(run_mixed, zeros(1), False)) == []
    assert "scope" in rules(found(run_mixed, zeros(1), True))


@cute.kernel
def partial(count: cute.Tensor, total: cute.Tensor, shared_word: Constexpr):
    """Each CTA counts in a word of its own with scope "cta", then adds it to the total with scope "gpu"."""
    b, _, _ = cute.arch.block_idx()
    t, _, _ = cute.arch.thread_idx()
    word = count.iterator + (0 if shared_word else b)
    cute.arch.atomic_add(word, Int32(1), scope="cta")
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.atomic_add(total.iterator, cute.arch.load(word, Int32, sem="relaxed", scope="cta"), scope="gpu")


@cute.jit
def run_partial(count: cute.Tensor, total: cute.Tensor, shared_word: Constexpr):
    partial(count, total, shared_word).launch(grid=4, block=64)
    partial(count, total, shared_word).launch(grid=4, block=64)  # after the first launch, so other CTAs may have a word


def test_a_word_for_each_block_may_have_its_scope() -> None:
    count, total = zeros(4), zeros(1)
    assert rules(found(run_partial, count, total, False)) == []
    assert total[0] == 4 * 64 + 4 * 128
    assert set(rules(found(run_partial, zeros(4), zeros(1), True))) == {"scope"}


@cute.kernel
def asked(flag: cute.Tensor, y: cute.Tensor, scope: Constexpr):
    """CTA 0 looks at the flag before CTA 1 sets it, in the order of the simplest schedule."""
    b, _, _ = cute.arch.block_idx()
    if b == 0:
        y[0] = cute.arch.load(flag.iterator, Int32, sem="relaxed", scope=scope)
    else:
        cute.arch.store(flag.iterator, Int32(1), sem="relaxed", scope="gpu")


@cute.jit
def run_asked(flag: cute.Tensor, y: cute.Tensor, scope: Constexpr):
    asked(flag, y, scope).launch(grid=2, block=1)


def test_an_atomic_read_of_a_narrow_scope_is_remembered() -> None:
    assert rules(found(run_asked, zeros(1), zeros(1), "gpu")) == []
    assert rules(found(run_asked, zeros(1), zeros(1), "cta")) == ["scope"]


@cute.kernel
def overwritten(flag: cute.Tensor, y: cute.Tensor):
    """CTA 0 reads a word atomically, with a scope that includes CTA 1, and that overwrites it by a plain store."""
    b, _, _ = cute.arch.block_idx()
    if b == 0:
        y[0] = cute.arch.load(flag.iterator, Int32, sem="relaxed", scope="gpu")
    else:
        flag[0] = Int32(1)


@cute.jit
def run_overwritten(flag: cute.Tensor, y: cute.Tensor):
    overwritten(flag, y).launch(grid=2, block=1)


def test_an_atomic_read_races_with_a_plain_write_after_it() -> None:
    assert rules(found(run_overwritten, zeros(1), zeros(1))) == ["atomic"]


@cute.kernel
def read_by_many(y: cute.Tensor, scope: Constexpr):
    """Thread 0 reads a word atomically, 1 to 3 by plain loads; 4 meets these three, and then updates the word."""
    t, _, _ = cute.arch.thread_idx()
    word = cute.make_tensor(cute.arch.alloc_smem(Int32, 1), 1)
    if t == 0:
        word[0] = Int32(7)
    cute.arch.sync_threads()
    if t == 0:
        y[0] = cute.arch.load(word.iterator, Int32, sem="relaxed", scope="cta")
    elif t < 4:
        y[t] = word[0]
    if (t > 0) & (t < 5):
        cute.arch.sync_warp(0b11110)
    if t == 4:
        if scope == "plain":
            word[0] = Int32(8)
        else:
            cute.arch.atomic_add(word.iterator, Int32(1), scope=scope)


@cute.jit
def run_read_by_many(y: cute.Tensor, scope: Constexpr):
    read_by_many(y, scope).launch(grid=1, block=32)


@pytest.mark.parametrize(("scope", "expected"), [("cta", []), ("plain", ["atomic"])])
def test_an_atomic_read_stays_atomic_among_many_readers(scope: str, expected: list[str]) -> None:
    assert rules(found(run_read_by_many, zeros(4), scope)) == expected


# --- a message through memory ----------------------------------------------------------------------------------------


@cute.kernel
def handed_over(
    flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, releases: Constexpr, acquires: Constexpr, how: Constexpr
):
    b, _, _ = cute.arch.block_idx()
    if b == 0:
        x[0] = Float32(3.0)
        if how == "fences":
            cute.arch.fence_acq_rel_gpu() if releases == "gpu" else cute.arch.fence_acq_rel_cluster()
            cute.arch.store(flag.iterator, Int32(1), sem="relaxed", scope="gpu")
        else:
            cute.arch.store(flag.iterator, Int32(1), sem="release", scope=releases)
    else:
        seen = Int32(0)
        while seen == 0:
            if how == "fences":
                seen = cute.arch.load(flag.iterator, Int32, sem="relaxed", scope="gpu")
            else:
                seen = cute.arch.load(flag.iterator, Int32, sem="acquire", scope=acquires)
        if how == "fences":
            cute.arch.fence_acq_rel_gpu() if acquires == "gpu" else cute.arch.fence_acq_rel_cluster()
        y[0] = x[0]


@cute.jit
def run_handed_over(
    flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, releases: Constexpr, acquires: Constexpr, how: Constexpr,
    cluster: Constexpr,
):  # fmt: skip
    handed_over(flag, x, y, releases, acquires, how).launch(grid=2, block=1, cluster=cluster)


@pytest.mark.parametrize("cluster", [None, CLUSTER])
@pytest.mark.parametrize(("releases", "acquires"), [("gpu", "gpu"), ("cluster", "gpu"), ("gpu", "cluster")])
@pytest.mark.parametrize("how", ["accesses", "fences"])
def test_a_release_reaches_those_in_its_scope(releases: str, acquires: str, how: str, cluster: Any) -> None:
    flag, x, y = zeros(1), np.zeros(1, np.float32), np.zeros(1, np.float32)
    findings = rules(found(run_handed_over, flag, x, y, releases, acquires, how, cluster))
    if cluster or (releases, acquires) == ("gpu", "gpu"):
        assert findings == [] and y[0] == 3
    else:
        assert "write-read" in findings and ("scope" in findings) == (how == "accesses")


@cute.kernel
def forwarded(flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, scope: Constexpr):
    """Thread 0 releases, thread 32 of its CTA continues the release by an update, and the other CTA acquires."""
    b, _, _ = cute.arch.block_idx()
    t, _, _ = cute.arch.thread_idx()
    if b == 0:
        if t == 0:
            x[0] = Float32(3.0)
            cute.arch.atomic_add(flag.iterator, Int32(1), sem="release", scope="gpu")
        elif t == 32:
            seen = Int32(0)
            while seen == 0:
                seen = cute.arch.load(flag.iterator, Int32, sem="relaxed", scope="gpu")
            cute.arch.atomic_add(flag.iterator, Int32(1), sem="relaxed", scope=scope)
    elif t == 0:
        seen = Int32(0)
        while seen != 2:
            seen = cute.arch.load(flag.iterator, Int32, sem="acquire", scope="gpu")
        y[0] = x[0]


@cute.jit
def run_forwarded(flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, scope: Constexpr):
    forwarded(flag, x, y, scope).launch(grid=2, block=64)


def test_an_update_continues_a_release_in_its_scope() -> None:
    for scope, expected in (("gpu", []), ("cta", ["scope", "write-read"])):
        findings = found(run_forwarded, zeros(1), np.zeros(1, np.float32), np.zeros(1, np.float32), scope)
        assert rules(findings) == expected


# --- mbarriers of other CTAs -----------------------------------------------------------------------------------------


@cute.kernel
def exchanged(x: cute.Tensor, y: cute.Tensor, scope: Constexpr, fence: Constexpr, everybody: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    rank = cute.arch.block_idx_in_cluster()
    mine = cute.make_tensor(cute.arch.alloc_smem(Float32, 32), 32)
    barrier = cute.arch.alloc_smem(Int64, 1)
    theirs = cute.make_tensor(cute.arch.map_dsmem_ptr(mine.iterator, 1 - rank), mine.layout)
    if t == 0:
        cute.arch.mbarrier_init(barrier, 32)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    theirs[t] = x[t]
    if fence == "cta":
        cute.arch.fence_acq_rel_cta()
    elif fence == "cluster":
        cute.arch.fence_acq_rel_cluster()
    cute.arch.mbarrier_arrive(barrier, 1 - rank, scope=scope, relaxed=bool(fence))
    if everybody or t == 0:
        cute.arch.mbarrier_wait(barrier, 0)
    cute.arch.sync_threads()
    y[rank, t] = mine[31 - t]
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def run_exchanged(x: cute.Tensor, y: cute.Tensor, scope: Constexpr, fence: Constexpr, everybody: Constexpr):
    exchanged(x, y, scope, fence, everybody).launch(grid=2, block=32, cluster=CLUSTER)


@pytest.mark.parametrize(
    ("scope", "fence", "right"),
    [
        (None, "", True), ("cluster", "", True), ("cta", "", False), ("cluster", "cluster", True), ("cluster", "cta", False),
        ("cta", "cluster", False),
    ],
)  # fmt: skip
def test_an_arrival_orders_memory_for_those_in_its_scope(scope: Any, fence: str, right: bool) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros((2, 32), np.float32)
    findings = found(run_exchanged, x, y, scope, fence, True)
    assert rules(findings) == ([] if right else ["write-read"])
    assert (y == x[::-1]).all()
    if scope == "cta":
        (finding,) = findings
        assert 'scope="cluster"' in finding.hint
        ((place, text),) = finding.notes[1:]
        assert text == 'this arrival has scope "cta"' and "mbarrier_arrive" in place.snippet()


@cute.kernel
def taken_back(y: cute.Tensor, arrives: Constexpr):
    """CTA 1 reads memory of CTA 0 and says so; then CTA 0 overwrites it."""
    rank = cute.arch.block_idx_in_cluster()
    word = cute.make_tensor(cute.arch.alloc_smem(Int32, 1), 1)
    barrier = cute.arch.alloc_smem(Int64, 1)
    word[0] = Int32(7)
    cute.arch.mbarrier_init(barrier, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 1:
        y[0] = cute.make_tensor(cute.arch.map_dsmem_ptr(word.iterator, 0), 1)[0]
        if arrives:
            cute.arch.mbarrier_arrive(barrier, 0, scope="cta")
    else:
        if arrives:
            cute.arch.mbarrier_wait(barrier, 0)
        word[0] = Int32(8)
        y[1] = word[0]


@cute.jit
def run_taken_back(y: cute.Tensor, arrives: Constexpr):
    taken_back(y, arrives).launch(grid=2, block=1, cluster=CLUSTER)


def test_an_arrival_of_any_scope_says_that_reads_are_over() -> None:
    """Pipelines release stages so: nothing was written that those who wait would have to see."""
    y = zeros(2)
    assert rules(found(run_taken_back, y, True)) == []
    assert y.tolist() == [7, 8]
    assert set(rules(found(run_taken_back, zeros(2), False))) == {"read-write", "block-exited"}


@cute.kernel
def added(y: cute.Tensor, scope: Constexpr):
    rank = cute.arch.block_idx_in_cluster()
    count = cute.make_tensor(cute.arch.alloc_smem(Int32, 1), 1)
    t, _, _ = cute.arch.thread_idx()
    if t == 0:
        count[0] = Int32(0)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    cute.arch.atomic_add(cute.arch.map_dsmem_ptr(count.iterator, 0), Int32(1), scope=scope)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if t == 0 and rank == 0:
        y[0] = count[0]


@cute.jit
def run_added(y: cute.Tensor, scope: Constexpr):
    added(y, scope).launch(grid=2, block=32, cluster=CLUSTER)


@pytest.mark.parametrize(("scope", "expected"), [("cluster", []), ("gpu", []), ("cta", ["scope"])])
def test_updates_of_distributed_shared_memory_need_the_scope_of_the_cluster(scope: str, expected: list[str]) -> None:
    y = zeros(1)
    assert rules(found(run_added, y, scope)) == expected
    assert y[0] == 64


# --- inline PTX ------------------------------------------------------------------------------------------------------


@cute.kernel
def by_ptx(flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, scope: Constexpr):
    b, _, _ = cute.arch.block_idx()
    address = flag.iterator.toint()
    if b == 0:
        x[0] = Float32(3.0)
        cute.arch.inline_ptx(f"st.release.{scope}.global.u32 [$0], $1;", read_only_args=[address, Int32(1)])
    else:
        seen = Int32(0)
        while seen == 0:
            seen = cute.arch.inline_ptx(
                "ld.acquire.gpu.global.u32 $0, [$1];", write_only_types=[Int32], read_only_args=[address]
            )
        y[0] = x[0]


@cute.jit
def run_by_ptx(flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, scope: Constexpr):
    by_ptx(flag, x, y, scope).launch(grid=2, block=1)


def test_inline_ptx_names_scopes_too() -> None:
    for scope, expected in (("gpu", []), ("cta", ["scope", "write-read"])):
        findings = found(run_by_ptx, zeros(1), np.zeros(1, np.float32), np.zeros(1, np.float32), scope)
        assert rules(findings) == expected


@cute.kernel
def waited(y: cute.Tensor, order: Constexpr, reads: Constexpr, fence: Constexpr):
    """Thread 0 waits for 32 to 63, and then reads what they wrote, or overwrites what they read."""
    t, _, _ = cute.arch.thread_idx()
    words = cute.make_tensor(cute.arch.alloc_smem(Int32, 32), 32)
    barrier = cute.arch.alloc_smem(Int64, 1)
    if t < 32:
        words[t] = t
    if t == 0:
        cute.arch.mbarrier_init(barrier, 32)
    cute.arch.sync_threads()
    if t >= 32:
        if reads:
            words[t - 32] = t
        else:
            y[t] = words[t - 32]
        cute.arch.mbarrier_arrive(barrier)
    elif t == 0:
        done = Int32(0)
        while done == 0:
            done = cute.arch.inline_ptx(
                "{ .reg .pred p; mbarrier.try_wait.parity." + order + ".cta.shared::cta.b64 p, [$1], 0; selp.s32 $0, 1, 0, p; }",
                write_only_types=[Int32], read_only_args=[barrier.toint()],
            )  # fmt: skip
        if fence:
            cute.arch.fence_acq_rel_cta()
        if reads:
            y[0] = words[31]
        else:
            words[31] = Int32(9)


@cute.jit
def run_waited(y: cute.Tensor, order: Constexpr, reads: Constexpr, fence: Constexpr):
    waited(y, order, reads, fence).launch(grid=1, block=64)


@pytest.mark.parametrize(
    ("order", "reads", "fence", "expected"),
    [
        ("acquire", True, False, []), ("relaxed", True, True, []), ("relaxed", True, False, ["write-read"]),
        ("acquire", False, False, []), ("relaxed", False, False, []),
    ],
)  # fmt: skip
def test_after_a_relaxed_wait_reads_are_over_and_writes_need_a_fence(
    order: str, reads: bool, fence: bool, expected: list[str]
) -> None:
    assert rules(found(run_waited, zeros(64), order, reads, fence)) == expected
