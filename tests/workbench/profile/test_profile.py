"""`kiln profile`: the static profile anywhere, reports of profilers read, and what is said where a profiler cannot be used."""

from __future__ import annotations

import json
import lzma
import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from kiln import workbench as wb
from kiln.hardware import driver, toolchain
from kiln.measure import trace_format
from kiln.workbench.bench import cli as bench
from kiln.workbench.core import command_line
from kiln.workbench.core.records import journal_of
from kiln.workbench.core.runners import Inline, Job, Outcome
from kiln.workbench.profile import cli as profile
from kiln.workbench.profile import kernel_ranges, ncu, nsys
from kiln.workbench.profile.result import KernelProfile, LineProfile, Profile, compared, with_calls
from kiln.workbench.profile.static_profile import StaticProfile
from kiln.workbench.verify import cli as verify

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
needs_ptxas = pytest.mark.skipif(toolchain.find("ptxas") is None, reason="needs ptxas")

TRANSPOSE = """
import numpy as np
from kiln import cute, Float32

PAD = 0

@cute.jit
def put(y, i, t, value):
    y[i, t] = value

@cute.kernel
def transpose(x: cute.Tensor, y: cute.Tensor, pad: cute.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 32 * (32 + pad)), cute.make_layout((32, 32), stride=(32 + pad, 1)))
    for i in range(32):
        tile[i, t] = x[i, t]
    cute.arch.sync_threads()
    for i in range(32):
        put(y, i, t, tile[t, i])

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, pad: cute.Constexpr):
    transpose(x, y, pad).launch(grid=(1, 1, 1), block=(32, 1, 1))

def get_inputs(n=32):
    return [np.arange(n * n, dtype=np.float32).reshape(n, n)]

def kernel_fn(x):
    y = np.zeros_like(x)
    launch(x, y, PAD)
    return y

def reference_fn(x):
    return x.T.copy()

def flops_bytes(n):
    return 0, 8 * n * n
"""


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "transposed.py"
    path.write_text(TRANSPOSE)
    return path


@pytest.fixture
def inline(monkeypatch):
    """Without workers: what they are for is tested elsewhere."""
    monkeypatch.setattr(profile, "Local", lambda **_: Inline())


@needs_ptxas
@pytest.mark.usefixtures("inline")
def test_the_static_profile_has_resources_lines_loops_and_bank_conflicts(case, tmp_path, capsys):
    out = tmp_path / "profile.json"
    words = [str(case), "--prof-type", "static", "--arch", "sm_90a", "--json", str(out), "--lines", "5"]
    assert profile.main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "SMEM/block (KB) 4.00" in printed and "transposed.py:19" in printed and "tile[t, i]" in printed
    assert "32-way" in printed and "H100 SXM" in printed and "B200" in printed
    (found,) = json.loads(out.read_text())
    (kernel,) = found["kernels"]
    assert kernel["name"] == "transpose" and "blocks" in kernel["metrics"]["Limited by"]
    lines = {line["line"]: line for line in kernel["lines"]}
    assert lines[9]["counts"]["global"] == 32 and lines[19]["called"] == sum(lines[9]["counts"].values())
    (static,) = found["extra"]["static"]
    assert static["mix"]["shared"] >= 40 and static["mix"]["barrier"] == 1
    assert kernel["metrics"]["Code size (instructions)"] == sum(static["mix"].values())
    assert (kernel["metrics"]["Bytes/global access"], kernel["metrics"]["Warps in the grid"]) == ("4 (64x)", 1)
    assert max(each["conflicts"] for each in found["extra"]["bank_conflicts"]) == 31 * 32
    assert {(each["operation"], each["accesses"], each["sectors"]) for each in found["extra"]["coalescing"]} == {
        ("ld", 32, 128), ("st", 32, 128),
    }  # fmt: skip
    counted = ("Global accesses by warps", "Sectors/global access", "Ideal sectors/access", "Wavefronts/shared access")
    assert [kernel["metrics"][name] for name in counted] == [64, 4.0, 4.0, 16.5]
    assert "sectors/access" in printed
    (record,) = journal_of(wb.load(case)).read()[0]
    assert (record.kind, record.status, record.more["kernels"][0]["name"]) == ("profile", "ok", "transpose")


@pytest.mark.usefixtures("inline")
def test_a_kernel_for_another_gpu_is_looked_at_as_compiled_for_that(case, monkeypatch):
    asked = []

    class Runner(Inline):
        def run(self, jobs):
            for job in jobs:
                asked.append(job.env)
                yield Outcome(job, "ok", {"kernels": [], "calls": [], "dtype": "f32"})

    case.write_text(TRANSPOSE + "\narch = 'sm_100a, sm_103a'\n")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_120a")
    found = profile.profile(wb.load(case), prof_type="static", runner=Runner())
    assert asked == [{"CUTE_DSL_ARCH": "sm_100a"}] and "at least on B200" in found.notes[1]
    assert found.notes[0].endswith("is for sm_100a, sm_103a, and this is sm_120a: the profile is for sm_100a")


def test_bank_conflicts_that_take_too_long_are_told_with_the_case_and_a_remedy(case):
    class Runner(Inline):
        def run(self, jobs):
            kernel = StaticProfile(
                "k", "sm_90a", (1, 1, 1), (32, 1, 1), (1, 1, 1), 16, 0, 0, 0, 0, 0, 0, mix={"shared": 1}
            )
            for job in jobs:
                if job.do.endswith(":accesses"):
                    yield Outcome(job, "timeout", error={"message": "it did not end within 20 s, and was killed"})
                else:
                    yield Outcome(job, "ok", {"kernels": [kernel.to_json()], "calls": [], "dtype": "f32"})

    note = profile.profile(wb.load(case), {"n": 128}, "static", runner=Runner()).notes[-1]
    said = "bank conflicts and sectors of transposed were not counted: it did not end within 20 s, and was killed"
    assert note == f"{said}; smaller extents may do: --n=64"


@pytest.fixture
def made_up(monkeypatch):
    """A static profile that takes no time."""

    def static(case, job, runner):
        return Profile("static", case.name, [KernelProfile("transpose", {"Registers/thread": 32 + len(case.name)})])

    monkeypatch.setattr(profile, "static", static)


@pytest.mark.quick(1)
@pytest.mark.skipif(driver.available(), reason="there is a GPU")
@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("prof_type", ["ncu", "nsys", "annotation"])
def test_c11_without_a_gpu_the_static_profile_is_shown_and_the_exit_status_says_so(case, prof_type, capsys):
    assert profile.main([str(case), "--arch", "sm_90a", "--prof-type", prof_type, "--lines", "1"]) == 3
    printed = capsys.readouterr().out
    assert f"{prof_type} is not possible here: there is no NVIDIA GPU" in printed and "transpose (static)" in printed
    (record,) = journal_of(wb.load(case)).read()[0]
    assert record.status == "skipped" and f"--prof-type={prof_type}" in record.again


@pytest.mark.usefixtures("made_up")
def test_two_cases_are_compared(case, tmp_path, capsys):
    (tmp_path / "other.py").write_text(TRANSPOSE)
    assert profile.main([str(case), str(tmp_path / "other.py"), "--prof-type", "static", "--lines", "0"]) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert "Occupancy and code size do not say which is faster" in printed
    assert ["transpose", "transposed", "other", "delta"] in lines
    assert ["Registers/thread", "42", "37", "-5", "(-11.9", "%)"] in lines


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(("verified", "status"), [(0, 0), (1, 1), (3, 0)])
def test_a_wrong_kernel_is_not_profiled_with_check(case, monkeypatch, verified, status, capsys):
    asked = []
    monkeypatch.setattr(verify, "main", lambda words: asked.append(words[1:]) or verified)
    assert profile.main([str(case), "--prof-type", "static", "--check", "--n", "16"]) == status
    assert asked == [["--set", "n=16", "--quick"]] and ("transpose" in capsys.readouterr().out) == (status == 0)


def test_profiles_are_tables_and_json():
    line = LineProfile("/nowhere/x.py", 3, {"wait": 2, "barrier": 5})
    first = Profile(
        "ncu", "a", [KernelProfile("k", {"TC%": 40.0, "Limited by": "warps", "Duration (us)": 2.0}, [line])]
    )
    second = Profile("ncu", "b", [KernelProfile("other", {"TC%": 50.0, "Registers/thread": 32})])
    assert "barrier 5, wait 2" in str(first) and "Duration (us)    2.00" in str(first)
    assert first.lines[0].total == 7 and "<pre" in first._repr_mimebundle_()["text/html"]
    assert KernelProfile.from_json(json.loads(json.dumps(first.to_json()))["kernels"][0]) == first.kernels[0]
    text = str(Profile("", "", []))
    assert text == ""
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as made:
        console.print(*compared(first, second))
    assert "k | other" in made.get() and "+10.00 (+25.0 %)" in made.get()


@pytest.mark.usefixtures("inline")
def test_a_kernel_that_fails_is_a_record_and_a_contract_that_fails_is_told(case, capsys):
    case.write_text(TRANSPOSE.replace("launch(x, y, PAD)", "launch(x, y)"))
    assert profile.main([str(case), "--arch", "sm_90a"]) == 1
    assert "error: " in (said := capsys.readouterr().err) and "transposed.py:" in said
    (record,) = journal_of(wb.load(case)).read()[0]
    assert record.status == "error" and record.error and "pad" in record.error["message"]
    case.write_text(TRANSPOSE.replace("np.arange(", "np.arrange("))
    assert profile.main([str(case), "--arch", "sm_90a"]) == 2
    assert "get_inputs raised AttributeError" in capsys.readouterr().err


def test_a_process_that_ends_itself_is_told_with_its_last_words():
    said = 'a word\nFatal Python error: Aborted\n\nThread 0x1:\n  File "/a/k.py", line 6 in kernel_fn\n  File "/a/w.py", line 9 in <module>\n'
    outcome = Outcome(
        Job("x:y"), "crash", error={"type": "crash", "message": "it ended its process by SIGABRT"}, stderr=said
    )
    assert str(profile._Failed(outcome)) == "crash: it ended its process by SIGABRT (/a/k.py:6)\n  a word"


def test_the_time_alone_is_that_of_bench(case, monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "main", lambda words: asked.append(words) or 5)
    assert profile.main([str(case), "--prof-type", "disabled", "--lines=3", "--n", "16", "--kernel", "k"]) == 5
    assert asked == [[str(case), "--n", "16"]]
    assert profile.main([str(case), "--prof_type", "disabled"]) == 5  # as CuTe DSL's harnesses spell it
    assert asked[1:] == [[str(case)]]
    assert "prof_type" not in profile.make_parser().format_help()


def test_what_a_function_costs_is_shown_at_its_call_too():
    lines = [LineProfile("k.py", 5, {"int": 1}), LineProfile("h.py", 2, {"fp": 3}), LineProfile("h.py", 9, {"fp": 4})]
    calls = [("h.py", 2, "k.py", 5), ("k.py", 5, "main.py", 1), ("h.py", 9, "k.py", 6), ("h.py", 9, "k.py", 7)]
    found = {(line.file, line.line): (line.total, line.called) for line in with_calls(lines, calls)}
    assert found == {("h.py", 2): (3, 0), ("h.py", 9): (4, 0), ("k.py", 5): (1, 3), ("main.py", 1): (0, 4)}
    assert with_calls(lines[:1], [("k.py", 5, "k.py", 5)]) == lines[:1]  # it calls itself


def bad_use(*words):
    try:
        return profile.main(list(words))
    except SystemExit as ended:
        return ended.code


def test_bad_use(case, tmp_path, capsys):
    broken = tmp_path / "broken.ncu-rep"
    broken.write_bytes(b"no report")
    text = tmp_path / "text.sqlite"
    text.write_text("no database, but longer than a header of one: " * 40)
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).close()
    for words, said in {
        (str(case), "--prof-type", "magic"): "invalid choice: 'magic'",
        (): "name a CASE",
        (str(case), "--read", str(broken)): "takes no CASE",
        ("--read", str(tmp_path / "absent.ncu-rep")): "there is no report",
        ("--read", str(text)): "text.sqlite is not a readable SQLite export",
        ("--read", str(empty)): "no table StringIds",
        (str(case), "--nn", "3"): "did you mean --n?",
    }.items():
        assert bad_use(*words) == 2, words
        assert said in capsys.readouterr().err
    pytest.importorskip("ncu_report")
    assert bad_use("--read", str(broken)) == 2 and "broken.ncu-rep is not a report" in capsys.readouterr().err


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What ncu 2025.3 wrote on an H200 of examples/hopper/step_2_gemm.py, 512 x 512 x 2048."""
    pytest.importorskip("ncu_report")
    path = tmp_path_factory.mktemp("reports") / "product.ncu-rep"
    path.write_bytes(lzma.decompress((HELPERS / "product.ncu-rep.xz").read_bytes()))
    return path


def test_c11_a_stored_report_is_read(report, capsys):
    """The numbers are those that `ncu --import` prints of it."""
    assert profile.main(["--read", str(report), "--lines", "4"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for shown in (
        "gemm_kernel (ncu)", "Duration (us) 42.27", "TC% 24.03", "DRAM% 2.07", "L2 hit% 63.51", "Occupancy% 12.44", "Theoretical% 25.00",
        "Limited by registers", "Registers/thread 90", "SMEM/block (KB) 33.00",
        "long_scoreboard 59 waits for data of global", "barrier 24 waits for other warps",
    ):  # fmt: skip
        assert shown in printed
    (kernel,) = ncu.read(report).kernels
    lines = {line.line: line for line in kernel.lines}
    most = sorted(lines.values(), key=lambda line: -line.total)[:2]
    assert [(kernel.source(line), max(line.counts, key=lambda name: line.counts[name])) for line in most] == [
        ("cute.arch.mbarrier_wait(full, phase)", "long_scoreboard"),
        ("warpgroup.wait_group(0)", "barrier"),
    ]
    assert lines[66].counts["barrier"] == 13 and "drain" in lines[85].counts and lines[63].counts
    assert sum(line.total for line in kernel.lines) == 531


def test_without_the_package_reports_are_read_by_what_ncu_brings_or_not_at_all(
    report, fake_tool, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.setattr(ncu, "PLACES", {"ncu": ("", "")})
    fake_tool("ncu", "true")
    assert profile.main(["--read", str(report)]) == 3
    assert "pip install ncu-report" in capsys.readouterr().out
    (tmp_path / "extras" / "python").mkdir(parents=True)
    (tmp_path / "extras" / "python" / "ncu_report.py").write_text(
        "def load_report(path):\n    raise OSError('brought along')\n"
    )
    monkeypatch.delitem(sys.modules, "ncu_report")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    try:
        assert profile.main(["--read", str(report)]) == 2
    finally:
        sys.modules.pop("ncu_report", None)
    assert "brought along" in capsys.readouterr().err


def test_a_report_can_be_compared_with_another(report, capsys):
    assert profile.main(["--read", str(report), "--read", str(report), "--lines", "0"]) == 0
    assert "+0.00 (+0.0 %)" in capsys.readouterr().out


@pytest.mark.usefixtures("inline")
def test_what_ncu_writes_becomes_a_profile(report, case, fake_tool, monkeypatch):
    """A stand-in that writes the stored report where ncu would."""
    fake_tool("ncu", f'while [ "$1" != -o ]; do shift; done; cp {report} "$2.ncu-rep"')
    found = profile.profile(wb.load(case), prof_type="ncu")
    assert (found.prof_type, found.name, found.missing, found.kernels[0].name) == (
        "ncu",
        "transposed",
        "",
        "gemm_kernel",
    )
    (record,) = journal_of(wb.load(case)).read()[0]
    assert record.us == [pytest.approx(42.27, abs=0.01)] * 3 and record.status == "ok"
    assert record.more["kernels"][0]["lines"] and list(
        (case.parent / ".kiln" / "profiles").glob("transposed-*.ncu-rep")
    )


@pytest.fixture
def fake_tool(tmp_path, monkeypatch):
    """A profiler that prints something and ends, first on PATH; and the GPU it would need."""
    monkeypatch.setattr(command_line, "on_gpu", lambda: True)
    monkeypatch.setattr(command_line, "refused", lambda case: None)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755 | stat.S_IEXEC)

    return make


@pytest.mark.usefixtures("made_up")
def test_c11_counters_that_may_not_be_read_are_explained(case, fake_tool, capsys):
    fake_tool("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1")
    assert profile.main([str(case), "--arch", "sm_90a", "--prof-type", "ncu", "--lines", "1"]) == 3
    printed = capsys.readouterr().out
    assert "NVreg_RestrictProfilingToAdminUsers=0" in printed and "transpose (static)" in printed


def test_a_profiled_process_without_the_gpu_says_why(case, fake_tool, tmp_path, monkeypatch):
    """It is told to use the GPU, whatever this process has in its environment, and names what hides it."""
    monkeypatch.setenv("KILN_TARGET", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = {"where": str(case), "problem": {"n": 32}, "config": None, "seed": 0}
    fake_tool("ncu", "echo the target is $KILN_TARGET; exit 9")
    with pytest.raises(ncu.CannotProfile, match="the target is nvidia"):
        ncu.record(job, tmp_path / "out" / "r.ncu-rep", 30)
    fake_tool("ncu", f'while [ "$1" != {sys.executable} ]; do shift; done; exec "$@"')
    with pytest.raises(ncu.CannotProfile, match="sees no GPU: .*CUDA_VISIBLE_DEVICES=''.*LD_LIBRARY_PATH=") as told:
        ncu.record(job, tmp_path / "out" / "r.ncu-rep", 60)
    assert "\n" not in str(told.value)


def test_what_a_profiler_does_instead_of_profiling_is_told(case, fake_tool, tmp_path):
    job = {"where": str(case), "problem": {"n": 32}, "config": None, "seed": 0}
    for script, said in {
        "echo something broke; exit 9": "ncu ended with exit status 9:\n  something broke",
        "echo '==WARNING== No kernels were profiled.'": "ncu wrote no report: No kernels were profiled.",
        "sleep 60": "did not end within 0.2 s",
    }.items():
        fake_tool("ncu", script)
        with pytest.raises(ncu.CannotProfile, match=said):
            ncu.record(job, tmp_path / "out" / "r.ncu-rep", 0.2 if "sleep" in script else 30)
    fake_tool("nsys", "true")
    with pytest.raises(ncu.CannotProfile, match="exported no timeline"):
        nsys.record(job, tmp_path / "out" / "r.sqlite", 30)


def test_a_tool_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ncu, "PLACES", {"ncu": (), "nsys": ()})
    with pytest.raises(ncu.CannotProfile, match="nsys was not found: install Nsight Systems"):
        ncu.find("nsys")


def test_the_time_line_of_an_export_is_summed_up(tmp_path, capsys):
    """The tables are those of the public schema of exports, with the columns that are read."""
    path = tmp_path / "line.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(
            """
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, streamId INT, shortName INT, registersPerThread INT,
                staticSharedMemory INT, dynamicSharedMemory INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, copyKind INT, bytes INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, nameId INT);
            CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT, textId INT);
            INSERT INTO StringIds VALUES (1, 'gemm_kernel'), (2, 'cuLaunchKernelEx'), (3, 'product');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3000, 7, 1, 90, 1024, 2048), (5000, 8000, 7, 1, 90, 1024, 2048),
                (7000, 9000, 8, 1, 90, 1024, 2048);
            INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10000, 11000, 1, 4096);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 900, 2), (3000, 4000, 2);
            INSERT INTO NVTX_EVENTS VALUES (0, 12000, NULL, 3), (100, NULL, 'a mark', NULL);
            """
        )
    found = profile.read(str(path))
    timeline = found.extra["timeline"]
    assert (timeline["span_us"], timeline["busy_us"]) == (10.0, 7.0)
    assert timeline["gaps"] == {"count": 2, "total_us": 3.0, "largest_us": 2.0}
    assert timeline["kernels"] == [{"name": "gemm_kernel", "count": 3, "total_us": 7.0, "median_us": 2.0}]
    assert [each["name"] for each in timeline["copies"] + timeline["ranges"]] == ["host to device", "product"]
    assert found.kernels[0].metrics == {"Registers/thread": 90, "SMEM/block (KB)": 3.0, "Duration (us)": 2.0}
    assert profile.main(["--read", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "busy for 7.0 of 10.0 us (70 %); 2 gaps" in printed and "call: cuLaunchKernelEx" in printed


@pytest.mark.usefixtures("inline")
def test_a_trace_is_written_for_perfetto_and_for_programs(case, capsys):
    case.write_text(
        TRANSPOSE.replace(
            "    cute.arch.sync_threads()", '    with cute.testing.range("[wait]"):\n        cute.arch.sync_threads()'
        )
    )
    assert profile.main([str(case), "--target", "cpu", "--prof-type", "trace"]) == 0
    printed = capsys.readouterr().out
    assert "ui.perfetto.dev" in printed and "[wait]" in printed and "median steps" in printed and "barrier" in printed
    folder = case.parent / ".kiln" / "profiles"
    (path,) = folder.glob("transposed-*.trace.json")
    shown = json.loads(path.read_text())["traceEvents"]
    assert {each["name"] for each in shown if each["ph"] == "X"} == {"warp", "[wait]", "barrier"}
    (own,) = folder.glob("transposed-*.kiln.json")
    (trace,) = trace_format.loads(own.read_text())
    assert {event.kind for event in trace.events} == {"run", "range", "wait"}
    assert profile.main(["--read", str(own)]) == 0
    assert "[wait]" in capsys.readouterr().out


PROGRAM = """
import sys
import numpy as np
import cutlass.cute as cute
from cutlass.cute.experimental import iket

@cute.kernel
def kernel(x: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    iket.range_push("work", t)
    x[t] = x[t] + 1.0
    iket.range_pop()

@cute.jit
def main(x: cute.Tensor):
    kernel(x).launch(grid=1, block=64)

for _ in range(2):
    main(np.zeros(64, np.float32))
sys.exit(int(sys.argv[1]))
"""


def test_a_program_is_traced_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "marked.py").write_text(PROGRAM)
    words = ["--target=cpu", "--prof-type=trace", "--trace=ranges"]
    assert profile.main([*words, "--", "python", "marked.py", "0"]) == 0
    printed = capsys.readouterr().out
    assert "the last of 2 launches" in printed and "work" in printed
    (trace,) = trace_format.loads((tmp_path / ".kiln" / "profiles" / "marked.kiln.json").read_text())
    work = [event for event in trace.events if event.name == "work"]
    assert [event.args for event in work] == [{"payload": 0}, {"payload": 32}]
    assert profile.main([*words, "--", "marked.py", "3"]) == 1
    assert "the program ended with status 3" in capsys.readouterr().err
    assert profile.main([*words, "--"]) == 2
    assert "name a program" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        profile.main(["--prof-type=static", "--", "marked.py"])


@pytest.mark.usefixtures("inline")
def test_a_trace_has_what_was_asked_for(case, capsys):
    words = ["--target", "cpu", "--prof-type", "trace", "--trace=all", "--trace-ctas=1,0", "--trace-marks=8"]
    assert profile.main([str(case), *words]) == 0
    (own,) = (case.parent / ".kiln" / "profiles").glob("transposed-*.kiln.json")
    (trace,) = trace_format.loads(own.read_text())
    assert {track.block for track in trace.tracks} <= {0, 1}
    capsys.readouterr()
    assert profile.main([str(case), "--target", "cpu", "--prof-type", "trace", "--trace-ctas=3-1"]) == 2
    assert "'3-1' is no number and no range such as 0-7" in capsys.readouterr().err
    assert kernel_ranges.blocks_of("0-2, 131,1") == (0, 1, 2, 131)


@pytest.mark.usefixtures("inline")
def test_a_kernel_without_ranges_has_no_trace_of_them(case, capsys):
    assert profile.main([str(case), "--target", "cpu", "--prof-type", "trace", "--trace=ranges"]) == 2
    assert "has no range in its kernels" in capsys.readouterr().err
