"""The choice as a pure function of Records."""

from __future__ import annotations

import json
import random

from kiln.workbench.core.records import Record
from kiln.workbench.tune import selection


def screen(place: int, low: float, middle: float, high: float, **more) -> Record:
    config = {"tile": place}
    return Record(
        "tune",
        f"key{place}",
        "case",
        {"m": 8},
        config,
        "ok",
        [low, middle, high],
        more={"place": place, "at": 1, **more},
    )


def final(rounds: dict[int, list[float]], at: int = 2) -> Record:
    found = [
        {"config": {"tile": place}, "place": place, "us": selection.summary(times), "rounds": times}
        for place, times in rounds.items()
    ]
    return Record("tune", "final", "case", {"m": 8}, None, "ok", more={"finalists": found, "at": at})


def test_of_those_not_slower_the_first_in_the_list_is_taken() -> None:
    near = [screen(0, 20, 21, 22), screen(1, 10.0, 10.3, 10.6), screen(2, 9.9, 10.1, 10.4)]
    chosen = selection.decide(near)
    assert chosen is not None
    assert chosen.config == {"tile": 1}
    assert "before it in the list" in chosen.why


def test_a_comparison_finds_what_intervals_cannot_tell() -> None:
    """Round by round the second is 2 % slower, though the rounds themselves differ by more."""
    near = [screen(1, 9, 10.3, 12), screen(2, 9, 10.1, 12)]
    drift = [10 + 0.2 * n for n in range(20)]
    compared = final({1: [1.02 * t for t in drift], 2: drift})
    assert selection.decide(near).config == {"tile": 1}
    assert selection.decide([*near, compared]).config == {"tile": 2}


def test_a_comparison_of_other_configs_is_not_used() -> None:
    near = [screen(1, 10, 10, 10), screen(2, 11, 11, 11), screen(3, 12, 12, 12)]
    other = final({1: [2.0] * 20, 2: [1.0] * 20})
    assert selection.decide([*near, other]).config == {"tile": 1}


def test_of_two_records_of_a_key_the_later_counts() -> None:
    first, later = screen(1, 5, 5, 5), screen(1, 50, 50, 50)
    later.more["at"] = 3
    records = [first, later, screen(2, 10, 10, 10)]
    assert selection.decide(records).config == {"tile": 2} == selection.decide(records[::-1]).config


def test_failures_are_not_chosen() -> None:
    bad = screen(0, 1, 1, 1)
    bad.status = "wrong"
    assert selection.decide([bad]) is None
    assert selection.decide([bad, screen(1, 2, 2, 2)]).config == {"tile": 1}


def test_finalists_are_the_best_five_and_all_that_are_near() -> None:
    times = [10, 10.1, 10.2, 10.25, 10.28, 10.29, 12, 13]
    records = [screen(place, time, time, time) for place, time in enumerate(times)]
    assert [one.place for one in selection.finalists(selection.screened(records))] == [0, 1, 2, 3, 4, 5]
    apart = [screen(place, 10 * place, 10 * place, 10 * place) for place in range(1, 9)]
    assert [one.place for one in selection.finalists(selection.screened(apart))] == [1, 2, 3, 4, 5]


def test_together_is_the_best_geometric_mean_of_what_works_everywhere() -> None:
    """Tile 0 is best for one problem and bad for the other; tile 2 fails there."""
    one = [screen(0, 10, 10, 10), screen(1, 12, 12, 12), screen(2, 9, 9, 9)]
    two = [screen(0, 300, 300, 300), screen(1, 110, 110, 110), screen(3, 100, 100, 100)]
    chosen = selection.decisions({"one": one, "two": two}, together=True)
    assert [decision.config for decision in chosen.values()] == [{"tile": 1}] * 2
    assert chosen["two"].us == (110, 110, 110)
    finals = final({0: [10.0] * 20, 1: [100.0] * 20}), final({0: [300.0] * 20, 1: [200.0] * 20})
    chosen = selection.decisions({"one": [*one, finals[0]], "two": [*two, finals[1]]}, together=True)
    assert chosen["one"].config == {"tile": 0}
    assert selection.decisions({"one": one, "two": []}, together=True) == {}


def test_c8_the_choice_does_not_depend_on_the_order_of_lines() -> None:
    draw = random.Random(0)
    records = [screen(place, t, t * 1.01, t * 1.02) for place in range(30) for t in [draw.uniform(10, 10.5)]]
    records += [screen(place, 10, 10, 10) for place in (3, 3, 7)]
    wanted = selection.finalists(selection.screened(records))
    records.append(final({one.place: [draw.gauss(10, 0.01) for _ in range(20)] for one in wanted}))
    lines = [record.to_json() for record in records]
    found = set()
    for _ in range(100):
        draw.shuffle(lines)
        found.add(json.dumps(selection.decide(map(Record.from_json, lines)).config))
    assert len(found) == 1


def test_times_of_several_gpus_are_relative_to_what_a_reference_takes_there() -> None:
    """The second GPU is 10 % slower, which makes the better config look worse."""
    one, two, three = screen(1, 10, 10, 10), screen(2, 10.8, 10.8, 10.8), screen(3, 30, 30, 30)
    for record, uuid, reference in ((one, "a", 20.0), (two, "b", 22.0), (three, "c", 20.0)):
        record.env = {"uuid": uuid}
        record.more |= {"reference": {"tile": 9}, "reference_us": reference}
    assert selection.screened([one, two, three])[0].config == {"tile": 2}
    two.more["reference_us"] = 20.0
    assert selection.screened([one, two, three])[0].config == {"tile": 1}


def test_records_of_other_versions_are_another_group() -> None:
    old, new = screen(0, 1, 1, 1, source="a"), screen(1, 2, 2, 2, source="b")
    new.more["at"] = 5
    for records in ([old, new], [new, old]):
        assert [r.config for r in selection.groups(records)["cpu", '{"m":8}']] == [{"tile": 1}]
    elsewhere = screen(2, 3, 3, 3)
    elsewhere.env = {"gpu": "NVIDIA H200", "node": "a"}
    assert set(selection.groups([old, elsewhere])) == {("cpu", '{"m":8}'), ("NVIDIA H200", '{"m":8}')}
