"""Configs of GEMM that were measured on an H200 (`benchmarks/fit.py`), and what the cost model chooses of them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from choices import recorded  # which finds benchmarks
from fit import TABLE, text_of, write
from fitting import gemm as fitting

from kiln.kernels.impl.gemm import REGISTRY
from kiln.kernels.tuned import coefficients

FORTY = [shape for shape in recorded.gemm_shapes() if shape.kind in recorded.FORTY]


@pytest.fixture(scope="module")
def journal():
    return fitting.Journal()


def test_every_fourth_of_the_forty_is_kept_out_of_the_fit(journal, monkeypatch):
    assert [shape.held_out for shape in FORTY] == [n % 4 == 3 for n in range(40)]
    assert all(shape.held_out for shape in recorded.gemm_shapes() if shape.kind == "unseen")
    monkeypatch.setattr(recorded, "gemm_shapes", lambda: FORTY[:4])
    read = {given[0] for given in fitting.Rows(journal).given if given is not None}
    assert read == {fitting.problem_of(shape) for shape in FORTY[:3]}


def test_all_configs_of_the_forty_were_measured(journal):
    """But for those that are expected to take twice as long."""
    for shape in FORTY:
        left = [config for config in fitting.configs_of(shape, 1.8) if (shape.name, config) not in journal.tried]
        assert len(left) <= 3, (shape.name, left)


def test_configs_are_chosen_as_measured(journal):
    """No choice of the forty is more than 5 % behind the best config that was measured, and all of them are 1.5 % on average."""
    behind = {}
    for shape in FORTY:
        known = journal.known(shape.name)
        best = min(us for us, turns in known.values() if turns)
        behind[shape.name] = (
            known[REGISTRY.choose(fitting.problem_of(shape), fitting.device_of("sm_90a")).config][0] / best
        )
    assert [name for name, x in behind.items() if x > 1.05] == []
    assert sum(behind.values()) < 1.015 * len(behind)


def test_measuring_goes_on_where_it_was_stopped(tmp_path):
    shape, other = FORTY[0], FORTY[1]
    path = tmp_path / "journal.jsonl"
    configs = fitting.configs_of(shape, 2.0)
    rows = [fitting._row(shape, config, 1e-5 * (1 + n), 2e-5, "2026-11-16T19:10") for n, config in enumerate(configs)]
    fitting.Journal(path).add([{**row, "screened": True} for row in rows])
    todo = fitting.missing(fitting.Journal(path), 2.0, "square")
    assert shape.name not in [x.name for x, _ in todo]
    assert other.name in [x.name for x, _ in todo]


def test_what_was_timed_shortly_is_slowed_down_as_what_took_turns(tmp_path):
    """At the power limit bursts are faster than turns, and runs differ by their clocks."""
    shape, path = FORTY[6], tmp_path / "journal.jsonl"
    a, b, c = fitting.configs_of(shape, 2.0)[:3]

    def row(config, us, run, **more):
        return {**fitting._row(shape, config, us * 1e-6, 1e-4, run), **more}

    first, second = "2026-11-16T19:10", "2026-11-16T19:44"
    lines = [row(p, us, first, screened=True) for p, us in ((a, 100), (b, 110), (c, 120))]
    lines += [row(a, 120, first), row(b, 132, first), row(a, 110, second), row(b, 121, second), row(c, 130, second)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = fitting.Journal(path).known(shape.name)
    assert [round(found[config][0], 1) for config in (a, b, c)] == [120.0, 132.0, 141.8]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines[:5]))
    found = fitting.Journal(path).known(shape.name)
    assert found[c] == (pytest.approx(144.0), False)
    assert list(found) == [a, b, c]


def test_choices_are_reported(journal, monkeypatch, capsys):
    monkeypatch.setattr(recorded, "gemm_shapes", lambda: FORTY[:4])
    fitting.report(journal)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("The forty", "Others"))] == [
        "The forty, in the fit:", "The forty, kept out of the fit:", "Others, in the fit:", "Others, kept out of the fit:",
    ]  # fmt: skip
    assert sum(line.startswith("| float16 NT") for line in lines) == 4


def test_measured_choices_are_taken():
    """The problems of the tuned table get its configs, which were measured to be faster than the model's choices."""
    shapes = {shape.name: shape for shape in recorded.gemm_shapes()}
    rows = coefficients("gemm_sm90_choices")["problems"]
    assert rows
    for row in rows:
        shape = shapes[f"{row['dtype'].lower()} {row['layout']} {row['m']}x{row['n']}x{row['k']}"]
        assert shape.kind != "unseen" or shape.name in fitting.REGRESSED
        config = REGISTRY.choose(fitting.problem_of(shape), fitting.device_of("sm_90a")).config
        assert dataclasses.asdict(config) == row["config"]


def test_the_model_has_at_most_twenty_coefficients():
    assert len(coefficients("gemm_sm90")) <= 20


def test_the_tuned_table_is_written_as_it_is_read(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(text_of({"model": {"rate_tbps": 1.5, "configs": [{"tile": [128, 64], "us": 2.0}]}}))
    write("model", {"rate_tbps": 1.75}, path)
    assert json.loads(path.read_text()) == {"model": {"rate_tbps": 1.75, "configs": [{"tile": [128, 64], "us": 2.0}]}}
    assert text_of(json.loads(TABLE.read_text())) == TABLE.read_text()
