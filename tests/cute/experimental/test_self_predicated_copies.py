"""Copies that predicate themselves."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute, cutlass_dsl
from kiln.cute import experimental as cute_ext
from kiln.cute.nvgpu import tcgen05
from kiln.cute.runtime import from_dlpack

TV = ((8, 4), (4, 1)), ((4, 32), (1, 128))


@cute_ext.kernel
def add(x: cute.Tensor, out: cute.Tensor, addend: kiln.Float32):
    tiles = [cute.zipped_divide(t, (32, 16)) for t in (x, out)]
    bx, by, _ = cute.arch.block_idx()
    layout = cute.make_layout(TV[0], stride=TV[1])
    mine = [
        cute_ext.partition(t[(None, None), (bx, by)], cute.arch.thread_idx()[0], layout_tv=layout, tiler=(32, 4))
        for t in tiles
    ]
    held = cute_ext.allocate(
        kiln.Float32, cute.AddressSpace.rmem, cute.make_layout(((4, 1), (1, 4)), stride=((1, 4), (1, 4)))
    )
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kiln.Float32, num_bits_per_copy=128)
    cute_ext.copy(mine[0], held, copy_atom=atom)
    held.store(held.load() + addend)
    cute_ext.copy(held, mine[1], copy_atom=atom)


@cute_ext.jit
def main(x: cute.Tensor, out: cute.Tensor, addend: kiln.Float32):
    tiles = cute.tiled_divide(x, (32, 16))
    add(x, out, addend).launch(grid=(tiles.shape[1], tiles.shape[2], 1), block=32)


@pytest.mark.parametrize("divisibility", [4, 1])
def test_elements_outside_the_tensor_are_not_accessed(divisibility):
    """With a leading extent of no known multiple the copy goes element by element."""
    rows, columns = (36, 19) if divisibility == 4 else (35, 19)
    memory = np.full((2, columns, 40), -7.0, np.float32)
    x, out = (part[:, :rows].T for part in memory)
    x[:] = np.random.default_rng(0).random((rows, columns))
    arguments = [from_dlpack(t, assumed_align=4 * divisibility).mark_layout_dynamic(leading_dim=0) for t in (x, out)]
    if divisibility > 1:
        memory = np.full((2, columns * rows + 4), -7.0, np.float32)
        start = -memory.ctypes.data % 16 // 4
        x, out = (part[start : start + rows * columns].reshape(columns, rows).T for part in memory)
        x[:] = np.random.default_rng(0).random((rows, columns))
        arguments = [
            from_dlpack(t, assumed_align=16)
            .mark_layout_dynamic(leading_dim=0)
            .mark_compact_shape_dynamic(mode=0, stride_order=(1, 0), divisibility=4)
            for t in (x, out)
        ]
    with kiln.target("cpu"):
        main(*arguments, kiln.Float32(2.0))
    np.testing.assert_array_equal(out, x + np.float32(2))
    rest = memory.sum() + 0.0
    assert rest == memory.sum()
    assert (memory[1] == -7).sum() == memory[1].size - out.size


ROWS, COLUMNS = 100, 24
"""Within a tile of 128 x 32."""


@cute_ext.kernel
def scale(x: cute.Tensor, out: cute.Tensor):
    """Threads have the elements of a copy from tensor memory, and move them between global memory and registers."""
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), kiln.Float32)
    accumulators = cute.make_tensor(
        cute.make_ptr(kiln.Float32, 0, cute.AddressSpace.tmem, assumed_align=16),
        cute.make_layout((128, 32), stride=(1 << 16, 1)),
    )
    copies = tcgen05.make_tmem_copy(atom, accumulators)
    thread = copies.get_slice(cute.arch.thread_idx()[0])
    plain = cute.make_tiled_copy_D(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kiln.Float32), copies)
    tiles = [cute.flat_divide(t, (128, 32))[None, None, 0, 0] for t in (x, out)]
    held = cute_ext.allocate(
        kiln.Float32, cute.AddressSpace.rmem, cute.make_layout(thread.partition_D(tiles[1]).shape), alignment=32
    )
    cute_ext.partition_and_copy(plain.get_slice(cute.arch.thread_idx()[0]), tiles[0], held)
    held.store(held.load() * 2)
    cute_ext.partition_and_copy(thread, held, tiles[1])


@cute_ext.jit
def scale_all(x: cute.Tensor, out: cute.Tensor):
    scale(x, out).launch(grid=1, block=128)


def test_a_slice_of_a_copy_from_tensor_memory_says_which_elements_a_thread_has(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    memory = np.full((2, 128, 32), -7.0, np.float32)
    x, out = (part[:ROWS, :COLUMNS] for part in memory)
    x[:] = np.random.default_rng(0).random(x.shape)
    with kiln.target("cpu"):
        scale_all(*(from_dlpack(t).mark_layout_dynamic(leading_dim=1) for t in (x, out)))
    np.testing.assert_array_equal(out, 2 * x)
    assert (memory[1] == -7).sum() == memory[1].size - out.size


def test_the_class_of_the_language_has_its_decorators():
    language = cutlass_dsl.CuteExperimentalDSL

    @language.kernel
    def write(out: cute.Tensor):
        out[cute.arch.thread_idx()[0]] = 7

    @language.jit
    def launch(out: cute.Tensor):
        write(out).launch(grid=1, block=4)

    out = np.zeros(4, np.int32)
    language.compile(launch, out)(out)
    assert out.tolist() == [7] * 4
    assert language._get_dsl().get_arch_enum() is cutlass_dsl.CuTeDSL._get_dsl().get_arch_enum()
