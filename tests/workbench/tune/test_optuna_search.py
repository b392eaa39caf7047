"""Search in batches."""

from __future__ import annotations

import itertools

import pytest

from kiln.workbench.tune import optuna_search

pytest.importorskip("optuna")

SPACE = [{"tile": t, "stages": s, "order": o} for t, s, o in itertools.product((16, 32, 64, 128), (2, 3, 4), "ab")]


def took(place: int) -> float | None:
    config = SPACE[place]
    if config == {"tile": 128, "stages": 4, "order": "a"}:
        return None
    return 10 + abs(config["tile"] - 64) / 8 + abs(config["stages"] - 3) + (config["order"] == "b")


def run(batches: int, seed: int = 0) -> list[int]:
    told: list[tuple[int, float | None]] = []
    for batch in range(batches):
        told += [(place, took(place)) for place in optuna_search.Search(SPACE, seed).propose(batch, told, 4)]
    return [place for place, _ in told]


def test_a_resumed_search_proposes_what_an_uninterrupted_one_would() -> None:
    whole = run(4)
    assert run(2) == whole[:8]
    assert run(2, seed=1) != whole[:8]


def test_nothing_is_proposed_twice_and_all_is_proposed_in_the_end() -> None:
    assert sorted(run(7)) == list(range(len(SPACE)))
