"""Ways of warps through machine code, and the SM that runs them."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from example_running import load
from nvidia_testing import needs_nvdisasm

from kiln import cute
from kiln.clock import sm, walk
from kiln.clock.recording import Event, Launch, Recording, Warp, WarpAccess
from kiln.hardware import sass
from kiln.targets.cpu.event_recorder import EventSite, Kind
from kiln.targets.nvidia import codegen

pytestmark = needs_nvdisasm
STEPS = ("step_2_gemm", "step_3_pipeline", "step_4_roles", "step_6_persistent")


@functools.cache
def _traced(name: str) -> tuple[Launch, sass.Code, list[WarpAccess]]:
    """The first cluster of a GEMM of 256 x 512 x 512, and its code for sm_90a."""
    a, b, c = (np.zeros(shape, np.float16) for shape in ((256, 512), (512, 512), (256, 512)))
    arguments = (a, b, c, *([1] if name == "step_6_persistent" else []))
    gemm = load(f"hopper/{name}.py").gemm
    with Recording(1) as recording:
        gemm(*arguments)
    compiled = cute.compile(gemm, *arguments, target="nvidia", options="--gpu-arch sm_90a --keep-cubin")
    (code,) = sass.kernels(codegen.disassemble(compiled.__cubin__, "-g -c -hex")).values()
    return recording.launches[0], code, recording.accesses


@pytest.mark.parametrize("name", STEPS)
def test_every_warp_is_found_in_the_machine_code(name):
    launch, code, _ = _traced(name)
    ways = walk.Map(code)
    mmas = 0
    for warp in launch.warps:
        way = ways.walk(warp.events)
        assert way.is_whole, (warp.number, way.matched, len(way.events))
        for event, segment in zip(way.events, way.segments, strict=False):
            assert ways.anchors[segment.instructions[-1]] == walk.anchor_of(event)
        # what is walked is connected: each segment begins where one of the ways from the last anchor does
        for before, after in zip(way.segments, way.segments[1:], strict=False):
            assert after.instructions in ways.ways(before.instructions[-1] + 1).values()
        mmas += sum(event.site.kind is Kind.WGMMA for event in way.events)
    assert mmas >= 4 * 512 // 16


def test_a_way_that_the_code_does_not_have_is_lost():
    launch, code, _ = _traced("step_4_roles")
    warp = max(launch.warps, key=lambda warp: sum(event.site.kind is Kind.WGMMA for event in warp.events))
    events = [event for event in warp.events if event.site.kind is not Kind.WGMMA_WAITED]
    way = walk.Map(code).walk(events)
    assert not way.is_whole and way.matched < len(way.events)


def _cycles(name: str, rates: sm.Rates | None = None) -> float:
    launch, code, accesses = _traced(name)
    return sm.predict(launch, code, accesses, 1, 1, 1, rates or sm.Rates()).cycles


def test_a_pipeline_is_faster_than_waiting_for_each_copy():
    one, several = _cycles("step_2_gemm"), _cycles("step_3_pipeline")
    assert one > 1.5 * several
    # with one stage, a slower copy costs its whole time in every step; with several, less
    slow = sm.Rates(tma_latency=2000.0)
    assert _cycles("step_2_gemm", slow) - one > 4 * 1300 * 0.9
    assert _cycles("step_2_gemm", slow) - one > 2 * (_cycles("step_3_pipeline", slow) - several)


def test_tensor_cores_bound_what_multiplies_alone():
    launch, code, accesses = _traced("step_4_roles")
    rates = sm.Rates(tma_latency=1.0, tma_issue=1.0, tma_bytes=1e6)
    prediction = sm.predict(launch, code, accesses, 1, 1, 1, rates)
    mmas = [event for warp in launch.warps for event in warp.events if event.site.kind is Kind.WGMMA]
    on_a_core = len(mmas) / sm.SUB_CORES * rates.mma(int(mmas[0].site.detail.split()[0].split("=")[1]))
    busy = sum(engine.busy for engine in prediction.sm.tensor[0]) / sm.SUB_CORES
    assert math.isclose(busy, on_a_core)
    assert on_a_core < prediction.cycles


def test_an_arrival_at_a_barrier_does_not_wait():
    site = EventSite(Kind.BARRIER, "k", "barrier", "", None, ())
    arrives, waits = (Event(site, 0xFFFFFFFF, (1, 64, mode)) for mode in (0, 1))
    warps = [(0, Warp(0, 0, [arrives]), [(sm.Cost(10.0, {}), arrives)])]
    warps.append((0, Warp(0, 1, [waits]), [(sm.Cost(1000.0, {}), waits)]))
    simulated = sm.Sm(sm.Rates(start=0.0, barrier=25.0))
    assert simulated.run(warps, 1, 1) == 1025.0
    assert [state.done for state in simulated.states] == [10.0, 1025.0]


def test_more_ctas_take_longer_and_resident_ones_overlap():
    launch, code, accesses = _traced("step_2_gemm")
    predicted = functools.partial(sm.predict, launch, code, accesses, rates=sm.Rates())
    one = predicted(clusters=1, at_once=1, resident=1).cycles
    four = predicted(clusters=4, at_once=1, resident=1).cycles
    beside = predicted(clusters=4, at_once=2, resident=2).cycles
    many = predicted(clusters=40, at_once=1, resident=1).cycles
    assert math.isclose(four, 4 * one, rel_tol=0.05) and math.isclose(many, 40 * one, rel_tol=0.05)
    assert one < beside < 0.8 * four
