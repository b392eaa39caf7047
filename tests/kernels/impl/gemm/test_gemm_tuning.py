"""Configs of GEMMs that were measured on an H200 (`benchmarks/tune_products.py`), and what the model chooses of them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from kiln.kernels.impl.gemm import REGISTRY

_PATH = Path(__file__).parents[4] / "benchmarks/tune_products.py"
_SPEC = importlib.util.spec_from_file_location("tune_products", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
tune = importlib.util.module_from_spec(_SPEC)
sys.modules["tune_products"] = tune
_SPEC.loader.exec_module(tune)
FORTY = [shape for shape in tune.shapes() if shape["kind"] in tune._FORTY]


@pytest.fixture(scope="module")
def journal():
    return tune.Journal(_PATH.parent / "data/products_h200.jsonl")


def test_every_fourth_of_the_forty_is_kept_out_of_the_fit(journal, monkeypatch):
    assert [shape["held_out"] for shape in FORTY] == [n % 4 == 3 for n in range(40)]
    assert all(shape["held_out"] for shape in tune.shapes() if shape["kind"] == "unseen")
    monkeypatch.setattr(tune, "shapes", lambda: FORTY[:4])
    read = {given[0] for given in tune.Rows(journal).given if given is not None}
    assert read == {tune.problem_of(shape) for shape in FORTY[:3]}


def test_all_configs_of_the_forty_were_measured(journal):
    """But for those that are expected to take twice as long."""
    for shape in FORTY:
        left = [config for config in tune.configs_of(shape, 1.8) if (tune.name_of(shape), config) not in journal.tried]
        assert len(left) <= 3, (tune.name_of(shape), left)


def test_configs_are_chosen_as_measured(journal):
    """No choice of the forty is more than 5 % behind the best config that was measured, and all of them are 1.5 % on average."""
    behind = {}
    for shape in FORTY:
        known = journal.known(shape)
        best = min(us for us, turns in known.values() if turns)
        behind[tune.name_of(shape)] = (
            known[REGISTRY.choose(tune.problem_of(shape), tune.device_of("sm_90a")).config][0] / best
        )
    assert [name for name, x in behind.items() if x > 1.05] == []
    assert sum(behind.values()) < 1.015 * len(behind)


def test_measuring_goes_on_where_it_was_stopped(tmp_path):
    shape, other = FORTY[0], FORTY[1]
    path = tmp_path / "journal.jsonl"
    configs = tune.configs_of(shape, 2.0)
    rows = [tune._row(shape, config, 1e-5 * (1 + n), 2e-5, "2026-11-16T19:10") for n, config in enumerate(configs)]
    tune.Journal(path).add([{**row, "screened": True} for row in rows])
    todo = tune.missing(tune.Journal(path), 2.0, "square")
    assert tune.name_of(shape) not in [tune.name_of(x) for x, _ in todo]
    assert tune.name_of(other) in [tune.name_of(x) for x, _ in todo]


def test_what_was_timed_shortly_is_slowed_down_as_what_took_turns(tmp_path):
    """At the power limit bursts are faster than turns, and runs differ by their clocks."""
    shape, path = FORTY[6], tmp_path / "journal.jsonl"
    a, b, c = tune.configs_of(shape, 2.0)[:3]

    def row(config, us, run, **more):
        return {**tune._row(shape, config, us * 1e-6, 1e-4, run), **more}

    first, second = "2026-11-16T19:10", "2026-11-16T19:44"
    lines = [row(p, us, first, screened=True) for p, us in ((a, 100), (b, 110), (c, 120))]
    lines += [row(a, 120, first), row(b, 132, first), row(a, 110, second), row(b, 121, second), row(c, 130, second)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = tune.Journal(path).known(shape)
    assert [round(found[config][0], 1) for config in (a, b, c)] == [120.0, 132.0, 141.8]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines[:5]))
    found = tune.Journal(path).known(shape)
    assert found[c] == (pytest.approx(144.0), False)
    assert list(found) == [a, b, c]
