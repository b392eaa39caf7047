"""Measuring on a GPU: two ways agree, the L2 cache is emptied, equal programs are the same, others and the power limit are seen."""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import time

import pytest

from kiln import measure
from kiln.hardware import driver, nvml
from kiln.measure import timers
from kiln.measure.measurement import QUICK, Effort, Stopping
from kiln.measure.timers import GpuTimer
from kiln.workbench.bench import cli as bench
from kiln.workbench.core.records import Journal
from kiln.workbench.profile import ncu as profile_ncu

torch = pytest.importorskip("torch")

SHORT = Effort(Stopping(0.02, 20, 0.0, 0.5), warmup=0.05, window=0.02, batch=0.001)


@pytest.fixture
def timer():
    return GpuTimer.of_current_device()


def copies(timer, size):
    """A copy on the current stream."""
    source, target = (
        torch.zeros(max(size, timer.kernels.BLOCK_BYTES), dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    if size < timer.kernels.BLOCK_BYTES:
        return lambda: target[:size].copy_(source[:size])
    return lambda: timer.kernels.copy(source.data_ptr(), target.data_ptr(), size, timer.stream())


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 1 << 24, 1 << 28, 1 << 32])
def test_g1_graphs_and_streams_agree(timer, size):
    call = copies(timer, size)
    by_graph = timer.prepare(call, 8, "cold")
    by_stream = timers._StreamBatch(timer, call, 8, timer.flush, "cold", False)
    assert (by_graph.protocol, by_stream.protocol) == ("graph-flush/1", "stream-flush/1")
    times: list[list[float]] = [[], []]
    for _ in range(5):
        for own, batch in zip(times, (by_graph, by_stream), strict=True):
            own += batch.run()
    graph, stream = map(statistics.median, times)
    print(f"\n{size} bytes: graph {graph:.2f} us, stream {stream:.2f} us, floor {timer.floor('cold'):.2f}")
    assert not by_graph.flags and not by_stream.flags
    if graph > 5 * timer.floor("cold"):
        assert abs(graph - stream) <= max(0.03 * graph, 0.5)
    else:
        assert abs(graph - stream) <= max(0.5 * graph, 2.0)


def test_g1_what_fits_the_cache_is_faster_warm(timer):
    call = copies(timer, 16 << 20)
    cold, warm = (measure.measure(call, l2=l2, effort=QUICK) for l2 in ("cold", "warm"))
    print(f"\ncold {cold}\nwarm {warm}")
    assert warm.us < 0.85 * cold.us
    assert "flush-failed" not in cold.flags and cold.protocol == "graph-flush/1" and warm.protocol == "graph-warm/1"


_COPY = """
from kiln.hardware import driver
from kiln.measure.timers import GpuTimer
timer, size = GpuTimer.of_current_device(), 1 << 28
a, b = driver.Memory(size), driver.Memory(size)
for _ in range(5):
    timer.kernels.copy(a.address, b.address, size, 0)
driver.synchronize_device()
"""


def test_g1_ncu_says_the_same(timer):
    """But for what events cost, which is no more than the floor."""
    try:
        ncu = profile_ncu.find("ncu")
    except profile_ncu.CannotProfile as reason:
        pytest.skip(str(reason))
    options = ["--csv", "--metrics", "gpu__time_duration.sum", "--cache-control", "all", "--clock-control", "none"]
    words = [ncu, *options, "--kernel-name", "regex:copy_pieces", sys.executable, "-c", _COPY]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60, check=False)
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    if not rows:
        pytest.skip(f"ncu measured nothing: {(done.stdout + done.stderr).strip()[-200:]}")
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0}[rows[0]["Metric Unit"]]
    by_ncu = statistics.median(float(row["Metric Value"].replace(",", "")) * scale for row in rows)
    own = measure.measure(copies(timer, 1 << 28), effort=QUICK)
    print(f"\n256 MiB: ncu {by_ncu:.2f} us, {own}")
    assert -0.03 * by_ncu <= own.us - by_ncu <= 0.03 * by_ncu + timer.floor("cold")


_GEMM = """
import torch
from kiln import kernels

def kernel_fn(a, b):
    return kernels.gemm(a, b)

def reference_fn(a, b):
    return a @ b

def get_inputs(n=2048):
    return [torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2)]

def flops_bytes(n):
    return 2 * n**3, 6 * n**2
"""


def test_bench_of_a_product_in_workers(tmp_path, capsys):
    (tmp_path / "product.py").write_text(_GEMM)
    assert bench.main([str(tmp_path / "product.py"), "--no-verify", "--quick", "--quiet"]) == 0
    out = capsys.readouterr().out
    print(f"\n{out}")
    assert "roofline" in out
    (record,) = Journal(tmp_path / ".kiln").read()[0]
    assert record.status == "ok" and record.protocol == "graph-flush/1" and record.clock["sm_mhz"]
    assert "too-fast" not in record.flags and record.more["against"]["reference"]["status"] == "ok"


def test_bursts_and_sustained_runs():
    a, b, out = matrices(4096)
    found = measure.paces({"mm": lambda: torch.mm(a, b, out=out)}, sustained=measure.sustained(0.6))["mm"]
    print(f"\nburst {found.burst}\nsustained {found.sustained}")
    assert found.burst.us <= 1.05 * found.sustained.us and found.sustained.steady


def test_calls_on_the_default_stream_are_timed_there(timer):
    """A graph cannot hold what goes to the default stream."""
    size = 64 << 20
    source, target = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    batch = timer.prepare(lambda: timer.kernels.copy(source.data_ptr(), target.data_ptr(), size, 0), 8, "cold")
    assert batch.protocol == "stream-flush/1" and isinstance(batch.why, timers.NotCaptured)
    batch.run()
    wanted = statistics.median(timer.prepare(copies(timer, size), 8, "cold").run())
    assert statistics.median(batch.run()) == pytest.approx(wanted, rel=0.1)
    assert "host-bound" not in batch.flags


def test_calls_that_are_captured_in_part_are_timed_whole(timer):
    """One launch on the current stream, one on the default stream: a graph would have half of the work."""
    size = 64 << 20
    source, target = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))

    def both():
        for stream in (timer.stream(), 0):
            timer.kernels.copy(source.data_ptr(), target.data_ptr(), size, stream)

    batch = timer.prepare(both, 8, "cold")
    assert batch.protocol == "stream-flush/1"
    batch.run()
    one = statistics.median(timer.prepare(copies(timer, size), 8, "cold").run())
    assert statistics.median(batch.run()) > 1.5 * one


def test_calls_that_wait_are_bound_by_the_host(timer):
    x = torch.ones(1 << 20, device="cuda")
    batch = timer.prepare(lambda: x.sum().item(), 4, "cold")
    batch.run()
    batch.run()
    assert batch.protocol == "stream-flush/1" and "host-bound" in batch.flags


def matrices(n, dtype=torch.float16):
    return [torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(3)]


def test_g3_equal_programs_are_the_same_and_more_work_is_slower():
    """A against A, and against two percent more."""
    size = 1 << 26
    x, y = torch.randn(size + size // 50, device="cuda"), torch.empty(size + size // 50, device="cuda")

    def work(n):
        return lambda: torch.mul(x[:n], 2.0, out=y[:n])

    trials = 50 if os.environ.get("KILN_LONG_TESTS") else 20
    said = [
        measure.compare({"a": work(size), "b": work(size)}, effort=SHORT, seed=seed).verdict for seed in range(trials)
    ]
    more = [
        measure.compare({"a": work(size), "b": work(size + size // 50)}, effort=SHORT, seed=seed).verdict
        for seed in range(trials)
    ]
    print(f"\nsame {said.count('same')}, slower {more.count('slower')} of {trials}")
    assert said.count("same") >= 0.95 * trials and more.count("slower") >= 0.95 * trials


_OTHER = """
import torch
x = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
print("ready", flush=True)
while True:
    for _ in range(50): x @ x
    torch.cuda.synchronize()
"""


def test_g5_another_process_is_seen(timer):
    reading = timer.watch()._read
    if reading is None or not reading().processes:
        pytest.skip("NVML does not tell processes here")
    other = subprocess.Popen([sys.executable, "-c", _OTHER], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        a, b, out = matrices(1024)
        found = measure.measure(lambda: torch.mm(a, b, out=out), effort=QUICK)
    finally:
        other.kill()
        other.wait()
    assert "shared-gpu" in found.flags and not found.trusted


def test_g5_the_power_limit_is_seen(timer):
    gpu = nvml.Gpu(driver.uuid(timer.number)) if nvml.library() else None
    if gpu is None or not gpu.power_limit():
        pytest.skip("NVML does not tell the power limit here")
    a, b, out = matrices(8192)
    effort = Effort(Stopping(1.0, 20, 0.5, 1.0), warmup=1.0, window=1.0, batch=0.05)
    before = gpu.joules()
    found = measure.measure(lambda: torch.mm(a, b, out=out), l2="warm", steady=True, effort=effort)
    print(f"\n{found}, limit {gpu.power_limit():.0f} W")
    assert found.watts and found.clock_mhz
    assert before is None or (gpu.joules() or 0.0) - before > 100
    if found.clock_mhz < 0.9 * (gpu.highest_clock() or 0):
        assert {"power-cap", "thermal"}.intersection(found.flags)


def test_g7_work_on_another_stream_is_seen(timer):
    a, b, out = matrices(4096)
    other = torch.cuda.Stream()
    small = torch.zeros(1024, device="cuda")

    def elsewhere():
        small.add_(1)
        with torch.cuda.stream(other):
            torch.mm(a, b, out=out)

    assert "other-streams" in measure.measure(elsewhere, effort=QUICK).flags
    torch.cuda.synchronize()
    assert "other-streams" not in measure.measure(lambda: torch.mm(a, b, out=out), effort=QUICK).flags


def test_g7_others_events_are_not_what_is_timed_by(monkeypatch):
    a, b, out = matrices(2048)
    before = measure.measure(lambda: torch.mm(a, b, out=out), effort=QUICK).us
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 0.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    assert measure.measure(lambda: torch.mm(a, b, out=out), effort=QUICK).us == pytest.approx(before, rel=0.3)


def test_a_stream_is_held_back(timer):
    stream = timer.stream()
    driver.synchronize_device()
    timer.kernels.spin(1.0, stream)
    driver.synchronize_device()
    begun = time.perf_counter()
    timer.kernels.spin(5000.0, stream)
    driver.synchronize_device()
    assert 0.005 <= time.perf_counter() - begun < 0.05
