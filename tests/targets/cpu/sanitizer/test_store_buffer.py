"""Programs that rely on a store being seen before a later load of its thread, which a GPU does not promise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float32, Int32, cute
from kiln.targets.cpu.runtime import parts
from kiln.targets.cpu.sanitizer import state


def zeros(count: int) -> np.ndarray:
    return np.zeros(count, np.int32)


def rules(findings: list[Any]) -> list[str]:
    return [finding.rule for finding in findings]


def fence(kind: str) -> None:
    if kind == "sc":
        cute.arch.inline_ptx("fence.sc.gpu;")
    elif kind == "acq_rel":
        cute.arch.fence_acq_rel_gpu()


# --- Dekker: who sees that the other has not begun goes first ---------------------------------------------------------


@cute.kernel
def first_comer(flags: cute.Tensor, data: cute.Tensor, mine: Constexpr, theirs: Constexpr, orders: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    me = b + t // 32
    if t % 32 == 0:
        cute.arch.store(flags.iterator + me, Int32(1), sem=orders[0], scope="gpu")  # the store
        if me == 0:
            fence(mine)
        else:
            fence(theirs)
        if cute.arch.load(flags.iterator + (1 - me), Int32, sem=orders[1], scope="gpu") == 0:  # the load
            data[0] = data[0] + 1


@cute.jit
def run_first_comer(
    flags: cute.Tensor, data: cute.Tensor, mine: Constexpr, theirs: Constexpr, orders: Constexpr, ctas: Constexpr
):  # fmt: skip
    first_comer(flags, data, mine, theirs, orders).launch(grid=ctas, block=64 // ctas)


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("orders", [("relaxed", "relaxed"), ("release", "acquire")])
@pytest.mark.parametrize(
    ("mine", "theirs", "right"),
    [("sc", "sc", True), ("", "", False), ("sc", "", False), ("", "sc", False), ("acq_rel", "acq_rel", False)],
)  # fmt: skip
def test_two_flags_need_sequentially_consistent_fences(
    mine: str, theirs: str, right: bool, orders: Any, ctas: int
) -> None:
    findings = found(run_first_comer, zeros(2), zeros(1), mine, theirs, orders, ctas)
    assert bool(findings) is not right
    for finding in findings:
        assert finding.kind == "race" and finding.tensor == "data"
        assert "fence.sc" in finding.hint
        assert re.search(f"KILN_CPU_SEED=[{state.DELAYING}-{state.MOST_SCHEDULES - 1}] repeats", finding.hint)
        (_, (store, delayed), (load, unseen)) = finding.notes
        assert store.snippet().endswith("# the store") or "# the store" in store.snippet()
        assert "# the load" in load.snippet()
        assert (delayed, unseen) == ("this store was delayed", "this load did not see it")


def test_the_results_are_those_of_one_run_in_order() -> None:
    flags, data = zeros(2), zeros(1)
    with kiln.sanitize(raises=False) as report:
        run_first_comer(flags, data, "", "", ("relaxed", "relaxed"), 2)
    assert (flags.tolist(), data.tolist()) == ([1, 1], [1])
    assert report.schedules == 1 + state.DELAYING
    flags[:], data[:] = 0, 0
    try:
        parts.set_seed(state.DELAYING)
        with kiln.sanitize(raises=False) as again:
            run_first_comer(flags, data, "", "", ("relaxed", "relaxed"), 2)
    finally:
        parts.set_seed()
    assert rules(again.findings) == rules(report.findings) and again.schedules == 1
    assert flags.tolist() == [1, 1]  # no store is lost


# --- Peterson's lock --------------------------------------------------------------------------------------------------


@cute.kernel
def peterson(words: cute.Tensor, data: cute.Tensor, kind: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    me = t // 32
    wants, turn = words.iterator, words.iterator + 2
    if t % 32 == 0:
        for _ in range(2):
            cute.arch.store(wants + me, Int32(1), sem="relaxed", scope="gpu")
            cute.arch.store(turn, 1 - me, sem="relaxed", scope="gpu")
            fence(kind)
            waits = Int32(1)
            while waits != 0:
                other = cute.arch.load(wants + (1 - me), Int32, sem="acquire", scope="gpu")
                whose = cute.arch.load(turn, Int32, sem="acquire", scope="gpu")
                waits = Int32(1) if (other == 1) & (whose == 1 - me) else Int32(0)
            fence("acq_rel")
            data[0] = data[0] + 1
            fence("acq_rel")
            cute.arch.store(wants + me, Int32(0), sem="release", scope="gpu")


@cute.jit
def run_peterson(words: cute.Tensor, data: cute.Tensor, kind: Constexpr):
    peterson(words, data, kind).launch(grid=1, block=64)


def test_petersons_lock() -> None:
    for kind, expected in (("sc", False), ("acq_rel", True), ("", True)):
        data = zeros(1)
        assert bool(found(run_peterson, zeros(3), data, kind)) is expected
        assert data[0] == 4


# --- programs that need no such fence ---------------------------------------------------------------------------------


@cute.kernel
def met(flags: cute.Tensor, x: cute.Tensor, y: cute.Tensor):
    """Each CTA writes, says so and waits for the other: it does not matter who sees what first."""
    b, _, _ = cute.arch.block_idx()
    x[b] = Float32(b) + 1.0
    cute.arch.store(flags.iterator + b, Int32(1), sem="release", scope="gpu")
    seen = Int32(0)
    while seen == 0:
        seen = cute.arch.load(flags.iterator + (1 - b), Int32, sem="acquire", scope="gpu")
    y[b] = x[1 - b]


@cute.jit
def run_met(flags: cute.Tensor, x: cute.Tensor, y: cute.Tensor):
    met(flags, x, y).launch(grid=2, block=1)


def test_who_waits_sees_the_store_in_the_end() -> None:
    y = np.zeros(2, np.float32)
    with kiln.sanitize() as report:
        run_met(zeros(2), np.zeros(2, np.float32), y)
    assert y.tolist() == [2, 1] and report.schedules == state.MOST_SCHEDULES


@cute.kernel
def updated(flags: cute.Tensor, data: cute.Tensor):
    """Dekker by updates, whose stores are not delayed, and a barrier between the store and the load."""
    t, _, _ = cute.arch.thread_idx()
    me = t // 32
    seen = Int32(1)
    if t % 32 == 0:
        cute.arch.store(flags.iterator + me, Int32(1), sem="relaxed", scope="cta")
    cute.arch.sync_threads()
    if t % 32 == 0:
        seen = cute.arch.load(flags.iterator + (1 - me), Int32, sem="relaxed", scope="cta")
        own = cute.arch.load(flags.iterator + me, Int32, sem="relaxed", scope="cta")
        if (seen == 0) | (own == 0):
            data[0] = data[0] + 1


@cute.jit
def run_updated(flags: cute.Tensor, data: cute.Tensor):
    updated(flags, data).launch(grid=1, block=64)


def test_a_barrier_is_a_fence() -> None:
    data = zeros(1)
    assert rules(found(run_updated, zeros(2), data)) == []
    assert data[0] == 0


@cute.kernel
def read_back(flags: cute.Tensor, y: cute.Tensor):
    """A thread sees its own stores: the last one, parts of it, and by plain loads."""
    word = flags.iterator
    cute.arch.store(word, Int32(0x10002), sem="relaxed", scope="gpu")
    cute.arch.store(word + 1, Int32(7), sem="relaxed", scope="gpu")
    cute.arch.store(word, Int32(0x30004), sem="release", scope="gpu")
    y[0] = cute.arch.load(word, Int32, sem="relaxed", scope="gpu")
    y[1] = flags[1]
    half = cute.recast_ptr(word, dtype=kiln.Int16)
    y[2] = Int32(cute.arch.load(half + 1, kiln.Int16, sem="relaxed", scope="gpu"))
    y[3] = cute.arch.atomic_add(word, Int32(1))


@cute.jit
def run_read_back(flags: cute.Tensor, y: cute.Tensor):
    read_back(flags, y).launch(grid=1, block=1)


def test_a_thread_sees_its_own_stores() -> None:
    flags, y = zeros(2), zeros(4)
    try:
        parts.set_seed(state.DELAYING)
        assert rules(found(run_read_back, flags, y)) == []
    finally:
        parts.set_seed()
    assert y.tolist() == [0x30004, 7, 3, 0x30004] and flags.tolist() == [0x30005, 7]
