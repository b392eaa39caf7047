"""Tiled copies made from tiled MMAs, from other tiled copies, and from the offsets of data, by what each thread holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import BFloat16, Float16, Float32, cute
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.nvgpu import CopyUniversalOp, warp
from kiln.cute.runtime import from_dlpack

MMA = warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16))
TILINGS = {
    "one warp": lambda: cute.make_tiled_mma(MMA),
    "four warps": lambda: cute.make_tiled_mma(MMA, (2, 2, 1), (32, 32, 16)),
    "warps along k": lambda: cute.make_tiled_mma(MMA, (1, 2, 2)),
    "bfloat16, permuted": lambda: cute.make_tiled_mma(
        warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)), (4, 1, 1), (64, 16, 16)
    ),
}


def held(layout: Any) -> list[list[int]]:
    """The indices of the tile that each thread holds, by value."""
    return [[layout((t, v)) for v in range(cute.size(layout[1]))] for t in range(cute.size(layout[0]))]


def in_tile(tiled: Any, layout: Any, shape: tuple[int, ...]) -> list[list[int]]:
    """The indices in a whole of `shape` that each thread holds of the tile that the copy's tiler picks."""
    picked = cute.composition(cute.make_layout(shape), tiled.tiler_mn)
    return [[picked(i) for i in row] for row in held(layout)]


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("operand", "ABC")
@pytest.mark.parametrize("bits", [16, 32])
def test_a_copy_of_an_operand_holds_what_the_mma_holds(tiling: str, operand: str, bits: int):
    mma = TILINGS[tiling]()
    dtype = Float32 if operand == "C" else Float16
    atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=max(bits, dtype.width))
    made = getattr(cute, f"make_tiled_copy_{operand}")(atom, mma)
    wanted = held(getattr(mma, f"tv_layout_{operand}_tiled"))
    i, j = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    assert cute.product_each(cute.shape(made.tiler_mn)) == (mma.get_tile_size(i), mma.get_tile_size(j))
    assert made.size == mma.size
    assert held(made.layout_src_tv_tiled) == held(made.layout_dst_tv_tiled) == wanted


@pytest.mark.parametrize("tiling", ["one warp", "four warps", "bfloat16, permuted"])
def test_the_smallest_copy_of_c(tiling: str):
    mma = TILINGS[tiling]()
    atom = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=64)
    made = cute.make_tiled_copy_C_atom(atom, mma)
    shape = (mma.get_tile_size(0), mma.get_tile_size(1))
    assert in_tile(made, made.layout_src_tv_tiled, shape) == [row[:2] for row in held(mma.tv_layout_C_tiled)]


def test_copies_like_the_ends_of_another():
    """An atom over what another copy's threads have as sources, or as destinations."""
    mma = TILINGS["four warps"]()
    first = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float16), mma)
    plain = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=16)
    source, destination = cute.make_tiled_copy_S(plain, first), cute.make_tiled_copy_D(plain, first)
    assert held(source.layout_src_tv_tiled) == held(first.layout_src_tv_tiled)
    assert held(destination.layout_dst_tv_tiled) == held(first.layout_dst_tv_tiled) == held(mma.tv_layout_A_tiled)
    assert held(source.layout_src_tv_tiled) != held(destination.layout_src_tv_tiled)
    assert source.tiler_mn == destination.tiler_mn == first.tiler_mn


@pytest.mark.parametrize(
    "data",
    [
        cute.make_layout((16, 32)),
        cute.make_layout((16, 32), stride=(32, 1)),
        cute.make_layout((8, 64), stride=(64, 1)),
        cute.make_layout(((4, 4), 32), stride=((1, 128), 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "tv", [cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((64, 2), stride=(2, 1))], ids=str
)
def test_a_copy_by_offsets_of_the_data(data: Any, tv: Any):
    atom = cute.make_copy_atom(CopyUniversalOp(), Float32)
    made = cute.make_cotiled_copy(atom, tv, data)
    picked = cute.composition(data, made.tiler_mn)
    layout = made.layout_src_tv_tiled
    assert [[picked(i) for i in row] for row in held(layout)] == held(tv)


def test_data_that_has_no_coordinate_for_an_offset():
    atom = cute.make_copy_atom(CopyUniversalOp(), Float32)
    with pytest.raises(ValueError, match="injective"):
        cute.make_cotiled_copy(atom, cute.make_layout((4, 2)), cute.make_layout((4, 4), stride=(1, 2)))


@cute.kernel
def through_c(source: cute.Tensor, target: cute.Tensor, mma: cute.TiledMma):
    """Registers filled by one copy of C's layout and emptied by another."""
    thread, _, _ = cute.arch.thread_idx()
    wide = cute.make_tiled_copy_C(cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=64), mma)
    narrow = cute.make_tiled_copy_S(cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32), wide)
    part = wide.get_slice(thread).partition_S(source)
    registers = cute.make_fragment_like(part)
    cute.copy(wide, part, registers)
    registers.store(registers.load() + 1)
    out = narrow.get_slice(thread).partition_D(target)
    cute.copy(narrow, narrow.get_slice(thread).retile(registers), out)


@cute.jit
def launch(source: cute.Tensor, target: cute.Tensor):
    mma = cute.make_tiled_mma(MMA, (2, 2, 1), (32, 32, 16))
    through_c(source, target, mma).launch(grid=1, block=mma.size)


def test_what_one_copy_reads_another_writes():
    source = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    target = np.zeros_like(source)
    with kiln.target("cpu"):
        launch(from_dlpack(source, assumed_align=8), from_dlpack(target))
    assert np.array_equal(target, source + 1)


def test_tilers_are_tiles_of_layouts():
    atom = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=128)
    tiled = cute.make_tiled_copy_tv(atom, cute.make_layout((16, 8), stride=(8, 1)), cute.make_layout((1, 8)))
    assert str(tiled.tiler_mn) == "(16:1, 64:1)"
    assert [mode.shape for mode in tiled.tiler_mn] == [16, 64]
    assert "Tiler MN:        (16:1,64:1)" in str(tiled)
    order = cute.make_layout((4, 8), stride=(8, 1))
    mma = cute.make_tiled_mma(
        warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)), (2, 2, 1), permutation_mnk=(32, order, None)
    )
    assert str(mma.permutation_mnk) == "(32:1, (4,8):(8,1), None)"
    assert mma.get_tile_size(1) == 32


def test_more_matrices_than_the_operand_has():
    """Such a copy shows what a lane's row would be, and is refused where registers would have to hold what it loads."""
    says = []

    @cute.kernel
    def kernel(how: kiln.Constexpr):
        thread = cute.arch.thread_idx()[0]
        mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float16)
        tiled = cute.make_tiled_copy_B(atom, mma).get_slice(thread)
        memory = cute.arch.alloc_smem(Float16, 64 * 32, alignment=16)
        tile = cute.make_tensor(memory, cute.make_layout((64, 32), stride=(32, 1)))
        rows = tiled.partition_S(tile)
        says.append(str(rows.layout))
        held = mma.make_fragment_B(mma.get_slice(thread).partition_B(tile))
        cute.copy(tiled, rows, tiled.retile(held) if how == "retile" else held)

    @cute.jit
    def f(how: kiln.Constexpr):
        kernel(how).launch(grid=1, block=32)

    for how in ("retile", "copy"):
        with pytest.raises(DSLUserCodeTypeError, match="has 8 values for a thread, which has 4 in a tile"):
            f(how)
    assert says == ["((8,1),8,2):((1,0),256,16)"] * 2
