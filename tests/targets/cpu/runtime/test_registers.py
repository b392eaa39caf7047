"""`setmaxnreg`: registers that warpgroups give back and ask for."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import run

from kiln import cute
from kiln.cute import arch
from kiln.targets.cpu.faults import WarpGroupFault
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault


def launch(producer: int, consumer: int, threads: int = 384, who: int = 4, blocks: int | None = 1) -> None:
    """Warps 0 to `who` - 1 of the first warpgroup give registers back, the others ask for more."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t < 128:
            if t < 32 * who:
                arch.setmaxregister_decrease(producer)
        else:
            arch.setmaxregister_increase(consumer)
        out[t] = t

    out = np.zeros(threads, np.int32)
    run(kernel, out, block=threads, min_blocks_per_mp=blocks)
    np.testing.assert_array_equal(out, np.arange(threads))


@pytest.mark.parametrize(("producer", "consumer", "threads"), [(24, 240, 384), (40, 232, 384), (32, 160, 512)])
def test_what_fits(producer, consumer, threads):
    launch(producer, consumer, threads)


def test_more_than_the_pool_has():
    with pytest.raises(
        DeadlockFault, match=r"setmaxnreg.inc to 240 \(the block needs 65536 registers, its pool has 64512\)"
    ):
        launch(32, 240)
    launch(32, 240, blocks=None)  # nothing says how many there are


def test_up_by_going_down():
    with pytest.raises(WarpGroupFault, match=r"setmaxnreg.dec to 176 registers by threads that have 168"):
        launch(176, 168)


def test_part_of_a_warp_group():
    with pytest.raises(DeadlockFault, match=r"setmaxnreg \(it is not executed by the whole warpgroup\)"):
        launch(24, 240, who=1)


def test_part_of_a_warp_group_may_ask_for_what_it_has():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t < 128:
            arch.setmaxregister_decrease(24)
            if t >= 64:
                arch.setmaxregister_decrease(24)
        else:
            arch.setmaxregister_increase(240)
        out[t] = t

    out = np.zeros(384, np.int32)
    run(kernel, out, block=384, min_blocks_per_mp=1)
    np.testing.assert_array_equal(out, np.arange(384))
