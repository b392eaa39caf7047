"""Ways of warps through machine code, and the SM that runs them."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from example_running import load
from nvidia_testing import needs_nvdisasm

from kiln import cute, kernels
from kiln.base_dsl.diagnostics import Span
from kiln.clock import chip, prediction, sm, units, walk
from kiln.clock.costs import Accesses, Cost, Costs, Memory
from kiln.clock.rates import Rates
from kiln.clock.recording import Event, Launch, Recording, Warp, WarpAccess
from kiln.hardware import devices, sass
from kiln.hardware.warp_accesses import GlobalAccess
from kiln.targets.cpu.event_recorder import EventSite, Kind
from kiln.targets.nvidia import codegen
from kiln.testing import dry_run

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


def test_copies_of_all_lanes_are_one_event():
    gate, up = (np.zeros((8, 2048), np.float16) for _ in range(2))
    with Recording(2) as recording:
        kernels.swiglu(gate, up)
    with dry_run("sm_90a") as launches:
        kernels.swiglu(gate, up)
    (launch,) = recording.launches
    copies = [event for event in launch.warps[0].events if event.site.kind is Kind.COPY]
    assert copies and all(event.mask == 0xFFFFFFFF for event in copies)
    (code,) = sass.kernels(codegen.disassemble(launches[0].artifacts["cubin"], "-g -c -hex")).values()
    assert all(walk.Map(code).walk(warp.events).is_whole for warp in launch.warps)
    moved = chip.traffic(launch, recording.accesses, 8)
    assert moved.loaded == moved.loaded_once == 2 * 8 * 2048 * 2


def test_a_way_that_the_code_does_not_have_is_lost():
    launch, code, _ = _traced("step_4_roles")
    warp = max(launch.warps, key=lambda warp: sum(event.site.kind is Kind.WGMMA for event in warp.events))
    events = [event for event in warp.events if event.site.kind is not Kind.WGMMA_WAITED]
    way = walk.Map(code).walk(events)
    assert not way.is_whole and way.matched < len(way.events)


def _rates(**changes: float) -> Rates:
    model = devices.model_of("H200")
    assert model is not None
    return dataclasses.replace(Rates.measured(units.of("H200"), model, 1305.0, model.sm_count), **changes)


def _simulated(name: str, count: int = 1, at_once: int = 1, resident: int = 1, **changes: float) -> chip.Simulated:
    launch, code, accesses = _traced(name)
    rates = _rates(**changes)
    walked = chip.walked(launch, code, rates, Accesses(accesses), Memory(), len(launch.blocks))
    return chip.launch_cycles(walked, rates, Memory(), count, at_once, resident, balanced=False)


def test_a_pipeline_is_faster_than_waiting_for_each_copy():
    one, several = (_simulated(name).cycles for name in ("step_2_gemm", "step_3_pipeline"))
    assert one > 1.3 * several
    # with one stage, a slower copy costs its whole time in every step; with several, less
    slow = _rates().tma_latency + 1300
    later = _simulated("step_2_gemm", tma_latency=slow).cycles - one
    assert later > 4 * 1300 * 0.9
    assert later > 2 * (_simulated("step_3_pipeline", tma_latency=slow).cycles - several)


def test_tensor_cores_bound_what_multiplies_alone():
    launch, _, _ = _traced("step_4_roles")
    ran = _simulated("step_4_roles", tma_latency=1.0, tma_port=1e6, l2_bytes=1e6, mma_lost=0.0)
    mmas = [event for warp in launch.warps for event in warp.events if event.site.kind is Kind.WGMMA]
    on_a_core = len(mmas) / sm.SUB_CORES * _rates().mma(int(mmas[0].site.detail.split()[0].split("=")[1]))
    busy = sum(core.tensor.busy for core in ran.sm.cores[0]) / sm.SUB_CORES
    assert math.isclose(busy, on_a_core)
    assert on_a_core < ran.cycles


def _run(rates: Rates, *warps: list[tuple[Cost, Event | None]]) -> sm.Sm:
    simulated = sm.Sm(rates, Memory())
    simulated.run([(0, Warp(0, number, []), steps) for number, steps in enumerate(warps)], 1, 1)
    return simulated


def test_no_unit_is_busy_for_longer_than_the_time():
    ran = _run(_rates(), [(Cost(10.0, {}), None)])
    ran.stores[0].serve(0.0, 400.0)  # bytes that are written after the last warp has ended
    ran.ports[0].serve(0.0, 100.0)
    assert prediction._busy(ran) == {"tma store": 1.0, "tma load": 0.25}


def test_an_arrival_at_a_barrier_does_not_wait():
    site = EventSite(Kind.BARRIER, "k", "barrier", "", None, ())
    arrives, waits = (Event(site, 0xFFFFFFFF, (1, 64, mode)) for mode in (0, 1))
    ran = _run(_rates(barrier=25.0), [(Cost(10.0, {}), arrives)], [(Cost(1000.0, {}), waits)])
    assert [state.done for state in ran.states] == [10.0, 1025.0]


def test_a_cluster_barrier_waits_where_it_is_waited_for():
    arrives = Event(EventSite(Kind.BARRIER, "k", "cluster_arrive", "", None, ()), 0xFFFFFFFF, (16, 0, 0))
    waits = Event(EventSite(Kind.PASSED, "k", "cluster_wait", "", None, ()), 0xFFFFFFFF, (1,))
    early = [(Cost(10.0, {}), arrives), (Cost(400.0, {}), waits)]
    late = [(Cost(100.0, {}), arrives), (Cost(1.0, {}), waits)]
    ran = _run(_rates(cluster=150.0), early, late)
    assert [state.done for state in ran.states] == [410.0, 250.0]


def test_arithmetic_takes_time_of_the_tensor_core():
    """As measured: beside an FFMA in each cycle a WGMMA takes three times as long, beside other pipes no longer."""
    wgmma = Event(EventSite(Kind.WGMMA, "k", "wgmma", "n=128", None, ()), 0xFFFFFFFF, (0, 0, 0))
    commits = Event(EventSite(Kind.COMMIT, "k", "commit", "", None, ()), 0xFFFFFFFF, (5,))
    waits = Event(EventSite(Kind.WGMMA_WAITED, "k", "wgmma_wait", "", None, ()), 0xFFFFFFFF, (0,))
    rates = _rates()
    multiplies = [(Cost(1.0, {}), wgmma)] * 10 + [(Cost(1.0, {}), commits), (Cost(1.0, {}), waits)]
    idle: list[tuple[Cost, Event | None]] = [(Cost(1.0, {}), None)]
    ends: dict[str, float] = {}
    for pipe in ("nothing", "fma", "mufu"):
        # warp 4 is on the sub-core of warp 0
        beside: list[tuple[Cost, Event | None]] = [(Cost(10.0, {pipe: 5.0}), None)] * 60
        ends[pipe] = _run(rates, multiplies, idle, idle, idle, beside).states[0].done
    assert math.isclose(ends["nothing"], 640 + rates.mma_latency + 1, rel_tol=0.01)
    assert math.isclose(ends["mufu"], ends["nothing"], rel_tol=0.01)
    assert math.isclose(ends["fma"] - ends["nothing"], 300 * rates.mma_stolen, rel_tol=0.1)


def test_a_warp_alone_has_the_pipes_that_all_sub_cores_share():
    """Four warps on four sub-cores that load from shared memory in every cycle take four times as long as one."""
    loads: list[tuple[Cost, Event | None]] = [(Cost(100.0, {"lsu": 400.0}), None)] * 10
    one = _run(_rates(), loads).states[0].done
    four = max(state.done for state in _run(_rates(), loads, loads, loads, loads).states)
    assert math.isclose(one, 1000.0) and math.isclose(four, 4000.0, rel_tol=0.01)


def test_copies_queue_behind_what_threads_store_to_dram():
    site = EventSite(Kind.COPY, "k", "cp_async", "", None, ())
    copy = Event(site, 0xFFFFFFFF, (16, 0, 0))
    store = (Cost(10.0, {"dram": 4000.0}), None)
    memory = Memory(missed=1.0, late=1.0, different=0.0, written=1.0)
    rates = _rates()
    simulated = sm.Sm(rates, memory)
    simulated.run([(0, Warp(0, 0, []), [store, (Cost(1.0, {}), copy)])], 1, 1)
    alone = 512 / rates.dram_bytes + rates.load_latency + rates.dram_latency
    assert math.isclose(simulated.states[0].copies.done, 10 + 1000 + alone, rel_tol=0.01)


def test_dram_does_not_rest_while_sms_would_ask_for_more():
    ran = _simulated("step_2_gemm")
    late, soon = (dataclasses.replace(ran, cycles=cycles, dram=700.0) for cycles in (1000.0, 650.0))
    assert chip.saturated(late, lambda: soon, 100.0).cycles == 800.0
    assert chip.saturated(late, lambda: late, 100.0) is late
    assert chip.saturated(dataclasses.replace(late, dram=100.0), lambda: soon, 100.0).cycles == 1000.0


def test_boxes_count_as_far_as_they_lie_in_the_tensor():
    box = EventSite(Kind.BOX, "k", "tma_store", "store", None, ())
    events = [Event(box, 1, (5, 0, 0, 0, 4096, 0, 0, 0, 1024))] * 2
    moved = chip.traffic(Launch("k", [Warp(0, 0, events)]), [], 1)
    assert moved.stored == 1024 and moved.clipped == 1024 / 8192
    assert chip.memory_of(chip.Traffic(1e9, 1e9, 1e9, 0.5), 60 << 20, cold=False).written == 0.5


def test_more_ctas_take_longer_and_resident_ones_overlap():
    one = _simulated("step_2_gemm").cycles
    four = _simulated("step_2_gemm", 4).cycles
    beside = _simulated("step_2_gemm", 4, 2, 2).cycles
    many = _simulated("step_2_gemm", 40).cycles
    assert math.isclose(four, 4 * one, rel_tol=0.1) and math.isclose(many, 40 * one, rel_tol=0.1)
    assert one < beside < 0.8 * four


def test_a_long_simulation_is_cut_and_extrapolated(monkeypatch):
    whole = _simulated("step_6_persistent")
    assert whole.extrapolated == 0.0
    monkeypatch.setattr(chip, "MOST_STEPS", sum(len(state.steps) for state in whole.sm.states) // 2)
    cut = _simulated("step_6_persistent")
    assert cut.extrapolated > 0.2 and math.isclose(cut.cycles, whole.cycles, rel_tol=0.25)


def test_a_way_goes_where_memory_was_accessed():
    """A branch round a store is not taken if the store was made, although that way is shorter."""
    lines = ("ISETP", "BRA L", "STG.E", "IADD", "EXIT")
    code = sass.Code([sass.Instruction(16 * n, line.split()[0], "`(.L_x_1)", line == "BRA L") for n, line in enumerate(lines)], {".L_x_1": 4})  # fmt: skip
    assert walk.Map(code).ways(0) == {-1: (0, 1, 4)}
    assert walk.Map(code, lambda one: one.name == "STG.E").ways(0) == {-1: (0, 1, 2, 3, 4)}


def test_loops_without_anchors_count_by_their_accesses():
    place = ("k.py", 3)
    code = sass.Code(
        [
            sass.Instruction(0, "MOV", "R1"),
            sass.Instruction(16, "LDG.E", "R2", place=place),
            sass.Instruction(32, "BRA", "`(.L_x_1)", conditional=True),
            sass.Instruction(48, "EXIT", ""),
        ],
        {".L_x_1": 1},
    )
    span = Span("k.py", 3)
    access = GlobalAccess("k", "ld", 4, span, (), accesses=80, served=320, ideal=320, worst=4, lanes=80 * 32)
    ways = walk.Map(code, lambda one: one.place == place)
    segment = walk.Segment(ways.ways(0)[-1])
    costs = Costs(code, _rates(), Accesses([access]), Memory())
    costs.count_trips([segment] * 4, ways.loops())  # four warps
    assert costs.of(segment, True).pipes["lsu"] == 20 * 4.0 and costs.of(segment, True).pipes["issue"] == 2 + 20 * 2


def test_data_come_from_dram_if_they_do_not_fit():
    small = chip.memory_of(chip.Traffic(8e6, 8e6, 8e6), 60 << 20, cold=False)
    assert (small.missed, small.written) == (0.0, 0.0)
    assert chip.memory_of(chip.Traffic(8e6, 8e6, 8e6), 60 << 20, cold=True).missed == 1.0
    large = chip.memory_of(chip.Traffic(1e9, 1e8, 1e8), 60 << 20, cold=False)
    assert math.isclose(large.missed, 0.1) and large.written == 1.0 and large.late > large.missed
