"""`kiln profile --prof-type clock`: predicted times and reasons as text, JSON, pictures and pages, without a GPU."""

from __future__ import annotations

import json

import pytest
from browser import dom_of, needs_chromium, result_of
from made_traces import gemm, prediction

from kiln import workbench as wb
from kiln.hardware import driver
from kiln.measure import trace_format
from kiln.workbench.core.records import journal_of
from kiln.workbench.core.runners import Inline
from kiln.workbench.inspect.page import model_of
from kiln.workbench.profile import cli as profile
from kiln.workbench.profile import jobs, timeline
from kiln.workbench.profile.result import KernelProfile, Profile
from kiln.workbench.profile.timeline_svg import svg

pytestmark = pytest.mark.skipif(driver.available(), reason="there is a GPU")
ADD = """
import numpy as np
from kiln import cute

@cute.kernel
def add(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    cute.arch.sync_threads()
    y[b * 64 + t] = x[b * 64 + t] + 1.0

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    add(x, y).launch(grid=(4, 1, 1), block=(64, 1, 1))

def get_inputs(n=256):
    return [np.arange(n, dtype=np.float32)]

def kernel_fn(x):
    y = np.zeros_like(x)
    launch(x, y)
    return y

def reference_fn(x):
    return x + 1
"""


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "adding.py"
    path.write_text(ADD)
    (tmp_path / "step.py").write_text("".join(f"line_{n} = {n}\n" for n in range(1, 30)))
    return path


@pytest.fixture
def predicted(monkeypatch, tmp_path):
    """Predictions that are not computed; a list of what they were asked for."""
    asked = []

    def predict(call, device, mhz, what_if, cold):
        asked.append((device, mhz, what_if))
        return [prediction(folder=str(tmp_path))]

    monkeypatch.setattr(jobs, "predict", predict)
    monkeypatch.setattr(profile, "Local", lambda **_: Inline())
    return asked


def test_the_prediction_is_printed_with_its_reasons(case, predicted, capsys):
    assert profile.main([str(case)]) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    assert predicted == [("H200", None, True)]
    time = "11.5 us [10.3, 12.7] at 1980 MHz (burst), 13.8 us [11.5, 16.1] at 1590 MHz (sustained)"
    assert f"gemm_kernel on H200, predicted: {time}" in said
    assert "grid 8 x 4, block 256: 1 CTA per SM, 0.242 waves, 22770 cycles" in said
    assert "limited by tensor; busy: tensor 83%, smem 52%" in said
    assert "critical path: 44% tma_load (bulk load) at step.py:6" in said
    assert "not calibrated: TMA stores" in said
    assert "step.py:9 31 4-7 mbarrier bulk load line_9 = 9" in said
    assert "MMAs twice as fast -14.1%" in said and "one more stage +0.0%" in said
    (record,) = journal_of(wb.load(case)).read()[0]
    assert (record.status, record.protocol, record.us) == ("ok", "profile-clock", None)


def test_a_clock_may_be_asked_for(case, predicted, capsys):
    assert profile.main([str(case), "--clock", "1305"]) == 0 and predicted == [("H200", 1305.0, True)]
    assert profile.main([str(case), "--clock", "sustained"]) == 0 and predicted[-1] == ("H200", None, True)
    printed = capsys.readouterr().out
    assert "predicted: 13.8 us [11.5, 16.1] at 1590 MHz (sustained)" in printed
    with pytest.raises(SystemExit):
        profile.main([str(case), "--clock", "fast"])
    assert "'fast' is no clock: burst, sustained, or MHz such as 1305" in capsys.readouterr().err


def test_timelines_are_written_as_json_page_and_for_perfetto(case, predicted, tmp_path, capsys):
    page, perfetto, out = (tmp_path / name for name in ("t.html", "t.json", "p.json"))
    words = ["--html", str(page), "--perfetto", str(perfetto), "--json", str(out)]
    assert profile.main([str(case), "--prof-type", "clock", *words]) == 0
    assert f"written to {page}" in capsys.readouterr().err
    assert {each["ph"] for each in json.loads(perfetto.read_text())["traceEvents"]} == {"M", "X", "s", "f"}
    (found,) = json.loads(out.read_text())
    clock = found["extra"]["clock"]
    (record,) = clock["predictions"]
    assert (record["burst"]["us"], record["limiter"], record["stalls"][0]["line"]) == (11.5, "tensor", 9)
    assert record["what_ifs"][0]["change_of_time"] == pytest.approx(1700 / 1980 - 1)
    assert sum(each["share"] for each in record["critical_path"]) == pytest.approx(1)
    own = found["extra"]["trace"]["own"]
    (trace,) = trace_format.loads(open(own).read())
    assert trace.source == "predicted" and "H200" in clock["version"]
    model = model_of(page.read_text())
    assert model["title"] == "adding" and model["command"].startswith("kiln profile")
    assert model["files"]["step.py"]["lines"][8] == "line_9 = 9"
    assert len(model["launches"][0]["events"][0]) == len(trace.events)
    assert profile.main([str(case), "--prof-type", "clock", "--quiet", *words]) == 0
    assert capsys.readouterr().err == ""
    both = tmp_path / "both.json"  # a measured trace that is read lies beside a predicted one
    measured = tmp_path / "measured.kiln.json"
    measured.write_text(trace_format.dumps([gemm(source="measured")]))
    assert profile.main(["--read", own, "--read", str(measured), "--perfetto", str(both), "--html", str(page)]) == 0
    names = {
        each["args"]["name"] for each in json.loads(both.read_text())["traceEvents"] if each["name"] == "process_name"
    }
    assert names == {"gemm_kernel: block 0 (predicted)", "gemm_kernel: block 0 (measured)"}
    assert [each["source"] for each in model_of(page.read_text())["launches"]] == ["predicted", "measured"]


def test_only_the_clock_writes_timelines(case, capsys):
    with pytest.raises(SystemExit):
        profile.main([str(case), "--prof-type", "static", "--html", "t.html"])
    assert "--html and --perfetto show what --prof-type clock and trace say, not static" in capsys.readouterr().err


def test_two_predictions_are_compared(case, predicted, tmp_path, capsys):
    other = tmp_path / "other.py"
    other.write_text(ADD)
    assert profile.main([str(case), str(other), "--lines", "0"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Predicted", "(us)", "11.50", "11.50", "+0.00", "(+0.0", "%)"] in lines


def test_in_notebooks_it_is_a_picture(case, predicted):
    found = wb.load(case).profile(prof_type="clock", runner=Inline())
    shown = found._repr_mimebundle_()
    assert shown["text/plain"].startswith("gemm_kernel on H200, predicted: 11.5 us")
    assert shown["text/html"].count("<rect") > 50 and "warp 0 (producer)" in shown["text/html"]
    assert found.us == 11.5


@pytest.fixture
def made_up(monkeypatch):
    """A static profile that takes no time."""
    kernel = KernelProfile("add", {"Registers/thread": 16})
    monkeypatch.setattr(profile, "static", lambda case, job, runner: Profile("static", case.name, [kernel]))


@pytest.mark.usefixtures("made_up", "predicted")
def test_where_the_clock_knows_no_units_the_static_profile_is_shown(case, capsys):
    assert profile.main([str(case), "--arch", "sm_80", "--prof-type", "clock"]) == 3
    said = "clock is not possible here: the clock does not know the units of a GPU of sm_80"
    assert said in capsys.readouterr().out
    assert profile.main([str(case), "--arch", "sm_80"]) == 0
    printed = capsys.readouterr().out
    assert "(static)" in printed and "not possible" not in printed


@pytest.mark.usefixtures("made_up", "predicted")
def test_what_cannot_be_predicted_is_told_with_the_static_profile(case, monkeypatch, capsys):
    def predict(*_):
        raise RuntimeError("warps wait for ever")

    monkeypatch.setattr(jobs, "predict", predict)
    assert profile.main([str(case), "--lines", "0"]) == 0  # nothing else was asked for
    assert "clock is not possible here: warps wait for ever" in capsys.readouterr().out
    assert profile.main([str(case), "--prof-type", "clock", "--lines", "0"]) == 3


@pytest.mark.quick(1)
def test_a_kernel_is_predicted(case, monkeypatch):
    """The real prediction, with what it says of a small kernel; a copy of four CTAs takes some microseconds."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    found = wb.load(case).profile(prof_type="clock", runner=Inline())
    (one,) = found.predictions
    assert (one["kernel"], one["device"], one["grid"], one["block"]) == ("add", "H200", [4, 1, 1], [64, 1, 1])
    assert 0.5 < one["burst"]["us"] < 20 and one["burst"]["low"] <= one["burst"]["us"] <= one["burst"]["high"]
    assert not found.missing


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "step.py").write_text("".join(f"line_{n} = {n}  # a comment\n" for n in range(1, 30)))
    file = folder / "t.html"
    made = prediction(folder=str(folder))
    record = jobs.clock_profile.to_json(made, jobs.trace_of(made))
    traces = [jobs.trace_of(made), gemm(2, source="measured")]
    file.write_text(timeline.page("a <GEMM>", traces, [record], {"step.py": str(folder / "step.py")}, "kiln profile"))
    return file


LOOK = """
  const wait = () => new Promise((done) => setTimeout(done, 60)), seen = {};
  const press = async (key) => { canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })); await wait(); };
  const click = async (x, y) => { for (const type of ["pointerdown", "pointerup"]) canvas.dispatchEvent(new PointerEvent(type, { pointerId: 1, pointerType: "touch", clientX: canvas.getBoundingClientRect().left + x, clientY: canvas.getBoundingClientRect().top + y, bubbles: true })); await wait(); };
  await wait();
  seen.title = document.querySelector("h1").textContent;
  seen.rows = rows.map((row) => row.head ?? row.sub ?? row.name);
  seen.facts = $("facts").textContent;
  seen.tables = [...document.querySelectorAll("#tables h2")].map((one) => one.textContent);
  const row = rows.find((one) => one.name === "warp 4 consumer"), n = row.own.find((each) => event(each).name === "mbarrier_wait");
  await click(x((event(n).begin + event(n).end) / 2), row.y + row.tall / 2);
  seen.clicked = [chosen === n, $("chosen").textContent.includes("let go on by"), $("chosen").querySelector(".here").textContent];
  await press("c"); seen.cause = [event(chosen).name, launch.tracks[event(chosen).track][2]];
  await press("z"); seen.zoomed = right - left < most - least;
  const before = [left, right]; await press("d"); seen.moved = left > before[0];
  await press("0"); seen.all = left === least && right === most;
  await press("ArrowRight"); seen.next = event(chosen).name;
  await press("Escape"); seen.free = chosen;
  seen.before = getComputedStyle(document.body).backgroundColor;
  await press("t"); seen.after = getComputedStyle(document.body).backgroundColor;
  $("launch").value = "1"; $("launch").onchange(); await wait();
  seen.second = [$("device").textContent, document.querySelectorAll("#tables .box").length];
  seen.requests = performance.getEntriesByType("resource").length;
  seen.unnamed = [...document.querySelectorAll("button, select, input")].filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length;
  seen.drawn = pen.getImageData(0, 0, canvas.width, canvas.height).data.some((one) => one > 0);
  return seen;
"""


@needs_chromium
def test_the_page_is_moved_and_asked_by_mouse_and_keys(page):
    seen = json.loads(result_of(dom_of(page, script=LOOK)))
    assert seen["title"] == "a <GEMM>" and "limited bytensor" in seen["facts"] and "83 % busy" in seen["facts"]
    assert seen["rows"][:6] == ["CTA 0", "warp 0 producer", *(f"warp {n} consumer" for n in range(4, 8))]
    assert {"bulk load", "bulk store", "wgmma warp 4", "stage 0"} - {"stage 0"} <= set(seen["rows"])
    assert seen["tables"][:3] == ["Critical path", "Waits", "What if"] and "How sure it is" in seen["tables"]
    assert seen["clicked"] == [True, True, "9line_9 = 9  # a comment"]
    assert seen["cause"] == ["tma_load", "bulk load"]
    assert (seen["zoomed"], seen["moved"], seen["all"], seen["free"]) == (True, True, True, None)
    assert seen["before"] != seen["after"] and seen["drawn"]
    assert seen["second"][0] == "H200 · measured" and (seen["requests"], seen["unnamed"]) == (0, 0)


@needs_chromium
def test_the_page_fits_a_phone(page):
    look = """
      const frame = document.createElement("iframe");
      frame.style.cssText = "width:390px;height:800px;border:0";
      frame.srcdoc = document.documentElement.outerHTML.replace(/<script>addEventListener[^]*?<\\/script>/, "");
      document.body.append(frame);
      await new Promise((done) => { frame.onload = () => setTimeout(done, 400); });
      const inside = frame.contentDocument;
      return [inside.documentElement.scrollWidth, inside.getElementById("canvas").clientWidth, inside.querySelectorAll("#tables .box").length];
    """
    wide, drawn, boxes = json.loads(result_of(dom_of(page, script=look)))
    assert wide <= 390 and 300 < drawn <= 390 and boxes > 2


def test_a_picture_has_a_row_for_each_track_and_joins_what_is_too_short():
    trace = gemm(3)
    picture = svg(trace)
    assert picture.count('fill="currentColor"') == len(trace.tracks) + 1 and "CTA 0" in picture
    long = gemm(3, steps=1000)
    assert svg(long).count("<rect") < 10_000 and svg(trace_format.Trace("k")) == ""
