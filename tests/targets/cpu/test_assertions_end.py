"""After an assertion that fails nothing more is done: by the thread, by host code, by launches behind it."""

from __future__ import annotations

import numpy as np
import pytest

import kiln.cute as cute
from kiln import Int32, target
from kiln.targets.host.faults import AssertionFault


@cute.kernel
def _kernel(out: cute.Tensor, limit: Int32, synchronizes: cute.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    for i in range(8):
        assert thread != 5 or i < limit, "too far"
        if synchronizes:
            cute.arch.sync_threads()
        out[thread] = i


@cute.jit
def _launch(out: cute.Tensor, limit: Int32, synchronizes: cute.Constexpr):
    _kernel(out, limit, synchronizes).launch(grid=(1, 1, 1), block=(32, 1, 1))
    out[32] = 1


@cute.jit
def _host(out: cute.Tensor, limit: Int32):
    total = Int32(0)
    for i in range(8):
        assert i < limit, "too far"
        out[i] = i
        total += i
    _kernel(out, 8, False).launch(grid=(1, 1, 1), block=(32, 1, 1))
    return total, limit


@pytest.mark.parametrize("synchronizes", [False, True])
def test_a_thread_ends(synchronizes):
    with target("cpu"):
        out = np.full(33, -1, np.int32)
        _launch(out, 8, synchronizes)
        assert (out == [*[7] * 32, 1]).all()
        out[:] = -1
        with pytest.raises(AssertionFault, match=r"too far \(kernel kernel, block \(0, 0, 0\), thread \(5, 0, 0\)\)"):
            _launch(out, 3, synchronizes)
        assert out[5] == 2


def test_host_code_ends():
    with target("cpu"):
        out = np.full(32, -1, np.int32)
        assert _host(out, 8) == (28, 8)
        out[:] = -1
        with pytest.raises(AssertionFault, match="too far"):
            _host(out, 3)
        assert (out == [0, 1, 2, *[-1] * 29]).all()


def test_what_is_said_may_have_percent_signs():
    @cute.jit
    def halves(n: Int32):
        assert n % 2 == 0

    with target("cpu"):
        halves(4)
        with pytest.raises(AssertionFault, match="assertion failed: n % 2 == 0"):
            halves(5)
