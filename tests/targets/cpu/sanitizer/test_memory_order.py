"""The detector against the definition of the memory order: random kernels, and what the definition says of small ones.

What the detector promises of an execution: each pair that it reports races, and at each cell where something races it
reports a pair. It does not report all pairs, since a cell keeps the last write and the reads after it; `is_forgotten`
is what it may miss for that. `Order.patterns` is what it does not know.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import memory_order_definition as definition
import pytest
from detector_mutation import MUTATIONS, Detectors, changed
from memory_order_definition import (
    Access,
    Arrive,
    Await,
    Barrier,
    Cell,
    Commit,
    Event,
    Fence,
    Issue,
    ProxyFence,
    Thread,
    Wait,
)
from memory_order_kernels import SHAPES, Kernel, differences
from memory_order_messages import MESSAGES, Messages
from memory_order_programs import Program

from kiln.targets.cpu.sanitizer import state

QUICK_SEEDS = 2
"""Kernels of each shape and kind in the quick stage."""
SEEDS_OF_MUTATIONS = 40
CAUGHT_AT_ONCE = ("a fence acquires nothing", "a wait is for the other phase", "bytes complete nothing")
"""Mutations at which the quick stage tries the first kernel."""
LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
SCHEDULES = (1, 2, 3, state.DELAYING, state.DELAYING + 1)


def check(kernel: Kernel, seed: int, folder: Path) -> None:
    main = kernel.load(folder)
    for schedule in SCHEDULES:
        events, findings = kernel.run(main, schedule)
        wrong = differences(kernel, events, findings)
        if wrong:
            lines = [f"{i} {event}" for i, event in enumerate(events)]
            head = f'{type(kernel).__name__}({seed}, "{kernel.shape}") under schedule {schedule}'
            pytest.fail("\n".join([head, *wrong, *lines, kernel.text]))


@pytest.mark.quick(5)
@pytest.mark.parametrize("batch", range(100))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_detector_reports_races_where_the_definition_has_them(shape: str, batch: int, tmp_path: Path) -> None:
    for seed in range(batch * 4, (batch + 1) * 4)[: None if LONG else QUICK_SEEDS]:
        check(Program(seed, shape), seed, tmp_path)


@pytest.mark.quick(5)
@pytest.mark.parametrize("batch", range(100))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_detector_knows_each_link_of_a_message(shape: str, batch: int, tmp_path: Path) -> None:
    for seed in range(batch * 4, (batch + 1) * 4)[: None if LONG else QUICK_SEEDS]:
        check(Messages(seed, shape), seed, tmp_path)


def test_messages_are_as_often_right_as_broken() -> None:
    racing = 0
    for seed in range(20):
        for shape in SHAPES:
            kernel = Messages(seed, shape)
            races = definition.Order(kernel.events, cluster=kernel.cluster).races()
            racing += len({cell for _, _, cell in races})
    assert 0.3 < racing / (20 * len(SHAPES) * MESSAGES) < 0.7


def test_random_kernels_order_about_half_of_their_conflicts() -> None:
    conflicts = races = 0
    for shape in SHAPES:
        for seed in range(10):
            program = Program(seed, shape)
            order = definition.Order(program.events, cluster=program.cluster)
            touches = order.touches()
            pairs = [
                (a, b) for i, a in enumerate(touches) for b in touches[:i] if a.cell == b.cell and a.writes | b.writes
            ]
            conflicts += len([pair for pair in pairs if pair[0].event != pair[1].event])
            races += len(order.races())
    assert conflicts / 4 < races < conflicts * 0.9


def kernels(seed: int, folder: Path) -> list[tuple[Kernel, Callable[..., None]]]:
    made = [kind(seed, shape) for kind in (Messages, Program) for shape in SHAPES]
    return [(kernel, kernel.load(folder)) for kernel in made]


def differs(kernel: Kernel, main: Callable[..., None]) -> bool:
    return any(differences(kernel, *kernel.run(main, schedule)) for schedule in (1, 2, state.DELAYING))


def test_mutations_are_of_the_detector_as_it_is(tmp_path: Path) -> None:
    for mutation in MUTATIONS:
        with changed(mutation, tmp_path):
            pass


def test_a_broken_detector_differs_from_the_definition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of them at some kernel of the long stage, most of them at one of the quick stage."""
    detectors = Detectors(monkeypatch, tmp_path)
    missed = list(MUTATIONS) if LONG else [m for m in MUTATIONS if m.name in CAUGHT_AT_ONCE]
    assert missed
    at_once = 0
    for seed in range(SEEDS_OF_MUTATIONS if LONG else 1):
        these = kernels(seed, tmp_path) if LONG else [(kernel := Messages(seed, "cta"), kernel.load(tmp_path))]
        if not missed:
            break
        for mutation in list(missed):
            with detectors.broken(mutation):
                if any(differs(kernel, main) for kernel, main in these):
                    missed.remove(mutation)
        if seed < QUICK_SEEDS:
            at_once = len(MUTATIONS) - len(missed)
    assert not missed, "\n".join(mutation.name for mutation in missed)
    assert not LONG or at_once > len(MUTATIONS) * 0.5


# --- small executions, as PTX's manual explains them -----------------------------------------------------------------

X, FLAG, TILE, M = Cell("global", 0, 0), Cell("global", 0, 1), Cell("shared", 0, 0), Cell("shared", 0, 9)
A, B, FAR = Thread(0, 0), Thread(0, 32), Thread(1, 0)


def write(thread: Thread, cell: Cell) -> Access:
    return Access(thread, cell, False, True)


def read(thread: Thread, cell: Cell) -> Access:
    return Access(thread, cell, True, False)


def flagged(scope: str, other: Thread, *, release: str = "release", fences: tuple[Event, ...] = ()) -> list[Event]:
    """Thread A writes X and sets the flag; another thread sees that and reads X."""
    before = [write(A, X), *(fence for fence in fences if fence.thread == A)]
    store = Access(A, FLAG, False, True, scope, release)
    acquire = "relaxed" if release == "relaxed" else "acquire"
    load = Access(other, FLAG, True, False, scope, acquire, saw=len(before))
    return [*before, store, load, *(fence for fence in fences if fence.thread == other), read(other, X)]


def bulk_store(*between: Event) -> list[Event]:
    return [write(A, TILE), *between, Issue(A, "bulk store", (TILE,), (X,))]


COPY = Issue(A, "cp.async", (X,), (TILE,))
LOAD = [Arrive(A, M, 0), Issue(A, "bulk load", (X,), (TILE,), M, 0)]
MEET = [Barrier(A, ("block", 1)), Barrier(B, ("block", 1))]
SAVED = [Issue(A, "bulk store", (TILE,), (X,)), Commit(A, "bulk store")]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([write(A, X), write(A, X)], set()),
        ([write(A, X), read(B, X)], {"unordered"}),
        ([read(A, X), read(B, X)], set()),
        ([write(A, X), *MEET, read(B, X)], set()),
        (flagged("gpu", FAR), set()),
        (flagged("cta", FAR), {"unordered", "scope"}),
        (flagged("cta", B), set()),
        (flagged("gpu", FAR, release="relaxed"), {"unordered"}),
        (flagged("gpu", FAR, release="relaxed", fences=(Fence(A, "gpu"), Fence(FAR, "gpu"))), set()),
        (flagged("gpu", FAR, release="relaxed", fences=(Fence(A, "cta"), Fence(FAR, "gpu"))), {"unordered"}),
        ([write(A, TILE), Arrive(A, M, 0), Wait(B, M, 0), read(B, TILE)], set()),
        ([write(A, TILE), Arrive(A, M, 1), Wait(B, M, 0), read(B, TILE)], {"unordered"}),
        ([write(A, TILE), Arrive(A, M, 0), Wait(B, M, 0, relaxed=True), read(B, TILE)], {"unordered"}),
        ([write(A, TILE), Arrive(A, M, 0), Wait(B, M, 0, relaxed=True), Fence(B, "cta"), read(B, TILE)], set()),
        ([write(FAR, TILE), Arrive(FAR, M, 0, "cta"), Wait(B, M, 0), read(B, TILE)], {"unordered"}),
        ([read(FAR, TILE), Arrive(FAR, M, 0, "cta"), Wait(B, M, 0), write(B, TILE)], set()),
        ([COPY, read(A, TILE)], {"unordered"}),
        ([COPY, Commit(A, "cp.async"), Await(A, "cp.async", 0), read(A, TILE)], set()),
        ([COPY, Commit(A, "cp.async"), Await(A, "cp.async", 1), read(A, TILE)], {"unordered"}),
        ([COPY, Arrive(A, M, 0, after_copies=True), Wait(B, M, 0), read(B, TILE)], set()),
        ([*LOAD, Wait(B, M, 0, relaxed=True), read(B, TILE)], {"unordered"}),
        ([*LOAD, Wait(B, M, 0, relaxed=True), Fence(B, "cta"), read(B, TILE)], set()),
        ([*LOAD, Wait(B, M, 0), read(B, TILE)], set()),
        ([*LOAD, Wait(B, M, 0), write(B, X)], set()),
        ([write(A, TILE), *LOAD], {"proxy"}),
        ([read(A, TILE), *LOAD], set()),
        (bulk_store(), {"proxy"}),
        (bulk_store(ProxyFence(A, ("global",))), {"proxy"}),
        (bulk_store(ProxyFence(A, ("shared",))), set()),
        ([write(B, TILE), *MEET, ProxyFence(A, ("shared",)), Issue(A, "bulk store", (TILE,), (X,))], set()),
        ([*SAVED, Await(A, "bulk store", 0, reads_only=True), write(A, TILE)], set()),
        ([*SAVED, Await(A, "bulk store", 0, reads_only=True), read(A, X)], {"unordered"}),
        ([*SAVED, Await(A, "bulk store", 0), read(A, X)], set()),
    ],
)  # fmt: skip
def test_the_definition(events: list[Event], why: set[str]) -> None:
    assert set().union(*definition.Order(events).races().values()) == why
