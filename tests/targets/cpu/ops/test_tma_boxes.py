"""Boxes of tensors between global and shared memory, against a model in numpy, under several schedules."""

from __future__ import annotations

import numpy as np
import pytest
from tma_testing import Box, Map, coordinates, tile

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.targets.cpu.runtime import parts

SEEDS = (0, 1, 2)


def launched(main, *arrays, seeds=SEEDS):
    """Run a program under several schedules: fresh copies of the arrays, afterwards."""
    for seed in seeds:
        copies = [array.copy() for array in arrays]
        with kiln.target("cpu"):
            parts.set_seed(seed)
            try:
                main(*copies)
            finally:
                parts.set_seed(0)
        yield copies


def loads(box: Box, at: tuple[int, ...], offsets: tuple[int, ...] = ()):
    """A program that loads a box and writes what lies in shared memory then."""
    size = -(-box.bytes // 1024) * 1024

    @cute.kernel
    def kernel(map_: Map, out: cute.Tensor):
        t = arch.thread_idx()[0]
        shared, full = tile(box.bytes), arch.alloc_smem(cute.Int64, 1)
        for i in range(t, size, 32):
            shared[i] = cute.Uint8(0)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, box.bytes)
            nvgpu.tma.tma_load(
                map_.address(), shared.iterator.ir_value(), full.ir_value(), coordinates(*at),
                offsets=[cute.Int16(o).ir_value() for o in offsets],
            )  # fmt: skip
        arch.mbarrier_wait(full, 0)
        for i in range(t, size, 32):
            out[i] = shared[i]

    @cute.jit
    def main(tensor: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(tensor), out).launch(grid=1, block=32)

    return main, np.zeros(size, np.uint8)


BOXES = [
    (Box("f16", (64, 40), (64, 32), "128b"), (0, 8)),
    (Box("f16", (100, 40), (32, 16), "64b"), (80, 30)),
    (Box("u8", (48, 20, 5), (32, 8, 2), "32b"), (-16, -3, 4)),
    (Box("f32", (33, 7), (16, 4)), (20, 5)),
]


@pytest.mark.parametrize(("box", "at"), BOXES)
def test_loads(box, at):
    memory = np.random.default_rng(1).integers(0, 256, box.memory, np.uint8)
    main, out = loads(box, at)
    for _, got in launched(main, memory, out):
        np.testing.assert_array_equal(got[: box.bytes], box.load(memory, at)[: box.bytes])
