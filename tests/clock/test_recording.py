"""What the warps of kernels did, as it is recorded on the CPU target."""

from __future__ import annotations

import numpy as np
import pytest

from kiln import DSLRuntimeError, Int32, Int64, cute
from kiln.clock.chip import is_dynamic
from kiln.clock.recording import Launch, Recording
from kiln.cute import arch
from kiln.kernels.dispatch import arrays
from kiln.targets.cpu.event_recorder import Kind
from kiln.utils import distributed


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


@cute.kernel
def _waits_for_turn(ready: cute.Tensor, out: cute.Tensor, typed: cute.Tensor, turns: Int32):
    """Each CTA waits for `turns` others, in memory of two types."""
    if arch.thread_idx()[0] == 0:
        while arch.load(ready.iterator, Int32, sem="acquire", scope="gpu") < turns:
            pass
        while arch.load(typed.iterator, typed.element_type, sem="acquire", scope="gpu") == 0:
            arch.nanosleep(10)
        out[arch.block_idx()[0]] = 1


@cute.jit
def _launch_turns(ready: cute.Tensor, out: cute.Tensor, typed: cute.Tensor, turns: Int32):
    _waits_for_turn(ready, out, typed, turns).launch(grid=(4, 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_what_others_are_assumed_to_add_has_the_width_of_the_load_and_is_taken_back(dtype: type):
    ready, out, typed = np.zeros(1, np.int32), np.zeros(4, np.int32), np.zeros(4, dtype)
    typed[1:] = 7
    with Recording(2):
        _launch_turns(ready, out, typed, 3)
    assert list(out) == [1, 0, 1, 0] and ready[0] == 0 and list(typed) == [0, 7, 7, 7]


def test_a_wait_that_sees_no_end_is_an_error_with_its_line():
    # as memory that nobody has set may be
    ready, out, typed = np.full(1, -1_000_000_000, np.int32), np.zeros(4, np.int32), np.ones(1, np.int32)
    with Recording(2), pytest.raises(DSLRuntimeError, match=r"ordered load at 0x\w+ waits for CTAs") as caught:
        _launch_turns(ready, out, typed, 3)
    assert "while arch.load(ready.iterator" in str(caught.value) and ready[0] == -1_000_000_000
    flag = np.zeros(1, np.float32)
    with Recording(2), pytest.raises(DSLRuntimeError, match="waits for CTAs"):
        _launch_turns(ready * 0, out, flag, 0)
    assert flag[0] == 0


@cute.kernel
def _counts(count: cute.Tensor, out: cute.Tensor):
    i = Int32(0)
    while i < arch.load(count.iterator, Int32, sem="relaxed", scope="gpu"):
        i += 1
    out[arch.block_idx()[0]] = i


@cute.jit
def _launch_counts(count: cute.Tensor, out: cute.Tensor):
    _counts(count, out).launch(grid=(4, 1, 1), block=(1, 1, 1))


def test_a_loop_that_goes_on_by_itself_waits_for_nobody():
    count, out = np.full(1, 1000, np.int32), np.zeros(4, np.int32)
    with Recording(2):
        _launch_counts(count, out)
    assert list(out) == [1000, 0, 1000, 0] and count[0] == 1000


@cute.kernel
def _swaps(lock: cute.Tensor, out: cute.Tensor):
    if arch.thread_idx()[0] == 0:
        distributed.spin_lock_atom_cas_acquire_wait(lock.iterator, expected_val=5, reset_val=9, scope="gpu")
        out[arch.block_idx()[0]] = 1


@cute.jit
def _launch_swaps(lock: cute.Tensor, out: cute.Tensor):
    _swaps(lock, out).launch(grid=(4, 1, 1), block=(32, 1, 1))


def test_a_lock_that_waits_for_a_value_gets_it():
    lock, out = np.zeros(1, np.int32), np.zeros(4, np.int32)
    with Recording(2):
        _launch_swaps(lock, out)
    assert list(out) == [1, 0, 1, 0] and lock[0] == 9


@cute.kernel
def _other_counters(counters: cute.Tensor, out: cute.Tensor, tiles: Int32):
    """Counters that hand out no tiles: in shared memory, one of each CTA, and one whose number is not used."""
    block, thread = arch.block_idx()[0], arch.thread_idx()[0]
    own = arch.alloc_smem(Int32, 1)
    if thread == 0:
        cute.make_tensor(own, cute.make_layout(1))[0] = 0
        taken = Int32(0)
        while taken < tiles:
            taken = arch.atomic_add(own, Int32(1))
        out[block] = taken
        taken = Int32(0)
        while taken < tiles:
            taken = arch.atomic_add(counters.iterator + 1 + block, Int32(1))
        while taken > 0:
            arch.atomic_add(counters.iterator, Int32(1))
            taken -= 1


@cute.jit
def _launch_others(counters: cute.Tensor, out: cute.Tensor, tiles: Int32):
    _other_counters(counters, out, tiles).launch(grid=(4, 1, 1), block=(32, 1, 1))


def test_counters_that_hand_out_no_tiles_are_added_to():
    counters, out = np.zeros(5, np.int32), np.zeros(4, np.int32)
    with Recording(2) as recording:
        _launch_others(counters, out, 6)
    assert list(out) == [6, 0, 6, 0] and list(counters) == [12, 7, 0, 7, 0]
    assert not is_dynamic(recording.launches[0])


@cute.kernel
def _barrier_in_rounds(counter: cute.Tensor, out: cute.Tensor, rounds: Int32):
    """All CTAs come and wait for each other, in each round."""
    if arch.thread_idx()[0] == 0:
        came = Int32(0)
        while came < rounds:
            came += 1
            old = arch.atomic_add(counter.iterator, Int32(1))
            out[arch.block_idx()[0]] = old
            while arch.load(counter.iterator, Int32, sem="acquire", scope="gpu") < came * arch.grid_dim()[0]:
                pass


@pytest.mark.parametrize(("sample", "cooperative"), [(0, False), (4, False), (2, True)])
def test_where_all_blocks_run_nothing_is_assumed_of_others(sample: int, cooperative: bool):
    @cute.jit
    def launch(counter: cute.Tensor, out: cute.Tensor):
        _barrier_in_rounds(counter, out, 3).launch(grid=(4, 1, 1), block=(32, 1, 1), cooperative=cooperative)

    counter, out = np.zeros(1, np.int32), np.zeros(4, np.int32)
    with Recording(sample):
        launch(counter, out)
    assert counter[0] == 12 and sorted(out) == [8, 9, 10, 11]


@cute.kernel
def _takes_all(counter: cute.Tensor, taken: cute.Tensor, tiles: Int32):
    """Each CTA asks the counter for its first tile, too."""
    if arch.thread_idx()[0] == 0:
        tile = arch.atomic_add(counter.iterator, Int32(1))
        while tile < tiles:
            taken[tile] = arch.block_idx()[0] + 1
            again = cute.make_tensor(counter.iterator, cute.make_layout(tiles))
            tile = arch.atomic_add(again.iterator, Int32(1))


@cute.jit
def _launch_all(counter: cute.Tensor, taken: cute.Tensor, blocks: Int32, tiles: Int32):
    _takes_all(counter, taken, tiles).launch(grid=(blocks, 1, 1), block=(32, 1, 1))


def test_the_first_tile_of_a_block_counts_as_one_of_its_part():
    counter, taken = np.zeros(1, np.int32), np.zeros(40, np.int32)
    with Recording(2) as recording:
        _launch_all(counter, taken, 8, 40)
    assert [np.count_nonzero(taken == block + 1) for block in recording.launches[0].blocks] == [5, 5]


def test_scratch_memory_of_the_library_has_zeros_while_events_are_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(np, "empty", np.ones)
    like = np.zeros(1, np.int32)
    with Recording(2):
        assert not any(arrays.empty(like, (4,), None))
    assert all(arrays.empty(like, (4,), None))
