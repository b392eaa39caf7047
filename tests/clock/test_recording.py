"""What the warps of kernels did, as it is recorded on the CPU target."""

from __future__ import annotations

import numpy as np

from kiln import Int32, Int64, cute
from kiln.clock.chip import is_dynamic
from kiln.clock.recording import Launch, Recording
from kiln.cute import arch
from kiln.targets.cpu.event_recorder import Kind


@cute.kernel
def _roles(x: cute.Tensor, steps: Int32):
    """A warp whose elected lane arrives, and a warp that waits, in turn; both meet at the end."""
    thread, block = arch.thread_idx()[0], arch.block_idx()[0]
    bars = arch.alloc_smem(Int64, 2, alignment=16)
    if thread == 0:
        arch.mbarrier_init(bars, 1)
        arch.mbarrier_init(bars + 1, 32)
    arch.mbarrier_init_fence()
    arch.sync_threads()
    if arch.warp_idx() == 0:
        for step in range(steps):
            arch.mbarrier_wait(bars + 1, (step + 1) % 2)
            with arch.elect_one():
                arch.mbarrier_arrive(bars)
    else:
        for step in range(steps):
            arch.mbarrier_wait(bars, step % 2)
            arch.mbarrier_arrive(bars + 1)
    arch.barrier(barrier_id=3, number_of_threads=64)
    if thread == 0:
        x[block] = steps


@cute.jit
def _launch(x: cute.Tensor, blocks: Int32, steps: Int32):
    _roles(x, steps).launch(grid=(blocks, 1, 1), block=(64, 1, 1))


def _recorded(blocks: int, steps: int, sample: int) -> tuple[list[Launch], np.ndarray]:
    x = np.zeros(blocks, np.int32)
    with Recording(sample) as recording:
        _launch(x, blocks, steps)
    return recording.launches, x


def test_lanes_share_events_in_the_order_of_each():
    (launch,), x = _recorded(blocks=1, steps=3, sample=0)
    assert (launch.kernel, launch.blocks, list(x)) == ("roles", [0], [3])
    first, second = ([(event.site.kind, event.mask) for event in warp.events] for warp in launch.warps)
    every = 0xFFFFFFFF
    begin = [(Kind.FENCE, every), (Kind.BARRIER, every), (Kind.PASSED, every)]
    end = [(Kind.BARRIER, every), (Kind.PASSED, every)]
    # the elected lane arrives between the waits of all lanes, though the others run ahead of it
    inits = [(Kind.MBARRIER_INIT, 1)] * 2
    assert first == [*inits, *begin, *[(Kind.WAIT, every), (Kind.ARRIVE, 1)] * 3, *end]
    assert second == [*begin, *[(Kind.WAIT, every), (Kind.ARRIVE, every)] * 3, *end]
    waits = [event.values[1] for event in launch.warps[1].events if event.site.kind is Kind.WAIT]
    assert waits == [0, 1, 0]
    (line,) = {
        event.site.span.line for event in launch.warps[1].events if event.site.kind is Kind.WAIT and event.site.span
    }
    assert "bars, step % 2" in open(__file__).read().splitlines()[line - 1]


def test_some_blocks_of_a_grid_run_and_are_recorded():
    (launch,), x = _recorded(blocks=12, steps=1, sample=3)
    assert launch.blocks == [0, 4, 8] and len(launch.warps) == 6
    assert [index for index in range(12) if x[index]] == [0, 4, 8]
    _, x = _recorded(blocks=2, steps=1, sample=3)
    assert list(x) == [1, 1]


def test_launches_of_a_call_are_told_apart_and_others_run_whole():
    @cute.jit
    def twice(x: cute.Tensor):
        _roles(x, 1).launch(grid=(4, 1, 1), block=(64, 1, 1))
        _roles(x, 2).launch(grid=(6, 1, 1), block=(64, 1, 1))

    x = np.zeros(6, np.int32)
    with Recording(2) as recording:
        twice(x)
    assert [launch.blocks for launch in recording.launches] == [[0, 2], [0, 3]]
    twice(x)
    assert list(x) == [2] * 6


@cute.kernel
def _takes_tiles(counter: cute.Tensor, taken: cute.Tensor, tiles: Int32):
    """Each CTA begins with the tile of its number, and then asks the counter for others."""
    block = arch.block_idx()[0]
    tile = Int32(block)
    while tile < tiles:
        if arch.thread_idx()[0] == 0:
            taken[tile] = block + 1
            tile = arch.grid_dim()[0] + arch.atomic_add(counter.iterator, Int32(1))
        arch.sync_threads()
        tile = arch.shuffle_sync(tile, 0)


@cute.jit
def _launch_tiles(counter: cute.Tensor, taken: cute.Tensor, blocks: Int32, tiles: Int32):
    _takes_tiles(counter, taken, tiles).launch(grid=(blocks, 1, 1), block=(32, 1, 1))


def test_some_blocks_take_their_part_of_the_tiles_that_a_counter_hands_out():
    counter, taken = np.zeros(1, np.int32), np.zeros(40, np.int32)
    with Recording(2) as recording:
        _launch_tiles(counter, taken, 8, 40)
    (launch,) = recording.launches
    assert launch.blocks == [0, 4] and is_dynamic(launch)
    # five of 40 tiles for each of eight blocks; the first answer is the counter's, then all take turns
    assert [list(np.flatnonzero(taken == block + 1)) for block in launch.blocks] == [
        [0, 8, 16, 24, 32],
        [4, 9, 20, 28, 36],
    ]
    counter[0] = 0
    taken[:] = 0
    _launch_tiles(counter, taken, 8, 40)
    assert counter[0] == 40 and all(taken)


@cute.kernel
def _meets(counter: cute.Tensor, reached: cute.Tensor):
    """All CTAs wait until all have come: each looks at the counter without adding to it."""
    if arch.thread_idx()[0] == 0:
        arch.atomic_add(counter.iterator, Int32(1))
        while arch.atomic_add(counter.iterator, Int32(0)) < arch.grid_dim()[0]:
            pass
        reached[arch.block_idx()[0]] = 1


@cute.jit
def _launch_meeting(counter: cute.Tensor, reached: cute.Tensor):
    _meets(counter, reached).launch(grid=(4, 1, 1), block=(32, 1, 1))


def test_some_blocks_do_not_wait_for_others_that_do_not_run():
    counter, reached = np.zeros(1, np.int32), np.zeros(4, np.int32)
    with Recording(2) as recording:
        _launch_meeting(counter, reached)
    assert list(reached) == [1, 0, 1, 0] and recording.launches[0].blocks == [0, 2]
    assert not is_dynamic(recording.launches[0])
    counter[0] = 0
    with Recording(0) as recording:
        _launch_meeting(counter, reached)
    assert list(reached) == [1] * 4 and counter[0] == 4 and recording.launches[0].blocks == [0, 1, 2, 3]
