"""Kernels with `tcgen05.mma` on the CPU target: operands, pairs, commits, late completion, and faults."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from kernel_testing import launcher, run, runs
from nvidia_testing import compile_for, needs_ptxas
from tcgen05_testing import allocate, free, holder
from umma_kernels import COLUMNS, KERNELS, check_kernel, issue, kernel_of, launch_options
from umma_testing import SMEM, Case, Ctas

from kiln import cute
from kiln.cute import arch
from kiln.dialects.nvgpu import definitions
from kiln.targets.cpu.faults import TensorMemoryFault

SCHEDULES = [(1, 0), (2, 1), (1, 2)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("case", KERNELS, ids=lambda case: f"{case.kind}-{case.cta_group}")
def test_kernels(case):
    check_kernel(case, functools.partial(runs, schedules=SCHEDULES))


@needs_ptxas
@pytest.mark.parametrize("case", KERNELS, ids=lambda case: f"{case.kind}-{case.cta_group}")
def test_kernels_for_a_gpu(case):
    """ptxas takes what `tests/gpu/test_gpu_blackwell.py` runs."""
    cells, image = np.zeros((case.cta_group, 128, COLUMNS), np.int32), np.zeros((case.cta_group, SMEM // 4), np.int32)
    function = launcher(kernel_of(case), 3, **launch_options(case))
    compile_for(function, image, cells, cells, arch="sm_100a")


def test_what_is_wrong_is_a_fault_with_its_line():
    """The instruction descriptor, a descriptor's swizzle, and where operands lie are known only when it runs."""
    case = Case("f16", "f16", "f16", 128, 16)

    @cute.kernel
    def kernel(given: cute.Tensor):
        place = holder()
        t = arch.thread_idx()[0]
        smem = arch.alloc_smem(cute.Int32, 1024, 1024)
        address = allocate(place, COLUMNS)
        if t == 0:
            b = cute.Int64(given[1]) << 32 | cute.Int64(given[2])
            issue(case, smem, cute.Int32(given[0]).ir_value(), False, b)
        free(address, COLUMNS)

    high, low = case.descriptor(False) >> 32, case.descriptor(False) & 0x3FFFFFFF
    for numbers, words in (
        ((case.idesc | 4, high, low), r"bit 2 is 1: it is 1 for tcgen05.mma.sp, whose A is sparse"),
        ((case.idesc & ~(31 << 24), high, low), r"descriptor 0x00040010, whose m is 0: tcgen05.mma of kind::f16"),
        ((case.idesc, high | 1 << 29, low), r"has a wrong descriptor of B"),
        ((case.idesc, high, low), r"has an operand that does not lie in the shared memory of its CTA"),
    ):
        with pytest.raises(TensorMemoryFault, match=words) as raised:
            run(kernel, np.array(numbers, np.uint32).view(np.int32), block=32)
        assert "umma_kernels.py:" in str(raised.value)


def test_the_definitions_of_the_dialect_are_those_of_tcgen05():
    ctas, case = Ctas(1), Case("f16", "f16", "f16", 64, 8)
    case.place(ctas, np.full((64, 16), 0x3C00), np.full((8, 16), 0x4000))
    record = case.record(False)
    found = definitions.tcgen05_mma("f16", case.idesc, ctas.memory(), record.d, record.a, record.b, False)
    assert len(found) == 512 and set(found.values()) == {0x42000000}  # 32
