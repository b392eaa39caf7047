"""Registers of a warpgroup: which counts are refused, what a GPU is told, and that the CPU target has nothing to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int32, cute
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack


def roles(change: Any, few: Any = 24, many: Any = 240) -> Any:
    """A kernel whose first warpgroup gives registers back and whose second asks for more."""
    less, more = change

    @cute.kernel
    def kernel(x: cute.Tensor):
        thread = arch.thread_idx()[0]
        if thread < 128:
            less(few)
            x[thread] = Int32(1)
        else:
            more(many)
            x[thread] = Int32(2)

    @cute.jit
    def run(x: cute.Tensor):
        kernel(x).launch(grid=1, block=256, min_blocks_per_mp=1)

    return run


NEW = (arch.setmaxregister_decrease, arch.setmaxregister_increase)
OLD = (arch.warpgroup_reg_dealloc, arch.warpgroup_reg_alloc)


@pytest.mark.parametrize("names", [NEW, OLD])
def test_both_targets(names: Any) -> None:
    x = np.zeros(256, np.int32)
    with kiln.target("cpu"):
        roles(names)(from_dlpack(x))
    np.testing.assert_array_equal(x, np.repeat([1, 2], 128))
    ptx = cute.compile(roles(names), from_dlpack(x), target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert "setmaxnreg.dec.sync.aligned.u32 24;" in ptx
    assert "setmaxnreg.inc.sync.aligned.u32 240;" in ptx
    assert ".minnctapersm 1" in ptx  # without it, assemblers ignore the request


@pytest.mark.parametrize("count", [0, 16, 25, 264, -8, 24.0, True, None])
def test_counts_that_are_refused(count: Any) -> None:
    x = np.zeros(256, np.int32)
    with (
        kiln.target("cpu"),
        pytest.raises(TypeError, match=r"reg_count is .*\n(.*\n)*.*a multiple of 8 from 24 to 256"),
    ):
        roles(NEW, few=count)(from_dlpack(x))


def test_outside_a_kernel() -> None:
    @cute.jit
    def run():
        arch.setmaxregister_increase(240)

    with kiln.target("cpu"), pytest.raises(DSLRuntimeError, match="outside a kernel"):
        run()
