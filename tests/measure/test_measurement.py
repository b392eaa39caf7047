"""Measurements and comparisons with a made-up clock: when they stop, what they flag, what makes them invalid."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kiln import measure
from kiln.base_dsl import cache
from kiln.hardware import nvml
from kiln.measure import clocks, timers
from kiln.measure.measurement import FLAGS, UNTRUSTED, Effort, Stopping


class Clock:
    """Time passes by samples and by sleeping. `samples` gives the microseconds of calls of a function at a time."""

    def __init__(self, samples, readings=(), floor=1.0, compiles_at=None) -> None:
        self.time, self.slept, self.ran = 0.0, 0.0, []
        self._samples, self._readings, self._floor, self._compiles_at = samples, readings, floor, compiles_at

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds
        self.slept += seconds

    def prepare(self, call, calls, l2):
        return Calls(self, call, calls)

    def watch(self):
        return Seen(self._readings)

    def compilations(self):
        return int(self._compiles_at is not None and self.time > self._compiles_at)

    def floor(self, l2):
        return self._floor

    def flags(self, l2):
        return []


class Calls:
    protocol = "made-up"

    def __init__(self, clock, call, calls) -> None:
        self.clock, self.call, self.calls, self.flags = clock, call, calls, set()

    def run(self, look=lambda: None):
        look()
        found = [float(x) for x in self.clock._samples(self.call, self.clock.time, self.calls)]
        self.clock.time += sum(found) * 1e-6
        self.clock.ran.append((self.call, len(found)))
        return found


class Seen(clocks.Watch):
    """Readings that were taken before."""

    def __init__(self, readings) -> None:
        super().__init__(None)
        self._given = list(readings)

    def clocks(self):
        return clocks.summary(self._given)


def reading(mhz=1980, reasons=0, processes=1, watts=500.0):
    return nvml.Reading(mhz, 3201, watts, 50, reasons, processes)


def steady(us, noise=0.002, seed=0):
    random = np.random.default_rng(seed)
    return lambda call, time, calls: random.normal(us, noise * us, calls)


def call():
    pass


def test_a_steady_program_is_measured_until_its_interval_is_narrow():
    clock = Clock(steady(100.0), [reading()] * 9)
    found = measure.measure(call, clock=clock)
    assert found.us == pytest.approx(100, rel=0.002) and found.low <= found.us <= found.high
    assert (found.high - found.low) / 2 / found.us <= 0.005
    assert found.flags == [] and found.trusted and found.status == "ok" and found.n >= 20
    assert found.clock_mhz == 1980 and found.watts == 500
    assert 0.1 <= clock.time < 1.0, "no longer than it takes"
    assert clock.slept == pytest.approx(clock.time / 2, rel=0.1), "idle as long as it works"
    assert clock.ran[-1] == (call, 50), "5 ms of calls"
    assert "100" in str(found) and "made-up" in str(found)
    assert measure.Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_steady_does_not_idle():
    clock = Clock(steady(100.0))
    assert measure.measure(call, steady=True, clock=clock).steady and clock.slept == 0


@pytest.mark.parametrize(
    ("samples", "readings", "flags"),
    [
        (steady(4.0), [reading()], {"near-floor"}),
        (lambda call, time, calls: 100 * np.exp(np.random.default_rng(int(time * 1e6)).normal(0, 1, calls)), [reading()], {"noisy"}),
        (lambda call, time, calls: ([100.0, 120.0] * calls)[:calls], [reading()], {"bimodal", "noisy"}),
        (lambda call, time, calls: [100 * (1 + 0.2 * time)] * calls, [reading()], {"drift", "noisy"}),
        (steady(100.0), [reading(), reading(reasons=0x4)], {"power-cap"}),
        (steady(100.0), [reading(), reading(reasons=0x20)], {"thermal"}),
        (steady(100.0), [reading(1980)] * 5 + [reading(1700)] * 5, {"clock-drift"}),
        (steady(100.0), [reading(processes=2)], {"shared-gpu"}),
        (steady(100.0), [], {"clock-unknown"}),
    ],
)  # fmt: skip
def test_what_makes_a_number_doubtful_is_a_flag(samples, readings, flags):
    effort = Effort(Stopping(0.005, 20, 0.1, 0.5), warmup=0.0)
    found = measure.measure(call, effort=effort, clock=Clock(samples, readings))
    assert set(found.flags) == flags and flags <= set(FLAGS)
    assert found.trusted is not bool(flags & UNTRUSTED)


def test_a_sustained_run_may_reach_the_power_limit():
    clock = Clock(steady(100.0), [reading(reasons=0x4)])
    assert measure.measure(call, steady=True, clock=clock).trusted


def test_the_page_explains_every_flag():
    page = (Path(__file__).parents[2] / "docs" / "explain" / "measuring.md").read_text()
    assert [flag for flag in FLAGS if f"| `{flag}` | {FLAGS[flag]}" not in page] == []


def test_faster_than_the_hardware_is_a_flag():
    assert measure.measure(call, at_least_us=90, clock=Clock(steady(100.0), [reading()])).flags == []
    assert measure.measure(call, at_least_us=110, clock=Clock(steady(100.0), [reading()])).flags == ["too-fast"]


def test_warm_up_ends_when_two_windows_agree():
    """The clock falls for half a second."""
    clock = Clock(lambda call, time, calls: [100.0 if time > 0.5 else 80.0 + 40 * time] * calls, [reading()])
    assert measure.measure(call, clock=clock).us == 100.0
    never = Clock(lambda call, time, calls: [100.0 * (1 + time)] * calls, [reading()])
    measure.measure(call, effort=Effort(Stopping(at_most=0.2)), clock=never)
    assert 2.0 <= never.time < 2.6, "two seconds at most"


def test_a_compilation_while_it_is_timed_makes_a_number_invalid():
    found = measure.measure(call, clock=Clock(steady(100.0), [reading()], compiles_at=0.15))
    assert found.status == "error" and not found.trusted and "1 compilations while it was timed" in str(found)
    assert measure.measure(call, clock=Clock(steady(100.0), [reading()], compiles_at=0.0)).status == "ok", "before"


def test_compilations_are_counted(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    clock = timers.CpuTimer()
    before = clock.compilations()
    target: Any = types.SimpleNamespace(compile=lambda *_: "code", serialize=lambda _: None)
    assert cache.compile_module(target, None, "entry", None) == "code"  # type: ignore[arg-type]
    assert clock.compilations() == before + 1


def test_an_unknown_state_of_the_cache_is_refused():
    with pytest.raises(ValueError, match="'hot': it is one of cold, warm, rotate"):
        measure.measure(call, l2="hot", clock=Clock(steady(1.0)))


# --- comparisons -----------------------------------------------------------------------------------------------------

A, B, C = (lambda: 1), (lambda: 2), (lambda: 3)


def of_two(ratio, noise=0.01, seed=0):
    """Both become slower and faster together from round to round, by a tenth."""
    random = np.random.default_rng(seed)
    return lambda call, time, calls: (
        random.normal(100, noise * 100, calls) * (1 + 0.1 * np.sin(7 * time)) * (ratio if call is B else 1)
    )


EFFORT = Effort(Stopping(at_most=3.0), warmup=0.0, batch=0.001)


def test_ratios_are_of_the_same_round():
    found = measure.compare({"a": A, "b": B}, effort=EFFORT, clock=Clock(of_two(1.03)))
    assert found.verdict == "slower" and found.ratio == pytest.approx(1.03, abs=0.01) and found.low > 1
    assert "noisy" in found.measurements["a"].flags, "each by itself says little"
    assert measure.compare({"b": B, "a": A}, effort=EFFORT, clock=Clock(of_two(1.03))).verdict == "faster"
    assert "slower" in str(found) and "1.03" in str(found)


def test_equal_programs_are_the_same():
    said = [
        measure.compare({"a": A, "b": B}, effort=EFFORT, clock=Clock(of_two(1.0, seed=i))).verdict for i in range(40)
    ]
    assert said.count("same") >= 38


def test_rounds_are_in_the_order_of_the_seed():
    def order(seed):
        clock = Clock(of_two(2.0))
        measure.compare({"a": A, "b": B, "c": C}, rounds=6, seed=seed, effort=EFFORT, clock=clock)
        return [call for call, _ in clock.ran]

    first = order(0)
    assert order(0) == first != order(1)
    rounds = first[-18:]
    assert all(set(rounds[at : at + 3]) == {A, B, C} for at in range(0, 18, 3))


def test_several_have_a_verdict_each_and_one_has_none():
    found = measure.compare({"a": A, "b": B, "c": C}, effort=EFFORT, clock=Clock(of_two(2.0)))
    assert found.verdicts == {"b": "slower", "c": "same"}
    alone = measure.compare({"a": A}, effort=EFFORT, clock=Clock(of_two(2.0)))
    assert alone.verdicts == {}
    with pytest.raises(ValueError, match="alone"):
        alone.ratio  # noqa: B018
    with pytest.raises(ValueError, match="nothing to compare"):
        measure.compare({})


def test_bursts_and_sustained_runs():
    """After 10 ms without a pause calls take longer, until there is one."""
    clock = Clock(lambda call, time, calls: [])
    last = {"end": 0.0, "busy": 0.0}

    def samples(call, time, calls):
        last["busy"] = 0.0 if time > last["end"] + 0.1 else last["busy"]
        slow = last["busy"] > 0.01
        last["busy"] += calls * 1e-4
        last["end"] = time + calls * (120e-6 if slow else 100e-6)
        return [120.0 if slow else 100.0] * calls

    clock._samples = samples
    found = measure.paces({"a": A}, clock=clock)["a"]
    assert (found.burst.us, found.sustained.us) == (100.0, 120.0)
    assert found.burst.n == 15 and found.sustained.n * 120e-6 == pytest.approx(1.0, abs=0.1) and found.sustained.steady


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_readings_are_taken_while_the_gpu_works_and_not_too_often():
    given = iter([reading(1980), reading(1900), reading(1800)])
    times = iter([0.0, 0.0, 0.01, 0.02, 0.02, 0.03, 0.05, 0.05])
    watch = clocks.Watch(lambda: next(given), lambda: next(times))
    for _ in range(5):
        watch.look()
    assert [one.sm_mhz for one in watch._readings] == [1980, 1900, 1800] and watch.clocks().sm_mhz == 1900
    watch.restart()
    assert watch.clocks() is clocks.UNKNOWN and clocks.UNKNOWN.flags == ("clock-unknown",)
    clocks.Watch(None).look()


def test_without_nvml_the_clock_is_unknown(monkeypatch):
    monkeypatch.setattr(nvml, "library", lambda: None)
    monkeypatch.setattr(clocks.driver, "uuid", lambda device: "GPU-0")
    assert clocks.reader(0) is None
    with pytest.raises(nvml.NvmlError, match="not on this machine"):
        nvml.Gpu("GPU-0")


class Pynvml:
    """As much of nvidia-ml-py as is used, of a GPU that tells its clocks and refuses the rest."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        value = 4

        def __str__(self):
            return "Insufficient Permissions"

    def __getattr__(self, name):
        def refuse(*_):
            raise self.NVMLError

        return refuse

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {"GPU-0": {1: 1980, 2: 3201}}[handle][kind]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 4

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return ["this one"]


def test_readings_have_what_the_gpu_tells(monkeypatch):
    monkeypatch.setattr(nvml, "library", Pynvml)
    gpu = nvml.Gpu("GPU-0")
    assert gpu.reading() == nvml.Reading(1980, 3201, None, None, nvml.POWER & 4, 1)
    assert gpu.joules() is gpu.base_clock() is nvml.driver_version() is None
    with pytest.raises(nvml.NvmlError, match="nvmlDeviceSetGpuLockedClocks: Insufficient Permissions") as refused:
        gpu.lock(1500)
    assert refused.value.permission


def test_without_its_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvml, "library", lambda: None)
    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(nvml.NvmlError, match="pip install nvidia-ml-py"):
        nvml.Gpu("GPU-0")


def test_a_child_gives_the_clock_free_when_its_holder_is_killed(tmp_path):
    """The holder is killed while it holds the clock; the child writes instead of asking NVML."""
    program = f"""
import os, signal, types
from kiln.measure import clocks
clocks.WATCHDOG = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').write('free')"
gpu = types.SimpleNamespace(uuid={str(tmp_path / "free")!r}, lock=lambda mhz: None, base_clock=lambda: 1500)
with clocks.locked(gpu) as mhz:
    assert mhz == 1500
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    for _ in range(100):
        if (tmp_path / "free").exists():
            break
        time.sleep(0.05)
    assert (tmp_path / "free").read_text() == "free"


class Held:
    """A GPU whose clock is held."""

    uuid = "GPU-0"

    def __init__(self) -> None:
        self.at = None

    def base_clock(self):
        return None

    def highest_clock(self):
        return 1980

    def lock(self, mhz):
        self.at = mhz


@pytest.mark.parametrize(("wanted", "mhz"), [("base", 1980), ("max", 1980), ("1200", 1200)])
def test_the_clock_is_held(wanted, mhz):
    gpu = Held()
    assert clocks.lock(gpu, wanted) == gpu.at == mhz  # type: ignore[arg-type]
