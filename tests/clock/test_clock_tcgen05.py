"""Blackwell in the clock: tcgen05, tensor memory and cluster launch control, with the published units of a B200."""

from __future__ import annotations

import dataclasses
import math

import pytest

from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.clock import sm, units, walk
from kiln.clock.costs import Accesses, Cost, Costs, Memory
from kiln.clock.rates import Rates
from kiln.clock.recording import Event, Warp
from kiln.hardware import devices, sass
from kiln.targets.cpu.event_recorder import EventSite, Kind

EVERY = 0xFFFFFFFF
PAIR_256X256 = 16 << 24 | 32 << 17
"""M and N of an instruction descriptor."""


def _rates(of: units.Units | None = None) -> Rates:
    model = devices.model_of("B200")
    assert model is not None
    return Rates.measured(of or units.of("B200"), model, 1965.0, model.sm_count)


def _event(kind: Kind, detail: str, *values: int, mask: int = 1) -> Event:
    return Event(
        EventSite(kind, "k", f"cute_nvgpu.{detail}", detail, None, ()), mask, values + (0,) * (9 - len(values))
    )


def _steps(*events: Event) -> list[tuple[Cost, Event | None]]:
    return [(Cost(1.0, {}), event) for event in events]


def test_instructions_take_what_was_published():
    rates = _rates()
    assert math.isclose(rates.tcgen05(2, 256, 256, False).interval, 128.75, rel_tol=1e-3)
    assert math.isclose(rates.tcgen05(1, 128, 128, False).interval, 64.62, rel_tol=1e-3)
    assert rates.tcgen05(1, 128, 64, True).interval < rates.tcgen05(1, 128, 64, False).interval  # A is not read
    between = rates.tcgen05(2, 256, 192, False).interval
    assert rates.tcgen05(2, 256, 128, False).interval < between < rates.tcgen05(2, 256, 256, False).interval
    halved = dataclasses.replace(rates, umma_rows=rates.umma_at_twice()).tcgen05(2, 256, 256, False)
    assert math.isclose(halved.interval, 128.75 / 2, rel_tol=1e-3)
    assert rates.mma_rows == {} and rates.mma_stolen == 0.0


def test_a_gpu_without_tensor_memory_says_so():
    model = devices.model_of("H200")
    assert model is not None
    with pytest.raises(DSLRuntimeError, match="nothing is known of tcgen05"):
        Rates.measured(units.of("H200"), model, 1305.0, 132).tcgen05(1, 128, 128, False)


def test_units_that_nobody_measured_have_bounds():
    of = units.of("B200")
    assert not of.is_measured and units.of("H200").is_measured
    best, worst = _rates(of.at_best()), _rates(of.at_worst())
    assert best.l2_bytes > worst.l2_bytes and best.tmem_bytes > worst.tmem_bytes
    assert best.request < _rates().request < worst.request
    assert all(one.source for one in of.quantities.values())


def test_a_pair_multiplies_on_both_sms_and_its_commit_arrives_at_both():
    rates = _rates()
    starts = {0: 1000, 1: 9000}
    multiplies = [_event(Kind.TENSOR, "mma", 0, PAIR_256X256, 0, 2)] * 8
    leader = _steps(
        _event(Kind.MBARRIER_INIT, "mbarrier_init", starts[0], 1),
        *multiplies,
        _event(Kind.TENSOR, "commit", starts[0], 3),
        _event(Kind.WAIT, "mbarrier_wait", starts[0], 0, mask=EVERY),
    )
    peer = _steps(
        _event(Kind.MBARRIER_INIT, "mbarrier_init", starts[1], 1),
        _event(Kind.WAIT, "mbarrier_wait", starts[1], 0, mask=EVERY),
    )
    simulated = sm.Sm(rates, Memory())
    simulated.starts = starts
    simulated.run([(0, Warp(0, 0, []), leader), (1, Warp(1, 0, []), peer)], 1, 1)
    one = rates.tcgen05(2, 256, 256, False)
    expected = 7 * one.interval + one.latency + rates.wake
    assert all(math.isclose(state.done, expected, abs_tol=5.0) for state in simulated.states)
    assert {rank: engine.busy for rank, engine in simulated.umma.items()} == {0: 8 * one.interval, 1: 8 * one.interval}
    works = [each for each in simulated.slices if each.engine == "tcgen05.mma"]
    assert len(works) == 8 and simulated.waited


def test_a_pairs_copies_land_at_the_mbarrier_of_its_first_cta():
    rates = _rates()
    starts = {0: 1000, 1: 9000}
    begin = _event(Kind.MBARRIER_INIT, "mbarrier_init", starts[0], 1), _event(Kind.ARRIVE, "arrive", starts[0], 1, 8192)
    pair = EVERY | 1 << 32
    load = [_event(Kind.BOX, "load", 5, 0, starts[0], pair, 4096)]
    wait = _event(Kind.WAIT, "mbarrier_wait", starts[0], 0, mask=EVERY)
    simulated = sm.Sm(rates, Memory())
    simulated.starts = starts
    first = Warp(0, 0, []), Warp(0, 1, [])
    simulated.run(
        [
            (0, first[0], _steps(*begin, *load)),
            (0, first[1], [(Cost(9.0, {}), wait)]),
            (1, Warp(1, 0, []), _steps(*load)),
        ],
        1,
        1,
    )
    assert max(state.done for state in simulated.states) > rates.tma_latency


def test_an_answer_of_launch_control_takes_its_time():
    rates = _rates()
    events = _steps(
        _event(Kind.MBARRIER_INIT, "mbarrier_init", 1000, 1),
        _event(Kind.ARRIVE, "arrive", 1000, 1, 16),
        _event(Kind.REQUEST, "clc_try_cancel", 64, 1000, 0),
        _event(Kind.WAIT, "mbarrier_wait", 1000, 0, mask=EVERY),
    )
    simulated = sm.Sm(rates, Memory())
    simulated.run([(0, Warp(0, 0, []), events)], 1, 1)
    assert simulated.states[0].done > rates.request


def test_an_allocation_has_mbarriers_of_its_own():
    """ptxas makes a loop of it, whose waits no event stands for."""
    alloc, own = ("k.py", 3), ("k.py", 7)
    names = (
        ("UTCATOMSWS.FIND_AND_SET.ALIGN", alloc),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", alloc),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", own),
        ("UTCHMMA.2CTA", own),
        ("UTCBAR.2CTA.MULTICAST", own),
        ("UGETNEXTWORKID.BROADCAST", own),
        ("EXIT", own),
    )
    code = sass.Code([sass.Instruction(16 * n, name, "", place=place) for n, (name, place) in enumerate(names)], {})
    assert walk.Map(code).anchors == [None, None, "wait", "tcgen05 mma", "tcgen05 commit", "request", None]


def test_loads_from_tensor_memory_share_its_port():
    code = sass.Code([sass.Instruction(0, "LDTM.x32", ""), sass.Instruction(16, "EXIT", "")], {})
    rates = _rates()
    cost = Costs(code, rates, Accesses([]), Memory()).of(walk.Segment((0, 1)), True)
    assert math.isclose(cost.pipes["tmem"], sm.SUB_CORES * 4096 / rates.tmem_bytes)
