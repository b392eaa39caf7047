"""`kiln report`: what a journal says, as figures and tables, and as rows for other tools."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys

import pytest
from browser import dom_of, needs_chromium, result_of

from kiln.workbench.core import source_closure
from kiln.workbench.core.records import STATUSES, Journal, Record
from kiln.workbench.main import main
from kiln.workbench.report import cli, figures
from kiln.workbench.report import model as report_model
from kiln.workbench.report import page as report_page

ENV = {"gpu": "H200", "driver": "1", "kiln": "0.1", "ptxas": "13", "python": "3.12", "node": "n"}


def bench(problem, us, config=None, peer=None, **more) -> Record:
    rates = {"tflops": 100.0 * problem.get("m", 1) / us, "tbs": 2.0, "roofline": 0.5}
    against = {"peer": {"us": [peer * 0.9, peer, peer * 1.1], "ratio": [1, peer / us, 2], "verdict": "slower"}} if peer else {}  # fmt: skip
    key = json.dumps([problem, config])
    return Record("bench", key, "gemm", problem, config, "ok", [us * 0.9, us, us * 1.2], 20, "graph", ENV, more={**rates, "against": against}, **more)  # fmt: skip


def tune(number, status="ok", us=None, estimated=None, message=None) -> Record:
    error = {"type": "E", "message": message, "line": 3} if message else None
    times = [us, us, us] if us else None
    return Record("tune", f"t{number}", "gemm", {"m": 8}, {"n": number}, status, times, error=error, env=ENV, again=f"kiln tune {number}", more={"estimate_us": estimated})  # fmt: skip


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """A journal with everything in it: each status once, a sweep, a problem measured twice."""
    sweep = [bench({"m": m, "n": m, "dtype": "f16"}, 10.0 * m, peer=20.0 * m) for m in (1, 2, 4, 8)]
    again = bench({"m": 8, "n": 8, "dtype": "f16"}, 60.0, peer=160.0, flags=["noisy", "power-cap"])
    statuses = [tune(n, status, message=None if status == "ok" else f"because of {n} <b>") for n, status in enumerate(STATUSES)]  # fmt: skip
    timed = [tune(100 + n, us=us, estimated=us * 1.1) for n, us in enumerate((9.0, 7.0, 8.0, 5.0))]
    return [*sweep, again, *statuses, *timed, tune(100, us=9.5, estimated=9.9)]


@pytest.fixture(scope="module")
def model(records):
    return report_model.build(records, torn=1)


def test_sweeps_have_one_axis_and_the_last_measurement(model):
    (sweep,) = model["cases"][0]["sweeps"]
    assert sweep["field"] == "m = n" and sweep["fixed"] == {"dtype": "f16"}
    kernel, peer = sweep["series"]
    assert kernel["x"] == [1, 2, 4, 8] and [us[1] for us in kernel["us"]] == [10, 20, 40, 60]
    assert [us[1] for us in peer["us"]] == [20, 40, 80, 160]
    assert peer["tflops"] == [rate * mine[1] / its[1] for rate, mine, its in zip(kernel["tflops"], kernel["us"], peer["us"])]  # fmt: skip
    figure = figures.sweep(sweep)
    first = figure["data"][0]
    top = first["y"][0] + first["error_y"]["array"][0]  # the shortest time is the highest speed
    assert top == pytest.approx(kernel["tflops"][0] * kernel["us"][0][1] / kernel["us"][0][0])


def test_other_configs_and_fields_are_other_sweeps():
    problems = [{"m": m, "n": 5} for m in (1, 2, 3)]
    found = report_model.build([bench(p, 10.0, config) for p in problems for config in ({"a": 1}, {"a": 2})])
    sweeps = found["cases"][0]["sweeps"]
    assert [(sweep["field"], sweep["config"], sweep["fixed"]) for sweep in sweeps] == [("m", {"a": a}, {"n": 5}) for a in (1, 2)]  # fmt: skip
    assert not report_model.build([bench(p, 10.0) for p in problems[:2]])["cases"][0][
        "sweeps"
    ]  # two points are no curve
    flags = [{"m": 1, "fast": fast} for fast in (True, False)]
    assert not report_model.build([bench(p, 10.0) for p in flags])["cases"][0]["sweeps"]


def test_tuning_counts_a_config_once_and_knows_the_best_so_far(model):
    (tuning,) = model["cases"][0]["tuning"]
    assert len(tuning["rows"]) == len(STATUSES) + 4 and tuning["best"] == 5.0
    timed = [(row["config"]["n"], row["us"][1], row["best"]) for row in tuning["rows"] if row["us"]]
    assert timed == [(101, 7.0, 7.0), (102, 8.0, 7.0), (103, 5.0, 5.0), (100, 9.5, 5.0)]
    figure = figures.history(tuning)
    assert {trace["name"].split()[0] for trace in figure["data"]} >= set(STATUSES) - {"ok"}
    assert figures.estimates(tuning)["data"][1]["x"] == [row["estimated"] for row in tuning["rows"] if row["us"]]


def test_of_changed_sources_the_last_counts():
    """A key changes with the sources; a problem has one result and one verdict all the same."""
    old, new = bench({"m": 1}, 9.0), bench({"m": 1}, 8.0)
    new.key = "of other sources"
    checks = [Record("verify", f"v{n}", "gemm", {"m": 1}, None, status, env=ENV, more=more) for n, (status, more) in enumerate(
        [("wrong", {"checks": 9}), ("wrong", {"variant": "odd"}), ("ok", {"checks": 9})])]  # fmt: skip
    (case,) = report_model.build([old, *checks, new])["cases"]
    assert [one["us"][1] for one in case["results"]] == [8.0] and case["verified"] == [1, 0]


def test_what_is_slower_than_a_baseline_is_called_so():
    """A comparison says of the other what the report says of the kernel the other way round."""
    record = bench({"m": 1}, 10.0, peer=5.0)
    record.more["against"]["peer"]["verdict"] = "faster"
    body = report_page.page(report_model.build([record]), "here", "")
    assert '<span class="slower">2.00x slower</span>' in body


def test_failures_are_grouped_by_reason():
    found = [tune(n, "invalid", message=f"needs {n * 1000} bytes") for n in range(5)] + [tune(9, "crash", message="SIGSEGV")]  # fmt: skip
    made = report_model.build([*found, tune(10, "pruned")])["cases"][0]["failures"]
    assert [(one["status"], one["count"], one["error"]) for one in made] == [("invalid", 5, "needs 0 bytes"), ("crash", 1, "SIGSEGV")]  # fmt: skip
    assert made[1]["again"] == "kiln tune 9"
    old, new = (dataclasses.replace(found[-1], key=name, more={"source": name}) for name in "ab")
    assert [one["count"] for one in report_model.build([old, new])["cases"][0]["failures"]] == [1]
    assert not report_model.build([old, dataclasses.replace(new, status="ok")])["cases"][0]["failures"]


def verified(number, status, source, **more) -> Record:
    error = {"type": "odd", "message": f"{number} of 9 elements are wrong", "line": None} if status != "ok" else None
    more = {"checks": 9, "source": source, **more}
    return Record("verify", f"v{number}{source}", "gemm", {"m": number}, None, status, env=ENV, error=error, more=more)


def test_what_was_wrong_with_earlier_sources_is_not_a_failure_now():
    records = [verified(1, "wrong", "old"), verified(2, "wrong", "old"), verified(1, "ok", "new")]
    (case,) = report_model.build(records)["cases"]
    assert (case["verified"], case["unverified"], case["failures"]) == ([1, 0], 1, [])
    body = report_page.page(report_model.build(records), "here", "")
    assert "1 not checked since the source changed" in body and "failed" not in body.split("<details")[0]
    mended = report_page.page(report_model.build([*records, verified(2, "ok", "new")]), "here", "")
    assert "not checked since" not in mended and ">right</b>" in mended
    broken = report_page.page(report_model.build([*records, verified(2, "crash", "new")]), "here", "")
    assert ">1 failed</b>" in broken and "Failures" in broken and "2 of 9 elements are wrong" in broken


def test_the_source_on_disk_is_the_present_one(tmp_path):
    """A kernel that was mended after its last check has not failed; one that is as it was when it passed is right."""
    journal, file = Journal(tmp_path / ".kiln"), tmp_path / "kernel.py"
    for text, status in (("right = 1", "ok"), ("wrong = 1", "wrong")):
        file.write_text(text)
        source = source_closure.digest(source_closure.source_files(file))
        record = dataclasses.replace(verified(1, status, source), again="kiln verify some/kernel.py:case --m=1")
        journal.append(record)

    def verdict():
        records, torn = cli.read(tmp_path)
        (case,) = report_model.build(records, torn, cli.present_sources(tmp_path))["cases"]
        return case["verified"], case["unverified"], len(case["failures"])

    assert verdict() == ([0, 1], 0, 1)
    file.write_text("mended = 1")
    assert verdict() == ([0, 0], 1, 0)
    file.write_text("right = 1")
    assert verdict() == ([1, 0], 0, 0)
    file.unlink()
    assert verdict() == ([0, 1], 0, 1)


def test_times_of_the_cpu_target_are_marked_and_not_praised():
    records = [bench({"m": m, "n": 1}, 10.0, peer=20.0) for m in (1, 2, 3)]
    for record in records:
        record.env = {**ENV, "gpu": None}
        record.more["source"] = "new"
    records[0].more["source"] = "old"
    model = report_model.build(records)
    assert model["cases"][0]["roofline"] is None
    body = report_page.page(model, "here", "")
    assert body.count(">CPU target</span>") == 3 and "times of the CPU target say nothing about a GPU" in body
    assert 'class="faster"' not in body and '<span class="same">2.00x faster</span>' in body
    assert "<b>2.00x</b>" not in body and body.count("<small>earlier source</small>") == 1


def test_tuning_is_on_one_scale():
    """Screening and the final comparison are other measurements: the first is drawn, the second chooses."""
    screened = [tune(n, us=us) for n, us in enumerate((4.0, 5.0))]
    finalists = [
        {"place": n, "config": {"n": n}, "us": [us, us, us], "rounds": [us] * 20} for n, us in enumerate((9.0, 8.0))
    ]
    last = Record("tune", "final", "gemm", {"m": 8}, None, "ok", env=ENV, more={"finalists": finalists})
    (tuning,) = report_model.build([*screened, last])["cases"][0]["tuning"]
    assert (tuning["best"], tuning["chosen"], tuning["chosen_us"]) == (4.0, {"n": 1}, 8.0)
    assert [(row["us"][1], row["compared"][1]) for row in tuning["rows"]] == [(4.0, 9.0), (5.0, 8.0)]
    star = next(trace for trace in figures.history(tuning)["data"] if trace["name"] == "chosen")
    assert star["y"] == [5.0]  # where it was screened
    body = report_page.page(report_model.build([*screened, last]), "here", "")
    assert "screened us" in body and "compared us" in body and "<span>chosen by tuning</span><b>8 " in body


def test_rooflines_have_the_ceilings_of_their_gpu(model):
    found = model["cases"][0]["roofline"]
    assert len(found["points"]) == 8 and {point["who"] for point in found["points"]} == {"kernel", "peer"}
    (ceiling,) = found["ceilings"]
    assert ceiling["tbs"] == pytest.approx(4.8) and ceiling["peaks"]["f16"] == pytest.approx(989, rel=0.01)
    figure = figures.roofline(found)
    slope = next(trace for trace in figure["data"] if "TB/s" in trace["name"])
    assert [y / x for x, y in zip(slope["x"], slope["y"])] == pytest.approx([4.8, 4.8])
    unknown = report_model.build([bench({"m": 1}, 1.0)])
    unknown["cases"][0]["roofline"]["ceilings"] = []
    assert figures.roofline(unknown["cases"][0]["roofline"])["data"]


@pytest.fixture(scope="module")
def folder(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    journal = Journal(folder / "kernels" / ".kiln")
    for record in records:
        journal.append(record)
    with open(journal.file, "a") as file:
        file.write('{"v":1,"kind":"be')
    return folder


def test_c16_a_page_explains_every_status(folder, capsys):
    pytest.importorskip("plotly")
    page = folder / "report.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    assert "gemm (29); 1 torn" in capsys.readouterr().out
    text = page.read_text()
    body = text.split("<script")[0]
    for status, meaning in STATUSES.items():
        assert f">{status}</span>" in body and meaning.replace("'", "&#x27;") in body
    assert "because of 4 &lt;b&gt;" in body and "<b>" not in re.sub(r"<b>[^<]*(<small>[^<]*</small>)?</b>", "", body)
    assert "kiln tune 4" in body and "1 torn line left out" in body and "the interval of the median" in body
    assert "default-src 'none'" in text and not re.findall(r'(?:src|href)="(?!#|data:)', body)


def test_predictions_stand_beside_what_was_measured():
    predicted = {"predicted": [9.0, 11.0, 13.0], "predicted_by": "NVIDIA H200 2026-11-19 0a1b2c3d"}
    timed = bench({"m": 1}, 10.0)
    timed.more |= predicted
    alone = Record("bench", "p", "gemm", {"m": 2}, None, "predicted", protocol="clock", env={**ENV, "gpu": None}, more=predicted)  # fmt: skip
    made = report_model.build([timed, alone])
    rows = [report_page._result_row(one, []) for one in made["cases"][0]["results"]]
    assert [row[3:7] for row in rows] == [
        ["H200", "10 <small>± 2</small>", "11 <small>± 2</small>", "+10 %"],
        ["NVIDIA H200 2026-11-19 0a1b2c3d", "", "11 <small>± 2</small>", ""],
    ]
    assert made["cases"][0]["failures"] == []
    column = report_model.COLUMNS.index("predicted_us")
    assert [row[column] for row in report_model.rows([timed, alone, bench({"m": 3}, 1.0)])] == [11.0, 11.0, None]


@needs_chromium
def test_figures_are_drawn_and_nothing_is_asked_for(folder):
    pytest.importorskip("plotly")
    page = folder / "drawn.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    script = """
      const button = document.querySelector("#theme"), before = document.querySelector(".plot text").style.fill;
      button.click(); await new Promise((done) => setTimeout(done, 200));
      return { drawn: [...document.querySelectorAll(".plot")].filter((plot) => plot.querySelector(".main-svg .plot path, .main-svg .trace")).length,
        plots: document.querySelectorAll(".plot").length, before, after: document.querySelector(".plot text").style.fill,
        requests: performance.getEntriesByType("resource").map((one) => one.name).filter((name) => !name.startsWith("data:")) };
    """
    seen = json.loads(result_of(dom_of(page, script=script)))
    assert seen["drawn"] == seen["plots"] == 4 and seen["requests"] == []
    assert seen["before"] != seen["after"]


def test_rows_for_other_tools(folder, tmp_path, records):
    table, data = tmp_path / "r.csv", tmp_path / "r.json"
    assert main(["report", str(folder), "--csv", str(table), "--json", str(data)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == len(records) and json.loads(rows[0]["problem"]) == records[0].problem
    assert float(rows[0]["us"]) == 10.0 and rows[4]["flags"] == "noisy power-cap"
    found = json.loads(data.read_text())["result"]
    assert found["torn"] == 1 and found["records"][0]["us"] == records[0].us
    assert not (tmp_path / "report.html").exists()


def test_rows_on_standard_output(folder, records, capsys):
    assert main(["report", str(folder), "--csv", "-"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == len(records)
    assert float(rows[0]["us"]) == 10.0


def test_without_plotly_rows_are_still_written(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", str(folder), "-o", str(tmp_path / "r.html"), "--csv", str(tmp_path / "r.csv")]) == 3
    assert "pip install" in capsys.readouterr().err and (tmp_path / "r.csv").exists()


def test_nothing_to_report(tmp_path, folder, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "no records" in capsys.readouterr().err
    for words, said in (([str(tmp_path / "none")], "no folder"), ([str(folder), "--case", "gem"], "there are: gemm")):
        with pytest.raises(SystemExit) as end:
            main(["report", *words])
        assert end.value.code == 2 and said in capsys.readouterr().err
